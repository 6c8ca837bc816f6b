"""How often hints of `dpaudit lint` are right: each hint in published packages, judged by reading.

    pip download --no-deps --ignore-requires-python -d wheels p2pfl==0.4.4 flwr==1.42.0 ...
    for w in wheels/*.whl; do unzip -q $w -d packages/$(basename $w | cut -d- -f1,2); done
    python benchmarks/lint.py packages --results docs/results

Each folder in FOLDER is a package, named NAME-VERSION. `lint.toml` beside this file has what was
found when the code at each hint was read; a hint that is not in it is "not read".
"""

import argparse
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

from dpaudit.files.hint import Hint
from dpaudit.files.published import ResultTable, ResultTables
from dpaudit.lint.lint import lint
from dpaudit.reports.published import write_tables

JUDGED = Path(__file__).with_name("lint.toml")


class Package(NamedTuple):
    """What lint finds in one package."""

    name: str
    folder: Path
    hints: tuple[Hint, ...]
    n_files: int
    n_lines: int
    seconds: float  # of the CPU

    def place(self, hint: Hint) -> str:
        """The file of a hint in the package."""
        return Path(hint.path).relative_to(self.folder).as_posix()


def measured(folder: Path) -> Package:
    """Lints one package."""
    start = time.process_time()
    found = lint([folder])
    seconds = time.process_time() - start
    lines = sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))
    return Package(folder.name, folder, found.hints, found.n_files, lines, seconds)


def judgements() -> dict[tuple[str, str, int, str], tuple[str, str]]:
    """By package, file, line and code: whether a hint is right, and why."""
    found = tomllib.loads(JUDGED.read_text("utf-8"))["hint"]
    return {
        (one["package"], one["file"], one["line"], one["code"]): (one["judged"], one["why"])
        for one in found
    }


def tables(packages: list[Package]) -> ResultTables:
    """The packages, and each hint."""
    known, rows, counts = judgements(), [], []
    for package in packages:
        judged = []
        for hint in package.hints:
            key = (package.name, package.place(hint), hint.line, hint.code)
            said, why = known.get(key, ("not read", ""))
            judged.append(said)
            place = f"{package.place(hint)}:{hint.line}"
            rows.append((package.name, place, hint.code, hint.message, said, why))
        numbers = (len(judged), judged.count("right"), judged.count("wrong"))
        counts.append((package.name, package.n_files, package.n_lines, *numbers))
    per_package = ResultTable(
        title="Packages",
        about="Python files and their lines, hints, and how many were right when they were read.",
        columns=("package", "files", "lines", "hints", "right", "wrong"),
        rows=tuple(counts),
    )
    each = ResultTable(
        title="Hints",
        about="Each hint, and what the code around it does.",
        columns=("package", "place", "code", "hint", "judged", "why"),
        rows=tuple(rows),
    )
    return ResultTables(
        title="Hints of dpaudit lint in published packages",
        about="A hint is right if the code does what the hint says. That is not a verdict on a "
        "package: how the code is used decides what leaks, and an audit has to confirm it.",
        command="python benchmarks/lint.py packages --results docs/results",
        tables=(per_package, each),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds a folder for each unpacked package")
    parser.add_argument("--results", type=Path, help="write JSON and CSV to this folder")
    given = parser.parse_args(arguments)
    packages = [measured(folder) for folder in sorted(given.folder.iterdir()) if folder.is_dir()]
    found = tables(packages)
    for one in packages:
        print(f"{one.name}: {one.n_files} files, {one.n_lines:,} lines, {one.seconds:.2f} s")
    for row in found.tables[1].rows:
        print(*row, sep="  ")
    if given.results is not None:
        write_tables(given.results, "lint", found)


if __name__ == "__main__":
    main()
