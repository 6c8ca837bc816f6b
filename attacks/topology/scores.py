"""Scores of pairs of agents, higher where they seem linked, from models without receivers.

In linear gossip the deviations D of models from their mean over agents follow D <- W D + E, where W
is the mixing matrix and E has what agents add: gradients and noise. Least squares of each step on
the one before therefore estimates W. Gradients of one agent are alike from step to step, so that E
is not independent of D; with errors that are AR(1) with coefficient rho,

    D_t+1 - rho D_t = W (D_t - rho D_t-1) + (E_t - rho E_t-1),

and the least squares are those of quasi-differences (Cochrane and Orcutt 1949).
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array

RHO = (0.0, 0.5, 1.0)  # the adversary chooses by its own loss
REWEIGHTED = 2  # times
DESCENTS = 2_000  # steps of the projected gradient, at most
SETTLED = 1e-10  # largest change of a weight that ends it


class Regression(NamedTuple):
    """Least squares of steps on those before, each weighed by its own variance."""

    W: Tensor  # [n, n], rows sum to 1
    covariance: Tensor  # [n, n], of a row's weights, in units of the row's variance
    variance: Tensor  # [n], of the residual of each row
    gram: Tensor  # [n, n], of the steps before
    cross: Tensor  # [n, n], of the steps with those before
    loss: float  # the adversary's own: mean log variance of a coordinate's residual
    rho: float


def fitted(models: Tensor, rounding: float) -> Regression:
    """The regression whose rho has the least loss.

    Args:
        models: [s, n, d], s >= 2 steps; with two, rho is 0.
        rounding: relative, of the numbers; a residual below it is none.
    """
    D = models - models.mean(dim=1, keepdim=True)
    floor = (rounding * models.square().mean().sqrt()) ** 2
    found = [_least_squares(D, rho, float(floor)) for rho in RHO if len(D) > 2 or rho == 0]
    return min(found, key=lambda one: one.loss)


def _least_squares(D: Tensor, rho: float, floor: float) -> Regression:
    """Generalised least squares; the variance is a step's times a coordinate's.

    The sum of a row is not in the data, since the deviations of all agents add up to zero: it is 1.
    """
    after, before = (
        (D[2:] - rho * D[1:-1], D[1:-1] - rho * D[:-2]) if len(D) > 2 else (D[1:], D[:1])
    )
    Y, Z = after.movedim(1, 0), before.movedim(1, 0)  # [n, s, d]
    n, s, d = Y.shape
    of_step, of_coordinate = Y.new_ones(s, 1), Y.new_ones(d)
    for last in (*[False] * REWEIGHTED, True):
        weights = 1 / (of_step * of_coordinate).clamp(min=floor or torch.finfo(D.dtype).tiny)
        weights = weights / weights.mean()
        weighed = (Z * weights).flatten(1)
        gram, cross = weighed @ Z.flatten(1).T, (Y * weights).flatten(1) @ Z.flatten(1).T
        inverse = torch.linalg.pinv(gram, hermitian=True)
        W = cross @ inverse
        E = Y - (W @ Z.flatten(1)).view_as(Y)
        squares = E.square()
        if not last:
            of_coordinate = squares.mean(dim=(0, 1)).clamp(min=floor)
            of_step = (squares / of_coordinate.clamp(min=1e-300)).mean(dim=(0, 2))[:, None]
    loss = float(squares.mean(dim=(0, 1)).clamp(min=floor or 1e-300).log().mean())
    variance = (squares.clamp(min=floor) * weights).mean(dim=(1, 2))
    W = W + (1 - W.sum(dim=1, keepdim=True)) / n
    return Regression(W, inverse, variance, gram, cross, loss, rho)


def by_regression(found: Regression) -> Array:
    """The weight of a pair in units of its standard error, both directions pooled, [n, n]."""
    of_weight = found.variance[:, None] * found.covariance.diagonal()
    precision = 1 / of_weight.clamp(min=1e-300)
    pooled = found.W * precision
    return ((pooled + pooled.T) / (precision + precision.T).sqrt()).cpu().numpy()


def by_simplex(found: Regression) -> Array:
    """The weights of least squares whose rows are >= 0 and sum to 1, as those of W, [n, n].

    These constraints make rows sparse. Solved by accelerated projected gradients for all rows at
    once (Beck and Teboulle 2009); the projection is that of Duchi et al. 2008.
    """
    gram, cross = found.gram, found.cross
    step = 1 / torch.linalg.eigvalsh(gram)[-1].clamp(min=1e-300)
    W = ahead = on_simplex(found.W)
    t = 1.0
    for _ in range(DESCENTS):
        moved = on_simplex(ahead - step * (ahead @ gram - cross))
        change, t_next = moved - W, (1 + (1 + 4 * t * t) ** 0.5) / 2
        ahead = moved + (t - 1) / t_next * change
        W, t = moved, t_next
        if float(change.abs().max()) < SETTLED:
            break
    return (W + W.T).cpu().numpy()


def on_simplex(rows: Tensor) -> Tensor:
    """The nearest rows [m, n] that are >= 0 and sum to 1."""
    ordered = rows.sort(dim=1, descending=True).values
    over = (ordered.cumsum(dim=1) - 1) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    last = (ordered > over).sum(dim=1, keepdim=True) - 1
    return (rows - over.gather(1, last)).clamp(min=0)


def by_cosine(models: Tensor) -> Array:
    """The mean over steps of the cosine of two agents' models [s, n, d], [n, n].

    Source: Feng et al. 2025, arXiv:2501.03119.
    """
    lengths = models.norm(dim=2, keepdim=True).clamp(min=1e-300)
    unit = models / lengths
    return (unit @ unit.transpose(1, 2)).mean(dim=0).cpu().numpy()


def by_times(sends: NDArray[np.bool_]) -> Array | None:
    """The correlation of when two agents send, [s, n] to [n, n]; None: they always send together.

    An agent that sends in every step, or in none, has the correlation 0 with all others.
    """
    centred = sends - sends.mean(axis=0)
    lengths = np.sqrt(np.square(centred).sum(axis=0))
    if not lengths.any():
        return None
    unit = centred / np.where(lengths > 0, lengths, 1)
    return unit.T @ unit
