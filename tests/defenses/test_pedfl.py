"""PEDFL: its rounds agent by agent, and noise that is 0 where all agents are equal."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.conformance import PROMISES, check_defense
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.pedfl import PEDFL
from dpaudit.errors import ConfigError, OutsideTheory
from dpaudit.files.options import graph_options
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from tests.defenses.leaks import DELTA, EAVESDROPPER, curious

ORDERS = ("mix-then-step", "step-then-mix")


@pytest.mark.parametrize("graph, options", [("star", {}), ("erdos-renyi", {"p": 0.6, "redrawn": True})])  # fmt: skip
@pytest.mark.parametrize("order", ORDERS)
def test_five_rounds_equal_the_update_agent_by_agent(
    drawn_setting, record_gradients, streams, graph, options, order
) -> None:
    problem, setting = drawn_setting(graph, 4, **options)
    gamma, C, rate, b, B = 0.3, 0.7, 0.01, 2.0, 4
    defense = PEDFL(
        n_rounds=5, batch_size=B, sampling="poisson", order=order, learning_rate=gamma,
        l1_clip_norm=C, noise_rate=rate, budget=b,
    ).calibrate(setting)  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(4, setting.d, dtype=torch.float64, generator=generator)
    state, x = defense.start(X, setting), list(X)
    for k in range(1, 6):
        here, batch = setting.network.at(k), problem.batch(streams, k, B, "poisson")
        L = Noise(streams, k).laplace("m", 1.0, X)
        steps = []
        for i in range(4):
            g = sum(record_gradients(problem, x[i], batch, i), 0 * x[i]) / B
            steps.append(-gamma * g * min(1.0, C / max(g.norm(p=1).item(), 1e-300)))
        h = x if order == "mix-then-step" else [x[i] + steps[i] for i in range(4)]
        S = max((h[i] - h[j]).norm(p=1).item() for i in range(4) for j in range(4))
        m = [h[i] + rate * S / b * L[i] for i in range(4)]
        x = [sum(here.W[i, j] * m[j] for j in range(4) if here.W[i, j] > 0) for i in range(4)]
        if order == "mix-then-step":
            x = [x[i] + steps[i] for i in range(4)]
        oracle = problem.gradient(streams, k, B, "poisson")
        state, sent, _ = defense.step(state, k, here, oracle, Noise(streams, k))
        assert not sent["sens"].senders.numel()  # no agent sends the distance
        for j, i in here.links:
            torch.testing.assert_close(sent["m"].on_edge(j, i), m[j], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(defense.models(state), torch.stack(x), rtol=1e-10, atol=1e-12)


def test_promises_are_kept_on_a_graph_drawn_anew() -> None:
    for promise in PROMISES.keys() - {"observables"}:  # agent 0 may be alone in a round
        check_defense(
            PEDFL(n_rounds=6, batch_size=4),
            promise,
            graph=graph_options("erdos-renyi", p=0.5, redrawn=True),
        )


def test_noise_has_the_scale_of_the_distances_and_is_fresh(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("ring", 4, "logistic")
    noisy = PEDFL(noise_rate=0.01, budget=2.0, batch_size=4, learning_rate=0.2)
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, 62):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, 4), Noise(streams, k)
        played, quiet = noisy.step(*args), noisy.without_noise().step(*args).sent["m"].payload
        spread = torch.cdist(state.X, state.X, p=1).max()
        assert played.sent["sens"].payload.item() == spread
        if k == 1:
            assert torch.equal(played.sent["m"].payload, quiet)  # all agents are equal yet
        else:
            draws.append((played.sent["m"].payload - quiet) * 2.0 / (0.01 * spread))
        state = played.state
    z = torch.stack(draws)  # Laplace(1): variance 2, |z| of mean 1 and variance 1
    n = z.numel()  # each check fails falsely below 1e-8 (6 sigma)
    assert abs(z.sum().item()) < 6 * (2 * n) ** 0.5
    assert abs(z.abs().sum().item() - n) < 6 * n**0.5
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        assert products.sum().abs().item() < 6 * 2 * products.numel() ** 0.5


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threat_model, heard", [(EAVESDROPPER, True), (curious(0), True), (curious(3), False)])  # fmt: skip
def test_a_record_among_equal_agents_shows_without_noise(order, threat_model, heard) -> None:
    """The distance is 0 without it: b / gamma_n of a round is claimed, and nothing is hidden."""
    setting = Setting(build_graph("ring", 5), (40,) * 5, 9)
    defense = PEDFL(n_rounds=4, batch_size=8, sampling="poisson", order=order)
    bracket = defense.mechanism(setting, threat_model, 1)
    sent = 3 if order == "mix-then-step" else 4
    assert [r.count for r in bracket.most] == [sent]
    assert epsilon(bracket.most, DELTA).low == inf
    assert bracket.least == ()  # agents apart from one another do have noise
    assert "1000 in each round" in bracket.assumptions[0]
    if heard:
        leak = Adversary(Game.of(defense, setting, 1, "add-remove"), threat_model, 4).leak
        assert set(leak.noiseless) == set(range(1, sent + 1))


def test_what_is_stated_is_the_distance_between_agents_alone(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("ring", 4)
    defense = PEDFL(batch_size=4)
    X = problem.initial(streams).double() * torch.arange(1.0, 5.0, dtype=torch.float64)[:, None]
    args = defense.start(X, setting), 1, setting.network.at(1), problem.gradient(streams, 1, 4)
    sent = defense.step(*args, Noise(streams, 1)).sent
    stated = defense.sensitivity(1, setting, "agent-identity", 0, sent)
    assert stated["m"].value == pytest.approx((X[0] - X[3]).norm(p=1).item())
    assert defense.sensitivity(1, setting, "add-remove", 0, sent) == {}
    of_trials = replace(sent["sens"], payload=torch.tensor([2.0, 5.0, 3.0])[:, None, None])
    stated = defense.sensitivity(1, setting, "agent-identity", 0, {"sens": of_trials})
    assert (stated["m"].norm, stated["m"].value) == (1, 5.0)


@pytest.mark.parametrize("order", ORDERS)
def test_the_gradient_is_derived_from_two_rounds(
    drawn_setting, streams, view_of_run, order
) -> None:
    problem, setting = drawn_setting("ring", 4)
    quiet = PEDFL(batch_size=4, order=order).without_noise()
    view, rounds = view_of_run(quiet, problem, setting, streams, 4)
    derived = quiet.observables["noisy-gradient"].derive(quiet, view, setting, Target(3, 1, 0))
    expected = rounds[3].private["gradient"][1]
    torch.testing.assert_close(derived.gradient, expected, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(derived.model, rounds[2].state.X[1], rtol=1e-10, atol=1e-12)


def test_what_it_cannot_run_is_refused_in_one_line() -> None:
    directed = build_graph(graph_options("uniform-out", p=0.4), 6, np.random.default_rng(1))
    setting = Setting(directed, (40,) * 6, 9)
    with pytest.raises(OutsideTheory, match="doubly stochastic") as refusal:
        PEDFL().calibrate(setting)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match="needs a noise_rate above 0"):
        PEDFL(epsilon=1.0, noise_rate=0.0, allow_outside_theory=True).calibrate(setting)
    ring = Setting(build_graph("ring", 4), (40,) * 4, 9)
    assert PEDFL(epsilon=5.0, noise_rate=0.01).calibrate(ring).b == pytest.approx(0.05)
    assert PEDFL(budget=3.0, noise_rate=0.0).calibrate(ring).b == 3.0
