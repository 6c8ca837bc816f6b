"""Benchmarks whose cells are done, fail, are killed or changed; the cells are stubs.

test_command.py runs real ones.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpaudit.benchmark import local
from dpaudit.benchmark import run as run_module
from dpaudit.benchmark.grid import BenchmarkPlan, plan_of
from dpaudit.benchmark.local import LocalProcesses
from dpaudit.benchmark.run import CellPlace, run_benchmark
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.benchmark_file import BenchmarkFile
from dpaudit.files.benchmark_result import BenchmarkResult
from tests.benchmark.small_benchmarks import written

STUB = (sys.executable, str(Path(__file__).parents[1] / "material" / "stub_cell.py"))
AXIS = '[[axis]]\nkey = "graph.name"\nvalues = ["ring", "star", "path"]\n'
RUN = f"""
from pathlib import Path
from types import SimpleNamespace
from dpaudit.benchmark import local, run
from dpaudit.benchmark.grid import plan_of
from dpaudit.benchmark.local import LocalProcesses
from dpaudit.benchmark.run import CellPlace, run_benchmark
from dpaudit.files.benchmark_file import BenchmarkFile

local.COMMAND = {STUB!r}
run.load_plugin = lambda *_: lambda *_: SimpleNamespace(write=lambda: None)
plan = plan_of(BenchmarkFile.read(Path("bench.toml")), 9)
run_benchmark(plan, CellPlace(Path("out"), source="same"), LocalProcesses(workers=2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "COMMAND", STUB)
    drawn = SimpleNamespace(write=lambda: None)  # takes longer than all else
    monkeypatch.setattr(run_module, "load_plugin", lambda *_: lambda *_: drawn)
    written(tmp_path, AXIS)
    return tmp_path


def acts(**of_graphs: str) -> None:
    Path("acts.json").write_text(json.dumps(of_graphs))


def plan() -> BenchmarkPlan:
    return plan_of(BenchmarkFile.read(Path("bench.toml")), 9)


def run(resume: bool = False, **place: object) -> dict[str, tuple[str, str]]:
    """State and error of each cell, by its graph if that tells them apart."""
    where = CellPlace(Path("out"), **{"source": "same", **place})  # type: ignore[arg-type]
    result = run_benchmark(plan(), where, LocalProcesses(workers=2), resume)
    assert BenchmarkResult.model_validate_json(Path("out/benchmark.json").read_text()) == result
    return {
        cell.values.get("graph.name", cell.name): (cell.state, cell.error) for cell in result.cells
    }


def log() -> list[str]:
    """What ran since this was last asked."""
    path = Path("runs.log")
    lines = sorted(path.read_text().splitlines()) if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_a_cell_on_another_device_is_another_cell(folder) -> None:
    [cell, *_] = plan().cells
    keys = {CellPlace(Path("out"), device, source="same").key(cell) for device in ("cpu", "cuda")}
    assert len(keys) == 2


def test_finished_cells_run_again_only_if_something_changed(folder) -> None:
    assert set(run().values()) == {("done", "")}
    assert len(log()) == 3
    written(folder, AXIS.replace('"star"', '"complete"'))
    assert set(run()) == {"ring", "complete", "path"}
    assert log() == ["complete-seed-0 begun"]
    written(folder, AXIS)
    run()
    assert log() == []  # what is in no benchmark any more is kept, and known again
    run(source="another")
    assert [line.split()[1] for line in log()] == ["begun"] * 3
    Path("out/cells/ring-seed-0/audit.json").write_text("{")
    assert set(run(source="another").values()) == {("done", "")}
    assert log() == ["ring-seed-0 resumed"]


def test_cells_are_known_by_content_whatever_their_name(folder) -> None:
    def files() -> dict[str, int]:
        return {p.name: (p / "audit.json").stat().st_ino for p in Path("out/cells").iterdir()}

    run()
    before, _ = files(), log()
    agents = '[[axis]]\nkey = "data.n_agents"\nvalues = [4, 5]\n'
    written(folder, AXIS, agents)
    run()
    assert log() == [f"{graph}-n_agents-5-seed-0 begun" for graph in ("path", "ring", "star")]
    after = files()
    assert {name: after[name.replace("-seed", "-n_agents-4-seed")] for name in before} == before

    def texts(*values: str) -> None:
        cells = (f'[[cell]]\n"claim.0.text" = "{x}"\n"graph.name" = "star"\n' for x in values)
        written(folder, *cells)
        run()

    texts("\u00e9", "\u00fc")
    assert log() == ["text-2-seed-0 begun", "text-seed-0 begun"]
    before = files()
    texts("\u00fc", "\u00e9")  # the names are exchanged
    assert log() == []
    after = files()
    assert after["text-seed-0"] == before["text-2-seed-0"] != before["text-seed-0"]


def test_a_cell_of_which_is_not_known_what_it_is_of_is_run_anew(folder) -> None:
    run()
    log()
    Path("out/cells/ring-seed-0/content").write_bytes(b"\xff")
    assert run()["ring"] == ("done", "")
    assert log() == ["ring-seed-0 begun"]


def test_a_cell_that_fails_is_a_gap_and_others_go_on(folder) -> None:
    acts(ring="fail", star="die", path="leave")
    found = run()
    assert found["ring"] == ("failed", "no luck; none at all")
    assert found["star"][0] == "failed"
    assert found["star"][1].startswith("killed, perhaps for lack of memory")
    assert found["path"][0] == "failed"
    assert found["path"][1].endswith("audit.json: No such file or directory")
    log()
    acts(ring="fail")
    assert [state for state, _ in run().values()] == ["failed", "done", "done"]
    assert log() == ["path-seed-0 resumed", "ring-seed-0 resumed", "star-seed-0 resumed"]


@pytest.mark.slow
def test_a_killed_benchmark_runs_no_finished_cell_again(folder) -> None:
    acts(path="hang")
    process = subprocess.Popen([sys.executable, "-c", RUN], cwd=folder, stderr=subprocess.PIPE)

    def is_hanging() -> bool:
        text = Path("out/benchmark.json").read_text() if Path("out/benchmark.json").exists() else ""
        return text.count('"state": "done"') == 2 and "path-seed-0" in Path("runs.log").read_text()

    deadline = time.monotonic() + 60
    while not is_hanging():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    log()
    acts()
    assert set(run(resume=True).values()) == {("done", "")}
    assert log() == ["path-seed-0 resumed"]


def test_a_folder_of_something_else_is_left_alone(folder) -> None:
    Path("out").mkdir()
    with pytest.raises(RunError, match="out: nothing to resume: no benchmark.json in it"):
        run(resume=True)
    Path("out/mine.txt").touch()
    with pytest.raises(RunError, match="out: not empty, and not a benchmark of dpaudit"):
        run()
    assert [path.name for path in Path("out").iterdir()] == ["mine.txt"]


def test_a_benchmark_has_one_runner(folder) -> None:
    from dpaudit.training.locked_folder import Folder

    with Folder(Path("out")).held(), pytest.raises(RunError, match="in use by another dpaudit"):
        run()


def test_a_device_that_is_not_there_is_one_line() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has the device whose absence is tested")
    with pytest.raises(ConfigError, match="--device cuda: this torch sees no CUDA device"):
        LocalProcesses("cuda")({}, lambda running: None)


def test_each_cell_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def visible(**options: object) -> list[str]:
        places = LocalProcesses("cuda", **options)._environments()  # type: ignore[arg-type]
        return [place["CUDA_VISIBLE_DEVICES"] for place in places]

    assert visible() == ["0", "1", "2"]
    assert visible(workers=2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert visible() == ["4", "7"]
