"""Dyn-D2P: push-sum SGD with a decaying clip norm and a growing budget for each round."""

from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from scipy.optimize import brentq
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.accounting.families import clt_mu, gaussian_mu
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel

LARGEST_SQUARED_MU = 1.2564312086261697  # exp(x) - 1 < 2 x, on which (10) rests, up to this x

Above1 = Annotated[float, Field(gt=1)]
PerRound = tuple[PositiveFloat, ...]


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], biased by the push-sum weights
    w: Tensor  # [..., n_agents, 1], push-sum weights
    past_U: Tensor  # [..., n_agents, delay, d], what was sent in the last rounds
    past_w: Tensor  # [..., n_agents, delay, 1]


class DynD2P(dp.BudgetDefense):
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

    paper = "Zhu, Huang, Wang, Ji, Xu: Dyn-D2P"
    claims = "(epsilon, delta)-DP over the run, one record (Propositions 2 to 4)"
    messages = {
        "u": "the biased model after the local step; holds the sender's clipped gradient under "
        "Gaussian noise of standard deviation gamma sigma_k / B, and all noisy gradients before",
        "w": "push-sum weight; depends on the graph alone",
    }
    private = {"gradient": "the mean of the batch's clipped gradients, without noise"}

    waits = True
    delays = True
    needs_graph = dp.column_stochastic("Dyn-D2P (Assumption 1)")

    n_rounds: PositiveInt = 10_000  # K
    batch_size: PositiveInt = 1
    sampling: Literal["fixed", "poisson"] = "poisson"
    schedule: Literal["dyn", "dyn-c", "dyn-mu", "const", "general"] = "dyn"
    learning_rate: PositiveFloat = 0.03  # gamma
    clip_norm: PositiveFloat = 4.0  # C_0, or C-bar where it is constant
    clip_decay: Above1 = 2.0  # rho_c
    budget_growth: Above1 = 2.0  # rho_mu
    delta: dp.BudgetDelta = 1e-4  # epsilon, delta give the noise multiplier, 1 / mu_0 or sigma~
    clip_norms: PerRound | None = None  # C_k, for "general" alone
    noise_levels: PerRound | None = None  # sigma~_k, for "general" alone

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

    def noise_std(self, k: int) -> float:
        """The standard deviation sigma_k = C_k / mu_k of the noise on the sum."""
        return self.sigma * self.clip_norm_at(k) / self.relative_budget(k)

    def start(self, X: Tensor, setting: Setting) -> State:
        w = torch.ones_like(X[..., :1])
        return State(X, w, dp.in_flight(X, setting), dp.in_flight(w, setting))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, w, past_U, past_w = state
        C, sigma, B = self.clip_norm_at(k - 1), self.noise_std(k - 1), gradient.batch_size
        G = dp.of_acting(graph, X / w, lambda at, who: gradient.clipped_sum(at, C, who))  # 3-6
        N = dp.stepping(graph, noise.gaussian("u", sigma, G))  # 7-9
        U = X - self.learning_rate * (G + N) / B  # 10
        sent = {"u": dp.broadcast(graph, U), "w": dp.broadcast(graph, w)}  # 11
        X, past_U = dp.arrived(graph, U, past_U)  # 12
        w, past_w = dp.arrived(graph, w, past_w)  # 13
        return Round(State(X, w, past_U, past_w), sent, {"gradient": G / B})

    def models(self, state: State) -> Tensor:
        return state.X / state.w  # 14

    def check_theory(self, setting: Setting) -> None:
        if len(set(setting.sizes)) > 1:
            raise dp.OutsideTheory(
                "DPA040",
                f"data: Dyn-D2P needs the same number of records J at every agent (1), got "
                f"{min(setting.sizes)} to {max(setting.sizes)}",
                "allow_outside_theory = true uses the smallest",
            )
        if self.schedule == "general" and self.epsilon is not None:
            largest = (self.mu_0_for(min(setting.sizes)) * self._relative_budgets.max()) ** 2
            if largest > LARGEST_SQUARED_MU:
                raise dp.OutsideTheory(
                    "DPA040",
                    "defense.noise_levels: (10) rests on exp(x) - 1 < 2 x for x = mu_k^2, which "
                    f"holds up to {LARGEST_SQUARED_MU:.4f}; here mu_k^2 reaches {largest:.4g}",
                    "lower epsilon, or set allow_outside_theory = true",
                )

    def noise_multiplier_of(self, setting: Setting) -> float:
        """1 / mu_0 or sigma~ from epsilon and delta, with p = B / J.

        Where agents hold different numbers of records, which needs ``allow_outside_theory``, J is
        the smallest, so that all have at least the noise of the formula.
        """
        return 1 / self.mu_0_for(min(setting.sizes))

    def mu_0_for(self, size: int) -> float:
        """mu_0 at an agent with J = ``size`` records, by (8); 1 / sigma~ by (10) if "general"."""
        if self.epsilon is None:
            raise ValueError("(8) needs epsilon")
        mu_tot, p = gaussian_mu(self.epsilon, self.delta), self.sampling_rate(size)
        relative = self._relative_budgets
        if self.schedule == "general":
            return float(mu_tot / (p * np.sqrt(2 * np.sum(relative**2))))
        last_alone = np.sqrt(np.log1p((mu_tot / p) ** 2)) / relative.max()  # spends it all
        return float(brentq(lambda mu_0: clt_mu(p, mu_0 * relative) - mu_tot, 0, 1.01 * last_alone))

    @property
    def _relative_budgets(self) -> NDArray[np.float64]:
        return np.array([self.relative_budget(k) for k in range(self.n_rounds)])

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> dict[str, float]:
        """gamma C_k / B; w does not depend on data."""
        return {"u": self.learning_rate * self.clip_norm_at(k - 1) / self.batch_size, "w": 0.0}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Round k releases the clipped sum under noise of 1 / mu_k times its sensitivity C_k."""
        z = self.sigma / self._relative_budgets
        return dp.gaussian_rounds(self, setting, threat_model, victim, z)

    observables = {"noisy-gradient": dp.step_seen("u", weight="w")}
