"""What weather leaves of noise that cancels: against sums that are written by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpaudit.defense.contract import Setting
from dpaudit.defenses.decor import Decor, pairs_of
from dpaudit.files.options import graph_options
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from dpaudit.papers.experiment import CellContext
from dpaudit.papers.weather import _noise_of_mean, cancelled_noise
from dpaudit.training.run_directory import RunDirectory

SETTINGS = {"n_agents": 6, "n_rounds": 2, "draws": 3, "graph.name": "ring"}
NOISE = "noise of the mean model, over independent noise"


def measured(tmp_path: Path, **settings: object) -> dict[str, float]:
    context = CellContext(RunDirectory(tmp_path), "x", None, lambda *progress: None)
    found = cancelled_noise({**SETTINGS, **settings}, 0, context)
    return {one.quantity: one.value for one in found}


def test_without_weather_the_noise_is_that_of_the_papers(tmp_path) -> None:
    independent = measured(tmp_path, **{"defense.name": "dp-dpsgd"})
    assert independent[NOISE] == pytest.approx(1.0)
    decor = measured(tmp_path, **{"defense.name": "decor"})
    own = Decor(noise_multiplier=1.0).own_noise(build_graph("ring", 6).at(1))
    assert decor[NOISE] == pytest.approx(own)  # pairs cancel, and every link shows mu = 1
    zip_dl = measured(tmp_path, **{"defense.name": "zip-dl", "defense.self_noise": True})
    assert zip_dl[NOISE] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("weather", [{"churn": 0.4}, {"stragglers": 0.4}, {"loss": 0.4}])
def test_decor_leaves_what_a_pair_with_one_absent_end_drew(weather) -> None:
    options = graph_options("ring", **weather)
    network = build_graph(options, 6, None, 8, np.random.default_rng(2)).only(1)
    network = replace(network, graphs=(network.graphs[0],))
    graph = network.at(1)
    there = torch.zeros(6, dtype=torch.float64)
    there[list(range(6) if graph.active is None else graph.active)] = 1
    defense = Decor(n_rounds=1, noise_multiplier=1.0, ratio=2.0, clip_norm=1.0, batch_size=1)
    s = defense.own_noise(graph)
    i, j = pairs_of(graph.planned).T
    variance = s**2 * (there.sum() + 4.0 * (there[i] - there[j]).square().sum())
    game = Game.of(defense, Setting(network, (4,) * 6, 1), 1, "add-remove", "poisson")
    expected = 0.05 / 6 * variance.sqrt().item()
    assert _noise_of_mean(game) == pytest.approx(expected, rel=1e-9)
