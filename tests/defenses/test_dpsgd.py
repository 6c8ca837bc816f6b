"""D-PSGD and DP-DPSGD against their updates agent by agent, their noise and their budget."""

import math

import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dpsgd import DPDPSGD, DPSGD, State
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph

FALSE_FAILURE = 1e-9  # of the statistical checks here, over fresh seeds


def mixed(W, x):
    return [sum(W[i, j] * x[j] for j in range(len(x)) if W[i, j] > 0) for i in range(len(x))]


def clipped_mean(gradients, C, p, B, d):
    clipped = (g * min(1.0, C / g.norm(p=p).item()) for g in gradients)
    return sum(clipped, torch.zeros(d, dtype=torch.float64)) / B


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_five_rounds_of_d_psgd_equal_the_update_agent_by_agent(
    setting_of, record_gradients, streams, sampling
) -> None:
    problem, setting = setting_of("star", 5)
    dpsgd = DPSGD(learning_rate=0.3, batch_size=4, sampling=sampling).calibrate(setting)
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(5, setting.d, dtype=torch.float64, generator=generator)
    state, x = dpsgd.start(X, setting), list(X)  # agents that start apart: all mixing counts
    for k in range(1, 6):
        batch, W = problem.batch(streams, k, 4, sampling), setting.network.at(k).W
        g = [sum(record_gradients(problem, x[i], batch, i), 0 * x[i]) / 4 for i in range(5)]
        x = [m - 0.3 * g for m, g in zip(mixed(W, x), g, strict=True)]
        oracle = problem.gradient(streams, k, 4, sampling)
        state, sent, _ = dpsgd.step(state, k, setting.network.at(k), oracle, Noise(streams, k))
        torch.testing.assert_close(sent["x"].payload, torch.stack(x), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(dpsgd.models(state), torch.stack(x), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("perturb, p", [("gradient", 2), ("model", 1)])
def test_five_rounds_of_dp_dpsgd_equal_the_update_by_agents(
    setting_of, record_gradients, streams, perturb, p
) -> None:
    problem, setting = setting_of("star", 4)
    C, sigma, eta, B = 0.4, 0.8, 0.3, 4
    defense = DPDPSGD(
        learning_rate=eta, clip_norm=C, noise_multiplier=sigma, batch_size=B,
        perturb=perturb, sampling="poisson",
    )  # fmt: skip
    state = defense.start(problem.initial(streams).double(), setting)
    x, sent = list(state.X), list(state.X)
    for k in range(1, 6):
        batch, W = problem.batch(streams, k, B, "poisson"), setting.network.at(k).W
        like = torch.empty(4, setting.d, dtype=torch.float64)
        z = Noise(streams, k)
        z = z.gaussian("gradient", 1.0, like) if p == 2 else z.laplace("x", 1.0, like)
        v, new = mixed(W, sent), []
        for i in range(4):
            g = clipped_mean(record_gradients(problem, x[i], batch, i), C, p, B, setting.d)
            new.append(v[i] - eta * (g + (sigma * C / B * z[i] if p == 2 else 0)))
        x = new
        sent = x if p == 2 else [x[i] + eta * sigma * C / B * z[i] for i in range(4)]
        oracle = problem.gradient(streams, k, B, "poisson")
        state, capture, _ = defense.step(state, k, setting.network.at(k), oracle, Noise(streams, k))
        torch.testing.assert_close(capture["x"].payload, torch.stack(sent), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(state.X, torch.stack(x), rtol=1e-11, atol=1e-13)


def test_noise_on_the_model_has_its_scale_and_is_fresh(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 4, "logistic")
    eta, C, B, sigma = 0.2, 0.5, 4, 1.3
    noisy = DPDPSGD(learning_rate=eta, clip_norm=C, noise_multiplier=sigma, batch_size=B)
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, 101):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, B), Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["x"], noisy.without_noise().step(*args).sent["x"]
        draws.append((quiet.payload - loud.payload) * B / (eta * sigma * C))
    z, tail = torch.stack(draws), FALSE_FAILURE / 4  # [100 rounds, 4 agents, d]
    n = z.numel()
    assert abs(z.sum().item()) < stats.norm.isf(tail) * math.sqrt(n)
    assert stats.chi2.ppf(tail, n) < z.square().sum().item() < stats.chi2.isf(tail, n)
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        limit = 1.02 * stats.norm.isf(tail) * math.sqrt(products.numel())
        assert products.sum().abs().item() < limit  # 2%: normal only in the limit


def test_d_psgd_on_a_complete_graph_is_gradient_descent(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 3)
    size = setting.sizes[0]
    dpsgd = DPSGD(learning_rate=0.2, batch_size=size)
    x = problem.initial(streams).double()
    state = dpsgd.start(x, setting)
    oracle = problem.gradient(streams, 1, size)
    after = dpsgd.step(state, 1, setting.network.at(1), oracle, Noise(streams, 1)).state
    expected = x[0] - 0.2 * oracle(x).mean(0)
    torch.testing.assert_close(after.V, expected.expand(3, -1), rtol=1e-12, atol=1e-14)


def test_dp_dpsgd_without_noise_and_clipping_is_d_psgd(setting_of, streams) -> None:
    problem, setting = setting_of("ring", 4)
    loose = DPDPSGD(clip_norm=1e9, noise_multiplier=3.0, batch_size=4).without_noise()
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(4, setting.d, dtype=torch.float64, generator=generator)
    args = (
        State(X, X, X[:, None][:, :0]),
        1,
        setting.network.at(1),
        problem.gradient(streams, 1, 4),
        Noise(streams, 1),
    )
    a, b = loose.step(*args).state, DPSGD(batch_size=4).step(*args).state
    torch.testing.assert_close(a.X, b.X, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("perturb", ["gradient", "model"])
def test_an_eavesdropper_derives_the_noisy_gradient_exactly(
    setting_of, streams, view_of_run, perturb
) -> None:
    problem, setting = setting_of("ring", 4)
    defense = DPDPSGD(noise_multiplier=0.5, batch_size=4, perturb=perturb)
    view, rounds = view_of_run(defense, problem, setting, streams, 3)
    derived = defense.observables["noisy-gradient"].derive(defense, view, setting, Target(3, 1, 0))
    before = rounds[2].state.V[1] - rounds[3].sent["x"].payload[1]
    torch.testing.assert_close(derived.gradient, before / 0.05, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(derived.model, rounds[2].sent["x"].payload[1])
    if perturb == "gradient":
        torch.testing.assert_close(derived.model, rounds[2].state.X[1])
    quiet = defense.without_noise()
    view, rounds = view_of_run(quiet, problem, setting, streams, 3)
    derived = quiet.observables["noisy-gradient"].derive(quiet, view, setting, Target(3, 1, 0))
    G = rounds[3].private["gradient"][1]
    torch.testing.assert_close(derived.gradient, G, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "sampling, adjacency", [("poisson", "add-remove"), ("fixed", "replace-one")]
)
def test_calibrated_noise_spends_the_budget_and_hardly_less(sampling, adjacency) -> None:
    setting = Setting(build_graph("ring", 3), (400, 200, 300), 10)
    defense = DPDPSGD(
        epsilon=2.0, n_rounds=60, batch_size=10, sampling=sampling, adjacency=adjacency
    ).calibrate(setting)
    release = defense.mechanism(setting, ThreatModel(name="e"), 1).least
    assert release[0].sampling_rate == 10 / 200
    spent = epsilon(release, 1e-5, adjacency)
    assert 1.98 < spent.high <= 2.0
    other = defense.mechanism(setting, ThreatModel(name="e"), 0).least
    assert epsilon(other, 1e-5, adjacency).high < spent.high  # more records, smaller rate


def test_mechanism_counts_all_rounds_for_an_eavesdropper() -> None:
    setting = Setting(build_graph("ring", 5), (50,) * 5, 10)
    defense = DPDPSGD(noise_multiplier=1.5, n_rounds=9, batch_size=10)
    everything = defense.mechanism(setting, ThreatModel(name="e"), 0)
    assert everything.least == everything.most
    assert [(r.noise_multiplier, r.count, r.sampling) for r in everything.most] == [
        (1.5, 9, "fixed")
    ]
    neighbour = ThreatModel(name="c", kind="curious", agents=(1,))
    bracket = defense.mechanism(setting, neighbour, 0)
    assert [r.count for r in bracket.least] == [1]
    assert bracket.most == everything.most
    assert DPSGD().mechanism(setting, ThreatModel(name="e"), 0).least[0].noise_multiplier == 0


def test_a_record_lasts_where_gradients_are_at_unsent_models() -> None:
    setting = Setting(build_graph("ring", 3), (50,) * 3, 10)
    defense = DPDPSGD(noise_multiplier=6.0, n_rounds=9, batch_size=10, perturb="model")
    bracket = defense.mechanism(setting, ThreatModel(name="e"), 0)
    assert [(r.noise_multiplier, r.count) for r in bracket.least] == [(6.0, 1)]
    assert [(r.noise_multiplier, r.count) for r in bracket.most] == [(6.0 / 20, 9)]
    assert bracket.most[0].sampling == "none"
    assert {r.family for r in (*bracket.least, *bracket.most)} == {"laplace"}


def test_graphs_outside_the_theory_are_refused_unless_allowed() -> None:
    setting = Setting(build_graph("exponential", 6), (10,) * 6, 10)
    for defense in (DPSGD(), DPDPSGD(noise_multiplier=1.0)):
        with pytest.raises(ConfigError, match="symmetric"):
            defense.calibrate(setting)
        defense.model_copy(update={"allow_outside_theory": True}).calibrate(setting)


def test_noise_is_given_once() -> None:
    for options in (
        {},
        {"epsilon": 1.0, "noise_multiplier": 1.0},
        {"epsilon": 1, "perturb": "model"},
    ):
        with pytest.raises(ValueError, match="give"):
            DPDPSGD(**options)


@pytest.mark.parametrize("budget", [1e-300, 1e-7, 1e7, 1e300])
def test_a_budget_that_no_noise_was_ever_found_for_is_refused(budget) -> None:
    with pytest.raises(ValidationError, match="epsilon"):
        DPDPSGD(epsilon=budget)


@pytest.mark.parametrize(
    "budget, delta, why",
    [
        pytest.param(1.0, 0.999, "kept with next to no noise", marks=pytest.mark.slow),
        pytest.param(1.0, 1e-300, "no noise_multiplier", marks=pytest.mark.slow),
        (1e-6, 1e-20, "no noise_multiplier"),
    ],
)
def test_a_budget_that_no_noise_spends_is_refused_in_a_line(budget, delta, why) -> None:
    setting = Setting(build_graph("ring", 3), (400, 200, 300), 10)
    defense = DPDPSGD(epsilon=budget, delta=delta, n_rounds=5, batch_size=10)
    with pytest.raises(ConfigError, match=why) as refusal:
        defense.calibrate(setting)
    assert "\n" not in str(refusal.value)
    assert f"delta = {delta:g}" in str(refusal.value)
