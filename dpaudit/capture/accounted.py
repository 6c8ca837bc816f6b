"""What measured runs are evidence of: the noise that was drawn, and releases for each claim.

The noise is that of the program's own generators: whether it repeats, and whether it is noise. What
the measured releases of a program add up to is for one claim and one adversary.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from math import hypot, inf

import numpy as np
from scipy.special import ndtri

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.accounting.releases import Interval, Release, epsilon
from dpaudit.defense.claim_accounting import (
    Accounted,
    claimed_delta,
    claimed_epsilon,
    record_adjacency,
)
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.rules import CAPTURED
from dpaudit.statistics.noise_tests import white_noise_test

from .measured import RoundLeak
from .runs import NamedDraw, ProgramRun
from .worlds import MeasuredRuns, Pair

SLACK = 1e-3  # relative, of what is measured in single precision
LEVEL = 1e-4  # of a false alarm about the noise of one program


class VictimLeaks:
    """What one adversary reads of one victim's record in the measured rounds."""

    def __init__(self, worlds: MeasuredRuns, claim: Claim, model: ThreatModel, victim: int) -> None:
        self.victim, self._adjacency = victim, record_adjacency(claim)
        self._worlds, self._model, self._sampling = worlds, model, worlds.sampling
        self.by_round: dict[int, tuple[Pair, RoundLeak]] = {
            k: neighbours.worst(victim, model, self._adjacency)
            for k, neighbours in worlds.rounds.items()
        }
        sure = [leak for _, leak in self.by_round.values() if not leak.upper]
        self.noiseless = next((leak.noiseless for leak in sure if leak.noiseless is not None), None)
        together = self._together()
        self.together = max(together, key=lambda one: _size(one[1]))[0]
        self.mu = max(hypot(*[leak.mu for leak in leaks]) for _, leaks in together)
        apart = [((k,), [leak]) for k, (_, leak) in self.by_round.items() if not leak.upper]
        self._parts = together if claim.scope == "run" else apart
        self.epsilon = self._epsilon(claim)

    def _together(self) -> list[tuple[tuple[int, ...], list[RoundLeak]]]:
        """Rounds in whose batches one record is, and its leaks there, for each pair of worlds."""
        rounds: defaultdict[object, list[int]] = defaultdict(list)
        for k, neighbours in self._worlds.rounds.items():
            rounds[neighbours.places[self.victim].digest or k].append(k)
        found = []
        for ks in rounds.values():
            for pair in self._worlds.rounds[ks[0]].pairs(self._adjacency):
                leaks = [self._worlds.rounds[k].leak(self.victim, self._model, pair) for k in ks]
                found.append((tuple(ks), [leak for leak in leaks if not leak.upper]))
        return found

    def _epsilon(self, claim: Claim) -> float:
        """A lower end, by the rounds that give one: of those of one record, or of the worst."""
        if self.noiseless is not None:
            return inf
        if self._sampling.unknown(claim) is not None:
            return 0.0
        delta = claimed_delta(claim)
        leaks = max((leaks for _, leaks in self._parts), key=_size, default=[])
        if delta == 0 and any(leak.mu for leak in leaks):
            return inf  # Gaussian noise has no epsilon there
        if not self._sampling.amplifies:
            return self._composed(leaks, delta)
        parts = [leaks for _, leaks in self._parts]
        return max((self._composed(leaks, delta) for leaks in parts), default=0.0)

    def _composed(self, leaks: Sequence[RoundLeak], delta: float) -> float:
        """The releases of one record. Without it, nothing in a batch is in its place.

        With another record in its place, what the batch has without both is not known: the lower
        end is the smaller one of where that is one of the two, and of where it is between them.
        """
        families: tuple[NoiseFamily, ...] = "gaussian", "laplace"
        sizes = [
            (family, size)
            for leak in leaks
            for family, size in zip(families, (leak.mu, leak.epsilon), strict=True)
            if size > 0
        ]
        if not sizes:
            return 0.0
        if not self._sampling.amplifies:
            return epsilon([_release(*one) for one in sizes], delta).low
        rate = self._sampling.rate
        one_side = epsilon([_release(*one, rate=rate) for one in sizes], delta).low
        if self._adjacency == "add-remove":
            return one_side
        halves = [_release(family, size / 2, rate=rate) for family, size in sizes]
        return min(one_side, epsilon(halves, delta, "replace-one").low)


def _size(leaks: Sequence[RoundLeak]) -> float:
    """By which the worst of several records and pairs is chosen."""
    return hypot(*[leak.mu for leak in leaks]) + sum(leak.epsilon for leak in leaks)


def _release(family: NoiseFamily, size: float, rate: float = 1.0) -> Release:
    return Release(
        family=family,
        noise_multiplier=(1 + SLACK) / size,
        sampling="none" if rate == 1 else "poisson",
        sampling_rate=rate,
    )


def measured_accounting(
    worlds: MeasuredRuns, index: int, claim: Claim, model: ThreatModel
) -> tuple[Finding, Accounted]:
    """The evidence that measured releases give; ``unsupported`` if they exceed the claim.

    Records that were not tried may move messages further, and rounds that were not measured add to
    these: a lower end, without an upper one. Rounds in which the adversary has not read all that
    was sent before, or in which several draws hide one number, give an upper figure, and count
    nothing.
    """
    victims = [v for v in worlds.config.record.victims if v not in model.agents]
    found = [VictimLeaks(worlds, claim, model, v) for v in victims]
    worst = max(found, key=lambda one: one.epsilon)
    low = worst.epsilon
    delta, claimed = claimed_delta(claim), claimed_epsilon(claim)
    mus = {k: leak.mu for k, (_, leak) in worst.by_round.items()}
    notes = tuple(_notes(worlds, claim, worst))
    finding = Finding(
        role=Role.MEASURED,
        kind="accounting",
        title="measured releases, accounted",
        claim=index,
        attack=CAPTURED,
        threat_model=model.name,
        message=None if worst.noiseless is None else str(worst.noiseless),
        adjacency=claim.adjacency,
        rounds=tuple(worst.by_round),
        metrics={
            Name.EPSILON: Metric(value=inf, low=low, high=inf),
            Name.CLAIMED_EPSILON: Metric(value=claimed),
            Name.DELTA: Metric(value=delta),
            Name.LARGEST_MU_OF_A_ROUND: Metric(value=max(mus.values())),
            Name.MU_OF_MEASURED_ROUNDS: Metric(value=worst.mu),
        },
        verdict=Verdict.UNSUPPORTED if low > claimed else None,
        notes=notes,
        series={Column.ROUND: tuple(mus), Column.MU: tuple(mus.values())},
    )
    return finding, Accounted(Interval(low, inf), delta, worst.victim, notes)


def _notes(worlds: MeasuredRuns, claim: Claim, worst: VictimLeaks) -> Iterator[str]:
    k = max(worst.by_round, key=lambda k: worst.by_round[k][1].size)
    pair, _ = worst.by_round[k]
    yield (
        f"agent {worst.victim}; in round {k} the record {pair[0]} and {pair[1]} differ most, of "
        f"{len(worlds.config.record.hows())} ways that were tried; others may differ more"
    )
    yield f"{len(worst.by_round)} rounds were measured, and others are not counted"
    if worst.noiseless is not None:
        yield f"{worst.noiseless} moves with the record, and no noise that was named hides it"
    if uncounted := [k for k, (_, leak) in worst.by_round.items() if leak.upper]:
        yield (
            f"rounds {', '.join(map(str, uncounted))} count nothing: this adversary has not read "
            "all that was sent before, or several draws hide one number, so that what was measured "
            "of them is an upper figure"
        )
    if claim.scope == "run":
        ks = ", ".join(map(str, worst.together))
        yield f"one record counts in the batches that hold it: of the measured rounds, in {ks}"
    yield worlds.sampling.unknown(claim) or worlds.sampling.premise(claim)


def drawn_noise(
    plain: ProgramRun, sites: Sequence[str], same: Collection[str] = ()
) -> list[Finding]:
    """Whether the draws of a plain run are fresh, and of the law and scale that the program states.

    A draw of two numbers or more that equals another is repeated. Otherwise they are put in units
    of their scale, Laplace noise by its quantiles, and tested for N(0, 1): sizes, means and
    correlations, at ``LEVEL`` for all of a program together.

    Args:
        same: keys of draws that another agent makes too, in noise that both share; they are no
            further draws.
    """
    named = [d for d in plain.draws if not sites or d.name in sites]
    draws = [d for d in named if d.scale > 0 and d.key not in same]
    if not draws:
        return []
    repeated = _repeated(plain, draws)
    if repeated:
        what, p = f"{len(repeated)} draws repeat an earlier one: {repeated[0]}", 0.0
    else:
        what, p = _least_likely(plain, draws)
    odd = p < LEVEL
    return [
        Finding(
            role=Role.NOISE,
            kind="control",
            title=what if odd else "the noise that was drawn",
            world="defense",
            metrics={
                Name.P_VALUE: Metric(value=p, n=sum(len(plain.tape[d.key]) for d in draws)),
                Name.FOUND: Metric(value=len(repeated), n=len(draws)),
            },
            verdict=Verdict.UNSUPPORTED if odd else None,
            notes=(
                f"{len(draws)} draws of a run with the program's own generators, held against the "
                f"law and the scale that the program states, at level {LEVEL:g}",
            ),
        )
    ]


def _least_likely(plain: ProgramRun, draws: Sequence[NamedDraw]) -> tuple[str, float]:
    """The draw that looks least like its law, in which test, and the p-value of all together."""
    groups: dict[tuple[str, int], list[Array]] = defaultdict(list)
    for draw in draws:
        values = _standard(plain.tape[draw.key] / draw.scale, draw.family)
        groups[draw.name, len(values)].append(values)
    found = []
    for (name, n), group in groups.items():
        columns = np.stack(group, axis=1)  # one for each draw; those of a single number together
        found.append((name, *white_noise_test(columns.T if n == 1 else columns)))
    name, test, p = min(found, key=lambda one: one[2])
    return f'"{name}": {test}', min(1.0, len(found) * p)


def _standard(values: Array, family: str) -> Array:
    """Standard normal, if the law is as stated."""
    if family == "gaussian":
        return values
    upper = 0.5 * np.exp(-np.abs(values))  # the mass beyond
    return np.asarray(np.where(values > 0, -ndtri(upper), ndtri(upper)))


def _repeated(plain: ProgramRun, draws: Sequence[NamedDraw]) -> list[str]:
    """Draws whose numbers were all drawn before, by the same or another agent, in words."""
    first: dict[bytes, NamedDraw] = {}
    said = []
    for draw in draws:
        values = plain.tape[draw.key]
        if len(values) < 2:
            continue  # a single number in single precision may come twice
        seen = first.setdefault(values.tobytes(), draw)
        if seen is not draw:
            said.append(f'"{draw.name}" of agent {draw.agent} is that of agent {seen.agent} before')
    return said
