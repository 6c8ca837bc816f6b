"""Decentralized gradient descent: without privacy, and under decaying Laplace noise."""

import math
from collections.abc import Callable
from typing import Any, Literal, Self

from pydantic import PositiveFloat, model_validator
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Models, Noise, Round, Setting


def followed_step(
    message: str, step_size: Callable[[Any, int], float], said: str
) -> dict[str, dp.Combination]:
    """What the victim went along: (sum_j W_ij m_j(k) - m_i(k + 1)) / step size, [..., 1, d]."""

    def derive(defense: Any, view: dp.View, setting: Setting, target: dp.Target) -> Tensor:
        k, victim, _ = target
        step = dp.mixed(view, setting.network.at, message, k, victim)
        step = step - view.sent_by(message, k + 1, victim)
        return (step / step_size(defense, k)).unsqueeze(-2)

    said = f"(sum_j W_ij {message}_j less the next {message}_i) / {said}"
    return {"step": dp.Combination(said, (message,), 1, derive)}


class DGD(dp.NoiselessFunctionDefense):
    """Xie, Liu and Chai (6): X <- W X - alpha grad F(X), where X is sent in the clear.

    With a constant alpha it stops at the X that solves (I - W) X + alpha grad F(X) = 0, which is
    not the optimum.
    """

    paper = "decentralized gradient descent, as in Xie, Liu, Chai (6)"
    needs_graph = dp.undirected("DGD", " (Assumption 2)")
    first_release = 2  # the model of round 1 does not depend on f
    messages = {
        "x": "the model before the round, without noise; W x less the next x is alpha times the "
        "gradient"
    }
    private = {"gradient": "grad f_i of the round, which a step of alpha goes along"}

    step_size: PositiveFloat = 0.01  # alpha

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X = state.X
        G = gradient(X)
        sent = {"x": dp.broadcast(graph, X)}
        return Round(Models(graph.mix(X) - self.step_size * G), sent, {"gradient": G})  # (6)

    combinations = followed_step("x", lambda self, k: self.step_size, "alpha: the gradient itself")


class DPDGD(dp.GeometricDefense):
    """Xie, Liu and Chai (45), (47) and (48); rows of X, Z [..., n_agents, d] are agents.

    Z = X + Lap(nu_k) is sent, with W_0 = diag(W), and then
        "noisy"           X <- W Z - alpha_k grad F(Z)                       (45)
        "true-consensus"  X <- W_0 X + (W - W_0) Z - alpha_k grad F(Z)       (47)
        "true-gradient"   X <- W Z - alpha_k grad F(X)                       (48)
    The L1 sensitivity Delta(k) of X after round k, given all Z, starts at 0 and obeys
        (45)  Delta(k) <= delta alpha_k
        (47)  Delta(k) <= W_ii Delta(k-1) + delta alpha_k
        (48)  Delta(k) <= sqrt(d) L alpha_k Delta(k-1) + delta alpha_k

    Departures: the paper leaves alpha_k and the noise open; they are those of its Algorithm 1, (5).
    In (48) the paper has sqrt(n_agents) for the factor between L1 and L2 norms of a model, which is
    sqrt(d). (48) is a bound alone: a linear change of f attains the first two in every round, while
    in (48) strong convexity can make it move X by less than in (45).
    """

    paper = "DP-DGD, as in Xie, Liu, Chai (45), (47), (48)"
    claims = "pure epsilon-DP over any number of rounds, function, for (45)"
    messages = {"z": "the model before the round, Laplace noise of scale nu_k"}
    private = {"gradient": "grad f_i of the round, at the noisy or the true model by variant"}

    theory_graph = dp.undirected("DP-DGD", " (Assumption 2)")

    variant: Literal["noisy", "true-consensus", "true-gradient"] = "noisy"
    smoothness: PositiveFloat | None = None  # L of the victim's function, which (48) depends on

    @model_validator(mode="after")
    def _variant_has_what_it_needs(self) -> Self:
        if self.variant == "true-gradient" and not self.noise_free and self.smoothness is None:
            raise ValueError(
                'variant "true-gradient" needs smoothness: the sensitivity of (48) grows with L'
            )
        return self

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, alpha = state.X, self.alpha(k)
        Z = X + noise.laplace("z", self.nu(k), X)
        sent = {"z": dp.broadcast(graph, Z)}

        G = gradient(X if self.variant == "true-gradient" else Z)
        U = graph.mix(Z)
        if self.variant == "true-consensus":
            U = U + graph.own.to(X)[:, None] * (X - Z)
        return Round(Models(U - alpha * G), sent, {"gradient": G})

    def sensitivities(self, n_rounds: int, setting: Setting, victim: int) -> list[float]:
        """Delta(1), ..., Delta(n_rounds) of one agent: the bounds in the class docstring."""
        W_ii = setting.network.at(1).own[victim].item()
        Delta, all_rounds = 0.0, []
        for k in range(1, n_rounds + 1):
            carried = {
                "noisy": 0.0,
                "true-consensus": W_ii,
                "true-gradient": math.sqrt(setting.d) * (self.smoothness or 0) * self.alpha(k),
            }[self.variant]
            Delta = carried * Delta + self.gradient_distance * self.alpha(k)
            all_rounds.append(Delta)
        return all_rounds

    def moves(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, dp.L1Moves]:
        """z(k) moves by Delta(k-1), given all z before. For (48) the least is (45): without
        curvature the two are the same."""
        most = [0.0, *self.sensitivities(n_rounds - 1, setting, victim)]
        flat = self.steps_before(n_rounds)
        return {"z": dp.L1Moves(flat if self.variant == "true-gradient" else most, most)}

    combinations = followed_step(
        "z",
        lambda self, k: self.alpha(k),
        "alpha_k: the gradient less noise over alpha_k, and in (47) more of it",
    )
