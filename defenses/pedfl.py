"""PEDFL: D-PSGD under Laplace noise that is scaled by how far apart the agents are."""

from typing import Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Models, Noise, Round, Setting, ThreatModel

from .dpps import distances


class PEDFL(dp.Defense):
    """Chen, Wang, Yu, Ren, Xu and Zheng, as Zhou, Xue and Chen run it; rows of X, H, M
    [..., n_agents, d] are agents.

    With a doubly stochastic W, and the mean gradient of the batch scaled down to L1 norm at most C,
    round t is
        1.  M = X + gamma_n Lap(S(t) / b), S(t) = max_ij ||x_i - x_j||_1, sent to the neighbours
        2.  X <- W M - gamma clip(grad F(X), C)
    ``order`` = "step-then-mix" is H = X - gamma clip(grad F(X), C), M = H + noise scaled by the
    distances between rows of H, X <- W M. No agent knows S(t) and none sends it.

    Reconstruction: the paper is closed. Its abstract has analog transmission, so that a channel
    sums what all send, (epsilon, delta)-DP, and a budget that shrinks with the number of
    neighbours; the comparison that this follows runs it "by the Laplace mechanism". Mixing before
    the step is the one order of D-PSGD that does not repeat SGPDP.

    Noise of this round widens the distance that scales the noise of the next, about d gamma_n / b
    times: with b / gamma_n below d, the dimension, models diverge.
    """

    paper = "Chen, Wang, Yu, Ren, Xu, Zheng: PEDFL"
    reconstructed = (
        "all but the family of the noise and W: the paper is closed, and the comparison that runs "
        "it gives neither its order of steps nor its noise"
    )
    claims = "pure b / gamma_n-DP of each round, agent identity (as it is compared)"
    messages = {
        "m": "the model under Laplace noise of scale gamma_n S / b, where S depends on the data; "
        "holds all gradients of the rounds before, and of this one if the step comes first",
        "sens": "S(t), which travels nowhere",
    }
    private = {"gradient": "the mean gradient of the batch, scaled down to L1 norm C"}

    theory_graph = dp.doubly_stochastic("PEDFL")

    order: Literal["mix-then-step", "step-then-mix"] = "mix-then-step"
    budget: PositiveFloat = 1.0  # b, if no epsilon is given
    epsilon: dp.BudgetEpsilon | None = None  # of a round, b / gamma_n: b is then epsilon gamma_n
    noise_rate: NonNegativeFloat = 0.001  # gamma_n
    learning_rate: PositiveFloat = 0.1  # gamma
    l1_clip_norm: PositiveFloat = 100.0  # C

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, first = state.X, self.order == "step-then-mix"
        G = dp.clip(gradient(X), self.l1_clip_norm, norm=1)
        E = -self.learning_rate * G

        H = X + E if first else X
        S = distances(H).amax(dim=(-2, -1))[..., None, None]
        M = H + self.noise_rate * noise.laplace("m", S / self.b, H)  # 1
        X = graph.mix(M) if first else graph.mix(M) + E  # 2
        nobody = graph.senders[:0]
        sent = {"m": dp.broadcast(graph, M), "sens": dp.Message(S, nobody, nobody, nobody)}
        return Round(Models(X), sent, {"gradient": G})

    def calibrate(self, setting: Setting) -> Self:
        """The same: b follows from a budget for each round, if one is given.

        Raises:
            ConfigError: epsilon meets no noise.
        """
        calibrated = super().calibrate(setting)
        if self.epsilon is not None and self.noise_rate == 0:
            raise dp.ConfigError(
                "DPA041", "defense.epsilon: needs a noise_rate above 0: b = epsilon * 0"
            )
        return calibrated

    @property
    def b(self) -> float:
        """b, from epsilon if that is given."""
        return self.budget if self.epsilon is None else self.epsilon * self.noise_rate

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_rate": 0.0, "epsilon": None})

    def sensitivity(
        self, k: int, setting: Setting, adjacency: dp.Adjacency, victim: int, sent: dp.Messages
    ) -> dict[str, dp.Stated]:
        """S(t) between any two agents' models, by definition; of a record nothing is stated."""
        if adjacency == "agent-identity":
            return {"m": dp.Stated(1, sent["sens"].payload.max().item())}
        return {}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """The noise of a message is 0 for some data: where all agents are equal and stay so.

        A record that is then added moves the next message of its agent, and nothing hides it. For
        other data, and for an agent in another's place, it is not so: no lower end is declared.
        """
        lag = int(self.order == "mix-then-step")  # rounds until a step is in a message
        unnoised = [0.0] * (self.n_rounds - lag)
        most = dp.batch_releases(self, setting.sizes[victim], unnoised, "laplace")
        per_round = self.b / self.noise_rate if self.noise_rate else float("inf")
        said = (
            "noise is scaled by the largest real distance between two agents, which is 0 for some "
            "data, so nothing bounds it from below. The claimed b / gamma_n "
            f"is {per_round:g} in each round, for an agent in another's place"
        )
        return Bracket((), most, (said,))

    def _noisy(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        """If the step comes after the mixing, it is in the message of the next round."""
        k, victim, _ = target
        if self.order == "step-then-mix":
            X, step = dp.start_and_step(view, setting.network.at, "m", target)
            return dp.ObservedGradient(step / self.learning_rate, X)
        step = dp.mixed(view, setting.network.at, "m", k, victim) - view.sent_by("m", k + 1, victim)
        return dp.ObservedGradient(step / self.learning_rate, view.sent_by("m", k, victim))

    observables = {
        "noisy-gradient": dp.Observable(
            "(mixture of the messages before the step - m_i after it) / gamma",
            {"m": (-1, 0, 1)},
            "m",
            False,
            _noisy,
        )
    }
