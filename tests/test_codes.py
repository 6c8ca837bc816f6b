"""Codes of errors and reasons: each that is raised has a page, and no page is of nothing."""

import ast
import pickle
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dpaudit import errors
from dpaudit.codes import entries, help_for, page
from dpaudit.errors import ConfigError, DpauditError, OutsideTheory, Problem, RunError
from tests.sources import nodes

ROOT = Path(__file__).parents[1]
SOURCES = [
    path
    for room in ("dpaudit", "attacks", "defenses", "recorder", "reports")
    for path in ROOT.glob(f"{room}/**/*.py")
]
CODE = re.compile(r"DPA\d{3}")
# codes that others found are handed on
HAND_ON = ("errors.py", "file_problems.py", "linting.py", "processes.py", "terminal.py")
MOST_WORDS = 35  # of a sentence


def classes() -> set[str]:
    """The names of DpauditError and all classes that are derived from it."""
    found, n = {"DpauditError"}, 0
    made = [n for path in SOURCES for n in nodes(path) if isinstance(n, ast.ClassDef)]
    bases = [(node.name, {ast.unparse(base) for base in node.bases}) for node in made]
    while len(found) > n:
        n = len(found)
        found |= {name for name, derived_from in bases if found & derived_from}
    return found


def errors_made(nodes: Iterable[ast.AST], names: set[str]) -> Iterator[ast.Call]:
    """The calls that make an error; ``of`` makes one of problems, which have codes."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def is_coded(call: ast.Call) -> bool:
    """A literal; or ``code``, which is set to one beside the text."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Name):
        return first.id == "code"
    return isinstance(first, ast.Constant) and first.value in entries()


def test_every_error_that_is_made_has_the_code_of_a_page() -> None:
    names = classes() | {"Problem"}
    missing = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in SOURCES
        if path.name not in HAND_ON
        for call in errors_made(nodes(path), names)
        if not is_coded(call)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "call", ['ConfigError("text")', 'RunError("DPA999", "t")', "Problem(x, y)"]
)
def test_an_error_without_a_code_is_found(call: str) -> None:
    [made] = errors_made(ast.walk(ast.parse(call)), {"ConfigError", "RunError", "Problem"})
    assert not is_coded(made)


def test_every_code_is_used() -> None:
    used = {code for path in SOURCES for code in CODE.findall(path.read_text())}
    assert sorted(set(entries()) - used) == []
    assert sorted(used - set(entries())) == []


def test_codes_are_numbered_without_a_gap() -> None:
    numbers = [int(code.removeprefix("DPA")) for code in entries()]
    ranges = [[n for n in numbers if first <= n < first + 99] for first in (1, 101, 201)]
    assert numbers == [n for own in ranges for n in own]
    for first, own in zip((1, 101, 201), ranges, strict=True):  # errors, reasons, rules of lint
        assert own == [*range(first, first + len(own))]


@pytest.mark.parametrize("code", entries())
def test_a_page_is_complete_and_plain(code: str) -> None:
    entry = entries()[code]
    assert all(entry[:5])
    assert len({*map(bool, entry[5:])}) == 1  # a rule of lint has all, and no other code has any
    assert not entry.title.endswith(".")
    for text in (entry.meaning, entry.why, entry.help, *filter(None, [entry.seen])):
        assert text.endswith(".")
        for sentence in re.split(r"(?<=[.:;])\s", text):
            assert len(sentence.split()) <= MOST_WORDS, sentence
    assert help_for(code).endswith(f"; see dpaudit explain {code}")
    assert page(code).count("\n## ") == (7 if entry.is_rule else 4)


def test_an_error_keeps_its_problems_across_processes() -> None:
    several = RunError.of([Problem("DPA001", "one", "do this"), Problem("DPA002", "two")])
    for error in (several, ConfigError("DPA003", "x"), OutsideTheory("DPA040", "c", "allow it")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (again.problems, str(again)) == (error.problems, str(error))


def test_a_traceback_names_what_to_do_and_the_page() -> None:
    def last_line(error: Exception) -> str:
        return "".join(traceback.format_exception_only(error)).splitlines()[-1]

    assert last_line(ConfigError("DPA017", "t")) == "help: see dpaudit explain DPA017"
    assert last_line(ConfigError("DPA017", "t", "wait")) == "help: wait; see dpaudit explain DPA017"


def test_problems_beyond_the_most_are_counted() -> None:
    error = ConfigError.of([Problem("DPA001", f"p{i}") for i in range(errors.MOST_LINES + 3)])
    assert len(error.problems) == errors.MOST_LINES + 1
    assert error.problems[-1].text == "and 3 more"
    assert isinstance(error, DpauditError)
