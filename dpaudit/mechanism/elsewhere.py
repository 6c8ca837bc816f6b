"""A function in an environment of its own: it is called there, and only arrays come back.

The other process is ``python -m dpaudit_recorder.mechanism``; what passes is described in
docs/recorder-protocol.md. Nothing of what it answers is trusted or unpickled.
"""

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import dpaudit.recorder
from dpaudit.accounting.privacy_loss import Array
from dpaudit.errors import ConfigError, shortened
from dpaudit.files.interpreter import in_environment, interpreter
from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.recorder import PROTOCOL
from dpaudit.recorder.log import Content
from dpaudit.recorder.mechanism import Message, read, write
from dpaudit.recorder.values import array_from, content_of, tensor_from
from dpaudit.text import one_line

from .function import (
    LONGEST,
    AuditedFunction,
    FunctionError,
    JaxDraws,
    Value,
    changed,
    flat,
    raised,
)

START = (  # the recorder is loaded from its folder, whatever is installed there by its name
    "import importlib.util as u, sys; from os.path import join; f = sys.argv.pop(1); "
    "s = u.spec_from_file_location('dpaudit_recorder', join(f, '__init__.py'), "
    "submodule_search_locations=[f]); m = sys.modules[s.name] = u.module_from_spec(s); "
    "s.loader.exec_module(m); from dpaudit_recorder.mechanism import main; sys.exit(main())"
)
FOLDER = Path(dpaudit.recorder.__file__).resolve().parent
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
NUMBERS = 10**6  # numbers in the answer to one request, roughly
MOST_CALLS = 2_000  # calls per request
BAD_ANSWER = (ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError)
CLOSING = 5.0  # seconds that a process has to end


class Elsewhere:
    """The process in which a function lives.

    Args:
        python: the interpreter of its environment.
        name: "module:function" or "file.py:function".
        seconds: that one answer may take.

    Raises:
        ConfigError: the interpreter does not start, or the function cannot be loaded there.
    """

    def __init__(self, python: str, name: str, seconds: float) -> None:
        self.path = interpreter(python, "mechanism.python")
        self.name, self._seconds = name, seconds
        self._process = subprocess.Popen(
            [str(self.path), "-c", START, str(FOLDER), name],
            env={**in_environment(self.path, os.environ), **ALONE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            ready = self._read("DPA074", f'"{name}" cannot be loaded by {self.path}').header
            if ready.get("kind") != "ready" or ready.get("protocol") != PROTOCOL:
                said = shortened(one_line(str(ready.get("said"))), LONGEST)
                text = f'"{name}" cannot be loaded by {self.path}: {said}'
                raise ConfigError("DPA074", text)
        except BaseException:
            self.close()
            raise
        self.takes_generator = ready.get("generator") is not None
        self.source = Path(ready["file"]) if ready.get("file") else None

    def close(self) -> None:
        """End the process."""
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            with suppress(BrokenPipeError):  # it has ended
                end.close()
        try:
            self._process.wait(CLOSING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def asked(self, header: dict[str, Any], contents: Sequence[Content]) -> Message:
        """The answer to one request. Raises FunctionError: the process ends, or takes too long."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer is then missing
            write(self._process.stdin, Message(header, contents))
        return self._read("DPA075", "the function's process did not answer")

    def _read(self, code: str, text: str) -> Message:
        """One answer. Raises FunctionError, or ConfigError of a function that is not loaded."""
        assert self._process.stdout is not None
        late = threading.Event()  # no clock is read: on a busy machine it may start after the timer

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(self._seconds, end)
        timer.start()
        try:
            found = read(self._process.stdout)
            if found is not None:
                return found
            said = f"{text}: it ended with exit code {self._process.wait()}"
        except BAD_ANSWER as error:
            code, said = "DPA075", f"{text}: it wrote something else: {type(error).__name__}"
        finally:
            timer.cancel()
        if late.is_set():
            code, said = "DPA079", f"{text} within {self._seconds:g} s"
        raise FunctionError(code, said)


@contextmanager
def elsewhere(python: str, name: str, seconds: float) -> Iterator[Elsewhere]:
    """The process of a function, as long as it is needed. Raises as ``Elsewhere``."""
    process = Elsewhere(python, name, seconds)
    try:
        yield process
    finally:
        process.close()


class FunctionElsewhere(AuditedFunction):
    """A function of another process."""

    def __init__(self, process: Elsewhere, options: MechanismOptions) -> None:
        super().__init__(options)
        self._process, self.takes_generator = process, process.takes_generator
        self._seed: int | None = None
        self.seed(0)

    def beside(self, options: MechanismOptions) -> "FunctionElsewhere":
        return FunctionElsewhere(self._process, options)

    def seed(self, seed: int) -> None:
        super().seed(seed)  # for this process's draws, which noise is compared with
        self._seed = seed

    def tried(self, value: Value) -> float:
        answer = self._answer([value], 1, None, 1, watch=True)
        self._arrays(answer)
        return float(answer.header["seconds"])

    def drawn_from(self, value: Value, seed: int) -> set[str]:
        self.seed(seed)
        answer = self._answer([value], 1, None, 1, watch=True)
        self._arrays(answer)
        names = answer.header.get("from")
        return {*map(str, names)} if isinstance(names, list) else set()

    def in_turn(
        self,
        values: Sequence[Value],
        turns: int,
        seeds: Sequence[int] | None = None,
        times: int = 1,
    ) -> Array:
        numbers = sum(map(prod, self.options.output_shapes)) * len(values) * times
        most = int(np.clip(NUMBERS // max(numbers, 1), 1, max(1, MOST_CALLS // times)))
        found = []
        for start in range(0, turns, most):
            some = min(most, turns - start)
            own = None if seeds is None else list(seeds[start : start + some])
            found.append(self._arrays(self._answer(values, some, own, times)))
        return np.concatenate(found).reshape(turns, len(values), -1)

    def drawn_by_jax(self, value: Value, seeds: Sequence[int]) -> JaxDraws | None:
        answer = self._answer([value], 1, list(seeds), 1, draws=True)
        header = answer.header
        if header.get("family") not in ("gaussian", "laplace"):
            return None
        try:
            numbers = [
                np.concatenate([np.asarray(part, float).ravel() for part in parts])
                for parts in _calls(answer)
            ]
            keys = [list(map(str, some)) for some in header["keys"]]
        except BAD_ANSWER as error:
            raise _bad(error) from None
        return JaxDraws.of(header["family"], numbers, keys)

    def _answer(
        self,
        values: Sequence[Value],
        turns: int,
        seeds: list[int] | None,
        times: int,
        watch: bool = False,
        draws: bool = False,
    ) -> Message:
        o = self.options
        given = [self.given(value) for value in values]
        contents = [
            content_of(tensor, f"{i}.{j}")
            for i, value in enumerate(given)
            for j, tensor in enumerate(value if o.is_list else [value])
        ]
        asked = {
            "several": o.is_list,
            "returns_several": o.returns_list,
            "library": o.library,
            "turns": turns,
            "times": times,
            "seeds": seeds,
            "watch": watch,
            "draws": draws,
        }
        answer = self._process.asked({**asked, "seed": self._seed}, contents)
        self._seed = None
        self._refuse(answer.header, given)
        return answer

    def _refuse(self, header: dict[str, Any], given: Sequence[Any]) -> None:
        """Raises FunctionError for an answer without results."""
        kind, said = header.get("kind"), shortened(one_line(str(header.get("said"))), LONGEST)
        if kind == "raised":
            raise raised(said, given[int(header["value"])])
        if kind == "changed":
            raise changed(given[int(header["value"])])
        if kind not in ("returned", "drawn"):
            raise FunctionError(
                "DPA075", f"the function returned {said}; expected an array of numbers"
            )

    def _arrays(self, answer: Message) -> Array:
        """[n_calls, n_out] of an answer. Raises FunctionError: other shapes or dtypes, or NaN."""
        several = self.options.returns_list
        try:
            return np.stack(
                [flat(one if several else one[0], self.options) for one in _calls(answer)]
            )
        except BAD_ANSWER as error:
            raise _bad(error) from None


def _bad(error: Exception) -> FunctionError:
    return FunctionError("DPA075", f"the function's process answered badly: {error}")


def _calls(answer: Message) -> Iterator[list[Any]]:
    """The arrays of each call of an answer. Raises one of BAD_ANSWER."""
    data, at = bytes(answer.contents[0].data), 0
    for group in answer.header["groups"]:
        parts = [(tuple(map(int, shape)), str(dtype)) for shape, dtype in group["parts"]]
        size = sum(_bytes(*part) for part in parts)
        for _ in range(int(group["calls"])):
            yield list(_parts(data[at : at + size], parts))
            at += size


def _parts(data: bytes, parts: Sequence[tuple[tuple[int, ...], str]]) -> Iterator[Any]:
    """The arrays of one call; a tensor of bfloat16, which NumPy has not. Raises ValueError."""
    at = 0
    for shape, dtype in parts:
        content = Content("", shape, dtype, data[at : (at := at + _bytes(shape, dtype))])
        yield tensor_from(content) if dtype == "bfloat16" else array_from(content)


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Size of an array in bytes. Raises TypeError for an unknown dtype."""
    return prod(shape) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
