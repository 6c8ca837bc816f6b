"""The leaderboard's page and files: all rows, what is void, gaps by name, nothing of others."""

import csv
import io
import math
import sys
from pathlib import Path

import pandas as pd
import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.benchmark_result import Cell
from dpaudit.files.published import ResultTables
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.registry import load_plugin
from dpaudit.reports import published
from dpaudit.reports.leaderboard import Leaderboard
from dpaudit.reports.standings import as_markdown
from dpaudit.reports.tables import as_csv
from tests.reports.benchmarks import audited, benchmark, cell, written
from tests.reports.pages import HOSTILE, Element, Page, visible


@pytest.fixture
def board(golden: AuditResult, tmp_path: Path) -> Leaderboard:
    """Two seeds on a ring, of which one is void, one on a complete graph, and one that failed."""
    written(tmp_path, {
        "a": audited(golden, 0.5),
        "b": audited(golden, 0.75, void="it moves too far", verdict=Verdict.UNSUPPORTED),
        "c": audited(golden, 0.25, "complete", epsilon=0.5),
    })  # fmt: skip
    cells = (
        cell("a"),
        cell("b", seed=2),
        cell("c", values=("dpdl", "complete", 2.0)),
        cell("d", values=("dpop", "ring", 2.0), state="failed", error="no graph <b>fits</b>"),
    )
    found: Leaderboard = load_plugin("reports", "leaderboard")(benchmark(*cells), tmp_path)
    return found


def rows(page: Page, section: str) -> list[list[str]]:
    found = next(page.by_id(section).every("tbody")).every("tr")
    return [[c.text() for c in row.every() if c.tag in ("td", "th")] for row in found]


def headings(page: Page) -> list[str]:
    return [th.text() for th in next(page.by_id("rows").every("thead")).every("th")]


def test_the_fifth_word_is_in_table_choices_and_figure(golden, tmp_path: Path) -> None:
    written(tmp_path, {"a": audited(golden, verdict=Verdict.SUPPORTED)})
    board = Leaderboard(benchmark(cell("a")), tmp_path)
    page = Page(board.html())
    [row] = [dict(zip(headings(page), row, strict=True)) for row in rows(page, "rows")]
    assert row["verdict"] == "● supported not a proof of privacy"
    assert board.choices["verdict"][1] == ["supported"]
    assert "supported" in next(page.by_id("utility").every("svg")).text()
    assert "supported" in as_markdown(board.axes, board.standings)


def test_the_page_has_a_row_for_each_combination_and_names_gaps(board: Leaderboard) -> None:
    page = Page(board.html())
    found = [dict(zip(headings(page), row, strict=True)) for row in rows(page, "rows")]
    ring, complete, failed = found
    assert (ring["defense"], ring["graph"], ring["seeds"]) == ("dpdl", "ring", "2")
    assert ring["claimed epsilon"].startswith("2 delta 1e−05, add-remove, run")
    assert ring["accounted epsilon"].startswith("void : it moves too far")
    assert "unsupported in 1 of 2 seeds" in ring["verdict"]
    assert ring["test accuracy"] == "0.625 [0.000, 1.000]"  # an interval of two
    assert complete["accounted epsilon"] == "0.25 to 0.5"
    assert complete["test accuracy"] == "0.25"  # of one seed, without an interval
    assert complete["messages a round"] == "8"
    assert failed["verdict"] == "no graph <b>fits</b>"
    assert failed["test accuracy"] == "–"
    [gap] = rows(page, "gaps")
    assert gap == ["d", "dpop", "ring", "2.0", "1", "no graph <b>fits</b>"]
    assert "3 of 4 audits are done, 1 failed ." in visible(page)


def test_what_tests_may_find_by_chance_is_said(board: Leaderboard) -> None:
    said = visible(Page(board.html()))
    assert "3 claims were tested" in said
    assert "at most 0.15 would be refuted wrongly on average" in said  # 3 at 95% each


def test_a_figure_for_each_adversary_and_graph(board: Leaderboard) -> None:
    page = Page(board.html())
    [article] = page.by_id("utility").every("article")
    whole, *small = article.every("svg")
    assert "read by eavesdropper" in next(whole.every("title")).text()
    assert [next(svg.every("title")).text() for svg in small] == [
        "Privacy against utility: ring, read by eavesdropper",
        "Privacy against utility: complete, read by eavesdropper",
    ]
    figure = next(e for e in article.every("figure"))
    assert "On the front: 1 dpdl" in figure.text()  # the one that is not void


def test_marks_of_rows_that_differ_have_names_that_differ(
    golden: AuditResult, tmp_path: Path
) -> None:
    axes = ("data.n_agents", "defense.batch_size", "defense.n_rounds")
    values = [(4, 4, 8), (4, 8, 4), (4, 8, 8), (8, 4, 8)]
    cells = [
        Cell(name=str(i), values=dict(zip(axes, each, strict=True)), seed=1, state="done")
        for i, each in enumerate(values)
    ]
    found = {
        str(i): audited(golden, accuracy=0.3 + i / 10, epsilon=1.0 + i / 10)
        for i in range(len(cells))
    }
    board = Leaderboard(benchmark(*cells, axes=axes), written(tmp_path, found))
    said = "On the front: 1 4, 4, 8; 2 4, 8, 4; 3 4, 8, 8; 4 8, 4, 8"
    assert said in Page(board.html()).by_id("utility").text()


def test_rows_and_figures_are_marked_by_choices(board: Leaderboard) -> None:
    page = Page(board.html())
    body = next(page.by_id("rows").every("tbody"))
    marks = [row.attributes for row in body.every("tr")]
    assert [mark["data-axis0"] for mark in marks] == ["0", "0", "1"]
    assert [mark.get("data-verdict") for mark in marks] == ["0", "1", None]
    chosen = {e.attributes["data-choose"]: options(e) for e in page.root.every("select")}
    assert chosen["axis0"] == ["all", "dpdl", "dpop"]
    assert chosen["verdict"] == ["all", "unsupported", "not refuted"]
    assert "axis2" not in chosen  # one value alone
    panels = [e for e in page.root.every("figure") if "data-axis1" in e.attributes]
    assert [panel.attributes["data-axis1"] for panel in panels] == ["0", "1"]


def test_a_void_row_is_drawn_without_an_upper_end(board: Leaderboard) -> None:
    row = board.standings[1]
    point, void = board._point(row), board._point(row._replace(void="why"))
    assert point is not None
    assert void is not None
    assert (point.epsilon.high, void.epsilon.high, void.epsilon.value) == (0.5, math.inf, math.inf)


def options(select: Element) -> list[str]:
    return [option.text() for option in select.every("option")]


def test_the_files_have_every_row_with_every_digit(board: Leaderboard) -> None:
    paths = board.write()
    assert [path.name for path in paths] == [
        "leaderboard.html", "leaderboard.csv", "leaderboard.md", "leaderboard.parquet",
        "leaderboard-1.svg",
    ]  # fmt: skip
    frame, as_parquet = board.frame(), pd.read_parquet(paths[3])
    in_csv = list(csv.DictReader(io.StringIO(paths[1].read_text())))
    assert len(frame) == len(as_parquet) == len(in_csv) == 3
    assert list(frame) == list(as_parquet) == list(in_csv[0])
    for one, two, three in zip(board.rows, as_parquet.to_dict("records"), in_csv, strict=True):
        for key, value in one.items():
            if isinstance(value, float):
                assert two[key] == value == float(three[key])
    assert as_parquet["accounted_epsilon_high"].tolist() == [math.inf, 0.5, pytest.approx(math.nan, nan_ok=True)]  # fmt: skip


def test_published_rows_are_those_of_the_table_in_three_digits(
    board: Leaderboard, tmp_path: Path
) -> None:
    made = board.published("dpaudit benchmark few", "2026-11-25")
    [table] = made.tables
    head, *shown = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert list(head)[:2] == ["defense", "graph"]
    assert (head["accounted, least"], head["accounted, most"]) == (0.75, "inf")
    assert head["test accuracy"] == 0.625
    assert (head["test accuracy, low"], head["test accuracy, high"]) == (0.0, 1.0)
    assert [row["gaps"] for row in shown] == [None, "d: no graph <b>fits</b>"]
    assert len(table.rows) == len(board.standings)
    published.write_tables(tmp_path, "few", made)
    assert ResultTables.read(tmp_path / "few.json") == made
    assert (tmp_path / "few.csv").read_text() == as_csv(made.rows)


def test_without_pyarrow_the_line_says_what_to_install(
    board: Leaderboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r'pip install "dpaudit\[parquet\]"'):
        board.parquet()
    assert [path.suffix for path in board.write()] == [".html", ".csv", ".md", ".svg"]


@pytest.mark.slow
def test_the_same_benchmark_gives_the_same_files(board: Leaderboard) -> None:
    before = [path.read_bytes() for path in board.write()]
    again = Leaderboard(board.benchmark, board.folder)
    assert [path.read_bytes() for path in again.write()] == before


def test_a_benchmark_of_which_nothing_is_done_has_a_page(tmp_path: Path) -> None:
    page = Page(Leaderboard(benchmark(cell("a", state="waiting")), tmp_path).html())
    assert "0 of 1 audits are done, 1 are not run yet" in visible(page)
    assert "Nothing can be drawn" in visible(page)
    assert Page(Leaderboard(benchmark(), tmp_path).html())


def test_the_table_in_markdown_has_every_row(board: Leaderboard) -> None:
    head, rule, ring, complete, failed = as_markdown(board.axes, board.standings).splitlines()
    assert head.startswith("| defense | graph | claim.epsilon | claimed epsilon | accounted |")
    assert set(rule) == {"|", "-", " "}
    assert ring.startswith("| dpdl | ring | 2.0 | 2, add-remove, run | void |  | unsupported in")
    assert "| 0.625 (0 to 1) |" in ring
    assert complete.startswith("| dpdl | complete | 2.0 | 2, add-remove, run | 0.25 to 0.5 |")
    assert "| no graph &lt;b&gt;fits&lt;/b&gt; |" in failed
    assert (
        len({line.count("|") for line in as_markdown(board.axes, board.standings).splitlines()})
        == 1
    )


def test_hostile_text_stays_text_on_the_page_and_is_no_formula(
    golden: AuditResult, tmp_path: Path
) -> None:
    values = ("=1+1", HOSTILE, 2.0)
    written(tmp_path, {"a": audited(golden, void=HOSTILE)})
    cells = cell("a", values=values), cell("b", values=values, state="failed", error=HOSTILE)
    board = Leaderboard(benchmark(*cells).model_copy(update={"name": HOSTILE}), tmp_path)
    text = board.html()
    assert text.count("<script") == 1
    assert not list(Page(text).root.every("img"))
    assert as_csv(board.rows).splitlines()[1].startswith("'=1+1,")


@pytest.mark.slow
def test_two_hundred_cells_are_under_20_megabytes(golden: AuditResult, tmp_path: Path) -> None:
    """100 combinations, two seeds each."""
    names, graphs = [f"defense {i}" for i in range(10)], ["ring", "bipartite"]
    cells, results = [], {}
    for i in range(200):
        combination = i // 2
        values = names[combination % 10], graphs[combination // 10 % 2], combination // 20
        graph, accuracy = values[1], 0.3 + combination / 200
        results[f"c{i}"] = audited(golden, accuracy, graph, epsilon=0.1 + combination / 10)
        cells.append(cell(f"c{i}", seed=i % 2, values=values))
    board = Leaderboard(benchmark(*cells), written(tmp_path, results))
    assert len(board.standings) == 100
    assert sum(path.stat().st_size for path in board.write()) < 20e6
