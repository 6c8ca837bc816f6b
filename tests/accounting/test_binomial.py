import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.accounting import binomial
from dpaudit.accounting.binomial import at_most, log_mass, more_than, quantile

P = np.array([0.0, 1e-300, 1e-12, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0])[:, None]


@pytest.mark.parametrize("n", [1, 2, 7, 400, 100_000])
def test_the_law_is_that_of_scipy(n: int) -> None:
    k = np.unique(np.linspace(-1, n + 1, 60).astype(int))
    within = k[(k >= 0) & (k <= n)]
    np.testing.assert_allclose(at_most(k, n, P), binom.cdf(k, n, P), rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(more_than(k, n, P), binom.sf(k, n, P), rtol=1e-10, atol=1e-300)
    np.testing.assert_array_equal(log_mass(within, n, P), binom.logpmf(within, n, P))


@pytest.mark.parametrize("n", [1, 2, 7, 400, 100_000])
def test_a_quantile_is_the_least_count_that_reaches_it(n: int) -> None:
    q = (np.arange(64) + 0.5) / 64
    np.testing.assert_array_equal(quantile(q, n, P), binom.ppf(q, n, P))


@pytest.mark.parametrize("answer", [np.nan, 7.0])  # of later and of earlier releases of scipy
def test_what_scipy_answers_without_a_chance_is_not_taken(monkeypatch, answer: float) -> None:
    monkeypatch.setattr(binomial, "bdtrik", lambda q, n, p: np.full(np.shape(q), answer))
    assert quantile([0.01, 0.99], 7, 0.0).tolist() == [0.0, 0.0]


def test_no_success_reaches_a_quantile_of_0() -> None:
    assert quantile([0.0, 1.0], 7, 0.3).tolist() == [0.0, 7.0]
