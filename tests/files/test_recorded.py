"""Lines of a capture: read as they were written, or refused with their number."""

from pathlib import Path

import pytest

from dpaudit.errors import RunError
from dpaudit.files.recorded import RecordedBatch, read_lines, write_lines

BATCHES = [RecordedBatch(process=0, agent=i, number=1, sequence=i, records=3) for i in range(3)]


def test_values_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_lines(path := tmp_path / "batches.jsonl", BATCHES)
    assert path.read_text().count("\n") == 3
    assert list(read_lines(path, RecordedBatch)) == BATCHES


def test_a_damaged_line_is_named_by_number_and_key(tmp_path: Path) -> None:
    write_lines(path := tmp_path / "batches.jsonl", BATCHES)
    first, second, third = path.read_text().splitlines()
    path.write_text("\n".join((first, second.replace('"records":3', '"records":-3'), third)))
    with pytest.raises(RunError, match=r"batches.jsonl:2: records: Input should be greater than"):
        list(read_lines(path, RecordedBatch))
    path.write_text("{}\n")  # lacks all keys: the first one is named
    with pytest.raises(RunError, match=r"batches.jsonl:1: process: Field required"):
        list(read_lines(path, RecordedBatch))
    with pytest.raises(RunError, match="absent: .*; expected the folder of a capture"):
        list(read_lines(tmp_path / "absent", RecordedBatch))
