"""Which tokens a gradient holds: those that lie in the span of a layer's gradient.

A linear layer that reads rows X [n, d] has the gradient G = X' dY, whose columns are combinations
of the n rows. If n < d, a row that no token of the batch gave lies outside of their span. Noise of
standard deviation s adds singular values up to s (sqrt(d) + sqrt(m)) (Marchenko and Pastur), and
directions above it are the span.

Rows are embeddings of tokens plus embeddings of positions, up to their length. So the span holds a
token of the batch at each position that shares a token with its own, and so on: which token stands
where follows from the second layer.

Under noise, a token is found by the law of one that the batch does not hold. The share of a row's
squared length that lies in r of d directions is Beta(r / 2, (d - r) / 2), if its direction is
random. What all tokens have in common at a position, their mean, is no such direction, and is
taken off first.

Source: Petrov et al. 2024 (DAGER), arXiv:2405.15586, sections 4.1 and 4.2. Departures: the rank by
the noise's edge instead of a constant, and under noise a p-value instead of a distance.
"""

from typing import NamedTuple

import torch
from scipy.stats import beta
from torch import Tensor

import dpaudit.attack as da

from .front import LayersOfOneInput, TransformerFront

LEVEL = 0.05  # largest probability of finding any token by chance
EXACT = 0.02  # share of a row's length outside of the span, for a message without noise
_ROUNDING = 1e-4  # singular values below this share of the largest may be rounding
_FALL = 8.0  # times, from the last singular value of a span to the first of rounding
_KNOWN = 1.05  # edges: the largest singular value of noise exceeds its edge by little
_SEEN = 8  # directions that are left of noise at least, or it cannot be told from a span
_LEAST = 0.5  # share of the noise's lower edge below which what is left is no noise
_TOKENS = 256  # tokens tested at once


class Span(NamedTuple):
    """The directions of a gradient that stand out of its noise."""

    basis: Tensor  # [d, r], orthonormal
    common: Tensor  # [d, c], what all tokens have in common at some position, orthonormal
    d: int  # directions that rows have beside those
    is_exact: bool  # whether nothing but rounding lies beside it

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    def own(self, rows: Tensor) -> Tensor:
        """Rows [..., d] without what is common, of length 1."""
        rows = rows - (rows @ self.common) @ self.common.mT
        return rows / rows.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)

    def outside(self, rows: Tensor) -> Tensor:
        """The share of each row's length [...] that lies outside of the span."""
        own = self.own(rows.to(self.basis))
        return (own - (own @ self.basis) @ self.basis.mT).norm(dim=-1)

    def p_values(self, outside: Tensor) -> Tensor:
        """How often a row of random direction lies as near to the span."""
        share = (1 - outside.square()).clamp(0, 1).cpu().numpy()
        if not 0 < self.rank < self.d:
            return torch.ones_like(outside)
        law = beta(self.rank / 2, (self.d - self.rank) / 2)
        return torch.as_tensor(law.sf(share), dtype=outside.dtype)


def span_of(
    front: TransformerFront, block: LayersOfOneInput, gradient: Tensor, std: float | None
) -> tuple[Span, Span]:
    """Span of one block, in a gradient [d] with noise of this standard deviation (None: unknown).

    Returns:
        The span, and the one in which tokens are tested: under noise without what is common.

    Raises:
        NotObservable: all directions stand out, so that every token lies in the span.
    """
    G = front.gradient(gradient, block).double()
    tokens = torch.arange(min(front.n_tokens, 2 * block.width))
    rows = front.candidates(block, tokens).to(G)
    found = _span(G, rows, G.new_zeros(len(G), 0), std)
    if found.rank >= min(found.d, G.shape[1]):
        raise da.NotObservable(
            "DPA055",
            f"the gradient of {', '.join(block.layers)} has the full rank {found.rank}: the tokens "
            "of a batch have to be fewer than the directions of an embedding, or every token of "
            "the vocabulary lies in their span; expected a smaller batch, shorter records or a "
            "wider model",
        )
    if found.is_exact:
        return found, found
    return found, _span(G, rows, _directions(rows.mean(dim=0)), std)


def _span(G: Tensor, rows: Tensor, common: Tensor, std: float | None) -> Span:
    own = (rows - (rows @ common) @ common.mT).flatten(0, 1)
    d = _directions(own[:: max(1, len(own) // (2 * len(G)))]).shape[1]
    U, S, _ = torch.linalg.svd(G - common @ (common.mT @ G), full_matrices=False)
    S = S[:d]
    exact = None if std else _rank_of_exact(S)
    rank = _rank_in_noise(S, d, G.shape[1], std) if exact is None else exact
    return Span(U[:, :rank], common, d, exact is not None)


def members(
    front: TransformerFront, block: LayersOfOneInput, spans: tuple[Span, Span]
) -> tuple[Tensor, Tensor]:
    """How far each token at each position is outside of a span, and which tokens are in the batch.

    Returns:
        Shares of length [n_tokens, length], and bool: of each position where the span is exact,
        else of a token at all positions.
    """
    span, test = spans
    tokens = torch.arange(front.n_tokens).split(_TOKENS)
    rows = [front.candidates(block, some) for some in tokens]
    outside = torch.cat([span.outside(some).cpu() for some in rows])
    if span.is_exact:
        return outside, outside <= EXACT
    tested = torch.cat([test.outside(some).cpu() for some in rows])
    found = (test.p_values(tested) <= LEVEL / tested.numel()).any(dim=1, keepdim=True)
    return outside, found.expand_as(outside)


def _directions(rows: Tensor) -> Tensor:
    """An orthonormal basis [d, c] of rows [n, d], but for rounding."""
    _, S, Vh = torch.linalg.svd(rows, full_matrices=False)
    return Vh[1e-4 * S[0] < S].mT


def _rank_of_exact(S: Tensor) -> int | None:
    """Where singular values fall to rounding; None: they do not, so there is noise."""
    if len(S) < 2:
        return None
    falls = S[:-1] / S[1:].clamp(min=torch.finfo(S.dtype).tiny)
    falls = torch.where(S[1:] <= _ROUNDING * S[0], falls, 0)
    rank = int(falls.argmax()) + 1
    return rank if falls[rank - 1] > _FALL else None


def _rank_in_noise(S: Tensor, d: int, m: int, std: float | None) -> int:
    """How many singular values stand out of noise.

    Noise that is not known is what is left: the first rank whose rest is noise alike.
    """
    if std:
        return int((_KNOWN * std * (d**0.5 + m**0.5) < S).sum())
    left = S.square().flip(0).cumsum(0).flip(0)  # sums of squared singular values from each one on
    for r in range(len(S) - _SEEN):
        std, roots = float((left[r] / ((d - r) * m)).sqrt()), ((d - r) ** 0.5, m**0.5)
        low, high = std * abs(roots[1] - roots[0]), std * sum(roots)
        if float(S[r]) <= _KNOWN * high and float(S[-1]) >= _LEAST * low:
            return r
    return len(S)
