"""Files that are no files, have no end, or hold what no reader can hold: one short line each."""

import json
import os
import re
from pathlib import Path

import pytest

from dpaudit.check.baseline import Baseline
from dpaudit.errors import LONGEST_LINE, MOST_LINES, ConfigError, DpauditError, nearest
from dpaudit.files import documents
from dpaudit.files.claims_file import ClaimsFile
from dpaudit.files.config import AuditConfig, read_toml
from dpaudit.files.documents import DEEPEST, json_from, line_of, toml_from
from dpaudit.files.result import AuditResult


@pytest.mark.parametrize(
    "text, said",
    [
        ("[" * 100_000, "nested more than"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested more than"),
        ("1" * 5_000, "integer"),
        (str(2**63), "an integer has more than 64 bits"),
        ("1e999", "infinite or too large"),
        ("NaN", "NaN is not JSON"),
        ('{"a": "x\\u0000y"}', "NUL"),
        ('{"\\ud800": 1}', "half of a surrogate pair"),
        ('{"a": {"b": 1, "b": 2}}', 'key "b" is written twice'),
    ],
    ids=range(9),
)
def test_json_that_no_reader_can_hold_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        json_from(text)


@pytest.mark.parametrize(
    "text, said",
    [
        ("a = " + "[" * 100_000, "nested more than"),
        (".".join("a" * 500_000) + " = 1", "more than 40 dots in one key"),
        ("a = " + "9" * 5_000, "integer"),
        ("a = 0x" + "f" * 5_000, "an integer has more than 64 bits"),
        ('a = "x\\u0000y"', "NUL"),
    ],
    ids=range(5),
)
def test_toml_that_no_reader_can_hold_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        toml_from(text)


def test_as_deep_as_allowed_is_read() -> None:
    deepest = "[" * DEEPEST + "]" * DEEPEST
    assert json_from(deepest) == json.loads(deepest)


def test_byte_order_marks_and_windows_line_ends_are_read_over(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfseed = 1\r\n[data]\r\n")
    assert read_toml(tmp_path / "a.toml") == ({"seed": 1, "data": {}}, "seed = 1\n[data]\n")


def test_what_has_no_end_or_is_no_file_is_one_line(tmp_path: Path, monkeypatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("#" * 101)
    monkeypatch.setattr(documents, "TOML_BYTES", 100)
    with pytest.raises(ValueError, match="larger than"):
        documents.text_of(tmp_path / "large", 100)
    readers = (read_toml, AuditResult.read, Baseline.read, ClaimsFile.read)
    places = (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / ("n" * 300))
    for read in readers:
        for path in (*places, tmp_path / "a\0b", tmp_path / "none"):
            with pytest.raises(DpauditError) as refused:
                read(path)
            assert "\n" not in str(refused.value)
            assert "None" not in str(refused.value)


def test_lines_of_an_error_are_bounded_in_length_and_number(tmp_path: Path) -> None:
    lines = str(
        ConfigError("DPA005", "\n".join(f"{i}" + "x" * 2**12 for i in range(3_000)))
    ).splitlines()
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == f"and {3_000 - MOST_LINES} more"
    assert max(map(len, lines)) <= LONGEST_LINE
    assert str(ConfigError("DPA005", "one\ntwo")) == "one\ntwo"
    assert nearest("lenett" * 2**18, ["lenet"]) == ""


def test_thousands_of_unknown_keys_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    keys = "\n".join(f"learning_rat{i} = {i}" for i in range(3_000))
    path.write_text(f'seed = "{"x" * 2**19}"\n[defense]\nname = "dpdl"\n[data]\n{keys}\n')
    with pytest.raises(ConfigError) as refused:
        AuditConfig.from_toml(path)  # took a minute when each was compared and searched for
    lines = str(refused.value).splitlines()
    assert len(lines) == MOST_LINES + 1
    assert re.fullmatch(r"and \d+ more", lines[-1])
    assert all(len(line) <= LONGEST_LINE for line in lines)


def test_the_line_of_a_key_is_found_past_lookalike_headers() -> None:
    text = 'a = """\n[' + " " * 20_000 + '\n"""\n[b]\nc = 1\n'
    assert line_of(text, ("b", "c")) == 5  # backtracking over the spaces took minutes


@pytest.mark.parametrize(
    "table, row",
    [("claim", 'text = "x"\nmu = 1.0'), ("threat_model", 'name = "x"'), ("attack", 'name = "x"')],
)
def test_tables_of_an_audit_are_bounded_in_number(tmp_path: Path, table: str, row: str) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(f"[[{table}]]\n{row}\n" * 101)
    with pytest.raises(ConfigError, match=f"{table}: .*at most 100"):
        AuditConfig.from_toml(path)
