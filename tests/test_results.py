"""Published results: pages and CSV files are what the JSON in docs/results gives."""

import csv
import io
import json
from functools import cache
from pathlib import Path

import pytest

from dpaudit.files.published import ExperimentRuns, ResultTable, ResultTables
from dpaudit.papers.declared import DECLARED
from dpaudit.reports import published
from dpaudit.reports.tables import as_csv
from tests.test_site import site

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docs" / "results").glob("*.json"))
OF_TABLES = (
    "frameworks",
    "leaderboard-decentralized-full",
    "leaderboard-decentralized-quick",
    "leaderboard-equal-epsilon-full",
    "leaderboard-equal-epsilon-quick",
    "lint",
    "local-steps",
    "mechanism-peers",
    "mechanisms",
    "performance",
    "programs",
    "recorder",
    "scores",
    "selftest",
    "shadow-models",
    "training",
)
RUNS = [path for path in FILES if path.stem not in OF_TABLES]
TABLES = [path for path in FILES if path.stem in OF_TABLES]

__all__ = ["site"]  # a fixture


def named(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", RUNS, ids=named)
def test_the_files_of_an_experiment_are_one_result(path: Path) -> None:
    found = ExperimentRuns.read(path)
    assert path.read_text() == found.to_json()
    assert path.with_suffix(".csv").read_text() == published.as_csv(found.runs)
    assert {f"{run.name}-{run.scale}" for run in found.runs} == {path.stem}
    assert found.runs[0].name in DECLARED


@pytest.mark.parametrize("path", TABLES, ids=named)
def test_the_files_of_tables_are_one_result(path: Path) -> None:
    found = ResultTables.read(path)
    assert path.read_text() == found.to_json()
    assert path.with_suffix(".csv").read_text() == as_csv(found.rows)


def test_every_result_has_a_page_in_the_navigation(site) -> None:
    names = {run.name for path in RUNS for run in ExperimentRuns.read(path).runs}
    assert set(site.results()) == {f"results/{name}.md" for name in names.union(OF_TABLES)}
    nav = site.on_config({"nav": [{"Start": []}, {"Reference": []}, {"Project": []}]})["nav"]
    assert {"Results": list(site.results())} in nav


def test_a_page_has_every_run_under_a_heading_of_its_own(site) -> None:
    pages = site.results()
    page = cache(lambda name: pages[f"results/{name}.md"]())
    for path in RUNS:
        for run in ExperimentRuns.read(path).runs:
            text = page(run.name)
            headings = [line for line in text.splitlines() if line.startswith("## ")]
            assert len(set(headings)) == len(headings)
            assert f"    {run.command}\n" in text
            shown = published.as_markdown(run)
            assert shown in text
            assert shown.count("\n| ") == 2 + len(published.shown(run))


def test_a_page_shows_the_numbers_of_its_data(site) -> None:
    text = site.results()["results/dpdl-table3-all.md"]()
    row = "| ND-CG | ring | 10 | MSE |  | 0.85 | 0.67 [0.446, 0.895] | -0.18 | 3 |"
    assert row in text
    text = site.results()["results/selftest.md"]()
    rows = json.loads((ROOT / "docs/results/selftest.json").read_text())["tables"]
    assert text.count("\n| ") == sum(2 + len(table["rows"]) for table in rows)


def test_tables_of_other_columns_are_one_csv() -> None:
    made = ResultTables(
        title="T",
        tables=(
            ResultTable(title="A", columns=("x", "y"), rows=((1.0, "a|b"), (None, "=1+1"))),
            ResultTable(title="B", columns=("z",), rows=(("inf",),)),
        ),
    )
    rows = list(csv.DictReader(io.StringIO(as_csv(made.rows))))
    assert [row["table"] for row in rows] == ["A", "A", "B"]
    assert (rows[0]["x"], rows[0]["y"], rows[2]["z"]) == ("1.0", "a|b", "inf")
    assert rows[1]["y"] == "'=1+1"
    assert "| 1 | a\\|b |" in published.page_of_tables("t", made)


def test_a_run_on_other_data_stands_beside_the_first() -> None:
    [run, *_] = ExperimentRuns.read(RUNS[0]).runs
    other = run.model_copy(update={"data": "other"})
    both = ExperimentRuns(runs=(run,)).put(other).put(run)
    assert both.runs == (run, other)
