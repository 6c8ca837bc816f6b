"""MAPA: clip norm, noise and step size shrink together from stage to stage."""

from bisect import bisect_left
from itertools import accumulate
from math import ceil
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Models, Noise, Round, Setting, ThreatModel


class MAPA(dp.GaussianDefense):
    """Li, Yang, Ren, Shi and Zhao; rows of V, X [..., n_agents, d] are agents.

    With S the sum over the batch of per-record gradients at V, clipped to norm C_m, a round of
    stage m = 0, 1, ... is
        1.  X = V - eta_m (S + N(0, sigma^2 C_m^2)) / B, sent to the neighbours or to the server
        2.  V <- W X
    With a server V is its average, in 1 at the agents that take part, in 2 at the server. Between
    stages C_(m+1) = theta C_m, and of each
        b_m   = s^2 / B + d (sigma C_m / B)^2,   P_m = 2 b_m / (theta^2 C_m^2 (tau + 1))
        eta_m = 1 / (2 max(P_m, 1) L (tau + 1)), T_m = ceil(4 P_m^2 L (tau + 1)^2 F / b_m)
    with the smoothness L, the standard deviation s of a record's gradient, the gap F that is to be
    closed and the delay tau, all of them guesses. Noise of one sigma in all stages is one mechanism
    in every round, whatever the stage.

    Departures: the method has a server and sends clipped gradients to it at different times; here
    it sends models, in rounds, and also by gossip. Each record is clipped, as in the authors'
    ``MAPA_S`` scripts. ``noise_follows`` = "clip-squared" is the noise of one of their scripts:
    sigma C_m^2, too little by C_m once that is below 1.
    """

    paper = "Li, Yang, Ren, Shi, Zhao: MAPA"
    reconstructed = (
        "gossip and synchronous rounds; the stages follow the authors' code, not their text"
    )
    waits = True
    messages = {
        "x": "the model after the local step; holds the sender's clipped gradient under Gaussian "
        "noise of standard deviation eta_m sigma C_m / B, and all messages before",
        dp.AVERAGE: "the server's model; depends on messages alone",
    }
    private = {"gradient": "the mean of the batch's clipped gradients, without noise"}

    theory_graph = dp.doubly_stochastic("MAPA by gossip", by_gossip=True)

    clip_norm: PositiveFloat = 1.0  # C_0
    reduction: Annotated[float, Field(gt=0, lt=1)] = 0.8  # theta
    smoothness: PositiveFloat = 1.0  # L
    gradient_std: PositiveFloat = 1.0  # s
    initial_gap: PositiveFloat = 2.3  # F; of ten classes, the loss of a guess
    delay: NonNegativeInt = 0  # tau, in rounds
    stage_lengths: tuple[PositiveInt, ...] | None = None  # T_m; the last stage does not end
    learning_rates: tuple[PositiveFloat, ...] | None = None  # eta_m
    noise_follows: Literal["clip", "clip-squared"] = "clip"

    @model_validator(mode="after")
    def _stages_are_given_whole(self) -> Self:
        lengths, rates = self.stage_lengths, self.learning_rates
        if (lengths is None) != (rates is None):
            raise ValueError("give both stage_lengths and learning_rates, or neither")
        if lengths is not None and (not lengths or len(lengths) != len(rates or ())):
            raise ValueError("give one learning rate for each of stage_lengths, at least one")
        return self

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        V, average = dp.from_server(graph, state.X)
        eta, C, B = self.learning_rate_in(k), self.stage_clip_norm(k), gradient.batch_size

        S = dp.of_acting(graph, V, lambda models, acting: gradient.clipped_sum(models, C, acting))
        N = noise.gaussian("gradient", self.noise_multiplier_in(k) * C, S)
        X = V - eta * graph.acting(V) * (S + N) / B  # 1
        sent = {"x": dp.broadcast(graph, X), **average}
        return Round(Models(graph.mix(X)), sent, {"gradient": S / B})  # 2

    def stage(self, k: int) -> int:
        """m of round k = 1, 2, ...; raises ValueError before ``calibrate`` has set the stages."""
        if self.stage_lengths is None:
            raise ValueError("the stages are not set yet: call calibrate first")
        ends = list(accumulate(self.stage_lengths))
        return min(bisect_left(ends, k), len(ends) - 1)

    def learning_rate_in(self, k: int) -> float:
        stage = self.stage(k)
        assert self.learning_rates is not None
        return self.learning_rates[stage]

    def stage_clip_norm(self, k: int) -> float:
        return self.clip_norm * self.reduction ** self.stage(k)

    def noise_multiplier_in(self, k: int) -> float:
        """Noise over clip norm in round k."""
        squared = self.noise_follows == "clip-squared"
        return self.sigma * (self.stage_clip_norm(k) if squared else 1.0)

    def clip_norm_in(self, k: int) -> float | None:
        return self.stage_clip_norm(k)

    def calibrate(self, setting: Setting) -> Self:
        """sigma such that the agent with the fewest records is exactly (epsilon, delta)-DP, if
        noise follows the clip norm; and the stages.
        """
        calibrated = super().calibrate(setting)
        if calibrated.stage_lengths is not None:
            return calibrated
        lengths, rates = zip(*calibrated._stages(setting.d), strict=True)
        return calibrated.model_copy(update={"stage_lengths": lengths, "learning_rates": rates})

    def _stages(self, d: int) -> list[tuple[int, float]]:
        """T_m and eta_m until all rounds have a stage."""
        stages: list[tuple[int, float]] = []
        L, theta, tau, B, C = (
            self.smoothness, self.reduction, self.delay, self.batch_size, self.clip_norm
        )  # fmt: skip
        while sum(length for length, _ in stages) < self.n_rounds:
            b = self.gradient_std**2 / B + d * (self.sigma * C / B) ** 2
            P = 2 * b / (theta**2 * C**2 * (tau + 1))
            length = 4 * P**2 * L * (tau + 1) ** 2 * self.initial_gap / b
            rate = 1 / (2 * max(P, 1) * L * (tau + 1))
            stages.append((max(1, ceil(min(length, self.n_rounds))), rate))
            C *= theta
        return stages

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> dict[str, float]:
        return {"x": self.learning_rate_in(k) * self.stage_clip_norm(k) / self.batch_size}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's clipped gradient under its noise."""
        z = [self.noise_multiplier_in(k) for k in range(1, self.n_rounds + 1)]
        return dp.gaussian_rounds(self, setting, threat_model, victim, z)

    observables = {"noisy-gradient": dp.step_seen("x", lambda self, k, n: self.learning_rate_in(k))}
