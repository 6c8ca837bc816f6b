"""Post-processing of a protected value, as opposed to a choice that depends on the data.

Clipping, rounding or masking a value under noise may move a message further than the value itself
moves, and reveals no more than the value does. So where a message moves too far, the other world is
played again with its noise moved until the noisy value is the one of the first world. A message
that is then the same is a function of noisy values, and what protects it is what the noise had to
be moved by: no more than the record moves a sum in the releases that the defense declares.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import CHANGED_RECORDS, Adjacency, Scale

from .worlds import CoupledWorlds, Key, Moves, PlayedRound, PlayedWorld, WatchedRound, lengths

SAME = 1e-10  # relative to a message's norm; float64 replays of one value differ by less
ALLOWED = 1 + 1e-9  # times the declared move, from rounding
DIRECTIONS = 16  # directions of noise in which a step is tried
NO_MOVES: Moves = {}


class Replay(NamedTuple):
    """The first world, and the other with its noise moved so that noisy values are the same."""

    here: WatchedRound
    there: WatchedRound
    moves: Moves
    same: frozenset[str]  # messages of the victim that are then the same
    moved: float  # the largest move of one draw's noise, as a part of what is declared


def replay(
    here: PlayedWorld, there: PlayedWorld, adjacency: Adjacency, shift: Moves = NO_MOVES
) -> Replay:
    """The other world with its noise moved; later noise is moved after what earlier noise did.

    A draw may be in several sums, one after the other. The values in the first of them that leaves
    the worlds the same are made the same, or in the last: what is added later may be made of the
    noisy value itself, as where it is rounded and the rest is kept.

    Args:
        shift: what is added to draws in both worlds.
    """
    first = here.watched(shift)
    for n in range(max(map(len, first.values.values()), default=1)):
        found = _with_sums(n, here, first, there, adjacency, shift)
        if is_all_the_same(found.here, found.there):
            break
    return found


def _with_sums(
    n: int,
    here: PlayedWorld,
    first: WatchedRound,
    there: PlayedWorld,
    adjacency: Adjacency,
    shift: Moves,
) -> Replay:
    """The same by sum ``n`` of each draw, from 0, or its last."""

    def moved(moves: Moves) -> WatchedRound:
        return there.watched({**shift, **{k: m + shift.get(k, 0.0) for k, m in moves.items()}})

    values, moves = _values(first, n), dict[Key, Tensor]()
    for _ in range(1 + len(values)):
        second = moved(moves)
        others = _values(second, n)
        now = {k: v - others[k] for k, v in values.items() if k in others}
        if all(torch.equal(move, moves.get(key, move * 0)) for key, move in now.items()):
            break
        moves = now
    else:
        second = moved(moves)
    coupled, sent, other = here.coupled, first.played.sent, second.played.sent
    alike = all(n in other and other[n].payload.shape == s.payload.shape for n, s in sent.items())
    apart = coupled.differences(sent, other) if alike else {}
    same = frozenset(
        name
        for name, difference in apart.items()
        if bool(lengths(difference, 2) <= SAME * lengths(coupled.own(sent[name]), 2))
    )
    return Replay(first, second, moves, same, _moved(coupled, moves, second, adjacency))


def _values(watched: WatchedRound, n: int) -> dict[Key, Tensor]:
    """What each draw was added to in its sum ``n``, from 0, or in its last."""
    return {key: sums[min(n, len(sums) - 1)] for key, sums in watched.values.items()}


def is_all_the_same(one: WatchedRound, other: WatchedRound) -> bool:
    """Whether all that the rounds of two worlds leave is the same."""
    rounds = [(left(a), left(b)) for a, b in zip(one.rounds, other.rounds, strict=True)]
    return all(a.keys() == b.keys() and all(is_same(a[n], b[n]) for n in a) for a, b in rounds)


def left(played: PlayedRound) -> dict[str, Tensor]:
    """All that a round leaves, by what it is called."""
    sent = {f'"{name}"': message.payload for name, message in played.sent.items()}
    return {**sent, **{f"{name} of the state": x for name, x in played.state._asdict().items()}}


def is_same(one: Scale, other: Scale) -> bool:
    """Whether two numbers or tensors differ by rounding at most."""
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (one, other))
    if torch.equal(a, b):  # ten times as fast
        return True
    finite = a[a.isfinite()]  # an infinite number would make all differences equal
    size = finite.abs().max().item() if finite.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, SAME, SAME * size, equal_nan=True)


def _moved(
    coupled: CoupledWorlds, moves: Moves, watched: WatchedRound, adjacency: Adjacency
) -> float:
    """The largest move, in units of the noise, over what a record may move a declared release."""
    declared = coupled.declared(coupled.victim)
    records = CHANGED_RECORDS.get(adjacency, 1)
    largest = 0.0
    for key, move in moves.items():
        draw = watched.draws[key]
        noises = (r.noise_over(records) for r in declared if r.family == draw.family)
        least = min(noises, default=inf)
        units = (move / draw.scale).nan_to_num(0.0, inf, inf)  # 0/0: no noise on what did not move
        size = torch.linalg.vector_norm(units, 1 if draw.family == "laplace" else 2).item()
        largest = max(largest, size * least if size else 0.0)
    return largest


def is_linear(world: PlayedWorld, message: str) -> bool:
    """Whether a message of the victim is affine in the noise of the round.

    In every one of several random directions, as a choice by noisy values may come out alike along
    some of them.
    """
    zero = world.watched({})
    generator = torch.Generator().manual_seed(0)
    for _ in range(DIRECTIONS):
        step = {
            key: torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
            * zero.draws[key].scale
            for key, value in _values(zero, 0).items()
        }
        twice = {key: 2.0 * move for key, move in step.items()}
        plays = zero, world.watched(step), world.watched(twice)
        none, one, two = (world.coupled.own(play.played.sent[message]) for play in plays)
        size = max(lengths(m, 2).max().item() for m in (none, one, two))
        if lengths(two - 2 * one + none, 2).max() > SAME * size:
            return False
    return True


def explained(
    pairs: Iterable[tuple[PlayedWorld, PlayedWorld]], message: str, adjacency: Adjacency
) -> bool:
    """Whether what a message moved by is post-processing of values under the declared noise."""
    for here, there in pairs:
        if is_linear(here, message):
            return False
        replayed = replay(here, there, adjacency)
        if message not in replayed.same or replayed.moved > ALLOWED:
            return False
    return True
