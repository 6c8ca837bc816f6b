"""Planted bugs are found at their lines, and corrected twins and the project's own code are not."""

import re
from pathlib import Path

import pytest

from dpaudit.codes import entries
from dpaudit.lint.lint import hints_of, lint
from dpaudit.lint.sources import SourceFile

ROOT = Path(__file__).parents[2]
MATERIAL = Path(__file__).with_name("material")
RULES = [code for code, entry in entries().items() if entry.is_rule]
MARK = re.compile(r"# hint: (DPA\d{3})")
# Wrong on purpose: a captured program, a formula, and the mechanism of a framework as it is there.
OWN_BUGS = {
    ("examples/torch-distributed/train.py", "DPA212"),
    ("dpaudit/mechanism/zoo/additive.py", "DPA204"),
    ("examples/frameworks/flwr/mechanism.py", "DPA204"),
    ("examples/frameworks/flwr/mechanism.py", "DPA210"),
}


def found(text: str) -> list[tuple[int, str]]:
    hints = hints_of(SourceFile("example.py", text, True))
    assert not isinstance(hints, str)
    return [(hint.line, hint.code) for hint in hints]


@pytest.mark.parametrize("path", sorted(MATERIAL.glob("*_wrong.py")), ids=lambda path: path.stem)
def test_every_planted_bug_is_found_at_its_line(path: Path) -> None:
    lines = path.read_text().splitlines()
    marked = [(i, m[1]) for i, line in enumerate(lines, start=1) if (m := MARK.search(line))]
    assert marked
    assert found(path.read_text()) == marked


@pytest.mark.parametrize("path", sorted(MATERIAL.glob("*_right.py")), ids=lambda path: path.stem)
def test_no_corrected_twin_is_called_wrong(path: Path) -> None:
    assert found(path.read_text()) == []


def test_every_rule_has_a_planted_bug_and_a_twin() -> None:
    for kind in ("wrong", "right"):
        there = {path.stem.split("_")[0].upper() for path in MATERIAL.glob(f"*_{kind}.py")}
        assert there == {*RULES}


@pytest.mark.parametrize("code", RULES)
def test_the_example_of_a_page_is_found_and_its_correction_not(code: str) -> None:
    assert {found_code for _, found_code in found(entries()[code].example)} == {code}
    assert found(entries()[code].instead) == []


@pytest.mark.parametrize(
    "rooms",
    [
        ["defenses", "examples", "dpaudit/defense", "dpaudit/mechanism/zoo", "dpaudit/selftest"],
        pytest.param(
            ["dpaudit", "attacks", "defenses", "reports", "recorder", "examples", "benchmarks"],
            marks=pytest.mark.slow,  # 8 s
        ),
    ],
)
def test_own_code_gives_no_hint_but_for_planted_bugs(rooms: list[str]) -> None:
    hints = lint([ROOT / room for room in rooms]).hints
    assert {(Path(h.path).relative_to(ROOT).as_posix(), h.code) for h in hints} == OWN_BUGS
