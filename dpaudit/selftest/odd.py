"""Correct mechanisms that look odd, and that no audit may accuse, and how much each leaks.

Each is a correct defense with one line changed. It leaks no more than what is declared: mostly
because it processes a noisy value without the data, draws the same noise in another way, or adds
noise beyond it. The second value is mu of all messages over the declared mu, 1 if it is not named;
0.793 comes from covariances. Those of ``CORRECT`` are audited without attacks, those of
``LIKE_MISTAKES`` with them.
"""

from collections.abc import Mapping
from math import log2, pi, sqrt
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

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

from .correct import (
    At,
    Memory,
    PrivateGossip,
    Remembering,
    State,
    basis,
    clipped,
    correct,
    length,
    noisy,
    public,
    seeded_as_in_round,
)
from .faults import WHOLE, Remembered, ndtr, ndtri, to_grid


def by_box_and_muller(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """|Laplace(1)| is exponential: sqrt(2 |l|) is the length of a pair of normal numbers."""
    length = (2 * noise.laplace("length", 1.0, like).abs()).sqrt()
    angle = 2 * pi * ndtr(noise.gaussian("angle", 1.0, like))
    scaled: Tensor = length * angle.cos() * d._scale
    return scaled


def by_inversion(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Gaussian noise by inversion of uniform numbers, made of Laplace draws in float64."""
    uniform = noise.laplace("u", 1.0, like.double())
    tail = ndtri((-uniform.abs()).exp() / 2)  # of the smaller tail, precise
    return (torch.where(uniform < 0, tail, -tail) * d._scale).to(like)


def times_random_signs(Z: Tensor, at: At) -> Tensor:
    """Gaussian noise times random signs is Gaussian noise."""
    signs = at.source.gaussian("signs", 1.0, Z).sign()
    return Z * torch.where(signs == 0, 1.0, signs)


def reflected(Z: Tensor, at: At) -> Tensor:
    """Gaussian noise reflected at a random plane is Gaussian noise."""
    w = at.source.gaussian("plane", 1.0, Z)
    along = (Z * w).sum(dim=-1, keepdim=True) / w.square().sum(dim=-1, keepdim=True)
    return Z - 2 * along * w


def by_shares(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """Each of B records brings a share of the noise's variance."""
    share = d._scale / sqrt(d.batch_size)
    draws = [noise.gaussian(f"{i}", share, like) for i in range(d.batch_size)]
    return torch.stack(draws).sum(dim=0)


def turned(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    """The sum is turned by a public matrix, noised, and turned back."""
    Q = basis(k, S.shape[-1]).to(S)
    return noisy(d, S @ Q, k, noise) @ Q.T


def in_frequencies(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    """Noised by complex numbers; the result is real."""
    Z = torch.fft.fft(d.noise(S, k, noise), norm="ortho")
    return torch.fft.ifft(torch.fft.fft(S, norm="ortho") + Z, norm="ortho").real.to(S)


def on_one_grid(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    """The sum on the grid plus rounded noise is the rounded sum of both: post-processing.

    Rounding moves the sum by 2^-12 C sqrt(d) at most, for which the noise is 1% larger.
    """
    step = d.clip_norm * 2.0**-12
    Z = 1.01 * d.noise(S, k, noise)
    rounded: Tensor = ((S / step).round() + (Z / step).round()) * step
    return rounded


def rounded_at_random(T: Tensor, at: At) -> Tensor:
    step, u = 0.25 * at.scale, ndtr(at.source.gaussian("rounding", 1.0, T))
    return (T / step + u).floor() * step if step else T


def with_public_dither(T: Tensor, at: At) -> Tensor:
    """A public random vector is added before the noisy sum is rounded, and taken off after it."""
    step = 0.5 * at.C
    dither = torch.rand(T.shape[-1], generator=torch.Generator().manual_seed(at.k)).to(T)
    return ((T / step + dither).round() - dither) * step


def largest_quarter(T: Tensor, at: At) -> Tensor:
    least = T.abs().topk(1 + T.shape[-1] // 4, dim=-1).values[..., -1:]
    return T * (T.abs() >= least)


def public_half(T: Tensor, at: At) -> Tensor:
    """Drawn by the generator of the process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(at.k)
        kept = torch.rand(T.shape[-1]) < 0.5
    return T * kept.to(T)


def sketched(d: Any, S: Tensor, k: int, noise: Noise) -> Tensor:
    """A public projection of the sum is noised, and is all that the model moves by.

    Messages have no noise outside of that subspace, and nothing of the data.
    """
    n = S.shape[-1]
    Q = basis(7, n)[: (n + 1) // 2].to(S)
    return noisy(d, S @ Q.T, k, noise) @ Q


def frozen(T: Tensor, at: At) -> Tensor:
    """Only the last coordinates are trained: the others have no noise, and no data."""
    n = T.shape[-1]
    return T * (torch.arange(n) >= (n - 8 if n >= WHOLE else 0)).to(T)


def warming_up(d: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
    """The first two rounds use no data and no noise."""
    if k > 2:
        return PrivateGossip.step(d, state, k, graph, gradient, noise)
    return d.after(torch.zeros_like(state.X), state.V + 0.01 * k, graph)


def only_mixing_every_third(
    d: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise
) -> Round:
    if k % 3:
        return PrivateGossip.step(d, state, k, graph, gradient, noise)
    return d.after(torch.zeros_like(state.X), state.V, graph)


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

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> Mapping[str, float]:
        return {"x": 3 * super().moved_by_record(k, setting, victim)["x"]}


def moving_1_percent_further(d: Any, k: int, setting: Setting, victim: int) -> Mapping[str, float]:
    return {"x": 1.01 * PrivateGossip.moved_by_record(d, k, setting, victim)["x"]}


def gradient_late(
    d: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise
) -> Round:
    """The gradient is taken at the model of the round before, as asynchronous methods do."""
    S = d.summed(gradient, state.M)
    return d.stepping(S, d.noised(S, k, noise), state.X, state, graph)


def average_sent(
    d: Any, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise
) -> Round:
    """A running average of noisy models."""
    S = d.summed(gradient, state.X)
    Y = state.V - d.learning_rate * d.noised(S, k, noise) / d.batch_size
    M = (state.M + Y) / 2
    sent = {"x": broadcast(graph, M)}
    return Round(Memory(Y, graph.mix(M), M), sent, {"gradient": S / d.batch_size})


def as_in_adam(d: Any, S: Tensor, state: Any, k: int, g: Gradient, noise: Noise) -> Remembered:
    """Steps are divided by a running mean of squares of noisy gradients."""
    T = d.noised(S, k, noise)
    M = 0.9 * state.M + 0.1 * T.square()
    return T / (1 + M.sqrt()), M


class AllNoise(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times what was sent last
    N: Tensor  # [..., n_agents, n_rounds d], the noise of all rounds


class DrawnAtOnce(PrivateGossip):
    """The noise of all rounds is drawn in round 1 and kept."""

    def start(self, X: Tensor, setting: Setting) -> Any:
        N = X.repeat_interleave(self.n_rounds, -1) * 0
        return AllNoise(X, setting.network.at(1).mix(X), N)

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        N = super().noise(state.N, k, noise) if k == 1 else state.N
        S, d = self.summed(gradient, state.X), state.X.shape[-1]
        X = state.V - self.learning_rate * (S + N[..., (k - 1) * d : k * d]) / self.batch_size
        after = AllNoise(X, graph.mix(X), N)
        return Round(after, {"x": broadcast(graph, X)}, {"gradient": S / self.batch_size})


def shuffled(X: Tensor, k: int) -> Tensor:
    """Coordinates in a public order that differs in every round."""
    return X[..., torch.randperm(X.shape[-1], generator=torch.Generator().manual_seed(k))]


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

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> Mapping[str, float]:
        moved = super().moved_by_record(k, setting, victim)
        return {**moved, "metric": self.batch_size / self.learning_rate * moved["x"]}


def model_on_a_grid(d: Any, S: Tensor, X: Tensor, graph: Graph) -> Round:
    step = 2.0 ** round(log2(d.learning_rate * d.clip_norm / d.batch_size) - 6)
    return PrivateGossip.after(d, S, to_grid(X, step), graph)


def in_parts(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    """The sum of two independent draws of half the variance."""
    half = d._scale / 2**0.5
    return noise.gaussian("one", half, like) + noise.gaussian("other", half, like)


CORRECT = (
    correct("private gossip"),
    correct("private gossip, Laplace", family="laplace"),
    correct("private gossip, C = 1e-6", clip_norm=1e-6),
    correct("private gossip, C = 5e3", clip_norm=5e3),
    correct("noise by Box and Muller", noise=by_box_and_muller),
    correct("noise by inversion", noise=by_inversion),
    correct("noise times random signs", of_noise=times_random_signs),
    correct("noise reflected at random", of_noise=reflected),
    correct(
        "a louder scale by agent and round",
        of_noise=lambda Z, at: Z * (1 + at.source.gaussian("extra", 1.0, Z[..., :1]).abs()),
    ),
    correct(
        "some coordinates louder",
        of_noise=lambda Z, at: Z * (1 + 2 * (at.source.gaussian("extra", 1.0, Z) > 0).to(Z)),
    ),
    correct(  # 1, 1.5, 2, ... times the declared one
        "agents of other noise",
        of_noise=lambda Z, at: Z * (1 + (torch.arange(Z.shape[-2]) / 2).to(Z)[:, None]),
    ),
    correct(
        "an offset for the run",
        of_noise=lambda Z, at: (
            Z + seeded_as_in_round(1, at.source).gaussian("once", 2 * at.scale, Z)
        ),
    ),
    correct(
        "an offset of all agents",
        sqrt(1 - 4 / 25),
        of_noise=lambda Z, at: Z + at.source.gaussian("common", 2 * at.scale, Z[..., :1, :]),
    ),
    correct(
        "an offset of all coordinates",
        of_noise=lambda Z, at: Z + at.source.gaussian("one", at.scale, Z[..., :1]),
    ),
    correct("noise by shares", noise=by_shares),
    correct("turned and turned back", noised=turned),
    correct("noised in the frequency domain", noised=in_frequencies),
    correct(
        "noised in float64",
        noised=lambda d, S, k, z: to_grid(noisy(d, S.double(), k, z), 2.0**-16).to(S),
    ),
    correct(
        "sum and noise on one grid", noised=on_one_grid, moved_by_record=moving_1_percent_further
    ),
    correct("rounded at random", of_noisy=rounded_at_random),
    correct("rounded with a public dither", of_noisy=with_public_dither),
    correct("the largest noisy numbers", of_noisy=largest_quarter),
    correct(
        "a soft threshold after the noise",
        of_noisy=lambda T, at: T.sign() * (T.abs() - 0.5 * at.C).clamp(min=0),
    ),
    correct(
        "divided by the noisy length",
        of_noisy=lambda T, at: at.C * T / length(T).clamp(min=1e-12),
    ),
    correct(
        "a median of noisy numbers",
        of_noisy=lambda T, at: torch.stack([T.roll(-1, -1), T, T.roll(1, -1)]).median(dim=0).values,
    ),
    correct("a public random half", of_noisy=public_half),
    correct("a noisy sketch", noised=sketched),
    correct("frozen layers", of_noisy=frozen),
    correct("clipped to half of C", 0.5, summed=lambda d, g, X: g.clipped_sum(X, d.clip_norm / 2)),
    correct(
        "the sum clipped again",
        summed=lambda d, g, X: clip(clipped(d, g, X), d.batch_size * d.clip_norm),
    ),
    correct(
        "eight bits for each number",
        after=lambda d, S, X, graph: PrivateGossip.after(
            d, S, (X * 32).round().clamp(-128, 127) / 32, graph
        ),
    ),
    correct("two rounds of warm-up", sqrt(1 / 2), step=warming_up),
    correct("rounds that only mix", sqrt(2 / 3), n_rounds=6, step=only_mixing_every_third),
    correct("sent in every third round", base=SentSeldom),
    correct(
        "zeros in the rounds between",
        base=SentSeldom,
        sent=lambda d, round, state, k, g, z: {"x": round.state.X * (k % 3 == 0)},
    ),
    correct("sent a round late", sqrt(3 / 4), sent=lambda d, round, state, k, g, z: {"x": state.X}),
    correct("a gradient a round late", base=Remembering, step=gradient_late),
    correct("a running average sent", base=Remembering, step=average_sent),
    correct("steps as in Adam", base=Remembering, remembered=as_in_adam),
    correct("all noise drawn in round 1", base=DrawnAtOnce),
    correct(
        "differences sent", sent=lambda d, round, state, k, g, z: {"x": round.state.X - state.V}
    ),
    correct(
        "coordinates shuffled",
        sent=lambda d, round, state, k, g, z: {"x": shuffled(round.state.X, k)},
    ),
    correct(
        "padded by zeros",
        sent=lambda d, round, state, k, g, z: {"x": torch.nn.functional.pad(round.state.X, (0, 5))},
    ),
    correct(
        "a noisy channel",
        0.793,
        sent=lambda d, round, state, k, g, z: {
            "x": round.state.X + z.gaussian("channel", d.noise_scales()["x"], round.state.X)
        },
    ),
    correct(
        "sent twice, with signs",
        messages={"x_again": "the same model", "signs": "its signs"},
        sent=lambda d, round, state, k, g, z: {
            "x_again": round.state.X,
            "signs": round.state.X.sign(),
        },
    ),
    correct(
        "constants sent along",
        messages={"round": "its number", "hello": "a constant"},
        sent=lambda d, round, state, k, g, z: {
            "round": torch.full_like(round.state.X[..., :1], k),
            "hello": public(1, round.state.X.shape[-1]).to(round.state.X).expand_as(round.state.X),
        },
    ),
    correct("a noisy number sent along", base=NoisyNumber),
    correct("rotating peers", graph="exponential"),
)

LIKE_MISTAKES = (
    correct("private gossip"),
    correct("private gossip, Laplace", family="laplace"),
    correct("scaled by the noisy norm", of_noisy=lambda T, at: T / (1 + length(T))),
    correct("the noisy sum clipped", of_noisy=lambda T, at: T.clamp(-at.C, at.C)),
    correct("signs of the noisy sum", of_noisy=lambda T, at: T.sign()),
    correct(
        "small noisy coordinates left out", of_noisy=lambda T, at: T * (T.abs() > 0.5 * at.scale)
    ),
    correct("rounded after the noise", after=model_on_a_grid),
    correct(
        "bfloat16 after the noise",
        after=lambda d, S, X, graph: PrivateGossip.after(d, S, X.bfloat16().to(X), graph),
    ),
    correct("noise in another order", of_noise=lambda Z, at: Z.flip(-1)),
    correct("noise in two parts", noise=in_parts),
)
