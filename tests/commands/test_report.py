"""dpaudit report: what runs are called, the baseline, and folders and files that are no runs."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.result import AuditResult
from tests.reports.pages import GOLDEN, Page
from tests.said import without_help

DIGEST = "b68776c32b11b8d38075efffe9d8ac4e"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three runs in the working folder; the last one has another seed."""
    monkeypatch.chdir(tmp_path)
    folders = [Path(name) for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
        shutil.copy(GOLDEN, folder / "audit.json")
    content = json.loads(GOLDEN.read_text())
    content["config"]["seed"] = 99
    (folders[2] / "audit.json").write_text(json.dumps(content))
    return folders


def report(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return done.exit_code, done.stdout, without_help(done.stderr)


def names() -> list[str]:
    page = Page(Path("comparison.html").read_text())
    *_, table = page.by_id("training").every("table")  # behind the curves there is one, too
    return [row.text() for row in table.every("th")][6:]


def test_a_run_is_called_by_its_folder(runs: list[Path]) -> None:
    assert report(*runs) == (0, "report: comparison.html\n", "")
    assert names() == ["1 one baseline", "2 two", "3 three"]


def test_a_report_takes_the_place_of_a_page_alone(runs: list[Path]) -> None:
    """It replaced whatever file ``--out`` named, without a word."""
    Path("page.html").write_text("<!DOCTYPE html>an older report")
    assert report("one", "--out", "page.html") == (0, "report: page.html\n", "")
    before = Path("one/audit.json").read_bytes()
    for given in (["one"], ["one", "two"]):
        code, _, said = report(*given, "--out", "one/audit.json")
        assert (code, said) == (2, "error: one/audit.json exists, and is no report\n")
    assert Path("one/audit.json").read_bytes() == before


def test_labels_are_given_in_the_order_of_the_runs(runs: list[Path]) -> None:
    assert report(*runs, "--label", "DPDL", "--label", "b <i>", "--label", "c")[0] == 0
    assert names() == ["1 DPDL baseline", "2 b <i>", "3 c"]


def test_a_folder_named_by_a_digest_is_called_by_its_defense(runs: list[Path]) -> None:
    (Path("one")).rename(DIGEST)
    assert report(DIGEST, "two")[0] == 0
    assert names() == ["1 dpdl b68776 baseline", "2 two"]


def test_folders_of_one_name_are_told_apart_by_their_paths(runs: list[Path]) -> None:
    for parent in ("x", "y"):
        shutil.copytree("one", f"{parent}/run")
    assert report("x/run", "y/run")[0] == 0
    assert names() == ["1 x/run baseline", "2 y/run"]


@pytest.mark.parametrize("baseline", ["three", "./three", "c"])
def test_the_baseline_is_named_by_its_label_or_its_folder(runs: list[Path], baseline: str) -> None:
    labels = ["--label", "a", "--label", "b", "--label", "c"]
    assert report(*runs, *labels, "--baseline", baseline)[0] == 0
    assert names() == ["1 a", "2 b", "3 c baseline"]
    page = Page(Path("comparison.html").read_text())
    marked = [m.text() for m in page.by_id("configs").every("mark")][1:]
    assert marked == [str(AuditResult.read(GOLDEN).config["seed"])] * 2


@pytest.mark.parametrize(
    "options, said",
    [
        (["--label", "a"], "--label: expected one for each of the 2 runs, got 1"),
        (["--label", "a"] * 3, "--label: expected one for each of the 2 runs, got 3"),
        (["--label", "a"] * 2, '--label: "a": expected a name of its own for each run'),
        (["--label", "a", "--label", " "], '--label: " ": expected a name of its own'),
        (["--baseline", "tow"], '"tow" is none of the runs (did you mean "two"?); they are: one,'),
        (["one"], "given 2 times; expected different runs"),
        (["--figures", "f"], "--figures: expected one run directory, got several"),
    ],
)
def test_options_that_cannot_be_meant_are_one_line(
    runs: list[Path], options: list[str], said: str
) -> None:
    code, shown, error = report("one", "two", *options)
    assert (code, shown, error.count("\n")) == (2, "", 1)
    assert said in error
    assert not Path("comparison.html").exists()


@pytest.mark.parametrize("option", ["--label", "--baseline"])
def test_what_is_for_several_runs_is_refused_of_one(runs: list[Path], option: str) -> None:
    said = f"error: {option}: expected several run directories, got one\n"
    assert report("one", option, "one") == (2, "", said)


def truncated(text: str) -> str:
    return text[: len(text) // 2]


def newer(text: str) -> str:
    return text.replace('"schema_version": 3', '"schema_version": 4')


def older(text: str) -> str:
    return text.replace('"schema_version": 3', '"schema_version": 0')


def misspelt(text: str) -> str:
    return text.replace('"verdict"', '"verdikt"', 1)


def of_another_kind(text: str) -> str:
    return text.replace('"n_agents": 4,', '"n_agents": "four",')


@pytest.mark.parametrize(
    "edit, said",
    [
        (truncated, "an audit.json that is cut off after"),
        (newer, "schema_version 4, this dpaudit reads versions 1 to 3"),
        (older, "schema_version 0, this dpaudit reads versions 1 to 3"),
        (misspelt, "verdi"),
        (of_another_kind, "graph.n_agents: Input should be a valid integer"),
    ],
)
@pytest.mark.parametrize("beside", [[], ["two"]], ids=["alone", "compared"])
def test_a_damaged_or_other_audit_json_is_one_line(
    runs: list[Path], edit, said: str, beside: list[str]
) -> None:
    file = Path("one/audit.json")
    content = AuditResult.read(GOLDEN).to_json()
    file.write_text(edit(content))
    code, shown, error = report(*beside, "one")
    assert (code, shown, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: one/audit.json")
    assert said in error


def test_what_is_no_run_is_one_line(runs: list[Path]) -> None:
    Path("bare").mkdir()
    Path("begun").mkdir()
    Path("begun/run.json").write_text("{}")
    for argument, said in (
        ("bare", "bare: there is no audit.json in it: it is no run directory"),
        ("begun", "begun: there is no audit.json in it: its audit is not finished"),
        ("absent", "absent: there is no such folder; expected a run directory"),
        ("one/audit.json", "one/audit.json: not a folder; expected the run directory"),
    ):
        code, shown, error = report("two", argument)
        assert (code, shown, error.count("\n")) == (2, "", 1)
        assert error.startswith(f"error: {said}")


@pytest.mark.parametrize("beside", [[], ["two"]], ids=["alone", "compared"])
def test_missing_artifacts_are_named_and_the_rest_is_there(
    runs: list[Path], beside: list[str]
) -> None:
    code, shown, _ = report("one", *beside)
    assert code == 0
    page = Path(shown.removeprefix("report: ").strip()).read_text()
    assert "missing: <code>artifacts/" in page
    assert "test accuracy" in page
