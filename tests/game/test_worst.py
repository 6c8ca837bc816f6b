"""The worst record for every pair of norms, and what it leaks, against explicit products."""

from dataclasses import replace
from itertools import product
from math import exp, log, sqrt
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import Release, epsilon
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, ThreatModel, broadcast
from dpaudit.defense.noise import standard_laplace
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.runs.play import play
from dpaudit.game.worst_case.record import coordinates, played_mechanism, record_note, worst_epsilon
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip, State

D = 650
SETTING = Setting(build_graph("ring", 4), (8,) * 4, D)
EAVESDROPPER = ThreatModel(name="eavesdropper")


class Clipped(PrivateGossip):
    clip: Literal[1, 2] = 2

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient.clipped_sum(X, self.clip_norm, norm=self.clip)


class HalfSent(Clipped):
    """The second half of the coordinates stays at home."""

    def after(self, S: Tensor, X: Tensor, graph: Graph) -> Round:
        half = X * (torch.arange(X.shape[-1]) < X.shape[-1] / 2)
        return Round(State(X, graph.mix(half)), {"x": broadcast(graph, half)})


class OneDraw(Clipped):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like[..., :1], k, noise).expand_as(like)


class Discarded(Clipped):
    """Draws noise of another family, too, that reaches nothing."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        noise.gaussian("other", 1.0, like)
        return super().noise(like, k, noise)


def game_of(defense: Any, **given: Any) -> Game:
    return Game.of(defense, SETTING, 0, "add-remove", **given)


@pytest.mark.parametrize(("family", "clip"), list(product(["gaussian", "laplace"], [1, 2])))
def test_only_an_l2_clip_under_laplace_has_a_dense_record(family: Any, clip: Any) -> None:
    dense = (family, clip) == ("laplace", 2)
    assert coordinates(game_of(Clipped(family=family, clip=clip))) == (D if dense else 1)


def test_noise_that_reaches_no_message_hides_no_record() -> None:
    """The worst record counted as one of a single coordinate, which leaks less here."""
    assert coordinates(game_of(Discarded(family="laplace"))) == D
    assert coordinates(game_of(Discarded(family="gaussian"))) == 1


@pytest.mark.parametrize("defense", [HalfSent, OneDraw])
def test_coordinates_that_are_not_alike_are_not_counted(defense: Any) -> None:
    assert coordinates(game_of(defense(family="laplace"))) == 1


def test_unclipped_gradients_are_moved_in_one_coordinate() -> None:
    dgd = load_plugin("defenses", "dp-dgd")(n_rounds=3, batch_size=1).calibrate(SETTING)
    assert coordinates(Game.of(dgd, SETTING, 0, "function")) == 1
    assert coordinates(game_of(dgd)) == 1


class Unclipped(PrivateGossip):
    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient(X) * self.batch_size


def test_a_record_that_nothing_clips_is_described() -> None:
    laplace, function = Unclipped(family="laplace"), load_plugin("defenses", "dp-dgd")
    assert "10000 on one coordinate" in record_note(game_of(laplace))
    assert record_note(game_of(Unclipped())) is None
    assert record_note(game_of(Clipped(family="laplace"))) is None
    assert "C / sqrt(d) in all 650" in record_note(replace(game_of(laplace), spread=64))
    moved = function(n_rounds=3, batch_size=1).calibrate(SETTING)
    assert "in L1 on one coordinate" in record_note(Game.of(moved, SETTING, 0, "function"))


def releases(scale: float, q: float = 1.0, count: int = 1) -> list[Release]:
    how = "none" if q == 1 else "poisson"
    return [
        Release(
            family="laplace", noise_multiplier=scale, sampling=how, sampling_rate=q, count=count
        )
    ]


def test_the_pure_loss_is_sqrt_d_times_that_of_one_coordinate() -> None:
    assert worst_epsilon(releases(4.0, count=3), 9, 0.0, "add-remove").low == pytest.approx(
        3 * 3 / 4
    )
    sampled = worst_epsilon(releases(4.0, 0.1, 3), 9, 0.0, "add-remove")
    assert sampled.low == pytest.approx(3 * log(1 + 0.1 * (exp(3 / 4) - 1)))
    assert worst_epsilon(releases(4.0), 1, 0.0, "add-remove").low == pytest.approx(1 / 4)


@pytest.mark.parametrize("q", [0.2, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_round_leaks_what_draws_of_its_loss_say(q: float) -> None:
    """delta at the epsilon found, by 10^6 draws of the loss of 16 Laplace draws: 6 deviations."""
    d, scale, delta, n = 16, 1.0, 0.01, 1_000_000
    low, high = worst_epsilon(releases(scale, q), d, delta, "add-remove")
    shift = 1 / sqrt(d)
    generator = torch.Generator().manual_seed(2)
    z = standard_laplace(torch.zeros(n, d, dtype=torch.float64), generator) * scale + shift
    loss = ((z.abs() - (z - shift).abs()).sum(1) / scale).numpy()
    gain = np.maximum(0.0, q * (1 - (np.exp(low) - 1 + q) / q * np.exp(-loss)))
    assert abs(gain.mean() - delta) < 6 * gain.std() / sqrt(n)
    assert low <= high


def test_runs_of_a_dense_record_are_those_of_the_model() -> None:
    """By the variance and mean of ln p/q of 16 Laplace draws each shifted by 1/4, 6 deviations."""
    d, n = 16, 4000
    defense = Clipped(family="laplace", clip=2, n_rounds=1, batch_size=8)
    game = Game(defense, game_of(defense).setting, 0, "add-remove", 1e4, 1.0, "none", False, d, d)
    worlds = play(Adversary(game, EAVESDROPPER, 1), n, Streams(3))
    z = standard_laplace(torch.zeros(200_000, d).double(), torch.Generator().manual_seed(4))
    for scores, shift in ((worlds.without.scores, 0.0), (worlds.with_record.scores, 0.25)):
        expected = ((z + shift).abs() - (z + shift - 0.25).abs()).sum(1).numpy()
        assert abs(scores.mean() - expected.mean()) < 6 * expected.std() / sqrt(n)
        assert scores.std() == pytest.approx(expected.std(), rel=6 / sqrt(2 * n) * 1.2)


def test_what_runs_release_is_spread_unless_it_is_sampled() -> None:
    (spread,) = played_mechanism(releases(2.0, count=3), 16)
    assert (spread.noise_multiplier, spread.count) == (8.0, 48)
    assert played_mechanism(releases(2.0, 0.1), 16) == releases(2.0, 0.1)


def test_at_a_delta_the_worst_of_one_coordinate_and_all_counts() -> None:
    """Of 4 coordinates the pure loss is 1; of one with delta 0.2 it is 1/2 + 2 ln(1 - 0.2)."""
    one, both = releases(2.0), releases(4.0, count=4)
    for delta in (0.01, 0.2):
        low, high = worst_epsilon(one, 4, delta, "add-remove")
        spread, alone = epsilon(both, delta), epsilon(one, delta)
        assert (low, high) == (max(spread.low, alone.low), max(spread.high, alone.high))
        assert high < 1.0
    assert worst_epsilon([], 4, 0.1, "add-remove") == (0.0, 0.0)
    silent = releases(0.0)
    assert worst_epsilon(silent, 4, 0.1, "add-remove") == epsilon(silent, 0.1)
    gaussian = [releases(2.0)[0].model_copy(update={"family": "gaussian"})]
    assert worst_epsilon(gaussian, 4, 0.1, "add-remove") == epsilon(gaussian, 0.1)


def test_of_sampled_rounds_the_upper_end_is_the_pure_loss() -> None:
    pure = log(1 + 0.25 * (exp(1.0) - 1))
    low, high = worst_epsilon(releases(2.0, 0.25, 3), 4, 0.01, "add-remove")
    assert high == pytest.approx(3 * pure)
    unsampled = epsilon(releases(4.0, count=4), 0.04).low
    assert low >= log(0.75 + 0.25 * exp(unsampled)) - 1e-12
    for drawn_less in ({"sampling": "fixed"}, {"sampling_rate": 0.005}):
        changed = [r.model_copy(update=drawn_less) for r in releases(2.0, 0.25, 3)]
        assert worst_epsilon(changed, 4, 0.01, "add-remove").low == epsilon(changed, 0.01).low
