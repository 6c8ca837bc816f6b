"""The checker's bounds and p-values against the auditor's and by hand."""

from functools import partial

import numpy as np
import pytest

from dpaudit.statistics.bounds import epsilon_lower_bound, mu_p_value
from dpaudit.statistics.bounds import p_value as reference
from dpaudit.statistics.guesses import epsilon_from_guesses
from dpaudit.statistics.successes import EpsilonPromise, MuPromise
from dpaudit.statistics.successes import Successes as Reference
from dpaudit.verify.counts import (
    allowed,
    errors_bound,
    errors_p_value,
    guesses_p_value,
    holm,
    largest,
    successes_p_value,
)


@pytest.mark.parametrize("seed", range(50))
def test_counts_prove_what_the_auditor_says(seed: int) -> None:
    rng = np.random.default_rng([38, seed])
    n0, n1 = (int(n) for n in rng.integers(20, 5000, 2))
    fp, fn = int(rng.integers(0, n0 // 4 + 1)), int(rng.integers(0, n1 // 2 + 1))
    delta, epsilon = float(rng.choice([0, 1e-5, 1e-2])), float(rng.uniform(0, 4))
    counts = fp, fn, n0, n1
    assert errors_bound(delta, False, counts, 0.05) == pytest.approx(
        float(epsilon_lower_bound(*counts, delta, 0.05)), abs=1e-9
    )
    found = errors_p_value(delta, False, counts, epsilon)
    assert np.log(found) == pytest.approx(np.log(reference(*counts, delta, epsilon)), abs=1e-5)
    found = errors_p_value(delta, True, counts, epsilon)
    assert np.log(found) == pytest.approx(np.log(mu_p_value(*counts, epsilon)), abs=1e-5)


def test_no_errors_among_a_hundred() -> None:
    """FPR and FNR are at most 1 - 0.025^(1/100) = 0.0362: ln(0.9638 / 0.0362) = 3.28."""
    assert errors_bound(0.0, False, (0, 0, 100, 100), 0.05) == pytest.approx(3.2814, abs=1e-4)
    assert errors_bound(0.0, True, (0, 0, 100, 100), 0.05) == pytest.approx(3.5937, abs=1e-3)


def test_useless_counts_prove_nothing() -> None:
    assert errors_bound(0.0, False, (50, 50, 100, 100), 0.05) == 0.0
    assert errors_p_value(0.0, False, (50, 50, 100, 100), 0.0) == 1.0


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


@pytest.mark.parametrize("seed", range(30))
def test_guesses_prove_what_the_auditor_says(seed: int) -> None:
    rng = np.random.default_rng([42, seed])
    canaries = int(rng.integers(20, 3000))
    guesses = int(rng.integers(1, canaries + 1))
    right = int(rng.integers(guesses // 2, guesses + 1))
    delta, alpha = float(rng.choice([0, 1e-6, 1e-4])), float(rng.choice([0.01, 0.05]))
    p = partial(guesses_p_value, delta, canaries, guesses, right)
    found = largest(p, alpha)
    reference = epsilon_from_guesses(canaries, guesses, right, delta, alpha)
    assert found == pytest.approx(reference, abs=2e-6)
    if 0 < found < 49:
        assert p(found) == pytest.approx(alpha, rel=1e-6)


def test_ten_right_guesses_of_ten() -> None:
    """q^10 = 0.05 at q = 0.7411: ln(q / (1 - q)) = 1.0519."""
    p = partial(guesses_p_value, 0.0, 10, 10, 10)
    assert largest(p, 0.05) == pytest.approx(1.0519, abs=1e-4)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_successes_prove_what_the_auditor_says(seed: int, apart: bool) -> None:
    rng = np.random.default_rng([43, seed])
    n, kappa = int(rng.integers(1, 300)), float(rng.uniform(0.001, 0.6))
    hits, delta = int(rng.integers(0, n + 1)), float(rng.choice([0, 1e-5, 0.01]))
    other = Reference(hits, n, kappa, apart)
    for promise in (EpsilonPromise(1.3, delta), MuPromise(1.3)):
        of_mu = isinstance(promise, MuPromise)
        assert allowed(kappa, delta, of_mu, 1.3) == pytest.approx(promise.gamma(kappa))
        p = partial(successes_p_value, kappa, delta, of_mu, apart, n, hits)
        assert p(1.3) == pytest.approx(other.p_value(promise), rel=1e-9)
        assert largest(p, 0.05) == pytest.approx(other.bound(promise, 0.05), abs=1e-8)
