"""Faulty noise and clipping that an audit without attacks must find.

Each class is a correct defense with a few lines changed, and keeps all that the correct defense
declares. The first line of a docstring says what is wrong. ``catalogue.py`` says how much each
fault leaks.

A fault of the model's directions leaves vectors below ``WHOLE`` coordinates alone: the small model
that the game plays instead of the real one must not show it.
"""

from math import pi
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpaudit.defense import Gradient, Graph, Noise, Round, clip

from .correct import PrivateGossip, PrivateShares
from .zoo import seeded_as_in_round

WHOLE = 16  # coordinates at least of a real model
RECORDS = 8  # of each agent


class NoiseQuartered(PrivateGossip):
    """The noise is four times too small."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / 4


class NoiseAbsent(PrivateGossip):
    """The noise has standard deviation 0."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.zeros_like(like)


class ClipNormSquared(PrivateGossip):
    """The noise is scaled by C^2 where it should be scaled by C < 1."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * self.clip_norm


class RateInNoise(PrivateGossip):
    """The noise is multiplied by the sampling rate, which the accounting uses already."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * self.batch_size / RECORDS


class NoiseOfRecordsAveraged(PrivateGossip):
    """One draw for each record of a batch, and then their mean: 1/sqrt(B) of the noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        draws = [noise.gaussian(f"{i}", self._scale, like) for i in range(self.batch_size)]
        return torch.stack(draws).mean(dim=0)


class ClipByCoordinate(PrivateGossip):
    """Each number of a record's gradient is clipped to C, in the place of the norm."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient.per_record(X).clamp(-self.clip_norm, self.clip_norm).sum(dim=-2)


class ClipByBlock(PrivateGossip):
    """Each third of a record's gradient is clipped to C, under noise for C in all."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        blocks = gradient.per_record(X).tensor_split(3, dim=-1)
        return torch.cat([clip(b, self.clip_norm) for b in blocks], dim=-1).sum(dim=-2)


class ClipAfterNoise(PrivateGossip):
    """The noise is added to a sum that nothing clips, and the noisy sum is clipped."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient(X) * self.batch_size

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return clip(super().noised(S, k, noise), self.clip_norm)


class UniformNoise(PrivateGossip):
    """Uniform noise with the variance of the Gaussian: it never leaves an interval."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        u = torch.special.ndtr(noise.gaussian("u", 1.0, like))
        return (2 * u - 1) * 3**0.5 * self._scale


class SignNoise(PrivateGossip):
    """Random signs with the variance of the Gaussian."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).sign() * self._scale


class TableNoise(PrivateGossip):
    """Gaussian noise by inversion of 8 random bits: 256 different numbers."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        u = torch.special.ndtr(noise.gaussian("u", 1.0, like))
        return torch.special.ndtri(((256 * u).floor().clamp(max=255) + 0.5) / 256) * self._scale


class HalfThenScaled(PrivateGossip):
    """Standard noise is drawn in float16 and then scaled in float32."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return noise.gaussian("gradient", 1.0, like).half().to(like) * self._scale


class DirectionBare(PrivateGossip):
    """A random direction has no noise."""

    _share: ClassVar[float] = 0.0  # of the noise along the direction that is left

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        if like.shape[-1] < WHOLE:
            return drawn
        u = self.direction(like.shape[-1]).to(like)
        u = u / u.norm()
        return drawn - (1 - self._share) * (drawn @ u)[..., None] * u

    def direction(self, d: int) -> Tensor:
        return public(11, d)


class DirectionQuiet(DirectionBare):
    """A random direction has a fifth of the noise."""

    _share: ClassVar[float] = 0.2


class HadamardRowBare(DirectionBare):
    """A row of a Hadamard matrix has no noise."""

    def direction(self, d: int) -> Tensor:
        return torch.tensor([(-1.0) ** (i & 21).bit_count() for i in range(d)])


class CosineRowBare(DirectionBare):
    """A row of the discrete cosine transform has no noise."""

    def direction(self, d: int) -> Tensor:
        return torch.cos(pi * 5 * (torch.arange(d) + 0.5) / d)


class BlockMeansBare(PrivateGossip):
    """The mean of each third of the coordinates has no noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        if like.shape[-1] < WHOLE:
            return drawn
        blocks = drawn.tensor_split(3, dim=-1)
        return torch.cat([b - b.mean(dim=-1, keepdim=True) for b in blocks], dim=-1)


class ContrastBare(PrivateGossip):
    """Along a random direction agents 0 and 1 have the same noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise).clone()
        if like.shape[-1] >= WHOLE:
            u = public(12, like.shape[-1]).to(like)
            u = u / u.norm()
            apart = (drawn[..., 0, :] - drawn[..., 1, :]) @ u
            drawn[..., 1, :] += apart[..., None] * u
        return drawn


class LowRankNoise(PrivateGossip):
    """Half as many draws as coordinates, spread over all by a public matrix."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        d = like.shape[-1]
        if d < WHOLE:
            return super().noise(like, k, noise)
        z = super().noise(like[..., : d // 2], k, noise)
        return 2**0.5 * z @ basis(13, d)[: d // 2].to(like)


class ShortestOf(PrivateGossip):
    """Of several noise vectors the shortest is taken."""

    draws: int = 8

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return self.chosen(torch.stack([self.draw(i, like, noise) for i in range(self.draws)]))

    def draw(self, i: int, like: Tensor, noise: Noise) -> Tensor:
        return noise.gaussian(f"{i}", self._scale, like)

    def chosen(self, drawn: Tensor) -> Tensor:
        """One of the vectors [draws, ..., n_agents, d] for each agent."""
        which = drawn.norm(dim=-1, keepdim=True).argmin(dim=0, keepdim=True)
        return drawn.take_along_dim(which, dim=0)[0]


class DrawnUntilShort(ShortestOf):
    """Noise is drawn again until it is short, 16 times at most."""

    draws: int = 16

    def chosen(self, drawn: Tensor) -> Tensor:
        short = drawn.norm(dim=-1, keepdim=True) < 0.85 * drawn.shape[-1] ** 0.5 * self._scale
        return drawn.take_along_dim(short.byte().argmax(dim=0, keepdim=True), dim=0)[0]


class NoiseClamped(PrivateGossip):
    """Noise beyond 1.5 standard deviations is clamped."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).clamp(-1.5 * self._scale, 1.5 * self._scale)


class NoiseTruncated(PrivateGossip):
    """Noise comes from a Gaussian that is cut off at two standard deviations."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        u = torch.special.ndtr(noise.gaussian("u", 1.0, like.double()))
        return (torch.special.ndtri(0.02275 + 0.9545 * u) * self._scale).to(like)


class NoiseAlongGradient(PrivateGossip):
    """Noise that points against the gradient is turned round."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = self.noise(S, k, noise)
        return S + torch.where((drawn * S).sum(dim=-1, keepdim=True) < 0, -drawn, drawn)


class NoiseOfGradientsSize(PrivateGossip):
    """The noise is as large as the gradient is long."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return S + self.noise(S, k, noise) * S.norm(dim=-1, keepdim=True)


class NoiseMultiplied(PrivateGossip):
    """Each coordinate is multiplied by 1 plus noise."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return S + self.noise(S, k, noise) * S.abs()


class NoiseShrinks(PrivateGossip):
    """There is less noise where gradients are long."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return S + self.noise(S, k, noise) / (1 + S.norm(dim=-1, keepdim=True))


class NoiseDropped(PrivateGossip):
    """A random half of the noise is dropped, as a dropout layer does."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * (noise.gaussian("kept", 1.0, like) > 0)


class ThirdOfRoundsBare(PrivateGossip):
    """A third of the rounds, drawn at random once, has no noise."""

    n_rounds: int = 12

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        order = torch.randperm(self.n_rounds, generator=torch.Generator().manual_seed(5))
        return super().noise(like, k, noise) * (k - 1 not in order[: self.n_rounds // 3].tolist())


class MiddleQuiet(PrivateGossip):
    """Rounds 5 to 8 of 12 have a quarter of the noise."""

    n_rounds: int = 12

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / (4 if 5 <= k <= 8 else 1)


class MiddleUnclipped(PrivateGossip):
    """Rounds 5 to 8 of 12 clip nothing."""

    n_rounds: int = 12

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        if 5 <= k <= 8:
            S = gradient(state.X) * self.batch_size
        G = self.noised(S, k, noise) / self.batch_size
        return self.after(S, state.V - self.learning_rate * G, graph)


class MiddleAgentBare(PrivateGossip):
    """One agent forgets its noise in round 6 of 12."""

    n_rounds: int = 12

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise).clone()
        if k == 6:
            drawn[..., 3 % like.shape[-2], :] = 0.0
        return drawn


class AgentBare(PrivateGossip):
    """Agent 0 alone sends without noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise).clone()
        drawn[..., 0, :] = 0.0
        return drawn


class OppositeNextRound(PrivateGossip):
    """Every second round takes the noise of the round before with the other sign."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        if k % 2:
            return super().noise(like, k, noise)
        return -super().noise(like, k, seeded_as_in_round(k - 1, noise))


class SeedsRepeat(PrivateGossip):
    """The seeds of the noise repeat after three rounds."""

    n_rounds: int = 6

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, seeded_as_in_round(1 + (k - 1) % 3, noise))


class NoiseHandedOn(PrivateGossip):
    """In every round an agent takes the noise that its neighbour had in the round before."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, seeded_as_in_round(1, noise)).roll(k, dims=-2)


class NoiseShifted(PrivateGossip):
    """Every round takes the noise of round 1, shifted by some coordinates."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, seeded_as_in_round(1, noise)).roll(k, dims=-1)


class HalfOfTheNoiseOnce(PrivateGossip):
    """Half of the noise's variance is drawn once and used in all rounds."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        once = seeded_as_in_round(1, noise).gaussian("once", self._scale, like)
        return (once + super().noise(like, k, noise)) / 2**0.5


class LinksOpposite(PrivateShares):
    """The noise on the links of an agent differs in its sign alone."""

    def on_links(self, shares: Tensor, graph: Graph, noise: Noise) -> Tensor:
        to_each = shares.new_zeros(*shares.shape[:-2], graph.n_agents, shares.shape[-1])
        drawn = noise.gaussian("share", self._scale, to_each)[..., graph.senders, :]
        return torch.where((graph.senders < graph.receivers)[:, None], drawn, -drawn)


class ZeroSum(PrivateGossip):
    """The noise sums to zero over the agents."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn - drawn.mean(dim=-2, keepdim=True)


class MostlyCommon(PrivateGossip):
    """Most of the noise is common to all agents, and each adds a little of its own."""

    own: float = 0.3  # of the standard deviation

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        common = noise.gaussian("common", self._scale, like[..., :1, :])
        return (1 - self.own**2) ** 0.5 * common + self.own * super().noise(like, k, noise)


def public(seed: int, d: int) -> Tensor:
    """A random vector [d] that everybody knows."""
    return torch.randn(d, generator=torch.Generator().manual_seed(seed))


def basis(seed: int, d: int) -> Tensor:
    """A random orthogonal matrix [d, d] that everybody knows."""
    made: Tensor = torch.linalg.qr(
        torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )[0]
    return made
