"""Values on which a ledger stops, one by one."""

from math import exp, floor, inf, log
from typing import Any

import pytest

from dpaudit import ledger
from dpaudit.accounting import gaussian_epsilon
from dpaudit.files.ledger_file import Budget, LedgerEntry, PrivacyEvent
from dpaudit.ledger import accounts
from dpaudit.ledger.accounts import composed
from dpaudit.release import Release


def entry(what: Any, agent: str | None = None) -> LedgerEntry:
    if isinstance(what, PrivacyEvent):
        return LedgerEntry(event=what, agent=agent)
    return LedgerEntry(release=what, agent=agent)


def budget_of(composition: str = "fixed", **more: Any) -> Budget:
    order = 8.0 if composition == "renyi-filter" else None
    fields = {"epsilon": 2.0, "delta": 1e-5, "composition": composition, "order": order}
    return Budget.model_validate(fields | more)


def test_how_many_more_fit_is_0_to_10_million(tmp_path) -> None:
    budget = ledger.open(tmp_path / "l", epsilon=1.0)
    assert budget.remaining(ledger.event(0.0)) == 10_000_000
    assert budget.remaining(ledger.laplace(0.9)) == 0
    assert [budget.remaining(ledger.laplace(x)) for x in (1.0, 3.0, 4.5)] == [1, 3, 4]
    assert budget.remaining(ledger.laplace(1e9)) == 10_000_000


def test_a_filter_reserves_a_thousandth_of_delta() -> None:
    gaussian, events = ledger.gaussian(4.0), ledger.event(0.5, 5e-9)
    account = accounts.RenyiFilter(budget_of("renyi-filter"))
    account.add(entry(gaussian))
    loss = log(1 - 1 / 8) - log(8 * 0.999e-5) / 7
    assert account.epsilon == pytest.approx(8 / 32 + loss, rel=1e-12)
    assert account.fits(entry(events), 9.0)
    account.add(entry(events))
    lie, a = 1 / (1 + exp(0.5)), 8
    truth = 1 - lie
    moment = truth**a * lie ** (1 - a) + lie**a * truth ** (1 - a)
    assert account.epsilon == pytest.approx(8 / 32 + log(moment) / 7 + loss, rel=1e-12)
    assert account.copy().epsilon == account.epsilon < inf
    assert not account.fits(entry(ledger.event(0.0, 6e-9)), 9.0)
    account.add(entry(ledger.event(0.0, 6e-9)))
    assert account.epsilon == inf


def test_a_release_is_ahead_only_if_it_reveals_no_more() -> None:
    account = accounts.FixedSchedule(budget_of())
    ahead = ledger.gaussian(4.0, sampling="poisson", sampling_rate=0.5)
    account._ahead, account._left = ahead, 3
    same: list[dict[str, Any]] = [
        {},
        {"count": 3},
        {"noise_multiplier": 5.0},
        {"sampling_rate": 0.4},
    ]
    other: list[dict[str, Any]] = [
        {"count": 4},
        {"noise_multiplier": 3.9},
        {"sampling_rate": 0.6},
        {"sampling": "fixed"},
        {"clipped": "whole"},
        {"family": "laplace"},
    ]
    assert [account._is_ahead(ahead.model_copy(update=one)) for one in same] == [True] * 4
    assert [account._is_ahead(ahead.model_copy(update=one)) for one in other] == [False] * 6
    account._ahead = None
    assert not account._is_ahead(ahead)


def test_many_kinds_of_noise_are_rounded_down_to_a_thousandth() -> None:
    few = {ledger.gaussian(1 + k / 100): 2 for k in range(64)}
    assert accounts._few_kinds(few) is few
    many = {ledger.gaussian(1 + k / 10_000): 2 for k in range(65)} | {ledger.gaussian(0.0): 1}
    found = accounts._few_kinds(many)
    noises = {exp(floor(log(1 + k / 10_000) / 1e-3) * 1e-3) for k in range(65)} | {0.0}
    assert sorted(r.noise_multiplier for r in found) == pytest.approx(sorted(noises), rel=1e-12)
    assert sum(found.values()) == 131


def test_what_is_composed_of_each_agent() -> None:
    entries = [
        entry(ledger.gaussian(4.0)),
        entry(ledger.gaussian(2.0), "a"),
        entry(ledger.event(0.25, 1e-6), "b"),
    ]
    mu = {None: 0.25, "a": (1 / 16 + 1 / 4) ** 0.5}
    found = composed(budget_of(), entries, 1e-5)
    assert list(found) == [None, "a", "b"]
    for agent, one in mu.items():
        assert found[agent] == pytest.approx(gaussian_epsilon(1e-5, one), rel=1e-9)
    assert found["b"] == pytest.approx(gaussian_epsilon(9e-6, 0.25) + 0.25, rel=1e-9)
    assert composed(budget_of(), entries, 0.0) == {None: inf, "a": inf, "b": inf}
    pure = [entry(ledger.laplace(4.0)), entry(ledger.event(0.5), "a")]
    assert composed(budget_of(), pure, 0.0) == {None: 0.25, "a": 0.75}
    by_filter = composed(budget_of("gaussian-filter"), entries[:2], 1e-5)
    assert by_filter["a"] == pytest.approx(found["a"], rel=1e-12)
    assert composed(budget_of("gaussian-filter"), entries[:2], 0.0) == {None: inf, "a": inf}
    twice = composed(budget_of(adjacency="replace-one"), entries[:1], 1e-5)
    assert twice[None] == pytest.approx(gaussian_epsilon(1e-5, 0.5), rel=1e-9)


def test_events_take_all_of_delta_and_no_more() -> None:
    account = accounts.FixedSchedule(budget_of())
    assert account.fits(entry(ledger.event(2.0, 1e-5)), 2.0)
    assert account.fits(entry(ledger.event(2.0 + 1e-9, 1e-5)), 2.0)
    assert not account.fits(entry(ledger.event(2.0 + 1e-8, 1e-5)), 2.0)
    assert not account.fits(entry(ledger.event(2.0, 1.0001e-5)), 2.0)
    account.add(entry(ledger.event(0.5, 1e-5)))
    assert (account.epsilon, account.copy().epsilon) == (0.5, 0.5)
    assert account.fits(entry(ledger.laplace(1.0)), 1.5)
    assert not account.fits(entry(ledger.gaussian(1e3)), 2.0)


def test_a_warning_is_given_once_above_its_share(tmp_path) -> None:
    budget = ledger.open(tmp_path / "l", epsilon=1.0)
    budget.release(ledger.laplace(10.0), count=9)
    with pytest.warns(ledger.BudgetWarning, match="more than 90% of epsilon 1"):
        budget.release(ledger.laplace(20.0))
    budget.release(ledger.laplace(20.0))  # pytest makes no error of it, and none is expected
    assert budget.spent() == pytest.approx(1.0)
    with pytest.raises(
        ledger.BudgetExceeded, match="exceed epsilon 1 at delta 0; the releases so far add up to 1"
    ):
        budget.release(ledger.laplace(1e6))


def test_a_line_is_a_release_or_an_event_and_not_both() -> None:
    one, other = Release(family="gaussian", noise_multiplier=1.0), PrivacyEvent(epsilon=1.0)
    assert entry(one).event is None
    assert entry(other).release is None
    for given in ({}, {"release": one, "event": other}):
        with pytest.raises(ValueError, match="expected either release or event"):
            LedgerEntry.model_validate(given)
