"""MAFALDA: agent by agent, its correlations beside published values, and what a whole run leaks."""

import math

import numpy as np
import pytest
import torch

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.accounting.releases import epsilon
from dpaudit.defense import Setting
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.noise import Noise
from dpaudit.defenses.mafalda import (
    Mafalda,
    disturbance,
    factor,
    sensitivity,
    strategy,
)
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph

EAVESDROPPER = ThreatModel(name="eavesdropper")
ETA, C, SIGMA, B, T = 0.3, 0.4, 0.8, 2, 6


@pytest.mark.parametrize("correlation", ["optimised", "square-root", "anti-pgd", "none"])
@pytest.mark.parametrize("name", ["star", "ring"])
def test_six_rounds_equal_the_update_agent_by_agent(
    setting_of, record_gradients, streams, correlation, name
) -> None:
    problem, setting = setting_of(name, 5)
    defense = Mafalda(
        learning_rate=ETA, clip_norm=C, noise_multiplier=SIGMA, batch_size=B, n_rounds=T,
        correlation=correlation,
    ).calibrate(setting)  # fmt: skip
    b, d, graph = defense.cycle, setting.d, setting.network.at(1)
    F = np.linalg.inv(strategy(correlation, T, b, graph if correlation == "optimised" else None))
    state = defense.start(problem.initial(streams).double(), setting)
    x, Z = list(state.X), []
    for k in range(1, T + 1):
        batch = problem.batch(streams, k, B, "cyclic")
        Z.append(Noise(streams, k).gaussian("z", 1.0, torch.empty(5, d, dtype=torch.float64)))
        y = []
        for i in range(5):
            g = torch.zeros(d, dtype=torch.float64)
            for one in record_gradients(problem, x[i], batch, i):
                g = g + one * min(1.0, C / one.norm().item())
            N = sum(float(F[k - 1, s]) * Z[s][i] for s in range(k)) * SIGMA * C
            y.append(x[i] - ETA * (g + N) / B)
        x = [sum(graph.W[i, j] * y[j] for j in range(5)) for i in range(5)]
        oracle = problem.gradient(streams, k, B, defense.drawing)
        state, sent, _ = defense.step(state, k, graph, oracle, Noise(streams, k))
        for j, i in graph.links:
            torch.testing.assert_close(sent["y"].on_edge(j, i), y[j], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(defense.models(state), torch.stack(x), rtol=1e-10, atol=1e-12)


def test_batches_are_the_parts_of_a_list_in_turn(setting_of, streams) -> None:
    problem, setting = setting_of("ring", 4)
    parts = setting.sizes[0] // B
    seen = [problem.batch(streams, k, B, "cyclic").inputs[0] for k in range(1, parts + 2)]
    assert torch.equal(seen[0], seen[parts])
    own = torch.cat(seen[:parts])
    assert torch.equal(own, problem.records(0)[0][: parts * B])


@pytest.mark.parametrize(
    "correlation, cycle, expected",
    [
        ("anti-pgd", 6, 2.44949),
        ("anti-pgd", 3, 3.87298),
        ("square-root", 6, 1.27421),
        ("square-root", 3, 2.02417),
        ("none", 3, math.sqrt(2)),
    ],
)
def test_the_sensitivity_of_a_strategy_is_the_published_one(correlation, cycle, expected) -> None:
    M = strategy(correlation, 6, cycle)
    assert 1 / M[0, 0] == pytest.approx(expected, abs=5e-6)  # whose first entry is 1 unscaled
    assert sensitivity(M, cycle) == pytest.approx(1.0)
    assert np.array_equal(M, np.tril(M))


def test_the_disturbance_is_that_of_the_models_written_out() -> None:
    graph, n, rounds = build_graph("path", 4).at(1), 4, 5
    W, A = graph.W.numpy(), np.zeros((5 * 4, 5 * 4))
    for r in range(rounds):
        for s in range(r + 1):
            A[r * n : r * n + n, s * n : s * n + n] = np.linalg.matrix_power(W, r - s + 1)
    rng = np.random.default_rng(0)
    F = np.tril(rng.normal(size=(rounds, rounds)))
    direct = np.sum((A @ np.kron(F, np.eye(n))) ** 2)
    assert np.sum(disturbance(graph, rounds) * (F @ F.T)) == pytest.approx(direct)


@pytest.mark.parametrize("cycle", [1, 4, 12])
def test_the_optimised_strategy_disturbs_least(cycle) -> None:
    graph, rounds = build_graph("ring", 8).at(1), 12
    H = disturbance(graph, rounds)

    def cost(M) -> float:
        F = np.linalg.inv(M)
        return float(np.sum(H * (F @ F.T)))

    best = strategy("optimised", rounds, cycle, graph)
    assert sensitivity(best, cycle) == pytest.approx(1.0)
    others = [cost(strategy(kind, rounds, cycle)) for kind in ("none", "square-root", "anti-pgd")]
    assert cost(best) < min(others)
    X, rng = best.T @ best, np.random.default_rng(1)
    t = np.arange(rounds)
    for _ in range(20):  # no step within the constraints gains
        D = rng.normal(size=(rounds, rounds))
        D = np.where((t[:, None] - t) % cycle == 0, 0.0, D + D.T)
        diagonal = rng.normal(size=rounds)
        means = np.bincount(t % cycle, diagonal) / np.bincount(t % cycle)
        D += np.diag(diagonal - means[t % cycle])
        D *= 1e-3 * X.diagonal().min() / np.abs(D).max()
        assert cost(factor(X + D)) > cost(best) * (1 - 1e-7)


def game_of(victim: int = 0, **options) -> Game:
    setting = Setting(build_graph("ring", 4), (30,) * 4, d=50)
    defense = Mafalda(**{"n_rounds": 6, "batch_size": 10, "clip_norm": 1.0, **options})
    return Game.of(defense.calibrate(setting), setting, victim, "add-remove")


@pytest.mark.parametrize("correlation", ["optimised", "square-root", "anti-pgd", "none"])
def test_the_whole_run_is_one_gaussian_release(correlation) -> None:
    game = game_of(noise_multiplier=2.0, correlation=correlation)
    assert game.cycle == 3
    leak = Adversary(game, EAVESDROPPER, 6).leak
    (squared,) = leak.by_use  # of a record of rounds 1 and 4
    worst = 1 / 2.0**2
    if correlation == "optimised":  # all classes of rounds have the same, and orthogonal columns
        assert squared.low == pytest.approx(worst, rel=1e-6)
    else:
        assert worst * 0.5 < squared.high <= worst * (1 + 1e-9)
    bracket = game.defense.mechanism(game.setting, EAVESDROPPER, 0)
    assert epsilon(bracket.most, 1e-5) == epsilon(bracket.least, 1e-5)


def test_who_reads_one_neighbour_learns_no_more() -> None:
    game = game_of(noise_multiplier=2.0)
    one = ThreatModel(name="one", kind="curious", agents=(1,))
    (squared,) = Adversary(game, one, 6).leak.by_use
    assert 0 < squared.high <= 1 / 4 * (1 + 1e-9)


def test_noise_from_a_budget_is_that_of_one_release() -> None:
    for adjacency in ("add-remove", "replace-one"):
        defense = game_of(epsilon=2.0, adjacency=adjacency).defense
        (release,) = defense.mechanism(
            Setting(build_graph("ring", 4), (30,) * 4, d=50), EAVESDROPPER, 0
        ).most
        assert epsilon([release], 1e-5, adjacency).high == pytest.approx(2.0, rel=1e-5)


def test_what_it_cannot_run_is_refused_in_one_line() -> None:
    one = {"noise_multiplier": 1.0, "batch_size": 10}
    ring = build_graph("ring", 4)
    for setting, options, match in (
        (Setting(build_graph("directed-ring", 4), (30,) * 4, d=3), {}, "undirected"),
        (Setting(ring, (30, 30, 20, 30), d=3), {}, "2 to 3 batches"),
        (Setting(ring, (9,) * 4, d=3), {}, "0 to 0 batches"),
        (Setting(ring, (30,) * 4, d=3), {"n_rounds": 401}, "400 at most"),
    ):
        with pytest.raises(ConfigError, match=match):
            Mafalda(**one, **options).calibrate(setting)


def test_a_user_is_in_every_round_whatever_the_cycle() -> None:
    """All rounds of a user move the release by more than its batches' size: by its records' at most."""
    game = game_of(noise_multiplier=200.0, n_rounds=6)
    claim = Claim(text="user", epsilon=1.0, delta=1e-5, adjacency="user")
    found = account_claim(claim, EAVESDROPPER, game.defense, game.setting).epsilon
    assert found.low == 0
    M = strategy("optimised", 6, 3, game.setting.network.at(1))
    attained = np.sqrt((M.T @ M).sum()) * 10 / 200  # 10 records a round, all in one direction
    assert 10 / 200 < attained < 30 / 200
    assert found.high >= gaussian_epsilon(1e-5, attained)
    assert found.high == pytest.approx(gaussian_epsilon(1e-5, 30 / 200))
