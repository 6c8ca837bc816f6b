"""dpaudit reproduce: what it writes, what it refuses, and the results that it publishes."""

import json
import re

import pytest
from typer.testing import CliRunner

from dpaudit.commands import terminal
from dpaudit.commands.cli import app
from dpaudit.files.published import ExperimentRuns
from dpaudit.papers import declared, five_papers
from dpaudit.papers.experiment import ExperimentScale
from dpaudit.papers.frameworks import FRAMEWORKS
from tests.papers.toy import CALLS, LEARNS, TOY
from tests.said import without_help

PUBLISHED = declared.EXPERIMENTS


@pytest.fixture(autouse=True)
def _toys(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPAUDIT_DATA", raising=False)
    monkeypatch.setattr(declared, "EXPERIMENTS", {"toy": TOY, "learns": LEARNS})


def reproduce(*arguments: str):
    return CliRunner().invoke(app, ["reproduce", *arguments, "--workers", "1", "--quiet"])


def test_it_leaves_json_csv_and_a_page_and_runs_nothing_twice(tmp_path) -> None:
    CALLS.clear()
    done = reproduce("toy")
    assert done.exit_code == 0, done.output
    assert "published" in done.stdout
    out = tmp_path / "runs" / "toy-quick"
    assert json.loads((out / "experiment.json").read_text())["name"] == "toy"
    assert (out / "experiment.csv").read_text().startswith("method,budget,view,quantity")
    assert "<h1>Toy, Table 1" in (out / "report.html").read_text()
    assert len(CALLS) == 6
    again = reproduce("toy")
    assert again.stdout == done.stdout
    assert len(CALLS) == 6


def test_the_result_of_another_experiment_is_not_lost(tmp_path) -> None:
    assert reproduce("toy", "--out", "mine").exit_code == 0
    kept = (tmp_path / "mine" / "experiment.json").read_bytes()
    for other in (("learns",), ("toy", "--scale", "paper")):
        done = reproduce(*other, "--out", "mine")
        assert done.exit_code == 2
        assert "it has the result of toy, scale quick\nhelp: give another folder" in done.stderr
    assert (tmp_path / "mine" / "experiment.json").read_bytes() == kept


def test_readings_and_labels_are_options() -> None:
    done = reproduce("toy", "--set", "shift=1.5", "--only", "method=A", "--seeds", "2")
    assert done.exit_code == 0, done.output
    assert "shift = 1.5: not printed" in done.stdout
    assert "B       4" not in done.stdout


@pytest.mark.parametrize(
    "arguments, line",
    [
        (("toyy",), 'did you mean "toy"'),
        (("toy", "--set", "shfit=1"), 'did you mean "shift"'),
        (("toy", "--set", "shift"), "expected KEY=VALUE"),
        (("toy", "--only", "=A"), "expected COLUMN=LABEL"),
        (("toy", "--data", "digits"), "learns from no data set"),
        (("toy", "--data-root", "."), "reads no data set"),
        (("learns",), "train-images-idx3-ubyte is missing"),
        (("learns", "--data", "digitz"), 'did you mean "digits"'),
        (("toy", "--only", "method=AA"), "it has A, B"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, line) -> None:
    done = reproduce(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    [said] = without_help(done.stderr).strip().splitlines()
    assert said.startswith("error: ")
    assert line in said


def test_a_dry_run_without_training_says_what_all_takes(monkeypatch) -> None:
    monkeypatch.setattr(declared, "EXPERIMENTS", {**PUBLISHED, "toy": TOY})
    for name in ("toy", "dager", "fedavg-inversion", "weather"):
        done = reproduce(name, "--dry-run")
        assert done.exit_code == 0, done.output
        assert re.match(r"all of it, scale quick: about .* on two cores, ", done.stdout), name


def test_published_results_have_each_run_once(tmp_path) -> None:
    """One of other cells or readings stands beside them."""
    results = ("--results", "results")
    for _ in range(2):
        assert reproduce("toy", *results).exit_code == 0
    assert reproduce("toy", "--seeds", "1", *results).exit_code == 0
    only_a = ("toy", "--only", "method=A", "--set", "shift=1.5", *results)
    assert [reproduce(*only_a).exit_code for _ in range(2)] == [0, 0]
    whole, part = ExperimentRuns.read(tmp_path / "results" / "toy-quick.json").runs
    assert (whole.seeds, whole.asked) == ((0,), ())
    assert (part.seeds, part.asked) == ((0, 1, 2), ("method=A", "shift=1.5"))
    rows = (tmp_path / "results" / "toy-quick.csv").read_text().splitlines()
    assert len(rows) == 1 + len(whole.lines) + len(part.lines)


def test_the_option_of_before_names_the_new_one() -> None:
    done = reproduce("toy", "--markdown", "page.md")
    assert done.exit_code == 2
    assert "give --results" in done.stderr


def test_what_is_only_printed_says_what_it_takes(tmp_path, monkeypatch) -> None:
    scales = {"quick": ExperimentScale(1, 120, 10**9), "paper": ExperimentScale(1, 7200, 3 * 10**9)}
    studies = {"findings": five_papers.FINDINGS._replace(scales=scales)}
    monkeypatch.setattr(declared, "EXPERIMENTS", studies)
    takes = {"quick": "2 min on two cores, 1 GB", "paper": "2 h on two cores, 3 GB"}
    for scale, cost in takes.items():
        done = reproduce("findings", "--scale", scale, "--dry-run")
        assert done.exit_code == 0, done.output
        assert done.stdout == f"all of it, scale {scale}: about {cost}\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("damage", ["a folder", "not JSON"])
def test_results_that_cannot_be_read_are_refused_at_once(tmp_path, damage) -> None:
    path = tmp_path / "results" / "toy-quick.json"
    path.parent.mkdir()
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b"{")
    CALLS.clear()
    done = reproduce("toy", "--results", "results")
    assert done.exit_code == 2
    assert without_help(done.stderr).startswith("error: --results results/toy-quick.json: ")
    assert not CALLS
    assert path.is_dir() or path.read_bytes() == b"{"


def test_the_published_command_has_nothing_of_the_machine(monkeypatch) -> None:
    typed = (
        "bin/dpaudit reproduce toy --out x --quiet --seeds 2 --results p --set a=1 "
        "--data '/home/some one/own.npz'"
    )
    monkeypatch.setattr(terminal, "same_command", lambda: typed)
    assert (
        terminal.published_command() == "dpaudit reproduce toy --seeds 2 --set a=1 --data own.npz"
    )


@pytest.mark.parametrize(
    "arguments, code, line",
    [
        (("frameworks",), "DPA014", "--environments: expected the folder"),
        (("frameworks", "--environments", "x"), "DPA057", "p2pfl/bin/python is not there"),
        (
            ("frameworks", "--environments", "x", "--only", "framework=none"),
            "DPA006",
            'no framework "none"; known: p2pfl, flwr',
        ),
        (
            ("frameworks", "--environments", "x", "--only", "framework=pfl", "--results", "y"),
            "DPA013",
            "--results: the published tables are of all frameworks",
        ),
        (("frameworks", "--environments", "x", "--seed", "1"), "DPA013", "--seed: frameworks"),
        (("toy", "--environments", "x"), "DPA013", "--environments: toy does not have it"),
        (("toy", "--make"), "DPA013", "--make: toy does not have it"),
    ],
)
def test_what_is_only_of_frameworks_is_a_line(monkeypatch, arguments, code: str, line: str) -> None:
    known = {"toy": TOY, "frameworks": FRAMEWORKS}
    monkeypatch.setattr(declared, "EXPERIMENTS", known)
    done = CliRunner().invoke(app, ["reproduce", *arguments])
    assert done.exit_code == 2
    assert line in done.stderr
    assert f"error[{code}]" in done.stderr
