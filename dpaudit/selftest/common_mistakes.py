"""Further common mistakes, and correct mechanisms that look like mistakes.

Each class is the correct defense of the zoo with one thing changed. A fault keeps all that its twin
says of itself. What looks like a mistake and is none processes a value that the noise already
protects, or draws the same noise in another way.
"""

from math import log2
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, broadcast

from .correct import PrivateGossip
from .zoo import seeded_as_in_round

BIAS = 3  # coordinates
GRID = 1 / 64  # of the noise's scale


class BiasBare(PrivateGossip):
    """The last coordinates, a bias, are sent without noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise).clone()
        if like.shape[-1] > BIAS:
            drawn[..., -BIAS:] = 0.0
        return drawn

    def all(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        """Noise in every coordinate."""
        return super().noise(like, k, noise)


class BiasBareAtTheEnd(BiasBare):
    """The noise of a bias is switched off for the last round."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) if k == self.n_rounds else self.all(like, k, noise)


class BiasBareInBetween(BiasBare):
    """It is off in a round in the middle of the run."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) if k == self.n_rounds - 1 else self.all(like, k, noise)


class NoiseCentred(PrivateGossip):
    """Noise less its mean: the sum of all coordinates has none."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn - drawn.mean(dim=-1, keepdim=True) if like.shape[-1] > 1 else drawn


class NoiseTiled(PrivateGossip):
    """Noise for the first half of the coordinates, used for the second half again."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        d = like.shape[-1]
        half = super().noise(like[..., : (d + 1) // 2], k, noise)
        return torch.cat([half, half], dim=-1)[..., :d]


class NoiseByDimension(PrivateGossip):
    """The noise has norm sigma C in all, in the place of sigma C in each coordinate."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / like.shape[-1] ** 0.5


class HalfPrecisionNoise(PrivateGossip):
    """Noise drawn in float16 and added to a finer sum, whose low bits then show."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).half().to(like)


class BrainFloatNoise(PrivateGossip):
    """The same in bfloat16."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).bfloat16().to(like)


class GridNoise(PrivateGossip):
    """Noise from a table of coarse steps, added to a finer sum."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        step = GRID * self._scale
        drawn = super().noise(like, k, noise)
        return (drawn / step).round() * step if step else drawn


class NoiseDecays(PrivateGossip):
    """The noise follows the learning rate's decay, which the accounting does not."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * 0.5 ** (k - 1)


class NoiseAveraged(PrivateGossip):
    """Noise for the mean, added to the sum before the division."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / self.batch_size


class ClipByLayer(PrivateGossip):
    """Each of two layers clipped to C, under noise for C in all."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient.clipped_sum(X, self.clip_norm * 2**0.5, norm=self._norm)


class NormSent(PrivateGossip):
    """The norm of the un-noised sum goes along, for a log."""

    messages: ClassVar = {**PrivateGossip.messages, "norm": "how long the gradient is"}

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        length = round.private["gradient"].norm(dim=-1, keepdim=True)
        return round._replace(sent={**round.sent, "norm": broadcast(graph, length)})


class SparsifiedFirst(PrivateGossip):
    """Only coordinates with a large un-noised value get noise; the others are sent as they are."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.where(S.abs() > 1e-3 * self.clip_norm, super().noised(S, k, noise), S)


class NormalisedByTruth(PrivateGossip):
    """The noisy sum is scaled by the norm of the sum without noise."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise) / (1 + S.norm(dim=-1, keepdim=True))


class AntitheticAgents(PrivateGossip):
    """Pairs of agents take opposite noise, so that it cancels in the mean."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like[..., ::2, :], k, noise)
        pairs = torch.stack([drawn, -drawn], dim=-2).flatten(-3, -2)
        return pairs[..., : like.shape[-2], :]


class LastRoundAgain(PrivateGossip):
    """Every second round takes the noise of the round before."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, seeded_as_in_round(k - (k % 2 == 0), noise))


class AbsoluteNoise(PrivateGossip):
    """Noise of one sign, from a distribution that was meant for scales."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).abs()


class Carried(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times what was sent last
    E: Tensor  # [..., n_agents, d], sums of the round before


class SumsCarriedOver(PrivateGossip):
    """A batch's sum is used in its round and, as a correction, in the next one again."""

    def start(self, X: Tensor, setting: Setting) -> Any:
        return Carried(X, setting.network.at(1).mix(X), torch.zeros_like(X))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = self.noised(S + state.E, k, noise) / self.batch_size
        X = state.V - self.learning_rate * G
        after = Carried(X, graph.mix(X), S)
        return Round(after, {"x": broadcast(graph, X)}, {"gradient": S / self.batch_size})


class NormalisedNoisy(PrivateGossip):
    """Correct: the noisy gradient is scaled by its own norm."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        return T / (1 + T.norm(dim=-1, keepdim=True))


class ClippedNoisy(PrivateGossip):
    """Correct: the noisy gradient is clipped once more."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).clamp(-self.clip_norm, self.clip_norm)


class SignOfNoisy(PrivateGossip):
    """Correct: of the noisy sum, the signs."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).sign()


class MaskedByNoisy(PrivateGossip):
    """Correct: coordinates whose noisy value is small are left out."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        return T * (T.abs() > 0.5 * self._scale)


class RoundedAfterNoise(PrivateGossip):
    """Correct: the model that is sent is rounded to a public grid."""

    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        step = 2.0 ** round(log2(self.learning_rate * self.clip_norm / self.batch_size) - 6)
        return super().after(S, (X / step).round() * step, graph)


class BrainFloatAfterNoise(PrivateGossip):
    """Correct: the model that is sent is rounded to bfloat16."""

    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        return super().after(S, X.bfloat16().to(X), graph)


class NoisePermuted(PrivateGossip):
    """Correct: independent noise in another order of coordinates."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).flip(-1)


class NoiseInParts(PrivateGossip):
    """Correct: the noise is the sum of two independent draws of half its variance."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        if self.family == "laplace":
            return super().noise(like, k, noise)
        half = self._scale / 2**0.5
        return noise.gaussian("one", half, like) + noise.gaussian("other", half, like)
