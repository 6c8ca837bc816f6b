"""DGD and DP-DGD against their equations agent by agent, and Proposition 1 measured."""

import math

import pytest
import torch
from scipy import stats

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dgd import DGD, DPDGD
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import QuadraticGradient, SensorFusion

FALSE_FAILURE = 1e-9  # of the statistical check here, over fresh seeds
EAVESDROPPER = ThreatModel(name="e")
SCHEDULE = {"step_size": 0.05, "step_decay": 0.8, "noise_decay": 0.9, "epsilon": 0.7}
VARIANTS = ["noisy", "true-consensus", "true-gradient"]


def sensors(streams, trials=None, p=2):
    """A problem on an irregular connected graph of six agents."""
    network = build_graph(graph_options("erdos-renyi", p=0.5), 6, streams.numpy("graph"))
    degrees = network.at(1).senders.bincount()
    assert degrees.min() < degrees.max()
    return SensorFusion.draw(streams, 6, p=p, trials=trials), Setting(network, (1,) * 6, p)


def own_gradient(problem, i, x):
    M, v = problem.M[i], problem.v[i]
    return -2 * M.T @ (v - M @ x) + 2 * problem.omega[i] * x


def play(defense, problem, setting, streams, rounds, trials=None):
    state = defense.start(problem.initial(streams, trials), setting)
    for k in range(1, rounds + 1):
        gradient = problem.gradient(streams, k)
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
    return state.X


def test_five_rounds_of_dgd_equal_6_agent_by_agent(streams) -> None:
    problem, setting = sensors(streams)
    W = setting.network.at(1).W
    x = list(problem.initial(streams))
    for _ in range(5):
        received = [{j: x[j] for j in range(6) if W[i, j] > 0} for i in range(6)]
        x = [
            sum(W[i, j] * x_j for j, x_j in received[i].items())
            - 0.03 * own_gradient(problem, i, x[i])
            for i in range(6)
        ]
    X = play(DGD(step_size=0.03), problem, setting, streams, 5)
    torch.testing.assert_close(X, torch.stack(x), rtol=1e-12, atol=1e-13)


def test_dgd_stops_at_its_own_fixed_point(streams) -> None:
    problem, setting = sensors(streams)
    W, alpha = setting.network.at(1).W, 0.03
    system = torch.kron(torch.eye(6) - W, torch.eye(2)) + alpha * torch.block_diag(*problem.H)
    fixed = torch.linalg.solve(system, alpha * problem.c.flatten()).view(6, 2)
    X = play(DGD(step_size=alpha), problem, setting, streams, 2_000)
    torch.testing.assert_close(X, fixed, rtol=1e-10, atol=1e-12)
    assert problem.residual(X) > 1e-4


def test_dgd_declares_no_noise_to_who_reads_a_link(streams) -> None:
    setting = Setting(build_graph("path", 5), (1,) * 5, 2)
    bracket = DGD(n_rounds=9).mechanism(setting, EAVESDROPPER, 2)
    assert bracket.least == bracket.most
    assert (bracket.least[0].noise_multiplier, bracket.least[0].count) == (0.0, 8)
    far = ThreatModel(name="c", kind="curious", agents=(0,))
    assert DGD(n_rounds=9).mechanism(setting, far, 3).least == ()
    assert DGD(n_rounds=1).mechanism(setting, EAVESDROPPER, 2).most == ()
    assert DGD().without_noise() == DGD()
    with pytest.raises(ConfigError, match="Assumption 2"):
        DGD().calibrate(Setting(build_graph("directed-ring", 4), (1,) * 4, 2))


def pseudo_code_round(problem, defense, W, k, x, xi):
    alpha, n = 0.05 * 0.8 ** (k - 1), len(x)
    z = [x[i] + xi[i] for i in range(n)]
    after = []
    for i in range(n):
        others = sum(W[i, j] * z[j] for j in range(n) if j != i and W[i, j] > 0)
        own = x[i] if defense.variant == "true-consensus" else z[i]
        at = x[i] if defense.variant == "true-gradient" else z[i]
        after.append(others + W[i, i] * own - alpha * own_gradient(problem, i, at))
    return after


@pytest.mark.parametrize("variant", VARIANTS)
def test_six_rounds_of_dp_dgd_equal_its_equation_agent_by_agent(streams, variant) -> None:
    problem, setting = sensors(streams)
    defense = DPDGD(variant=variant, smoothness=10.0, **SCHEDULE)
    trials = 3
    x = [list(X) for X in problem.initial(streams, trials)]
    like = problem.initial(streams, trials)
    for k in range(1, 7):
        nu = 0.05 * 0.9 / (0.7 * (0.9 - 0.8)) * 0.9 ** (k - 1)  # (5)
        xi = Noise(streams, k).laplace("z", nu, like)
        W = setting.network.at(1).W
        x = [pseudo_code_round(problem, defense, W, k, x[t], xi[t]) for t in range(trials)]
    X = play(defense, problem, setting, streams, 6, trials)
    expected = torch.stack([torch.stack(rows) for rows in x])
    torch.testing.assert_close(X, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_noise_and_decay_every_variant_is_dgd(streams, variant) -> None:
    problem, setting = sensors(streams)
    plain = {"step_size": 0.03, "step_decay": 1.0, "noise_decay": 1.0, "noise_free": True}
    X = play(DPDGD(variant=variant, **plain), problem, setting, streams, 20)
    expected = play(DGD(step_size=0.03), problem, setting, streams, 20)
    torch.testing.assert_close(X, expected, rtol=1e-12, atol=1e-14)


class SharedObservations(Noise):
    """Draws what makes the second world send exactly what the first one sent."""

    def __init__(self, Z) -> None:
        self.Z = Z

    def laplace(self, message, scale, like):
        return self.Z - like


class Shifted(QuadraticGradient):
    """The gradients with agent 2's shifted by ``shift`` [d]."""

    shift: torch.Tensor

    def __call__(self, X, holders=None):
        G = super().__call__(X, holders)
        G[..., 2, :] += self.shift
        return G


def measured_sensitivities(defense, problem, setting, streams, shift_of, rounds=12):
    """L1 distance between two worlds after each round, given the same messages (Definition 3)."""
    X, graph = problem.initial(streams), setting.network.at(1)
    one, two = defense.start(X, setting), defense.start(X.clone(), setting)
    distances = []
    for k in range(1, rounds + 1):
        changed = Shifted(problem.H, problem.c)
        object.__setattr__(changed, "shift", shift_of(k))
        one, sent, _ = defense.step(one, k, graph, problem.gradient(streams, k), Noise(streams, k))
        two = defense.step(two, k, graph, changed, SharedObservations(sent["z"].payload)).state
        apart = (one.X - two.X).abs().sum(dim=1)
        assert apart[[0, 1, 3, 4, 5]].max() < 1e-12  # the others follow from the messages
        distances.append(apart[2].item())
    return distances


@pytest.mark.parametrize("variant", ["noisy", "true-consensus"])
def test_sensitivities_of_45_and_47_are_attained_in_every_round(streams, variant) -> None:
    problem, setting = sensors(streams)
    shift = torch.tensor([0.4, -0.7], dtype=torch.float64)
    delta = shift.abs().sum().item()
    defense = DPDGD(variant=variant, gradient_distance=delta, **SCHEDULE)
    measured = measured_sensitivities(defense, problem, setting, streams, lambda k: shift)
    W_ii, Delta = setting.network.at(1).W[2, 2].item(), 0.0
    for k, found in enumerate(measured, start=1):
        carried = W_ii * Delta if variant == "true-consensus" else 0.0
        Delta = carried + delta * 0.05 * 0.8 ** (k - 1)
        assert found == pytest.approx(Delta, rel=1e-9)
    assert defense.sensitivities(12, setting, 2) == pytest.approx(measured, rel=1e-9)


def test_sensitivity_of_48_is_attained_by_alternating_changes(streams) -> None:
    """With one unknown the recursion is exact if the gradient's change turns round each time.

    A constant change moves the model by less than under (45): Proposition 1 (ii) compares bounds.
    """
    problem, setting = sensors(streams, p=1)
    L = problem.H[2].item()
    defense = DPDGD(variant="true-gradient", smoothness=L, gradient_distance=0.6, **SCHEDULE)
    bound = defense.sensitivities(12, setting, 2)

    def turning(k):
        return torch.tensor([0.6 * (-1) ** k], dtype=torch.float64)

    def constant(k):
        return torch.tensor([0.6], dtype=torch.float64)

    turned = measured_sensitivities(defense, problem, setting, streams, turning)
    steady = measured_sensitivities(defense, problem, setting, streams, constant)
    below_45 = [0.6 * defense.alpha(k) for k in range(1, 13)]
    assert turned == pytest.approx(bound, rel=1e-9)
    assert all(s < b for s, b in zip(steady[1:], below_45[1:], strict=True))


def test_bound_of_48_has_the_dimension_under_the_root(streams) -> None:
    problem, setting = sensors(streams)
    L = torch.linalg.eigvalsh(problem.H[2]).max().item()
    defense = DPDGD(variant="true-gradient", smoothness=L, gradient_distance=0.6, **SCHEDULE)
    bound = defense.sensitivities(12, setting, 2)
    Delta = 0.0
    for k in range(1, 13):
        Delta = (math.sqrt(2) * L * Delta + 0.6) * 0.05 * 0.8 ** (k - 1)
        assert bound[k - 1] == pytest.approx(Delta, rel=1e-12)
    for sign in ([1, 1], [1, -1], [-1, 1]):

        def turning(k, sign=sign):
            return (-1) ** k * 0.3 * torch.tensor(sign, dtype=torch.float64)

        measured = measured_sensitivities(defense, problem, setting, streams, turning)
        assert all(m <= b * (1 + 1e-9) for m, b in zip(measured, bound, strict=True))


def test_sensitive_variants_spend_more_than_epsilon_of_45(streams) -> None:
    _, setting = sensors(streams)

    def spent(variant, **options):
        defense = DPDGD(variant=variant, smoothness=10.0, n_rounds=600, **(SCHEDULE | options))
        bracket = defense.mechanism(setting, EAVESDROPPER, 2)
        return [epsilon(side, 0.0).high for side in (bracket.least, bracket.most)]

    assert spent("noisy") == pytest.approx([0.7 / 0.9] * 2, rel=1e-9)  # epsilon / q2
    assert spent("noisy", align_noise=True) == pytest.approx([0.7] * 2, rel=1e-9)
    least, most = spent("true-consensus")
    assert least == most > 1.2 * 0.7 / 0.9
    least, most = spent("true-gradient")
    assert least == pytest.approx(0.7 / 0.9, rel=1e-9)
    assert most > 1.2 * least


def test_noise_of_dp_dgd_has_scale_nu(streams) -> None:
    problem, setting = sensors(streams)
    defense = DPDGD(**SCHEDULE)
    state = defense.start(problem.initial(streams, 200), setting)
    total, n = 0.0, 0
    for k in range(1, 21):
        gradient = problem.gradient(streams, k)
        sent = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).sent
        xi = (sent["z"].payload - state.X) / defense.nu(k)
        total, n = total + xi.abs().sum().item(), n + xi.numel()
    tail = FALSE_FAILURE / 2  # a sum of n standard exponentials
    assert stats.gamma.ppf(tail, n) < total < stats.gamma.isf(tail, n)


def test_schedules_and_graphs_outside_the_theory_are_refused() -> None:
    setting = Setting(build_graph("directed-ring", 4), (1,) * 4, 2)
    with pytest.raises(ConfigError, match="Assumption 2"):
        DPDGD().calibrate(setting)
    DPDGD(allow_outside_theory=True).calibrate(setting)
    with pytest.raises(ConfigError, match="0 < q1 < q2 < 1"):
        DPDGD(noise_decay=1.0).calibrate(Setting(build_graph("ring", 4), (1,) * 4, 2))
    with pytest.raises(ValueError, match="must be below noise_decay"):
        DPDGD(step_decay=0.99, noise_decay=0.98)
    with pytest.raises(ValueError, match="needs smoothness"):
        DPDGD(variant="true-gradient")
