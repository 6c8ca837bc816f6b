"""Whether noise that is hardly ever drawn hides a record as well as noise that usually is.

A step may do something else where a draw comes out far from zero: leave noise out by a coin that
falls so once in a thousand rounds, cut off what is large, or draw again. Such rounds are seldom
seen, and what they reveal counts as soon as they are likelier than delta. So draws are given values
that they hardly ever have, in both of two runs that differ in a record.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.defense import Adjacency, Message

from . import own_draws
from .alignment import ratio
from .replay import ALLOWED, SAME
from .stand_in import small_problem
from .worlds import CoupledWorlds, PlayedWorld, all_without_first

# times the scale of noise: draws so far out have probability 4e-8 and 3e-7, more than a usual delta
# where a run draws a thousand
FAR: dict[NoiseFamily, float] = {"gaussian": 5.5, "laplace": 15.0}
STEPS = 11  # values on each side of 0 that a draw of one number is given
ROUNDS, LAST = 3, 20  # rounds that are looked at, at most, and the latest one
LATER = 3  # rounds within which what a record moved is noised
OWN = (
    "what a step does where its own generators draw other numbers: it draws some beside those of "
    "`noise`, which alone are given other values"
)
Levels = dict[str, float]  # stream -> value of all numbers of a draw, over its scale


def unlikely_draws(real: CoupledWorlds, adjacency: Adjacency) -> str | None:
    """What is not known of a step whose draws are far out; None where it hides a record as well.

    It is looked at on a small model, or on the real one if a step takes no other. Where a usual
    draw is moved to hide a record, one that is far out must be, by no more than is declared. Where
    the algebra hides it, as noise is shared between rounds, messages must be as linear in draws
    that are far out as they are in others.
    """
    small = small_problem(real)
    if small is None:
        return None
    try:
        return _in_rounds(small, adjacency)
    except Exception:  # whatever a step raises that takes the real model alone
        return _in_rounds(real, adjacency)


def _in_rounds(coupled: CoupledWorlds, adjacency: Adjacency) -> str | None:
    state, last = coupled.start(), min(coupled.defense.n_rounds, LAST)
    chosen = np.linspace(1, last, min(ROUNDS, last)).round().astype(int).tolist()
    for k in range(1, last + 1):
        with own_draws.watched(coupled.defense) as own:
            after = coupled.play(state, k, coupled.kept_oracle(k)).state
        if own:
            return OWN
        if k in chosen and (found := _in_a_round(coupled, state, k, adjacency)) is not None:
            return found
        state = after
    return None


def _in_a_round(coupled: CoupledWorlds, state: object, k: int, adjacency: Adjacency) -> str | None:
    oracle, holders = coupled.kept_batches(k), coupled.setting.holders
    one, other = (
        PlayedWorld(coupled, state, k, all_without_first(oracle, there, holders))
        for there in (False, True)
    )
    usual, lag = None, 0
    for lag in range(min(LATER, coupled.defense.n_rounds - k) + 1):
        usual = ratio((one, other), lag, adjacency)
        if usual is not None:
            break
    for levels in _levels(one):
        if usual is None:
            if _is_linear(one, levels, 1 / 8) and not _is_linear(one, levels, 1.0):
                return f"the noise of a round where {_said(levels)}: a message is not linear in it"
            continue
        pair = replace(one, levels=levels), replace(other, levels=levels)
        far = ratio(pair, lag, adjacency)
        if far is None or far > ALLOWED * max(usual, 1.0):
            return f"how far a record moves messages in a round where {_said(levels)}"
    return None


def _levels(world: PlayedWorld) -> Iterator[Levels]:
    """Each draw alone far out, at any distance if it is one number, and all of them together."""
    draws = {draw.stream: draw for draw in world.noisy.draws}
    for stream, draw in draws.items():
        far = FAR[draw.family]
        n = STEPS if draw.shape[-1] == 1 else 1
        for level in np.linspace(far, 0.0, n, endpoint=False).tolist():
            yield from ({stream: level}, {stream: -level})
    if len(draws) > 1:
        for sign in (1.0, -1.0):
            yield {stream: sign * FAR[draw.family] for stream, draw in draws.items()}


def _is_linear(world: PlayedWorld, levels: Levels, part: float) -> bool:
    """Whether messages go on as they begin, from no noise to this part of these levels."""

    def sent(factor: float) -> Iterable[Message]:
        chosen = {stream: factor * part * level for stream, level in levels.items()}
        return replace(world, levels=chosen).noisy.sent.values()

    for none, half, whole in zip(sent(0.0), sent(0.5), sent(1.0), strict=True):
        a, b, c = none.payload, half.payload, whole.payload
        size = max(x.abs().max().item() for x in (a, b, c)) if a.numel() else 0.0
        if a.shape != c.shape or bool((c - 2 * b + a).abs().gt(SAME * size).any()):
            return False
    return True


def _said(levels: Levels) -> str:
    if len(levels) > 1:
        return "all draws of noise are far out"
    [(stream, level)] = levels.items()
    return f'the draw "{stream}" is {level:g} times its scale'
