"""Best, median and worst target: picked from the rows of a finding, found again in every world."""

import math
from pathlib import Path

import pytest

from dpaudit.files.finding import Finding, restart_column
from dpaudit.files.result import AuditResult
from dpaudit.reports.figures.reconstruction import search_by_iteration
from dpaudit.reports.html import render
from dpaudit.reports.reconstructions import (
    NumberedFinding,
    Picture,
    picks,
    scenarios,
    target_cells,
)
from tests.reports.pages import GOLDEN, Page, png, small_finding, visible, with_findings

STRIP = {"images": "artifacts/strip.png"}


def rows(ssim: list[float], victims: list[int] | None = None, **changes: object) -> Finding:
    named = range(len(ssim)) if victims is None else victims
    series = {
        "victim": tuple(float(v) for v in named),
        "ssim": tuple(ssim),
        "psnr": tuple(10 + 7 * x for x in ssim),
        "mse": tuple(3 - x for x in ssim),
    }
    return small_finding(**({"series": series} | changes))


@pytest.mark.parametrize(
    ("ssim", "expected"),
    [
        ([0.3], {"the only": 0}),
        ([0.3, 0.4], {"best": 1, "worst": 0}),
        ([0.3, 0.5, 0.4], {"best": 1, "median": 2, "worst": 0}),
        ([0.3, 0.5, 0.4, 0.1], {"best": 1, "median": 2, "worst": 3}),
        ([math.nan, 0.5, -0.4], {"best": 1, "median": 2, "worst": 0}),
        ([0.2, 0.2, 0.2], {"best": 0, "median": 1, "worst": 2}),
    ],
)
def test_targets_are_picked_by_their_ssim(ssim: list[float], expected: dict[str, int]) -> None:
    assert {pick.label: pick.row for pick in picks(rows(ssim))} == expected


def test_a_finding_without_targets_has_none_to_pick() -> None:
    assert picks(small_finding()) == []
    assert target_cells(small_finding(), picks(rows([0.1, 0.2])), Picture("", "data:", 17, 8)) == []


def test_the_agent_that_fares_worst_is_followed() -> None:
    """Agent 4 has the higher mean, agent 7 is missing in a round; blind guesses do not count."""
    findings = [
        rows([0.3, 0.9, 0.8], [6, 7, 4], rounds=(1,), artifacts=STRIP),
        rows([0.5, 0.2], [4, 6], rounds=(2,), artifacts=STRIP),
        rows([0.9, 0.9], [6, 4], rounds=(2,), world="blind", artifacts=STRIP),
    ]
    entries = [NumberedFinding(i, f) for i, f in enumerate(findings)]
    (group,) = scenarios(entries)
    assert group.followed == 4
    pictures = {STRIP["images"]: Picture("", "data:", 19, 8)}
    (row,) = [row for row in group.grid(pictures, 4.0) if row.world == "defense"]
    assert [one.window for one in row.cells[0][0].targets] == ["14 0 5 8"]  # the third of three
    assert row.cells[1][0].targets == []  # no strip of two
    assert scenarios(entries[:1])[0].followed is None


def test_a_target_is_its_part_of_the_strip_in_every_world() -> None:
    """Images of 5 x 8 pixels, 2 apart; in the other world the victims come in another order."""
    picked = picks(rows([0.3, 0.9, 0.5], [4, 6, 7]))
    strip = Picture("", "data:", 19, 8)
    other = rows([0.11, 0.12], [7, 4])
    assert [c.window for c in target_cells(rows([0.3, 0.9, 0.5], [4, 6, 7]), picked, strip)] == [
        "7 0 5 8",
        "14 0 5 8",
        "0 0 5 8",
    ]
    cells = target_cells(other, picked, Picture("", "data:", 12, 8))
    assert [cell.window for cell in cells] == [None, "0 0 5 8", "7 0 5 8"]
    assert [cell.figures.get("ssim") for cell in cells] == [None, 0.11, 0.12]
    assert target_cells(other, picked, Picture("", "data:", 13, 8)) == []  # no strip of two


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[AuditResult, str]:
    """Three targets of two restarts each, under the defense and without it."""
    (tmp_path / "a.png").write_bytes(png(0, 19))
    (tmp_path / "t.png").write_bytes(png(1, 19))
    artifacts = {"images": "a.png", "truth": "t.png"}
    restarts = {
        restart_column(1): (0.7501, 0.7502, 0.7503),
        restart_column(2): (0.6501, 0.8502, math.inf),
        "chosen restart": (2.0, 1.0, 1.0),
    }
    defended = rows([0.311, 0.911, 0.511], artifacts=artifacts)
    defended = defended.model_copy(update={"series": dict(defended.series) | restarts})
    trace = {"iteration": (0.0, 1.0, 9.0), "loss": (0.9, 0.8, 0.7), "psnr": (5.0, 4.0, 6.0)}
    defended = defended.model_copy(update={"trace": trace})
    twin = rows([0.912, 0.713, 0.714], artifacts=artifacts, world="no-defense")
    result = with_findings(AuditResult.read(GOLDEN), defended, twin)
    return result, render(result, tmp_path)


def target_rows(html: str) -> list[list[str]]:
    (table,) = (e for e in Page(html).root.every("table") if "targets-table" in e.classes())
    return [[cell.text() for cell in row.every("td")] for row in table.every("tr")][1:]


def test_the_same_three_targets_stand_in_every_row(
    drawn: tuple[AuditResult, str],
) -> None:
    page = Page(drawn[1])
    (grid,) = (e for e in page.root.every("table") if "grid" in e.classes())
    shown = [row.text(frozenset({"svg"})) for row in grid.every("tr")][1:]
    assert [row for row in shown if "best median worst" in row]
    for ssim in ("0.91 0.51 0.31", "0.71 0.71 0.91"):
        assert [row for row in shown if ssim in row]
    windows = [e.attributes.get("viewbox") for e in grid.every("svg")]
    assert [w for w in windows if w] == ["7 0 5 8", "14 0 5 8", "0 0 5 8"] * 3
    agents = [row[:4] for row in target_rows(drawn[1]) if row[1] == "defense"]
    assert agents == [
        ["3", "defense", "best, agent 1", "0.911"],
        ["3", "defense", "median, agent 2", "0.511"],
        ["3", "defense", "worst, agent 0", "0.311"],
    ]
    for words in ("scores has the truth", "the attacker cannot", "median"):
        assert words in visible(page)


def test_the_chosen_restart_is_marked(drawn: tuple[AuditResult, str]) -> None:
    (table,) = (e for e in Page(drawn[1]).root.every("table") if "targets-table" in e.classes())
    losses = [row[6] for row in target_rows(drawn[1]) if row[1] == "defense"]
    assert losses == ["0.750 , 0.850", "0.750 , ∞", "0.750, 0.650"]
    assert [e.text() for e in table.every("strong")] == ["0.750", "0.750", "0.650"]


def test_ids_are_unique_and_every_use_has_its_image(drawn: tuple[AuditResult, str]) -> None:
    page = Page(drawn[1])
    ids = [e.attributes["id"] for e in page.root.every() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    used = {e.attributes["href"] for e in page.root.every("use") if "href" in e.attributes}
    assert {f"#{e.attributes['id']}" for e in page.root.every("image")} <= used
    assert used <= {f"#{name}" for name in ids}


def test_the_search_is_drawn_with_its_loss_and_the_oracles_psnr(
    drawn: tuple[AuditResult, str],
) -> None:
    assert "which only the scorer sees (oracle)" in visible(Page(drawn[1]))
    (figure,) = search_by_iteration(drawn[0].findings, "name", "title")
    svg = figure.drawing
    assert [row["psnr"] for row in figure.rows] == [5.0, 4.0, 6.0]
    for words in ("attacker's own loss", "oracle: PSNR (dB)", "iteration", ">defense<"):
        assert words in svg
    assert "no-defense" not in svg  # it has no trace
    assert "mathdefault" not in svg
    assert [figure] == search_by_iteration(drawn[0].findings, "name", "title")


def test_nothing_is_drawn_of_a_trace_that_is_not_finite() -> None:
    inf = math.inf
    trace = {"iteration": (0.0, 1.0), "loss": (inf, inf), "psnr": (5.0, 4.0)}
    findings = [small_finding(), small_finding(trace=trace)]
    assert search_by_iteration(findings, "name", "title") == []
