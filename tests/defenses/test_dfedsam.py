"""DFedSAM agent by agent and record by record, its noise, and what one ascent for a batch breaks."""

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from dpaudit.accounting.releases import epsilon
from dpaudit.conformance import PROMISES, check_defense
from dpaudit.defense.contract import Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dfedsam import DPDFedSAM
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph

FALSE_FAILURE = 1e-9  # of the statistical checks here, over fresh seeds
EAVESDROPPER = ThreatModel(name="e")


def mixed(W, x):
    return [sum(W[i, j] * x[j] for j in range(len(x)) if W[i, j] > 0) for i in range(len(x))]


def one_record(batch, agent, r):
    """A batch that has this record alone."""
    weights = torch.zeros_like(batch.labels)
    kept = torch.ones_like(batch.labels) if batch.weights is None else batch.weights
    weights[agent, r] = kept[agent, r]
    return batch._replace(weights=weights)


def uphill_sum(problem, record_gradients, defense, v, batch, agent):
    """S of one agent, each record by itself."""
    C, rho = defense.clip_norm, defense.ascent
    alone = [one_record(batch, agent, r) for r in range(batch.labels.shape[1])]
    gradients = [record_gradients(problem, v, b, agent) for b in alone]  # padding has none
    total = sum((g for gs in gradients for g in gs), torch.zeros_like(v))
    S = torch.zeros_like(v)
    for b, gs in zip(alone, gradients, strict=True):
        for g in gs:
            along = g if defense.sam == "per-record" else total
            (h,) = record_gradients(problem, v + rho * along / along.norm(), b, agent)
            S = S + h * min(1.0, C / h.norm().item())
    return S


@pytest.mark.parametrize("graph, n", [("ring", 4), ("star", 5)])
@pytest.mark.parametrize("sam, sampling", [("per-record", "poisson"), ("batch", "fixed")])
def test_five_rounds_equal_the_pseudo_code_record_by_record(
    setting_of, record_gradients, gaussian_tape, streams, graph, n, sam, sampling
) -> None:
    problem, setting = setting_of(graph, n, "logistic")
    K, Q, B, sigma, C = 2, 2, 3, 0.7, 0.5
    defense = DPDFedSAM(
        noise_multiplier=sigma, clip_norm=C, local_steps=K, gossip_steps=Q, batch_size=B, sam=sam,
        sampling=sampling, ascent=0.3, decay=0.9, learning_rate=0.2,
    ).calibrate(setting)  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(n, setting.d, dtype=torch.float64, generator=generator)
    state, x = defense.start(X, setting), list(X)
    for k in range(1, 6):
        graph_k, eta = setting.network.at(k), 0.2 * 0.9 ** (k - 1)
        for s in range(K):
            batch = problem.batch(streams, k, B, sampling, step=s)
            z = gaussian_tape(streams, k, f"gradient {s}", n, setting.d)
            for i in range(n):
                S = uphill_sum(problem, record_gradients, defense, x[i], batch, i)
                x[i] = x[i] - eta * (S + sigma * C * z[i]) / B
        oracle = problem.gradient(streams, k, B, sampling)
        state, sent, _ = defense.step(state, k, graph_k, oracle, Noise(streams, k))
        assert set(sent) == {"x/1", "x/2"}
        for q in (1, 2):
            for j, i in graph_k.links:
                torch.testing.assert_close(
                    sent[f"x/{q}"].on_edge(j, i), x[j], rtol=1e-10, atol=1e-12
                )
            x = mixed(graph_k.W, x)
        torch.testing.assert_close(defense.models(state), torch.stack(x), rtol=1e-10, atol=1e-12)


def moved(problem, defense, streams, victim: int) -> float:
    """The longest move of S, in clip norms, as each record of the victim's batch is left out."""
    oracle, batch = problem.gradient(streams, 1, defense.batch_size), None
    batch, V = oracle.batch, problem.initial(streams).double()
    whole, lengths = defense._sum(oracle, V)[victim], []
    for r in range(batch.labels.shape[1]):
        weights = torch.ones_like(batch.labels, dtype=torch.float64)
        weights[victim, r] = 0
        rest = replace(oracle, batch=batch._replace(weights=weights))
        lengths.append((whole - defense._sum(rest, V)[victim]).norm().item())
    return max(lengths) / defense.clip_norm


def test_an_ascent_for_each_record_moves_the_sum_by_c(setting_of, streams) -> None:
    problem, _ = setting_of("ring", 4)
    options = {"noise_multiplier": 1.0, "clip_norm": 1e-3, "batch_size": 8, "ascent": 3.0}
    assert moved(problem, DPDFedSAM(**options), streams, 1) == pytest.approx(1.0, rel=1e-9)
    unsafe = moved(problem, DPDFedSAM(**options, sam="batch"), streams, 1)
    assert 1.5 < unsafe <= 2 * 8  # the lower limit is what these records show, not the worst


@pytest.mark.slow
def test_a_batch_ascent_is_declared_up_to_2_b_c() -> None:
    setting = Setting(build_graph("ring", 4), (100,) * 4, 10)
    options = {"epsilon": 2.0, "n_rounds": 5, "batch_size": 10, "local_steps": 2}
    for sampling, times in (("fixed", 20), ("poisson", 200)):
        safe = DPDFedSAM(**options, sampling=sampling).calibrate(setting)
        unsafe = DPDFedSAM(**options, sampling=sampling, sam="batch").calibrate(setting)
        assert safe.sigma == unsafe.sigma
        honest = safe.mechanism(setting, EAVESDROPPER, 1)
        declared = unsafe.mechanism(setting, EAVESDROPPER, 1)
        assert declared.least == honest.least
        assert sum(r.count for r in declared.most) == 10
        (release,) = declared.most
        assert release.noise_multiplier == pytest.approx(safe.sigma / times)
        assert 1.98 < epsilon(honest.most, 1e-5).high <= 2.0
        assert epsilon(declared.most, 1e-5).low > 40


def test_noise_has_its_scale_and_is_fresh_for_steps_and_rounds(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 4, "logistic")
    sigma, C, B, K = 1.3, 0.5, 4, 3
    noisy = DPDFedSAM(
        learning_rate=1e-9, clip_norm=C, noise_multiplier=sigma, batch_size=B, local_steps=K,
        decay=1.0,
    )  # fmt: skip
    state, draws = noisy.start(0 * problem.initial(streams).double(), setting), []
    for k in range(1, 61):
        args = state, k, setting.network.at(k), problem.gradient(streams, k, B), Noise(streams, k)
        loud, quiet = noisy.step(*args).sent["x/1"], noisy.without_noise().step(*args).sent["x/1"]
        draws.append((quiet.payload - loud.payload) * B / (1e-9 * sigma * C * math.sqrt(K)))
    z, tail = torch.stack(draws), FALSE_FAILURE / 3
    n = z.numel()
    assert stats.chi2.ppf(tail, n) < z.square().sum().item() < stats.chi2.isf(tail, n)
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        limit = 1.02 * stats.norm.isf(tail) * math.sqrt(products.numel())
        assert products.sum().abs().item() < limit  # 2%: normal only in the limit


@pytest.mark.parametrize("agents", [(), (1,)])
@pytest.mark.parametrize("K", [1, 3])
def test_the_exact_leak_lies_between_the_declared_ends(K, agents) -> None:
    model = ThreatModel(name="m", kind="curious" if agents else "external", agents=agents)
    setting = Setting(build_graph("ring", 5), (40,) * 5, 100)
    defense = DPDFedSAM(
        noise_multiplier=1.3, n_rounds=3, batch_size=8, sampling="poisson", local_steps=K
    ).calibrate(setting)
    game = Game.of(defense, setting, 2, "add-remove")
    mus = [math.sqrt(squared.low) for squared in Adversary(game, model, 3).leak.by_use]
    bracket = defense.mechanism(setting, model, 2)
    least = [1 / r.noise_multiplier for r in bracket.least for _ in range(r.count)]
    assert len(least) == K * (1 if agents else 3)
    for declared, found in zip(sorted(least), sorted(mus)[-len(least) :], strict=True):
        assert declared <= found * (1 + 1e-9)
    assert max(mus) <= 1 / 1.3 * (1 + 1e-9)
    assert sum(r.count for r in bracket.most) == 3 * K


def test_an_eavesdropper_derives_the_gradient_of_a_single_step(
    setting_of, streams, view_of_run
) -> None:
    problem, setting = setting_of("ring", 4)
    quiet = DPDFedSAM(noise_multiplier=0.0, batch_size=4, local_steps=1, gossip_steps=2)
    view, rounds = view_of_run(quiet, problem, setting, streams, 3)
    derived = quiet.observables["noisy-gradient"].derive(quiet, view, setting, Target(3, 1, 0))
    torch.testing.assert_close(derived.model, rounds[2].state.X[1], rtol=1e-9, atol=1e-12)
    G = rounds[3].private["gradient"][1]
    torch.testing.assert_close(derived.gradient, G, rtol=1e-8, atol=1e-11)
    several = quiet.model_copy(update={"local_steps": 2})
    with pytest.raises(NotObservable, match='holds 2 local steps.*attack "local-steps"'):
        several.observables["noisy-gradient"].derive(several, view, setting, Target(3, 1, 0))


@pytest.mark.slow
def test_promises_are_kept_with_local_steps() -> None:
    defense = DPDFedSAM(noise_multiplier=2.0, n_rounds=6, batch_size=4, local_steps=2)
    for promise in PROMISES.keys() - {"observables"}:  # no single gradient of several local steps
        check_defense(defense, promise)


def test_what_is_stated_and_what_cannot_be_meant() -> None:
    setting = Setting(build_graph("ring", 4), (100,) * 4, 10)
    one = DPDFedSAM(noise_multiplier=1.0, local_steps=1, clip_norm=0.5, batch_size=10)
    stated = one.sensitivity(2, setting, "replace-one", 0, {})
    assert stated["x/1"].value == pytest.approx(2 * 0.1 * 0.998 * 0.5 / 10)
    assert one.sensitivity(2, setting, "function", 0, {}) == {}
    assert DPDFedSAM(noise_multiplier=1.0).sensitivity(2, setting, "add-remove", 0, {}) == {}
    directed = Setting(build_graph("directed-ring", 4), (100,) * 4, 10)
    with pytest.raises(ConfigError, match="DFedSAM needs an undirected graph") as error:
        one.calibrate(directed)
    assert "\n" not in str(error.value)
    for options in ({"ascent": 0.0}, {"decay": 1.1}, {"gossip_steps": 0}, {"sam": "none"}):
        with pytest.raises(ValidationError, match=next(iter(options))):
            DPDFedSAM(noise_multiplier=1.0, **options)
