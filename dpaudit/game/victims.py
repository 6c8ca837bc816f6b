"""Whose record is attacked, of agents that declare the same noise."""

from dataclasses import replace
from functools import lru_cache
from itertools import islice, permutations
from math import ceil, sqrt

import torch
from torch import Tensor

from dpaudit.accounting.releases import Interval, Mechanism, RecordAdjacency, epsilon
from dpaudit.defense.gossip import releases
from dpaudit.files.threat import ThreatModel

from .adversary import LOCAL, Adversary
from .each_agent import told_of_each
from .game import Game

FIRST = 2  # rounds: weights that scale noise, as those of push-sum, are 1 in the first
MORE = 1 + 1e-4  # times what is declared, beyond rounding of two accountants


def of_worst_agent(
    game: Game, threat_model: ThreatModel, delta: float, adjacency: RecordAdjacency
) -> Game:
    """The game of the agent of whose record the first rounds tell most who reads every link.

    Agents that declare the same may do different things: one forgets half of its noise, or clips
    otherwise. Another than the game's own victim is taken only if it declares the same noise and
    tells more; against who reads some links alone, where an agent may tell most in other rounds,
    only if it tells more than is declared of as many batches. From ``LOCAL`` agents on none is.
    """
    own, n_agents = set(threat_model.agents), game.setting.n_agents
    if n_agents >= LOCAL or game.held is not None:
        return game
    reads_all = all(threat_model.sees(*link) for link in permutations(range(n_agents), 2))
    declared = _noise(game, threat_model)
    others = [i for i in game.setting.holders if i != game.victim and i not in own]
    alike = [
        game,
        *(g for g in (_of(game, i) for i in others) if _noise(g, threat_model) == declared),
    ]
    if len(alike) == 1:
        return game
    rounds = torch.arange(min(FIRST, game.defense.n_rounds)) + 1
    adversary = Adversary(replace(game, sampling_rate=1.0), threat_model, len(rounds))
    told = told_of_each(adversary, [each.victim for each in alike], rounds)
    if reads_all and not told.H[0].any():
        return game
    for each in alike:
        if each.victim in told.unhidden:
            return each
    leaks: dict[Mechanism, Game] = {}
    for each, H in zip(alike, told.H, strict=True):
        leak = _leaked(each, H)
        low = _epsilon(leak, delta, adjacency).low
        if reads_all or low > MORE * _declared(each, threat_model, delta, adjacency):
            leaks.setdefault(leak, each)
    worst = max(leaks, key=lambda leak: _epsilon(leak, delta, adjacency).low, default=None)
    return game if worst is None else leaks[worst]


def _declared(
    game: Game, threat_model: ThreatModel, delta: float, adjacency: RecordAdjacency
) -> float:
    """Epsilon of the first rounds at most, by the releases with the least noise."""
    declared: Mechanism = game.defense.mechanism(game.setting, threat_model, game.victim).most
    run = game.defense.n_rounds
    first = ceil(sum(release.count for release in declared) * min(FIRST, run) / run)
    by_noise = sorted(declared, key=lambda release: release.noise_multiplier)
    single = [(release.model_copy(update={"count": 1}), release.count) for release in by_noise]
    every = (release for release, count in single for _ in range(count))
    return _epsilon(tuple(islice(every, first)), delta, adjacency).high


@lru_cache(maxsize=256)
def _epsilon(mechanism: Mechanism, delta: float, adjacency: RecordAdjacency) -> Interval:
    """Equal for all agents that release the same."""
    return epsilon(mechanism, delta, adjacency)


def _of(game: Game, agent: int) -> Game:
    """The same game about a record of another agent, drawn at the rate of its own batches."""
    how = None if game.sampling == "none" else game.sampling
    own = Game.of(game.defense, game.setting, agent, game.adjacency, how)
    return replace(
        own,
        in_one_round=game.in_one_round,
        cycle=1 if game.in_one_round else own.cycle,
        coordinates=game.coordinates,
        layers=game.layers,
        filled=game.filled,
    )


def _noise(game: Game, threat_model: ThreatModel) -> list[tuple[str, float, int]]:
    """What the defense declares of the victim's noise, whatever its batches are drawn from."""
    declared: Mechanism = game.defense.mechanism(game.setting, threat_model, game.victim).most
    return [(r.family, r.noise_multiplier, r.count) for r in declared]


def _leaked(game: Game, H: Tensor) -> Mechanism:
    """The leak of the first rounds, to six digits, so that rounding chooses nobody."""
    squares = [H.sum()] if game.is_lasting else [*H.diagonal()]
    shifts = [float(f"{sqrt(max(0.0, float(s)) * game.filled):.6g}") for s in squares]
    how = "none" if game.sampling_rate == 1 else game.sampling
    return releases([1 / shift for shift in shifts if shift > 0], how, game.sampling_rate)
