"""The checker's bounds and p-values against the auditor's and by hand."""

import numpy as np
import pytest

from dpaudit.statistics.bounds import epsilon_lower_bound, mu_p_value
from dpaudit.statistics.bounds import p_value as reference
from dpaudit.verify.counts import epsilon_bound, holm, mu_bound, p_value


@pytest.mark.parametrize("seed", range(50))
def test_counts_prove_what_the_auditor_says(seed: int) -> None:
    rng = np.random.default_rng([38, seed])
    n0, n1 = (int(n) for n in rng.integers(20, 5000, 2))
    fp, fn = int(rng.integers(0, n0 // 4 + 1)), int(rng.integers(0, n1 // 2 + 1))
    delta, epsilon = float(rng.choice([0, 1e-5, 1e-2])), float(rng.uniform(0, 4))
    counts = fp, fn, n0, n1
    assert epsilon_bound(*counts, delta, 0.05) == pytest.approx(
        float(epsilon_lower_bound(*counts, delta, 0.05)), abs=1e-9
    )
    found = p_value(*counts, delta, epsilon, None)
    assert np.log(found) == pytest.approx(np.log(reference(*counts, delta, epsilon)), abs=1e-5)
    found = p_value(*counts, delta, epsilon, epsilon)
    assert np.log(found) == pytest.approx(np.log(mu_p_value(*counts, epsilon)), abs=1e-5)


def test_no_errors_among_a_hundred() -> None:
    """FPR and FNR are at most 1 - 0.025^(1/100) = 0.0362: ln(0.9638 / 0.0362) = 3.28."""
    assert epsilon_bound(0, 0, 100, 100, 0.0, 0.05) == pytest.approx(3.2814, abs=1e-4)
    assert mu_bound(0, 0, 100, 100, 0.05) == pytest.approx(3.5937, abs=1e-3)


def test_useless_counts_prove_nothing() -> None:
    assert epsilon_bound(50, 50, 100, 100, 0.0, 0.05) == 0.0
    assert p_value(50, 50, 100, 100, 0.0, 0.0, None) == 1.0


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []
