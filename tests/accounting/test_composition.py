"""Composition: against exact arithmetic, closed forms and dp-accounting; its error bounds hold."""

from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from dpaudit.accounting.composition import (
    MAX_LEVELS,
    ORDERS,
    Bound,
    Product,
    Rounds,
    _exponentials,
    compose,
    each_exactly,
    least_epsilon,
    on_levels,
)
from dpaudit.accounting.families import gaussian_delta, gaussian_epsilon
from dpaudit.accounting.privacy_loss import NoiseFamily, Pairs


def pairs(family: NoiseFamily, kind: str, scales: np.ndarray, rate: float) -> Pairs:
    return Pairs(family, kind, np.sort(scales)[:, None], np.full((len(scales), 1), rate))


def test_product_is_within_its_error_bound_of_exact_arithmetic() -> None:
    rng = np.random.default_rng(5)
    n, points = 64, np.array([-2, 0, 1, 5])
    product, exact = Product(n), [Fraction(int(i == 0)) for i in range(n)]
    for count in (1, 3, 1):
        masses = rng.dirichlet(np.ones(4))
        product.times(product.transform(points, masses), count)
        weights = [Fraction(float(m)) for m in masses]
        for _ in range(count):
            exact = [
                sum(w * exact[(i - p) % n] for p, w in zip(points, weights, strict=True))
                for i in range(n)
            ]
    found, error = product.masses()
    off = [abs(Fraction(float(a)) - b) for a, b in zip(found, exact, strict=True)]
    assert float(sum(off)) <= error
    assert error < 1e-11


def test_many_factors_stay_within_the_error_bound() -> None:
    # a point mass composed with itself is a point mass: any rounding error shows
    product, k = Product(2**12), 1_000
    for _ in range(k):
        product.times(product.transform(np.array([3, 5]), np.array([1.0, 0.0])))
    product.times(product.transform(np.array([3]), np.array([1.0])), 500)
    found, error = product.masses()
    off = np.abs(found - (np.arange(2**12) == 3 * 1_500 % 2**12)).sum()
    assert off <= error < 1e-7


@pytest.mark.parametrize("mu, count", [(1.0, 1), (0.3, 20), (0.02, 5_000), (4.0, 1)])
def test_composed_gaussians_bracket_the_closed_form(mu: float, count: int) -> None:
    rounds = [each_exactly(pairs("gaussian", "remove", np.array([1 / mu]), 1.0), np.array([count]))]
    total = mu * np.sqrt(count)
    lower, upper = compose(rounds, "lower", 1e-12), compose(rounds, "upper", 1e-12)
    for delta in (1e-2, 1e-5):
        exact = gaussian_epsilon(delta, total)
        assert exact - 5e-4 * total <= lower.epsilon(delta) <= exact
        assert exact <= upper.epsilon(delta) <= exact + 5e-4 * total
    for epsilon in (0.0, 0.5, 2.0):
        assert lower.delta(epsilon) <= gaussian_delta(epsilon, total) <= upper.delta(epsilon)


@pytest.mark.parametrize("bound", ["upper", "lower"])
@pytest.mark.parametrize(("family", "scale"), [("gaussian", 0.6), ("laplace", 2.0)])
def test_deltas_are_each_delta(family: NoiseFamily, scale: float, bound: Bound) -> None:
    rounds = [each_exactly(pairs(family, "remove", np.array([scale]), 0.3), np.array([40]))]
    composed = compose(rounds, bound, 1e-10)
    largest = composed.losses[-1]
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 2 * largest, 300), [largest]])
    each = np.array([composed.delta(epsilon) for epsilon in epsilons])
    assert 0 < np.count_nonzero(each > 1e-6) < len(each)
    assert np.abs(composed.deltas(epsilons) - each).max() < 1e-15 * len(composed.losses) ** 0.5


def test_a_round_on_two_levels_is_a_public_coin() -> None:
    """Twice mu = 1 with probability 0.7 or 0.5 with 0.3, and once mu = 1.5 for certain."""
    scales = np.array([1 / 1.5, 1.0, 2.0])
    level, weight, counts = np.array([0, 1]), np.array([0.0, 0.3]), np.array([1, 2])
    rounds = [Rounds(pairs("gaussian", "remove", scales, 1.0), level, weight, counts)]
    squares = {2.25 + 2: 0.49, 2.25 + 1.25: 0.42, 2.25 + 0.5: 0.09}
    lower, upper = (compose(rounds, bound, 1e-12) for bound in ("lower", "upper"))
    for epsilon in (0.0, 1.0, 4.0):
        exact = sum(p * gaussian_delta(epsilon, np.sqrt(mu2)) for mu2, p in squares.items())
        assert lower.delta(epsilon) <= exact <= upper.delta(epsilon)
        assert upper.delta(epsilon) - lower.delta(epsilon) < 1e-4


@pytest.mark.parametrize("mu, delta", [(10.0, 1e-5), (15.0, 1e-3), (10.0, 0.5)])
def test_a_threshold_test_far_below_the_mean_loss(mu: float, delta: float) -> None:
    """A Chernoff bound of N(m, 2m), of which a grid of few losses may lose a fifth."""
    rounds = [each_exactly(pairs("gaussian", "remove", np.array([1 / mu]), 1.0), np.array([4]))]
    mean, others = 2 * mu**2, -np.log1p(-np.sqrt(delta))
    apart = np.sqrt(4 * mean * others)
    found = least_epsilon(rounds, delta)
    assert 0.8 * (mean - apart - others) <= found <= mean - apart - others
    assert least_epsilon(rounds, 1 - 1e-18) == 0.0


def test_distinct_gaussians_bracket_the_closed_form() -> None:
    scales = np.geomspace(20.0, 60.0, 100)
    rounds = [each_exactly(pairs("gaussian", "remove", scales, 1.0), np.ones(100, int))]
    exact = gaussian_epsilon(1e-5, float(np.sqrt(np.sum(scales**-2.0))))
    assert exact - 1e-3 <= compose(rounds, "lower", 1e-10).epsilon(1e-5) <= exact
    assert exact <= compose(rounds, "upper", 1e-10).epsilon(1e-5) <= exact + 1e-3


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_shared_levels_bracket_the_exact_levels(
    family: NoiseFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.accounting.composition.MAX_LEVELS", 50)
    n = 120
    rounds, once = pairs(family, "remove", np.geomspace(0.6, 2.0, n), 0.02), np.ones(n, int)
    upper = compose([on_levels(rounds, once, "upper")], "upper", 1e-10).epsilon(1e-5)
    lower = compose([on_levels(rounds, once, "lower")], "lower", 1e-10).epsilon(1e-5)
    most = compose([each_exactly(rounds, once)], "upper", 1e-10).epsilon(1e-5)
    least = compose([each_exactly(rounds, once)], "lower", 1e-10).epsilon(1e-5)
    assert lower < least < most < upper  # so that each of these bounds has an effect
    assert upper - least < 0.01
    assert upper - lower < 0.2


def delta_of_shift(family: str, scale: float, epsilon: float) -> float:
    """Of one unsampled release, in closed form."""
    if family == "gaussian":
        return gaussian_delta(epsilon, 1 / scale)
    if epsilon < 0:
        return -np.expm1(epsilon) + np.exp(epsilon) * delta_of_shift(family, scale, -epsilon)
    return max(-np.expm1((epsilon - 1 / scale) / 2), 0.0)


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_a_coin_between_levels_of_equal_variation_dominates(family: NoiseFamily) -> None:
    n = MAX_LEVELS + 1
    scales = np.geomspace(0.05, 5e12, n)  # levels 3% apart
    rounds = on_levels(pairs(family, "remove", scales * 1.01, 0.5), np.ones(n, int), "upper")
    levels = rounds.levels.scale[:, 0]
    for i in range(0, n // 4, 17):
        below, above, weight = (
            levels[rounds.level[i]],
            levels[rounds.level[i] + 1],
            rounds.weight[i],
        )
        assert below <= scales[i] * 1.01 <= above
        for epsilon in (-2.0, -0.3, 0.0, 0.1, 1.0, 4.0):
            coin = (1 - weight) * delta_of_shift(family, below, epsilon)
            coin += weight * delta_of_shift(family, above, epsilon)
            exact = delta_of_shift(family, scales[i] * 1.01, epsilon)
            assert coin >= exact - 1e-12
            assert epsilon != 0 or coin == pytest.approx(exact, abs=2e-9)


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_upper_bound_agrees_with_dp_accounting_on_the_same_grid(family: NoiseFamily) -> None:
    scales = np.array([1.5, 2.0])
    theirs = pld.identity()
    for scale in scales:
        loss = getattr(pld, f"from_{family}_mechanism")(scale, sampling_prob=0.05)
        theirs = theirs.compose(loss.self_compose(60))
    ours = max(
        compose(
            [each_exactly(pairs(family, k, scales, 0.05), np.full(2, 60))], "upper", 1e-10, 1e-4
        ).epsilon(1e-5)
        for k in ("remove", "add")
    )
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), abs=1e-3)


def test_a_small_window_costs_accuracy_and_not_correctness() -> None:
    rounds = [each_exactly(pairs("gaussian", "remove", np.array([10.0]), 1.0), np.array([100]))]
    upper, lower = compose(rounds, "upper", 0.02), compose(rounds, "lower", 0.02)
    assert min(upper.slack, lower.slack) > 1e-3
    assert lower.delta(2.0) <= gaussian_delta(2.0, 1.0) <= upper.delta(2.0)
    exact = gaussian_epsilon(0.05, 1.0)
    assert 0 < lower.epsilon(0.05) <= exact <= upper.epsilon(0.05) < np.inf


def test_exponentials_that_are_squares_are_those_of_numpy() -> None:
    exponents = np.array([-np.geomspace(1e-9, 1e3, 40), -np.linspace(0, 5, 40)])
    found = _exponentials(exponents, ORDERS)
    assert found.shape == (2, len(ORDERS), 40)
    true = np.exp(ORDERS[None, :, None] * exponents[:, None])
    some = true > 1e-290
    assert np.abs(found[some] / true[some] - 1).max() < 1e-12
    assert np.all(found[~some] <= 1e-280)
