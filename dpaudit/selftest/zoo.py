"""Planted privacy bugs, each one line from a real mistake, beside the correct defense they spoil.

Subclasses that change one line of a correct defense. A bug keeps all that its correct twin says of
itself: its releases, its bounds on messages, the scale of its noise.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpaudit.accounting.releases import RecordAdjacency
from dpaudit.conformance.case import WatchedGradient
from dpaudit.defense import (
    Bracket,
    Gradient,
    Graph,
    Noise,
    Round,
    Setting,
    ThreatModel,
    broadcast,
    clip,
)
from dpaudit.training.classification import BatchGradient

from .correct import PrivateGossip, PrivateMomentum, PrivateShares, Snapped


class NoiseHalved(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / 2


class OneSeedForAllAgents(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like[..., :1, :], k, noise).expand_as(like)


class OneSeedForAllRounds(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, seeded_as_in_round(1, noise))


class FixedGenerator(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        generator = torch.Generator(like.device).manual_seed(k)
        return torch.empty_like(like).normal_(generator=generator) * self._scale


class FirstRoundBare(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * (k > 1)


class ClipForgotten(PrivateGossip):
    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient(X) * self.batch_size


class ClipAfterAveraging(PrivateGossip):
    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return clip(gradient(X), self.clip_norm) * self.batch_size


class WrongNorm(PrivateGossip):
    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient.clipped_sum(X, self.clip_norm, norm=2)


class SelfGradientAdded(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise) + S


class RealisedBatchSize(PrivateGossip):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = self.noised(S, k, noise) / records_drawn(gradient)
        return self.after(S, state.V - self.learning_rate * G, graph)


class RateUnderstated(PrivateGossip):
    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        everybody = Setting(setting.network, (sum(setting.sizes),) * setting.n_agents, setting.d)
        return super().mechanism(everybody, threat_model, victim)


class ResumedAtFirstDraw(PrivateGossip):
    _rounds: int = 0  # played by this object, which no checkpoint keeps

    def start(self, X: Tensor, setting: Setting) -> Any:
        self._rounds = 0
        return super().start(X, setting)

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        self._rounds += 1
        return super().noise(like, k, seeded_as_in_round(self._rounds, noise))


class DrawnBeforeBroadcast(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like[..., :1], k, noise).expand_as(like)


class SentAgain(PrivateGossip):
    messages: ClassVar[Mapping[str, str]] = {
        **PrivateGossip.messages,
        "x_again": "the model under other noise, for a receiver that acknowledged nothing",
    }

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        first = super().step(state, k, graph, gradient, noise)
        again = noise.gaussian("gradient again", self._scale, state.X) / self.batch_size
        X = state.V - self.learning_rate * (first.private["gradient"] + again)
        return first._replace(sent={**first.sent, "x_again": broadcast(graph, X)})


class MomentumUnnoised(PrivateMomentum):
    def entering(self, clean: Tensor, noisy: Tensor) -> Tensor:
        return clean


class NoiseSharedByNeighbours(PrivateShares):
    def on_links(self, shares: Tensor, graph: Graph, noise: Noise) -> Tensor:
        to_each = shares.new_zeros(*shares.shape[:-2], graph.n_agents, shares.shape[-1])
        return noise.gaussian("share", self._scale, to_each)[..., graph.senders, :]


def seeded_as_in_round(k: int, noise: Noise) -> Noise:
    """The same source of noise, seeded for another round."""
    other = copy(noise)
    other._round = k
    return other


def records_drawn(gradient: Gradient) -> Tensor | int:
    """How many records came out of each agent's draw [n_agents, 1], where there are records."""
    if isinstance(gradient, WatchedGradient):
        return records_drawn(gradient._gradient)
    if not isinstance(gradient, BatchGradient) or gradient.batch.weights is None:
        return gradient.batch_size
    return gradient.batch.weights.sum(dim=1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Specimen:
    """A defense, and the claim that is made for it: the epsilon of what it declares."""

    defense: PrivateGossip
    claimed: RecordAdjacency = "add-remove"
    accounted: RecordAdjacency = "add-remove"  # for which the claimed epsilon was computed
    sends_floats: bool = False  # the claim is about the float32 numbers that are sent


@dataclass(frozen=True)
class Bug:
    """One planted bug and the correct defense that it spoils."""

    name: str
    mistake: str  # the real mistake that it models
    by: str  # the check that is made for it
    planted: Specimen
    twin: Specimen


GAUSSIAN = Specimen(PrivateGossip())
LAPLACE = Specimen(PrivateGossip(family="laplace"))
ONE_ROUND: dict[str, Any] = {"family": "laplace", "n_rounds": 1}

BUGS = (
    Bug("noise halved", "a standard deviation where code expects twice it, or a variance",
        "exact leak", Specimen(NoiseHalved()), GAUSSIAN),
    Bug("noise reused across neighbours", "one draw per sender, added to each link's message",
        "exact leak", Specimen(NoiseSharedByNeighbours()), Specimen(PrivateShares())),
    Bug("same seed for all agents", "manual_seed(0) at the top of every agent's script",
        "exact leak", Specimen(OneSeedForAllAgents()), GAUSSIAN),
    Bug("same seed for all rounds", "a generator made anew from the seed in every round",
        "learned score", Specimen(OneSeedForAllRounds()), GAUSSIAN),
    Bug("fixed generator in place of the noise", "a hard-coded seed that was left in the code",
        "exact leak", Specimen(FixedGenerator()), GAUSSIAN),
    Bug("noise skipped in round 0", "`if step:` in a loop that counts from 0",
        "exact leak", Specimen(FirstRoundBare()), GAUSSIAN),
    Bug("clip forgotten", "noise for clip norm C on gradients that nothing clips",
        "sensitivity", Specimen(ClipForgotten()), GAUSSIAN),
    Bug("clip after averaging", "the batch's mean is clipped, not each record's gradient",
        "sensitivity", Specimen(ClipAfterAveraging()), GAUSSIAN),
    Bug("L2 clip under L1 accounting", "a Gaussian mechanism's clipping kept for Laplace noise",
        "sensitivity", Specimen(WrongNorm(family="laplace")), LAPLACE),
    Bug("add-remove noise, replace-one claim", "noise for C where replacing moves a sum by 2 C",
        "accounting", Specimen(PrivateGossip(noise_multiplier=1.0), "replace-one"),
        Specimen(PrivateGossip(noise_multiplier=2.0), "replace-one", "replace-one")),
    Bug("un-noised self-gradient added", "an agent adds its own gradient as if nobody read it",
        "exact leak", Specimen(SelfGradientAdded()), GAUSSIAN),
    Bug("divided by the realised batch size", "a mean over the batch as it was drawn",
        "sensitivity", Specimen(RealisedBatchSize()), GAUSSIAN),
    Bug("sampling rate understated", "B over the records of all agents, not over its own",
        "exact leak", Specimen(RateUnderstated()), GAUSSIAN),
    Bug("generator restored wrongly on resume", "the noise generator is in no checkpoint",
        "contract", Specimen(ResumedAtFirstDraw()), GAUSSIAN),
    Bug("noise drawn before a broadcast", "noise of shape [n, 1] added to gradients [n, d]",
        "noise statistics", Specimen(DrawnBeforeBroadcast()), GAUSSIAN),
    Bug("momentum released un-noised", "the momentum is updated before the noise is added",
        "exact leak", Specimen(MomentumUnnoised()), Specimen(PrivateMomentum())),
    Bug("budget spent twice", "a message repeated with fresh noise, accounted once",
        "exact leak", Specimen(SentAgain()), GAUSSIAN),
    Bug("float32 Laplace", "noise sampled and added in float32: low bits tell the sum",
        "floating point", Specimen(PrivateGossip(**ONE_ROUND), sends_floats=True),
        Specimen(Snapped(**ONE_ROUND), sends_floats=True)),
)  # fmt: skip
