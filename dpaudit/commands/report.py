"""dpaudit report: one run as a page, or several side by side under labels of their own."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dpaudit.errors import ConfigError, RunError, nearest
from dpaudit.files.result import AuditResult
from dpaudit.files.whole import write_whole

from .terminal import errors_as_exit_codes, say

_DIGEST = re.compile(r"[0-9a-f]{32,}")  # the name of a folder that a person has not named


def report(
    run_directories: Annotated[list[Path], Argument(metavar="DIR...", help="Run directories.")],
    out: Annotated[
        Path | None,
        Option(help="The HTML file; default: report.html in DIR, comparison.html of several."),
    ] = None,
    label: Annotated[
        list[str] | None,
        Option(help="What a run is called in a comparison; repeatable, in the order of the runs."),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(metavar="RUN", help="What others are held against: a label or DIR; default: first."),
    ] = None,
    figures: Annotated[
        Path | None, Option(metavar="DIR", help="Its figures too, as SVG, PDF and PNG.")
    ] = None,
    tables: Annotated[Path | None, Option(metavar="DIR", help="Its numbers too, as CSV.")] = None,
) -> None:
    """Render one run, or several side by side, from their audit.json."""
    with errors_as_exit_codes():
        several = {"--label": label, "--baseline": baseline}
        single = {"--figures": figures, "--tables": tables}
        _refuse_unfit(len(run_directories), several, single)
        results = [result_of(path) for path in run_directories]
        if len(results) == 1:
            [result], [path] = results, run_directories
            from dpaudit.reports.html import render

            target = out or path / "report.html"
            _write(target, render(result, path))
            if figures is not None:
                n = len(write_figures(result, path, figures))
                say(f"figures: {n} files in {figures}")
            if tables is not None:
                say(f"tables: {len(write_tables(result, tables))} files in {tables}")
        else:
            from dpaudit.reports.comparison import render_comparison

            names = labels(run_directories, results, label)
            first = _place(baseline, names, run_directories)
            target = out or Path("comparison.html")
            runs = list(zip(names, results, run_directories, strict=True))
            _write(target, render_comparison(runs, first))
    say(f"report: {target}")


def result_of(run_directory: Path) -> AuditResult:
    """The result in a run directory.

    Raises:
        RunError: it is no folder, has no result, or one that cannot be read.
    """
    file = run_directory / "audit.json"
    if not run_directory.exists():
        raise RunError(
            "DPA019", f"{run_directory}: there is no such folder; expected a run directory"
        )
    if not run_directory.is_dir():
        raise RunError(
            "DPA019", f"{run_directory}: not a folder; expected the run directory that it is in"
        )
    if not file.exists():
        unfinished = (run_directory / "run.json").exists()
        why = "its audit is not finished" if unfinished else "it is no run directory"
        raise RunError("DPA019", f"{run_directory}: there is no audit.json in it: {why}")
    return AuditResult.read(file)


def labels(
    run_directories: Sequence[Path], results: Sequence[AuditResult], given: Sequence[str] | None
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
            n = len(results)
            raise ConfigError(
                "DPA014", f"--label: expected one for each of the {n} runs, got {len(given)}"
            )
        for name, times in Counter(given).items():
            if times > 1 or not name.strip():
                raise ConfigError(
                    "DPA014", f'--label: "{name}": expected a name of its own for each run'
                )
        return list(given)
    names = [_name(*pair) for pair in zip(run_directories, results, strict=True)]
    alike = {name for name, times in Counter(names).items() if times > 1}
    return [
        str(path) if name in alike else name
        for name, path in zip(names, run_directories, strict=True)
    ]


def _name(run_directory: Path, result: AuditResult) -> str:
    folder = run_directory.resolve().name
    if not _DIGEST.fullmatch(folder):
        return folder
    defense = result.config.get("defense")
    named = defense.get("name") if isinstance(defense, dict) else None
    return f"{named or 'run'} {folder[:6]}"


def _refuse_unfit(n: int, several: Mapping[str, object], single: Mapping[str, object]) -> None:
    """Options that mean nothing of so many runs."""
    for option, value in several.items() if n == 1 else ():
        if value:
            raise ConfigError("DPA013", f"{option}: expected several run directories, got one")
    for option, value in single.items() if n > 1 else ():
        if value is not None:
            raise ConfigError("DPA013", f"{option}: expected one run directory, got several")


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


def _write(target: Path, page: str) -> None:
    from dpaudit.training.run_directory import RunDirectory

    directory = RunDirectory(target.parent)
    with directory.held() if directory.has("run.json") else nullcontext(directory) as run:
        run.write_text(target.name, page)


def write_figures(result: AuditResult, run_directory: Path, folder: Path) -> list[Path]:
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


def write_tables(result: AuditResult, folder: Path) -> list[Path]:
    """claims.csv, metrics.csv, series.csv, traces.csv and training.csv: a row for each number.

    Raises:
        RunError: a file cannot be written.
    """
    from dpaudit.reports.tables import TABLES, as_csv

    paths = []
    for name, rows in TABLES.items():
        paths.append(folder / f"{'metrics' if name == 'findings' else name}.csv")
        write_whole(paths[-1], as_csv(rows(result)).encode())
    return paths
