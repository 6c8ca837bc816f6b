"""The audited function: how it is found, seeded and called, and what it may not do.

A value is a tuple of NumPy arrays in float64 or integers; the function takes it in the dtype and
library of the config. What it returns comes back as one flat array in float64.
"""

import importlib.util
import inspect
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.errors import ConfigError, DpauditError, shortened
from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.files.mechanism_values import Dtype
from dpaudit.recorder.clock import working_seconds
from dpaudit.recorder.draws.generators import watched
from dpaudit.recorder.draws.jax_noise import noise_of
from dpaudit.recorder.mechanism import generator_name, given_generator, said, within
from dpaudit.text import one_line

Value = tuple[np.ndarray, ...]
Function = Callable[..., Any]
Seeds = Sequence[int] | None

FEW_CALLS = 64
MORE_CALLS = 2_000
LONGEST = 200  # characters of an exception's text


class FunctionError(DpauditError):
    """The function cannot be audited; the line says what it did, and what was expected."""


def load(name: str) -> Function:
    """The function "module:function", from a module or from a file "file.py:function".

    Raises:
        ConfigError: there is no such module or function, or the module raises.
    """
    place, _, attribute = name.partition(":")
    if not place or not attribute:
        raise ConfigError("DPA074", f'"{name}" names no function; expected "module:function"')
    try:
        is_file = place.endswith(".py")
        module = _from_file(Path(place)) if is_file else _imported(place)
        found = within(module, attribute)
    except Exception as error:  # whatever a module raises
        text = f'"{name}" cannot be loaded: {_said(error)}'
        raise ConfigError("DPA074", text, _lacking(error, place)) from None
    if not callable(found):
        raise ConfigError("DPA074", f'"{name}" is no function, but {type(found).__name__}')
    function: Function = found
    return function


def _lacking(error: Exception, place: str) -> str:
    """What to do where the module of a function is there, and a package that it imports is not."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in ("", place.partition(".")[0]):
        return ""
    return (
        f"install {package} beside dpaudit, or name the Python of an environment that has it: "
        "--python FILE, or python in [mechanism]"
    )


def _imported(name: str) -> ModuleType:
    """The module that the import path leads to now, whatever was imported by its name before."""
    top = name.partition(".")[0]
    known, spec = sys.modules.get(top), PathFinder.find_spec(top)
    if known is not None and spec is not None and spec.origin != getattr(known, "__file__", None):
        for other in [m for m in sys.modules if m == top or m.startswith(f"{top}.")]:
            del sys.modules[other]
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    """The module of this very file, whatever else has its name; it may import its neighbours."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _said(error: BaseException) -> str:
    return shortened(one_line(said(error)), LONGEST)


def source_of(function: Function) -> Path | None:
    """The file in which it is written; None if that is not known."""
    try:
        return Path(inspect.getfile(inspect.unwrap(function)))
    except (TypeError, OSError):
        return None


class JaxDraws(NamedTuple):
    """Noise of several calls, each of which draws it by keys that nothing else of it uses."""

    family: NoiseFamily
    numbers: Array  # [n_calls, n_drawn], of scale 1
    keys: frozenset[str]  # keys of all calls

    @classmethod
    def of(
        cls, family: Any, numbers: Sequence[Array], keys: Sequence[Sequence[str]]
    ) -> "JaxDraws | None":
        """None where calls share keys, or draw different counts of numbers."""
        every = [key for some in keys for key in some]
        if len(set(every)) < len(every) or len({one.size for one in numbers}) != 1:
            return None
        return cls(family, np.stack(numbers), frozenset(every))


class AuditedFunction(ABC):
    """A function from a value to a noised one, that is checked whenever it is called."""

    takes_generator: bool

    def __init__(self, options: MechanismOptions) -> None:
        self.options, self.calls = options, options.calls
        self.generator: np.random.Generator | None = None

    @abstractmethod
    def beside(self, options: MechanismOptions) -> "AuditedFunction":
        """The same function on values of another dtype or shape."""

    @abstractmethod
    def tried(self, value: Value) -> float:
        """Seconds of one call, without those in which it waits for a CPU that other work uses.

        Raises FunctionError, also if it changes its input.
        """

    @abstractmethod
    def drawn_from(self, value: Value, seed: int) -> set[str]:
        """The generators that one call draws from after a seed, by name. Raises FunctionError."""

    @abstractmethod
    def in_turn(
        self,
        values: Sequence[Value],
        turns: int,
        seeds: Seeds = None,
        times: int = 1,
    ) -> Array:
        """What the calls on these values in turn return, [turns, n_values, times * n_out].

        Args:
            seeds: of each turn, set before each value; None: none is set.
            times: that each value is called with, one call after the other.

        Raises:
            FunctionError: as ``examine`` lists it.
        """

    def seed(self, seed: int) -> None:
        """All randomness that an audit can set: NumPy's, torch's, Python's, and its parameter."""
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        if torch.cuda.is_initialized():
            torch.manual_seed(seed)
        torch.default_generator.manual_seed(seed)  # alone a hundred times as fast
        self.generator = np.random.default_rng(seed) if self.takes_generator else None

    def __call__(self, value: Value) -> Array:
        """What one call returns, [n_out]. Raises FunctionError."""
        found: Array = self.in_turn([value], 1)[0, 0]
        return found

    def seeded(self, value: Value, seed: int) -> Array:
        """The same with all seeds set before. Raises FunctionError."""
        found: Array = self.in_turn([value], 1, [seed])[0, 0]
        return found

    def runs(self, values: Sequence[Value], n: int) -> Array:
        """All calls that the claim covers, n times with each value, [n, n_values, calls * n_out].

        Raises FunctionError.
        """
        return self.in_turn(values, n, times=self.calls)

    @abstractmethod
    def drawn_by_jax(self, value: Value, seeds: Sequence[int]) -> "JaxDraws | None":
        """What calls on a value draw by ``jax.random`` after each seed; None if that is not seen.

        Raises FunctionError.
        """

    def given(self, value: Value) -> Any:
        """The value as the function takes it: a copy, in its dtype and library."""
        o = self.options
        tensors = [_as_given(array, o) for array in value]
        return tensors if o.is_list else tensors[0]


class FunctionHere(AuditedFunction):
    """A function of this process."""

    def __init__(self, function: Function, options: MechanismOptions) -> None:
        super().__init__(options)
        self._function, self._generator_name = function, generator_name(function)
        self.takes_generator = self._generator_name is not None
        self.seed(0)

    def beside(self, options: MechanismOptions) -> "FunctionHere":
        return FunctionHere(self._function, options)

    def tried(self, value: Value) -> float:
        began = working_seconds()
        given, before = self.given(value), self.given(value)
        flat(self._returned(given), self.options)
        seconds = max(0.0, working_seconds() - began)  # waits are booked late
        if not _same(given, before):
            raise changed(before)
        return seconds

    def drawn_from(self, value: Value, seed: int) -> set[str]:
        self.seed(seed)
        with watched([self._function], self.generator) as used:
            self._returned(self.given(value))
        return used

    def in_turn(
        self,
        values: Sequence[Value],
        turns: int,
        seeds: Seeds = None,
        times: int = 1,
    ) -> Array:
        rows = []
        for turn in range(turns):
            for value in values:
                if seeds is not None:
                    self.seed(seeds[turn])
                rows += [
                    flat(self._returned(self.given(value)), self.options) for _ in range(times)
                ]
        return np.concatenate(rows).reshape(turns, len(values), -1)

    def drawn_by_jax(self, value: Value, seeds: Sequence[int]) -> JaxDraws | None:
        numbers, keys, families = [], [], set()
        for seed in seeds:
            self.seed(seed)
            found = noise_of(lambda: self._returned(self.given(value)))
            if found is None:
                return None
            families.add(found.family)
            keys.append(found.keys)
            numbers.append(np.concatenate([np.asarray(one, float).ravel() for one in found.drawn]))
        return JaxDraws.of(families.pop(), numbers, keys) if len(families) == 1 else None

    def _returned(self, given: Any) -> Any:
        name = self._generator_name
        try:
            with np.errstate(all="ignore"):
                if name is None:
                    return self._function(given)
                return self._function(given, **{name: given_generator(name, self.generator)})
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the function raises
            raise raised(_said(error), given) from None


def raised(what: str, given: Any) -> FunctionError:
    """What a function raised, and the value for which it did."""
    return FunctionError("DPA075", f"the function raised {what}; called with {_shown(given)}")


def changed(given: Any) -> FunctionError:
    """The error that a function wrote into the value that it was given."""
    return FunctionError(
        "DPA078", f"the function changes its input in place; called with {_shown(given)}"
    )


def examine(function: AuditedFunction, values: list[Value], n_calls: int) -> None:
    """Calls the function on each value, and refuses what cannot be audited.

    Args:
        values: all that the audit will call it on.
        n_calls: that the audit will make in all.

    Raises:
        FunctionError: it raises, returns another shape or dtype, or NaN; changes its input; takes
            too long; returns the same in each call; or is not the same for the same seeds.
    """
    first = function.seeded(values[-1], 1)  # before all others: a function may differ once
    seconds = []
    for value in values:
        seconds.append(function.tried(value))
        if len(seconds) >= 2:  # the first call may import and compile
            _refuse_slow(float(np.median(seconds[1:])), n_calls, function.options)
    _refuse_deterministic(function, values)
    if function.options.own_randomness:
        return
    again = [(function.seeded(value, 1), function.seeded(value, 1)) for value in values[:4]]
    for one, other in [(first, function.seeded(values[-1], 1)), *again]:
        if not np.array_equal(one, other):
            raise FunctionError(
                "DPA077",
                "the function is random beyond its seed: after random.seed, numpy.random.seed and "
                "torch.manual_seed, two calls differ: it draws from a source of its own, or keeps "
                "something from call to call",
                "give the function a parameter rng, a numpy.random.Generator, or allow it "
                "by --own-randomness (own_randomness = true in a file); another audit then counts "
                "other runs",
            )


def _refuse_slow(seconds: float, n_calls: int, options: MechanismOptions) -> None:
    if seconds * n_calls > options.seconds:
        raise FunctionError(
            "DPA079",
            f"a call takes {seconds:.2g} s, and {n_calls:,} calls would take "
            f"{seconds * n_calls:,.0f} s; expected {options.seconds:g} s at most",
        )


def _refuse_deterministic(function: AuditedFunction, values: list[Value]) -> None:
    """Raises FunctionError if calls with the same value never differ, one seed after another."""
    function.seed(0)
    for n in (2, FEW_CALLS, MORE_CALLS):
        for value in values if n <= FEW_CALLS else values[:1]:
            found = function.in_turn([value], n)
            if (found != found[0]).any():
                return
    raise FunctionError(
        "DPA076",
        f"the function is not random: {MORE_CALLS:,} calls with one value return the same, without "
        "noise or with noise that it seeds itself in each call",
    )


def _as_given(array: np.ndarray, options: MechanismOptions) -> Any:
    if options.library == "torch":
        return torch.from_numpy(np.array(array)).to(getattr(torch, options.dtype))
    return np.array(array, options.dtype)  # a copy


def flat(returned: Any, options: MechanismOptions) -> Array:
    """What was returned, flat and in float64. Raises FunctionError: another shape, dtype, NaN.

    Booleans, as of a predicate or a randomised response, are 0 and 1.
    """
    shapes = options.output_shapes
    is_list = options.returns_list and isinstance(returned, list | tuple)
    parts = list(returned) if is_list else [returned]
    expected = options.output_dtype or options.dtype
    if len(parts) != len(shapes):
        raise FunctionError(
            "DPA075", f"the function returned {len(parts)} tensors; expected {len(shapes)}"
        )
    found = []
    for part, shape in zip(parts, shapes, strict=True):
        array, dtype = _as_array(part)
        if array.shape != shape:
            raise FunctionError(
                "DPA075",
                f"the function returned shape {array.shape}; expected {shape}",
                "give output_shape (--output-shape), if that is meant",
            )
        if dtype not in (expected, "bool"):
            raise FunctionError(
                "DPA075",
                f"the function returned {dtype}; expected {expected}",
                "give output_dtype (--output-dtype), if that is meant"
                if dtype in get_args(Dtype)
                else f"return one of {', '.join(get_args(Dtype))}",
            )
        found.append(array.astype(np.float64).ravel())
    joined = found[0] if len(found) == 1 else np.concatenate(found)
    finite = np.isfinite(joined)
    if not finite.all():
        n = int((~finite).sum())
        raise FunctionError("DPA075", f"the function returned NaN or infinity, in {n} numbers")
    return joined


def _as_array(part: Any) -> tuple[np.ndarray, str]:
    """A part as an array with its dtype's name. Raises FunctionError: not a tensor of numbers."""
    try:
        array = _held(part)
    except Exception:  # not an array: ragged lists, sparse tensors
        raise _no_numbers(type(part).__name__) from None
    if array.dtype.kind not in "fiub":
        raise _no_numbers(str(array.dtype) if array.dtype.kind == "c" else type(part).__name__)
    return array, _name(part.dtype if isinstance(part, torch.Tensor) else array.dtype)


def _held(part: Any) -> np.ndarray:
    if not isinstance(part, torch.Tensor):
        return np.asarray(part)
    kept = part.detach().cpu()
    array: np.ndarray = (kept.float() if kept.dtype == torch.bfloat16 else kept).numpy()
    return array


def _no_numbers(found: str) -> FunctionError:
    return FunctionError("DPA075", f"the function returned {found}; expected an array of numbers")


@cache
def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return np.array_equal(one, other)


def _shown(given: Any) -> str:
    """A value as a part of an error: its shape, dtype and range."""
    parts = given if isinstance(given, list) else [given]
    numbers = [_as_array(part)[0] for part in parts]
    shape = ", ".join(str(x.shape) for x in numbers)
    filled = [x for x in numbers if x.size]
    if not filled:
        return f"an empty value of shape {shape}"
    low, high = min(float(x.min()) for x in filled), max(float(x.max()) for x in filled)
    return f"shape {shape}, numbers from {low:g} to {high:g}"


@contextmanager
def kept_randomness() -> Iterator[None]:
    """The caller's random streams are afterwards as they were."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(torch_state)
