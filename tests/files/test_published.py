"""Published runs: written as they are kept under docs/results, and read again."""

from pathlib import Path

import pytest

from dpaudit.files.published import ExperimentRuns

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
