"""NET-FLEET and its private form agent by agent, what they track, and what a difference releases."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.net_fleet import DPNETFLEET, NETFLEET
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import SensorFusion

FALSE_FAILURE = 1e-9  # of the statistical checks here, over fresh seeds
EAVESDROPPER = ThreatModel(name="e")


def mixed(W, x):
    return [sum(W[i, j] * x[j] for j in range(len(x)) if W[i, j] > 0) for i in range(len(x))]


def clipped_mean(gradients, C, B, d):
    clipped = (g if C is None else g * min(1.0, C / g.norm().item()) for g in gradients)
    return sum(clipped, torch.zeros(d, dtype=torch.float64)) / B


@pytest.mark.parametrize("graph, n", [("ring", 4), ("star", 5)])
@pytest.mark.parametrize("kind, sampling", [(NETFLEET, "fixed"), (DPNETFLEET, "poisson")])
def test_five_rounds_equal_the_reconstruction_agent_by_agent(
    setting_of, record_gradients, gaussian_tape, streams, graph, n, kind, sampling
) -> None:
    problem, setting = setting_of(graph, n)
    K, eta, B, sigma, d = 2, 0.1, 4, 0.7, setting.d
    C = 0.5 if kind is DPNETFLEET else None
    private = {} if C is None else {"noise_multiplier": sigma, "clip_norm": C}
    defense = kind(step_size=eta, local_steps=K, batch_size=B, sampling=sampling, **private)
    defense = defense.calibrate(setting)
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(n, d, dtype=torch.float64, generator=generator)
    state, x, before = defense.start(X, setting), list(X), [None] * n
    y = [torch.zeros(d, dtype=torch.float64)] * n
    for k in range(1, 6):
        W, graph_k = setting.network.at(k).W, setting.network.at(k)
        batches = [problem.batch(streams, k, B, sampling, step=s) for s in range(K + 1)]
        tapes = [gaussian_tape(streams, k, f"difference {s}", n, d) for s in range(K + 1)]

        def answered(s, i, at, earlier, batches=batches, tapes=tapes):
            g = clipped_mean(record_gradients(problem, at, batches[s], i), C, B, d)
            if earlier is not None:
                g = g - clipped_mean(record_gradients(problem, earlier, batches[s], i), C, B, d)
            times = 1 if earlier is None else 2
            return g if C is None else g + times * sigma * C / B * tapes[s][i]

        for i in range(n):
            y[i] = y[i] + answered(0, i, x[i], before[i])
            for s in range(1, K + 1):
                moved = x[i] - eta * y[i]
                y[i] = y[i] + answered(s, i, moved, x[i])
                x[i] = moved
        oracle = problem.gradient(streams, k, B, sampling)
        state, sent, _ = defense.step(state, k, graph_k, oracle, Noise(streams, k))
        for j, i in graph_k.links:
            torch.testing.assert_close(sent["x"].on_edge(j, i), x[j], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(sent["y"].on_edge(j, i), y[j], rtol=1e-10, atol=1e-12)
        before, x, y = x, mixed(W, x), mixed(W, y)
    torch.testing.assert_close(defense.models(state), torch.stack(x), rtol=1e-10, atol=1e-12)


def sensors(streams, trials=None):
    """A problem on an irregular connected graph of six agents."""
    network = build_graph(graph_options("erdos-renyi", p=0.5), 6, streams.numpy("graph"))
    return SensorFusion.draw(streams, 6, trials=trials), Setting(network, (1,) * 6, 2)


@pytest.mark.parametrize("K", [1, 5])
def test_with_whole_gradients_it_reaches_the_optimum_linearly(streams, K) -> None:
    """Trackers keep the sum of the gradients, so that a constant step has no bias."""
    problem, setting = sensors(streams, trials=4)
    problem = SensorFusion(problem.M - 0.5, problem.v, problem.omega)  # no direction is slow
    defense = NETFLEET(step_size=0.24 / K, local_steps=K).calibrate(setting)
    state, residuals = defense.start(problem.initial(streams, 4), setting), []
    for k in range(1, 601):
        oracle = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), oracle, Noise(streams, k)).state
        total = oracle(state.X_sent).sum(dim=-2)
        torch.testing.assert_close(state.Y.sum(dim=-2), total, rtol=0, atol=1e-10)
        residuals.append(problem.residual(state.X).max().item())
    assert residuals[-1] < 1e-24
    early, late = (math.log(residuals[k]) for k in (100, 300))
    assert late < 2 * early < -10  # linear: as many digits again in as many rounds, at least


def test_a_view_of_all_trackers_gives_the_gradient_itself(streams, view_of_run) -> None:
    problem, setting = sensors(streams)

    class Whole:  # one cost function each: the run needs no batch
        gradient = staticmethod(lambda streams, k, *_: problem.gradient(streams, k))
        initial = staticmethod(problem.initial)

    defense = NETFLEET(local_steps=3, batch_size=1)
    view, rounds = view_of_run(defense, Whole, setting, streams, 4)
    seen = defense.combinations["tracked"].derive(defense, view, setting, Target(4, 2, 0))
    expected = rounds[4].private["gradient"][2]
    torch.testing.assert_close(seen[0], expected, rtol=1e-9, atol=1e-11)


def test_each_difference_has_fresh_noise_of_twice_the_clip_norm(setting_of, streams) -> None:
    """Without a step size the local steps stay where they are: y is the sum of K + 1 noises."""
    problem, setting = setting_of("complete", 4, "logistic")
    sigma, C, B, K = 1.3, 0.5, 4, 2
    noisy = DPNETFLEET(
        step_size=1e-300, clip_norm=C, noise_multiplier=sigma, batch_size=B, local_steps=K
    )
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(2, 102):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, B), Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["y"], noisy.without_noise().step(*args).sent["y"]
        draws.append((loud.payload - quiet.payload) * B / (2 * C * sigma * math.sqrt(K + 1)))
    z, tail = torch.stack(draws), FALSE_FAILURE / 3
    n = z.numel()
    assert stats.chi2.ppf(tail, n) < z.square().sum().item() < stats.chi2.isf(tail, n)
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        limit = 1.02 * stats.norm.isf(tail) * math.sqrt(products.numel())
        assert products.sum().abs().item() < limit  # 2%: normal only in the limit


def game_of(**options) -> Game:
    setting = Setting(build_graph("ring", 5), (40,) * 5, 100)
    defense = DPNETFLEET(
        noise_multiplier=1.3, n_rounds=3, batch_size=8, sampling="poisson", **options
    )
    return Game.of(defense.calibrate(setting), setting, 2, "add-remove")


@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("agents", [(), (1,)])
def test_the_exact_leak_lies_between_the_declared_ends(K, agents) -> None:
    model = ThreatModel(name="m", kind="curious" if agents else "external", agents=agents)
    game = game_of(local_steps=K)
    leak = Adversary(game, model, 3).leak
    mus = [math.sqrt(squared.low) for squared in leak.by_use]
    bracket = game.defense.mechanism(game.setting, model, 2)
    assert max(mus) <= 1 / 1.3 * (1 + 1e-9)
    assert sum(r.count for r in bracket.most) == 3 * (K + 1)
    least = sorted(1 / r.noise_multiplier for r in bracket.least for _ in range(r.count))
    known = 3 if not agents else 1
    assert len(least) == known * (K + 1)
    most = sorted(math.sqrt(squared.high) for squared in leak.by_use)
    for declared, found in zip(least, most[-len(least) :], strict=True):
        assert declared <= found * (1 + 1e-9)
    low, high = (epsilon(end, 1e-5) for end in bracket[:2])
    assert low.low < high.high


def test_one_local_step_shows_each_difference_apart() -> None:
    """x gives the correction and y the rest: mu is 1 / sigma only as the noise is for 2C."""
    leak = Adversary(game_of(local_steps=1), EAVESDROPPER, 3).leak
    mus = [math.sqrt(squared.low) for squared in leak.by_use]
    assert mus == pytest.approx([1 / 1.3] * 6, rel=1e-6)
    bracket = game_of(local_steps=1).defense.mechanism(
        Setting(build_graph("ring", 5), (40,) * 5, 100), EAVESDROPPER, 2
    )
    honest = epsilon(bracket.most, 1e-5).high
    halved = [
        r.model_copy(update={"noise_multiplier": r.noise_multiplier / 2}) for r in bracket.most
    ]
    assert epsilon(halved, 1e-5).low > 2 * honest  # what noise for C would have released


def test_a_budget_counts_every_batch() -> None:
    setting = Setting(build_graph("ring", 4), (100,) * 4, 10)
    defense = DPNETFLEET(epsilon=2.0, n_rounds=3, batch_size=10).calibrate(setting)
    bracket = defense.mechanism(setting, EAVESDROPPER, 1)
    assert sum(r.count for r in bracket.most) == 3 * 6
    assert 1.98 < epsilon(bracket.most, 1e-5).high <= 2.0
    quiet = NETFLEET().mechanism(setting, EAVESDROPPER, 1)
    assert {r.noise_multiplier for r in (*quiet.least, *quiet.most)} == {0.0}


def test_what_cannot_be_meant_is_refused_in_a_line() -> None:
    drawn = graph_options("erdos-renyi", p=0.7, redrawn=True)
    networks = (
        build_graph("directed-ring", 5),
        build_graph(drawn, 5, np.random.default_rng(0), 3),
    )
    for network in networks:
        for defense in (NETFLEET(), DPNETFLEET(noise_multiplier=1.0)):
            setting = Setting(network, (10,) * 5, 10)
            with pytest.raises(ConfigError, match="NET-FLEET needs an undirected graph") as error:
                defense.calibrate(setting)
            assert "\n" not in str(error.value)
            defense.model_copy(update={"allow_outside_theory": True}).calibrate(setting)
    with pytest.raises(ValidationError, match="local_steps"):
        NETFLEET(local_steps=0)
    with pytest.raises(ValidationError, match="give either epsilon"):
        DPNETFLEET()
