"""The zoo of functions: closed forms, and what an audit finds of them."""

from math import exp, inf, log

import numpy as np
import pytest

from dpaudit.files.verdict import Verdict
from dpaudit.mechanism.zoo.entries import Entry, discrete_epsilon, integer_noise
from dpaudit.mechanism.zoo.run import audited, is_sound, row, summary, zoo

ZOO = zoo()
FAST = (
    "Gaussian, tensors: the last tensor without noise",
    "randomised response: two coins: log 3, claimed as log 2",
    "count: exact if it is 0",
)


def called(entry: Entry) -> str:
    return f"{entry.name}: {entry.mistake}"


def test_a_mechanism_is_right_if_and_only_if_it_has_no_mistake() -> None:
    assert len(ZOO) >= 80
    assert [called(e) for e in ZOO if e.is_right != (e.mistake == "")] == []
    assert {e.name for e in ZOO if e.is_right} & {e.name for e in ZOO if not e.is_right}


def test_epsilon_of_two_answers_is_the_log_of_their_odds() -> None:
    p = np.array([0.75, 0.25])
    assert discrete_epsilon(p, p[::-1]) == pytest.approx(log(3))
    assert discrete_epsilon(p, p[::-1], 0.5) == 0
    assert discrete_epsilon(np.array([1.0, 0.0]), p) == inf


def test_epsilon_of_integer_noise_is_its_decay() -> None:
    def geometric(x: np.ndarray) -> np.ndarray:
        return np.exp(-0.7 * np.abs(x))

    assert integer_noise(geometric, 1, 0.0) == pytest.approx(0.7)
    assert integer_noise(geometric, 2, 0.0) == pytest.approx(1.4)
    # at delta: the mass of the outcomes that are better than the odds e^epsilon
    epsilon = integer_noise(geometric, 1, 1e-2)
    mass = 1 / (1 + exp(-0.7))  # of numbers at 0 or below, so that delta = mass (1 - e^(eps - 0.7))
    assert epsilon == pytest.approx(0.7 + log(1 - 1e-2 / mass))


@pytest.mark.parametrize("name", FAST)
def test_an_audit_finds_what_is_wrong(name: str) -> None:
    [entry] = [e for e in ZOO if called(e) == name]
    [found] = audited([entry], runs=1_000)
    assert found.passed, row(found)


@pytest.mark.slow
def test_no_wrong_one_is_supported_and_no_right_one_accused() -> None:
    """Each right one is accused with probability 5% at most by its bound, over fresh seeds."""
    found = list(audited(ZOO))
    assert is_sound(found), summary(found)
    missed = [called(one.entry) for one in found if not one.passed]
    assert missed == ["sparse vector, algorithm 3: shows the noisy answers"]
    supported = [one for one in found if one.claim.verdict is Verdict.SUPPORTED]
    assert len(supported) >= 15
