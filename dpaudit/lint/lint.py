"""dpaudit lint: reads files, and finds hints of mistakes in them."""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dpaudit.files.hint import Hint, LintResult, Unread
from dpaudit.progress import OnStep, silent

from .flow import Flow
from .imports import imported_numbers, numbers_in
from .module import Env, Module
from .rules import RULES, FoundHint, FunctionReading
from .sources import SourceFile, sources
from .values import Function
from .vocabulary import WORTH_READING

_IGNORED = re.compile(r"#\s*dpaudit:\s*ignore\[([\w\s,]*)\]")


def lint(paths: Sequence[Path], on_step: OnStep = silent) -> LintResult:
    """What the Python files and notebooks at some paths, or below them, may do wrong.

    No file is imported or executed. One that cannot be read or parsed is listed with the reason.
    """
    hints: list[Hint] = []
    unread: list[Unread] = []
    n_files = 0
    numbers_in.cache_clear()  # files may have changed
    every = list(sources(paths))
    for i, source in enumerate(every):
        on_step(i, len(every))
        if isinstance(source, Unread):
            unread.append(source)
            continue
        found = hints_of(source)
        if isinstance(found, str):
            unread.append(Unread(source.path, "DPA085", found, source.is_asked_for))
        else:
            n_files += 1
            hints += found
    return LintResult(n_files, tuple(sorted(hints)), tuple(unread))


def hints_of(source: SourceFile) -> list[Hint] | str:
    """The hints of one file; a text says why it could not be examined."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes warn
            tree = ast.parse(source.text)
        if not WORTH_READING.search(source.text):
            return []
        found = sorted(
            found_in(tree, imported_numbers(tree, Path(source.path))),
            key=lambda one: (one.line, one.code, one.column, one.message),
        )
    except (RecursionError, MemoryError):
        return "nested too deeply"
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        at = f" (line {line})" if line else ""
        return f"not Python: {getattr(error, 'msg', None) or error}{at}"
    lines = source.text.split("\n")
    hints: dict[tuple[str, int], Hint] = {}  # one of each rule on a line
    for one in found:
        comment = _IGNORED.search(lines[one.line - 1])
        if comment is None or one.code not in re.split(r"[\s,]+", comment[1]):
            cell, line = source.place(one.line)
            hint = Hint(source.path, line, one.column, one.code, one.message, cell)
            hints.setdefault((one.code, one.line), hint)
    return list(hints.values())


def found_in(tree: ast.Module, elsewhere: Env) -> Iterator[FoundHint]:
    """Where the rules apply in a module, of which numbers may be imported by name."""
    for reading in readings(tree, elsewhere):
        for rule in RULES:
            yield from rule(reading)


def readings(tree: ast.Module, elsewhere: Env) -> Iterator[FunctionReading]:
    """Each function and method, and the module itself, once they are read."""
    module = Module.of(tree, elsewhere)
    flow = Flow(module, None, "", {})
    flow.run(tree.body)
    yield FunctionReading(tree, None, "", flow.events)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known = {function: owner for owner in classes for function in _functions(owner.body)}
    for owner in classes:
        of_object = _of_object(module, owner)
        for function in _functions(owner.body):
            yield from _read(module, owner, function, of_object)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in known:
            yield from _read(module, None, node, {})


def _functions(body: Iterable[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def _of_object(module: Module, owner: ast.ClassDef) -> Env:
    """What the attributes of an object hold after it is made."""
    function = module.method(owner, "__init__")
    if function is None or isinstance(function, ast.Lambda):
        return {}
    flow = Flow(module, owner, "__init__", {})
    flow.run(function.body)
    return {path: value for path, value in flow.env.items() if path.startswith("self.")}


def _read(
    module: Module, owner: ast.ClassDef | None, function: Function, env: Env
) -> Iterator[FunctionReading]:
    name = getattr(function, "name", "")
    flow = Flow(module, owner, name, dict(env))
    if not isinstance(function, ast.Lambda):
        flow.run(function.body)
    yield FunctionReading(function, owner, name, flow.events)
