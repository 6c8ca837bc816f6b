"""Calls one function in the environment in which it lives, for an audit that runs elsewhere.

    python -m dpaudit_recorder.mechanism MODULE:FUNCTION

Reads requests from stdin and answers each on stdout. A message is eight bytes, the length of a JSON
object in little-endian order; that object; and the contents of its ``tensors``, one after the
other. docs/recorder-protocol.md has the keys. What the function prints goes to stderr.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import random
import sys
from array import array
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from . import PROTOCOL
from .clock import working_seconds
from .draws.generators import watched
from .draws.jax_noise import JaxNoise, noise_of
from .errors import RecorderError
from .log import Content
from .values import array_from, content_of, is_tensor, library, tensor_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import IO

GENERATORS = ("rng", "generator")  # parameters by which a function is given a NumPy generator
KEY = "key"  # the parameter by which a function of JAX is given a fresh key


class Refused(Exception):
    """Why a request has no other answer: the fields of that answer."""

    def __init__(self, kind: str, said: str = "", value: int | None = None) -> None:
        super().__init__(said)
        self.fields = {"kind": kind, "said": said, "value": value}


class Message(NamedTuple):
    """A JSON object and the tensors that it names."""

    header: dict[str, Any]
    contents: Sequence[Content] = ()


class Calls(NamedTuple):
    """What one request asks for: the values in turn, each several times, after seeds or not."""

    values: list[list[Content]]
    several: bool  # whether a value is a list of tensors
    returns_several: bool
    library: str
    turns: int
    times: int
    seeds: list[int] | None  # one for each turn, set before each value
    watch: bool  # whether to look if the function changes its input, and what it draws from
    draws: bool  # whether what JAX draws is asked for, in the place of results


def main() -> int:
    """Load the function, say so, and answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(ImportError):
        importlib.import_module("numpy")  # values are its arrays, where it is installed
    try:
        function = load(sys.argv[1])
        about = {"generator": generator_name(function), "file": file_of(function)}
    except Exception as error:
        write(answers, Message({"kind": "refused", "said": said(error)}))
        return 1
    write(answers, Message({"kind": "ready", "protocol": PROTOCOL, **about}))
    caller = Caller(function, about["generator"])
    while True:
        asked = read(sys.stdin.buffer)
        if asked is None:
            return 0
        write(answers, caller.answer(asked))


def write(file: IO[bytes], message: Message) -> None:
    """One message, with the places of its contents in ``tensors``."""
    places, end = [], 0
    for name, shape, dtype, data in message.contents:
        size = memoryview(data).nbytes
        places.append([name, list(shape), dtype, end, size])
        end += size
    text = json.dumps({**message.header, "tensors": places}).encode()
    file.write(len(text).to_bytes(8, "little") + text)
    for content in message.contents:
        file.write(content.data)
    file.flush()


def read(file: IO[bytes]) -> Message | None:
    """One message; None: the other end is closed."""
    length = file.read(8)
    if len(length) < 8:
        return None
    header = json.loads(file.read(int.from_bytes(length, "little")))
    places = header.pop("tensors")
    contents = [Content(name, tuple(shape), dtype, b"") for name, shape, dtype, _, _ in places]
    return Message(header, [c._replace(data=file.read(p[4])) for c, p in zip(contents, places)])


def load(name: str) -> Callable[..., Any]:
    """The function "module:function" or "file.py:function". Raises whatever the module raises."""
    place, _, attribute = name.partition(":")
    if place.endswith(".py"):
        path = os.path.abspath(place)
        sys.path.insert(0, os.path.dirname(path))
        stem = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(stem, path)
        assert spec is not None
        assert spec.loader is not None
        found: Any = importlib.util.module_from_spec(spec)
        sys.modules[stem] = found
        spec.loader.exec_module(found)
    else:
        if sys.path[0] != "":
            sys.path.insert(0, "")
        found = importlib.import_module(place)
    function = within(found, attribute)
    if not callable(function):
        raise TypeError(f"expected a function, got {type(function).__name__}")
    return function


def within(module: Any, attribute: str) -> Any:
    """What "name" or "Class.method" is in a module; AttributeError names the functions it has."""
    found: Any = module
    first, *more = attribute.split(".")
    if not hasattr(module, first):
        named = inspect.getmembers(module, inspect.isfunction)
        own = [n for n, f in named if f.__module__ == module.__name__ and not n.startswith("_")]
        raise AttributeError(f"it has no {first}; it has {', '.join(own) or 'no function'}")
    for part in (first, *more):
        found = getattr(found, part)
    return found


def generator_name(function: Callable[..., Any]) -> str | None:
    """The parameter by which it is given a generator; None if it has none."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    known = (*GENERATORS, KEY) if library("jax") is not None else GENERATORS
    return next((name for name in known if name in parameters), None)


def given_generator(name: str, generator: Any) -> Any:
    """What a function is given by such a parameter: the generator, or a key that it draws."""
    if name != KEY:
        return generator
    return library("jax").random.key(int(generator.integers(2**63)))


def file_of(function: Callable[..., Any]) -> str | None:
    """The file in which a function is written; None if unknown."""
    try:
        return os.path.abspath(inspect.getfile(inspect.unwrap(function)))
    except (TypeError, OSError):
        return None


def said(error: BaseException) -> str:
    """One line, of an exception that may have no text that can be shown."""
    try:
        return " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:
        return type(error).__name__


class Caller:
    """The function, its generators, and the answers to requests."""

    def __init__(self, function: Callable[..., Any], generator_name: str | None) -> None:
        self._function, self._generator_name = function, generator_name
        self._generator: Any = None

    def answer(self, asked: Message) -> Message:
        """What a request's calls returned, as groups of calls whose results are alike."""
        try:
            return self._answer(asked)
        except Refused as refused:
            return Message(refused.fields)

    def _answer(self, asked: Message) -> Message:
        header = asked.header
        if header.get("seed") is not None:
            self._seed(header["seed"])
        calls = Calls(
            values=values_of(asked),
            **{name: header[name] for name in Calls._fields if name not in ("values", "draws")},
            draws=header.get("draws", False),
        )
        if calls.draws:
            return self._drawn(calls)
        with watched([self._function], self._generator) if calls.watch else nullcontext() as used:
            began = working_seconds()
            answer = grouped(self._returned(calls))
            seconds = max(0.0, working_seconds() - began)  # waits are booked late
        about = {"kind": "returned", "seconds": seconds, "from": sorted(used or ())}
        return answer._replace(header={**about, **answer.header})

    def _drawn(self, calls: Calls) -> Message:
        """What JAX draws after each seed as noise; no family if that is not seen."""
        found: list[JaxNoise] = []
        for seed in calls.seeds or ():
            self._seed(seed)
            one = noise_of(lambda: self._call(calls, 0, calls.values[0]))
            if one is None or (found and one.family != found[0].family):
                return Message({"kind": "drawn", "family": None})
            found.append(one)
        answer = grouped([part_of(part) for part in one.drawn] for one in found)
        keys = [one.keys for one in found]
        about = {"kind": "drawn", "family": found[0].family, "keys": keys}
        return answer._replace(header={**about, **answer.header})

    def _seed(self, seed: int) -> None:
        """All randomness that can be set: Python's, NumPy's, torch's, and the parameter."""
        random.seed(seed)
        numpy, torch = library("numpy"), library("torch")
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        if torch is not None:
            if torch.cuda.is_initialized():
                torch.manual_seed(seed)
            torch.default_generator.manual_seed(seed)
        if self._generator_name is not None:
            import numpy

            self._generator = numpy.random.default_rng(seed)

    def _returned(self, calls: Calls) -> Iterator[list[Content]]:
        for turn in range(calls.turns):
            for i, value in enumerate(calls.values):
                if calls.seeds is not None:
                    self._seed(calls.seeds[turn])
                for _ in range(calls.times):
                    yield self._call(calls, i, value)

    def _call(self, calls: Calls, i: int, value: list[Content]) -> list[Content]:
        given = [self._given(content, calls.library) for content in value]
        named = {}
        if self._generator_name is not None:
            name = self._generator_name
            named[name] = given_generator(name, self._generator)
        try:
            returned = self._function(given if calls.several else given[0], **named)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise Refused("raised", said(error), i) from None
        if calls.watch and any(
            bytes(content_of(now).data) != content.data for now, content in zip(given, value)
        ):
            raise Refused("changed", value=i)
        is_list = calls.returns_several and isinstance(returned, (list, tuple))
        return [part_of(part) for part in (returned if is_list else [returned])]

    @staticmethod
    def _given(content: Content, asked: str) -> Any:
        """A copy of a value, as the function takes it; a list of numbers without NumPy."""
        if asked == "torch":
            return tensor_from(content)
        if library("numpy") is not None:
            return array_from(content)
        code = {"float64": "d", "float32": "f", "int64": "q"}.get(content.dtype)
        if len(content.shape) > 1 or code is None:
            raise Refused("raised", "a value of this shape or dtype needs NumPy here")
        return list(array(code, content.data))


def values_of(asked: Message) -> list[list[Content]]:
    """The tensors of each value, which are named "0.1": tensor 1 of value 0."""
    values: dict[str, list[Content]] = {}
    for content in asked.contents:
        values.setdefault(content.name.partition(".")[0], []).append(content)
    if asked.header["library"] == "torch":
        importlib.import_module("torch")
    return list(values.values())


def grouped(calls: Iterable[list[Content]]) -> Message:
    """The parts of all calls, as groups of calls whose parts are alike."""
    groups: list[dict[str, Any]] = []
    data = []
    for parts in calls:
        alike = [[list(part.shape), part.dtype] for part in parts]
        if not groups or groups[-1]["parts"] != alike:
            groups.append({"parts": alike, "calls": 0})
        groups[-1]["calls"] += 1
        data += [part.data for part in parts]
    joined = b"".join(data)
    return Message({"groups": groups}, [Content("0", (len(joined),), "uint8", joined)])


def part_of(part: Any) -> Content:
    """One tensor that a function returned. Raises Refused for what holds no numbers."""
    numpy, held = library("numpy"), part
    try:
        if numpy is not None and not is_tensor(part):
            held = numpy.asarray(part)
        content = content_of(held)
    except (RecorderError, TypeError, ValueError):
        raise Refused("no numbers", type(part).__name__) from None
    return content._replace(data=bytes(content.data))


if __name__ == "__main__":
    sys.exit(main())
