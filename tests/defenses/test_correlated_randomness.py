"""Correlated randomness against its update message by message, and what it gives away."""

import pytest
import torch
from scipy import stats

from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Transcript
from dpaudit.defense.view import View
from dpaudit.defenses.correlated_randomness import CorrelatedRandomness, uniform
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import SensorFusion

FALSE_FAILURE = 1e-9  # of each statistical check here, over fresh seeds
N = 6


def sensors(streams, trials=None):
    """A problem on an irregular connected graph of six agents."""
    network = build_graph(graph_options("erdos-renyi", p=0.5), N, streams.numpy("graph"))
    degrees = network.at(1).senders.bincount()
    assert degrees.min() < degrees.max()
    return SensorFusion.draw(streams, N, trials=trials), Setting(network, (1,) * N, 2)


def own_gradient(problem, i, x):
    M, v = problem.M[i], problem.v[i]
    return -2 * M.T @ (v - M @ x) + 2 * problem.omega[i] * x


def random_weights(streams, k, graph, trials):
    """Lambda [trials, N, 2], and C and B as matrices [trials, receiver, sender], of round k."""
    noise = Noise(streams, k)
    like = torch.empty(N, trials, 2, dtype=torch.float64).movedim(0, -2)  # as the models lie
    Lambda = 0.02 * (0.5 + uniform(noise, "lambda", like))
    matrices = []
    for name in ("C", "B"):
        like = torch.empty(trials, graph.n_edges + N, 1, dtype=torch.float64)
        weights = 0.1 + 0.9 * uniform(noise, name, like)[..., 0]
        matrix = torch.zeros(trials, N, N, dtype=torch.float64)
        for e, (j, i) in enumerate(zip(graph.senders, graph.receivers, strict=True)):
            matrix[:, i, j] = weights[:, e]
        for i in range(N):
            matrix[:, i, i] = weights[:, graph.n_edges + i]
        for j in range(N):
            matrix[:, :, j] = matrix[:, :, j] / matrix[:, :, j].sum(dim=1, keepdim=True)
        matrices.append(matrix)
    return Lambda, *matrices


def test_six_rounds_equal_the_update_message_by_message(streams) -> None:
    problem, setting = sensors(streams)
    graph, trials, trial = setting.network.at(1), 3, 1
    defense = CorrelatedRandomness(step_size=0.02)
    state = defense.start(problem.initial(streams, trials), setting)
    x = list(state.X[trial])
    g = [own_gradient(problem, i, x[i]) for i in range(N)]
    y = list(g)
    for k in range(1, 7):
        gradient = problem.gradient(streams, k)
        state, sent, private = defense.step(state, k, graph, gradient, Noise(streams, k))
        Lambda, C, B = (w[trial] for w in random_weights(streams, k, graph, trials))
        links = [(j, i) for j in range(N) for i in range(N) if j != i and graph.W[i, j] > 0]
        models = {(j, i): x[j] for j, i in links}
        steps = {(j, i): Lambda[j] * y[j] for j, i in links}
        x_next = [
            graph.W[i, i] * (x[i] - Lambda[i] * y[i])
            + sum(graph.W[i, j] * (models[j, i] - steps[j, i]) for j, to in links if to == i)
            for i in range(N)
        ]
        g_next = [own_gradient(problem, i, x_next[i]) for i in range(N)]
        tracking = {(j, i): C[i, j] * y[j] + B[i, j] * (g_next[j] - g[j]) for j, i in links}
        for link in links:
            for name, expected in (("x", models), ("lambda_y", steps), ("tracking", tracking)):
                payload = sent[name].on_edge(*link)[trial]
                torch.testing.assert_close(payload, expected[link], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(private["gradient"][trial], torch.stack(g))
        y = [
            C[i, i] * y[i]
            + B[i, i] * (g_next[i] - g[i])
            + sum(tracking[j, to] for j, to in links if to == i)
            for i in range(N)
        ]
        x, g = x_next, g_next
    torch.testing.assert_close(state.X[trial], torch.stack(x), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state.Y[trial], torch.stack(y), rtol=1e-11, atol=1e-12)


def test_trackers_keep_the_sum_of_the_gradients(streams) -> None:
    problem, setting = sensors(streams, trials=4)
    defense = CorrelatedRandomness(step_size=0.02)
    state = defense.start(problem.initial(streams, 4), setting)
    for k in range(1, 51):
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
        total = gradient(state.X).sum(dim=-2)
        torch.testing.assert_close(state.Y.sum(dim=-2), total, rtol=0, atol=1e-11)


def test_it_reaches_the_optimum_whatever_the_weights(streams) -> None:
    problem, setting = sensors(streams, trials=4)
    problem = SensorFusion(problem.M - 0.5, problem.v, problem.omega)  # no direction is slow
    defense = CorrelatedRandomness(step_size=0.2).calibrate(setting)
    state = defense.start(problem.initial(streams, 4), setting)
    for k in range(1, 601):
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
    assert problem.residual(state.X).max() < 1e-24


def test_whoever_reads_all_links_learns_the_gradient(streams) -> None:
    """y - grad f changes by what comes in less what goes out, and y vanishes at the optimum."""
    problem, setting = sensors(streams)
    problem = SensorFusion(problem.M - 0.5, problem.v, problem.omega)  # no direction is slow
    graph, victim = setting.network.at(1), 2
    defense = CorrelatedRandomness(step_size=0.2)
    state = defense.start(problem.initial(streams), setting)
    balance = torch.zeros(2, dtype=torch.float64)
    for k in range(1, 401):
        gradient = problem.gradient(streams, k)
        state, sent, _ = defense.step(state, k, graph, gradient, Noise(streams, k))
        view = View.of(ThreatModel(name="e"), Transcript({k: sent}), {k})
        for j in graph.neighbours(victim):
            balance += view.on_edge("tracking", k, j, victim)
            balance -= view.on_edge("tracking", k, victim, j)
        if k == 7:
            exact = state.Y[victim] - gradient(state.X)[victim]
            torch.testing.assert_close(balance, exact, rtol=1e-10, atol=1e-12)
    g = own_gradient(problem, victim, problem.optimum)
    assert g.norm() > 0.1
    torch.testing.assert_close(-balance, g, rtol=1e-9, atol=1e-9)


def test_a_neighbour_sees_its_own_share_alone(streams) -> None:
    problem, setting = sensors(streams)
    graph = setting.network.at(1)
    defense = CorrelatedRandomness()
    state = defense.start(problem.initial(streams), setting)
    sent = defense.step(state, 1, graph, problem.gradient(streams, 1), Noise(streams, 1)).sent
    victim = int(graph.senders.bincount().argmax())
    first, second = graph.neighbours(victim)[:2]
    view = View.of(
        ThreatModel(name="c", kind="curious", agents=(first,)), Transcript({1: sent}), {1}
    )
    view.on_edge("tracking", 1, victim, first)
    with pytest.raises(NotObservable):
        view.on_edge("tracking", 1, victim, second)


def test_random_weights_have_their_law_and_are_fresh(streams) -> None:
    problem, setting = sensors(streams)
    graph, trials = setting.network.at(1), 500
    defense = CorrelatedRandomness(step_size=0.02)
    state = defense.start(problem.initial(streams, trials), setting)
    gradient = problem.gradient(streams, 1)
    rounds = []
    for k in (1, 2):
        sent = defense.step(
            state._replace(Y=gradient(state.X), G=gradient(state.X)),
            k,
            graph,
            gradient,
            Noise(streams, k),
        ).sent
        rounds.append((sent["lambda_y"].payload / gradient(state.X) / 0.02).flatten())
    for ratio in rounds:
        assert stats.kstest(ratio, stats.uniform(0.5, 1.0).cdf).pvalue > FALSE_FAILURE
    n = len(rounds[0])
    correlation = torch.corrcoef(torch.stack(rounds))[0, 1].abs().item()
    assert correlation < 1.02 * stats.norm.isf(FALSE_FAILURE / 2) / n**0.5
    _, C, B = random_weights(streams, 1, graph, trials)
    for matrix in (C, B):
        assert (matrix[:, graph.W > 0] > 0).all()
        torch.testing.assert_close(matrix.sum(dim=1), torch.ones(trials, N).double())
    assert (C - B).abs().max() > 0.1


def test_it_declares_no_noise_and_refuses_directed_graphs(streams) -> None:
    _, setting = sensors(streams)
    bracket = CorrelatedRandomness(n_rounds=7).mechanism(setting, ThreatModel(name="e"), 0)
    assert bracket.least == bracket.most
    assert bracket.least[0].noise_multiplier == 0.0
    assert CorrelatedRandomness().without_noise() == CorrelatedRandomness()
    with pytest.raises(ConfigError, match="Assumption 2"):
        CorrelatedRandomness().calibrate(Setting(build_graph("directed-ring", 4), (1,) * 4, 2))
