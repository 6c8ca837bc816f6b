"""The checker's accountant against the auditor's, closed forms and published values."""

from typing import Any

import numpy as np
import pytest

from dpaudit.accounting import gaussian_epsilon as reference_gaussian
from dpaudit.accounting.releases import Release
from dpaudit.accounting.releases import epsilon as reference
from dpaudit.verify.accountant import epsilon, gaussian_delta, gaussian_epsilon


def release(family: str = "gaussian", noise: float = 1.0, count: int = 1, **how: Any) -> Any:
    plain = {"sampling": "none", "sampling_rate": 1.0, "clipped": "records"}
    return {"family": family, "noise_multiplier": noise, "count": count} | plain | how


def drawn(rng: np.random.Generator) -> list[dict[str, Any]]:
    """One to three releases of any family, sampling, rate and number."""
    found = []
    for _ in range(rng.integers(1, 4)):
        sampling = str(rng.choice(["none", "poisson", "fixed"]))
        rate = 1.0 if sampling == "none" else float(np.exp(rng.uniform(np.log(0.002), -0.1)))
        found.append(
            release(
                str(rng.choice(["gaussian", "laplace"])),
                float(np.exp(rng.uniform(np.log(0.5), np.log(8)))),
                int(np.exp(rng.uniform(0, np.log(300)))),
                sampling=sampling,
                sampling_rate=rate,
                clipped=str(rng.choice(["records", "whole"], p=[0.8, 0.2])),
            )
        )
    return found


def agrees(seed: int) -> None:
    """The bound is no lower end, and lies within 0.2% of the upper one; likewise below it.

    The checker rounds both of its figures up, by 0.1% at most each.
    """
    rng = np.random.default_rng([37, seed])
    releases, delta = drawn(rng), float(10 ** rng.uniform(-8, -2))
    adjacency = rng.choice(["add-remove", "replace-one"])
    own = epsilon(releases, delta, adjacency)
    other = reference([Release(**r) for r in releases], delta, adjacency)
    least = epsilon(releases, delta, adjacency, ("least",))
    assert other.low <= least * (1 + 1e-9) + 1e-9
    assert least <= own * (1 + 1e-3)
    assert least == pytest.approx(other.low, rel=2e-3, abs=1e-4)
    assert own == pytest.approx(other.high, rel=2e-3, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_the_auditor(seed: int) -> None:
    agrees(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_agrees_with_the_auditor_on_a_thousand(part: int) -> None:
    for seed in range(20 + 49 * part, 20 + 49 * (part + 1)):
        agrees(seed)


def test_gaussian_releases_compose_in_closed_form() -> None:
    found = epsilon([release(noise=2.0, count=4), release(noise=1.0)], 1e-5, "add-remove")
    assert found == pytest.approx(reference_gaussian(1e-5, 2**0.5), rel=1e-12)


@pytest.mark.parametrize("mu", [0.01, 0.5, 3.0, 40.0])
def test_gaussian_epsilon_has_its_delta(mu: float) -> None:
    assert gaussian_delta(gaussian_epsilon(1e-6, mu), mu) == pytest.approx(1e-6, rel=1e-6)


def test_laplace_releases_add_up_at_delta_zero() -> None:
    found = epsilon([release("laplace", 2.0, 3), release("laplace", 4.0)], 0.0, "replace-one")
    assert found == pytest.approx(3.5, rel=1e-12)


def test_no_noise_has_no_bound_and_no_release_has_none() -> None:
    assert epsilon([release(noise=0.0)], 1e-5, "add-remove") == np.inf
    assert epsilon([], 1e-5, "add-remove") == 0.0


def test_ten_thousand_sampled_rounds() -> None:
    """Many sampled rounds, at which a loose grid would show."""
    run = release(noise=1.1, count=10_000, sampling="poisson", sampling_rate=0.01)
    found = epsilon([run], 1e-5, "add-remove")
    exact = reference([Release(**run)], 1e-5, "add-remove")
    assert exact.low <= found == pytest.approx(exact.high, rel=1e-3)
