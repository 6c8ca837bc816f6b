"""Steps whose noise does not reach all of what they send, or reaches it twice."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from dpaudit.conformance.case import N_AGENTS
from dpaudit.defense import Gradient, Graph, Noise, Round, broadcast, unicast
from dpaudit.selftest.correct import PrivateGossip, State, seeded_as_in_round

D = 18  # a matrix of 15 and a bias of 3


class DrawnBeforeBroadcast(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like[..., :1], k, noise).expand_as(like)


class OneSeedForAllAgents(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like[..., :1, :], k, noise).expand_as(like)


class OneSeedForAllRounds(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, seeded_as_in_round(1, noise))


class MostlyCommon(PrivateGossip):
    """Most of the noise is common to all agents, and each adds a little of its own."""

    own: ClassVar[float] = 0.3  # of the standard deviation

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        common = noise.gaussian("common", self._scale, like[..., :1, :])
        return (1 - self.own**2) ** 0.5 * common + self.own * super().noise(like, k, noise)


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


class OneNumberOfAnAgent(PrivateGossip):
    """An agent's 6th number has less noise, which a model of fewer numbers has not."""

    kept: float = 0.2

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise).clone()
        drawn[..., 1, 5] *= self.kept
        return drawn


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


class SumsSent(PrivateGossip):
    """The noisy sum is sent as it is: no rounding to the size of a model hides its low bits."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        sent = self.noised(S, k, noise)
        X = state.V - self.learning_rate * sent.to(S) / self.batch_size
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, sent)})


class HalfPrecisionSum(SumsSent):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like.half(), k, noise).float()


class BrainPrecisionSum(SumsSent):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like.bfloat16(), k, noise).float()


class HalfScaledAfter(SumsSent):
    """Unit noise in float16, scaled in float32."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return noise.gaussian("gradient", 1.0, like.half()).float() * self._scale


class SingleInDouble(SumsSent):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return S.double() + super().noise(S, k, noise).double()


class CoarseGrid(SumsSent):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        step = self._scale / 300
        return (super().noise(like, k, noise) / step).round() * step


class HalfInTheBias(SumsSent):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return torch.cat([drawn[..., :15], drawn[..., 15:].half().float()], dim=-1)


def hadamard(d: int) -> Tensor:
    H = torch.ones(1, 1)
    while len(H) < d:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)], 0)
    return H[:d, :d]


class WithoutDirections(PrivateGossip):
    """Noise with a part ``kept`` of itself along some directions, which are no coordinates."""

    kind: str = "hadamard"
    n: int = 1
    kept: float = 0.0

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        U = self.directions(like.shape[-1])
        return drawn - (1 - self.kept) * (drawn @ U) @ U.T

    def directions(self, d: int) -> Tensor:
        """Orthonormal columns [d, n]."""
        generator = torch.Generator().manual_seed(5)
        if self.kind == "hadamard":
            rows = hadamard(16)[3 : 3 + self.n]
            U = torch.zeros(d, self.n)
            U[:16] = rows.T
        elif self.kind == "cosine":
            U = torch.cos(
                torch.pi * (torch.arange(d)[:, None] + 0.5) * (4 + torch.arange(self.n)) / d
            )
        elif self.kind == "contrast":
            U = torch.zeros(d, 1)
            U[:5], U[5:10] = 1.0, -1.0
        else:
            U = torch.randn(d, self.n, generator=generator)
        return torch.linalg.qr(U)[0]


class OwnWithoutDirection(WithoutDirections):
    """Drawn by a generator of its own."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = torch.randn_like(like) * self._scale
        U = self.directions(like.shape[-1])
        return drawn - (drawn @ U) @ U.T


class ContrastWithout(WithoutDirections):
    """Along one direction some agents' noise has only a part ``kept`` in a weighted sum of theirs.

    The noise of each of them alone has a share of 1/2 or more along every direction.
    """

    kind: str = "random"
    weights: tuple[float, ...] = (1.0, -1.0)

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return self.without(PrivateGossip.noise(self, like, k, noise))

    def without(self, drawn: Tensor) -> Tensor:
        U, w = self.directions(D), torch.zeros(drawn.shape[-2], 1)
        w[: len(self.weights), 0] = torch.tensor(self.weights)
        w = w / w.norm()
        return drawn - (1 - self.kept) * w @ (w.T @ drawn @ U) @ U.T


class CopiedAlongOne(WithoutDirections):
    """Along one direction an agent has the noise of agent 0, times what it is ``copied`` by."""

    kind: str = "random"
    copied: float = 1.0
    by: int = 1

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = PrivateGossip.noise(self, like, k, noise).clone()
        U = self.directions(D)
        drawn[..., self.by, :] += (
            (self.copied * drawn[..., 0, :] - drawn[..., self.by, :]) @ U @ U.T
        )
        return drawn


class OwnContrastWithout(ContrastWithout):
    """Drawn by a generator of its own."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return self.without(torch.randn_like(like) * self._scale)


class MaskedContrastWithout(ContrastWithout):
    """So is noise that also has masks which cancel between all agents."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        masks = noise.gaussian("masks", 5 * self._scale, like)
        return super().noise(like, k, noise) + masks - masks.mean(dim=-2, keepdim=True)


class SmoothedBefore(PrivateGossip):
    """Noise is averaged with its neighbours and scaled up, and the data are not."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return (drawn + drawn.roll(1, -1)) / 2**0.5


class InMiddleRounds(PrivateGossip):
    """Twenty rounds, of which some leave noise out."""

    n_rounds: int = 20
    bare: tuple[int, ...] = (5, 6, 7, 8, 9)

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn * (torch.arange(D) < D - 3) if k in self.bare else drawn


class ReusedInMiddleRounds(InMiddleRounds):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = PrivateGossip.noise(self, like, k, noise)
        if k not in self.bare:
            return drawn
        return torch.cat([drawn[..., :15], drawn[..., :3]], dim=-1)


class ManyRounds(InMiddleRounds):
    n_rounds: int = 300
    bare: tuple[int, ...] = tuple(range(100, 200))


class GridAndRest(PrivateGossip):
    """Noised values on a grid, and a part of what is below them."""

    slope: float = 1e-5
    step_of_grid: float = 0.01

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return self.quantised(noisy) + self.rest(S)

    def quantised(self, noisy: Tensor) -> Tensor:
        return (noisy / self.step_of_grid).round() * self.step_of_grid

    def rest(self, S: Tensor) -> Tensor:
        return self.slope * S

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        sent = self.noised(S, k, noise)
        X = state.V - self.learning_rate * sent / self.batch_size
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, sent)})


class GridAndSign(GridAndRest):
    def rest(self, S: Tensor) -> Tensor:
        return self.slope * S.sign()


class GridAndSquare(GridAndRest):
    def rest(self, S: Tensor) -> Tensor:
        return self.slope * S.square()


class GridAndBias(GridAndRest):
    def rest(self, S: Tensor) -> Tensor:
        return self.slope * S * (torch.arange(D) >= D - 3)


class BrainAndRest(GridAndRest):
    def quantised(self, noisy: Tensor) -> Tensor:
        return noisy.bfloat16().float()


class SignAndRest(GridAndRest):
    def quantised(self, noisy: Tensor) -> Tensor:
        return noisy.sign()


class ModelGridAndRest(GridAndRest):
    """The model that is sent is rounded, and the step added to it again in part."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = PrivateGossip.noised(self, S, k, noise) / self.batch_size
        X = self.quantised(state.V - self.learning_rate * G) + self.rest(S)
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)})


class HalfAndOffset(PrivateGossip):
    """Half of the noise, and an offset that is the same in all rounds or coordinates."""

    kind: str = "rounds"
    kept: float = 0.5

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return self.kept * super().noise(like, k, noise) + self.offset(like, noise)

    def offset(self, like: Tensor, noise: Noise) -> Tensor:
        if self.kind == "rounds":
            return seeded_as_in_round(1, noise).gaussian("offset", self._scale, like)
        return noise.gaussian("offset", self._scale, like[..., :1])


class OffsetTakenBack(PrivateGossip):
    """All noise is one draw for the run, and a further one is sent in one round alone."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        once = seeded_as_in_round(1, noise).gaussian("once", self._scale, like)
        return once + (k == 1) * noise.gaussian("further", self._scale, like)


class TiledAndOffset(PrivateGossip):
    """Noise of half of the coordinates is used for the other half, beside an offset."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        n = (like.shape[-1] + 1) // 2
        tiled = super().noise(like, k, noise)[..., :n].repeat_interleave(2, -1)
        offset = noise.gaussian("offset", self._scale, like[..., :1])
        return tiled[..., : like.shape[-1]] + offset


class ScaledByOffset(PrivateGossip):
    """The sum is multiplied by a further draw: with it a record is not hidden as without."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        further = noise.gaussian("further", 10.0, S[..., :1])
        return S * (1 + further) + further + self.noise(S, k, noise)


class SeededOnceAndOffset(PrivateGossip):
    """Noise of round 1 in all rounds, and a further number in all coordinates."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        first = super().noise(like, k, seeded_as_in_round(1, noise))
        return first + noise.gaussian("offset", 0.1 * self._scale, like[..., :1])


FURTHER_FAULTS = [
    *(HalfAndOffset(kind=kind) for kind in ("rounds", "coordinates")),
    HalfAndOffset(kept=0.99),
    OffsetTakenBack(),
    TiledAndOffset(),
    ScaledByOffset(),
    SeededOnceAndOffset(),
]

SCALES = [1e-6, 1e-3, 1.0, 30.0, 1e4]

FAULTS = [
    *FURTHER_FAULTS,
    LastMasked(),
    LastMasked(family="laplace"),
    LastConcatenated(),
    LastScaledToZero(),
    LastWithLess(),
    OneNumberOfAnAgent(),
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
    *(HalfPrecisionSum(noise_multiplier=s, clip_norm=1.0) for s in SCALES),
    *(HalfScaledAfter(noise_multiplier=s, clip_norm=1.0) for s in SCALES),
    *(BrainPrecisionSum(noise_multiplier=s, clip_norm=1.0) for s in SCALES),
    *(SingleInDouble(noise_multiplier=s, clip_norm=1.0) for s in SCALES),
    *(CoarseGrid(noise_multiplier=s, clip_norm=1.0) for s in SCALES),
    HalfInTheBias(),
    WithoutDirections(),
    WithoutDirections(n=3),
    WithoutDirections(kind="cosine"),
    WithoutDirections(kind="contrast"),
    WithoutDirections(kind="random"),
    WithoutDirections(kind="random", family="laplace"),
    WithoutDirections(kind="random", n=6),
    WithoutDirections(kind="random", kept=0.1),
    WithoutDirections(kept=0.2),
    OwnWithoutDirection(kind="random"),
    CopiedAlongOne(),
    CopiedAlongOne(kind="hadamard"),
    CopiedAlongOne(kind="contrast", copied=-1.0),
    CopiedAlongOne(n=4, copied=0.5),
    CopiedAlongOne(family="laplace"),
    ContrastWithout(),
    ContrastWithout(kept=0.1),
    ContrastWithout(weights=(1.0, 1.0, 1.0)),
    ContrastWithout(weights=(1.0, 1.0, 1.0), kept=0.1),
    ContrastWithout(weights=(1.0,) * 8, kept=0.1),
    ContrastWithout(weights=(0.0, 0.0, 1.0, -2.0, 0.0, 1.5)),
    OwnContrastWithout(),
    OwnContrastWithout(weights=(1.0, 1.0, 1.0), kept=0.1),
    MaskedContrastWithout(weights=(1.0,) * 8),
    SmoothedBefore(),
    InMiddleRounds(),
    ReusedInMiddleRounds(),
    ManyRounds(),
    GridAndRest(),
    GridAndRest(slope=1e-6),
    GridAndRest(slope=1e-4, step_of_grid=0.1),
    GridAndSign(),
    GridAndSquare(),
    GridAndBias(),
    BrainAndRest(slope=1e-4),
    SignAndRest(),
    ModelGridAndRest(),
]
