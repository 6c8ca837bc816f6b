"""A benchmark from its plan to its leaderboard: cells that are done are not run again.

A cell's folder is an ordinary run directory, and holds the hash of all that decides its numbers
(``content``), by which it is known again.
"""

import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dpaudit.errors import DpauditError, RunError
from dpaudit.files.atomic_files import writing
from dpaudit.files.benchmark_result import BenchmarkResult, Cell
from dpaudit.files.documents import toml_text
from dpaudit.files.result import AuditResult
from dpaudit.inputs.inputs import Inputs
from dpaudit.pipeline.content import content_key
from dpaudit.pipeline.processes import EndedAudit, Waiting
from dpaudit.registry import load_plugin
from dpaudit.source import hash_of, own_source
from dpaudit.training.locked_folder import LOCK, Folder
from dpaudit.version import __version__

from . import tuning
from .grid import BenchmarkPlan, PlannedCell
from .local import CellJob

RESULT, CONTENT = "benchmark.json", "content"
LEADERBOARD = "leaderboard"  # the report that is drawn at the end

Backend = Callable[[Mapping[str, CellJob], Waiting], Generator[EndedAudit]]
OnCells = Callable[[int, int], None]  # cells that are over, cells in all
Tune = Callable[[BenchmarkPlan], BenchmarkPlan]


@dataclass(frozen=True)
class CellPlace:
    """Where the cells of a benchmark are computed and kept."""

    out: Path
    device: str = "cpu"
    data_root: Path | None = None
    source: str = field(default_factory=lambda: hash_of(own_source()))  # of dpaudit's own files

    def key(self, cell: PlannedCell) -> str:
        """The hash of all that decides a cell's numbers."""
        here = self.out, None, self.device, self.data_root, self.source
        return content_key(cell.content, *here)

    def folder(self, cell: str) -> Path:
        """The run directory of a cell."""
        return self.out / "cells" / cell


def run_benchmark(
    plan: BenchmarkPlan,
    place: CellPlace,
    backend: Backend,
    resume: bool = False,
    waiting: Waiting = lambda running: None,
    on_cells: OnCells = lambda done, total: None,
    tune: Tune = lambda plan: plan,
) -> BenchmarkResult:
    """Run the cells that are not done, and draw the leaderboard.

    ``tune`` sets what is chosen before any is run; it may write into the folder. A cell that fails
    is kept as failed, with a line that says why, and the others go on.

    Raises:
        DpauditError: the folder cannot be written, is in use, is no benchmark's, or ``resume`` is
            asked for and there is nothing to resume.
    """
    with _held(place.out, resume) as folder:
        plan = tune(plan)
        keys = {cell.name: place.key(cell) for cell in plan.cells}
        _name_as_now(keys, place)
        cells = {cell.name: _as_found(cell, place, keys[cell.name]) for cell in plan.cells}
        timing = _earlier_timing(place.out)
        waits = [cell for cell in plan.cells if cells[cell.name].state == "waiting"]
        jobs = {cell.name: _begun(cell, place, keys[cell.name]) for cell in waits}
        result = _kept(plan, cells, timing, folder)
        with closing(backend(jobs, waiting)) as over:
            for ended in over:
                timing[ended.name] = ended.seconds
                cells[ended.name] = _ended(cells[ended.name], ended, place)
                result = _kept(plan, cells, timing, folder)
                on_cells(sum(cell.state != "waiting" for cell in result.cells), len(cells))
        load_plugin("reports", LEADERBOARD)(result, place.out).write()
        return result


def _kept(
    plan: BenchmarkPlan, cells: Mapping[str, Cell], timing: Mapping[str, float], folder: Folder
) -> BenchmarkResult:
    """How far a benchmark is, as its folder says it now."""
    result = BenchmarkResult(
        name=plan.name,
        version=__version__,
        axes=plan.axes,
        cells=tuple(cells.values()),
        timing={name: timing[name] for name in cells if name in timing},
    )
    folder.write(RESULT, (result.model_dump_json(indent=2) + "\n").encode())
    return result


@contextmanager
def _held(out: Path, resume: bool) -> Iterator[Folder]:
    """The benchmark's folder, for this process alone. Raises RunError."""
    with writing(out):
        begun = (out / RESULT).exists() or (
            (out / LOCK).exists() and not (out / "run.json").exists()
        )
        if not begun and out.exists() and any(out.iterdir()):
            raise RunError("DPA015", f"{out}: not empty, and not a benchmark of dpaudit")
    if resume and not ((out / RESULT).exists() or tuning.has_begun(out)):
        raise RunError("DPA017", f"{out}: nothing to resume: no {RESULT} in it")
    with Folder(out).held() as folder:
        yield folder


def _name_as_now(keys: Mapping[str, str], place: CellPlace) -> None:
    """Give what was run under another name the one that its cell has now, as with one more axis.

    Args:
        keys: of what each cell is, by its name.
    """
    with writing(place.folder("")):
        others: dict[str, list[Path]] = {}  # folders that are of no cell by their name
        for path in sorted(place.folder("").glob("*")):
            if (key := _key_of(path)) != keys.get(path.name):
                others.setdefault(key, []).append(path)
        found = {}
        for name, key in keys.items():
            if key in others and _key_of(place.folder(name)) != key and others[key]:
                aside = place.folder(f".{key}.{name}")  # as names may be exchanged
                found[name] = others[key].pop(0).rename(aside)
        for name, path in found.items():
            shutil.rmtree(place.folder(name), ignore_errors=True)
            path.rename(place.folder(name))


def _as_found(cell: PlannedCell, place: CellPlace, key: str) -> Cell:
    """A cell, done if its folder holds the audit of this very content, and else waiting."""
    folder = place.folder(cell.name)
    try:
        done = _key_of(folder) == key and (folder / "report.html").exists()  # which is written last
        done = done and Inputs.of_log(folder).doubt() is None
        if done:
            AuditResult.read(folder / "audit.json")
    except (OSError, ValueError, DpauditError):
        done = False
    state = "done" if done else "waiting"
    return Cell(name=cell.name, values=cell.values, seed=cell.config.seed, state=state)


def _key_of(folder: Path) -> str:
    """Key of the content that a cell's folder holds; "" if there is none."""
    there = folder / CONTENT
    return there.read_text("utf-8", "replace").strip() if there.is_file() else ""


def _begun(cell: PlannedCell, place: CellPlace, key: str) -> CellJob:
    """What is to be run; of another content nothing is left, of this one what was done."""
    path = place.folder(cell.name)
    with writing(path):
        if _key_of(path) != key:
            shutil.rmtree(path, ignore_errors=True)
            with Folder(path).held() as folder:
                folder.write(CONTENT, f"{key}\n".encode())
    return CellJob(
        config=cell.config.model_dump(mode="json"),
        text=toml_text(cell.content),
        folder=path.resolve(),
        device=place.device,
        data_root=None if place.data_root is None else place.data_root.resolve(),
    )


def _ended(cell: Cell, ended: EndedAudit, place: CellPlace) -> Cell:
    problems = ended.problems
    if not problems:
        try:
            AuditResult.read(place.folder(cell.name) / "audit.json")
        except DpauditError as error:
            problems = error.problems
    said = "; ".join(problem.text for problem in problems)
    code = problems[0].code if problems else None
    state = "failed" if problems else "done"
    return cell.model_copy(update={"state": state, "error": said, "code": code})


def _earlier_timing(out: Path) -> dict[str, float]:
    """Seconds of cells that an earlier run took; none where nothing can be read."""
    try:
        text = (out / RESULT).read_text("utf-8")
        return BenchmarkResult.model_validate_json(text).timing
    except (OSError, ValueError):
        return {}
