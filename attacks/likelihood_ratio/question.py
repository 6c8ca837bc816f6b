"""One claim against one adversary: the game that tests it, and what the adversary can know."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import (
    Mechanism,
    RecordAdjacency,
    false_negative_rate,
    power_where_batches_meet,
)
from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon, record_adjacency
from dpaudit.files.claim import Claim
from dpaudit.files.finding import KINDS, Finding, Metric, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.game.filtering.adversary import Adversary, RevealedBatch
from dpaudit.game.filtering.gradient_reaction import Reaction
from dpaudit.game.filtering.leak import Leak
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import Nonlinear
from dpaudit.game.runs.play import ProjectionAdversary
from dpaudit.game.worst_case.real_dimension import Wider
from dpaudit.game.worst_case.record import played_mechanism
from dpaudit.statistics.power import Tradeoff


@dataclass(frozen=True)
class Question:
    """Which claim is tested, by which game, and whose view it is."""

    index: int  # of the claim, into the audit's claims
    claim: Claim
    threat_model: ThreatModel
    game: Game
    adversary: Adversary | ProjectionAdversary  # whose scores are counted
    alpha: float  # of a false lower bound
    stop_early: bool  # whether runs are played until bets have refuted the claim
    algebra: Adversary | None = None  # whose leak is exact; None: no message is linear in the noise
    nonlinear: Nonlinear | None = None  # what the algebra leaves out
    revealed: RevealedBatch | None = None  # of the only round with the record; None: in any
    mechanism: Mechanism = ()  # the exact leak of a record in one coordinate; () without one
    worst: int = 1  # coordinates of the worst record; runs may play fewer
    wider: Wider | None = None  # what the model's own dimension shows beyond one coordinate

    @property
    def in_round(self) -> int | None:
        """In which alone the record is used; None: in any."""
        return None if self.revealed is None else self.revealed.of_round

    @property
    def leak(self) -> Leak:
        """The exact leak of the view, where there is an algebra."""
        assert self.algebra is not None
        return self.algebra.leak

    @property
    def reacts(self) -> Reaction | None:
        """A gradient at a model that the view does not reveal."""
        return None if self.algebra is None else self.algebra.reacts

    @property
    def is_followed(self) -> bool:
        """Whether the algebra predicts all that noise does to messages."""
        return self.nonlinear is None or self.nonlinear.quiet

    @property
    def claimed(self) -> float:
        return claimed_epsilon(self.claim)

    @property
    def delta(self) -> float:
        """At which tests are held against the claim."""
        return claimed_delta(self.claim)

    @property
    def adjacency(self) -> RecordAdjacency:
        return record_adjacency(self.claim)

    @property
    def meet(self) -> bool:
        """Whether uses of the record that are drawn one by one show in one round."""
        if self.algebra is None:
            return False
        return not self.leak.separate and (self.in_round is None or self.leak.batches > 1)

    def tradeoffs(self) -> list[Tradeoff]:
        """What is known of how often the best test misses the record that is played.

        Its gradient has one direction. Where batches meet, that is for a test by the number that
        shows most of them; what they tell one by one is no more than another record shows.
        """
        one_by_one = played_mechanism(self.mechanism, self.game.spread)
        together = self.algebra.leak.meetings(self.game, self.in_round) if self.algebra else []

        def of_releases(rates: Array) -> Array:
            if not one_by_one:
                return 1 - np.asarray(rates)
            return false_negative_rate(one_by_one, rates, self.adjacency)

        def of_meetings(rates: Array) -> Array:
            return 1 - power_where_batches_meet(together[0], rates, self.adjacency)

        return [of_releases, of_meetings] if self.meet and together else [of_releases]

    @property
    def guesses(self) -> bool:
        """Whether the adversary does not know a graph that is drawn anew in every round."""
        return self.game.setting.network.drawn and not self.threat_model.knows_draws

    @property
    def n_rounds(self) -> int:
        return self.adversary.n_rounds

    def finding(
        self,
        role: Role,
        title: str,
        *,
        message: str | None = None,
        rounds: tuple[int, ...] = (),
        world: Literal["defense", "no-defense"] | None = None,
        metrics: dict[str, Metric] | None = None,
        verdict: Verdict | None = None,
        notes: tuple[str, ...] = (),
        series: dict[str, tuple[float, ...]] | None = None,
    ) -> Finding:
        """Evidence of this attack on this claim against this adversary."""
        return Finding(
            role=role,
            kind=KINDS[role],
            title=title,
            claim=self.index,
            attack="likelihood-ratio",
            threat_model=self.threat_model.name,
            message=message,
            rounds=rounds,
            world=world,
            metrics=metrics or {},
            verdict=verdict,
            notes=notes,
            series=series or {},
        )


def is_pure(mechanism: Mechanism) -> bool:
    """Whether all noise is Laplace noise, which has an epsilon at delta = 0."""
    return all(release.family == "laplace" for release in mechanism)
