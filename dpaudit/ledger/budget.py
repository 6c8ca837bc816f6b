"""The budget of a training loop: what was released, and whether one more release fits."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import ValidationError

from dpaudit.accounting.filters import best_order
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.ledger_file import Budget, Composition, LedgerEntry, PrivacyEvent, message
from dpaudit.release import Release
from dpaudit.strict import Strict

from .accounts import Accounts
from .file import LedgerFile

WARN_AT = 0.9  # share of epsilon
MOST_REMAINING = 10**7

Sampling = Literal["none", "poisson", "fixed"]
Clipped = Literal["records", "whole"]
Released = Release | PrivacyEvent
Kind = TypeVar("Kind", bound=Strict)


class BudgetExceeded(DpauditError):
    """A release that would exceed the budget. It was not counted, and must not be made."""


class BudgetWarning(UserWarning):
    """Most of a budget is spent."""


class Ledger:
    """What was released, in a file, held against a budget. ``open_ledger`` makes one.

    An agent's records are only protected by that agent's releases, so each agent has the budget
    for itself. A release that names no agent counts for all of them.
    """

    def __init__(self, path: Path, budget: Budget, warn_at: float) -> None:
        self.path, self.budget = path, budget
        self._warn_at = warn_at * budget.epsilon
        self._warned = warn_at >= 1
        self._file = LedgerFile(path, budget)
        self._thread = threading.Lock()
        self._accounts = Accounts(budget)
        with self._up_to_date():
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left to do: the file is complete after each release."""

    def release(
        self, what: Released, *, count: int = 1, agent: str | None = None, note: str = ""
    ) -> None:
        """Count a release, which may be made once this returns.

        Args:
            what: from ``gaussian``, ``laplace`` or ``event``.
            count: so many of them.
            agent: whose records it is about; None: all agents'.
            note: for the reader of the file.

        Raises:
            BudgetExceeded: all releases together would exceed the budget.
            ConfigError: such a release cannot be meant.
            RunError: the file cannot be written; the release must not be made.
        """
        entry = _entry(what, count, agent, note)
        with self._up_to_date():
            if self._warned or not self._allows(entry, self._warn_at):
                if not self._allows(entry, self.budget.epsilon):
                    raise BudgetExceeded("DPA081", self._refusal(entry))
                self._warn()
            self._file.append(entry)
            self._accounts.add(entry)

    def can_release(self, what: Released, *, count: int = 1, agent: str | None = None) -> bool:
        """Whether ``release`` would count it now. Nothing is written. Raises as ``release``."""
        entry = _entry(what, count, agent)
        with self._up_to_date():
            return self._allows(entry, self.budget.epsilon)

    def remaining(self, what: Released, *, agent: str | None = None) -> int:
        """How many more of these fit the budget, at most 10 million. Raises as ``release``."""

        def fits(count: int) -> bool:
            entry = _entry(what, count, agent)
            return all(a.fits(entry, self.budget.epsilon) for a in self._accounts.about(agent))

        with self._up_to_date():
            low, high = 0, 1
            while high <= MOST_REMAINING and fits(high):
                low, high = high, 2 * high
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle) else (low, middle)
            return min(low, MOST_REMAINING)

    def spent(self, agent: str | None = None) -> float:
        """At most what the releases so far add up to at the budget's delta, for the worst agent.

        No guarantee of a loop that stopped at a time that depends on what it released: that has the
        budget's epsilon.
        """
        with self._up_to_date():
            return max(account.epsilon for account in self._accounts.about(agent))

    @contextmanager
    def _up_to_date(self) -> Iterator[None]:
        """Hold the file, with the releases of other processes counted."""
        with self._thread, self._file.locked() as entries:
            for entry in entries:
                self._accounts.add(entry)
            yield

    def _allows(self, entry: LedgerEntry, epsilon: float) -> bool:
        return all(a.allows(entry, epsilon) for a in self._accounts.about(entry.agent))

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            share = self._warn_at / self.budget.epsilon
            warnings.warn(
                f"{self.path}: this release spends more than {share:.0%} of epsilon "
                f"{self.budget.epsilon:g}",
                BudgetWarning,
                stacklevel=3,
            )

    def _refusal(self, entry: LedgerEntry) -> str:
        spent = max(account.epsilon for account in self._accounts.about(entry.agent))
        about = "" if entry.agent is None else f' of agent "{entry.agent}"'
        return (
            f"{self.path}: this release would exceed epsilon {self.budget.epsilon:g} at delta "
            f"{self.budget.delta:g}; the releases{about} so far add up to {spent:.6g}"
        )


def open_ledger(
    path: str | PathLike[str],
    *,
    epsilon: float,
    delta: float = 0.0,
    adjacency: Literal["add-remove", "replace-one"] = "add-remove",
    composition: Composition = "fixed",
    expected: Release | None = None,
    warn_at: float = WARN_AT,
) -> Ledger:
    """Open a ledger, or begin one. Releases that are in the file count.

    Args:
        epsilon: which all releases may not exceed together, in nats.
        delta: at which; 0 only for Laplace noise and events with delta 0.
        adjacency: which data sets are neighbours.
        composition: "fixed" if the noise, rates and order of releases do not depend on what was
            released before; else "renyi-filter", or "gaussian-filter" for Gaussian noise without
            sampling.
        expected: of a "renyi-filter": the release that will be most of all. The order is the one
            at which the budget holds the most of them; others are counted at that order.
        warn_at: the share of epsilon from which on there is a ``BudgetWarning``.

    Raises:
        ConfigError: such a budget cannot be meant.
        RunError: the file cannot be read or written, or has another budget.
    """
    fields: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    budget = _valid(Budget, fields)
    if expected is not None and delta > 0:
        fields["order"] = best_order(budget.epsilon, budget.delta, expected, budget.adjacency)
    budget = _valid(Budget, {**fields, "composition": composition})
    return Ledger(Path(path), budget, warn_at)


def gaussian(
    noise_multiplier: float,
    *,
    sampling: Sampling = "none",
    sampling_rate: float = 1.0,
    clipped: Clipped = "records",
) -> Release:
    """A sum of clipped records with Gaussian noise.

    Args:
        noise_multiplier: standard deviation over the L2 sensitivity of the sum to adding or
            removing one record.
        sampling: how the batch is drawn from the records; "none" uses all of them.
        sampling_rate: the share of the records that is in a batch.
        clipped: "whole" if the sum is clipped, and not each record; see ``dpaudit.release``.

    Raises:
        ConfigError: such a release cannot be meant.
    """
    return _valid(
        Release,
        {"family": "gaussian", **_noise(noise_multiplier, sampling, sampling_rate, clipped)},
    )


def laplace(
    noise_multiplier: float,
    *,
    sampling: Sampling = "none",
    sampling_rate: float = 1.0,
    clipped: Clipped = "records",
) -> Release:
    """The same with Laplace noise: its scale over the L1 sensitivity. Raises ConfigError."""
    return _valid(
        Release, {"family": "laplace", **_noise(noise_multiplier, sampling, sampling_rate, clipped)}
    )


def event(epsilon: float, delta: float = 0.0) -> PrivacyEvent:
    """What other code releases and is (epsilon, delta)-DP for the ledger's adjacency.

    Raises:
        ConfigError: such an event cannot be meant.
    """
    return _valid(PrivacyEvent, {"epsilon": epsilon, "delta": delta})


def _noise(
    noise_multiplier: float, sampling: Sampling, sampling_rate: float, clipped: Clipped
) -> dict[str, Any]:
    return {
        "noise_multiplier": noise_multiplier,
        "sampling": sampling,
        "sampling_rate": sampling_rate,
        "clipped": clipped,
    }


def _entry(what: Released, count: int, agent: str | None, note: str = "") -> LedgerEntry:
    """Raises ConfigError."""
    if isinstance(what, PrivacyEvent):
        times = _valid(
            Release, {"family": "laplace", "noise_multiplier": 1.0, "count": count}
        ).count
        sums = {"epsilon": times * what.epsilon, "delta": times * what.delta}
        return _valid(LedgerEntry, {"event": sums, "agent": agent, "note": note})
    fields = {**what.model_dump(), "count": count * what.count}
    return _valid(LedgerEntry, {"release": fields, "agent": agent, "note": note})


def _valid(kind: type[Kind], fields: dict[str, Any]) -> Kind:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        said = "\n".join(message(one) for one in error.errors())
    raise ConfigError("DPA084", said)
