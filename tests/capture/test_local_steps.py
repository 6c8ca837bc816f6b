"""Weights, and changes of weights, after local steps: what is measured is the closed form."""

import math
from pathlib import Path

import numpy as np
import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name
from dpaudit.files.result import AuditResult

PROGRAMS = Path(__file__).parent / "programs"
SIZE, RATE = 40, 0.1
CURVATURE = np.linspace(0.5, 1.5, SIZE)
SIGMA = 2.0


def audited(out: Path, *arguments: str) -> AuditResult:
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "local_steps.py", *arguments), "folder": PROGRAMS},
            "record": {"victims": (0,), "candidates": ("present", "negated"), "rounds": (1,)},
            "certify": {"runs": 0},
            "claim": ({"text": "mu = 1", "mu": 1.0, "scope": "round", "adjacency": "replace-one"},),
        }
    )
    return run_captured(config, out, cores=1)


def mu_of(result: AuditResult) -> float:
    [found] = [f for f in result.findings if Name.LARGEST_MU_OF_A_ROUND in f.metrics]
    return found.metrics[Name.LARGEST_MU_OF_A_ROUND].value


def record() -> np.ndarray:
    """The first record of agent 0 in round 1."""
    rng = np.random.default_rng(5)
    rng.normal(size=SIZE)
    return rng.normal(size=SIZE)


def closed_form(steps: int, noise: str, once: bool) -> float:
    """The record r against -10 r: its gradients differ by -11 CURVATURE r.

    A step multiplies what was before by q = 1 - RATE b CURVATURE for b records in a batch. The
    message moves by RATE 11 CURVATURE r (q^(H-1) + ... + 1), or q^(H-1) where it is in the first
    batch alone. Its noise has RATE^2 SIGMA^2 (q^(2 H-2) + ... + 1), or SIGMA^2 if it is fresh.
    """
    q = 1 - RATE * (1 if once else steps) * CURVATURE
    powers = [q**h for h in range(steps)]
    moved = RATE * 11 * CURVATURE * record() * (powers[-1] if once else sum(powers))
    variance = RATE**2 * sum(p**2 for p in powers) if noise == "steps" else 1.0
    return float(np.sqrt((moved**2 / variance).sum())) / SIGMA


def slow(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("sends", "steps", "noise", "once"),
    [
        ("weights", 3, "steps", False),
        slow("updates", 3, "message", False),
        *(
            slow(sends, *case)
            for sends in ("weights", "updates")
            for case in ((1, "steps", False), (3, "steps", True), (3, "message", True))
        ),
    ],
)
def test_a_record_moves_a_round_as_the_closed_form_says(
    tmp_path: Path, sends: str, steps: int, noise: str, once: bool
) -> None:
    given = [sends, str(steps), str(SIGMA), noise, *["once"] * once]
    assert math.isclose(
        mu_of(audited(tmp_path, *given)), closed_form(steps, noise, once), rel_tol=1e-5
    )


EVALUATED = """
import numpy as np
from dpaudit import tap

rng = np.random.default_rng(3)
for agent in range(2):
    tap.batch(agent, np.ones((2, 24)))  # of an evaluation, whose result stays here
    x = tap.batch(agent, np.eye(24)[:3])
    noise = tap.noise(agent, "z", rng.normal(0.0, 0.5, 24), 0.5)  # of two layers
    for name, layer in (("a", slice(0, 16)), ("b", slice(16, 24))):
        tap.send(agent, 1 - agent, name, (x.sum(axis=0) + noise)[layer])
"""


@pytest.mark.slow
def test_a_batch_that_moves_nothing_is_none_of_the_round(tmp_path: Path) -> None:
    """And one draw may be the noise of several messages, in their order."""
    (tmp_path / "evaluated.py").write_text(EVALUATED)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "evaluated.py"), "folder": tmp_path},
            "record": {"victims": (0,), "candidates": ("present",), "rounds": (1,)},
            "certify": {"runs": 0},
            "claim": ({"text": "mu = 1", "mu": 1.0, "scope": "round"},),
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    assert mu_of(result) == pytest.approx(2.0, rel=1e-9)


SPARSE = """
import numpy as np
from dpaudit import tap

rng = np.random.default_rng(3)
for agent in range(2):
    x = tap.batch(agent, np.diag(np.arange(1.0, 9.0))[:, ::-1].cumsum(axis=1)[1:4])
    noise = tap.noise(agent, "z", rng.normal(0.0, 0.5, 8).astype(DTYPE), 0.5)
    for name, kept in (("a", [6, 0, 5]), ("b", [7, 6])):  # number 6 is in both
        tap.send(agent, 1 - agent, name, (x.sum(axis=0).astype(DTYPE) + noise)[kept])
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [slow("float64"), "float32"])
def test_noise_of_some_coordinates_is_measured_once_for_each(tmp_path: Path, dtype: str) -> None:
    """As of random sparsification. The record moves numbers 6 and 7 by 2, and no others."""
    (tmp_path / "sparse.py").write_text(SPARSE.replace("DTYPE", repr(dtype)))
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "sparse.py"), "folder": tmp_path},
            "record": {"victims": (0,), "candidates": ("present",), "rounds": (1,)},
            "certify": {"runs": 0},
            "claim": ({"text": "mu = 1", "mu": 1.0, "scope": "round"},),
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    assert mu_of(result) == pytest.approx(math.hypot(2, 2) / 0.5, rel=1e-5)
