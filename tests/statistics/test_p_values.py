"""P-values of estimates beside limits and beside earlier estimates, and Holm's adjustment."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dpaudit.attack.image_metrics import SHARE, interval
from dpaudit.attack.membership_rates import rate
from dpaudit.files.finding import Metric
from dpaudit.statistics.p_values import Side, holm, p_beyond, p_worse

FALSE_FAILURE = 1e-9


def mean_of(values: np.ndarray) -> Metric:
    return Metric(**interval(values)._asdict())


def test_beyond_a_limit_is_the_one_sample_t_test() -> None:
    values = np.random.default_rng(4).normal(1.0, 2.0, 9)
    for limit, side, alternative in [(0.2, "above", "greater"), (2.5, "below", "less")]:
        expected = stats.ttest_1samp(values, limit, alternative=alternative).pvalue
        assert p_beyond(mean_of(values), limit, side) == pytest.approx(expected, rel=1e-9)


def test_worse_is_the_two_sample_test_of_the_smaller_sample() -> None:
    rng = np.random.default_rng(5)
    before, now = rng.normal(0.0, 1.0, 6), rng.normal(1.5, 2.0, 20)
    t = (now.mean() - before.mean()) / math.sqrt(now.var(ddof=1) / 20 + before.var(ddof=1) / 6)
    assert p_worse(mean_of(now), mean_of(before), "above") == pytest.approx(stats.t.sf(t, 5))
    assert p_worse(mean_of(-now), mean_of(-before), "below") == pytest.approx(stats.t.sf(t, 5))
    assert p_worse(mean_of(before), mean_of(now), "above") == 1.0


def test_an_interval_that_is_cut_tells_no_other_error() -> None:
    """A rate near 1: the upper end faces a later, larger rate, and lies nearer than its error."""
    before, now = np.array([1.0, 1.0, 0.4, 1.0]), np.ones(3)
    whole, cut = Metric(**interval(before)._asdict()), Metric(**interval(before, (0, 1))._asdict())
    assert cut.high == 1
    assert whole.high is not None
    assert whole.high > 1.1
    assert p_worse(mean_of(now), cut, "above") == p_worse(mean_of(now), whole, "above") > 0.2
    for limit, side in [(0.99, "below"), (0.5, "above")]:
        assert p_beyond(cut, limit, side) == p_beyond(whole, limit, side)
    few = mean_of(np.array([0.8, 0.9, 1.0]))
    assert few.low is None
    expected = stats.ttest_1samp([0.8, 0.9, 1.0], 0.5, alternative="greater").pvalue
    assert p_beyond(few, 0.5, "above") == pytest.approx(expected)


@pytest.mark.parametrize("at", [1.0, -1.0])
@pytest.mark.parametrize("side, sign", [("above", 1), ("below", -1)])
def test_bounds_that_differ_by_rounding_alone_overlap(at: float, side: Side, sign: int) -> None:
    low, high = sorted((at, at - 2 * sign))
    before = Metric(value=at - sign, low=low, high=high)
    for gap, expected in ((1e-14, 1.0), (1e-3, 0.0)):
        low, high = sorted((at + sign * gap, at + 2 * sign))
        now = Metric(value=at + sign, low=low, high=high)
        assert p_worse(now, before, side) == expected


@pytest.mark.parametrize("before", [1.0, -1.0])
def test_exact_numbers_that_differ_by_rounding_alone_are_equal(before: float) -> None:
    for gap, expected in ((1e-14, 1.0), (1e-3, 0.0)):
        assert p_worse(Metric(value=before + gap), Metric(value=before), "above") == expected


def test_half_an_interval_is_students_t_times_the_error() -> None:
    error, n = 0.25, 4
    half = stats.t.ppf(0.975, n - 1) * error
    found = Metric(value=1.0, low=1.0 - half, high=1.0 + 2 * half, n=n)
    assert p_beyond(found, 0.5, "above") == pytest.approx(stats.t.sf(0.5 / error, n - 1))
    assert p_beyond(found, 1.5, "below") == pytest.approx(stats.t.sf(0.5 / (2 * error), n - 1))


@pytest.mark.parametrize("n_now, n_before, ratio", [(6, 6, 1.0), (4, 30, 3.0), (30, 4, 3.0)])
def test_worse_errs_at_most_as_often_as_its_level(n_now: int, n_before: int, ratio: float) -> None:
    rng, trials, level = np.random.default_rng(20240611), 2_000, 0.02
    errors = sum(
        p_worse(mean_of(rng.normal(0, ratio, n_now)), mean_of(rng.normal(0, 1, n_before)), "above")
        <= level
        for _ in range(trials)
    )
    assert errors <= stats.binom.isf(FALSE_FAILURE, trials, level)


def test_exact_numbers_and_bounds_are_certain() -> None:
    bracket = Metric(value=2.0, low=1.9, high=2.0)
    assert p_beyond(bracket, 1.8, "above") == 0.0
    assert p_beyond(bracket, 1.95, "above") == 1.0  # the lower end does not exceed it
    assert p_beyond(Metric(value=math.inf), 5.0, "above") == 0.0
    assert p_beyond(Metric(value=math.nan), 5.0, "above") == 1.0
    assert p_worse(Metric(value=2.2, low=2.1, high=2.2), bracket, "above") == 0.0
    assert p_worse(Metric(value=2.05, low=1.95, high=2.05), bracket, "above") == 1.0
    assert p_worse(Metric(value=1.0 + 1e-12), Metric(value=1.0), "above") == 1.0
    assert p_worse(Metric(value=math.inf), Metric(value=math.inf), "above") == 1.0
    assert p_worse(Metric(value=math.inf), Metric(value=1.0), "above") == 0.0


def test_the_half_of_an_interval_that_faces_the_limit_counts() -> None:
    skewed = Metric(value=1.0, low=0.9, high=3.0, n=9)
    wide, narrow = (Metric(value=1.0, low=1 - h, high=1 + h, n=9) for h in (2.0, 0.1))
    assert p_beyond(skewed, 0.8, "above") == p_beyond(narrow, 0.8, "above")
    assert p_beyond(skewed, 1.2, "below") == p_beyond(wide, 1.2, "below")
    assert p_worse(wide, skewed, "above") == 1.0
    assert p_worse(skewed, Metric(value=0.5, low=0.4, high=0.6, n=9), "above") < 1e-3


def test_an_estimate_of_unknown_error_says_nothing() -> None:
    assert p_beyond(Metric(value=9.0, n=1), 5.0, "above") == 1.0
    assert p_worse(Metric(value=9.0, n=2000), Metric(value=1.0, n=2000), "above") == 1.0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.0, 1.0]) == [0.0, 1.0]
    assert holm([]) == []


def test_holm_rejects_step_by_step() -> None:
    def rejected(p_values: list[float]) -> list[bool]:
        return [p <= 0.05 for p in holm(p_values)]

    assert rejected([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert rejected([0.011, 0.02, 0.04]) == [True, True, True]
    assert rejected([0.02, 0.02, 0.02]) == [False, False, False]


def share_of(values: np.ndarray) -> Metric:
    return Metric(**interval(values.astype(float), SHARE)._asdict())


@pytest.mark.parametrize("metric_of", [share_of, rate])
def test_a_share_has_the_exact_tests(metric_of: Callable[[np.ndarray], Metric]) -> None:
    for hits, n in [(0, 2), (2, 2), (3, 3), (1, 8), (7, 8), (8, 8), (20, 50), (500, 900)]:
        found = metric_of(np.arange(n) < hits)
        for limit in (0.1, 0.5, 0.9):
            above, below = stats.binom.sf(hits - 1, n, limit), stats.binom.cdf(hits, n, limit)
            expected = above if hits / n > limit else 1.0
            assert p_beyond(found, limit, "above") == pytest.approx(expected, rel=1e-9)
            expected = below if hits / n < limit else 1.0
            assert p_beyond(found, limit, "below") == pytest.approx(expected, rel=1e-9)
        before = metric_of(np.arange(12) < 5)
        side: Side = "above" if hits / n > 5 / 12 else "below"
        alternative = "greater" if side == "above" else "less"
        table = [[hits, n - hits], [5, 7]]
        expected = stats.fisher_exact(table, alternative=alternative).pvalue
        assert p_worse(found, before, side) == pytest.approx(expected, rel=1e-9)
    assert p_beyond(share_of(np.ones(8)), -0.1, "above") == 0.0  # no share keeps it


@pytest.mark.parametrize("n", [2, 4, 8, 50])
@pytest.mark.parametrize("chance", [0.5, 0.9, 0.95])
def test_a_share_breaks_a_kept_limit_at_its_level(n: int, chance: float) -> None:
    """Each of 4 counts fails wrongly with probability 1e-9, over fresh seeds."""
    rng, trials, level = np.random.default_rng(20240611), 500, 0.05
    shares = [share_of(rng.random(n) < chance) for _ in range(trials)]
    pairs = list(zip(shares, shares[::-1], strict=True))[: trials // 2]
    allowed = stats.binom.isf(FALSE_FAILURE, trials, level)
    for side in ("above", "below"):
        assert sum(p_beyond(share, chance, side) <= level for share in shares) <= allowed
        worse = sum(p_worse(now, before, side) <= level for now, before in pairs)
        assert worse <= stats.binom.isf(FALSE_FAILURE, trials // 2, level)


def test_means_that_are_no_shares_keep_their_t_test() -> None:
    """SSIMs of 1 that do not vary are no counts, nor shares of batches that vary less."""
    assert (
        p_beyond(Metric(value=1.0, low=1.0, high=1.0, n=8, standard_error=0.0), 0.9, "above") == 0
    )
    values = np.array([0.5, 0.75, 0.5, 0.25])
    expected = stats.ttest_1samp(values, 0.2, alternative="greater").pvalue
    assert p_beyond(share_of(values), 0.2, "above") == pytest.approx(expected)
    one, other = share_of(np.zeros(4)), share_of(values)
    error = math.hypot(other.standard_error, one.high / stats.t.ppf(0.975, 3))
    assert p_worse(other, one, "above") == pytest.approx(stats.t.sf(0.5 / error, 3))


def test_an_end_at_which_a_rate_is_cut_tells_no_error() -> None:
    """As of an AUC of links: 0.9 with an interval from 0.7 that would reach 1.1."""
    cut, whole = (Metric(value=0.9, low=0.7, high=end, n=30) for end in (1.0, 1.1))
    now = Metric(value=0.99, low=0.9, high=1.0, n=30)
    assert p_worse(now, cut, "above") == p_worse(now, whole, "above") > 0.1
    assert p_beyond(cut, 0.95, "below") == p_beyond(whole, 0.95, "below")
