"""DPOP agent by agent, its limit, what it releases, and the shift of its losses."""

import math

import pytest
import torch
from scipy import stats

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dpop import DPOP
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import SensorFusion

FALSE_FAILURE = 1e-9  # of each statistical check here, over fresh seeds
EAVESDROPPER = ThreatModel(name="e")
SCHEDULE = {"step_size": 0.05, "step_decay": 0.8, "noise_decay": 0.9, "epsilon": 0.7}


@pytest.mark.parametrize("radius", [None, 0.5])
@pytest.mark.parametrize("graph", ["path", "erdos-renyi"])
def test_six_rounds_equal_the_method_agent_by_agent(
    sensors, equal_agent_by_agent, own_gradient, graph, radius
) -> None:
    problem, setting = sensors(graph)
    W = setting.network.at(1).W

    def receive(k, i, own, inbox):
        u = sum(W[i, j] * z for j, z in inbox["z"].items())
        x = u - 0.05 * 0.8 ** (k - 1) * own_gradient(problem, i, u)
        return {"x": x if radius is None else torch.clamp(x, -radius, radius)}

    equal_agent_by_agent(
        DPOP(radius=radius, **SCHEDULE),
        problem,
        setting,
        6,
        lambda i, x: {"x": x},
        lambda k: 0.05 * 0.9**k / (0.7 * (0.9 - 0.8)),  # delta c p^k / (epsilon (p - q))
        lambda k, i, own, draws: {"z": own["x"] + draws["z"]},
        receive,
    )


def test_its_mean_model_comes_as_close_as_steps_reach(sensors, streams, residuals) -> None:
    """With one Hessian H for all, the mean's error falls by 1 - alpha_k H in each round."""
    problem, setting = sensors(p=1)
    same = SensorFusion(problem.M[:1].expand_as(problem.M), problem.v, problem.omega)
    defense = DPOP(step_size=0.02, step_decay=0.95, noise_free=True)
    found = residuals(defense, same, setting, 400)
    H = same.H[0].item()
    left = math.prod(1 - 0.02 * 0.95**k * H for k in range(400))
    start = same.initial(streams).mean() - same.optimum
    limit = 6 * (left * start).square().item()  # once all agents agree
    assert found[399].item() == pytest.approx(limit, rel=1e-6)
    assert left > 1e-3  # it stops short of the optimum


def test_its_agents_agree_as_fast_as_steps_or_graph_allow(sensors, streams) -> None:
    problem, setting = sensors()
    graph = setting.network.at(1)
    for decay in (0.5, 0.97):
        defense, apart = DPOP(step_size=0.02, step_decay=decay, noise_free=True), []
        state = defense.start(problem.initial(streams), setting)
        for k in range(1, 121):
            gradient = problem.gradient(streams, k)
            state = defense.step(state, k, graph, gradient, Noise(streams, k)).state
            apart.append((state.X - state.X.mean(dim=0)).norm().item())
        rate = math.log(apart[79] / apart[39]) / 40
        slowest = max(decay, 1 - graph.spectral_gap)
        assert rate == pytest.approx(math.log(slowest), rel=0.1)


def test_its_noise_is_laplace_of_scale_nu(sensors, streams) -> None:
    problem, setting = sensors()
    defense = DPOP(**SCHEDULE)
    state, total, n = defense.start(problem.initial(streams, 200), setting), 0.0, 0
    for k in range(1, 21):
        gradient = problem.gradient(streams, k)
        played = defense.step(state, k, setting.network.at(1), gradient, Noise(streams, k))
        xi = (played.sent["z"].payload - state.X) / (0.05 * 0.9**k / 0.07)
        total, n = total + xi.abs().sum().item(), n + xi.numel()
        state = played.state
    tail = FALSE_FAILURE / 2  # a sum of n standard exponentials
    assert stats.gamma.ppf(tail, n) < total < stats.gamma.isf(tail, n)


@pytest.mark.parametrize("radius", [None, 0.3])
def test_a_change_moves_the_model_by_delta_alpha_or_less(
    sensors, streams, same_messages, radius
) -> None:
    problem, setting = sensors()
    shift = torch.zeros(6, 2, dtype=torch.float64)
    shift[2] = torch.tensor([0.4, -0.7], dtype=torch.float64)
    defense = DPOP(gradient_distance=1.1, radius=radius, **SCHEDULE)
    X, graph, hidden = problem.initial(streams), setting.network.at(1), False
    one, two = defense.start(X, setting), defense.start(X.clone(), setting)
    for k in range(1, 9):
        gradient = problem.gradient(streams, k)
        one, sent, _ = defense.step(one, k, graph, gradient, Noise(streams, k))
        tape = same_messages(sent)
        two = defense.step(two, k, graph, lambda x, g=gradient: g(x) + shift, tape).state
        moved = (one.X - two.X).abs().sum(dim=1)
        stated = defense.sensitivity(k + 1, setting, "function", 2, {})["z"].value
        assert stated == pytest.approx(1.1 * 0.05 * 0.8 ** (k - 1), rel=1e-12)
        assert moved[[0, 1, 3, 4, 5]].max() < 1e-12
        if radius is None:
            assert moved[2].item() == pytest.approx(stated, rel=1e-9)
        else:
            assert moved[2].item() <= stated * (1 + 1e-9)
            hidden |= moved[2].item() < 0.9 * stated
    assert hidden == (radius is not None)


def test_its_bracket_is_the_exact_leak(sensors, exact_losses, losses) -> None:
    defense = DPOP(n_rounds=6, **SCHEDULE)
    neighbour = ThreatModel(name="c", kind="curious", agents=(1,))
    for graph, adversary in (("path", EAVESDROPPER), ("complete", neighbour)):
        _, setting = sensors(graph, 5)
        bracket = defense.mechanism(setting, adversary, 2)
        assert bracket.least == bracket.most
        exact = exact_losses(defense, setting, adversary, 2)
        assert losses(bracket.most) == pytest.approx(exact, rel=1e-9)
    _, setting = sensors("path", 5)
    assert defense.mechanism(setting, neighbour, 2).least == ()  # agent 3 is not heard
    boxed = DPOP(n_rounds=6, radius=1e3, **SCHEDULE).mechanism(setting, EAVESDROPPER, 2)
    assert boxed.least == ()
    assert losses(boxed.most) == pytest.approx(exact, rel=1e-9)
    assert any("edge of their box" in said for said in boxed.assumptions)


def test_its_losses_add_up_to_epsilon_over_p(sensors) -> None:
    _, setting = sensors()
    for align, total in ((False, 1.0 / 0.99), (True, 1.0)):
        defense = DPOP(epsilon=1.0, n_rounds=2_000, align_noise=align)
        spent = epsilon(defense.mechanism(setting, EAVESDROPPER, 2).most, 0.0).high
        assert spent == pytest.approx(total, rel=1e-9)
    printed = [defense.alpha(k) / DPOP(epsilon=1.0).nu(k) for k in range(1, 2_000)]
    assert math.fsum(printed) == pytest.approx(1.0, rel=1e-9)  # as if w(t) covered x(t)


def test_graphs_and_schedules_outside_its_theory_are_refused() -> None:
    ring = Setting(build_graph("ring", 4), (1,) * 4, 2)
    directed = Setting(build_graph("directed-ring", 4), (1,) * 4, 2)
    with pytest.raises(ConfigError, match="DPOP needs an undirected") as refused:
        DPOP().calibrate(directed)
    assert len(str(refused.value).splitlines()) == 1
    DPOP(allow_outside_theory=True).calibrate(directed)
    with pytest.raises(ConfigError, match="0 < q1 < q2 < 1"):
        DPOP(noise_decay=1.0).calibrate(ring)
    with pytest.raises(ValueError, match="must be below noise_decay"):
        DPOP(step_decay=0.99, noise_decay=0.98)
