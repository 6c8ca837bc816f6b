"""Faulty mechanisms that an audit must find, and how much each leaks.

Each is a correct defense with one line changed, and keeps all that the correct one declares. Those
of ``FAULTS`` are audited without attacks, those of ``COMMON_MISTAKES`` with them. A fault of the
model's directions leaves vectors below ``WHOLE`` coordinates alone: the small model that the game
plays instead of the real one must not show it.

The second value is mu of all messages over the declared mu, for the worst record in every batch;
under Laplace noise it is epsilon over the declared epsilon. It is infinite if an outcome that has
more probability than delta is impossible in the neighbouring world. The values of "the shortest of"
and "drawn until short" are simulated (4e6 privacy losses).
"""

from collections.abc import Callable
from math import inf, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from dpaudit.conformance.case import CheckedGradient
from dpaudit.defense import Gradient, Graph, Noise, Round, broadcast, clip
from dpaudit.training.classification import BatchGradient

from .correct import (
    At,
    Change,
    NoiseOf,
    PrivateShares,
    Remembering,
    State,
    basis,
    clipped,
    drawn,
    fault,
    length,
    public,
    seeded_as_in_round,
    unclipped,
)

WHOLE = 16  # coordinates at least of a real model
RECORDS = 8  # of each agent
BIAS = 3  # coordinates
GRID = 1 / 64  # of the noise's scale
MIXED = 1 / 3  # weight of an agent's own model on a ring
OWN = 0.3  # of the standard deviation of noise, where the rest is common to all 6 agents
COMMON = 1 - OWN**2  # share of its variance
ndtr, ndtri = torch.special.ndtr, torch.special.ndtri


def uniform(like: Tensor, noise: Noise) -> Tensor:
    """Uniform numbers in [0, 1] in the shape of ``like``."""
    return ndtr(noise.gaussian("u", 1.0, like))


def averaged(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    draws = [noise.gaussian(f"{i}", d._scale, like) for i in range(d.batch_size)]
    return torch.stack(draws).mean(dim=0)


def without(direction: Callable[[int], Tensor], share: float = 0.0) -> Change:
    """Noise of which a share is left along a direction of d coordinates."""

    def of_noise(Z: Tensor, at: At) -> Tensor:
        if Z.shape[-1] < WHOLE:
            return Z
        u = direction(Z.shape[-1]).to(Z)
        u = u / u.norm()
        return Z - (1 - share) * (Z @ u)[..., None] * u

    return of_noise


def random_direction(d: int) -> Tensor:
    return public(11, d)


def by_thirds(vectors: Tensor, changed: Callable[[Tensor], Tensor]) -> Tensor:
    """Each third of the coordinates changed by itself."""
    return torch.cat([changed(part) for part in vectors.tensor_split(3, dim=-1)], dim=-1)


def without_block_means(Z: Tensor, at: At) -> Tensor:
    whole = Z.shape[-1] >= WHOLE
    return by_thirds(Z, lambda part: part - part.mean(dim=-1, keepdim=True)) if whole else Z


def without_a_contrast(Z: Tensor, at: At) -> Tensor:
    """Along a random direction agents 0 and 1 have the same noise."""
    Z = Z.clone()
    if Z.shape[-1] >= WHOLE:
        u = public(12, Z.shape[-1]).to(Z)
        u = u / u.norm()
        Z[..., 1, :] += ((Z[..., 0, :] - Z[..., 1, :]) @ u)[..., None] * u
    return Z


def of_half_the_rank(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Half as many draws as coordinates, spread over all by a public matrix."""
    d = like.shape[-1]
    if d < WHOLE:
        return drawn(defense, like, k, noise)
    return 2**0.5 * drawn(defense, like[..., : d // 2], k, noise) @ basis(13, d)[: d // 2].to(like)


def of_several(draws: int, until: float | None = None) -> NoiseOf:
    """The shortest of several noise vectors, or the first below this part of the usual length."""

    def noise(d: Any, like: Tensor, k: int, source: Noise) -> Tensor:
        Z = torch.stack([source.gaussian(f"{i}", d._scale, like) for i in range(draws)])
        lengths, usual = length(Z), like.shape[-1] ** 0.5 * d._scale
        if until is None:
            which = lengths.argmin(dim=0, keepdim=True)
        else:
            which = (lengths < until * usual).byte().argmax(dim=0, keepdim=True)
        return Z.take_along_dim(which, dim=0)[0]

    return noise


def turned_round(Z: Tensor, at: At) -> Tensor:
    """Noise that points against the gradient is turned round."""
    return torch.where((Z * at.S).sum(dim=-1, keepdim=True) < 0, -Z, Z)


def but_a_third_of_rounds(Z: Tensor, at: At) -> Tensor:
    n = at.defense.n_rounds
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    return Z * (at.k - 1 not in order[: n // 3].tolist())


def unclipped_in_the_middle(
    d: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise
) -> Round:
    S = (unclipped if 5 <= k <= 8 else clipped)(d, gradient, state.X)
    G = d.averaged(S, state.X, k, gradient, noise)
    return d.after(S, state.V - d.learning_rate * G, graph)


def but_agent(agent: int, rounds: tuple[int, ...] = ()) -> Change:
    """Noise that one agent does not have, in these rounds or in all."""

    def of_noise(Z: Tensor, at: At) -> Tensor:
        Z = Z.clone()
        if not rounds or at.k in rounds:
            Z[..., agent % Z.shape[-2], :] = 0.0
        return Z

    return of_noise


def but_the_bias(*rounds_left: int) -> Change:
    """Noise that the last coordinates, a bias, do not have, with so many rounds left or in all."""

    def of_noise(Z: Tensor, at: At) -> Tensor:
        Z = Z.clone()
        if Z.shape[-1] > BIAS and (not rounds_left or at.defense.n_rounds - at.k in rounds_left):
            Z[..., -BIAS:] = 0.0
        return Z

    return of_noise


def tiled(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Noise for the first half of the coordinates is used for the second half again."""
    n = like.shape[-1]
    half = drawn(d, like[..., : (n + 1) // 2], k, noise)
    return torch.cat([half, half], dim=-1)[..., :n]


def opposite_in_pairs(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Pairs of agents take opposite noise, so that it cancels in the mean."""
    Z = drawn(d, like[..., ::2, :], k, noise)
    return torch.stack([Z, -Z], dim=-2).flatten(-3, -2)[..., : like.shape[-2], :]


def as_in(round: Callable[[int], int], shift: int | None = None) -> NoiseOf:
    """The noise of another round, shifted by k along a dimension."""

    def noise(d: Any, like: Tensor, k: int, source: Noise) -> Tensor:
        Z = drawn(d, like, k, seeded_as_in_round(round(k), source))
        return Z if shift is None else Z.roll(k, dims=shift)

    return noise


def half_of_it_once(Z: Tensor, at: At) -> Tensor:
    return (seeded_as_in_round(1, at.source).gaussian("once", at.scale, Z) + Z) / 2**0.5


def opposite_on_links(d: Any, shares: Tensor, graph: Graph, noise: Noise) -> Tensor:
    """The noise on the links of an agent differs in its sign alone."""
    Z = one_draw_for_all_links(d, shares, graph, noise)
    return torch.where((graph.senders < graph.receivers)[:, None], Z, -Z)


def one_draw_for_all_links(d: Any, shares: Tensor, graph: Graph, noise: Noise) -> Tensor:
    to_each = shares.new_zeros(*shares.shape[:-2], graph.n_agents, shares.shape[-1])
    return noise.gaussian("share", d._scale, to_each)[..., graph.senders, :]


def mostly_common(Z: Tensor, at: At) -> Tensor:
    """Most of the noise is common to all agents, and each adds a little of its own."""
    return (1 - OWN**2) ** 0.5 * at.source.gaussian("common", at.scale, Z[..., :1, :]) + OWN * Z


def to_grid(T: Tensor, step: float) -> Tensor:
    return (T / step).round() * step


def with_the_remainder(T: Tensor, at: At) -> Tensor:
    """The noisy sum is rounded, and what rounding takes from the sum is added back."""
    step = 0.5 * at.C
    return to_grid(T, step) + at.S - to_grid(at.S, step)


def keeping_its_own_clean(
    d: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise
) -> Round:
    """Agents mix their own model without its noise, which only the sent copy has."""
    S = d.summed(gradient, state.X)
    clean = state.V - d.learning_rate * S / d.batch_size
    X = clean - d.learning_rate * d.noise(S, k, noise) / d.batch_size
    own = graph.W.diagonal().to(X)[:, None]
    V = graph.mix(X) + own * (clean - X)
    return Round(State(X, V), {"x": broadcast(graph, X)}, {"gradient": S / d.batch_size})


Remembered = tuple[Tensor, Tensor]


def momentum_clean(d: Any, S: Tensor, state: Any, k: int, g: Gradient, noise: Noise) -> Remembered:
    """The momentum is made of sums without noise, and one round's noise hides all of it."""
    M = 0.9 * state.M + S
    return M + d.noise(S, k, noise), M


def noise_taken_back(d: Any, S: Tensor, state: Any, k: int, g: Any, noise: Noise) -> Remembered:
    """Each round takes the noise of the round before out again."""
    Z = d.noise(S, k, noise)
    return S + Z - state.M, Z


def clipped_part_later(d: Any, S: Tensor, state: Any, k: int, g: Any, noise: Noise) -> Remembered:
    """What clipping takes from a sum is added to the next one, which no clip holds."""
    return d.noised(S + state.M, k, noise), unclipped(d, g, state.X) - S


def divided_by_long_records(
    d: Any, S: Tensor, X: Tensor, k: int, gradient: Gradient, noise: Noise
) -> Tensor:
    """The sum is divided by the number of records whose gradient is long, the noise by B."""
    n = long_records(gradient, X, d.clip_norm).clamp(min=1)
    return S / n + d.noise(S, k, noise) / d.batch_size


def long_records(gradient: Gradient, X: Tensor, clip_norm: float) -> Tensor:
    """How many records of each batch have a gradient longer than ``clip_norm``, [..., n, 1]."""
    return (gradient.per_record(X).norm(dim=-1) > clip_norm).to(X).sum(dim=-1, keepdim=True)


def records_drawn(gradient: Gradient) -> Tensor | int:
    """How many records came out of each agent's draw [n_agents, 1], where there are records."""
    if isinstance(gradient, CheckedGradient):
        return records_drawn(gradient._gradient)
    if not isinstance(gradient, BatchGradient) or gradient.batch.weights is None:
        return gradient.batch_size
    return gradient.batch.weights.sum(dim=1, keepdim=True).clamp(min=1)


def noting(note: Callable[[Any, Tensor, Tensor, Gradient], Tensor]) -> dict[str, Any]:
    """A number about the batch [..., n_agents, 1], made of S, X and gradient, is sent too."""
    return {
        "messages": {"note": "for a log"},
        "sent": lambda d, round, state, k, gradient, noise: {
            "note": note(d, round.private["gradient"] * d.batch_size, state.X, gradient)
        },
    }


def to_float16(Z: Tensor, at: At) -> Tensor:
    return Z.half().to(Z)


def to_bfloat16(Z: Tensor, at: At) -> Tensor:
    return Z.bfloat16().to(Z)


TINY_STEPS: dict[str, Any] = {"clip_norm": 1e-6, "learning_rate": 5e5}
FAULTS = (
    fault("noise four times too small", 4.0, of_noise=lambda Z, at: Z / 4),
    fault(
        "noise four times too small, Laplace", 4.0, family="laplace", of_noise=lambda Z, at: Z / 4
    ),
    fault("noise of standard deviation 0", inf, noise=lambda d, S, k, z: torch.zeros_like(S)),
    fault("no clipping", inf, summed=unclipped),
    fault("noise scaled by C squared", 2.0, of_noise=lambda Z, at: Z * at.C),
    fault(
        "noise scaled by the sampling rate",
        2.0,
        of_noise=lambda Z, at: Z * at.defense.batch_size / RECORDS,
    ),
    fault("noise of all records averaged", 2.0, noise=averaged),
    fault(
        "each coordinate clipped to C",
        6.0,
        summed=lambda d, g, X: g.per_record(X).clamp(-d.clip_norm, d.clip_norm).sum(dim=-2),
    ),
    fault(
        "each third clipped to C",
        sqrt(3),
        summed=lambda d, g, X: by_thirds(g.per_record(X), lambda part: clip(part, d.clip_norm)).sum(
            dim=-2
        ),
    ),
    fault("clipped after the noise", inf, summed=unclipped, of_noisy=lambda T, at: clip(T, at.C)),
    fault(
        "uniform noise", inf, noise=lambda d, S, k, z: (2 * uniform(S, z) - 1) * 3**0.5 * d._scale
    ),
    fault("noise of random signs", inf, of_noise=lambda Z, at: Z.sign() * at.scale),
    fault(
        "noise of 256 numbers",
        inf,
        noise=lambda d, S, k, z: (
            ndtri(((256 * uniform(S, z)).floor().clamp(max=255) + 0.5) / 256) * d._scale
        ),
    ),
    fault("float16 noise, C = 1e-6", inf, **TINY_STEPS, of_noise=to_float16),
    fault("float16 noise, C = 5e3", inf, clip_norm=5e3, of_noise=to_float16),
    fault(
        "float16 noise scaled to C = 1e6",
        inf,
        clip_norm=1e6,
        noise=lambda d, S, k, z: z.gaussian("gradient", 1.0, S).half().to(S) * d._scale,
    ),
    fault("bfloat16 noise, C = 1e-6", inf, **TINY_STEPS, of_noise=to_bfloat16),
    fault(
        "a row of a Hadamard matrix bare",
        inf,
        of_noise=without(
            lambda d: torch.tensor([(-1.0) ** (i & 21).bit_count() for i in range(d)])
        ),
    ),
    fault(
        "a row of a cosine transform bare",
        inf,
        of_noise=without(lambda d: torch.cos(pi * 5 * (torch.arange(d) + 0.5) / d)),
    ),
    fault("a random direction bare", inf, of_noise=without(random_direction)),
    fault("a random direction with a fifth", 5.0, of_noise=without(random_direction, 0.2)),
    fault("the means of blocks bare", inf, of_noise=without_block_means),
    fault("a contrast of two agents bare", inf, of_noise=without_a_contrast),
    fault("noise of half the rank", inf, noise=of_half_the_rank),
    fault("the shortest of three draws", 1.2, batch_size=RECORDS, noise=of_several(3)),
    fault("the shortest of eight draws", 1.4, batch_size=RECORDS, noise=of_several(8)),
    fault("drawn until short", 3.0, batch_size=RECORDS, noise=of_several(16, until=0.85)),
    fault("noise clamped", inf, of_noise=lambda Z, at: Z.clamp(-1.5 * at.scale, 1.5 * at.scale)),
    fault(
        "noise cut off",
        inf,
        noise=lambda d, S, k, z: (ndtri(0.02275 + 0.9545 * uniform(S.double(), z)) * d._scale).to(
            S
        ),
    ),
    fault("noise turned along the gradient", inf, of_noise=turned_round),
    fault("noise as long as the gradient", inf, of_noise=lambda Z, at: Z * length(at.S)),
    fault("noise in proportion to each number", inf, of_noise=lambda Z, at: Z * at.S.abs()),
    fault("less noise for long gradients", 2.5, of_noise=lambda Z, at: Z / (1 + length(at.S))),
    fault(
        "half of the noise dropped",
        inf,
        of_noise=lambda Z, at: Z * (at.source.gaussian("kept", 1.0, Z) > 0),
    ),
    fault("a random third of rounds bare", inf, n_rounds=12, of_noise=but_a_third_of_rounds),
    fault(
        "a quarter in rounds 5 to 8",
        sqrt((8 + 4 * 16) / 12),
        n_rounds=12,
        of_noise=lambda Z, at: Z / (4 if 5 <= at.k <= 8 else 1),
    ),
    fault("no clipping in rounds 5 to 8", inf, n_rounds=12, step=unclipped_in_the_middle),
    fault("one agent bare in round 6", inf, n_rounds=12, of_noise=but_agent(3, (6,))),
    fault("agent 0 bare", inf, of_noise=but_agent(0)),
    fault(
        "a term after rounding to a grid",
        inf,
        of_noisy=lambda T, at: to_grid(T, 0.01 * at.C) + 1e-5 * at.S,
    ),
    fault("a term after bfloat16", inf, of_noisy=lambda T, at: T.bfloat16().to(T) + 1e-4 * at.S),
    fault("a term after signs", inf, of_noisy=lambda T, at: T.sign() + 1e-3 * at.S),
    fault("the remainder added back", inf, of_noisy=with_the_remainder),
    fault(  # by those of the sum itself
        "small noisy numbers replaced",
        inf,
        of_noisy=lambda T, at: torch.where(T.abs() < 0.5 * at.scale, at.S, T),
    ),
    fault(
        "own model kept without noise",
        sqrt(sum(((1 - MIXED**k) / (1 - MIXED)) ** 2 for k in range(1, 5)) / 4),
        step=keeping_its_own_clean,
    ),
    fault(
        "momentum without noise, hidden once",
        sqrt(sum(((1 - 0.9**k) / (1 - 0.9)) ** 2 for k in range(1, 5)) / 4),
        base=Remembering,
        remembered=momentum_clean,
    ),
    fault("noise taken back", sqrt(30 / 4), base=Remembering, remembered=noise_taken_back),
    fault("the clipped part added later", inf, base=Remembering, remembered=clipped_part_later),
    fault(
        "opposite noise in the next round",
        inf,
        noise=lambda d, S, k, z: (
            drawn(d, S, k, z) if k % 2 else -drawn(d, S, k, seeded_as_in_round(k - 1, z))
        ),
    ),
    fault("seeds that repeat", inf, n_rounds=6, noise=as_in(lambda k: 1 + (k - 1) % 3)),
    fault("noise handed on to neighbours", inf, noise=as_in(lambda k: 1, shift=-2)),
    fault("noise shifted by coordinates", inf, noise=as_in(lambda k: 1, shift=-1)),
    fault("half of the noise drawn once", sqrt(2), of_noise=half_of_it_once),
    fault("opposite noise on two links", inf, base=PrivateShares, on_links=opposite_on_links),
    fault("noise that sums to zero", inf, of_noise=lambda Z, at: Z - Z.mean(dim=-2, keepdim=True)),
    fault(
        "noise mostly in common",
        sqrt((1 - COMMON / (1 - COMMON + 6 * COMMON)) / (1 - COMMON)),
        of_noise=mostly_common,
    ),
    fault("a checksum sent along", inf, **noting(lambda d, S, X, g: S.sum(dim=-1, keepdim=True))),
    fault(
        "the batch's size sent along",
        inf,
        **noting(lambda d, S, X, g: torch.zeros_like(S[..., :1]) + records_drawn(g)),
    ),
    fault("one bit sent along", inf, **noting(lambda d, S, X, g: (length(S) > d.clip_norm).to(S))),
    fault(
        "the number of clipped records",
        inf,
        **noting(lambda d, S, X, g: long_records(g, X, d.clip_norm)),
    ),
    fault("divided by the long records", 4.0, averaged=divided_by_long_records),
)

COMMON_MISTAKES = (
    fault("a bias sent without noise", of_noise=but_the_bias()),
    fault("a bias bare in the last round", of_noise=but_the_bias(0)),
    fault("a bias bare in between", of_noise=but_the_bias(1)),
    fault(
        "noise less its mean",
        of_noise=lambda Z, at: Z - Z.mean(dim=-1, keepdim=True) if Z.shape[-1] > 1 else Z,
    ),
    fault("noise of one layer used in another", noise=tiled),
    fault("noise of one norm in all", of_noise=lambda Z, at: Z / Z.shape[-1] ** 0.5),
    fault("noise drawn in float16", of_noise=to_float16),
    fault("noise drawn in bfloat16", of_noise=to_bfloat16),
    fault(
        "noise on a coarse grid",
        of_noise=lambda Z, at: to_grid(Z, GRID * at.scale) if at.scale else Z,
    ),
    fault("noise that follows the learning rate", of_noise=lambda Z, at: Z * 0.5 ** (at.k - 1)),
    fault("noise for the mean on the sum", of_noise=lambda Z, at: Z / at.defense.batch_size),
    fault(
        "each layer clipped to C",
        summed=lambda d, g, X: g.clipped_sum(X, d.clip_norm * 2**0.5, norm=d.moved_norm),
    ),
    fault(
        "the norm sent along",
        messages={"norm": "how long the gradient is"},
        sent=lambda d, round, state, k, g, z: {"norm": length(round.private["gradient"])},
    ),
    fault(
        "small coordinates sent bare",
        of_noisy=lambda T, at: torch.where(at.S.abs() > 1e-3 * at.C, T, at.S),
    ),
    fault("scaled by the un-noised norm", of_noisy=lambda T, at: T / (1 + length(at.S))),
    fault("opposite noise of pairs", noise=opposite_in_pairs),
    fault("noise used for two rounds", noise=as_in(lambda k: k - (k % 2 == 0))),
    fault("the same, Laplace", family="laplace", noise=as_in(lambda k: k - (k % 2 == 0))),
    fault("noise of one sign", of_noise=lambda Z, at: Z.abs()),
    fault(
        "a batch used in two rounds",
        base=Remembering,
        remembered=lambda d, S, state, k, g, z: (d.noised(S + state.M, k, z), S),
    ),
)
