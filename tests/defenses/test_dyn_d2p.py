"""Dyn-D2P and its variants against the pseudo-code, and their budgets against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpaudit.accounting.families import gaussian_epsilon, gaussian_mu
from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dyn_d2p import LARGEST_SQUARED_MU, DynD2P
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph

FALSE_FAILURE = 1e-9  # of the statistical checks here, over fresh seeds
SCHEDULES = ("dyn", "dyn-c", "dyn-mu", "const")
EAVESDROPPER = ThreatModel(name="e")


def table(schedule, C_0, rho_c, mu_0, rho_mu, K):
    """C_k and mu_k of algorithms 1, 3, 4 and 5, line by line."""
    C, mu = [], []
    for k in range(K):
        C.append(C_0 * rho_c ** (-k / K) if schedule in ("dyn", "dyn-c") else C_0)
        mu.append(mu_0 * rho_mu ** (k / K) if schedule in ("dyn", "dyn-mu") else mu_0)
    return C, mu


def pseudo_code_round(P, x, w, sums, N, gamma, B):
    """Algorithm 1, lines 10 to 13, at every node."""
    n = len(x)
    half = [x[i] - gamma * (sums[i] + N[i]) / B for i in range(n)]
    x = [sum(P[i, j] * half[j] for j in range(n) if P[i, j] > 0) for i in range(n)]
    w = [sum(P[i, j] * w[j] for j in range(n) if P[i, j] > 0) for i in range(n)]
    return x, w


@pytest.mark.parametrize(
    "schedule, sampling, batch_size",
    [("dyn", "poisson", 1), ("dyn-c", "fixed", 1), ("dyn-mu", "poisson", 4), ("const", "fixed", 4),
     ("general", "poisson", 3)],
)  # fmt: skip
def test_six_rounds_equal_the_pseudo_code_agent_by_agent(
    push_sum_setting, record_gradients, gaussian_tape, streams, schedule, sampling, batch_size
) -> None:
    problem, setting = push_sum_setting(5)
    K, gamma, mu_0 = 6, 0.3, 1.6
    C, mu = table(schedule, 0.9, 3.0, mu_0, 2.5, K)
    options = {}
    if schedule == "general":
        C, levels = [0.9, 0.2, 0.7, 0.3, 0.5, 0.4], [1.0, 0.5, 2.0, 0.3, 1.0, 0.1]
        mu = [mu_0 * c / s for c, s in zip(C, levels, strict=True)]
        options = {"clip_norms": tuple(C), "noise_levels": tuple(levels)}
    defense = DynD2P(
        schedule=schedule, n_rounds=K, learning_rate=gamma, clip_norm=0.9, clip_decay=3.0,
        budget_growth=2.5, noise_multiplier=1 / mu_0, batch_size=batch_size, sampling=sampling,
        **options,
    ).calibrate(setting)  # fmt: skip
    state = defense.start(problem.initial(streams).double(), setting)
    x, w, drawn = list(state.X), [1.0] * 5, set()
    for k in range(K):
        batch = problem.batch(streams, k + 1, batch_size, sampling)
        z = gaussian_tape(streams, k + 1, "u", 5, setting.d)
        sums = []
        for i in range(5):
            records = record_gradients(problem, x[i] / w[i], batch, i)
            drawn.add(len(records))
            clipped = (g * min(1.0, C[k] / g.norm().item()) for g in records)
            sums.append(sum(clipped, torch.zeros(setting.d, dtype=torch.float64)))
        N = [C[k] / mu[k] * z[i] for i in range(5)]
        x, w = pseudo_code_round(setting.network.at(k + 1).W, x, w, sums, N, gamma, batch_size)
        oracle = problem.gradient(streams, k + 1, batch_size, sampling)
        graph, noise = setting.network.at(k + 1), Noise(streams, k + 1)
        state = defense.step(state, k + 1, graph, oracle, noise).state
    assert drawn == {batch_size} if sampling == "fixed" else len(drawn) > 2
    torch.testing.assert_close(state.X, torch.stack(x), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(state.w[:, 0], torch.stack(w), rtol=1e-14, atol=1e-14)
    models = torch.stack([x / w for x, w in zip(x, w, strict=True)])
    torch.testing.assert_close(defense.models(state), models, rtol=1e-11, atol=1e-13)


def test_total_mu_of_the_published_budget() -> None:
    assert gaussian_mu(0.3, 1e-4) == pytest.approx(0.1077, abs=5e-5)


@pytest.mark.parametrize("J, K, eps", [(2500, 10_000, 0.3), (3000, 5_000, 1.0), (1250, 300, 3.0)])
def test_constant_budgets_are_the_closed_form_9(J, K, eps) -> None:
    mu_tot = gaussian_mu(eps, 1e-4)
    mu_bar = math.sqrt(math.log(J**2 * mu_tot**2 / K + 1))
    for schedule in ("const", "dyn-c"):
        defense = DynD2P(schedule=schedule, epsilon=eps, n_rounds=K)
        assert defense.mu_0_for(J) == pytest.approx(mu_bar, rel=1e-12)
    setting = Setting(build_graph("exponential", 4), (J,) * 4, 10)
    calibrated = DynD2P(schedule="const", epsilon=eps, n_rounds=K, clip_norm=3.0).calibrate(setting)
    assert calibrated.noise_std(0) == calibrated.noise_std(K - 1) == pytest.approx(3.0 / mu_bar)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("growth, batch_size", [(1.25, 1), (10.0, 1), (2.0, 8)])
def test_budgets_of_all_rounds_add_up_to_the_total_8(schedule, growth, batch_size) -> None:
    J, K = 2500, 4_000
    defense = DynD2P(
        schedule=schedule, epsilon=1.0, n_rounds=K, budget_growth=growth, batch_size=batch_size
    )
    mu_0 = defense.mu_0_for(J)
    _, mu = table(schedule, 1.0, 2.0, mu_0, growth, K)
    total = sum(math.expm1(m**2) for m in mu)
    p = batch_size / J
    assert p * math.sqrt(total) == pytest.approx(gaussian_mu(1.0, 1e-4), rel=1e-10)


def test_noise_of_first_over_last_round_is_the_power_of_rates() -> None:
    K, rho_c, rho_mu = 50, 2.5, 4.0
    ratios = {"dyn": rho_c * rho_mu, "dyn-c": rho_c, "dyn-mu": rho_mu, "const": 1.0}
    for schedule, ratio in ratios.items():
        defense = DynD2P(
            schedule=schedule, n_rounds=K, clip_decay=rho_c, budget_growth=rho_mu,
            noise_multiplier=0.7,
        )  # fmt: skip
        expected = ratio ** ((K - 1) / K)
        assert defense.noise_std(0) / defense.noise_std(K - 1) == pytest.approx(expected, rel=1e-12)
        assert defense.noise_std(0) == pytest.approx(0.7 * defense.clip_norm)


def test_general_form_has_the_noise_of_10_within_the_total() -> None:
    J, K, eps = 3000, 6_000, 0.05
    rng = np.random.default_rng(0)
    C, levels = rng.uniform(0.5, 2, K), rng.uniform(0.9, 1.1, K) * 2
    defense = DynD2P(
        schedule="general", epsilon=eps, n_rounds=K, clip_norms=tuple(C), noise_levels=tuple(levels)
    ).calibrate(Setting(build_graph("directed-ring", 3), (J,) * 3, 10))
    mu_tot = gaussian_mu(eps, 1e-4)
    scale = math.sqrt(2 * np.sum(C**2 / levels**2)) / (J * mu_tot)
    assert defense.noise_multiplier == pytest.approx(scale, rel=1e-12)
    sigma = np.array([defense.noise_std(k) for k in range(K)])
    np.testing.assert_allclose(sigma, scale * levels, rtol=1e-12)
    spent = math.sqrt(np.sum(np.expm1((C / sigma) ** 2))) / J
    assert 0.7 * mu_tot < spent < mu_tot  # exp(x) - 1 is at least x and less than 2 x


def test_10_is_refused_where_its_inequality_does_not_hold() -> None:
    assert math.expm1(LARGEST_SQUARED_MU) == pytest.approx(2 * LARGEST_SQUARED_MU, rel=1e-12)
    setting = Setting(build_graph("exponential", 4), (2500,) * 4, 10)
    options = {"clip_norms": (1.0,) * 100, "noise_levels": (1.0,) * 100}
    general = DynD2P(schedule="general", epsilon=3.0, n_rounds=100, **options)
    with pytest.raises(ConfigError, match=r"exp\(x\) - 1 < 2 x"):
        general.calibrate(setting)
    general.model_copy(update={"allow_outside_theory": True}).calibrate(setting)


def test_general_equals_const_up_to_the_slack_of_10() -> None:
    J, K = 2500, 20_000
    const = DynD2P(schedule="const", epsilon=0.3, n_rounds=K).mu_0_for(J)
    ones = (1.0,) * K
    general = DynD2P(
        schedule="general", epsilon=0.3, n_rounds=K, clip_norms=ones, noise_levels=ones
    ).mu_0_for(J)
    x = const**2  # e^x - 1 is spent in the one, 2 y for y = general^2 in the other
    assert 2 * general**2 == pytest.approx(math.expm1(x), rel=1e-10)


def test_noise_has_the_stated_scale_in_every_round_and_is_fresh(push_sum_setting, streams) -> None:
    problem, setting = push_sum_setting(4, "logistic")
    gamma, B, K = 0.2, 2, 60
    noisy = DynD2P(
        n_rounds=K, batch_size=B, learning_rate=gamma, clip_norm=1.5, noise_multiplier=0.6
    )
    state, draws = noisy.start(problem.initial(streams).double(), setting), []
    for k in range(1, K + 1):
        oracle = problem.gradient(streams, k, B, "poisson")
        args = state, k, setting.network.at(k), oracle, Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["u"], noisy.without_noise().step(*args).sent["u"]
        sigma = 1.5 * 2.0 ** (-(k - 1) / K) / (2.0 ** ((k - 1) / K) / 0.6)
        draws.append((quiet.payload - loud.payload) * B / (gamma * sigma))
    z, tail = torch.stack(draws), FALSE_FAILURE / 4  # [60 rounds, 4 agents, d]
    n = z.numel()
    assert abs(z.sum().item()) < stats.norm.isf(tail) * math.sqrt(n)
    assert stats.chi2.ppf(tail, n) < z.square().sum().item() < stats.chi2.isf(tail, n)
    by_half = z.square().unflatten(0, (2, -1)).sum((1, 2, 3))  # the scale follows the schedule
    m = n // 2
    assert (by_half > stats.chi2.ppf(tail, m)).all()
    assert (by_half < stats.chi2.isf(tail, m)).all()
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        limit = 1.02 * stats.norm.isf(tail) * math.sqrt(products.numel())
        assert products.sum().abs().item() < limit  # 2%: normal only in the limit


def test_without_noise_it_is_clipped_push_sum(setting_of, streams, view_of_run) -> None:
    problem, setting = setting_of("exponential", 5)
    defense = DynD2P(n_rounds=6, schedule="const", clip_norm=1e9, noise_multiplier=1.0,
                     sampling="fixed", batch_size=4, learning_rate=0.1).without_noise()  # fmt: skip
    _, rounds = view_of_run(defense, problem, setting, streams, 6)
    assert all((r.state.w - 1).abs().max() < 1e-14 for r in rounds.values())
    X = problem.initial(streams).double()
    for k in range(1, 7):
        X = setting.network.at(k).mix(X - 0.1 * problem.gradient(streams, k, 4)(X))
    torch.testing.assert_close(rounds[6].state.X, X, rtol=1e-12, atol=1e-14)


def test_an_eavesdropper_derives_every_noisy_gradient_exactly(
    push_sum_setting, streams, view_of_run
) -> None:
    problem, setting = push_sum_setting(5)
    for defense in (
        DynD2P(n_rounds=5, noise_multiplier=0.4, batch_size=3),
        DynD2P(n_rounds=5, noise_multiplier=0.0, batch_size=3),
    ):
        view, rounds = view_of_run(defense, problem, setting, streams, 4)
        derive = defense.observables["noisy-gradient"].derive
        derived = derive(defense, view, setting, Target(4, 2, 0))
        G = rounds[4].private["gradient"][2]
        noise = Noise(streams, 4).gaussian("u", defense.noise_std(3), rounds[4].private["gradient"])
        torch.testing.assert_close(derived.gradient, G + noise[2] / 3, rtol=1e-9, atol=1e-12)
        model = defense.models(rounds[3].state)[2]
        torch.testing.assert_close(derived.model, model, rtol=1e-13, atol=1e-14)


def test_each_round_is_a_release_of_its_own_multiplier() -> None:
    setting = Setting(build_graph("exponential", 5), (400,) * 5, 10)
    defense = DynD2P(n_rounds=8, noise_multiplier=0.5, budget_growth=3.0)
    bracket = defense.mechanism(setting, EAVESDROPPER, 1)
    assert bracket.least == bracket.most
    expected = sorted(0.5 * 3.0 ** (-k / 8) for k in range(8))
    assert [r.noise_multiplier for r in bracket.most] == pytest.approx(expected, rel=1e-12)
    assert {(r.sampling, r.sampling_rate) for r in bracket.most} == {("poisson", 1 / 400)}
    neighbour = ThreatModel(name="c", kind="curious", agents=(2,))
    first = defense.mechanism(setting, neighbour, 1).least  # of round 1: the largest noise
    assert [r.noise_multiplier for r in first] == pytest.approx([0.5])
    const = DynD2P(schedule="const", n_rounds=8, noise_multiplier=0.5)
    assert [r.count for r in const.mechanism(setting, EAVESDROPPER, 1).most] == [8]


def test_exact_epsilon_of_the_papers_calibration_exceeds_it() -> None:
    # From algorithms.md A3, computed there with another accountant: J, K, claimed -> exact.
    setting = {J: Setting(build_graph("exponential", 4), (J,) * 4, 10) for J in (2500, 3000)}
    for J, K, claimed, exact in (
        (2500, 10_000, 0.3, 0.36), (2500, 10_000, 3.0, 5.37), (3000, 10_000, 1.0, 2.47),
    ):  # fmt: skip
        const = DynD2P(schedule="const", epsilon=claimed, n_rounds=K).calibrate(setting[J])
        spent = epsilon(const.mechanism(setting[J], EAVESDROPPER, 0).most, 1e-4)
        assert spent.low > claimed
        assert spent.high == pytest.approx(exact, abs=0.01)


def test_what_the_theory_forbids_is_refused_unless_allowed() -> None:
    unequal = Setting(build_graph("exponential", 3), (100, 90, 120), 10)
    defense = DynD2P(epsilon=1.0, n_rounds=50)
    with pytest.raises(ConfigError, match="same number of records J"):
        defense.calibrate(unequal)
    allowed = DynD2P(epsilon=1.0, n_rounds=50, allow_outside_theory=True).calibrate(unequal)
    assert allowed.noise_multiplier == pytest.approx(1 / defense.mu_0_for(90))
    for options in (
        {},
        {"epsilon": 1.0, "noise_multiplier": 1.0},
        {"epsilon": 1.0, "clip_norms": (1.0,) * 10_000},
        {"epsilon": 1.0, "n_rounds": 3, "schedule": "general", "clip_norms": (1.0,) * 3},
        {"epsilon": 1.0, "n_rounds": 3, "schedule": "general", "clip_norms": (1.0,) * 2,
         "noise_levels": (1.0,) * 3},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"give either|belongs to schedule"):
            DynD2P(**options)


@pytest.mark.parametrize("over", [0.999, 1.001])
def test_10_is_refused_just_where_its_inequality_ends(over) -> None:
    """In one round of all records mu_k is mu_tot / sqrt(2), whatever the levels are."""
    mu_tot = over * math.sqrt(2 * LARGEST_SQUARED_MU)
    defense = DynD2P(
        schedule="general", n_rounds=1, batch_size=10, delta=1e-5, clip_norms=(1.0,),
        noise_levels=(3.0,), epsilon=gaussian_epsilon(1e-5, mu_tot),
    )  # fmt: skip
    setting = Setting(build_graph("complete", 4), (10,) * 4, 3)
    if over < 1:
        assert defense.calibrate(setting).noise_std(0) == pytest.approx(math.sqrt(2) / mu_tot)
    else:
        with pytest.raises(ConfigError, match="rests on exp"):
            defense.calibrate(setting)
