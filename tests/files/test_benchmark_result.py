"""benchmark.json: read back as it was written, and one line for what it is not."""

from pathlib import Path

import pytest

from dpaudit.errors import RunError
from dpaudit.files.benchmark_result import BenchmarkResult, Cell

CELL = Cell(name="a", values={"defense.name": "dpdl"}, seed=1, state="failed", error="no memory")
RESULT = BenchmarkResult(name="b", version="1", axes=("defense.name",), cells=(CELL,))


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    (path := tmp_path / "benchmark.json").write_text(RESULT.model_dump_json())
    assert BenchmarkResult.read(path) == RESULT


def test_its_frame_is_the_leaderboard(tmp_path: Path) -> None:
    [row] = RESULT.to_frame(tmp_path).to_dict("records")
    assert row["defense.name"] == "dpdl"
    assert row["gaps"] == "a: no memory"


@pytest.mark.parametrize(
    "content, said",
    [
        (None, "No such file"),
        ("{", "a benchmark.json that is cut off"),
        ('{"name": "b"}', "version"),
    ],
)
def test_what_is_none_is_said_in_one_line(content: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "benchmark.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RunError, match=said) as raised:
        BenchmarkResult.read(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
