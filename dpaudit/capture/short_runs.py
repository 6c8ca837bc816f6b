"""Short runs of a program with and without a record: what they certify, and what they reveal.

Whether a victim's record is there is a random bit of its own in every run. A run ends with the
first measured round; its noise is drawn afresh in that round, and is that of the first run before.
The score of a victim is the likelihood ratio by what was measured: any other score is valid too,
with less power. Where a message is not linear in its noise, other runs teach one (``learned.py``).
Counts of several victims are sums of independent trials whose chances may differ, for which the
binomial bound holds (Hoeffding 1956). Every victim has as many runs with its record as each other
one, so that the mean error rates are those of one victim drawn at random, of which the claim holds
if it holds of each. Where a round has messages of several names, what one victim sends may depend
on another's bit, as a score does where agents share noise, and only the first victim has one.

The same runs estimate how much the messages reveal about a record, as M-NMI: the private quantity
is the bit, and the view is reduced to the likelihood ratio, which loses nothing where the measured
noise is right. Otherwise it reveals less, and never more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import isinf, log
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.accounting.releases import RecordAdjacency
from dpaudit.attack.figures import (
    counted_test,
    information_metrics,
    information_series,
    without_errors,
)
from dpaudit.checkpoint import Checkpoint, Progress
from dpaudit.defense.claim_accounting import record_adjacency
from dpaudit.errors import RunError, nearest
from dpaudit.files.captured_file import (
    CapturedConfig,
    GradientInversionOptions,
    MutualInformationOptions,
)
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import World
from dpaudit.information.capacity import of_bit_in_gaussian, of_bit_in_randomised_response
from dpaudit.information.mnmi import maximum_information, without_warnings
from dpaudit.pipeline.rules import CAPTURED
from dpaudit.statistics.bounds import Scores

from .learned_score import MessageScore
from .program import Program
from .record_shift import RoundLeak, log_likelihood_ratio
from .runs import MessageId, ProgramRun
from .worlds import MeasuredRuns, NeighbouringRuns, OnRun, Pair

METHOD = (
    "random over the runs: a fair bit for the record, and the noise of this round; all else is "
    "the same in every run"
)
REDUCTION = (
    "the view is reduced to the likelihood ratio of the round's messages by what was measured of "
    "them: what is reduced reveals less, never more"
)
LEARNED = (
    "the view is reduced to a score that other runs taught, as messages are not linear in their "
    "noise: what is reduced reveals less, never more"
)
NOT_MOVED = "not estimated: the record moved nothing, on average, in the runs that teach the score"
LIMIT = (
    "capacity: what the measured noise lets through of the presence of this record at most; an "
    "estimate below it proves nothing, and other records may tell more"
)
SAME = "what this adversary reads of the record is the same in all runs: there are 0 bits"

TITLES = ("likelihood ratio", "learned score")
ALPHA = 0.05  # probability of a false bound in one test
BLOCK = 20  # runs after which scores are kept
LEAST_CHOOSING = 4  # runs, two of each side
LEAST_TAUGHT = 8  # pairs of runs


class ClaimAgainst(NamedTuple):
    """A claim against one adversary."""

    number: int  # its index among the claims
    claim: Claim
    threat_model: ThreatModel


class Channel(NamedTuple):
    """The view that a score is made from."""

    threat_model: ThreatModel
    message: str | None = None  # name of the message; None: all that is read in the round


Score = Callable[[ProgramRun], float]


class ShortRunScores(NamedTuple):
    """Scores of one channel, of victims that are not the adversary's own."""

    victims: tuple[int, ...]
    values: Array  # [runs, victims]
    having: NDArray[np.bool_]  # [runs, victims]: with the record
    n_choosing: int  # number of first runs that choose the threshold

    @property
    def counted(self) -> Scores:
        """Without the record and with it."""
        return self._sides(slice(self.n_choosing, None))

    @property
    def choosing(self) -> Scores:
        """The same of other runs."""
        return self._sides(slice(self.n_choosing))

    def _sides(self, runs: slice) -> Scores:
        values, having = self.values[runs], self.having[runs]
        return values[~having], values[having]


@dataclass(frozen=True)
class ShortRuns:
    """Runs that end with one round, in which a random bit says whether each record is there."""

    worlds: MeasuredRuns
    adjacency: RecordAdjacency

    @property
    def config(self) -> CapturedConfig:
        return self.worlds.config

    @property
    def round(self) -> int:
        """The first of those that are measured."""
        return next(k for k, neighbours in self.worlds.rounds.items() if neighbours.places)

    @property
    def neighbours(self) -> NeighbouringRuns:
        return self.worlds.rounds[self.round]

    @cached_property
    def pairs(self) -> Mapping[int, Pair]:
        """By victim: what its record is without and with, the pair that shows most on all links."""
        everyone = ThreatModel(name="every link")
        places = self.neighbours.places
        victims = tuple(places)
        one_phase = all(
            len({m.name for m in places[v].messages}) == 1 and not places[v].others for v in victims
        )
        return {
            victim: self.neighbours.worst(victim, everyone, self.adjacency)[0]
            for victim in (victims if one_phase else victims[:1])
        }

    @cached_property
    def included(self) -> NDArray[np.intp]:
        """[runs, victims]: 1 is with the record, half of those that choose and of the rest."""
        rng, runs = np.random.default_rng([self.config.seed, 1]), self.config.certify.runs
        sides = [np.arange(n) % 2 for n in (self.n_choosing, runs - self.n_choosing)]
        columns = [np.concatenate([rng.permutation(half) for half in sides]) for _ in self.pairs]
        return np.stack(columns, axis=1)

    @property
    def n_choosing(self) -> int:
        """Runs that choose the threshold."""
        return max(LEAST_CHOOSING, self.config.certify.runs // 10)

    @property
    def drawn(self) -> dict[str, NoiseFamily]:
        """The law of the round's noise, by the keys of the draws."""
        places = self.neighbours.places
        return {d.key: d.family for v in self.pairs for d in places[v].draws}

    @property
    def n_taught(self) -> int:
        """Pairs of runs that teach the scores of what is not measured."""
        return max(LEAST_TAUGHT, self.config.certify.runs // 8) if self.worlds.unmeasured else 0

    @property
    def n_played(self) -> int:
        """Runs of the program: counted ones, those to learn from, and one without noise."""
        return self.config.certify.runs + 2 * self.n_taught + 1

    def unmeasured(self, victim: int, channel: Channel) -> list[MessageId]:
        """All that an adversary reads of a victim, if a part of it is not measured."""
        read = self.neighbours.read(victim, *channel)
        if {*read}.isdisjoint(self.neighbours.unmeasured.get(victim, ())):
            return []
        model, name = channel
        others = self.neighbours.places[victim].others
        return read + [m for m in others if m.read_by(model) and name in (None, m.name)]

    def may_be_hidden(self, victim: int, channel: Channel) -> bool:
        """Whether noise that nobody has named, and that is alike in all runs, may hide a record."""
        pair = self.pairs[victim]
        found = self.neighbours.leak(victim, channel.threat_model, pair, channel.message)
        if self.worlds.unnamed.hidden(found) is not None:
            return True
        return any(self.worlds.unnamed.hides(m) for m in self.unmeasured(victim, channel))

    def tested(self, channel: Channel) -> list[int]:
        """Victims that are not the adversary's own, and whose records no unnamed noise hides."""
        honest = [v for v in self.pairs if v not in channel.threat_model.agents]
        return [v for v in honest if not self.may_be_hidden(v, channel)]

    def can_test(self, channel: Channel) -> bool:
        """Whether a victim with such a bit is tested, and is read."""
        victims = self.tested(channel)
        if channel.message is None:
            return bool(victims)
        return any(self.neighbours.read(v, *channel) for v in victims)

    def world(self, included: Sequence[int], **update: object) -> World:
        changes = tuple(
            change
            for (victim, pair), one in zip(self.pairs.items(), included, strict=True)
            for change in self.neighbours.places[victim].changes(pair[one])
        )
        last = self.neighbours.base.sent_until(self.round)
        return self.worlds.replay.model_copy(update={"changes": changes, "last": last, **update})

    def played(
        self, program: Program, channels: Sequence[Channel], on_run: OnRun, checkpoint: Checkpoint
    ) -> Mapping[Channel, ShortRunScores]:
        """The scores of each channel. Raises RunError if a run fails."""
        score_of = self._scores(program, channels, on_run)

        def scores(run: ProgramRun) -> list[list[float]]:
            return [[score(run) for score in some] for some in score_of]

        worlds = [self._drawn_anew(one, i) for i, one in enumerate(self.included.tolist())]
        before = checkpoint.last()
        table: Array = np.empty((0, len(channels), len(self.pairs)))
        table = table if before is None else before.tensors["scores"].numpy()
        for _ in range(len(table)):
            on_run()
        while len(table) < len(worlds):
            block = program.each(worlds[len(table) :][:BLOCK], scores, on_run)
            table = np.concatenate([table, block])  # [runs, channels, victims]
            checkpoint.keep(partial(Progress, {"scores": torch.from_numpy(table)}))
        return {channel: self._of(channel, table[:, j]) for j, channel in enumerate(channels)}

    def _scores(
        self, program: Program, channels: Sequence[Channel], on_run: OnRun
    ) -> list[list[Score]]:
        """Scores for each channel and victim."""
        n, n_victims = self.n_taught, len(self.pairs)
        quiet = self.world([0] * n_victims, silent=tuple(self.drawn))
        seeds = range(self.config.certify.runs, self.config.certify.runs + n)
        taught = [self._drawn_anew([bit] * n_victims, i) for bit in (0, 1) for i in seeds]
        mean, *runs = program.each([quiet, *taught], ProgramRun.loaded, on_run)

        def score(channel: Channel, victim: int, pair: Pair) -> Score:
            if read := self.unmeasured(victim, channel):
                return MessageScore.of(read, runs[:n], runs[n:]).of_run
            found = self.neighbours.leak(victim, channel.threat_model, pair, channel.message)
            return partial(log_likelihood_ratio, found, mean=mean)

        return [[score(one, *of_victim) for of_victim in self.pairs.items()] for one in channels]

    def _drawn_anew(self, included: Sequence[int], noise_seed: int) -> World:
        return self.world(included, fresh=self.drawn, noise_seed=noise_seed)

    def _of(self, channel: Channel, values: Array) -> ShortRunScores:
        """Values [runs, victims] of those victims that are tested."""
        victims, everyone = tuple(self.tested(channel)), list(self.pairs)
        columns = [everyone.index(victim) for victim in victims]
        having = self.included.astype(bool)[:, columns]
        return ShortRunScores(victims, values[:, columns], having, self.n_choosing)


def findings_of_short_runs(
    worlds: MeasuredRuns,
    claims: Sequence[ClaimAgainst],
    program: Program,
    counter: Callable[[str, int], OnRun],
    checkpoint: Checkpoint,
) -> Iterator[Finding]:
    """Tests of the claims, and what the attacks of captured.toml make of the same runs.

    There is one set of runs for each adjacency that is claimed.

    Raises RunError if a run fails, or an attack names a message that is not sent.
    """
    config = worlds.config
    if not config.certify.runs:
        return
    attacks = [one for one in config.attack if not isinstance(one, GradientInversionOptions)]
    _refuse_other_names(worlds)
    known = [one for one in claims if worlds.sampling.unknown(one.claim) is None]
    tested = [] if worlds.sampling.amplifies else known  # a record is in the batch, or is not
    adjacencies = dict.fromkeys(record_adjacency(one.claim) for one in tested)
    informing = [one for one in attacks if isinstance(one, MutualInformationOptions)]
    tests = dict.fromkeys([None, *(one.message for one in attacks if one not in informing)])
    names = dict.fromkeys([*tests, *(one.message for one in informing)])
    default: RecordAdjacency = "add-remove" if worlds.leaves_out else "replace-one"
    for adjacency in adjacencies or ({default: None} if informing else {}):
        runs = ShortRuns(worlds, adjacency)
        every = [Channel(model, name) for model in config.threat_model for name in names]
        channels = [channel for channel in every if runs.can_test(channel)]
        if not channels:
            continue
        on_run = counter("short runs", runs.n_played)
        played = runs.played(program, channels, on_run, checkpoint.stage(adjacency))
        for i, claim, model in tested:
            for name in tests:
                channel = Channel(model, name)
                if record_adjacency(claim) == adjacency and channel in played:
                    yield certified(i, claim, channel, played[channel], runs)
        for attack in informing:
            for channel in channels:
                if channel.message == attack.message:
                    yield from information(attack, channel, played[channel], runs)


def certified(
    index: int, claim: Claim, channel: Channel, scores: ShortRunScores, runs: ShortRuns
) -> Finding:
    """The test of a claim by short runs."""
    learned = any(runs.unmeasured(victim, channel) for victim in scores.victims)
    bound, metrics = counted_test(claim, scores.counted, scores.choosing, ALPHA)
    return Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title=f"{TITLES[learned]} of short runs with and without one record",
        claim=index,
        attack=CAPTURED,
        threat_model=channel.threat_model.name,
        message=channel.message,
        adjacency=claim.adjacency,
        rounds=(runs.round,),
        world="defense",
        metrics=metrics | without_errors(claim, min(bound.n0, bound.n1), ALPHA),
        notes=(
            f"of round {runs.round} alone: a bound on what the whole run leaks, too",
            *([LEARNED] if learned else []),
        ),
    )


def _refuse_other_names(worlds: MeasuredRuns) -> None:
    k, places = next((k, n.places.values()) for k, n in worlds.rounds.items() if n.places)
    names = dict.fromkeys(message.name for place in places for message in place.messages)
    for i, attack in enumerate(worlds.config.attack, 1):
        if not isinstance(attack, GradientInversionOptions) and attack.message not in (
            None,
            *names,
        ):
            assert attack.message is not None
            raise RunError(
                "DPA064",
                f'attack[{i}].message: no victim sends "{attack.message}" in round '
                f"{k}{nearest(attack.message, names)}; sent are {', '.join(names)}",
            )


def information(
    attack: MutualInformationOptions, channel: Channel, scores: ShortRunScores, runs: ShortRuns
) -> Iterator[Finding]:
    """A finding for each victim that is none of the adversary's own."""
    for i, victim in enumerate(scores.victims):
        pair = runs.pairs[victim]
        leak = runs.neighbours.leak(victim, channel.threat_model, pair, channel.message)
        included = scores.having[:, i].astype(float)
        learned = bool(runs.unmeasured(victim, channel))
        found = None if learned else leak
        metrics, series, notes = _revealed(attack, scores.values[:, i], included, found, runs)
        yield Finding(
            role=Role.INFORMATION,
            kind="mutual-information",
            title=f"information about the record of agent {victim}: {pair[0]}, or {pair[1]}",
            attack=attack.name,
            threat_model=channel.threat_model.name,
            message=channel.message,
            adjacency=runs.adjacency,
            rounds=(runs.round,),
            world="defense",
            metrics=metrics,
            series=series,
            notes=notes,
        )


def _revealed(
    attack: MutualInformationOptions,
    score: Array,
    included: Array,
    leak: RoundLeak | None,
    runs: ShortRuns,
) -> tuple[dict[str, Metric], dict[str, tuple[float, ...]], tuple[str, ...]]:
    """Metrics, columns and notes about one victim; no leak: what it sends is not measured."""
    limits, about = ({}, ()) if leak is None else _capacity(leak)
    if np.ptp(score) == 0:
        if leak is None:
            return {}, {}, (NOT_MOVED,)
        if leak.noiseless is not None:
            why = f"not estimated: {leak.noiseless} shows the record beside another message"
            return {}, {}, (why,)
        return {Name.INFORMATION: Metric(value=0.0, n=len(score))} | limits, {}, (SAME,)
    rng = np.random.default_rng([runs.config.seed, 3])
    splits, shuffles = attack.n_splits, attack.n_permutations
    found, _ = without_warnings(  # inputs with repeated bits raise a warning
        lambda: maximum_information(
            [included], [score], rng, k=attack.k, n_permutations=shuffles, n_splits=splits
        )
    )
    low = min(found.low, _without_errors(len(score)))
    beyond = tuple(
        f"beyond the noise: at least {low:.3g} bits, where the measured noise lets "
        f"{limit.value:.3g} through at most; this speaks against the noise"
        for limit in limits.values()
        if low > limit.value
    )
    ksg = (
        f"KSG, k = {attack.k}, max-norm; M-NMI divides by self-information, what the estimator "
        f"makes of the bit about itself at n = {found.n}; the maximum is over one round"
    )
    metrics = information_metrics(found, shuffled=shuffles > 0) | limits
    series = information_series(found, [runs.round])
    reduced = REDUCTION if leak is not None else LEARNED
    return metrics, series, (*beyond, METHOD, reduced, ksg, *about)


def _without_errors(n: int) -> float:
    """The bits that n runs prove of a fair bit, if it is known in each of them.

    The estimate of such a bit is 1 or a little more. Errors at the rate of Clopper and Pearson stay
    out of n runs with probability ``ALPHA``.
    """
    rate = 1 - ALPHA ** (1 / n)
    return of_bit_in_randomised_response(log(1 / rate - 1))


def _capacity(leak: RoundLeak) -> tuple[dict[str, Metric], tuple[str, ...]]:
    """Capacity in bits about one fair bit under noise of one family, or why there is none."""
    if isinf(leak.mu) or isinf(leak.epsilon):
        return {}, ("no noise hides this record, and so no capacity of it stands beside",)
    if leak.mu and leak.epsilon:
        return {}, ("no capacity is derived for Gaussian and Laplace noise together",)
    most = of_bit_in_gaussian(leak.mu)
    if leak.epsilon:
        most = of_bit_in_randomised_response(leak.epsilon)
    return {Name.CAPACITY_FOR_PRESENCE: Metric(value=most)}, (LIMIT,)
