"""The accountant: closed forms, published figures, monotonicity, and what it refuses."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.optimize import brentq
from scipy.stats import binom, norm

from dpaudit.accounting.composition import most_epsilon
from dpaudit.accounting.families import gaussian_delta, gaussian_epsilon, gaussian_mu
from dpaudit.accounting.formulas import renyi_epsilon
from dpaudit.accounting.releases import (
    Interval,
    RecordAdjacency,
    Release,
    _interval,
    _rounds,
    delta,
    epsilon,
    false_negative_rate,
)
from dpaudit.errors import DpauditError


def gaussian(noise_multiplier: float, count: int = 1, rate: float = 1.0, how: str = "") -> Release:
    sampling = how or ("poisson" if rate < 1 else "none")
    return Release(
        family="gaussian",
        noise_multiplier=noise_multiplier,
        sampling=sampling,
        sampling_rate=rate,
        count=count,
    )


def laplace(noise_multiplier: float, **options: object) -> Release:
    return gaussian(noise_multiplier, **options).model_copy(update={"family": "laplace"})  # type: ignore[arg-type]


def test_gaussian_rounds_compose_to_one_gaussian() -> None:
    mechanism = [gaussian(10.0, count=50), gaussian(20.0, count=200)]
    exact = gaussian_epsilon(1e-5, 1.0)
    assert epsilon(mechanism, 1e-5) == pytest.approx((exact, exact))
    assert delta(mechanism, exact) == pytest.approx((1e-5, 1e-5))


def test_replacing_a_record_doubles_the_shift() -> None:
    assert epsilon([gaussian(2.0)], 1e-5, "replace-one") == epsilon([gaussian(1.0)], 1e-5)
    assert epsilon([laplace(2.0)], 0.0, "replace-one") == epsilon([laplace(1.0)], 0.0)


def test_laplace_rounds_add_up_at_delta_0_and_cost_less_above() -> None:
    mechanism = [laplace(10.0, count=100), laplace(5.0, count=10)]
    assert epsilon(mechanism, 0.0) == pytest.approx((12.0, 12.0))
    assert delta([laplace(2.0, count=2)], 1.0) == (0.0, 0.0)  # at the pure epsilon, to the letter
    assert epsilon(mechanism, 1e-5).high < 6.5


def test_laplace_rounds_have_the_delta_of_their_binomial_part() -> None:
    # the mass at the largest loss, 1/b each with probability 1/2, is a lower bound on delta
    low, high = delta([laplace(1.0, count=4)], 3.9)
    assert low <= high < low + 1e-5
    assert high >= binom.pmf(4, 4, 0.5) * -np.expm1(-0.1)


def test_sampled_laplace_has_the_amplified_pure_epsilon() -> None:
    release = laplace(0.5, rate=0.1)
    assert epsilon([release], 0.0) == pytest.approx([np.log1p(0.1 * np.expm1(2.0))] * 2)
    worst = np.log((0.9 + 0.1 * np.exp(2)) / (0.9 + 0.1 * np.exp(-2)))
    assert epsilon([release], 0.0, "replace-one") == pytest.approx([worst] * 2)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("how", ["poisson", "fixed"])
def test_sampling_at_rate_1_is_no_sampling(adjacency: RecordAdjacency, how: str) -> None:
    sampled, plain = gaussian(1.5, count=3, how=how), gaussian(1.5, count=3)
    assert epsilon([sampled], 1e-5, adjacency) == epsilon([plain], 1e-5, adjacency)


def test_a_release_without_noise_has_no_epsilon() -> None:
    mechanism = [gaussian(1.0), gaussian(0.0, rate=0.01)]
    assert epsilon(mechanism, 1e-5) == Interval(np.inf, np.inf)
    assert delta(mechanism, 10.0) == Interval(1.0, 1.0)


def test_losses_too_large_for_the_grid_count_as_infinite() -> None:
    nearly_none = [gaussian(0.01, rate=0.1)]  # a sampled record loses about 5,000 nats
    assert delta(nearly_none, 100.0).high == pytest.approx(0.1, abs=1e-6)
    assert epsilon(nearly_none, 0.05).high == gaussian_epsilon(0.05, 100)  # as if all were drawn
    assert epsilon([gaussian(0.01, rate=0.1, how="fixed")], 0.05).high == np.inf
    assert 10 < epsilon(nearly_none, 0.05).low < np.inf
    assert epsilon(nearly_none, 0.11) == Interval(0.0, 0.0)


@pytest.mark.parametrize("family", ["gaussian", pytest.param("laplace", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "scale, rate, count",
    [(1e-6, 1e-7, 1), (1e-6, 0.01, 10**6), (0.3, 1 - 1e-6, 10**6), (1e7, 1e-7, 10**6)],
)
def test_extreme_releases_have_an_interval(
    family: str, scale: float, rate: float, count: int
) -> None:
    release = gaussian(scale, count, rate, "fixed").model_copy(update={"family": family})
    low, high = epsilon([release], 1e-5, "replace-one")
    assert 0 <= low <= high


@pytest.mark.parametrize(
    "mechanism, target, adjacency",
    [
        ([gaussian(1.4, 2149, 4.5e-5), laplace(7.4, count=454, rate=0.24)], 2.7e-5, "add-remove"),
        ([laplace(15.3, count=6231, rate=1.3e-4), gaussian(0.87)], 2e-7, "replace-one"),
        ([gaussian(0.13, 3, 2.4e-4, "fixed"), laplace(29.0, count=6137)], 3.6e-7, "add-remove"),
        ([gaussian(0.13, 3, 2.4e-4, "fixed")], 3.6e-7, "add-remove"),
        pytest.param(
            [gaussian(0.3 + i / 1e4, 20, 0.0009) for i in range(300)], 1e-5, "add-remove",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_losses_far_below_the_spacing_of_others_are_not_lost(
    mechanism: list[Release], target: float, adjacency: RecordAdjacency
) -> None:
    low, high = epsilon(mechanism, target, adjacency)
    assert 0 < high * 0.999 < low <= high


def test_no_release_costs_nothing() -> None:
    assert epsilon([], 1e-5) == Interval(0.0, 0.0)
    assert delta([], 0.0) == Interval(0.0, 0.0)


def test_gaussian_noise_at_delta_0_is_refused() -> None:
    with pytest.raises(DpauditError, match="no epsilon at delta = 0"):
        epsilon([laplace(1.0), gaussian(1.0)], 0.0)


def test_impossible_input_is_refused() -> None:
    with pytest.raises(DpauditError, match="delta must be at least 0"):
        epsilon([gaussian(1.0)], -0.1)
    with pytest.raises(DpauditError, match="epsilon must be at least 0"):
        delta([gaussian(1.0)], -1.0)
    with pytest.raises(ValidationError, match="without sampling"):
        Release(family="gaussian", noise_multiplier=1.0, sampling_rate=0.1)


def test_epsilon_and_delta_answer_the_same_question() -> None:
    mechanism = [gaussian(1.0, count=300, rate=0.02), laplace(20.0, count=5)]
    low, high = epsilon(mechanism, 1e-5)
    assert delta(mechanism, high).low <= 1e-5 <= delta(mechanism, low).high
    assert delta(mechanism, high).high == pytest.approx(1e-5, rel=2e-3)


def test_an_epsilon_far_beyond_privacy_is_still_bounded() -> None:
    for release in (gaussian(0.4, 500, 0.5), gaussian(0.25, 1000, 0.1)):
        low, high = epsilon([release], 1e-5, "replace-one")
        assert 600 < low <= high < low * (1 + 1e-4)


@pytest.mark.parametrize(
    ("noise", "rate", "count"), [(1.0, 0.01, 1000), (2.0, 0.05, 100), (0.5, 0.1, 50)]
)
def test_deltas_below_rounding_have_the_bound_of_renyi(
    noise: float, rate: float, count: int
) -> None:
    """Of Mironov, Talwar and Zhang's divergences, computed apart; orders are not the same."""
    mechanism = [gaussian(noise, count, rate)]
    orders = np.geomspace(1.02, 2000, 400)
    before = epsilon(mechanism, 1e-10)
    for small in (1e-12, 1e-14, 1e-16):
        low, high = epsilon(mechanism, small)
        assert before.low < low < high
        assert (
            before.high < high == pytest.approx(renyi_epsilon(mechanism, small, orders), rel=5e-3)
        )
        before = Interval(before.low, high)
    exact = epsilon(mechanism, 1e-6).high  # where both are known
    bounds = [
        most_epsilon(_rounds(mechanism, "add-remove", d, "upper"), 1e-6) for d in ("remove", "add")
    ]
    assert exact < max(bounds) < 1.2 * exact


def test_losses_beyond_any_grid_leave_a_lower_end() -> None:
    # a sampled record loses 5,000 nats; of each, 600 are counted from below
    low, high = epsilon([gaussian(0.01, 10, 0.1)], 1e-5)
    assert 6 * 599 < low < high == gaussian_epsilon(1e-5, math.sqrt(10) / 0.01)
    drawn_often = epsilon([gaussian(1.0, 10**9, 0.1)], 1e-5)  # its mean is 8.6 million
    assert 7e6 < drawn_often.low < 8.7e6


def test_a_total_that_no_round_can_reach_costs_nothing() -> None:
    release = laplace(9.0, count=6, rate=0.001)
    low, high = epsilon([release], 1e-5)
    assert 0 < low <= high < low * 1.001
    assert epsilon([release], 0.01) == Interval(0.0, 0.0)


scales = st.floats(0.4, 5.0)
rates = st.floats(1e-3, 0.5)


@settings(max_examples=6)
@given(scales, rates, st.integers(1, 500), st.sampled_from(["add-remove", "replace-one"]))
@example(0.5, 0.5, 80, "replace-one")  # every round's loss is below nearly all of the total one
def test_epsilon_falls_with_noise_and_rises_with_rounds(
    scale: float, rate: float, count: int, adjacency: RecordAdjacency
) -> None:
    low, high = epsilon([gaussian(scale, count, rate)], 1e-5, adjacency)
    assert low <= high <= low + 0.01 + 1e-3 * low
    assert epsilon([gaussian(scale * 1.2, count, rate)], 1e-5, adjacency).low <= high
    assert epsilon([gaussian(scale, count + 50, rate)], 1e-5, adjacency).high >= low
    assert epsilon([gaussian(scale, count, rate * 1.5)], 1e-5, adjacency).high >= low


@settings(max_examples=6)
@given(scales, rates, st.integers(1, 300), st.sampled_from(["poisson", "fixed"]))
def test_replacing_a_record_is_never_cheaper_than_removing_one(
    scale: float, rate: float, count: int, how: str
) -> None:
    releases = [gaussian(scale, count, rate, how), laplace(2 * scale, count=2, rate=rate, how=how)]
    removed = epsilon(releases, 1e-5, "add-remove")
    replaced = epsilon(releases, 1e-5, "replace-one")
    assert removed.low <= removed.high
    assert removed.low <= replaced.high
    assert replaced.low <= replaced.high


def test_fixed_batches_cover_a_population_worked_out_by_hand() -> None:
    """Three records, one of which is drawn each round; two rounds; the value is 1 or -1.

    Replacing the last of (-1, -1, -1) by 1 moves the mean of one round in three by 2. The
    divergence of the two rounds is integrated on a plane.
    """
    scale, target = 1.3, 0.2
    x = np.linspace(-9, 9, 3001)
    absent = np.exp(-((x + 1) ** 2) / 2 / scale**2) / np.sqrt(2 * np.pi) / scale
    present = np.exp(-((x - 1) ** 2) / 2 / scale**2) / np.sqrt(2 * np.pi) / scale
    mixed = 2 / 3 * absent + 1 / 3 * present
    p, q = np.outer(mixed, mixed), np.outer(absent, absent)
    exact = np.maximum(p - np.exp(target) * q, 0).sum() * (x[1] - x[0]) ** 2
    release = gaussian(scale, count=2, rate=1 / 3, how="fixed")
    assert delta([release], target, "add-remove") == pytest.approx([exact] * 2, abs=1e-5)
    low, high = delta([release], target, "replace-one")
    assert low == pytest.approx(exact, abs=1e-5)
    assert high >= exact


def test_fixed_batches_hold_against_other_records_that_adapt() -> None:
    """In the second of two rounds the other records side with the world that the first favours.

    That is worse than the same worst case in both rounds, and replacement has to allow for it.
    """
    scale, rate, target = 1.3, 1 / 3, 0.2

    def sampled(e: float) -> float:  # H of (1-q) N(0) + q N(2) from N(0)
        shifted = 1 + np.expm1(e) / rate
        return rate * gaussian_delta(np.log(shifted), 2 / scale) if shifted > 0 else -np.expm1(e)

    def either(e: float) -> float:
        return max(sampled(e), -np.expm1(e) + np.exp(e) * sampled(-e))

    x = np.linspace(-9, 11, 4001)
    ratio = 1 - rate + rate * np.exp((2 * x - 2) / scale**2)
    absent = np.exp(-(x**2) / 2 / scale**2) / np.sqrt(2 * np.pi) / scale
    adaptive = sum(
        p * either(target - loss)
        for p, loss in zip(absent * ratio * (x[1] - x[0]), np.log(ratio), strict=True)
    )
    release = gaussian(scale, count=2, rate=rate, how="fixed")
    assert delta([release], target, "add-remove").high < adaptive - 1e-3
    assert delta([release], target, "replace-one").high >= adaptive - 1e-6


@pytest.mark.parametrize(
    "n_records, n_rounds, exact",
    [
        (2500, 10000, (0.36, 2.26, 5.37)),
        pytest.param(2500, 5000, (0.53, 2.78, 5.65), marks=pytest.mark.slow),
        pytest.param(2500, 20000, (0.32, 1.72, 5.00), marks=pytest.mark.slow),
        pytest.param(3000, 10000, (0.41, 2.47, 5.48), marks=pytest.mark.slow),
    ],
)
def test_const_d2p_exceeds_its_claims_as_computed_elsewhere(
    n_records: int, n_rounds: int, exact: tuple[float, float, float]
) -> None:
    """Zhu et al. (Dyn-D2P), Algorithm 5: the noise its limit theorem gives for 0.3, 1 and 3."""
    for claim, expected in zip((0.3, 1.0, 3.0), exact, strict=True):
        mu_total = gaussian_mu(claim, 1e-4)
        mu = np.sqrt(np.log1p(n_records**2 * mu_total**2 / n_rounds))
        low, high = epsilon([gaussian(1 / mu, n_rounds, 1 / n_records)], 1e-4)
        assert claim < low
        assert (low, high) == pytest.approx((expected, expected), abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize(
    "c2, claim, exact",
    [
        (np.sqrt(2), 2.0, 7.9007),
        pytest.param(2.0, 2.0, 2.8678, marks=pytest.mark.slow),
        pytest.param(2.0, 4.0, 21.7648, marks=pytest.mark.slow),
    ],
)
def test_adp_vrsgp_exceeds_its_claims(c2: float, claim: float, exact: float) -> None:
    """Wu et al. (ADP-VRSGP), Theorem 1 at T = 1000, batch 64 of 7500 records, delta = 1e-5.

    dp-accounting gives 7.9009 and 2.8681 for the first two, at a grid of 1e-3.
    """
    rate, intensity = 64 / 7500, (np.arange(1001) // 5 + 10.0) ** 0.2
    sigma = c2 * rate * np.sqrt(np.log(1e5)) / claim * np.sqrt(np.sum(intensity[:1000] ** -2))
    rounds = [gaussian(sigma * a, rate=rate) for a in intensity[:0:-1]]
    low, high = epsilon(rounds, 1e-5)
    assert claim < low <= high
    assert (low, high) == pytest.approx((exact, exact), abs=1e-3)


@pytest.mark.parametrize("noise_multiplier", [1e-7, 1e-12, 1e-20, 1e-300])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_next_to_no_noise_is_no_small_epsilon(noise_multiplier, sampling) -> None:
    """The lower end was 0 here: a claim stood on noise that hides nothing."""
    release = Release(
        family="gaussian",
        noise_multiplier=noise_multiplier,
        sampling=sampling,
        sampling_rate=0.02,
        count=3,
    )
    low, high = epsilon((release,), 1e-5)
    assert low > 1000
    assert high == math.inf


@pytest.mark.parametrize("noise_multiplier", [1e-300, 1e-155, 1e160, 1e300])
@pytest.mark.parametrize("sampling, rate", [("none", 1.0), ("fixed", 0.02), ("poisson", 0.02)])
def test_noise_whose_square_overflows_has_an_epsilon(noise_multiplier, sampling, rate) -> None:
    release = Release(
        family="gaussian",
        noise_multiplier=noise_multiplier,
        sampling=sampling,
        sampling_rate=rate,
        count=3,
    )
    low, high = epsilon((release,), 1e-5)
    assert (low > 1000, high) == (noise_multiplier < 1, math.inf if noise_multiplier < 1 else 0.0)


@pytest.mark.parametrize("sampling, rate", [("none", 1.0), ("fixed", 0.1), ("poisson", 0.1)])
def test_what_is_clipped_whole_moves_as_far_for_any_change(sampling, rate) -> None:
    """By 2C: as clipped records under twice the noise of which one takes another's place."""
    given = {"family": "gaussian", "sampling": sampling, "sampling_rate": rate, "count": 3}
    whole = [Release(**given, noise_multiplier=2.0, clipped="whole")]
    each = [Release(**{**given, "sampling": "fixed"}, noise_multiplier=4.0)]
    assert epsilon(whole, 1e-5, "replace-one") == epsilon(each, 1e-5, "replace-one")
    one = [Release(**given, noise_multiplier=4.0 if sampling == "fixed" else 2.0)]
    assert epsilon(whole, 1e-5) == epsilon(one, 1e-5)


@pytest.mark.parametrize("fpr", [0.05, 0.3, 0.8])
def test_replacing_a_sampled_record_compares_two_mixtures(fpr: float) -> None:
    """Of N(-1, 1) and of N(1, 1) at the rate 0.3, with N(0, 1) for the rest."""
    t = brentq(lambda t: 0.7 * norm.sf(t) + 0.3 * norm.sf(t + 1) - fpr, -9, 9)
    exact = 0.7 * norm.cdf(t) + 0.3 * norm.cdf(t - 1)
    found = float(false_negative_rate([gaussian(1.0, rate=0.3)], fpr, "replace-one"))
    assert 0.99 * exact <= found <= exact * (1 + 1e-9)


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_kept_epsilon_is_that_of_its_question(adjacency: RecordAdjacency, delta: float) -> None:
    """Whatever was asked before: of a mechanism, or of one with less noise."""
    for scale in (1.0, 1.1):
        mechanism = [gaussian(scale, count=3, rate=0.25)]
        for _ in range(2):
            assert epsilon(mechanism, delta, adjacency) == _interval(mechanism, delta, adjacency)
