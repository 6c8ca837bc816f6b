"""ADP-VRSGP: push-sum SGD under noise that decays in steps, with gradients fused along a step."""

import math
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel

Numbers = NDArray[np.float64]  # [n_agents]


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], biased by the push-sum weights
    w: Tensor  # [..., n_agents, 1], push-sum weights
    F: Tensor  # [..., n_agents, d], fused noisy gradients g~


class ADPVRSGP(dp.Defense):
    """Wu, Liu, Wang, Yang and Yu; rows of X, V, G, F [..., n_agents, d] are agents.

    With A(t) = (floor(t / tau) + 10)^s, G_t = G_0 psi^t, u ~ N(0, sigma_i^2) and a
    column-stochastic P, round t = 0, ..., T - 1 is
        1.  G = (S + A(T-t) u) / B, with S the sum over the batch of per-record gradients at X / w,
            clipped to norm G_t
        2.  F <- (1 - theta) G + theta F, or F <- G where A(T-t) differs from A(T-t+1)
        3.  V = X - eta / beta(t) F, sent with w to the out-neighbours, where eta = K sqrt(n) / T^p
            and beta(t) = A(t) A(T-t) up to t = Xi T, A(t)^2 after it
        4.  X <- P V,  w <- P w;  the models are X / w
    and, with q_i = B / D_i,
        sigma_i = G_0 c2 q_i sqrt(ln(1 / delta) sum_(t<T) A(t)^-2) / epsilon_i.      (Theorem 1)

    The source has no algorithm boxes; this follows its text. Readings, each with its option:
    ``clip`` = "batch" clips the mean of the batch and adds A(T-t) u to it, undivided, as the
    clipping bias reads; only "sample" has the sensitivity that sigma_i counts on. The G of sigma_i
    is G_0, and constant; ``sigma_follows_clip`` shrinks the noise with G_t. ``swap_theta`` puts
    theta on the current gradient. ``tau`` = "remark-1" is the smallest that Remark 1 allows.
    Xi, K and c2 are not given. p is 1/2 - 2 s (the sign of the printed -1/2 - 2 s is a slip).
    """

    n_rounds: PositiveInt = 1_000  # T
    batch_size: PositiveInt = 64  # B
    clip: Literal["sample", "batch"] = "sample"
    clip_norm: PositiveFloat = 0.1  # G_0
    clip_decay: Annotated[float, Field(gt=0, le=1)] = 0.99  # psi
    sigma_follows_clip: bool = False
    fusion: Annotated[float, Field(ge=0, lt=1)] = 0.5  # theta
    swap_theta: bool = False
    tau: PositiveInt | Literal["remark-1"] = 5  # rounds of one noise level
    noise_growth: PositiveFloat = 0.2  # s
    step_scale: PositiveFloat = 1.0  # K
    step_exponent: float | None = None  # p; 1/2 - 2 s if absent
    turn: Annotated[float, Field(gt=0, lt=1)] = 0.5  # Xi; beta is continuous at 1/2
    # one, or one for each agent
    epsilon: dp.BudgetEpsilon | tuple[dp.BudgetEpsilon, ...] | None = None
    delta: dp.BudgetDelta = 1e-5
    c1: PositiveFloat = 1.0  # of Theorem 1, which leaves it open
    c2: PositiveFloat = 2.0  # of Theorem 1, which leaves it open; its proof gives at least sqrt(2)
    noise_multipliers: tuple[Annotated[float, Field(ge=0)], ...] | None = None  # sigma_i / G_0

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.ones_like(X[..., :1]), torch.zeros_like(X))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, w, F = state
        t, theta, B = k - 1, self.theta, gradient.batch_size
        sigma = X.new_tensor(self._sigmas(graph.n_agents))[:, None]

        u = noise.gaussian("v", self.relative_noise(t) * sigma, X)
        if self.clip == "sample":
            g = gradient.clipped_sum(X / w, self.clip_norm_at(t)) / B
            G = g + u / B  # 1
        else:
            g = dp.clip(gradient(X / w), self.clip_norm_at(t))
            G = g + u
        F = G if self.starts_plateau(t) else (1 - theta) * G + theta * F  # 2
        V = X - self.eta(graph.n_agents) / self.beta(t) * F  # 3
        sent = {"v": dp.broadcast(graph, V), "w": dp.broadcast(graph, w)}
        return Round(State(graph.mix(V), graph.mix(w), F), sent, {"gradient": g})  # 4

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        dp.refuse_unless_one_is_given(self, "epsilon", "noise_multipliers")
        if self.theta == 1:
            raise ValueError("swap_theta needs fusion above 0, or no new gradient is ever fused")
        return self

    @property
    def theta(self) -> float:
        """The weight of the fused gradients before."""
        return 1 - self.fusion if self.swap_theta else self.fusion

    def level(self, t: int) -> int:
        """Which plateau A(t) is on: it is (level + 10)^s."""
        tau = smallest_tau(self.theta) if self.tau == "remark-1" else self.tau
        return t // tau

    def A(self, t: int) -> float:
        return (self.level(t) + 10) ** self.noise_growth

    def beta(self, t: int) -> float:
        """What the step size eta is divided by in round t (2)."""
        T = self.n_rounds
        return self.A(t) * (self.A(T - t) if t <= self.turn * T else self.A(t))

    def eta(self, n_agents: int) -> float:
        s, p = self.noise_growth, self.step_exponent
        p = 1 / 2 - 2 * s if p is None else p
        return self.step_scale * math.sqrt(n_agents) / self.n_rounds**p

    def clip_norm_at(self, t: int) -> float:
        """G_t."""
        return self.clip_norm * self.clip_decay**t

    def clip_norm_in(self, k: int) -> float | None:
        """Clip norm of each record's gradient; None if the mean of the batch is clipped."""
        return self.clip_norm_at(k - 1) if self.clip == "sample" else None

    def relative_noise(self, t: int) -> float:
        """The standard deviation of round t's noise over sigma_i."""
        follows = self.clip_decay**t if self.sigma_follows_clip else 1.0
        return self.A(self.n_rounds - t) * follows

    def starts_plateau(self, t: int) -> bool:
        """Whether round t does not fuse, because the noise level is new."""
        return t == 0 or self.level(self.n_rounds - t) != self.level(self.n_rounds - t + 1)

    paper = "Wu, Liu, Wang, Yang, Yu: ADP-VRSGP"
    claims = "(epsilon_i, delta)-DP of agent i over the run, one record (Theorem 1)"
    messages = {
        "v": "the biased model after the local step; holds the sender's clipped gradient under "
        "Gaussian noise of standard deviation A(T-t) sigma_i, fused with those of the plateau",
        "w": "push-sum weight; depends on the graph alone",
    }
    private = {
        "gradient": "the batch's mean gradient, clipped as a mean or each record's, no noise"
    }

    needs_graph = dp.column_stochastic("ADP-VRSGP")

    def models(self, state: State) -> Tensor:
        return state.X / state.w

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_multipliers": (0.0,), "epsilon": None})

    def calibrate(self, setting: Setting) -> Self:
        """sigma_i / G_0 of each agent from epsilon_i and delta by Theorem 1.

        Raises:
            ConfigError: push-sum does not allow the setting, or there is not one epsilon or noise
                multiplier, or one for each agent.
        """
        super().calibrate(setting)
        if self.noise_multipliers is not None:
            _for_each_agent(self.noise_multipliers, setting.n_agents, "noise_multipliers")
            return self
        q, epsilon = self._rates_and_budgets(setting)
        A = np.array([self.A(t) for t in range(self.n_rounds)])
        multipliers = self.c2 * q * math.sqrt(math.log(1 / self.delta) * np.sum(A**-2)) / epsilon
        return self.model_copy(update={"noise_multipliers": tuple(multipliers.tolist())})

    def _rates_and_budgets(self, setting: Setting) -> tuple[Numbers, Numbers]:
        """q_i and epsilon_i of each agent."""
        assert self.epsilon is not None
        given = self.epsilon if isinstance(self.epsilon, tuple) else (self.epsilon,)
        q = np.minimum(1.0, self.batch_size / np.array(setting.sizes))
        return q, _for_each_agent(given, setting.n_agents, "epsilon")

    def check_theory(self, setting: Setting) -> None:
        if self.noise_multipliers is not None:
            return
        q, epsilon = self._rates_and_budgets(setting)
        bound = self.c1 * q**2 * self.n_rounds
        worst = int(np.argmax(epsilon / bound))
        if epsilon[worst] >= bound[worst]:
            raise dp.OutsideTheory(
                "DPA040",
                f"defense.epsilon: Theorem 1 needs epsilon_i < c1 q_i^2 T; agent {worst} has "
                f"{epsilon[worst]:g} >= {bound[worst]:.4g} with q_i = {q[worst]:.4g}",
            )

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> dict[str, float]:
        """eta / beta times the current gradient's share in F, times G_t: of the sum, which B
        divides, or of the clipped mean as the paper's proof has it.
        """
        t = k - 1
        share = 1.0 if self.starts_plateau(t) else 1 - self.theta
        moved = self.clip_norm_at(t) / (self.batch_size if self.clip == "sample" else 1)
        return {"v": moved * (share * self.eta(setting.n_agents) / self.beta(t)), "w": 0.0}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Round t releases G under A(T-t) sigma_i, over the sensitivity G_t of the clipped sum."""
        known = dp.known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        rounds = range(self.n_rounds)
        known &= [self.starts_plateau(t) or (t > 0 and bool(known[t - 1])) for t in rounds]
        sigma = self._sigmas(setting.n_agents)[victim]
        z = np.array([self.relative_noise(t) * sigma / self.clip_norm_at(t) for t in rounds])
        bracket = dp.gaussian_rounds(self, setting, threat_model, victim, z, known)
        if self.clip == "sample":
            return bracket
        said = bracket._replace(assumptions=bracket.assumptions + _TURNS)
        return dp.clipped_whole(said, self, setting.sizes[victim])

    def _sigmas(self, n_agents: int) -> list[float]:
        """sigma_i of each agent."""
        if self.noise_multipliers is None:
            raise ValueError("the noise is not set yet: call calibrate first")
        each = _for_each_agent(self.noise_multipliers, n_agents, "noise_multipliers")
        return (self.clip_norm * each).tolist()

    def _fused(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        X, step = dp.start_and_step(view, setting.network.at, "v", target)
        F = step * self.beta(target.round - 1) / self.eta(setting.n_agents)
        return dp.ObservedGradient(F, X / view.sent_by("w", target.round, target.victim))

    def _noisy(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        F, model = self._fused(view, setting, target)
        t = target.round - 1
        if self.starts_plateau(t):
            return dp.ObservedGradient(F, model)
        _, step = dp.start_and_step(view, setting.network.at, "v", target._replace(round=t))
        fused = step * self.beta(t - 1) / self.eta(setting.n_agents)
        return dp.ObservedGradient((F - self.theta * fused) / (1 - self.theta), model)

    observables = {
        "fused-gradient": dp.Observable(
            "(x_i - v_i) beta / eta with x_i mixed from the messages of the round before",
            {"v": (-1, 0), "w": (0,)},
            "v",
            False,
            _fused,
        ),
        "noisy-gradient": dp.Observable(
            "the fused gradient less theta times the one before, over 1 - theta: what was fused",
            {"v": (-2, -1, 0), "w": (0,)},
            "v",
            False,
            _noisy,
        ),
    }


_TURNS = (
    "a mean clipped to G_t moves by up to 2 G_t with one record, added, removed or replaced, and "
    "no change of data moves it further",
)


def fused_variance(theta: float, tau: int) -> float:
    """h: variance of a fused gradient's noise after ``tau`` equal rounds, over one round's.

    Source: Lemma 3. Exact for F_1 = G_1 and F_r = (1 - theta) G_r + theta F_(r-1).
    """
    return (1 - theta) / (1 + theta) + 2 / (1 + theta) * theta ** (2 * tau - 1)


PLATEAU = 0.01  # how close to its limit Remark 1 wants the variance of a fused gradient


def smallest_tau(theta: float, threshold: float = PLATEAU) -> int:
    """The smallest tau whose variance is within ``threshold`` of its limit (Remark 1).

    The paper's values 12, 6, 4 for theta 0.3, 0.5, 0.7 are not those of its formula (3, 5, 8) but
    near those of 1 - theta with a threshold of 0.001 (11, 6, 4).
    """
    limit, tau = (1 - theta) / (1 + theta), 1
    while fused_variance(theta, tau) - limit >= threshold:
        tau += 1
    return tau


def _for_each_agent(values: tuple[float, ...], n: int, name: str) -> Numbers:
    """[n]; one value stands for all. Raises ConfigError if there are neither one nor n."""
    if len(values) not in (1, n):
        raise dp.ConfigError(
            "DPA005", f"defense.{name}: give one, or one for each of {n} agents: {len(values)}"
        )
    return np.broadcast_to(np.array(values, dtype=float), (n,))
