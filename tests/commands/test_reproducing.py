"""dpaudit reproduce: what it writes, what it refuses, and the page that it keeps."""

import json

import pytest
from typer.testing import CliRunner

from dpaudit.commands import reproducing
from dpaudit.commands.cli import app
from dpaudit.memory import size_text
from dpaudit.papers import reproductions
from dpaudit.text import duration
from tests.papers.toy import CALLS, LEARNS, TOY
from tests.said import without_help


@pytest.fixture(autouse=True)
def _toys(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPAUDIT_DATA", raising=False)
    monkeypatch.setattr(reproductions, "experiments", lambda: {"toy": TOY, "learns": LEARNS})


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
        assert "it has the result of toy, scale quick; give another folder" in done.stderr
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
        (("toy", "--dry-run"), "dpaudit list"),
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


def test_the_page_has_each_section_once_and_keeps_what_else_is_in_it(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n\nwords\n")
    for _ in range(2):
        assert reproduce("toy", "--markdown", str(page)).exit_code == 0
    page.write_text(page.read_text() + "\nmore words\n")
    assert reproduce("toy", "--seeds", "1", "--markdown", str(page)).exit_code == 0
    text = page.read_text()
    assert text.count("### Table 1: toy, scale quick") == 1
    assert text.startswith("# Mine\n\nwords\n")
    assert text.endswith("\nmore words\n")
    assert "seeds 0, " in text
    only_a = ("toy", "--only", "method=A", "--set", "shift=1.5", "--markdown", str(page))
    assert [reproduce(*only_a).exit_code for _ in range(2)] == [0, 0]
    assert page.read_text().count("### Table 1: toy, scale quick") == 2  # one of A, and that of all
    assert page.read_text().startswith(text.rstrip())


@pytest.mark.parametrize("name", list(reproductions.PRINTED))
@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_what_is_only_printed_says_what_it_takes(tmp_path, monkeypatch, name, scale) -> None:
    monkeypatch.setattr(reproductions, "experiments", lambda: reproductions.PRINTED)
    done = reproduce(name, "--scale", scale, "--dry-run")
    assert done.exit_code == 0, done.output
    seconds, size = reproductions.PRINTED[name].scales[scale]
    assert done.stdout == (
        f"all of it, scale {scale}: about {duration(seconds)} on two cores, {size_text(size)}\n"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("damage", ["a folder", "not UTF-8"])
def test_a_page_that_cannot_be_read_is_refused_before_anything_runs(tmp_path, damage) -> None:
    page = tmp_path / "page.md"
    if damage == "a folder":
        page.mkdir()
    else:
        page.write_bytes(b"caf\xe9\n")
    CALLS.clear()
    done = reproduce("toy", "--markdown", str(page))
    assert done.exit_code == 2
    assert without_help(done.stderr).startswith(f"error: --markdown {page}: ")
    assert not CALLS
    assert page.is_dir() or page.read_bytes() == b"caf\xe9\n"


def test_the_command_on_the_page_has_nothing_of_the_machine(monkeypatch) -> None:
    typed = (
        "bin/dpaudit reproduce toy --out x --quiet --seeds 2 --markdown p --set a=1 "
        "--data '/home/some one/own.npz'"
    )
    monkeypatch.setattr(reproducing, "same_command", lambda: typed)
    assert reproducing._typed() == "dpaudit reproduce toy --seeds 2 --set a=1 --data own.npz"
