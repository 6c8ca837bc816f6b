"""An encoder's sequences, one after another: each that is found is taken off the gradient.

What the second layer reads of a token depends on the whole sequence, so that sequences cannot grow
token by token. Slopes of tokens that occur once give most sequences (`slopes`). If they give none,
mixtures of tokens are moved until what the second layer reads of them lies in its span, each from
another token at one position, and are then rounded and mended by exchanges. Few starts lead to a
sequence of the batch; the smaller the batch, the more of them do.

Whether a sequence is in the batch is decided exactly. The gradient of the second layer is G = X' D,
a sum over rows, of full rank r. Without the k rows P of a sequence, whose slopes are D_s, it has
rank r - k if and only if D_s G+ P' = I (Wedderburn). Slopes follow from the sequence and its label,
so that this says the label too. Then the gradient of that record is subtracted, which leaves that
of a batch of one fewer.

Sources: mixtures, TIGER, arXiv:2606.18312; Wedderburn's rank reduction, Chu, Funderlic and Golub
1995, SIAM Review 37. The subtraction is ours.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import dpaudit.attack as da
from dpaudit.models.gradients import Gradients

from .front import LayersOfOneInput, TransformerFront
from .sequences import Choice, choices
from .slopes import sequences_of_slopes
from .span import Span, members, span_of

_STEPS, _RATE = 80, 0.2  # steps and rate of Adam on the logits of mixtures
_STARTS = 64  # starting points at once
_MENDED, _TRIED, _SWEEPS = 12, 8, 3  # sequences; tokens of a position; sweeps over positions
_IN_SPAN = 2e-3  # mean share of length outside of the span, of a sequence that is tested
_IDENTITY = 0.1  # largest entry by which D G+ P' may differ from the identity: rounding
_LABELS = 2  # times the batch size: labels that are tried


class FoundSequence(NamedTuple):
    """A sequence of the batch, and the gradient of its record."""

    ids: Tensor  # [length]
    gradient: Tensor  # [d], clipped


class Peeling(NamedTuple):
    """What is known of one gradient of an encoder."""

    front: TransformerFront
    gradients: Gradients
    clip_norm: float | None
    first: tuple[LayersOfOneInput, Span]
    block: LayersOfOneInput  # the second one
    span: Span  # span of this block
    given: list[Choice]  # tokens of each position
    vector: Tensor  # [d], a sum over the n records that are left
    n: int

    def found(self, on_step: Callable[[int], None]) -> list[FoundSequence]:
        """Sequences that are in the batch for certain: by slopes, or from starts at a position."""
        test = self.test()
        tokens = torch.cat([choice.tokens for choice in self.given]).unique()
        rows = sequences_of_slopes(self.front, *self.first, self.vector, tokens)
        for p in range(len(self.given)):
            every = [one for ids in rows.unique(dim=0) if (one := test(ids)) is not None]
            if every:
                return every[: self.n]
            on_step(p)
            rows = self._mended(self._mixed(p), p)
        return [one for ids in rows.unique(dim=0) if (one := test(ids)) is not None][: self.n]

    def _mixed(self, p: int) -> Tensor:
        """Sequences [n, length] to which mixtures round that start at each token of a position."""
        tokens = torch.cat([choice.tokens for choice in self.given]).unique()
        allowed = torch.stack([torch.isin(tokens, choice.tokens) for choice in self.given])
        pinned = self.given[p].tokens[:_STARTS]
        mask = torch.where(allowed, 0.0, -torch.inf).expand(len(pinned), -1, -1).clone()
        mask[:, p] = torch.where(tokens == pinned[:, None], 0.0, -torch.inf)
        mask = mask.to(self.vector.device)
        logits = torch.zeros_like(mask, requires_grad=True)
        adam = torch.optim.Adam([logits], lr=_RATE)
        for _ in range(_STEPS):
            rows = self.front.mixed_inputs((logits + mask).softmax(-1), tokens, self.block)
            outside = self.span.outside(rows).square().mean(1)
            (logits.grad,) = torch.autograd.grad(outside.sum(), logits)
            adam.step()
        return tokens[(logits + mask).argmax(-1).cpu()]

    def _mended(self, rows: Tensor, pinned: int) -> Tensor:
        """The sequences nearest to the span, with single tokens exchanged while that is nearer."""
        rows = rows.unique(dim=0)
        far = self._far(rows)
        order = far.argsort()[:_MENDED]
        rows, far = rows[order], far[order]
        for _ in range(_SWEEPS):
            before = far
            for p, choice in enumerate(self.given):
                if p == pinned:
                    continue
                some = choice.tokens[:_TRIED]
                tried = rows.repeat_interleave(len(some), 0)
                tried[:, p] = some.repeat(len(rows))
                least, which = self._far(tried).view(len(rows), -1).min(1)
                rows = rows.clone()
                rows[:, p] = torch.where(least < far, some[which], rows[:, p])
                far = torch.minimum(far, least)
            if not (far < before).any():
                break
        return rows[far.argsort()][far.sort().values <= _IN_SPAN]

    def _far(self, ids: Tensor) -> Tensor:
        """How far the rows of sequences [b, length] are outside of the span on average, [b]."""
        return self.span.outside(self.front.inputs(ids, self.block)).mean(1).cpu()

    def test(self) -> Callable[[Tensor], FoundSequence | None]:
        """Whether a sequence is in the batch, and what its record's gradient is."""
        G = self.front.gradient(self.vector, self.block).double()
        U = self.span.basis.double()
        inverse = torch.linalg.pinv(U.mT @ G)  # [m, r]
        labels = self._labels()

        def test(ids: Tensor) -> FoundSequence | None:
            X = self.front.inputs(ids[None], self.block)[0].double()  # [k, width]
            Z, left = inverse @ (U.mT @ X.mT), torch.linalg.pinv(X.mT)
            identity = torch.eye(len(X)).to(X)
            for y in labels:
                g = self.gradients.clipped_sum(
                    self.front.model[None], ids[None, None].to(X.device), y.view(1, 1),
                    self.clip_norm,
                )[0]  # fmt: skip
                product = left @ (self.front.gradient(g, self.block).double() @ Z)
                if (product - identity).abs().max() <= _IDENTITY:
                    return FoundSequence(ids, g)
            return None

        return test

    def _labels(self) -> Tensor:
        """Labels that records may have: those with the lowest gradient of the last bias."""
        last, n_classes = list(self.front.parts(self.vector).values())[-1], self.front.n_classes()
        if last.shape == (n_classes,):
            return last.argsort()[: _LABELS * self.n]
        return torch.arange(n_classes, device=self.vector.device)


class PeeledSequences(NamedTuple):
    """Sequences that were taken off a gradient, and what is left of it."""

    found: Tensor  # [k, length]
    given: list[Choice]  # tokens of each position
    span: Span  # span of the second block


def peeled(
    front: TransformerFront,
    gradients: Gradients,
    observed: da.ObservedGradients,
    i: int,
    blocks: tuple[LayersOfOneInput, LayersOfOneInput],
    on_step: Callable[[int], None],
) -> PeeledSequences:
    """The sequences of gradient i that are in its batch for certain, taken off one after another.

    Args:
        blocks: the first one and the second.

    Raises:
        NotObservable: the gradient has full rank.
    """
    n, length = observed.batch_size, front.length
    found = torch.zeros(0, length, dtype=torch.long)
    left = observed.gradients[i].double() * n
    while True:
        vector = left.to(observed.gradients)
        spans = span_of(front, blocks[0], vector, None)
        given = choices(*members(front, blocks[0], spans), n, True)
        span, _ = span_of(front, blocks[1], vector, None)
        rest = PeeledSequences(found, given, span)
        if not (spans[0].is_exact and span.is_exact and front.embedding):
            return rest
        about = front, gradients, observed.clip_norm, (blocks[0], spans[0]), blocks[1], span, given
        more = Peeling(*about, vector, n - len(found)).found(on_step)
        for one in more:
            left = left - one.gradient.double()
        found = torch.cat([found, *(one.ids[None] for one in more)])
        if not more or len(found) == n:
            return rest._replace(found=found)
