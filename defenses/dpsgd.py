"""D-PSGD, and DP-DPSGD: the same with per-record clipping and Gaussian noise at every agent."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, PositiveFloat, model_validator
from scipy.optimize import brentq
from torch import Tensor

from dpaudit.accounting.releases import RecordAdjacency, epsilon
from dpaudit.defense import (
    CHANGED_RECORDS,
    Adjacency,
    Bracket,
    BudgetDelta,
    BudgetEpsilon,
    Capture,
    ConfigError,
    Defense,
    Derived,
    Gradient,
    Graph,
    Network,
    Noise,
    Observable,
    OutsideTheory,
    Round,
    Setting,
    Stated,
    Target,
    ThreatModel,
    View,
    broadcast,
    known_rounds,
    releases,
    replayed,
    start_and_step,
)

PRECISION = (
    1e-3  # relative, of a noise multiplier found from a budget; the error is on the safe side
)
LEAST_LOG_SIGMA, MOST_LOG_SIGMA = -13.0, 16.0  # between which it is looked for


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
            _refuse_unless_symmetric(setting.network)
        return self

    def without_noise(self) -> Self:
        return self

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's gradient as it is."""
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        return replayed(self, setting, victim, np.zeros(self.n_rounds), known)

    def _gradient(self, view: View, setting: Setting, target: Target) -> Derived:
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


class DPDPSGD(Defense):
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

    paper: ClassVar[str] = "DP-DPSGD (D-PSGD with DP-SGD's gradient; reconstructed)"
    claims: ClassVar[str] = "(epsilon, delta)-DP over the run, one record"
    messages: ClassVar[Mapping[str, str]] = {
        "x": "the model after the round; holds the sender's clipped gradient under Gaussian noise "
        "of standard deviation eta sigma C / B, and past noise"
    }
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "the mean of the batch's clipped gradients, without noise",
    }

    learning_rate: PositiveFloat = 0.05  # eta
    clip_norm: PositiveFloat = 2.0  # C
    epsilon: BudgetEpsilon | None = None
    delta: BudgetDelta = 1e-5
    adjacency: RecordAdjacency = "add-remove"  # that epsilon is meant for
    noise_multiplier: Annotated[float, Field(ge=0)] | None = None  # sigma; from epsilon if absent
    perturb: Literal["gradient", "model"] = "gradient"

    @model_validator(mode="after")
    def _noise_is_given_once(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either epsilon or noise_multiplier")
        if self.epsilon is not None and self.perturb == "model":
            raise ValueError('no source sets the noise of perturb = "model"; give noise_multiplier')
        return self

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, setting.network.at(1).mix(X))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, V = state
        eta, C, B, sigma = self.learning_rate, self.clip_norm, gradient.batch_size, self._sigma
        if self.perturb == "gradient":
            S = gradient.clipped_sum(X, C)
            G = (S + noise.gaussian("gradient", sigma * C, S)) / B  # 1
            sent = X = V - eta * G  # 2
        else:
            S = gradient.clipped_sum(X, C, norm=1)
            X = V - eta * S / B
            sent = X + noise.laplace("x", eta * sigma * C / B, X)
        return Round(State(X, graph.mix(sent)), {"x": broadcast(graph, sent)}, {"gradient": S / B})

    def models(self, state: State) -> Tensor:
        return state.X

    def clip_norm_in(self, k: int) -> float | None:
        """Of the L2 norm: none where the L1 norm is clipped."""
        return self.clip_norm if self.perturb == "gradient" else None

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_multiplier": 0.0, "epsilon": None})

    def calibrate(self, setting: Setting) -> Self:
        """sigma such that the agent with the fewest records is exactly (epsilon, delta)-DP.

        Raises:
            ConfigError: W is not symmetric, doubly stochastic and fixed in time.
        """
        if not self.allow_outside_theory:
            _refuse_unless_symmetric(setting.network)
        if self.noise_multiplier is not None:
            return self
        sigma = self.noise_multiplier_for(min(setting.sizes))
        return self.model_copy(update={"noise_multiplier": sigma})

    def noise_multiplier_for(self, size: int) -> float:
        """The least sigma that gives an agent with this many records its budget.

        Raises:
            ConfigError: next to no noise keeps to the budget, or none is certain to.
        """
        assert self.epsilon is not None
        rate, budget = min(1.0, self.batch_size / size), self.epsilon

        def excess(log_sigma: float) -> float:
            mechanism = releases([math.exp(log_sigma)] * self.n_rounds, self.sampling, rate)
            spent = epsilon(mechanism, self.delta, self.adjacency).high
            return math.log(min(max(spent, 1e-9), 1e9) / budget)  # nearly straight, and finite

        low = high = 0.0
        while excess(high) > 0:
            if high == MOST_LOG_SIGMA:
                raise ConfigError(self._unspent(high))
            low, high = high, high + 1
        while low == high or excess(low) < 0:
            if low == LEAST_LOG_SIGMA:
                raise ConfigError(self._unspent(low))
            low -= 1
        return math.exp(brentq(excess, low, high, xtol=PRECISION) + PRECISION)

    def _unspent(self, log_sigma: float) -> str:
        """Why there is no sigma up to this one, or down to it."""
        sigma = math.exp(log_sigma)
        budget = f"epsilon = {self.epsilon:g} at delta = {self.delta:g}"
        if log_sigma > 0:
            return (
                f"defense.delta: no noise_multiplier up to {sigma:.0e} is certain to keep "
                f"{budget}, as rounding errors of the accounting, up to 1e-9, count as delta; "
                "expected a larger delta, or noise_multiplier instead of epsilon"
            )
        return (
            f"defense.delta: {budget} is kept with next to no noise (noise_multiplier "
            f"{sigma:.0e}), as a record is drawn less often than that; expected delta far below "
            "1 / (number of records), or noise_multiplier instead of epsilon"
        )

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Capture
    ) -> Mapping[str, Stated]:
        """eta C / B for each record, in the norm of the clipping."""
        if adjacency not in CHANGED_RECORDS:
            return {}
        moved = self.learning_rate * self.clip_norm / self.batch_size
        norm: Literal[1, 2] = 2 if self.perturb == "gradient" else 1
        return {"x": Stated(norm, CHANGED_RECORDS[adjacency] * moved)}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's clipped gradient under its noise."""
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        if self.perturb == "model":
            rate = min(1.0, self.batch_size / setting.sizes[victim])
            return self._lasting(rate if known.any() else None)
        return replayed(self, setting, victim, np.full(self.n_rounds, self._sigma), known)

    def _lasting(self, rate: float | None) -> Bracket:
        """Once a record was drawn, every later gradient of the batch may turn around: 2 B C.

        ``rate`` is that of one round which the view gives exactly, if there is one.
        """
        most = self._sigma / (2 * self.batch_size)
        return Bracket(
            least=() if rate is None else releases([self._sigma], self.sampling, rate, "laplace"),
            most=releases([most] * self.n_rounds, "none", 1.0, "laplace"),
            assumptions=(
                "gradients are taken at models that were not sent: the upper end counts that a "
                "record moves every clipped gradient after it, the lower end one round alone",
            ),
        )

    @property
    def _sigma(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError("the noise is not set yet: call calibrate first")
        return self.noise_multiplier

    def _noisy_gradient(self, view: View, setting: Setting, target: Target) -> Derived:
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


def _refuse_unless_symmetric(network: Network) -> None:
    graph = network.at(1)
    if network.period != 1 or not (graph.symmetric and graph.doubly_stochastic):
        raise OutsideTheory(
            "graph: D-PSGD needs an undirected graph that does not vary in time, with a symmetric "
            "doubly stochastic W (Assumption 1 of Lian et al. 2017)"
        )


def _derived(view: View, setting: Setting, target: Target, learning_rate: float) -> Derived:
    """The step over eta, and the model that the victim sent last, where its gradient was taken."""
    _, step = start_and_step(view, setting.network.at, "x", target)
    return Derived(step / learning_rate, view.sent_by("x", target.round - 1, target.victim))
