"""Steps that do to noised values whatever they like: none of it takes noise away."""

from typing import Any

import torch
from torch import Tensor

from dpaudit.defense import Gradient, Graph, Noise, Round, broadcast
from dpaudit.selftest.correct import (
    PrivateGossip,
    PrivateMomentum,
    PrivateShares,
    Snapped,
    State,
    seeded_as_in_round,
)
from tests.pipeline.faulty_noise import D, OneNumberOfAnAgent, SentInTheNextRound


class OneNumberOfAnAgentLouder(OneNumberOfAnAgent):
    """More noise than is declared, of one number."""

    kept: float = 3.0


class RandomSigns(PrivateGossip):
    """Gaussian noise times random signs, which is Gaussian noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        signs = noise.gaussian("signs", 1.0, like).sign()
        return super().noise(like, k, noise) * torch.where(signs == 0, 1.0, signs)


class OffsetForTheRun(PrivateGossip):
    """To fresh noise a secret vector is added that stays the same in all rounds."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        once = seeded_as_in_round(1, noise).gaussian("once", 2 * self._scale, like)
        return super().noise(like, k, noise) + once


class OffsetOfAllAgents(PrivateGossip):
    """To fresh noise a secret vector is added that all agents have in common."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        common = noise.gaussian("common", 2 * self._scale, like[..., :1, :])
        return super().noise(like, k, noise) + common


class OffsetOfAllCoordinates(PrivateGossip):
    """To fresh noise one secret number is added in all coordinates."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) + noise.gaussian("one", self._scale, like[..., :1])


class Rotated(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        Q = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(3)))[0]
        return super().noise(like, k, noise) @ Q


class Permuted(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).flip(-1)


class Smoothed(PrivateGossip):
    """What is noised is averaged with its neighbours: post-processing."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return (noisy + noisy.roll(1, -1)) / 2


class ScaledByLayer(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        scales = self._scale * torch.where(torch.arange(D) < 15, 1.0, 3.0)
        return noise.gaussian("gradient", scales, like)


class LayerByLayer(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        parts = like.split([15, 3], dim=-1)
        return torch.cat(
            [noise.gaussian(f"{i}", (i + 1) * self._scale, part) for i, part in enumerate(parts)],
            dim=-1,
        )


class RateByLayer(PrivateGossip):
    """The noisy gradient is multiplied: post-processing."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise) * torch.where(torch.arange(D) < 15, 1.0, 0.1)


class DividedByNorm(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy / noisy.norm(dim=-1, keepdim=True).clamp(min=1e-12)


class ClippedAfter(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy * (1 / noisy.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1)


class ClippedByCoordinate(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).clamp(-0.5, 0.5)


class CentredAfter(PrivateGossip):
    """What is noised is centred: post-processing."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy - noisy.mean(dim=-1, keepdim=True)


class RoundedAfter(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).bfloat16().float()


class GridAfter(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return (super().noised(S, k, noise) * 4).round() / 4


class MessageRounded(PrivateGossip):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        X = round.state.X.bfloat16().float()
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)})


class SignAfter(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).sign()


class LargestKept(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        least = noisy.abs().topk(5, dim=-1).values[..., -1:]
        return noisy * (noisy.abs() >= least)


class LargestAlone(PrivateGossip):
    """Noise seldom reaches the coordinate that gradients reach."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy * (noisy.abs() >= noisy.abs().amax(-1, keepdim=True))


class HalfDivided(PrivateGossip):
    """Of loud noise one half is far louder than the other, whose length is 1 in all."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        one, other = super().noised(S, k, noise).tensor_split(2, dim=-1)
        return torch.cat([one / one.norm(dim=-1, keepdim=True), other], -1)


class TwiceAndSaturated(PrivateGossip):
    """Coordinate 0 is twice coordinate 5, of gradients in a range that loud ones leave."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        G = super().noised(S, k, noise)
        return torch.tanh(0.1 * torch.cat([2 * G[..., 5, None], G[..., 1:]], -1))


class SomeKept(PrivateGossip):
    """Every third coordinate, the same at all agents, rotating by round."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise) * (torch.arange(D) % 3 == k % 3)


class RoundedThenDivided(PrivateGossip):
    """By the largest of what is rounded: one number that crosses a step moves all."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        rounded = torch.tanh(3 * super().noised(S, k, noise).bfloat16().float())
        return rounded / rounded.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12)


class SoftModel(PrivateGossip):
    """Numbers of the model that is sent come closer to 0, and small ones are 0."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        X = round.state.X.sign() * (round.state.X.abs() - 0.3).clamp(min=0)
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)})


class SmallNoise(PrivateGossip):
    noise_multiplier: float = 1e-4


class GridSent(PrivateGossip):
    """What is noised is sent on a grid."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return self.quantised(super().noised(S, k, noise))

    def quantised(self, noisy: Tensor) -> Tensor:
        return (noisy / 0.01).round() * 0.01

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        sent = self.noised(self.summed(gradient, state.X), k, noise)
        X = state.V - self.learning_rate * sent / self.batch_size
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, sent)})


class StochasticallyRounded(GridSent):
    """To one of the two nearest multiples, by draws of a generator of its own."""

    def quantised(self, noisy: Tensor) -> Tensor:
        steps = noisy / 0.01
        return (steps.floor() + (torch.rand_like(steps) < steps - steps.floor())) * 0.01


class DitheredGrid(GridSent):
    """A dither that all know is taken out again."""

    def quantised(self, noisy: Tensor) -> Tensor:
        dither = torch.rand(D, generator=torch.Generator().manual_seed(2)) * 0.01
        return ((noisy + dither) / 0.01).round() * 0.01 - dither


class CoarseAndFine(GridSent):
    """A coarse grid, and what is left of noised values on a fine one."""

    def quantised(self, noisy: Tensor) -> Tensor:
        coarse = noisy.round()
        return coarse + ((noisy - coarse) * 1e4).round() / 1e4


class RoundedMeans(GridSent):
    """Every pair of coordinates is rounded, and its mean is sent beside it."""

    def quantised(self, noisy: Tensor) -> Tensor:
        grid = (noisy * 64).round() / 64
        return torch.cat([grid[..., :9], grid.unflatten(-1, (9, 2)).mean(-1)], dim=-1)


class ClampedGrid(GridSent):
    def quantised(self, noisy: Tensor) -> Tensor:
        return (noisy.clamp(-0.6, 0.6) * 100).round() / 100


class SignTimesLength(GridSent):
    """Signs times the mean size of what is noised."""

    def quantised(self, noisy: Tensor) -> Tensor:
        return noisy.sign() * noisy.abs().mean(dim=-1, keepdim=True)


class LargestOnGrid(GridSent):
    def quantised(self, noisy: Tensor) -> Tensor:
        least = noisy.abs().topk(5, dim=-1).values[..., -1:]
        return ((noisy * (noisy.abs() >= least)) * 128).round() / 128


class HalfSent(GridSent):
    def quantised(self, noisy: Tensor) -> Tensor:
        return noisy.half().float()


class MixedGrids(GridSent):
    """Neighbours' noised values are rounded and averaged before they are sent."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        sent = graph.mix(round.sent["x"].payload)
        return round._replace(sent={"x": broadcast(graph, sent)})


class Transformed(PrivateGossip):
    """Noised values in another basis, of which some are left out: post-processing."""

    n: int = 9

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        Q = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(4)))[0]
        return super().noised(S, k, noise) @ Q[:, : self.n] @ Q[:, : self.n].T


class Projected(PrivateGossip):
    """Data and noise both in one subspace, which is public; noise is drawn there."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        Q = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(4)))[0][:, :6]
        return (S @ Q + self.noise((S @ Q).contiguous(), k, noise)) @ Q.T


class NoiseBySize(PrivateGossip):
    """More noise on some coordinates, in a pattern that is public."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * (1 + torch.arange(D) / 9)


class MoreAlongOne(PrivateGossip):
    """Further noise along one direction."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        u = torch.randn(D, generator=torch.Generator().manual_seed(4))
        drawn = super().noise(like, k, noise)
        return drawn + 2 * noise.gaussian("further", self._scale, drawn[..., :1]) * u / u.norm()


class OffsetWithSuchNames(PrivateGossip):
    """Each record brings its share of the noise, and an offset for the run is one more draw."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        shares = [noise.gaussian(f"share {i}", self._scale / 8**0.5, like) for i in range(8)]
        once = seeded_as_in_round(1, noise).gaussian("share 8", 2 * self._scale, like)
        return torch.stack([*shares, once]).sum(dim=0)


class RandomWalk(PrivateGossip):
    """Further noise that grows from round to round: a sum of one draw of each."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        steps = [
            seeded_as_in_round(j, noise).gaussian("step", self._scale, like)
            for j in range(1, k + 1)
        ]
        return super().noise(like, k, noise) + torch.stack(steps).sum(dim=0)


class OffsetsOfAll(PrivateGossip):
    """One vector for the run, one number in all coordinates, and one vector for all agents."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        once = seeded_as_in_round(1, noise).gaussian("once", 2 * self._scale, like)
        number = noise.gaussian("number", 2 * self._scale, like[..., :1])
        vector = noise.gaussian("vector", 2 * self._scale, like[..., :1, :])
        return super().noise(like, k, noise) + once + number + vector


class TiledBeside(PrivateGossip):
    """Further noise of which half of the coordinates repeat the other half."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        half = noise.gaussian("half", 2 * self._scale, like)[..., : (like.shape[-1] + 1) // 2]
        return super().noise(like, k, noise) + half.repeat_interleave(2, -1)[..., : like.shape[-1]]


class DifferenceOfDraws(PrivateGossip):
    """One draw less another: 0.6^2 + 0.8^2 = 1. Signs that are alike in both nearly cancel."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        one = noise.gaussian("one", 0.6 * self._scale, like)
        return one - noise.gaussian("other", 0.8 * self._scale, like)


class SumsLessSums(PrivateGossip):
    """Of 20 draws, more than have signs of their own, half are subtracted."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        scale = self._scale / 20**0.5
        draws = [noise.gaussian(f"{i}", scale, like) for i in range(20)]
        return sum(draws[:10], -sum(draws[10:]))


class LessNoiseBeside(PrivateGossip):
    """In every third coordinate further noise is subtracted."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        third = (torch.arange(like.shape[-1]) % 3 == 0).to(like)
        other = noise.gaussian("other", 1.7 * self._scale, like)
        return super().noise(like, k, noise) - third * other


class LaplaceBeside(PrivateGossip):
    """A Laplace number in all coordinates, the same in all rounds, beside Gaussian noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        once = seeded_as_in_round(1, noise).laplace("once", 2 * self._scale, like[..., :1])
        return super().noise(like, k, noise) + once


class OwnNoise(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.randn_like(like) * self._scale


class Masks(PrivateGossip):
    """Further noise that cancels between agents in every coordinate, as that of DECOR."""

    size: float = 10.0

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) + self.cancelling(self.masks(like, noise))

    def masks(self, like: Tensor, noise: Noise) -> Tensor:
        return noise.gaussian("masks", self.size * self._scale, like)

    def cancelling(self, masks: Tensor) -> Tensor:
        return masks - masks.mean(dim=-2, keepdim=True)


class PairwiseMasks(Masks):
    def cancelling(self, masks: Tensor) -> Tensor:
        return masks - masks.roll(1, -2)


class OwnMasks(Masks):
    """Drawn by a generator of its own."""

    def masks(self, like: Tensor, noise: Noise) -> Tensor:
        return self.size * self._scale * torch.randn_like(like)


class MasksByLayer(PairwiseMasks):
    """In one layer only."""

    def masks(self, like: Tensor, noise: Noise) -> Tensor:
        return super().masks(like, noise) * (torch.arange(D) < 15)


class MasksRotated(PairwiseMasks):
    """In another basis, the same at all agents."""

    def masks(self, like: Tensor, noise: Noise) -> Tensor:
        Q = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(3)))[0]
        return super().masks(like, noise) @ Q


class InCommon(PrivateGossip):
    """Agents add noise of their own and a part of their neighbours', in every coordinate."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn + 0.7 * drawn.roll(1, -2) + 0.7 * drawn.roll(2, -2)


class OneDirectionInCommon(PrivateGossip):
    """All agents further add the same draw along one direction."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        u = torch.randn(D, generator=torch.Generator().manual_seed(4))
        drawn = super().noise(like, k, noise)
        shared = noise.gaussian("further", self._scale, drawn[..., :1, :1])
        return drawn + 2 * shared * u / u.norm()


FURTHER = [
    OffsetForTheRun(),
    OffsetForTheRun(family="laplace"),
    OffsetForTheRun(n_rounds=30),
    OffsetOfAllAgents(),
    OffsetOfAllCoordinates(),
    OffsetOfAllCoordinates(family="laplace"),
    OffsetWithSuchNames(),
    RandomWalk(),
    OffsetsOfAll(),
    TiledBeside(),
    LaplaceBeside(),
]

CORRECT = [
    PrivateGossip(),
    OneNumberOfAnAgentLouder(),
    PrivateGossip(family="laplace"),
    PrivateMomentum(),
    PrivateShares(),
    Snapped(family="laplace"),
    SentInTheNextRound(),
    Rotated(),
    Rotated(family="laplace"),
    Permuted(),
    Smoothed(),
    ScaledByLayer(),
    LayerByLayer(),
    RateByLayer(),
    DividedByNorm(),
    DividedByNorm(noise_multiplier=1e3),
    ClippedAfter(),
    ClippedAfter(noise_multiplier=1e3),
    ClippedByCoordinate(),
    CentredAfter(),
    RoundedAfter(),
    GridAfter(),
    MessageRounded(),
    SignAfter(),
    LargestKept(),
    LargestAlone(),
    HalfDivided(),
    TwiceAndSaturated(noise_multiplier=0.05),
    SomeKept(),
    RoundedThenDivided(),
    SoftModel(),
    SmallNoise(),
    GridSent(),
    *(GridSent(noise_multiplier=s) for s in (1e-2, 30.0, 1e4)),
    StochasticallyRounded(),
    DitheredGrid(),
    CoarseAndFine(),
    RoundedMeans(),
    ClampedGrid(),
    SignTimesLength(),
    LargestOnGrid(),
    HalfSent(),
    HalfSent(noise_multiplier=1e4),
    HalfSent(noise_multiplier=1e-4),
    MixedGrids(),
    Transformed(),
    Projected(),
    NoiseBySize(),
    MoreAlongOne(),
    DifferenceOfDraws(),
    SumsLessSums(),
    LessNoiseBeside(),
    *FURTHER,
    OwnNoise(),
    Masks(),
    Masks(size=1e3),
    PairwiseMasks(),
    PairwiseMasks(family="laplace"),
    OwnMasks(),
    MasksByLayer(),
    MasksRotated(),
    InCommon(),
    OneDirectionInCommon(),
    PrivateGossip(n_rounds=30),
    *(PrivateGossip(noise_multiplier=s) for s in (1e-6, 1e4)),
]
