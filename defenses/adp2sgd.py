"""A(DP)2SGD: asynchronous decentralized SGD, one agent and one neighbour at a time."""

from typing import Literal, NamedTuple

import torch
from pydantic import NonNegativeInt
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel


class State(NamedTuple):
    V: Tensor  # [..., n_agents, d], W times what was sent last
    past: Tensor  # [..., staleness, n_agents, d], V before the events before, the oldest first


class ADP2SGD(dp.GaussianSGD):
    """Xu, Zhang and Wang; rows of V, X [..., n_agents, d] are agents, and a round is one event.

    With R the V of ``staleness`` events ago, S the sum over the batch of gradients at R, clipped
    to norm C each, and agent i active, event k is
        1.  x_i = v_i - eta (S_i + N(0, sigma^2 C^2)) / B, all others x_j = v_j
        2.  i and the neighbour of the event send x to each other,  V <- W X, weights 1/2
    On the graph "pairwise" one agent is active in each event; where all are, a round is n events at
    once. ``batch`` = "sum" leaves out the division by B, which is a step B times as long.

    ``gradients`` = "assumed" is the algorithm as it is published: nothing is clipped, and C is a
    bound that gradients are assumed to have. A longer gradient then moves a message further.

    Readings: the neighbour gets the model after the step of the event, so that the gradient of a
    round is in the message of that round. Noise follows from the budget by exact accounting, for
    the agent that the events of the run, which are public, cost most.
    """

    paper = "Xu, Zhang, Wang: A(DP)2SGD"
    reconstructed = (
        "the constant of the noise, whether a batch is summed or averaged, and the clip of each "
        "record, which stands for an assumed bound on gradients"
    )
    waits = True
    theory_graph = dp.doubly_stochastic(
        "A(DP)2SGD", '; expected "pairwise", or another graph whose weights are symmetric'
    )
    messages = {
        "x": "the model after the event's step; holds the active agent's gradient under Gaussian "
        "noise of standard deviation eta sigma C / B, and all messages before",
    }
    private = {
        "gradient": "the mean gradient of the active agent's batch, clipped if records are; else 0"
    }

    batch: Literal["mean", "sum"] = "mean"
    gradients: Literal["clipped", "assumed"] = "clipped"
    staleness: NonNegativeInt = 0  # events between reading a model and the step from it

    def start(self, X: Tensor, setting: Setting) -> State:
        before = X.unsqueeze(-3)
        return State(X, before.expand(*X.shape[:-2], self.staleness, *X.shape[-2:]))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        V, B, C = state.V, gradient.batch_size, self.limit
        read = torch.cat([state.past, V.unsqueeze(-3)], dim=-3)

        S = dp.of_acting(
            graph, read[..., 0, :, :], lambda R, acting: gradient.clipped_sum(R, C, acting)
        )
        N = noise.gaussian("gradient", self.sigma * self.clip_norm, S)
        X = V - self.step_size(B) * graph.acting(V) * (S + N)  # 1
        after = State(graph.mix(X), read[..., 1:, :, :])  # 2
        return Round(after, {"x": dp.broadcast(graph, X)}, {"gradient": S / B})

    @property
    def limit(self) -> float:
        """The norm to which each record's gradient is clipped; infinite: no clipping."""
        return self.clip_norm if self.gradients == "clipped" else float("inf")

    def step_size(self, batch_size: int) -> float:
        """What sums over a batch are multiplied by."""
        return self.learning_rate / (batch_size if self.batch == "mean" else 1)

    def clip_norm_in(self, k: int) -> float | None:
        return self.clip_norm if self.gradients == "clipped" else None

    def noise_multiplier_of(self, setting: Setting) -> float:
        """sigma such that no agent spends more than its budget in the events in which it steps."""
        spent: dict[int, int] = {}  # records -> most events of an agent with as many
        for i in setting.holders:
            events = int(dp.steps_of(setting.network.at, self.n_rounds, i).sum())
            spent[setting.sizes[i]] = max(events, spent.get(setting.sizes[i], 0))
        return max(
            self.model_copy(update={"n_rounds": events}).noise_multiplier_for(size)
            for size, events in spent.items()
            if events
        )

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> dict[str, float]:
        return {"x": self.step_size(self.batch_size) * self.clip_norm}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """The gradient of an event in which the victim steps, under its noise.

        A gradient that is not clipped may be as long as it likes: no noise hides every record.
        """
        least, most, said = super().mechanism(setting, threat_model, victim)
        if self.gradients == "clipped":
            return Bracket(least, most, said)
        unbounded = dp.gaussian_rounds(self, setting, threat_model, victim, 0.0).most
        assumed = (
            "gradients are not clipped: the lower end is of a record whose gradient is as long as "
            "assumed, and no noise hides the longest that there may be"
        )
        return Bracket(least, unbounded, (*said, assumed))

    observables = {
        "noisy-gradient": dp.step_seen(
            "x", lambda self, k, n: self.step_size(self.batch_size) * self.batch_size
        ),
    }
