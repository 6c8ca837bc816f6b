"""NET-FLEET: gradient tracking with several local steps between exchanges, and a private form."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel

from .gradient_tracking import tracked

UNDIRECTED = dp.undirected("NET-FLEET")
RECONSTRUCTED = (
    "the full text was not available: the order of mixing and correction, and which batch "
    "corrects, are the best consistent reading of its description"
)


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], models after mixing
    Y: Tensor  # [..., n_agents, d], trackers after mixing
    X_sent: Tensor  # [..., n_agents, d], each agent's own model before mixing


# What is released of batch s, its gradient at a model, less that at an earlier one if there is one;
# and that gradient itself, without noise.
Released = Callable[[int, Tensor, Tensor | None], tuple[Tensor, Tensor]]


class NETFLEET(dp.NoiselessDefense):
    """Zhang et al. 2022, NET-FLEET; rows of X, Y [..., n_agents, d] are agents.

    With grad F(X; s) the gradient of batch s of the round and X' the model of the agent itself
    before it was mixed, round k with a symmetric doubly stochastic W is
        1.  Y <- Y + grad F(X; 0) - grad F(X'; 0),  in round 1 Y = grad F(X; 0)
        2.  for s = 1 .. K:  X_s = X_(s-1) - eta Y,  Y <- Y + grad F(X_s; s) - grad F(X_(s-1); s)
        3.  X_K and Y are sent to the neighbours;  X' = X_K,  X <- W X_K,  Y <- W Y
    so that a round has K + 1 batches, each used at two models. The columns of Y keep adding up to
    those of the last gradients, if agents use one batch throughout.

    Reading: the correction after mixing is counted to the next round, so that the gradient of a
    round is in the messages of that round.
    """

    paper = "Zhang et al. 2022: NET-FLEET"
    messages = {
        "x": "the model after the local steps; holds the sender's gradients without noise",
        "y": "the tracker after them, without noise; in round 1 with K = 1 it is a gradient itself",
    }
    reconstructed = RECONSTRUCTED
    private = {"gradient": "the gradient of the last batch of the round at the model that is sent"}

    theory_graph = UNDIRECTED

    step_size: PositiveFloat = 0.01  # eta
    local_steps: PositiveInt = 5  # K

    @property
    def batches_per_round(self) -> int:
        return self.local_steps + 1

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.zeros_like(X), X)

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        def released(s: int, X: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
            oracle = gradient.at_step(s)
            G = oracle(X)
            return (G if before is None else G - oracle(before)), G

        return _round(state, k, graph, self.step_size, self.local_steps, released)

    combinations = tracked(
        ": of an agent with one cost function, its gradient at the model it sends"
    )


class DPNETFLEET(dp.GaussianDefense):
    """NET-FLEET with a private gradient; rows of X, Y [..., n_agents, d] are agents.

    With S(X; s) the sum over batch s of per-record gradients at X, clipped to norm C, NET-FLEET has
        1.  (S(X; 0) - S(X'; 0) + N(0, sigma^2 (2C)^2)) / B;  in round 1 the gradient itself,
            (S(X; 0) + N(0, sigma^2 C^2)) / B
        2.  (S(X_s; s) - S(X_(s-1); s) + N(0, sigma^2 (2C)^2)) / B
    in the places of its differences of gradients.

    A difference asks one batch twice. A record's two clipped gradients may point against each
    other, so that adding it moves the difference by 2C; noise for C would be half of that.
    """

    paper = "DP-NETFLEET (NET-FLEET with DP-SGD's gradient)"
    messages = {
        "x": "the model after the local steps; holds the sender's differences of clipped gradients "
        "under Gaussian noise of standard deviation 2 eta sigma C / B for each, and past noise",
        "y": "the tracker after them; holds the same under 2 sigma C / B for each",
    }
    reconstructed = RECONSTRUCTED + "; no source gives its noise"
    private = {
        "gradient": "the mean of the last batch's clipped gradients at the model that is sent"
    }

    theory_graph = UNDIRECTED

    step_size: PositiveFloat = 0.01  # eta
    local_steps: PositiveInt = 5  # K

    @property
    def batches_per_round(self) -> int:
        return self.local_steps + 1

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.zeros_like(X), X)

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        C, B, sigma = self.clip_norm, gradient.batch_size, self.sigma

        def released(s: int, X: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
            oracle, sensitivity = gradient.at_step(s), C if before is None else 2 * C
            if before is None:
                D = S = oracle.clipped_sum(X, C)
            else:
                S, then = _at_both(oracle, X, before, C)
                D = S - then
            return (D + noise.gaussian(f"difference {s}", sigma * sensitivity, S)) / B, S / B

        return _round(state, k, graph, self.step_size, self.local_steps, released)

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every batch is one release at most; at least its part in the y of a known round."""
        known = dp.known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        takes = dp.steps_of(setting.network.at, self.n_rounds, victim)
        sums = [z for k in (np.flatnonzero(known & takes) + 1).tolist() for z in self._of_sum(k)]
        least = dp.batch_releases(self, setting.sizes[victim], sums)
        return super().mechanism(setting, threat_model, victim)._replace(least=least)

    def _of_sum(self, k: int) -> list[float]:
        """Noise of all differences of round k over the sensitivity of each, [K + 1]."""
        K, sigma = self.local_steps, self.sigma
        if k > 1:
            return [sigma * math.sqrt(K + 1)] * (K + 1)
        whole = sigma * math.sqrt(1 + 4 * K)  # over C: the first batch is asked once
        return [whole, *[whole / 2] * K]


def _at_both(gradient: Gradient, X: Tensor, before: Tensor, C: float) -> tuple[Tensor, Tensor]:
    """Clipped sums of one batch at two models of each agent, for which it is read once."""
    m = X.shape[-2]
    agents = torch.arange(m, device=X.device).repeat(2)
    now, then = gradient.clipped_sum(torch.cat([X, before], dim=-2), C, agents).split(m, dim=-2)
    return now, then


def _round(
    state: State, k: int, graph: Graph, eta: float, n_steps: int, released: Released
) -> Round:
    """Round k of all agents; what attacks are after is the last batch's gradients."""
    X, Y, X_sent = state
    D, G = released(0, X, None if k == 1 else X_sent)
    Y = Y + D  # 1
    for s in range(1, n_steps + 1):
        X, before = X - eta * Y, X
        D, G = released(s, X, before)
        Y = Y + D  # 2
    sent = {"x": dp.broadcast(graph, X), "y": dp.broadcast(graph, Y)}
    return Round(State(graph.mix(X), graph.mix(Y), X), sent, {"gradient": G})  # 3
