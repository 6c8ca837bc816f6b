"""The noise that a plain run has drawn: fresh and as it is stated, or not."""

from math import sqrt
from typing import NamedTuple

import numpy as np
import pytest
import torch

from dpaudit.capture.noise_tests import LEVEL, drawn_noise
from dpaudit.capture.runs import NamedDraw
from dpaudit.capture.shared_draws import owners, same_draws
from dpaudit.files.finding import Name
from dpaudit.files.verdict import Verdict


class Run(NamedTuple):
    draws: list[NamedDraw]
    tape: dict[str, np.ndarray]


def run(values: np.ndarray, scale: float = 1.0, family: str = "gaussian") -> Run:
    """Draws [m, n] of one agent."""
    draws = [NamedDraw(f"0/{i}/z", "z", 0, i, scale, family) for i in range(len(values))]
    return Run(draws, {draw.key: v for draw, v in zip(draws, values, strict=True)})


@pytest.mark.parametrize("n", [1, 50], ids=["one number", "many numbers"])
@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_noise_as_it_is_stated_passes_and_half_of_it_does_not(n: int, family: str) -> None:
    """Noise as stated fails with probability LEVEL = 1e-6 by other seeds; this one is fixed."""
    rng = np.random.default_rng(8)
    kind = rng.standard_normal if family == "gaussian" else rng.laplace
    values = 3 * kind(size=(120, n))
    [right] = drawn_noise([run(values, 3.0, family)], ())
    [halved] = drawn_noise([run(values / 2, 3.0, family)], ())
    assert right.verdict is None
    assert right.metrics[Name.P_VALUE].value >= LEVEL
    assert halved.verdict is Verdict.UNSUPPORTED


def half(z: np.ndarray) -> np.ndarray:
    return np.array_split(z, 2, axis=1)[0]


DEPENDENT = {
    "mirrored coordinates": lambda z: np.hstack([half(z), -half(z)[:, ::-1]]),
    "coordinates some way apart": lambda z: np.hstack([half(z), -half(z)]),
    "the size of coordinates some way apart": lambda z: np.hstack(
        [half(z), half(z) * np.sign(half(z)[:, ::-1])]
    ),
    "numbers that were drawn before": lambda z: np.vstack([z[:40], z[20:30, ::-1]]),
    "two coordinates that are multiples": lambda z: np.hstack([z, -z[:, 23:24]]),
    "the lengths of draws": lambda z: z * sqrt(z.shape[1]) / np.linalg.norm(z, axis=1)[:, None],
    "the sums of draws": lambda z: (z - z.mean(axis=1)[:, None]) * sqrt(60 / 59),
}


@pytest.mark.parametrize("what", DEPENDENT)
def test_numbers_that_share_their_noise_are_found(what: str) -> None:
    """Fifty draws whose numbers are all N(0, 1), and not independent."""
    z = np.random.default_rng(8).standard_normal((50, 60))
    [found] = drawn_noise([run(DEPENDENT[what](z))], ())
    assert found.verdict is Verdict.UNSUPPORTED
    assert f'"z": {what}' in found.title


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_more_noise_than_stated_is_no_fault(family: str) -> None:
    """Of all draws, of one, or of some; by other seeds each case fails with chance 1e-6."""
    rng = np.random.default_rng(8)
    kind = rng.standard_normal if family == "gaussian" else rng.laplace
    values = kind(size=(20, 400))
    one, some = slice(5, 6), slice(5, 15)
    for louder, times in ((slice(None), 1.4), (one, 1.4), (one, 10.0), (some, 1.4), (some, 3.0)):
        more = values.copy()
        more[louder] *= times
        [found] = drawn_noise([run(more, 1.0, family)], ())
        assert found.verdict is None
        more[0] = 0.1 * more[0]
        [found] = drawn_noise([run(more, 1.0, family)], ())
        assert found.verdict is Verdict.UNSUPPORTED


def test_loud_draws_of_one_run_are_not_accused_of_their_lengths() -> None:
    """Eighty draws: of 80 equal lengths the chance is 1e-17; by other seeds it fails with 1e-6."""
    values = np.random.default_rng(8).standard_normal((80, 400))
    for louder in (slice(None), slice(40)):
        more = values.copy()
        more[louder] *= 1.4
        [found] = drawn_noise([run(more)], ())
        assert found.verdict is None


def test_noise_of_half_precision_is_not_examined() -> None:
    """At its scale or as it is; single precision is."""
    z = np.random.default_rng(8).standard_normal((2, 40, 100))
    as_it_is, at_its_scale = (3 * z).astype("f2"), 3 * z.astype("f2").astype(float)
    for values, is_half in ((as_it_is, True), (at_its_scale, True), ((3 * z).astype("f4"), False)):
        [found] = drawn_noise([run(each.astype(float), 3.0) for each in values], ())
        assert found.verdict is None
        assert any("half precision" in why for why in found.not_examined) == is_half


COARSE = {
    "float16": lambda z: z.astype("f2").astype(float),
    "bfloat16": lambda z: torch.tensor(z).bfloat16().double().numpy(),
    "cut off after four bits": lambda z: np.trunc(z * 2.0**4) / 2.0**4,
    "whole numbers": np.round,
    "cut off to whole numbers": np.trunc,
}


@pytest.mark.parametrize("kind", COARSE)
@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_half_of_coarse_noise_is_found(kind: str, family: str) -> None:
    """In half precision or on a grid, of size 3: in all draws, or in one round's.

    Right noise is accused with probability LEVEL = 1e-6 at most by other seeds.
    """
    rng = np.random.default_rng(8)
    right = 3 * (rng.standard_normal if family == "gaussian" else rng.laplace)(size=(2, 40, 400))
    for times in (1.0, np.full(40, 0.5), np.where(np.arange(40) == 5, 0.5, 1.0)):
        values = right * np.reshape(times, (-1, 1))
        [found] = drawn_noise([run(COARSE[kind](each), 3.0, family) for each in values], ())
        assert found.verdict is (None if np.all(times == 1) else Verdict.UNSUPPORTED)
        assert found.not_examined
        assert np.all(times == 1) or "size of" in found.title


@pytest.mark.parametrize("values", [(0.0,), (0.75,), (-3.0, 3.0)])
def test_few_values_are_no_noise_of_half_precision(values: tuple[float, ...]) -> None:
    """Zero, one number or two signs in the place of normal noise of size 3, in two runs."""
    drawn = np.random.default_rng(8).choice(values, (2, 40, 100))
    [found] = drawn_noise([run(each, 3.0) for each in drawn], ())
    assert found.verdict is Verdict.UNSUPPORTED


def test_a_repeated_draw_is_named() -> None:
    values = np.random.default_rng(8).standard_normal((5, 4))
    values[3] = values[1]
    [found] = drawn_noise([run(values)], ())
    assert found.verdict is Verdict.UNSUPPORTED
    assert "1 draws repeat an earlier one" in found.title


@pytest.mark.parametrize("n", [2, 60])
def test_discrete_noise_is_not_accused_of_its_law(n: int) -> None:
    """Differences of geometric numbers repeat by chance, if they are few; the same ones do not."""
    rng = np.random.default_rng(8)
    values = np.subtract(*rng.geometric(1 - np.exp(-1), (2, 300, n))).astype(float)
    [right] = drawn_noise([run(values, 1.0, "laplace")], ())
    assert right.verdict is None
    values[100:] = values[:1]
    [again] = drawn_noise([run(values, 1.0, "laplace")], ())
    assert (again.verdict is Verdict.UNSUPPORTED) == (n == 60)


def test_the_least_likely_line_of_noise_counts_as_one_of_all() -> None:
    """The p-value of the worse of two lines is twice its own."""
    rng = np.random.default_rng(8)
    good, odd = rng.standard_normal((40, 30)), 1.05 * rng.standard_normal((40, 30))

    def p(values: np.ndarray, name: str) -> float:
        draws = [NamedDraw(f"0/{i}/{name}", name, 0, i, 1.0, "gaussian") for i in range(40)]
        kept.update({d.key: v for d, v in zip(draws, values, strict=True)})
        drawn.extend(draws)
        return drawn_noise([Run(draws, kept)], ())[0].metrics[Name.P_VALUE].value

    kept: dict[str, np.ndarray] = {}
    drawn: list[NamedDraw] = []
    alone = min(p(good, "y"), p(odd, "z"))
    [both] = drawn_noise([Run(drawn, kept)], ())
    assert both.metrics[Name.P_VALUE].value == pytest.approx(min(1.0, 2 * alone))
    assert both.metrics[Name.P_VALUE].n == 2 * 40 * 30
    [named] = drawn_noise([Run(drawn, kept)], ["y"])
    assert named.metrics[Name.FOUND].n == 40


def test_noise_that_two_agents_draw_from_one_seed_is_one_draw() -> None:
    """Or less it; one agent's repeats, and those of pairs that no measured round has, are not."""
    values = {
        "0/0/p": (1, [1.0, 2.0]),
        "1/0/q": (1, [-1.0, -2.0]),
        "1/1/q": (1, [-1.0, -2.0]),
        "0/1/p": (2, [3.0, 4.0]),
        "2/0/r": (2, [3.0, 4.0]),
    }
    draws = [
        NamedDraw(key, key[-1], int(key[0]), i, 1.0, "gaussian", k)
        for i, (key, (k, _)) in enumerate(values.items())
    ]
    plain = Run(draws, {key: np.array(numbers) for key, (_, numbers) in values.items()})
    same = same_draws(plain, (), rounds=[1])
    assert same == {"1/0/q": ("0/0/p", -1), "1/1/q": ("0/0/p", -1)}
    assert same_draws(plain, ["p"], rounds=[1]) == {}
    assert same_draws(plain, (), rounds=[1, 2])["2/0/r"] == ("0/1/p", 1)
    assert owners(draws[:1], same) == {"0/0/p": frozenset({0, 1})}


def test_a_draw_of_no_numbers_tells_nothing() -> None:
    z = np.random.default_rng(5).standard_normal((40, 30))
    some, more = run(z), run(np.zeros((3, 0)))
    both = Run([*some.draws, *(d._replace(key=f"1/{d.key}") for d in more.draws)], dict(some.tape))
    both.tape.update({f"1/{key}": values for key, values in more.tape.items()})
    assert drawn_noise([more], ()) == []
    assert drawn_noise([both], ()) == drawn_noise([some], ())
