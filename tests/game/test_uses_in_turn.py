"""Batches in turn under noise that is correlated over rounds: the exact leak of a partial view."""

from math import sqrt

import pytest
import torch

from dpaudit.defense.contract import Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import Graph, Network
from dpaudit.registry import load_plugin


@pytest.mark.parametrize(
    "correlation, every, mus, everything",
    [
        ("none", 3, (1.36932, 0.51377, 0.21015), 1.41421),
        ("anti-pgd", 3, (3.37421, 1.43686, 0.51063), 3.87298),
        ("square-root", 6, (1.21866, 0.55382, 0.26116), 1.27421),
    ],
)
def test_the_exact_leak_takes_the_rounds_of_a_batch(correlation, every, mus, everything) -> None:
    """Check values of a path of four; the defense divides its noise by what all links tell."""
    A = torch.eye(4, dtype=torch.float64)
    A[[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]] = 1.0
    network = Network((Graph(A / A.sum(1, keepdim=True)),))
    setting = Setting(network, (8 * every,) * 4, 50)
    options = {"correlation": correlation, "noise_multiplier": 1.0, "allow_outside_theory": True}
    given = load_plugin("defenses", "mafalda")(n_rounds=6, batch_size=8, **options)
    defense = given.calibrate(setting)
    reader = ThreatModel(name="agent 0", kind="curious", agents=(0,))
    for victim, mu in zip((1, 2, 3), mus, strict=True):
        game = Game.of(defense, setting, victim, "add-remove")
        (squared,) = Adversary(game, reader, 6).leak.by_use
        assert sqrt(squared.low) == pytest.approx(mu / everything, rel=3e-5)
        assert sqrt(squared.high) == pytest.approx(mu / everything, rel=3e-5)
