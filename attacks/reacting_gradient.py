"""Reacting gradients: does what the network hides stay hidden when agents train on it?

Linear accounting of a partial view takes the gradients of all agents as given. This plays runs in
which third agents, neither victim nor adversary, have losses that the auditor chose: steep where
the victim's record decides, of either sign (``dpaudit.game.runs.play``). DP has to
survive any data of theirs.
What is certified from such runs above the linear figure says that the amplification by the
network, which the linear figure has, does not survive training.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.game.filtering.adversary import Adversary, with_every_link
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.game.runs.play import LearnedScore, SteepLosses, Worlds, cross_fitted, play
from dpaudit.statistics.bounds import ScoreBound, epsilon_lower_bound, family_from_scores
from dpaudit.statistics.bounds import mu_p_value as p_value_of_mu

DELTA = 1e-5  # delta of the certified epsilon


class ReactingGradient(da.Attack):
    """Bounds mu of one record to a partial view from below, while third agents' losses relay it.

    The record is used in round 1 alone. Other runs choose the sign of the losses, the score (a
    linear discriminant of what the adversary could not predict) and its threshold; errors are
    counted on ``trials`` runs of each world. It bears on no claim: that of a claim is sampled.
    """

    trials: Annotated[PositiveInt, Field(ge=40)] = 4000  # runs of each world that are counted
    n_rounds: PositiveInt = 5  # the first ones, that are played; all of a shorter run
    victim: NonNegativeInt | None = None  # None: an agent two links away, or else a neighbour
    alpha: da.Significance = 0.05  # probability of a false lower bound

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        return da.missing_agent(self.victim, n_agents)

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        game = self._game(context, threat_model)
        if game is None:
            return [_finding(threat_model, notes=("no agent's record is left to protect here",))]
        n_rounds = min(self.n_rounds, context.defense.n_rounds)
        nonlinear = nonlinearity(game, threat_model, n_rounds)
        if nonlinear is not None:
            return [_finding(threat_model, notes=(nonlinear.note,))]
        adversary, why = Adversary(game, threat_model, n_rounds), None
        if adversary.leak.has_laplace or adversary.leak.noiseless:
            why = "a view of Gaussian noise alone has a mu"
        elif adversary.reacts is None:
            why = "the view tells every model that a gradient is taken at: its leak is exact"
        if why is not None:
            return [_finding(threat_model, notes=(why,))]
        return [self._measured(adversary, context.streams, on_step)]

    def _game(self, context: da.AttackContext, threat_model: da.ThreatModel) -> Game | None:
        """One record of the victim, used in round 1 for certain."""
        victim = _victim(context.setting, threat_model) if self.victim is None else self.victim
        if victim is None or victim in threat_model.agents or context.defense.function_distance():
            return None
        game = Game.of(context.defense, context.setting, victim, "add-remove", "poisson")
        return replace(game, sampling_rate=1.0, in_one_round=True, cycle=1)

    def _measured(
        self, adversary: Adversary, streams: da.Streams, on_step: da.OnStep
    ) -> da.Finding:
        game, n_rounds, view = adversary.game, adversary.n_rounds, adversary.threat_model
        everything = Adversary(game, with_every_link(view), n_rounds)
        third = tuple(i for i in game.setting.holders if i != game.victim and i not in view.agents)

        def played(name: str, losses: SteepLosses) -> Worlds:
            own = streams.child(name)
            return play(adversary, self.trials, own, 1, on_round=on_step, others=losses)

        pulling, trained = SteepLosses.of(game, third, n_rounds), []
        for losses in (pulling, pulling.opposite()):
            worlds = played(f"training {losses.sign:g}", losses)
            held_out = cross_fitted(worlds)  # each run by a score that the others teach
            promised = family_from_scores(*held_out, 0.05, np.random.default_rng(0)).value
            trained.append((promised, losses, LearnedScore(worlds), held_out))
        _, losses, score, held_out = max(trained, key=lambda each: each[0])
        counted = played("counted", losses)
        scores = score(counted.without), score(counted.with_record)
        bound = family_from_scores(*scores, self.alpha, held_out)
        given = float(adversary.leak.by_round[0])
        most = inf if everything.reacts else float(everything.leak.by_round[0])
        return _certified(adversary, bound, (given, most), losses, self.alpha)


def _victim(setting: dp.Setting, threat_model: da.ThreatModel) -> int | None:
    """An agent whose messages the adversary does not read, but those of one who hears it."""
    graph = setting.network.at(1)
    heard = {j for j, i in graph.links if threat_model.sees(j, i)} | set(threat_model.agents)
    honest = [i for i in setting.holders if i not in threat_model.agents]
    far = [j for j, i in graph.links if i in heard and j in honest and j not in heard]
    return next(iter([*sorted(far), *honest]), None)


def _certified(
    adversary: Adversary,
    bound: ScoreBound,
    given: tuple[float, float],
    losses: SteepLosses,
    alpha: float,
) -> da.Finding:
    low, high = given
    counts = bound.fp, bound.fn, bound.n0, bound.n1
    p = p_value_of_mu(*counts, low)
    relayed = "does not survive" if p <= alpha else "may or may not survive"
    way = "away from" if losses.sign < 0 else "towards"
    return _finding(
        adversary.threat_model,
        rounds=(1, adversary.n_rounds),
        world="defense",
        metrics={
            da.Name.MU_LOWER_BOUND: da.Metric(value=bound.value, n=bound.n0 + bound.n1),
            da.Name.MU_OF_GIVEN_GRADIENTS: da.Metric(value=low, low=low, high=high),
            da.Name.EPSILON_LOWER_BOUND: da.Metric(
                value=float(epsilon_lower_bound(*counts, DELTA, alpha)), n=bound.n0 + bound.n1
            ),
            da.Name.DELTA: da.Metric(value=DELTA),
            da.Name.CONFIDENCE: da.Metric(value=1 - alpha),
            da.Name.P_VALUE: da.Metric(value=p),
            da.Name.FALSE_POSITIVES: da.Metric(value=bound.fp, n=bound.n0),
            da.Name.FALSE_NEGATIVES: da.Metric(value=bound.fn, n=bound.n1),
        },
        notes=(
            f"a record of agent {adversary.game.victim}, used in round 1; third agents have "
            f"batches of records alike, whose losses push steeply {way} the middle",
            f"what the network hides of the record by linear accounting (mu {low:.3g}) {relayed} "
            f"training; who reads every link has mu {high:.3g}",
            f"{bound.n0} runs of each world; others chose the sign of the losses and the score",
        ),
    )


def _finding(threat_model: da.ThreatModel, **fields: Any) -> da.Finding:
    """The finding, with figures or with a note why there are none."""
    return da.Finding(
        role=da.Role.REACTING_GRADIENT,
        kind="empirical-epsilon",
        title="gradients that react",
        attack="reacting-gradient",
        threat_model=threat_model.name,
        **fields,
    )
