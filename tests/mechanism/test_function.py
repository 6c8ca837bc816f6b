"""The audited function: what stops an audit, in one line with a code."""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit import mechanism
from dpaudit.errors import DpauditError
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism.function import _from_file, load

pytestmark = pytest.mark.usefixtures("few_far_seeds", "few_pairs")

SHAPE = (6,)


def noise(x: np.ndarray) -> np.ndarray:
    return x + np.random.normal(size=x.shape)


def raises(x: np.ndarray) -> np.ndarray:
    raise RuntimeError("no such\nlayer")


def raises_if_large(x: np.ndarray) -> np.ndarray:
    if np.abs(x).max() > 1:
        raise ValueError("too large")
    return noise(x)


def mutates(x: np.ndarray) -> np.ndarray:
    x += np.random.normal(size=x.shape)
    return x


def slow(x: np.ndarray) -> np.ndarray:
    time.sleep(0.02)
    return noise(x)


def seeds_itself(x: np.ndarray) -> np.ndarray:
    return x + np.random.default_rng(5).normal(size=x.shape)


KEPT = np.zeros(SHAPE)


def keeps_a_sum(x):
    """Momentum of values without noise."""
    KEPT[:] = 0.9 * KEPT + x
    return KEPT + np.random.normal(size=x.shape)


CALLED: dict[str, int] = {}


def noised_from_call(n: int):
    """Noise that calls before the n-th do not have, as where a warm-up has none."""

    def noised(x: np.ndarray) -> np.ndarray:
        name = f"from call {n}"
        CALLED[name] = CALLED.get(name, 0) + 1
        return noise(x) if CALLED[name] >= n else x

    return noised


def clipped_from_the_second_call(x: np.ndarray) -> np.ndarray:
    CALLED["clipped"] = CALLED.get("clipped", 0) + 1
    return noise(x / max(1.0, np.linalg.norm(x)) if CALLED["clipped"] > 1 else x)


class Unspeakable(BaseException):
    """No Exception, and without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_what_has_no_text(x: np.ndarray) -> np.ndarray:
    raise Unspeakable


def of_a_kind(changed):
    """Noise of torch, changed into what is no plain tensor."""
    return lambda x: changed(torch.from_numpy(noise(x)))


SPARSE, COMPLEX = of_a_kind(torch.Tensor.to_sparse), of_a_kind(lambda z: z.to(torch.complex64))

BAD = {
    "another shape": (lambda x: noise(x)[:3], "DPA075", "returned shape (3,); expected (6,)"),
    "another dtype": (lambda x: noise(x).astype("float32"), "DPA075", "float32; expected float64"),
    "NaN": (lambda x: noise(x) * np.nan, "DPA075", "NaN or infinity, in 6 numbers"),
    "no numbers": (lambda x: "noised", "DPA075", "returned str; expected an array of numbers"),
    "lists of other lengths": (
        lambda x: [[1.0], [1.0, 2.0]],
        "DPA075",
        "the function returned list",
    ),
    "a sparse tensor": (SPARSE, "DPA075", "returned Tensor; expected an array of numbers"),
    "a complex tensor": (COMPLEX, "DPA075", "returned complex64; expected an array of numbers"),
    "no text": (raises_what_has_no_text, "DPA075", "the function raised Unspeakable; called"),
    "complex": (lambda x: x + 1j, "DPA075", "returned complex128; expected an array of numbers"),
    "exits": (lambda x: sys.exit(3), "DPA075", "raised SystemExit: 3"),
    "raises": (raises, "DPA075", "raised RuntimeError: no such"),
    "raises for some inputs": (raises_if_large, "DPA075", "called with shape (6,), numbers"),
    "not random": (lambda x: x, "DPA076", "2,000 calls with one value return the same"),
    "seeds itself": (seeds_itself, "DPA076", "noise that it seeds itself"),
    "beyond its seed": (
        lambda x: x + np.random.default_rng().normal(size=x.shape),
        "DPA077",
        "random beyond its seed",
    ),
    "keeps a sum": (keeps_a_sum, "DPA077", "or keeps something from call to call"),
    "noise from call 2 on": (noised_from_call(2), "DPA077", "keeps something from call to call"),
    "noise from call 11 on": (noised_from_call(11), "DPA077", "keeps something from call to call"),
    "a clip from call 2 on": (clipped_from_the_second_call, "DPA077", "keeps something from call"),
    "changes its input": (mutates, "DPA078", "changes its input in place"),
    "slow": (slow, "DPA079", "expected 5 s at most"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_audited_is_one_line(name: str) -> None:
    function, code, said = BAD[name]
    seconds = 5 if name == "slow" else 600  # a busy machine is slow, too
    with pytest.raises(DpauditError) as error:
        mechanism.audit(
            function, claim={"epsilon": 1.0, "delta": 1e-5}, shape=SHAPE, runs=100, seconds=seconds
        )
    assert error.value.code == code
    assert said in str(error.value)
    assert len(str(error.value).split("\n")) == 1


def test_booleans_are_zero_and_one() -> None:
    """Randomised response: the truth in 3 of 4 calls is ln 3, in 19 of 20 it is ln 19.

    Of 100 runs and seed 0. The first is refuted with probability 5% at most. To miss one of the
    others, 17 of 100 lies of probability 5% are needed: less than 1e-4.
    """

    def answers(lies: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: (x > 0) ^ (np.random.random(x.shape) < lies)

    asked: dict[str, Any] = {"claim": {"epsilon": 1.2}, "shape": (1,), "runs": 100}
    assert mechanism.audit(answers(0.25), **asked).verdict is Verdict.NOT_REFUTED
    assert mechanism.audit(answers(0.05), **asked).verdict is Verdict.REFUTED
    numbers = mechanism.audit(lambda x: bool(answers(0.05)(x)[0]), output_shape=(), **asked)
    assert numbers.verdict is Verdict.REFUTED


@pytest.mark.parametrize("dtype, advice", [("float32", "give output_dtype"), ("uint32", "return ")])
def test_an_output_dtype_is_advised_if_it_can_be_given(dtype: str, advice: str) -> None:
    with pytest.raises(DpauditError) as error:
        mechanism.audit(lambda x: noise(x).astype(dtype), {"epsilon": 1.0}, SHAPE, runs=100)
    assert f"returned {dtype}; expected float64" in str(error.value)
    assert error.value.problems[0].help.startswith(advice)


@pytest.mark.parametrize(
    "options, code, said",
    [
        ({"shape": (0,)}, "DPA005", "between 1 and"),
        ({"dtype": "float128"}, "DPA006", "mechanism.dtype"),
        ({"epsilon": -1.0}, "DPA004", "claim[1].epsilon"),
        ({"adjacency": "function"}, "DPA047", "expected add-remove or replace-one"),
        ({"low": 1.0, "high": 0.0}, "DPA005", "not below"),
        ({"records": True, "sensitivity": 1.0}, "DPA005", "whose rows are records"),
        ({"dtype": "bfloat16"}, "DPA005", 'library = "torch"'),
        ({"shap": 3}, "DPA001", "unknown key"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict, code: str, said: str) -> None:
    asked = {"shape": SHAPE, "adjacency": "replace-one", **options}
    claim = {"epsilon": asked.pop("epsilon", 1.0), "delta": 1e-5}
    with pytest.raises(DpauditError) as error:
        mechanism.audit(noise, claim=claim, **asked)
    assert error.value.code == code
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["nothing", "no_such_module:f", "math:pi", "math:no_such"])
def test_a_name_that_is_no_function_is_refused(name: str) -> None:
    with pytest.raises(DpauditError) as error:
        load(name)
    assert error.value.code == "DPA074"


def test_a_file_is_loaded_whatever_has_its_name(tmp_path) -> None:
    for i in (1, 2):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "same.py").write_text(f"def value(x):\n    return {i}\n")
    assert [load(f"{tmp_path}/{i}/same.py:value")(0) for i in (1, 2)] == [1, 2]
    with pytest.raises(DpauditError, match="No such file"):
        load(f"{tmp_path}/none.py:value")


def test_random_streams_of_the_caller_go_on_as_before() -> None:
    np.random.seed(3)
    torch.manual_seed(3)
    expected = np.random.normal(size=4), torch.rand(4)
    np.random.seed(3)
    torch.manual_seed(3)
    mechanism.audit(noise, claim={"epsilon": 1.0, "delta": 1e-5}, shape=SHAPE, runs=100)
    assert np.array_equal(np.random.normal(size=4), expected[0])
    assert torch.equal(torch.rand(4), expected[1])


def test_a_name_is_that_of_the_module_found_now(tmp_path, monkeypatch) -> None:
    """Two folders with a module of one name: the function of the first was audited for both."""
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ours_here.py").write_text(f"def noised(x):\n    return {value}\n")
    assert load(f"{tmp_path / 'a' / 'ours_here.py'}:noised")(0) == 1
    monkeypatch.syspath_prepend(tmp_path / "b")
    assert load("ours_here:noised")(0) == 2
    monkeypatch.syspath_prepend(tmp_path / "a")
    assert load("ours_here:noised")(0) == 1


def test_a_package_that_a_function_lacks_is_named(tmp_path) -> None:
    """Its module is there: the name is right, and an environment is missing."""
    file = tmp_path / "mine.py"
    file.write_text("import absent_framework.mods\n")
    with pytest.raises(DpauditError) as error:
        load(f"{file}:noised")
    [problem] = error.value.problems
    assert problem.code == "DPA074"
    assert problem.help.startswith("install absent_framework beside dpaudit, or name the Python")
    with pytest.raises(DpauditError) as error:
        load("absent_module:noised")
    assert error.value.problems[0].help == ""


def test_a_file_that_is_no_python_is_no_module(tmp_path) -> None:
    (tmp_path / "f.txt").write_text("f = abs")
    with pytest.raises(ImportError, match=r"f.txt is no module"):
        _from_file(tmp_path / "f.txt")
