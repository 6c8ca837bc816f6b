"""D-PSGD, and DP-DPSGD: the same with per-record clipping and Gaussian noise at every agent."""

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import PositiveFloat, model_validator
from torch import Tensor

from dpaudit.defense import (
    CHANGED_RECORDS,
    Adjacency,
    Bracket,
    Defense,
    Deferred,
    GaussianDefense,
    Gradient,
    Graph,
    Messages,
    Noise,
    Observable,
    ObservedGradient,
    Round,
    Setting,
    Stated,
    Target,
    ThreatModel,
    View,
    broadcast,
    known_rounds,
    refuse_unless_symmetric,
    releases,
    replayed,
    start_and_step,
)

ASSUMPTION = "Assumption 1 of Lian et al. 2017"


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times what was sent last


class DPSGD(Defense):
    """Lian et al. 2017, Algorithm 1 (D-PSGD); rows of X, V [..., n_agents, d] are agents.

    Round k with a symmetric doubly stochastic W is
        1.  X <- V - eta grad F(X), sent to the neighbours
        2.  V <- W X
    which is x_i <- sum_j w_ij x_j - eta grad F_i(x_i), counted such that the gradient of a round is
    in the message of that round. V starts as W times the initial models, which are not sent.
    """

    paper: ClassVar[str] = "Lian, Zhang, Zhang, Hsieh, Zhang, Liu: D-PSGD"
    claims: ClassVar[str] = "none"
    messages: ClassVar[Mapping[str, str]] = {
        "x": "the model after the round; holds the sender's gradient without noise"
    }
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "the mean gradient of the batch of the round, without noise",
    }

    learning_rate: PositiveFloat = 0.05  # eta

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, setting.network.at(1).mix(X))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, V = state
        G = gradient(X)
        X = V - self.learning_rate * G  # 1
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)}, {"gradient": G})  # 2

    def models(self, state: State) -> Tensor:
        return state.X

    def calibrate(self, setting: Setting) -> Self:
        """There is no noise to set.

        Raises:
            ConfigError: W is not symmetric, doubly stochastic and fixed in time.
        """
        if not self.allow_outside_theory:
            refuse_unless_symmetric(setting.network, "D-PSGD", ASSUMPTION)
        return self

    def without_noise(self) -> Self:
        return self

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's gradient as it is."""
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        return replayed(self, setting, victim, np.zeros(self.n_rounds), known)

    def _gradient(self, view: View, setting: Setting, target: Target) -> ObservedGradient:
        return _derived(view, setting, target, self.learning_rate)

    observables: ClassVar[Mapping[str, Observable]] = {
        "gradient": Observable(
            "(v_i - x_i) / eta with v_i mixed from the messages of the round before",
            {"x": (-1, 0)},
            "x",
            False,
            _gradient,
        )
    }


class DPDPSGD(GaussianDefense):
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

    paper: ClassVar[str] = "DP-DPSGD (D-PSGD with DP-SGD's gradient)"
    reconstructed: ClassVar[str] = (
        "the noise: the paper that compares with it names another method and gives no formula"
    )
    claims: ClassVar[str] = "(epsilon, delta)-DP over the run, one record"
    messages: ClassVar[Mapping[str, str]] = {
        "x": "the model after the round; holds the sender's clipped gradient under Gaussian noise "
        "of standard deviation eta sigma C / B, and past noise"
    }
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "the mean of the batch's clipped gradients, without noise",
    }

    learning_rate: PositiveFloat = 0.05  # eta
    perturb: Literal["gradient", "model"] = "gradient"

    @model_validator(mode="after")
    def _noise_of_the_model_is_given(self) -> Self:
        if self.epsilon is not None and self.perturb == "model":
            raise ValueError('no source sets the noise of perturb = "model"; give noise_multiplier')
        return self

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, setting.network.at(1).mix(X))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, V = state
        eta, C, B, sigma = self.learning_rate, self.clip_norm, gradient.batch_size, self.sigma
        if self.perturb == "gradient":
            S = gradient.clipped_sum(X, C)
            noisy = S + noise.gaussian("gradient", sigma * C, S)  # 1, times B
            sent = X = noisy.mul_(-eta / B).add_(V)  # 2
        else:
            S = gradient.clipped_sum(X, C, norm=1)
            X = V - eta * S / B
            sent = X + noise.laplace("x", eta * sigma * C / B, X)
        private = Deferred({"gradient": lambda: S / B})
        return Round(State(X, graph.mix(sent)), {"x": broadcast(graph, sent)}, private)

    def models(self, state: State) -> Tensor:
        return state.X

    def clip_norm_in(self, k: int) -> float | None:
        """Of the L2 norm: none where the L1 norm is clipped."""
        return self.clip_norm if self.perturb == "gradient" else None

    def calibrate(self, setting: Setting) -> Self:
        """sigma such that the agent with the fewest records is exactly (epsilon, delta)-DP.

        Raises:
            ConfigError: W is not symmetric, doubly stochastic and fixed in time.
        """
        if not self.allow_outside_theory:
            refuse_unless_symmetric(setting.network, "D-PSGD", ASSUMPTION)
        return super().calibrate(setting)

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        """eta C / B for each record, in the norm of the clipping."""
        if adjacency not in CHANGED_RECORDS:
            return {}
        moved = self.learning_rate * self.clip_norm / self.batch_size
        norm: Literal[1, 2] = 2 if self.perturb == "gradient" else 1
        return {"x": Stated(norm, CHANGED_RECORDS[adjacency] * moved)}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's clipped gradient under its noise."""
        if self.perturb == "gradient":
            return super().mechanism(setting, threat_model, victim)
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        rate = min(1.0, self.batch_size / setting.sizes[victim])
        return self._lasting(rate if known.any() else None)

    def _lasting(self, rate: float | None) -> Bracket:
        """Once a record was drawn, every later gradient of the batch may turn around: 2 B C.

        ``rate`` is that of one round which the view gives exactly, if there is one.
        """
        most = self.sigma / (2 * self.batch_size)
        return Bracket(
            least=() if rate is None else releases([self.sigma], self.sampling, rate, "laplace"),
            most=releases([most] * self.n_rounds, "none", 1.0, "laplace"),
            assumptions=(
                "gradients are taken at models that were not sent: the upper end counts that a "
                "record moves every clipped gradient after it, the lower end one round alone",
            ),
        )

    def _noisy_gradient(self, view: View, setting: Setting, target: Target) -> ObservedGradient:
        return _derived(view, setting, target, self.learning_rate)

    observables: ClassVar[Mapping[str, Observable]] = {
        "noisy-gradient": Observable(
            "(v_i - x_i) / eta with v_i mixed from the messages of the round before",
            {"x": (-1, 0)},
            "x",
            False,
            _noisy_gradient,
        )
    }


def _derived(
    view: View, setting: Setting, target: Target, learning_rate: float
) -> ObservedGradient:
    """The step over eta, and the model that the victim sent last, where its gradient was taken."""
    _, step = start_and_step(view, setting.network.at, "x", target)
    return ObservedGradient(
        step / learning_rate, view.sent_by("x", target.round - 1, target.victim)
    )
