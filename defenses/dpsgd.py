"""D-PSGD, and DP-DPSGD: the same with per-record clipping and Gaussian noise at every agent."""

from dataclasses import replace
from typing import Literal, NamedTuple, Self

from pydantic import PositiveFloat, model_validator
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel

# links that are lost at random: Koloskova et al. 2020, arXiv:2003.10422
UNDIRECTED = replace(
    dp.undirected("D-PSGD", " (Assumption 1 of Lian et al. 2017)"),
    holds=lambda network: dp.does_not_vary(network.calm) and dp.is_symmetric(network),
)


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times what was sent last
    past: Tensor  # [..., n_agents, delay, d], what was sent in the last rounds


class DPSGD(dp.NoiselessDefense):
    """Lian et al. 2017, Algorithm 1 (D-PSGD); rows of X, V [..., n_agents, d] are agents.

    Round k with a symmetric doubly stochastic W is
        1.  X <- V - eta grad F(X), sent to the neighbours
        2.  V <- W X
    which is x_i <- sum_j w_ij x_j - eta grad F_i(x_i), counted such that the gradient of a round is
    in the message of that round. V starts as W times the initial models, which are not sent.
    """

    waits = True
    delays = True
    paper = "Lian, Zhang, Zhang, Hsieh, Zhang, Liu: D-PSGD"
    messages = {"x": "the model after the round; holds the sender's gradient without noise"}
    private = {"gradient": "the mean gradient of the batch of the round, without noise"}

    theory_graph = UNDIRECTED

    learning_rate: PositiveFloat = 0.05  # eta

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, setting.network.at(1).mix(X), dp.in_flight(X, setting))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, V, past = state
        G = dp.of_acting(graph, X, gradient)
        X = V - self.learning_rate * G  # 1
        after = State(X, *dp.arrived(graph, X, past))  # 2
        return Round(after, {"x": dp.broadcast(graph, X)}, {"gradient": G})

    observables = {"gradient": dp.step_seen("x", at="sent")}


class DPDPSGD(dp.GaussianSGD):
    """D-PSGD with a private gradient (DP-DPSGD); rows of X, V [..., n_agents, d] are agents.

    With S the sum over the batch of per-record gradients at X, clipped to norm C, round k is
        1.  G = (S + N(0, sigma^2 C^2)) / B
        2.  X <- V - eta G, sent to the neighbours
        3.  V <- W X
    ``perturb`` = "model" is a variant found elsewhere: L1 clipping, no noise on the gradient, and
    Laplace noise of scale eta sigma C / B on the model as it is sent and mixed. Its gradients are
    taken at a model that was not sent, so that a record's effect lasts.

    Reconstruction: DPDL compares with this method by the name of the asynchronous A(DP)2SGD, and
    gives no formula for the noise; here it follows from the budget by exact accounting.
    """

    waits = True
    delays = True
    paper = "DP-DPSGD (D-PSGD with DP-SGD's gradient)"
    reconstructed = "the noise, because DPDL, which compares with it, gives no formula of it"
    messages = {
        "x": "the model after the round; holds the sender's clipped gradient under Gaussian noise "
        "of standard deviation eta sigma C / B, and past noise"
    }

    theory_graph = UNDIRECTED

    perturb: Literal["gradient", "model"] = "gradient"

    @model_validator(mode="after")
    def _noise_of_the_model_is_given(self) -> Self:
        if self.epsilon is not None and self.perturb == "model":
            raise ValueError('no source sets the noise of perturb = "model"; give noise_multiplier')
        return self

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, setting.network.at(1).mix(X), dp.in_flight(X, setting))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, V, past = state
        eta, C, B, sigma = self.learning_rate, self.clip_norm, gradient.batch_size, self.sigma
        if self.perturb == "gradient":
            S = dp.of_acting(graph, X, lambda at, who: gradient.clipped_sum(at, C, who))
            noisy = S + dp.stepping(graph, noise.gaussian("gradient", sigma * C, S))  # 1, times B
            sent = X = noisy.mul_(-eta / B).add_(V)  # 2
        else:
            S = dp.of_acting(graph, X, lambda at, who: gradient.clipped_sum(at, C, who, norm=1))
            X = V - eta * S / B
            sent = X + noise.laplace("x", eta * sigma * C / B, X)
        private = dp.Deferred({"gradient": lambda: S / B})
        after = State(X, *dp.arrived(graph, sent, past))  # 3
        return Round(after, {"x": dp.broadcast(graph, sent)}, private)

    def clip_norm_in(self, k: int) -> float | None:
        """Clip norm in L2; None if the L1 norm is clipped."""
        return self.clip_norm if self.perturb == "gradient" else None

    @property
    def moved_norm(self) -> Literal[1, 2]:
        """The norm that is clipped."""
        return 2 if self.perturb == "gradient" else 1

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's clipped gradient under its noise."""
        if self.perturb == "gradient":
            return super().mechanism(setting, threat_model, victim)
        known = dp.known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        once = [self.sigma] if known.any() else []
        turned = self.sigma / (2 * self.batch_size)  # by a record in an earlier batch: 2 B C
        return Bracket(
            least=dp.batch_releases(self, setting.sizes[victim], once, "laplace"),
            most=dp.releases([turned] * self.n_rounds, "none", 1.0, "laplace"),
            assumptions=(
                "gradients are taken at models that were not sent: the upper end counts that a "
                "record moves every clipped gradient after it, the lower end one round alone",
            ),
        )

    observables = {"noisy-gradient": dp.step_seen("x", at="sent")}
