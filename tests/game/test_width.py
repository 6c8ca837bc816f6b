"""Noise that depends on the model's dimension, held against closed forms."""

from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import Release, epsilon
from dpaudit.attack.contract import AttackContext
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, broadcast, releases
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.game.filtering.adversary import SPARSE_FROM, Adversary
from dpaudit.game.game import Game
from dpaudit.game.worst_case.layers import ENTRIES, Wider, wider
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip
from tests.scratch import scratch_run

EVERY_LINK = ThreatModel(name="eavesdropper")


class NoiseByDimension(PrivateGossip):
    """The noise has norm sigma C in all, in the place of sigma C in each coordinate."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / like.shape[-1] ** 0.5


def found(defense: PrivateGossip, d: int, threat_model: ThreatModel = EVERY_LINK) -> Wider | None:
    setting = Setting(build_graph("ring", 4), (16,) * 4, d)
    return wider(Game.of(defense, setting, 0, "add-remove"), threat_model)


def test_one_norm_in_all_weighs_less_by_the_root() -> None:
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


class NoiseByLayer(PrivateGossip):
    """Two layers draw noise of their own; a model of one number has one of them."""

    share: float = 1.0  # of the scale, in the second layer

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        first = noise.gaussian("first", self._scale, like[..., :15])
        second = noise.gaussian("second", self.share * self._scale, like[..., 15:])
        return torch.cat([first, second], dim=-1)


def test_a_layer_that_one_coordinate_lacks_has_no_noise() -> None:
    assert found(NoiseByLayer(noise_multiplier=2.0), 18) is None
    told = found(NoiseByLayer(noise_multiplier=2.0, share=0.5), 18)
    assert told is not None
    assert (told.times, told.where) == (pytest.approx(2, rel=1e-12), "at other coordinates")


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


def test_a_model_that_is_too_large_is_not_played_at_its_size() -> None:
    told = found(NoiseByDimension(), ENTRIES)
    assert told is not None
    assert (told.d, told.times) == (8, pytest.approx(sqrt(8)))
    assert found(PrivateGossip(), ENTRIES) is None


class NoNumber(PrivateGossip):
    """As a sum that is divided by how many neighbours are left, where none is."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise) / 0.0


def test_of_messages_that_are_no_numbers_nothing_is_said() -> None:
    assert found(NoNumber(), 20) is None


class Centred(PrivateGossip):
    """Of what is noised the mean over coordinates is taken away: nothing is left of one."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy - noisy.mean(dim=-1, keepdim=True)


@pytest.mark.parametrize("d", [3, 8, 40])
def test_what_shows_at_several_coordinates_alone_is_a_lower_end(d: int) -> None:
    """Of e_1 / sigma in noise without a mean, 1 - 1/d is left."""
    told, n = found(Centred(noise_multiplier=2.0), d), min(d, 8)
    assert told is not None
    assert (told.message, told.times, told.d) == ("x", float("inf"), n)
    assert told.release is not None
    assert told.release.noise_multiplier == pytest.approx(2 / sqrt(1 - 1 / n), rel=1e-9)
    assert "and not at one" in told.note
    laplace = found(Centred(noise_multiplier=2.0, family="laplace"), d)
    assert laplace is not None
    assert laplace.release is None


class Counted(PrivateGossip):
    """Sends beside the model a sum of the clipped gradient in ``width`` numbers, and pure noise."""

    width: int = 1
    share: float = 1.0  # of the noise of the model that each of these numbers carries

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        S, played = self.summed(gradient, state.X), super().step(state, k, graph, gradient, noise)
        like = S.new_zeros(*S.shape[:-1], self.width)
        count = S.sum(-1, keepdim=True) + noise.gaussian("count", self.share * self._scale, like)
        other = noise.gaussian("other", 1.0, S.new_zeros(*S.shape[:-1], 3))
        beside = {"count": broadcast(graph, count), "other": broadcast(graph, other)}
        return played._replace(sent={**played.sent, **beside})


@pytest.mark.parametrize("d", [1, 2, 8, 20])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_messages_have_widths_and_noise_of_their_own(width: int, d: int) -> None:
    """Every number tells mu / share as much as the model: mu^2 (1 + width / share^2)."""
    defense = Counted(noise_multiplier=2.0, width=width, share=0.5)
    assert found(defense, d) is None
    setting = Setting(build_graph("ring", 4), (16,) * 4, d)
    told = Adversary(Game.of(defense, setting, 0, "add-remove"), EVERY_LINK, 2)
    each = sqrt(1 + width / 0.5**2) / 2
    assert told.leak.by_round.tolist() == pytest.approx([each] * 2, rel=1e-9)


@pytest.mark.parametrize("n_agents", [6, SPARSE_FROM])
def test_noise_on_one_of_two_numbers_leaves_the_other_bare(n_agents: int) -> None:
    class HalfBare(Counted):
        def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
            S, played = (
                self.summed(gradient, state.X),
                super().step(state, k, graph, gradient, noise),
            )
            count = played.sent["count"]
            bare = torch.cat([count.payload[..., :1], S.sum(-1, keepdim=True)], dim=-1)
            return played._replace(sent={**played.sent, "count": broadcast(graph, bare)})

    setting = Setting(build_graph("ring", n_agents), (16,) * n_agents, 3)
    told = Adversary(Game.of(HalfBare(width=2), setting, 0, "add-remove"), EVERY_LINK, 1)
    assert told.leak.noiseless == {1: "count"}


@pytest.mark.parametrize(
    ("family", "width"),
    [
        ("gaussian", 5),
        ("laplace", 1),
        pytest.param("gaussian", 1, marks=pytest.mark.slow),
        pytest.param("laplace", 5, marks=pytest.mark.slow),
    ],
)
def test_an_audit_of_messages_of_other_widths(family: str, width: int) -> None:
    """It fails with probability 1e-6."""
    setting = Setting(build_graph("ring", 5), (8,) * 5, 12)
    claim = Claim(text="ours", epsilon=60.0, delta=1e-5)
    defense = Counted(noise_multiplier=2.0, n_rounds=2, width=width, family=family)
    context = AttackContext(None, setting, defense, (claim,), Streams(3), scratch_run())  # type: ignore[arg-type]
    attack = load_plugin("attacks", "likelihood-ratio")(trials=200)
    found = attack.measure(context, EVERY_LINK, lambda done, total: None)
    assert not any(f.verdict for f in found if f.role in (Role.EXACT_LEAK, Role.NOISE))
    if family == "laplace":  # of which the draws of a count are Gaussian: neither family
        (leak,) = (f for f in found if f.role is Role.EXACT_LEAK)
        assert (leak.metrics["epsilon"].low, leak.metrics["epsilon"].high) == (0.0, float("inf"))


def test_an_exact_leak_of_one_coordinate_is_not_of_all() -> None:
    """Nothing at one coordinate; a message of eight tells what is left of the record there."""
    setting = Setting(build_graph("ring", 5), (8,) * 5, 40)
    claim = Claim(text="ours", epsilon=4.0, delta=1e-5)
    for sigma, verdict in ((2.0, None), (1.0, Verdict.UNSUPPORTED)):
        defense = Centred(noise_multiplier=sigma, n_rounds=1, batch_size=8)
        context = AttackContext(None, setting, defense, (claim,), Streams(3), scratch_run())  # type: ignore[arg-type]
        attack = load_plugin("attacks", "likelihood-ratio")(trials=40)
        found = attack.measure(context, EVERY_LINK, lambda done, total: None)
        (leak,) = (finding for finding in found if finding.role is Role.EXACT_LEAK)
        told = epsilon(releases([sigma / sqrt(7 / 8)], "none", 1.0), 1e-5, "add-remove")
        assert leak.metrics["epsilon"].low == pytest.approx(told.low, rel=1e-6)
        assert leak.metrics["epsilon"].high == float("inf")
        assert leak.verdict is verdict
