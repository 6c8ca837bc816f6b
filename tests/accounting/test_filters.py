"""Costs of releases in privacy filters, against closed forms."""

from math import inf, log, sinh

import numpy as np
import pytest

from dpaudit.accounting import Release, gaussian_epsilon
from dpaudit.accounting.filters import (
    best_order,
    gaussian_cost,
    renyi_budget,
    renyi_cost,
    renyi_cost_of_epsilon,
    renyi_epsilon,
)
from dpaudit.accounting.formulas import sampled_gaussian_divergence

ORDERS = (1.5, 4.0, 17.3)


def release(family: str = "gaussian", noise: float = 1.5, **more) -> Release:
    return Release(family=family, noise_multiplier=noise, **more)


@pytest.mark.parametrize("order", ORDERS)
def test_gaussian_noise_costs_order_over_two_sigma_squared(order) -> None:
    cost = renyi_cost(release(count=3), "add-remove", order)
    assert cost == (pytest.approx(3 * order / (2 * 1.5**2)), 0.0)
    assert renyi_cost(release(count=3), "replace-one", order)[0] == pytest.approx(4 * cost[0])


@pytest.mark.parametrize("order", ORDERS)
def test_laplace_noise_has_its_closed_form(order) -> None:
    """Mironov 2017, Table II."""
    a, b = order, 1.5
    terms = a / (2 * a - 1) * np.exp((a - 1) / b), (a - 1) / (2 * a - 1) * np.exp(-a / b)
    exact = log(sum(terms)) / (a - 1)
    cost = renyi_cost(release("laplace"), "add-remove", order).divergence
    assert exact <= cost <= exact * (1 + 1e-4)


@pytest.mark.parametrize("rate, order", [(0.01, 1.5), (0.01, 17.3), (0.3, 1.5), (0.3, 4.0)])
def test_sampled_gaussian_noise_costs_its_integral(rate, order) -> None:
    """But for losses that count against delta, of the probability that is left out."""
    one = release(sampling="poisson", sampling_rate=rate)
    [exact] = sampled_gaussian_divergence(one, [order])
    cost = renyi_cost(one, "add-remove", order)
    assert exact * (1 - 1e-4) <= cost.divergence <= exact * (1 + 1e-3) + 1e-9
    assert cost.left_out < 1e-20


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomised_response_has_its_closed_form(order, epsilon) -> None:
    ratio = (sinh(order * epsilon) - sinh((order - 1) * epsilon)) / sinh(epsilon)
    found = renyi_cost_of_epsilon(epsilon, order)
    assert found == pytest.approx(log(ratio) / (order - 1))
    assert found <= epsilon
    laplace = renyi_cost(release("laplace", 1 / epsilon), "add-remove", order).divergence
    assert laplace <= found
    assert renyi_cost_of_epsilon(0.0, order) == 0


def test_mu_squared_is_that_of_unsampled_gaussian_noise_alone() -> None:
    assert gaussian_cost(release(noise=2.0, count=5), "add-remove") == pytest.approx(5 / 4)
    assert gaussian_cost(release(noise=2.0, clipped="whole"), "replace-one") == pytest.approx(1 / 4)
    assert gaussian_cost(release("laplace"), "add-remove") == inf
    assert gaussian_cost(release(sampling="fixed", sampling_rate=0.5), "add-remove") == inf
    assert gaussian_cost(release(noise=0.0), "add-remove") == inf


@pytest.mark.parametrize("epsilon, delta", [(1.0, 1e-5), (8.0, 1e-6)])
def test_a_renyi_budget_holds_most_of_the_gaussian_noise(epsilon, delta) -> None:
    order = best_order(epsilon, delta, release(), "add-remove")
    budget = renyi_budget(epsilon, delta, order)
    assert renyi_epsilon(budget, delta, order) == pytest.approx(epsilon)
    assert 0.8 * epsilon < gaussian_epsilon(delta, (2 * budget / order) ** 0.5) <= epsilon
