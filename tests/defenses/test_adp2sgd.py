"""A(DP)2SGD: its events agent by agent, its noise, and what an assumed bound is worth."""

from math import inf

import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.conformance import PROMISES, check_defense
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.adp2sgd import ADP2SGD
from dpaudit.errors import OutsideTheory
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import build_graph
from tests.defenses.leaks import DELTA, EAVESDROPPER, curious, leak_within_bracket, reading

PAIRS = graph_options("pairwise", among="ring")


@pytest.mark.parametrize("graph, options", [("pairwise", {"among": "ring"}), ("star", {})])
@pytest.mark.parametrize("batch, staleness", [("mean", 0), ("sum", 2)])
def test_eight_events_equal_the_update_agent_by_agent(
    drawn_setting, record_gradients, gaussian_tape, streams, graph, options, batch, staleness
) -> None:
    problem, setting = drawn_setting(graph, 4, n_rounds=8, **options)
    C, sigma, eta, B = 0.4, 0.8, 0.3, 4
    defense = ADP2SGD(
        n_rounds=8, batch_size=B, sampling="poisson", clip_norm=C, noise_multiplier=sigma,
        learning_rate=eta, batch=batch, staleness=staleness,
    ).calibrate(setting)  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(4, setting.d, dtype=torch.float64, generator=generator)
    state, v = defense.start(X, setting), list(X)
    reads = [v] * (staleness + 1)  # what each agent held, the oldest first
    for k in range(1, 9):
        event = setting.network.at(k)
        drawn, z = problem.batch(streams, k, B, "poisson"), None
        z, x = gaussian_tape(streams, k, "gradient", 4, setting.d), list(v)
        for i in range(4) if event.active is None else event.active:
            records = record_gradients(problem, reads[0][i], drawn, i)
            S = sum((g * min(1.0, C / g.norm().item()) for g in records), 0 * v[i])
            x[i] = v[i] - eta * (S + sigma * C * z[i]) / (B if batch == "mean" else 1)
        v = [sum(event.W[i, j] * x[j] for j in range(4) if event.W[i, j] > 0) for i in range(4)]
        reads = [*reads[1:], v]
        oracle = problem.gradient(streams, k, B, "poisson")
        state, sent, _ = defense.step(state, k, event, oracle, Noise(streams, k))
        assert set(sent) == {"x"}
        for j, i in event.links:
            torch.testing.assert_close(sent["x"].on_edge(j, i), x[j], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(defense.models(state), torch.stack(v), rtol=1e-10, atol=1e-12)


def test_only_the_active_agents_gradient_is_computed(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("pairwise", 5)
    defense = ADP2SGD(noise_multiplier=1.0, batch_size=4)
    oracle, asked = problem.gradient(streams, 1, 4), []

    class Counting(type(oracle)):
        def clipped_sum(self, X, clip_norm, holders=None, norm=2):
            asked.append(tuple(holders.tolist()))
            return oracle.clipped_sum(X, clip_norm, holders, norm)

    counting = Counting(oracle.gradients, oracle.batch, 4)
    state = defense.start(problem.initial(streams).double(), setting)
    defense.step(state, 1, setting.network.at(1), counting, Noise(streams, 1))
    assert asked == [setting.network.at(1).active]


@pytest.mark.parametrize("staleness", [0, 2])
def test_promises_are_kept_on_pairs(staleness) -> None:
    defense = ADP2SGD(noise_multiplier=1.0, n_rounds=6, batch_size=4, staleness=staleness)
    for promise in PROMISES.keys() - {"observables"}:  # an agent may not have sent the event before
        check_defense(defense, promise, graph=PAIRS)


def test_noise_is_of_the_stated_scale_and_fresh_in_every_event(drawn_setting, streams) -> None:
    problem, setting = drawn_setting("complete", 4, "logistic")
    noisy = ADP2SGD(noise_multiplier=1.3, clip_norm=0.5, batch_size=4, learning_rate=0.2)
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, 61):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, 4), Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["x"], noisy.without_noise().step(*args).sent["x"]
        draws.append((quiet.payload - loud.payload) * 4 / (0.2 * 1.3 * 0.5))
    z = torch.stack(draws)  # standard normal; each check fails falsely below 1e-8 (6 sigma)
    n = z.numel()
    assert abs(z.sum().item()) < 6 * n**0.5
    assert abs(z.square().sum().item() - n) < 6 * (2 * n) ** 0.5
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        assert products.sum().abs().item() < 6 * products.numel() ** 0.5


@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("threat_model", [EAVESDROPPER, curious(0), curious(3), reading((1, 0))])
def test_the_exact_leak_lies_within_the_bracket(drawn_setting, threat_model, staleness) -> None:
    _, setting = drawn_setting("pairwise", 4, n_rounds=16)
    defense = ADP2SGD(
        n_rounds=16, batch_size=4, sampling="poisson", noise_multiplier=2.0, staleness=staleness
    )
    leak = leak_within_bracket(defense, setting, threat_model)
    bracket = defense.mechanism(setting, threat_model, 1)
    if threat_model is EAVESDROPPER:
        steps = [1 in setting.network.at(k).active for k in range(1, 17)]
        assert leak.by_round.tolist() == pytest.approx([s / 2.0 for s in steps])
        assert bracket.least == bracket.most
        assert bracket.most[0].count == sum(steps)


def test_the_noise_of_a_budget_is_that_of_the_busiest_agent(drawn_setting) -> None:
    _, setting = drawn_setting("pairwise", 4, n_rounds=50)
    defense = ADP2SGD(n_rounds=50, batch_size=2, epsilon=2.0).calibrate(setting)
    spent = [
        epsilon(defense.mechanism(setting, EAVESDROPPER, i).most, DELTA).high for i in range(4)
    ]
    assert 1.98 < max(spent) <= 2.0
    assert min(spent) < 1.98  # the others were drawn less often


def test_a_bound_that_is_only_assumed_hides_no_longer_gradient(drawn_setting, streams) -> None:
    """A record ten times as long as assumed moves its message ten times as far."""
    problem, setting = drawn_setting("ring", 4)
    options = {"n_rounds": 4, "batch_size": 4, "noise_multiplier": 2.0, "clip_norm": 1e-3}
    assumed, clipped = ADP2SGD(**options, gradients="assumed"), ADP2SGD(**options)
    quiet, state = (
        assumed.without_noise(),
        assumed.start(problem.initial(streams).double(), setting),
    )
    args = state, 1, setting.network.at(1), problem.gradient(streams, 1, 4), Noise(streams, 1)
    sent = quiet.step(*args).sent
    stated = assumed.sensitivity(1, setting, "add-remove", 1, sent)["x"].value
    assert (sent["x"].payload - state.V).norm(dim=-1).min() > 4 * 10 * stated
    sent = clipped.without_noise().step(*args).sent
    assert (sent["x"].payload - state.V).norm(dim=-1).max() <= 4 * stated * (1 + 1e-9)

    least, most, said = assumed.mechanism(setting, EAVESDROPPER, 1)
    assert epsilon(most, DELTA).low == inf
    assert epsilon(least, DELTA) == epsilon(clipped.mechanism(setting, EAVESDROPPER, 1).most, DELTA)
    assert any("not clipped" in line for line in said)


def test_an_eavesdropper_derives_gradients_of_earlier_senders(
    drawn_setting, streams, view_of_run
) -> None:
    for batch in ("mean", "sum"):
        problem, setting = drawn_setting("ring", 4)
        quiet = ADP2SGD(noise_multiplier=0.0, batch_size=4, batch=batch)
        view, rounds = view_of_run(quiet, problem, setting, streams, 3)
        derived = quiet.observables["noisy-gradient"].derive(quiet, view, setting, Target(3, 1, 0))
        expected = rounds[3].private["gradient"][1]
        torch.testing.assert_close(derived.gradient, expected, rtol=1e-9, atol=1e-11)


def test_graphs_outside_the_theory_are_refused_in_one_line() -> None:
    directed = build_graph(graph_options("uniform-out", p=0.4), 6, np.random.default_rng(1))
    setting = Setting(directed, (40,) * 6, 9)
    with pytest.raises(OutsideTheory, match="doubly stochastic") as refusal:
        ADP2SGD(noise_multiplier=1.0).calibrate(setting)
    assert "\n" not in str(refusal.value)
    ADP2SGD(noise_multiplier=1.0, allow_outside_theory=True).calibrate(setting)


def test_the_noise_of_a_budget_is_for_the_fewest_records() -> None:
    setting = Setting(build_graph("complete", 3), (20, 80, 80), 10)
    defense = ADP2SGD(epsilon=1.0, n_rounds=3, batch_size=4)
    assert defense.noise_multiplier_of(setting) == defense.noise_multiplier_for(20)
