"""Several runs on one page: what is compared, what is void, and what differs between configs."""

import math
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from dpaudit.errors import DpauditError
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult, Curve, JudgedClaim, Restated
from dpaudit.files.verdict import Verdict
from dpaudit.reports.comparison import ComparedRun, differing_keys, render_comparison
from dpaudit.reports.figures import drawing
from dpaudit.reports.figures.drawing import DrawnFigure
from dpaudit.reports.run import Run
from tests.reports.pages import (
    GOLDEN,
    Page,
    small_finding,
    visible,
    with_findings,
    with_premises,
)

WHY = '"x" moves 15.1 times as far as its noise is made for'


def curve(*accuracy: float) -> Curve:
    n = len(accuracy)
    return Curve(rounds=(4,), loss=((1.5,) * n,), accuracy=(accuracy,), consensus_distance=(0.25,))


def run(
    golden: AuditResult,
    epsilon: float = 0.75,
    certified: float = 0.5,
    ratio: float = 1.0,
    void: str | None = None,
    **changes: Any,
) -> AuditResult:
    """A claim of epsilon 1 with a test, a sensitivity, and accounting that may be void."""
    high = math.inf if void else epsilon
    test = small_finding(
        role=Role.TEST, kind="empirical-epsilon", attack="likelihood-ratio", claim=0,
        metrics={
            Name.EPSILON_LOWER_BOUND: Metric(value=certified, n=900), Name.CEILING: Metric(value=6.0)
        },
    )  # fmt: skip
    moved = small_finding(
        role=Role.SENSITIVITY, kind="sensitivity", attack="sensitivity", threat_model=None,
        metrics={Name.MEASURED_OVER_STATED: Metric(value=ratio)},
    )  # fmt: skip
    exact = small_finding(
        role=Role.EXACT_LEAK, kind="accounting", attack=None, claim=0, void=void,
        metrics={Name.EPSILON: Metric(value=high, low=0.25, high=high)},
    )  # fmt: skip
    claim = JudgedClaim(
        claim=0, text="ours", sentence="ours: epsilon 1", epsilon=1.0, delta=1e-5, mu=None,
        scope="run", adjacency="add-remove", threat_model="eavesdropper",
        restated=Restated(
            epsilon=Metric(value=high, low=0.25, high=high), delta=1e-5,
            adjacency="add-remove", assumptions=(), void=void,
        ),
        verdict=Verdict.UNSUPPORTED if void else Verdict.NOT_REFUTED, confidence=None,
        because=(0, 1, 2), reason="because",
    )  # fmt: skip
    given = {"claims": (claim,), "verdict": claim.verdict, "utility": {"defense": curve(0.5, 0.7)}}
    return with_findings(golden, test, moved, exact, **(given | changes))


@pytest.fixture
def tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes nine tenths of a page."""
    monkeypatch.setattr(
        drawing, "draw", lambda name, title, *_, **more: DrawnFigure(title, Markup())
    )


def compared(*results: AuditResult, baseline: int = 0) -> Page:
    named = [("abc"[i], result, Path("nowhere")) for i, result in enumerate(results)]
    return Page(render_comparison(named, baseline))


def cells(page: Page, section: str) -> list[list[str]]:
    rows = page.by_id(section).every("tr")
    return [[c.text() for c in row.every() if c.tag in ("td", "th")] for row in rows]


def test_a_comparison_has_a_row_for_every_run_with_its_verdict(comparison: str) -> None:
    page = Page(comparison)
    first, second = cells(page, "verdicts")[1:]
    assert "× refuted" in first[1]
    assert "baseline" in first[0]
    assert "○ not refuted" in second[1]
    header = next(page.by_id("reconstruction").every("thead")).text()
    assert header.endswith("first second")


@pytest.mark.usefixtures("tables_alone")
def test_a_claim_stands_beside_its_accounting_and_bounds(golden) -> None:
    [row] = cells(compared(run(golden)), "claims")[1:]
    assert row[1:3] == ["ours: epsilon 1", "eavesdropper"]
    assert row[3] == "1"
    assert row[4].startswith("0.25 to 0.75 at delta")
    assert row[5:9] == ["0.25 to 0.75", "0.5 n = 900", "6", "1"]


@pytest.mark.usefixtures("tables_alone")
def test_a_supported_claim_has_word_premises_and_measured_end(golden) -> None:
    result = with_premises(run(golden), Verdict.SUPPORTED, "examined")
    page = compared(result, run(golden))
    assert cells(page, "verdicts")[1][1] == "● supported not a proof of privacy"
    first, second = cells(page, "claims")[1:]
    assert first[9:] == ["0.813", "1 of 1 examined", "● supported not a proof of privacy"]
    assert second[9:11] == ["–", "–"]


def test_a_void_run_is_void_wherever_it_is_compared(golden: AuditResult) -> None:
    broken = run(golden, epsilon=0.25, certified=0.0, ratio=15.1, void=WHY)
    for first, second in ((broken, run(golden)), (run(golden), broken)):
        page = compared(first, second)
        [row] = [r for r in cells(page, "claims") if "15.1" in r]
        assert all(cell.startswith("void") and WHY in cell for cell in row[4:6])
        [own] = [r for r in cells(page, "utility") if "void" in " ".join(r)]
        assert own[1].startswith("void")
        # nothing of a broken run is said to be less than of a sound one
        figures = "".join(cells(page, "differences")[1][3:8])
        assert not {"(−", "(+", "(±"} & {figures[i : i + 2] for i in range(len(figures))}


def test_what_has_no_upper_end_is_drawn_to_the_right(golden) -> None:
    page = compared(run(golden, epsilon=900.0), run(golden, epsilon=0.1, void=WHY), run(golden))
    [figure] = page.by_id("utility").every("svg")
    places = {}
    for label in "abc":
        [text] = [t for t in figure.every("text") if t.text() == label]
        place = text.attributes.get("x") or text.attributes["transform"].split("(")[1]
        places[label] = float(place.split()[0])
    assert places["c"] < places["a"] < places["b"]


@pytest.mark.usefixtures("tables_alone")
def test_differences_are_from_the_baseline_that_is_named(golden: AuditResult) -> None:
    results = run(golden), run(golden, epsilon=0.5, certified=0.25)
    [row] = cells(compared(*results), "differences")[1:]
    assert row[3:8] == ["1 (±0)", "0.5 (−0.25)", "0.5 (−0.25)", "0.25 (−0.25)", "1 (±0)"]
    assert row[8] == "0.6 (±0)"
    page = compared(*results, baseline=1)
    [row] = cells(page, "differences")[1:]
    assert row[4] == "0.75 (+0.25)"
    assert page.by_id("differences-h").text() == "Differences from b"


@pytest.mark.parametrize(
    "changed, said",
    [({"delta": 1e-2}, True), ({"scope": "round"}, True), ({"adjacency": "replace-one"}, True),
     ({"text": "theirs"}, False)],
)  # fmt: skip
@pytest.mark.usefixtures("tables_alone")
def test_epsilons_of_unlike_claims_are_not_subtracted(golden, changed, said) -> None:
    theirs = run(golden, 0.25)
    (claim,) = theirs.claims
    theirs = theirs.model_copy(update={"claims": (claim.model_copy(update=changed),)})
    (row,) = cells(compared(run(golden), theirs), "differences")[1:]
    assert any("another delta, scope or adjacency" in cell for cell in row) == said
    assert any("(−0.5)" in cell for cell in row) != said


@pytest.mark.usefixtures("tables_alone")
def test_a_difference_by_rounding_is_none(golden: AuditResult) -> None:
    near = 1.0 + 4e-16
    (row,) = cells(compared(run(golden), run(golden, ratio=near)), "differences")[1:]
    assert "1.00 (±0)" in row


def test_a_claim_not_in_the_baseline_is_compared_with_nothing(golden) -> None:
    [row] = cells(compared(run(golden, claims=()), run(golden)), "differences")[1:]
    assert "the baseline makes no such claim" in row[1]
    assert "(" not in "".join(row[3:8])


@pytest.mark.usefixtures("tables_alone")
def test_utility_is_the_mean_over_agents_and_its_range(golden: AuditResult) -> None:
    row = cells(compared(run(golden)), "training")[-1]
    assert row[3:] == ["1.500 [1.500, 1.500] test loss", "0.600 [0.500, 0.700]", "0.25"]


def test_training_is_drawn_round_by_round(golden: AuditResult) -> None:
    page = compared(run(golden), run(golden, utility={"defense": curve(0.25)}))
    [figure] = page.by_id("training").every("svg")
    assert "1 a" in figure.text()
    behind = next(e for e in page.by_id("training").every("details"))
    rows = [[cell.text() for cell in row.every("td")] for row in behind.every("tr")][1:]
    assert rows == [["1 a", "4", "0", "0.5"], ["1 a", "4", "1", "0.7"], ["2 b", "4", "0", "0.25"]]


def test_runs_without_training_are_named_and_not_drawn(golden: AuditResult) -> None:
    page = compared(run(golden), run(golden, claims=()), run(golden, utility={}))
    assert "Not drawn, for lack of accounting or of test accuracy: b, c." in visible(page)
    assert "no claim was made" in page.by_id("claims").text()
    assert "no training curves are recorded" in page.by_id("training").text()


@pytest.mark.usefixtures("tables_alone")
def test_each_attack_is_measured_by_the_most_that_it_found(golden: AuditResult) -> None:
    found = [
        small_finding(message=str(i), metrics={Name.SSIM_OVER_BLIND: Metric(value=x)}, world=world)
        for i, (x, world) in enumerate([(0.25, "defense"), (0.5, "defense"), (0.9, "no-defense")])
    ]
    page = compared(with_findings(golden, *found), run(golden))
    header, first, second = cells(page, "attacks")
    assert [name.split(":")[0] for name in header[1:]] == [
        "likelihood-ratio",
        "sensitivity",
        "gradient-inversion",
    ]
    assert first[1:] == ["–", "–", "0.5 largest of 2"]
    assert second[1:] == ["0.5 n = 900", "1", "–"]


def keys(*configs: dict[str, Any]) -> dict[str, list[str | None]]:
    golden = AuditResult.read(GOLDEN)
    runs = [
        ComparedRun(Run(str(i), i, with_findings(golden, config=c, calibrated={}), Path()), [])
        for i, c in enumerate(configs)
    ]
    return differing_keys(runs)


def test_only_keys_that_differ_are_shown() -> None:
    one = {"seed": 1, "defense": {"name": "dpdl", "h": 2.0}, "attack": [{"name": "a", "n": 1}]}
    two = {"seed": 1, "defense": {"name": "dpdl", "h": 3.0}, "attack": [{"name": "a", "n": 1}]}
    three = {"seed": 1, "defense": {"name": "dpdl"}, "attack": [{"name": "a", "n": 4}]}
    assert keys(one, two, three) == {
        "defense.h": ["2.0", "3.0", None],
        "attack[a].n": ["1", "1", "4"],
    }
    assert keys(one, one) == {}


def test_what_is_not_the_baselines_is_marked(golden: AuditResult) -> None:
    configs = ({"h": 2.0, "n": 1}, {"h": 3.0, "n": 1}, {"n": 4})
    results = [with_findings(golden, config=c, calibrated={}) for c in configs]
    rows = compared(*results, baseline=1).by_id("configs").every("tr")
    marked = [[mark.text() for mark in row.every("mark")] for row in rows]
    assert marked == [[], ["2.0", "not set"], ["4"]]


def test_tables_of_an_array_are_distinguished_by_their_names() -> None:
    one = {"attack": [{"name": "a", "n": 1}, {"name": "a", "n": 2}], "claim": [{"epsilon": 1}]}
    two = {"attack": [{"name": "a", "n": 1}, {"name": "a", "n": 3}], "claim": [{"epsilon": 2}]}
    assert list(keys(one, two)) == ["attack[a 2].n", "claim[1].epsilon"]


def test_a_scenario_that_a_run_does_not_have_is_left_blank(
    golden: AuditResult, tmp_path: Path
) -> None:
    other = with_findings(golden, small_finding(message="only here"))
    page = Page(render_comparison([("a", golden, tmp_path), ("b", other, tmp_path)]))
    bodies = [e for e in page.by_id("reconstruction").every("tbody") if "only here" in e.text()]
    (body,) = bodies
    shown = [[cell.text() for cell in row.every("td")][-2:] for row in body.every("tr")]
    blank, scored = ["–", "–"], ["–", "0.250 [0.125, 0.375] n = 8"]
    assert shown == [blank, scored, blank, blank]


def test_missing_pictures_are_named_and_all_else_is_there(golden, tmp_path) -> None:
    text = visible(Page(render_comparison([("a", golden, tmp_path), ("b", golden, tmp_path)])))
    assert "missing: artifacts/" in " ".join(text.split())
    assert "test accuracy" in text


@pytest.mark.slow
def test_fifty_runs_are_one_page_of_a_few_megabytes_in_seconds(
    golden: AuditResult, run_directory: Path, tmp_path: Path
) -> None:
    """10 s and 20 MB are what must be kept to, on a machine with nothing else to do."""
    runs = []
    for i in range(50):
        shutil.copytree(run_directory, tmp_path / str(i))
        (tmp_path / str(i) / "audit.json").write_text(golden.to_json())
        runs.append(tmp_path / str(i))
    began = time.process_time()
    page = render_comparison([(r.name, AuditResult.read(r / "audit.json"), r) for r in runs])
    assert time.process_time() - began < 10
    assert len(page.encode()) < 20e6
    assert "Images are left out" in page
    assert "courses-title" not in page


def test_comparing_nothing_is_refused() -> None:
    with pytest.raises(DpauditError, match="at least one run"):
        render_comparison([])


def test_an_attack_without_a_name_is_no_column(golden: AuditResult) -> None:
    bare: Finding = small_finding(attack=None)
    assert "No attack was scored" in compared(with_findings(golden, bare)).by_id("attacks").text()
