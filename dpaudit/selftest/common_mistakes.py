"""Common mistakes, and correct mechanisms that look like mistakes, for ordinary audits.

Each is the correct defense with one thing changed. A fault keeps all that the correct one says of
itself. What looks like a mistake and is none processes a value that the noise already protects, or
draws the same noise in another way.
"""

from collections.abc import Mapping
from math import log2
from typing import Any

import torch
from torch import Tensor

from dpaudit.defense import Graph, Noise, Round

from .correct import (
    Mechanism,
    PrivateGossip,
    Remembering,
    drawn,
    noisy,
    seeded_as_in_round,
    variant,
)
from .faults import brain_float, half_precision, to_grid

BIAS = 3  # coordinates
GRID = 1 / 64  # of the noise's scale


def without_bias(defense: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """The last coordinates, a bias, have no noise."""
    Z = drawn(defense, like, k, noise).clone()
    if like.shape[-1] > BIAS:
        Z[..., -BIAS:] = 0.0
    return Z


def without_bias_in_the_last_round(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    return (without_bias if k == d.n_rounds else drawn)(d, like, k, noise)


def without_bias_in_between(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    return (without_bias if k == d.n_rounds - 1 else drawn)(d, like, k, noise)


def centred(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    Z = drawn(d, like, k, noise)
    return Z - Z.mean(dim=-1, keepdim=True) if like.shape[-1] > 1 else Z


def tiled(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Noise for the first half of the coordinates is used for the second half again."""
    n = like.shape[-1]
    half = drawn(d, like[..., : (n + 1) // 2], k, noise)
    return torch.cat([half, half], dim=-1)[..., :n]


class NoiseByDimension(PrivateGossip):
    """The noise has norm sigma C in all, in the place of sigma C in each coordinate."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / like.shape[-1] ** 0.5


def on_a_grid(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    step, Z = GRID * d._scale, drawn(d, like, k, noise)
    return to_grid(Z, step) if step else Z


def opposite_in_pairs(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Pairs of agents take opposite noise, so that it cancels in the mean."""
    Z = drawn(d, like[..., ::2, :], k, noise)
    return torch.stack([Z, -Z], dim=-2).flatten(-3, -2)[..., : like.shape[-2], :]


def as_in_the_round_before(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """In every second round."""
    return drawn(d, like, k, seeded_as_in_round(k - (k % 2 == 0), noise))


def scaled_by_its_norm(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    T = noisy(d, S, k, noise)
    return T / (1 + T.norm(dim=-1, keepdim=True))


class SignOfNoisy(PrivateGossip):
    """Correct: of the noisy sum, the signs."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).sign()


def without_small_numbers(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    T = noisy(d, S, k, noise)
    return T * (T.abs() > 0.5 * d._scale)


def model_on_a_grid(d: Any, S: Tensor, X: Tensor, graph: Graph) -> Round:
    step = 2.0 ** round(log2(d.learning_rate * d.clip_norm / d.batch_size) - 6)
    return PrivateGossip.after(d, S, to_grid(X, step), graph)


def in_parts(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """The sum of two independent draws of half the variance."""
    if d.family == "laplace":
        return drawn(d, like, k, noise)
    half = d._scale / 2**0.5
    return noise.gaussian("one", half, like) + noise.gaussian("other", half, like)


def fault(name: str, options: Mapping[str, Any] | None = None, **methods: Any) -> Mechanism:
    return Mechanism(name, variant(options=options, **methods), False)


def correct(name: str, options: Mapping[str, Any] | None = None, **methods: Any) -> Mechanism:
    return Mechanism(name, variant(options=options, **methods), True)


LAPLACE = {"family": "laplace"}
MECHANISMS = (
    fault("a bias sent without noise", noise=without_bias),
    fault("a bias bare in the last round", noise=without_bias_in_the_last_round),
    fault("a bias bare in between", noise=without_bias_in_between),
    fault("noise less its mean", noise=centred),
    fault("noise of one layer used in another", noise=tiled),
    fault("noise of one norm in all", base=NoiseByDimension),
    fault("noise drawn in float16", noise=half_precision),
    fault("noise drawn in bfloat16", noise=brain_float),
    fault("noise on a coarse grid", noise=on_a_grid),
    fault(
        "noise that follows the learning rate",
        noise=lambda d, S, k, z: drawn(d, S, k, z) * 0.5 ** (k - 1),
    ),
    fault(
        "noise for the mean on the sum", noise=lambda d, S, k, z: drawn(d, S, k, z) / d.batch_size
    ),
    fault(
        "each layer clipped to C",
        summed=lambda d, g, X: g.clipped_sum(X, d.clip_norm * 2**0.5, norm=d._norm),
    ),
    fault(
        "the norm sent along",
        messages={"norm": "how long the gradient is"},
        sent=lambda d, round, state, k, g, z: {
            "norm": round.private["gradient"].norm(dim=-1, keepdim=True)
        },
    ),
    fault(
        "small coordinates sent bare",
        noised=lambda d, S, k, z: torch.where(S.abs() > 1e-3 * d.clip_norm, noisy(d, S, k, z), S),
    ),
    fault(
        "scaled by the un-noised norm",
        noised=lambda d, S, k, z: noisy(d, S, k, z) / (1 + S.norm(dim=-1, keepdim=True)),
    ),
    fault("opposite noise of pairs", noise=opposite_in_pairs),
    fault("noise used for two rounds", noise=as_in_the_round_before),
    fault("the same, Laplace", LAPLACE, noise=as_in_the_round_before),
    fault("noise of one sign", noise=lambda d, S, k, z: drawn(d, S, k, z).abs()),
    fault(
        "a batch used in two rounds",
        base=Remembering,
        remembered=lambda d, S, state, k, g, z: (d.noised(S + state.M, k, z), S),
    ),
    correct("private gossip"),
    correct("private gossip, Laplace", LAPLACE),
    correct("scaled by the noisy norm", noised=scaled_by_its_norm),
    correct(
        "the noisy sum clipped",
        noised=lambda d, S, k, z: noisy(d, S, k, z).clamp(-d.clip_norm, d.clip_norm),
    ),
    correct("signs of the noisy sum", base=SignOfNoisy),
    correct("small noisy coordinates left out", noised=without_small_numbers),
    correct("rounded after the noise", after=model_on_a_grid),
    correct(
        "bfloat16 after the noise",
        after=lambda d, S, X, graph: PrivateGossip.after(d, S, X.bfloat16().to(X), graph),
    ),
    correct("noise in another order", noise=lambda d, S, k, z: drawn(d, S, k, z).flip(-1)),
    correct("noise in two parts", noise=in_parts),
)
