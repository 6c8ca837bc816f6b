"""How a claim is put as a question: whose record it is, which game tests it, and who reads that."""

from dataclasses import dataclass, replace
from functools import cached_property

from dpaudit.attack.contract import AttackContext
from dpaudit.defense.claim_accounting import claimed_delta, record_adjacency, worst_off
from dpaudit.errors import DpauditError
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import SPARSE_FROM, Adversary, RevealedBatch
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import Nonlinear, defined, nonlinearity
from dpaudit.game.probing.playable_dimension import PLAYED
from dpaudit.game.runs.play import ProjectionAdversary, play
from dpaudit.game.worst_case.agent import (
    in_worst_batch,
    most_moving,
    of_most_moved_agent,
    of_worst_agent,
)
from dpaudit.game.worst_case.layers import in_layers
from dpaudit.game.worst_case.real_dimension import Wider, wider
from dpaudit.game.worst_case.record import coordinates
from dpaudit.rng import Streams

from .agents import game_on_agents, whole_agent
from .question import Question

WORK = 2 * 10**8  # messages simulated, in both worlds together: about 20 s of one CPU core
FOLLOWED = 50  # runs of each world by which it is seen whether all have numbers


@dataclass(frozen=True)
class Asking:
    """What all questions about one audit and one adversary have in common."""

    context: AttackContext
    threat_model: ThreatModel
    trials: int  # runs of each world that are counted
    first_rounds: int | None  # that are played; None: what 20 s take
    alpha: float  # of a false lower bound
    stop_early: bool

    @cached_property
    def streams(self) -> Streams:
        """From which all of the game is drawn."""
        return self.context.streams.child("likelihood-ratio")

    def rounds(self, coordinates: int = 1) -> int:
        """How many are played."""
        n_rounds = self.context.defense.n_rounds
        if self.first_rounds is not None:
            return min(self.first_rounds, n_rounds)
        return max(1, min(n_rounds, WORK // self.numbers(coordinates)))

    def numbers(self, coordinates: int) -> int:
        """Of a round of all runs."""
        graph = self.context.setting.network.at(1)
        return 2 * self.trials * (graph.n_edges + 2 * graph.n_agents) * coordinates

    def question(self, index: int, claim: Claim) -> Question | None:
        """The record of the agent that is worst off.

        Of agents that declare the same noise it is the one that leaks most in the first rounds.

        A claim on a round, a message or agents is about the one that reveals most. None: no message
        that this adversary sees is claimed to hide an agent.
        """
        view = self.threat_model
        if claim.adjacency == "agent-identity" and claim.scope != "run":
            return self._on_agents(index, claim)
        game = self._game_of(claim)
        nonlinear = nonlinearity(game, view, self.rounds())
        if nonlinear is not None and nonlinear.fewest > 1:
            return self._projected(index, claim, game, nonlinear)
        game, worst, more = self._played(game, claim, nonlinear)
        n_rounds, one = self.rounds(game.played), claim.scope == "message"
        predicted = game if nonlinear is None or nonlinear.defined else defined(game)
        if nonlinear is not None and not self._is_followed(predicted, n_rounds):
            return self._projected(index, claim, game, nonlinear)
        game = in_worst_batch(game, view, n_rounds)
        predicted = replace(predicted, first=game.first)
        adversary, revealed = Adversary(predicted, view, n_rounds), None
        if game.in_one_round:
            revealed = adversary.most_revealing()
            adversary = Adversary(predicted, view, revealed.in_round, one)
        algebra, used = _algebra(adversary, nonlinear, one), revealed and revealed.of_round
        reads: Adversary | ProjectionAdversary = adversary
        if game.width is not None:
            reads = ProjectionAdversary(predicted, view, adversary.n_rounds)
        return replace(
            self._about(index, claim, game, reads),
            algebra=algebra,
            nonlinear=nonlinear,
            revealed=revealed,
            mechanism=algebra.leak.mechanism(game, used) if algebra and game.held is None else (),
            worst=worst,
            wider=more,
        )

    def _about(
        self, index: int, claim: Claim, game: Game, adversary: Adversary | ProjectionAdversary
    ) -> Question:
        view, alpha, stop_early = self.threat_model, self.alpha, self.stop_early
        return Question(index, claim, view, game, adversary, alpha, stop_early)

    def _game_of(self, claim: Claim) -> Game:
        """About whoever declares the least noise."""
        defense, setting = self.context.defense, self.context.setting
        victim = worst_off(claim, self.threat_model, defense, setting)
        game = Game.of(defense, setting, victim, claim.adjacency)
        if claim.adjacency == "agent-identity":
            game = whole_agent(defense, setting, victim)
        if claim.scope != "run":  # whatever batch is taken there
            game = replace(game, in_one_round=True, cycle=1)
        return in_layers(game)

    def _projected(self, index: int, claim: Claim, game: Game, nonlinear: Nonlinear) -> Question:
        """Of a step that one coordinate does not play, or that no algebra follows."""
        if nonlinear.fewest > 1:
            game = replace(game, width=nonlinear.fewest)
            game = self._of_victim(game, claim, nonlinear)
            game = most_moving(game, self.threat_model, self.streams)
        game = replace(game, width=game.played)
        revealed = RevealedBatch(1, 1, alone=False) if game.in_one_round else None
        n_rounds = 1 if revealed else self.rounds(game.played)
        adversary = ProjectionAdversary(defined(game), self.threat_model, n_rounds)
        question = self._about(index, claim, game, adversary)
        return replace(question, nonlinear=nonlinear, revealed=revealed)

    def _on_agents(self, index: int, claim: Claim) -> Question | None:
        """The two agents whose exchange reveals most in one round."""
        defense, setting = self.context.defense, self.context.setting
        game = game_on_agents(defense, setting, self.threat_model, self.rounds(), self.streams)
        if game is None:
            return None
        adversary = Adversary(game, ThreatModel(name=self.threat_model.name), 1)
        question = self._about(index, claim, game, adversary)
        return replace(question, algebra=adversary, mechanism=adversary.leak.mechanism(game, None))

    def _of_victim(self, game: Game, claim: Claim, nonlinear: Nonlinear | None) -> Game:
        """The game of the agent that is attacked, of those that declare what its victim does."""
        if claim.adjacency == "agent-identity":  # all of an agent's records
            return game
        if nonlinear is not None or game.setting.n_agents >= SPARSE_FROM:
            return of_most_moved_agent(game, self.threat_model, self.streams)
        at = claimed_delta(claim) or 1e-5
        return of_worst_agent(game, self.threat_model, at, record_adjacency(claim))

    def _played(
        self, game: Game, claim: Claim, nonlinear: Nonlinear | None
    ) -> tuple[Game, int, Wider | None]:
        """The game that runs play, the coordinates of the worst record, and what more shows.

        The last is what messages reveal at the model's own dimension.
        """
        game = self._of_victim(game, claim, nonlinear)
        if nonlinear is None:
            worst, more = coordinates(game), wider(game, self.threat_model)
            if more is not None and more.mixes and worst == 1 and claim.scope != "message":
                return replace(game, width=min(PLAYED, game.coordinates)), worst, more
            return replace(game, spread=min(worst, PLAYED)), worst, more
        game = most_moving(game, self.threat_model, self.streams)
        if claim.scope == "message":  # a projection reads whole rounds
            game = replace(game, width=None)
        return game, 1, None

    def _is_followed(self, game: Game, n_rounds: int) -> bool:
        """Whether an adversary that predicts rounds has numbers, of a step that is not linear.

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
            return False
        return True


def _algebra(adversary: Adversary, nonlinear: Nonlinear | None, single: bool) -> Adversary | None:
    """Of messages that are linear in the noise, and a record in one coordinate: an exact leak."""
    messages = None
    if nonlinear is not None and not (nonlinear.noiseless and adversary.leak.noiseless):
        messages = nonlinear.affine
        if not messages:
            return None
    elif adversary.game.spread == 1:
        return adversary
    game = replace(adversary.game, spread=1)
    return Adversary(game, adversary.threat_model, adversary.n_rounds, single, messages)
