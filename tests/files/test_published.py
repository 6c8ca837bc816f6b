"""Published runs: written as they are kept under docs/results, and read again."""

import json
from pathlib import Path

import pytest

from dpaudit.files.benchmark_result import BenchmarkResult, Cell
from dpaudit.files.published import ExperimentRuns, HeldOrdering, ResultTable, ResultTables

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("name", ["dpdl-figures1-2-quick", "adp-vrsgp-figure4-quick"])
def test_published_runs_are_written_as_they_were_kept(name: str) -> None:
    """With no value that is a default, and one line of a table on each line."""
    path = RESULTS / f"{name}.json"
    assert ExperimentRuns.read(path).to_json() == path.read_text()


def test_a_run_of_the_same_cells_replaces_the_older_one() -> None:
    runs = ExperimentRuns.read(RESULTS / "dpdl-figures1-2-quick.json")
    first = runs.runs[0]
    newer = first.model_copy(update={"seconds": first.seconds + 1})
    assert runs.put(newer).runs == (newer, *runs.runs[1:])
    other = first.model_copy(update={"data": "other"})
    assert runs.put(other).runs == (*runs.runs, other)


def test_a_title_names_other_data_than_the_papers() -> None:
    run = ExperimentRuns.read(RESULTS / "dpdl-figures1-2-quick.json").runs[0]
    same = run.model_copy(update={"data_of_the_paper": run.data})
    other = run.model_copy(update={"data": "ours", "data_of_the_paper": "theirs"})
    assert [same.other_data, other.other_data] == [False, True]
    assert same.title == f"{run.paper}, {run.table}: scale {run.scale}"
    assert other.title == f"{same.title}, on ours and not on theirs"
    held = HeldOrdering(says="more")
    assert (held.compared, held.as_published, held.confirmed, held.contradicted) == (0, 0, 0, 0)


def test_tables_are_written_with_a_row_on_each_line(tmp_path: Path) -> None:
    rows = ((1.0, "é"), (None, "inf"))
    tables = tuple(ResultTable(title=t, columns=("a", "b"), rows=rows) for t in ("ö", "two"))
    results = ResultTables(title="t", about="ü", tables=tables)
    text = results.to_json()
    assert ResultTables.model_validate_json(text) == results
    assert json.loads(text)["schema_version"] == 1
    assert text.count('\n    [1.0, "é"],\n    [null, "inf"]\n') == 2
    assert '"about": "ü"' in text
    assert '"title": "ö"' in text
    (path := tmp_path / "tables.json").write_text(text)
    assert ResultTables.read(path) == results


def test_a_benchmark_is_read_as_it_was_written(tmp_path: Path) -> None:
    cells = (Cell(name="a", values={"defense.name": "dpdl"}, seed=3),)
    result = BenchmarkResult(name="b", version="1", axes=("defense.name",), cells=cells)
    (path := tmp_path / "benchmark.json").write_text(result.model_dump_json())
    assert BenchmarkResult.read(path) == result
    assert (result.schema_version, cells[0].state) == (1, "waiting")
