"""Figures and tables of a report as files: which, in which colours, with which numbers."""

import csv
import re
import shutil
from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.commands.results import write_figures, write_tables
from dpaudit.files.result import AuditResult, EpsilonRange, Premise
from dpaudit.reports import tables
from dpaudit.reports.figures.drawing import _DRAWN, FORMATS, THEME
from dpaudit.reports.html import render
from tests.said import without_help
from tests.some_fast import fast_if

GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"
RESULT = AuditResult.read(GOLDEN)
BEGINS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def page() -> str:
    return render(RESULT, GOLDEN.parent)


@pytest.fixture(scope="module")
def figures(page: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files that are written after the page was made."""
    folder = tmp_path_factory.mktemp("figures")
    return write_figures(RESULT, GOLDEN.parent, folder)


def test_every_drawing_of_the_page_is_a_file_of_each_format(page: str, figures: list[Path]) -> None:
    drawn = set(re.findall(r'<title id="run0-([\w-]+)-title">', page))
    assert drawn
    assert {path.name for path in figures} == {
        f"{name}.{kind}" for name in drawn for kind in FORMATS
    }
    for path in figures:
        assert path.read_bytes().startswith(BEGINS[path.suffix[1:]])


def test_files_have_colours_and_no_variables_of_a_page(figures: list[Path]) -> None:
    texts = [path.read_text("utf-8") for path in figures if path.suffix == ".svg"]
    assert not any(colour in text for text in texts for colour in THEME)
    assert any("#1f5fae" in text for text in texts)  # the defense, on the light page


@pytest.mark.slow
def test_the_same_result_gives_the_same_files(figures: list[Path], tmp_path: Path) -> None:
    again = write_figures(RESULT, GOLDEN.parent, tmp_path)
    for one, other in zip(figures, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


@pytest.mark.usefixtures("figures")
def test_nothing_is_kept_afterwards_and_the_page_is_the_same(page: str) -> None:
    assert _DRAWN.get() is None
    assert render(RESULT, GOLDEN.parent) == page


def test_tables_have_every_number_of_the_result(tmp_path: Path) -> None:
    assert [path.name for path in write_tables(RESULT, tmp_path)] == [
        "claims.csv",
        "premises.csv",
        "metrics.csv",
        "series.csv",
        "traces.csv",
        "training.csv",
    ]
    metrics = rows(tmp_path / "metrics.csv")
    assert len(metrics) == sum(len(finding.metrics) for finding in RESULT.findings)
    for row in metrics:
        metric = RESULT.findings[int(row["finding"])].metrics[row["metric"]]
        assert float(row["value"]) == pytest.approx(metric.value, nan_ok=True, rel=0)
    curve = next(iter(RESULT.utility.values()))
    first = rows(tmp_path / "training.csv")[0]
    assert float(first["loss"]) == curve.loss[0][0]
    assert [row["verdict"] for row in rows(tmp_path / "claims.csv")] == [
        claim.verdict for claim in RESULT.claims
    ]


def test_a_text_is_no_formula_and_shows_what_is_not_seen(tmp_path: Path) -> None:
    claim = RESULT.claims[0].model_copy(update={"text": "=1+1\u202e"})
    write_tables(RESULT.model_copy(update={"claims": (claim,)}), tmp_path)
    assert rows(tmp_path / "claims.csv")[0]["text"] == "'=1+1\\u202e"


FORMULAS = {
    '=HYPERLINK("http://x")': '\'=HYPERLINK("http://x")',
    " =1+1": "' =1+1",
    "@SUM(A1)": "'@SUM(A1)",
    "+1;=1": "'+1;'=1",
    "-a": "'-a",
    "\t=1": "\\t=1",
    "\r=1": "\\r=1",
    "\uff1d1": "'\uff1d1",
    "a; =1": "a;' =1",
}


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_any_table_is_a_formula(text: str, tmp_path: Path) -> None:
    claim = RESULT.claims[0].model_copy(update={"text": text, "threat_model": text})
    finding = RESULT.findings[0].model_copy(update={"title": text})
    changed = {"claims": (claim,), "findings": (finding,)}
    write_tables(RESULT.model_copy(update=changed), tmp_path)
    assert rows(tmp_path / "claims.csv")[0]["text"] == FORMULAS[text]
    assert rows(tmp_path / "claims.csv")[0]["threat_model"] == FORMULAS[text]
    assert rows(tmp_path / "metrics.csv")[0]["title"] == FORMULAS[text]


@pytest.mark.parametrize("value", [-1.5, -3, "-1.5", "-1.5 2e-9", None, True])
def test_numbers_stay_numbers_in_a_table(value: object) -> None:
    assert tables.cell(value) is value


def test_premises_have_a_row_for_each_claim_and_adversary(tmp_path: Path) -> None:
    held = Premise(name="noise", status="examined", says="in all 5 rounds", findings=(0, 2))
    missing = Premise(name="state", status="not examined", says="not played again")
    ends = EpsilonRange(certified=0.25, accounted=0.5, measured=inf)
    update = {"premises": (held, missing), "range": ends}
    claims = tuple(claim.model_copy(update=update) for claim in RESULT.claims)
    result = RESULT.model_copy(update={"claims": (claims[0], RESULT.claims[1])})
    write_tables(result, tmp_path)
    found = [[*row.values()][1:] for row in rows(tmp_path / "premises.csv")]
    about = [claims[0].text, claims[0].threat_model, claims[0].verdict]
    assert found == [
        [*about, "noise", "examined", "in all 5 rounds", "0 2"],
        [*about, "state", "not examined", "not played again", ""],
    ]
    first, second = rows(tmp_path / "claims.csv")
    assert (first["accounted_epsilon"], first["measured_epsilon"]) == ("0.5", "inf")
    assert second["measured_epsilon"] == ""
    assert result.to_frame("premises").status.tolist() == ["examined", "not examined"]


def test_without_findings_a_table_is_empty(tmp_path: Path) -> None:
    bare = RESULT.model_copy(update={"findings": (), "claims": (), "utility": {}})
    for path in write_tables(bare, tmp_path):
        assert path.read_text() == "\n"


@pytest.mark.slow
def test_the_command_writes_both_beside_its_report(tmp_path: Path) -> None:
    shutil.copy(GOLDEN, tmp_path / "audit.json")
    asked = ["report", tmp_path, "--figures", tmp_path / "f", "--tables", tmp_path / "t"]
    done = CliRunner().invoke(app, [str(argument) for argument in asked])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "t").iterdir())) == 6
    assert len(list((tmp_path / "f").glob("*.pdf"))) > 2


@pytest.mark.parametrize("option", fast_if("--tables".__eq__, ["--figures", "--tables"]))
def test_what_cannot_be_written_or_meant_is_one_line(tmp_path: Path, option: str) -> None:
    shutil.copy(GOLDEN, tmp_path / "audit.json")
    run, there = str(tmp_path), str(tmp_path / "audit.json")
    several = CliRunner().invoke(app, ["report", run, run, option, "f"])
    assert several.exit_code == 2
    assert (
        without_help(several.stderr)
        == f"error: {option}: expected one run directory, got several\n"
    )
    blocked = CliRunner().invoke(app, ["report", run, option, there])
    assert blocked.exit_code == 2
    assert without_help(blocked.stderr).count("\n") == 1
    assert "cannot write" in blocked.stderr
