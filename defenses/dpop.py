"""DPOP: decentralized gradient descent at the mixed model, under decaying Laplace noise."""

from pydantic import PositiveFloat

import dpaudit.defense as dp
from dpaudit.defense import Gradient, Graph, Models, Noise, Round, Setting

from .dgd import followed_step


class DPOP(dp.GeometricDefense):
    """DPOP (Huang, Mitra and Vaidya); rows of X, Z, U [..., n_agents, d] are agents.

    With c = gamma, q = q1 and p = q2, the steps alpha_k = c q^(k-1) and the noise nu_k =
    delta c p^k / (epsilon (p - q)), round k is
        1.  Z = X + Lap(nu_k), sent to the neighbours
        2.  U = W Z
        3.  X <- U - alpha_k grad F(U), each coordinate cut off at -radius and radius
    The original bounds all gradients by C2 in L2 norm and lets functions differ in any way: then
    delta = 2 C2 sqrt(d), in L1 norm. These are the schedules of Xie, Liu and Chai (5), as they
    compare the two.

    Departures: the noise of round k covers the step of round k-1, so the losses add up to
    epsilon / q2 and not to the epsilon that is claimed; ``align_noise`` divides the noise by q2,
    after which they do. The set of models is a box, or all of R^d as in that comparison.
    """

    paper = "DPOP (Huang, Mitra, Vaidya; schedules from secondary sources)"
    reconstructed = (
        "the schedules follow an independent public implementation; the original text was not read"
    )
    claims = "pure epsilon-DP over any number of rounds, function"
    messages = {
        "z": "the model before the round, Laplace noise of scale nu_k; all else that a round "
        "computes, but for the gradient, follows from the z of the round"
    }
    private = {"gradient": "grad f_i at W z, along which the next model is moved"}

    theory_graph = dp.undirected("DPOP")

    radius: PositiveFloat | None = None  # of the box that models are kept in; none: R^d

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X = state.X
        Z = X + noise.laplace("z", self.nu(k), X)  # 1
        U = graph.mix(Z)  # 2
        G = gradient(U)
        X = U - self.alpha(k) * G  # 3
        if self.radius is not None:
            X = X.clamp(-self.radius, self.radius)
        return Round(Models(X), {"z": dp.broadcast(graph, Z)}, {"gradient": G})

    def moves(self, n_rounds: int, setting: Setting, victim: int) -> dict[str, dp.L1Moves]:
        """z(k) by delta alpha_(k-1), given all z before, which a linear change of f attains.

        A box brings models closer in L1 norm, and at its edge together: no lower end is proven.
        """
        moved = self.steps_before(n_rounds)
        return {"z": dp.L1Moves(moved if self.radius is None else [0.0] * n_rounds, moved)}

    def assumed(self) -> tuple[str, ...]:
        if self.radius is None:
            return ()
        return ("models at the edge of their box hide what moved them: no lower end is proven",)

    combinations = followed_step(
        "z", lambda self, k: self.alpha(k), "alpha_k: the gradient less noise over alpha_k"
    )
