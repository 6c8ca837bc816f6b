"""Noise of JAX: it is recognised where each draw has a key of its own, and nowhere else."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpaudit import mechanism
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism.function import JaxDraws
from dpaudit.recorder.draws.jax_noise import noise_of

FUNCTIONS = Path(__file__).with_name("jax_functions.py")
SHAPES = {"two_tensors": [(3,), (3,)], "one_key_for_two_tensors": [(3,), (3,)]}


class Key(SimpleNamespace):
    """In the place of one of JAX, which is not installed here."""

    dtype = "key"


class Random(SimpleNamespace):
    """Its module of draws."""

    def __init__(self) -> None:
        super().__init__(
            normal=lambda key, shape: np.random.default_rng(key.bits).normal(size=shape),
            split=lambda key: [Key(bits=[*key.bits, i]) for i in (0, 1)],
            key_data=lambda key: np.array(key.bits),
        )


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(
        __spec__="of a module",
        random=Random(),
        disable_jit=lambda disable=True: nullcontext(),
        core=SimpleNamespace(Tracer=str),
        dtypes=SimpleNamespace(issubdtype=lambda a, b: True, prng_key="key"),
    )
    monkeypatch.setitem(sys.modules, "jax", found)
    return found


def test_noise_by_a_key_of_its_own_is_seen(jax: SimpleNamespace) -> None:
    normal = jax.random.normal

    def call() -> None:
        for key in jax.random.split(Key(bits=[7])):
            jax.random.normal(key, (3,))

    found = noise_of(call)
    assert found is not None
    assert (found.family, len(set(found.keys))) == ("gaussian", 2)
    assert np.array_equal(found.drawn[1], np.random.default_rng([7, 1]).normal(size=3))
    assert jax.random.normal is normal


@pytest.mark.parametrize("use", ["normal", "split"])
def test_noise_by_a_key_that_is_used_again_is_not(jax: SimpleNamespace, use: str) -> None:
    def call() -> None:
        key = Key(bits=[7])
        jax.random.normal(key, (3,))
        getattr(jax.random, use)(*([key, (3,)] if use == "normal" else [key]))

    assert noise_of(call) is None
    assert noise_of(lambda: None) is None
    assert noise_of(lambda: 1 / 0) is None


def test_calls_that_share_a_key_have_no_noise_of_their_own() -> None:
    numbers = [np.zeros(2), np.ones(2)]
    assert JaxDraws.of("gaussian", numbers, [["a"], ["b"]]) is not None
    assert JaxDraws.of("gaussian", numbers, [["a"], ["a"]]) is None
    assert JaxDraws.of("gaussian", [np.zeros(2), np.ones(3)], [["a"], ["b"]]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("right", Verdict.SUPPORTED),
        ("with_laplace", Verdict.SUPPORTED),
        ("with_old_key", Verdict.SUPPORTED),
        ("two_tensors", Verdict.SUPPORTED),
        ("half_of_the_noise", Verdict.UNSUPPORTED),
        ("one_key_for_two_tensors", None),
        ("key_that_was_split", None),
        ("few_keys", None),
        ("key_from_the_value", None),
        ("coin_beside", None),
        ("coin_of_numpy", None),
    ],
)
def test_functions_of_jax_in_their_environment(name: str, verdict: Verdict | None) -> None:
    """Epsilon of mu = 1 is 4.377. None: whatever is said, the claim is not supported."""
    python = Path(os.environ.get("DPAUDIT_ENVIRONMENTS", "none")) / "jax-privacy" / "bin" / "python"
    if not python.exists():
        pytest.skip("DPAUDIT_ENVIRONMENTS has no environment of jax-privacy")
    claim = {"epsilon": 1.0} if name == "with_laplace" else {"epsilon": 4.4, "delta": 1e-5}
    result = mechanism.audit(
        f"{FUNCTIONS}:{name}",
        claim,
        SHAPES.get(name, (6,)),
        "add-remove",
        python=str(python),
        dtype="float32",
        runs=300,
    )
    assert result.verdict is verdict if verdict else result.verdict is not Verdict.SUPPORTED
