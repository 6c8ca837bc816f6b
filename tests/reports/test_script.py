"""What a reader can do with a report in a browser: sort, choose, find, copy, enlarge, point."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpaudit.files.finding import Finding, Role
from dpaudit.files.result import AuditResult
from dpaudit.reports.html import render
from dpaudit.reports.run import finding_links
from dpaudit.reports.tables import training
from tests.reports.browser import Browser, started

TRACE = {"iteration": (0.0, 1.0, 9.0), "loss": (0.9, 0.8, 0.7), "psnr": (5.0, 4.0, 6.0)}
WHO = ((0, 0, 1, 1), (1, 2, 0, 2), (0.5, 0.001, float("inf"), 0.1))  # reads, whose record, mu


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


@pytest.fixture(scope="module")
def result(few: AuditResult) -> AuditResult:
    """Few of the golden findings, with what each agent learns of each other, a second claim, and searches."""
    series = dict(zip(("adversary", "victim", "mu"), WHO, strict=True))
    learnt = Finding(role=Role.WHO_LEARNS_WHAT, kind="accounting", title="Who", series=series)
    traced = [f.model_copy(update={"trace": TRACE}) for f in few.findings[:8]]
    other = few.claims[0].model_copy(update={"claim": 1, "sentence": "another claim"})
    findings = (*traced, *few.findings[8:], learnt)
    return few.model_copy(update={"findings": findings, "claims": (*few.claims, other)})


@pytest.fixture(scope="module")
def written(
    result: AuditResult, run_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(result, run_directory))
    return path


@pytest.fixture
def page(browser: Browser, written: Path) -> Iterator[Any]:
    with browser.open(written) as opened:
        yield opened.page
        assert not opened.errors


def shown(page: Any, selector: str) -> int:
    return page.locator(f"{selector}:visible").count()


def test_a_heading_sorts_its_table_up_and_down(page: Any) -> None:
    page.locator(".scenario summary").first.click()
    table = page.locator(".scenario details > .scroll > table").first
    button = table.locator("th", has_text="PSNR").locator("button")
    column = "rows => rows.map(row => parseFloat(row.cells[4].textContent.replace('−', '-')))"
    for order in (1, -1):
        button.click()
        values = table.locator("tbody tr").evaluate_all(column)
        finite = [x for x in values if x == x]
        assert len(set(finite)) > 1
        assert finite == sorted(finite, reverse=order < 0)
    assert table.locator("th[aria-sort=descending]").count() == 1


def test_one_adversary_or_round_can_be_seen_alone(page: Any, result: AuditResult) -> None:
    second = result.threat_models[1].name
    page.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")
    everything = shown(page, "main article")
    page.select_option("[data-choose=adversary]", label=second)
    headings = page.locator(".scenario h3:visible").all_inner_texts()
    assert headings
    assert all(heading.endswith(f"by {second}") for heading in headings)
    assert 0 < shown(page, "main article") < everything
    page.select_option("[data-choose=adversary]", "")
    page.select_option("[data-choose=round]", "3")
    for part in ("th", "figure"):  # of a grid, and of small multiples
        assert shown(page, f"{part}[data-round='3']")
        assert not shown(page, f"{part}[data-round='9']")
    page.select_option("[data-choose=round]", "")
    assert shown(page, "main article") == everything
    rows = shown(page, "main tbody tr")
    page.fill("input[type=search]", "no-defense")
    assert 0 < shown(page, ".scenario table:not(.grid) tbody tr") < rows
    assert not shown(page, ".finding")  # no-defense is in none of them
    assert "rows" in page.locator(".controls output").inner_text()


def test_a_claim_is_seen_with_what_bears_on_it_alone(page: Any) -> None:
    assert shown(page, "[data-claim='0']")
    page.select_option("[data-choose=claim]", label="another claim")
    assert not shown(page, "[data-claim='0']")
    assert shown(page, "[data-claim='1']")
    assert shown(page, ".scenario")  # what bears on no claim


def test_an_agent_lights_up_its_links_and_what_it_learns(page: Any) -> None:
    page.locator("#learnt [data-node='1']").click()
    assert page.locator("[data-choose=agent]").input_value() == "1"
    said = page.locator("#learnt output").inner_text()
    assert said == "Agent 1 learns most of agent 0 (mu infinite: no noise), agent 2 (mu 0.1)."
    fills = page.locator("#learnt .agent").evaluate_all("all => all.map(one => one.style.fill)")
    assert "--no-defense" in fills[0]
    assert "--defense" in fills[2]
    assert fills[1] == fills[3] == ""  # itself, and one of which nothing is known
    lit = page.locator(".graph line.lit").evaluate_all("all => all.map(one => one.dataset.ends)")
    assert lit
    assert all("1" in ends.split() for ends in lit)
    page.locator("#learnt [data-node='1']").click()
    assert not page.locator(".graph line.lit").count()


def test_what_is_copied_behind_a_figure_is_what_is_exported(
    browser: Browser, written: Path, result: AuditResult
) -> None:
    with browser.open(written, permissions=["clipboard-read", "clipboard-write"]) as opened:
        behind = opened.page.locator("#training details.data")
        behind.locator("summary").click()
        behind.locator("> button").click()
        opened.page.wait_for_function("document.body.textContent.includes('Copied')")
        text = opened.page.evaluate("navigator.clipboard.readText()")
    copied = list(csv.DictReader(io.StringIO(text)))
    exported = list(training(result))
    assert len(copied) == len(exported)
    for row, expected in zip(copied, exported, strict=True):
        assert row["world"] == expected["world"]
        assert float(row["loss"]) == expected["loss"]  # every digit


def test_the_command_of_the_next_step_is_copied(browser: Browser, written: Path) -> None:
    with browser.open(written, permissions=["clipboard-read", "clipboard-write"]) as opened:
        command = opened.page.locator(".hero .command")
        opened.page.get_by_role("button", name=f"Copy {command.inner_text()}").click()
        opened.page.wait_for_function(
            "document.querySelector('.hero').textContent.includes('Copied')"
        )
        assert opened.page.evaluate("navigator.clipboard.readText()") == command.inner_text()


def test_a_link_opens_the_finding_that_it_leads_to(page: Any, result: AuditResult) -> None:
    folded = [i for i, f in enumerate(result.findings) if f.kind == "accounting"]
    link = finding_links(result.findings, result.claims)[folded[0]]
    assert not page.locator(f"[id='{link}'] .more").is_visible()
    page.evaluate("link => location.hash = link", link)
    page.locator(f"[id='{link}'] .more").wait_for(state="visible")


def test_an_image_is_enlarged_by_keyboard_and_escape_closes_it(page: Any) -> None:
    image = page.locator("main .zoom").first
    image.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog[open] img").bounding_box()["width"] > 300
    page.keyboard.press("Escape")
    assert not page.locator("dialog[open]").count()
    assert page.evaluate("document.activeElement.className") == "zoom"


def test_a_mark_says_its_value_where_a_pointer_rests(page: Any) -> None:
    mark = page.locator("#training .figure use[data-value]").last
    mark.scroll_into_view_if_needed()
    mark.hover()
    assert "round" in page.locator(".tip-text").inner_text()
    page.mouse.move(1, 1)
    assert not page.locator(".tip-text").is_visible()


@pytest.mark.slow
def test_a_link_to_a_finding_leads_to_it_whatever_is_hidden(page: Any, result: AuditResult) -> None:
    scored = [i for i, f in enumerate(result.findings) if f.threat_model and f.metrics]
    link = finding_links(result.findings, result.claims)[scored[0]]
    page.fill("input[type=search]", "nothing has these words")
    assert not page.locator(f"[id='{link}']").is_visible()
    page.evaluate("link => location.hash = link", link)
    page.locator(f"[id='{link}']").wait_for(state="visible")
    anchor = page.locator(f"[id='{link}'] .anchor")
    assert anchor.evaluate("one => getComputedStyle(one).opacity") == "0"
    page.locator(f"[id='{link}']").hover()
    assert anchor.evaluate("one => getComputedStyle(one).opacity") == "1"


@pytest.fixture
def board(browser: Browser, leaderboard: str, tmp_path: Path) -> Iterator[Any]:
    (path := tmp_path / "leaderboard.html").write_text(leaderboard)
    with browser.open(path) as opened:
        yield opened.page
        assert not opened.errors


def test_rows_of_one_value_of_an_axis_can_be_seen_alone(board: Any) -> None:
    assert shown(board, "#rows tbody tr") == 6
    board.select_option("[data-choose=axis0]", label="dpop")
    assert shown(board, "#rows tbody tr") == 2
    board.select_option("[data-choose=axis1]", label="ring")
    assert shown(board, "#rows tbody tr") == 1
    assert shown(board, "#utility .multiples figure") == 1
    board.select_option("[data-choose=axis0]", label="all")
    board.fill("input[type=search]", "zip-dl")
    assert shown(board, "#rows tbody tr") == 1


def test_rows_without_a_number_are_sorted_last_both_ways(board: Any) -> None:
    heading = board.locator("#rows th", has_text="accounted epsilon")
    column = heading.evaluate("one => one.cellIndex")
    board.locator("#rows tbody tr").first.evaluate(
        f"row => (row.cells[{column}].textContent = '–')"
    )
    for order in (1, -1):
        heading.locator("button").click()
        cells = board.locator("#rows tbody tr").evaluate_all(
            f"rows => rows.map(row => row.cells[{column}].innerText)"
        )
        assert cells[-1] == "–"
        ends = [float(cell.split(" to ")[1]) for cell in cells[:-1]]
        assert ends == sorted(ends, reverse=order < 0)
        assert ends[0] != ends[-1]
