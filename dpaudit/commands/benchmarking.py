"""dpaudit benchmark: many audits from one file, and what they found side by side."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from dpaudit.errors import ConfigError
from dpaudit.memory import size_text
from dpaudit.text import duration

from . import options
from .running import passing_on, progress_bars
from .terminal import complain, published_command, say

if TYPE_CHECKING:
    from dpaudit.benchmark.dry_run import CellAhead
    from dpaudit.benchmark.grid import BenchmarkPlan
    from dpaudit.benchmark.run import Backend
    from dpaudit.files.benchmark_file import BenchmarkFile, Tuning
    from dpaudit.files.benchmark_result import BenchmarkResult
    from dpaudit.pipeline.run import Runtime

MOST_CELLS = 1000
COLUMNS = ("verdict", "accounted", "measured", "certified", "accuracy", "cell", "missing premise")


def benchmark(
    named: Annotated[str, Argument(metavar="FILE|SUITE", help="The benchmark file, or a suite.")],
    out: Annotated[Path | None, Option(help="The folder of results; default: runs/NAME.")] = None,
    scale: Annotated[
        Literal["quick", "full"] | None, Option(help="The scale of a suite; default: quick.")
    ] = None,
    backend: Annotated[
        Literal["local", "ray"],
        Option(help="Run in processes of this machine, or on a Ray cluster."),
    ] = "local",
    address: Annotated[
        str | None, Option(help="The address of the Ray cluster; default: one of this machine.")
    ] = None,
    device: options.Device = "cpu",
    data_root: options.DataRoot = None,
    workers: options.Workers = None,
    max_memory: options.MaxMemory = None,
    max_cells: Annotated[int, Option(min=1, help="Run at most so many audits.")] = MOST_CELLS,
    resume: Annotated[bool, Option("--resume", help="Finish an interrupted benchmark.")] = False,
    results: options.Results = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
) -> int:
    """Many audits from one file, and their leaderboard; cells that are done are not run again.

    Exits 0 when every cell has a result, whatever its verdict is, and 2 if one could not be run.
    Cells that lack a package are named at once, and the others run.
    """
    from dpaudit.benchmark.grid import without_lacking
    from dpaudit.benchmark.run import CellPlace, run_benchmark
    from dpaudit.benchmark.tuning import tuned

    file, plan = _planned(named, scale, max_cells)
    out = out or Path("runs") / file.path.stem
    able, lacking = without_lacking(plan)
    for line in lacking:
        complain(line, "warning")
    runtime = options.runtime_of(device, data_root, workers, max_memory)
    if dry_run:
        _print_ahead(able, file, runtime, quiet)
        return 2 if lacking else 0
    with (
        _backend(backend, address, device, workers, options.bytes_in(max_memory)) as run_cells,
        progress_bars(quiet) as on_progress,
    ):
        tuning = file.benchmark.tuning, out, runtime, partial(on_progress, "tuning")
        result = run_benchmark(
            plan,
            CellPlace(out, device, data_root),
            run_cells,
            resume,
            passing_on(on_progress),
            partial(on_progress, "cells"),
            lambda plan: tuned(plan, *tuning),
        )
        if results is not None:
            _publish(result, out, results, f"leaderboard-{file.path.stem}")
    _print_cells(result, out)
    return 2 if any(cell.state == "failed" for cell in result.cells) else 0


def _planned(
    named: str, scale: Literal["quick", "full"] | None, most: int
) -> "tuple[BenchmarkFile, BenchmarkPlan]":
    """The file of a path or a suite, and its cells. Raises ConfigError."""
    from dpaudit.benchmark.grid import plan_of
    from dpaudit.benchmark.suites import benchmark_path
    from dpaudit.benchmark.tuning import refuse_unused
    from dpaudit.files.benchmark_file import BenchmarkFile

    file = BenchmarkFile.read(benchmark_path(named, scale))
    plan = plan_of(file, most)
    refuse_unused(file, plan)
    return file, plan


def _publish(result: "BenchmarkResult", folder: Path, results: Path, name: str) -> None:
    """The leaderboard as JSON and CSV in a folder of results."""
    from dpaudit.reports import published
    from dpaudit.reports.leaderboard import leaderboard

    today = datetime.now(UTC).date().isoformat()
    made = leaderboard(result, folder).published(published_command(), today)
    published.write_tables(results, name, made)


def _backend(
    name: str,
    address: str | None,
    device: options.Device,
    workers: int | None,
    max_memory: int | None,
) -> "AbstractContextManager[Backend]":
    if name == "ray":
        from dpaudit.benchmark.on_ray import connected

        if max_memory is not None:
            raise ConfigError("DPA013", "--max-memory belongs to --backend local")
        return connected(address, device, workers)
    if address is not None:
        raise ConfigError("DPA013", "--address belongs to --backend ray")
    from dpaudit.benchmark.local import LocalProcesses

    return nullcontext(LocalProcesses(device, workers, max_memory))


def _print_ahead(
    plan: "BenchmarkPlan", file: "BenchmarkFile", runtime: "Runtime", quiet: bool
) -> None:
    """Time, memory and power of cells that were not begun."""
    from dpaudit.benchmark.dry_run import cells_ahead, seconds_of, unknown_parts

    if not plan.cells:
        return
    cores, alone = runtime.cores, replace(runtime, cores=1)
    with progress_bars(quiet) as on_progress:
        ahead = cells_ahead(plan, alone, lambda n, of: on_progress("configs", n, of))
    say(f"{'time':>9}  {'memory':>8}  {'certifies':>9}  cell")
    for cell in ahead:
        say(_of_cell(cell, plan.name))
    unknown = unknown_parts(ahead)
    whole = f"{'at least ' if unknown else ''}about {duration(seconds_of(ahead, cores))}"
    say(f"{len(plan.cells)} cells: {whole} on {cores} core{'s' * (cores > 1)}")
    if unknown:
        parts = ", ".join(f"{part} of {n} cells" for part, n in unknown.most_common())
        say(f"left out of that, as their time is unknown: {parts}")
    say(
        "time is of one core, memory of the largest part; certifies is the largest epsilon expected"
        ", behind < the largest that these trials could certify at best"
    )
    if file.benchmark.tuning is not None:
        _print_tuning(plan, file.benchmark.tuning, ahead, cores)


def _print_tuning(
    plan: "BenchmarkPlan", tuning: "Tuning", ahead: "list[CellAhead]", cores: int
) -> None:
    """How many runs choose what is tuned, and how long they take of those whose time is known."""
    from dpaudit.benchmark.tuning import shared_choices

    seconds = {cell.group: cell.costs.tuning for cell in ahead}
    tried = [one for one in shared_choices(plan, tuning) if len(one.candidates) > 1]
    each = [(len(one.candidates), seconds[one.cells[0].group]) for one in tried]
    whole = duration(sum(n * s for n, s in each if s is not None) / cores)
    unknown = sum(n for n, s in each if s is None)
    least, rest = ("at least ", f"; {unknown} of them are of unknown time") if unknown else ("", "")
    said = f"before them {sum(n for n, _ in each)} trainings choose what is tuned"
    say(f"{said}: {least}about {whole} on {cores} core{'s' * (cores > 1)}{rest}")


def _of_cell(cell: "CellAhead", plan_name: str) -> str:
    from dpaudit.files.finding import Name

    time = "unknown" if cell.seconds is None else duration(cell.seconds)
    time = f">{time}" if cell.is_least and cell.seconds is not None else time
    size = "unknown" if cell.size is None else size_text(cell.size)
    seeds = f" ({cell.n_seeds} seeds)" if cell.n_seeds > 1 else ""
    most, known = cell.largest(Name.CEILING), cell.largest(Name.EXPECTED_BOUND)
    ceiling = "unknown" if most is None else f"<{most:.3g}"
    expected = ceiling if known is None else f"{known:.3g}"
    return f"{time:>9}  {size:>8}  {expected:>9}  {cell.group or plan_name}{seeds}"


def _print_cells(result: "BenchmarkResult", out: Path) -> None:
    """A line for each cell, what kept it from a result if it has none, and where all of it is."""
    from dpaudit.files.result import AuditResult
    from dpaudit.reports.comparison import compared_runs
    from dpaudit.reports.run import Run

    rows = []  # figures are of the claim that may lose most, accuracy is the mean over agents
    for cell in (cell for cell in result.cells if cell.state == "done"):
        folder = out / "cells" / cell.name
        found = AuditResult.read(folder / "audit.json")
        [run] = compared_runs([Run(cell.name, 0, found, folder)])
        final = run.utility.get("defense")
        accuracy = None if final is None or final.accuracy is None else final.accuracy.value
        measured = max((c.range.measured for c in found.claims if c.range), default=None)
        figures = run.worst_accounted.compared, measured, run.certified.compared, accuracy
        lacking = found.decided_by.lacking if found.decided_by else ""
        rows.append((found.verdict or "no claim", *map(_shown, figures), cell.name, lacking))
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for row in (COLUMNS, *rows) if rows else ():
        say("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    done = f"{len(rows)} of {len(result.cells)} cells have a result"
    page = out / "leaderboard.html"
    say(f"{done}: {page if page.exists() else out / 'benchmark.json'}")
    for cell in result.cells:
        if cell.state == "failed":
            complain(f"could not run: {cell.name}: {cell.error}")


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.3g}"
