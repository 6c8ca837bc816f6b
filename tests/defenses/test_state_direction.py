"""DiaDSP and Diff-TV-AB agent by agent, their rate, and what constant steps do to their claim."""

import itertools
import math

import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.state_direction import DiaDSP, DiffTVAB
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import SensorFusion

EAVESDROPPER = ThreatModel(name="e")


def scale(k):
    return 0.3 * 0.8 ** (k - 1)


def reference(problem, setting, own_gradient, alpha):
    """Both methods of one agent, from the messages in its mailbox."""

    def begin(i, x):
        g = own_gradient(problem, i, x)
        return {"x": x, "y": g, "g": g}

    def send(k, i, own, draws):
        return {"x": own["x"] + draws["x"], "y": own["y"] + draws["y"]}

    def receive(k, i, own, inbox):
        W = setting.network.at(k).W
        A, B = W / W.sum(1, keepdim=True), W / W.sum(0)
        x = sum(A[i, j] * message for j, message in inbox["x"].items()) - alpha(k) * own["y"]
        g = own_gradient(problem, i, x)
        y = sum(B[i, j] * message for j, message in inbox["y"].items()) + g - own["g"]
        return {"x": x, "y": y, "g": g}

    return begin, send, receive


@pytest.mark.parametrize("graph", ["path", "erdos-renyi"])
def test_six_rounds_of_diadsp_equal_the_method_agent_by_agent(
    sensors, equal_agent_by_agent, own_gradient, graph
) -> None:
    problem, setting = sensors(graph)
    defense = DiaDSP(noise_scale=0.3, step_size=0.04, noise_decay=0.8)
    begin, send, receive = reference(problem, setting, own_gradient, lambda k: 0.04)
    equal_agent_by_agent(defense, problem, setting, 6, begin, scale, send, receive)


@pytest.mark.parametrize("graph", ["star", "unbalanced"])
def test_six_rounds_of_diff_tv_ab_equal_the_method(
    sensors, equal_agent_by_agent, own_gradient, unbalanced, graph
) -> None:
    problem, setting = sensors(unbalanced if graph == "unbalanced" else graph, 5)
    defense = DiffTVAB(noise_scale=0.3, step_size=0.04, step_decay=0.9, noise_decay=0.8)
    begin, send, receive = reference(
        problem, setting, own_gradient, lambda k: 0.04 * 0.9 ** (k - 1)
    )
    equal_agent_by_agent(defense, problem, setting, 6, begin, scale, send, receive)


def test_without_noise_diadsp_converges_as_push_pull(sensors, residuals, push_pull_rate) -> None:
    problem, setting = sensors()
    problem = SensorFusion(problem.M - 0.5, problem.v, problem.omega)  # no direction is slow
    free = DiaDSP(noise_scale=0, step_size=0.05).calibrate(setting)
    found = residuals(free, problem, setting, 600)
    W = setting.network.at(1).W
    rate = push_pull_rate(problem, W, W, 0.05)
    measured = math.log(found[599] / found[299]) / 600  # of the distance: half of its square's
    assert measured == pytest.approx(math.log(rate), rel=0.03)
    assert found[599] < 1e-6 * found[0]


def test_without_noise_diff_tv_ab_converges_as_its_graphs(sensors, residuals, unbalanced) -> None:
    """The rate is that of the product of two rounds' matrices, [x; y] -> [x; y] each."""
    problem, setting = sensors(unbalanced, 5)
    problem = SensorFusion(problem.M - 0.5, problem.v, problem.omega)
    free = DiffTVAB(noise_scale=0, step_size=0.05).calibrate(setting)
    found = residuals(free, problem, setting, 1_600)
    eye, H = torch.eye(2, dtype=torch.float64), torch.block_diag(*problem.H)
    own, product = (torch.eye(size, dtype=torch.float64) for size in (10, 20))
    for graph in unbalanced.graphs:
        A, B = (torch.kron(g.W, eye) for g in (graph.pull, graph.push))
        blocks = [torch.cat([A, -0.05 * own], 1), torch.cat([H @ (A - own), B - 0.05 * H], 1)]
        product = torch.cat(blocks) @ product
    moduli = torch.linalg.eigvals(product).abs().sort().values
    assert moduli[-2:].sub(1).abs().max() < 1e-7  # the conserved sum of y - H x
    measured = math.log(found[1599] / found[799]) / 800  # of the distance, in two rounds
    assert measured == pytest.approx(math.log(moduli[-3]), rel=0.03)
    assert found[1599] < 1e-6 * found[0]


def test_their_noise_is_laplace_of_scale_nu_and_fresh(sensors, streams, is_fresh_laplace) -> None:
    problem, setting = sensors()
    defense = DiaDSP(noise_scale=0.3, noise_decay=0.9)
    state, draws = defense.start(problem.initial(streams, 100), setting), []
    for k in range(1, 21):
        gradient = problem.gradient(streams, k)
        before = state._replace(Y=gradient(state.X)) if k == 1 else state
        played = defense.step(state, k, setting.network.at(1), gradient, Noise(streams, k))
        noise = [played.sent["x"].payload - before.X, played.sent["y"].payload - before.Y]
        draws.append(torch.stack(noise) / (0.3 * 0.9 ** (k - 1)))
        state = played.state
    is_fresh_laplace(torch.stack(draws))


def moved(defense, problem, setting, streams, same_messages, shift_of, rounds):
    """By how much agent 2's messages of each round differ, given the same messages before."""
    X, graph, found = problem.initial(streams), setting.network.at(1), []
    one, two = defense.start(X, setting), defense.start(X.clone(), setting)
    calls = itertools.count()
    gradient = problem.gradient(streams, 1)

    def changed(X):
        G = gradient(X)
        G[2] += shift_of(next(calls))
        return G

    for k in range(1, rounds + 1):
        if k > 1:
            found.append(
                [(a - b).abs().sum(dim=1)[2].item() for a, b in zip(one, two, strict=True)]
            )
        one, sent, _ = defense.step(one, k, graph, gradient, Noise(streams, k))
        two = defense.step(two, k, graph, changed, same_messages(sent)).state
    return found


def test_a_gradient_that_turns_round_attains_the_bound(sensors, streams, same_messages) -> None:
    """With one unknown. The model of a constant step moves as much in round 20 as in round 3."""
    problem, setting = sensors(p=1)
    L = problem.H[2].item()
    defense = DiaDSP(noise_scale=1.0, gradient_distance=0.6, smoothness=L, step_size=0.01)
    stated = defense.moves(20, setting, 2)
    turned = moved(
        defense, problem, setting, streams, same_messages, lambda call: 0.6 * (-1) ** call, 20
    )
    steady = moved(defense, problem, setting, streams, same_messages, lambda call: 0.6, 20)
    claimed = defense.claimed(20, setting, 2)
    for k, (turn, same) in enumerate(zip(turned, steady, strict=True), start=1):
        assert turn[0] == pytest.approx(stated["x"].most[k], rel=1e-9)
        assert turn[1] == pytest.approx(stated["y"].most[k], rel=1e-9)
        assert same[0] <= claimed["x"][k] * (1 + 1e-9) + 1e-12
        assert same[1] <= claimed["y"][k] * (1 + 1e-9) + 1e-12
    assert turned[-1][1] > 2 * 0.6 > 100 * steady[-1][1]


def test_their_lower_end_is_the_leak_of_constant_gradients(
    sensors, exact_losses, losses, unbalanced
) -> None:
    neighbour = ThreatModel(name="c", kind="curious", agents=(1,))
    for defense, graph, adversary in (
        (DiaDSP(noise_scale=0.3, n_rounds=6), "path", EAVESDROPPER),
        (DiaDSP(noise_scale=0.3, n_rounds=6), "complete", neighbour),
        (DiffTVAB(noise_scale=0.3, n_rounds=6, step_decay=0.9), "star", EAVESDROPPER),
        (DiffTVAB(noise_scale=0.3, n_rounds=6), unbalanced, EAVESDROPPER),
    ):
        _, setting = sensors(graph, 5)
        bracket = defense.mechanism(setting, adversary, 3)
        exact = exact_losses(defense, setting, adversary, 3)
        assert losses(bracket.least) == pytest.approx(exact, rel=1e-9)
        assert sum(losses(bracket.most)) > 5 * sum(exact)
    _, setting = sensors(unbalanced, 5)  # agent 2 sends in turns to 3 and 0
    assert defense.mechanism(setting, neighbour, 2).least == ()


def test_a_budget_is_met_by_the_claimed_losses_alone(
    sensors,
) -> None:
    """Constant steps: losses grow as the noise falls, and no noise keeps any number of rounds."""
    _, setting = sensors()
    spent = []
    for n_rounds in (50, 500):
        defense = DiaDSP(epsilon=1.0, n_rounds=n_rounds).calibrate(setting)
        shape = [defense.nu(k) for k in range(1, n_rounds + 1)]
        claimed = defense.claimed(n_rounds, setting, 0).values()
        total = sum(m / nu for moves in claimed for m, nu in zip(moves, shape, strict=True))
        assert total == pytest.approx(1.0, rel=1e-9)
        bracket = defense.mechanism(setting, EAVESDROPPER, 0)
        low, high = (epsilon(side, 0.0).high for side in (bracket.least, bracket.most))
        assert 0.95 < low < 1 < high
        spent.append(high)
    assert spent[0] > 100
    assert spent[1] > 200 * spent[0]


def test_one_pair_of_functions_loses_far_above_the_claim(sensors) -> None:
    """Exactly the log of two densities, of one agent's messages that an outcome may well take.

    f is 0 and f' has the gradient delta cos(x), so both are 1-smooth. The noise drawn leads the
    true model of the first world to 0 and pi in turn, where the change of the gradient is delta
    and -delta; every noise below has a positive density in both worlds.
    """
    n_rounds, alpha = 30, 0.01
    _, setting = sensors("complete", 3)
    defense = DiaDSP(epsilon=1.0, n_rounds=n_rounds, step_size=alpha).calibrate(setting)
    nu = [defense.nu(k) for k in range(1, n_rounds + 1)]

    def change(x):
        return math.cos(x)

    x, y, x2, y2 = 0.0, 0.0, 0.0, change(0.0)
    loss = 0.0
    for k in range(n_rounds):
        away_x, away_y = math.copysign(50, x - x2), math.copysign(50, y - y2)
        for true, other, away in ((x, x2, away_x), (y, y2, away_y)):
            noise, noise2 = away, true + away - other
            loss += (abs(noise2) - abs(noise)) / nu[k]  # log of the first density over the second
        place = math.pi * ((k + 1) % 2)  # what the mixture of all messages is led to
        next_x, next_x2 = place - alpha * y, place - alpha * y2
        mixed_y = 0.0
        y2 = mixed_y + change(next_x2) - change(x2)
        x, y, x2 = next_x, mixed_y, next_x2
    bracket = defense.mechanism(setting, EAVESDROPPER, 0)
    assert 50 < loss <= epsilon(bracket.most, 0.0).high


PUBLISHED = (  # Algorithm 1's epsilon, gamma, q1 in Xie, Liu, Chai; Diff-TV-AB's own epsilon there
    (10.0, 0.002, 0.97, 102.40),
    (1.0, 0.001, 0.97, 20.34),
    (0.1, 0.001, 0.92, 7.12),
)


def test_printed_budgets_of_diff_tv_ab_are_claimed_losses() -> None:
    """They belong to falling epsilons; what adjacent functions may lose in as many rounds is not
    near them."""
    setting = Setting(build_graph("complete", 3), (1,) * 3, 2)
    for eps, gamma, q1, printed in PUBLISHED:
        nu_1 = gamma * 0.99 / (eps * (0.99 - q1))
        defense = DiffTVAB(
            step_size=gamma, step_decay=q1, noise_scale=nu_1, smoothness=2.85, n_rounds=1000
        ).calibrate(setting)
        claimed = defense.claimed(1000, setting, 0).values()
        nu = [defense.nu(k) for k in range(1, 1001)]
        total = sum(m / scale for moves in claimed for m, scale in zip(moves, nu, strict=True))
        assert round(total, 2) == printed
        bracket = defense.mechanism(setting, EAVESDROPPER, 0)
        low, high = (epsilon(side, 0.0).high for side in (bracket.least, bracket.most))
        assert 0.98 * printed < low < printed
        assert high > 1e6 * printed


def test_steps_graphs_and_noise_outside_the_theory_are_refused(unbalanced) -> None:
    ring = Setting(build_graph("ring", 4), (1,) * 4, 2)
    varying = Setting(unbalanced, (1,) * 5, 2)
    assert DiffTVAB(epsilon=1.0).calibrate(varying).noise_scale is not None
    with pytest.raises(ConfigError, match="needs an undirected graph"):
        DiaDSP(epsilon=1.0).calibrate(varying)
    for method in (DiaDSP, DiffTVAB):
        with pytest.raises(ConfigError, match="noise must decay, got 1"):
            method(epsilon=1.0, noise_decay=1.0).calibrate(ring)
        with pytest.raises(ConfigError, match=r"step_size below .* = 0.04925, got 0.05") as refused:
            method(epsilon=1.0, step_size=0.05, smoothness=10.0).calibrate(ring)
        assert len(str(refused.value).splitlines()) == 1
        method(epsilon=1.0, step_size=0.05, smoothness=10.0, allow_outside_theory=True).calibrate(
            ring
        )
    DiffTVAB(epsilon=1.0, step_size=0.05, smoothness=10.0, step_decay=0.9).calibrate(ring)


@pytest.mark.parametrize("factor, grows", [(0.99, False), (1.01, True)])
def test_the_bound_on_steps_is_where_losses_stop_falling(factor, grows) -> None:
    q, L = 0.9, 4.0
    setting = Setting(build_graph("ring", 4), (1,) * 4, 1)
    step = factor * q**2 / (L * (q + 1))
    defense = DiaDSP(noise_scale=1.0, noise_decay=q, smoothness=L, step_size=step)
    y = defense.claimed(400, setting, 0)["y"]
    assert (y[-1] / defense.nu(400) > y[199] / defense.nu(200)) == grows
