"""FedAN: its rounds agent by agent, and noise whose scale is a function of noisy values."""

from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.fedan import FedAN, State, _heard
from dpaudit.errors import ConfigError, OutsideTheory
from dpaudit.files.options import graph_options
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.graphs.graph import build_graph
from tests.defenses.leaks import DELTA, EAVESDROPPER, curious, leak_within_bracket, reading


@pytest.mark.parametrize("graph", ["star", "directed-ring"])
def test_eight_rounds_equal_the_update_agent_by_agent(
    drawn_setting, record_gradients, gaussian_tape, streams, graph
) -> None:
    problem, setting = drawn_setting(graph, 5)
    C, least, sigma, B, eta, h, theta = 1.5, 0.1, 0.05, 4, 0.3, 3, 0.4
    defense = FedAN(
        n_rounds=8, batch_size=B, sampling="poisson", clip_norm=C, least_clip_norm=least,
        noise_multiplier=sigma, learning_rate=eta, memory=h, sharing=theta,
    ).calibrate(setting)  # fmt: skip
    state, W = defense.start(problem.initial(streams).double(), setting), setting.network.at(1).W
    v, x, scales = list(state.V), list(state.V), set()
    own, heard = [[] for _ in range(5)], [[] for _ in range(5)]
    for k in range(1, 9):
        batch, z = problem.batch(streams, k, B, "poisson"), None
        z, before = gaussian_tape(streams, k, "gradient", 5, setting.d), x
        x = []
        for i in range(5):
            S = C
            if k > 1:
                m, M = (sum(norms[-h:]) / len(norms[-h:]) for norms in (own[i], heard[i]))
                S = max(least, min(C, (1 - theta) * m + theta * M))
            scales.add(S)
            records = record_gradients(problem, v[i], batch, i)
            total = sum((g * min(1.0, S / g.norm().item()) for g in records), 0 * v[i])
            G = (total + sigma * S * z[i]) / B
            own[i].append(G.norm().item())
            x.append(v[i] - eta * G)
        for i in range(5):
            near = [j for j in range(5) if j != i and W[i, j] > 0]
            heard[i].append(sum((x[j] - before[j]).norm().item() for j in near) / eta / len(near))
        v = [sum(W[i, j] * x[j] for j in range(5) if W[i, j] > 0) for i in range(5)]
        oracle = problem.gradient(streams, k, B, "poisson")
        here = setting.network.at(k)
        state, sent, _ = defense.step(state, k, here, oracle, Noise(streams, k))
        for j, i in here.links:
            torch.testing.assert_close(sent["x"].on_edge(j, i), x[j], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(defense.models(state), torch.stack(v), rtol=1e-10, atol=1e-12)
    assert len(scales) > 20  # they do follow the history


def test_noise_is_of_the_stated_scale_and_fresh(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("ring", 4, "logistic")
    noisy = FedAN(noise_multiplier=1.3, clip_norm=0.5, batch_size=4, learning_rate=0.2)
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, 61):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, 4), Noise(streams, k)
        played, quiet = noisy.step(*args), noisy.without_noise().step(*args).sent["x"]
        S = noisy._clip_norms(state)
        draws.append((quiet.payload - played.sent["x"].payload) * 4 / (0.2 * 1.3 * S))
        state = played.state
    z = torch.stack(draws)  # standard normal; each check fails falsely below 1e-8 (6 sigma)
    n = z.numel()
    assert abs(z.sum().item()) < 6 * sqrt(n)
    assert abs(z.square().sum().item() - n) < 6 * sqrt(2 * n)
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        assert products.sum().abs().item() < 6 * sqrt(products.numel())


@pytest.mark.parametrize("threat_model", [EAVESDROPPER, curious(0), curious(3), reading((1, 0))])
def test_the_exact_leak_of_the_first_round_is_in_the_bracket(threat_model) -> None:
    """Later rounds are not linear in their noise, which the audit says."""
    setting = Setting(build_graph("ring", 5), (40,) * 5, 1)
    options = {"batch_size": 8, "sampling": "poisson", "noise_multiplier": 2.0}
    leak_within_bracket(FedAN(n_rounds=1, **options), setting, threat_model)
    longer = FedAN(n_rounds=3, **options)
    assert nonlinearity(Game.of(longer, setting, 1, "add-remove"), threat_model, 3) is not None
    bracket = longer.mechanism(setting, threat_model, 1)
    counts = {"eavesdropper": 3, "agent 0": 1, "agent 3": 0, "some links": 1}
    assert sum(r.count for r in bracket.least) == counts[threat_model.name]
    assert [r.count for r in bracket.most] == [3]


def test_a_state_begins_with_an_empty_history_of_each_agent() -> None:
    setting = Setting(build_graph("ring", 4), (40,) * 4, 9)
    for trials in ((), (2,), (3, 2)):
        X = torch.ones(*trials, 4, 9, dtype=torch.float64)
        state = FedAN(noise_multiplier=1.0, memory=3).start(X, setting)
        assert (state.V.tolist(), state.X.tolist()) == (X.tolist(), X.tolist())
        assert state.own.shape == state.heard.shape == (*trials, 4, 3)
        assert state.played.shape == (*trials, 1, 1)
        assert not any(part.any() for part in (state.own, state.heard, state.played))


def test_clip_norms_are_means_of_the_rounds_that_there_were() -> None:
    """A quarter of what was heard, between the least clip norm and the clip norm."""
    defense = FedAN(
        noise_multiplier=1.0, clip_norm=2.0, least_clip_norm=0.5, memory=3, sharing=0.25
    )
    none, X = torch.zeros(4, 3), torch.zeros(4, 9)
    own, heard = none.clone(), none.clone()
    own[:, 0], heard[:, 0] = torch.tensor([1.0, 0.1, 8.0, 4.0]), torch.tensor([3.0, 0.2, 0.0, 0.0])
    of = {0: [2.0] * 4, 1: [1.5, 0.5, 2.0, 2.0], 2: [0.75, 0.5, 2.0, 1.5], 5: [0.5, 0.5, 2.0, 1.0]}
    for played, expected in of.items():
        state = State(X, X, own, heard, torch.full((1, 1), float(played)))
        assert defense._clip_norms(state).squeeze(-1).tolist() == pytest.approx(expected)


def test_an_agent_without_neighbours_hears_nothing() -> None:
    alone: Any = SimpleNamespace(
        n_agents=3, senders=torch.tensor([1, 2, 0]), receivers=torch.tensor([0, 0, 1])
    )
    heard = _heard(alone, torch.tensor([[1.0], [2.0], [6.0]]))
    assert heard.flatten().tolist() == [4.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("links", "known"),
    [
        (((0, 1), (1, 0), (1, 2), (2, 1)), 3),  # all that S_1 is made of, and no link of others
        (((0, 1), (1, 0), (2, 1)), 1),
        (((0, 1), (1, 0), (1, 2)), 1),
    ],
)
def test_who_reads_all_links_of_an_agent_knows_its_scale(links, known: int) -> None:
    setting = Setting(build_graph("ring", 5), (40,) * 5, 1)
    defense = FedAN(n_rounds=3, batch_size=8, sampling="poisson", noise_multiplier=2.0)
    bracket = defense.mechanism(setting, reading(*links), 1)
    assert [sum(r.count for r in end) for end in (bracket.least, bracket.most)] == [known, 3]


def test_a_budget_is_kept_whatever_the_scales_are() -> None:
    setting = Setting(build_graph("ring", 5), (400,) * 5, 9)
    defense = FedAN(n_rounds=50, batch_size=10, epsilon=2.0).calibrate(setting)
    spent = epsilon(defense.mechanism(setting, EAVESDROPPER, 1).most, DELTA)
    assert 1.98 < spent.high <= 2.0


def test_messages_move_by_no_more_than_is_stated(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("ring", 4)
    quiet = FedAN(noise_multiplier=0.0, clip_norm=1e-2, least_clip_norm=1e-3, batch_size=4)
    state = quiet.start(problem.initial(streams).double(), setting)
    for k in range(1, 5):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, 4), Noise(streams, k)
        played = quiet.step(*args)
        stated = quiet.sensitivity(k, setting, "add-remove", 1, played.sent)["x"].value
        moved = (played.sent["x"].payload - state.V).norm(dim=-1)  # all records of the batch
        assert moved.max() <= 4 * stated * (1 + 1e-9)
        state = played.state


def test_an_eavesdropper_derives_the_gradient(drawn_setting, streams, view_of_run) -> None:
    problem, setting = drawn_setting("ring", 4)
    quiet = FedAN(noise_multiplier=0.0, batch_size=4)
    view, rounds = view_of_run(quiet, problem, setting, streams, 3)
    derived = quiet.observables["noisy-gradient"].derive(quiet, view, setting, Target(3, 1, 0))
    expected = rounds[3].private["gradient"][1]
    torch.testing.assert_close(derived.gradient, expected, rtol=1e-8, atol=1e-11)


def test_what_it_cannot_run_is_refused_in_one_line() -> None:
    directed = build_graph(graph_options("uniform-out", p=0.4), 6, np.random.default_rng(1))
    with pytest.raises(OutsideTheory, match="doubly stochastic"):
        FedAN(noise_multiplier=1.0).calibrate(Setting(directed, (40,) * 6, 9))
    for network in (build_graph("server", 4), build_graph("exponential", 5)):
        sizes = tuple(0 if i == network.server else 40 for i in range(network.n_agents))
        with pytest.raises(ConfigError, match="does not vary") as refusal:
            FedAN(noise_multiplier=1.0).calibrate(Setting(network, sizes, 9))
        assert "\n" not in str(refusal.value)
    ring = Setting(build_graph("ring", 4), (40,) * 4, 9)
    with pytest.raises(ConfigError, match="least_clip_norm: 3 is above"):
        FedAN(noise_multiplier=1.0, least_clip_norm=3.0).calibrate(ring)
    FedAN(noise_multiplier=1.0, clip_norm=2.0, least_clip_norm=2.0).calibrate(ring)
