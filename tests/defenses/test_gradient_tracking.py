"""Gradient tracking against (7) agent by agent, its conservation law and its limit."""

import pytest
import torch

from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.gradient_tracking import GradientTracking
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import SensorFusion


def sensors(streams, trials=None):
    """A problem on an irregular connected graph of six agents."""
    network = build_graph(graph_options("erdos-renyi", p=0.5), 6, streams.numpy("graph"))
    degrees = network.at(1).senders.bincount()
    assert degrees.min() < degrees.max()
    return SensorFusion.draw(streams, 6, trials=trials), Setting(network, (1,) * 6, 2)


def own_gradient(problem, i, x, trial):
    M, v = problem.M[trial][i], problem.v[trial][i]
    return -2 * M.T @ (v - M @ x) + 2 * problem.omega[i] * x


@pytest.mark.parametrize("trial", [0, 2])
def test_six_rounds_equal_7_agent_by_agent(streams, trial) -> None:
    problem, setting = sensors(streams, trials=3)
    W, defense = setting.network.at(1).W, GradientTracking(step_size=0.03)
    state = defense.start(problem.initial(streams, 3), setting)
    x = list(state.X[trial])
    y = [own_gradient(problem, i, x[i], trial) for i in range(6)]
    for k in range(1, 7):
        received = [[(W[i, j], x[j], y[j]) for j in range(6) if W[i, j] > 0] for i in range(6)]
        gradient = problem.gradient(streams, k)
        state, sent, private = defense.step(
            state, k, setting.network.at(k), gradient, Noise(streams, k)
        )
        for i in range(6):
            torch.testing.assert_close(sent["x"].payload[trial, i], x[i], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(sent["y"].payload[trial, i], y[i], rtol=1e-11, atol=1e-12)
            g = own_gradient(problem, i, x[i], trial)
            torch.testing.assert_close(private["gradient"][trial, i], g, rtol=1e-11, atol=1e-12)
        for i in range(6):
            before = own_gradient(problem, i, x[i], trial)
            x[i] = sum(w * x_j for w, x_j, _ in received[i]) - 0.03 * y[i]  # 7a
            mixed = sum(w * y_j for w, _, y_j in received[i])
            y[i] = mixed + own_gradient(problem, i, x[i], trial) - before  # 7b
    torch.testing.assert_close(state.X[trial], torch.stack(x), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state.Y[trial], torch.stack(y), rtol=1e-11, atol=1e-12)


def test_trackers_keep_the_sum_of_the_gradients(streams) -> None:
    problem, setting = sensors(streams)
    defense = GradientTracking(step_size=0.03)
    state = defense.start(problem.initial(streams), setting)
    for k in range(1, 51):
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
        total = gradient(state.X).sum(dim=0)
        torch.testing.assert_close(state.Y.sum(dim=0), total, rtol=0, atol=1e-12)


def test_it_reaches_the_exact_optimum(streams) -> None:
    problem, setting = sensors(streams, trials=4)
    problem = SensorFusion(problem.M - 0.5, problem.v, problem.omega)  # no direction is slow
    defense = GradientTracking(step_size=0.2).calibrate(setting)
    state = defense.start(problem.initial(streams, 4), setting)
    for k in range(1, 601):
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
    assert problem.residual(state.X).max() < 1e-24


def test_with_sampled_batches_it_tracks_the_gradients_last_used(setting_of, streams) -> None:
    problem, setting = setting_of("star", 4)
    defense = GradientTracking(step_size=0.1, batch_size=4)
    state = defense.start(problem.initial(streams).double(), setting)
    for k in range(1, 6):
        gradient = problem.gradient(streams, k, 4)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
    torch.testing.assert_close(state.G, gradient(state.X), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(state.Y.sum(dim=0), state.G.sum(dim=0), rtol=0, atol=1e-13)


def test_it_declares_no_noise_and_refuses_directed_graphs(streams) -> None:
    _, setting = sensors(streams)
    bracket = GradientTracking(n_rounds=7).mechanism(setting, ThreatModel(name="e"), 0)
    assert bracket.least == bracket.most
    assert (bracket.least[0].noise_multiplier, bracket.least[0].count) == (0.0, 7)
    assert GradientTracking().without_noise() == GradientTracking()
    with pytest.raises(ConfigError, match="Assumption 2"):
        GradientTracking().calibrate(Setting(build_graph("directed-ring", 4), (1,) * 4, 2))
