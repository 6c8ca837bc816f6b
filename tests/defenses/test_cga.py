"""CGA and DP-CGA agent by agent, their quadratic programs, and what the clip of a mean releases."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from scipy.optimize import nnls

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.accounting.releases import epsilon
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Gradient, Setting, Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.cga import CGA, DPCGA, direction, multipliers
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.training.sensor_fusion import SensorFusion

FALSE_FAILURE = 1e-9  # of the statistical checks here, over fresh seeds
EAVESDROPPER = ThreatModel(name="e")


def programs(seed: int, count: int, m: int, d: int, opposed: float = 0.3):
    """Rows M and vectors r whose programs have free and bound multipliers."""
    generator = torch.Generator().manual_seed(seed)
    M = torch.randn(count, m, d, generator=generator, dtype=torch.float64)
    r = torch.randn(count, d, generator=generator, dtype=torch.float64)
    return M - opposed * r[:, None], r


def solved(M, r, margin=0.0):
    v = multipliers(M @ M.mT, (M @ r[..., None])[..., 0], margin)
    return v, r + (M.mT @ v[..., None])[..., 0]


def reference(M, r, margin=0.0):
    """The multipliers of one program by scipy, at a distance of v from the margin."""
    M, r = M.numpy(), r.numpy()
    above, _ = nnls(M.T, -(r + M.T @ np.full(len(M), margin)))
    return margin + above


@pytest.mark.parametrize("patience", [-1.0, 0.0, 2.0])
def test_places_change_sides_one_by_one_without_patience(monkeypatch, patience) -> None:
    """The last of the wrong ones alone, which ends too, at the same multipliers."""
    monkeypatch.setattr("dpaudit.defenses.cga.PATIENCE", patience)
    M, r = programs(1, 40, 6, 9)
    v, _ = solved(M, r)
    for one, gradients, own in zip(v, M, r, strict=True):
        np.testing.assert_allclose(one, reference(gradients, own), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("m, d", [(1, 3), (3, 10), (9, 40), (9, 9), (20, 50), (40, 60)])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_programs_are_solved_as_by_scipy(m, d, margin) -> None:
    M, r = programs(m, 40, m, d)
    v, _ = solved(M, r, margin)
    assert (v == margin).any()
    assert (v > margin).any()
    for t in range(40):
        expected = torch.from_numpy(reference(M[t], r[t], margin))
        torch.testing.assert_close(v[t], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("m, d", [(5, 2), (9, 1), (6, 3)])
def test_dependent_and_zero_rows_leave_the_direction_as_it_is(m, d) -> None:
    M, r = programs(m, 40, m, d)
    M[:, 1], M[:, 2] = M[:, 0], 0
    for scale in (1.0, 1e6, 1e-6):
        _, g = solved(scale * M, scale * r)
        for t in range(40):
            expected = r[t] + M[t].T @ torch.from_numpy(reference(M[t], r[t]))
            torch.testing.assert_close(g[t], scale * expected, rtol=0, atol=1e-8 * scale)
    v, g = solved(0 * M, r)
    assert not v.any()
    assert torch.equal(g, r)


def test_a_direction_ascends_no_neighbours_function() -> None:
    graph, n, d = build_graph("star", 6).at(1), 6, 12
    generator = torch.Generator().manual_seed(3)
    own = torch.randn(3, n, d, generator=generator, dtype=torch.float64)
    cross = torch.randn(3, graph.n_edges, d, generator=generator, dtype=torch.float64)
    g = direction(graph, own, cross)
    for e, (j, i) in enumerate(graph.links):
        along = (g[:, i] * graph.W[i, j] * cross[:, e]).sum(-1)
        assert (along >= -1e-11).all()
    r = graph.W.diagonal()[:, None] * own
    assert ((g * (g - r)).sum(-1).abs() < 1e-11).all()  # the change is orthogonal to a projection


def mean_gradient(problem, record_gradients, x, batch, agent, C, B):
    g = sum(record_gradients(problem, x, batch, agent), torch.zeros_like(x)) / B
    return g if C is None else g * min(1.0, C / max(g.norm().item(), C))


@pytest.mark.parametrize("graph, n", [("ring", 5), ("star", 4)])
@pytest.mark.parametrize("kind, margin", [(CGA, 0.0), (CGA, 0.5), (DPCGA, 0.0)])
def test_five_rounds_equal_the_algorithm_agent_by_agent(
    setting_of, record_gradients, streams, graph, n, kind, margin
) -> None:
    problem, setting = setting_of(graph, n)
    eta, beta, B, sigma, d = 0.1, 0.6, 4, 0.01, setting.d
    C = 0.3 if kind is DPCGA else None
    private = {} if C is None else {"noise_multiplier": sigma, "clip_norm": C}
    options = {"learning_rate": eta, "momentum": beta, "batch_size": B, "margin": margin}
    defense = kind(**options, **private, sampling="poisson").calibrate(setting)
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(n, d, dtype=torch.float64, generator=generator)
    state, x = defense.start(X, setting), list(X)
    b = [torch.zeros(d, dtype=torch.float64)] * n
    bound = 0
    for k in range(1, 6):
        graph_k, batch = setting.network.at(k), problem.batch(streams, k, B, "poisson")
        W, z = graph_k.W, Noise(streams, k)
        like = torch.empty(graph_k.n_edges, d, dtype=torch.float64)
        z_links = z.gaussian("cross_gradient", 1.0, like)
        z_own = z.gaussian("self_gradient", 1.0, like[:1].expand(n, d))
        std, g = 0.0 if C is None else 2 * sigma * C, {}
        for i in range(n):
            for j in range(n):
                if W[i, j] > 0:
                    g[i, j] = mean_gradient(problem, record_gradients, x[i], batch, j, C, B)
                    noise = z_own[i] if i == j else z_links[graph_k.links.index((j, i))]
                    g[i, j] = g[i, j] + std * noise
        oracle = problem.gradient(streams, k, B, "poisson")
        state, sent, _ = defense.step(state, k, graph_k, oracle, Noise(streams, k))
        for j, i in graph_k.links:
            cross = sent["cross_gradient"].on_edge(j, i)
            torch.testing.assert_close(cross, g[i, j], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(sent["x"].on_edge(j, i), x[j], rtol=1e-10, atol=1e-12)
        after = []
        for i in range(n):
            around = [j for j in range(n) if j != i and W[i, j] > 0]
            M, r = torch.stack([W[i, j] * g[i, j] for j in around]), W[i, i] * g[i, i]
            v = torch.from_numpy(reference(M, r, margin))
            bound += int((v > margin).sum())
            descent = r + M.T @ v
            b[i] = beta * b[i] + descent
            mixed = sum(W[i, j] * x[j] for j in [i, *around])
            after.append(mixed - eta * (descent + beta * b[i]))
        x = after
        torch.testing.assert_close(state.X, torch.stack(x), rtol=1e-10, atol=1e-11)
    assert bound > 0 or margin > 0  # some neighbour's gradient did object


def test_agents_with_one_cost_reach_its_minimum(streams) -> None:
    """No gradient objects to another then: it is gradient descent with momentum."""
    problem = SensorFusion.draw(streams, 4)
    M, v = problem.M[:1].expand(4, -1, -1) - 0.5, problem.v[:1].expand(4, -1)
    same = SensorFusion(M, v, problem.omega[:1].expand(4))
    setting = Setting(build_graph("ring", 4), (1,) * 4, 2)
    defense = CGA(learning_rate=0.4, momentum=0.5).calibrate(setting)
    state = defense.start(same.initial(streams), setting)
    for k in range(1, 301):
        oracle = same.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), oracle, Noise(streams, k)).state
    assert same.residual(state.X).max() < 1e-20


def test_noise_has_its_scale_and_is_fresh_for_links_and_rounds(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 4, "logistic")
    sigma, C, B = 1.3, 0.5, 4
    for scale, std in (("2C", 2 * sigma * C), ("C/B", sigma * C / B)):
        noisy = DPCGA(clip_norm=C, noise_multiplier=sigma, batch_size=B, noise_scale=scale)
        state, draws = noisy.start(problem.initial(streams).double(), setting), []
        for k in range(1, 61):
            oracle = problem.gradient(streams, k, B)
            args = state, k, setting.network.at(k), oracle, Noise(streams, k)
            loud, quiet = (d.step(*args).sent for d in (noisy, noisy.without_noise()))
            name = "cross_gradient"
            draws.append((loud[name].payload - quiet[name].payload) / std)
        z, tail = torch.stack(draws), FALSE_FAILURE / 6
        n = z.numel()
        assert stats.chi2.ppf(tail, n) < z.square().sum().item() < stats.chi2.isf(tail, n)
        for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
            limit = 1.02 * stats.norm.isf(tail) * math.sqrt(products.numel())
            assert products.sum().abs().item() < limit  # 2%: normal only in the limit


class Opposed(Gradient):
    """Agent 1's mean is -1 on the first coordinate; a long record makes it 1 at all models."""

    batch_size = 8

    def __init__(self, there: bool) -> None:
        self.there = there

    def __call__(self, X, holders=None):
        who = torch.arange(X.shape[-2]) if holders is None else holders
        G = torch.zeros_like(X)
        G[..., 0] = (who == 1) * (1.0 if self.there else -1.0)
        return G

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        raise AssertionError("no record is clipped")


def test_some_data_move_every_cross_gradient_by_2c() -> None:
    setting = Setting(build_graph("ring", 4), (40,) * 4, 3)
    defense = DPCGA(noise_multiplier=0.0, clip_norm=0.5, batch_size=8).calibrate(setting)
    state = defense.start(torch.zeros(4, 3, dtype=torch.float64), setting)
    args = setting.network.at(1), Noise(None, 1)
    without, present = (
        defense.step(state, 1, args[0], Opposed(there), args[1]).sent["cross_gradient"]
        for there in (False, True)
    )
    for i in (0, 2):
        moved = present.on_edge(1, i) - without.on_edge(1, i)
        assert moved.norm().item() == pytest.approx(2 * 0.5)


def test_one_record_moves_the_mean_by_more_than_c_over_b(setting_of, streams) -> None:
    """The mean of real gradients: without a record it points elsewhere, and is as long."""
    problem, setting = setting_of("ring", 4)
    B, C = 8, 1e-3
    defense = DPCGA(noise_multiplier=0.0, clip_norm=C, batch_size=B).calibrate(setting)
    state, graph = defense.start(problem.initial(streams).double(), setting), setting.network.at(1)
    oracle = problem.gradient(streams, 1, B)
    batch = oracle.batch
    weights = torch.ones_like(batch.labels, dtype=torch.float64)
    weights[1, :6] = 0  # two records left: one of them against both
    moved = []
    for r in (6, 7):
        fewer = weights.clone()
        fewer[1, r] = 0
        both, one = (replace(oracle, batch=batch._replace(weights=w)) for w in (weights, fewer))
        here, there = (
            defense.step(state, 1, graph, g, Noise(streams, 1)).sent["cross_gradient"]
            for g in (both, one)
        )
        moved.append((here.on_edge(1, 0) - there.on_edge(1, 0)).norm().item() / C)
    assert 3 / B < max(moved) <= 2
    stated = defense.sensitivity(1, setting, "add-remove", 1, {})
    assert stated["cross_gradient"].value == 2 * C
    scaled = defense.model_copy(update={"noise_scale": "C/B"})
    assert scaled.sensitivity(1, setting, "replace-one", 1, {})["cross_gradient"].value == 2 * C / B


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("agents", [(), (1,)])
def test_the_exact_leak_is_of_a_mean_that_moves_from_0_by_c(sampling, agents) -> None:
    """A declared mean moves from -C by 2C; at least so where other records are there for certain."""
    model = ThreatModel(name="m", kind="curious" if agents else "external", agents=agents)
    setting = Setting(build_graph("ring", 5), (40,) * 5, 100)
    defense = DPCGA(noise_multiplier=1.3, n_rounds=3, batch_size=8, sampling=sampling)
    defense = defense.calibrate(setting)
    game = Game.of(defense, setting, 2, "add-remove")
    leak = Adversary(game, model, 3, messages=frozenset({"cross_gradient"})).leak
    read, bracket = (1 if agents else 2), defense.mechanism(setting, model, 2)
    assert leak.by_round.tolist() == pytest.approx([math.sqrt(read) / (2 * 1.3)] * 3, rel=1e-9)
    (least,), (most,) = bracket.least, bracket.most
    from_0 = 2 if sampling == "poisson" else 1
    assert 1 / least.noise_multiplier == pytest.approx(math.sqrt(read) / 1.3 / from_0)
    assert 1 / most.noise_multiplier == pytest.approx(math.sqrt(3) / 1.3)
    assert (least.clipped, most.clipped) == ("records" if from_0 == 2 else "whole", "whole")


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_budget_is_spent_by_all_queries_of_a_round(sampling) -> None:
    """As DPDL runs MNIST: ten agents, complete, batches of 216, 800 rounds, epsilon 0.5."""
    setting = Setting(build_graph("complete", 10), (6000,) * 10, 1000)
    options = {"epsilon": 0.5, "n_rounds": 800, "batch_size": 216, "sampling": sampling}
    honest = DPCGA(**options).calibrate(setting)
    spent = epsilon(honest.mechanism(setting, EAVESDROPPER, 0).most, 1e-5)
    assert 0.495 < spent.high <= 0.5
    scaled = DPCGA(**options, noise_scale="C/B").calibrate(setting)
    bracket = scaled.mechanism(setting, EAVESDROPPER, 0)
    ratio = (
        bracket.most[0].noise_multiplier
        / honest.mechanism(setting, EAVESDROPPER, 0).most[0].noise_multiplier
    )
    assert ratio == pytest.approx((2 if sampling == "fixed" else 1) / (2 * 216))
    assert epsilon(bracket.least, 1e-5).low > 100


def accounted(defense, size, adjacency, threat_model=EAVESDROPPER, n=6):
    setting = Setting(build_graph("ring", n), (size,) * n, 10)
    claim = Claim(text="c", epsilon=1.0, delta=1e-5, adjacency=adjacency)
    return account_claim(claim, threat_model, defense.calibrate(setting), setting).epsilon


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "user"])
def test_no_change_of_data_moves_a_clipped_mean_beyond_2c(adjacency) -> None:
    """Of two cross-gradients at least and three gradients at most; all records by C, from 0."""
    defense = DPCGA(noise_multiplier=3.0, n_rounds=1, batch_size=4)
    moved = 0.5 if adjacency == "user" else 1.0
    low, high = accounted(defense, 4, adjacency)
    assert low == pytest.approx(gaussian_epsilon(1e-5, moved * math.sqrt(2) / 3))
    assert high == pytest.approx(gaussian_epsilon(1e-5, moved * math.sqrt(3) / 3))
    assert high < 2.342


def test_a_poisson_batch_may_hold_no_other_record() -> None:
    """Below 0.1505, what two gradients tell that move by 2C; attained: C beside no gradients."""
    defense = DPCGA(noise_multiplier=7.0, n_rounds=4, batch_size=4, sampling="poisson")
    low, high = accounted(defense, 40, "replace-one")
    assert low == pytest.approx(0.12713, rel=1e-4)  # mixtures at -C, 0 and C, by composition
    assert high == pytest.approx(0.1965, rel=1e-3)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("size", [4, 40])
def test_a_budget_is_spent_once_in_either_adjacency(sampling, size) -> None:
    for adjacency in ("add-remove", "replace-one"):
        options = {"epsilon": 1.0, "n_rounds": 4, "batch_size": 4, "sampling": sampling}
        spent = accounted(DPCGA(**options, adjacency=adjacency), size, adjacency).high
        assert 0.99 < spent <= 1.0


def test_an_eavesdropper_reads_cross_gradients_and_their_models(
    setting_of, streams, view_of_run
) -> None:
    problem, setting = setting_of("ring", 4)
    for defense in (CGA(batch_size=4), DPCGA(noise_multiplier=0.0, batch_size=4)):
        view, rounds = view_of_run(defense, problem, setting, streams, 2)
        derived = defense.observables["cross_gradient"].derive(
            defense, view, setting, Target(2, 1, 0)
        )
        torch.testing.assert_close(derived.model, rounds[1].state.X[0])
        sent = rounds[2].sent["cross_gradient"].on_edge(1, 0)
        torch.testing.assert_close(derived.gradient, sent)


def test_what_cannot_be_meant_is_refused_in_a_line() -> None:
    directed = Setting(build_graph("directed-ring", 4), (100,) * 4, 10)
    for defense in (CGA(), DPCGA(noise_multiplier=1.0)):
        with pytest.raises(ConfigError, match="CGA needs an undirected graph") as error:
            defense.calibrate(directed)
        assert "\n" not in str(error.value)
    for options in ({"margin": -0.1}, {"momentum": 1.0}, {"noise_scale": "C"}):
        with pytest.raises(ValidationError, match=next(iter(options))):
            DPCGA(noise_multiplier=1.0, **options)


def test_without_links_a_direction_is_the_own_gradient() -> None:

    alone = Graph(torch.ones(1, 1, dtype=torch.float64))
    own = torch.randn(2, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(direction(alone, own, own[:, :0]), own)
