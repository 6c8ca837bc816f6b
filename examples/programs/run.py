"""Audit public programs: fetch each, add the lines of ours that it needs, record it, judge it.

    python examples/programs/run.py FOLDER [NAME ...] [--source NAME=PATH] [--python NAME=PATH]

Each program is a folder beside this file. Its ``program.toml`` says where the program is from, what
its environment holds, and which lines are added. The other files are laid beside the program's own:
a script that starts it, and an audit for each case. Nothing of the program is kept here: a line is
named by its number in the commit. ``--results docs/results`` puts what came out into programs.json.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from dpaudit.capture.recording import CaptureFolder
from dpaudit.files.finding import Name
from dpaudit.files.published import ResultTable, ResultTables, TableEntry
from dpaudit.files.result import AuditResult
from dpaudit.reports.published import write_tables
from dpaudit.strict import Strict

HERE = Path(__file__).parent
DPAUDIT = [sys.executable, "-c", "from dpaudit.commands.cli import app; app()"]
RESULTS = "programs"
PROGRAMS = ResultTable(
    title="Programs",
    about="Lines in its files are added to the program's own; lines beside them start it and make "
    "its data. Minutes are those of `dpaudit capture`, on two cores.",
    columns=(
        *("program", "commit", "Python", "lines in its files", "lines beside them"),
        *("messages", "minutes to the first page", "not seen"),
    ),
    rows=(),
)
CASES = ResultTable(
    title="Cases",
    about="Minutes are those of `dpaudit audit`. Mu is of one record in one round. The expected mu "
    "is a closed form; without noise it is infinite.",
    columns=("case", "minutes to the verdict", "verdict", "expected verdict", "mu", "expected mu"),
    rows=(),
)
NOTHING = ResultTables(
    title="Public programs",
    command="python examples/programs/run.py FOLDER --results docs/results",
    tables=(PROGRAMS, CASES),
)


class Line(Strict):
    """Text of ours in a file of the program, one line or several."""

    file: str
    at: Annotated[int, Field(ge=1)]  # number of a line of the commit, after which it comes
    text: str
    replaces: bool = False  # it comes in the place of that line


class Case(Strict):
    """An audit of the program, and what it must find."""

    name: str
    audit: str  # a file beside program.toml
    line: tuple[Line, ...] = ()  # beside those of all cases
    verdict: Literal["refuted", "unsupported", "underpowered", "not refuted", "supported"]
    mu: float | Literal["inf"] | None = None  # of one record in one round; None: no closed form
    relative: float = 0.01  # by which the measured one may differ


class PublicProgram(Strict):
    """Where a program is from, and what is added to it."""

    source: str = ""  # the address of its repository; empty: it is one of its requirements
    commit: str  # or the version
    python: str  # the version that it was tried with, as in "python3.11"
    requirements: tuple[str, ...]
    prepare: tuple[str, ...] = ()  # a command of its environment that makes its data
    environment: dict[str, str] = {}  # variables
    unseen: str  # what an audit does not see of it
    line: tuple[Line, ...] = ()
    case: tuple[Case, ...]


class Work(NamedTuple):
    """One program in the folder that the user names."""

    name: str
    program: PublicProgram
    folder: Path

    @property
    def clone(self) -> Path:
        return self.folder / self.name / "program"

    def fetch(self, source: str, python: str | None) -> None:
        """Its commit, its environment and its data; what is there is kept."""
        if not source:
            self.clone.mkdir(parents=True, exist_ok=True)
        elif not self.clone.exists():
            call("git", "clone", "--quiet", "--no-checkout", source, str(self.clone))
        environment = self.clone.parent / "env"
        if not environment.exists():
            environment.symlink_to(Path(python).parents[1] if python else self._environment())
        self.lay(())
        if self.program.prepare:
            call(*self.program.prepare, folder=self.clone, env=self._variables())

    def _environment(self) -> Path:
        """One for all programs of the same requirements."""
        asked = "\n".join([self.program.python, *sorted(self.program.requirements)])
        made = self.folder / "environments" / hashlib.sha256(asked.encode()).hexdigest()[:8]
        if not made.exists():
            call(self.program.python, "-m", "venv", str(made))
            call(str(made / "bin" / "pip"), "install", "--quiet", *self.program.requirements)
        return made

    def _variables(self) -> dict[str, str]:
        environment = self.clone.parent / "env" / "bin"
        path = os.pathsep.join([str(environment), os.environ["PATH"]])
        return {**os.environ, "PATH": path, **self.program.environment}

    def lay(self, lines: Sequence[Line]) -> None:
        """The program as it was committed, with our lines, and our files beside its own."""
        if self.program.source:
            commit = self.program.commit
            call("git", "-C", str(self.clone), "checkout", "--quiet", "--force", commit)
        ours = (*self.program.line, *lines)
        for file in {line.file for line in ours}:
            text = (self.clone / file).read_text("utf-8")
            changed = with_lines(text, [line for line in ours if line.file == file])
            (self.clone / file).write_text(changed, "utf-8")
        for path in beside(self.name):
            shutil.copy(path, self.clone)
        for case in self.program.case:
            shutil.copy(HERE / self.name / case.audit, self.clone.parent)

    def recorded(self) -> tuple[TableEntry, ...]:
        """The row of the program: its first case, captured."""
        first = self.program.case[0]
        self.lay(first.line)
        audit = tomllib.loads((HERE / self.name / first.audit).read_text("utf-8"))
        out, options = self.clone.parent / "capture", ["--python", "../env/bin/python"]
        if audit["program"].get("cpu"):
            options.append("--cpu")
        if starts := audit.get("messages", {}).get("round_starts_at"):
            options += ["--round-starts-at", starts]
        shutil.rmtree(out, ignore_errors=True)
        asked = ["capture", "--out", str(out), *options, "--", *audit["program"]["command"]]
        code, minutes = timed([*DPAUDIT, *asked], self.clone, self._variables())
        if code:
            sys.exit(f"{self.name}: dpaudit capture ended with {code}")
        lines = [*self.program.line, *first.line]
        return (
            self.name,
            self.program.commit[:10] if self.program.source else self.program.commit,
            self.program.python.removeprefix("python"),
            float(sum(n_lines(line.text) for line in lines)),
            float(sum(n_lines(path.read_text("utf-8")) for path in beside(self.name))),
            float(len(CaptureFolder(out).events)),
            minutes,
            self.program.unseen,
        )

    def audited(self, case: Case) -> tuple[TableEntry, ...]:
        """The row of a case."""
        self.lay(case.line)
        out = self.clone.parent / "runs" / Path(case.audit).stem
        shutil.rmtree(out, ignore_errors=True)
        command = [*DPAUDIT, "audit", "--quiet", "--out", str(out), case.audit]
        code, minutes = timed(command, self.clone.parent, self._variables())
        name = f"{self.name}: {case.name}"
        if code not in (0, 1):
            return name, minutes, f"exit code {code}", case.verdict, None, case.mu
        result = AuditResult.read(out / "audit.json")
        mus = [
            finding.metrics[Name.LARGEST_MU_OF_A_ROUND].value
            for finding in result.findings
            if Name.LARGEST_MU_OF_A_ROUND in finding.metrics
        ]
        mu: TableEntry = max(mus, default=0.0)
        mu = "inf" if mu == inf else mu
        return name, minutes, result.verdict, case.verdict, mu, case.mu


def with_lines(text: str, lines: Sequence[Line]) -> str:
    """The text of a file with our lines, which are numbered as before."""
    listed = text.splitlines(keepends=True)
    for line in sorted(lines, key=lambda line: -line.at):
        listed[line.at - line.replaces : line.at] = [line.text.rstrip("\n") + "\n"]
    return "".join(listed)


def beside(name: str) -> list[Path]:
    """Our files that lie beside the program's own: scripts that start it and make its data."""
    return sorted(path for path in (HERE / name).iterdir() if path.suffix != ".toml")


def n_lines(text: str) -> int:
    """Without comments and blank lines."""
    stripped = map(str.strip, text.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in stripped)


def call(*command: str, folder: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, cwd=folder, env=env, check=True)


def timed(command: Sequence[str], folder: Path, env: dict[str, str]) -> tuple[int, float]:
    """The exit code, and minutes to two digits."""
    start = time.monotonic()
    code = subprocess.run(command, cwd=folder, env=env).returncode
    return code, float(f"{(time.monotonic() - start) / 60:.2g}")


def as_expected(case: Case, row: Sequence[TableEntry]) -> bool:
    """Whether the verdict is the expected one, and mu within the tolerance."""
    _, _, verdict, _, mu, _ = row
    if verdict != case.verdict:
        return False
    if isinstance(mu, float) and isinstance(case.mu, float):
        return abs(mu - case.mu) <= case.relative * case.mu
    return case.mu is None or mu == case.mu


def put(folder: Path, title: str, row: Sequence[TableEntry]) -> None:
    """A row of one of the two tables, in place of an older one of the same name."""
    path = folder / f"{RESULTS}.json"
    found = ResultTables.read(path) if path.exists() else NOTHING
    tables = []
    for table in found.tables:
        rows = {one[0]: one for one in table.rows}
        if table.title == title:
            rows[row[0]] = tuple(row)
        tables.append(table.model_copy(update={"rows": tuple(rows.values())}))
    write_tables(folder, RESULTS, found.model_copy(update={"tables": tuple(tables)}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1: a verdict or a figure is not what was expected."""
    known = sorted(path.parent.name for path in HERE.glob("*/program.toml"))
    parser = argparse.ArgumentParser(description="Audit public programs.")
    parser.add_argument("folder", type=Path, help="in which programs and environments are made")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--results", type=Path, help="a folder like docs/results")
    asked = parser.parse_args(arguments)
    sources = dict(one.split("=", 1) for one in asked.source)
    pythons = dict(one.split("=", 1) for one in asked.python)
    failed = False
    for name in asked.names or known:
        text = (HERE / name / "program.toml").read_text("utf-8")
        work = Work(name, PublicProgram.model_validate(tomllib.loads(text)), asked.folder.resolve())
        work.fetch(sources.get(name, work.program.source), pythons.get(name))
        rows = [(PROGRAMS.title, work.recorded())]
        for case in work.program.case:
            row = work.audited(case)
            failed |= not as_expected(case, row)
            rows.append((CASES.title, row))
        for title, row in rows:
            print(json.dumps(row))
            if asked.results is not None:
                put(asked.results, title, row)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
