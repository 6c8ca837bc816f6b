"""Whose record is attacked, of agents that declare the same noise."""

from dataclasses import replace
from itertools import permutations

from dpaudit.accounting.releases import Mechanism, RecordAdjacency, epsilon
from dpaudit.files.threat import ThreatModel

from .adversary import Adversary
from .game import Game

MOST_PROBED = 16  # agents whose first rounds are read one by one, on a complete graph in seconds
FIRST = 2  # rounds: weights that scale noise, as those of push-sum, are 1 in the first


def of_worst_agent(
    game: Game, threat_model: ThreatModel, delta: float, adjacency: RecordAdjacency
) -> Game:
    """The game of the agent of whose record the first rounds tell most who reads every link.

    Agents that declare the same may do different things: one forgets half of its noise, or clips
    otherwise. Another than the game's own victim is taken only if it declares the same noise and
    tells more. Of more than ``MOST_PROBED`` agents none is, nor against who reads some links alone:
    there an agent may tell most in other rounds.
    """
    own, links = set(threat_model.agents), permutations(range(game.setting.n_agents), 2)
    others = [i for i in game.setting.holders if i != game.victim and i not in own]
    if len(others) >= MOST_PROBED or game.held is not None:
        return game
    if not all(threat_model.sees(*link) for link in links):
        return game
    declared, told = _noise(game, threat_model), {_told(game, threat_model): game}
    if () in told:
        return game
    for agent in others:
        other = _of(game, agent)
        if _noise(other, threat_model) == declared:
            told.setdefault(_told(other, threat_model), other)
    if len(told) == 1:
        return game
    return told[max(told, key=lambda leak: epsilon(leak, delta, adjacency).low)]


def _of(game: Game, agent: int) -> Game:
    """The same game about a record of another agent, drawn at the rate of its own batches."""
    how = None if game.sampling == "none" else game.sampling
    own = Game.of(game.defense, game.setting, agent, game.adjacency, how)
    cycle = 1 if game.in_one_round else own.cycle
    return replace(own, in_one_round=game.in_one_round, coordinates=game.coordinates, cycle=cycle)


def _noise(game: Game, threat_model: ThreatModel) -> list[tuple[str, float, int]]:
    """What the defense declares of the victim's noise, whatever its batches are drawn from."""
    releases: Mechanism = game.defense.mechanism(game.setting, threat_model, game.victim).most
    return [(r.family, r.noise_multiplier, r.count) for r in releases]


def _told(game: Game, threat_model: ThreatModel) -> Mechanism:
    """The leak of the first rounds, to six digits, so that rounding chooses nobody."""
    leak = Adversary(game, threat_model, min(FIRST, game.defense.n_rounds)).leak
    return tuple(
        release.model_copy(update={"noise_multiplier": float(f"{release.noise_multiplier:.6g}")})
        for release in leak.mechanism(game, None)
    )
