"""What is drawn after a seed: by the generators themselves, beside the code."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism import shifts
from dpaudit.mechanism.function import JaxDraws
from dpaudit.mechanism.shifts import DRAWS, GIVEN_DRAWS, JAX_DRAWS, _summed


def options(**asked: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:b", **{"shape": (3,), **asked}})


def torch_laplace(n: int) -> np.ndarray:
    """-sign(u) ln(1 - |u|), of u uniform on (-1, 1)."""
    u = torch.rand(n) * (2 - torch.finfo(torch.float32).eps) + torch.finfo(torch.float32).eps - 1
    return (-u.sign() * torch.log1p(-u.abs())).numpy()


def after(draw: int, seed: int, n: int) -> np.ndarray:
    own = np.random.RandomState(seed)
    torch.manual_seed(seed)
    python = random.Random(seed)
    return [
        lambda: own.standard_normal(n),
        lambda: torch.randn(n).numpy(),
        lambda: torch.randn(n, dtype=torch.float64).numpy(),
        lambda: np.array([python.gauss(0.0, 1.0) for _ in range(n)]),
        lambda: np.array([python.normalvariate(0.0, 1.0) for _ in range(n)]),
        lambda: own.laplace(size=n),
        lambda: torch_laplace(n),
    ][draw]()


@pytest.mark.parametrize("i", range(7))
def test_draws_after_a_seed_are_those_of_the_generator(i: int) -> None:
    function: Any = SimpleNamespace(options=options(), generator=None)
    draw = DRAWS[i]
    seeds = (5, 2**32 + 6) if "numpy" in draw.generator else (5, 6)
    expected = np.stack([after(i, seed % 2**32, 3) for seed in seeds])
    found = draw.seeded(function, (), seeds)
    assert found is not None
    assert draw.family == ("laplace" if "aplace" in draw.name else "gaussian")
    assert found == pytest.approx(expected, rel=1e-3 if i == 6 else 1e-12)
    assert draw.several is not None
    assert draw.following is not None
    twice = draw.several(2).seeded(function, (), (5,))
    assert twice is not None
    draw.seeded(function, (), (5,))
    assert twice[0] == pytest.approx(np.concatenate([found[0], draw.following(function)]))


@pytest.mark.parametrize(
    ("i", "method", "more"),
    [
        (0, "standard_normal", {}),
        (1, "standard_normal", {"dtype": np.float32}),
        (2, "laplace", {}),
    ],
)
def test_draws_of_a_given_generator_are_its_own(i: int, method: str, more: dict) -> None:
    function: Any = SimpleNamespace(options=options(shape=((1,), (2, 2))), generator=None)
    found = GIVEN_DRAWS[i].seeded(function, (), (7,))
    rng = np.random.default_rng(7)
    one, other = (getattr(rng, method)(size=shape, **more) for shape in ((1,), (2, 2)))
    assert found is not None
    assert found[0].tolist() == [*one, *other.ravel()]
    assert GIVEN_DRAWS[i].generator == "rng"


def test_draws_by_keys_are_of_one_family_and_size() -> None:
    normal, laplace = JAX_DRAWS

    def seen(family: Any, n: int, draw: Any = normal) -> Any:
        drawn = None if family is None else JaxDraws(family, np.ones((2, n)), frozenset("ab"))
        function: Any = SimpleNamespace(options=options(), drawn_by_jax=lambda value, seeds: drawn)
        return draw.seeded(function, (), (1, 2))

    assert seen("gaussian", 3).tolist() == [[1.0] * 3] * 2
    assert seen("laplace", 3, laplace) is not None
    for family, n in ((None, 3), ("gaussian", 2), ("laplace", 3)):
        assert seen(family, n) is None
    assert (normal.most, normal.generator, normal.following) == (250, "", None)


@pytest.mark.parametrize(
    ("n_out", "calls"), [(2, 72), (25, 808), (26, 788), (100, 808), (400, 808), (401, 0)]
)
def test_sums_are_fitted_to_twice_as_many_calls(n_out: int, calls: int) -> None:
    """Of 16 outputs at most, and 400 numbers; none where a fit is not of floats of 32 bits."""
    asked: list[int] = []

    class Seen(Exception):
        pass

    def in_turn(values: Any, turns: int, seeds: Any) -> Any:
        asked.append(turns)
        assert list(seeds) == list(range(shifts.FITTED, shifts.FITTED + turns))
        raise Seen

    function: Any = SimpleNamespace(options=options(shape=(n_out,)), in_turn=in_turn)
    if calls:
        with pytest.raises(Seen):
            _summed(function, ())
        assert asked == [calls]
    else:
        assert _summed(function, ()) is None
    function.options = options(shape=(n_out,), output_dtype="float16")
    assert _summed(function, ()) is None
