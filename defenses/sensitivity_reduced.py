"""Gradient tracking whose tracker is never sent, under decaying Laplace noise."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, Self

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from dpaudit.defense import (
    Adjacency,
    Bracket,
    BudgetEpsilon,
    Capture,
    Combination,
    Defense,
    Gradient,
    Graph,
    Mechanism,
    Noise,
    OutsideTheory,
    Release,
    Round,
    Setting,
    Stated,
    Target,
    ThreatModel,
    View,
    broadcast,
    mixed,
)

Decay = Annotated[float, Field(gt=0, le=1)]

ROUNDING = 1e-9  # of an eigenvalue: on the bound itself the modes do not decay


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d]
    Y: Tensor  # [..., n_agents, d], never sent


class SensitivityReduced(Defense):
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

    paper: ClassVar[str] = "Xie, Liu, Chai: sensitivity reduction"
    claims: ClassVar[str] = "pure epsilon-DP over any number of rounds, function (Theorem 4.5)"
    messages: ClassVar[Mapping[str, str]] = {
        "z": "the model before the round, Laplace noise of scale nu_k; all else that a round "
        "computes, but for the gradient, follows from the z of all rounds"
    }
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "grad f_i at z, which the next model holds",
    }

    step_size: PositiveFloat = 0.001  # gamma
    correction: PositiveFloat = 1000.0  # beta
    step_decay: Decay = 0.97  # q1
    noise_decay: Decay = 0.99  # q2
    epsilon: BudgetEpsilon = 1.0  # of the whole run
    gradient_distance: PositiveFloat = 1.0  # delta: L1, between gradients of adjacent functions
    align_noise: bool = False
    noise_free: bool = False

    @model_validator(mode="after")
    def _noise_outlasts_the_steps(self) -> Self:
        if not self.noise_free and self.step_decay >= self.noise_decay:
            raise ValueError(
                f"step_decay={self.step_decay:g} must be below noise_decay={self.noise_decay:g}: "
                "the noise (5) is finite and positive for q1 < q2 only"
            )
        return self

    def alpha(self, k: int) -> float:
        """The step size of round k (5)."""
        return self.step_size * self.step_decay ** (k - 1)

    def nu(self, k: int) -> float:
        """The Laplace scale of round k (5); one round ahead if aligned."""
        if self.noise_free:
            return 0.0
        q1, q2 = self.step_decay, self.noise_decay
        nu_1 = self.step_size * self.gradient_distance * q2 / (self.epsilon * (q2 - q1))
        return nu_1 * q2 ** (k - 2 if self.align_noise else k - 1)

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.zeros_like(X))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, Y = state
        alpha, beta = self.alpha(k), self.correction

        Z = X + noise.laplace("z", self.nu(k), X)  # 1-2
        Z_bar = graph.mix(Z)  # 4a
        Y = Y + beta * (Z - Z_bar)  # 4b
        G = gradient(Z)
        X = Z_bar - alpha * (Y + G)  # 4c
        return Round(State(X, Y), {"z": broadcast(graph, Z)}, {"gradient": G})

    def models(self, state: State) -> Tensor:
        return state.X

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_free": True})

    def calibrate(self, setting: Setting) -> Self:
        """Itself: (5) sets the noise from the options alone.

        Raises:
            ConfigError: outside Assumption 2, (5) or the stability bound, unless
                ``allow_outside_theory``.
        """
        if not self.allow_outside_theory:
            refuse_outside_assumption_2(setting, "Algorithm 1 of Xie, Liu and Chai")
            self._refuse_outside_5()
            self._refuse_instability(setting.network.at(1))
        return self

    def _view_44(self, view: View, setting: Setting, target: Target) -> Tensor:
        k, victim, _ = target
        Y, third = self._tracker(view, setting, k, victim), view.sent_by("z", k, victim)
        third = (mixed(view, setting.network.at, "z", k, victim) - third) / self.alpha(k) - Y
        return torch.stack([view.sent_by("z", k, victim), Y, third], dim=-2)

    def _view_44_corrected(self, view: View, setting: Setting, target: Target) -> Tensor:
        k, victim, _ = target
        Y, following = self._tracker(view, setting, k, victim), view.sent_by("z", k + 1, victim)
        third = (mixed(view, setting.network.at, "z", k, victim) - following) / self.alpha(k) - Y
        return torch.stack([view.sent_by("z", k, victim), Y, third], dim=-2)

    def _tracker(self, view: View, setting: Setting, k: int, victim: int) -> Tensor:
        """y after (4b) of round k, from the z of all rounds up to it."""
        away = [
            view.sent_by("z", j, victim) - mixed(view, setting.network.at, "z", j, victim)
            for j in range(1, k + 1)
        ]
        return self.correction * torch.stack(away).sum(dim=0)

    combinations: ClassVar[Mapping[str, Combination]] = {
        "(44)": Combination(
            "z, y and (z_bar - z) / alpha_k - y, as printed in the paper", ("z",), 0, _view_44
        ),
        "(44)-corrected": Combination(
            "the same with the next z in the third, which is then grad f_i less noise over alpha_k",
            ("z",),
            1,
            _view_44_corrected,
        ),
    }

    def _refuse_outside_5(self) -> None:
        q1, q2 = self.step_decay, self.noise_decay
        if not q1 < q2 < 1:
            raise OutsideTheory(
                f"step_decay, noise_decay: (5) needs 0 < q1 < q2 < 1, got q1={q1:g} and q2={q2:g}"
            )
        if self.step_size * self.correction > 1:
            raise OutsideTheory(
                "step_size, correction: (5) needs gamma beta <= 1, got "
                f"{self.step_size:g} * {self.correction:g} = {self.step_size * self.correction:g}"
            )

    def _refuse_instability(self, graph: Graph) -> None:
        smallest = graph.smallest_eigenvalue
        bound = 2 * (1 + smallest) / (1 - smallest) if smallest < 1 else math.inf
        if self.step_size * self.correction >= bound * (1 - ROUNDING):
            raise OutsideTheory(
                f"graph: gamma beta = {self.step_size * self.correction:g} is unstable: it must be "
                f"below 2 (1 + l) / (1 - l) = {bound:.4g} for the smallest eigenvalue "
                f"l = {smallest:.4g} of W",
                "lower correction, or give the graph lazy = true",
            )

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Capture
    ) -> Mapping[str, Stated]:
        """delta alpha_(k-1), given all z before (Lemma 4.4); a linear change of f attains it."""
        if adjacency != "function":
            return {}
        return {"z": Stated(1, self.gradient_distance * self.alpha(k - 1) if k > 1 else 0.0)}

    def function_distance(self) -> float:
        return self.gradient_distance

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """z(k) of rounds 2 and later: Laplace noise nu_k over the sensitivity delta alpha_(k-1).

        Given all z, one agent's function moves its own x(k-1) alone, by alpha_(k-1) times the
        change of its gradient, and a linear change of f attains delta in every round. z(1) covers
        the initial model, which does not depend on f.
        """
        releases = laplace_releases(
            [self.nu(k) for k in range(2, self.n_rounds + 1)],
            [self.gradient_distance * self.alpha(k) for k in range(1, self.n_rounds)],
        )
        return function_bracket(releases, setting, threat_model, victim, self.gradient_distance)


def refuse_outside_assumption_2(setting: Setting, algorithm: str) -> None:
    """Raises OutsideTheory unless W is fixed, symmetric and doubly stochastic; it is connected."""
    graph = setting.network.at(1)
    if setting.network.period != 1 or not (graph.symmetric and graph.doubly_stochastic):
        raise OutsideTheory(
            f"graph: {algorithm} needs an undirected connected graph that does not vary in time, "
            "with a symmetric doubly stochastic W (Assumption 2)",
            "give it one, such as ring or complete",
        )


def laplace_releases(scales: list[float], sensitivities: list[float]) -> Mechanism:
    """One release for each round: Laplace noise of this scale over this L1 sensitivity.

    A round whose sensitivity vanishes against its noise in float64 shows nothing and is left out.
    """
    ratios = [
        nu / sensitivity if sensitivity > 0 else math.inf
        for nu, sensitivity in zip(scales, sensitivities, strict=True)
    ]
    return tuple(
        Release(family="laplace", noise_multiplier=ratio) for ratio in ratios if ratio < math.inf
    )


def function_bracket(
    releases: Mechanism, setting: Setting, threat_model: ThreatModel, victim: int, delta: float
) -> Bracket:
    """The bracket of releases that change with one agent's function, given all other messages."""
    graph = setting.network.at(1)
    follows = all(
        any(threat_model.sees(j, i) for i in graph.neighbours(j))
        for j in [victim, *graph.neighbours(victim)]
    )
    return Bracket(
        least=releases if follows else (),
        most=releases,
        assumptions=(
            "function adjacency: one agent's function changes, and its gradient by at most "
            f"{delta:g} in L1 norm at every point; whether real functions do is not checked here, "
            "and a record counts as such a change",
            "the adversary knows the initial models, and the functions of all other agents",
        ),
    )
