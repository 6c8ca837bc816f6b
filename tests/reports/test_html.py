"""The HTML report: what a reader meets, where it stands, and runs side by side."""

import base64
import hashlib
import json
import math
from pathlib import Path

import matplotlib
import pytest

from dpaudit.files.finding import Metric, Role
from dpaudit.files.result import AuditResult, Curve, EpsilonRange
from dpaudit.files.verdict import AGAINST, MEANING, Verdict
from dpaudit.reports.figures.graph import graph_drawing
from dpaudit.reports.html import render
from dpaudit.reports.numbers import estimate
from dpaudit.reports.reconstructions import NumberedFinding, Picture, scenarios
from dpaudit.reports.run import finding_links
from tests.reports.pages import GOLDEN, Page, small_finding, visible, with_findings

NO_PROOF = "not a proof of privacy"


@pytest.mark.parametrize("verdict", list(Verdict))
def test_verdict_meaning_and_limits_stand_together(
    golden: AuditResult, tmp_path: Path, verdict: Verdict
) -> None:
    hero = Page(render(with_findings(golden, verdict=verdict), tmp_path)).by_id("verdict").parent
    assert hero is not None
    assert verdict.value in hero.text()
    assert MEANING[verdict] in hero.text()
    assert NO_PROOF in hero.text()


def test_the_top_of_the_page_says_claim_and_what_leaked(page: Page, golden: AuditResult) -> None:
    (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
    text = hero.text()
    assert golden.claims[0].sentence in text
    assert all(model.name in text for model in golden.threat_models)
    defended = [f for f in golden.findings if f.world == "defense" and f.metrics]
    best = max(defended, key=lambda f: f.metrics["ssim over blind"].value)
    assert "Better than guessing" in text
    assert len(list(hero.every("img"))) == 4  # the truth and three worlds
    more = page.by_id("reconstruction").text()
    assert f"Reading {best.message}, {best.threat_model} reached SSIM" in more
    assert f"best of {len(defended)} reconstructions" in more
    assert estimate(best.metrics["ssim"]).striptags() in more
    assert estimate(best.metrics["ssim over blind"]).striptags() in more


def test_the_first_screen_answers_four_questions_in_order(page: Page) -> None:
    (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
    asked = [e.text() for e in hero.every("h3")]
    assert asked[:4] == [
        "What was promised?",
        "What did we see?",
        "So what?",
        "What should you do next?",
    ]


@pytest.mark.parametrize("version", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_page_names_the_bytes_that_lie_there(
    golden: AuditResult, tmp_path: Path, version: int
) -> None:
    """Of any version, and however it is spaced; not those of another result."""
    bare = {"findings": [], "claims": [], "utility": {}, "verdict": None}  # nothing to draw
    old = json.dumps(json.loads(GOLDEN.read_text()) | bare, indent=3)
    text = old if version == 1 else with_findings(golden, verdict=None).to_json()
    text = text.replace('"schema_version": 3', f'"schema_version": {version}') + "\n"
    (tmp_path / "audit.json").write_text(text)
    own = f"sha256-{hashlib.sha256(text.encode()).hexdigest()}"
    assert f'content="{own}"' in render(AuditResult.read(tmp_path / "audit.json"), tmp_path)
    assert f'content="{own}"' not in render(with_findings(golden), tmp_path)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_next_step_of_each_verdict_has_a_command(
    golden: AuditResult, tmp_path: Path, verdict: Verdict
) -> None:
    result = claimed_with_controls(golden, verdict)
    code = {"codes": ("DPA113",)}
    result = result.model_copy(update={"claims": (result.claims[0].model_copy(update=code),)})
    page = Page(render(result, tmp_path))
    command = next(e.text() for e in page.root.every("code") if "command" in e.classes())
    supported = verdict is Verdict.SUPPORTED
    assert command == ("dpaudit verify ." if supported else "dpaudit explain DPA113")


def test_statistics_stand_behind_details(page: Page) -> None:
    plain = page.root.text(frozenset({"style", "svg", "head", "script", "details"})).lower()
    for words in ("log wealth", "trials needed", "ceiling", "p-value", "false positives"):
        assert words not in plain
    assert "verdict" in plain


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (0.1, 0.01, 0.2, "Better than guessing"),
        (0.1, -0.01, 0.2, "No better than guessing"),
        (-0.1, -0.2, -0.01, "No better than guessing"),
        (0.1, math.nan, math.nan, "No better than guessing"),
        (-0.1, None, None, "No better than guessing"),
        (0.1, None, None, "Too few targets to tell it from a guess"),
    ],
)
def test_the_words_about_the_leak_follow_the_interval(
    golden: AuditResult, tmp_path: Path, value: float, low: float, high: float, words: str
) -> None:
    over = Metric(value=value, low=low, high=high, n=2)
    ssim = Metric(value=0.3, low=0.2, high=0.4, n=8)
    finding = small_finding(metrics={"ssim": ssim, "ssim over blind": over})
    page = Page(render(with_findings(golden, finding), tmp_path))
    (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
    (card,) = (e for e in page.root.every("section") if "scenario" in e.classes())
    phrases = {"Better than guessing", "No better than guessing", "Too few targets"}
    for place in (hero, card, page.by_id("reconstruction")):
        said = [e.text().rstrip(".") for e in place.every("strong")]
        assert words in said
        assert len({x for x in said if any(x.startswith(p) for p in phrases)}) == 1


def test_every_verdict_in_favour_says_that_it_is_no_proof(html: str, comparison: str) -> None:
    for text in (html, comparison):
        for badge in (e for e in Page(text).root.every("span") if "badge" in e.classes()):
            assert badge.parent is not None
            if badge.text().partition(" ")[2] not in AGAINST:
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
def test_everywhere_not_refuted_is_said_to_be_no_proof(
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


def test_the_page_begins_with_the_reason_that_decided(golden: AuditResult, tmp_path: Path) -> None:
    """Of several claims the worst one's; what it means for a record's owner stands with it."""
    first = golden.claims[0].model_copy(
        update={"verdict": Verdict.NOT_REFUTED, "reason": "It stood.", "because": ()}
    )
    worst = {"verdict": Verdict.REFUTED, "reason": "It fell.", "meaning": "Odds rise 2-fold."}
    second = first.model_copy(update={"threat_model": "agent 1", **worst})
    result = with_findings(golden, claims=(first, second), verdict=Verdict.REFUTED)
    hero = Page(render(result, tmp_path)).by_id("verdict").parent
    assert hero is not None
    assert hero.text().index("It fell.") < hero.text().index("Odds rise 2-fold.")
    assert "It stood." not in hero.text()
    assert result.sentence == f"It fell. Odds rise 2-fold. {MEANING[Verdict.REFUTED]}"
    for meaning in MEANING.values():
        assert "; or" not in meaning
        assert ", or " not in meaning


@pytest.mark.parametrize(
    ("claims", "adversaries", "said"),
    [
        (1, 1, "Verdict"),
        (1, 2, "Verdict: the worst of one claim against 2 adversaries"),
        (2, 1, "Verdict: the worst of 2 claims"),
        (2, 2, "Verdict: the worst of 2 claims against 2 adversaries"),
    ],
)
def test_the_heading_says_of_what_the_verdict_is_the_worst(
    golden: AuditResult, claims: int, adversaries: int, said: str
) -> None:
    made = tuple(
        golden.claims[0].model_copy(update={"because": (), "claim": i, "threat_model": f"eve {j}"})
        for i in range(claims)
        for j in range(adversaries)
    )
    heading = Page(render(with_findings(golden, claims=made), Path())).by_id("verdict")
    assert next(heading.every("span")).text() == said


def test_the_claims_that_did_not_decide_are_rows(golden: AuditResult, tmp_path: Path) -> None:
    known = EpsilonRange(certified=0.25, accounted=3.5, measured=math.inf)
    one = golden.claims[0].model_copy(update={"because": (), "threat_model": "all"})
    other = {"claim": 1, "sentence": "Another claim", "threat_model": "few", "range": known}
    judged = (one, one.model_copy(update=other), one.model_copy(update={"threat_model": "few"}))
    page = Page(render(with_findings(golden, claims=judged), tmp_path))
    (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
    (table,) = (e for e in hero.every("table") if "Another claim" in e.text())
    rows = [[cell.text() for cell in row.content if not isinstance(cell, str)]
            for row in table.every("tr")]  # fmt: skip
    assert rows[0][:3] == ["claimed", "against", "verdict"]
    assert rows[1][:2] == ["Another claim", "few"]
    assert rows[1][3:] == ["0.25", "3.5", "∞", "–"]
    assert rows[2][:2] == [one.sentence, "few"]
    assert rows[2][3:] == ["–"] * 4


def test_what_decided_is_named_and_its_figures_fold(golden: AuditResult, tmp_path: Path) -> None:
    """And a reconstruction is shown at the top only where it is better than a blind guess."""
    moved = small_finding(
        role=Role.SENSITIVITY,
        kind="sensitivity",
        title="How far x moves",
        metrics={"measured": Metric(value=15.25)},
    )
    claim = golden.claims[0].model_copy(update={"because": (0,), "decisive": 0})
    for low, leads in ((0.05, True), (-0.05, False)):
        over = Metric(value=0.1, low=low, high=0.2, n=8)
        guess = small_finding(metrics={"ssim": Metric(value=0.5, n=8), "ssim over blind": over})
        result = with_findings(golden, moved, guess, claims=(claim,))
        page = Page(render(result, tmp_path))
        (hero,) = (e for e in page.root.every("section") if "hero" in e.classes())
        figures = [e for e in hero.every("figure") if "revealing" in e.classes()]
        assert [bool(figures)] == [leads]
        (folded,) = page.by_id("claims").every("details")
        assert "What decided: How far x moves" in folded.text()
        assert "15.2" in folded.text()


def test_a_control_that_does_its_duty_is_not_marked_as_refuted(
    golden: AuditResult, tmp_path: Path
) -> None:
    result = claimed_with_controls(golden, Verdict.NOT_REFUTED)
    null, positive = result.findings
    found_out = positive.model_copy(update={"verdict": Verdict.REFUTED})
    for findings, words in (
        ((null, found_out), ("none, as it must be", "found out, as it must be")),
        ((null.model_copy(update={"verdict": Verdict.REFUTED}), positive),
         ("false alarm", "not found out")),
    ):  # fmt: skip
        page = Page(render(result.model_copy(update={"findings": findings}), tmp_path))
        rows = [e.text() for e in page.by_id("control").every("summary")]
        assert [row.endswith(said) for row, said in zip(rows, words, strict=True)] == [True, True]
        assert "refuted" not in [e.text() for e in page.by_id("control").every("span")]


def test_whatever_scrolls_can_be_reached_by_the_keyboard(page: Page, comparison: str) -> None:
    for one in (page, Page(comparison)):
        scrolling = [e for e in one.root.every() if "scroll" in e.classes()]
        assert scrolling
        assert all(e.attributes.get("tabindex") == "0" for e in scrolling)


def test_findings_have_names_and_no_numbers(page: Page, golden: AuditResult) -> None:
    claims = page.by_id("claims")
    for claim in golden.claims:
        for i in claim.because:
            assert golden.findings[i].title in claims.text()
            assert f"finding {i}" not in claims.text()


def test_evidence_of_a_claim_is_linked_to_its_findings(page: Page, golden: AuditResult) -> None:
    links = {e.attributes["href"] for e in page.by_id("claims").every("a")}
    names = finding_links(golden.findings, golden.claims)
    cited = {f"#{names[i]}" for claim in golden.claims for i in claim.because}
    assert {link for link in links if not link.startswith("#claim-")} == cited


def test_an_audit_without_claims_or_findings_renders(golden: AuditResult, tmp_path: Path) -> None:
    empty = with_findings(golden, verdict=None, threat_models=(), config={}, timing={})
    text = visible(Page(render(empty, tmp_path)))
    assert "no claim" in text
    assert "Not part of this audit: reconstruction, accounting, empirical epsilon" in text
    assert "training curves. What was not looked for cannot be found, and that is not a" in text


def test_an_image_on_the_page_is_the_artifact_byte_for_byte(
    page: Page, golden: AuditResult, run_directory: Path
) -> None:
    shown = [e.attributes for e in page.root.every("img")]
    embedded_bytes = {base64.b64decode(a["src"].partition(",")[2]) for a in shown}
    paths = {path for f in golden.findings for path in f.artifacts.values()}
    assert embedded_bytes == {(run_directory / path).read_bytes() for path in paths}
    assert all(a["width"] == "17" and a["height"] == "8" and a["alt"] for a in shown)


def test_an_old_result_says_which_artifacts_are_missing(few: AuditResult, tmp_path: Path) -> None:
    page = Page(render(few, tmp_path / "nowhere"))
    assert list(page.root.every("img")) == []
    text = visible(page)
    for path in {path for f in few.findings for path in f.artifacts.values()}:
        assert f"missing: {path}" in text


def test_a_message_an_adversary_does_not_see_is_unavailable(page: Page) -> None:
    (scenario,) = (
        e
        for e in page.root.every("section")
        if "scenario" in e.classes() and "momentum-exact, batch size 1" in e.text()
        if "agent 1" in next(e.every("h3")).text()
    )
    assert "Not reconstructed: not available to this adversary" in scenario.text()
    assert list(scenario.every("table")) == []


def test_a_grid_has_a_truth_row_and_a_world_a_row(page: Page) -> None:
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


def test_a_second_truth_row_needs_another_truth() -> None:
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
        next(e.every("h3")).text(): "first record of each target's batch" in e.text()
        for e in scenes
    }
    assert all(said[title] == ("batch size 16" in title) for title in said)
    assert any(said.values())


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


def test_a_drawn_graph_fills_its_frame(
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


def test_values_that_are_not_finite_break_no_drawing(golden: AuditResult, tmp_path: Path) -> None:
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
    few: AuditResult, run_directory: Path
) -> None:
    with matplotlib.rc_context({"axes.grid": False, "svg.hashsalt": "mine", "font.size": 31.0}):
        before = dict(matplotlib.rcParams)
        render(few, run_directory)
        assert dict(matplotlib.rcParams) == before
