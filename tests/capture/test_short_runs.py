"""Short runs: which records they hold, which of them count, and what the counts prove."""

from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.accounting.releases import Release, epsilon
from dpaudit.attack.figures import counted_test, without_errors
from dpaudit.capture.composition import SLACK, VictimLeaks, released
from dpaudit.capture.record_shift import RoundLeak
from dpaudit.capture.sampling import Sampling
from dpaudit.capture.short_runs import ShortRuns, ShortRunScores, _capacity
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Name
from dpaudit.information.capacity import of_bit_in_gaussian, of_bit_in_randomised_response
from dpaudit.statistics.bounds import mu_p_value, p_value


def test_every_victim_has_as_many_runs_with_its_record() -> None:
    config = CapturedConfig.model_validate(
        {"program": {"command": ("python", "x.py")}, "certify": {"runs": 61}}
    )
    runs = ShortRuns(SimpleNamespace(config=config), "add-remove")
    runs.__dict__["pairs"] = dict.fromkeys(range(3), ("absent", "present"))
    included, n = runs.included, runs.n_choosing
    assert (included.shape, n) == ((61, 3), 6)
    for part in (included[:n], included[n:]):
        assert set(part.sum(axis=0)) == {len(part) // 2}
    assert not (included[:, 0] == included[:, 1]).all()


def test_runs_that_choose_the_threshold_do_not_count() -> None:
    values = np.arange(12.0).reshape(6, 2)
    having = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [1, 1], [0, 0]], bool)
    scores = ShortRunScores((0, 1), values, having, n_choosing=2)
    assert [side.tolist() for side in scores.choosing] == [[0, 3], [1, 2]]
    assert [side.tolist() for side in scores.counted] == [[4, 7, 10, 11], [5, 6, 8, 9]]


@pytest.mark.parametrize("mu", [None, 1.0])
def test_a_claim_is_tested_by_the_errors_that_were_counted(mu: float | None) -> None:
    """At threshold 0.5, which other runs choose: 1 of 40 without the record, 2 of 60 with it."""
    promise = {"epsilon": 0.5, "delta": 1e-5} if mu is None else {"mu": mu}
    claim = Claim.model_validate({"text": "c", **promise})
    without, having = np.zeros(40), np.ones(60)
    without[0], having[:2] = 1, 0
    choosing = np.zeros(10), np.ones(10)
    bound, metrics = counted_test(claim, (without, having), choosing, 0.05)
    assert (bound.fp, bound.fn, bound.n0, bound.n1) == (1, 2, 40, 60)
    p = p_value(1, 2, 40, 60, 1e-5, 0.5) if mu is None else mu_p_value(1, 2, 40, 60, mu)
    assert metrics[Name.P_VALUE].value == p < 1e-5
    assert metrics[Name.CONFIDENCE].value == 0.95
    certified = metrics[Name.EPSILON_LOWER_BOUND]
    assert certified.n == 100
    if mu is None:
        assert certified.value == bound.value
    else:
        assert metrics[Name.MU_LOWER_BOUND].value == bound.value
        assert certified.value == GAUSSIAN.epsilon(bound.value, 1e-5)


def test_what_runs_without_errors_prove_is_their_bound() -> None:
    claim = Claim.model_validate({"text": "c", "epsilon": 3.0, "delta": 0})
    ceiling = without_errors(claim, 200, 0.05)[Name.CEILING].value
    perfect = np.zeros(200), np.ones(200)
    bound, _ = counted_test(claim, perfect, perfect, 0.05)
    assert ceiling == pytest.approx(bound.value, rel=1e-9)
    needed = int(without_errors(claim, 200, 0.05)[Name.TRIALS_NEEDED].value)
    reached = [without_errors(claim, n, 0.05)[Name.CEILING].value for n in (needed - 1, needed)]
    assert reached[0] <= 3.0 < reached[1]


def composed(adjacency: str, sampling: Sampling, *leaks: RoundLeak, delta: float = 1e-5) -> float:
    victim = object.__new__(VictimLeaks)
    victim._adjacency, victim._sampling = adjacency, sampling
    return victim._composed(leaks, delta).epsilon


def release(mu: float, rate: float = 1.0) -> Release:
    sampling = "none" if rate == 1 else "poisson"
    multiplier = (1 + SLACK) / mu
    return Release(
        family="gaussian", noise_multiplier=multiplier, sampling=sampling, sampling_rate=rate
    )


def test_measured_rounds_of_one_record_are_composed() -> None:
    known = Sampling("none", 1.0, "unknown")
    expected = epsilon([release(1.0), release(0.5)], 1e-5).low
    assert composed("add-remove", known, RoundLeak(1.0, 0.0), RoundLeak(0.5, 0.0)) == expected
    assert composed("add-remove", known, RoundLeak(0.0, 0.0)) == 0.0


def test_laplace_noise_of_several_numbers_is_no_single_release() -> None:
    """One number that is moved by all of it would give more than four moved by a part each."""
    leak = RoundLeak(0.0, 2.0, laplace=(0.5,) * 4)
    known, drawn = Sampling("none", 1.0, "unknown"), Sampling("poisson", 0.25, "random")
    assert composed("add-remove", known, leak, delta=0.0) == pytest.approx(2.0, rel=2e-3)
    parts = [released("laplace", 0.5)] * 4
    assert composed("add-remove", known, leak, delta=0.05) == epsilon(parts, 0.05).low
    assert epsilon(parts, 0.05).low < epsilon([released("laplace", 2.0)], 0.05).low - 0.1
    one = epsilon([released("laplace", 0.5, rate=0.25)], 0.05).low
    assert composed("add-remove", drawn, leak, delta=0.05) == one


def test_with_another_record_the_smaller_end_counts() -> None:
    """What the batch has without both records is unknown: one side, or between the two."""
    drawn = Sampling("poisson", 0.25, "random")
    side = epsilon([release(1.0, 0.25)], 1e-5).low
    between = epsilon([release(0.5, 0.25)], 1e-5, "replace-one").low
    assert composed("add-remove", drawn, RoundLeak(1.0, 0.0)) == side
    assert composed("replace-one", drawn, RoundLeak(1.0, 0.0)) == min(side, between)


def test_a_capacity_is_that_of_the_noise_that_was_measured() -> None:
    [(_, gaussian)] = _capacity(RoundLeak(0.7, 0.0))[0].items()
    assert gaussian.value == of_bit_in_gaussian(0.7)
    [(_, laplace)] = _capacity(RoundLeak(0.0, 0.7))[0].items()
    assert laplace.value == of_bit_in_randomised_response(0.7)
    assert [_capacity(leak)[0] for leak in (RoundLeak(1.0, 1.0), RoundLeak(inf, inf))] == [{}, {}]
