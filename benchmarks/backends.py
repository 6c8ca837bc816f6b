"""The same benchmark in local processes and on a Ray cluster of this machine.

    python benchmarks/backends.py [--workers 2] [--cells 6] [--trials 4000]

A cell is DP-DPSGD with 4 agents on a ring, 20 rounds of digits and logistic regression, attacked by
likelihood ratios of so many runs; cells differ in their seed. Both run in turn, Ray with the time
that it takes to start, and must find the same, or the benchmark fails. The overhead is told in wall
time, for all of it and once Ray is started, and in CPU time of all processes: on a machine that
others use too, whose load is told, wall time says little.
"""

import argparse
import json
import os
import time
from contextlib import chdir, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpaudit.benchmark.grid import plan_of
from dpaudit.benchmark.local import LocalProcesses
from dpaudit.benchmark.on_ray import connected
from dpaudit.benchmark.run import CellPlace, run_benchmark
from dpaudit.files.benchmark_file import BenchmarkFile
from dpaudit.files.documents import toml_text


def content(cells: int, trials: int) -> dict[str, Any]:
    """Of the benchmark file."""
    return {
        "seeds": list(range(cells)),
        "audit": {
            "data": {"name": "digits", "n_agents": 4},
            "graph": {"name": "ring"},
            "model": {"name": "logistic"},
            "defense": {"name": "dp-dpsgd", "n_rounds": 20, "batch_size": 16, "epsilon": 1.0},
            "claim": [{"text": "stated", "epsilon": 1.0, "delta": 1e-5}],
            "attack": [{"name": "likelihood-ratio", "trials": trials}],
        },
    }


def found(folder: Path) -> dict[str, Any]:
    """Every audit of a benchmark without its times."""
    audits = {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("audit.json")}
    for audit in audits.values():
        del audit["timing"]
    return audits


def cpu_seconds() -> float:
    """CPU time of this process, of all that it started, and of all that those started."""
    stat = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            stat[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while more := {pid for pid, (parent, _) in stat.items() if parent in own} - own:
        own |= more
    return sum(stat[pid][1] for pid in own) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cells", type=int, default=6)
    parser.add_argument("--trials", type=int, default=4000)
    arguments = parser.parse_args()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (as Ray spells it); as local processes
    with TemporaryDirectory() as place, chdir(place):  # no repository, which may change meanwhile
        folder = Path(place)
        (folder / "bench.toml").write_text(toml_text(content(arguments.cells, arguments.trials)))
        plan = plan_of(BenchmarkFile.read(folder / "bench.toml"), arguments.cells)
        began, used = time.perf_counter(), cpu_seconds()
        local = run_benchmark(
            plan, CellPlace(folder / "local"), LocalProcesses(workers=arguments.workers)
        )
        at_home, of_home = time.perf_counter() - began, cpu_seconds() - used
        began, used = time.perf_counter(), cpu_seconds()
        with connected(None, workers=arguments.workers) as cluster:
            connecting = time.perf_counter() - began
            run_benchmark(plan, CellPlace(folder / "ray"), cluster)
            on_ray, of_ray = time.perf_counter() - began, cpu_seconds() - used
        same = found(folder / "local") == found(folder / "ray")
    seconds = sum(local.timing.values()) / len(local.timing)
    started = (on_ray - connecting) / at_home - 1
    print(f"{arguments.cells} cells of {seconds:.1f} s on {arguments.workers} workers")
    print(f"local processes {at_home:.1f} s; Ray {on_ray:.1f} s, {connecting:.1f} s of it to start")
    print(f"overhead of Ray {on_ray / at_home - 1:+.0%}; once it is started {started:+.0%}")
    more = of_ray / of_home - 1
    print(f"CPU time of local processes {of_home:.1f} s, of Ray {of_ray:.1f} s: {more:+.0%}")
    print(f"the same numbers: {same}")
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    assert same


if __name__ == "__main__":
    main()
