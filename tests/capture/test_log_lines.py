"""A log is checked before anything of it is believed: a program that is not trusted wrote it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.log_lines import lines_of
from dpaudit.errors import RunError

ABOUT = {"kind": "process", "protocol": 1, "pid": 1, "time": 1.0, "command": [], "python": "3.8.0"}
SENT: dict[str, Any] = {
    "kind": "sent",
    "sequence": 0,
    "time": 1.0,
    "operator": "send",
    "site": "train.py:3",
    "occurrence": 0,
    "group": "0",
    "number": 0,
    "tag": None,
    "source": 0,
    "destinations": [1],
    "ranks": [0, 1],
    "tensors": [["0", [2, 2], "float32", 0, 16]],
}


def written(folder: Path, *lines: Any, end: str = "\n") -> Path:
    path = folder / "1.log"
    path.with_suffix(".bin").write_bytes(bytes(16))
    path.write_text("\n".join(map(json.dumps, lines)) + end)
    return path


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    first, sent = lines_of(written(tmp_path, ABOUT, SENT))
    assert first == ABOUT
    assert {**sent, "tensors": [list(one) for one in sent["tensors"]]} == SENT


def test_a_line_that_was_being_written_does_not_count(tmp_path: Path) -> None:
    assert len(lines_of(written(tmp_path, ABOUT, SENT, end=""))) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "exec"}, "Input tag 'exec'"),
        ({"source": -1}, "source: Input should be greater than or equal to 0"),
        ({"source": "__import__('os')"}, "source: Input should be a valid integer"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
        ({"time": "nan"}, "time: Input should be a finite number"),
        ({"tensors": [["0", [2, 2], "float32", 4, 16]]}, 'content "0": bytes 4 to 20 of 16'),
        ({"tensors": [["0", [3], "float32", 0, 16]]}, "16 bytes; [3] of float32 has 12"),
        ({"tensors": [["0", [2, 2], "nn", 0, 16]]}, "no dtype of numbers is called nn"),
        ({"tensors": [["0", [16], "qint8", 0, 16]]}, "no dtype of numbers is called qint8"),
        ({"tensors": [["0", [16], "float4_e2m1fn_x2", 0, 16]]}, "no dtype of numbers is called"),
        ({"tensors": [["0", [2**40, 2**40], "float32", 0, 16]]}, "16 bytes; [1099511627776"),
    ],
)
def test_a_line_of_another_form_is_one_line_that_says_where(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(RunError) as error:
        lines_of(written(tmp_path, ABOUT, {**SENT, **change}))
    assert str(error.value).startswith("1.log:2: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ABOUT)
    path.write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(RunError, match=r"1\.log:1: "):
        lines_of(path)


def test_a_recorder_of_another_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="protocol 2; expected 1: dpaudit and dpaudit-recorder are"):
        lines_of(written(tmp_path, {**ABOUT, "protocol": 2, "novel": 1}))


def test_a_log_without_its_contents_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ABOUT)
    path.with_suffix(".bin").unlink()
    with pytest.raises(RunError, match=r"1\.log:0: no 1\.bin beside it"):
        lines_of(path)
