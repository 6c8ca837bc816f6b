"""MAFALDA: noise that each agent correlates over its own rounds, for batches taken in turn."""

from functools import lru_cache
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.accounting.families import gaussian_mu
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel

MOST_ROUNDS = 400  # of which a correlation is optimised: its work grows with their cube
STEPS = 200  # of the optimisation, at most
MARGIN = 1e-6  # relative, of a noise multiplier from a budget, for rounding in the correlation
ENOUGH = 1e-7  # relative gain of a step at which it ends

Matrix = NDArray[np.float64]


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], W times what was sent last: where the next round starts
    Z: Tensor  # [..., n_agents, n_rounds, d], the draws so far, which an agent keeps


class Mafalda(dp.GaussianSGD):
    """Bellet, Cyffers and others 2026; rows of X, Y [..., n_agents, d] are agents.

    An agent's D records are b = floor(D / B) batches that it takes in turn, so that a record is
    used in rounds t, t + b, t + 2b, ... With S the sum over the batch of per-record gradients at X,
    clipped to norm C, a lower triangular matrix M [T, T], and F = M^-1, round k is
        1.  Z_k ~ N(0, I) at each agent,  N = sigma C sum over s <= k of F_ks Z_s
        2.  Y = X - eta (S + N) / B, sent to the neighbours
        3.  X <- W Y
    M times the noisy gradients of all rounds is M G + sigma C Z: one Gaussian release, in which a
    record moves the sum over its rounds of the columns of M, which is 1 at most in norm. It does
    whatever later gradients depend on, as F is lower triangular (adaptive composition).

    ``correlation``: "optimised" minimises tr(H X^-1), what the noises do to all models together,
    over X = M'M with orthogonal columns within the rounds of a record; "anti-pgd" has M of ones, so
    that each noise takes the last one back, "square-root" the root of that, "none" independent
    noise.

    Readings: rounds are those of one batch and one exchange each; the optimiser's start and end are
    ours.
    """

    paper = "MAFALDA-SGD: matrix factorisation for decentralized learning"
    reconstructed = "from the formulas of its optimisation; its code was not run"
    cyclic = True
    messages = {
        "y": "the model after the local step; holds the sender's clipped gradient under Gaussian "
        "noise that is correlated with that of its other rounds"
    }

    theory_graph = dp.undirected("MAFALDA", help=None)

    correlation: Literal["optimised", "square-root", "anti-pgd", "none"] = "optimised"
    cycle: PositiveInt | None = None  # b, batches that an agent has; found by ``calibrate``

    def start(self, X: Tensor, setting: Setting) -> State:
        shape = (*X.shape[:-1], self.n_rounds, X.shape[-1])
        return State(X, X.new_zeros(shape))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, eta, C, B = state.X, self.learning_rate, self.clip_norm, gradient.batch_size
        S = gradient.clipped_sum(X, C)
        Z = state.Z.clone()  # 1
        Z[..., k - 1, :] = noise.gaussian("z", self.sigma, S)
        F = torch.from_numpy(self._inverse(graph)[k - 1]).to(Z)
        N = C * torch.einsum("s,...sd->...d", F, Z)
        Y = X - eta * (S + N) / B  # 2
        sent = {"y": dp.broadcast(graph, Y)}
        return Round(State(graph.mix(Y), Z), sent, {"gradient": S / B})  # 3

    def _inverse(self, graph: Graph) -> Matrix:
        """F, [n_rounds, n_rounds]."""
        if self.cycle is None:
            raise ValueError("the cycle is not known yet: call calibrate first")
        of_graph = graph if self.correlation == "optimised" else None
        M = strategy(self.correlation, self.n_rounds, self.cycle, of_graph)
        return np.asarray(np.linalg.inv(M))

    def calibrate(self, setting: Setting) -> Self:
        """The cycle, and sigma from the budget.

        Raises:
            ConfigError: agents have cycles of different lengths, or there are too many rounds.
        """
        calibrated = super().calibrate(setting)
        cycles = {setting.sizes[i] // self.batch_size for i in setting.holders}
        if len(cycles) != 1 or 0 in cycles:
            raise dp.ConfigError(
                "DPA032",
                f"defense.batch_size: agents have {min(cycles)} to {max(cycles)} batches of "
                f"{self.batch_size} records; MAFALDA expects equally many at every agent, one at "
                "least: an even partition, or another batch_size",
            )
        if self.n_rounds > MOST_ROUNDS:
            raise dp.ConfigError(
                "DPA022",
                f"defense.n_rounds: a correlation of {self.n_rounds} rounds takes too long to "
                f"find; expected {MOST_ROUNDS} at most",
            )
        return calibrated.model_copy(update={"cycle": cycles.pop()})

    def noise_multiplier_for(self, size: int) -> float:
        """1 / mu of the one release that the whole run is."""
        assert self.epsilon is not None
        shift = 2 if self.adjacency == "replace-one" else 1
        return (1 + MARGIN) * shift / gaussian_mu(self.epsilon, self.delta)

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """The whole run is one Gaussian release; who does not read all of it learns less."""
        known = dp.known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        whole = dp.Release(family="gaussian", noise_multiplier=self.sigma)
        said = "batches are taken in turn, in an order that is public"
        return Bracket((whole,) if known.all() else (), (whole,), (said,))

    observables = {"noisy-gradient": dp.step_seen("y")}


@lru_cache(maxsize=64)
def strategy(correlation: str, n_rounds: int, cycle: int, graph: Graph | None = None) -> Matrix:
    """M [n_rounds, n_rounds], lower triangular, by which no record moves more than 1 in norm."""
    if correlation == "optimised":
        assert graph is not None
        return factor(optimised(disturbance(graph, n_rounds), cycle))
    column = np.ones(n_rounds)
    if correlation == "square-root":  # coefficients of (1 - x)^(-1/2)
        t = np.arange(1, n_rounds)
        column = np.concatenate([[1.0], np.cumprod((2 * t - 1) / (2 * t))])
    elif correlation == "none":
        column[1:] = 0.0
    t = np.arange(n_rounds)
    M = np.where(t[:, None] >= t, column[np.abs(t[:, None] - t)], 0.0)
    return np.asarray(M / sensitivity(M, cycle))


def sensitivity(M: Matrix, cycle: int) -> float:
    """The most that a record moves M's rows by, with gradients of norm 1 in all its rounds.

    The largest sum of |<m_s, m_t>| over rounds s, t of one record, which is attained by one
    direction where no inner product is negative.
    """
    X = np.abs(M.T @ M)
    return max(float(np.sqrt(X[t::cycle, t::cycle].sum())) for t in range(min(cycle, len(M))))


def disturbance(graph: Graph, n_rounds: int) -> Matrix:
    """H with tr(H X^-1) the sum over rounds of what the noises do to all models in the square.

    H_st = sum over r >= max(s, t) of tr(W^(2r - s - t + 2)), for a symmetric W.
    """
    values = np.linalg.eigvalsh(graph.W.numpy())
    powers = np.array([np.sum(values**m) for m in range(2 * n_rounds + 1)])
    s = np.arange(1, n_rounds + 1)
    H = np.zeros((n_rounds, n_rounds))
    for r in s:
        there = (s[:, None] <= r) & (s <= r)
        H += np.where(there, powers[np.clip(2 * r - s[:, None] - s + 2, 0, 2 * n_rounds)], 0.0)
    return H


def optimised(H: Matrix, cycle: int) -> Matrix:
    """The X that minimises tr(H X^-1), with 0 between rounds of a record and unit traces there.

    By conjugate gradients in the linear space that these constraints leave.
    """
    T = len(H)
    t = np.arange(T)
    of_record = (t[:, None] - t) % cycle == 0
    counts = np.bincount(t % cycle)[t % cycle]

    def projected(G: Matrix) -> Matrix:
        diagonal = G.diagonal()
        means = np.bincount(t % cycle, diagonal)[t % cycle] / counts
        return np.where(of_record, 0.0, (G + G.T) / 2) + np.diag(diagonal - means)

    X = np.diag(1.0 / counts)
    value, gradient = _value(H, X)
    direction = last = -projected(gradient)
    step = 0.1 / max(np.abs(last).max(), 1e-300)
    for _ in range(STEPS):
        slope = float(np.sum(gradient * direction))
        if slope >= 0:
            direction, slope = last, -float(np.sum(last * last))
        found = _searched(H, X, direction, value, slope, 4 * step)
        if found is None:
            break
        X, step, before = X + found * direction, found, value
        value, gradient = _value(H, X)
        if before - value <= ENOUGH * value:
            break
        downhill = -projected(gradient)
        beta = np.sum(downhill * (downhill - last)) / np.sum(last * last)
        direction, last = downhill + max(0.0, beta) * direction, downhill
    return X


def _searched(
    H: Matrix, X: Matrix, direction: Matrix, value: float, slope: float, step: float
) -> float | None:
    """A step along which X stays positive definite and the value falls; None: there is none."""
    for _ in range(60):
        try:
            np.linalg.cholesky(X + step * direction)
        except np.linalg.LinAlgError:
            step /= 2
            continue
        if _value(H, X + step * direction)[0] <= value + 1e-4 * step * slope:
            return step
        step /= 2
    return None


def _value(H: Matrix, X: Matrix) -> tuple[float, Matrix]:
    """tr(H X^-1) and its gradient."""
    inverse = np.linalg.inv(X)
    return float(np.sum(H * inverse)), -inverse @ H @ inverse


def factor(X: Matrix) -> Matrix:
    """The lower triangular M with M'M = X."""
    return np.asarray(np.linalg.cholesky(X[::-1, ::-1])[::-1, ::-1].T)
