"""Noise that depends on the model's dimension, held against closed forms."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import Release
from dpaudit.defense import Gradient, Noise, Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.width import ENTRIES, Wider, wider
from dpaudit.graphs.graph import build_graph
from dpaudit.selftest.correct import PrivateGossip
from dpaudit.selftest.hurried import NoiseByDimension

EVERY_LINK = ThreatModel(name="eavesdropper")


def found(defense: PrivateGossip, d: int, threat_model: ThreatModel = EVERY_LINK) -> Wider | None:
    setting = Setting(build_graph("ring", 4), (16,) * 4, d)
    return wider(Game.of(defense, setting, 0, "add-remove"), threat_model)


def test_noise_of_one_norm_in_all_weighs_less_by_the_root_of_the_dimension() -> None:
    told = found(NoiseByDimension(noise_multiplier=2.0), 33)
    assert told is not None
    assert (told.message, told.d) == ("x", 33)
    assert told.times == pytest.approx(sqrt(33), rel=1e-12)
    alone = Release(
        family="gaussian", noise_multiplier=2 / sqrt(33), sampling="poisson", sampling_rate=0.25
    )
    assert told.release is not None
    assert told.release.noise_multiplier == pytest.approx(alone.noise_multiplier, rel=1e-12)
    assert (told.release.sampling, told.release.sampling_rate) == ("poisson", 0.25)


def test_of_laplace_noise_it_is_the_pure_loss() -> None:
    told = found(NoiseByDimension(noise_multiplier=3.0, family="laplace"), 16)
    assert told is not None
    assert told.release is not None
    assert told.release.family == "laplace"
    assert told.release.noise_multiplier == pytest.approx(3 / 4, rel=1e-12)


class MoreNoise(PrivateGossip):
    """More noise for larger models, as behind another norm of the clip."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * like.shape[-1] ** 0.5


class Smoothed(PrivateGossip):
    """Noisy neighbours are averaged: one coordinate's noise reaches another."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return (noisy + noisy.roll(1, -1)) / 2


class ClippedFurther(PrivateGossip):
    """Gradient and noise both shrink with the dimension."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return super().summed(gradient, X) / X.shape[-1] ** 0.5

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / like.shape[-1] ** 0.5


class OwnNoise(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.randn_like(like) * self._scale


@pytest.mark.parametrize(
    "defense",
    [
        PrivateGossip(),
        MoreNoise(),
        Smoothed(),
        ClippedFurther(),
        OwnNoise(),
        PrivateGossip(family="laplace"),
    ],
    ids=lambda d: type(d).__name__,
)
def test_nothing_is_said_where_the_record_weighs_no_more(defense: PrivateGossip) -> None:
    assert found(defense, 20) is None


def test_a_message_that_is_not_seen_tells_nothing() -> None:
    nobody = ThreatModel(name="agent 2", kind="curious", agents=(2,))
    assert found(NoiseByDimension(), 9, nobody) is None


def test_a_model_that_is_too_large_is_not_played() -> None:
    assert found(NoiseByDimension(), ENTRIES) is None
