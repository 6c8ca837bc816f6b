"""Both methods of Wang and Nedic agent by agent, what they converge to, and what they release."""

import itertools

import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.wang_nedic import WangNedic, WangNedicTracking
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph, Network, build_graph

EAVESDROPPER = ThreatModel(name="e")


@pytest.fixture
def directed(unbalanced) -> Network:
    """The edges of both graphs together, which are strongly connected."""
    W = unbalanced.graphs[0].W + unbalanced.graphs[1].W
    return Network((Graph(W / W.sum(dim=0)),))


def nu(k: int) -> float:
    return 0.3 * (1 + 0.1 * k**0.2) / 1.1


@pytest.mark.parametrize("graph", ["path", "erdos-renyi"])
def test_six_rounds_of_the_static_method_equal_it(
    sensors, equal_agent_by_agent, own_gradient, graph
) -> None:
    problem, setting = sensors(graph)
    W = setting.network.at(1).W

    def receive(k, i, own, inbox):
        x, c = own["x"], 1 / (1 + 0.1 * k**0.9)
        pull = sum(W[i, j] * (z - x) for j, z in inbox["x"].items() if j != i)
        return {"x": x + c * pull - 0.05 / (1 + 0.1 * k) * own_gradient(problem, i, x)}

    equal_agent_by_agent(
        WangNedic(noise_scale=0.3, step_size=0.05),
        problem,
        setting,
        6,
        lambda i, x: {"x": x},
        nu,
        lambda k, i, own, draws: {"x": own["x"] + draws["x"]},
        receive,
    )


@pytest.mark.parametrize("graph", ["path", "directed"])
def test_six_rounds_of_the_tracking_method_equal_it(
    sensors, equal_agent_by_agent, own_gradient, directed, graph
) -> None:
    problem, setting = sensors(directed if graph == "directed" else graph, 5)
    W = setting.network.at(1).W
    R, C = W / W.sum(1, keepdim=True), W / W.sum(0)

    def begin(i, x):
        g = own_gradient(problem, i, x)
        return {"x": x, "y": g, "g": g}

    def receive(k, i, own, inbox):
        x, y, c, kept = own["x"], own["y"], 1 / (1 + 0.1 * k**0.9), 1 - 0.2 / (1 + 0.1 * k)
        others = [j for j in inbox["x"] if j != i]
        heard_by = [j for j in range(5) if C[j, i] > 0 and j != i]
        pull = sum(R[i, j] * (inbox["x"][j] - x) for j in others)
        push = sum(C[i, j] * inbox["y"][j] for j in others) - sum(C[j, i] * y for j in heard_by)
        x = x + c * pull - 0.05 / (1 + 0.1 * k) * y
        g = own_gradient(problem, i, x)
        return {"x": x, "y": kept * y + c * push + g - kept * own["g"], "g": g}

    equal_agent_by_agent(
        WangNedicTracking(noise_scale=0.3, step_size=0.05),
        problem,
        setting,
        6,
        begin,
        nu,
        lambda k, i, own, draws: {m: own[m] + draws[m] for m in "xy"},
        receive,
    )


def test_without_noise_agents_disagree_by_steps_over_couplings(sensors, streams) -> None:
    """Where c (I - W) X and l (G - mean G) cancel, to first order in 1 / k."""
    problem, setting = sensors("ring", 5, p=1)
    graph = setting.network.at(1)
    defense = WangNedic(noise_scale=0, step_size=0.3).calibrate(setting)
    state, errors = defense.start(problem.initial(streams), setting), {}
    rounds = (2_000, 8_000)
    for k in range(1, rounds[-1] + 1):
        gradient = problem.gradient(streams, k)
        if k in rounds:
            X, G = state.X, gradient(state.X)
            away = torch.linalg.pinv(torch.eye(5) - graph.W) @ (G - G.mean(dim=0))
            expected = -defense.lam(k) / defense.c(k) * away
            assert (X - X.mean(dim=0) - expected).norm() < 0.02 * expected.norm()
            errors[k] = problem.residual(X).sqrt().item() * defense.c(k) / defense.lam(k)
        state = defense.step(state, k, graph, gradient, Noise(streams, k)).state
    assert errors[8_000] == pytest.approx(errors[2_000], rel=0.05)  # the distance falls as l / c


@pytest.mark.slow
def test_without_noise_trackers_agree_and_keep_their_sum(sensors, streams) -> None:
    """Models then disagree by l a / c^2: less by a / c than under the static method."""
    problem, setting = sensors("ring", 5, p=1)
    graph = setting.network.at(1)
    defense = WangNedicTracking(noise_scale=0, step_size=0.3).calibrate(setting)
    state = defense.start(problem.initial(streams), setting)
    away = torch.linalg.pinv(torch.eye(5) - graph.W)
    for k in range(1, 6_001):
        gradient = problem.gradient(streams, k)
        if k in (3_000, 6_000):
            X, Y, G = state
            ratio = defense.a(k) / defense.c(k)
            pulled = (1 + ratio) * torch.eye(5) - graph.W
            disagree = ratio * torch.linalg.solve(pulled, G - G.mean(dim=0))
            assert (Y - Y.mean(dim=0) - disagree).norm() < 0.02 * disagree.norm()
            expected = -defense.lam(k) / defense.c(k) * away @ (Y - Y.mean(dim=0))
            assert (X - X.mean(dim=0) - expected).norm() < 0.02 * expected.norm()
        state = defense.step(state, k, graph, gradient, Noise(streams, k)).state
        torch.testing.assert_close(state.Y.sum(0), gradient(state.X).sum(0), rtol=0, atol=1e-10)
    assert problem.residual(state.X) < 1e-3 * problem.residual(problem.initial(streams))


def test_noise_grows_as_stated_and_is_fresh_for_each_message(
    sensors, streams, is_fresh_laplace
) -> None:
    problem, setting = sensors()
    defense = WangNedicTracking(noise_scale=0.3)
    state, draws = defense.start(problem.initial(streams, 100), setting), []
    for k in range(1, 21):
        gradient = problem.gradient(streams, k)
        before = state._replace(Y=gradient(state.X)) if k == 1 else state
        played = defense.step(state, k, setting.network.at(1), gradient, Noise(streams, k))
        noise = [played.sent["x"].payload - before.X, played.sent["y"].payload - before.Y]
        draws.append(torch.stack(noise) / nu(k))
        state = played.state
    is_fresh_laplace(torch.stack(draws))


@pytest.mark.parametrize("signs", ["constant", "random"])
@pytest.mark.parametrize("method", [WangNedic, WangNedicTracking])
def test_constant_gradients_attain_the_lower_ends(
    sensors, streams, same_messages, method, signs
) -> None:
    problem, setting = sensors(p=1)
    defense = method(noise_scale=0.3, gradient_distance=0.6)
    moves = defense.moves(12, setting, 2)
    graph, X = setting.network.at(1), problem.initial(streams)
    calls = itertools.count()
    sign = torch.randint(0, 2, (100,), generator=torch.Generator().manual_seed(1)) * 2 - 1

    def flat(X):
        return torch.zeros_like(X)

    def changed(X):
        G = torch.zeros_like(X)
        G[2] = 0.6 * (sign[next(calls)].item() if signs == "random" else 1)
        return G

    one, two = defense.start(X, setting), defense.start(X.clone(), setting)
    for k in range(1, 12):
        one, sent, _ = defense.step(one, k, graph, flat, Noise(streams, k))
        two = defense.step(two, k, graph, changed, same_messages(sent)).state
        for name, (least, most) in moves.items():
            field = name.upper()
            moved = (getattr(one, field) - getattr(two, field)).abs().sum(dim=1)[2].item()
            assert moved <= most[k] * (1 + 1e-9)
            if signs == "constant":
                assert moved == pytest.approx(least[k], rel=1e-9)
        stated = defense.sensitivity(k + 1, setting, "function", 2, {})
        assert {name: s.value for name, s in stated.items()} == {
            name: m.most[k] for name, m in moves.items()
        }


def test_lower_ends_are_the_exact_leak_of_a_constant_gradient(
    sensors, exact_losses, losses, directed
) -> None:
    neighbour = ThreatModel(name="c", kind="curious", agents=(1,))
    for method, graph, adversary in (
        (WangNedic, "path", EAVESDROPPER), (WangNedic, "complete", neighbour),
        (WangNedicTracking, directed, EAVESDROPPER), (WangNedicTracking, "complete", neighbour),
    ):  # fmt: skip
        _, setting = sensors(graph, 5)
        defense = method(noise_scale=0.3, n_rounds=6)
        bracket = defense.mechanism(setting, adversary, 2)
        exact = exact_losses(defense, setting, adversary, 2)
        assert losses(bracket.least) == pytest.approx(exact, rel=1e-9)
        assert (bracket.least == bracket.most) == (method is WangNedic)
    _, setting = sensors("path", 5)
    assert defense.mechanism(setting, neighbour, 2).least == ()


def test_a_change_lasts_as_agents_keep_their_true_models(sensors) -> None:
    """A mixture with its own noisy model would show steps alone: several times less."""
    _, setting = sensors()
    defense = WangNedic(noise_scale=1.0)
    D = defense.moves(400, setting, 0)["x"].most
    assert D[399] > 5 * defense.lam(399)


def test_no_powers_keep_a_budget_for_any_number_of_rounds(sensors) -> None:
    """Losses fall like k^-(v + w - u), and convergence asks for v + w - u < 1/2."""
    _, setting = sensors()
    defense = WangNedic(epsilon=0.7, n_rounds=300).calibrate(setting)
    worst = max(
        epsilon(defense.mechanism(setting, EAVESDROPPER, i).most, 0.0).high for i in range(6)
    )
    assert worst == pytest.approx(0.7, rel=1e-9)
    powers = [i / 20 for i in range(31)]
    allowed = []
    for v, u, w in itertools.product(powers, repeat=3):
        tried = WangNedic(noise_scale=1.0, step_power=v, coupling_power=u, noise_power=w)
        try:
            tried.check_theory(setting)
        except ConfigError:
            continue
        allowed.append(v + w - u)
    assert len(allowed) > 50
    assert max(allowed) < 0.5
    losses = [WangNedic(epsilon=1.0, n_rounds=n).unit_loss(setting) for n in (10_000, 40_000)]
    assert losses[1] > 2 * losses[0]  # of four times as many rounds


def test_powers_and_graphs_outside_the_theory_are_refused(directed, unbalanced) -> None:
    ring, one_way = (
        Setting(network, (1,) * network.n_agents, 2)
        for network in (build_graph("ring", 4), directed)
    )
    with pytest.raises(ConfigError, match="needs an undirected graph"):
        WangNedic(epsilon=1.0).calibrate(one_way)
    WangNedicTracking(epsilon=1.0).calibrate(one_way)
    with pytest.raises(ConfigError, match="does not vary in time"):
        WangNedicTracking(epsilon=1.0).calibrate(Setting(unbalanced, (1,) * 5, 2))
    for powers in (
        {"step_power": 1.1}, {"coupling_power": 1.1}, {"noise_power": 0.4}, {"step_power": 0.95},
    ):  # fmt: skip
        for method in (WangNedic, WangNedicTracking):
            with pytest.raises(ConfigError, match="convergence needs") as refused:
                method(epsilon=1.0, **powers).calibrate(ring)
            assert len(str(refused.value).splitlines()) == 1
            method(epsilon=1.0, allow_outside_theory=True, **powers).calibrate(ring)
