"""SGP against its pseudo-code agent by agent, and what an eavesdropper gets from it."""

import pytest
import torch

from dpaudit.defense.contract import Target
from dpaudit.defense.noise import Noise
from dpaudit.defenses.sgp import SGP
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph, Network


def pseudo_code_round(P, x, w, v, gradients, gamma, m):
    """Assran et al., Algorithm 1, message by message."""
    N = len(x)
    inbox = [[] for _ in range(N)]
    for i in range(N):
        v[i] = m * v[i] + gradients[i]
        u = x[i] - gamma * (gradients[i] + m * v[i])
        for j in range(N):
            if P[j, i] > 0:
                inbox[j].append((P[j, i] * u, P[j, i] * w[i]))
    x = [sum(u for u, _ in messages) for messages in inbox]
    w = [sum(weight for _, weight in messages) for messages in inbox]
    return x, w, v


@pytest.mark.parametrize("momentum, sampling", [(0.0, "fixed"), (0.9, "poisson")])
def test_five_rounds_equal_the_pseudo_code_agent_by_agent(
    push_sum_setting, record_gradients, streams, momentum, sampling
) -> None:
    problem, setting = push_sum_setting(5)
    sgp = SGP(learning_rate=0.3, momentum=momentum, batch_size=4, sampling=sampling)
    state = sgp.calibrate(setting).start(problem.initial(streams).double(), setting)
    x, w, v = list(state.X), [1.0] * 5, list(state.V)
    for k in range(1, 6):
        batch = problem.batch(streams, k, 4, sampling)
        gradients = [
            sum(record_gradients(problem, x[i] / w[i], batch, i), torch.zeros(setting.d)) / 4
            for i in range(5)
        ]
        x, w, v = pseudo_code_round(setting.network.at(k).W, x, w, v, gradients, 0.3, momentum)
        oracle = problem.gradient(streams, k, 4, sampling)
        state = sgp.step(state, k, setting.network.at(k), oracle, Noise(streams, k)).state
    torch.testing.assert_close(state.X, torch.stack(x), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(state.w[:, 0], torch.stack(w), rtol=1e-14, atol=1e-14)
    expected = torch.stack([x / w for x, w in zip(x, w, strict=True)])
    torch.testing.assert_close(sgp.models(state), expected, rtol=1e-11, atol=1e-13)
    assert (state.w - 1).abs().max() > 0.1  # the graph really needs the weights


def test_push_sum_weights_sum_to_n(push_sum_setting, setting_of, streams, view_of_run) -> None:
    sgp = SGP(batch_size=4)
    problem, setting = push_sum_setting(5)
    _, rounds = view_of_run(sgp, problem, setting, streams, 8)
    assert max(abs(r.state.w.sum().item() - 5) for r in rounds.values()) < 1e-13
    problem, setting = setting_of("exponential", 5)
    _, rounds = view_of_run(sgp, problem, setting, streams, 8)
    assert max((r.state.w - 1).abs().max().item() for r in rounds.values()) < 1e-14


def test_trials_in_leading_dimensions_are_independent_runs(push_sum_setting, streams) -> None:
    problem, setting = push_sum_setting(4, "logistic")
    sgp = SGP(batch_size=3, momentum=0.5)
    generator = torch.Generator().manual_seed(2)
    X = torch.randn(3, 4, setting.d, dtype=torch.float64, generator=generator)
    together = sgp.start(X, setting)
    alone = [sgp.start(x, setting) for x in X]
    for k in (1, 2):
        args = k, setting.network.at(k), problem.gradient(streams, k, 3), Noise(streams, k)
        together = sgp.step(together, *args).state
        alone = [sgp.step(state, *args).state for state in alone]
    for i, name in enumerate(together._fields):
        expected = torch.stack([state[i] for state in alone])
        torch.testing.assert_close(together[i], expected, rtol=1e-12, atol=1e-13, msg=name)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_an_eavesdropper_derives_the_step_and_the_model_exactly(
    push_sum_setting, streams, view_of_run, momentum
) -> None:
    problem, setting = push_sum_setting(5)
    sgp = SGP(batch_size=4, momentum=momentum)
    view, rounds = view_of_run(sgp, problem, setting, streams, 4)
    derive = sgp.observables["gradient"].derive
    for k in (2, 4):
        for victim in range(5):
            derived = derive(sgp, view, setting, Target(k, victim, 0))
            G = rounds[k].private["gradient"] + momentum * rounds[k].state.V
            torch.testing.assert_close(derived.gradient, G[victim], rtol=1e-9, atol=1e-12)
            model = sgp.models(rounds[k - 1].state)[victim]
            torch.testing.assert_close(derived.model, model, rtol=1e-13, atol=1e-14)
    with pytest.raises(NotObservable):
        derive(sgp, view, setting, Target(1, 0, 1))


def test_nothing_is_private_and_row_stochastic_is_refused(push_sum_setting) -> None:
    _, setting = push_sum_setting(4)
    bracket = SGP(n_rounds=7).mechanism(setting, ThreatModel(name="e"), 0)
    assert [(r.noise_multiplier, r.count) for r in bracket.least] == [(0.0, 7)]
    W = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.2, 0.3, 0.5]], dtype=torch.float64)
    with pytest.raises(ConfigError, match="columns sum to 1"):
        SGP().calibrate(setting.__class__(Network((Graph(W),)), (9,) * 3, 2))
