"""The rule for text on its way out, character by character and sink by sink."""

import ast
import json
import sys
from pathlib import Path

import pytest

from dpaudit.text import (
    apart,
    at_least,
    at_most,
    duration,
    json_lines,
    lines,
    one_line,
    times,
    whole_line,
)

ROOT = Path(__file__).parents[1]
NOT_SEEN = (
    "\x00\x07\x08\t\n\x0b\x0c\r\x1b\x7f\x80\x85\x9b\x9f\xa0\xad\u034f\u061c\u115f\u180e\u200b\u200d"
    "\u200e\u200f\u2028\u2029\u202a\u202e\u2060\u2066\u2069\u2800\u3164\ud800\udfff\ue000\ufe0f\ufeff"
    "\ufff9\uffff\U000e0001\U000e0041\U000e0100\U0010ffff"
)


@pytest.mark.parametrize(
    ("x", "low", "high"),
    [
        (1.829988, "1.82", "1.83"),
        (0.1 + 0.2, "0.3", "0.3"),
        (-1.005, "-1.01", "-1"),
        (999.6, "999", "1e+03"),
        (float("inf"), "inf", "inf"),
        (0.0, "0", "0"),
    ],
)
def test_an_end_is_rounded_to_its_side(x: float, low: str, high: str) -> None:
    assert (at_least(x), at_most(x)) == (low, high)
    assert (at_least(x, 7), at_most(x, 7)) == (f"{x:.7g}", f"{x:.7g}")


@pytest.mark.parametrize("character", NOT_SEEN, ids=ascii)
def test_what_is_not_seen_is_shown_escaped(character: str) -> None:
    shown = one_line(f"a{character}b")
    assert shown.isascii()
    assert shown.isprintable()
    assert shown[1] == "\\"
    assert json.loads(json_lines(json.dumps(f"a{character}b", ensure_ascii=False))) == (
        f"a{character}b"
    )


def test_no_character_of_unicode_leaves_its_line() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert one_line(every).isprintable()
    assert lines(every[:0x10000]).replace("\n", "").isprintable()  # the same rule for each line


def test_what_is_seen_is_left_alone() -> None:
    text = "Théorème 1: (ε, δ)-DP, ≤ 0.5 “quoted” – 隐私 العربية 🙂 C:\\path $x$ <b>"
    assert one_line(text) == whole_line(text) == lines(text) == json_lines(text) == text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("::error::x", "\\x3a:error::x"),
        ("  ::set-output name=a::b", "  \\x3a:set-output name=a::b"),
        ("\n::error::x", "\\n::error::x"),
        ("a ##[error]x", "a \\x23#[error]x"),
        ("##vso[task.complete result=Succeeded]", "\\x23#vso[task.complete result=Succeeded]"),
        ("##teamcity[buildStatus]", "\\x23#teamcity[buildStatus]"),
        ("module:Class ## a::b", "module:Class ## a::b"),
    ],
)
def test_a_line_is_no_command_of_a_ci_system(line: str, shown: str) -> None:
    assert whole_line(line) == shown


def test_json_keeps_its_content_and_is_no_command() -> None:
    document = json.dumps({"##[error]": "\x9b31m\u202e ##vso[x]"}, ensure_ascii=False, indent=2)
    shown = json_lines(document)
    assert json.loads(shown) == json.loads(document)
    assert shown.isascii()
    assert "##" not in shown


def test_commands_print_through_the_one_rule() -> None:
    """``print`` and consoles are used in the module of the terminal alone."""
    for path in (ROOT / "dpaudit" / "commands").glob("*.py"):
        names = {
            node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        if path.name != "terminal.py":
            assert not names & {"print", "echo", "secho", "Console"}, path


@pytest.mark.parametrize(
    ("ratio", "written"),
    [
        (2.3456, "2.35 times its bound"),
        (1.02, "1.02 times its bound"),
        (1.0004, "1.0004 times its bound"),
        (0.99996, "0.99996 times its bound"),
        (1.0, "its bound"),
        (1 + 1e-12, "its bound"),
    ],
)
def test_no_factor_is_written_as_1_times(ratio: float, written: str) -> None:
    assert times(ratio, "its bound") == written


def test_figures_that_differ_are_not_written_alike() -> None:
    assert (apart(1.0004, 1.0), apart(0.499431, 0.499412)) == ("1.0004", "0.49943")
    assert (apart(0.5, 1.0), apart(1.0, 1.0), apart(float("inf"), 1.0)) == ("0.5", "1", "inf")


def test_large_numbers_have_no_exponent() -> None:
    assert (apart(2400.4, 10.0), apart(1e9, 1.0)) == ("2,400", "1,000,000,000")
    assert apart(1e-9, 1.0) == "1e-09"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (89.4, "89 s"),
        (300.0, "5 min"),
        (5400.0, "1.5 h"),
        (99.4 * 3600, "99 h"),
        (150 * 3600, "150 h"),
        (7712 * 3600, "7,700 h"),
    ],
)
def test_a_time_is_written_without_exponent(seconds: float, written: str) -> None:
    assert duration(seconds) == written
