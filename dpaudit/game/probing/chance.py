"""Which call of a step takes chance from outside: a seed of the system, the time, a global draw.

A step that does not play again is refused by what differs. This names the line that is the likely
cause. It watches calls (``sys.setprofile``), and decides nothing.
"""

import gc
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

SEEDS = {  # functions that give another number each time
    "urandom", "getrandom", "getrandbits", "seed", "initial_seed", "randbits", "uuid1", "uuid4",
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "now",
    "process_time", "process_time_ns", "id", "open",
}  # fmt: skip
DRAWS = {  # functions that draw by a generator of their own
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal",
    "normal_", "uniform_", "exponential_", "random_", "bernoulli", "bernoulli_", "cauchy_",
    "geometric_", "log_normal_", "multinomial", "poisson", "dropout", "random", "gauss",
    "standard_normal", "shuffle", "choice", "sample", "uniform", "laplace",
}  # fmt: skip
LIBRARIES = (
    "torch", "numpy", "random", "secrets", "uuid", "datetime", "time", "posix", "builtins", "io"
)  # fmt: skip
SHOWN = 60  # characters of a line of code


def named(play: Callable[[], Any]) -> str:
    """The call behind which a plug-in takes chance while it plays, and its line; "" for none.

    Seeds come before draws, which a seeded generator of the plug-in's own may make too.
    """
    found: dict[bool, str] = {}  # the first of the seeds, and of the draws

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            name, caller = str(getattr(argument, "__name__", "")), frame
            library = _library(argument)
        elif event == "call" and frame.f_back is not None:
            name, caller = frame.f_code.co_name, frame.f_back
            library = str(frame.f_globals.get("__name__", ""))
        else:
            return
        is_draw = name not in SEEDS
        if is_draw in found or (is_draw and name not in DRAWS) or _root(library) not in LIBRARIES:
            return
        said = _called(caller, f"{library}.{name}")
        if said:
            found[is_draw] = said

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # finalizers of other objects are no calls of the plug-in
    sys.setprofile(watch)
    try:
        play()
    except Exception:  # calls up to here may be the cause
        pass
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return found.get(False, found.get(True, ""))


def _library(function: Any) -> str:
    """The module that a built-in function is of, by its owner where it does not say."""
    module = getattr(function, "__module__", None)
    if isinstance(module, str) and module:
        return module
    owner = getattr(function, "__self__", None)
    kind = owner if isinstance(owner, type) else type(owner)
    return str(getattr(kind, "__module__", "")).replace("_random", "random")


def _called(frame: FrameType | None, name: str) -> str:
    """What a plug-in called, and where, if it was not called by dpaudit itself."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if _root(module) == "dpaudit":
            return ""
        if _root(module) not in LIBRARIES:
            file, line = frame.f_code.co_filename, frame.f_lineno
            code = linecache.getline(file, line).strip()[:SHOWN]
            return f"{name} ({Path(file).name}:{line}{': ' * bool(code)}{code})"
        called = frame.f_code.co_name
        name = f"{module}.{called}"
        frame = frame.f_back
    return ""


def _root(module: str) -> str:
    return module.removeprefix("_").partition(".")[0]
