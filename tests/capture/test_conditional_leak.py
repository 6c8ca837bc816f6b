"""Messages that are not linear in noise which the messages beside them tell."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.capture.conditional_leak import asked_of
from dpaudit.capture.record_shift import Response
from dpaudit.capture.runs import AgentRound, MessageId, NamedDraw
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.verify.verdict import check

PROGRAM = Path(__file__).parent / "programs" / "metrics.py"
LINEAR, BESIDE = MessageId(0, (1,), "weights", 1), MessageId(0, (1,), "metric", 1)
HIDES = "moves with the record, and no noise hides it"


def audited(folder: Path, variant: str, *victims: int, rounds: Any = (1, 2)) -> AuditResult:
    shutil.copy(PROGRAM, folder)
    content: dict[str, Any] = {
        "program": {"command": ("python", "metrics.py", variant), "folder": folder},
        "record": {"victims": victims, "candidates": ("present",), "rounds": rounds},
        "certify": {"runs": 0},
        "claim": ({"text": "a round", "mu": 1.0, "scope": "round"},),
    }
    return run_captured(CapturedConfig.model_validate(content), folder / "out", cores=1)


def test_a_loss_at_noised_weights_reveals_a_record(tmp_path: Path) -> None:
    result = audited(tmp_path, "loss", 0)
    [claim] = result.claims
    assert claim.verdict is Verdict.UNSUPPORTED
    assert f'"metric" of round 1 from agent 0 to 1 {HIDES}' in claim.reason
    [answer] = check(result.model_dump(mode="json"), tmp_path / "out")
    assert answer.answer == "confirmed"


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param("held-out", marks=pytest.mark.slow),  # a loss of other records
        "signs",
        pytest.param("largest", marks=pytest.mark.slow),
        pytest.param("noised", marks=pytest.mark.slow),  # the loss with noise of its own
        "unnamed",  # the same, with noise that nobody has named
        pytest.param("alone", marks=pytest.mark.slow),  # no weights beside it
        "half",  # half of the weights beside it, so that the noise is not known
    ],
)
def test_a_metric_that_noise_hides_is_not_accused(tmp_path: Path, variant: str) -> None:
    """Rounding leaves less than 1e-10 of the moved noise. P[false failure] < 1e-8.

    That is of signs: one changes if one of 24 numbers is within 1e-10 of its own noise of 0. Each
    other metric is continuous, and moves as little, whatever is drawn.
    """
    [claim] = audited(tmp_path, variant, 0, 1, rounds=(1,)).claims
    assert claim.verdict is Verdict.UNDERPOWERED, claim.reason
    assert HIDES not in claim.reason


def place(*keys: str) -> AgentRound:
    draws = tuple(NamedDraw(key, key, 0, 0, 1.0, "gaussian", 1) for key in keys)
    return AgentRound(0, 1, (LINEAR, BESIDE), draws, batch=1)


def run(linear: float, beside: Any, **tape: int) -> Any:
    contents = {LINEAR: np.full(3, linear), BESIDE: np.atleast_1d(beside)}
    return SimpleNamespace(messages=contents, tape={k: np.ones(n) for k, n in tape.items()})


def test_noise_that_no_linear_message_tells_is_not_moved() -> None:
    told = {LINEAR: (Response(0, np.arange(3), np.arange(3), np.ones(3)),)}
    base, other = run(0.0, 1.0, z=3, u=2), run(1.0, 2.0)
    one = asked_of(place("z"), told, (BESIDE,), base, [other])
    assert one is not None
    assert one.beside == (BESIDE,)
    of_both = [other, run(0.0, 3.0)]  # the second draw moves the metric alone
    assert asked_of(place("z", "u"), told, (BESIDE,), base, of_both) is None
    idle = [other, run(0.0, 1.0)]  # it moves nothing
    assert asked_of(place("z", "u"), told, (BESIDE,), base, idle) is not None
    assert asked_of(place("z"), {LINEAR: ()}, (BESIDE,), base, [other]) is None


def test_a_message_of_another_size_is_not_asked_of() -> None:
    told = {LINEAR: (Response(0, np.arange(3), np.arange(3), np.ones(3)),)}
    base, other = run(0.0, 1.0, z=3), run(1.0, [2.0, 3.0])
    assert asked_of(place("z"), told, (BESIDE,), base, [other]) is None
