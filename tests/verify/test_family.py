"""What errors and sums of canaries say of the noise, against closed forms and drawn sums."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, norm

from dpaudit.accounting.families import gaussian_epsilon, gaussian_mu
from dpaudit.verify import figures
from dpaudit.verify.family import CHECKED, CanaryLaw, allow
from tests.verify import test_values as of


def releases(noise: float, **how: Any) -> list[dict[str, Any]]:
    plain = {"sampling": "none", "sampling_rate": 1.0, "clipped": "records"}
    return [{"family": "gaussian", "noise_multiplier": noise, "count": 4} | plain | how]


def canaries(**other: Any) -> CanaryLaw:
    plain = {"value": 1.1, "sizes": np.array([0.5, 1.0]), "uses": np.array([3.0, 2.0])}
    return CanaryLaw(
        **(plain | {"rate": 1.0, "present": 4.0, "absent": 6.0, "scales": [1.0]} | other)
    )


@pytest.mark.parametrize("noise, mu", [(1.0, 1.0), (2.5, 0.4), (np.inf, 1e-3), (1000.0, 1e-3)])
def test_unsampled_noise_allows_errors_up_to_mu(noise: float, mu: float) -> None:
    """Four releases at twice the norm are mu = 1; most noise counts as 1000 times."""
    for first in (-0.3, 0.0):
        allowed, less = (norm.cdf([first, -first - x * mu]) for x in (0.999, 1.001))
        assert allow(releases(2.0), "add-remove", noise, list(allowed))
        assert not allow(releases(2.0), "add-remove", noise, list(less))


@pytest.mark.parametrize("threshold", [0.0, 1.0, 2.0])
def test_sampled_noise_allows_the_threshold_test(threshold: float) -> None:
    sampled = releases(1.0, count=1, sampling="poisson", sampling_rate=0.3)
    missed = 0.3 * norm.cdf(threshold - 0.5) + 0.7 * norm.cdf(threshold)
    for share, is_allowed in ((1.002, True), (0.99, False)):
        rates = [share * norm.sf(threshold), share * missed]
        assert allow(sampled, "add-remove", 2.0, rates) == is_allowed


def test_evidence_bounds_the_scale_by_absent_canaries() -> None:
    """6 of 10 are absent, with 5 uses each: 30 degrees of freedom."""
    evidence = {"sum": [1.1], "rate of uses": [0.2], "canaries there": [4], "mean square": [2.0]}
    found = CanaryLaw.of(evidence | {"sizes of uses": [0.5, 1], "uses of each size": [3, 2]}, 10)
    assert (found.value, found.rate, found.present, found.absent) == (1.1, 0.2, 4, 6)
    ends = 2.0 * 30 / chi2.ppf([1 - CHECKED / 4, CHECKED / 4], 30)
    assert list(found.scales) == pytest.approx(np.sqrt(ends))


def test_pairs_are_of_larger_uses() -> None:
    (one, n), (other, m) = canaries(rate=0.2, scales=[1.0]).pairs(2.0)
    assert (one.scale, n, other.scale, m) == (1.0, 3.0, 0.5, 2.0)
    assert (one.family, one.rate) == ("gaussian", 0.2)


@pytest.mark.parametrize("value", [-0.5, 1.1, 3.0])
@pytest.mark.parametrize("factor, scale", [(0.0, 1.0), (1.0, 0.8), (1.0, 1.3), (1.6, 1.0)])
def test_a_sum_without_sampling_is_normal(value: float, factor: float, scale: float) -> None:
    """Sum of n a^2 = 2.75: a mean of c s times that, a variance of s^2 (1/4 + 1/6) times that."""
    found = canaries(value=value, scales=[scale]).p(factor)
    deviation = scale * np.sqrt(2.75 * (1 / 4 + 1 / 6))
    assert found == pytest.approx(norm.sf((value - 2.75 * factor * scale) / deviation), abs=1e-6)
    both = canaries(value=value, scales=[scale, 0.5]).p(factor)
    assert both == max(found, canaries(value=value, scales=[0.5]).p(factor))


def test_a_sampled_sum_is_that_of_drawn_canaries() -> None:
    """Seed 36, 100,000 sums: five deviations, three values: a false failure in 500,000."""
    rng, n, q, a, s, c = np.random.default_rng(36), 100_000, 0.3, 1.2, 0.9, 1.1
    used = (rng.random((n, 2, 2)) < q) * c * a
    z = rng.standard_normal((n, 5, 2))
    z[:, :2] += used
    score = np.log(1 - q + q * np.exp(a * s * z - a**2 / 2)).sum(axis=2)
    drawn = score[:, :2].mean(axis=1) - score[:, 2:].mean(axis=1)
    one = canaries(sizes=np.array([a]), uses=np.array([2.0]), rate=q, present=2.0, absent=3.0)
    for value in (-0.5, 0.3, 1.0):
        found = one._replace(value=value, scales=[s]).p(c)
        assert found == pytest.approx(np.mean(drawn >= value), abs=5 * 0.5 / np.sqrt(n))


SQUARES = 2.75  # of the uses of a canary, whose sum is then N(SQUARES c s, ...)
DEVIATION = np.sqrt(SQUARES * (1 / 4 + 1 / 6))
SUM = {"sum": [6.0], "rate of uses": [1.0], "canaries there": [4], "mean square": [1.0]}
SUM |= {"sizes of uses": [0.5, 1.0], "uses of each size": [3.0, 2.0]}


def figures_of(factor: float, epsilon: float = 2.0, value: float = 6.0, mu: float = 1.0) -> Any:
    names = of.metrics(canaries=10.0, mu_lower_bound=mu * factor * np.sqrt(SQUARES))
    names[figures.NOISE_FACTOR] = {"value": 1 / factor if factor else np.inf}
    one = of.finding("test", of=names, evidence=SUM | {"sum": [value]})
    return figures._of_sum(one, of.evidence(one, epsilon=epsilon), 0.05)


def factor_of(value: float) -> float:
    """The largest factor at which such a sum has a probability of 0.05 or less."""
    (scale,) = np.sqrt(30 / chi2.ppf([CHECKED / 4], 30))  # 6 absent canaries of 5 uses, the loudest
    return float((value / scale - norm.isf(0.05 - CHECKED) * DEVIATION) / SQUARES)


def test_a_sum_of_canaries_certifies_the_factor_that_it_refutes() -> None:
    scale = np.sqrt(30 / chi2.ppf(CHECKED / 4, 30))
    p, bound, most = figures_of(factor := factor_of(6.0))
    own = gaussian_epsilon(1e-5, factor * np.sqrt(SQUARES))
    assert bound == pytest.approx((own * 0.995, own * 1.005), rel=1e-4)
    limit = gaussian_mu(2.0, 1e-5) / np.sqrt(SQUARES)
    for found, near in zip(p, (0.995, 1.005), strict=True):
        away = 6.0 / scale - SQUARES * limit * near
        assert found == pytest.approx(norm.sf(away / DEVIATION) + CHECKED, rel=2e-3)
    assert most == (np.inf, np.inf)
    assert figures_of(0.0, value=0.1)[1] == (0.0, 0.0)


def test_a_factor_or_mu_that_a_sum_does_not_give_is_refused() -> None:
    factor = factor_of(6.0)
    with pytest.raises(ValueError, match="its noise, at most times the declared is"):
        figures_of(factor * 1.001)
    with pytest.raises(ValueError, match="its mu lower bound is"):
        figures_of(factor, mu=1.001)


@pytest.mark.parametrize(
    "change, said",
    [
        ({}, []),
        ({"noise": 1.01}, ["its errors do not give", "the noise of the declared family gives"]),
        ({"noise": 0.99}, ["its errors do not give", "the noise of the declared family gives"]),
        ({"epsilon": 1.01}, ["the noise of the declared family gives epsilon"]),
        ({"releases": None}, ["missing: the releases of the declared family"]),
    ],
)
def test_errors_give_the_most_noise_of_the_declared_family(change: Any, said: list[str]) -> None:
    """Rates of errors of 2% and 10% are those of mu = Phi^-1(0.98) + Phi^-1(0.9)."""
    rates = [figures.counts.upper_rate(k, 1000, 0.025) for k in (20, 100)]
    mu = -float(norm.ppf(rates).sum())
    names = of.metrics(false_positives=(20.0, 1000), false_negatives=(100.0, 1000))
    names[figures.NOISE_FACTOR] = {"value": change.get("noise", 1.0) / mu}
    own = gaussian_epsilon(1e-5, mu) * change.get("epsilon", 1.0)
    names[figures.OF_SHAPE] = {"value": own}
    most = {"most": change.get("releases", releases(2.0))}
    one = of.finding("test", of=names, releases={k: v for k, v in most.items() if v})
    found = list(figures._of_shape(one, of.evidence(one), 0.05))
    assert len(found) == len(said)
    assert all(one.startswith(other) for one, other in zip(found, said, strict=True))
