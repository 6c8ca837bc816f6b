"""Noise of messages that hold the gradients of earlier rounds, as that of noisy gossip does.

A correct defense fails a test here with probability 1e-6 for each examination, over fresh seeds.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.defense import Gradient, Graph, Noise, Round, broadcast
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.noise_of_the_run import UNSEEN
from dpaudit.selftest.correct import Memory, PrivateGossip, Remembering, State
from tests.pipeline.test_noise_of_the_run import examined


class NoisedThenStepped(PrivateGossip):
    """Z = X + noise is sent, and then X <- W Z - eta G."""

    n_rounds: int = 3

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        Z = state.X + self.noise(state.X, k, noise)
        S = self.summed(gradient, Z)
        X = graph.mix(Z) - self.learning_rate * S / self.batch_size
        return Round(State(X, X), {"x": broadcast(graph, Z)}, {"gradient": S / self.batch_size})


class SteppedFirstInEvenRounds(NoisedThenStepped):
    """Half of the messages hold the gradient of their own round, beside that of the one before."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        moved = self.learning_rate * S / self.batch_size
        Z = state.X + self.noise(state.X, k, noise) - (moved if k % 2 == 0 else 0 * moved)
        X = graph.mix(Z) - (moved if k % 2 else 0 * moved)
        return Round(State(X, X), {"x": broadcast(graph, Z)}, {"gradient": S / self.batch_size})


class OneNumberForAll(NoisedThenStepped):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like[..., :1], k, noise).expand_as(like)


class OneAgentForAll(NoisedThenStepped):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like[..., :1, :], k, noise).expand_as(like)


class TwoHalves(NoisedThenStepped):
    """The same numbers in both halves of a row."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        half = super().noise(like[..., : like.shape[-1] // 2], k, noise)
        return torch.cat([half, half], dim=-1)


class LessOnTheLast(NoisedThenStepped):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        all_ = super().noise(like, k, noise)
        return torch.cat([all_[..., :-3], 0 * all_[..., -3:]], dim=-1)


class OneNumberInTheLastRound(NoisedThenStepped):
    n_rounds: int = 60

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        width = like.shape[-1] if k < self.n_rounds else 1
        return super().noise(like[..., :width], k, noise).expand_as(like)


class TwoRoundsLater(Remembering):
    """A gradient waits a round in the memory before the model takes it."""

    n_rounds: int = 3

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        Z = state.X + self.noise(state.X, k, noise)
        S = self.summed(gradient, Z)
        X = graph.mix(Z) - self.learning_rate * state.M / self.batch_size
        return Round(Memory(X, X, S), {"x": broadcast(graph, Z)}, {"gradient": S})


class OneNumberTwoRoundsLater(TwoRoundsLater):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like[..., :1], k, noise).expand_as(like)


class DividedByEarlierSteps(Remembering):
    """Coordinates that moved much before move less, as in DP^2-RMSProp: all of noised values."""

    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        noised = self.noised(S, k, noise)
        return noised / (state.M.abs() + 0.1), noised


FAMILIES = pytest.mark.parametrize("family", ["gaussian", "laplace"])


@FAMILIES
@pytest.mark.parametrize("fault", [OneNumberForAll, OneAgentForAll, TwoHalves, LessOnTheLast])
def test_noise_sent_before_its_gradient_must_be_fresh(fault, family: str) -> None:
    found = examined(fault(family=family))
    assert found.verdict is Verdict.UNSUPPORTED
    assert '"x"' in found.title


def test_shared_noise_of_the_last_message_is_found() -> None:
    found = examined(OneNumberInTheLastRound())
    assert found.verdict is Verdict.UNSUPPORTED
    assert found.rounds == (60,)


@FAMILIES
@pytest.mark.parametrize("correct", [NoisedThenStepped, TwoRoundsLater, SteppedFirstInEvenRounds])
def test_fresh_noise_before_a_gradient_is_not_accused(correct, family: str) -> None:
    found = examined(correct(family=family))
    assert found.verdict is None
    assert found.not_examined == ()


@pytest.mark.parametrize("defense", [NoisedThenStepped, DividedByEarlierSteps])
def test_the_size_of_noise_is_measured(defense: type[PrivateGossip]) -> None:
    """It is of three standard deviations, or less, with 99.7%: of some 3,000 numbers.

    Also where noise of rounds before decides how much of it a message holds, stream by stream.
    """
    size = examined(defense()).metrics["noise over declared"]
    assert size.n is not None
    assert abs(size.value - 1) < 3 / (2 * size.n) ** 0.5
    assert size.low is not None
    assert size.low < 1 < (size.high or 0)


def test_shared_noise_in_which_no_gradient_shows_is_noted() -> None:
    found = examined(OneNumberTwoRoundsLater())
    assert found.verdict is None
    assert found.not_examined == (f'"x" in rounds 1 to 3 ({UNSEEN})',)
