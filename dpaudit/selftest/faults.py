"""Faulty mechanisms that an audit without attacks must find, and how much each leaks.

Each is a correct defense with one line changed, and keeps all that the correct one declares. A
fault of the model's directions leaves vectors below ``WHOLE`` coordinates alone: the small model
that the game plays instead of the real one must not show it.

The second value is mu of all messages over the declared mu, for the worst record in every batch;
under Laplace noise it is epsilon over the declared epsilon. It is infinite if an outcome that has
more probability than delta is impossible in the neighbouring world. The values of "the shortest of"
and "drawn until short" are simulated (4e6 privacy losses).
"""

from collections.abc import Callable, Mapping
from math import inf, pi, sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpaudit.conformance.case import WatchedGradient
from dpaudit.defense import Gradient, Graph, Noise, Round, broadcast, clip
from dpaudit.training.classification import BatchGradient

from .correct import (
    Mechanism,
    NoiseOf,
    PrivateGossip,
    PrivateShares,
    Remembering,
    Sends,
    State,
    basis,
    clipped,
    drawn,
    noisy,
    public,
    seeded_as_in_round,
    unclipped,
    variant,
)

WHOLE = 16  # coordinates at least of a real model
RECORDS = 8  # of each agent
WHOLE_BATCH = {"batch_size": RECORDS}
TWELVE = {"n_rounds": 12}
MIXED = 1 / 3  # weight of an agent's own model on a ring
COMMON = 1 - 0.3**2  # share of variance that all 6 agents have in common
NOTE = {"note": "for a log"}
ndtr, ndtri = torch.special.ndtr, torch.special.ndtri


def uniform(like: Tensor, noise: Noise) -> Tensor:
    """Uniform numbers in [0, 1] in the shape of ``like``."""
    return ndtr(noise.gaussian("u", 1.0, like))


def averaged(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    draws = [noise.gaussian(f"{i}", defense._scale, like) for i in range(defense.batch_size)]
    return torch.stack(draws).mean(dim=0)


def clipped_by_thirds(defense: Any, gradient: Gradient, X: Tensor) -> Tensor:
    blocks = gradient.per_record(X).tensor_split(3, dim=-1)
    return torch.cat([clip(b, defense.clip_norm) for b in blocks], dim=-1).sum(dim=-2)


def without(direction: Callable[[int], Tensor], share: float = 0.0) -> NoiseOf:
    """Noise of which a share is left along a direction of d coordinates."""

    def noise(defense: Any, like: Tensor, k: int, source: Noise) -> Tensor:
        Z = drawn(defense, like, k, source)
        if like.shape[-1] < WHOLE:
            return Z
        u = direction(like.shape[-1]).to(like)
        u = u / u.norm()
        return Z - (1 - share) * (Z @ u)[..., None] * u

    return noise


def hadamard_row(d: int) -> Tensor:
    return torch.tensor([(-1.0) ** (i & 21).bit_count() for i in range(d)])


def cosine_row(d: int) -> Tensor:
    return torch.cos(pi * 5 * (torch.arange(d) + 0.5) / d)


def without_block_means(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    Z = drawn(defense, like, k, noise)
    if like.shape[-1] < WHOLE:
        return Z
    blocks = Z.tensor_split(3, dim=-1)
    return torch.cat([b - b.mean(dim=-1, keepdim=True) for b in blocks], dim=-1)


def without_a_contrast(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Along a random direction agents 0 and 1 have the same noise."""
    Z = drawn(defense, like, k, noise).clone()
    if like.shape[-1] >= WHOLE:
        u = public(12, like.shape[-1]).to(like)
        u = u / u.norm()
        Z[..., 1, :] += ((Z[..., 0, :] - Z[..., 1, :]) @ u)[..., None] * u
    return Z


def of_half_the_rank(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Half as many draws as coordinates, spread over all by a public matrix."""
    d = like.shape[-1]
    if d < WHOLE:
        return drawn(defense, like, k, noise)
    return 2**0.5 * drawn(defense, like[..., : d // 2], k, noise) @ basis(13, d)[: d // 2].to(like)


def of_several(draws: int, chosen: Callable[[Tensor, Tensor], Tensor]) -> NoiseOf:
    """Of several noise vectors one is taken, chosen by their norms and those of the noise."""

    def noise(defense: Any, like: Tensor, k: int, source: Noise) -> Tensor:
        scale = defense._scale
        Z = torch.stack([source.gaussian(f"{i}", scale, like) for i in range(draws)])
        usual = like.shape[-1] ** 0.5 * scale
        which = chosen(Z.norm(dim=-1, keepdim=True), usual)
        return Z.take_along_dim(which, dim=0)[0]

    return noise


def shortest(norms: Tensor, usual: Tensor) -> Tensor:
    return norms.argmin(dim=0, keepdim=True)


def first_short(norms: Tensor, usual: Tensor) -> Tensor:
    return (norms < 0.85 * usual).byte().argmax(dim=0, keepdim=True)


def turned_round(defense: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    """Noise that points against the gradient is turned round."""
    Z = defense.noise(S, k, noise)
    return S + torch.where((Z * S).sum(dim=-1, keepdim=True) < 0, -Z, Z)


def but_a_third_of_rounds(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    order = torch.randperm(defense.n_rounds, generator=torch.Generator().manual_seed(5))
    bare = k - 1 in order[: defense.n_rounds // 3].tolist()
    return drawn(defense, like, k, noise) * (not bare)


def unclipped_in_the_middle(
    d: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise
) -> Round:
    S = (unclipped if 5 <= k <= 8 else clipped)(d, gradient, state.X)
    G = d.noised(S, k, noise) / d.batch_size
    return d.after(S, state.V - d.learning_rate * G, graph)


def but_agent(agent: int, rounds: tuple[int, ...] = ()) -> NoiseOf:
    """Noise that one agent does not have, in these rounds or in all."""

    def noise(defense: Any, like: Tensor, k: int, source: Noise) -> Tensor:
        Z = drawn(defense, like, k, source).clone()
        if not rounds or k in rounds:
            Z[..., agent % like.shape[-2], :] = 0.0
        return Z

    return noise


def as_in(round: Callable[[int], int], shift: int | None = None) -> NoiseOf:
    """The noise of another round, shifted by k along a dimension."""

    def noise(defense: Any, like: Tensor, k: int, source: Noise) -> Tensor:
        Z = drawn(defense, like, k, seeded_as_in_round(round(k), source))
        return Z if shift is None else Z.roll(k, dims=shift)

    return noise


def half_of_it_once(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    once = seeded_as_in_round(1, noise).gaussian("once", defense._scale, like)
    return (once + drawn(defense, like, k, noise)) / 2**0.5


def opposite_on_links(defense: Any, shares: Tensor, graph: Graph, noise: Noise) -> Tensor:
    """The noise on the links of an agent differs in its sign alone."""
    to_each = shares.new_zeros(*shares.shape[:-2], graph.n_agents, shares.shape[-1])
    Z = noise.gaussian("share", defense._scale, to_each)[..., graph.senders, :]
    return torch.where((graph.senders < graph.receivers)[:, None], Z, -Z)


def less_its_mean(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    Z = drawn(defense, like, k, noise)
    return Z - Z.mean(dim=-2, keepdim=True)


class MostlyCommon(PrivateGossip):
    """Most of the noise is common to all agents, and each adds a little of its own."""

    own: ClassVar[float] = 0.3  # of the standard deviation

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        common = noise.gaussian("common", self._scale, like[..., :1, :])
        return (1 - self.own**2) ** 0.5 * common + self.own * super().noise(like, k, noise)


def and_a_little(share: float, rounded: Callable[[Any, Tensor], Tensor]) -> NoiseOf:
    """To the rounded noisy sum a little of the sum itself is added."""

    def noised(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
        return rounded(d, noisy(d, S, k, noise)) + share * S

    return noised


def to_grid(T: Tensor, step: float) -> Tensor:
    return (T / step).round() * step


def with_the_remainder(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    """The noisy sum is rounded, and what rounding takes from the sum is added back."""
    step = 0.5 * d.clip_norm
    return to_grid(noisy(d, S, k, noise), step) + S - to_grid(S, step)


def but_small_numbers(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    """Small numbers of the noisy sum are replaced by those of the sum itself."""
    T = noisy(d, S, k, noise)
    return torch.where(T.abs() < 0.5 * d._scale, S, T)


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


def noise_taken_back(
    d: Any, S: Tensor, state: Any, k: int, g: Gradient, noise: Noise
) -> Remembered:
    """Each round takes the noise of the round before out again."""
    Z = d.noise(S, k, noise)
    return S + Z - state.M, Z


def clipped_part_later(
    d: Any, S: Tensor, state: Any, k: int, g: Gradient, noise: Noise
) -> Remembered:
    """What clipping takes from a sum is added to the next one, which no clip holds."""
    return d.noised(S + state.M, k, noise), unclipped(d, g, state.X) - S


def divided_by_long_records(
    d: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise
) -> Round:
    """The sum is divided by the number of records whose gradient is long, the noise by B."""
    S = d.summed(gradient, state.X)
    n = long_records(gradient, state.X, d.clip_norm).clamp(min=1)
    G = S / n + d.noise(S, k, noise) / d.batch_size
    return d.after(S, state.V - d.learning_rate * G, graph)


def long_records(gradient: Gradient, X: Tensor, clip_norm: float) -> Tensor:
    """How many records of each batch have a gradient longer than ``clip_norm``, [..., n, 1]."""
    return (gradient.per_record(X).norm(dim=-1) > clip_norm).to(X).sum(dim=-1, keepdim=True)


def records_drawn(gradient: Gradient) -> Tensor | int:
    """How many records came out of each agent's draw [n_agents, 1], where there are records."""
    if isinstance(gradient, WatchedGradient):
        return records_drawn(gradient._gradient)
    if not isinstance(gradient, BatchGradient) or gradient.batch.weights is None:
        return gradient.batch_size
    return gradient.batch.weights.sum(dim=1, keepdim=True).clamp(min=1)


def noting(note: Callable[[Any, Tensor, Tensor, Gradient], Tensor]) -> Sends:
    """A number about the batch [..., n_agents, 1], made of S, X and gradient, is sent too."""
    return lambda d, round, state, k, gradient, noise: {
        "note": note(d, round.private["gradient"] * d.batch_size, state.X, gradient)
    }


def fault(
    name: str, leaks: float, options: Mapping[str, Any] | None = None, **methods: Any
) -> Mechanism:
    return Mechanism(name, variant(options=options, **methods), False, leaks)


def quarter(d: Any, S: Tensor, k: int, z: Noise) -> Tensor:
    return drawn(d, S, k, z) / 4


def half_precision(d: Any, S: Tensor, k: int, z: Noise) -> Tensor:
    return drawn(d, S, k, z).half().to(S)


def brain_float(d: Any, S: Tensor, k: int, z: Noise) -> Tensor:
    return drawn(d, S, k, z).bfloat16().to(S)


TINY_STEPS = {"clip_norm": 1e-6, "learning_rate": 5e5}
FAULTS = (
    fault("noise four times too small", 4.0, noise=quarter),
    fault("noise four times too small, Laplace", 4.0, {"family": "laplace"}, noise=quarter),
    fault("noise of standard deviation 0", inf, noise=lambda d, S, k, z: torch.zeros_like(S)),
    fault("no clipping", inf, summed=unclipped),
    fault(
        "noise scaled by C squared", 2.0, noise=lambda d, S, k, z: drawn(d, S, k, z) * d.clip_norm
    ),
    fault(
        "noise scaled by the sampling rate",
        2.0,
        noise=lambda d, S, k, z: drawn(d, S, k, z) * d.batch_size / RECORDS,
    ),
    fault("noise of all records averaged", 2.0, noise=averaged),
    fault(
        "each coordinate clipped to C",
        6.0,
        summed=lambda d, g, X: g.per_record(X).clamp(-d.clip_norm, d.clip_norm).sum(dim=-2),
    ),
    fault("each third clipped to C", sqrt(3), summed=clipped_by_thirds),
    fault(
        "clipped after the noise",
        inf,
        summed=unclipped,
        noised=lambda d, S, k, z: clip(noisy(d, S, k, z), d.clip_norm),
    ),
    fault(
        "uniform noise",
        inf,
        noise=lambda d, S, k, z: (2 * uniform(S, z) - 1) * 3**0.5 * d._scale,
    ),
    fault(
        "noise of random signs", inf, noise=lambda d, S, k, z: drawn(d, S, k, z).sign() * d._scale
    ),
    fault(
        "noise of 256 numbers",
        inf,
        noise=lambda d, S, k, z: (
            ndtri(((256 * uniform(S, z)).floor().clamp(max=255) + 0.5) / 256) * d._scale
        ),
    ),
    fault("float16 noise, C = 1e-6", inf, TINY_STEPS, noise=half_precision),
    fault("float16 noise, C = 5e3", inf, {"clip_norm": 5e3}, noise=half_precision),
    fault(
        "float16 noise scaled to C = 1e6",
        inf,
        {"clip_norm": 1e6},
        noise=lambda d, S, k, z: z.gaussian("gradient", 1.0, S).half().to(S) * d._scale,
    ),
    fault("bfloat16 noise, C = 1e-6", inf, TINY_STEPS, noise=brain_float),
    fault("a row of a Hadamard matrix bare", inf, noise=without(hadamard_row)),
    fault("a row of a cosine transform bare", inf, noise=without(cosine_row)),
    fault("a random direction bare", inf, noise=without(lambda d: public(11, d))),
    fault("a random direction with a fifth", 5.0, noise=without(lambda d: public(11, d), 0.2)),
    fault("the means of blocks bare", inf, noise=without_block_means),
    fault("a contrast of two agents bare", inf, noise=without_a_contrast),
    fault("noise of half the rank", inf, noise=of_half_the_rank),
    fault("the shortest of three draws", 1.2, WHOLE_BATCH, noise=of_several(3, shortest)),
    fault("the shortest of eight draws", 1.4, WHOLE_BATCH, noise=of_several(8, shortest)),
    fault("drawn until short", 3.0, WHOLE_BATCH, noise=of_several(16, first_short)),
    fault(
        "noise clamped",
        inf,
        noise=lambda d, S, k, z: drawn(d, S, k, z).clamp(-1.5 * d._scale, 1.5 * d._scale),
    ),
    fault(
        "noise cut off",
        inf,
        noise=lambda d, S, k, z: (ndtri(0.02275 + 0.9545 * uniform(S.double(), z)) * d._scale).to(
            S
        ),
    ),
    fault("noise turned along the gradient", inf, noised=turned_round),
    fault(
        "noise as long as the gradient",
        inf,
        noised=lambda d, S, k, z: S + d.noise(S, k, z) * S.norm(dim=-1, keepdim=True),
    ),
    fault(
        "noise in proportion to each number",
        inf,
        noised=lambda d, S, k, z: S + d.noise(S, k, z) * S.abs(),
    ),
    fault(
        "less noise for long gradients",
        2.5,
        noised=lambda d, S, k, z: S + d.noise(S, k, z) / (1 + S.norm(dim=-1, keepdim=True)),
    ),
    fault(
        "half of the noise dropped",
        inf,
        noise=lambda d, S, k, z: drawn(d, S, k, z) * (z.gaussian("kept", 1.0, S) > 0),
    ),
    fault("a random third of rounds bare", inf, TWELVE, noise=but_a_third_of_rounds),
    fault(
        "a quarter in rounds 5 to 8",
        sqrt((8 + 4 * 16) / 12),
        TWELVE,
        noise=lambda d, S, k, z: drawn(d, S, k, z) / (4 if 5 <= k <= 8 else 1),
    ),
    fault("no clipping in rounds 5 to 8", inf, TWELVE, step=unclipped_in_the_middle),
    fault("one agent bare in round 6", inf, TWELVE, noise=but_agent(3, (6,))),
    fault("agent 0 bare", inf, noise=but_agent(0)),
    fault(
        "a term after rounding to a grid",
        inf,
        noised=and_a_little(1e-5, lambda d, T: to_grid(T, 0.01 * d.clip_norm)),
    ),
    fault("a term after bfloat16", inf, noised=and_a_little(1e-4, lambda d, T: T.bfloat16().to(T))),
    fault("a term after signs", inf, noised=and_a_little(1e-3, lambda d, T: T.sign())),
    fault("the remainder added back", inf, noised=with_the_remainder),
    fault("small noisy numbers replaced", inf, noised=but_small_numbers),
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
    fault("seeds that repeat", inf, {"n_rounds": 6}, noise=as_in(lambda k: 1 + (k - 1) % 3)),
    fault("noise handed on to neighbours", inf, noise=as_in(lambda k: 1, shift=-2)),
    fault("noise shifted by coordinates", inf, noise=as_in(lambda k: 1, shift=-1)),
    fault("half of the noise drawn once", sqrt(2), noise=half_of_it_once),
    fault("opposite noise on two links", inf, base=PrivateShares, on_links=opposite_on_links),
    fault("noise that sums to zero", inf, noise=less_its_mean),
    Mechanism(
        "noise mostly in common",
        MostlyCommon(),
        False,
        sqrt((1 - COMMON / (1 - COMMON + 6 * COMMON)) / (1 - COMMON)),
    ),
    fault(
        "a checksum sent along",
        inf,
        messages=NOTE,
        sent=noting(lambda d, S, X, g: S.sum(dim=-1, keepdim=True)),
    ),
    fault(
        "the batch's size sent along",
        inf,
        messages=NOTE,
        sent=noting(lambda d, S, X, g: torch.zeros_like(S[..., :1]) + records_drawn(g)),
    ),
    fault(
        "one bit sent along",
        inf,
        messages=NOTE,
        sent=noting(lambda d, S, X, g: (S.norm(dim=-1, keepdim=True) > d.clip_norm).to(S)),
    ),
    fault(
        "the number of clipped records",
        inf,
        messages=NOTE,
        sent=noting(lambda d, S, X, g: long_records(g, X, d.clip_norm)),
    ),
    fault("divided by the long records", 4.0, step=divided_by_long_records),
)
