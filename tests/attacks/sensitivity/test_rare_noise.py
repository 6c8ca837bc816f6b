"""Steps that do something else where a draw of noise comes out far from zero."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity.own_draws import watched
from dpaudit.attacks.sensitivity.rare_noise import unlikely_draws
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds
from dpaudit.defense import Gradient, Noise
from dpaudit.selftest.catalogue import CORRECT
from dpaudit.selftest.correct import PrivateGossip, Remembering

LAST = 4


class Coin(PrivateGossip):
    """Once in 740 times an agent sends its sum as it is."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        coin = noise.gaussian("coin", 1.0, like[..., :1])
        return super().noise(like, k, noise) * (coin < 3).to(like)


class CoinInBetween(Coin):
    """Of a value that is not far out."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        coin = noise.gaussian("coin", 1.0, like[..., :1])
        z = PrivateGossip.noise(self, like, k, noise)
        return z * ((coin < -2.6) | (coin > -2.4)).to(like)


class TwoCoins(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        a, b = (noise.gaussian(name, 1.0, like[..., :1]) for name in "ab")
        return super().noise(like, k, noise) * (torch.minimum(a, b) < 2.4).to(like)


class LongNoiseDropped(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        z = super().noise(like, k, noise)
        return z * (z.abs().amax(-1, keepdim=True) < 4.5 * self._scale).to(z)


class LongNoiseDroppedAtLast(LongNoiseDropped):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return (super() if k == LAST else super(LongNoiseDropped, self)).noise(like, k, noise)


class Cut(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).clamp(-5 * self._scale, 5 * self._scale)


class Smaller(Coin):
    """A tenth of the noise, by a coin."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        coin = noise.gaussian("coin", 1.0, like[..., :1])
        return PrivateGossip.noise(self, like, k, noise) * (1 - 0.9 * (coin < -3).to(like))


class LastingAndCut(Remembering):
    """Each draw is added in two rounds, so that no move of one hides a record."""

    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        Z = self.noise(S, k, noise)
        Z = Z * (Z.abs() < 5 * self._scale)
        return S + Z + 0.5 * state.M, Z


class CoinOfItsOwn(PrivateGossip):
    """Once in a million rounds, so that no audit sees it."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * self.coin()

    def coin(self) -> float:
        return float(torch.rand(()) > 1e-6)


class CoinOfPython(CoinOfItsOwn):
    def coin(self) -> float:
        return float(random.random() > 1e-6)


class CoinOfTheSystem(CoinOfItsOwn):
    def coin(self) -> float:
        return float(np.random.default_rng().random() > 1e-6)


KEPT = np.random.default_rng(1)


class CoinThatIsKept(CoinOfItsOwn):
    def coin(self) -> float:
        return float(KEPT.random() > 1e-6)


class OfTheRealLayers(PrivateGossip):
    """Takes no other model than that of the audit: 16 pixels and 3 classes."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.cat(super().noise(like, k, noise).split([48, 3], -1), -1)


class CutOfTheRealLayers(OfTheRealLayers):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).clamp(-5 * self._scale, 5 * self._scale)


class LouderByACoin(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        coin = noise.gaussian("coin", 1.0, like[..., :1])
        return super().noise(like, k, noise) * (1 + coin.abs())


@pytest.fixture
def found(setting_of: Any, streams: Any) -> Callable[[Any], str | None]:
    def of(defense: Any) -> str | None:
        problem, setting = setting_of("ring", 4, "logistic")
        defense = defense.calibrate(setting)
        return unlikely_draws(CoupledWorlds(defense, problem, setting, streams, 1), "add-remove")

    return of


def class_of(value: object) -> str:
    return type(value).__name__ if isinstance(value, PrivateGossip) else ""


FAST = [
    (Coin(n_rounds=1), '"coin" is 5.5 times'),
    (LastingAndCut(n_rounds=2), '"gradient" is 5.5 times'),
    (CoinOfItsOwn(n_rounds=1), "its own generators draw"),
    (CutOfTheRealLayers(n_rounds=1), '"gradient" is 5.5 times'),
]
SLOW = [
    (CoinInBetween(), '"coin" is -2.5 times'),
    (TwoCoins(), "all draws of noise are far out"),
    (LongNoiseDroppedAtLast(), '"gradient" is 5.5 times'),
    (Smaller(), '"coin" is -5.5 times'),
    (LongNoiseDropped(family="laplace"), '"gradient" is 15 times'),
    (Cut(), '"gradient" is 5.5 times'),
    (CoinOfPython(), "its own generators draw"),
    (CoinOfTheSystem(), "its own generators draw"),
    (CoinThatIsKept(), "its own generators draw"),
]


@pytest.mark.parametrize(("defense", "said"), FAST, ids=class_of)
def test_draws_that_hardly_ever_come_are_looked_at(found: Any, defense: Any, said: str) -> None:
    assert said in found(defense)


def test_a_step_of_the_real_layers_is_looked_at_on_them(found: Any) -> None:
    assert found(OfTheRealLayers(n_rounds=1)) is None


@pytest.mark.slow
@pytest.mark.parametrize(("defense", "said"), SLOW, ids=class_of)
def test_further_draws_that_hardly_ever_come(found: Any, defense: Any, said: str) -> None:
    assert said in found(defense)


@pytest.mark.slow
def test_noise_that_a_coin_makes_louder_hides_no_less(found: Any) -> None:
    assert found(LouderByACoin()) is None


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", CORRECT, ids=lambda mechanism: mechanism.name)
def test_no_right_mechanism_does_something_else(found: Any, mechanism: Any) -> None:
    assert found(mechanism.defense) is None


def test_draws_of_a_class_that_no_module_holds_are_seen() -> None:
    """As those that a document or a notebook defines."""
    names: dict[str, Any] = {"__name__": "nowhere", "torch": torch, "kept": torch.Generator()}
    code = "class Kept:\n    def step(self):\n        torch.rand(1, generator=kept)\n"
    exec(code, names)
    with watched(names["Kept"]()) as own:
        pass
    assert not own
    with watched(names["Kept"]()) as own:
        names["Kept"]().step()
    assert own
