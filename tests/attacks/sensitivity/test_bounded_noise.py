"""Noise that ends, and what lies beyond its end."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.special import ndtr
from torch import Tensor

from dpaudit.attacks.sensitivity import attack
from dpaudit.attacks.sensitivity.attack import _beyond
from dpaudit.attacks.sensitivity.bounded_noise import BeyondNoise, beyond_the_noise
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds, PlayedWorld, all_without_first
from dpaudit.defense import Noise
from dpaudit.selftest.correct import PrivateGossip

VICTIM, EDGE = 1, 3.5
Z = 0.5 * 1.0 / 4  # scale of the noise of a mean


class Cut(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).clamp(-EDGE * self._scale, EDGE * self._scale)


class LeftOut(PrivateGossip):
    """Beyond the edge there is none."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        z = super().noise(like, k, noise)
        return z * (z.abs() < EDGE * self._scale)


class Wrapped(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        z, edge = super().noise(like, k, noise), EDGE * self._scale
        return (z + edge) % (2 * edge) - edge


class Uniform(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        z = super().noise(like, k, noise)
        return torch.special.ndtr(z / self._scale) - 0.5


class Processed(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return self.of(super().noised(S, k, noise))

    def of(self, T: Tensor) -> Tensor:
        return T.sign()


class Tanh(Processed):
    def of(self, T: Tensor) -> Tensor:
        return torch.tanh(T)


class Bytes(Processed):
    def of(self, T: Tensor) -> Tensor:
        return (T * 16).round().clamp(-127, 127)


class Unit(Processed):
    def of(self, T: Tensor) -> Tensor:
        return T / T.norm(dim=-1, keepdim=True)


@pytest.fixture
def coupled(setting_of: Any, streams: Any) -> Callable[[Any], CoupledWorlds]:
    problem, setting = setting_of("ring", 4, "logistic")
    return lambda defense: CoupledWorlds(defense, problem, setting, streams, VICTIM)


def test_a_cut_shows_a_record_as_often_as_it_cuts_a_number(coupled: Any) -> None:
    """1 - (1 - q)^n with q beyond one edge, or nearer to it by as much as the record moves one."""
    run = coupled(Cut())
    worlds = [
        PlayedWorld(
            run, run.start(), 1, all_without_first(run.kept_batches(1), there, (VICTIM,))
        ).quiet.sent["x"]
        for there in (False, True)
    ]
    moved = (run.own(worlds[0]) - run.own(worlds[1])).abs()
    n, most = int((moved > 0).sum()), float(moved.max()) / (run.defense.learning_rate * Z)
    found = beyond_the_noise(run)
    assert found is not None
    low, high = (1 - ndtr(EDGE - less) ** n for less in (0.0, most))
    assert low * (1 - 1e-6) < found.probability < high
    [finding] = _beyond(run, "add-remove", 1e-5)
    assert finding.verdict == "unsupported"
    assert not list(_beyond(run, "add-remove", 0.1))


@pytest.mark.parametrize(("drawing", "rate"), [("cyclic", 1.0), ("poisson", 0.25), ("fixed", 0.25)])
def test_a_record_is_beyond_where_it_is_in_the_batch(monkeypatch, drawing, rate) -> None:
    """A record of batches in turn is in one of the first round for certain, as it is counted."""
    monkeypatch.setattr(attack, "beyond_the_noise", lambda run: BeyondNoise("x", 0.01, 3.0))
    defense = SimpleNamespace(drawing=drawing, sampling_rate=lambda n: n / 16)
    setting = SimpleNamespace(sizes=(9, 4))
    run: Any = SimpleNamespace(defense=defense, setting=setting, victim=VICTIM)
    [finding] = _beyond(run, "add-remove", 0.01 * rate * (1 - 1e-9))
    assert f"with probability {0.01 * rate:.2g} a record of agent 1" in finding.notes[0]
    assert not list(_beyond(run, "add-remove", 0.01 * rate))


@pytest.mark.parametrize("defense", [PrivateGossip(), Processed()])
def test_noise_without_an_end_and_signs_under_it_show_nothing(coupled: Any, defense: Any) -> None:
    assert beyond_the_noise(coupled(defense)) is None


@pytest.mark.slow
@pytest.mark.parametrize("defense", [LeftOut(), Wrapped(), Uniform(), Cut(family="laplace")])
def test_further_noise_that_ends_is_found(coupled: Any, defense: Any) -> None:
    found: BeyondNoise | None = beyond_the_noise(coupled(defense))
    assert found is not None
    assert found.probability > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("defense", [Tanh(), Bytes(), Unit(), PrivateGossip(family="laplace")])
def test_further_messages_under_whole_noise_show_nothing(coupled: Any, defense: Any) -> None:
    assert beyond_the_noise(coupled(defense)) is None
