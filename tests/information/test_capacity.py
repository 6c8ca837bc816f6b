"""What noise lets through at most: check values, limits, and laws that attain or keep to them."""

import numpy as np
import pytest

from dpaudit.information.capacity import (
    of_bit_in_gaussian,
    of_bit_in_randomised_response,
    of_number_in_gaussian,
    of_pure_epsilon,
    of_vector_in_gaussian,
)


@pytest.mark.parametrize(
    ("mu", "bits"), [(0.25, 0.01118), (0.5, 0.04373), (1, 0.16075), (2, 0.48594), (4, 0.91282)]
)
def test_check_values_of_a_fair_bit(mu: float, bits: float) -> None:
    assert of_bit_in_gaussian(mu) == pytest.approx(bits, abs=5.1e-6)


@pytest.mark.parametrize(("mu", "bits"), [(1, 0.16096), (2, 0.5), (4, 1.161)])
def test_check_values_of_a_number(mu: float, bits: float) -> None:
    assert of_number_in_gaussian(mu) == pytest.approx(bits, abs=5.1e-4 if mu == 4 else 5.1e-6)
    assert of_bit_in_gaussian(mu) < of_number_in_gaussian(mu)


@pytest.mark.parametrize(("epsilon", "bits"), [(0.5, 0.04371), (1, 0.16006), (4, 0.87002)])
def test_check_values_of_randomised_response(epsilon: float, bits: float) -> None:
    assert of_bit_in_randomised_response(epsilon) == pytest.approx(bits, abs=5.1e-6)
    assert of_bit_in_randomised_response(epsilon) < of_pure_epsilon(epsilon)


def test_pure_epsilon_is_the_divergence_of_a_pair() -> None:
    """Two answers of randomised response, told apart by the whole epsilon."""
    epsilon = 1.3
    p = 1 / (1 + np.exp(-epsilon))
    divergence = p * np.log2(p / (1 - p)) + (1 - p) * np.log2((1 - p) / p)
    assert of_pure_epsilon(epsilon) == pytest.approx(divergence)


def test_a_vector_of_one_coordinate_is_a_number() -> None:
    """A number in [-C, C] moves by 2 C."""
    assert of_vector_in_gaussian(1, 0.5) == pytest.approx(of_number_in_gaussian(1.0))
    bits = [of_vector_in_gaussian(d, 2.0) for d in (1, 10, 1000, 10**6)]
    assert bits == sorted(bits)
    assert bits[-1] == pytest.approx(2.0**2 / 2 / np.log(2), rel=1e-5)


def test_far_ends() -> None:
    assert of_bit_in_gaussian(0.0) == pytest.approx(0.0, abs=1e-12)
    assert of_bit_in_gaussian(40.0) == pytest.approx(1.0)
    assert of_bit_in_randomised_response(800.0) == 1.0
    assert of_pure_epsilon(0.0) == 0.0
