"""DPDL against its pseudo-code written out agent by agent, and against what it must satisfy."""

import math

import pytest
import torch
from scipy import stats
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dpdl import CALIBRATION_LEAST, CALIBRATION_MOST, DPDL, State
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph, Network, build_graph
from dpaudit.models.models import parameters_of

FALSE_FAILURE = 1e-9  # of each statistical check here, over fresh seeds


def record_gradient(problem, x, image, label):
    x = x.clone().requires_grad_(True)
    module = problem.gradients.module
    logits = functional_call(module, parameters_of(module, x), (image[None],))
    (g,) = torch.autograd.grad(cross_entropy(logits, label[None]), x)
    return g


def clipped_mean(problem, x, batch, agent, C):
    gradients = [
        record_gradient(problem, x, image, label)
        for image, label in zip(batch.inputs[agent], batch.labels[agent], strict=True)
    ]
    return sum(g * min(1.0, C / g.norm().item()) for g in gradients) / len(gradients)


def pseudo_code_round(problem, defense, graph, x, v, batch, z):
    """Algorithm 1, lines 2 to 30, agent by agent; z[i][j] perturbs g^ij."""
    W, N, C = graph.W, graph.n_agents, defense.clip_norm
    neighbours = [[j for j in range(N) if W[i, j] > 0] for i in range(N)]
    B = batch.labels.shape[1]
    v_tilde, x_tilde = [], []
    for i in range(N):
        e = clipped_mean(problem, x[i], batch, i, C)
        total = torch.zeros_like(e)
        for j in neighbours[i]:
            g = (
                clipped_mean(problem, x[i], batch, j, C)
                + defense.noise_multiplier * C * z[i][j] / B
            )
            S = (g @ e) / (g.norm() * e.norm())
            K = 1 / (1 + math.exp(S))
            total += g / (math.sqrt(W[i, j]) * N) + defense.calibration * W[i, j] * K * e
        v_tilde.append(defense.momentum * v[i] + total)
        x_tilde.append(x[i] - defense.learning_rate * v_tilde[i])
    x = [sum(W[i, j] * x_tilde[j] for j in neighbours[i]) for i in range(N)]
    v = [sum(W[i, j] * v_tilde[j] for j in neighbours[i]) for i in range(N)]
    return x, v


def noise_of_round(streams, k, graph, d):
    """The tape of round k as z[i][j], by the order of the graph's links."""
    noise, N = Noise(streams, k), graph.n_agents
    like = torch.empty(graph.n_edges, d, dtype=torch.float64)
    links = noise.gaussian("cross_gradient", 1.0, like)
    loops = noise.gaussian("self_gradient", 1.0, like[:1].expand(N, d))
    return [
        [
            loops[i] if i == j else links[graph.links.index((j, i))] if graph.W[i, j] > 0 else None
            for j in range(N)
        ]
        for i in range(N)
    ]


@pytest.mark.parametrize(
    "graph, n_agents, network",
    [("ring", 5, "mlp"), ("bipartite", 4, "lenet"), ("complete", 3, "mlp"), ("star", 4, "mlp")],
)
def test_five_rounds_equal_the_pseudo_code_agent_by_agent(
    setting_of, streams, graph, n_agents, network
) -> None:
    problem, setting = setting_of(graph, n_agents, network)
    defense = DPDL(
        noise_multiplier=0.7, clip_norm=0.9, learning_rate=0.1, momentum=0.6, batch_size=4
    )
    state = defense.start(problem.initial(streams).double(), setting)
    x, v = list(state.X), list(state.V)
    for k in range(1, 6):
        graph_k = setting.network.at(k)
        batch = problem.batch(streams, k, 4)
        z = noise_of_round(streams, k, graph_k, setting.d)
        x, v = pseudo_code_round(problem, defense, graph_k, x, v, batch, z)
        gradient = problem.gradient(streams, k, 4)
        state = defense.step(state, k, graph_k, gradient, Noise(streams, k)).state
    torch.testing.assert_close(state.X, torch.stack(x), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state.V, torch.stack(v), rtol=1e-11, atol=1e-12)


def step_once(problem, setting, defense, streams, k=1, state=None):
    state = defense.start(problem.initial(streams).double(), setting) if state is None else state
    gradient = problem.gradient(streams, k, defense.batch_size)
    return state, defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k))


def test_without_noise_it_is_scaled_cross_gradient_descent(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 3)
    defense = DPDL(noise_multiplier=0.0, calibration=0.0, momentum=0.0, clip_norm=1e9, batch_size=4)
    state, (after, _, _) = step_once(problem, setting, defense, streams)
    # One model everywhere and w_ij = 1/N: G = sum_j g^j / (sqrt(1/N) N), mixed equally.
    gradient = problem.gradient(streams, 1, 4)(state.X)
    expected = state.X - defense.learning_rate * gradient.sum(0) / math.sqrt(3)
    torch.testing.assert_close(after.X, expected, rtol=1e-12, atol=1e-14)


def test_one_agent_alone_sends_nothing_and_trains_alone(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 2)
    alone = Network((Graph(torch.ones(1, 1, dtype=torch.float64)),))
    defense = DPDL(noise_multiplier=0.0, momentum=0.0, clip_norm=1e9, batch_size=4)
    X = problem.initial(streams).double()[:1]
    gradient = problem.gradient(streams, 1, 4)
    after, sent, _ = defense.step(
        defense.start(X, setting), 1, alone.at(1), gradient, Noise(streams, 1)
    )
    g = gradient(X, holders=torch.tensor([0]))
    K = 1 / (1 + math.e)  # the cosine of a gradient with itself is 1
    expected = X - defense.learning_rate * (1 + defense.calibration * K) * g
    torch.testing.assert_close(after.X, expected, rtol=1e-12, atol=1e-14)
    assert all(message.senders.numel() == 0 for message in sent.values())


def test_on_a_complete_graph_all_agents_agree_after_every_round(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 4)
    defense = DPDL(noise_multiplier=2.0, batch_size=4)
    _, (after, _, _) = step_once(problem, setting, defense, streams)
    torch.testing.assert_close(after.X, after.X[:1].expand_as(after.X), rtol=0, atol=1e-14)


def test_cross_gradients_travel_to_the_owner_of_the_model(setting_of, streams) -> None:
    problem, setting = setting_of("ring", 5)
    defense = DPDL(noise_multiplier=0.0, clip_norm=0.5, batch_size=4)
    X = torch.randn(5, setting.d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    _, (_, sent, _) = step_once(
        problem, setting, defense, streams, state=State(X, torch.zeros_like(X))
    )
    batch = problem.batch(streams, 1, 4)
    for victim, receiver in ((0, 1), (1, 0), (4, 0)):
        payload = sent["cross_gradient"].on_edge(victim, receiver)
        expected = clipped_mean(problem, X[receiver], batch, victim, 0.5)
        torch.testing.assert_close(payload, expected, rtol=1e-11, atol=1e-13)


def test_noise_has_its_scale_and_is_independent(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 4, "logistic")
    sigma, C, B = 1.7, 0.8, 4
    noisy = DPDL(noise_multiplier=sigma, clip_norm=C, batch_size=B)
    state = noisy.start(problem.initial(streams).double(), setting)
    draws = []  # of the same state each time: 12 links and 4 momenta, of 60 rounds
    for k in range(1, 61):
        with_noise = step_once(problem, setting, noisy, streams, k, state)[1].sent
        without = step_once(problem, setting, noisy.without_noise(), streams, k, state)[1].sent
        cross = with_noise["cross_gradient"].payload - without["cross_gradient"].payload
        draws.append(cross / (sigma * C / B))
    z = torch.stack(draws)  # [60 rounds, 12 links, d], standard normal if all is right
    n = z.numel()
    tail = FALSE_FAILURE / 2
    assert abs(z.sum().item()) < stats.norm.isf(tail) * math.sqrt(n)
    total = z.square().sum().item()
    assert stats.chi2.ppf(tail, n) < total < stats.chi2.isf(tail, n)
    rows = z.transpose(0, 1).reshape(12, -1)  # a row for each link: pairs must not correlate
    pairs = torch.triu_indices(12, 12, offset=1)
    products = (rows @ rows.T)[pairs[0], pairs[1]].abs().max().item()
    limit = stats.norm.isf(tail / pairs.shape[1]) * math.sqrt(rows.shape[1])
    assert products < 1.02 * limit  # 2%: a sum of products is normal only in the limit
    lagged = (z[1:] * z[:-1]).sum().abs().item()
    assert lagged < 1.02 * stats.norm.isf(tail) * math.sqrt(z[1:].numel())


def test_self_gradient_noise_reaches_the_momentum_at_its_scale(setting_of, streams) -> None:
    problem, setting = setting_of("complete", 3, "logistic")
    defense = DPDL(noise_multiplier=3.0, calibration=0.0, clip_norm=0.8, batch_size=4)
    ratios = []
    for k in range(1, 41):
        state, (_, sent, _) = step_once(problem, setting, defense, streams, k)
        _, (_, quiet, _) = step_once(problem, setting, defense.without_noise(), streams, k, state)
        cross = sent["cross_gradient"].payload - quiet["cross_gradient"].payload
        shift = sent["v"].payload - quiet["v"].payload
        graph = setting.network.at(k)
        for link, (j, i) in enumerate(zip(graph.senders, graph.receivers, strict=True)):
            shift[i] -= cross[link] / (math.sqrt(graph.W[i, j]) * 3)
        ratios.append(shift * (math.sqrt(1 / 3) * 3) / (3.0 * 0.8 / 4))
    z = torch.stack(ratios)
    tail, n = FALSE_FAILURE / 2, z.numel()
    assert stats.chi2.ppf(tail, n) < z.square().sum().item() < stats.chi2.isf(tail, n)


def test_stripped_momentum_is_the_noisy_own_gradient(setting_of, streams) -> None:
    """The leak: what is left of v~ after known subtractions is parallel to e_i but for z_ii."""
    problem, setting = setting_of("star", 4)
    defense = DPDL(noise_multiplier=0.9, clip_norm=0.7, batch_size=4)
    state, (_, sent, _) = step_once(problem, setting, defense, streams)
    graph, N = setting.network.at(1), 4
    batch, z = problem.batch(streams, 1, 4), noise_of_round(streams, 1, graph, setting.d)
    for i in range(N):
        e = clipped_mean(problem, state.X[i], batch, i, 0.7)
        left, K_sum = sent["v"].payload[i].clone(), 0.0
        for j in range(N):
            if graph.W[i, j] == 0:
                continue
            mean = clipped_mean(problem, state.X[i], batch, j, 0.7)
            g = mean + 0.9 * 0.7 * z[i][j] / 4
            left -= g / (math.sqrt(graph.W[i, j]) * N)
            K_sum += graph.W[i, j].item() / (1 + math.exp((g @ e) / (g.norm() * e.norm())))
        torch.testing.assert_close(left, defense.calibration * K_sum * e, rtol=1e-9, atol=1e-12)


def test_calibration_bounds_hold_for_random_and_aligned_changes() -> None:
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for _ in range(2_000):
        c, e, step = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        step = 1e-4 * step / step.norm()

        def calibrated(e, c=c):
            return e / (1 + torch.exp((c @ e) / (c.norm() * e.norm())))

        change = (calibrated(e + step) - calibrated(e)).norm() / step.norm()
        largest = max(largest, change.item())
    assert 0.7 < largest <= CALIBRATION_MOST + 1e-3
    from_zero = calibrated(step) - 0
    assert from_zero.norm() >= CALIBRATION_LEAST * step.norm()


def test_noise_multiplier_follows_23_with_its_constants() -> None:
    # algorithms.md A5: T=800, eps .5, delta 1e-5, c2=2, h=1, D_i=6000, N=10, B=216
    expected = {"complete": (1.5, 5.18), "bipartite": (1.5, 8.76), "ring": (2.0, 25.0)}
    for graph, (alpha, sigma) in expected.items():
        setting = Setting(build_graph(graph, 10), (6000,) * 10, 100)
        defense = DPDL(epsilon=0.5, n_rounds=800, batch_size=216, calibration=alpha, h=1.0)
        assert defense.calibrate(setting).noise_multiplier == pytest.approx(sigma, rel=2e-3)


def test_23_takes_least_and_largest_weights_and_fewest_records() -> None:
    setting = Setting(build_graph("path", 3), (50, 200, 100), 10)  # weights 1/3 and 2/3
    defense = DPDL(epsilon=0.5, n_rounds=100, batch_size=10, calibration=1.5, h=2.0, c2=2.0)
    terms = 2 * math.sqrt(3) + 15 * 1.5 * 3 / 8 + 1.5 * (2 / 3) * 9 * 3 / 4
    root = math.sqrt(2 / (2 / 3))  # the smallest neighbourhood is of two agents
    q = 10 / (3 * 50)
    expected = terms * 2 * q * math.sqrt(100 * math.log(1e5)) / (root * 0.5)
    assert defense.noise_multiplier_of(setting) == pytest.approx(expected)


def test_23_halves_as_epsilon_doubles() -> None:
    setting = Setting(build_graph("ring", 6), (500,) * 6, 100)
    base = DPDL(epsilon=0.5, n_rounds=100).noise_multiplier_of(setting)
    assert DPDL(epsilon=1.0, n_rounds=100).noise_multiplier_of(setting) == pytest.approx(base / 2)
    assert DPDL(epsilon=0.5, n_rounds=400).noise_multiplier_of(setting) == pytest.approx(2 * base)


def test_graphs_outside_assumption_3_are_refused() -> None:
    for name in ("directed-ring", "exponential"):
        with pytest.raises(ConfigError, match="Assumption 3"):
            DPDL(epsilon=1.0).calibrate(Setting(build_graph(name, 6), (100,) * 6, 10))


def test_an_eavesdropper_counts_every_link_and_a_neighbour_one() -> None:
    setting = Setting(build_graph("complete", 4), (100,) * 4, 10)
    defense = DPDL(noise_multiplier=5.0, calibration=0.0, batch_size=10)
    everywhere = defense.mechanism(setting, ThreatModel(name="e"), 0)
    curious = defense.mechanism(setting, ThreatModel(name="c", kind="curious", agents=(2,)), 0)
    # per round and with alpha = 0: three cross-gradients and the own gradient under z^ii alone
    assert everywhere.most[0].noise_multiplier == pytest.approx(5.0 / math.sqrt(3 + 1))
    # one cross-gradient; in the momentum z^ii and the noise of the two links it does not read
    assert curious.least[0].noise_multiplier == pytest.approx(5.0 / math.sqrt(1 + 1 / 3))
    # the other two show in their receivers' momenta, and tell no more than if they were read
    assert curious.most[0].noise_multiplier == pytest.approx(5.0 / math.sqrt(3 + 1 / 3))
    assert everywhere.most[0].sampling_rate == 0.1
    twin = defense.without_noise().mechanism(setting, ThreatModel(name="e"), 0)
    assert twin.least[0].noise_multiplier == 0
