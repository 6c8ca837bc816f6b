"""The pages in a real browser: readable at each size and theme, by keyboard, and inert."""

from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import pytest

from dpaudit.files.published import ExperimentRuns
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.reports import captured
from dpaudit.reports.comparison import render_comparison
from dpaudit.reports.html import render
from dpaudit.reports.leaderboard import Leaderboard
from dpaudit.reports.published import render_experiment
from tests.reports.benchmarks import benchmark, cell, written
from tests.reports.browser import PHONE, WIDE, Browser, started
from tests.reports.pages import DRAW, EVENT, HOSTILE, hostile, with_premises

NAMES = ["few", "comparison", "captured", "leaderboard", "experiment", "report"]
LIGHT, DARK = ("light", WIDE), ("dark", PHONE)
FAST = [("few", DARK), *((name, LIGHT) for name in NAMES[:-1])]
EXPERIMENT = Path(__file__).parents[2] / "docs" / "results" / "dpdl-figures1-2-quick.json"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(
    html: str,
    few: AuditResult,
    run_directory: Path,
    comparison: str,
    leaderboard: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "report.html").write_text(html)
    (folder / "few.html").write_text(render(few, run_directory))
    (folder / "comparison.html").write_text(comparison)
    (folder / "leaderboard.html").write_text(leaderboard)
    experiment = ExperimentRuns.model_validate_json(EXPERIMENT.read_text()).runs[0]
    lines = tuple(line for line in experiment.lines if line.labels["graph"] == "ring")
    experiment = experiment.model_copy(update={"lines": lines})
    (folder / "experiment.html").write_text(render_experiment(experiment))
    (folder / "captured.html").write_text(captured.render("torchrun train.py", [EVENT] * 3, [DRAW]))
    return folder


@pytest.mark.parametrize(
    ("name", "theme", "size"),
    [
        pytest.param(name, *look, marks=[pytest.mark.slow] * ((name, look) not in FAST))
        for name, look in product(NAMES, [LIGHT, DARK, ("dark", WIDE), ("light", PHONE)])
    ],
)
def test_a_page_has_no_errors_asks_for_nothing_and_is_readable(
    browser: Browser, folder: Path, name: str, theme: str, size: tuple[int, int]
) -> None:
    """Axe finds nothing, and whatever is opened the page is no wider than the window."""
    page = folder / f"{name}.html"
    with browser.open(page, size, color_scheme=theme) as opened:
        assert not opened.errors
        outside = [url for url in opened.requests if not url.startswith("data:")]
        assert outside == [page.as_uri()]
        assert not opened.violations()
        opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theme", "size"), [("light", PHONE), pytest.param("dark", WIDE, marks=pytest.mark.slow)]
)
def test_premises_and_range_are_readable(
    browser: Browser, golden: AuditResult, tmp_path: Path, theme: str, size: tuple[int, int]
) -> None:
    statuses = ("examined", "not examined", "failed") * 2
    (page := tmp_path / "report.html").write_text(
        render(with_premises(golden, Verdict.UNDERPOWERED, *statuses), tmp_path)
    )
    with browser.open(page, size, color_scheme=theme) as opened:
        opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert not opened.violations()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0]
        labels = opened.page.locator(".hero .range text").all()
        boxes = [label.bounding_box() for label in labels]
        assert len(boxes) >= 5  # three marks, two ticks
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= size[0] for box in boxes)
        said = opened.page.locator(".hero .range text:not(.tick)").all()
        assert len(said) == 3
        heights = sorted(label.bounding_box()["y"] for label in said)
        assert all(b - a > 15 for a, b in pairwise(heights))  # none overlap


def test_the_first_screen_of_a_phone_holds_the_verdict(
    browser: Browser, folder: Path, golden: AuditResult
) -> None:
    with browser.open(folder / "report.html", PHONE) as opened:
        verdict = opened.page.get_by_text(str(golden.verdict), exact=False).first
        box = verdict.bounding_box()
        assert box["y"] + box["height"] <= PHONE[1]
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE[0]


def test_a_report_is_short_before_anything_is_opened(browser: Browser, folder: Path) -> None:
    with browser.open(folder / "report.html", (1280, 900)) as opened:
        assert opened.page.evaluate("document.documentElement.scrollHeight") < 6000


def test_a_report_of_a_function_is_short_and_clean(
    browser: Browser, golden: AuditResult, tmp_path: Path
) -> None:
    config = {"mechanism": {"function": "mine.py:noised"}}
    result = with_premises(golden, Verdict.SUPPORTED, *["examined"] * 6)
    findings = tuple(f for f in result.findings if f.kind != "reconstruction")
    claims = tuple(claim.model_copy(update={"because": ()}) for claim in result.claims)
    changes = {"config": config, "findings": findings, "claims": claims, "utility": {}}
    (page := tmp_path / "report.html").write_text(
        render(result.model_copy(update=changes), tmp_path)
    )
    with browser.open(page, (1280, 900)) as opened:
        assert opened.page.evaluate("document.documentElement.scrollHeight") < 6000
        assert opened.page.locator("#reconstruction, #training").count() == 0
        opened.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        assert not opened.violations()


@pytest.mark.parametrize("name", ["report", "leaderboard"])
def test_all_is_there_without_script(browser: Browser, folder: Path, name: str) -> None:
    read = {}
    for runs in (True, False):
        with browser.open(folder / f"{name}.html", java_script_enabled=runs) as opened:
            read[runs] = set(opened.page.locator("main, body").first.inner_text().split())
    missing = read[True] - read[False]
    assert len(missing) <= 40, missing  # controls alone, which only the script adds


@pytest.mark.parametrize("name", [pytest.param("report", marks=pytest.mark.slow), "leaderboard"])
def test_the_keyboard_alone_reaches_and_opens_what_is_folded(
    browser: Browser, folder: Path, name: str
) -> None:
    with browser.open(folder / f"{name}.html") as opened:
        folded = opened.page.locator("summary").count()
        reached = set()
        for _ in range(2000):
            opened.page.keyboard.press("Tab")
            place = opened.page.evaluate(
                "() => { const at = document.activeElement; return at.tagName === 'SUMMARY' ? "
                "[...document.querySelectorAll('summary')].indexOf(at) : at === document.body "
                "? -1 : -2 }"
            )
            if place == -1:
                break
            if place >= 0 and place not in reached:
                reached.add(place)
                opened.page.keyboard.press("Enter")
        assert folded
        assert len(reached) == folded
        assert opened.page.locator("details[open]").count() == folded


@pytest.mark.parametrize("name", ["report", "leaderboard"])
def test_every_region_that_scrolls_can_be_focused(
    browser: Browser, folder: Path, name: str
) -> None:
    with browser.open(folder / f"{name}.html", PHONE) as opened:
        stuck = opened.page.evaluate(
            "() => [...document.querySelectorAll('*')].filter(e => e.scrollWidth > e.clientWidth "
            "+ 1 && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.tabIndex < 0)"
            ".map(e => e.outerHTML.slice(0, 120))"
        )
        assert not stuck


def test_a_page_is_printed(browser: Browser, folder: Path) -> None:
    with browser.open(folder / "report.html") as opened:
        assert opened.page.pdf().startswith(b"%PDF")
        opened.page.emulate_media(media="print")
        assert not opened.page.locator("button:visible, input:visible, select:visible").count()


def test_headings_stay_with_what_follows_on_paper(browser: Browser, folder: Path) -> None:
    with browser.open(folder / "report.html") as opened:
        opened.page.emulate_media(media="print")
        headings = opened.page.locator("main :is(h2, h3, h4, h5):visible")
        kept = headings.evaluate_all("all => all.map(one => getComputedStyle(one).breakAfter)")
        assert len(kept) > 10
        assert set(kept) == {"avoid"}


COLOURS = """() => ["body", ".hero", ".figure svg text"].map(where => {
    const style = getComputedStyle(document.querySelector(where));
    return [style.backgroundColor, style.color, style.fill].join(" ");
})"""


def test_a_page_has_the_colours_of_the_theme(browser: Browser, folder: Path) -> None:
    seen = {}
    for theme in ("light", "dark"):
        with browser.open(folder / "few.html", color_scheme=theme) as opened:
            seen[theme] = opened.page.evaluate(COLOURS)
    assert all(light != dark for light, dark in zip(seen["light"], seen["dark"], strict=True))


def test_hostile_text_is_inert(browser: Browser, few: AuditResult, tmp_path: Path) -> None:
    """On each page, also when a reader copies, enlarges, sorts, finds and chooses all there is."""
    result = AuditResult.model_validate(hostile(few.model_dump(mode="json")))
    values = dict.fromkeys(("defense.name", "graph.name", "claim.epsilon"), HOSTILE)
    cells = [
        cell("a").model_copy(update={"values": values}),
        cell("b", state="failed", error=HOSTILE),
    ]
    board = Leaderboard(benchmark(*cells), written(tmp_path, {"a": result}))
    pages = {
        "report": render(result, tmp_path),
        "leaderboard": board.html(),
        "comparison": render_comparison([(HOSTILE, result, tmp_path), ("b", few, tmp_path)]),
        "captured": captured.render(HOSTILE, [EVENT], [DRAW]),
    }
    for name, text in pages.items():
        (page := tmp_path / f"{name}.html").write_text(text)
        with browser.open(page) as opened:
            opened.page.evaluate(USED)
            assert opened.page.evaluate("window.hacked") is None
            asked = [url for url in opened.requests if not url.startswith("data:")]
            assert asked == [page.as_uri()]
            assert not opened.errors


USED = """() => {
    document.querySelectorAll("details").forEach(one => (one.open = true));
    document.querySelectorAll("button, [data-node]").forEach(one =>
        one.dispatchEvent(new MouseEvent("click", { bubbles: true })));
    document.querySelectorAll("[data-value]").forEach(one =>
        one.dispatchEvent(new PointerEvent("pointerover", { bubbles: true })));
    document.querySelectorAll(".controls :is(select, input)").forEach(one => {
        one.value = one.options ? one.options[1].value : "<img src=x onerror=hacked=1>";
        one.dispatchEvent(new Event("input", { bubbles: true }));
    });
}"""
