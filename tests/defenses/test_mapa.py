"""MAPA: its rounds agent by agent, its stages, its noise, and what accounting says of it."""

import math

import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.conformance import PROMISES, check_defense
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.mapa import MAPA
from dpaudit.errors import OutsideTheory
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import build_graph
from tests.defenses.leaks import DELTA, EAVESDROPPER, curious, leak_within_bracket, reading

STAGES = {"stage_lengths": (2, 1, 2), "learning_rates": (0.3, 0.2, 0.1)}
GRAPHS = [("star", {}), ("pairwise", {}), ("server", {"participation": 0.5})]


def clipped(g, C):
    return g * min(1.0, C / g.norm().item())


@pytest.mark.parametrize("graph, options", GRAPHS)
def test_six_rounds_equal_the_update_agent_by_agent(
    drawn_setting, record_gradients, gaussian_tape, streams, graph, options
) -> None:
    problem, setting = drawn_setting(graph, 5, **options)
    defense = MAPA(
        n_rounds=6, batch_size=4, sampling="poisson", clip_norm=0.4, noise_multiplier=0.8, **STAGES
    ).calibrate(setting)
    state = defense.start(problem.initial(streams).double(), setting)
    v, rates, norms = list(state.X), [0.3, 0.3, 0.2, 0.1, 0.1, 0.1], [0, 0, 1, 2, 2, 2]
    for k in range(1, 7):
        round_graph = setting.network.at(k)
        batch, z = problem.batch(streams, k, 4, "poisson"), None
        z = gaussian_tape(streams, k, "gradient", 5, setting.d)
        C, hub, x = 0.4 * 0.8 ** norms[k - 1], round_graph.server, []
        active = range(5) if round_graph.active is None else round_graph.active
        for i in range(5):
            if i not in active:
                x.append(v[i])
                continue
            at = v[i] if hub is None else v[hub]
            S = sum((clipped(g, C) for g in record_gradients(problem, at, batch, i)), 0 * at)
            x.append(at - rates[k - 1] * (S + 0.8 * C * z[i]) / 4)
        W, received = round_graph.W, v
        v = [sum(W[i, j] * x[j] for j in range(5) if W[i, j] > 0) for i in range(5)]
        oracle = problem.gradient(streams, k, 4, "poisson")
        state, sent, _ = defense.step(state, k, round_graph, oracle, Noise(streams, k))
        for j, i in round_graph.links:
            name, value = ("average", received[hub]) if j == hub else ("x", x[j])
            torch.testing.assert_close(sent[name].on_edge(j, i), value, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(defense.models(state), torch.stack(v), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("graph, options", GRAPHS[1:])
def test_promises_are_kept_on_drawn_graphs_and_with_a_server(graph, options) -> None:
    defense = MAPA(noise_multiplier=1.0, n_rounds=6, batch_size=4)
    for promise in PROMISES.keys() - {"observables"}:  # not in every round of a drawn graph
        check_defense(defense, promise, graph=graph_options(graph, **options))


def test_stages_are_those_worked_out_by_hand() -> None:
    setting = Setting(build_graph("ring", 4), (400,) * 4, 100)
    defense = MAPA(
        n_rounds=400, batch_size=10, noise_multiplier=1.0, clip_norm=1.0, delay=1, initial_gap=0.05
    ).calibrate(setting)
    b = 1 / 10 + 100 * (1 / 10) ** 2
    P = 2 * b / (0.8**2 * 2)
    assert defense.learning_rates[0] == pytest.approx(1 / (2 * P * 2))
    assert defense.stage_lengths[0] == math.ceil(4 * P**2 * 2**2 * 0.05 / b)
    assert sum(defense.stage_lengths[:-1]) < 400 <= sum(defense.stage_lengths)
    b = 1 / 10 + 100 * (0.8 / 10) ** 2
    P = 2 * b / (0.8**4 * 2)
    assert defense.learning_rates[1] == pytest.approx(1 / (2 * P * 2))
    turn = defense.stage_lengths[0]
    assert defense.clip_norm_in(turn) == 1.0
    assert defense.clip_norm_in(turn + 1) == 0.8
    quiet = defense.without_noise()
    assert quiet.calibrate(setting).learning_rates == defense.learning_rates


def test_noise_follows_the_clip_norm_and_is_fresh(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("complete", 4, "logistic")
    noisy = MAPA(n_rounds=40, batch_size=4, noise_multiplier=1.3, clip_norm=0.5,
                 stage_lengths=(20, 20), learning_rates=(0.2, 0.1))  # fmt: skip
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, 41):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, 4), Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["x"], noisy.without_noise().step(*args).sent["x"]
        C, eta = (0.5, 0.2) if k <= 20 else (0.4, 0.1)
        draws.append((quiet.payload - loud.payload) * 4 / (eta * 1.3 * C))
    z = torch.stack(draws)  # standard normal; each check fails falsely below 1e-8 (6 sigma)
    n = z.numel()
    assert abs(z.sum().item()) < 6 * math.sqrt(n)
    for stage in z.split(20):
        assert abs(stage.square().mean().item() - 1) < 6 * math.sqrt(2 / stage.numel())
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        assert products.sum().abs().item() < 6 * math.sqrt(products.numel())


@pytest.mark.parametrize(
    "threat_model", [EAVESDROPPER, curious(0), curious(3), reading((1, 0)), reading((1, 0), (0, 1))]
)
@pytest.mark.parametrize("graph, options", [("ring", {}), *GRAPHS[1:]])
def test_the_exact_leak_lies_within_the_bracket(
    drawn_setting, graph, options, threat_model
) -> None:
    _, setting = drawn_setting(graph, 5, n_rounds=8, **options)
    defense = MAPA(
        n_rounds=8, batch_size=4, sampling="poisson", noise_multiplier=2.0, **STAGES
    ).calibrate(setting)
    leak = leak_within_bracket(defense, setting, threat_model)
    taken = [
        setting.network.at(k).active is None or 1 in setting.network.at(k).active
        for k in range(1, 9)
    ]
    if threat_model is EAVESDROPPER:
        assert leak.by_round.tolist() == pytest.approx([t / 2.0 for t in taken])
        bracket = defense.mechanism(setting, threat_model, 1)
        assert bracket.least == bracket.most


def test_messages_move_as_far_as_is_stated(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("server", 5)
    defense = MAPA(n_rounds=3, batch_size=4, noise_multiplier=0.0, clip_norm=1e-3, **STAGES)
    state = defense.start(problem.initial(streams).double(), setting)
    sent = defense.step(
        state, 3, setting.network.at(3), problem.gradient(streams, 3, 4), Noise(streams, 3)
    ).sent
    stated = defense.sensitivity(3, setting, "add-remove", 1, sent)["x"]
    assert stated.value == pytest.approx(0.2 * 0.8e-3 / 4)
    moved = (sent["x"].payload[1] - state.X[0]).norm().item()  # all four records, none longer
    assert moved <= 4 * stated.value * (1 + 1e-9)
    assert defense.sensitivity(3, setting, "replace-one", 1, sent)["x"].value == 2 * stated.value
    assert defense.sensitivity(3, setting, "function", 1, sent) == {}


def test_the_noisy_gradient_is_derived_exactly_from_all_links(
    drawn_setting, streams, view_of_run
) -> None:
    for graph in ("ring", "server"):
        problem, setting = drawn_setting(graph, 5)
        quiet = MAPA(n_rounds=5, batch_size=4, noise_multiplier=0.0, **STAGES)
        view, rounds = view_of_run(quiet, problem, setting, streams, 4)
        derive = quiet.observables["noisy-gradient"].derive
        derived = derive(quiet, view, setting, Target(4, 1, 0))
        start = rounds[3].state.X[1 if graph == "ring" else 0]
        torch.testing.assert_close(derived.model, start, rtol=1e-10, atol=1e-12)
        expected = rounds[4].private["gradient"][1]
        torch.testing.assert_close(derived.gradient, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_a_constant_multiplier_keeps_its_budget() -> None:
    """With noise sigma C_m^2 and 0.64 left of the clip norm, a claimed 1 is 1.9 in truth."""
    setting = Setting(build_graph("ring", 8), (7500,) * 8, 100)
    options = {
        "epsilon": 1.0, "n_rounds": 1000, "batch_size": 64, "sampling": "poisson",
        "stage_lengths": (200, 300, 500), "learning_rates": (0.1, 0.1, 0.1),
    }  # fmt: skip
    kept = MAPA(**options).calibrate(setting)
    spent = epsilon(kept.mechanism(setting, EAVESDROPPER, 1).most, DELTA)
    assert 0.99 < spent.low <= spent.high <= 1.0
    script = MAPA(**options, noise_follows="clip-squared").calibrate(setting)
    assert script.sigma == kept.sigma
    assert epsilon(script.mechanism(setting, EAVESDROPPER, 1).most, DELTA).low > 1.5


def test_what_it_cannot_run_is_refused_in_one_line() -> None:
    directed = Setting(
        build_graph(graph_options("uniform-out", p=0.4), 6, np.random.default_rng(1)), (40,) * 6, 9
    )
    with pytest.raises(OutsideTheory, match="doubly stochastic") as refusal:
        MAPA(noise_multiplier=1.0).calibrate(directed)
    assert "\n" not in str(refusal.value)
    MAPA(noise_multiplier=1.0, allow_outside_theory=True).calibrate(directed)
    with pytest.raises(ValueError, match="stages are not set"):
        MAPA(noise_multiplier=1.0).stage(1)
    for stages in (
        {"stage_lengths": (3,)},
        {"stage_lengths": (3,), "learning_rates": (0.1, 0.1)},
        {"stage_lengths": (), "learning_rates": ()},
    ):
        with pytest.raises(ValueError, match="give"):
            MAPA(noise_multiplier=1.0, **stages)
