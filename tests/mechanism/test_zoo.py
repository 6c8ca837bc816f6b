"""The zoo of functions: closed forms, and what an audit finds of them."""

from math import exp, inf, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.files.published import ResultTables
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism.function import kept_randomness
from dpaudit.mechanism.zoo.entries import (
    ZooEntry,
    clipped,
    discrete_epsilon,
    integer_noise,
    randomised_response,
)
from dpaudit.mechanism.zoo.run import (
    AuditedEntry,
    audited,
    is_sound,
    row,
    summary,
    tables,
    text,
    zoo,
)
from dpaudit.mechanism.zoo.selection import BELOW, LARGE, OVER, UNASKED, sparse_entries
from dpaudit.mechanism.zoo.updates import _largest, per_record

pytestmark = pytest.mark.usefixtures("few_far_seeds")

ZOO = zoo()
FAST = (
    "Gaussian, tensors: the last tensor without noise",
    "randomised response: two coins: log 3, claimed as log 2",
    "count: exact if it is 0",
)


def called(entry: ZooEntry) -> str:
    return f"{entry.name}: {entry.mistake}"


def test_a_mechanism_is_right_if_and_only_if_it_has_no_mistake() -> None:
    assert len(ZOO) >= 80
    assert [called(e) for e in ZOO if e.is_right != (e.mistake == "")] == []
    assert {e.name for e in ZOO if e.is_right} & {e.name for e in ZOO if not e.is_right}


def test_epsilon_of_two_answers_is_the_log_of_their_odds() -> None:
    p = np.array([0.75, 0.25])
    assert discrete_epsilon(p, p[::-1]) == pytest.approx(log(3))
    assert discrete_epsilon(p, p[::-1], 0.5) == 0
    assert discrete_epsilon(np.array([1.0, 0.0]), p) == inf


def test_epsilon_of_integer_noise_is_its_decay() -> None:
    def geometric(x: np.ndarray) -> np.ndarray:
        return np.exp(-0.7 * np.abs(x))

    assert integer_noise(geometric, 1, 0.0) == pytest.approx(0.7)
    assert integer_noise(geometric, 2, 0.0) == pytest.approx(1.4)
    # at delta: the mass of the outcomes that are better than the odds e^epsilon
    epsilon = integer_noise(geometric, 1, 1e-2)
    mass = 1 / (1 + exp(-0.7))  # of numbers at 0 or below, so that delta = mass (1 - e^(eps - 0.7))
    assert epsilon == pytest.approx(0.7 + log(1 - 1e-2 / mass))


@pytest.mark.parametrize("n", [1, 3, 5])
def test_only_one_sparse_vector_shows_its_answers(n: int) -> None:
    """Scores of 90 are above any threshold that has these draws, and those of -90 below."""
    [entry] = [e for e in sparse_entries() if e.name == f"sparse vector, algorithm {n}"]
    with kept_randomness():
        np.random.seed(0)
        found = entry.function(np.array([90.0, -90.0, 90.0, -90.0])).tolist()
    if n == 3:
        assert found[1::2] == [BELOW, UNASKED]
        assert found[::2] == pytest.approx([LARGE + 90.0] * 2, abs=40.0)
    else:
        assert found == [OVER, BELOW, OVER, BELOW if n == 5 else UNASKED]


@pytest.mark.parametrize("name", FAST)
def test_an_audit_finds_what_is_wrong(name: str) -> None:
    [entry] = [e for e in ZOO if called(e) == name]
    [found] = audited([entry], runs=1_000)
    assert found.passed, row(found)


@pytest.mark.slow
def test_no_wrong_one_is_supported_and_no_right_one_accused() -> None:
    """Each right one is accused with probability 5% at most by its bound, over fresh seeds."""
    found = list(audited(ZOO))
    assert is_sound(found), summary(found)
    missed = [called(one.entry) for one in found if not one.passed]
    assert missed == ["sparse vector, algorithm 3: shows the noisy answers"]
    supported = [one for one in found if one.claim.verdict is Verdict.SUPPORTED]
    assert len(supported) >= 15


def test_known_epsilons_are_those_of_the_published_table() -> None:
    """Those of the zoo from closed forms, and the claims on them; a new entry has a new table."""
    path = Path(__file__).parents[2] / "docs" / "results" / "mechanisms.json"
    published = [tuple(list(one.values())[1:5]) for one in ResultTables.read(path).rows]
    own = [(e.name, e.mistake or "right", f"{e.epsilon:.3g}", f"{e.claimed:.3g}") for e in ZOO]
    assert own == published


def test_clips_and_answers_of_the_zoo_by_hand() -> None:
    assert clipped(np.array([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])
    assert clipped(np.array([3.0, 4.0]), 6.0).tolist() == [3.0, 4.0]
    rows = np.array([[3.0, 4.0], [0.0, 0.5]])
    assert per_record(rows).tolist() == pytest.approx([0.6, 1.3])
    assert _largest(np.array([1.0, -3.0, 2.0]), 2).tolist() == [0.0, -3.0, 2.0]
    assert randomised_response(0.75, 2) == pytest.approx(log(3))
    assert randomised_response(0.5, 4) == pytest.approx(log(3))


def found(epsilon: float, verdict: str, mistake: str = "") -> AuditedEntry:
    claim: Any = SimpleNamespace(verdict=Verdict(verdict))
    return AuditedEntry(ZooEntry("f", mistake, abs, 1.0, epsilon), claim, 0.25, 0.5, 0.75)


def test_only_false_alarms_and_false_support_are_unsound() -> None:
    right, alarm = found(1.0, "supported"), found(1.0, "unsupported")
    missed, caught = found(2.0, "not refuted", "m"), found(2.0, "refuted", "m")
    assert is_sound([right, missed, caught])
    assert not is_sound([right, alarm])
    assert not is_sound([right, found(2.0, "supported", "m")])
    assert [one.passed for one in (right, alarm, missed, caught)] == [True, False, False, True]
    said = "1 of 2 wrong mechanisms found, 1 missed; 1 of 2 right ones accused; 3 s"
    assert summary([right, alarm, missed, caught]) == said
    assert row(alarm) == ("f", "right", "1", "1", "unsupported (FALSE ALARM)", "0.25", "0.5", "0.8")
    assert row(missed._replace(measured=None))[4:7] == ("not refuted (MISSED)", "0.25", "")
    known = "f (m): epsilon 2, 1 claimed: refuted; certified 0.25"
    assert text(caught) == f"{known}, measured 0.5; 0.8 s"
    assert text(caught._replace(measured=None)) == f"{known}; 0.8 s"
    assert tables([right, missed], 3).tables[0].rows == (row(right), row(missed))
