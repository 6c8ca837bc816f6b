"""Dyn-D2P: push-sum SGD with a decaying clip norm and a growing budget for each round."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from scipy.optimize import brentq
from torch import Tensor

from dpaudit.accounting.gaussian import clt_mu, gaussian_mu
from dpaudit.defense import (
    CHANGED_RECORDS,
    Adjacency,
    Bracket,
    BudgetDelta,
    BudgetEpsilon,
    Defense,
    Gradient,
    Graph,
    Messages,
    Noise,
    Observable,
    ObservedGradient,
    OutsideTheory,
    Round,
    Setting,
    Stated,
    Target,
    ThreatModel,
    View,
    broadcast,
    known_rounds,
    refuse_unless_column_stochastic,
    replayed,
    start_and_step,
)

LARGEST_SQUARED_MU = 1.2564312086261697  # exp(x) - 1 < 2 x, on which (10) rests, up to this x

Above1 = Annotated[float, Field(gt=1)]
PerRound = tuple[PositiveFloat, ...]


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], biased by the push-sum weights
    w: Tensor  # [..., n_agents, 1], push-sum weights


class DynD2P(Defense):
    """Zhu, Huang, Wang, Ji and Xu, Algorithm 1; rows of X, U [..., n_agents, d] are agents.

    From w = 1, round k = 0, ..., K - 1 with a column-stochastic P is
        3-6.    G = sum over the batch of per-record gradients at X / w, clipped to norm C_k
        7-9.    N ~ N(0, sigma_k^2) with sigma_k = C_k / mu_k
        10-11.  U = X - gamma (G + N) / B, sent with w to the out-neighbours
        12-14.  X <- P U,  w <- P w;  the models are X / w
    where, by ``schedule``,
        "dyn"      C_k = C_0 rho_c^(-k/K)   mu_k = mu_0 rho_mu^(k/K)
        "dyn-c"    C_k = C_0 rho_c^(-k/K)   mu_k = mu_0              (Algorithm 3)
        "dyn-mu"   C_k = C_0                mu_k = mu_0 rho_mu^(k/K) (Algorithm 4)
        "const"    C_k = C_0                mu_k = mu_0              (Algorithm 5)
        "general"  C_k, sigma_k = sigma~ sigma~_k as given           (Algorithm 2)
    and mu_0 follows from the budget by (8) and (9), sigma~ by (10).

    Readings: sigma_k is a standard deviation although it is called a variance. A batch takes each
    record with probability p = B / J ("poisson"), as the accounting has it, or exactly B of them
    ("fixed"), as the text has it; in the paper B is 1. Rounds are counted from 1 outside.
    """

    paper: ClassVar[str] = "Zhu, Huang, Wang, Ji, Xu: Dyn-D2P"
    claims: ClassVar[str] = "(epsilon, delta)-DP over the run, one record (Propositions 2 to 4)"
    messages: ClassVar[Mapping[str, str]] = {
        "u": "the biased model after the local step; holds the sender's clipped gradient under "
        "Gaussian noise of standard deviation gamma sigma_k / B, and all noisy gradients before",
        "w": "push-sum weight; depends on the graph alone",
    }
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "the mean of the batch's clipped gradients, without noise",
    }

    n_rounds: PositiveInt = 10_000  # K
    batch_size: PositiveInt = 1
    sampling: Literal["fixed", "poisson"] = "poisson"
    schedule: Literal["dyn", "dyn-c", "dyn-mu", "const", "general"] = "dyn"
    learning_rate: PositiveFloat = 0.03  # gamma
    clip_norm: PositiveFloat = 4.0  # C_0, or C-bar where it is constant
    clip_decay: Above1 = 2.0  # rho_c
    budget_growth: Above1 = 2.0  # rho_mu
    epsilon: BudgetEpsilon | None = None
    delta: BudgetDelta = 1e-4
    noise_multiplier: Annotated[float, Field(ge=0)] | None = None  # 1 / mu_0 or sigma~
    clip_norms: PerRound | None = None  # C_k, for "general" alone
    noise_levels: PerRound | None = None  # sigma~_k, for "general" alone

    @model_validator(mode="after")
    def _noise_is_given_once(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                "give either epsilon (the noise then follows (8), (9) or (10)) or noise_multiplier"
            )
        return self

    @model_validator(mode="after")
    def _sequences_are_for_the_general_form(self) -> Self:
        expected = self.n_rounds if self.schedule == "general" else None
        for name, given in (("clip_norms", self.clip_norms), ("noise_levels", self.noise_levels)):
            if (None if given is None else len(given)) != expected:
                raise ValueError(
                    f'{name} belongs to schedule "general" and has one number for each round'
                )
        return self

    def clip_norm_at(self, k: int) -> float:
        """C_k, for k = 0, ..., K - 1."""
        if self.clip_norms is not None:
            return self.clip_norms[k]
        decays = self.schedule in ("dyn", "dyn-c")
        return self.clip_norm * self.clip_decay ** (-k / self.n_rounds * decays)

    def clip_norm_in(self, k: int) -> float:
        return self.clip_norm_at(k - 1)

    def relative_budget(self, k: int) -> float:
        """mu_k / mu_0, or C_k / sigma~_k in the general form."""
        if self.noise_levels is not None:
            return self.clip_norm_at(k) / self.noise_levels[k]
        grows = self.schedule in ("dyn", "dyn-mu")
        return self.budget_growth ** (k / self.n_rounds * grows)

    def sigma(self, k: int) -> float:
        """The standard deviation sigma_k = C_k / mu_k of the noise on the sum."""
        return self._calibrated * self.clip_norm_at(k) / self.relative_budget(k)

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.ones_like(X[..., :1]))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, w = state
        C, sigma, B = self.clip_norm_at(k - 1), self.sigma(k - 1), gradient.batch_size
        G = gradient.clipped_sum(X / w, C)  # 3-6
        N = noise.gaussian("u", sigma, G)  # 7-9
        U = X - self.learning_rate * (G + N) / B  # 10
        sent = {"u": broadcast(graph, U), "w": broadcast(graph, w)}  # 11
        return Round(State(graph.mix(U), graph.mix(w)), sent, {"gradient": G / B})  # 12-13

    def models(self, state: State) -> Tensor:
        return state.X / state.w  # 14

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_multiplier": 0.0, "epsilon": None})

    def calibrate(self, setting: Setting) -> Self:
        """mu_0 from epsilon and delta by (8) or (9), sigma~ by (10), with p = B / J.

        Where agents hold different numbers of records, which needs ``allow_outside_theory``, J is
        the smallest, so that all have at least the noise of the formula.

        Raises:
            ConfigError: the theory does not allow the setting.
        """
        refuse_unless_column_stochastic(setting.network, "Dyn-D2P (Assumption 1)")
        if not self.allow_outside_theory and len(set(setting.sizes)) > 1:
            raise OutsideTheory(
                "DPA040",
                f"data: Dyn-D2P needs the same number of records J at every agent (1), got "
                f"{min(setting.sizes)} to {max(setting.sizes)}",
                "allow_outside_theory = true uses the smallest",
            )
        if self.noise_multiplier is not None:
            return self
        mu_0 = self.mu_0_for(min(setting.sizes))
        if self.schedule == "general" and not self.allow_outside_theory:
            self._refuse_large_budgets(mu_0)
        return self.model_copy(update={"noise_multiplier": 1 / mu_0})

    def mu_0_for(self, size: int) -> float:
        """mu_0 at an agent with J = ``size`` records, by (8); 1 / sigma~ by (10) if "general"."""
        if self.epsilon is None:
            raise ValueError("(8) needs epsilon")
        mu_tot, p = gaussian_mu(self.epsilon, self.delta), min(1.0, self.batch_size / size)
        relative = self._relative_budgets
        if self.schedule == "general":
            return float(mu_tot / (p * np.sqrt(2 * np.sum(relative**2))))
        last_alone = np.sqrt(np.log1p((mu_tot / p) ** 2)) / relative.max()  # spends it all
        return float(brentq(lambda mu_0: clt_mu(p, mu_0 * relative) - mu_tot, 0, 1.01 * last_alone))

    def _refuse_large_budgets(self, mu_0: float) -> None:
        largest = float((mu_0 * self._relative_budgets).max()) ** 2
        if largest > LARGEST_SQUARED_MU:
            raise OutsideTheory(
                "DPA040",
                "defense.noise_levels: (10) rests on exp(x) - 1 < 2 x for x = mu_k^2, which holds "
                f"up to {LARGEST_SQUARED_MU:.4f}; here mu_k^2 reaches {largest:.4g}",
                "lower epsilon, or set allow_outside_theory = true",
            )

    @property
    def _calibrated(self) -> float:
        if self.noise_multiplier is None:
            raise ValueError("the noise is not set yet: call calibrate first")
        return self.noise_multiplier

    @property
    def _relative_budgets(self) -> NDArray[np.float64]:
        return np.array([self.relative_budget(k) for k in range(self.n_rounds)])

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        """gamma C_k / B for each record; w does not depend on data."""
        if adjacency not in CHANGED_RECORDS:
            return {}
        moved = self.learning_rate * self.clip_norm_at(k - 1) / self.batch_size
        return {"u": Stated(2, CHANGED_RECORDS[adjacency] * moved), "w": Stated(2, 0.0)}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Round k releases the clipped sum under noise of 1 / mu_k times its sensitivity C_k."""
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        return replayed(self, setting, victim, self._calibrated / self._relative_budgets, known)

    def _noisy_gradient(self, view: View, setting: Setting, target: Target) -> ObservedGradient:
        X, step = start_and_step(view, setting.network.at, "u", target)
        w = view.sent_by("w", target.round, target.victim)
        return ObservedGradient(step / self.learning_rate, X / w)

    observables: ClassVar[Mapping[str, Observable]] = {
        "noisy-gradient": Observable(
            "(x_i - u_i) / gamma with x_i mixed from the messages of the round before",
            {"u": (-1, 0), "w": (0,)},
            "u",
            False,
            _noisy_gradient,
        )
    }
