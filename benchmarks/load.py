"""Time, memory and files of audits, reports, checks and benchmarks as they grow, and how steeply.

    python benchmarks/load.py [--part agents ...] [--markdown docs/load.md]

agents   an audit of DP-DPSGD on a ring: three rounds, 16 records at each agent
rounds   the same with 8 agents
trials   the same with 8 agents, three rounds, and runs of each world
features the same with 8 agents and three rounds: half of the model's parameters
information   so many agents and M-NMI of 1,000 trials in the place of the likelihood ratio
runs     `dpaudit report` of many run directories side by side
checks   `dpaudit check` of many checks with a limit each, all of one audit that is in the cache
cells    `dpaudit benchmark` of that audit with so many seeds

Each measurement is a process of its own on one thread and one worker. Records are drawn: ten
features and two classes for a logistic regression, a claim on the whole run, an eavesdropper on all
links, the likelihood ratio with 200 trials over three rounds. Slopes are of least squares, of the
logarithm of the figure over that of the size. What a command costs at the size in the first row,
which is mostly its start, hides growth: the second slope is of what is above it.
"""

import argparse
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import NamedTuple

import numpy as np

from dpaudit.version import __version__

SEED = 20240611
RECORDS = 16  # of each agent
LIMIT = 180  # seconds of one measurement
SHOWS = 0.05  # of the first row's figure: growth that is less is not told from noise


class Figures(NamedTuple):
    """What one command took."""

    cpu: float  # seconds, of its processes together
    wall: float  # seconds
    memory: float  # MB, the peak resident size of its largest process
    files: float  # MB that it wrote


AUDIT = """
seed = 1
data = {{ path = "records.npz", n_agents = {agents} }}
graph = {{ name = "ring" }}
model = {{ name = "logistic" }}
defense = {{ name = "dp-dpsgd", n_rounds = {rounds}, batch_size = 4, noise_multiplier = 1.0 }}

[[claim]]
text = "load"
epsilon = 1000.0
delta = 1e-5
scope = "run"
adjacency = "add-remove"

[[threat_model]]
name = "eavesdropper"
kind = "external"

"""
LIKELIHOOD_RATIO = """
[[attack]]
name = "likelihood-ratio"
trials = {trials}
n_rounds = 3
"""
OF_200 = LIKELIHOOD_RATIO.format(trials=200)
INFORMATION = """
[[attack]]
name = "mutual-information"
message = "x"
private = "gradient"
trials = 1000
"""
BENCHMARK = """
audit = "audit.toml"
seeds = {seeds}
"""
CHECK = """
[[check]]
name = "{name}"
audit = "audit.toml"
threshold = [{{ metric = "epsilon lower bound", at_most = 1000.0 }}]
"""
PAGE = """# Load: how audits, reports, checks and benchmarks grow

`python benchmarks/load.py --markdown docs/load.md`, {today}, dpaudit {version}, {system}.

Each row is one command in its own process, with one thread and one worker. "CPU s" are the CPU
seconds of all its processes together, and "s" the seconds on the clock (of a machine that others
use too). "peak MB" is the peak resident memory of its largest process, and "files MB" the size of
its output. "slope" is the slope of the logarithm of the figure over the logarithm of the size, by
least squares over all rows except the first. "above" is the slope of the excess over the first
row, which is mostly the start of Python and its libraries. A slope of 1 is linear growth. "flat"
means growth by less than 5% of the first row.

- **agents**: `dpaudit audit` of DP-DPSGD on a ring, three rounds, 16 records of ten features at
  each agent, and a logistic regression. It has a claim about the run, an eavesdropper on all
  links, and the likelihood ratio with 200 trials over three rounds.
- **rounds**: the same with 8 agents; the attack plays the first three rounds, and accounting
  covers all.
- **trials**: the same with 8 agents; the row gives the number of runs with and without the
  record.
- **features**: the same with 8 agents; the row gives the features of each record, half of the
  number of the model's parameters.
- **information**: as for agents, with mutual information of 1,000 trials instead of the
  likelihood ratio.
- **runs**: `dpaudit report` of the given number of run directories, of 8 agents and 10 rounds
  each, side by side.
- **checks**: `dpaudit check` of a claims file with the given number of checks, one limit each,
  all of one cached audit, with JUnit XML, SARIF and Markdown.
- **cells**: `dpaudit benchmark` of the audit of 8 agents and 10 rounds with the given number of
  seeds, with its leaderboard.

On a sparse graph, time and memory grow with the number of links
([limits](threat-models.md#many-agents)). Attacks on a whole view are the exception: the time of
their estimates grows with the cube of the number of agents, [up to a
limit](gradient-inversion-views.md#from-a-whole-view).
"""


def audit_of(
    agents: int, rounds: int, folder: Path, attack: str = OF_200, features: int = 10
) -> list[str]:
    """Writes the audit and its records; returns the command that runs it."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((RECORDS * agents, features)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(folder / "records.npz", x=x, y=y, x_test=x[:100], y_test=y[:100])
    (folder / "audit.toml").write_text(AUDIT.format(agents=agents, rounds=rounds) + attack)
    return ["audit", "audit.toml", "--out", "out", "--workers", "1", "--quiet"]


def agents(size: int, folder: Path) -> list[str]:
    return audit_of(size, 3, folder)


def rounds(size: int, folder: Path) -> list[str]:
    return audit_of(8, size, folder)


def trials(size: int, folder: Path) -> list[str]:
    return audit_of(8, 3, folder, LIKELIHOOD_RATIO.format(trials=size))


def features(size: int, folder: Path) -> list[str]:
    return audit_of(8, 3, folder, features=size)


def information(size: int, folder: Path) -> list[str]:
    return audit_of(size, 3, folder, INFORMATION)


def runs(size: int, folder: Path) -> list[str]:
    if not (folder / "run").exists():
        measured(audit_of(8, 10, folder), folder)
        (folder / "out").rename(folder / "run")
    names = [f"run-{i:03}" for i in range(size)]
    for name in names:
        shutil.copytree(folder / "run", folder / name, dirs_exist_ok=True)
    return ["report", *names, "--out", "out/report.html"]


def checks(size: int, folder: Path) -> list[str]:
    audit_of(8, 10, folder)
    text = "".join(CHECK.format(name=f"check {i}") for i in range(size))
    (folder / "claims.toml").write_text(text)
    outputs = ["--junit", "out/a.xml", "--sarif", "out/a.sarif", "--markdown", "out/a.md"]
    command = ["check", "claims.toml", "--workers", "1", "--quiet", *outputs]
    if not (folder / ".dpaudit-cache").exists():
        measured(command, folder)
    return command


def cells(size: int, folder: Path) -> list[str]:
    audit_of(8, 10, folder)
    (folder / "benchmark.toml").write_text(BENCHMARK.format(seeds=list(range(size))))
    return ["benchmark", "benchmark.toml", "--out", "out/cells", "--workers", "1", "--quiet"]


class Part(NamedTuple):
    """A command that grows with one thing; the first size is the one that others are held to."""

    prepare: Callable[[int, Path], list[str]]
    sizes: tuple[int, ...]


PARTS = {
    "agents": Part(agents, (8, 125, 250, 500, 1_000, 2_500, 5_000, 10_000)),
    "rounds": Part(rounds, (10, 1_250, 2_500, 5_000, 10_000)),
    "trials": Part(trials, (1_000, 50_000, 100_000, 200_000, 400_000)),
    "features": Part(features, (10, 25_000, 50_000, 100_000, 200_000)),
    "information": Part(information, (8, 1_000, 2_500, 5_000, 10_000)),
    "runs": Part(runs, (2, 25, 50, 100, 200)),
    "checks": Part(checks, (1, 25, 50, 100, 200)),
    "cells": Part(cells, (1, 4, 8, 16, 32)),
}


def measured(command: Sequence[str], folder: Path) -> Figures:
    """Runs dpaudit with these arguments in the folder; what it writes there in ``out`` counts.

    Raises:
        RuntimeError: it took longer than ``LIMIT``, or could not be run.
    """
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    own = {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    program = [sys.executable, "-P", "-c", "from dpaudit.commands.cli import main; main()"]
    with (folder / "output.txt").open("w") as output:
        began = perf_counter()
        child = subprocess.Popen(
            [*program, *command],
            cwd=folder,
            env={**os.environ, **own},
            stdout=output,
            stderr=output,
        )
        clock = Timer(LIMIT, child.kill)
        clock.start()
        _, status, usage = os.wait4(child.pid, 0)  # of the child and of those it waited for
        clock.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):  # 1: a claim is refuted, which is an answer too
        said = (folder / "output.txt").read_text()[-2_000:]
        raise RuntimeError(f"dpaudit {command[0]}: exit code {child.returncode}\n{said}")
    written = sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file())
    return Figures(
        usage.ru_utime + usage.ru_stime,
        perf_counter() - began,
        usage.ru_maxrss / 1e3,
        written / 1e6,
    )


def measure(part: Part) -> list[Figures]:
    found = []
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        for size in part.sizes:
            found.append(measured(part.prepare(size, Path(folder)), Path(folder)))
            print(size, *(f"{figure:.2f}" for figure in found[-1]), flush=True, file=sys.stderr)
    return found


def slope(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """Of log figure over log size, by least squares; nan for fewer than two."""
    if len(sizes) < 2:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(figures), 1)[0])


def above_the_first(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """The slope of what is above the first figure; nan where too little is."""
    least = SHOWS * figures[0]
    grown = zip(sizes[1:], figures[1:], strict=True)
    more = [(n - sizes[0], y - figures[0]) for n, y in grown if y - figures[0] > least]
    return slope([n for n, _ in more], [y for _, y in more])


def table(name: str, sizes: Sequence[int], found: Sequence[Figures]) -> str:
    rows = [
        f"| {n:,} | {f.cpu:.1f} | {f.wall:.1f} | {f.memory:.0f} | {f.files:.2f} |"
        for n, f in zip(sizes, found, strict=True)
    ]
    columns = list(zip(*found, strict=True))
    for label, of in (("slope", lambda n, y: slope(n[1:], y[1:])), ("above", above_the_first)):
        slopes = [of(sizes, column) for column in columns]
        shown = " | ".join("flat" if math.isnan(s) else f"{s:.2f}" for s in slopes)
        rows.append(f"| {label} | {shown} |")
    head = f"| {name} | CPU s | s | peak MB | files MB |\n|---|---|---|---|---|"
    return "\n".join((head, *rows))


def page(tables: Sequence[str]) -> str:
    system = f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
    return PAGE.format(today=date.today(), version=__version__, system=system) + "\n\n".join(
        ("", *tables, "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--markdown", type=Path, help="write the page here")
    arguments = parser.parse_args()
    tables = []
    for name in arguments.part:
        tables.append(table(name, PARTS[name].sizes, measure(PARTS[name])))
        print(tables[-1], end="\n\n", flush=True)
    if arguments.markdown is not None:
        arguments.markdown.write_text(page(tables))


if __name__ == "__main__":
    main()
