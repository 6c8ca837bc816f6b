"""What one adversary of a large network learns, from the rows of W that it can reach alone.

A message of round t is a row of coefficients on what agents add in round t, and through W on what
they added before. With X_t [m, n] the rows of all messages of rounds t, t + 1, ... that are read,

    X_T = e_j for each j that is heard in the last round T,
    X_t = [X_(t+1) W_t; e_j for each j that is heard in round t],

the view is O = sum over t of X_t (g_t + n_t): B has the blocks X_t times the noise, and column v of
X_t is what a use of v's record in round t adds. So rows go backwards through a sparse W, and touch
the agents of the adversary's light cone alone: after k rounds those within k links. No matrix
[n, n] is made. Of B only a triangular factor R with R'R = B B' is kept, updated block by block.

The adversary's own agents hide nothing. It knows their noise, and hears all that they average: so
it knows what they send, takes that off, and W and the noise are those of the other agents.

**Leaving small entries out.** With ``cut`` > 0 entries of X up to ``cut`` are dropped. The errors
of the rows are bounded by what was dropped: a row's error e_t in the L1 norm is at most
e_(t+1) max_i sum_j W_ij + (what is dropped of it), and its L2 norm at most that. With E the error
of B, |E| <= eps, with a_t the error of a use's column, and s a lower bound on the smallest singular
value of B, every x has |B'x| >= s |x|, so that

    mu = max over x of a'x / |B'x|  lies between  mu~ (1 - eps/s) - sum |a_t| / s
                                             and  mu~ (1 + eps/s) + sum |a_t| / s;

mu~ is the figure of what was kept. For the same reason it holds for the root of S(H), with the sum
over the uses. s: all messages of the network are M = L (g + n), where L^-1 has identity blocks on
its diagonal and -W_t below it, so |L^-1| <= 1 + max |W_t|. B is some rows of L times the noise:

    s = (least noise) / (1 + max |W_t|),    |W|^2 <= (largest row sum) (largest column sum).
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.linalg import cholesky, solve_triangular
from torch import Tensor

from dpaudit.defense import ConfigError, ThreatModel
from dpaudit.game.filtering.leak import GAP
from dpaudit.game.matrices import RANK, Array, Indices, Mask, Matrix, factor_with
from dpaudit.game.probing.probed_round import NOISELESS
from dpaudit.memory import available, size_text

from .accounting import mu_of
from .gossip import NUMBER, Participation, Schema

DENSE = 0.1  # share of nonzero entries above which rows are held as a dense matrix
WELL_CONDITIONED = 1e7  # the largest eigenvalue over the smallest: sums are right to 1e-9
COPIES = 3  # copies of the rows and of their factor: original, product and sum


class LocalMu(NamedTuple):
    """mu of each victim's record to one adversary, from both sides; [n_victims].

    Infinity: a message shows the record noiseless.
    """

    low: Tensor
    high: Tensor
    error: float  # error of mu from ``cut``, besides the gap between the ends of S(H)
    touched: int  # agents whose noise or records reach the view


def local_mu(
    W: Matrix | Sequence[Matrix],
    n_rounds: int,
    adversary: ThreatModel,
    victims: Sequence[int],
    participation: Schema = "every-round",
    noise: float | Tensor = 1.0,
    cut: float = 0.0,
    gap: float = GAP,
) -> LocalMu:
    """mu of some agents' records to one adversary of linear gossip on a sparse graph.

    The same as ``network_mu``, for networks whose matrices are too large for it.

    Args:
        W: [n, n] as scipy's CSR, W[i, j] weighs agent j's message at agent i; a sequence is used
            over and over.
        adversary: an agent, a coalition, or an eavesdropper on some links (a region) or on all.
        victims: whose records; none of the adversary's own agents.
        participation: in which rounds a record is used.
        noise: standard deviation over the sensitivity, for all agents or of each, [n].
        cut: coefficients up to this are left out; 0: none is, and the figure is exact.
        gap: between low and high at most, relative to mu^2, where the semidefinite program decides.

    Raises:
        ConfigError: matrices or noise are no numbers or of other shapes, the schema does not fit,
            the adversary reads no message, a victim is its own agent, ``cut`` leaves no bound, or
            there is not enough memory.
    """
    schema = Participation.of(participation, n_rounds)
    gossip = _SparseGossip.of(W, n_rounds, adversary, noise)
    if not cut >= 0:
        raise ConfigError("DPA071", f"cut: {cut}; expected 0, or a small number above it")
    for v in victims:
        if not 0 <= v < gossip.n_agents or v in adversary.agents:
            raise ConfigError(
                "DPA051", f'victim {v}: expected an agent that "{adversary.name}" does not hold'
            )
    gossip.refuse_size(len(victims))
    view = _swept(gossip, np.array(victims, dtype=np.int64), cut)
    low, high = mu_of(view.grams(schema), schema.times, gap)
    slope, shift = view.error(schema, gossip)
    low, high = (low * (1 - slope) - shift).clamp(min=0), high * (1 + slope) + shift
    shown = torch.from_numpy(view.noiseless)
    low[shown] = high[shown] = torch.inf
    finite = high[~shown]
    error = slope * float(finite.max()) + shift if len(finite) else 0.0
    return LocalMu(low, high, error, view.touched)


class _SparseGossip(NamedTuple):
    """Gossip among the agents that are not the adversary's."""

    matrices: tuple[Matrix, ...]  # without the rows and columns of its own agents
    heard: tuple[Indices, ...]  # observed agents, for each round of a period
    noise: Array  # [n]: 0 for its own agents
    n_rounds: int
    others: Indices  # agents that are not its own

    @classmethod
    def of(
        cls,
        W: Matrix | Sequence[Matrix],
        n_rounds: int,
        adversary: ThreatModel,
        noise: float | Tensor,
    ) -> "_SparseGossip":
        """Checked. Raises ConfigError."""
        given: list[Matrix] = [W] if sparse.issparse(W) else list(W)
        if not given:
            raise ConfigError("DPA071", "W: no matrix; expected one, or one for each round")
        n = given[0].shape[0]
        for k, w in enumerate(given, start=1):
            if w.shape != (n, n) or n < 2:
                raise ConfigError(
                    "DPA071", f"W {k}: shape {w.shape}; expected [n, n] of 2 agents or more"
                )
            if not np.isfinite(w.data).all():
                raise ConfigError("DPA071", f"W {k}: not all weights are finite")
        own = list(adversary.agents)
        if absent := [a for a in own if not 0 <= a < n]:
            raise ConfigError(
                "DPA051", f'adversary "{adversary.name}": agent {absent[0]}; expected 0 to {n - 1}'
            )
        stds = torch.as_tensor(noise, dtype=torch.float64).expand(n).numpy().copy()
        if not np.isfinite(stds).all():
            raise ConfigError("DPA071", f"noise: expected finite numbers: one, or [{n}]")
        there = np.ones(n)
        there[own] = 0.0
        apart = sparse.diags_array(there, format="csr")
        given = [sparse.csr_array(w.astype(np.float64)) for w in given]
        heard = tuple(_heard(w, adversary) for w in given[: max(1, n_rounds)])
        if not any(len(rows) for rows in heard):
            raise ConfigError(
                "DPA051", f'adversary "{adversary.name}": reads no message in {n_rounds} rounds'
            )
        inner = tuple(sparse.csr_array(apart @ w @ apart) for w in given)
        return cls(inner, heard, np.abs(stds) * there, n_rounds, np.flatnonzero(there))

    @property
    def n_agents(self) -> int:
        return len(self.noise)

    @property
    def n_observed(self) -> int:
        """Messages that are read in all rounds."""
        return sum(len(self.heard[t % len(self.heard)]) for t in range(self.n_rounds))

    @property
    def smallest(self) -> float:
        """A lower bound on the smallest singular value of B."""
        return float(self.noise[self.others].min() / (1 + self._norm))

    @property
    def condition(self) -> float:
        """Bound on the condition of the messages' covariance: |L| <= sum_{k < n_rounds} |W|^k."""
        most = float(self.noise.max()) * float((self._norm ** np.arange(self.n_rounds)).sum())
        return (most / self.smallest) ** 2 if self.smallest else inf

    @property
    def _norm(self) -> float:
        """A bound on the singular values of W, of all rounds."""
        sums = [abs(w).sum(0).max() * abs(w).sum(1).max() for w in self.matrices]
        return float(np.sqrt(max(sums)))

    def refuse_size(self, n_victims: int) -> None:
        """Raises ConfigError: there is not enough memory."""
        m, reach = self.n_observed, self._reached()
        needed = NUMBER * (COPIES * m * (reach + m) + 2 * m * self.n_rounds * n_victims)
        free = available()
        if free is not None and needed > free:
            raise ConfigError(
                "DPA022",
                f"local accounting of {m} messages that {reach} agents reach takes "
                f"{size_text(needed)}; {size_text(free)} are free",
                "read fewer rounds, fewer agents, or take fewer victims at once",
            )

    def _reached(self) -> int:
        """Agents in the adversary's light cone, over all rounds."""
        there = np.zeros(self.n_agents, dtype=bool)
        for t in range(self.n_rounds - 1, -1, -1):
            W = self.matrices[t % len(self.matrices)]
            there = (abs(W).T @ there.astype(np.float64)) != 0
            there[self.heard[t % len(self.heard)]] = True
        return int(there.sum())


def _heard(W: Matrix, adversary: ThreatModel) -> Indices:
    """Agents, other than its own, whose messages an adversary reads in a round."""
    receivers, senders = W.nonzero()
    linked = receivers != senders
    receivers, senders = receivers[linked], senders[linked]
    if adversary.kind != "external":
        read = np.isin(receivers, adversary.agents)
    elif adversary.reads_every_link:
        read = np.ones(len(senders), dtype=bool)
    else:
        n = W.shape[0]
        links = np.array(adversary.links or (), dtype=np.int64).reshape(-1, 2)
        read = np.isin(senders.astype(np.int64) * n + receivers, links[:, 0] * n + links[:, 1])
    return np.setdiff1d(senders[read], adversary.agents).astype(np.int64)


class _LocalView(NamedTuple):
    """What an adversary holds of a run, in standard deviations of its noise."""

    shifts: Array  # [rank, n_rounds, n_victims]: of a use of each record
    noiseless: Mask  # [n_victims]: whether a use shows where there is no noise
    errors: Array  # [n_rounds]: what is left out of a use's column in the L2 norm, at most
    touched: int

    def grams(self, schema: Participation) -> list[Tensor]:
        """H of each class of rounds that a record may be used in, [n_victims, k, k]."""
        classes = [rounds.numpy() for rounds in schema.classes(len(self.errors))]
        parts = [torch.from_numpy(self.shifts[:, rounds]) for rounds in classes]
        return [torch.einsum("rsv,rtv->vst", part, part) for part in parts]

    def error(self, schema: Participation, gossip: _SparseGossip) -> tuple[float, float]:
        """What mu is off by at most: relative to itself, and beside that. Raises ConfigError."""
        if not self.errors.any():
            return 0.0, 0.0
        s = gossip.smallest
        slope = float(np.linalg.norm(self.errors)) * float(gossip.noise.max())
        if slope >= s:
            raise ConfigError(
                "DPA071",
                f"cut: noise is off by up to {slope:.2g} where the least is {s:.2g}, so mu has no "
                "bound; expected a smaller cut, and 0 where an agent has no noise",
            )
        uses = max(
            float(self.errors[rounds[i : i + schema.times].numpy()].sum())
            for rounds in schema.classes(len(self.errors))
            for i in range(len(rounds) - schema.times + 1)
        )
        return slope / s, uses / s


def _swept(gossip: _SparseGossip, victims: Indices, cut: float) -> _LocalView:
    """From the last round to the first."""
    n, T, period = gossip.n_agents, gossip.n_rounds, len(gossip.matrices)
    X: Matrix = sparse.csr_array((0, n))
    whitener = _Whitener.of(gossip)
    left_out = np.zeros(0)  # bound on the L1 norm of each row's error
    columns, errors, touched = list[Array](), np.zeros(T), np.zeros(n, dtype=bool)
    for t in range(T - 1, -1, -1):
        W, heard = gossip.matrices[t % period], gossip.heard[t % len(gossip.heard)]
        X, dropped = _without_small(X @ W, cut)
        left_out = left_out * float(abs(W).sum(1).max()) + dropped
        left_out = np.append(left_out, np.zeros(len(heard)))
        X = _with_units(X, heard)
        errors[t] = np.linalg.norm(left_out)
        touched |= abs(X).sum(0) > 0
        whitener.add(X, last=t == 0)
        columns.append(_dense(X[:, victims]))
    shifts = np.zeros((X.shape[0], T, len(victims)))
    for t, column in zip(range(T - 1, -1, -1), columns, strict=True):
        shifts[: len(column), t] = column
    whitened, rest = whitener.whitened(shifts.reshape(len(shifts), -1))
    of_uses = T, len(victims)  # shape without rows, if no message has noise
    shown = np.asarray((np.abs(rest) > NOISELESS).reshape(len(rest), *of_uses).any((0, 1)))
    whitened = whitened.reshape(len(whitened), *of_uses)
    return _LocalView(whitened, shown, errors, int(touched.sum()))


class _Whitener:
    """The covariance C = B B' of the messages, from the blocks of B in turn.

    Where ``s`` bounds the singular values of B from below, C is well conditioned, and is summed up
    and factored (Cholesky). With equal rounds a block of it is the block of one round earlier, and
    one product more: C = C moved by a round + X_1 N N' X_1' makes one product of all. Elsewhere the
    triangular factor of B' is updated (QR), and of it what is rounding is left out.
    """

    def __init__(self, gossip: _SparseGossip, is_well_conditioned: bool) -> None:
        self._noise, self._T = gossip.noise, gossip.n_rounds
        self._is_equal, self._is_summed = len(gossip.matrices) == 1, is_well_conditioned
        self._C = np.zeros((gossip.n_observed,) * 2) if is_well_conditioned else np.zeros((0, 0))
        self._R = np.zeros((0, 0))

    @classmethod
    def of(cls, gossip: _SparseGossip) -> "_Whitener":
        return cls(gossip, gossip.condition <= WELL_CONDITIONED)

    def add(self, X: Matrix, last: bool) -> None:
        """A block of B, from that of the last round to that of the first."""
        there = np.flatnonzero(abs(X).sum(0))
        if self._is_summed and self._is_equal and not last:
            return
        B = _dense(X[:, there]) * self._noise[there]
        if not self._is_summed:
            self._R = factor_with(self._R, B.T)
            return
        m = len(B)
        self._C[:m, :m] += B @ B.T
        if self._is_equal:
            C = self._C.reshape(self._T, m // self._T, self._T, m // self._T)
            for t in range(self._T - 2, -1, -1):
                C[t, :, :-1] += C[t + 1, :, 1:]

    def whitened(self, shifts: Array) -> tuple[Array, Array]:
        """Shifts [m, *] in standard deviations of the noise, and what of them no noise hides."""
        if self._is_summed:
            L = cholesky(self._C, lower=True, overwrite_a=True, check_finite=False)
            found = solve_triangular(L, shifts, lower=True, check_finite=False)
            return found, np.zeros((1, shifts.shape[1]))
        _, S, V = np.linalg.svd(self._R, full_matrices=False)
        V, S = V[RANK * S.max() < S], S[RANK * S.max() < S]
        along = V @ shifts
        return along / S[:, None], shifts - V.T @ along


def _without_small(X: Matrix, cut: float) -> tuple[Matrix, Array]:
    """Rows without entries up to ``cut``, and how much was dropped of each in the L1 norm."""
    if not cut:
        return X, np.zeros(X.shape[0])
    if isinstance(X, np.ndarray):
        small = np.where(np.abs(X) <= cut, X, 0.0)
        return X - small, np.abs(small).sum(1)
    small = sparse.csr_array(X.copy())
    small.data[np.abs(small.data) > cut] = 0.0
    X = sparse.csr_array(X - small)
    X.eliminate_zeros()
    return X, np.asarray(abs(small).sum(1)).ravel()


def _with_units(X: Matrix, heard: Indices) -> Matrix:
    """Append a row e_j for each j; the result is dense if many entries are not 0."""
    m, n = len(heard), X.shape[1]
    units = sparse.csr_array((np.ones(m), (np.arange(m), heard)), shape=(m, n))
    if isinstance(X, np.ndarray):
        return np.concatenate([X, units.toarray()])
    X = sparse.csr_array(sparse.vstack([X, units]))
    return X.toarray() if X.nnz > DENSE * X.shape[0] * n else X


def _dense(X: Matrix) -> Array:
    return X if isinstance(X, np.ndarray) else X.toarray()
