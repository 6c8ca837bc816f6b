"""Values of the accounting, worked out by hand."""

from math import exp, inf, log

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.accounting.binomial import at_most, more_than, quantile
from dpaudit.accounting.composition import ComposedLoss
from dpaudit.accounting.families import (
    LAPLACE,
    TradeoffFamily,
    clt_mu,
    gaussian_delta,
    gaussian_epsilon,
)
from dpaudit.accounting.reconstruction import least_epsilon, matching_success, under_epsilon
from dpaudit.accounting.releases import (
    Release,
    delta,
    epsilon,
    false_negative_rate,
    true_positive_rate,
    worst_pairs,
)

SAMPLED = {"family": "gaussian", "sampling": "poisson", "sampling_rate": 0.2}


def composed(bound: str) -> ComposedLoss:
    none = np.empty(0)
    return ComposedLoss(np.array([1.0]), np.array([0.5]), bound, 0.01, 0.1, none, none)


@pytest.mark.parametrize("bound, sign", [("upper", 1), ("lower", -1)])
def test_slack_and_blur_err_on_the_side_of_the_bound(bound: str, sign: int) -> None:
    """A loss of 1 with probability 1/2, blurred by 0.1, and 0.01 that may have any loss."""
    total = composed(bound)
    expected = 0.5 * (1 - exp(0.5 - 0.1 * sign - 1)) + 0.01 * sign
    assert total.delta(0.5) == pytest.approx(expected)
    assert total.deltas(np.array([0.5])) == pytest.approx([expected])
    assert total.epsilon(expected) == pytest.approx(0.5)
    rate = np.array([0.1])
    at_loss = exp(1 + 0.1 * sign) * 0.1 + 0.0 + 0.01 * sign
    assert total.power(rate)[0] == pytest.approx(min(at_loss, 0.5 + 0.01 * sign))


def test_counts_of_successes_are_those_of_the_binomial_law() -> None:
    k = np.arange(-1, 12)
    assert at_most(k, 10, 0.3) == pytest.approx(binom.cdf(k, 10, 0.3))
    assert more_than(k, 10, 0.3) == pytest.approx(binom.sf(k, 10, 0.3))
    q = np.linspace(0.01, 0.99, 33)
    assert quantile(q, 10, 0.3).tolist() == binom.ppf(q, 10, 0.3).tolist()
    at_steps = binom.cdf(np.arange(5), 10, 0.3)
    assert quantile(at_steps * (1 - 1e-9), 10, 0.3).tolist() == [0, 1, 2, 3, 4]


def test_equal_gaussians_compose_to_the_root_of_their_number() -> None:
    release = Release(family="gaussian", noise_multiplier=2.0, count=4)
    assert epsilon([release], 1e-5).high == gaussian_epsilon(1e-5, 1.0)
    assert delta([release], 1.0).high == gaussian_delta(1.0, 1.0)
    replaced = epsilon([release], 1e-5, "replace-one").low
    assert replaced == gaussian_epsilon(1e-5, 2.0)


def test_a_clipped_whole_moves_as_far_by_one_record_as_by_two() -> None:
    whole = Release(family="gaussian", noise_multiplier=2.0, clipped="whole")
    assert whole.noise_over(2) == whole.noise_over(1) == 2.0
    assert whole.model_copy(update={"clipped": "records"}).noise_over(2) == 1.0
    assert epsilon([whole], 1e-5) == epsilon([whole], 1e-5, "replace-one")


def test_fixed_batches_move_a_sum_twice_as_far_as_poisson_ones() -> None:
    poisson = Release(noise_multiplier=1.0, **SAMPLED)
    fixed = poisson.model_copy(update={"sampling": "fixed", "noise_multiplier": 2.0})
    assert epsilon([fixed], 1e-5) == epsilon([poisson], 1e-5)


def test_noise_too_small_to_compose_has_no_upper_end() -> None:
    tiny = Release(noise_multiplier=1e-9, count=2, **SAMPLED)
    ends = epsilon([tiny], 1e-5)
    assert ends.high == inf
    assert 300 < ends.low < inf
    assert true_positive_rate([tiny], [0.1, 0.5]).tolist() == [1.0, 1.0]


def test_epsilon_is_at_most_the_largest_loss_of_laplace_noise() -> None:
    release = Release(family="laplace", noise_multiplier=2.0, count=3)
    assert epsilon([release], 0.0) == (1.5, 1.5)
    assert epsilon([release], 1e-12).high <= 1.5


def test_both_directions_bound_what_a_sampled_release_reveals() -> None:
    """The errors of the best test have a closed form; the bound lies below, within 1%."""
    release, fpr = Release(noise_multiplier=0.5, **SAMPLED), np.array([0.001, 0.05, 0.5, 0.9, 0.99])
    exact = TradeoffFamily("gaussian", 0.2).false_negative_rate(2.0, fpr)
    bound = false_negative_rate([release], fpr)
    assert (bound <= exact + 1e-9).all()
    assert bound == pytest.approx(exact, rel=0.01, abs=1e-4)


def test_the_worse_direction_is_the_cost_of_a_sampled_release() -> None:
    """Removing a record costs more than adding one; one release has a closed form."""
    release = Release(noise_multiplier=0.5, **SAMPLED)
    exact = TradeoffFamily("gaussian", 0.2).epsilon(2.0, 1e-5)
    ends = epsilon([release], 1e-5)
    assert ends.low <= exact <= ends.high
    assert ends.high == pytest.approx(exact, rel=1e-3)
    reached = delta([release], exact)
    assert reached.low <= 1e-5 <= reached.high * (1 + 1e-9)
    assert reached.high == pytest.approx(1e-5, rel=1e-2, abs=0)


def test_a_record_drawn_as_rarely_as_delta_needs_no_epsilon() -> None:
    assert TradeoffFamily("gaussian", 0.1).epsilon(5.0, 0.1) == 0.0
    assert TradeoffFamily("gaussian", 0.1).epsilon(5.0, 0.09) > 0
    assert LAPLACE.epsilon(1.0, 0.19) == pytest.approx(1 + 2 * log(0.81))


def test_success_under_epsilon_is_the_lesser_of_two_lines() -> None:
    assert under_epsilon(0.1, log(2), 0.1) == pytest.approx(0.3)
    assert under_epsilon(0.5, log(2), 0.1) == pytest.approx(0.8)
    assert least_epsilon(0.3, 0.1, 0.1) == pytest.approx(log(2))
    assert least_epsilon(0.8, 0.5, 0.1) == pytest.approx(log(2))


@pytest.mark.parametrize("candidates", [2, 5])
def test_a_score_without_power_matches_by_chance(candidates: int) -> None:
    assert matching_success(lambda rates: rates, candidates) == pytest.approx(1 / candidates)
    square = matching_success(lambda rates: 1 - (1 - rates) ** 2, candidates)
    assert square == pytest.approx(2 / (candidates + 1))


FURTHER = 60_000 ** (1 / 199)  # the next epsilon of those that errors are bounded by, over one


def test_errors_of_composed_laplace_noise_have_its_pure_epsilon() -> None:
    """Two losses of 1 together: below Q(both) = e^-2 / 4 the best test misses 1 - e^2 FPR."""
    rates = np.array([0.0, 0.01, 0.03])
    found = false_negative_rate([Release(family="laplace", noise_multiplier=1.0, count=2)], rates)
    assert np.all(found <= 1 - exp(2) * rates)
    assert np.all(found >= 1 - exp(2 * FURTHER) * rates - 1e-8)


def test_errors_of_a_sampled_release_reach_both_ends() -> None:
    """Of rate 1/2 losses lie from -ln(2 / (1 + 1/e)) to ln((1 + e) / 2)."""
    least, most = log(2 / (1 + exp(-1))), log((1 + exp(1)) / 2)
    release = Release(family="laplace", noise_multiplier=1.0, sampling="poisson", sampling_rate=0.5)
    found = false_negative_rate([release], np.array([0.1, 0.9, 1.0]))
    assert 1 - 0.1 * exp(most * FURTHER) - 1e-8 <= found[0] <= 1 - 0.1 * exp(most)
    assert 0.1 * exp(-least * FURTHER) - 1e-8 <= found[1] <= 0.1 * exp(-least)
    assert found[2] == 0.0


@pytest.mark.parametrize("adjacency, n", [("add-remove", 2), ("replace-one", 1)])
def test_a_sampled_release_has_a_pair_for_each_direction(adjacency, n) -> None:
    half = Release(**SAMPLED, noise_multiplier=3.0)
    whole = Release(family="gaussian", noise_multiplier=3.0)
    assert [pairs.kind for pairs in worst_pairs(half, "add-remove")] == ["remove", "add"]
    assert [len(worst_pairs(one, adjacency)) for one in (half, whole)] == [n, 1]
    assert float(worst_pairs(whole, adjacency)[0].scale[0, 0]) == (3.0 if n == 2 else 1.5)


@pytest.mark.parametrize("mu, rate", [(0.5, 0.1), (2.0, 0.01)])
def test_the_limit_theorem_by_hand(mu: float, rate: float) -> None:
    found = clt_mu(rate, np.array([mu, mu, mu]))
    assert found == pytest.approx(rate * (3 * (exp(mu**2) - 1)) ** 0.5)


def test_of_sampled_laplace_noise_epsilon_is_amplified() -> None:
    """At delta the unsampled release has epsilon 1 + 2 ln(1 - delta / q)."""
    unsampled = 1 + 2 * log(1 - 0.1)
    family = TradeoffFamily("laplace", 0.2)
    assert family.epsilon(1.0, 0.02) == pytest.approx(log(0.8 + 0.2 * exp(unsampled)))
    assert family.epsilon(1.0, 0.2) == 0.0
    assert LAPLACE.epsilon(1.0, 0.1) == pytest.approx(unsampled)
    assert LAPLACE.epsilon(0.1, 0.5) == 0.0
