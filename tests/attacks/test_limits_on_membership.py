"""A limit on an AUC is broken by chance no more often than its significance says."""

from functools import cache
from math import comb

import numpy as np
import pytest

from dpaudit.attack.membership_rates import auc
from dpaudit.statistics.p_values import Side, p_beyond

LEVEL = 0.05


@cache
def orders(members: int, others: int, pairs: int) -> int:
    """Of members and others by score, those in which ``pairs`` members stand above an other."""
    if pairs < 0 or not members or not others:
        return int(pairs == 0)
    above_all = orders(members - 1, others, pairs - others)
    return above_all + orders(members, others - 1, pairs)


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize(("members", "others"), [(5, 5), (10, 10), (5, 50)])
def test_few_members_break_a_kept_limit_rarely(members: int, others: int, side: Side) -> None:
    """The scores are alike, so that the true AUC is the limit and all orders are as likely."""
    broken = 0
    for pairs in range(members * others + 1):
        each, rest = divmod(pairs, members)
        scores = np.array([each + (i < rest) for i in range(members)]) - 0.5
        if p_beyond(auc(scores, np.arange(others)), 0.5, side) <= LEVEL:
            broken += orders(members, others, pairs)
    assert 0 < broken <= LEVEL * comb(members + others, others)


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
