"""How far a message may move, by the noise on it and the releases declared.

A release of multiplier z says that one record moves what it hides by a z-th of its noise. That is a
bound for a message, whether or not the defense states another: the noise on it over z. It holds in
the first round, whose start is public, so that nothing but the noise of the round hides the record.
In a later round, noise from before may hide more than what is added there. So a later message is
held to its own noise only where that is no less than in the first round.

Measured is the noise itself (``reach.py``). Where it does not add up, nothing is said. Where it
does and the two worlds differ in it, as in a sum under noise that is divided by how many records
were drawn, the noise reveals the record. Where some coordinates carry more noise than others, as of
layers that are noised apart, what a record moves is measured in units of the noise.

Some draws move data alone. The record is held to the noise beside them under several such draws.
"""

from collections.abc import Mapping
from itertools import islice
from math import ceil, hypot
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import CHANGED_RECORDS, Adjacency, Mechanism, Stated, steps_of

from .message_laws import redrawn
from .noise_reach import ALL_SENT, SAME, Reach, reaching
from .worlds import CoupledWorlds, PlayedWorld, WorldPair

REDRAWN = 8  # further draws of what moves data alone: a coin is the same in all with p = 2^-8
ROUNDING = 1 + 1e-7  # times the bound, whose noise is a difference of messages


class DeclaredBounds(NamedTuple):
    """What the noise of the first round says of the victim's messages."""

    bounds: Mapping[str, Stated]  # message -> bound
    unlike: tuple[str, ...]  # messages that carry more noise in one world than in the other
    beside: frozenset[str] = frozenset()  # messages with draws that move data alone
    # [d] by message: factors of its coordinates, where some carry more noise than others
    weights: Mapping[str, Tensor] = MappingProxyType({})


def declared_of_pairs(
    pairs: Mapping[str, list[WorldPair]], adjacency: Adjacency, first: Mapping[str, Reach]
) -> tuple[DeclaredBounds, Mapping[str, list[WorldPair]]]:
    """What the noise of the first pair says; and all pairs, of which the record is to be measured.

    Where draws move data alone, each pair is there under several of them. Noise that is not the
    same under all of these gives no bound.

    Args:
        first: the noise that reaches the messages of round 1.
    """
    (here, there), *_ = (pair for several in pairs.values() for pair in several)
    declared = declared_bounds(here, there, adjacency, first)
    if not declared.beside:
        return declared, pairs
    reached = reaching(here)
    again = [reaching(one) for one, _ in redrawn(here, there, "beside", REDRAWN)]
    bounds = {
        name: bound
        for name, bound in declared.bounds.items()
        if not reached[name].beside
        or all(name in some and _is_as_much(reached[name], some[name]) for some in again)
    }
    every = {
        kind: [one for pair in several for one in (pair, *redrawn(*pair, "beside", REDRAWN))]
        for kind, several in pairs.items()
    }
    return declared._replace(bounds=bounds), every


def declared_bounds(
    here: PlayedWorld, there: PlayedWorld, adjacency: Adjacency, first: Mapping[str, Reach]
) -> DeclaredBounds:
    """Bounds for messages whose noise adds up and is the same in both worlds.

    Args:
        first: the noise that reaches the messages of round 1.
    """
    coupled = here.coupled
    defense = coupled.defense
    of_functions = defense.function_distance() is not None  # releases are then of functions
    if here.lag or adjacency not in CHANGED_RECORDS or of_functions:
        return DeclaredBounds({}, ())
    records = 2 if defense.protects == "user" else CHANGED_RECORDS[adjacency]
    releases = coupled.declared(coupled.victim)
    one, other = reaching(here), reaching(there)
    beside = frozenset(name for name, reach in one.items() if reach.beside)
    bounds, unlike, weights = dict[str, Stated](), list[str](), dict[str, Tensor]()
    for name in one.keys() & other.keys():
        if not _is_as_much(one[name], other[name]):
            if name != ALL_SENT:  # one of its messages is named
                unlike.append(name)
            continue
        bound = _bound(one[name], releases, batches_of(coupled, coupled.victim), records)
        if bound is not None and (here.k == 1 or _is_no_less(one[name], first.get(name))):
            bounds[name] = Stated(bound.norm, ROUNDING * bound.value)
            if (factors := _weights(one[name])) is not None:
                weights[name] = factors
    return DeclaredBounds(bounds, tuple(sorted(unlike)), beside, weights)


def _is_as_much(one: Reach, other: Reach) -> bool:
    """Whether two worlds' noise has one law: of each draw, or of sums of other Gaussian draws."""
    ours, theirs = one.scales, other.scales
    if one.families != other.families or not one.is_where(other):
        if {*one.families, *other.families} != {"gaussian"}:
            return False
        cuts = sorted({*one.cuts, *other.cuts})
        ours, theirs = (reach.pieces(cuts).norm(dim=1) for reach in (one, other))
    same = ours.shape == theirs.shape
    return same and torch.allclose(ours, theirs, SAME, SAME * ours.max().item())


def _is_no_less(now: Reach, first: Reach | None) -> bool:
    """Whether as much noise of the same draws reaches a message as in the first round."""
    if first is None or now.families != first.families or not now.is_where(first):
        return False
    if now.scales.shape != first.scales.shape:
        return False
    return bool((now.scales >= first.scales * (1 - SAME)).all())


def _bound(reach: Reach, releases: Mechanism, batches: int, records: int) -> Stated | None:
    """How far so many records may move a message, by its noise and what is declared of a batch."""
    used = {f for f, there in zip(reach.families, reach.scales.any(0), strict=True) if there}
    if len(used) != 1 or {release.family for release in releases} != used:
        return None
    if any(release.noise_multiplier == 0 for release in releases):
        return None
    # what the largest releases of a batch reveal, as many as there are of a batch
    n = ceil(sum(release.count for release in releases) / batches)
    by_noise = sorted(releases, key=lambda release: release.noise_multiplier)
    every = (1 / release.noise_over(records) for release in by_noise for _ in range(release.count))
    losses = list(islice(every, n))
    pieces = reach.pieces(reach.cuts)
    if used == {"laplace"} and int((pieces != 0).sum(1).max()) > 1:
        return None  # a sum of Laplace draws is no Laplace noise
    noise = torch.linalg.vector_norm(pieces, dim=1)  # [rows, cuts]
    if not noise.all() or not torch.allclose(noise, noise[:1].expand_as(noise), SAME, 0.0):
        return None
    least = noise[0].min().item()
    return (
        Stated(1, least * sum(losses)) if used == {"laplace"} else Stated(2, least * hypot(*losses))
    )


def _weights(reach: Reach) -> Tensor | None:
    """Factors [d] by which all coordinates carry as much noise as those with the least.

    None where they do so already.
    """
    noise = torch.linalg.vector_norm(reach.pieces(reach.cuts)[0], dim=0)
    least = noise.min()
    if torch.allclose(noise, least.expand_as(noise), SAME, 0.0):
        return None
    ends = [*reach.cuts[1:], max(block.stop for block in reach.blocks)]
    sizes = [end - begin for begin, end in zip(reach.cuts, ends, strict=True)]
    return (least / noise).repeat_interleave(torch.tensor(sizes, device=noise.device))


def batches_of(coupled: CoupledWorlds, agent: int) -> int:
    """How many batches of the run may hold one record of an agent."""
    defense, setting = coupled.defense, coupled.setting
    rounds = int(steps_of(setting.network.at, defense.n_rounds, agent).sum())
    if defense.cyclic:
        rounds = ceil(rounds / max(1, setting.sizes[agent] // defense.batch_size))
    return max(1, rounds * defense.batches_per_round)
