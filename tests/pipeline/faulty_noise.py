"""Steps whose noise does not reach all of what they send, or reaches it twice."""

from typing import Any

import torch
from torch import Tensor

from dpaudit.conformance.case import N_AGENTS
from dpaudit.defense import Gradient, Graph, Noise, Round, broadcast, unicast
from dpaudit.selftest.correct import PrivateGossip, State
from dpaudit.selftest.zoo import DrawnBeforeBroadcast, OneSeedForAllAgents, OneSeedForAllRounds

D = 18  # a matrix of 15 and a bias of 3


class LastMasked(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn * (torch.arange(D) < D - 3)


class LastConcatenated(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.cat([super().noised(S[..., :-3], k, noise), S[..., -3:]], dim=-1)


class LastScaledToZero(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return noise.gaussian("gradient", self._scale * (torch.arange(D) < D - 3), like)


class LastWithLess(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * torch.where(torch.arange(D) < D - 3, 1.0, 0.3)


class LayerReused(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return torch.cat([drawn[..., :15], drawn[..., :3]], dim=-1)


class CentredOverCoordinates(PrivateGossip):
    """The sum of all coordinates has no noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn - drawn.mean(dim=-1, keepdim=True)


class CentredInALayer(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        weight, bias = super().noise(like, k, noise).split([15, 3], dim=-1)
        return torch.cat([weight, bias - bias.mean(dim=-1, keepdim=True)], dim=-1)


class BareAndRounded(LastMasked):
    """Rounding to bfloat16 afterwards hides nothing."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).bfloat16().float()


class SharedByAgents(PrivateGossip):
    """Drawn by a generator of its own."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return (torch.randn_like(like[..., :1, :]) * self._scale).expand_as(like)


class SharedByLinks(PrivateGossip):
    """Every link has a gradient of its own, and the noise of its sender."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        j, i = graph.senders, graph.receivers
        G = gradient.clipped_sum(state.X[..., i, :], self.clip_norm, holders=j)
        noisy = G + self.on_links(G, noise)
        X = state.V - self.learning_rate * torch.zeros_like(state.X).index_add(-2, i, noisy)
        return Round(State(X, graph.mix(X)), {"x": unicast(graph, noisy)})

    def on_links(self, G: Tensor, noise: Noise) -> Tensor:
        return torch.randn_like(G[..., :N_AGENTS, :])[..., torch.arange(G.shape[-2]) // 2, :]


class SentInTheNextRound(PrivateGossip):
    """The state that is sent first was noised at the end of the round before."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        return round._replace(sent={"x": broadcast(graph, state.X)})


class SentInTheNextRoundMasked(SentInTheNextRound):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * (torch.arange(D) < D - 3)


class HalfPrecision(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like.half(), k, noise).float()


class BrainPrecision(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).bfloat16().float()


class OnGrid(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return (super().noise(like, k, noise) * 64).round() / 64


FAULTS = [
    LastMasked(),
    LastMasked(family="laplace"),
    LastConcatenated(),
    LastScaledToZero(),
    LastWithLess(),
    LayerReused(),
    CentredOverCoordinates(),
    CentredOverCoordinates(family="laplace"),
    CentredInALayer(),
    BareAndRounded(),
    SentInTheNextRoundMasked(),
    DrawnBeforeBroadcast(),
    OneSeedForAllAgents(),
    SharedByAgents(),
    SharedByLinks(),
    OneSeedForAllRounds(),
    OneSeedForAllRounds(family="laplace"),
    HalfPrecision(),
    BrainPrecision(),
    OnGrid(),
]
