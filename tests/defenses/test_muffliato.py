"""Muffliato against its pseudo-code agent by agent, its gossip, its noise and what it releases."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.footprint import Footprint
from dpaudit.defense.noise import Noise
from dpaudit.defenses.muffliato import Muffliato, acceleration, gossip
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph

FALSE_FAILURE = 1e-9  # of the statistical checks here, over fresh seeds
EAVESDROPPER = ThreatModel(name="e")
CURIOUS = ThreatModel(name="c", kind="curious", agents=(1,))


def drawn_setting(setting_of, n_agents):
    """A graph that differs in every round, as the authors' code draws it."""
    problem, setting = setting_of("ring", n_agents)
    options = graph_options("erdos-renyi", p=0.7, redrawn=True)
    network = build_graph(options, n_agents, np.random.default_rng(4), 5)
    assert len({graph.n_edges for graph in network.graphs}) > 1
    return problem, replace(setting, network=network)


def mixed(W, x):
    return [sum(W[i, j] * x[j] for j in range(len(x)) if W[i, j] > 0) for i in range(len(x))]


def clipped(g, C):
    return g * min(1.0, C / g.norm().item())


def local_step(defense, x, gradients, z):
    """Line 1 of one agent."""
    C, B, sigma = defense.clip_norm, defense.batch_size, defense.noise_multiplier
    std = sigma * C / B
    if defense.clip == "noisy":
        return x - defense.learning_rate * clipped(sum(gradients) / B + std * z, C)
    g = sum(clipped(g, C) for g in gradients) / B
    if defense.perturb == "model":
        return x - defense.learning_rate * g + std * z
    return x - defense.learning_rate * (g + std * z)


@pytest.mark.parametrize("graph", ["ring", "drawn"])
@pytest.mark.parametrize(
    "options", [{}, {"clip": "noisy"}, {"perturb": "model"}, {"gossip_steps": 1}]
)
def test_five_rounds_equal_the_pseudo_code_agent_by_agent(
    setting_of, record_gradients, gaussian_tape, streams, graph, options
) -> None:
    n = 5
    problem, setting = setting_of("ring", n) if graph == "ring" else drawn_setting(setting_of, n)
    defense = Muffliato(
        noise_multiplier=0.8, clip_norm=0.4, learning_rate=0.3, batch_size=4, **options
    ).calibrate(setting)
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(n, setting.d, dtype=torch.float64, generator=generator)
    state, x = defense.start(X, setting), list(X)
    name = "x" if defense.perturb == "model" else "gradient"
    for k in range(1, 6):
        graph_k, batch = setting.network.at(k), problem.batch(streams, k, 4)
        z = gaussian_tape(streams, k, name, n, setting.d)
        y = [
            local_step(defense, x[i], record_gradients(problem, x[i], batch, i), z[i])
            for i in range(n)
        ]
        W = graph_k.W
        others = sorted(abs(e) for e in np.linalg.eigvals(W.numpy()))[:-1]
        gap = 1 - others[-1]
        c = 2 * (1 - math.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2
        K = defense.gossip_steps or math.ceil(math.log(n) / math.sqrt(gap))
        oracle = problem.gradient(streams, k, 4)
        state, sent, _ = defense.step(state, k, graph_k, oracle, Noise(streams, k))
        assert set(sent) == {f"x/{s}" for s in range(1, K + 1)}
        before = None
        for s in range(1, K + 1):
            for j, i in graph_k.links:
                on_edge = sent[f"x/{s}"].on_edge(j, i)
                torch.testing.assert_close(on_edge, y[j], rtol=1e-10, atol=1e-12)
            wy = mixed(W, y)
            after = wy if s == 1 else [c * a + (1 - c) * b for a, b in zip(wy, before, strict=True)]
            before, y = y, after
        x = y
        torch.testing.assert_close(defense.models(state), torch.stack(x), rtol=1e-10, atol=1e-12)


def test_gossip_keeps_the_mean_as_fast_as_its_polynomial() -> None:
    """At modulus 1 - l/2 the polynomial has a double root r = sqrt(c - 1), and is largest."""
    for name, n in (("ring", 9), ("complete", 6), ("star", 7)):
        graph = build_graph(graph_options(name, lazy=True), n).at(1)
        generator = torch.Generator().manual_seed(0)
        Y = torch.randn(n, 3, dtype=torch.float64, generator=generator)
        c = acceleration(graph)
        r = math.sqrt(c - 1)
        apart = (Y - Y.mean(0)).norm().item()
        for s, Y_s in enumerate(gossip(graph, Y, 12)):
            torch.testing.assert_close(Y_s.mean(0), Y.mean(0), rtol=1e-12, atol=1e-13)
            bound = r**s * (1 + s * (2 / c - 1)) * apart
            assert (Y_s - Y.mean(0)).norm().item() <= bound * (1 + 1e-12)


def test_the_number_of_gossip_steps_follows_the_rule() -> None:
    for name, n, K in (("ring", 9, 6), ("complete", 6, 2), ("star", 5, 4)):
        graph = build_graph(name, n).at(1)
        expected = math.ceil(math.log(n) / math.sqrt(graph.spectral_gap))
        assert Muffliato(noise_multiplier=1.0).steps(graph) == expected == K
        assert Muffliato(noise_multiplier=1.0, gossip_steps=7).steps(graph) == 7


@pytest.mark.parametrize("perturb, times", [("gradient", 0.2), ("model", 1.0)])
def test_noise_has_its_scale_and_is_fresh_for_agents(setting_of, streams, perturb, times) -> None:
    problem, setting = setting_of("complete", 4, "logistic")
    sigma, C, B = 1.3, 0.5, 4
    noisy = Muffliato(
        learning_rate=0.2, clip_norm=C, noise_multiplier=sigma, batch_size=B, perturb=perturb
    )
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, 101):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, B), Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["x/1"], noisy.without_noise().step(*args).sent["x/1"]
        draws.append((quiet.payload - loud.payload) * B / (times * sigma * C))
    z, tail = torch.stack(draws), FALSE_FAILURE / 3
    n = z.numel()
    assert stats.chi2.ppf(tail, n) < z.square().sum().item() < stats.chi2.isf(tail, n)
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        limit = 1.02 * stats.norm.isf(tail) * math.sqrt(products.numel())
        assert products.sum().abs().item() < limit  # 2%: normal only in the limit


def test_a_record_moves_each_gossip_step_by_no_more_than_stated(
    setting_of, record_gradients, streams
) -> None:
    """The batch against the same with one record less: exact for a record longer than the clip."""
    problem, setting = setting_of("ring", 5)
    defense = Muffliato(noise_multiplier=0.0, clip_norm=1e-3, batch_size=4).calibrate(setting)
    state, graph = defense.start(problem.initial(streams).double(), setting), setting.network.at(1)
    batch, oracle = problem.batch(streams, 1, 4), problem.gradient(streams, 1, 4)
    weights = torch.ones_like(batch.labels, dtype=torch.float64)
    weights[2, 0] = 0
    without = replace(oracle, batch=batch._replace(weights=weights))
    here = defense.step(state, 1, graph, oracle, Noise(streams, 1)).sent
    there = defense.step(state, 1, graph, without, Noise(streams, 1)).sent
    stated = defense.sensitivity(1, setting, "add-remove", 2, here)
    assert set(stated) == set(here)
    for name, sent in here.items():
        moved = (sent.payload - there[name].payload)[2].norm().item()
        assert moved == pytest.approx(stated[name].value, rel=1e-9)
    assert stated["x/1"].value == pytest.approx(0.05 * 1e-3 / 4)


def game_of(network, sizes, **options) -> Game:
    setting = Setting(network, sizes, 10)
    defense = Muffliato(**{"n_rounds": 4, "batch_size": 8, "sampling": "poisson", **options})
    return Game.of(defense.calibrate(setting), setting, 2, "add-remove")


@pytest.mark.parametrize(
    "options, mu",
    [({}, 1 / 1.3), ({"perturb": "model", "learning_rate": 0.2}, 0.2 / 1.3)],
)
def test_an_eavesdropper_learns_the_local_gaussian_alone(options, mu) -> None:
    game = game_of(build_graph("ring", 5), (40,) * 5, noise_multiplier=1.3, **options)
    leak = Adversary(game, EAVESDROPPER, 4).leak
    bracket = game.defense.mechanism(game.setting, EAVESDROPPER, 2)
    assert bracket.least == bracket.most
    assert [1 / r.noise_multiplier for r in bracket.most] == [pytest.approx(mu)]
    assert leak.by_round.tolist() == pytest.approx([mu] * 4, rel=1e-9)
    assert leak.separate


def far_from(victim_at: int) -> ThreatModel:
    return ThreatModel(name="far", kind="curious", agents=(2 + victim_at,))


def test_a_curious_agent_learns_no_more_than_an_eavesdropper() -> None:
    game = game_of(build_graph("ring", 9), (40,) * 9, noise_multiplier=1.3, gossip_steps=2)
    for model, rounds in ((CURIOUS, 1), (far_from(2), 0), (far_from(3), 0)):
        adversary = Adversary(game, model, 4)
        bracket = game.defense.mechanism(game.setting, model, 2)
        assert adversary.leak.by_round.max().item() <= 1 / 1.3 * (1 + 1e-9)
        assert sum(r.count for r in bracket.least) == rounds
        assert sum(r.count for r in bracket.most) == 4
        found = epsilon(adversary.leak.mechanism(game, None), 1e-5)
        assert epsilon(bracket.least, 1e-5).low <= found.high
    # two gossip steps of round 1 tell nothing three links away
    assert Adversary(game, far_from(3), 1).leak.by_round.tolist() == [0.0]


def test_a_distant_agent_solves_the_gossip_for_first_messages() -> None:
    """All messages of a round mix n noises: with as many readings nothing is left to hide behind.

    The paper adds up the loss of each message as if its noise were its own: 0.70 and 0.43 of a
    local Gaussian's at three and four links. The exact loss is that of the local Gaussian.
    """
    n, network = 9, build_graph("ring", 9)
    game = game_of(network, (40,) * n, noise_multiplier=1.0, n_rounds=1)
    K = game.defense.steps(network.at(1))
    *revealed, _ = gossip(network.at(1), torch.eye(n, dtype=torch.float64), K)
    for links, published in ((3, 0.6993), (4, 0.4297)):
        a = 2 + links
        rows = [P[w] for P in revealed for w in (a - 1, (a + 1) % n)]
        summed = sum((row[2] ** 2 / row.square().sum()).item() for row in rows)
        assert summed == pytest.approx(published, abs=5e-5)
        exact = Adversary(game, far_from(links), 1).leak.by_round[0].item()
        assert exact**2 == pytest.approx(1.0, rel=1e-6)


def test_the_authors_clip_after_noise_hides_no_long_gradient() -> None:
    """Noise for a record clipped to C / B = 1/8 of the mean's clip; the record moves it by C."""
    honest = game_of(build_graph("ring", 5), (40,) * 5, noise_multiplier=4.0)
    late = game_of(build_graph("ring", 5), (40,) * 5, noise_multiplier=4.0, clip="noisy")
    spent = epsilon(honest.defense.mechanism(honest.setting, EAVESDROPPER, 2).most, 1e-5)
    assert spent.high < 1
    bracket = late.defense.mechanism(late.setting, EAVESDROPPER, 2)
    assert bracket.least == ()
    assert epsilon(bracket.most, 1e-5).high == math.inf
    assert late.defense.clip_norm_in(1) is None
    assert late.defense.sensitivity(1, late.setting, "add-remove", 2, {}) == {}
    moved = []
    for game in (honest, late):
        state = game.start(2, torch.float64, torch.device("cpu"))
        gradient = game.gradient(torch.tensor([0.0, 1.0], dtype=torch.float64))
        quiet = game.defense.without_noise()
        sent = quiet.step(state, 1, game.setting.network.at(1), gradient, Noise(None, 1)).sent
        x = sent["x/1"].payload[:, 2, 0]
        moved.append((x[0] - x[1]).item() / game.defense.learning_rate)
    assert moved == pytest.approx([2.0 / 8, 2.0])


def test_an_eavesdropper_derives_the_noisy_gradient_exactly(
    setting_of, streams, view_of_run
) -> None:
    problem, setting = setting_of("ring", 5)
    for steps in (None, 1):
        defense = Muffliato(noise_multiplier=0.0, batch_size=4, gossip_steps=steps)
        view, rounds = view_of_run(defense, problem, setting, streams, 3)
        derive = defense.observables["noisy-gradient"].derive
        derived = derive(defense, view, setting, Target(3, 1, 0))
        torch.testing.assert_close(derived.model, rounds[2].state.X[1], rtol=1e-9, atol=1e-12)
        G = rounds[3].private["gradient"][1]
        torch.testing.assert_close(derived.gradient, G, rtol=1e-7, atol=1e-10)


def test_memory_of_what_is_recorded_counts_every_gossip_step() -> None:
    setting = Setting(build_graph("ring", 9), (10,) * 9, 100)
    step = Footprint.of(Muffliato(noise_multiplier=1.0), setting)
    assert step.recorded(["x"], 100) == 4 * 100 * 9 * 6
    assert step.recorded(["x/2"], 100) == 4 * 100 * 9


@pytest.mark.parametrize(
    "options, line",
    [
        ({}, "give either epsilon"),
        ({"noise_multiplier": 1.0, "clip": "noisy", "perturb": "model"}, "has none"),
        ({"epsilon": 1.0, "perturb": "model"}, "no source sets the noise"),
        ({"noise_multiplier": 1.0, "gossip_steps": 0}, "gossip_steps"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, line) -> None:
    with pytest.raises(ValidationError, match=line):
        Muffliato(**options)


def test_more_messages_than_a_round_can_have_are_refused() -> None:
    """On a ring the gap falls with the square of its agents, and K grows as they do."""
    setting = Setting(build_graph("ring", 10_000), (4,) * 10_000, 3)
    line = r"^graph: Muffliato's [\d,]+ gossip steps on 20,000 links are [\d,]+ messages in a round"
    with pytest.raises(ConfigError, match=line + ".*set defense.gossip_steps to 1000 or less"):
        Muffliato(noise_multiplier=1.0).calibrate(setting)
    assert Muffliato(noise_multiplier=1.0, gossip_steps=1000).calibrate(setting)


def test_graphs_on_which_gossip_never_averages_are_refused() -> None:
    def refusal(graph: str, n: int, **options) -> str:
        setting = Setting(build_graph(graph, n), (40,) * n, 10)
        with pytest.raises(ConfigError) as error:
            Muffliato(noise_multiplier=1.0, **options).calibrate(setting)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "symmetric doubly stochastic W" in refusal("directed-ring", 5)
    options = graph_options("erdos-renyi", p=0.1, redrawn=True)
    network = build_graph(options, 5, np.random.default_rng(0), 3)
    apart = Setting(network, (40,) * 5, 10)
    with pytest.raises(ConfigError, match=r"ln\(n\) / sqrt\(l\) is infinite"):
        Muffliato(noise_multiplier=1.0, allow_outside_theory=True).calibrate(apart)
    with pytest.raises(ConfigError, match="connected graph in every round"):
        Muffliato(noise_multiplier=1.0, gossip_steps=3).calibrate(apart)
    outside = Muffliato(noise_multiplier=1.0, gossip_steps=3, allow_outside_theory=True)
    assert "connected graph in every round" in outside.outside_theory(apart)
