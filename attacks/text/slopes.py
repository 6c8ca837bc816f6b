"""An encoder's sequences, from what its first attention layer's gradient says of single tokens.

The gradient is G = sum over rows x of x dY', and rows are embeddings of a token and a position. A
direction u that is orthogonal to all rows of other tokens leaves u' G, the slopes dY of one token's
rows. If the token occurs once in the batch, they belong to one sequence. The slope of its query is,
in each head, a combination of the keys of this sequence,

    dq = sum over positions p of c_p k(t_p, p),

by the gradient of the softmax. Without the directions of positions, few of the batch's tokens
explain dq, in all heads at once: these are the tokens of the sequence, found one after another
(orthogonal matching pursuit). With them, dq is a combination of keys of tokens and of positions,
a_t and b_p in each head. A token stands at the positions P for which a_t = sum over P of b_p, up to
known factors of normalisation. Nothing is searched.

This needs heads with more directions than a sequence has tokens and positions. What is found is
tested by its caller.

Sources: the gradient of softmax attention; Pati, Rezaiifar and Krishnaprasad 1993 for the pursuit,
with norms as Rebollo-Neira and Lowe 2002 have them. Their use here is ours.
"""

import itertools
import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .front import LayersOfOneInput, TransformerFront
from .span import Span

_ALONE = 1e-6  # distance from 1 of the eigenvalue of a direction orthogonal to all other tokens
_EXPLAINED = 1e-2  # residuals below this share of a slope's length are rounding
_SUBSETS = 2**16  # sets of positions that are tried for a token
_ROWS = 256  # tokens' slopes at once


class Keys(NamedTuple):
    """What a first attention layer makes of tokens and positions, in each of its heads."""

    tokens: Tensor  # [n_tokens]
    rows: Tensor  # [n_tokens, length, width], what the layer reads
    positions: Tensor  # [length, width], the same without a token
    weight: Tensor  # [width, width], from rows to keys
    n_heads: int

    def of(self, rows: Tensor) -> Tensor:
        """Keys of rows [..., width] by head, [n_heads, ..., width / n_heads]."""
        return (rows @ self.weight).unflatten(-1, (self.n_heads, -1)).movedim(-2, 0)


def sequences_of_slopes(
    front: TransformerFront, block: LayersOfOneInput, span: Span, vector: Tensor, tokens: Tensor
) -> Tensor:
    """Sequences [n, length] that explain slopes of tokens; none if it is no attention layer.

    Args:
        block: the first one, with queries before keys.
        span: of this block's gradient, exact.
        vector: a gradient [d].
        tokens: [n_tokens], those of the batch.
    """
    nothing = torch.zeros(0, front.length, dtype=torch.long)
    gradient, width = front.gradient(vector, block).double(), block.width
    n_heads = front.n_heads(block)
    if not n_heads or gradient.shape[1] < 2 * width or width % n_heads:
        return nothing
    if width // n_heads <= front.length:
        return nothing
    empty = gradient.new_zeros(1, front.length, len(tokens)).to(vector)
    weight = front.gradient(front.model, block).double()[:, width : 2 * width]
    keys = Keys(
        tokens,
        front.candidates(block, tokens).double(),
        front.mixed_inputs(empty, tokens, block)[0].detach().double(),
        weight,
        n_heads,
    )
    slopes = _slopes(keys, span.basis.double(), gradient[:, :width])
    found = [
        ids
        for some in slopes.split(_ROWS)
        for slope, chosen in zip(some, _tokens_of(keys, some), strict=True)
        if len(chosen) and (ids := _ordered(keys, slope, chosen)) is not None
    ]
    return torch.stack(found).unique(dim=0).cpu() if found else nothing


def _slopes(keys: Keys, basis: Tensor, gradient: Tensor) -> Tensor:
    """Slopes [n, width] of queries, each of one token's rows alone.

    With all rows Z in the span and those of one token Z_t, the direction u = S^-1 Z_t' y, with
    S = Z' Z, is orthogonal to all others if Z_t S^-1 Z_t' y = y.
    """
    Z = keys.rows @ basis  # [n_tokens, length, rank]
    left = torch.linalg.pinv(Z.flatten(0, 1)).unflatten(1, Z.shape[:2])  # S^-1 Z'
    values, vectors = torch.linalg.eigh(torch.einsum("tlr,rtm->tlm", Z, left))
    directions = torch.einsum("rtm,tm->tr", left, vectors[..., -1])
    return (directions @ (basis.mT @ gradient))[values[:, -1] >= 1 - _ALONE]


def _tokens_of(keys: Keys, slopes: Tensor) -> list[Tensor]:
    """Indices of the tokens whose keys explain each slope [n, width], beside those of positions."""
    basis = torch.linalg.qr(keys.of(keys.positions).mT).Q  # [n_heads, size, length]
    K = _without(keys.of(keys.rows[:, 0]), basis)  # [n_heads, n_tokens, size]
    left = _without(slopes.unflatten(-1, (keys.n_heads, -1)).movedim(-2, 0), basis)
    size, length = K.shape[-1], basis.shape[-1]
    norms = K.square().sum(-1)[:, None].expand(-1, len(slopes), -1)
    least, chosen, used = 1e-6 * norms, list[Tensor](), list[Tensor]()
    lengths = [left.square().sum((0, 2))]
    for _ in range(min(length, K.shape[1], size - length)):
        gains = (left @ K.mT).square() / norms.clamp(min=1e-300)
        chosen.append(gains.masked_fill(norms < least, 0).sum(0).argmax(1))
        k = K[:, chosen[-1]]
        for unit in used * 2:  # twice is enough (Kahan and Parlett)
            k = k - (k * unit).sum(-1, keepdim=True) * unit
        used.append(k / k.norm(dim=-1, keepdim=True).clamp(min=1e-300))
        left = left - (left * used[-1]).sum(-1, keepdim=True) * used[-1]
        norms = (norms - (used[-1] @ K.mT).square()).clamp(min=0)
        lengths.append(left.square().sum((0, 2)))
    unexplained = torch.stack(lengths, dim=1) > _EXPLAINED**2 * lengths[0][:, None]
    counts = unexplained.sum(1).tolist()
    picked = torch.stack(chosen, dim=1)
    return [row[: n * (n <= len(chosen))] for row, n in zip(picked, counts, strict=True)]


def _without(rows: Tensor, basis: Tensor) -> Tensor:
    return rows - (rows @ basis) @ basis.mT


def _ordered(keys: Keys, slope: Tensor, chosen: Tensor) -> Tensor | None:
    """The sequence [length] of some tokens that explains a slope [width]; None: none does."""
    rows, places = keys.rows[chosen], keys.positions
    own, factors = _own(rows, places)
    columns = keys.of(torch.cat([own, places])).mT  # [n_heads, size, n + length]
    if columns.shape[2] > columns.shape[1]:
        return None
    slopes = slope.unflatten(0, (keys.n_heads, -1))[..., None]
    solved = torch.linalg.lstsq(columns, slopes).solution[..., 0]
    a, b = solved[:, : len(own)], solved[:, len(own) :]
    subsets = _subsets(len(places)).to(b)
    stands, far = torch.zeros_like(factors, dtype=torch.bool), b.new_zeros(len(own))
    for t in range(len(own)):
        miss = (subsets @ (factors[t, :, None] * b.mT) - a[:, t]).norm(dim=1)
        far[t], best = miss.min(0)
        stands[t] = subsets[best] > 0
    at = stands.int().argmax(0)
    if not (stands.sum(0) == 1).all():
        return None
    pairs = keys.of(rows[at, torch.arange(len(places))]).mT
    left = slopes - pairs @ torch.linalg.lstsq(pairs, slopes).solution
    return keys.tokens[chosen[at].cpu()] if left.norm() <= _EXPLAINED * slope.norm() else None


def _own(rows: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """What tokens add to positions, [n, width], and factors [n, length] between the two.

    With normalisation, a row is s(t, p) (e_t + e_p), and that of a position alone s_p e_p. Found
    are s(t, 0) e_t and s_p / s(t, 0).
    """
    n, length, _ = rows.shape
    others = torch.stack(
        [
            rows[:, :1].expand(-1, length - 1, -1),
            places[:1].expand(n, length - 1, -1),
            places[1:].expand(n, -1, -1),
        ],
        dim=-1,
    )
    solved = torch.linalg.lstsq(others, rows[:, 1:, :, None]).solution[..., 0]
    ratio = (solved[..., 1] / solved[..., 0]).mean(1, keepdim=True)  # -s(t, 0) / s_0
    factors = torch.cat([-1 / ratio, solved[..., 0] / solved[..., 2]], dim=1)
    return rows[:, 0] + ratio * places[0], factors


@cache
def _subsets(length: int) -> Tensor:
    """Sets of positions as rows of 0 and 1, [n, length], the small ones where all are too many."""
    sizes = list(itertools.accumulate(math.comb(length, k) for k in range(1, length + 1)))
    most = max(1, sum(n <= _SUBSETS for n in sizes))
    sets = [c for k in range(1, most + 1) for c in itertools.combinations(range(length), k)]
    which = torch.tensor(list(itertools.chain.from_iterable(sets)))
    rows = torch.arange(len(sets)).repeat_interleave(torch.tensor([len(c) for c in sets]))
    return torch.zeros(len(sets), length).index_put((rows, which), torch.tensor(1.0))
