"""Results of runs: printed, as pages, figures and tables; and what a dry run estimates."""

import re
import webbrowser
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpaudit.errors import ConfigError, RunError, nearest
from dpaudit.files.atomic_files import refuse_links, write_whole
from dpaudit.memory import size_text
from dpaudit.text import duration

from .options import AuditJson, RunFolder
from .terminal import print_result, say

if TYPE_CHECKING:
    from dpaudit.files.config import AuditConfig
    from dpaudit.files.result import AuditResult
    from dpaudit.pipeline.jobs import Power
    from dpaudit.pipeline.run import Runtime

_PAGE = b"<!doctype html>"  # a report begins with this
_DIGEST = re.compile(r"[0-9a-f]{32,}")  # the name of a folder that a person has not named


def show(
    run_directory: RunFolder,
    open_: Annotated[bool, Option("--open", help="Open the report in a browser.")] = False,
    as_json: AuditJson = False,
) -> None:
    """Print the result of a run again, as after its audit. Exits 0 whatever the verdict is."""
    print_result(result_of(run_directory), run_directory, as_json)
    if open_:
        _open(run_directory / "report.html")


def report(
    run_directories: Annotated[list[Path], Argument(metavar="DIR...", help="The run directories.")],
    out: Annotated[
        Path | None,
        Option(
            help="The HTML file; default: report.html in DIR, or comparison.html of several. A "
            "page that is there is replaced, and no other file."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        Option(help="The name of a run in a comparison; repeatable, in the order of the runs."),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            metavar="RUN",
            help="The run that others are compared with, by label or DIR; default: the first.",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        Option(metavar="DIR", help="Also write the figures here, as SVG, PDF and PNG."),
    ] = None,
    tables: Annotated[
        Path | None, Option(metavar="DIR", help="Also write the numbers here, as CSV.")
    ] = None,
) -> None:
    """Render one run, or several side by side, from their audit.json."""
    n = len(run_directories)
    for option, value in {"--label": label, "--baseline": baseline}.items() if n == 1 else ():
        if value:
            raise ConfigError("DPA013", f"{option}: expected several run directories, got one")
    for option, folder in {"--figures": figures, "--tables": tables}.items() if n > 1 else ():
        if folder is not None:
            raise ConfigError("DPA013", f"{option}: expected one run directory, got several")
    results = [result_of(path) for path in run_directories]
    for written in filter(None, (out, figures, tables)):
        refuse_links(written)  # before the drawing, which takes seconds
    if out is not None:
        _refuse_other_file(out)
    if n == 1:
        [result], [path] = results, run_directories
        from dpaudit.reports.html import render

        target = out or path / "report.html"
        write_into_run(target, render(result, path))
        if figures is not None:
            say(f"figures: {len(write_figures(result, path, figures))} files in {figures}")
        if tables is not None:
            say(f"tables: {len(write_tables(result, tables))} files in {tables}")
    else:
        from dpaudit.reports.comparison import render_comparison

        names = labels(run_directories, results, label)
        first = _place(baseline, names, run_directories)
        target = out or Path("comparison.html")
        runs = list(zip(names, results, run_directories, strict=True))
        write_into_run(target, render_comparison(runs, first))
    say(f"report: {target}")


def _refuse_other_file(out: Path) -> None:
    """Raises ConfigError: what is there is no page, in whose place nobody expects a report."""
    if not out.is_file():
        return
    with out.open("rb") as file:
        if file.read(len(_PAGE)).lower() in (_PAGE, b""):
            return
    raise ConfigError("DPA015", f"{out} exists, and is no report", "give another --out")


def result_of(run_directory: Path) -> "AuditResult":
    """The result in a run directory.

    Raises:
        RunError: it is no folder, has no result, or one that cannot be read.
    """
    from dpaudit.files.result import AuditResult

    file = run_directory / "audit.json"
    if file.exists():
        return AuditResult.read(file)
    if not run_directory.exists():
        why = "there is no such folder; expected a run directory"
    elif not run_directory.is_dir():
        why = "not a folder; expected the run directory that it is in"
    else:
        unfinished = (run_directory / "run.json").exists()
        of_it = "its audit is not finished" if unfinished else "it is no run directory"
        why = f"there is no audit.json in it: {of_it}"
    raise RunError("DPA019", f"{run_directory}: {why}")


def labels(
    run_directories: Sequence[Path], results: "Sequence[AuditResult]", given: Sequence[str] | None
) -> list[str]:
    """What each run is called: as given, or by its folder; by its defense where that is a digest.

    Raises:
        ConfigError: not a label for each run, one that says nothing, or two alike.
    """
    for path, times in Counter(path.resolve() for path in run_directories).items():
        if times > 1:
            raise ConfigError("DPA014", f"{path}: given {times} times; expected different runs")
    if given:
        if len(given) != len(results):
            said = f"expected one for each of the {len(results)} runs, got {len(given)}"
            raise ConfigError("DPA014", f"--label: {said}")
        for name, times in Counter(given).items():
            if times > 1 or not name.strip():
                said = f'"{name}": expected a name of its own for each run'
                raise ConfigError("DPA014", f"--label: {said}")
        return list(given)
    names = [_name(*pair) for pair in zip(run_directories, results, strict=True)]
    alike = {name for name, times in Counter(names).items() if times > 1}
    return [
        str(path) if name in alike else name
        for name, path in zip(names, run_directories, strict=True)
    ]


def _name(run_directory: Path, result: "AuditResult") -> str:
    folder = run_directory.resolve().name
    if not _DIGEST.fullmatch(folder):
        return folder
    defense = result.config.get("defense")
    named = defense.get("name") if isinstance(defense, dict) else None
    return f"{named or 'run'} {folder[:6]}"


def _place(baseline: str | None, names: list[str], run_directories: Sequence[Path]) -> int:
    if baseline is None:
        return 0
    if baseline in names:
        return names.index(baseline)
    there = [path.resolve() for path in run_directories]
    if Path(baseline).resolve() in there:
        return there.index(Path(baseline).resolve())
    said = f'--baseline: "{baseline}" is none of the runs{nearest(baseline, names)}'
    raise ConfigError("DPA006", f"{said}; they are: {', '.join(names)}")


def write_into_run(target: Path, text: str) -> None:
    """Write a file; if it lies in a run directory, as the one writer of that."""
    from dpaudit.training.run_directory import RunDirectory

    directory = RunDirectory(target.parent)
    with directory.held() if directory.has("run.json") else nullcontext(directory) as run:
        run.write_text(target.name, text)


def write_figures(result: "AuditResult", run_directory: Path, folder: Path) -> list[Path]:
    """Every figure of the report in each format, in the colours of the light page.

    Raises:
        DpauditError: a file cannot be written, or the report cannot be drawn.
    """
    from dpaudit.reports.figures.drawing import FORMATS, as_file, drawn_figures
    from dpaudit.reports.html import render

    with drawn_figures() as figures:
        render(result, run_directory)
    written = []
    for name, figure in figures.items():
        file_name = re.sub(r"[^\w.-]+", "-", name.removeprefix("run0-"))
        for kind in FORMATS:
            written.append(folder / f"{file_name}.{kind}")
            write_whole(written[-1], as_file(name, figure, kind))
    return written


def write_tables(result: "AuditResult", folder: Path) -> list[Path]:
    """claims.csv, premises.csv, metrics.csv, series.csv, traces.csv and training.csv.

    Raises:
        RunError: a file cannot be written.
    """
    from dpaudit.reports.tables import TABLES, as_csv

    paths = []
    for name, rows in TABLES.items():
        paths.append(folder / f"{'metrics' if name == 'findings' else name}.csv")
        write_whole(paths[-1], as_csv(rows(result)).encode())
    return paths


def _open(page: Path) -> None:
    if not page.is_file():
        raise RunError(
            "DPA019", f"{page}: there is no report", f"make it with dpaudit report {page.parent}"
        )
    if not webbrowser.open(page.resolve().as_uri()):
        raise RunError("DPA024", f"{page}: no browser could be started", "open the file by hand")


def print_outlook(config: "AuditConfig", runtime: "Runtime") -> None:
    """Time, memory and power of an audit that was not begun."""
    from dpaudit.pipeline.run import outlook

    costs, powers = outlook(config, runtime)
    say(f"{'time':>8}  {'memory':>8}  part")
    least = ""
    for part, seconds, size, n_jobs in costs.by_part():
        time = "unknown" if seconds is None else duration(seconds)
        memory = "unknown" if size is None else size_text(size)
        say(f"{time:>8}  {memory:>8}  {part}{f' ({n_jobs} jobs)' if n_jobs > 1 else ''}")
        least = "at least " if seconds is None else least
    whole, cores = costs.seconds(runtime.workers), costs.cores(runtime.workers)
    about = "unknown" if whole is None else f"{least}about {duration(whole)}"
    say(f"all of it on {cores} core{'s' * (cores > 1)}: {about}; times of parts are of one core")
    for i, claim in enumerate(config.claim):
        for model in config.threat_model:
            if claim.threat_model in (None, model.name):
                say(f"{claim.sentence()}, against {model.name}:")
                of_claim = [p for p in powers if (p.claim, p.threat_model) == (i, model.name)]
                for line in map(_of_power, of_claim):
                    say(line)
                if not of_claim:
                    knows = "of this audit knows beforehand what it can certify"
                    say(f"  no attack {knows if config.attack else 'was requested'}")


def _of_power(power: "Power") -> str:
    from dpaudit.files.finding import Name

    metrics = power.metrics
    expected, ceiling = metrics.get(Name.EXPECTED_BOUND), metrics.get(Name.CEILING)
    needed = metrics.get(Name.TRIALS_NEEDED)
    bound = "not known before its runs" if expected is None else f"{expected.value:.3g}"
    said = f"  {power.attack}: the epsilon expected to be certified is {bound}"
    if ceiling is not None and ceiling.value == inf:
        said += f"; {ceiling.n} trials have no ceiling: the less noise there is, the more they show"
    elif ceiling is not None:
        said += f", at most {ceiling.value:.3g} by {ceiling.n} trials"
    if needed is not None and needed.value == inf:
        said += "; no number of trials that can be played refutes the claim"
    elif needed is not None:
        said += f"; a perfect attack refutes the claim with {needed.value:.0f} trials"
    return said
