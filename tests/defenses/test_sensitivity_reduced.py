"""Algorithm 1 of Xie, Liu and Chai against its pseudo-code, its theory, and the exact moments."""

import math

import pytest
import torch
from scipy import stats

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.sensitivity_reduced import SensitivityReduced
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import SensorFusion

FALSE_FAILURE = 1e-9  # of each statistical check here, over fresh seeds
EAVESDROPPER = ThreatModel(name="e")


def sensors(streams, n_agents=6, trials=None, p=2):
    """A problem on an irregular connected graph."""
    network = build_graph(graph_options("erdos-renyi", p=0.5), n_agents, streams.numpy("graph"))
    degrees = network.at(1).senders.bincount()
    assert degrees.min() < degrees.max()
    problem = SensorFusion.draw(streams, n_agents, p=p, trials=trials)
    return problem, Setting(network, (1,) * n_agents, p)


def own_gradient(problem, i, x, trial=()):
    """Of agent i alone, from its own measurements."""
    M, v = problem.M[trial][i], problem.v[trial][i]
    return -2 * M.T @ (v - M @ x) + 2 * problem.omega[i] * x


def pseudo_code_round(problem, defense, W, k, x, y, xi, trial):
    """Algorithm 1 at each agent, from what is in its mailbox."""
    n, alpha = len(x), defense.step_size * defense.step_decay ** (k - 1)
    mailbox = [{} for _ in range(n)]
    for i in range(n):
        z_i = x[i] + xi[i]  # 1
        for j in range(n):
            if W[i, j] > 0:
                mailbox[j][i] = z_i  # 2
    for i in range(n):
        z_bar = sum(W[i, j] * z_j for j, z_j in mailbox[i].items())  # 4a
        z_i = mailbox[i][i]
        y[i] = y[i] + defense.correction * (z_i - z_bar)  # 4b
        x[i] = z_bar - alpha * (y[i] + own_gradient(problem, i, z_i, trial))  # 4c


@pytest.mark.parametrize("trials", [None, 3])
def test_six_rounds_equal_the_pseudo_code_agent_by_agent(streams, trials) -> None:
    problem, setting = sensors(streams, trials=trials)
    defense = SensitivityReduced(
        step_size=0.05, correction=6.0, step_decay=0.8, noise_decay=0.9, epsilon=0.7
    )
    state = defense.start(problem.initial(streams, trials), setting)
    cases = [()] if trials is None else [(t,) for t in range(trials)]
    x = {trial: list(state.X[trial].clone()) for trial in cases}
    y = {trial: [torch.zeros(2, dtype=torch.float64)] * 6 for trial in cases}
    graph = setting.network.at(1)
    for k in range(1, 7):
        nu = 0.05 * 1.0 * 0.9 / (0.7 * (0.9 - 0.8)) * 0.9 ** (k - 1)  # (5)
        xi = Noise(streams, k).laplace("z", nu, state.X)
        for trial in cases:
            args = problem, defense, graph.W, k, x[trial], y[trial], xi[trial], trial
            pseudo_code_round(*args)
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, graph, gradient, Noise(streams, k)).state
    for trial in cases:
        torch.testing.assert_close(state.X[trial], torch.stack(x[trial]), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(state.Y[trial], torch.stack(y[trial]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("eps, q1, q2", [(0.1, 0.92, 0.99), (1.0, 0.97, 0.99), (10.0, 0.5, 0.6)])
def test_losses_add_up_to_epsilon_as_printed_and_more_as_run(eps, q1, q2) -> None:
    paper = SensitivityReduced(epsilon=eps, step_decay=q1, noise_decay=q2, gradient_distance=3.0)
    aligned = paper.model_copy(update={"align_noise": True})
    K = range(1, round(60 / math.log(q2 / q1)))  # what is left out is below exp(-59)
    printed = math.fsum(3.0 * paper.alpha(k) / paper.nu(k) for k in K)
    run = math.fsum(3.0 * paper.alpha(k) / paper.nu(k + 1) for k in K)
    repaired = math.fsum(3.0 * aligned.alpha(k) / aligned.nu(k + 1) for k in K)
    assert printed == pytest.approx(eps, rel=1e-9)  # (12)
    assert run == pytest.approx(eps / q2, rel=1e-9)
    assert repaired == pytest.approx(eps, rel=1e-9)


def test_declared_releases_account_to_epsilon_over_q2(streams) -> None:
    _, setting = sensors(streams)
    for align, expected in ((False, 1.0 / 0.99), (True, 1.0)):
        defense = SensitivityReduced(epsilon=1.0, n_rounds=1_000, align_noise=align)
        bracket = defense.mechanism(setting, EAVESDROPPER, 2)
        assert len(bracket.most) == 999  # z(1) shows the initial model only
        assert bracket.least == bracket.most
        missing = expected * (0.97 / 0.99) ** 999
        assert epsilon(bracket.most, 0.0).high == pytest.approx(expected - missing, rel=1e-9)
        assert "function adjacency" in bracket.assumptions[0]
    assert defense.model_copy(update={"n_rounds": 1}).mechanism(setting, EAVESDROPPER, 0).most == ()
    twin = defense.without_noise().mechanism(setting, EAVESDROPPER, 2)
    assert {release.noise_multiplier for release in twin.least} == {0.0}


def test_rounds_beyond_floating_point_release_nothing() -> None:
    setting = Setting(build_graph("complete", 3), (1,) * 3, 2)
    defense = SensitivityReduced(step_decay=0.5, noise_decay=0.6, epsilon=2.0, n_rounds=3_000)
    releases = defense.mechanism(setting, EAVESDROPPER, 0).most
    assert 1_000 < len(releases) < 1_100
    assert epsilon(releases, 0.0).high == pytest.approx(2.0 / 0.6, rel=1e-9)


def test_who_misses_a_neighbour_is_bounded_from_above_only() -> None:
    setting = Setting(build_graph("path", 5), (1,) * 5, 2)
    defense = SensitivityReduced(n_rounds=10)
    curious = ThreatModel(name="c", kind="curious", agents=(1,))
    colluding = ThreatModel(name="s", kind="colluding", agents=(1, 3))
    assert defense.mechanism(setting, curious, 2).least == ()  # agent 3 is not heard
    assert len(defense.mechanism(setting, curious, 2).most) == 9
    assert len(defense.mechanism(setting, colluding, 2).least) == 9
    assert len(defense.mechanism(setting, curious, 0).least) == 9  # its only neighbour


class SharedObservations(Noise):
    """Draws what makes the second world send exactly what the first one sent."""

    def __init__(self, Z) -> None:
        self.Z = Z

    def laplace(self, message, scale, like):
        return self.Z - like


def test_a_change_of_v_moves_the_model_by_delta_alpha(streams) -> None:
    """Theorem 4.5, attained in every round: Definition 3 compares worlds with the same messages."""
    problem, setting = sensors(streams)
    v = problem.v.clone()
    v[2] += torch.tensor([0.3, -0.8, 0.5])
    other = SensorFusion(problem.M, v, problem.omega)
    delta = (2 * problem.M[2].T @ (v[2] - problem.v[2])).abs().sum().item()
    defense = SensitivityReduced(step_size=0.05, correction=6.0, step_decay=0.8, noise_decay=0.9)
    X = problem.initial(streams)
    one, two = defense.start(X, setting), defense.start(X.clone(), setting)
    graph = setting.network.at(1)
    for k in range(1, 9):
        gradient, changed = problem.gradient(streams, k), other.gradient(streams, k)
        one, sent, _ = defense.step(one, k, graph, gradient, Noise(streams, k))
        tape = SharedObservations(sent["z"].payload)
        two, same, _ = defense.step(two, k, graph, changed, tape)
        torch.testing.assert_close(same["z"].payload, sent["z"].payload, rtol=0, atol=1e-13)
        moved = (one.X - two.X).abs().sum(dim=1)
        assert moved[2].item() == pytest.approx(delta * defense.alpha(k), rel=1e-9)
        assert moved[[0, 1, 3, 4, 5]].max() < 1e-12
        torch.testing.assert_close(one.Y, two.Y, rtol=0, atol=1e-12)


def test_trackers_sum_to_zero_and_are_never_sent(streams) -> None:
    problem, setting = sensors(streams)
    defense = SensitivityReduced(step_size=0.05, correction=6.0, epsilon=0.1)
    state = defense.start(problem.initial(streams), setting)
    for k in range(1, 401):
        state, sent, private = defense.step(
            state, k, setting.network.at(k), problem.gradient(streams, k), Noise(streams, k)
        )
    assert state.Y.abs().max() > 0.1
    assert state.Y.sum(dim=0).abs().max() < 1e-11 * state.Y.abs().max()
    assert sent.keys() == {"z"}
    Z = sent["z"].payload
    torch.testing.assert_close(private["gradient"], problem.gradient(streams, 1)(Z))


def test_noise_is_laplace_of_scale_nu_and_independent(
    streams,
) -> None:
    problem, setting = sensors(streams)
    trials, rounds = 100, 40
    defense = SensitivityReduced(step_size=0.05, correction=6.0)
    state = defense.start(problem.initial(streams, trials), setting)
    draws = []
    for k in range(1, rounds + 1):
        _, sent, _ = defense.step(
            state, k, setting.network.at(k), problem.gradient(streams, k), Noise(streams, k)
        )
        draws.append((sent["z"].payload - state.X) / defense.nu(k))
    xi = torch.stack(draws)  # [rounds, trials, agents, 2], Laplace(1) if all is right
    n, tail = xi.numel(), FALSE_FAILURE / 2
    total = xi.abs().sum().item()  # a sum of n standard exponentials
    assert stats.gamma.ppf(tail, n) < total < stats.gamma.isf(tail, n)
    assert stats.binom.ppf(tail, n, 0.5) < (xi > 0).sum().item() < stats.binom.isf(tail, n, 0.5)
    assert stats.kstest(xi.flatten(), "laplace").pvalue > FALSE_FAILURE
    limit = 1.02 * stats.norm.isf(tail) * 2  # Var(product) = 4; 2%: normal only in the limit
    for axis in range(4):
        products = (xi * xi.roll(1, dims=axis)).sum().abs().item()
        assert products < limit * math.sqrt(n) * (2 if xi.shape[axis] == 2 else 1)


def test_without_noise_and_decay_it_reaches_the_exact_optimum(streams) -> None:
    problem, setting = sensors(streams, trials=5)
    defense = SensitivityReduced(
        step_size=0.05, correction=6.0, step_decay=1.0, noise_decay=1.0, noise_free=True
    )
    state = defense.start(problem.initial(streams, 5), setting)
    for k in range(1, 3_001):
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
    assert problem.residual(state.X).max() < 1e-22


def moments(problem, defense, W, rounds):
    """Exact mean residual after each round: the dynamics are linear, the noise has variance 2 nu^2.

    For one unknown; the state is s = (x, y), s <- A s + B xi + a.
    """
    n, eye = len(W), torch.eye(len(W), dtype=torch.float64)
    H, c, beta = torch.diag(problem.H.flatten()), problem.c.flatten(), defense.correction
    mean, cov = torch.zeros(2 * n, dtype=torch.float64), torch.zeros(2 * n, 2 * n).double()
    cov[:n, :n] = eye  # standard normal initial models
    expected = []
    for k in range(1, rounds + 1):
        alpha, nu = defense.alpha(k), defense.nu(k)
        y_of_z = beta * (eye - W)
        x_of_z = W - alpha * (y_of_z + H)
        A = torch.cat([torch.cat([x_of_z, -alpha * eye], 1), torch.cat([y_of_z, eye], 1)])
        B = torch.cat([x_of_z, y_of_z])
        mean = A @ mean
        mean[:n] += alpha * c
        cov = A @ cov @ A.T + 2 * nu**2 * B @ B.T
        off = mean[:n] - problem.optimum
        expected.append((off.square().sum() + cov[:n, :n].trace()).item())
    return expected


@pytest.mark.parametrize("eps", [0.1, 1.0])
def test_mean_residual_is_the_one_of_the_exact_moments(streams, eps) -> None:
    problem, setting = sensors(streams, p=1)
    defense = SensitivityReduced(
        step_size=0.05, correction=6.0, epsilon=eps, step_decay=0.9, noise_decay=0.95
    )
    trials, rounds = 4_000, 80
    state = defense.start(problem.initial(streams, trials), setting)
    expected = moments(problem, defense, setting.network.at(1).W, rounds)
    checked = (1, 10, 40, rounds)
    for k in range(1, rounds + 1):
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
        if k in checked:
            residual = problem.residual(state.X)
            error = (residual.std() / math.sqrt(trials)).item()
            tail = stats.norm.isf(FALSE_FAILURE / 2 / len(checked))
            # 5%: a mean of 4,000 squares of Laplace sums is normal only in the limit
            assert abs(residual.mean().item() - expected[k - 1]) < 1.05 * tail * error


@pytest.mark.parametrize("lazy", [False, True])
def test_a_ring_of_six_diverges_at_gamma_beta_one(streams, lazy) -> None:
    """The paper's gamma beta <= 1 does not exclude it: the smallest eigenvalue of W is -1/3."""
    problem = SensorFusion.draw(streams, 6)
    setting = Setting(build_graph(graph_options("ring", lazy=lazy), 6), (1,) * 6, 2)
    defense = SensitivityReduced(step_size=0.01, correction=100.0, noise_free=True)
    if lazy:
        assert defense.calibrate(setting) is defense
    else:
        with pytest.raises(ConfigError, match=r"2 \(1 \+ l\) / \(1 - l\) = 1 for"):
            defense.calibrate(setting)
        defense.model_copy(update={"allow_outside_theory": True}).calibrate(setting)
    # gamma beta = 1 is the bound itself for W alone; the gradient pushes the mode beyond it.
    constant = defense.model_copy(update={"step_decay": 1.0, "noise_decay": 1.0})
    state = constant.start(problem.initial(streams), setting)
    for k in range(1, 1_001):
        gradient = problem.gradient(streams, k)
        state = constant.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
    residual = problem.residual(state.X).item()
    assert residual < 1.0 if lazy else residual > 1e6


@pytest.mark.parametrize("smallest", [-0.9, -1 / 3, 0.0, 0.5])
def test_the_stability_bound_is_where_modes_reach_the_circle(smallest) -> None:
    bound = 2 * (1 + smallest) / (1 - smallest)
    for factor, stable in ((0.999, True), (1.001, False)):
        for eigenvalue in (smallest, (1 + smallest) / 2, 0.99):  # the smallest decides
            middle = 1 + eigenvalue - factor * bound * (1 - eigenvalue)
            companion = torch.tensor([[middle, -eigenvalue], [1.0, 0.0]], dtype=torch.float64)
            radius = torch.linalg.eigvals(companion).abs().max().item()
            assert radius < 1 or (not stable and eigenvalue == smallest)
            if eigenvalue == smallest:
                assert (radius < 1) == stable


@pytest.mark.parametrize("graph", ["directed-ring", "exponential"])
def test_graphs_outside_assumption_2_are_refused(graph) -> None:
    setting = Setting(build_graph(graph, 6), (1,) * 6, 2)
    with pytest.raises(ConfigError, match="Assumption 2"):
        SensitivityReduced().calibrate(setting)
    SensitivityReduced(allow_outside_theory=True).calibrate(setting)


def test_parameters_outside_5_are_refused() -> None:
    setting = Setting(build_graph("complete", 3), (1,) * 3, 2)
    with pytest.raises(ValueError, match="must be below noise_decay"):
        SensitivityReduced(step_decay=0.99, noise_decay=0.99)
    with pytest.raises(ConfigError, match=r"0 < q1 < q2 < 1, got q1=0.97 and q2=1"):
        SensitivityReduced(noise_decay=1.0).calibrate(setting)
    with pytest.raises(ConfigError, match=r"gamma beta <= 1, got 0.002 \* 1000 = 2"):
        SensitivityReduced(step_size=0.002).calibrate(setting)
    SensitivityReduced(step_size=0.002, allow_outside_theory=True).calibrate(setting)
    assert SensitivityReduced().calibrate(setting) == SensitivityReduced()
