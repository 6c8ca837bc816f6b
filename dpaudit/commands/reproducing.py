"""dpaudit reproduce: a table or figure of a paper, and the results that are published of it."""

import os
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from dpaudit.errors import ConfigError
from dpaudit.files.data_folders import DATA_ROOT
from dpaudit.files.documents import read_json, reason
from dpaudit.files.published import ExperimentRuns
from dpaudit.files.whole import write_whole
from dpaudit.memory import size_text
from dpaudit.text import duration

from .options import DryRun, Quiet, Workers
from .running import progress_bars
from .terminal import errors_as_exit_codes, published_command, same_command, say, warnings_as_lines

if TYPE_CHECKING:
    from dpaudit.papers.cells import Request
    from dpaudit.papers.experiment import Experiment

Name = Annotated[str, Argument(metavar="NAME", help="See: dpaudit list experiments.")]
AtScale = Annotated[Literal["quick", "paper"], Option(help="How much of it.")]
FirstSeed = Annotated[int, Option(min=0, help="The first one.")]
Seeds = Annotated[
    int | None, Option(min=1, max=1000, help="How many; default: as the scale has them.")
]
Out = Annotated[
    Path | None, Option(help="Folder of cells, CSV and report; default: runs/NAME-SCALE.")
]
Only = Annotated[
    list[str] | None,
    Option(metavar="COLUMN=LABEL", help="Only cells with this label; repeatable."),
]
Changed = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Another reading of what is open; repeatable."),
]
OtherData = Annotated[
    str | None, Option(help="Other data than the paper's: mnist, digits, ..., or an .npz.")
]
DataRoot = Annotated[
    Path | None, Option(help=f"Folder of data sets, for those on images; or {DATA_ROOT}.")
]
Results = Annotated[
    Path | None, Option(help="Add it as JSON and CSV to a folder like docs/results.")
]
Markdown = Annotated[Path | None, Option(hidden=True)]


def reproduce(
    name: Name,
    scale: AtScale = "quick",
    seed: FirstSeed = 0,
    seeds: Seeds = None,
    out: Out = None,
    only: Only = None,
    changed: Changed = None,
    data: OtherData = None,
    data_root: DataRoot = None,
    results: Results = None,
    markdown: Markdown = None,
    dry_run: DryRun = False,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """A table or figure of a paper, published numbers beside ours.

    What was run lies in --out and is not run again: the same command goes on where it stopped.
    """
    with errors_as_exit_codes(same_command()), warnings_as_lines():
        from dpaudit.papers.declared import reproduction
        from dpaudit.papers.five_papers import PrintedStudy, printed_lines

        if markdown is not None:
            raise ConfigError(
                "DPA013", "--markdown: results are JSON and CSV now", "give --results"
            )
        chosen, folder = reproduction(name), out or Path("runs") / f"{name}-{scale}"
        if data_root is not None and not chosen.data:
            raise ConfigError("DPA013", f"--data-root: {name} reads no data set")
        if isinstance(chosen, PrintedStudy):
            given: dict[str, object] = {"--seeds": seeds, "--only": only, "--set": changed}
            given |= {"--data": data, "--results": results}
            for option in (option for option, value in given.items() if value):
                raise ConfigError("DPA013", f"{option}: {name} is printed and no more")
            size = chosen.scales[scale]
            about = f"about {duration(size.seconds)} on two cores, {size_text(size.bytes)}"
            costs = (f"all of it, scale {scale}: {about}",)
            for line in costs if dry_run else printed_lines(name, chosen, scale, seed, folder):
                say(line)
            return
        from dpaudit.papers.cells import Request

        labels: dict[str, tuple[str, ...]] = {}
        for column, label in (_pair("--only", text, "COLUMN=LABEL") for text in only or ()):
            labels[column] = (*labels.get(column, ()), label)
        pairs = (_pair("--set", text, "KEY=VALUE") for text in changed or ())
        readings = {key: _value(text) for key, text in pairs}
        request = Request(name, scale, seed, seeds, labels, readings, data, data_root)
        if dry_run:
            _print_costs(chosen, request, folder)
            return
        _reproduce(chosen, request, folder, results, workers or os.cpu_count() or 1, quiet)


def _print_costs(chosen: "Experiment", request: "Request", folder: Path) -> None:
    """Time and memory of training each cell, and of all."""
    from dpaudit.papers.cells import costs, seeds_of

    whole, n = 0.0, len(seeds_of(chosen, request))
    for cell, seconds, size in costs(chosen, request, folder):
        if not whole:  # not before what cannot be run has been refused
            say(f"{'time':>8}  {'memory':>8}  training of a cell, of one seed on one thread")
        say(f"{duration(seconds):>8}  {size_text(size):>8}  {', '.join(cell.labels.values())}")
        whole += seconds
    say(f"all training, {n} seed{'s' * (n > 1)}: about {duration(n * whole)} on one core")


def _reproduce(
    chosen: "Experiment",
    request: "Request",
    folder: Path,
    results: Path | None,
    workers: int,
    quiet: bool,
) -> None:
    from dpaudit.papers.outcome import reproduced
    from dpaudit.reports import experiment as report

    _refuse_result_of_another(folder, request)
    published = _published_runs(results, request)  # which are refused before anything runs
    with progress_bars(quiet) as on_progress:
        result = reproduced(chosen, request, folder, workers, on_progress)
    result = result.model_copy(
        update={
            "asked": (
                *(f"{c}={label}" for c, some in request.only.items() for label in some),
                *(f"{key}={value}" for key, value in request.changed.items()),
            ),
            "command": published_command(),
            "date": datetime.now(UTC).date().isoformat(),
        }
    )
    write_whole(folder / "experiment.json", (result.model_dump_json(indent=2) + "\n").encode())
    write_whole(folder / "experiment.csv", report.as_csv([result]).encode())
    write_whole(folder / "report.html", report.render_experiment(result).encode())
    for line in report.text(result):
        say(line)
    if results is not None:
        runs, stem = published.put(result), f"{request.name}-{request.scale}"
        write_whole(results / f"{stem}.json", runs.to_json().encode())
        write_whole(results / f"{stem}.csv", report.as_csv(runs.runs).encode())
    say(f"report: {folder / 'report.html'}")


def _published_runs(results: Path | None, request: "Request") -> ExperimentRuns:
    """What the folder of results has of this experiment and scale so far.

    Raises:
        ConfigError: it is there and cannot be read.
    """
    if results is None:
        return ExperimentRuns()
    path = results / f"{request.name}-{request.scale}.json"
    try:
        return ExperimentRuns.read(path)
    except FileNotFoundError:
        return ExperimentRuns()
    except (OSError, ValueError) as error:
        raise ConfigError("DPA007", f"--results {path}: {reason(error)}") from None


def _refuse_result_of_another(folder: Path, request: "Request") -> None:
    """Raises ConfigError: what lies there would be lost."""
    try:
        there = read_json(folder / "experiment.json")
    except (OSError, ValueError):
        return  # none, or none that is lost
    found = f"{there.get('name')}, scale {there.get('scale')}"
    if found != f"{request.name}, scale {request.scale}":
        said = f"--out {folder}: it has the result of {found}"
        raise ConfigError("DPA015", said, "give another folder")


def _pair(option: str, text: str, expected: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not (found and key.strip() and value.strip()):
        raise ConfigError("DPA014", f'{option} "{text}": expected {expected}')
    return key.strip(), value.strip()


def _value(text: str) -> Any:
    """As TOML has it; what is none is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
