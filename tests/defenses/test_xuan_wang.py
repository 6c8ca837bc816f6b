"""Robust gradient tracking of Xuan and Wang agent by agent, its rate, and what it releases."""

import itertools
import math

import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.xuan_wang import XuanWang
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.training.sensor_fusion import SensorFusion

EAVESDROPPER = ThreatModel(name="e")
SCHEDULE = {"step_size": 0.05, "step_decay": 0.8, "noise_decay": 0.9, "coupling": 0.6}


@pytest.mark.parametrize("graph", ["path", "erdos-renyi"])
def test_six_rounds_equal_the_method_agent_by_agent(
    sensors, equal_agent_by_agent, own_gradient, graph
) -> None:
    problem, setting = sensors(graph)
    W = setting.network.at(1).W

    def receive(k, i, own, inbox):
        pull = {m: sum(W[i, j] * (z - own[m]) for j, z in inbox[m].items() if j != i) for m in "xs"}
        s = own["s"] + 0.6 * pull["s"] + 0.05 * 0.8 ** (k - 1) * own_gradient(problem, i, own["x"])
        return {"x": own["x"] + 0.6 * pull["x"] - (s - own["s"]), "s": s}

    equal_agent_by_agent(
        XuanWang(noise_scale=0.3, **SCHEDULE),
        problem,
        setting,
        6,
        lambda i, x: {"x": x, "s": torch.zeros_like(x)},
        lambda k: 0.3 * 0.9 ** (k - 1),
        lambda k, i, own, draws: {m: own[m] + draws[m] for m in "xs"},
        receive,
    )


def test_without_noise_it_converges_at_the_push_pull_rate(
    sensors, residuals, push_pull_rate
) -> None:
    problem, setting = sensors()
    problem = SensorFusion(problem.M - 0.5, problem.v, problem.omega)  # no direction is slow
    free = XuanWang(noise_scale=0, step_size=0.05, step_decay=1).calibrate(setting)
    found = residuals(free, problem, setting, 600)
    W = (setting.network.at(1).W + torch.eye(6)) / 2  # c = 1/2
    measured = math.log(found[599] / found[299]) / 600  # of the distance: half of its square's
    assert measured == pytest.approx(math.log(push_pull_rate(problem, W, W, 0.05)), rel=0.03)
    assert found[599] < 1e-6 * found[0]


def test_its_noise_is_laplace_of_scale_nu_and_fresh(sensors, streams, is_fresh_laplace) -> None:
    problem, setting = sensors()
    defense = XuanWang(noise_scale=0.3, **SCHEDULE)
    state, draws = defense.start(problem.initial(streams, 100), setting), []
    for k in range(1, 21):
        gradient = problem.gradient(streams, k)
        played = defense.step(state, k, setting.network.at(1), gradient, Noise(streams, k))
        noise = [played.sent["x"].payload - state.X, played.sent["s"].payload - state.S]
        draws.append(torch.stack(noise) / (0.3 * 0.9 ** (k - 1)))
        state = played.state
    is_fresh_laplace(torch.stack(draws))


@pytest.mark.parametrize("signs", ["constant", "random"])
def test_constant_gradients_attain_the_lower_end(sensors, streams, same_messages, signs) -> None:
    problem, setting = sensors(p=1)
    defense = XuanWang(noise_scale=0.3, gradient_distance=0.6, **SCHEDULE)
    moves = defense.moves(12, setting, 2)
    graph, X = setting.network.at(1), problem.initial(streams)
    calls = itertools.count()
    sign = torch.randint(0, 2, (100,), generator=torch.Generator().manual_seed(1)) * 2 - 1

    def changed(X):
        G = torch.zeros_like(X)
        G[2] = 0.6 * (sign[next(calls)].item() if signs == "random" else 1)
        return G

    one, two = defense.start(X, setting), defense.start(X.clone(), setting)
    for k in range(1, 12):
        one, sent, _ = defense.step(one, k, graph, torch.zeros_like, Noise(streams, k))
        two = defense.step(two, k, graph, changed, same_messages(sent)).state
        stated = defense.sensitivity(k + 1, setting, "function", 2, {})
        for name, a, b in (("x", one.X, two.X), ("s", one.S, two.S)):
            moved = (a - b).abs().sum(dim=1)[2].item()
            assert moved <= moves[name].most[k] * (1 + 1e-9)
            assert stated[name].value == moves[name].most[k]
            if signs == "constant":
                assert moved == pytest.approx(moves[name].least[k], rel=1e-9)


def test_its_lower_end_is_the_exact_leak_of_a_constant_gradient(
    sensors, exact_losses, losses
) -> None:
    defense = XuanWang(noise_scale=0.3, n_rounds=6, **SCHEDULE)
    neighbour = ThreatModel(name="c", kind="curious", agents=(1,))
    for graph, adversary in (("path", EAVESDROPPER), ("complete", neighbour)):
        _, setting = sensors(graph, 5)
        bracket = defense.mechanism(setting, adversary, 2)
        exact = exact_losses(defense, setting, adversary, 2)
        assert losses(bracket.least) == pytest.approx(exact, rel=1e-9)
        assert sum(losses(bracket.most)) > sum(exact)
    _, setting = sensors("path", 5)
    assert defense.mechanism(setting, neighbour, 2).least == ()


def test_a_change_lasts_so_it_spends_more_than_the_steps_alone(sensors) -> None:
    """The floor that Xie, Liu and Chai list counts delta alpha_k for s and twice that for x."""
    _, setting = sensors()
    defense = XuanWang(epsilon=0.7, n_rounds=400).calibrate(setting)
    spent = [epsilon(defense.mechanism(setting, EAVESDROPPER, i).most, 0.0).high for i in range(6)]
    assert max(spent) == pytest.approx(0.7, rel=1e-9)
    steps = sum(3 * defense.alpha(k) / defense.nu(k + 1) for k in range(1, 400))
    assert min(spent) > 1.4 * steps


def test_schedules_and_graphs_outside_its_theory_are_refused() -> None:
    ring = Setting(build_graph("ring", 4), (1,) * 4, 2)
    with pytest.raises(ConfigError, match="needs an undirected graph"):
        XuanWang(epsilon=1.0).calibrate(Setting(build_graph("directed-ring", 4), (1,) * 4, 2))
    for options, least in (
        ({"step_decay": 0.995}, "0.995"), ({"noise_decay": 1.0}, "0.97"),
        ({"coupling": 0.01}, "0.9933"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"expected more than {least}") as refused:
            XuanWang(epsilon=1.0, **options).calibrate(ring)
        assert len(str(refused.value).splitlines()) == 1
        XuanWang(epsilon=1.0, allow_outside_theory=True, **options).calibrate(ring)
