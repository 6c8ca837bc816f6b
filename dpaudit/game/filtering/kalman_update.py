"""The Kalman filter of an adversary that reads one round after the other.

Before a round the adversary does not know the state up to a covariance, of which it keeps a factor.
The innovation is the part of the observations that it does not predict; whitened, it has
independent entries of variance 1. The gain times it is what the adversary then believes of the
state, and what is left is the factor for the next round. The matrices are dense or sparse as those
of the probe are.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.game.matrices import (
    Array,
    LinearMap,
    Matrix,
    column_norms,
    compressed,
    factors,
    scaled,
)
from dpaudit.game.probing.probed_round import NOISELESS, ProbedRound

LEAST_NOISELESS = 1e-8  # as NOISELESS, where the singular values of the round are of like size
ROUNDING = 1e-12  # of what a number of the state may hold: a smaller part that is left is rounding
LOST = 1e-14  # times the condition number of a round: what its linear algebra is off by
RECOVERED = 1e-12  # of a draw's variance: what may be left of one that is recovered exactly


class Update(NamedTuple):
    """What the adversary makes of a round, and what it knows after it.

    The record reaches the first m of the innovations alone, and draws are given by these.
    """

    whiten: LinearMap  # [n_observations, rank]: to independent noise of variance 1
    gain: LinearMap  # [rank, width]: what whitened innovations reveal of the state
    stds: Tensor  # [rank]: of each innovation before it is whitened, in units of messages
    shifts: Tensor  # [n_uses, m]: the record's effect on whitened innovations
    noiseless: Tensor  # [n_uses, n_observations]: its effect where there is no noise
    least_noiseless: float  # of the record's effect: less of it without noise is rounding
    residuals: Tensor  # [n_uses, width]: its effect on the state that the adversary does not know
    factor: Matrix  # [*, width]: of the covariance of the state after the round
    draws: LinearMap  # [m, n_draws]: the noise of the round itself as it is estimated
    laplace: Tensor  # [n_draws] bool
    exact: bool  # whether every Laplace draw of the round is recovered exactly
    has_laplace: bool  # whether there is any


def kalman_update(out: ProbedRound) -> Update:
    """Of A' = U S V, with A and C the noise of observations and state: gain V C, left (I - V'V) C.

    Raises:
        NotLocal: too much of a sparse round hangs together.
    """
    seen, C = out.records_seen, out.noise.state
    V, S, U, block = factors(out.noise.seen)
    whiten, gain = scaled(U, 1 / S), V @ C
    shifts = seen @ whiten
    reached = np.isin(block, block[shifts.any(axis=0)])
    order = np.concatenate([np.flatnonzero(reached), np.flatnonzero(~reached)])
    first = order[: int(reached.sum())]
    draws = V[:, out.n_states :]
    of_first = draws[first]
    drawn = column_norms(of_first) > 0
    left = 1 - column_norms(draws)[out.laplace.numpy()] ** 2
    state = np.concatenate([out.earlier.state, out.record.state])
    return Update(
        whiten=LinearMap(whiten[:, order]),
        gain=LinearMap(gain[order]),
        stds=torch.from_numpy(S[order]),
        shifts=torch.from_numpy(shifts[:, first]),
        noiseless=torch.from_numpy(seen - (seen @ U) @ U.T),
        least_noiseless=_least_noiseless(S),
        residuals=torch.from_numpy(state - shifts @ gain),
        factor=_unknown(C, C - V.T @ gain, S),
        draws=LinearMap(of_first[:, np.flatnonzero(drawn)]),
        laplace=out.laplace[torch.from_numpy(drawn)],
        exact=not out.n_states and bool(left.max(initial=0.0) < RECOVERED),
        has_laplace=bool(out.laplace.any()),
    )


def _unknown(C: Matrix, left: Matrix, S: Array) -> Matrix:
    """A factor of what is ``left`` of the covariance with factor C after the round.

    Each number of the state is measured by its size in C: of a number that the round reveals the
    difference leaves rounding, which is no noise and must not become the noise of a later round.
    """
    sizes = column_norms(C)
    units = np.where(sizes > 0, sizes, 1.0)
    least = max(ROUNDING, LOST * _condition_number(S))
    return scaled(compressed(scaled(left, 1 / units), least), units)


def _least_noiseless(S: Array) -> float:
    return min(NOISELESS, max(LEAST_NOISELESS, 100 * LOST * _condition_number(S)))


def _condition_number(S: Array) -> float:
    """The largest singular value over the smallest; 1 if there are none."""
    return float(S.max() / S.min()) if S.size else 1.0
