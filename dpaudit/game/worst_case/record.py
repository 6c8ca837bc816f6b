"""The worst record of a clip's ball, in the norm of the noise that should hide it.

Noise of scale b hides a vector v by mu = |v|_2 / b if it is Gaussian, and by a pure loss of
|v|_1 / b if it is Laplace noise. The longest vectors of the ball that a record is clipped to are

    clip     noise      longest               its length
    L2, C    Gaussian   any                   C              one coordinate
    L1, C    Gaussian   one coordinate        C
    L1, C    Laplace    any                   C              one coordinate
    L2, C    Laplace    C / sqrt(d) in all    C sqrt(d)

so one coordinate is the worst but in the last case. There noise is independent in each coordinate,
and a step that is linear in it acts on each alike: d releases, each with 1 / sqrt(d) of the shift
that one coordinate has. Without sampling they compose as any releases do. With sampling at rate q
all are in a batch or none; the pure loss of a round is then ln(1 + q (e^(sqrt(d) L) - 1)), that of
one release whose shift is sqrt(d) times as large. Above delta = 0 a round of a Poisson sample has

    epsilon(delta) = ln(1 + q (e^(epsilon'(delta / q)) - 1)),  epsilon' of the d unsampled releases

since (1 - q) Q + q P - e^epsilon Q = q (P - e^epsilon' Q) for P and Q with and without the record,
and all rounds leak at least what one of them does. A record on one coordinate is in the ball too:
where it leaks more, its figure is the lower end.

Gradients that nothing clips by record have no longest vector: a record's is ``game.LENGTH`` on one
coordinate, and a function's is moved by the stated L1 distance on one coordinate.
"""

from math import sqrt

import numpy as np
import torch
from torch import Tensor

from dpaudit.accounting.releases import Interval, Mechanism, RecordAdjacency, Release, epsilon
from dpaudit.game.game import Game
from dpaudit.game.oracles import ClipNorms
from dpaudit.game.probing.chosen_noise import ChosenNoise
from dpaudit.game.probing.linearity import COORDINATES, wide


def coordinates(game: Game) -> int:
    """How many coordinates of the model the worst record has, as the first round asks: 1 or all.

    All only where they are alike and apart: the record moves each of a message by the same, each
    has noise of its own, and the noise of one moves no other.
    """
    several = wide(game)
    record, norms = ChosenNoise(), set[int]()
    base = _sent(several, ChosenNoise(), 0.0, set())
    moved = _sent(several, record, 1.0, norms)
    if {draw.family for draw in record.draws.values()} != {"laplace"} or norms != {2}:
        return 1
    if any(draw.shape[-1] != COORDINATES for draw in record.draws.values()):
        return 1
    one = {name: torch.zeros(draw.shape).double() for name, draw in record.draws.items()}
    for units in one.values():
        units[..., 0] = 1.0
    noisy = _sent(several, ChosenNoise(one), 0.0, set())
    for name, payload in base.items():
        shift, noise = moved[name] - payload, noisy[name] - payload
        if not torch.allclose(shift, shift[..., :1].expand_as(shift)) or noise[..., 1:].any():
            return 1
    return game.coordinates


def record_note(game: Game) -> str | None:
    """What the record is under Laplace noise, where no clip to the norm of that noise says it."""
    if game.filled > 1:
        return (
            f"layers are clipped one by one: the record moves all {game.filled} to the end of its "
            f"clip, {sqrt(game.filled):.3g} times as far as one alone"
        )
    if game.spread > 1:
        return (
            "the record is the worst behind a clip in L2 under Laplace noise: C / sqrt(d) in all "
            f"{game.coordinates} coordinates, or C in one where that leaks more; with sampling and "
            "above delta = 0 the lower end is that of a single round"
        )
    noise, norms = ChosenNoise(), set[int]()
    _sent(wide(game), noise, 1.0, norms)
    if norms != {0} or {draw.family for draw in noise.draws.values()} != {"laplace"}:
        return None
    if game.sampling == "none":
        return f"the agent's gradient is moved by {game.length:g} in L1 on one coordinate"
    return (
        f"no record's gradient is clipped: that of the record is {game.length:g} on one coordinate"
    )


def _sent(game: Game, noise: ChosenNoise, drawn: float, norms: set[int]) -> dict[str, Tensor]:
    """The messages of the first round; adds the ``norms`` that gradients are clipped to."""
    d = game.setting.d
    state = game.start(1, coordinates=d)
    gradient = ClipNorms(game.gradient(torch.full((1,), drawn)), norms)
    return {name: sent.payload for name, sent in game.step(state, 1, gradient, noise).sent.items()}


def played_mechanism(mechanism: Mechanism, d: int) -> Mechanism:
    """What runs of a record in d coordinates release, given what one coordinate does.

    Sampled records are in no coordinate or in all, which no such list says: then that of one.
    """
    sampled = any(release.sampling_rate < 1 for release in mechanism)
    return mechanism if d == 1 or sampled else _spread(mechanism, d)


def _spread(mechanism: Mechanism, d: int) -> Mechanism:
    """Each release once for each of d coordinates, with 1 / sqrt(d) of its shift."""
    return tuple(
        release.model_copy(
            update={
                "noise_multiplier": release.noise_multiplier * sqrt(d),
                "count": release.count * d,
            }
        )
        for release in mechanism
    )


def worst_epsilon(
    mechanism: Mechanism, d: int, delta: float, adjacency: RecordAdjacency
) -> Interval:
    """What the worst record of the ball leaks, given the releases of one in one coordinate.

    Args:
        d: coordinates that the worst record has.
    """
    if not mechanism:
        return Interval(0.0, 0.0)
    one = epsilon(mechanism, delta, adjacency)
    if d == 1 or any(r.family != "laplace" or r.noise_multiplier == 0 for r in mechanism):
        return one
    # one release each with the pure loss of all coordinates
    at_once = [
        r.model_copy(update={"noise_multiplier": r.noise_multiplier / sqrt(d)}) for r in mechanism
    ]
    pure = epsilon(at_once, 0.0, adjacency).high
    if delta == 0:
        return Interval(pure, pure)
    if all(release.sampling_rate == 1 for release in mechanism):
        spread = epsilon(_spread(mechanism, d), delta, adjacency)
        return Interval(max(one.low, spread.low), max(one.high, spread.high))
    rounds = [_of_a_round(r, d, delta) for r in mechanism if adjacency == "add-remove"]
    return Interval(max(one.low, *rounds, 0.0), pure)


def _of_a_round(release: Release, d: int, delta: float) -> float:
    """The epsilon of one round of a Poisson sample; 0 where the sample is another."""
    q = release.sampling_rate
    if release.sampling == "fixed" or delta >= q:
        return 0.0
    alone = {"sampling": "none", "sampling_rate": 1.0, "count": 1}
    unsampled = epsilon(_spread([release.model_copy(update=alone)], d), delta / q).low
    return float(np.logaddexp(np.log1p(-q), np.log(q) + unsampled)) if q < 1 else unsampled
