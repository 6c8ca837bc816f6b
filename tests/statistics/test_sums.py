"""The sum of canaries' scores: published shares, its law, and how often bounds by it are wrong."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, kstest, norm

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.accounting.releases import Release, epsilon
from dpaudit.errors import DpauditError
from dpaudit.statistics.noise_tests import lag_p_values
from dpaudit.statistics.sums import (
    KNOWN,
    CanarySum,
    channel_noise_test,
    mu_from_sums,
    noise_scale,
)

ALPHA, DELTA = 0.05, 1e-5
REPEATS = 300  # of the simulation behind the shares
AUDITS = 400
FALSE_FAILURE = 1e-6  # probability that a correct bound fails one case, over fresh seeds

SHARES = {  # mu: (true epsilon, {canaries: median epsilon certified})
    0.5: (1.993, {100: 0.62, 1_000: 1.50, 10_000: 1.84}),
    1.0: (4.377, {100: 2.82, 1_000: 3.87, 10_000: 4.20}),
    2.0: (9.997, {100: 8.08, 1_000: 9.39, 10_000: 9.81}),
}


def epsilon_of(mu: float) -> float:
    return gaussian_epsilon(DELTA, max(mu, 0.0))


@pytest.mark.parametrize("mu", SHARES)
def test_median_bounds_are_the_published_ones(mu: float) -> None:
    """The median of 300 repeats has 1.2533 / sqrt(300) of one's standard error; 3.5 of these."""
    true, medians = SHARES[mu]
    assert epsilon_of(mu) == pytest.approx(true, abs=6e-4)
    for m, published in medians.items():
        middle = mu_from_sums(mu, m // 2, m // 2, ALPHA)
        error = 3.5 * 1.2533 * 2 / np.sqrt(m * REPEATS)
        assert epsilon_of(middle - error) - 0.006 <= published <= epsilon_of(middle + error) + 0.006


def drawn(
    rng: np.random.Generator, m: int, sizes: np.ndarray, rate: float, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Channels of one run, with noise of that scale and the sizes as they are declared."""
    included = rng.random(m) < 0.5
    used = included[:, None] & (rng.random((m, len(sizes))) < rate)
    return scale * rng.normal(size=(m, len(sizes))) + sizes * used, included


CASES = [(np.array([1.0]), 1.0), (np.array([2.0]), 0.5), (np.repeat([0.5, 1.5], 5), 0.2)]
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES[:-1]]


@pytest.mark.parametrize("sizes, rate", [*SLOW, CASES[-1]])
@pytest.mark.parametrize("scale", [pytest.param(1.0, marks=pytest.mark.slow), 1.2])
def test_tight_claims_are_refuted_in_5_percent_of_audits(
    sizes: np.ndarray, rate: float, scale: float
) -> None:
    """The claim is the truth, by noise that is as declared or louder; 400 audits of each."""
    rng, false = np.random.default_rng(20240611), 0
    for _ in range(AUDITS):
        z, included = drawn(rng, 200, sizes, rate, scale)
        bounds = noise_scale(z[~included], 1e-4)
        law = CanarySum(sizes, rate, int(included.sum()), int((~included).sum()), bounds)
        false += law.tail(law.statistic(z, sizes, included), 1 / scale) <= ALPHA
    assert false <= binom.isf(FALSE_FAILURE, AUDITS, ALPHA)


def test_with_known_noise_tight_claims_are_refuted_by_alpha() -> None:
    """Neither more often nor, for the test has its level exactly, much less: both sides at 1e-6."""
    rng = np.random.default_rng(3)
    n1 = rng.binomial(300, 0.5, 4_000)
    differences = rng.normal(1.0, np.sqrt(1 / n1 + 1 / (300 - n1)))
    false = sum(
        mu_from_sums(d, n, 300 - n, ALPHA) > 1.0 for d, n in zip(differences, n1, strict=True)
    )
    assert binom.ppf(1e-6, 4_000, ALPHA) <= false <= binom.isf(1e-6, 4_000, ALPHA)


@pytest.mark.parametrize("sizes, rate", CASES)
@pytest.mark.parametrize(
    "factor", [*(pytest.param(f, marks=pytest.mark.slow) for f in (0, 1.5)), 1]
)
def test_the_law_is_that_of_simulated_runs(sizes: np.ndarray, rate: float, factor: float) -> None:
    """1 less the tail at the statistic is uniform: Kolmogorov and Smirnov at 1e-5 over 400 runs."""
    rng, law = np.random.default_rng(7), CanarySum(sizes, rate, 30, 20)
    included = np.arange(50) < 30
    found = []
    for _ in range(400):
        used = included[:, None] & (rng.random((50, len(sizes))) < rate)
        z = rng.normal(size=used.shape) + factor * sizes * used
        found.append(law.tail(law.statistic(z, sizes, included), factor))
    assert kstest(found, "uniform").pvalue > 1e-5


def test_without_sampling_it_is_the_closed_form() -> None:
    sizes = np.array([0.6, 0.8])
    law = CanarySum(sizes, 1.0, 60, 40)
    assert law.mu == pytest.approx(1.0)
    assert law.largest_refuted(0.9, ALPHA) == pytest.approx(
        mu_from_sums(0.9, 60, 40, ALPHA), abs=1e-4
    )
    nearly = CanarySum(sizes, 1 - 1e-9, 60, 40)
    assert nearly.tail(0.9, 0.7) == pytest.approx(law.tail(0.9, 0.7), abs=1e-6)


def test_sampled_channels_tell_more_than_order_statistics() -> None:
    """mu 1 in half of the batches, 100,000 canaries: of 3.534 guesses prove 0.594, ranked 3.401."""
    law = CanarySum(np.array([1.0]), 0.5, 50_000, 50_000)

    def of_factor(factor: float) -> float:
        release = Release(
            family="gaussian", noise_multiplier=1 / factor, sampling="poisson", sampling_rate=0.5
        )
        return epsilon([release], DELTA).low

    assert of_factor(1.0) == pytest.approx(3.534, abs=6e-4)
    assert of_factor(law.largest_refuted(law.mean(), ALPHA)) > 3.401


def test_a_tail_far_out_is_none() -> None:
    law = CanarySum(np.array([1.0, 1.0]), 0.1, 50, 50)
    assert law.tail(100.0, 1.0) == 0.0
    assert law.tail(-100.0, 1.0) == 1.0
    assert law.largest_refuted(-1.0, ALPHA) == 0.0
    assert law.largest_refuted(1.0, 0.0) == 0.0


@pytest.mark.parametrize("shape", [(60, 1), (60, 12)])
def test_noise_as_declared_is_found_to_be_so(shape: tuple[int, int]) -> None:
    """At level 0.05 over 300 samples of another scale; fails wrongly with probability 1e-6."""
    rng = np.random.default_rng(11)
    found = [channel_noise_test(3 * rng.normal(size=shape), np.ones(shape[1])) for _ in range(300)]
    assert sum(p <= 0.05 for _, p in found) <= binom.isf(FALSE_FAILURE, 300, 0.05)


@pytest.mark.parametrize("fault", ["size of a batch", "different canaries", "different batches"])
def test_noise_that_is_not_independent_of_one_scale_is_found(fault: str) -> None:
    """Each of these has a p-value far below 1e-6 but in 1 of a million samples."""
    rng, n = np.random.default_rng(2), 500
    z = rng.normal(size=(n, 10))
    if fault == "size of a batch":
        z[:, 3] *= 1.5
    elif fault == "different canaries":
        z += 0.7 * rng.normal(size=(1, 10))
    else:
        z += 0.5 * rng.normal(size=(n, 1))
    assert channel_noise_test(z, np.ones(10))[1] < 1e-6


def test_laplace_noise_of_the_same_variance_is_found() -> None:
    rng = np.random.default_rng(2)
    what, p = channel_noise_test(rng.laplace(size=(2_000, 5)), np.ones(5))
    assert p < 1e-6
    assert what == "its distribution"


def test_the_scale_of_noise_lies_within_its_bounds() -> None:
    """Either end is wrong in 1 of 10,000 samples; 2,000 are drawn. More numbers, closer bounds."""
    rng = np.random.default_rng(6)
    ends = [noise_scale(2 * rng.normal(size=(40, 5)), 1e-4) for _ in range(2_000)]
    assert sum(not low < 2 < high for low, high in ends) <= binom.isf(1e-6, 2_000, 2e-4)
    narrow = noise_scale(np.ones((1_000, 100)), 1e-4)
    assert narrow.high - narrow.low < 0.02


@pytest.mark.parametrize("counts, alpha", [((0, 5), 0.05), ((5, 0), 0.05), ((5, 5), 0.0)])
def test_impossible_requests_are_refused(counts: tuple[int, int], alpha: float) -> None:
    with pytest.raises(DpauditError, match="expected canaries|alpha must"):
        mu_from_sums(1.0, *counts, alpha)


def test_a_known_scale_is_that_which_is_declared() -> None:
    law = CanarySum(np.array([1.0]), 1.0, 50, 50, KNOWN)
    assert law.tail(1.0, 1.0) == pytest.approx(0.5)
    assert law.tail(1.0, 0.8) == pytest.approx(norm.sf(0.2 / 0.2))


def test_the_mean_of_a_batch_counts_both_tails_and_all_tests() -> None:
    noise = np.random.default_rng(0).permutation(norm.ppf((np.arange(200) + 0.5) / 200) + 0.5)
    sigmas = noise.sum() / np.sqrt(np.mean(np.square(noise))) / np.sqrt(200)
    count = 1 + 1 + 1 + len(lag_p_values(noise[None])) + 1 + 1
    what, p = channel_noise_test(noise[:, None], np.ones(1))
    assert what == "the mean of a batch's noise"
    assert p == pytest.approx(count * 2 * norm.sf(sigmas))


@pytest.mark.parametrize("factor", [0.0, 1.0, 8.0])
def test_the_mean_of_a_sum_is_present_less_absent(factor: float) -> None:
    """Of a sampled canary by quadrature: two uses of size 1 and one of size 0.5, at rate 1/4."""
    assert CanarySum(np.array([3.0, 4.0]), 1.0, 30, 20).mean(factor) == 25.0 * factor

    def shifted(size: float) -> float:
        def excess(z: float) -> float:
            score = np.log(0.75 + 0.25 * np.exp(size * z - size**2 / 2))
            return float(0.25 * score * (norm.pdf(z - factor * size) - norm.pdf(z)))

        return quad(excess, -12.0, 20.0, limit=200)[0]

    law = CanarySum(np.array([1.0, 0.5, 1.0]), 0.25, 30, 20)
    expected = 2 * shifted(1.0) + shifted(0.5)
    assert law.mean(factor) == pytest.approx(expected, rel=1e-6, abs=1e-9)
