"""Accuracy at equal measured epsilon: which row stands for a level, and what has none."""

import math
from pathlib import Path

from dpaudit.files.result import AuditResult, EpsilonRange
from dpaudit.reports.equal_epsilon import equal_epsilon_table
from dpaudit.reports.leaderboard import Leaderboard
from dpaudit.reports.standings import standings
from tests.reports.benchmarks import AXES, audited, benchmark, cell, written

COLUMNS = {path: path.removesuffix(".name") for path in AXES}


def measured(epsilon: float) -> EpsilonRange:
    return EpsilonRange(certified=0.0, accounted=epsilon, measured=epsilon)


def test_a_level_has_the_row_that_comes_nearest_from_below(
    golden: AuditResult, tmp_path: Path
) -> None:
    """2.03 counts as 2, within two percent; 2.2 does not, and stands at 8. What leaks without limit
    stands at no level but the last."""
    written(tmp_path, {
        "a2": audited(golden, 0.5, claimed=2.0, known=measured(2.03)),
        "a8": audited(golden, 0.75, claimed=8.0, known=measured(7.5)),
        "b2": audited(golden, 0.25, claimed=2.0, known=measured(2.2)),
        "c8": audited(golden, 0.875, claimed=8.0, known=measured(math.inf)),
    })  # fmt: skip
    cells = [
        cell(name, values=(defense, "ring", epsilon))
        for name, defense, epsilon in (
            ("a2", "one", 2.0), ("a8", "one", 8.0), ("b2", "two", 2.0), ("c8", "three", 8.0),
        )
    ]  # fmt: skip
    table = equal_epsilon_table(COLUMNS, standings(benchmark(*cells), tmp_path))
    assert table is not None
    assert table.columns[:3] == ("defense", "graph", "adversary")
    shown = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    accuracies = {
        name: [row[f"accuracy at {level}"] for level in ("epsilon 2", "epsilon 8", "any epsilon")]
        for name, row in shown.items()
    }
    assert accuracies == {
        "one": [0.5, 0.75, 0.75],
        "two": [None, 0.25, 0.25],
        "three": [None, None, 0.875],
    }
    assert shown["one"]["epsilon 2: measured"] == 2.03
    assert shown["three"]["any epsilon: measured"] == "inf"
    page = Leaderboard(benchmark(*cells), tmp_path).html()
    assert 'href="#equal"' in page
    assert "accuracy at any epsilon" in page
    tables = Leaderboard(benchmark(*cells), tmp_path).published("dpaudit", "2026-11-28").tables
    assert [table.title for table in tables] == ["Accuracy at equal measured epsilon", "All cells"]


def test_without_a_measured_epsilon_there_is_no_table(golden: AuditResult, tmp_path: Path) -> None:
    written(tmp_path, {"a": audited(golden)})
    assert equal_epsilon_table(COLUMNS, standings(benchmark(cell("a")), tmp_path)) is None
    assert 'href="#equal"' not in Leaderboard(benchmark(cell("a")), tmp_path).html()
