"""Which steps are affine in their noise and the record, and what no noise reaches."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, ThreatModel, broadcast
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import Nonlinear, nonlinearity
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.selftest.bugs import BUGS
from dpaudit.selftest.correct import PrivateGossip, State

EAVESDROPPER = ThreatModel(name="eavesdropper")
SETTING = Setting(build_graph("ring", 4), (8,) * 4, 1)


def found(defense: Any, n_rounds: int = 3) -> Nonlinear | None:
    defense = defense.calibrate(SETTING)
    adjacency = "add-remove" if defense.function_distance() is None else "function"
    return nonlinearity(Game.of(defense, SETTING, 0, adjacency), EAVESDROPPER, n_rounds)


class Processed(PrivateGossip):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = self.processed(self.noised(S, k, noise), S) / self.batch_size
        return self.after(S, state.V - self.learning_rate * G, graph)

    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy


class DividedByNoisyNorm(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy / noisy.norm(dim=-1, keepdim=True)


class NoisyClipped(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy * (self.clip_norm / noisy.norm(dim=-1, keepdim=True)).clamp(max=1)


class Rounded(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return (noisy / 2**-20).round() * 2**-20


class NoisyMasked(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy * (noisy.abs() > 0.1)


class CleanMasked(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy * (clean.abs() > 0)


class Lasting(Processed):
    """Linear in the noise of a round, and not in what the rounds before left of it."""

    def start(self, X: Tensor, setting: Setting) -> Any:
        return State(X, X)

    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        return Round(State(X, graph.mix(X.tanh())), {"x": broadcast(graph, X)})


class CleanSignBeside(NoisyMasked):
    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        played = super().after(S, X, graph)
        return played._replace(sent={**played.sent, "sign": broadcast(graph, S.sign())})


class NoisySignBeside(Processed):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        played = super().step(state, k, graph, gradient, noise)
        moved = (played.sent["x"].payload - state.V).sign()
        return played._replace(sent={**played.sent, "sign": broadcast(graph, moved)})


@pytest.mark.parametrize(
    "defense", [DividedByNoisyNorm, NoisyClipped, Rounded, NoisyMasked, CleanMasked, Lasting]
)
def test_what_is_not_linear_is_found_and_shows_nothing_bare(defense: Any) -> None:
    nonlinear = found(defense(noise_multiplier=0.1))
    assert nonlinear is not None
    assert nonlinear.message in ("x", "state")
    assert nonlinear.affine == frozenset()
    assert nonlinear.noiseless is None
    assert nonlinear.defined == (defense is not DividedByNoisyNorm)


def test_the_effect_of_noise_may_depend_on_the_record_alone() -> None:
    assert found(CleanMasked()).quiet
    assert not found(NoisyMasked()).quiet


def test_a_value_that_no_noise_reaches_is_bare() -> None:
    assert found(CleanSignBeside()).noiseless == (1, "sign")


def test_a_linear_message_beside_others_is_named() -> None:
    nonlinear = found(NoisySignBeside())
    assert nonlinear.message == "sign"
    assert nonlinear.affine == {"x"}
    assert nonlinear.noiseless is None


@pytest.mark.parametrize("defense", [b.twin.defense for b in BUGS[:-1]], ids=lambda d: str(d)[:40])
def test_the_linear_twins_of_planted_bugs_are_linear(defense: Any) -> None:
    assert found(defense, defense.n_rounds) is None


@pytest.mark.parametrize("name", ["adp-vrsgp", "dp-dgd", "dyn-d2p", "sensitivity-reduced"])
def test_linear_defenses_are_linear(name: str) -> None:
    given = {
        "dyn-d2p": {"noise_multiplier": 1.0},
        "adp-vrsgp": {"epsilon": 1e-3},
        "sensitivity-reduced": {"correction": 500.0},
    }
    cls = load_plugin("defenses", name)
    assert found(cls(n_rounds=4, batch_size=1, **given.get(name, {}))) is None


def test_the_momentum_of_dpdl_holds_noise_times_the_record() -> None:
    nonlinear = found(load_plugin("defenses", "dpdl")(noise_multiplier=1.0, batch_size=4))
    assert nonlinear.affine == {"cross_gradient"}
    assert nonlinear.quiet


class Overflows(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy + torch.inf


class OwnRandomness(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy + torch.randn_like(noisy)


@pytest.mark.parametrize("defense", [Overflows, OwnRandomness])
def test_what_overflows_is_not_called_nonlinear(defense: Any) -> None:
    assert found(defense()) is None
