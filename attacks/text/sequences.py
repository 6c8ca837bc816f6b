"""Which tokens of a batch belong together: those whose second layer's rows lie in its span.

Of a decoder, what the second layer reads of a prefix depends on the prefix alone, so sequences grow
token by token. Of an encoder it depends on the whole sequence: tokens are exchanged, position by
position, for those that bring the rows nearer to the span, until none does.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .front import LayersOfOneInput, TransformerFront
from .span import EXACT, Span

_SWEEPS = 8  # over all positions of an encoder's sequence
_BEAM = 4  # times the batch size: prefixes that are kept under noise


class Choice(NamedTuple):
    """The tokens that may stand at one position, the nearest first."""

    tokens: Tensor  # [c]
    outside: Tensor  # [c], how far their rows are outside of the first layer's span


def choices(outside: Tensor, found: Tensor, most: int, is_exact: bool) -> list[Choice]:
    """The tokens at each position that sequences are made of: those found.

    Where none is found, all that are nearest; ``most`` of them, unless the span is exact.
    """
    outside, order = outside.masked_fill(~found & found.any(dim=0), torch.inf).sort(dim=0)
    counts = found.sum(dim=0).tolist()
    sizes = [n if n and is_exact else min(n or most, most) for n in counts]
    return [Choice(order[:n, p], outside[:n, p]) for p, n in enumerate(sizes)]


def decoded(
    front: TransformerFront,
    block: LayersOfOneInput,
    span: Span,
    given: list[Choice],
    n: int,
    on_step: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    """The n sequences [n, length] of a decoder that lie nearest to the span, and how far, [n]."""
    prefixes, far = torch.zeros(1, 0, dtype=torch.long), torch.zeros(1)
    for p, (some, outside) in enumerate(given):
        grown = torch.cat(
            [prefixes.repeat_interleave(len(some), 0), some.repeat(len(prefixes))[:, None]], 1
        )
        here = span.outside(front.last_inputs(grown, block)).cpu()
        total = far.repeat_interleave(len(some)) + outside.repeat(len(prefixes)) + here
        exact = int((here <= EXACT).sum())
        kept = total.argsort()[: max(n, exact) if span.is_exact else _BEAM * n]
        prefixes, far = grown[kept], total[kept]
        on_step(p)
    if span.is_exact and len(prefixes) > n:
        nearest = far.argsort(stable=True)
        chosen = nearest[_covering(front, block, span, prefixes[nearest], n)]
        return prefixes[chosen], far[chosen]
    return _distinct(prefixes, far, n)


def _covering(
    front: TransformerFront, block: LayersOfOneInput, span: Span, ids: Tensor, n: int
) -> Tensor:
    """Which n of the sequences [m, length] in a span cover most of its directions, greedily, [n].

    All rows of the batch's sequences lie in the span, and together they are all of it. Others lie
    there too: where positions are no part of what is read, as with rotary embeddings, a sequence
    of one token again and again has the row of its first token at each position. Between equals
    the nearer one is taken. Where nothing is left, the batch has a sequence twice.
    """
    left = front.inputs(ids, block).double() @ span.basis.double()  # [m, length, rank]
    chosen: list[int] = []
    for _ in range(n):
        ranks = torch.linalg.matrix_rank(left, atol=EXACT * float(left.norm(dim=-1).max()))
        if chosen and not ranks.any():
            break
        chosen.append(int((ranks == ranks.max()).int().argmax()))
        own = torch.linalg.svd(left[chosen[-1]], full_matrices=False)
        basis = own.Vh[EXACT * float(own.S[0].clamp(min=1e-300)) < own.S]
        left = left - (left @ basis.mT) @ basis
    return torch.tensor(chosen)[torch.arange(n) % len(chosen)]


def exchanged(
    front: TransformerFront,
    block: LayersOfOneInput,
    span: Span,
    given: list[Choice],
    n: int,
    on_step: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    """The same of an encoder: from each token of the position with the most, by exchanges."""
    tokens = [one.tokens for one in given]
    start = max(range(len(tokens)), key=lambda p: len(tokens[p]))
    nearest = torch.stack([some[0] for some in tokens])
    rows, far = [], []
    for i, first in enumerate(tokens[start]):
        row = nearest.clone()
        row[start] = first
        best = float(_far(front, block, span, row[None], start))
        for _ in range(_SWEEPS):
            before = best
            for p, some in enumerate(tokens):
                if p == start or len(some) < 2:
                    continue
                tried = row.repeat(len(some), 1)
                tried[:, p] = some
                distances = _far(front, block, span, tried, start)
                row, best = tried[distances.argmin()], float(distances.min())
            if best >= before:
                break
        rows.append(row)
        far.append(float(span.outside(front.inputs(row[None], block)).mean()))
        on_step(i * len(tokens) // len(tokens[start]))
    return _distinct(torch.stack(rows), torch.tensor(far), n)


def _far(
    front: TransformerFront, block: LayersOfOneInput, span: Span, ids: Tensor, p: int
) -> Tensor:
    """How far the row of one position of sequences [b, length] is outside of the span, [b]."""
    return span.outside(front.inputs(ids, block)[:, p]).cpu()


def _distinct(rows: Tensor, far: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n nearest different sequences; the first ones again, if they are fewer."""
    order = far.argsort(stable=True)
    first: dict[tuple[int, ...], int] = {}
    for i in order.tolist():
        first.setdefault(tuple(rows[i].tolist()), i)
    chosen = torch.tensor(list(first.values()))
    chosen = chosen[torch.arange(n) % len(chosen)]
    return rows[chosen], far[chosen]
