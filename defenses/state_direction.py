"""Gradient tracking with Laplace noise on models and trackers: DiaDSP, and Diff-TV-AB."""

from abc import ABC

from pydantic import NonNegativeFloat, PositiveFloat

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, Tracking

from .pp_doagt import smooth


class StateDirection(dp.ScaledDefense, ABC):
    """Rows of X, Y [..., n_agents, d] are agents; A is row-, B column-stochastic.

    With Y = grad F(X) at the start, round k is
        1.  X + Lap(nu_k) and Y + Lap(nu_k), sent to the neighbours
        2.  X+ = A_k (X + Lap) - alpha_k Y
        3.  Y+ = B_k (Y + Lap) + grad F(X+) - grad F(X)
    With sampled batches a round's batch serves grad F(X+), and grad F(X) is the one already used.

    Given all messages before, y(k+1) moves by the change of one gradient less that of the one
    before: by 2 delta at most in every round, whatever alpha is, under noise that decays. The sum
    of all rounds is infinite. It is finite, as both papers claim, for functions whose gradients
    differ by one and the same vector at all points: then that vector shows in y(1) alone, and what
    is left is what smoothness L makes of the model's own move,
        |dx(k+1)| = alpha_k |dy(k)|,    |dy(k+1)| <= L (|dx(k+1)| + |dx(k)|),    |dy(1)| = delta,
    in L1 norm. ``calibrate`` meets the budget by that sum. At the noise of Xie, Liu and Chai it
    gives all three budgets that they print for Diff-TV-AB, with one L of 2.85 for all.
    """

    claims = (
        "pure epsilon-DP over any number of rounds, function, for gradients that differ by a "
        "constant"
    )
    messages = {
        "x": "the model before the round, Laplace noise of scale nu_k; it holds the tracker of the "
        "round before times alpha",
        "y": "the tracker before the round, Laplace noise of scale nu_k; in round 1 the gradient",
    }
    private = {"gradient": "grad f_i at the true model that is sent"}

    state = Tracking

    step_size: PositiveFloat = 0.01  # alpha_1
    noise_decay: dp.Decay = 0.99  # q: nu_k = nu_1 q^(k-1)
    smoothness: NonNegativeFloat = 1.0  # L: gradients over models, both in L1 norm

    def alpha(self, k: int) -> float:
        """The step size of round k: constant."""
        return self.step_size

    def shape(self, k: int) -> float:
        return self.noise_decay ** (k - 1)

    def step(
        self, state: Tracking, k: int, graph: Graph, gradient: Gradient, noise: Noise
    ) -> Round:
        X, Y, G = state.begun(k, gradient)
        sent_x = X + noise.laplace("x", self.nu(k), X)  # 1
        sent_y = Y + noise.laplace("y", self.nu(k), Y)

        X_next = graph.pull.mix(sent_x) - self.alpha(k) * Y  # 2
        G_next = gradient(X_next)
        Y_next = graph.push.mix(sent_y) + G_next - G  # 3
        sent = {"x": dp.broadcast(graph, sent_x), "y": dp.broadcast(graph, sent_y)}
        return Round(Tracking(X_next, Y_next, G_next), sent, {"gradient": G})

    def moves(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, dp.L1Moves]:
        """At most what gradients that turn round each time make; at least y(1) and then x(2)."""
        x, y = self._moved(n_rounds, 2 * self.gradient_distance, self.smoothness)
        flat_x, flat_y = self._moved(n_rounds, 0.0, 0.0)
        return {"x": dp.L1Moves(flat_x, x), "y": dp.L1Moves(flat_y, y)}

    def claimed(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, list[float]]:
        """L1 moves for functions whose gradients differ by one vector at all points."""
        x, y = self._moved(n_rounds, 0.0, self.smoothness)
        return {"x": x, "y": y}

    def _moved(self, n_rounds: int, turn: float, L: float) -> tuple[list[float], list[float]]:
        x, y = [0.0], [self.gradient_distance]
        for k in range(1, n_rounds):
            x.append(self.alpha(k) * y[-1])
            y.append(turn + L * (x[-1] + x[-2]))
        return x, y

    def assumed(self) -> tuple[str, ...]:
        return smooth(self.smoothness)

    def _refuse_endless_losses(self, step_decay: float) -> None:
        """Raises OutsideTheory unless the claimed losses of all rounds add up.

        They grow like the root of m^2 = alpha L (m + 1), which must be below q.
        """
        alpha, L, q = self.step_size, self.smoothness, self.noise_decay
        if self.noise_scale == 0:
            return
        if q == 1:
            raise dp.OutsideTheory("DPA040", "noise_decay: the noise must decay, got 1")
        if step_decay == 1 and alpha * L * (q + 1) >= q**2:
            raise dp.OutsideTheory(
                "DPA040",
                "step_size: the losses of all rounds add up to no finite epsilon; expected "
                f"step_size below q^2 / (L (q + 1)) = {q**2 / (L * (q + 1)):.4g}, got {alpha:g}",
            )


class DiaDSP(StateDirection):
    """DiaDSP (Ding, Zhu, He, Chen and Guan): the rounds of ``StateDirection`` on undirected graphs.

    A = B = W is symmetric and doubly stochastic, alpha constant. The abstract gives geometric noise
    on both messages and linear convergence; that both have one scale is a choice made here.
    """

    paper = "DiaDSP (Ding, Zhu, He, Chen, Guan)"
    reconstructed = (
        "the update follows from the abstract and from the sensitivity that Xie, Liu and Chai "
        "list; the formula of its epsilon is in no available text"
    )
    theory_graph = dp.undirected("DiaDSP")

    def check_theory(self, setting: Setting) -> None:
        super().check_theory(setting)
        self._refuse_endless_losses(1.0)


class DiffTVAB(StateDirection):
    """Diff-TV-AB (Yang, He and Yang): the rounds of ``StateDirection`` on graphs that vary in time.

    A_k and B_k have the edges of round k and may be unbalanced. Xie, Liu and Chai let the steps
    decay, alpha_k = alpha_1 q1^(k-1); the paper's own are constant, q1 = 1.
    """

    paper = "Diff-TV-AB (Yang, He, Yang)"
    reconstructed = (
        "the update follows from the abstract and from the sensitivity that Xie, Liu and Chai "
        "list; the formula of its epsilon is inferred from the three budgets that they print"
    )

    step_decay: dp.Decay = 1.0  # q1

    def alpha(self, k: int) -> float:
        """The step size of round k."""
        return self.step_size * self.step_decay ** (k - 1)

    def check_theory(self, setting: Setting) -> None:
        self._refuse_endless_losses(self.step_decay)
