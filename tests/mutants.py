"""Plants one-line faults by chance and lists those that no fast test of the room finds.

    make mutants                                  # 20 faults, seed 0
    python -m tests.mutants --n 200 --seed 1 [--room dpaudit/accounting ...]

The fast tests of a room are collected and run once, and which lines each of them runs is noted.
Each fault is then planted in a fork of that process, where the tests of its line run, the quickest
first, until one fails. Files stay as they are, so processes that tests start have no fault. A fault
in a message or in a limit of size may change no verdict: look at what survives before writing a
test. Exit code 1 if more than a tenth survives.
"""

import argparse
import ast
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import coverage
import pytest
from _pytest.runner import runtestprotocol

from tests.one_line_faults import Fault, chosen

ROOT = Path(__file__).parents[1]
ROOMS = [
    *(f"dpaudit/{name}" for name in ("accounting", "statistics", "game", "pipeline", "capture")),
    *(f"dpaudit/{name}" for name in ("check", "files", "mechanism", "verify")),
    *("attacks", "defenses"),
]
LONG = 2.0  # CPU seconds of a test that is left out
BUDGET = 10.0  # CPU seconds of the tests that look for one fault
LATE = 60  # CPU seconds after which a fault counts as found
WAITED = 5  # times as many seconds of a clock, as where a fault makes a test sleep


def module_of(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name if name.startswith("dpaudit") else f"dpaudit.{name}"


def tests_of(room: str) -> str:
    """The tree of the tests is that of the code."""
    return str(ROOT / "tests" / Path(room).name)


class Run(NamedTuple):
    """A test that passed, and what it ran."""

    item: pytest.Item
    seconds: float
    lines: set[tuple[str, int]]


def runs_of(items: Iterable[pytest.Item], files: Iterable[Path]) -> list[Run]:
    """The tests that pass soon, the quickest first, with the lines of these files that they run."""
    watch = coverage.Coverage(data_file=None, include=[str(file) for file in files])
    took: dict[str, tuple[pytest.Item, float]] = {}
    watch.start()
    for item in items:
        watch.switch_context(item.nodeid)
        began = time.process_time()
        if passes(item) and time.process_time() - began < LONG:
            took[item.nodeid] = item, time.process_time() - began
    watch.stop()
    lines = {name: set[tuple[str, int]]() for name in took}
    data = watch.get_data()
    for file in data.measured_files():
        for line, tests in data.contexts_by_lineno(file).items():
            for name in lines.keys() & tests:
                lines[name].add((file, line))
    return sorted((Run(*took[name], lines[name]) for name in took), key=lambda run: run.seconds)


def passes(item: pytest.Item) -> bool:
    return not any(r.failed for r in runtestprotocol(item, log=False, nextitem=None))


def lines_of(fault: Fault) -> range | None:
    """The lines of its statement, or of what stands before a body; None: it runs at import."""
    found, is_inside = range(0), False

    def look(node: ast.AST, within: bool) -> None:
        nonlocal found, is_inside
        for child in ast.iter_child_nodes(node):
            is_def = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(child, ast.stmt):
                assert child.end_lineno is not None
                if not child.lineno <= fault.line <= child.end_lineno:
                    continue
                body = getattr(child, "body", None)
                last = max(child.lineno, body[0].lineno - 1) if body else child.end_lineno
                if fault.line <= last:
                    found = range(child.lineno, last + 1)
                    is_inside = within and not is_def
            look(child, within or is_def)

    look(ast.parse(fault.file.read_text()), False)
    return found if is_inside else None


def looking_at(fault: Fault, runs: list[Run]) -> list[Run]:
    """The tests that run its line, as many as the budget allows."""
    file, lines = str(fault.file), lines_of(fault)
    if lines is None:
        some = [run for run in runs if any(name == file for name, _ in run.lines)]
    else:
        some = [run for run in runs if any((file, line) in run.lines for line in lines)]
    spent = 0.0
    for i, run in enumerate(some):
        spent += run.seconds
        if spent > BUDGET and i:
            return some[:i]
    return some


def functions_of(module: ModuleType) -> dict[str, FunctionType]:
    """Those that a module defines, with methods and properties, by their name."""

    def inside(name: str, value: Any) -> Iterator[tuple[str, FunctionType]]:
        if isinstance(value, property):
            for part in filter(None, (value.fget, value.fset)):
                yield from inside(f"{name}.{part.__name__}", part)
            return
        for wrapped in ("__func__", "func"):  # classmethod, staticmethod and cached_property
            if not isinstance(value, FunctionType | type) and hasattr(value, wrapped):
                value = getattr(value, wrapped)
        while value is not None and not isinstance(value, type):
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                yield name, value
            value, name = getattr(value, "__wrapped__", None), f"{name}, wrapped"

    found: dict[str, FunctionType] = {}
    for name, value in vars(module).items():
        is_own = isinstance(value, type) and value.__module__ == module.__name__
        for inner, part in list(vars(value).items()) if is_own else [("", value)]:
            for key, function in inside(f"{name}.{inner}", part):
                found.setdefault(key, function)
    return found


def plant(fault: Fault) -> str | None:
    """Changes the functions and constants of this process; returns why that is not possible."""
    name = module_of(fault.file)
    old, new = sys.modules[name], ModuleType(name)
    vars(new).update(__file__=str(fault.file), __package__=name.rpartition(".")[0])
    sys.modules[name] = new
    try:
        exec(compile(fault.planted(), str(fault.file), "exec"), vars(new))
    except Exception:
        return "import"
    finally:
        sys.modules[name] = old
    before, after, changed = functions_of(old), functions_of(new), 0
    for key in before.keys() & after.keys():
        changed += _replaced(before[key], after[key])
    for key, value in list(vars(old).items()):
        is_own = not key.startswith(("__", "@"))  # "@": what pytest adds to modules it rewrites
        is_constant = is_own and not isinstance(value, FunctionType | type)
        other = vars(new).get(key)
        if is_constant and " at 0x" not in repr(value) and repr(value) != repr(other):
            changed += 1
            for module in list(sys.modules.values()):
                if getattr(module, "__dict__", {}).get(key) is value:
                    setattr(module, key, other)
    return None if changed else "not in this process"


def _replaced(old: FunctionType, new: FunctionType) -> bool:
    """Gives a function the code and the defaults of another; whether they differ."""
    is_other = not _same(old.__code__, new.__code__)
    if is_other and old.__code__.co_freevars == new.__code__.co_freevars:
        old.__code__ = new.__code__
    for name in ("__defaults__", "__kwdefaults__"):
        one, other = getattr(old, name), getattr(new, name)
        if " at 0x" not in repr(one) and repr(one) != repr(other):
            setattr(old, name, other)
            is_other = True
    return is_other


def _same(one: CodeType, other: CodeType) -> bool:
    alike = (one.co_code, one.co_names) == (other.co_code, other.co_names)
    constants = zip(one.co_consts, other.co_consts, strict=False)
    return (
        alike
        and len(one.co_consts) == len(other.co_consts)
        and all(
            _same(a, b)
            if isinstance(a, CodeType) and isinstance(b, CodeType)
            else repr(a) == repr(b)
            for a, b in constants
        )
    )


def in_a_fork(work: Callable[[], str], seconds: int = resource.RLIM_INFINITY) -> str:
    """What work returns in a fork of this process, which may take so many CPU seconds.

    That of a fork that ends early is "an early end"; so is one that waits for ever.
    """
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read)
        said = "an early end"
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            signal.alarm(WAITED * seconds if seconds > 0 else 0)
            said = work()
        finally:
            os.write(write, json.dumps(said).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return str(json.loads(said)) if said else "an early end"


def finder_of(fault: Fault, runs: list[Run]) -> str:
    """The test that finds a fault; "" if none does, "-" if it cannot be planted here."""

    def work() -> str:
        why = plant(fault)
        if why is not None:
            return why if why == "import" else "-"
        return next((run.item.nodeid for run in runs if not passes(run.item)), "")

    return in_a_fork(work, LATE)


class Planter:
    """In the place of the loop over tests: one over faults."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults, self.found, self.planted = faults, 0, 0
        self.out = os.fdopen(os.dup(1), "w")  # pytest takes what is printed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        files = {fault.file for fault in self.faults}
        for file in files:
            importlib.import_module(module_of(file))
        runs = runs_of(session.items, files)
        for fault in self.faults:
            finder = finder_of(fault, looking_at(fault, runs))
            said = {"": "SURVIVED", "-": "not planted"}.get(finder, "found")
            self.planted += finder != "-"
            self.found += said == "found"
            where = f"{fault.file.relative_to(ROOT)}:{fault.line}"
            print(f"{said:8} {where} {fault.kind}: {fault.old!r} -> {fault.new!r}", file=self.out)
            self.out.flush()
        return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20, help="faults that are planted")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument("--room", action="append", choices=ROOMS, help="default: all of them")
    given = parser.parse_args()
    os.chdir(ROOT)
    rooms = given.room or ROOMS
    files = [file for room in rooms for file in sorted((ROOT / room).rglob("*.py"))]
    faults, found, planted = chosen(files, given.n, given.seed), Counter[str](), Counter[str]()
    for room in rooms:
        some = [fault for fault in faults if ROOT / room in fault.file.parents]
        if not some:
            continue
        result = in_a_fork(partial(_of_room, room, some))
        found[room], planted[room] = map(int, result.split())
        print(f"{room}: {found[room]} of {planted[room]}", flush=True)
    print(f"{found.total()} of {planted.total()} found")
    return int(found.total() < 0.9 * planted.total())


def _of_room(room: str, faults: list[Fault]) -> str:
    planter = Planter(faults)
    quiet = ("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:xdist")
    pytest.main([*quiet, tests_of(room)], plugins=[planter])
    return f"{planter.found} {planter.planted}"


if __name__ == "__main__":
    sys.exit(main())
