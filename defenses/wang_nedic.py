"""Wang and Nedic: gradient methods whose coupling weakens, so that noise need not decay."""

from abc import ABC
from typing import Annotated

from pydantic import Field, PositiveFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Models, Noise, Round, Setting, Tracking

Power = Annotated[float, Field(ge=0)]

SLOPE = 0.1  # of all schedules, as in 1 + 0.1 k^power


class WeakeningDefense(dp.ScaledDefense, ABC):
    """Schedules of powers: steps lambda_k, coupling c_k and noise nu_k, with growing nu_k allowed.

        lambda_k = step_size / (1 + 0.1 k^v),    c_k = 1 / (1 + 0.1 k^u),    nu_k ~ 1 + 0.1 k^w

    An agent couples its own true state with the noisy ones it receives, so what a change of its
    function does lasts, and fades by c_k (1 - W_ii) in each round.
    """

    claims = (
        "pure epsilon-DP over any number of rounds, function, for gradients that agree in the end"
    )
    private = {"gradient": "grad f_i at the true model"}

    step_size: PositiveFloat = 0.02
    step_power: Power = 1.0  # v
    coupling_power: Power = 0.9  # u
    noise_power: Power = 0.2  # w

    def lam(self, k: int) -> float:
        """The step size of round k."""
        return self.step_size / (1 + SLOPE * k**self.step_power)

    def c(self, k: int) -> float:
        """The weakening factor of round k."""
        return 1 / (1 + SLOPE * k**self.coupling_power)

    def shape(self, k: int) -> float:
        return (1 + SLOPE * k**self.noise_power) / (1 + SLOPE)

    def assumed(self) -> tuple[str, ...]:
        return bounded(self.gradient_distance)

    def check_theory(self, setting: Setting) -> None:
        """Sums of steps and couplings have to diverge, and noise to be beaten."""
        super().check_theory(setting)
        u, v, w = self.coupling_power, self.step_power, self.noise_power
        if not (u <= 1 and v <= 1 and 2 * (u - w) > 1 and 2 * v - u > 1):
            raise dp.OutsideTheory(
                "DPA040",
                "step_power, coupling_power, noise_power: convergence needs u <= 1, v <= 1, "
                f"2 (u - w) > 1 and 2 v - u > 1, got v={v:g}, u={u:g}, w={w:g}",
            )


class WangNedic(WeakeningDefense):
    """Wang and Nedic, static consensus; rows of X, Z [..., n_agents, d] are agents.

        1.  Z = X + Lap(nu_k), sent to the neighbours
        2.  x_i+ = x_i + c_k sum over j != i of W_ij (z_j - x_i) - lambda_k grad f_i(x_i)

    Given all messages, x_i moves by D(k+1) <= (1 - c_k (1 - W_ii)) D(k) + delta lambda_k, where
    delta bounds the change of gradients between any two points: for gradients bounded by C in L1
    norm it is 2 C. Constant gradients attain it.

    With powers, D(k) falls like lambda_k / c_k, so the losses add up over all rounds for
    v + w - u > 1 only, while convergence needs u - w > 1/2 and v <= 1: no powers do both. The
    paper's finite epsilon needs functions whose gradients agree near the optimum, as Xie, Liu and
    Chai say.
    """

    paper = "Wang, Nedic: tailored gradient methods, static"
    reconstructed = (
        "the update is the standard form of what the abstract names; schedules are chosen here"
    )
    messages = {"x": "the model before the round, Laplace noise of scale nu_k, which may grow"}
    theory_graph = dp.undirected("the static method of Wang and Nedic")

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X = state.X
        Z = X + noise.laplace("x", self.nu(k), X)  # 1
        G = gradient(X)
        X = X + self.c(k) * pulled(graph, X, Z) - self.lam(k) * G  # 2
        return Round(Models(X), {"x": dp.broadcast(graph, Z)}, {"gradient": G})

    def moves(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, dp.L1Moves]:
        """D(k-1) of the class docstring, from both sides."""
        others = 1 - setting.network.at(1).own[victim].item()
        D = [0.0]
        for k in range(1, n_rounds):
            D.append((1 - self.c(k) * others) * D[-1] + self.gradient_distance * self.lam(k))
        return {"x": dp.L1Moves(D, D)}


class WangNedicTracking(WeakeningDefense):
    """Wang and Nedic, gradient tracking; rows of X, Y [..., n_agents, d] are agents.

    With Y = grad F(X) at the start, a_k = forgetting / (1 + 0.1 k^v), a row-stochastic R and a
    column-stochastic C on the same edges, round k is
        1.  X + Lap(nu_k) and Y + Lap(nu_k), sent to the neighbours
        2.  x_i+ = x_i + c_k sum over j != i of R_ij (received x_j - x_i) - lambda_k y_i
        3.  y_i+ = (1 - a_k) y_i + c_k sum over j != i of (C_ij received y_j - C_ji y_i)
                   + grad f_i(x_i+) - (1 - a_k) grad f_i(x_i)
    The sum of Y is that of the gradients; (1 - a_k) forgets old noise. With sampled batches a
    round's batch serves grad F(X+), and grad F(X) is the one already used.

    Reading: (2 - a_k) (delta + c) (lambda_k + 1), which Xie, Liu and Chai list as the least
    sensitivity, is what 2 and 3 give. Given all messages and with f = 1 - a_k - c_k (1 - C_ii),
        |du(k+1)| <= |f| |du(k)| + c_k (1 - C_ii) delta,    u = y - grad f
        |dx(k+1)| <= (1 - c_k (1 - R_ii)) |dx(k)| + lambda_k |dy(k)|,    |dy(k)| <= |du(k)| + delta
    where delta bounds the change of gradients between any two points, as for bounded gradients.
    """

    paper = "Wang, Nedic: tailored gradient methods, tracking"
    reconstructed = (
        "the update is inferred from the sensitivity that Xie, Liu and Chai list; schedules are "
        "chosen here"
    )
    messages = {
        "x": "the model before the round, Laplace noise of scale nu_k, which may grow",
        "y": "the tracker before the round, under as much noise; in round 1 the gradient",
    }

    state = Tracking
    theory_graph = dp.GraphCondition(
        "the tracking method of Wang and Nedic needs a strongly connected graph that does not "
        "vary in time",
        dp.does_not_vary,
    )

    forgetting: Annotated[float, Field(gt=0, le=1)] = 0.2  # a_k times 1 + 0.1 k^v

    def a(self, k: int) -> float:
        """How much of the tracker is forgotten in round k."""
        return self.forgetting / (1 + SLOPE * k**self.step_power)

    def step(
        self, state: Tracking, k: int, graph: Graph, gradient: Gradient, noise: Noise
    ) -> Round:
        X, Y, G = state.begun(k, gradient)
        kept, c = 1 - self.a(k), self.c(k)
        sent_x = X + noise.laplace("x", self.nu(k), X)  # 1
        sent_y = Y + noise.laplace("y", self.nu(k), Y)

        X_next = X + c * pulled(graph.pull, X, sent_x) - self.lam(k) * Y  # 2
        G_next = gradient(X_next)
        Y_next = kept * Y + c * pulled(graph.push, Y, sent_y) + G_next - kept * G  # 3
        sent = {"x": dp.broadcast(graph, sent_x), "y": dp.broadcast(graph, sent_y)}
        return Round(Tracking(X_next, Y_next, G_next), sent, {"gradient": G})

    def moves(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, dp.L1Moves]:
        """The recursions of the class docstring; constant gradients give them with their signs."""
        graph, delta = setting.network.at(1), self.gradient_distance
        R, C = (1 - g.own[victim].item() for g in (graph.pull, graph.push))
        x, u, y, flat_x, flat_y = [0.0], 0.0, [delta], [0.0], [delta]
        for k in range(1, n_rounds):
            stays, c = 1 - self.a(k) - self.c(k) * C, self.c(k)
            x.append((1 - c * R) * x[-1] + self.lam(k) * y[-1])
            flat_x.append((1 - c * R) * flat_x[-1] - self.lam(k) * flat_y[-1])
            u = abs(stays) * u + c * C * delta
            y.append(u + delta)
            flat_y.append(stays * flat_y[-1] + self.a(k) * delta)
        least_x, least_y = ([abs(move) for move in flat] for flat in (flat_x, flat_y))
        return {"x": dp.L1Moves(least_x, x), "y": dp.L1Moves(least_y, y)}


def pulled(graph: Graph, X: Tensor, received: Tensor) -> Tensor:
    """Sum over j != i of W_ij received_j, less x_i times the weights that leave or enter i.

    Columns of W that sum to 1 give those that leave (W_ji), rows those that enter (W_ij).
    """
    own = graph.own.to(X)[:, None]
    return graph.mix(received) - own * received - (1 - own) * X


def bounded(delta: float) -> tuple[str, ...]:
    """What bounds take for granted where gradients are taken at true models and are bounded."""
    return (
        f"the gradients of adjacent functions differ by at most {delta:g} in L1 norm between any "
        "two points, as those of functions with bounded gradients do",
    )
