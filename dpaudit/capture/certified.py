"""Short runs of a program with and without a record, and the lower bound that they certify.

Each victim's record is there by a coin of its own in every run. A run ends with the first measured
round; its noise is drawn afresh in that round, and is that of the first run before. The score of a
victim is the likelihood ratio by what was measured: any other score is valid too, with less power.
Counts of several victims are sums of independent trials whose chances may differ, for which the
binomial bound holds (Hoeffding 1956). Every victim has as many runs with its record as each other
one, so that the mean error rates are those of one victim drawn at random, of which the claim holds
if it holds of each. Where a round has messages of several names, what one victim sends may depend
on another's coin, as a score does where agents share noise, and only the first victim has one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import RecordAdjacency
from dpaudit.checkpoint import Checkpoint, Progress
from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import World
from dpaudit.pipeline.case import CAPTURED
from dpaudit.statistics.bounds import (
    Scores,
    family_from_scores,
    from_scores,
    mu_p_value,
    p_value,
)
from dpaudit.statistics.power import expected_bound, expected_family_bound, trials_needed

from .measured import log_likelihood_ratio
from .observed import Observed
from .program import Program
from .worlds import Neighbours, OnRun, Pair

ALPHA = 0.05  # of a false bound of one test
BLOCK = 20  # runs after which scores are kept
LEAST_CHOOSING = 4  # runs, two of each side


class Channel(NamedTuple):
    """Whose view a score is made from."""

    threat_model: ThreatModel
    message: str | None = None  # by name; None: all that it reads in the round


class Played(NamedTuple):
    """Scores of one channel, of victims that are not the adversary's own."""

    victims: tuple[int, ...]
    values: Array  # [runs, victims]
    having: NDArray[np.bool_]  # [runs, victims]: with the record
    n_choosing: int  # of the runs, the first ones

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
    """Runs that end with one round, in which each victim's record is there by a coin of its own."""

    config: CapturedConfig
    replay: World
    neighbours: Neighbours
    adjacency: RecordAdjacency

    @cached_property
    def pairs(self) -> Mapping[int, Pair]:
        """What each victim's record is without and with: what shows most to who reads all."""
        everyone = ThreatModel(name="every link")
        victims, places = self.config.record.victims, self.neighbours.places
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
    def drawn(self) -> tuple[str, ...]:
        """The noise of the round."""
        return tuple(d.key for v in self.pairs for d in self.neighbours.places[v].draws)

    def can_test(self, channel: Channel) -> bool:
        """Whether a victim with a coin is none of the adversary's own agents, and it is read."""
        victims = [v for v in self.pairs if v not in channel.threat_model.agents]
        if channel.message is None:
            return bool(victims)
        return any(self.neighbours.read(v, *channel) for v in victims)

    def world(self, included: Sequence[int], **update: object) -> World:
        changes = tuple(
            self.neighbours.places[victim].change(pair[one])
            for (victim, pair), one in zip(self.pairs.items(), included, strict=True)
        )
        last = self.neighbours.base.sent_until(self.config.record.rounds[0])
        return self.replay.model_copy(update={"changes": changes, "last": last, **update})

    def played(
        self, program: Program, channels: Sequence[Channel], on_run: OnRun, checkpoint: Checkpoint
    ) -> Mapping[Channel, Played]:
        """The scores of each channel. Raises RunError if a run fails."""
        leaks = [
            [self.neighbours.leak(v, model, pair, name) for v, pair in self.pairs.items()]
            for model, name in channels
        ]
        quiet = self.world([0] * len(self.pairs), silent=self.drawn)
        [mean] = program.each([quiet], Observed.loaded, on_run)

        def scores(run: Observed) -> list[list[float]]:
            return [[log_likelihood_ratio(x, run, mean) for x in some] for some in leaks]

        worlds = [
            self.world(included, fresh=self.drawn, noise_seed=i)
            for i, included in enumerate(self.included.tolist())
        ]
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

    def _of(self, channel: Channel, values: Array) -> Played:
        """Values [runs, victims] of those victims that are none of the adversary's own."""
        honest = [i for i, v in enumerate(self.pairs) if v not in channel.threat_model.agents]
        victims = tuple(list(self.pairs)[i] for i in honest)
        having = self.included.astype(bool)[:, honest]
        return Played(victims, values[:, honest], having, self.n_choosing)


def certified(index: int, claim: Claim, channel: Channel, played: Played, k: int) -> Finding:
    """The test of a claim by what was played of round k."""
    delta, claimed = claimed_delta(claim), claimed_epsilon(claim)
    if claim.mu is None:
        bound = from_scores(*played.counted, delta, ALPHA, played.choosing)
        value = bound.value
        p = p_value(bound.fp, bound.fn, bound.n0, bound.n1, delta, claimed)
    else:
        bound = family_from_scores(*played.counted, ALPHA, played.choosing)
        value = GAUSSIAN.epsilon(bound.value, delta)
        p = mu_p_value(bound.fp, bound.fn, bound.n0, bound.n1, claim.mu)
    metrics: dict[str, Metric] = {
        Name.EPSILON_LOWER_BOUND: Metric(value=value, n=bound.n0 + bound.n1),
        Name.CLAIMED_EPSILON: Metric(value=claimed),
        Name.DELTA: Metric(value=delta),
        Name.CONFIDENCE: Metric(value=1 - ALPHA),
        Name.P_VALUE: Metric(value=p),
        Name.FALSE_POSITIVES: Metric(value=bound.fp, n=bound.n0),
        Name.FALSE_NEGATIVES: Metric(value=bound.fn, n=bound.n1),
    }
    if claim.mu is not None:
        metrics[Name.MU_LOWER_BOUND] = Metric(value=bound.value)
        metrics[Name.CLAIMED_MU] = Metric(value=claim.mu)
    metrics |= _power(claim, delta, min(bound.n0, bound.n1))
    return Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title="likelihood ratio of short runs with and without one record",
        claim=index,
        attack=CAPTURED,
        threat_model=channel.threat_model.name,
        message=channel.message,
        adjacency=claim.adjacency,
        rounds=(k,),
        world="defense",
        metrics=metrics,
        notes=(f"of round {k} alone: a bound on what the whole run leaks, too",),
    )


def _power(claim: Claim, delta: float, n: int) -> dict[str, Metric]:
    """What a perfect attack could certify with as many scores."""

    def perfect(n: int) -> float:
        if claim.mu is not None:
            return expected_family_bound(n, ALPHA, np.zeros_like)
        return expected_bound(n, delta, ALPHA, np.zeros_like)

    most = perfect(n)
    enough = trials_needed(claim.mu or claimed_epsilon(claim), perfect)
    return {
        Name.CEILING: Metric(
            value=most if claim.mu is None else GAUSSIAN.epsilon(most, delta), n=n
        ),
        Name.TRIALS_NEEDED: Metric(value=inf if enough is None else enough),
    }
