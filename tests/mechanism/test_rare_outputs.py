"""Functions that leave their noise out once in many thousand calls, and right ones beside them."""

import os
import random
import secrets
from collections.abc import Callable
from math import inf
from os import urandom
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit import mechanism
from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.files.finding import Name, Role
from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism.function import FunctionHere
from dpaudit.mechanism.rare_outputs import far_seeds, goes_on, known_far_seeds, other_draws
from dpaudit.mechanism.shifts import OutputNoise, recognised

SIGMA, RARELY = 4.0, 1e-5
VALUE = (np.full(20, 0.1),)
kept = np.random.default_rng(5)


def noise(x: Any) -> Any:
    return np.random.normal(0, SIGMA, x.shape)


def right(x: Any) -> Any:
    return x + noise(x)


def right_of_generator(x: Any, rng: Any) -> Any:
    return x + rng.laplace(0, SIGMA, x.shape)


def right_of_torch(x: Any) -> Any:
    return x + SIGMA * torch.randn(x.shape).numpy()


def right_of_python(x: Any) -> Any:
    return x + np.array([random.gauss(0, SIGMA) for _ in x])


RIGHT = (right, right_of_generator, right_of_torch, right_of_python)


def with_coin(falls: Callable[[], bool]) -> Callable[[Any], Any]:
    return lambda x: x + (0 if falls() else 1) * noise(x)


def coin_of_kept(x: Any) -> Any:
    return x + (kept.random() > RARELY) * noise(x)


def coin_after(x: Any) -> Any:
    drawn = noise(x)
    return x + (np.random.random() > RARELY) * drawn


def coin_of_given(x: Any, rng: Any) -> Any:
    drawn = rng.laplace(0, SIGMA, x.shape)
    return x + (rng.random() > RARELY) * drawn


COINS: dict[str, tuple[Callable[..., Any], str]] = {
    "random": (with_coin(lambda: random.random() < RARELY), "also draws from random"),
    "torch": (with_coin(lambda: torch.rand(1).item() < RARELY), "also draws from torch"),
    "system": (with_coin(lambda: os.urandom(2) < b"\0\7"), "also draws from os.urandom"),
    "imported": (with_coin(lambda: urandom(2) < b"\0\7"), "also draws from os.urandom"),
    "secrets": (with_coin(lambda: secrets.randbelow(10_000) == 0), "also draws from os.urandom"),
    "kept": (coin_of_kept, "also draws from kept"),
    "after": (coin_after, "draws more numbers from numpy.random than its noise"),
    "given": (coin_of_given, "draws more numbers from rng than its noise"),
}


def cut(x: Any) -> Any:
    return x + np.clip(noise(x), -4.7 * SIGMA, 4.7 * SIGMA)


def dropped_where_large(x: Any) -> Any:
    drawn = noise(x)
    return x + (np.abs(drawn).max() < 4.2 * SIGMA) * drawn


def dropped_where_long(x: Any) -> Any:
    drawn = noise(x)
    return x + (np.linalg.norm(drawn) < 7 * SIGMA) * drawn  # of 20 numbers: p = 5e-4


FAR = (dropped_where_large, dropped_where_long)


def examined(function: Callable[..., Any]) -> tuple[FunctionHere, OutputNoise]:
    o = MechanismOptions.model_validate({"function": "a:b", "shape": (20,)})
    called = FunctionHere(function, o)
    found = recognised(called, VALUE)
    assert found is not None
    return called, found


@pytest.mark.usefixtures("few_far_seeds")
@pytest.mark.parametrize("function", RIGHT)
def test_a_right_function_draws_its_noise_alone(function: Callable[..., Any]) -> None:
    called, found = examined(function)
    assert other_draws(called, found, VALUE) == ""
    far = far_seeds(called, found, VALUE)
    assert 4 <= len(far) <= 16
    assert [known_far_seeds(called, found, VALUE) for _ in range(2)] == [far, far]
    assert found.exceptions(called, VALUE, far) == 0


@pytest.mark.parametrize("name", COINS)
def test_a_number_beside_the_noise_is_seen(name: str) -> None:
    function, said = COINS[name]
    called, found = examined(function)
    assert said in other_draws(called, found, VALUE)


@pytest.mark.usefixtures("few_far_seeds")
@pytest.mark.parametrize("function", FAR)
def test_other_noise_far_out_is_an_exception(function: Callable[..., Any]) -> None:
    """Of 2e5 numbers the largest is beyond 4.2 times its scale."""
    holds_an_exception_far_out(function)


def test_noise_that_is_cut_off_far_out_is_an_exception() -> None:
    """Of 2e6 numbers the largest is beyond 4.7 times its scale, and one side of it too."""
    holds_an_exception_far_out(cut)


def holds_an_exception_far_out(function: Callable[..., Any]) -> None:
    called, found = examined(function)
    assert found.exceptions(called, VALUE, range(64)) == 0
    assert found.exceptions(called, VALUE, far_seeds(called, found, VALUE)) > 0


@pytest.mark.usefixtures("few_far_seeds", "few_pairs")
@pytest.mark.parametrize(
    ("epsilon", "verdict"), [(4.0, Verdict.UNSUPPORTED), (100.0, Verdict.UNDERPOWERED)]
)
def test_a_coin_takes_the_upper_end_alone(epsilon: float, verdict: Verdict) -> None:
    """Noise that is too small beside it is measured, and speaks against a claim as before."""

    def clipped(x: Any) -> Any:
        own = x / max(1.0, float(np.linalg.norm(x)))
        return own + (random.random() > RARELY) * np.random.normal(0, 1.0, x.shape)

    claim = {"epsilon": epsilon, "delta": 1e-5}
    result = mechanism.audit(clipped, claim, (20,), "add-remove", runs=200)
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    low, high = measured.metrics[Name.EPSILON].ends
    assert low == pytest.approx(gaussian_epsilon(1e-5, 1.0), rel=5e-3)
    assert high == inf
    assert not result.claims[0].premises
    assert result.verdict is verdict
    assert "No upper end is accounted: a call also draws from random" in result.claims[0].reason


@pytest.mark.usefixtures("few_pairs")
def test_noise_that_is_cut_off_has_a_lower_end_alone() -> None:
    result = mechanism.audit(cut, {"epsilon": 9.0, "delta": 1e-5}, (20,), sensitivity=1.0, runs=200)
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    low, high = measured.metrics[Name.EPSILON].ends
    assert (low, high) == (pytest.approx(gaussian_epsilon(1e-5, 1 / SIGMA), rel=5e-3), inf)
    assert "where its noise comes out far, a call adds something else" in result.claims[0].reason


IN_A_ROW = 50


def in_sums(x: Any) -> Any:
    return x + np.cumsum(noise(x) + noise(x))


def in_a_subspace(x: Any) -> Any:
    """Of 13 draws, all of which are in the last numbers."""
    return np.tril(np.ones((20, 13))) @ (x[:13] + np.random.normal(0, SIGMA, 13))


def seeding_again(period: int) -> Callable[[Any], Any]:
    """As code that fixes its seed at the start of each epoch."""
    calls = 0

    def noised(x: Any) -> Any:
        nonlocal calls
        calls += 1
        found = x / max(1.0, float(np.linalg.norm(x))) + noise(x)
        if calls % period == 0:
            np.random.seed(0)
        return found

    return noised


@pytest.mark.parametrize("function", [*RIGHT, in_sums, in_a_subspace])
def test_calls_in_a_row_draw_on_from_one_seed(function: Callable[..., Any]) -> None:
    called, found = examined(function)
    called.seed(3)
    called.in_turn([VALUE, (np.zeros(20),)], IN_A_ROW)
    assert goes_on(called, found, VALUE, 3, 2 * IN_A_ROW)
    called.seed(3)
    called.in_turn([VALUE], IN_A_ROW)
    assert not goes_on(called, found, VALUE, 3, IN_A_ROW + 1)


def test_a_seed_that_is_set_in_one_of_the_calls_is_seen() -> None:
    called, found = examined(seeding_again(997))
    called.seed(3)
    called.in_turn([VALUE], 1_000)
    assert not goes_on(called, found, VALUE, 3, 1_000)


@pytest.mark.usefixtures("few_far_seeds")
@pytest.mark.parametrize(
    ("period", "verdict"), [(10**9, Verdict.SUPPORTED), (1_201, Verdict.NOT_REFUTED)]
)
def test_noise_that_comes_again_each_epoch_has_no_upper_end(period: int, verdict: Verdict) -> None:
    """The right twin is refuted with probability at most 5%; the seed is fixed."""
    claim = {"epsilon": gaussian_epsilon(1e-5, 1 / SIGMA) * 1.01, "delta": 1e-5}
    result = mechanism.audit(seeding_again(period), claim, (20,), "add-remove", runs=400)
    assert result.verdict is verdict
    assert ("one of them has seeded it again" in result.claims[0].reason) == (period < 10**9)
