"""What the measured releases of a program add up to, for one claim and one adversary."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import hypot, inf
from typing import Literal, NamedTuple

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.accounting.releases import Interval, Mechanism, RecordAdjacency, Release, epsilon
from dpaudit.defense.claim_accounting import (
    AccountedClaim,
    claimed_delta,
    claimed_epsilon,
    record_adjacency,
)
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Finding, Metric, Name, Role, known_releases
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.rules import CAPTURED

from .record_shift import NO_LEAK, RoundLeak
from .runs import MessageId
from .worlds import MeasuredRuns, Pair

SLACK = 1e-3  # relative, of what is measured in single precision


class Least(NamedTuple):
    """A lower end of epsilon, and the releases that it is of; None: of no releases."""

    epsilon: float
    releases: Mechanism | None = ()


class VictimLeaks:
    """What one adversary reads of one victim's record in the measured rounds."""

    def __init__(self, worlds: MeasuredRuns, claim: Claim, model: ThreatModel, victim: int) -> None:
        self.victim, self._adjacency = victim, record_adjacency(claim)
        self._worlds, self._model, self._sampling = worlds, model, worlds.sampling
        self.by_round: dict[int, tuple[Pair, RoundLeak]] = {}
        self._hidden: dict[object, bool] = {}  # by the set of numbers that move
        adjacency, factor = self._measured_by()
        for k, neighbours in worlds.rounds.items():
            pair, found = neighbours.worst(victim, model, adjacency)
            self.by_round[k] = pair, self._unless_drawn(found.times(factor))
        sure = [leak for _, leak in self.by_round.values() if not leak.upper]
        bare = next((leak for leak in sure if leak.noiseless is not None), NO_LEAK)
        self.noiseless = None if bare.noiseless is None else self._named(bare.noiseless, bare)
        together = self._together()
        self.together = max(together, key=lambda one: _size(one[1]))[0]
        self.mu = max(hypot(*[leak.mu for leak in leaks]) for _, leaks in together)
        apart = [((k,), [leak]) for k, (_, leak) in self.by_round.items() if not leak.upper]
        self._parts = together if claim.scope == "run" else apart
        self.least = self._least(claim)

    def _named(self, message: MessageId, leak: RoundLeak) -> str:
        """A message that moves without noise, with those of its tensors that do."""
        where = leak.filters.get(message)
        tensors = "" if where is None else self._worlds.base.tensors_with(message, where.places)
        return f"{tensors} of {message}" if tensors else str(message)

    def _measured_by(self) -> tuple[RecordAdjacency, float]:
        """By which pairs of records rounds are measured, and what part of their distance counts.

        A record in the place of another is one that is left out and one that comes in: one of both
        costs half of that at least.
        """
        if self._adjacency == "add-remove" and self._worlds.otherwise:
            return "replace-one", 0.5
        return self._adjacency, 1.0

    def _unless_drawn(self, found: RoundLeak) -> RoundLeak:
        """What a round shows is an upper end where noise may be that nobody named."""
        shown = found.noiseless, tuple((m, len(of.places)) for m, of in found.filters.items())
        if shown not in self._hidden:
            self._hidden[shown] = self._worlds.unnamed.hidden(found) is not None
        return found._replace(upper=True) if self._hidden[shown] else found

    def _together(self) -> list[tuple[tuple[int, ...], list[RoundLeak]]]:
        """Rounds in whose batches one record is, and its leaks there, for each pair of worlds."""
        rounds: defaultdict[object, list[int]] = defaultdict(list)
        for k, neighbours in self._worlds.rounds.items():
            if self.victim in neighbours.places:
                rounds[neighbours.places[self.victim].digest or k].append(k)
        found, (adjacency, factor) = [], self._measured_by()
        for ks in rounds.values():
            for pair in self._worlds.rounds[ks[0]].pairs(adjacency):
                all_found = [
                    self._worlds.rounds[k].leak(self.victim, self._model, pair).times(factor)
                    for k in ks
                ]
                leaks = map(self._unless_drawn, all_found)
                found.append((tuple(ks), [leak for leak in leaks if not leak.upper]))
        return found

    def _least(self, claim: Claim) -> Least:
        """By the rounds that give most: of those of one record, or of the worst."""
        if self.noiseless is not None:
            return NOISELESS
        if self._sampling.unknown(claim) is not None:
            return Least(0.0)
        delta = claimed_delta(claim)
        parts = [leaks for _, leaks in self._parts]
        if not self._sampling.amplifies:
            parts = [max(parts, key=_size, default=[])]
        found = [self._composed(leaks, delta) for leaks in parts]
        return max(found, key=lambda one: one.epsilon, default=Least(0.0))

    def _composed(self, leaks: Sequence[RoundLeak], delta: float) -> Least:
        """The releases of one record. Without it, nothing in a batch is in its place.

        With another record in its place, what the batch has without both is not known: the lower
        end is the smaller one of where that is one of the two, and of where it is between them.
        """
        sizes: list[tuple[NoiseFamily, float]] = []
        for leak in leaks:
            sizes += [("gaussian", leak.mu)] if leak.mu > 0 else []
            sizes += [("laplace", part) for part in self._laplace(leak, delta)]
        rate, adjacency = self._sampling.rate, self._adjacency
        if not self._sampling.amplifies:
            return least([released(*one) for one in sizes], delta, adjacency)
        of_one_side = [released(*one, rate=rate) for one in sizes]
        one_side = least(of_one_side, delta, "add-remove")
        if adjacency == "add-remove":
            return one_side
        halves = [
            released(family, size / 2, rate=rate, clipped="records") for family, size in sizes
        ]
        between = least(halves, delta, adjacency)
        return min(between, one_side._replace(releases=None), key=lambda one: one.epsilon)

    def _laplace(self, leak: RoundLeak, delta: float) -> Sequence[float]:
        """Parts of a Laplace release that together give no more than the whole of it.

        At delta = 0 that is their sum. Otherwise one draw moved by it would give more than several
        that are moved by parts of it. Draws that are left out only lower what is known, and several
        draws of one sampled batch are one sample.
        """
        if delta == 0:
            return [leak.epsilon] if leak.epsilon > 0 else []
        return leak.laplace[:1] if self._sampling.amplifies else leak.laplace


NOISELESS = Least(inf, (Release(family="gaussian", noise_multiplier=0.0),))


def least(releases: Sequence[Release], delta: float, adjacency: RecordAdjacency) -> Least:
    """What releases give at least; Gaussian noise has no epsilon at delta = 0."""
    if delta == 0 and any(release.family == "gaussian" for release in releases):
        return Least(inf, tuple(releases))
    return Least(epsilon(releases, delta, adjacency).low, tuple(releases))


def _size(leaks: Sequence[RoundLeak]) -> float:
    """By which the worst of several records and pairs is chosen."""
    return hypot(*[leak.mu for leak in leaks]) + sum(leak.epsilon for leak in leaks)


def released(
    family: NoiseFamily,
    size: float,
    rate: float = 1.0,
    clipped: Literal["records", "whole"] = "whole",
    slack: float = SLACK,
) -> Release:
    """A release that is moved by a size, in units of its noise, in favour of the program.

    Args:
        clipped: whether that size is of all changes, or of one record in a sum.
    """
    return Release(
        family=family,
        noise_multiplier=(1 + slack) / size,
        sampling="none" if rate == 1 else "poisson",
        sampling_rate=rate,
        clipped=clipped,
    )


class Ends(NamedTuple):
    """What an alignment of all rounds adds for a claim: its releases, and what a record costs."""

    most: Mechanism | None = None  # None: no bound of all records was seen
    whole: Mechanism | None = None  # the same of the whole run
    least: Least = Least(0.0)
    message: str | None = None  # a message that moves with a record and that no noise hides
    notes: tuple[str, ...] = ()


NO_ENDS = Ends()


def measured_accounting(
    worlds: MeasuredRuns, index: int, claim: Claim, model: ThreatModel, ends: Ends = NO_ENDS
) -> tuple[Finding, AccountedClaim]:
    """The evidence that measured releases give; ``unsupported`` if they exceed the claim.

    Records that were not tried may move messages further, and rounds that were not measured add to
    these: a lower end, with an upper one where an alignment of all rounds gives it. Rounds in which
    the adversary has not read all that was sent before, or in which noise hides other noise,
    give an upper figure, and count nothing.
    """
    victims = [v for v in worlds.config.record.victims if v not in model.agents]
    found = [VictimLeaks(worlds, claim, model, v) for v in victims]
    worst = max(found, key=lambda one: one.least.epsilon)
    low, least_releases = max(worst.least, ends.least, key=lambda one: one.epsilon)
    delta, claimed = claimed_delta(claim), claimed_epsilon(claim)
    high = inf if ends.most is None else _high(ends.most, delta, record_adjacency(claim))
    low = min(low, high)
    mus = {k: leak.mu for k, (_, leak) in worst.by_round.items()}
    known = any(mus.values()) or not worlds.unmeasured  # else 0 is what nobody measured
    of_rounds = {
        Name.LARGEST_MU_OF_A_ROUND: Metric(value=max(mus.values())),
        Name.MU_OF_MEASURED_ROUNDS: Metric(value=worst.mu),
    }
    columns = {Column.ROUND: tuple(mus), Column.MU: tuple(mus.values())}
    notes = (*ends.notes, *_notes(worlds, claim, worst))
    finding = Finding(
        role=Role.MEASURED,
        kind="accounting",
        title="measured releases, accounted",
        claim=index,
        attack=CAPTURED,
        threat_model=model.name,
        message=ends.message if worst.noiseless is None else worst.noiseless,
        adjacency=claim.adjacency,
        rounds=tuple(worst.by_round),
        metrics={
            Name.EPSILON: Metric(value=high, low=low, high=high),
            Name.CLAIMED_EPSILON: Metric(value=claimed),
            Name.DELTA: Metric(value=delta),
            **(of_rounds if known else {}),
        },
        releases=known_releases(least_releases, ends.most),
        verdict=Verdict.UNSUPPORTED if low > claimed else None,
        notes=notes,
        series=columns if known else {},
    )
    top = inf if ends.whole is None else _high(ends.whole, delta, record_adjacency(claim))
    return finding, AccountedClaim(Interval(min(low, top), top), delta, worst.victim, notes)


def _high(releases: Mechanism, delta: float, adjacency: RecordAdjacency) -> float:
    if delta == 0 and any(release.family == "gaussian" for release in releases):
        return inf
    return epsilon(releases, delta, adjacency).high


def _notes(worlds: MeasuredRuns, claim: Claim, worst: VictimLeaks) -> Iterator[str]:
    k = max(worst.by_round, key=lambda k: worst.by_round[k][1].size)
    pair, _ = worst.by_round[k]
    yield (
        f"agent {worst.victim}; in round {k} the record {pair[0]} and {pair[1]} differ most, of "
        f"{len(worlds.config.record.hows())} ways that were tried; others may differ more"
    )
    without = [k for k, n in worlds.rounds.items() if worst.victim not in n.places]
    yield f"{len(worst.by_round) - len(without)} rounds were measured, and others are not counted"
    if without:
        yield (
            f"agent {worst.victim} takes no batch or sends nothing in rounds "
            f"{', '.join(map(str, without))}, which were not measured"
        )
    if worst.noiseless is not None:
        yield f"{worst.noiseless} moves with the record, and no noise that was named hides it"
    for _, leak in worst.by_round.values():
        if hidden := worlds.unnamed.hidden(leak):
            yield f"{hidden[0]} may be hidden by noise that was not named: {hidden[1]}"
    if worlds.otherwise and claim.adjacency == "add-remove":
        yield (
            f"where a record is left out, {worlds.otherwise}: two records in one place were "
            "compared, and half of what they differ by counts"
        )
    if uncounted := [k for k, (_, leak) in worst.by_round.items() if leak.upper]:
        yield (
            f"rounds {', '.join(map(str, uncounted))} count nothing: this adversary has not read "
            "all that was sent before, several draws hide one number, or what was sent does not "
            "tell the noise drawn before, so that what was measured of them is an upper figure"
        )
    for error in list(worlds.unmeasured.values())[:1]:
        yield f"what such messages show counts nothing: {error.problems[0].text}"
    if claim.scope == "run":
        ks = ", ".join(map(str, worst.together))
        yield f"one record counts in the batches that hold it: of the measured rounds, in {ks}"
    yield worlds.sampling.unknown(claim) or worlds.sampling.premise(claim)
