"""What the releases about one agent's records add up to, and whether one more fits the budget.

Composition of sampled noise takes a third of a second, and a training loop has thousands of
releases. A part of some releases never has a larger epsilon than all of them. So when a release
does not fit what was composed before, as many more like it are composed with it as already came.
If all of them fit, the next ones need no composition, and the number doubles; otherwise it is
halved. A release is refused only if it exceeds the budget itself, with no others.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import exp, floor, inf, log
from typing import NamedTuple

from dpaudit.accounting.families import gaussian_epsilon, gaussian_mu
from dpaudit.accounting.filters import (
    RESERVED,
    gaussian_cost,
    renyi_budget,
    renyi_cost,
    renyi_cost_of_epsilon,
    renyi_epsilon,
)
from dpaudit.accounting.releases import epsilon_at_most
from dpaudit.files.ledger_file import Budget, LedgerEntry
from dpaudit.release import Release

ROUNDING = 1e-9  # relative: sums of as many numbers as there are releases are not exact
MOST_KINDS = 64  # kinds of releases that are composed unchanged
STEP = 1e-3  # relative, by which the noise of more kinds is rounded down
ROOM = 1.02  # factor by which noise may fall before earlier releases are composed anew


class Account(ABC):
    """The releases about the records of one agent."""

    @abstractmethod
    def fits(self, entry: LedgerEntry, epsilon: float) -> bool:
        """Whether all releases and this one are at most epsilon at the budget's delta."""

    def allows(self, entry: LedgerEntry, epsilon: float) -> bool:
        """The same, before one like it is released again and again."""
        return self.fits(entry, epsilon)

    @abstractmethod
    def add(self, entry: LedgerEntry) -> None:
        """Count a release, whether it is allowed or not."""

    @property
    @abstractmethod
    def epsilon(self) -> float:
        """At most what all releases so far add up to at the budget's delta."""

    @abstractmethod
    def copy(self) -> "Account":
        """One with the same releases."""


class FixedSchedule(Account):
    """Releases whose noise, rates and order do not depend on earlier ones: exact composition.

    Events of other code add their epsilon, and take their delta from the budget's.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._counts = Counter[Release]()
        self._events = LedgerEvents(0.0, 0.0)
        self._ahead: Release | None = None  # allowed so often beside what was counted
        self._left, self._step, self._within = 0, 1, 0.0

    def copy(self) -> "FixedSchedule":
        other = FixedSchedule(self._budget)
        other._counts, other._events = self._counts.copy(), self._events
        return other

    def add(self, entry: LedgerEntry) -> None:
        if entry.event is not None:
            self._events = self._events.plus(entry.event.epsilon, entry.event.delta)
            self._left = 0
            return
        assert entry.release is not None
        self._counts[_single(entry.release)] += entry.release.count
        is_ahead = self._is_ahead(entry.release)
        self._left = self._left - entry.release.count if is_ahead else 0

    def fits(self, entry: LedgerEntry, epsilon: float) -> bool:
        if entry.event is not None:
            events = self._events.plus(entry.event.epsilon, entry.event.delta)
            return _at_most(self._composed(self._counts, events), epsilon)
        assert entry.release is not None
        more = Counter({_single(entry.release): entry.release.count})
        return _at_most(self._composed(self._counts + more, self._events), epsilon)

    def allows(self, entry: LedgerEntry, epsilon: float) -> bool:
        release = entry.release
        if release is None:
            return self.fits(entry, epsilon)
        if self._within == epsilon and self._is_ahead(release):
            return True
        falls = self._left > 0  # some are ahead, and this one has less noise
        noise = release.noise_multiplier / (ROOM if falls else 1.0)
        ahead = release.model_copy(update={"noise_multiplier": noise, "count": 1})
        own = Counter({_single(release): release.count})
        while self._step:
            more = own + Counter({ahead: self._step})
            if _at_most(self._composed(self._counts + more, self._events), epsilon):
                self._ahead, self._left = ahead, release.count + self._step
                self._within, self._step = epsilon, 2 * self._step
                return True
            self._step //= 2
        self._ahead, self._left, self._step = None, 0, 1
        return self.fits(entry, epsilon)

    def _is_ahead(self, release: Release) -> bool:
        """Whether it reveals no more than one of the releases that were composed ahead."""
        ahead = self._ahead
        return (
            ahead is not None
            and release.count <= self._left
            and (release.family, release.sampling, release.clipped)
            == (ahead.family, ahead.sampling, ahead.clipped)
            and release.noise_multiplier >= ahead.noise_multiplier
            and release.sampling_rate <= ahead.sampling_rate
        )

    @property
    def epsilon(self) -> float:
        return self._composed(self._counts, self._events)

    def _composed(self, counts: Mapping[Release, int], events: "LedgerEvents") -> float:
        left = self._budget.delta - events.delta
        if left < -ROUNDING * self._budget.delta:
            return inf
        if not counts:
            return events.epsilon
        kinds = frozenset(_few_kinds(counts).items())
        return _epsilon(kinds, max(left, 0.0), self._budget.adjacency) + events.epsilon


class LedgerEvents(NamedTuple):
    """What events of other code add up to."""

    epsilon: float
    delta: float

    def plus(self, epsilon: float, delta: float) -> "LedgerEvents":
        return LedgerEvents(self.epsilon + epsilon, self.delta + delta)


def _single(release: Release) -> Release:
    return release.model_copy(update={"count": 1}) if release.count > 1 else release


def _few_kinds(counts: Mapping[Release, int]) -> Mapping[Release, int]:
    """The same, or with slightly less noise if there are many kinds, which reveals more."""
    if len(counts) <= MOST_KINDS:
        return counts
    found = Counter[Release]()
    for release, count in counts.items():
        steps = floor(log(release.noise_multiplier) / STEP) if release.noise_multiplier else 0
        noise = min(exp(steps * STEP), release.noise_multiplier)
        found[release.model_copy(update={"noise_multiplier": noise})] += count
    return found


@lru_cache(maxsize=256)
def _epsilon(kinds: frozenset[tuple[Release, int]], delta: float, adjacency: str) -> float:
    """Epsilon of these releases, computed once for all agents that have the same."""
    ordered = sorted(kinds, key=str)
    releases = [release.model_copy(update={"count": count}) for release, count in ordered]
    if delta == 0 and any(release.family == "gaussian" for release in releases):
        return inf
    return epsilon_at_most(
        releases, delta, "replace-one" if adjacency == "replace-one" else "add-remove"
    )


def _at_most(epsilon: float, limit: float) -> bool:
    return epsilon <= limit * (1 + ROUNDING)


class GaussianFilter(Account):
    """Gaussian noise without sampling, which may be chosen from earlier releases: sums of mu^2."""

    def __init__(self, budget: Budget, spent: float = 0.0) -> None:
        self._budget, self._spent = budget, spent

    def copy(self) -> "GaussianFilter":
        return GaussianFilter(self._budget, self._spent)

    def add(self, entry: LedgerEntry) -> None:
        self._spent += self._cost(entry)

    def fits(self, entry: LedgerEntry, epsilon: float) -> bool:
        most = gaussian_mu(epsilon, self._budget.delta) ** 2
        return _at_most(self._spent + self._cost(entry), most)

    def _cost(self, entry: LedgerEntry) -> float:
        release = entry.release
        return inf if release is None else gaussian_cost(release, self._budget.adjacency)

    @property
    def epsilon(self) -> float:
        return gaussian_epsilon(self._budget.delta, self._spent**0.5)


class RenyiFilter(Account):
    """Any releases, which may be chosen from earlier ones: sums of divergences of one order."""

    def __init__(self, budget: Budget, spent: float = 0.0, left_out: float = 0.0) -> None:
        assert budget.order is not None
        self._budget, self._order = budget, budget.order
        self._spent, self._left_out = spent, left_out
        self._delta = (1 - RESERVED) * budget.delta

    def copy(self) -> "RenyiFilter":
        return RenyiFilter(self._budget, self._spent, self._left_out)

    def add(self, entry: LedgerEntry) -> None:
        divergence, left_out = self._cost(entry)
        self._spent, self._left_out = self._spent + divergence, self._left_out + left_out

    def fits(self, entry: LedgerEntry, epsilon: float) -> bool:
        divergence, left_out = self._cost(entry)
        if self._left_out + left_out > RESERVED * self._budget.delta:
            return False
        most = renyi_budget(epsilon, self._delta, self._order)
        return _at_most(self._spent + divergence, most)

    def _cost(self, entry: LedgerEntry) -> tuple[float, float]:
        if entry.event is not None:
            return renyi_cost_of_epsilon(entry.event.epsilon, self._order), entry.event.delta
        assert entry.release is not None
        return _renyi_cost(entry.release, self._budget.adjacency, self._order)

    @property
    def epsilon(self) -> float:
        if self._left_out > RESERVED * self._budget.delta:
            return inf
        return renyi_epsilon(self._spent, self._delta, self._order)


_renyi_cost = lru_cache(maxsize=4096)(renyi_cost)


class Accounts:
    """One account for each agent, and one for those that no release names."""

    def __init__(self, budget: Budget) -> None:
        self.of_all = _account(budget)  # releases that name no agent
        self._named: dict[str, Account] = {}

    def about(self, agent: str | None) -> list[Account]:
        """The accounts that a release of an agent counts in; None: all."""
        if agent is None:
            return [self.of_all, *self._named.values()]
        if agent not in self._named:
            self._named[agent] = self.of_all.copy()
        return [self._named[agent]]

    def add(self, entry: LedgerEntry) -> None:
        """Count a release, whether it is allowed or not."""
        for account in self.about(entry.agent):
            account.add(entry)


def _account(budget: Budget) -> Account:
    if budget.composition == "gaussian-filter":
        return GaussianFilter(budget)
    return FixedSchedule(budget) if budget.composition == "fixed" else RenyiFilter(budget)


def composed(
    budget: Budget, entries: Iterable[LedgerEntry], delta: float
) -> dict[str | None, float]:
    """At most the epsilon of all releases of a ledger at a delta, for each agent.

    The agents that no release names are None.
    """
    entries = list(entries)
    agents = sorted({entry.agent for entry in entries if entry.agent is not None})
    if delta == 0 and budget.composition != "fixed":
        return dict.fromkeys((None, *agents), inf)
    accounts = Accounts(budget.model_copy(update={"delta": delta}))
    for entry in entries:
        accounts.add(entry)
    return {None: accounts.of_all.epsilon} | {a: accounts.about(a)[0].epsilon for a in agents}
