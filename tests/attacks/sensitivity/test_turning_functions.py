"""Functions whose gradients differ by the stated distance, in a direction that turns around."""

from typing import Any

import numpy as np
import pytest

import dpaudit
from dpaudit.defense import Gradient, Graph, Noise, Round, broadcast
from dpaudit.defenses.sensitivity_reduced import SensitivityReduced, State
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.verdict import Verdict

STEP, CORRECTION = 0.5, 0.5


class CorrectedByItself(SensitivityReduced):
    """The tracker takes the model before its noise, so that a change of the function stays in it.

    Linear functions move z(3) by less than is stated: what is tracked works against their gradient.
    """

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, Y = state
        Z = X + noise.laplace("z", self.nu(k), X)
        Y = Y + self.correction * (X - graph.mix(X))
        G = gradient(Z)
        X = graph.mix(Z) - self.alpha(k) * (Y + G)
        return Round(State(X, Y), {"z": broadcast(graph, Z)}, {"gradient": G})


def audited(defense: SensitivityReduced) -> tuple[Verdict, Finding]:
    """The verdict, and how far a change of the function moves z."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (80, 4, 4), dtype=np.uint8), np.arange(80) % 4
    setting = {
        "data": {"n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "claim": [{"text": "c", "epsilon": 1.0, "delta": 0.0, "adjacency": "function"}],
    }
    result = dpaudit.audit(setting, defense=defense, data=(x, y), cores=1)
    [moved] = [
        f for f in result.findings if f.role is Role.SENSITIVITY and f.adjacency == "function"
    ]
    return result.claims[0].verdict, moved


OPTIONS: dict[str, Any] = {
    "n_rounds": 3, "batch_size": 8, "step_size": STEP, "correction": CORRECTION
}  # fmt: skip


def test_a_change_that_turns_around_moves_a_tracker_further() -> None:
    """z(3) by alpha_2 (1 + beta (1 - w_ii) alpha_1), where alpha_2 is stated."""
    verdict, moved = audited(CorrectedByItself(**OPTIONS))
    expected = 1 + CORRECTION * (1 - 1 / 3) * STEP  # w_ii of Metropolis weights on a ring
    assert moved.metrics[Name.MEASURED_OVER_STATED].value == pytest.approx(expected, rel=1e-6)
    assert verdict is Verdict.UNSUPPORTED
    assert "worst in round 3 by one coordinate that turns around in each round" in str(moved.notes)


def test_a_change_that_turns_around_stays_within_a_right_bound() -> None:
    verdict, moved = audited(SensitivityReduced(**OPTIONS))
    assert moved.metrics[Name.MEASURED_OVER_STATED].value == pytest.approx(1, rel=1e-6)
    assert verdict is Verdict.SUPPORTED
