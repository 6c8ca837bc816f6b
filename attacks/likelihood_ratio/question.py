"""How a claim is put as a question: whose record it is, which game tests it, and who reads that."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import (
    Mechanism,
    RecordAdjacency,
    false_negative_rate,
    power_where_batches_meet,
)
from dpaudit.attack import KINDS, AttackContext, Claim, Finding, Role, Streams, ThreatModel
from dpaudit.defense.claim_accounting import (
    claimed_delta,
    claimed_epsilon,
    record_adjacency,
    worst_off,
)
from dpaudit.errors import DpauditError
from dpaudit.game.filtering.adversary import SPARSE_FROM, Adversary, Reaction, RevealedBatch
from dpaudit.game.filtering.leak import Leak
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import PLAYED, Nonlinear, defined, nonlinearity
from dpaudit.game.runs.play import ProjectionAdversary, play
from dpaudit.game.worst_case import layers, record
from dpaudit.statistics.bounds import Tradeoff

from .agents import game_on_agents

WORK = 2 * 10**8  # messages simulated, in both worlds together: about 20 s of one CPU core
FOLLOWED = 50  # runs of each world by which it is seen whether all have numbers


@dataclass(frozen=True)
class Question:
    """Which claim is tested, by which game, and whose view it is."""

    claim: Claim
    threat_model: ThreatModel
    game: Game
    adversary: Adversary | ProjectionAdversary  # its scores are counted
    alpha: float  # probability of a false lower bound
    stop_early: bool  # whether runs are played until bets have refuted the claim
    index: int = 0  # index of the claim among the audit's claims
    algebra: Adversary | None = None  # of the exact leak; None: nothing is linear
    nonlinear: Nonlinear | None = None  # messages that the algebra leaves out
    revealed: RevealedBatch | None = None  # the only round with the record; None: any round
    mechanism: Mechanism = ()  # the exact leak of a record in one coordinate; () without one
    worst: int = 1  # coordinates of the worst record; runs may play fewer
    wider: layers.Wider | None = None  # leak in the model's own dimension, beyond one coordinate

    @property
    def in_round(self) -> int | None:
        """The only round in which the record is used; None: any round."""
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
        shows most of them; what they reveal one by one is no more than another record shows.
        """
        one_by_one = record.played_mechanism(self.mechanism, self.game.spread)
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

    def finding(self, role: Role, title: str, **fields: Any) -> Finding:
        """Evidence of this attack on this claim against this adversary; ``fields``: of Finding."""
        return Finding(
            role=role,
            kind=KINDS[role],
            title=title,
            claim=self.index,
            attack="likelihood-ratio",
            threat_model=self.threat_model.name,
            **fields,
        )


@dataclass(frozen=True)
class QuestionContext:
    """What all questions about one audit and one adversary have in common."""

    context: AttackContext
    threat_model: ThreatModel
    trials: int  # runs of each world that are counted
    first_rounds: int | None  # rounds to play; None: as many as ``WORK`` allows
    alpha: float  # probability of a false lower bound
    stop_early: bool

    @cached_property
    def streams(self) -> Streams:
        """From which all of the game is drawn."""
        return self.context.streams.child("likelihood-ratio")

    def rounds(self, coordinates: int = 1) -> int:
        """How many are played."""
        n_rounds = self.context.defense.n_rounds
        if self.threat_model.has_final_model:  # of a whole run, or another model
            return n_rounds
        if self.first_rounds is not None:
            return min(self.first_rounds, n_rounds)
        return max(1, min(n_rounds, WORK // self.numbers(coordinates)))

    def numbers(self, coordinates: int) -> int:
        """How many numbers one round of all runs holds."""
        graph = self.context.setting.network.at(1)
        return 2 * self.trials * (graph.n_edges + 2 * graph.n_agents) * coordinates

    def question(self, claim: Claim) -> Question | None:
        """The record of the agent that is worst off.

        Of agents that declare the same noise it is the one that leaks most in the first rounds.

        A claim on a round, a message or agents is about the one that reveals most. None: no message
        that this adversary sees is claimed to hide an agent.
        """
        view = self.threat_model
        if claim.adjacency == "agent-identity" and claim.scope != "run":
            return self._on_agents(claim)
        game = self._game_of(claim)
        nonlinear = nonlinearity(game, view, self.rounds())
        if nonlinear is not None and nonlinear.fewest > 1:
            return self._projected(claim, game, nonlinear)
        game, worst, more = self._played(game, claim, nonlinear)
        n_rounds, one = self.rounds(game.played), claim.scope == "message"
        predicted = game if nonlinear is None or nonlinear.defined else defined(game)
        tried = None if nonlinear is None else self._follows(predicted, n_rounds)
        if nonlinear is not None and tried is None:
            return self._projected(claim, game, nonlinear)
        game = record.in_worst_batch(game, view, n_rounds)
        predicted, revealed = replace(predicted, first=game.first), None
        is_tried = tried is not None and tried.game == predicted
        adversary = tried if tried and is_tried else Adversary(predicted, view, n_rounds)
        if game.in_one_round:
            revealed = adversary.most_revealing()
            adversary = Adversary(predicted, view, revealed.in_round, one)
        algebra, used = _algebra(adversary, nonlinear, one), revealed and revealed.of_round
        reads: Adversary | ProjectionAdversary = adversary
        if game.width is not None:
            reads = ProjectionAdversary(predicted, view, adversary.n_rounds)
        return self._about(
            claim,
            game,
            reads,
            algebra=algebra,
            nonlinear=nonlinear,
            revealed=revealed,
            mechanism=algebra.leak.mechanism(game, used) if algebra and game.held is None else (),
            worst=worst,
            wider=more,
        )

    def _about(
        self, claim: Claim, game: Game, reads: Adversary | ProjectionAdversary, **known: Any
    ) -> Question:
        view, alpha, stop_early = self.threat_model, self.alpha, self.stop_early
        return Question(claim, view, game, reads, alpha, stop_early, **known)

    def _game_of(self, claim: Claim) -> Game:
        """About whoever declares the least noise."""
        defense, setting = self.context.defense, self.context.setting
        victim = worst_off(claim, self.threat_model, defense, setting)
        game = Game.of(defense, setting, victim, claim.adjacency)
        if claim.adjacency == "agent-identity":  # all of its data are another agent's
            game = replace(game, sampling_rate=1.0, sampling="none", cycle=1)
        if claim.scope != "run":  # whatever batch is taken there
            game = replace(game, in_one_round=True, cycle=1)
        return layers.in_layers(game)

    def _projected(self, claim: Claim, game: Game, nonlinear: Nonlinear) -> Question:
        """The question about a step that one coordinate cannot play, or that no algebra follows."""
        if nonlinear.fewest > 1:
            game = self._of_victim(replace(game, width=nonlinear.fewest), claim, nonlinear)
            game = record.most_moving(game, self.threat_model, self.streams)
        game = replace(game, width=game.played)
        revealed = RevealedBatch(1, 1, alone=False) if game.in_one_round else None
        n_rounds = 1 if revealed else self.rounds(game.played)
        reads = ProjectionAdversary(defined(game), self.threat_model, n_rounds)
        return self._about(claim, game, reads, nonlinear=nonlinear, revealed=revealed)

    def _on_agents(self, claim: Claim) -> Question | None:
        """The two agents whose exchange reveals most in one round."""
        defense, setting = self.context.defense, self.context.setting
        game = game_on_agents(defense, setting, self.threat_model, self.rounds(), self.streams)
        if game is None:
            return None
        algebra = Adversary(game, ThreatModel(name=self.threat_model.name), 1)
        mechanism = algebra.leak.mechanism(game, None)
        return self._about(claim, game, algebra, algebra=algebra, mechanism=mechanism)

    def _of_victim(self, game: Game, claim: Claim, nonlinear: Nonlinear | None) -> Game:
        """The game of the agent that is attacked, of those that declare what its victim does."""
        if claim.adjacency == "agent-identity":  # all of an agent's records
            return game
        if nonlinear is not None or game.setting.n_agents >= SPARSE_FROM:
            return record.of_most_moved_agent(game, self.threat_model, self.streams)
        at = claimed_delta(claim) or 1e-5
        return record.of_worst_agent(game, self.threat_model, at, record_adjacency(claim))

    def _played(
        self, game: Game, claim: Claim, nonlinear: Nonlinear | None
    ) -> tuple[Game, int, layers.Wider | None]:
        """The game that runs play, the coordinates of the worst record, and what more shows.

        The last is what messages reveal at the model's own dimension.
        """
        game = self._of_victim(game, claim, nonlinear)
        if nonlinear is None:
            worst, more = record.coordinates(game), layers.wider(game, self.threat_model)
            if more is not None and more.mixes and worst == 1 and claim.scope != "message":
                return replace(game, width=min(PLAYED, game.coordinates)), worst, more
            return replace(game, spread=min(worst, PLAYED)), worst, more
        game = record.most_moving(game, self.threat_model, self.streams)
        if claim.scope == "message":  # a projection reads whole rounds
            game = replace(game, width=None)
        return game, 1, None

    def _follows(self, game: Game, n_rounds: int) -> Adversary | None:
        """The adversary that predicts rounds of a step that is not linear, if it has numbers.

        What is believed of a mean of squares may be negative, which has no root. With the record
        in every batch, under noise and without, as all runs have it at most.
        """
        own, game = self.streams.child("followed"), replace(game, width=None)
        drawn = replace(game, sampling_rate=1.0)
        try:
            adversary = Adversary(game, self.threat_model, n_rounds)
            for played in (drawn, drawn.without_noise()):
                play(adversary, FOLLOWED, own, game=played)
        except DpauditError:
            return None
        return adversary


def _algebra(adversary: Adversary, nonlinear: Nonlinear | None, single: bool) -> Adversary | None:
    """The adversary whose leak is exact: its messages are linear in noise and record."""
    messages = None
    if nonlinear is not None and not (nonlinear.noiseless and adversary.leak.noiseless):
        messages = nonlinear.affine
        if not messages:
            return None
    elif adversary.game.spread == 1:
        return adversary
    game = replace(adversary.game, spread=1)
    return Adversary(game, adversary.threat_model, adversary.n_rounds, single, messages)
