"""Gradient tracking whose tracker is never sent, under decaying Laplace noise."""

import math
from functools import partial
from typing import NamedTuple

import torch
from pydantic import PositiveFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting

ROUNDING = 1e-9  # of an eigenvalue: on the bound itself the modes do not decay


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d]
    Y: Tensor  # [..., n_agents, d], never sent


class SensitivityReduced(dp.GeometricDefense):
    """Xie, Liu and Chai, Algorithm 1; rows of X, Y, Z [..., n_agents, d] are agents.

    With alpha_k = gamma q1^(k-1) and nu_k = gamma delta q2 / (epsilon (q2 - q1)) q2^(k-1) (5),
    round k is
        1-2.  Z = X + Lap(nu_k), sent to the neighbours
        4a.   Z_bar = W Z
        4b.   Y <- Y + beta (Z - Z_bar), with Y = 0 at the start
        4c.   X <- Z_bar - alpha_k (Y + grad F(Z))

    Departures: the paper calls nu a variance; here it is the Laplace scale, as its proof needs.
    The noise nu_k of z(k) covers x(k-1), which a change of f moves by delta alpha_(k-1), so the
    losses add up to epsilon / q2 and not to the epsilon of (12); ``align_noise`` divides the noise
    by q2, after which they add up to epsilon. gamma beta <= 1 alone is not enough: with alpha
    constant and no gradient, an eigenvalue l of W has the modes of m^2 - (1 + l - alpha beta
    (1 - l)) m + l, which decay exactly if alpha beta < 2 (1 + l) / (1 - l).
    """

    paper = "Xie, Liu, Chai: sensitivity reduction"
    claims = "pure epsilon-DP over any number of rounds, function (Theorem 4.5)"
    messages = {
        "z": "the model before the round, Laplace noise of scale nu_k; all else that a round "
        "computes, but for the gradient, follows from the z of all rounds"
    }
    private = {"gradient": "grad f_i at z, which the next model holds"}

    state = State
    theory_graph = dp.undirected("Algorithm 1 of Xie, Liu and Chai", " (Assumption 2)")

    correction: PositiveFloat = 1000.0  # beta

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, Y = state
        alpha, beta = self.alpha(k), self.correction

        Z = X + noise.laplace("z", self.nu(k), X)  # 1-2
        Z_bar = graph.mix(Z)  # 4a
        Y = torch.add(Y, Z - Z_bar, alpha=beta)  # 4b
        G = gradient(Z)
        X = (Y + G).mul_(-alpha).add_(Z_bar)  # 4c
        return Round(State(X, Y), {"z": dp.broadcast(graph, Z)}, {"gradient": G})

    def check_theory(self, setting: Setting) -> None:
        super().check_theory(setting)
        product = self.step_size * self.correction
        if product > 1:
            raise dp.OutsideTheory(
                "DPA040",
                "step_size, correction: (5) needs gamma beta <= 1, got "
                f"{self.step_size:g} * {self.correction:g} = {product:g}",
            )
        smallest = setting.network.at(1).smallest_eigenvalue
        bound = 2 * (1 + smallest) / (1 - smallest) if smallest < 1 else math.inf
        if product >= bound * (1 - ROUNDING):
            raise dp.OutsideTheory(
                "DPA040",
                f"graph: gamma beta = {product:g} is unstable: it must be below "
                f"2 (1 + l) / (1 - l) = {bound:.4g} for the smallest eigenvalue "
                f"l = {smallest:.4g} of W",
                "lower correction, or give the graph lazy = true",
            )

    def _seen(self, view: dp.View, setting: Setting, target: dp.Target, later: int = 0) -> Tensor:
        """z, y and (z_bar - the z of a later round) / alpha_k - y, [..., 3, d]."""
        k, victim, _ = target
        Z, Y = view.sent_by("z", k, victim), self._tracker(view, setting, k, victim)
        moved = dp.mixed(view, setting.network.at, "z", k, victim)
        moved = moved - view.sent_by("z", k + later, victim)
        return torch.stack([Z, Y, moved / self.alpha(k) - Y], dim=-2)

    def _tracker(self, view: dp.View, setting: Setting, k: int, victim: int) -> Tensor:
        """y after (4b) of round k, from the z of all rounds up to it."""
        away = [
            view.sent_by("z", j, victim) - dp.mixed(view, setting.network.at, "z", j, victim)
            for j in range(1, k + 1)
        ]
        return self.correction * torch.stack(away).sum(dim=0)

    combinations = {
        "(44)": dp.Combination(
            "z, y and (z_bar - z) / alpha_k - y, as printed in the paper", ("z",), 0, _seen
        ),
        "(44)-corrected": dp.Combination(
            "the same with the next z in the third, which is then grad f_i less noise over alpha_k",
            ("z",),
            1,
            partial(_seen, later=1),
        ),
    }

    def moves(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, dp.L1Moves]:
        """z(k) moves by delta alpha_(k-1) (Lemma 4.4), which a linear change of f attains.

        Given all z, one agent's function moves its own x(k-1) alone. z(1) covers the initial
        model, which does not depend on f.
        """
        moved = self.steps_before(n_rounds)
        return {"z": dp.L1Moves(moved, moved)}
