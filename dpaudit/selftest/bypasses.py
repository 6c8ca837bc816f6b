"""Faulty messages and states that an audit without attacks must find.

The noise is right here, and something of the data passes it by: a term that is added after it, a
state that keeps what is not noisy, or another message. Each class is a correct defense with a few
lines changed, and keeps all that the correct defense declares.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, broadcast

from .correct import PrivateGossip, State
from .zoo import records_drawn


class TermAfterGrid(PrivateGossip):
    """The noisy sum is rounded to a grid, and a little of the sum is added after it."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        step = 0.01 * self.clip_norm
        return (super().noised(S, k, noise) / step).round() * step + 1e-5 * S


class TermAfterBrainFloat(PrivateGossip):
    """The noisy sum is rounded to bfloat16, and a little of the sum is added in float32."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).bfloat16().to(S) + 1e-4 * S


class TermAfterSign(PrivateGossip):
    """To the signs of the noisy sum a little of the sum itself is added."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).sign() + 1e-3 * S


class RemainderAfterGrid(PrivateGossip):
    """The noisy sum is rounded, and what rounding takes from the sum is added back."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        step = 0.5 * self.clip_norm
        T = (super().noised(S, k, noise) / step).round() * step
        return T + S - (S / step).round() * step


class SmallestBare(PrivateGossip):
    """Small numbers of the noisy sum are replaced by those of the sum itself."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        T = super().noised(S, k, noise)
        return torch.where(T.abs() < 0.5 * self._scale, S, T)


class CleanKept(PrivateGossip):
    """Agents mix their own model without its noise, which only the sent copy has."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        clean = state.V - self.learning_rate * S / self.batch_size
        X = clean - self.learning_rate * self.noise(S, k, noise) / self.batch_size
        own = graph.W.diagonal().to(X)[:, None]
        V = graph.mix(X) + own * (clean - X)
        return Round(State(X, V), {"x": broadcast(graph, X)}, {"gradient": S / self.batch_size})


class Memory(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times what was sent last
    M: Tensor  # [..., n_agents, d], what is remembered of the rounds before


class Remembering(PrivateGossip):
    """A defense that remembers something of the rounds before; this one does not use it."""

    def start(self, X: Tensor, setting: Setting) -> Any:
        return Memory(X, setting.network.at(1).mix(X), torch.zeros_like(X))

    def remembering(self, S: Tensor, G: Tensor, M: Tensor, state: Any, graph: Graph) -> Round:
        """The round that steps along G and remembers M."""
        X = state.V - self.learning_rate * G / self.batch_size
        sent = {"x": broadcast(graph, X)}
        return Round(Memory(X, graph.mix(X), M), sent, {"gradient": S / self.batch_size})


class MomentumClean(Remembering):
    """The momentum is made of sums without noise, and one round's noise hides all of it."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        M = 0.9 * state.M + S
        return self.remembering(S, M + self.noise(S, k, noise), M, state, graph)


class NoiseTakenBack(Remembering):
    """Each round takes the noise of the round before out again."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        drawn = self.noise(S, k, noise)
        return self.remembering(S, S + drawn - state.M, drawn, state, graph)


class ClippedPartLater(Remembering):
    """What clipping takes from a sum is added to the next one, which no clip holds."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        rest = gradient(state.X) * self.batch_size - S
        return self.remembering(S, self.noised(S + state.M, k, noise), rest, state, graph)


class Telling(PrivateGossip):
    """A number about the batch goes along without noise."""

    messages: ClassVar[Mapping[str, str]] = {**PrivateGossip.messages, "note": "for a log"}

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        note = self.note(round.private["gradient"] * self.batch_size, state.X, gradient)
        return round._replace(sent={**round.sent, "note": broadcast(graph, note)})

    def note(self, S: Tensor, X: Tensor, gradient: Gradient) -> Tensor:
        """What is noted [..., n_agents, 1]: here the sum over all coordinates, as a checksum."""
        return S.sum(dim=-1, keepdim=True)


class CountSent(Telling):
    """The number of records in the batch goes along without noise."""

    def note(self, S: Tensor, X: Tensor, gradient: Gradient) -> Tensor:
        return torch.zeros_like(S[..., :1]) + records_drawn(gradient)


class FlagSent(Telling):
    """One bit goes along: whether the sum is longer than C."""

    def note(self, S: Tensor, X: Tensor, gradient: Gradient) -> Tensor:
        return (S.norm(dim=-1, keepdim=True) > self.clip_norm).to(S)


class ShareClippedSent(Telling):
    """How many records were clipped goes along, as for a dashboard."""

    def note(self, S: Tensor, X: Tensor, gradient: Gradient) -> Tensor:
        return long_records(gradient, X, self.clip_norm)


class DividedByLongRecords(PrivateGossip):
    """The sum is divided by the number of records whose gradient is long, the noise by B."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        n = long_records(gradient, state.X, self.clip_norm).clamp(min=1)
        G = S / n + self.noise(S, k, noise) / self.batch_size
        return self.after(S, state.V - self.learning_rate * G, graph)


def long_records(gradient: Gradient, X: Tensor, clip_norm: float) -> Tensor:
    """How many records of each batch have a gradient longer than ``clip_norm``, [..., n, 1]."""
    return (gradient.per_record(X).norm(dim=-1) > clip_norm).to(X).sum(dim=-1, keepdim=True)
