"""Whisper: gossip SGD under the correlated noise that disturbs the models least."""

import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Self

import numpy as np
import torch
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Models, Noise, Round, Setting, ThreatModel
from dpaudit.defense.correlated import Left, correlated_releases, left_of, left_of_acting

UNHEARD = 1e-6  # of tr(Sigma), added to what is minimised


class Whisper(dp.GaussianSGD):
    """Rodio, Chen and Larsson 2025; rows of X, Y [..., n_agents, d] are agents.

    With Sigma = R R' the covariance between agents that minimises tr(W Sigma W') under
    [Sigma^-1]_ii <= 1 for all i, and S the sum over the batch of per-record gradients at X, clipped
    to norm C, round k is
        1.  N = sigma C R Z,  Z ~ N(0, I)
        2.  Y = X - eta (S + N) / B, sent to the neighbours
        3.  X <- W Y
    Who reads all messages knows the noise of agent i from the others' up to a variance of sigma^2
    C^2 / [Sigma^-1]_ii, which is at least sigma^2 C^2. That counts the noise of all others as
    known, so it holds against agents that pool their own noise as well.

    The semidefinite program has [Sigma^-1]_ii <= 1 as [[Sigma, e_i], [e_i', 1]] >= 0. Independent
    noise and DECOR's, scaled to the same guarantee, are feasible points of it.

    Under weather Sigma is that of the graph without it. An agent that takes no step adds no noise,
    so that what others added to cancel it is left.

    The second version of the paper calls it CorN-DSGD (arXiv:2501.14644).

    Readings: the noise is drawn in one place, as in the public code; how agents would draw it
    without a trusted party is open. Budgets follow from exact accounting, not from zCDP.
    """

    waits = True
    paper = "Rodio, Chen, Larsson: Whisper D-SGD"
    claims = "(epsilon, delta)-DP over the run, one record, for an outsider"
    messages = {
        "y": "the model after the local step; holds the sender's clipped gradient under Gaussian "
        "noise that is correlated with the others'"
    }

    theory_graph = dp.undirected("Whisper", ", for which its covariance is the best one", help=None)

    @property
    def packages(self) -> Mapping[str, str]:
        return {"cvxpy": "dpaudit[whisper]"}

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, eta, C, B = state.X, self.learning_rate, self.clip_norm, gradient.batch_size
        S = dp.of_acting(graph, X, lambda at, who: gradient.clipped_sum(at, C, who))
        N = dp.stepping(graph, self._noise(graph.planned or graph, S, noise))  # 1
        Y = X - eta * (S + N) / B  # 2
        return Round(Models(graph.mix(Y)), {"y": dp.broadcast(graph, Y)}, {"gradient": S / B})  # 3

    def _noise(self, graph: Graph, like: Tensor, noise: Noise) -> Tensor:
        """sigma C R Z; no agent knows Z itself."""
        std = self.sigma * self.clip_norm
        if std == 0:
            return torch.zeros_like(like)
        nobody = torch.zeros(graph.n_agents, 0, dtype=torch.long)
        Z = noise.shared("common", std, like, nobody)
        return factor(covariance(graph)).to(like) @ Z

    def calibrate(self, setting: Setting) -> Self:
        """sigma from the budget.

        Raises:
            DpauditError: the solver is not installed, or finds no solution.
        """
        calibrated = super().calibrate(setting)
        first = setting.network.at(1)
        covariance(first.planned or first)
        return calibrated

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """What others' messages leave open of the victim's noise."""

        def left_in(graph: Graph) -> Left:
            Sigma = covariance(graph.planned or graph)
            return Left(*(self.sigma**2 * part for part in left_of_acting(Sigma, graph)))

        said = "all agents share the initial model; no agent knows the common draws"
        return correlated_releases(self, setting, threat_model, victim, left_in, said)

    observables = {"noisy-gradient": dp.step_seen("y")}


@lru_cache(maxsize=32)
def covariance(graph: Graph) -> Tensor:
    """The minimiser of tr(W Sigma W') under [Sigma^-1]_ii <= 1, [n_agents, n_agents].

    What W averages away costs next to nothing, and is kept finite by a small part of tr(Sigma). The
    result is scaled up where the solver's error leaves an agent with less than it is to have.

    Raises:
        MissingPackage: cvxpy is not installed.
        DpauditError: it finds no solution.
    """
    try:
        cvxpy = import_module("cvxpy")
    except ImportError:
        raise dp.MissingPackage(
            "DPA023", 'whisper needs the package cvxpy: pip install "dpaudit[whisper]"'
        ) from None
    W, n = graph.W.numpy(), graph.n_agents
    Sigma = cvxpy.Variable((n, n), PSD=True)
    rows = np.eye(n)
    one = np.ones((1, 1))
    bounded = [cvxpy.bmat([[Sigma, e[:, None]], [e[None], one]]) >> 0 for e in rows]
    disturbed = cvxpy.trace((W.T @ W + UNHEARD * np.eye(n)) @ Sigma)
    problem = cvxpy.Problem(cvxpy.Minimize(disturbed), bounded)
    with warnings.catch_warnings():  # of accuracy: what is found is checked below
        warnings.simplefilter("ignore", UserWarning)
        problem.solve(solver=cvxpy.CLARABEL)
    if problem.status not in (cvxpy.OPTIMAL, cvxpy.OPTIMAL_INACCURATE):
        raise dp.DpauditError(
            "DPA041", f"whisper: the solver ends with {problem.status}, and no covariance"
        )
    found = torch.from_numpy((Sigma.value + Sigma.value.T) / 2)
    left = left_of(found).of_all.min().item()
    if not (math.isfinite(left) and left > 0.5):
        raise dp.DpauditError(
            "DPA041", "whisper: the solver's covariance leaves an agent without noise"
        )
    return found / min(left, 1.0)


def factor(covariance: Tensor) -> Tensor:
    """R with R R' = Sigma, [n_agents, n_agents]."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp(min=0).sqrt()
