"""Batches in turn: in which of them a record is worst off."""

from dataclasses import replace

from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.gradient_directions import worst_directions
from dpaudit.game.filtering.record_uses import grams
from dpaudit.game.game import Game


def in_worst_batch(game: Game, threat_model: ThreatModel, n_rounds: int) -> Game:
    """The game with the record in the batch of which a view of so many rounds tells most.

    Where rounds are alike and noise is fresh in each, that is the first: what a view tells of later
    ones starts from a state that is less known, and ends sooner. Where graphs vary or noise is
    correlated over rounds it may be any. So uses in all rounds are read at once, each by itself.
    """
    if game.cycle == 1 or not game.is_lasting:
        return game
    apart = Adversary(replace(game, cycle=1, in_one_round=True, spread=1), threat_model, n_rounds)
    told = {}
    for batch, (_, H) in grams(
        [r.columns for r in apart.rounds], lambda use: (use[1] - 1) % game.cycle
    ).items():
        told[batch] = worst_directions(H, game.directions).high
    shown = [(j - 1) % game.cycle for j in apart.leak.noiseless]
    first = min(shown) if shown else max(sorted(told), key=lambda batch: told[batch])
    return replace(game, first=first + 1)
