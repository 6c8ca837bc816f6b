"""A record in all layers of a model, held against closed forms."""

from math import inf, nan, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.defense import Gradient, Setting, clip_weights
from dpaudit.defenses.correlated_randomness import CorrelatedRandomness
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.defenses.fed_cdp import FedCDP
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.runs.play import play
from dpaudit.game.worst_case import layers
from dpaudit.game.worst_case.layers import (
    CoordinateMoves,
    Wider,
    _are_copies,
    _heaviest,
    _layers_of,
    _moved,
    _times,
    _unevenness,
    in_layers,
    wider,
)
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip

EVERY_LINK = ThreatModel(name="eavesdropper")
LAYERS = (("0.weight", 20), ("0.bias", 4), ("1.weight", 30), ("1.bias", 6))
SETTING = Setting(build_graph("ring", 5), (40,) * 5, 60, LAYERS)


def game_of(defense, setting: Setting = SETTING) -> Game:
    return in_layers(Game.of(defense, setting, 1, "add-remove", "poisson"))


def told(defense) -> Wider | None:
    return wider(game_of(defense), EVERY_LINK)


def grouped(groups: tuple[slice, ...], without_noise: slice = slice(0, 0)):
    """Private gossip that clips each of these groups of layers to 1, noise in all but some."""

    class Grouped(PrivateGossip):
        def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
            records = gradient.per_record(X)  # [..., m, b, d]
            parts = []
            for group in groups:
                part = records[..., group]
                weights = clip_weights(part.norm(dim=-1), 1.0)
                parts.append(torch.einsum("...bd,...b->...d", part, weights))
            return torch.cat(parts, -1)

        def noised(self, S: Tensor, k: int, noise) -> Tensor:
            noisy = super().noised(S, k, noise)
            bare = torch.zeros(S.shape[-1], dtype=torch.bool)
            bare[without_noise] = S.shape[-1] > 1
            return torch.where(bare, S, noisy)

    return Grouped(noise_multiplier=2.0, clip_norm=1.0)


@pytest.mark.parametrize("rounds", [1, 3])
def test_clips_of_layers_leak_as_the_root_of_their_number(rounds: int) -> None:
    game = game_of(FedCDP(noise_multiplier=3.0, n_rounds=rounds, batch_size=8))
    assert (game.filled, game.played, game.directions) == (4, 4, 4)
    mu = Adversary(game, EVERY_LINK, rounds).leak.by_round
    torch.testing.assert_close(mu, torch.full((rounds,), sqrt(4) / 3, dtype=torch.float64))


def test_a_clip_of_the_whole_gradient_leaks_as_one_coordinate() -> None:
    defense = DPDPSGD(noise_multiplier=3.0, n_rounds=2, batch_size=8)
    assert game_of(defense).filled == 1
    assert told(defense) is None
    assert (
        game_of(FedCDP(noise_multiplier=3.0), Setting(SETTING.network, (40,) * 5, 60)).filled == 1
    )


def test_groups_of_layers_have_a_lower_end_and_no_upper_one() -> None:
    """One layer, and the others together: a record that reaches both clips has sqrt(2) times C."""
    found = told(grouped((slice(0, 1), slice(1, None))))
    assert found is not None
    assert found.times == pytest.approx(sqrt(2), rel=1e-9)
    assert found.release.noise_multiplier == pytest.approx(2 / sqrt(2), rel=1e-9)
    assert "in 4 layers together" in found.note


def test_a_layer_without_noise_is_found() -> None:
    found = told(grouped((slice(None),), slice(3, 4)))
    assert found is not None
    assert (found.times, found.release.noise_multiplier) == (inf, 0.0)


def test_runs_play_a_coordinate_for_each_layer() -> None:
    """Scores are N(-mu^2 / 2, mu^2) and N(mu^2 / 2, mu^2), mu = 1; six deviations of 2,000 runs."""
    whole = Setting(SETTING.network, (8,) * 5, 60, LAYERS)
    game = game_of(FedCDP(noise_multiplier=2.0, n_rounds=1, batch_size=8), whole)
    played = play(Adversary(game, EVERY_LINK, 1), n := 2000, Streams(5))
    without, with_record = played.scores
    assert abs(with_record.mean() - without.mean() - 1) < 6 * sqrt(2 / n)
    assert abs(without.std() - 1) < 6 / sqrt(2 * n)


def test_an_agent_that_takes_part_late_has_layers_too() -> None:
    options = graph_options("server", participation=0.3)
    network = build_graph(options, 6, np.random.default_rng(4), 20)
    first = {i: next(k for k in range(1, 21) if i in network.at(k).active) for i in range(1, 6)}
    victim = max(first, key=first.get)
    assert first[victim] > 2
    setting = Setting(network, (0, *[40] * 5), 60, LAYERS)
    defense = FedCDP(noise_multiplier=3.0, n_rounds=20, batch_size=8)
    late = Game.of(defense, setting, victim, "add-remove", "poisson")
    assert in_layers(late).filled == 4


class LessItsMean(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn - drawn.mean(dim=-1, keepdim=True) if like.shape[-1] > 1 else drawn


def test_nothing_is_said_where_noise_reaches_elsewhere() -> None:
    assert game_of(LessItsMean()).filled == 1
    assert told(LessItsMean()) is None


class LouderAtFirst(PrivateGossip):
    """Twice the noise, or a quarter of the record, at the first two coordinates of the model."""

    noise_there: float = 1.0
    record_there: float = 1.0

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return super().summed(gradient, X) * self._there(X, self.record_there)

    def noise(self, like: Tensor, k: int, noise) -> Tensor:
        return super().noise(like, k, noise) * self._there(like, self.noise_there)

    def _there(self, like: Tensor, factor: float) -> Tensor:
        return 1 + (factor - 1) * (torch.arange(like.shape[-1]) < 2).to(like)


@pytest.mark.parametrize("given, times", [({"noise_there": 2.0}, 2.0), ({"record_there": 0.25}, 4)])
def test_a_coordinate_that_leaks_more_takes_the_upper_end(given, times) -> None:
    found = told(LouderAtFirst(noise_multiplier=2.0, **given))
    assert found is not None
    assert found.times == pytest.approx(times, rel=1e-9)
    assert found.release is None
    assert "at other coordinates" in found.note


def test_coordinates_of_one_gain_leak_alike() -> None:
    assert told(LouderAtFirst(noise_there=2.0, record_there=2.0)) is None


class SubtractedInFirst(PrivateGossip):
    """Noise of 1.7 times the scale is subtracted in the first layer: sqrt(1 + 1.7^2) in all."""

    def noise(self, like: Tensor, k: int, noise) -> Tensor:
        n = like.shape[-1]
        first = (torch.arange(n) < (20 if n == 60 else 1)).to(like)
        other = noise.gaussian("other", 1.7 * self._scale, like)
        return super().noise(like, k, noise) - first * other


def test_draws_that_are_subtracted_count_by_their_squares() -> None:
    """Of L = 4 layers, 3 have less noise than the one coordinate: mu^2 (1 + 3 (1 + 1.7^2)) / 4."""
    found = told(SubtractedInFirst(noise_multiplier=2.0))
    assert found is not None
    assert found.times == pytest.approx(sqrt((1 + 3 * (1 + 1.7**2)) / 4), rel=1e-9)


def test_of_many_agents_some_layers_stand_for_all(monkeypatch) -> None:
    monkeypatch.setattr(layers, "ENTRIES", 15 * 2**2)  # a ring of five has ten links
    game = game_of(FedCDP(noise_multiplier=3.0, n_rounds=2, batch_size=8))
    assert game.filled == 4


def test_draws_of_another_width_are_played_in_layers_too() -> None:
    """Shares of links are one number for each link, which moves all coordinates: no copies."""
    assert game_of(CorrelatedRandomness(n_rounds=3, batch_size=4)).filled == 1


def test_a_product_of_draws_has_no_noise_of_one_draw_alone() -> None:
    class Products(PrivateGossip):
        """Of many coordinates the noise is a product of two draws."""

        def noise(self, like: Tensor, k: int, noise) -> Tensor:
            if like.shape[-1] < 60:
                return super().noise(like, k, noise)
            one = noise.gaussian("one", 1.0, like[..., :6]).repeat_interleave(10, -1)
            return (
                self._scale
                * one
                * noise.gaussian("other", 1.0, like[..., :10]).repeat(*[1] * (like.ndim - 1), 6)
            )

    found = told(Products(noise_multiplier=2.0))
    assert found is None or found.release is None


def row_of(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(
    "one, several, alike",
    [
        ((1.0, 2.0), ((1.0, 1.0), (2.0, 2.0)), True),
        ((-1.0, 2.0), ((-1.0, -1.0 - 1e-7), (2.0, 2.0)), True),
        ((1.0, 2.0), ((1.0, 1.0 + 1e-5), (2.0, 2.0)), False),
        ((1.0, 2.0), ((1.0, 1.0), (2.0, 0.0)), False),
        ((1.0, 2.0), ((1.0, nan), (2.0, 2.0)), False),
    ],
)
def test_layers_that_move_as_one_coordinate_are_copies(one, several, alike: bool) -> None:
    assert (
        _are_copies(
            CoordinateMoves(*map(row_of, one)), CoordinateMoves(*(row_of(*s) for s in several))
        )
        is alike
    )
    two = CoordinateMoves(row_of(1.0, 1.0).mT, row_of(2.0, 2.0).mT)
    assert not _are_copies(two, CoordinateMoves(row_of(1.0), row_of(2.0)))


@pytest.mark.parametrize(
    "one, record, noise, times",
    [
        ((2.0, 4.0), (2.0, 2.0), (4.0, 4.0), sqrt(2)),
        ((-2.0, 4.0), (2.0, 4.0), (-4.0, 1.0), sqrt(1 + 64)),
        ((2.0, 4.0), (2.0, 2.0), (4.0, 0.0), inf),
        ((2.0, 4.0), (2.0, 0.0), (4.0, 0.0), 1.0),
        ((0.0, 4.0), (2.0, 2.0), (4.0, 4.0), 0.0),
        ((2.0, 0.0), (2.0, 2.0), (4.0, 4.0), 0.0),
    ],
)
def test_a_record_weighs_in_all_layers_together(one, record, noise, times: float) -> None:
    found = _times(
        CoordinateMoves(*map(row_of, one)), CoordinateMoves(row_of(*record), row_of(*noise)), 0
    )
    assert found == pytest.approx(times)


def test_the_heaviest_place_weighs_clearly_more() -> None:
    assert _heaviest({("a", 0): 1.0, ("b", 1): 1.02, ("c", 0): 1.015}) == ("b", 1)
    assert [_heaviest(times) for times in ({("a", 0): 1.005}, {})] == [None, None]
    weights = torch.tensor([2.0, 3.0, nan])
    assert [_unevenness(w) for w in (weights, weights[:0], weights / 0)] == [1.5, 0.0, 0.0]
    sized: Any = SimpleNamespace(layers=(("a", 1), ("b", 2)))
    assert [part.tolist() for part in _layers_of(sized, torch.arange(3.0))] == [[0.0], [1.0, 2.0]]
    assert [len(part) for part in _layers_of(sized, torch.arange(4.0))] == [4]


def test_a_row_that_moves_another_coordinate_is_no_row_of_one() -> None:
    def sent(payload: Tensor) -> dict[str, Any]:
        return {"x": SimpleNamespace(payload=payload[None])}

    zero, one = torch.zeros(2, 3), torch.tensor([[-4.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    found = _moved(sent(zero), sent(one))
    assert found is not None
    assert found["x"].tolist() == [4.0, 1.0]
    assert _moved(sent(zero), sent(one + 1e-12)) is not None  # rounding
    assert _moved(sent(zero), sent(one + 1e-6 * torch.eye(3)[1:])) is None
