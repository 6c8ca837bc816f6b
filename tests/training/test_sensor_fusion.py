"""Sensor fusion against (42) written out, and against a solver that knows nothing of it."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpaudit.errors import ConfigError, DpauditError
from dpaudit.rng import Streams
from dpaudit.training.sensor_fusion import REGULARISATION, SensorFusion

FALSE_FAILURE = 1e-9  # of each statistical check here, over fresh seeds


def cost(problem, i, x, trial=()):
    """f_i(x) of (42), summed out."""
    M, v = problem.M[trial][i], problem.v[trial][i]
    fit = sum((v[r] - sum(M[r, c] * x[c] for c in range(len(x)))) ** 2 for r in range(len(v)))
    return fit + problem.omega[i] * sum(x[c] ** 2 for c in range(len(x)))


@pytest.mark.parametrize("trials", [None, 3])
def test_gradient_is_that_of_the_cost_written_out(streams, trials) -> None:
    problem = SensorFusion.draw(streams, 4, m=3, p=2, trials=trials)
    X = problem.initial(streams, trials)
    G = problem.gradient(streams, 1)(X)
    for trial in [()] if trials is None else [(t,) for t in range(trials)]:
        for i in range(4):
            x = X[trial][i].clone().requires_grad_(True)
            (g,) = torch.autograd.grad(cost(problem, i, x, trial), x)
            torch.testing.assert_close(G[trial][i], g, rtol=1e-12, atol=1e-13)


def test_gradients_of_chosen_holders_are_their_functions(streams) -> None:
    problem = SensorFusion.draw(streams, 4)
    X, holders = torch.randn(5, 2, dtype=torch.float64), torch.tensor([3, 0, 3, 1, 2])
    G = problem.gradient(streams, 1)(X, holders)
    for row, i in enumerate(holders.tolist()):
        x = X[row].clone().requires_grad_(True)
        (g,) = torch.autograd.grad(cost(problem, i, x), x)
        torch.testing.assert_close(G[row], g, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("trials", [None, 3])
def test_optimum_is_the_least_squares_solution(streams, trials) -> None:
    problem = SensorFusion.draw(streams, 5, scale=4.0, trials=trials)
    for trial in [()] if trials is None else [(t,) for t in range(trials)]:
        ridge = np.sqrt(REGULARISATION) * np.eye(2)
        rows = np.concatenate([np.concatenate([M, ridge]) for M in problem.M[trial].numpy()])
        zeros = np.zeros(2)
        right = np.concatenate([np.concatenate([v, zeros]) for v in problem.v[trial].numpy()])
        expected = np.linalg.lstsq(rows, right, rcond=None)[0]
        np.testing.assert_allclose(problem.optimum[trial].numpy(), expected, rtol=1e-11)


def test_residual_adds_up_and_is_zero_at_the_optimum(streams) -> None:
    problem = SensorFusion.draw(streams, 4, trials=3)
    X = problem.initial(streams, 3)
    for t in range(3):
        expected = sum(((X[t, i] - problem.optimum[t]) ** 2).sum() for i in range(4))
        torch.testing.assert_close(problem.residual(X)[t], expected)
    best = problem.optimum[:, None, :].expand(3, 4, 2)
    assert (problem.residual(best) == 0).all()


def test_only_the_agents_asked_for_are_redrawn(streams) -> None:
    problem = SensorFusion.draw(streams, 3, m=1, p=1, trials=50, redrawn=[0])
    for values in (problem.M, problem.v):
        assert len(values[:, 0].unique()) == 50
        assert len(values[:, 1].unique()) == len(values[:, 2].unique()) == 1
    shared = SensorFusion.draw(streams, 3, m=1, p=1)
    torch.testing.assert_close(problem.M[7, 1:], shared.M[1:], rtol=0, atol=0)
    everyone = SensorFusion.draw(streams, 3, m=1, p=1, trials=50)
    assert len(everyone.v[:, 2].unique()) == 50


def test_data_have_the_stated_distribution(streams) -> None:
    problem = SensorFusion.draw(streams, 50, m=3, p=2, scale=10.0, trials=200)
    x = torch.empty(2, dtype=torch.float64).uniform_(generator=streams("measurements"))
    errors = problem.v - problem.M @ x
    assert ((x >= 0) & (x <= 1)).all()
    assert stats.kstest(problem.M.flatten() / 10, "uniform").pvalue > FALSE_FAILURE
    assert stats.kstest(errors.flatten(), "norm").pvalue > FALSE_FAILURE
    initial = problem.initial(streams, 200)
    assert stats.kstest(initial.flatten(), "norm").pvalue > FALSE_FAILURE
    n, tail = errors.numel(), FALSE_FAILURE / 2
    lagged = (errors[1:] * errors[:-1]).sum().abs().item()  # between trials
    assert lagged < 1.02 * stats.norm.isf(tail) * math.sqrt(n)


def test_initial_models_of_all_trials_mix_without_a_copy(streams) -> None:
    problem = SensorFusion.draw(streams, 4)
    X = problem.initial(streams, 6)
    assert X.shape == (6, 4, 2)
    assert X.movedim(-2, 0).is_contiguous()
    assert problem.initial(streams).shape == (4, 2)
    assert torch.equal(X, problem.initial(Streams(streams.seed), 6))


def test_clipping_records_without_records_is_refused(streams) -> None:
    gradient = SensorFusion.draw(streams, 3).gradient(streams, 1)
    with pytest.raises(DpauditError, match="no per-record gradient to clip"):
        gradient.clipped_sum(torch.zeros(3, 2), 1.0)


def test_trials_that_do_not_fit_are_refused(streams) -> None:
    with pytest.raises(ConfigError, match="expected a number of trials"):
        SensorFusion.draw(streams, 3, redrawn=[0])
    with pytest.raises(ConfigError, match="agents from 0 to 2"):
        SensorFusion.draw(streams, 3, trials=5, redrawn=[3])
    with pytest.raises(ConfigError, match="those of 5 trials"):
        SensorFusion.draw(streams, 3, trials=5).initial(streams, 4)
