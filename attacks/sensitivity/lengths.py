"""The length at which a record moves messages most, where a step clips by itself.

Behind a clip the longest gradient moves messages most, if the clip is right. One that begins too
late lets the middle lengths pass, one that divides by another power of the norm lets them move
further, and one that forgets its least factor of 1 makes short ones long.
"""

from dataclasses import replace

import torch
from torch import Tensor

from .opposed import Given, Vacant
from .worlds import Coupled, PlayedWorld, lengths

SHARES = (1e-3, 0.03, 0.2, 0.5, 0.8, 0.95, 1.05, 1.1, 1.2, 1.4, 1.7, 2, 2.5, 3.5, 5, 10, 30, 100)
MOST = 2**28  # numbers of the gradients of each record, of which so many worlds are not played


def longest_moving(
    coupled: Coupled,
    without: PlayedWorld,
    towards: Tensor,
    clip_norm: float | None,
    norm: int,
    opposite: bool,
    silent: bool,
) -> list[tuple[PlayedWorld, PlayedWorld]]:
    """Pairs of worlds without and with a record, of the length that moves each message most.

    Args:
        without: the world without the record.
        towards: a gradient [d] that records have, whose length is the longest that is tried where
            none is clipped.
        clip_norm: the norm to which gradients are clipped, of which multiples are tried.
        opposite: the first world of a pair has the opposite record.
    """
    longest = torch.linalg.vector_norm(towards, norm).item()
    unit = longest if clip_norm is None else clip_norm
    tried = [share * unit for share in SHARES if clip_norm is not None or share < 1]
    if longest == 0 or without.oracle.batch_size * len(without.state[0]) * len(towards) > MOST:
        return []
    vacant = replace(without, oracle=Vacant(without.oracle, coupled.victim))
    base = vacant.play(silent).sent
    best = dict[str, tuple[float, float]]()  # by message: how far it moves, and the length
    for length in tried:
        sent = _with(coupled, without, towards * (length / longest)).play(silent).sent
        for name, difference in coupled.differences(base, sent).items():
            moved = lengths(difference, norm).nan_to_num(torch.inf).item()
            best[name] = max(best.get(name, (0.0, 0.0)), (moved, length))
    chosen = dict.fromkeys(length for moved, length in best.values() if moved > 0)
    pairs = []
    for length in chosen:
        gradient = towards * (length / longest)
        here = _with(coupled, without, -gradient) if opposite else vacant
        pairs.append((here, _with(coupled, without, gradient)))
    return pairs


def _with(coupled: Coupled, without: PlayedWorld, gradient: Tensor) -> PlayedWorld:
    return replace(without, oracle=Given(without.oracle, coupled.victim, gradient))
