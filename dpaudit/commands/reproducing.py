"""dpaudit reproduce: a table or figure of a paper, and the results that are published of it."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from dpaudit.errors import ConfigError
from dpaudit.files.atomic_files import write_whole
from dpaudit.files.data_folders import DATA_ROOT
from dpaudit.files.documents import read_json, reason
from dpaudit.memory import size_text
from dpaudit.text import duration

from .options import DryRun, Markdown, Quiet, Results, Workers, refuse_markdown
from .running import progress_bars
from .terminal import published_command, say, warnings_as_lines

if TYPE_CHECKING:
    from dpaudit.files.published import ExperimentRuns
    from dpaudit.papers.cells import Request
    from dpaudit.papers.experiment import Experiment
    from dpaudit.papers.five_papers import PrintedStudy


Only = Annotated[
    list[str] | None, Option(metavar="COLUMN=LABEL", help="Run only these cells; repeatable.")
]
Changed = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Read an open setting otherwise; repeatable."),
]
Environments = Annotated[
    Path | None, Option(help="Of frameworks: the folder that has an environment for each.")
]
Make = Annotated[bool, Option("--make", help="Make environments that are not there, by pip.")]


def reproduce(
    name: Annotated[str, Argument(metavar="NAME", help="See dpaudit list experiments.")],
    scale: Annotated[
        Literal["quick", "paper"], Option(help="How much of the experiment is run.")
    ] = "quick",
    seed: Annotated[int, Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[
        int | None, Option(min=1, max=1000, help="How many seeds; default: that of the scale.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="The folder of all files; default: runs/NAME-SCALE.")
    ] = None,
    only: Only = None,
    changed: Changed = None,
    data: Annotated[
        str | None, Option(help="Learn from other data: mnist, digits, ..., or an .npz file.")
    ] = None,
    data_root: Annotated[
        Path | None, Option(help=f"The folder that holds data sets; default: {DATA_ROOT}.")
    ] = None,
    environments: Environments = None,
    make: Make = False,
    results: Results = None,
    markdown: Markdown = None,
    dry_run: DryRun = False,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """A table or figure of a paper, published numbers beside ours.

    What was run lies in --out and is not run again: the same command goes on where it stopped.
    """
    from dpaudit.papers.cells import Request
    from dpaudit.papers.declared import reproduction
    from dpaudit.papers.five_papers import PrintedStudy
    from dpaudit.papers.frameworks import FRAMEWORKS

    refuse_markdown(markdown)
    chosen, folder = reproduction(name), out or Path("runs") / f"{name}-{scale}"
    if data_root is not None and not chosen.data:
        raise ConfigError("DPA013", f"--data-root: {name} reads no data set")
    given: dict[str, object] = {"--seeds": seeds, "--set": changed, "--data": data}
    installed = {"--environments": environments, "--make": make}
    if chosen is FRAMEWORKS:
        given |= {"--scale": scale != "quick", "--seed": seed, "--out": out, "--workers": workers}
        _refuse(name, given | {"--dry-run": dry_run})
        lines = _frameworks(environments, make, _asked(only, None)[0], results)
    elif isinstance(chosen, PrintedStudy):
        _refuse(name, given | installed | {"--only": only, "--results": results})
        lines = _printed(name, chosen, scale, seed, folder, dry_run)
    else:
        _refuse(name, installed)
        request = Request(name, scale, seed, seeds, *_asked(only, changed), data, data_root)
        lines = _reproduced(chosen, request, folder, results, workers, quiet)
        if dry_run:
            lines = _costs(chosen, request, folder)
    with warnings_as_lines():
        for line in lines:
            say(line)


def _printed(
    name: str, study: "PrintedStudy", scale: str, seed: int, folder: Path, dry_run: bool
) -> Iterator[str]:
    """The lines of what has a printed form alone, or what it takes."""
    from dpaudit.papers.five_papers import printed_lines

    if dry_run:
        yield _all_of_it(study, scale)
        return
    with progress_bars(quiet=False) as on_progress:
        yield from printed_lines(name, study, scale, seed, folder, on_progress)


def _all_of_it(chosen: "Experiment | PrintedStudy", scale: str) -> str:
    takes = chosen.scales[scale]
    about = f"{duration(takes.seconds)} on two cores, {size_text(takes.bytes)}"
    return f"all of it, scale {scale}: about {about}"


def _refuse(name: str, given: Mapping[str, object]) -> None:
    """Raises ConfigError for an option that is given, and that this one does not have."""
    for option in (option for option, value in given.items() if value):
        raise ConfigError("DPA013", f"{option}: {name} does not have it")


def _frameworks(
    environments: Path | None, make: bool, only: Mapping[str, tuple[str, ...]], results: Path | None
) -> Iterator[str]:
    """Audits of installed frameworks, of ``--only framework=NAME`` alone if that is given."""
    from dpaudit.papers import frameworks
    from dpaudit.reports.published import write_tables

    if environments is None:
        said = "--environments: expected the folder of an environment for each framework"
        raise ConfigError("DPA014", said)
    if results is not None and only:
        raise ConfigError("DPA013", "--results: the published tables are of all frameworks")
    found, names = [], only.get("framework", ())
    with progress_bars(quiet=False) as on_progress:
        for one in frameworks.all_audited(environments, make, names, on_progress):
            found.append(one)
            yield from frameworks.lines([one])
    if results is not None:
        write_tables(results, "frameworks", frameworks.tables(found))


def _asked(
    only: list[str] | None, changed: list[str] | None
) -> tuple[dict[str, tuple[str, ...]], dict[str, Any]]:
    """Labels by column, and other readings by key."""
    labels: dict[str, tuple[str, ...]] = {}
    for column, label in (_pair("--only", text, "COLUMN=LABEL") for text in only or ()):
        labels[column] = (*labels.get(column, ()), label)
    pairs = (_pair("--set", text, "KEY=VALUE") for text in changed or ())
    return labels, {key: _value(text) for key, text in pairs}


def _costs(chosen: "Experiment", request: "Request", folder: Path) -> Iterator[str]:
    """Time and memory of training each cell, and of all; of all where they train nothing."""
    from dpaudit.papers.cells import costs, seeds_of, trains

    if not trains(chosen, request):
        yield _all_of_it(chosen, request.scale)
        return
    whole, n = 0.0, len(seeds_of(chosen, request))
    for cell, seconds, size in costs(chosen, request, folder):
        if not whole:  # not before what cannot be run has been refused
            yield f"{'time':>8}  {'memory':>8}  training of a cell, of one seed on one thread"
        yield f"{duration(seconds):>8}  {size_text(size):>8}  {', '.join(cell.labels.values())}"
        whole += seconds
    yield f"all training, {n} seed{'s' * (n > 1)}: about {duration(n * whole)} on one core"


def _reproduced(
    chosen: "Experiment",
    request: "Request",
    folder: Path,
    results: Path | None,
    workers: int | None,
    quiet: bool,
) -> Iterator[str]:
    """Runs it, writes its files, and yields what is printed."""
    from dpaudit.papers.outcome import reproduced
    from dpaudit.reports import published as report

    _refuse_result_of_another(folder, request)
    published = _published_runs(results, request)  # refuse these before anything runs
    with progress_bars(quiet) as on_progress:
        cores = workers or os.cpu_count() or 1
        result = reproduced(chosen, request, folder, cores, on_progress)
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
    yield from report.text(result)
    if results is not None:
        runs, stem = published.put(result), f"{request.name}-{request.scale}"
        write_whole(results / f"{stem}.json", runs.to_json().encode())
        write_whole(results / f"{stem}.csv", report.as_csv(runs.runs).encode())
    yield f"report: {folder / 'report.html'}"


def _published_runs(results: Path | None, request: "Request") -> "ExperimentRuns":
    """What the folder of results has of this experiment and scale so far.

    Raises:
        ConfigError: it is there and cannot be read.
    """
    from dpaudit.files.published import ExperimentRuns

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
    """A value as TOML reads it; a plain word if it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
