"""A result in Python: figures by name, frames, and the page of a cell."""

import re
from pathlib import Path

import pytest

from dpaudit.commands.results import write_figures
from dpaudit.errors import DpauditError
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.reports.notebook import Figures
from tests.reports.pages import Page, with_findings, with_premises
from tests.reports.test_comparison import WHY, run


@pytest.fixture(scope="module")
def figures(golden: AuditResult) -> Figures:
    """Drawn once for all tests."""
    return golden.figures


@pytest.fixture(scope="module")
def report(golden: AuditResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The figures of training in the report, as files."""
    folder = tmp_path_factory.mktemp("report")
    write_figures(with_findings(golden, utility=golden.utility), folder, folder)
    return folder


def test_every_figure_of_the_report_has_a_name(figures: Figures, html: str) -> None:
    names = list(figures)
    assert names[0] == "bounds"
    assert names[-3:] == ["loss", "accuracy", "consensus distance"]
    drawn = re.findall(r'<title id="run0-([\w-]+)-title">', html)
    assert len(names) == len(set(names)) == len(set(drawn))


def test_a_figure_is_saved_as_the_report_saves_it(
    figures: Figures, report: Path, tmp_path: Path
) -> None:
    for kind in ("svg", "pdf", "png"):
        figures["loss"].save(tmp_path / f"mine.{kind}")
        theirs = (report / f"loss.{kind}").read_bytes()
        assert (tmp_path / f"mine.{kind}").read_bytes() == theirs
    shown = figures["loss"]._repr_svg_()  # type: ignore[attr-defined]
    assert shown.encode() == (tmp_path / "mine.svg").read_bytes()
    assert "var(" not in shown


def test_figures_are_a_mapping_by_name(figures: Figures) -> None:
    assert len(figures) == len(list(figures)) > 0
    assert [(name, figure.name) for name, figure in figures.items()] == [
        (name, name) for name in figures
    ]
    assert ("loss" in figures, "lss" in figures, figures.get("lss")) == (True, False, None)
    assert figures.get("loss") is figures["loss"]


def test_a_figure_has_its_numbers_as_a_frame(golden: AuditResult, figures: Figures) -> None:
    frame = figures["loss"].frame
    first = golden.utility["defense"].loss[0][0]
    of_defense = frame[frame["world"] == "defense"]
    assert of_defense["loss"].iloc[0] == first


@pytest.mark.parametrize(
    "name, said",
    [
        ("los", 'no figure is called "los" (did you mean "loss"?); there are: bounds, '),
        pytest.param("loss 2", 'no figure is called "loss 2"', marks=pytest.mark.slow),
        pytest.param("loss 0", 'no figure is called "loss 0"', marks=pytest.mark.slow),
    ],
)
def test_an_unknown_figure_is_one_line_with_the_nearest_name(figures, name, said) -> None:
    with pytest.raises(DpauditError) as error:
        figures[name]
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_without_anything_to_draw_there_is_no_figure(golden: AuditResult) -> None:
    bare = with_findings(golden)
    assert list(bare.figures) == []
    with pytest.raises(DpauditError, match="this result has none"):
        bare.figures["loss"]


@pytest.mark.parametrize("path", ["a.gif", "a", "svg"])
def test_an_ending_that_is_no_format_is_one_line(figures: Figures, path: str) -> None:
    with pytest.raises(DpauditError, match=r"expected a name that ends in \.svg, \.pdf or \.png"):
        figures["loss"].save(path)


def test_claims_and_findings_are_frames(golden: AuditResult) -> None:
    claims, findings = golden.to_frame(), golden.to_frame("findings")
    assert list(claims["verdict"]) == [claim.verdict for claim in golden.claims]
    assert len(findings) == sum(len(finding.metrics) for finding in golden.findings)
    first = next(iter(golden.utility.values()))
    assert golden.to_frame("training")["loss"].iloc[0] == pytest.approx(first.loss[0][0], rel=0)
    with pytest.raises(DpauditError, match=r'"claim" \(did you mean "claims"\?\); known: claims'):
        golden.to_frame("claim")


def test_a_cell_shows_verdict_and_claims_without_script(golden: AuditResult) -> None:
    html = run(golden)._repr_html_()
    page = Page(html)
    assert "<b>not refuted</b>" in html
    [table] = page.root.every("table")
    assert "ours: epsilon 1" in table.text()
    assert "0.25 to 0.75" in table.text()
    assert list(page.root.every("script")) == []
    assert "var(" not in html


def test_a_cell_shows_the_fifth_word_with_its_range(golden: AuditResult) -> None:
    result = with_premises(run(golden), Verdict.SUPPORTED, "examined")
    html = result._repr_html_()
    page = Page(html)
    assert "<b>supported</b>" in html
    assert "A fault that raises epsilon beyond 0.813 would have been noticed." in page.root.text()
    assert "✓ Distance (examined)" in page.root.text()
    (figure,) = (e for e in page.root.every("svg") if "range" in e.classes())
    assert "measured: 0.5 to 0.813" in figure.text()
    assert "var(" not in html


def test_what_is_void_is_void_in_a_cell(golden: AuditResult) -> None:
    [table] = Page(run(golden, void=WHY)._repr_html_()).root.every("table")
    assert f"void : {WHY} (at least 0.25)" in table.text()


def test_without_a_claim_a_cell_says_so(golden: AuditResult) -> None:
    bare = with_findings(golden, verdict=None)
    assert "No claim was made" in bare._repr_html_()
