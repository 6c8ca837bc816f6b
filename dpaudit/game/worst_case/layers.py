"""A record in all layers of a model at once, where a defense clips layers one by one.

The game's model has one coordinate, and a record that fills it. Behind a clip of the whole gradient
no record does more. Behind a clip of each layer one does: it moves every layer by as much as one
coordinate alone, sqrt(L) times as far in all. So rounds are played, until a message tells of the
record, with a coordinate for each layer and a record of the same length in all of them. Where each
layer then moves as the one coordinate did, under noise that does so too, the model is L copies of
that of one coordinate: mu^2 is L times as large, and so is the pure loss. Where the record weighs
more in its noise but not alike in all layers, as behind a clip of groups of them, the algebra has
no upper end (`width`).
"""

from dataclasses import replace
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.noise import Scale
from dpaudit.game.game import Game
from dpaudit.game.probing.chosen_noise import ChosenNoise, Family
from dpaudit.game.probing.playable_dimension import fewest_coordinates

ENTRIES = 10**7  # numbers of a round of all plays: of more layers, the first ones are played
ROUNDS = 100  # played at most until a message shows the record: its agent may not take part
STAYS = 1e-9  # of what reaches its own coordinate: rounding in the others
RELATIVE = 1e-6  # of the largest number in a message: what rounding leaves of equal ones

Place = tuple[int, str]  # round and message


class Moved(NamedTuple):
    """How far each coordinate of each row of a message moves [rows, d]."""

    by_record: Tensor
    by_noise: Tensor


class _NotPlayed(Exception):
    """Two equal runs differ, noise on one coordinate reaches another, or widths are others."""


def in_layers(game: Game) -> Game:
    """The game of a record that fills all layers, if each moves as one coordinate alone does."""
    every = filling(game)
    if every is None:
        return game
    one, several = every
    moves = any(moved.by_record.any() for moved in one.values())
    alike = moves and all(_are_copies(one[at], moved) for at, moved in several.items())
    return replace(game, filled=len(game.layers)) if alike else game


def filling(game: Game) -> tuple[dict[Place, Moved], dict[Place, Moved]] | None:
    """What record and noise move in a model of one coordinate, and in one with layers.

    The first layers alone where all would take more than ``ENTRIES``. None: there are none, or two
    equal runs differ, or noise of one coordinate reaches another, or one cannot be played.
    """
    graph = game.setting.network.at(1)
    layers = game.layers[: isqrt(ENTRIES // (graph.n_edges + graph.n_agents))]  # [d] plays of d
    if len(layers) < 2 or fewest_coordinates(game) > 1:
        return None
    try:
        one = _moved(game, 1)
        several = _moved(replace(game, layers=layers, filled=len(layers)), len(layers))
    except _NotPlayed:
        return None
    return (one, several) if one.keys() == several.keys() else None


def _are_copies(one: Moved, several: Moved) -> bool:
    for alone, each in zip(one, several, strict=True):
        allowed = RELATIVE * alone.abs().amax() if alone.numel() else 0.0
        if alone.shape[:-1] != each.shape[:-1] or not ((each - alone).abs() <= allowed).all():
            return False
    return True


def _moved(game: Game, d: int) -> dict[Place, Moved]:
    found, apart = {}, torch.eye(d, dtype=torch.bool)[:, None]
    plays = (
        (0.0, 1, ChosenNoise()),
        (0.0, 1, ChosenNoise()),
        (1.0, 1, ChosenNoise()),
        (0.0, d, _OneByOne(d)),
    )
    states = [game.start(trials, coordinates=d) for _, trials, _ in plays]
    for k in range(1, min(ROUNDS, game.defense.n_rounds) + 1):
        rounds = [
            game.step(state, k, game.drawn_alike(times, trials), noise)
            for state, (times, trials, noise) in zip(states, plays, strict=True)
        ]
        states = [round.state for round in rounds]
        still, again, drawn, noisy = (round.sent for round in rounds)
        for name, sent in still.items():
            record = drawn[name].payload - sent.payload
            noise = noisy[name].payload - sent.payload  # [d, rows, d], of one coordinate in each
            if sent.payload.shape[-1] != d or not torch.equal(sent.payload, again[name].payload):
                raise _NotPlayed
            if not bool((noise.abs() <= STAYS * noise.abs().amax()).logical_or(apart).all()):
                raise _NotPlayed
            found[k, name] = Moved(record[0], noise.diagonal(dim1=0, dim2=2))
        if any(moved.by_record.any() for moved in found.values()):
            break
    return found


class _OneByOne(ChosenNoise):
    """Trial l has noise on coordinate l alone, of each row in a size of its own."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self._d = d

    def _played(self, family: Family, message: str, scale: Scale, like: Tensor) -> Tensor:
        if like.shape[-1] != self._d:
            raise _NotPlayed
        generator = torch.Generator().manual_seed(0)
        sizes = torch.rand(like.shape[-2], 1, generator=generator, dtype=torch.float64) + 0.5
        trials = like.shape[0] if like.ndim > 2 else self._d
        self._units = {message: sizes.to(like) * torch.eye(trials, self._d).to(like)[:, None]}
        return super()._played(family, message, scale, like)
