"""Messages that are not linear in their noise, or differ in size: short runs alone test these."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.capture.learned_score import MessageScore, features_of
from dpaudit.capture.record_shift import of_other_sizes
from dpaudit.capture.runs import MessageId
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.verify.verdict import check

PROGRAMS = Path(__file__).parent / "programs"
A, B = (MessageId(0, (1,), name, 1) for name in "ab")
MU = 1.0  # of a round of a right program


def run(**messages: list[float]) -> Any:
    sent = {{"a": A, "b": B}[name]: np.array(of, float) for name, of in messages.items()}
    return SimpleNamespace(messages=sent)


CLAIMS = {"text": "a round", "mu": MU, "scope": "round"}, {"text": "less", "mu": 0.2}


def audited(out: Path, variant: str, runs: int = 60, claims: Any = CLAIMS) -> AuditResult:
    folder = out.with_name(f"{out.name}-program")
    folder.mkdir()
    shutil.copy(PROGRAMS / "not_linear.py", folder)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "not_linear.py", variant), "folder": folder},
            "record": {
                "victims": (0, 1), "candidates": ("present", "negated"), "rounds": (1, 2),
            },
            "certify": {"runs": runs},
            "claim": claims,
            "attack": ({"name": "mutual-information"},) if runs else (),
        }
    )  # fmt: skip
    return run_captured(config, out, cores=1)


def certified(result: AuditResult) -> list[float]:
    tests = [f for f in result.findings if f.role is Role.TEST]
    return [f.metrics[Name.MU_LOWER_BOUND].value for f in tests if f.metrics]


def measured(result: AuditResult) -> list[Finding]:
    return [f for f in result.findings if f.role is Role.MEASURED]


def test_signs_of_an_unclipped_sum_are_refuted(tmp_path: Path) -> None:
    """Seeds are fixed; of a right program's claims 5% of such audits refute one."""
    result = audited(tmp_path / "faulty", "signs-unclipped")
    assert [claim.verdict for claim in result.claims] == [Verdict.REFUTED] * 2
    assert min(certified(result)) > 2
    titles = {f.title for f in result.findings if f.role is Role.TEST}
    assert titles == {"learned score of short runs with and without one record"}
    for found in measured(result):
        assert found.metrics[Name.EPSILON].low == 0.0
        assert Name.LARGEST_MU_OF_A_ROUND not in found.metrics
        assert any("counts nothing" in note and "not linear" in note for note in found.notes)
    [note] = [note for note in result.notes if "Short runs alone" in note]
    assert "show them to tap.send in the place of what is made of them" in note
    bits = [f for f in result.findings if f.role is Role.INFORMATION]
    assert all(f.metrics[Name.INFORMATION].value > 0.5 for f in bits)
    assert all(Name.CAPACITY_FOR_PRESENCE not in f.metrics for f in bits)
    answers = [one.answer for one in check(result.model_dump(mode="json"), tmp_path / "faulty")]
    assert answers == ["confirmed"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["signs", "largest", "above", "local-steps"])
def test_what_is_made_of_noised_sums_is_not_accused(tmp_path: Path, variant: str) -> None:
    """Seeds are fixed; 5% of such audits refute a claim that holds, as of two local steps."""
    claim = {
        "text": "a round",
        "mu": MU * 2 ** (0.5 * (variant == "local-steps")),
        "scope": "round",
    }
    [right] = audited(tmp_path, variant, 400, (claim,)).claims
    assert right.verdict in (Verdict.NOT_REFUTED, Verdict.UNDERPOWERED)
    size = "another size" if variant == "above" else "is not linear in noise"
    assert size in right.reason


@pytest.mark.slow
def test_local_steps_are_certified(tmp_path: Path) -> None:
    """Two steps on one batch: mu is sqrt(2) at most. Seeds are fixed; 5% of bounds exceed it."""
    result = audited(tmp_path, "local-steps", runs=400)
    assert 0.7 < min(certified(result)) <= max(certified(result)) < 2**0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "verdict"),
    [("shown", Verdict.SUPPORTED), ("shown-clean-step", Verdict.UNSUPPORTED)],
)
def test_local_steps_are_measured_where_each_is_shown(tmp_path: Path, variant, verdict) -> None:
    """Two rounds of two steps, in each of which a record is: mu = 2."""
    [claim] = audited(tmp_path, variant, 0, ({"text": "the run", "mu": 2.0},)).claims
    assert claim.verdict is verdict, claim.reason


def test_a_learned_score_weighs_numbers_by_their_variance() -> None:
    """Of three pairs with one noise each: moved by 1 of variance 2/3, and by 2 of variance 32/3."""
    noise = np.array([[-1, -4], [0, 0], [1, 4]])
    without = [run(a=[5 + x, y]) for x, y in noise]
    having = [run(a=[6 + x, y + 2]) for x, y in noise]
    score = MessageScore.of([A], without, having)
    assert score.weights[:2] == pytest.approx([1 / (2 / 3 + 0.01), 2 / (32 / 3 + 0.04)])
    apart = score.of_run(run(a=[6, 2])) - score.of_run(run(a=[5, 0]))
    assert apart == pytest.approx(score.weights[:2] @ [1, 2] + score.weights[3])
    sides = [np.mean([score.of_run(one) for one in some]) for some in (without, having)]
    assert sides[0] == pytest.approx(-sides[1])  # those of several agents have one threshold
    assert MessageScore.of([A], without, without).of_run(having[0]) == 0.0


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_learned_score_is_the_same_in_any_unit(unit: float) -> None:
    """Beside which numbers are there, whose unit is 1."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(40, 8)) * (rng.random((40, 8)) < 0.5)
    sides = [[run(a=unit * (x + move * (x != 0))) for x in z] for move in (0.0, 0.5)]
    score, other = MessageScore.of([A], *sides), run(a=unit * rng.normal(size=8))
    plain = [[run(a=one.messages[A] / unit) for one in some] for some in sides]
    same = MessageScore.of([A], *plain).of_run(run(a=other.messages[A] / unit))
    assert score.of_run(other) == pytest.approx(same, rel=1e-6)


def test_what_is_rounded_is_not_learned() -> None:
    without = [run(a=[0.1 + 1e-12 * i, i]) for i in range(3)]
    having = [run(a=[0.1 + 1e-12 * i + 3e-13, i + 1]) for i in range(3)]
    weights = MessageScore.of([A], without, having).weights
    assert weights[0] == 0.0 < weights[1]


def test_a_learned_score_sees_which_numbers_are_there() -> None:
    """The numbers have mean 0 with the record, as without: that they are not 0 tells it."""
    signs = [-1.0, 1.0, -1.0, 1.0]
    score = MessageScore.of([A], [run(a=[0.0]) for _ in signs], [run(a=[x]) for x in signs])
    assert score.of_run(run(a=[-1.0])) == score.of_run(run(a=[1.0])) > score.of_run(run(a=[0.0]))


def test_a_learned_score_sees_how_many_numbers_there_are() -> None:
    score = MessageScore.of([A, B], [run(a=[0, 0], b=[1])] * 2, [run(a=[0], b=[1])] * 2)
    assert score.sizes == (2, 1)
    assert score.of_run(run(a=[0], b=[1])) > score.of_run(run(a=[0, 0], b=[1]))
    nothing = score.of_run(run(b=[1]))
    assert nothing > score.of_run(run(a=[0], b=[1]))
    assert np.isfinite(score.of_run(run(a=[np.nan, np.inf], b=[1])))


def test_features_are_of_the_first_numbers_that_are_finite() -> None:
    sent = run(a=[5, 0, np.inf, -1e99])
    assert features_of(sent, A, 2).tolist() == [5, 0, 1, 0, 1, 1, 4]
    more = features_of(sent, A, 5)
    assert more[:5].tolist() == [5, 0, 0, -1e30, 0]
    assert more[5:].tolist() == [1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 4]
    assert features_of(sent, B, 1).tolist() == [0, 0, 1, 0]


def test_messages_of_other_sizes_are_named() -> None:
    base = run(a=[1, 2], b=[])
    assert of_other_sizes(base, [run(a=[3, 4], b=[])], [A, B]) == {}
    assert [*of_other_sizes(base, [base, run(a=[3], b=[])], [A, B])] == [A]
    assert [*of_other_sizes(base, [run(a=[3, 4])], [A, B])] == [B]
    [error] = of_other_sizes(base, [run(b=[])], [A, B]).values()
    assert error.code == "DPA063"
