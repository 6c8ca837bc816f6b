"""Cells on a local Ray cluster of several nodes: the numbers of local processes, whatever is lost."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dpaudit.benchmark.grid import BenchmarkPlan, plan_of
from dpaudit.benchmark.local import CellJob, LocalProcesses
from dpaudit.benchmark.on_ray import TaskResult, _done, connected
from dpaudit.benchmark.run import CellPlace, run_benchmark
from dpaudit.errors import ConfigError
from dpaudit.files.benchmark_file import BenchmarkFile
from dpaudit.files.documents import toml_text
from dpaudit.pipeline.run import Runtime, run_audit
from tests.benchmark.small_benchmarks import BASE, SENSORS, same_but_for_time

ATTACKED = f"""
[[axis]]
key = "graph.name"
values = ["ring", "complete"]
{BASE}
[[audit.attack]]
name = "likelihood-ratio"
trials = 100
[[audit.attack]]
name = "who-learns-what"
"""


def planned(folder: Path, text: str) -> BenchmarkPlan:
    (folder / "bench.toml").write_text(text)
    return plan_of(BenchmarkFile.read(folder / "bench.toml"), 99)


def test_parts_in_own_folders_are_the_audit_of_one_process(tmp_path: Path) -> None:
    """By the tasks themselves, without a cluster."""
    plan = planned(tmp_path, SENSORS)
    [cell] = plan.cells
    run_audit(cell.config, tmp_path / "local" / "cells" / cell.name, Runtime(cores=1))
    job = CellJob(
        config=cell.config.model_dump(mode="json"),
        text=toml_text(cell.content),
        folder=tmp_path / "nowhere",
        device="cpu",
        data_root=None,
    )
    order, here = job.model_dump_json(), str(Path.cwd())
    given = [_done(order, here, "begin", "")]
    assert given[0].parts[0] == ("defense", "no-defense")
    for names in given[0].parts:
        given += [_done(order, here, "part", name, *given) for name in names]
    last = _done(order, here, "finish", "", *given)
    assert [left.problems for left in (*given, last)] == [()] * (len(given) + 1)
    assert not (tmp_path / "nowhere").exists()
    target = tmp_path / "apart" / "cells" / cell.name
    target.mkdir(parents=True)
    (target / "audit.json").write_bytes(last.files["audit.json"])
    assert same_but_for_time(tmp_path / "local", tmp_path / "apart")


def test_a_part_that_fails_says_why(tmp_path: Path) -> None:
    job = CellJob(config={}, text="", folder=tmp_path, device="cpu", data_root=None)
    left = _done(job.model_dump_json(), str(tmp_path / "absent"), "begin", "", TaskResult({}))
    assert left.files == {}
    assert "data: Field required" in [problem.text for problem in left.problems]


@pytest.fixture(autouse=True)
def as_important_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray lets its tasks wait for whatever else a machine does, which may be other tests."""
    monkeypatch.setenv("RAY_worker_niceness", "0")


@pytest.mark.slow
def test_a_machine_is_lost_and_another_joins(tmp_path: Path) -> None:
    """Three nodes: one is killed while it works, and one is added in its place."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster as Nodes

    plan = planned(tmp_path, ATTACKED)
    run_benchmark(plan, CellPlace(tmp_path / "local"), LocalProcesses(workers=2))
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    ray = Path(sys.executable).with_name("ray")
    join = [ray, "start", f"--address={nodes.address}", "--num-cpus=1", "--block"]
    joined: list[subprocess.Popen[bytes]] = []
    try:
        lost = nodes.add_node(num_cpus=1)
        for _ in range(2):
            nodes.add_node(num_cpus=1)

        def lose() -> None:
            """After the first part of some cell has come back."""
            deadline = time.monotonic() + 120
            while not list(tmp_path.glob("ray/cells/*/findings/*")) and time.monotonic() < deadline:
                time.sleep(0.05)
            nodes.remove_node(lost, allow_graceful=False)
            joined.append(subprocess.Popen(join))  # Ray's own class needs the main thread

        loser = threading.Thread(target=lose)
        loser.start()
        with connected(nodes.address) as cluster:
            assert cluster.abreast == 3
            result = run_benchmark(plan, CellPlace(tmp_path / "ray"), cluster)
        loser.join()
        assert [new.poll() for new in joined] == [None]
    finally:
        for new in joined:
            new.terminate()
        nodes.shutdown()
    assert [(cell.state, cell.error) for cell in result.cells] == [("done", "")] * 2
    assert same_but_for_time(tmp_path / "local", tmp_path / "ray")


@pytest.mark.slow
def test_a_cell_that_was_begun_here_goes_on_there(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    plan = planned(tmp_path, SENSORS)
    [cell] = plan.cells
    run_benchmark(plan, CellPlace(tmp_path / "local"), LocalProcesses(workers=1))
    run_benchmark(plan, CellPlace(tmp_path / "ray"), LocalProcesses(workers=1))
    folder = tmp_path / "ray" / "cells" / cell.name
    trained = (folder / "findings" / "defense.json").stat().st_mtime_ns
    for name in ("report.html", "audit.json", "findings/noise-of-the-run.json"):
        (folder / name).unlink()
    with connected(None, workers=1) as cluster:
        run_benchmark(plan, CellPlace(tmp_path / "ray"), cluster, resume=True)
    assert (folder / "findings" / "defense.json").stat().st_mtime_ns == trained
    assert same_but_for_time(tmp_path / "local", tmp_path / "ray")


@pytest.mark.slow
def test_a_cluster_without_a_gpu_is_one_line() -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has the device whose absence is tested")
    with (
        pytest.raises(ConfigError, match="--device cuda: the Ray cluster has no GPU"),
        connected(None, "cuda", 1),
    ):
        pass
