"""How long the leaderboard of 200 cells takes, and how large its files are.

One audit of seconds is run, and its result stands for every cell with another graph, budget,
accuracy and accounting: as many findings, series and figures as real cells have.

    python benchmarks/leaderboard.py [N]
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path

import dpaudit
from dpaudit.files.benchmark_result import BenchmarkResult, Cell
from dpaudit.reports.leaderboard import Leaderboard

AXES = ("defense.name", "graph.name", "claim.0.epsilon")
GRAPHS, BUDGETS = ("ring", "bipartite", "exponential"), (0.5, 2.0, 8.0)
AUDIT = {
    "data": {"name": "digits", "n_agents": 8},
    "graph": {"name": "ring"},
    "model": {"name": "logistic"},
    "defense": {"name": "dp-dpsgd", "n_rounds": 10, "batch_size": 16, "noise_multiplier": 1.0},
    "claim": [{"text": "ours", "epsilon": 8.0, "delta": 1e-5}],
    "threat_model": [
        {"name": "eavesdropper"},
        {"name": "agent 3", "kind": "curious", "agents": [3]},
    ],
    "attack": [
        {"name": "likelihood-ratio", "trials": 100},
        {"name": "gradient-inversion", "message": "view", "rounds": [5], "iterations": 5},
        {"name": "membership", "rounds": [5]},
    ],
}


def main(n: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        result = dpaudit.audit(AUDIT, out=folder / "one")
        benchmark = varied(json.loads(result.to_json()), n, folder)
        began, wall = time.process_time(), time.perf_counter()
        board = Leaderboard(benchmark, folder)
        read = time.process_time() - began
        paths = board.write()
        cpu, wall = time.process_time() - began, time.perf_counter() - wall
        sizes = ", ".join(f"{path.suffix} {path.stat().st_size / 1e6:.2f}" for path in paths)
    print(f"{n} cells, {len(board.standings)} rows: {cpu:.1f} CPU s, of which {read:.1f} reading")
    print(f"{wall:.1f} s of wall time; MB: {sizes}")


def varied(content: dict, n: int, folder: Path) -> BenchmarkResult:
    """The cells of a benchmark, written into its folder; two seeds of each combination."""
    rng, cells = random.Random(20240611), []
    for i in range(n):
        combination = i // 2
        graph, budget = GRAPHS[combination % 3], BUDGETS[combination // 3 % 3]
        values = dict(zip(AXES, (f"defense {combination // 9}", graph, budget), strict=True))
        content["graph"]["name"] = graph
        for claim in content["claims"]:
            most = budget * rng.uniform(0.5, 2.0)
            claim["epsilon"] = budget
            claim["restated"]["epsilon"] |= {"value": most, "low": most / 2, "high": most}
        content["utility"]["defense"]["accuracy"][-1] = [rng.uniform(0.3, 0.9)] * 8
        (path := folder / "cells" / f"c{i}").mkdir(parents=True)
        (path / "audit.json").write_text(json.dumps(content))
        cells.append(Cell(name=path.name, values=values, seed=i % 2, state="done"))
    version = dpaudit.__version__
    return BenchmarkResult(name="200", version=version, axes=AXES, cells=tuple(cells))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
