"""A function of another process: the same figures as here, and one line for what it may do."""

import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from dpaudit import mechanism
from dpaudit.errors import DpauditError
from dpaudit.files.finding import Role
from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism.elsewhere import Elsewhere, FunctionElsewhere, elsewhere
from dpaudit.mechanism.function import FunctionHere, load
from dpaudit.mechanism.source import examined, from_python
from dpaudit.progress import unreported
from dpaudit.recorder.log import Content
from dpaudit.recorder.mechanism import Caller, Calls, Message, read, values_of, write

pytestmark = pytest.mark.usefixtures("few_far_seeds", "few_pairs")

CODE = """
import os
import sys
import numpy as np

print("printed while it is loaded")

def noised(x):
    print("printed")
    return x / max(1.0, np.linalg.norm(x)) + np.random.normal(0, 4.0, x.shape)

def given(x, rng):
    return x + rng.laplace(0, 1.0, x.shape)

def tensor(x):
    import torch
    return x + torch.randn(x.shape, dtype=x.dtype)

def pairs(tensors):
    return [x + np.random.normal(size=x.shape) for x in tensors]

def raises(x):
    raise ValueError("too\\nlarge")

def exits(x):
    sys.exit(3)

def ends(x):
    os._exit(3)

def mutates(x):
    x += 1
    return x

def shorter(x):
    return x[:2]

def text(x):
    return "noised"

def float32(x):
    return x.astype("float32")

def confuses(x):
    os.write(int(sys.argv[-1]) if sys.argv[-1].isdigit() else 3, b"x" * 64)
    return x

number = 1
"""
VALUE = (np.arange(6.0),)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elsewhere") / "theirs.py"
    path.write_text(CODE)
    return path


def options(name: str, **asked: object) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": name, "shape": (6,), **asked})


@pytest.mark.parametrize(
    "name, asked",
    [
        ("noised", {"calls": 3}),
        ("given", {}),
        pytest.param("tensor", {"library": "torch", "dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param("pairs", {"shape": ((2,), (2, 2))}, marks=pytest.mark.slow),
    ],
)
def test_calls_there_return_what_calls_here_do(file: Path, name: str, asked: dict) -> None:
    o = options(f"{file}:{name}", **asked)
    value = (np.arange(2.0), np.ones((2, 2))) if o.is_list else VALUE
    here = FunctionHere(load(o.function), o)
    with elsewhere(sys.executable, o.function, 60.0) as process:
        there = FunctionElsewhere(process, o)
        assert there.takes_generator == here.takes_generator
        assert process.source == file
        assert there.tried(value) >= 0
        for called in (here, there):
            called.seed(7)
        other = tuple(2 * part for part in value)
        assert np.array_equal(there.runs([value, other], 5), here.runs([value, other], 5))
        seeds = [3, 1, 3]
        found = there.in_turn([value], 3, seeds)
        assert np.array_equal(found, here.in_turn([value], 3, seeds))
        assert np.array_equal(found[0], found[2])


def test_an_audit_there_has_the_figures_of_one_here(file: Path) -> None:
    name, claim = f"{file}:noised", {"text": "ours", "epsilon": 1.0, "delta": 1e-5}
    asked = {"function": name, "shape": (6,), "runs": 100, "python": sys.executable}
    config = from_python({"mechanism": asked, "claim": [{**claim, "adjacency": "replace-one"}]})
    here = examined(config, FunctionHere(load(name), config.mechanism), unreported)
    with elsewhere(sys.executable, name, 60.0) as process:
        there = examined(config, FunctionElsewhere(process, config.mechanism), unreported)
    assert there[:2] == here[:2]
    assert {finding.role for finding in there[1]} >= {Role.MEASURED, Role.TEST, Role.NOISE}


BAD = {
    "raises": ("DPA075", "the function raised ValueError: too large; called with shape (6,)"),
    "exits": ("DPA075", "the function raised SystemExit: 3; called with shape (6,)"),
    "mutates": ("DPA078", "changes its input in place; called with shape (6,), numbers from 0"),
    "shorter": ("DPA075", "returned shape (2,); expected (6,)"),
    "float32": ("DPA075", "returned float32; expected float64"),
    "text": ("DPA075", "returned str; expected an array of numbers"),
}


class InThisProcess:
    """What ``Elsewhere`` is, without another process: messages pass as bytes nonetheless."""

    takes_generator = False

    def __init__(self, name: str) -> None:
        self._caller = Caller(load(name), None)

    def asked(self, header: dict, contents: list[Content]) -> Message:
        answer = self._caller.answer(_passed(Message(header, contents)))
        return _passed(answer)


def _passed(message: Message) -> Message:
    file = BytesIO()
    write(file, message)
    file.seek(0)
    found = read(file)
    assert found is not None
    assert not file.read()
    return found


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_called_there_is_one_line(file: Path, name: str) -> None:
    code, said = BAD[name]
    name = f"{file}:{name}"
    with pytest.raises(DpauditError) as error:
        FunctionElsewhere(InThisProcess(name), options(name)).tried(VALUE)
    assert error.value.code == code
    assert said in str(error.value)
    assert len(str(error.value).split("\n")) == 1


@pytest.mark.parametrize(
    "name, said", [("ends", "it ended with exit code 3"), ("confuses", "it wrote something else")]
)
def test_a_process_that_ends_or_writes_is_one_line(file: Path, name: str, said: str) -> None:
    name = f"{file}:{name}"
    with elsewhere(sys.executable, name, 60.0) as process, pytest.raises(DpauditError) as error:
        FunctionElsewhere(process, options(name)).tried(VALUE)
    assert error.value.code == "DPA075"
    assert said in str(error.value)
    assert len(str(error.value).split("\n")) == 1


@pytest.mark.parametrize(
    "python, name, code, said",
    [
        (sys.executable, "nowhere:noised", "DPA074", "No module named 'nowhere'"),
        (sys.executable, "{file}:absent", "DPA074", "it has no absent; it has "),
        (sys.executable, "{file}:number", "DPA074", "expected a function, got int"),
        ("/no/such/python", "{file}:noised", "DPA057", "mechanism.python: /no/such/python"),
    ],
)
def test_what_is_not_loaded_there_is_one_line(
    file: Path, python: str, name: str, code: str, said: str
) -> None:
    with pytest.raises(DpauditError, match=said) as error:
        Elsewhere(python, name.format(file=file), 60.0)
    assert error.value.code == code


def test_a_function_of_this_process_has_no_python(file: Path) -> None:
    with pytest.raises(DpauditError, match="a function of this process"):
        mechanism.audit(load(f"{file}:noised"), {"epsilon": 1.0}, (6,), python=sys.executable)


def test_a_recorder_of_another_protocol_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.mechanism.elsewhere.PROTOCOL", 99)
    with pytest.raises(DpauditError) as error, elsewhere(sys.executable, f"{file}:noised", 60.0):
        pass
    assert error.value.code == "DPA074"


def test_a_call_that_never_ends_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "waits.py"
    path.write_text("import time\n\ndef waits(x):\n    time.sleep(600)\n")
    with elsewhere(sys.executable, f"{path}:waits", 60.0) as process:
        process._seconds = 0.2
        with pytest.raises(DpauditError, match=r"within 0\.2 s") as error:
            FunctionElsewhere(process, options(f"{path}:waits")).tried(VALUE)
    assert error.value.code == "DPA079"


def test_without_numpy_a_value_is_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.recorder.mechanism.library", lambda name: None)
    content = Content("0.0", (3,), "float64", np.arange(3.0).tobytes())
    header = {"several": False, "returns_several": False, "library": "numpy", "turns": 1}
    asked = Message({**header, "times": 1, "seeds": None, "watch": True}, [content])
    assert values_of(asked) == [[content]]
    answer = Caller(lambda x: [2 * one for one in x], None).answer(asked)
    assert answer.header["groups"] == [{"parts": [[[3], "float64"]], "calls": 1}]
    assert np.frombuffer(answer.contents[0].data).tolist() == [0.0, 2.0, 4.0]
    assert set(header) < {*Calls._fields}
