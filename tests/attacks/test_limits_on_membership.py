"""A limit on an AUC is broken by chance no more often than its significance says."""

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.attack.membership_rates import auc
from dpaudit.statistics.p_values import Side, p_beyond

FALSE_FAILURE = 1e-9  # probability that a limit of this level fails a test, over fresh seeds
TRIALS, LEVEL = 4000, 0.05


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize(("members", "others"), [(5, 5), (10, 10), (5, 50)])
def test_few_members_break_a_kept_limit_rarely(members: int, others: int, side: Side) -> None:
    """The scores are alike, so that the true AUC is the limit."""
    rng = np.random.default_rng(2026)
    broken = sum(
        p_beyond(auc(rng.normal(size=members), rng.normal(size=others)), 0.5, side) <= LEVEL
        for _ in range(TRIALS)
    )
    assert broken <= binom.isf(FALSE_FAILURE, TRIALS, LEVEL)


def test_a_limit_far_below_is_broken() -> None:
    rng = np.random.default_rng(2026)
    found = auc(rng.normal(size=30) + 2.0, rng.normal(size=30))
    assert p_beyond(found, 0.5, "above") < 1e-4
    assert p_beyond(found, 0.95, "above") > LEVEL


def test_the_error_of_an_auc_is_of_its_larger_half() -> None:
    found = auc(np.array([3.0, 2.0, 1.5]), np.array([0.0, 1.0, 2.5]))
    assert found.low is not None
    assert found.high is not None
    half = max(found.value - found.low, found.high - found.value)
    assert found.standard_error == pytest.approx(half / 1.959964, rel=1e-6)
