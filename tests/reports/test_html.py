"""The HTML report: every number on it is in the result, nothing is loaded, all text is escaped."""

import base64
import math
import os
import re
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from dpaudit.errors import DpauditError
from dpaudit.files.finding import Finding, Metric, Role
from dpaudit.files.result import AuditResult, Curve
from dpaudit.files.verdict import MEANING, Verdict
from dpaudit.reports.arrangement import NumberedFinding, scenarios
from dpaudit.reports.figures.drawing import graph_drawing
from dpaudit.reports.figures.pictures import Picture, embedded
from dpaudit.reports.html import estimate, number, render, render_comparison, span

GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"
VOID = {"meta", "link", "img", "br", "hr"}
FIXED = {0.0, 1.0, 95.0}  # in the page's own sentences: SSIM 1 and MSE 0 are perfect, 95% intervals
NO_PROOF = "not a proof of privacy"


class Element:
    def __init__(self, tag: str, attributes: dict[str, str], parent: "Element | None") -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.content: list[Element | str] = []

    def every(self, tag: str | None = None) -> "Iterator[Element]":
        for part in self.content:
            if isinstance(part, Element):
                if tag in (None, part.tag):
                    yield part
                yield from part.every(tag)

    def text(self, without: frozenset[str] = frozenset()) -> str:
        parts = (
            part if isinstance(part, str) else "" if part.tag in without else part.text(without)
            for part in self.content
        )
        return " ".join(" ".join(parts).split())

    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()


class Page(HTMLParser):
    """A page as a tree; an element that is closed out of turn or not at all is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.root = self.at = Element("", {}, None)
        self.feed(html)
        self.close()
        assert self.at is self.root, f"<{self.at.tag}> is never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.content.append(element)
        if tag not in VOID:
            self.at = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.at.content.append(Element(tag, {name: value or "" for name, value in attrs}, self.at))

    def handle_endtag(self, tag: str) -> None:
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.content.append(data)

    def by_id(self, name: str) -> Element:
        (found,) = (e for e in self.root.every() if e.attributes.get("id") == name)
        return found


def png(seed: int, width: int = 17, height: int = 8) -> bytes:
    """A grey PNG of that size whose content depends on the seed."""
    rows = b"".join(
        b"\0" + bytes((seed * 37 + i) % 256 for i in range(width)) for _ in range(height)
    )
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def with_findings(result: AuditResult, *findings: Finding, **changes: Any) -> AuditResult:
    return result.model_copy(update={"findings": findings, "claims": (), "utility": {}, **changes})


def small_finding(**changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "role": Role.RECONSTRUCTION,
        "kind": "reconstruction",
        "title": "x, batch of 1",
        "attack": "gradient-inversion",
        "threat_model": "eavesdropper",
        "message": "x",
        "rounds": (3,),
        "world": "defense",
        "batch_size": 1,
        "metrics": {"ssim": Metric(value=0.25, low=0.125, high=0.375, n=8)},
    }
    return Finding(**(fields | changes))


@pytest.fixture(scope="module")
def golden() -> AuditResult:
    return AuditResult.read(GOLDEN)


@pytest.fixture(scope="module")
def run_directory(golden: AuditResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every artifact that the golden result names."""
    folder = tmp_path_factory.mktemp("run")
    for i, path in enumerate(p for f in golden.findings for p in f.artifacts.values()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(png(i))
    return folder


@pytest.fixture(scope="module")
def html(golden: AuditResult, run_directory: Path) -> str:
    return render(golden, run_directory)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture(scope="module")
def comparison(golden: AuditResult, run_directory: Path) -> str:
    other = golden.model_copy(
        update={"verdict": Verdict.NOT_REFUTED, "findings": golden.findings[:9]}
    )
    return render_comparison([("first", golden, run_directory), ("second", other, run_directory)])


# Numbers


def numbers_in(value: Any) -> Iterator[float]:
    """Every number of a result, those inside its texts and the counts of its lists included."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        yield from (float(x) for x in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", value))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from numbers_in(key)
            yield from numbers_in(part)
    else:
        yield float(len(value))
        for part in value:
            yield from numbers_in(part)


def shown_numbers(text: str) -> list[str]:
    plain = text.replace("−", "-").replace(",", "")
    return re.findall(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])", plain)


def is_rounded_from(shown: str, x: float) -> bool:
    mantissa, _, exponent = shown.partition("e")
    decimals = len(mantissa.partition(".")[2])
    half_a_digit = 0.5 * 10.0 ** (int(exponent or 0) - decimals)
    return abs(float(shown) - x) <= half_a_digit * (1 + 1e-9)


def unexplained(text: str, result: AuditResult) -> list[str]:
    """The numbers of a text that no number of the result rounds to."""
    indexes = range(len(result.findings))
    scored = [f for f in result.findings if f.world == "defense" and "ssim" in f.metrics]
    known = {*numbers_in(result.model_dump()), *indexes, len(scored), *FIXED}
    known = {x for x in known if math.isfinite(x)}
    return [s for s in shown_numbers(text) if not any(is_rounded_from(s, x) for x in known)]


def visible(page: Page) -> str:
    return page.root.text(without=frozenset({"style", "svg", "head"}))


def test_every_number_on_the_page_is_in_the_result(page: Page, golden: AuditResult) -> None:
    assert len(shown_numbers(visible(page))) > 500
    assert unexplained(visible(page), golden) == []


def test_every_number_of_a_comparison_is_in_a_result(comparison: str, golden: AuditResult) -> None:
    text = visible(Page(comparison)).replace("2 audits side by side", "")
    first_nine = sum("ssim" in f.metrics and f.world == "defense" for f in golden.findings[:9])
    assert [s for s in unexplained(text, golden) if s != str(first_nine)] == []


@pytest.mark.parametrize("planted", ["0.7331", "3.17e-07", "421", "−0.0377"])
def test_a_number_that_is_not_in_the_result_would_be_noticed(
    page: Page, golden: AuditResult, planted: str
) -> None:
    assert len(unexplained(f"{visible(page)} {planted}", golden)) == 1


def test_each_metric_stands_in_the_row_of_its_finding(page: Page, golden: AuditResult) -> None:
    for i, finding in enumerate(f for f in golden.findings):
        metrics = finding.metrics.values()
        expected = [x for m in metrics for x in (m.value, m.low, m.high) if x is not None]
        expected = [x for x in expected if math.isfinite(x)]
        place = page.by_id(f"finding-{i}")
        cells = [cell for cell in place.every("td") if "num" in cell.classes()]
        shown = shown_numbers(" ".join(cell.text() for cell in cells))
        counts = [float(m.n) for m in metrics if m.n is not None]
        assert all(any(is_rounded_from(s, x) for x in [*expected, *counts]) for s in shown), i
        assert all(any(is_rounded_from(s, x) for s in shown) for x in expected), i


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (4.0, "4"),
        (1.9983, "2.00"),
        (0.75, "0.75"),
        (-0.12345, "−0.123"),
        (99.97, "100"),
        (5000.0, "5,000"),
        (123456.7, "123,457"),
        (4567890.0, "4.57e+06"),
        (1e-5, "1e−05"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "undefined"),
        (None, "–"),
    ],
)
def test_a_number_is_shown_with_three_digits(x: float | None, text: str) -> None:
    assert number(x) == text


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (Metric(value=0.32, low=0.26, high=0.38), "0.320 [0.260, 0.380]"),
        (Metric(value=0.0256, low=-0.0344, high=0.0856), "0.026 [−0.034, 0.086]"),
        (Metric(value=7.3342, low=7.3124, high=7.3342), "7.33 [7.31, 7.33]"),
        (Metric(value=-0.0001, low=-0.2, high=0.2), "0.000 [−0.200, 0.200]"),
        (Metric(value=math.inf, low=2.5, high=math.inf), "∞ [2.50, ∞]"),
        (Metric(value=math.nan, low=math.nan, high=math.nan), "undefined [undefined, undefined]"),
        (Metric(value=2e-7, low=0.0, high=4e-7), "2e−07 [0, 4e−07]"),
        (Metric(value=0.5, low=0.25), "0.500 [0.250, –]"),
        (Metric(value=0.5, n=9), "0.5"),
    ],
)
def test_an_estimate_is_shown_with_its_interval_in_the_same_decimals(
    metric: Metric, text: str
) -> None:
    assert estimate(metric).striptags() == text


# What a reader meets first


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_verdict_its_meaning_and_what_it_does_not_prove_stand_together(
    golden: AuditResult, tmp_path: Path, verdict: Verdict
) -> None:
    hero = Page(render(with_findings(golden, verdict=verdict), tmp_path)).by_id("verdict").parent
    assert hero is not None
    assert verdict.value in hero.text()
    assert MEANING[verdict] in hero.text()
    assert NO_PROOF in hero.text()


def test_the_top_of_the_page_says_claim_adversaries_and_what_leaked(
    page: Page, golden: AuditResult
) -> None:
    (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
    text = hero.text()
    assert golden.claims[0].sentence in text
    assert all(model.name in text for model in golden.threat_models)
    defended = [f for f in golden.findings if f.world == "defense" and f.metrics]
    best = max(defended, key=lambda f: f.metrics["ssim over blind"].value)
    assert f"best of {len(defended)} reconstructions" in text
    assert estimate(best.metrics["ssim"]).striptags() in text
    assert estimate(best.metrics["ssim over blind"]).striptags() in text
    assert "gave away more than a blind guess" in text
    assert len(list(hero.every("img"))) == 4  # the truth and three worlds


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.01, 0.2, "gave away more than a blind guess"),
        (-0.01, 0.2, "cannot be told from 0"),
        (-0.2, -0.01, "worse than the blind guess"),
        (math.nan, math.nan, "cannot be told from 0"),
    ],
)
def test_the_words_about_the_leak_follow_the_interval(
    golden: AuditResult, tmp_path: Path, low: float, high: float, words: str
) -> None:
    over = Metric(value=0.1, low=low, high=high, n=8)
    ssim = Metric(value=0.3, low=0.2, high=0.4, n=8)
    finding = small_finding(metrics={"ssim": ssim, "ssim over blind": over})
    text = visible(Page(render(with_findings(golden, finding), tmp_path)))
    phrases = ("gave away more", "cannot be told", "worse than the blind")
    assert words in text
    assert sum(phrase in text for phrase in phrases) == 1


def test_every_verdict_in_favour_says_that_it_is_no_proof(html: str, comparison: str) -> None:
    for text in (html, comparison):
        for badge in (e for e in Page(text).root.every("span") if "badge" in e.classes()):
            assert badge.parent is not None
            if "not refuted" in badge.text() or "underpowered" in badge.text():
                assert NO_PROOF in badge.parent.text()


CONTROL = {"epsilon lower bound": 0.125, "ceiling": 3.5}


def claimed_with_controls(golden: AuditResult, verdict: Verdict) -> AuditResult:
    claim = golden.claims[0]
    controls = [
        small_finding(
            role=Role(f"{which}-control"),
            kind="control",
            title=f"{which} control",
            metrics={name: Metric(value=x) for name, x in CONTROL.items()},
        )
        for which in ("null", "positive")
    ]
    judged = claim.model_copy(update={"because": (0, 1), "verdict": verdict})
    return with_findings(golden, *controls, claims=(judged,), verdict=verdict)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_wherever_a_verdict_is_shown_stands_that_not_refuted_is_not_a_proof(
    golden: AuditResult, tmp_path: Path, verdict: Verdict
) -> None:
    page = Page(render(claimed_with_controls(golden, verdict), tmp_path))
    (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
    for place in (hero, page.by_id("claims")):
        assert "Not refuted is not a proof" in place.text()


def test_the_controls_of_a_claim_stand_beside_its_verdict(
    golden: AuditResult, tmp_path: Path
) -> None:
    page = Page(render(claimed_with_controls(golden, Verdict.NOT_REFUTED), tmp_path))
    (claim,) = (e for e in page.by_id("claims").every("article"))
    for which in ("null control", "positive control"):
        assert f"{which} : epsilon at least 0.125 certified, 3.5 at most" in claim.text()
    without = golden.claims[0].model_copy(update={"because": ()})
    page = Page(render(with_findings(golden, claims=(without,)), tmp_path))
    assert "none: this verdict rests on no attack" in page.by_id("claims").text()


def test_evidence_of_a_claim_is_linked_to_its_findings(page: Page, golden: AuditResult) -> None:
    links = {e.attributes["href"] for e in page.by_id("claims").every("a")}
    assert links == {f"#finding-{i}" for claim in golden.claims for i in claim.because}


def test_an_audit_without_claims_findings_or_curves_still_renders(
    golden: AuditResult, tmp_path: Path
) -> None:
    empty = with_findings(golden, verdict=None, threat_models=(), config={}, timing={})
    text = visible(Page(render(empty, tmp_path)))
    assert "no claim" in text
    assert "No reconstruction was attempted in this audit. That is not a proof of privacy." in text
    assert "Not part of this audit: accounting, empirical epsilon, sensitivity" in text


# Images


def test_an_image_on_the_page_is_the_artifact_byte_for_byte(
    page: Page, golden: AuditResult, run_directory: Path
) -> None:
    shown = [e.attributes for e in page.root.every("img")]
    embedded_bytes = {base64.b64decode(a["src"].partition(",")[2]) for a in shown}
    paths = {path for f in golden.findings for path in f.artifacts.values()}
    assert embedded_bytes == {(run_directory / path).read_bytes() for path in paths}
    assert all(a["width"] == "17" and a["height"] == "8" and a["alt"] for a in shown)


def test_an_old_result_without_its_artifacts_says_which_are_missing(
    golden: AuditResult, tmp_path: Path
) -> None:
    page = Page(render(golden, tmp_path / "nowhere"))
    assert list(page.root.every("img")) == []
    for path in {path for f in golden.findings for path in f.artifacts.values()}:
        assert f"missing: {path}" in visible(page)


def test_an_artifact_that_is_no_png_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"<svg onload='alert(1)'></svg>" * 9)
    (tmp_path / "b.png").write_bytes(png(0)[:20])
    (tmp_path / "folder").mkdir()
    found = embedded(["a.png", "b.png", "folder", "nul\0byte", "c.png"], tmp_path)
    problems = ["not a PNG image", "not a PNG image", "missing", "missing", "missing"]
    assert [picture.problem for picture in found.values()] == problems
    assert not any(picture.uri for picture in found.values())


def test_an_artifact_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "a.png")
    writer = threading.Thread(target=pipe.write_bytes, args=(png(0),), daemon=True)
    writer.start()
    assert embedded(["a.png"], tmp_path)["a.png"].problem == "missing"
    pipe.read_bytes()
    writer.join()


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "a/../../secret.png", "/etc/secret.png", "..\\secret.png", "C:\\secret.png"],
)
def test_an_artifact_outside_the_run_directory_is_refused(
    golden: AuditResult, tmp_path: Path, path: str
) -> None:
    (tmp_path / "secret.png").write_bytes(png(0))
    run = tmp_path / "run"
    run.mkdir()
    result = with_findings(golden, small_finding(artifacts={"images": path}))
    with pytest.raises(DpauditError, match=r"outside the run directory"):
        render(result, run)
    with pytest.raises(DpauditError, match=r"outside the run directory"):
        render_comparison([("a", result, run)])


def test_a_link_out_of_the_run_directory_is_refused(golden: AuditResult, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(0))
    run = tmp_path / "run"
    run.mkdir()
    (run / "innocent.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DpauditError, match=r"innocent\.png"):
        render(with_findings(golden, small_finding(artifacts={"truth": "innocent.png"})), run)


def test_a_message_that_an_adversary_does_not_see_is_said_to_be_unavailable(page: Page) -> None:
    (scenario,) = (
        e
        for e in page.root.every("section")
        if "scenario" in e.classes() and "momentum-exact, batch size 1" in e.text()
        if "agent 1" in next(e.every("h4")).text()
    )
    assert "Not reconstructed: not available to this adversary" in scenario.text()
    assert list(scenario.every("table")) == []


def test_a_grid_has_a_truth_row_and_a_world_a_row_and_a_column_for_each_round(page: Page) -> None:
    grid = next(e for e in page.root.every("table") if "grid" in e.classes())
    assert [cell.text() for cell in grid.every("th") if cell.attributes["scope"] == "col"] == [
        "round 3",
        "round 9",
    ]
    rows = [cell.text() for cell in grid.every("th") if cell.attributes["scope"] == "row"]
    assert rows == [
        "ground truth",
        "no-defense",
        "defense",
        "blind mean of the public images",
        "blind image of another class",
    ]


def test_of_several_blind_guesses_the_best_stands_for_all() -> None:
    worse, better, undefined = (
        small_finding(world="blind", notes=(note,), metrics={"ssim": Metric(value=value)})
        for note, value in (("worse", 0.1), ("better", 0.2), ("undefined", math.nan))
    )
    findings = (small_finding(), undefined, worse, better)
    (scenario,) = scenarios(NumberedFinding(i, f) for i, f in enumerate(findings))
    assert scenario.metric("ssim", 3)["blind"].value == 0.2
    assert [row.variant for row in scenario.grid({})] == ["", "undefined", "worse", "better"]
    assert [row.variant for row in scenario.in_round(3).grid({})] == ["", ""]
    assert scenario.notes([]) == []  # each is said beside its own row


def test_a_second_truth_row_appears_only_where_a_world_has_another_truth() -> None:
    pictures = {name: Picture(name, uri=name[0]) for name in ("a", "a-again", "b")}
    pictures |= {name: Picture(name, problem="missing") for name in ("gone", "lost")}

    def rows(other: str, one: str = "a") -> list[str]:
        first = small_finding(world="no-defense", artifacts={"truth": one})
        second = small_finding(world="defense", artifacts={"truth": other})
        (scenario,) = scenarios(NumberedFinding(i, f) for i, f in enumerate((first, second)))
        return [row.label for row in scenario.grid(pictures)]

    assert rows("a-again") == ["ground truth", "no-defense", "defense"]
    assert rows("gone", "gone") == ["ground truth", "no-defense", "defense"]
    for different in (rows("b"), rows("gone"), rows("lost", "gone")):
        assert different == ["ground truth", "no-defense", "ground truth (defense)", "defense"]


def test_a_batch_is_said_to_be_shown_by_its_first_record(page: Page) -> None:
    scenes = [e for e in page.root.every("section") if "scenario" in e.classes()]
    said = {
        next(e.every("h4")).text(): "first record of each target's batch" in e.text()
        for e in scenes
    }
    assert all(said[title] == ("batch size 16" in title) for title in said)
    assert any(said.values())


# Drawings


def test_a_drawn_graph_marks_the_links_that_the_adversary_reads(
    page: Page, golden: AuditResult
) -> None:
    whole, curious, one_wire = (e for e in page.root.every("svg") if "graph" in e.classes())
    read = [
        [e for e in svg.every("line") if "read" in e.classes()]
        for svg in (whole, curious, one_wire)
    ]
    assert [len(lines) for lines in read] == [4, 2, 1]  # both directions of a link are one line
    assert ["marker-end" in lines[0].attributes for lines in read] == [False, False, True]
    squares = [[e for e in svg.every("rect")] for svg in (whole, curious, one_wire)]
    assert [len(found) for found in squares] == [0, 1, 0]
    assert "eavesdropper reads 8 of the 8 directed links" in whole.text()


def test_a_drawn_graph_fills_its_frame_whatever_the_scale_of_the_positions(
    golden: AuditResult,
) -> None:
    graph = golden.graph
    larger = tuple((100 * x + 7, 100 * y - 3) for x, y in graph.positions)
    line = tuple((float(i), 0.0) for i in range(4))
    drawn = graph_drawing(graph, ())
    assert graph_drawing(graph.model_copy(update={"positions": larger}), ()) == drawn
    on_a_line = graph_drawing(graph.model_copy(update={"positions": line}), ())
    assert {y for _, y in on_a_line.agents} == {on_a_line.height / 2}
    assert all(0 < x < drawn.width and 0 < y < drawn.height for x, y in drawn.agents)


def test_values_that_are_not_finite_are_shown_as_such_and_break_no_drawing(
    golden: AuditResult, tmp_path: Path
) -> None:
    nan, inf = math.nan, math.inf
    bad = small_finding(metrics={"ssim": Metric(value=nan, low=nan, high=inf, n=8)})
    good = small_finding(rounds=(9,), metrics={"ssim": Metric(value=0.4, low=nan, high=0.5)})
    curve = Curve(
        rounds=(0, 5), loss=((1.0, nan), (inf, -inf)), accuracy=((nan,), (nan,)),
        consensus_distance=(0.0, 2.0),
    )  # fmt: skip
    result = with_findings(golden, bad, good, utility={"defense": curve})
    page = Page(render(result, tmp_path))
    assert "undefined [undefined, ∞]" in visible(page)
    titles = [svg.text() for svg in page.root.every("svg")]
    assert any(title.startswith("test loss over rounds") for title in titles)
    assert not any(title.startswith("test accuracy") for title in titles)  # nothing finite in it


def test_drawing_leaves_the_settings_of_matplotlib_as_they_were(
    golden: AuditResult, run_directory: Path
) -> None:
    with matplotlib.rc_context({"axes.grid": False, "svg.hashsalt": "mine", "font.size": 31.0}):
        before = dict(matplotlib.rcParams)
        render(golden, run_directory)
        assert dict(matplotlib.rcParams) == before


# A page that loads nothing and runs nothing


def test_the_page_is_the_same_to_the_byte_in_another_process(
    html: str, run_directory: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from dpaudit.files.result import AuditResult; "
        "from dpaudit.reports.html import render; import matplotlib; "
        "heavy = {'torch', 'scipy', 'pandas', 'seaborn', 'matplotlib.pyplot'} & set(sys.modules); "
        "assert not heavy, heavy; matplotlib.rcParams['axes.linewidth'] = 9; "
        "page = render(AuditResult.read(Path(sys.argv[1])), Path(sys.argv[2])); "
        "sys.stdout.buffer.write(page.encode())"
    )
    command = [sys.executable, "-c", program, str(GOLDEN), str(run_directory)]
    done = subprocess.run(
        command, capture_output=True, check=False, env=os.environ | {"PYTHONHASHSEED": "5"}
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == html


def test_nothing_is_loaded_and_nothing_can_run(html: str, comparison: str) -> None:
    for text in (html, comparison):
        page = Page(text)
        assert "http://" not in text
        assert "https://" not in text
        for element in page.root.every():
            assert element.tag not in {"script", "iframe", "object", "embed", "base", "form"}
            assert not any(name.startswith("on") for name in element.attributes)
            for name in ("src", "href", "xlink:href", "srcset", "data", "poster"):
                target = element.attributes.get(name, "#")
                assert target.startswith(("#", "data:")), (element.tag, target)
        style = "".join(e.text() for e in page.root.every("style"))
        assert "@import" not in style
        assert "url(" not in style
        policy = next(e for e in page.root.every("meta") if "http-equiv" in e.attributes)
        assert policy.attributes["content"] == (
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
            "form-action 'none'"
        )


def test_ids_are_unique_and_what_refers_to_one_finds_it(html: str, comparison: str) -> None:
    for text in (html, comparison):
        page = Page(text)
        ids = [e.attributes["id"] for e in page.root.every() if "id" in e.attributes]
        assert len(ids) == len(set(ids))
        used = {
            reference
            for e in page.root.every()
            for name, value in e.attributes.items()
            for reference in (
                [value[1:]] * (name == "href" and value.startswith("#"))
                + value.split() * (name == "aria-labelledby")
                + re.findall(r"url\(#([^)]+)\)", value)
            )
        }
        assert used <= set(ids)


HOSTILE = """"><script>alert('1')</script>' onerror=x {{ 7 }} $\\frac{$ <!-- --> &lt; ]]>"""


def hostile(value: Any) -> Any:
    """A result's content with every free text replaced, and every path kept."""
    if isinstance(value, dict):
        kept = {"role", "kind", "world", "verdict", "artifacts", "scope", "adjacency"}
        return {k: v if k in kept else hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(part) for part in value]
    return HOSTILE if isinstance(value, str) and value not in ("inf", "-inf", "nan") else value


def test_hostile_text_stays_text(golden: AuditResult, tmp_path: Path) -> None:
    result = AuditResult.model_validate(hostile(golden.model_dump(mode="json")))
    for text in (render(result, tmp_path), render_comparison([(HOSTILE, result, tmp_path)])):
        page = Page(text)
        assert "<script" not in text
        assert list(page.root.every("script")) == []
        assert not any(name.startswith("on") for e in page.root.every() for name in e.attributes)
        assert " ".join(HOSTILE.split()) in visible(page)


def test_hostile_keys_and_paths_stay_text(golden: AuditResult, tmp_path: Path) -> None:
    finding = small_finding(
        role=Role.NOISE,
        kind="control",
        metrics={HOSTILE: Metric(value=1.0)},
        artifacts={HOSTILE: "<b>.png"},
    )
    changes = {"config": {HOSTILE: HOSTILE}, "timing": {HOSTILE: 1.0}}
    utility = {"<i>other": golden.utility["defense"]}
    text = render(with_findings(golden, finding, utility=utility, **changes), tmp_path)
    page = Page(text)
    assert "<script" not in text
    assert list(page.root.every("b")) == list(page.root.every("i")) == []
    assert "<b>.png" in visible(page)


# Several runs


def test_a_comparison_sets_every_run_in_a_column_with_its_verdict(comparison: str) -> None:
    page = Page(comparison)
    verdicts = page.by_id("verdicts").text()
    assert "× refuted" in verdicts
    assert "○ not refuted" in verdicts
    header = next(page.by_id("reconstruction").every("thead")).text()
    assert header.endswith("first second")


def test_a_scenario_that_a_run_does_not_have_is_left_blank(
    golden: AuditResult, tmp_path: Path
) -> None:
    other = with_findings(golden, small_finding(message="only here"))
    page = Page(render_comparison([("a", golden, tmp_path), ("b", other, tmp_path)]))
    bodies = [e for e in page.by_id("reconstruction").every("tbody") if "only here" in e.text()]
    (body,) = bodies
    cells = [[cell.text() for cell in row.every("td")] for row in body.every("tr")]
    blank, scored = ["–", "–"], ["–", "0.250 [0.125, 0.375] n = 8"]
    assert cells == [blank, scored, blank, blank]


def test_an_epsilon_known_to_lie_in_an_interval_is_shown_by_its_ends() -> None:
    assert span(Metric(value=13.912, low=4.3511, high=13.912)) == "4.35 to 13.9"
    assert span(Metric(value=7.3342, low=7.3339, high=7.3342)) == "7.33"
    assert span(Metric(value=math.inf, low=math.inf, high=math.inf)) == "∞"
    assert span(Metric(value=2.5)) == "2.5"


def test_comparing_nothing_is_refused() -> None:
    with pytest.raises(DpauditError, match="at least one run"):
        render_comparison([])
