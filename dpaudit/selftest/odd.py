"""Correct mechanisms that look odd, and that no audit may accuse.

Each class is a correct defense with a few lines changed. The first line of a docstring says what is
odd, and the next ones why it leaks no more than what is declared: mostly because it processes a
noisy value without the data, draws the same noise in another way, or adds noise beyond it.
"""

from collections.abc import Mapping
from math import pi, sqrt
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import (
    Adjacency,
    Bracket,
    Gradient,
    Graph,
    Messages,
    Noise,
    Round,
    Setting,
    Stated,
    ThreatModel,
    broadcast,
    clip,
)

from .bypasses import Memory, Remembering
from .correct import PrivateGossip, State
from .faults import WHOLE, basis, public
from .zoo import seeded_as_in_round


class BoxMuller(PrivateGossip):
    """Gaussian noise by the formula of Box and Muller.

    |Laplace(1)| is exponential, so sqrt(2 |l|) is the length of a pair of normal numbers.
    """

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        length = (2 * noise.laplace("length", 1.0, like).abs()).sqrt()
        angle = 2 * pi * torch.special.ndtr(noise.gaussian("angle", 1.0, like))
        return length * angle.cos() * self._scale


class ByInversion(PrivateGossip):
    """Gaussian noise by inversion of uniform numbers, made of Laplace draws in float64."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = noise.laplace("u", 1.0, like.double())
        tail = torch.special.ndtri((-drawn.abs()).exp() / 2)  # of the smaller tail, precise
        return (torch.where(drawn < 0, tail, -tail) * self._scale).to(like)


class RandomSigns(PrivateGossip):
    """Gaussian noise times random signs, which is Gaussian noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        signs = noise.gaussian("signs", 1.0, like).sign()
        return super().noise(like, k, noise) * torch.where(signs == 0, 1.0, signs)


class Reflected(PrivateGossip):
    """Gaussian noise reflected at a random plane, which is Gaussian noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn, w = super().noise(like, k, noise), noise.gaussian("plane", 1.0, like)
        along = (drawn * w).sum(dim=-1, keepdim=True) / w.square().sum(dim=-1, keepdim=True)
        return drawn - 2 * along * w


class Louder(PrivateGossip):
    """Noise of a random standard deviation, at least the declared one, for each agent."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * (1 + self.extra(like, noise))

    def extra(self, like: Tensor, noise: Noise) -> Tensor:
        """What is added to 1, at least 0."""
        return noise.gaussian("extra", 1.0, like[..., :1]).abs()


class SometimesLoud(Louder):
    """Each coordinate has three times the noise with probability 1/2."""

    def extra(self, like: Tensor, noise: Noise) -> Tensor:
        return 2 * (noise.gaussian("extra", 1.0, like) > 0).to(like)


class LouderByAgent(Louder):
    """Agents have 1, 1.5, 2, ... times the declared noise."""

    def extra(self, like: Tensor, noise: Noise) -> Tensor:
        return (torch.arange(like.shape[-2]) / 2).to(like)[:, None]


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


class NoiseByShares(PrivateGossip):
    """Each of B records brings a share of the noise's variance."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        share = self._scale / sqrt(self.batch_size)
        draws = [noise.gaussian(f"{i}", share, like) for i in range(self.batch_size)]
        return torch.stack(draws).sum(dim=0)


class Rotated(PrivateGossip):
    """The sum is turned by a public matrix, noised, and turned back."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        Q = basis(k, S.shape[-1]).to(S)
        return super().noised(S @ Q, k, noise) @ Q.T


class InFrequencies(PrivateGossip):
    """The sum is noised in the frequency domain, by complex numbers, and the result is real."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = torch.fft.fft(self.noise(S, k, noise), norm="ortho")
        return torch.fft.ifft(torch.fft.fft(S, norm="ortho") + drawn, norm="ortho").real.to(S)


class InDoublePrecision(PrivateGossip):
    """The sum is noised in float64 and rounded to a grid of float32 numbers."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        step = 2.0**-16
        return ((super().noised(S.double(), k, noise) / step).round() * step).to(S)


class OnOneGrid(PrivateGossip):
    """Sum and noise are rounded to one grid before they are added.

    The sum on the grid plus rounded noise is the rounded sum of both: post-processing. Rounding
    moves the sum by 2^-12 C sqrt(d) at most, for which the noise is 1% larger.
    """

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        step = self.clip_norm * 2.0**-12
        drawn = 1.01 * self.noise(S, k, noise)
        return ((S / step).round() + (drawn / step).round()) * step

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        stated = super().sensitivity(k, setting, adjacency, victim, sent)
        return {name: Stated(norm, 1.01 * value) for name, (norm, value) in stated.items()}


class RandomlyRounded(PrivateGossip):
    """The noisy sum is rounded up or down at random."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        step, u = 0.25 * self._scale, torch.special.ndtr(noise.gaussian("rounding", 1.0, S))
        T = super().noised(S, k, noise)
        return (T / step + u).floor() * step if step else T


class PubliclyDithered(PrivateGossip):
    """A public random vector is added before the noisy sum is rounded, and taken off after it."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        step = 0.5 * self.clip_norm
        dither = torch.rand(S.shape[-1], generator=torch.Generator().manual_seed(k)).to(S)
        return ((super().noised(S, k, noise) / step + dither).round() - dither) * step


class LargestKept(PrivateGossip):
    """A quarter of the noisy numbers is kept, those of largest size."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        least = T.abs().topk(1 + T.shape[-1] // 4, dim=-1).values[..., -1:]
        return T * (T.abs() >= least)


class Shrunk(PrivateGossip):
    """Noisy numbers come closer to 0, and small ones are 0 (soft threshold)."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        return T.sign() * (T.abs() - 0.5 * self.clip_norm).clamp(min=0)


class UnitLength(PrivateGossip):
    """The noisy sum is divided by its length."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        return self.clip_norm * T / T.norm(dim=-1, keepdim=True).clamp(min=1e-12)


class Smoothed(PrivateGossip):
    """The noisy sum is replaced by a median of three neighbouring coordinates."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        return torch.stack([T.roll(-1, -1), T, T.roll(1, -1)]).median(dim=0).values


class HalfOfThemPublic(PrivateGossip):
    """A public random half of the noisy numbers is kept, drawn by the generator of the process."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(k)
            kept = torch.rand(S.shape[-1]) < 0.5
        return super().noised(S, k, noise) * kept.to(S)


class Sketched(PrivateGossip):
    """A public projection of the sum is noised, and is all that the model moves by.

    Messages have no noise outside of that subspace, and nothing of the data.
    """

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        d = S.shape[-1]
        Q = basis(7, d)[: (d + 1) // 2].to(S)
        return super().noised(S @ Q.T, k, noise) @ Q


class Frozen(PrivateGossip):
    """Only the last coordinates are trained: the others have no noise, and no data."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        d = S.shape[-1]
        trained = (torch.arange(d) >= (d - 8 if d >= WHOLE else 0)).to(S)
        return super().noised(S, k, noise) * trained


class ClippedShorter(PrivateGossip):
    """Gradients are clipped to half of the declared norm."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient.clipped_sum(X, self.clip_norm / 2)


class ClippedLonger(PrivateGossip):
    """The sum of clipped gradients is clipped again, which moves no two sums apart."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return clip(super().summed(gradient, X), self.batch_size * self.clip_norm)


class GridOfRoundNumbers(PrivateGossip):
    """The model that is sent has eight bits for each number, on a public range."""

    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        return super().after(S, (X * 32).round().clamp(-128, 127) / 32, graph)


class WarmUp(PrivateGossip):
    """The first two of four rounds use no data and no noise."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        if k > 2:
            return super().step(state, k, graph, gradient, noise)
        return self.after(torch.zeros_like(state.X), state.V + 0.01 * k, graph)


class MixedAgain(PrivateGossip):
    """Every third round mixes models, without data and without noise."""

    n_rounds: int = 6

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        if k % 3:
            return super().step(state, k, graph, gradient, noise)
        return self.after(torch.zeros_like(state.X), state.V, graph)


class SentSeldom(PrivateGossip):
    """Noisy steps are taken in every round, and the model is mixed in every third.

    In the other rounds the message is the model that was sent last, which is known.
    """

    n_rounds: int = 6

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.V)
        Y = state.V - self.learning_rate * self.noised(S, k, noise) / self.batch_size
        X = Y if k % 3 == 0 else state.X
        after = State(X, graph.mix(Y) if k % 3 == 0 else Y)
        return Round(after, {"x": broadcast(graph, X)}, {"gradient": S / self.batch_size})

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        stated = super().sensitivity(k, setting, adjacency, victim, sent)
        return {name: Stated(norm, 3 * value) for name, (norm, value) in stated.items()}


class ZerosBetween(SentSeldom):
    """The same with messages of zeros in the rounds between."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        return round._replace(sent={"x": broadcast(graph, round.state.X * (k % 3 == 0))})


class SentLate(PrivateGossip):
    """What is sent is the model of the round before."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        return round._replace(sent={"x": broadcast(graph, state.X)})


class GradientLate(Remembering):
    """The gradient is taken at the model of the round before, as asynchronous methods do."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.M)
        return self.remembering(S, self.noised(S, k, noise), state.X, state, graph)


class AverageSent(Remembering):
    """What is sent is a running average of noisy models."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        Y = state.V - self.learning_rate * self.noised(S, k, noise) / self.batch_size
        M = (state.M + Y) / 2
        sent = {"x": broadcast(graph, M)}
        return Round(Memory(Y, graph.mix(M), M), sent, {"gradient": S / self.batch_size})


class Adaptive(Remembering):
    """Steps are divided by a running mean of squares of noisy gradients, as in Adam."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        T = self.noised(S, k, noise)
        M = 0.9 * state.M + 0.1 * T.square()
        return self.remembering(S, T / (1 + M.sqrt()), M, state, graph)


class Block(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times what was sent last
    N: Tensor  # [..., n_agents, n_rounds d], the noise of all rounds


class DrawnAtOnce(PrivateGossip):
    """The noise of all rounds is drawn in round 1 and kept."""

    def start(self, X: Tensor, setting: Setting) -> Any:
        return Block(X, setting.network.at(1).mix(X), X.repeat_interleave(self.n_rounds, -1) * 0)

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        N = super().noise(state.N, k, noise) if k == 1 else state.N
        S, d = self.summed(gradient, state.X), state.X.shape[-1]
        T = S + N[..., (k - 1) * d : k * d]
        X = state.V - self.learning_rate * T / self.batch_size
        after = Block(X, graph.mix(X), N)
        return Round(after, {"x": broadcast(graph, X)}, {"gradient": S / self.batch_size})


class Difference(PrivateGossip):
    """What is sent is the noisy step, and every agent keeps the models that it follows from."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        return round._replace(sent={"x": broadcast(graph, round.state.X - state.V)})


class Shuffled(PrivateGossip):
    """The coordinates of what is sent have another order in every round, which all know."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        order = torch.randperm(state.X.shape[-1], generator=torch.Generator().manual_seed(k))
        return round._replace(sent={"x": broadcast(graph, round.state.X[..., order])})


class Padded(PrivateGossip):
    """What is sent is padded by zeros."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        X = round.state.X
        return round._replace(sent={"x": broadcast(graph, torch.nn.functional.pad(X, (0, 5)))})


class NoisyChannel(PrivateGossip):
    """What is sent has more noise than the model that its sender keeps."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        Y = round.state.X + noise.gaussian("channel", self.noise_scales()["x"], round.state.X)
        return round._replace(sent={"x": broadcast(graph, Y)})


class SentTwice(PrivateGossip):
    """The model is sent twice, and its signs too."""

    messages: ClassVar[Mapping[str, str]] = {
        **PrivateGossip.messages,
        "x_again": "the same model",
        "signs": "its signs",
    }

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        X = round.state.X
        more = {"x_again": broadcast(graph, X), "signs": broadcast(graph, X.sign())}
        return round._replace(sent={**round.sent, **more})


class Greeting(PrivateGossip):
    """The round's number and a constant vector go along without noise."""

    messages: ClassVar[Mapping[str, str]] = {
        **PrivateGossip.messages,
        "round": "its number",
        "hello": "a constant",
    }

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        X = round.state.X
        number = torch.full_like(X[..., :1], k)
        hello = public(1, X.shape[-1]).to(X).expand_as(X)
        more = {"round": broadcast(graph, number), "hello": broadcast(graph, hello)}
        return round._replace(sent={**round.sent, **more})


class NoisyNumber(PrivateGossip):
    """A number about the batch goes along under noise of its own, and is accounted.

    What is noised moves by C at most in the sum and by C in the number, so each release has its
    own mu, and mu^2 of a round is their sum.
    """

    messages: ClassVar[Mapping[str, str]] = {**PrivateGossip.messages, "metric": "a noisy number"}

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        mean = round.private["gradient"]
        number = self.batch_size * mean.sum(dim=-1, keepdim=True) / mean.shape[-1] ** 0.5
        noisy = number + noise.gaussian("metric", self._scale, number)
        return round._replace(sent={**round.sent, "metric": broadcast(graph, noisy)})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        both = self.model_copy(update={"noise_multiplier": self.noise_multiplier / sqrt(2)})
        return super(NoisyNumber, both).mechanism(setting, threat_model, victim)

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        stated = super().sensitivity(k, setting, adjacency, victim, sent)
        if not stated:
            return {}
        scale = self.batch_size / self.learning_rate
        return {**stated, "metric": Stated(2, scale * stated["x"].value)}
