"""A message that moves too far, played again with its noise moved."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity.noise_log import TracedDraw
from dpaudit.attacks.sensitivity.replay import ALLOWED, explained, is_linear, replay
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds, PlayedWorld, Record, placed
from dpaudit.defense import Gradient, Graph, Noise, Round
from dpaudit.selftest.correct import PrivateGossip

VICTIM = 1


class Processed(PrivateGossip):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S = self.summed(gradient, state.X)
        G = self.processed(self.noised(S, k, noise), S)
        return self.after(S, state.V - self.learning_rate * G, graph)

    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy


class NoisySign(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy.sign()


class NoisySignTimesCleanNorm(Processed):
    def processed(self, noisy: Tensor, clean: Tensor) -> Tensor:
        return noisy.sign() * clean.norm(dim=-1, keepdim=True)


class Unclipped(NoisySign):
    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient(X) * 100


@pytest.fixture
def worlds(setting_of, streams):
    def make(defense: Any) -> tuple[PlayedWorld, PlayedWorld]:
        problem, setting = setting_of("ring", 4, "logistic")
        coupled = CoupledWorlds(defense, problem, setting, streams, VICTIM)
        inputs, labels = coupled.classification.records(VICTIM)
        record, oracle = Record(inputs[0].double(), labels[0]), coupled.batches(1)
        here, there = (placed(oracle, VICTIM, r) for r in (None, record))
        return PlayedWorld(coupled, coupled.start(), 1, here), PlayedWorld(
            coupled, coupled.start(), 1, there
        )

    return make


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_the_sign_of_a_noisy_sum_is_the_same_once_the_sum_is(worlds: Any, family: Any) -> None:
    here, there = worlds(NoisySign(family=family, noise_multiplier=0.1))
    assert not torch.equal(here.noisy.sent["x"].payload, there.noisy.sent["x"].payload)
    replayed = replay(here, there, "add-remove")
    assert replayed.same == {"x"}
    assert 0.5 < replayed.moved <= ALLOWED  # of a clipped gradient
    assert explained([(here, there)], "x", "add-remove")


def test_a_factor_that_no_noise_protects_still_differs(worlds: Any) -> None:
    replayed = replay(*worlds(NoisySignTimesCleanNorm(noise_multiplier=0.1)), "add-remove")
    assert replayed.same == frozenset()
    assert replayed.moved <= ALLOWED


def test_noise_is_moved_no_further_than_is_declared(worlds: Any) -> None:
    pair = worlds(Unclipped(noise_multiplier=0.1))
    replayed = replay(*pair, "add-remove")
    assert replayed.same == {"x"}
    assert replayed.moved > 10
    assert not explained([pair], "x", "add-remove")


def test_a_linear_message_is_held_against_its_bound(worlds: Any) -> None:
    pair = worlds(Processed())
    assert is_linear(pair[0], "x")
    assert replay(*pair, "add-remove").same == {"x"}
    assert not explained([pair], "x", "add-remove")
    assert not is_linear(worlds(NoisySign())[0], "x")


@pytest.mark.parametrize(
    "add",
    [
        lambda S, z: S + z,
        lambda S, z: z + S,
        lambda S, z: S - (-z),
        lambda S, z: (2 * S + z * 4 / 2) / 2,
        lambda S, z: S.clone().add_(z),
        lambda S, z: z.add_(S),
        lambda S, z: torch.add(z, S),
    ],
)
def test_a_draw_notes_what_it_is_added_to(add: Any) -> None:
    S, z = torch.randn(2, 3).double(), torch.randn(2, 3).double()
    noted: list[Tensor] = []

    def note(value: Tensor, before: Tensor | None) -> Tensor:
        assert before is None
        noted.append(value)
        return value

    result = add(S, TracedDraw.of(z.clone(), note))
    torch.testing.assert_close(result.as_subclass(Tensor), S + z)
    assert len(noted) == 1
    torch.testing.assert_close(noted[0], S)


@pytest.mark.parametrize("add", [lambda S, z: S + z, lambda S, z: S - z, lambda S, z: z.add_(S)])
def test_a_value_no_sum_overwrites_is_noted_without_rounding(add: Any) -> None:
    """Else noise that is moved moves the value by rounding, and a replay never comes to an end."""
    S, z = torch.randn(2, 3).double(), 1e3 * torch.randn(2, 3).double()
    noted: list[Tensor] = []

    def note(value: Tensor, before: Tensor | None) -> Tensor:
        noted.append(value)
        return value

    add(S, TracedDraw.of(z.clone(), note))
    assert torch.equal(noted[0].abs(), S.abs())  # of S - z, the value is -S in units of the draw
