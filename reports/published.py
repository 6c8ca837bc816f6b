"""Published results as files and pages: a paper's table or figure, and tables of other commands."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dpaudit.files.atomic_files import write_whole
from dpaudit.files.published import (
    ExperimentLine,
    ExperimentResult,
    HeldOrdering,
    ResultTables,
    TableEntry,
    limits,
)
from dpaudit.text import duration, lines

from .ci import markdown_cell, table_lines
from .figures.curves import drawn_by_label
from .html import pages
from .numbers import number
from .tables import as_csv as rows_as_csv

IMPOSSIBLE = (
    "this run was made before intervals kept to what is possible, and is here as it came: an end "
    "below 0 says that the seeds differ by more than their mean"
)
MOST_POINTS = 4  # points of a figure's line that a table shows


def render_experiment(result: ExperimentResult) -> str:
    """The page: published, ours with its interval, the difference, and all that was assumed."""
    page = pages().get_template("experiment.html.j2")
    figures = list(drawn_by_label(result))
    return lines(
        page.render(
            result=result,
            header=_header(result),
            rows=[_row(result, line) for line in shown(result)],
            orderings=[ordering_text(held, len(result.seeds)) for held in result.orderings],
            figures=figures,
            took=duration(result.seconds),
        )
    )


def text(result: ExperimentResult) -> Iterator[str]:
    """What a terminal shows."""
    yield result.title
    yield result.shows
    yield from (f"cut: {result.cut}" for _ in [0] if result.cut)
    yield "assumed, as the paper does not say (--set KEY=VALUE for another reading):"
    yield from (f"  {a.key} = {a.value}: {a.says}" for a in result.assumed)
    table = [_header(result), *(_row(result, line) for line in shown(result))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()
    yield from (
        f"{line.error}: {', '.join(line.labels.values())}" for line in result.lines if line.error
    )
    yield from (ordering_text(held, len(result.seeds)) for held in result.orderings)
    yield from result.remarks
    yield f"ours: {_interval_text(result)}; {duration(result.seconds)} of CPU time"


def _interval_text(result: ExperimentResult) -> str:
    """What ours is: of how many seeds, and what its brackets mean."""
    n = len(result.seeds)
    means = f"the mean over {n} seeds" if n > 1 else "of one seed"
    known = [line for line in result.lines if line.ours and line.ours.low is not None]
    if not known:
        return f"{means}; an interval takes three seeds"
    found = f"{means} with its 95% Student-t interval in [ ]{'' if n > 1 else ', over its batches'}"
    if any(line.interval == "range" for line in known):
        found += "; where that would leave what is possible, the range of the seeds in ( )"
    ends = [(x.ours.low, x) for x in known if x.ours and x.ours.low is not None]
    below = any(low < limits(x.quantity)[0] for low, x in ends if x.interval == "student")
    return found + (f"; {IMPOSSIBLE}" if below else "")


def as_csv(runs: Sequence[ExperimentResult]) -> str:
    """All lines of runs of one experiment with all digits, a row for each."""
    return rows_as_csv(
        {
            **{column: line.labels.get(column, "") for column in run.columns},
            **line.model_dump(include={"quantity", "at", "published", "published_spread"}),
            "ours": line.ours and line.ours.value,
            "low": line.ours and line.ours.low,
            "high": line.ours and line.ours.high,
            "n": line.ours and line.ours.n,
            "interval": line.interval if line.ours and line.ours.low is not None else "",
            "difference": line.difference,
            "values": " ".join(map(repr, line.values)),
            **{"data": run.data, "scale": run.scale, "date": run.date, "error": line.error},
        }
        for run in runs
        for line in run.lines
    )


def page(name: str, runs: Sequence[ExperimentResult]) -> str:
    """The page of an experiment, with a section for each of its published runs."""
    first = runs[0]
    scales = dict.fromkeys(run.scale for run in runs)
    files = ", ".join(f"[{name}-{s}.json]({name}-{s}.json), [CSV]({name}-{s}.csv)" for s in scales)
    about = f"{first.paper}: {first.shows}. The numbers as data: {files}."
    return "\n\n".join([f"# {first.table}: {name}", about, *map(as_markdown, runs)]) + "\n"


def as_markdown(result: ExperimentResult) -> str:
    """A run as a section of its experiment's page."""
    rows = [[cell.replace("|", "\\|") for cell in _row(result, line)] for line in shown(result)]
    failed = [x for x in result.lines if x.error]
    part = ", ".join((result.scale, *result.asked, *([result.data] if result.other_data else ())))
    seeds = ", ".join(map(str, result.seeds))
    cut = f" Cut: {result.cut}." if result.cut else ""
    parts = [
        f"## Scale {part}",
        f"    {result.command}",
        f"{_on(result)}Seeds {seeds}, {duration(result.seconds)} of CPU time, {result.date}, "
        f"version {result.version}.{cut} Ours is {_interval_text(result)}.",
        "\n".join(table_lines([_header(result), *rows])),
        *_listed(
            "Orderings:", [ordering_text(held, len(result.seeds)) for held in result.orderings]
        ),
        *_listed("Assumed:", [f"`{a.key}` = {a.value}: {a.says}" for a in result.assumed]),
        *_listed("Did not end:", [f"{', '.join(x.labels.values())}: {x.error}" for x in failed]),
        *_listed("To know:", list(result.remarks)),
    ]
    return "\n\n".join(parts)


def ordering_text(held: HeldOrdering, n_seeds: int) -> str:
    """How often something that the paper says held here."""
    if not held.compared:
        return f"{held.says}: not compared in this run"
    said = f"{held.says}: so in {held.as_published} of {held.compared} pairs"
    if n_seeds < 2:
        return f"{said}, of one run each"
    return f"{said}, confirmed by {held.confirmed}, contradicted by {held.contradicted} intervals"


def shown(result: ExperimentResult) -> list[ExperimentLine]:
    """The lines of a table; of each line of a figure some points, the first and last among them."""
    if not result.at:
        return list(result.lines)
    groups: dict[tuple[object, ...], list[ExperimentLine]] = {}
    for line in result.lines:
        groups.setdefault((*line.labels.items(), line.quantity), []).append(line)
    return [line for points in groups.values() for line in _some(points)]


def _some(points: list[ExperimentLine]) -> list[ExperimentLine]:
    n = len(points)
    if n <= MOST_POINTS:
        return points
    places = {round(i * (n - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)}
    return [points[i] for i in sorted(places)]


def _row(result: ExperimentResult, line: ExperimentLine) -> tuple[str, ...]:
    spread = "" if line.published_spread is None else f" ± {line.published_spread:g}"
    return (
        *(line.labels.get(column, "") for column in result.columns),
        line.quantity,
        *(["" if line.at is None else number(line.at)] if result.at else []),
        "" if line.published is None else f"{line.published:g}{spread}",
        _ours(line),
        "" if line.difference is None else f"{line.difference:+.3g}",
        "" if line.ours is None else str(line.ours.n),
    )


def _ours(line: ExperimentLine) -> str:
    if line.ours is None:
        return "did not end"
    if line.ours.low is None:
        return f"{line.ours.value:.3g}"
    ends = f"{line.ours.low:.3g}, {line.ours.high:.3g}"
    brackets = f"[{ends}]" if line.interval == "student" else f"({ends})"
    return f"{line.ours.value:.3g} {brackets}"


def _header(result: ExperimentResult) -> tuple[str, ...]:
    """What the columns of ``_row`` are called."""
    at = (result.at,) if result.at else ()
    return (*result.columns, "quantity", *at, "published", "ours", "difference", "n")


def _on(result: ExperimentResult) -> str:
    if result.other_data:
        return f"On {result.data}, not the paper's {result.data_of_the_paper}. "
    return f"On {result.data}. " if result.data else ""


def _listed(title: str, points: list[str]) -> list[str]:
    once = list(dict.fromkeys(points))
    return ["\n".join([title, "", *(f"- {point}" for point in once)])] if once else []


def write_tables(folder: Path, name: str, results: ResultTables) -> None:
    """NAME.json and NAME.csv in a folder like docs/results. Raises RunError."""
    write_whole(folder / f"{name}.json", results.to_json().encode())
    write_whole(folder / f"{name}.csv", rows_as_csv(results.rows).encode())


def page_of_tables(name: str, results: ResultTables) -> str:
    """The page of these tables."""
    made = f"    {results.command}" if results.command else ""
    files = f"The numbers as data: [{name}.json]({name}.json), [CSV]({name}.csv)."
    when = f"Made on {results.date}. {files}" if results.date else files
    parts = [f"# {results.title}", results.about, made, when]
    for table in results.tables:
        lines = table_lines([table.columns, *(tuple(map(_shown, row)) for row in table.rows)])
        parts += [f"## {table.title}", table.about, "\n".join(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(entry: TableEntry) -> str:
    if entry is None:
        return ""
    return markdown_cell(entry) if isinstance(entry, str) else f"{entry:,.10g}"
