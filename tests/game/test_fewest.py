"""At how many coordinates a step can be played."""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from dpaudit.defense import Noise, Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import fewest_coordinates
from dpaudit.game.runs.play import ProjectionAdversary, play
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip

EVERY_LINK = ThreatModel(name="eavesdropper")


class Processed(PrivateGossip):
    through: ClassVar[Callable[[Tensor], Tensor]]

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return type(self).through(super().noised(S, k, noise))


def a_game(through: Callable[[Tensor], Tensor], d: int = 100, **options: float) -> Game:
    kind = type("Kind", (Processed,), {"through": staticmethod(through)})
    setting = Setting(build_graph("ring", 4), (8,) * 4, d, (("all", d),))
    return Game.of(kind(**options), setting, 0, "add-remove")


@pytest.mark.parametrize(
    ("through", "fewest"),
    [
        (lambda G: G, 1),
        (lambda G: G / G.norm(dim=-1, keepdim=True), 1),
        (lambda G: G / G.std(dim=-1, keepdim=True), 64),
        (lambda G: G + G[..., 63, None], 64),
        (lambda G: G + G[..., 64, None], 100),
        (lambda G: G.unflatten(-1, (10, 10)).flatten(-2), 100),
        (lambda G: G + G[..., 100, None], 1),  # nowhere: the run itself says so
        (lambda G: G + torch.inf, 1),
    ],
)
def test_the_fewest_are_those_that_give_numbers(
    through: Callable[[Tensor], Tensor], fewest: int
) -> None:
    assert fewest_coordinates(a_game(through)) == fewest


def test_a_model_that_is_too_large_is_not_played() -> None:
    def through(G: Tensor) -> Tensor:
        assert G.shape[-1] < 10**9
        return G + G[..., 64, None]

    assert fewest_coordinates(a_game(through, 10**9)) == 10**9


@pytest.mark.parametrize("spread", [1, 50])
def test_a_reader_along_the_record_sees_it_in_one_number(spread: int) -> None:
    """X = -eta G of G = (C u + sigma C z) / B: along u its mean is 1 / sigma deviations away.

    Of 20,000 runs, which err by 0.015 deviations: 6 of them fail with probability 2e-8 or so.
    """
    game = replace(a_game(lambda G: G, noise_multiplier=2.0), width=50, spread=spread)
    game = replace(game, sampling_rate=1.0)
    worlds = play(ProjectionAdversary(game, EVERY_LINK, 1), 20_000, Streams(0))
    without, there = (world.features[:, 0] for world in worlds)
    assert (there.mean() - without.mean()) / without.std() == pytest.approx(-1 / 2, abs=6 * 0.015)
    assert not any(scores.any() for scores in worlds.scores)
