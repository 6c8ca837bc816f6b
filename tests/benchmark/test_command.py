"""dpaudit benchmark as a command: what it prints, its exit codes, and what it refuses."""

import json
import re
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.benchmark import on_ray, suites
from dpaudit.commands.cli import app
from dpaudit.files.published import ResultTables
from tests.benchmark.small_benchmarks import GRAPHS, SENSORS, written
from tests.material.forks import fork_orders
from tests.said import without_help
from tests.small_audits import undrawn

AXIS = '[[axis]]\nkey = "graph.name"\nvalues = ["star", "complete"]\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.toml").write_text(AXIS + SENSORS)
    return tmp_path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, list[str], list[str]]]:
    """A folder with a finished benchmark, one cell of which could not be run; what it said."""
    folder = tmp_path_factory.mktemp("ran")
    far = AXIS.replace('"complete"', '"bipartite"')  # of which 5 agents have none
    (folder / "bench.toml").write_text(far + SENSORS)
    with undrawn() as patch:
        patch.chdir(folder)
        fork_orders(patch)
        return folder, command("bench.toml", "--quiet", "--workers", "1")


def command(*arguments: str) -> tuple[int, list[str], list[str]]:
    done = CliRunner().invoke(app, ["benchmark", *arguments])
    return done.exit_code, done.stdout.splitlines(), without_help(done.stderr).splitlines()


def refused(*arguments: str) -> str:
    code, said, [line] = command(*arguments)
    assert (code, said) == (2, [])
    return line


def test_a_file_becomes_a_leaderboard_with_gaps(folder, ran) -> None:
    before, (code, said, error) = ran
    shutil.copytree(before / "runs", folder / "runs")
    assert code == 2
    assert re.split(" {2,}", said[0]) == [
        "verdict", "accounted", "measured", "certified", "accuracy", "cell", "missing premise",
    ]  # fmt: skip
    assert re.split(" {2,}", said[1])[5] == "star-seed-4"
    assert said[2:] == ["1 of 2 cells have a result: runs/bench/leaderboard.html"]
    assert Path("runs/bench/leaderboard.csv").exists()
    assert 'name = "star"' in (folder / "runs/bench/cells/star-seed-4/config.toml").read_text()
    [line] = error
    assert line.startswith("could not run: bipartite-seed-4: ")
    cells = json.loads(Path("runs/bench/benchmark.json").read_text())["cells"]
    assert [cell["state"] for cell in cells] == ["done", "failed"]
    assert cells[1]["error"] in line
    began = (folder / "runs/bench/cells/star-seed-4/audit.json").stat().st_mtime_ns
    (folder / "bench.toml").write_text(AXIS.replace(', "complete"', "") + SENSORS)
    code, said, error = command("bench.toml", "--quiet", "--resume", "--results", "published")
    assert (code, error) == (0, [])
    assert (folder / "published/leaderboard-bench.csv").exists()
    [table] = ResultTables.read(folder / "published/leaderboard-bench.json").tables
    assert table.columns[0] == "graph"
    assert said[2:] == ["1 of 1 cells have a result: runs/bench/leaderboard.html"]
    assert (folder / "runs/bench/cells/star-seed-4/audit.json").stat().st_mtime_ns == began


@pytest.mark.slow
def test_a_cell_whose_run_cannot_be_read_is_run_anew(folder, ran) -> None:
    (folder / "bench.toml").write_text(AXIS.replace(', "complete"', "") + SENSORS)
    shutil.copytree(ran[0] / "runs", folder / "runs")
    cell = folder / "runs/bench/cells/star-seed-4"
    found = (cell / "audit.json").read_bytes()
    (cell / "report.html").unlink()
    (cell / "audit.json").unlink()
    (cell / "run.json").write_text('{"x')
    code, _, error = command("bench.toml", "--quiet", "--workers", "1", "--resume")
    assert (code, error) == (0, [])
    assert json.loads((cell / "audit.json").read_bytes())["claims"] == json.loads(found)["claims"]


def test_a_dry_run_says_what_it_takes_and_runs_nothing(folder, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.pipeline.costs.PATIENCE", 60.0)  # seconds, on a busy machine
    (folder / "bench.toml").write_text("seeds = [1, 2, 3]\n" + AXIS + SENSORS)
    code, said, error = command("bench.toml", "--dry-run", "--quiet", "--workers", "2")
    assert (code, error) == (0, [])
    assert said[0].split() == ["time", "memory", "certifies", "cell"]
    assert [line.split()[-3:] for line in said[1:3]] == [
        ["star", "(3", "seeds)"],
        ["complete", "(3", "seeds)"],
    ]
    assert all(" MB " in line and " unknown " in line for line in said[1:3])  # no attack foretells
    assert said[3].startswith("6 cells: about ")
    assert said[3].endswith(" on 2 cores")
    assert not Path("runs").exists()


def test_a_dry_run_lists_every_cell_that_cannot_be_run(folder) -> None:
    graphs = AXIS.replace('"complete"', '"bipartite", "exponential", "half-exponential"')
    (folder / "bench.toml").write_text(graphs + SENSORS)
    code, said, error = command("bench.toml", "--dry-run", "--quiet")
    assert (code, said) == (2, [])
    assert error
    assert all(line.startswith('error: cell "') for line in error)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["absent.toml"], "error: absent.toml: No such file or directory"),
        (["bench.toml", "--scale", "full"], "error: --scale: bench.toml is a file and no suite"),
        (["bench.toml", "--address", "auto"], "error: --address belongs to --backend ray"),
        (
            ["bench.toml", "--backend", "ray", "--max-memory", "1GB"],
            "error: --max-memory belongs to --backend local",
        ),
        (["bench.toml", "--max-cells", "1"], "error: bench.toml: 2 cells are more than the 1 of"),
        (["bench.toml", "--resume"], "error: runs/bench: nothing to resume"),
        (
            ["bench.toml", "--backend", "ray", "--address", "127.0.0.1:1"],
            "error: --address 127.0.0.1:1: no Ray cluster answers there: Connection refused",
        ),
        (
            ["bench.toml", "--backend", "ray", "--address", "nowhere"],
            'error: --address nowhere: no Ray cluster answers there: expected "auto", HOST:PORT',
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], said: str) -> None:
    if "ray" in arguments:
        pytest.importorskip("ray", reason="the extra ray is not installed")
    assert refused(*arguments).startswith(said)


@pytest.mark.parametrize("answers", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_server_that_is_no_cluster_is_one_line(answers: bool, monkeypatch) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setattr(on_ray, "JOIN_SECONDS", 1)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        if answers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        line = refused("bench.toml", "--backend", "ray", "--address", address)
        if answers:
            server.shutdown()
    assert line == (
        f"error: --address {address}: no Ray cluster answers there: nothing that Ray understands "
        "in 1 s"
    )


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    line = refused("bench.toml", "--backend", "ray")
    assert line == (
        "error: --backend ray: Ray is not installed; it comes with pip install 'dpaudit[ray]'"
    )


def test_a_suite_is_found_by_its_name(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "suites").mkdir()
    monkeypatch.setattr(suites, "FOLDER", folder / "suites")
    for scale in ("quick", "full"):
        (folder / "suites" / f"ours-{scale}.toml").write_text(f'name = "{scale}"\n{SENSORS}')
    assert suites.benchmark_path("ours", None).stem == "ours-quick"
    assert suites.benchmark_path("ours", "full").stem == "ours-full"
    assert refused("our") == (
        'error: no file and no suite is called "our" (did you mean "ours"?); suites: ours'
    )


def test_all_invalid_cells_are_told_before_anything_runs(folder) -> None:
    many = ", ".join(f"{-i}" for i in range(12))
    written(folder, f'{GRAPHS}[[axis]]\nkey = "data.n_agents"\nvalues = [4, {many}]\n')
    code, said, error = command("bench.toml")
    assert (code, said) == (2, [])
    assert len(error) == 24
    assert len(set(error)) == 24
    assert not Path("runs").exists()
