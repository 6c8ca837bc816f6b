"""Successes of reconstructions against claims: false refutations with claims that are tight."""

from functools import partial

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.accounting.reconstruction import matching_success, under_mu
from dpaudit.statistics.p_values import holm
from dpaudit.statistics.successes import EpsilonPromise, MuPromise, Promise, Successes, needed

ALPHA = 0.05
FALSE_FAILURE = 1e-9  # probability that a correct test fails this test, over fresh seeds
AUDITS = 400
PROMISES = (EpsilonPromise(1.0, 1e-5), EpsilonPromise(0.5, 0.0), MuPromise(1.0))
MOST = binom.isf(FALSE_FAILURE, AUDITS, ALPHA)  # false refutations of a correct test


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize(("n", "kappa"), [(40, 0.1), (300, 0.01)])
def test_runs_apart_refute_tight_claims_in_one_of_twenty(
    promise: Promise, n: int, kappa: float
) -> None:
    """The attacker succeeds exactly as often as the claim allows."""
    rng = np.random.default_rng(17)
    counts = rng.binomial(n, promise.gamma(kappa), AUDITS)
    found = [Successes(int(k), n, kappa, apart=True) for k in counts]
    assert sum(one.p_value(promise) <= ALPHA for one in found) <= MOST
    beyond = [
        one.bound(promise, ALPHA) > promise.least(promise.gamma(kappa), kappa) for one in found
    ]
    assert sum(beyond) <= MOST


@pytest.mark.parametrize("promise", PROMISES)
def test_tight_claims_stand_in_one_run_that_gives_all_away(
    promise: Promise,
) -> None:
    """Such runs have the largest tail of all; a binomial test would refute a third of them."""
    n, kappa, rng = 20, 0.02, np.random.default_rng(23)
    together = rng.random(AUDITS) < promise.gamma(kappa)
    found = [Successes(n if all_of_them else 0, n, kappa, apart=False) for all_of_them in together]
    refuted = sum(one.p_value(promise) <= ALPHA for one in found)
    assert refuted <= MOST
    alone = [Successes(one.hits, n, kappa, apart=True) for one in found]
    assert sum(one.p_value(promise) <= ALPHA for one in alone) == together.sum()


def test_two_tests_refute_one_of_two_claims_in_twenty() -> None:
    """After Holm's correction, as the judge does it."""
    promise, kappa, n, rng = MuPromise(1.0), 0.1, 100, np.random.default_rng(29)
    counts = rng.binomial(n, promise.gamma(kappa), (AUDITS, 2))
    pairs = [[Successes(int(k), n, kappa, True).p_value(promise) for k in pair] for pair in counts]
    assert sum(min(holm(pair)) <= ALPHA for pair in pairs) <= MOST


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("promise", PROMISES)
def test_a_bound_is_above_a_claim_where_p_is_below_alpha(promise: Promise, apart: bool) -> None:
    for hits in range(31):
        found = Successes(hits, 30, 0.01, apart)
        parameter = promise.least(promise.gamma(0.01), 0.01)  # the claim's own
        assert (found.bound(promise, ALPHA) > parameter) is (found.p_value(promise) < ALPHA)


def test_no_success_proves_nothing() -> None:
    none = Successes(0, 10, 0.1, apart=False)
    assert none.p_value(PROMISES[0]) == 1.0
    assert none.bound(PROMISES[0], ALPHA) == 0.0


def test_half_the_noise_is_refuted_by_matching() -> None:
    """Of ten orthonormal candidates the likeliest, 400 times; expected bounds as they come out."""
    promise, n = MuPromise(1.0), 400
    rng = np.random.default_rng(31)
    for mu, refuted in ((1.0, False), (2.0, True)):
        success = matching_success(partial(under_mu, mu=mu), 10)
        bounds = []
        for _ in range(50):
            found = Successes(int(rng.binomial(n, success)), n, 0.1, apart=True)
            assert (found.p_value(promise) < 1e-6) is refuted
            bounds.append(found.bound(promise, ALPHA))
        assert found.expected(promise, ALPHA, success) == pytest.approx(np.mean(bounds), abs=0.03)
    assert found.ceiling(promise, ALPHA) > max(bounds)


def test_so_many_successes_are_enough_and_one_less_is_not() -> None:
    promise = EpsilonPromise(1.0, 1e-5)
    n = int(needed(promise, 0.1, ALPHA))
    assert Successes(n, n, 0.1, True).p_value(promise) < ALPHA
    assert Successes(n - 1, n - 1, 0.1, True).p_value(promise) >= ALPHA
    assert needed(EpsilonPromise(800.0, 0.0), 0.1, ALPHA) == np.inf
