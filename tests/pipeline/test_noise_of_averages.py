"""Noise of averages over agents, which is less than that of each agent, and hides as much.

A correct defense fails a test here with probability 1e-6 for each examination, over fresh seeds.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.defense import Gradient, Graph, Noise, Round, broadcast
from dpaudit.files.finding import Name
from dpaudit.selftest.correct import PrivateGossip, State
from tests.pipeline.test_noise_of_the_run import examined


class AveragesSent(PrivateGossip):
    """Averages of noisy sums over neighbours are sent, beside these sums or alone."""

    alone: bool = False

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        Z = self.noised(S, k, noise)
        M = self.average(Z, graph)
        X = state.X - self.learning_rate * M / self.batch_size
        sent = {"average": broadcast(graph, M)} | (
            {} if self.alone else {"sum": broadcast(graph, Z)}
        )
        return Round(State(X, X), sent, {"gradient": S / self.batch_size})

    def average(self, Z: Tensor, graph: Graph) -> Tensor:
        return graph.mix(Z)


class OfHalfTheNumbers(AveragesSent):
    """As where agents share layers and keep others."""

    def average(self, Z: Tensor, graph: Graph) -> Tensor:
        half = Z.shape[-1] // 2
        return torch.cat([graph.mix(Z)[..., :half], Z[..., half:]], dim=-1)


class OfAllAgents(AveragesSent):
    """As a server sends it."""

    def average(self, Z: Tensor, graph: Graph) -> Tensor:
        return Z.mean(dim=-2, keepdim=True).expand_as(Z).contiguous()


AVERAGES = pytest.mark.parametrize("average", [AveragesSent, OfHalfTheNumbers, OfAllAgents])


@AVERAGES
@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_averages_are_no_smaller_noise(average: type[AveragesSent], family: Any) -> None:
    """Its size is that of the sums: within three standard deviations, or less, with 99.7%."""
    found = examined(average(family=family))
    assert (found.verdict, found.not_examined) == (None, ())
    size = found.metrics[Name.NOISE_OVER_DECLARED]
    assert size.n is not None
    assert abs(size.value - 1) < 3 / size.n**0.5


@AVERAGES
def test_averages_alone_tell_no_size(average: type[AveragesSent]) -> None:
    found = examined(average(alone=True))
    assert (found.verdict, found.not_examined) == (None, ())
    assert Name.NOISE_OVER_DECLARED not in found.metrics
