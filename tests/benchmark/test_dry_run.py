"""What a benchmark takes, told beforehand: what costs the same is measured once."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.benchmark import dry_run
from dpaudit.benchmark.dry_run import CellAhead, cells_ahead
from dpaudit.benchmark.grid import InvalidCells, plan_of
from dpaudit.commands.cli import app
from dpaudit.files.benchmark_file import BenchmarkFile
from dpaudit.files.finding import Name
from dpaudit.pipeline import run
from dpaudit.pipeline.run import Runtime, outlook
from tests.benchmark.small_benchmarks import EPSILONS, GRAPHS, written
from tests.said import without_help
from tests.some_fast import fast_if

ATTACK = '\n[[audit.attack]]\nname = "likelihood-ratio"\ntrials = 40\n'
RUNTIME = Runtime(cores=1)


def ahead(folder: Path, *parts: str) -> list[CellAhead]:
    path = written(folder, *parts)
    path.write_text(path.read_text() + ATTACK)
    return cells_ahead(plan_of(BenchmarkFile.read(path), 100), RUNTIME, lambda done, total: None)


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str, calls: Counter) -> None:
    real = getattr(module, name)

    def counting(*arguments: object, **named: object) -> object:
        calls[name] += 1
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, counting)


def test_cells_that_differ_in_seed_share_their_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    counted(monkeypatch, dry_run, "prepare", calls)
    counted(monkeypatch, dry_run, "costs_ahead", calls)
    counted(monkeypatch, run, "load_dataset", calls)
    found = ahead(tmp_path, "seeds = [1, 2]\n", GRAPHS, EPSILONS)
    assert calls == {"prepare": 4, "costs_ahead": 2, "load_dataset": 1}
    cells = {cell.group: cell for cell in found}
    assert all(cell.n_seeds == 2 for cell in cells.values())
    of_graph = {
        name: {c.seconds for g, c in cells.items() if name in g} for name in ("ring", "com")
    }
    assert [len(seconds) for seconds in of_graph.values()] == [1, 1]
    assert len({cell.largest(Name.EXPECTED_BOUND) for cell in found}) > 1  # power is of each budget


@pytest.mark.slow
def test_power_that_takes_too_long_is_told_by_its_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(BenchmarkFile.read(written(tmp_path, EPSILONS)), 100)
    derived = ahead(tmp_path, EPSILONS)
    monkeypatch.setattr(dry_run, "POWER_SECONDS", 0.0)
    bounded = ahead(tmp_path, EPSILONS)
    assert all(cell.largest(Name.EXPECTED_BOUND) is not None for cell in derived)
    assert all(cell.largest(Name.EXPECTED_BOUND) is None for cell in bounded)
    at_most = [cell.largest(Name.CEILING) for cell in bounded]
    assert at_most == [cell.largest(Name.CEILING) for cell in derived]
    config = plan.cells[0].config.model_dump(mode="json")
    config["attack"] = [{"name": "likelihood-ratio", "trials": 40}]
    _, [power] = outlook(type(plan.cells[0].config).from_dict(config), RUNTIME)
    assert at_most[0] == power.metrics[Name.CEILING].value


def test_an_estimate_that_is_too_large_is_a_line_of_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.game.estimating.window.MOST_UNKNOWNS", 5)
    path = written(tmp_path, "")
    view = '\n[[audit.attack]]\nname = "membership"\nrounds = [1]\n'
    path.write_text(path.read_text() + view)
    plan = plan_of(BenchmarkFile.read(path), 100)
    with pytest.raises(InvalidCells, match=r'cell "[^"]*": attack membership: the estimate of .*'):
        cells_ahead(plan, RUNTIME, lambda done, total: None)


def test_each_cell_that_does_not_fit_is_a_line(tmp_path: Path) -> None:
    plan = plan_of(BenchmarkFile.read(written(tmp_path, GRAPHS, EPSILONS)), 100)
    with pytest.raises(InvalidCells) as refused:
        cells_ahead(plan, Runtime(cores=1, max_memory=1), lambda done, total: None)
    lines = str(refused.value).split("\n")
    assert len(lines) == 4
    assert all(" takes about " in line and line.endswith(" is in use") for line in lines)
    assert refused.value.problems[0].help == "lower n_agents or batch_size"


def test_a_plugin_that_raises_is_a_line_of_each_of_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*_: object) -> None:
        raise ZeroDivisionError("half way")

    monkeypatch.setattr(dry_run, "prepare", prepare)
    plan = plan_of(BenchmarkFile.read(written(tmp_path, GRAPHS)), 100)
    with pytest.raises(InvalidCells) as refused:
        cells_ahead(plan, RUNTIME, lambda done, total: None)
    lines = str(refused.value).split("\n")
    assert [line.partition(": half")[0] for line in lines] == [
        f'cell "{graph}": unforeseen ZeroDivisionError' for graph in ("ring", "complete")
    ]


TUNING = """seeds = [1, 2]
[tuning]
seed = 3
[[tuning.factor]]
keys = ["defense.learning_rate"]
values = [0.5, 1]
"""


@pytest.mark.parametrize(
    "spoilt, said, tuned",
    [
        ("_seconds", ["attack 00 likelihood-ratio (", "examination sensitivity of"], ""),
        (
            "pace_of",
            ["training (defense)", "training (no-defense)", "noise-of-the-run"],
            "at least ",
        ),
    ],
)
def test_parts_of_unknown_time_are_named_with_their_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str, said: list[str], tuned: str
) -> None:
    def unknown(*given: object, **named: object) -> None:
        if spoilt == "pace_of":
            raise ValueError("cannot be played")

    monkeypatch.setattr(f"dpaudit.pipeline.costs.{spoilt}", unknown)
    monkeypatch.setattr("dpaudit.pipeline.costs.PATIENCE", 60.0)  # seconds, on a busy machine
    path = written(tmp_path, TUNING, GRAPHS)
    path.write_text(path.read_text() + ATTACK)
    command = ["benchmark", str(path), "--dry-run", "--quiet", "--workers", "1"]
    done = CliRunner().invoke(app, command)
    lines = done.stdout.splitlines()
    [total] = [line for line in lines if line.startswith("4 cells: at least about ")]
    left_out = lines[lines.index(total) + 1]
    head, _, listed = left_out.partition(": ")
    assert head == "left out of that, as their time is unknown"
    parts = listed.split(", ")
    assert all(part.endswith(" of 4 cells") for part in parts)
    assert [part for part in parts if part.startswith(tuple(said))] == parts
    assert len(parts) == len(said)
    rest = "; 4 of them are of unknown time" if tuned else ""
    assert lines[-1].startswith(f"before them 4 trainings choose what is tuned: {tuned}about ")
    assert lines[-1].endswith(f" on 1 core{rest}")


LACKING = '[[axis]]\nkey = "defense.name"\nvalues = ["whisper", "dp-dpsgd"]\n'
NEEDED = 'whisper needs the package cvxpy: pip install "dpaudit[whisper]"'


@pytest.mark.parametrize("options", fast_if(bool, [["--dry-run"], []]), ids=["dry run", "run"])
def test_cells_that_lack_a_package_are_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "without"))  # of the processes of cells
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "cvxpy.py").write_text("raise ImportError\n")
    path = written(tmp_path, LACKING)
    command = ["benchmark", str(path), "--out", str(tmp_path / "out"), "--workers", "1", "-q"]
    done = CliRunner().invoke(app, [*command, *options])
    assert done.exit_code == 2
    lines = without_help(done.stderr).splitlines()
    assert lines[0] == f"warning: 1 of 2 cells cannot run: {NEEDED}"
    assert len(lines) == (1 if options else 2)
    assert "  dp-dpsgd" in done.stdout
    assert "  whisper" not in done.stdout
