"""Drawings and tables of mutual information: deterministic, complete, and nothing where there is none."""

import math
import tomllib
from pathlib import Path

import pytest

from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Metric, Role
from dpaudit.files.result import AuditResult
from dpaudit.reports.comparison import render_comparison
from dpaudit.reports.figures.information import by_run, estimates, information_by_round, leaks
from dpaudit.reports.html import render
from dpaudit.reports.reconstructions import NumberedFinding
from dpaudit.reports.run import finding_links

ROOT = Path(__file__).parents[3]
GOLDEN = AuditResult.read(Path(__file__).parents[2] / "golden" / "audit.json")


def by_round(world: str, message: str = "z", rounds=(1, 4), bits=(0.5, 1.25), **changes) -> Finding:
    series = {
        "round": rounds,
        "information": bits,
        "low": tuple(b - 0.125 for b in bits),
        "high": tuple(b + 0.125 for b in bits),
        "baseline": tuple(0.0625 for _ in bits),
    }
    metrics = {
        "information": Metric(
            value=max(bits), low=max(bits) - 0.125, high=max(bits) + 0.125, n=321
        ),
        "m-nmi": Metric(value=0.1375),
        "self-information": Metric(value=9.5),
        "p-value": Metric(value=0.05),
    }
    return finding(world, message, rounds, metrics, series | changes)


def estimate(world: str, message: str = "z") -> Finding:
    series = {"private": (0.0, 1.0, 2.0), "estimate": (0.5, 1.0, 1.5)}
    metrics = {"variance explained": Metric(value=0.75, low=0.5, high=0.875, n=107)}
    return finding(world, message, (4,), metrics, series)


def finding(world, message, rounds, metrics, series) -> Finding:
    return Finding(
        role=Role.BEST_ESTIMATE if "variance explained" in metrics else Role.INFORMATION,
        kind="mutual-information",
        title=f"information & <more> in {len(rounds)} rounds",
        attack="mutual-information",
        threat_model=GOLDEN.threat_models[0].name,
        message=message,
        rounds=rounds,
        world=world,
        metrics=metrics,
        notes=("random over the 321 runs: everything", f"only of {world}"),
        series=series,
    )


def result(*findings: Finding) -> AuditResult:
    return GOLDEN.model_copy(update={"findings": (*GOLDEN.findings, *findings)})


EVERYTHING = (
    by_round("defense"),
    estimate("defense"),
    by_round("no-defense", bits=(6.0, 7.5)),
    estimate("no-defense"),
)


def test_findings_are_grouped_by_message_and_adversary() -> None:
    unseen = finding("defense", "w", (1,), {}, {})
    entries = [NumberedFinding(i, f) for i, f in enumerate([*EVERYTHING, unseen, *EVERYTHING[:2]])]
    groups = leaks(entries)
    assert [(g.message, [e.number for e in g.entries]) for g in groups] == [
        ("z", [0, 1, 2, 3]),
        ("w", [4]),
        ("z", [5, 6]),  # asked about something else
    ]
    assert set(groups[0].drawn("round")) == {"defense", "no-defense"}
    assert groups[0].notes == [
        ("random over the 321 runs: everything", []),
        ("only of defense", ["defense"]),
        ("only of no-defense", ["no-defense"]),
    ]


def test_drawings_are_the_same_bytes_again() -> None:
    drawn = {"defense": EVERYTHING[0], "no-defense": EVERYTHING[2]}
    first = information_by_round(drawn, "a", "title <1>").drawing
    assert first == information_by_round(drawn, "a", "title <1>").drawing
    for text in (
        "defense",
        "no-defense",
        "trials shuffled",
        "information (bits)",
        "M-NMI",
        "round",
    ):
        assert f">{text}<" in first
    assert "title &lt;1&gt;" in first
    scatter = estimates({"defense": EVERYTHING[1]}, "b", "t").drawing
    assert scatter == estimates({"defense": EVERYTHING[1]}, "b", "t").drawing
    assert ">best estimate<" in scatter
    assert ">exact<" in scatter


def test_nothing_is_drawn_where_nothing_is_finite() -> None:
    nothing = by_round("defense", bits=(math.nan, math.inf))
    assert information_by_round({"defense": nothing}, "a", "t") is None
    assert estimates({}, "a", "t") is None


@pytest.mark.parametrize("rounds", [(3,), tuple(range(1, 60))])
def test_one_round_or_many_without_intervals_are_drawn(rounds) -> None:
    nan = tuple(math.nan for _ in rounds)
    lone = by_round(
        "defense", rounds=rounds, bits=tuple(0.5 for _ in rounds), baseline=nan, low=nan, high=nan
    )
    svg = information_by_round({"defense": lone}, "a", "t").drawing
    assert "trials shuffled" not in svg


def test_the_page_shows_every_number_note_and_finding() -> None:
    unseen = finding("defense", "w", (1,), {}, {})
    everything = result(*EVERYTHING, unseen)
    page = render(everything, Path())
    for link in finding_links(everything.findings, everything.claims)[len(GOLDEN.findings) :]:
        assert page.count(f'id="{link}"') == 1
    for number in ("1.250", "[1.125, 1.375]", "n = 321", "0.138", "9.5", "0.750", "[0.500, 0.875]"):
        assert number in page, number
    assert "z, read by" in page
    assert "w, read by" in page
    assert "information &amp; &lt;more&gt;" in page
    assert page.count("random over the 321 runs: everything") == 2  # once for each message
    assert page.count("Best estimates on held-out trials") == 2  # its title and its caption
    assert page == render(result(*EVERYTHING, unseen), Path())


def test_several_budgets_stand_side_by_side() -> None:
    runs = [
        ("epsilon 1", result(*EVERYTHING), Path()),
        ("epsilon 10", result(by_round("defense", bits=(2.0, 3.0))), Path()),
    ]
    page = render_comparison(runs)
    assert "Mutual information" in page
    for text in (">epsilon 1<", ">epsilon 10<", "3.00", "1.250"):
        assert text in page, text
    assert "Mutual information" not in render_comparison([("none", GOLDEN, Path())])
    asked = by_run([("a", [NumberedFinding(0, EVERYTHING[2])])])
    assert asked == {}  # what leaks without a defense is not compared


def test_the_example_in_the_docs_is_the_one_in_the_examples() -> None:
    text = (ROOT / "docs" / "mutual-information.md").read_text()
    block = text.split("```toml\n", 1)[1].split("```", 1)[0]
    path = ROOT / "examples" / "dpdl-information.toml"
    assert tomllib.loads(block) == tomllib.loads(path.read_text())
    assert AuditConfig.from_toml(path).attack[1].options["message"] == "momentum-stripped"
