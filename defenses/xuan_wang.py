"""Xuan and Wang: robust gradient tracking on undirected graphs, under decaying Laplace noise."""

from typing import Annotated

from pydantic import Field

import dpaudit.defense as dp
from dpaudit.defense import Gathering, Gradient, Graph, Noise, Round, Setting

from .wang_nedic import bounded, pulled


class XuanWang(dp.GatheringDefense):
    """Robust gradient tracking (Xuan and Wang); rows of X, S [..., n_agents, d] are agents.

    With alpha_k = gamma q1^(k-1), nu_k = nu_1 q2^(k-1), a constant c and S = 0 at the start
        1.  X + Lap(nu_k) and S + Lap(nu_k), sent to the neighbours
        2.  s_i+ = s_i + c sum over j != i of W_ij (received s_j - s_i) + alpha_k grad f_i(x_i)
        3.  x_i+ = x_i + c sum over j != i of W_ij (received x_j - x_i) - (s_i+ - s_i)

    An agent couples its own true state, so given all messages and with e = c (1 - W_ii) a change
    of its function lasts:
        |ds(k+1)| <= (1 - e) |ds(k)| + alpha_k delta
        |dx(k+1)| <= (1 - e) |dx(k)| + e |ds(k)| + alpha_k delta
    where delta bounds the change of gradients between any two points. The losses of all rounds add
    up only if the noise falls more slowly than the steps and than 1 - e.
    """

    paper = "Xuan, Wang: robust gradient tracking"
    reconstructed = (
        "the update is the skeleton of robust gradient tracking; no text of the paper is available"
    )
    messages = {
        "x": "the model before the round, Laplace noise of scale nu_k",
        "s": "the gradients gathered before the round, Laplace noise of scale nu_k",
    }

    theory_graph = dp.undirected("the method of Xuan and Wang")

    coupling: Annotated[float, Field(gt=0, lt=1)] = 0.5  # c

    def step(
        self, state: Gathering, k: int, graph: Graph, gradient: Gradient, noise: Noise
    ) -> Round:
        X, S = state
        sent_x = X + noise.laplace("x", self.nu(k), X)  # 1
        sent_s = S + noise.laplace("s", self.nu(k), S)

        G = gradient(X)
        S_next = S + self.coupling * pulled(graph, S, sent_s) + self.alpha(k) * G  # 2
        X_next = X + self.coupling * pulled(graph, X, sent_x) - (S_next - S)  # 3
        sent = {"x": dp.broadcast(graph, sent_x), "s": dp.broadcast(graph, sent_s)}
        return Round(Gathering(X_next, S_next), sent, {"gradient": G})

    def check_theory(self, setting: Setting) -> None:
        super().check_theory(setting)
        own = setting.network.at(1).own.max().item()
        slowest = max(self.step_decay, 1 - self.coupling * (1 - own))
        if self.noise_scale != 0 and not slowest < self.noise_decay < 1:
            raise dp.OutsideTheory(
                "DPA040",
                "noise_decay: the losses of all rounds add up to no finite epsilon unless noise "
                "falls more slowly than steps and than what lasts of them; expected more than "
                f"{slowest:.4g} and below 1, got {self.noise_decay:g}",
            )

    def moves(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, dp.L1Moves]:
        """The recursions of the class docstring; constant gradients give them with their signs."""
        delta = self.gradient_distance
        e = self.coupling * (1 - setting.network.at(1).own[victim].item())
        x, s, flat_x = [0.0], [0.0], [0.0]
        for k in range(1, n_rounds):
            x.append((1 - e) * x[-1] + e * s[-1] + self.alpha(k) * delta)
            flat_x.append((1 - e) * flat_x[-1] + e * s[-1] - self.alpha(k) * delta)
            s.append((1 - e) * s[-1] + self.alpha(k) * delta)
        return {"x": dp.L1Moves([abs(move) for move in flat_x], x), "s": dp.L1Moves(s, s)}

    def assumed(self) -> tuple[str, ...]:
        return bounded(self.gradient_distance)
