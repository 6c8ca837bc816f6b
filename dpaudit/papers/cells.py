"""Running the cells of an experiment: each is kept on disk once it is done and not run twice."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from dpaudit.data.datasets import Dataset, load_dataset
from dpaudit.errors import ConfigError, DataError, DpauditError, RunError, nearest
from dpaudit.files.config import extreme_numbers, validated
from dpaudit.files.data_folders import DATA_FOLDERS, DATA_ROOT, missing_files, root_folder
from dpaudit.memory import available, size_text
from dpaudit.pipeline.provenance import code_of
from dpaudit.pipeline.workers import Work, run_jobs
from dpaudit.progress import OnProgress
from dpaudit.training.locked_folder import LOCK
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import bound_to

from .experiment import (
    ABSENT,
    CellContext,
    Experiment,
    ExperimentScale,
    MeasuredNumber,
    Open,
    Settings,
    TableCell,
)
from .learning import estimate_cost, nested

Job = tuple[int, int]  # which cell, which seed
NOT_RUN = "not run"
NOTED_EVERY = 10.0  # CPU seconds between notes of how many a cell took so far
AUDITED = ("data", "graph", "model", "defense")  # settings that are those of an audit file


@dataclass(frozen=True)
class Request:
    """What of an experiment is asked for."""

    name: str
    scale: str = "quick"
    seed: int = 0  # the first one
    seeds: int | None = None  # how many; None: as the scale says
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # labels by column
    changed: Settings = field(default_factory=dict)
    data: str | None = None  # in the place of the paper's: a name, or an .npz file
    data_root: Path | None = None


@dataclass(frozen=True)
class Done:
    """What a cell gave for one seed."""

    measured: tuple[MeasuredNumber, ...]
    seconds: float
    error: str = ""


def seeds_of(experiment: Experiment, request: Request) -> tuple[int, ...]:
    count = request.seeds or experiment.scales[request.scale].seeds
    return tuple(range(request.seed, request.seed + count))


def chosen(experiment: Experiment, request: Request) -> list[TableCell]:
    """The cells that are asked for, each with all of its settings.

    Raises:
        ConfigError: a column, label or setting that there is not.
    """
    scale = experiment.scales[request.scale]
    only = {**scale.only, **request.only}
    columns = [name for name in experiment.columns if experiment.values(name)]
    _refuse_unknown(request.only, columns, '--only: there is no column "{}"', "there are")
    for column, labels in request.only.items():
        known = experiment.values(column)
        _refuse_unknown(labels, known, f'--only: {column} has no "{{}}"', "it has")
    known = sorted({one.key for one in experiment.open})
    said = f'--set: {request.name} leaves no "{{}}" open'
    _refuse_unknown(request.changed, known, said, "it leaves")
    for one in experiment.open:
        _refuse_other_kind(one, request.changed.get(one.key, one.value))
    found = [
        TableCell(cell.labels, _settings(experiment, cell, scale, request))
        for cell in experiment.cells
        if all(cell.labels.get(column) in labels for column, labels in only.items())
    ]
    if not found:
        said = " ".join(f"{column}={','.join(labels)}" for column, labels in only.items())
        raise ConfigError("DPA014", f"--only: no cell of {request.name} has {said}")
    for cell in found:
        _refuse_impossible(cell, request.changed)
    return found


def _refuse_unknown(names: Iterable[str], known: list[str], said: str, there: str) -> None:
    """Raises ConfigError: one of the names is not known; ``said`` has a place for it."""
    for name in (name for name in names if name not in known):
        every = f"{there} {', '.join(known) or 'nothing'}"
        raise ConfigError("DPA014", f"{said.format(name)}{nearest(name, known)}; {every}")


def _refuse_other_kind(one: Open, value: Any) -> None:
    """Raises ConfigError: ours is a number, above 0 or a whole one, and this reading is not.

    Keys of audit files are checked as those of an audit file are.
    """
    if "." in one.key or not isinstance(one.value, int | float):
        return
    whole, above = isinstance(one.value, int), one.value > 0
    wanted = f"expected a {'whole ' * whole}number{' above 0' * above}, got {value!r}"
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    fits = is_number and not (above and value <= 0)
    if not fits:
        raise ConfigError("DPA014", f"--set: {one.key}: {wanted}")
    for _, problem in extreme_numbers(value):
        raise ConfigError("DPA014", f"--set: {one.key}: {problem.text}")


def _refuse_impossible(cell: TableCell, changed: Settings) -> None:
    """Raises ConfigError: a reading is none that an audit file could have at its key."""
    if not any("." in key and key in cell.settings for key in changed):
        return
    table = nested(cell.settings)
    audit = {key: part for key, part in table.items() if key in AUDITED}
    for where, problem in validated(audit)[1]:
        if (key := ".".join(map(str, where))) in changed:
            raise ConfigError("DPA014", f"--set: {key}: {problem.text}")


def readings(experiment: Experiment, cell: TableCell) -> dict[str, Open]:
    """What the paper leaves open of a declared cell, by its key; of several the last one counts."""
    return {
        one.key: one
        for one in experiment.open
        if one.where.items() <= cell.labels.items() and one.key not in cell.settings
    }


def _settings(
    experiment: Experiment, cell: TableCell, scale: ExperimentScale, request: Request
) -> dict[str, Any]:
    """Settings of experiment, readings, cell, scale and caller; a later one wins."""
    open_ = {key: one.value for key, one in readings(experiment, cell).items()}
    settings = {**experiment.settings, **open_, **cell.settings, **scale.settings}
    settings |= {k: v for k, v in request.changed.items() if open_.get(k, ABSENT) != ABSENT}
    if experiment.data:
        is_file = request.data is not None and request.data.endswith(".npz")
        settings |= {"data.path": request.data} if is_file else {}
        settings["data.name"] = ABSENT if is_file else request.data or experiment.data
    return {key: value for key, value in settings.items() if value != ABSENT}


def refuse_missing_data(experiment: Experiment, request: Request) -> None:
    """Raises DataError: which file is missing, and where it belongs."""
    if request.data is not None and not experiment.data:
        raise ConfigError("DPA013", f"--data: {request.name} learns from no data set")
    data = request.data or experiment.data
    if data not in DATA_FOLDERS:
        return
    root = root_folder(request.data_root)
    files = missing_files(data, root or Path("FOLDER"))
    if not files:
        return
    more = f", and {len(files) - 1} more beside it" if len(files) > 1 else ""
    ask = "" if root else f": name FOLDER with --data-root or {DATA_ROOT}"
    raise DataError(
        "DPA028",
        f"{request.name} learns from {data}: {files[0]} is missing{more}{ask}; "
        "--data digits runs the same on other data, which needs no file",
    )


def workers_that_fit(experiment: Experiment, request: Request, workers: int) -> int:
    """How many processes have room side by side.

    Raises:
        ConfigError: not even one has.
    """
    need, free = experiment.scales[request.scale].bytes, available()
    if free is None or need * workers <= free:
        return workers
    if need > free:
        others = {n: s.bytes for n, s in experiment.scales.items() if s.bytes <= free}
        remedy = "".join(f"; --scale {n} takes {size_text(b)}" for n, b in others.items())
        raise ConfigError(
            "DPA021",
            f"{request.name}, scale {request.scale}, takes about {size_text(need)} of memory, and "
            f"{size_text(free)} is free{remedy}",
        )
    return free // need


def refuse_other_folder(out: Path) -> None:
    """Raises RunError: it holds something, and not an experiment."""
    if out.is_dir() and any(out.iterdir()) and not (out / LOCK).exists():
        raise RunError(
            "DPA015", f"{out}: not empty, and not an experiment of dpaudit", "give another --out"
        )


def run_cells(
    experiment: Experiment,
    request: Request,
    out: Path,
    workers: int,
    on_progress: OnProgress,
) -> list[tuple[TableCell, dict[int, Done]]]:
    """What every cell gave for every seed. Those that lie in the folder already are not run again.

    Raises:
        DpauditError: nothing can be run, or no cell could.
        RunError: code or data changed meanwhile, so that what was computed is of neither alone.
    """
    cells, seeds = chosen(experiment, request), seeds_of(experiment, request)
    refuse_missing_data(experiment, request)
    workers = workers_that_fit(experiment, request, workers)
    refuse_other_folder(out)
    jobs, code = [(i, seed) for i in range(len(cells)) for seed in seeds], code_of()
    with RunDirectory(out).held() as run:
        progress = _CellsProgress([name_of_cell(cells[i], seed) for i, seed in jobs], on_progress)
        run_jobs(_worker, (experiment, request, run), jobs, workers, progress)
        done_cells = _DoneCells(run, cells, dataset_of(experiment, request))
        found = [
            (cell, {s: done_cells.read((i, s)) for s in seeds}) for i, cell in enumerate(cells)
        ]
    errors = [done.error for _, by_seed in found for done in by_seed.values()]
    if NOT_RUN in errors:
        changed = "the data set" if code_of() == code else "dpaudit's own code"
        raise RunError(
            "DPA020",
            f"{out}: {changed} changed while this ran, so that cells are not of what is there now; "
            "the same command runs them again",
        )
    if all(errors):
        raise RunError("DPA070", errors[0])
    return found


def trains(experiment: Experiment, request: Request) -> bool:
    """Whether its cells train a defense on a data set, so that a round of each can be timed."""
    cells = chosen(experiment, request)
    return bool(experiment.data) and all("defense.name" in cell.settings for cell in cells)


def costs(
    experiment: Experiment, request: Request, out: Path
) -> Iterator[tuple[TableCell, float, int]]:
    """Each chosen cell, with seconds and bytes of training it for one seed on one thread."""
    cells = chosen(experiment, request)
    refuse_missing_data(experiment, request)
    context = CellContext(
        RunDirectory(out), "", dataset_of(experiment, request), lambda what, done, total: None
    )
    for cell in cells:
        yield cell, *estimate_cost(cell.settings, request.seed, context)


def dataset_of(experiment: Experiment, request: Request) -> Dataset | None:
    """What the cells learn from; None if they learn from nothing."""
    if not experiment.data:
        return None
    return load_dataset(request.data or experiment.data, data_root=request.data_root)


def _worker(experiment: Experiment, request: Request, run: RunDirectory) -> Work[Job]:
    cells = chosen(experiment, request)
    dataset = dataset_of(experiment, request)
    done_cells = _DoneCells(run, cells, dataset)

    def work(job: Job, on_progress: OnProgress) -> None:
        before, name = done_cells.read(job), done_cells.name(job)
        if not before.error:
            on_progress(name, 1, 1)
            return
        on_progress(name, 0, 1)
        interrupted = before.seconds if before.error == NOT_RUN else 0.0
        noted = time.process_time()
        began = noted - interrupted  # the time of a cell is that of its interrupted runs too
        run.binding = done_cells.binding(job)

        def note(what: str, done: int, total: int) -> None:
            nonlocal noted
            over = what == name and done >= total  # its steps are, and the cell is not
            on_progress(what, *((0, 1) if over else (done, total)))
            if time.process_time() - noted >= NOTED_EVERY:
                noted = time.process_time()
                done_cells.keep(job, Done((), noted - began, NOT_RUN))

        context = CellContext(run, name, dataset, note)
        measured, error = tuple[MeasuredNumber, ...](), ""
        try:
            measured = tuple(experiment.measure(cells[job[0]].settings, job[1], context))
        except DpauditError as refused:
            error = refused.problems[0].text
        done_cells.keep(job, Done(measured, time.process_time() - began, error))
        on_progress(name, 1, 1)

    return work


def name_of_cell(cell: TableCell, seed: int) -> str:
    """The cell's name in files and progress."""
    labels = "-".join(cell.labels.values()) or "all"
    return f"{re.sub('[^a-z0-9.=]+', '-', labels.lower()).strip('-.')}-seed-{seed}"


class _CellsProgress:
    """Passes the progress of cells on, with how many of those that run are over."""

    def __init__(self, names: Sequence[str], on_progress: OnProgress) -> None:
        self._on_progress, self._begun = on_progress, set[str]()
        self._ahead, self._over = set(names), 0
        self._n = len(self._ahead)
        self._whole()
        for name in names:
            on_progress(name, 0, 0)

    def __call__(self, what: str, done: int, total: int) -> None:
        self._on_progress(what, done, total)
        if what in self._ahead and done < total:
            self._begun.add(what)
        elif what in self._ahead:
            self._ahead.remove(what)
            ran = what in self._begun  # else it lay in the folder, which says nothing of the pace
            self._over, self._n = self._over + ran, self._n - (not ran)
            self._whole()

    def _whole(self) -> None:
        if self._n > 1:
            self._on_progress("cells", self._over, self._n)


class _DoneCells:
    """Results of cells in a folder, each believed only for the settings, data and code it is of."""

    def __init__(self, run: RunDirectory, cells: list[TableCell], dataset: Dataset | None) -> None:
        self._run, self._cells = run, cells
        self._code, self._data = code_of(), dataset.fingerprint if dataset else ""

    def name(self, job: Job) -> str:
        return name_of_cell(self._cells[job[0]], job[1])

    def binding(self, job: Job) -> str:
        cell = self._cells[job[0]]
        about = {"settings": dict(cell.settings), "labels": dict(cell.labels), "seed": job[1]}
        return bound_to({**about, "code": self._code, "data": self._data})

    def keep(self, job: Job, done: Done) -> None:
        rows = [  # JSON has no infinity
            m if isfinite(m.value) else (m.quantity, str(m.value), *m[2:]) for m in done.measured
        ]
        content = {"measured": rows, "seconds": done.seconds, "error": done.error}
        self._run.write_result(f"cells/{self.name(job)}.json", content, self.binding(job))

    def read(self, job: Job) -> Done:
        """The result of a cell; an error says so if it was not run to its end."""
        found = self._run.read_result(f"cells/{self.name(job)}.json", self.binding(job))
        if found is None:
            return Done((), 0.0, NOT_RUN)
        rows = (MeasuredNumber(row[0], float(row[1]), *row[2:]) for row in found["measured"])
        return Done(tuple(rows), found["seconds"], found["error"])
