"""The length at which a record moves messages most, where a step clips by itself.

Behind a clip the longest gradient moves messages most, if the clip is right. One that begins too
late lets the middle lengths pass, one that divides by another power of the norm lets them move
further, and one that forgets its least factor of 1 makes short ones long.

All lengths are tried in the batch of the round. Where its gradients are many, they are tried in one
of a single record, and those that move messages most are then played in the batch of the round.
"""

from dataclasses import replace

import torch
from torch import Tensor

from dpaudit.training.classification import Batch

from .synthetic_records import GivenGradient, VacantPlace
from .world_cache import KeptAnswers
from .worlds import CoupledWorlds, PlayedWorld, WorldPair, lengths

SHORTER = (1e-3, 3e-3, 0.01, 0.03, 0.05, 0.08, 0.13, 0.2, 0.3, 0.5, 0.8, 0.95)
SHARES = (*SHORTER, 1.05, 1.1, 1.2, 1.4, 1.7, 2, 2.5, 3.5, 5, 10, 30, 100)
FAR = (1e3, 1e4, 1e6, 1e9)  # lengths at which a step may leave out a record or a round
MOST = 2**28  # numbers of the gradients of each record, of which so many worlds are not played
IN_A_SMALL_BATCH = (
    "how far records of other lengths move messages: their search needs a batch of one record, as "
    "the gradients of whole batches are too many, and a step raises {} with it"
)


def longest_moving(
    coupled: CoupledWorlds,
    without: PlayedWorld,
    towards: Tensor,
    clip_norm: float | None,
    norm: int,
    opposite: bool,
    silent: bool,
) -> tuple[list[WorldPair], str | None]:
    """Pairs of worlds without and with a record, of the length that moves each message most.

    Args:
        without: the world without the record, whose oracle has a batch.
        towards: a gradient [d] that records have, whose length is the longest that is tried where
            none is clipped.
        clip_norm: the norm to which gradients are clipped, of which multiples are tried.
        opposite: the first world of a pair has the opposite record.

    Returns:
        The pairs; what was not looked at.
    """
    longest = torch.linalg.vector_norm(towards, norm).item()
    if longest == 0:
        return [], None
    unit = longest if clip_norm is None else clip_norm
    tried = [share * unit for share in (*SHARES, *FAR) if clip_norm is not None or share < 1]
    is_large = without.oracle.batch_size * len(without.state[0]) * len(towards) > MOST
    searched = _with_one_record(without) if is_large else without
    try:
        chosen = _chosen(coupled, searched, towards, tried, norm, silent)
    except Exception as error:  # whatever a step raises that needs its whole batch
        if not is_large:
            raise
        return [], IN_A_SMALL_BATCH.format(type(error).__name__)
    pairs = []
    for length in chosen:
        gradient = towards * (length / longest)
        here = _with(coupled, without, -gradient) if opposite else _vacant(coupled, without)
        pairs.append((here, _with(coupled, without, gradient)))
    return pairs, None


def _chosen(
    coupled: CoupledWorlds,
    without: PlayedWorld,
    towards: Tensor,
    tried: list[float],
    norm: int,
    silent: bool,
) -> list[float]:
    """The lengths of a gradient [d] at which some message moves most."""
    longest = torch.linalg.vector_norm(towards, norm).item()
    base = _vacant(coupled, without).play(silent).sent
    best = dict[str, tuple[float, float]]()  # message -> its move and the length
    for length in tried:
        sent = _with(coupled, without, towards * (length / longest)).play(silent).sent
        for name, difference in coupled.differences(base, sent).items():
            moved = lengths(difference, norm).nan_to_num(torch.inf).item()
            best[name] = max(best.get(name, (0.0, 0.0)), (moved, length))
    return list(dict.fromkeys(length for moved, length in best.values() if moved > 0))


def _with_one_record(world: PlayedWorld) -> PlayedWorld:
    """The world with only the first record of every batch."""
    inputs, labels, weights = world.oracle.batch  # type: ignore[attr-defined]
    first = Batch(inputs[:, :1], labels[:, :1], None if weights is None else weights[:, :1])
    return replace(world, oracle=KeptAnswers.of(replace(world.oracle, batch=first)))  # type: ignore


def _vacant(coupled: CoupledWorlds, without: PlayedWorld) -> PlayedWorld:
    return replace(without, oracle=VacantPlace(without.oracle, coupled.victim))


def _with(coupled: CoupledWorlds, without: PlayedWorld, gradient: Tensor) -> PlayedWorld:
    return replace(without, oracle=GivenGradient(without.oracle, coupled.victim, gradient))
