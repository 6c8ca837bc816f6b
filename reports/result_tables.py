"""Tables of published results as CSV and as a page."""

import csv
import io
from pathlib import Path

from dpaudit.files.published import ResultTables, TableEntry
from dpaudit.files.whole import write_whole

from .ci import markdown_cell
from .tables import cell


def as_csv(results: ResultTables) -> str:
    """All tables in one, with the title of each row's table first."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = list(dict.fromkeys(name for table in results.tables for name in table.columns))
    writer.writerow(map(cell, ["table", *columns]))
    for table in results.tables:
        for row in table.rows:
            entries = dict(zip(table.columns, row, strict=True))
            writer.writerow(map(cell, [table.title, *(entries.get(name) for name in columns)]))
    return out.getvalue()


def write(folder: Path, name: str, results: ResultTables) -> None:
    """NAME.json and NAME.csv in a folder like docs/results. Raises RunError."""
    write_whole(folder / f"{name}.json", results.to_json().encode())
    write_whole(folder / f"{name}.csv", as_csv(results).encode())


def page(name: str, results: ResultTables) -> str:
    """The page of these tables."""
    made = f"    {results.command}" if results.command else ""
    files = f"The numbers as data: [{name}.json]({name}.json), [CSV]({name}.csv)."
    when = f"Made on {results.date}. {files}" if results.date else files
    parts = [f"# {results.title}", results.about, made, when]
    for table in results.tables:
        lines = [table.columns, ("---",) * len(table.columns)]
        lines += [tuple(map(_shown, row)) for row in table.rows]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts += [f"## {table.title}", table.about, rows]
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(entry: TableEntry) -> str:
    if entry is None:
        return ""
    return markdown_cell(entry) if isinstance(entry, str) else f"{entry:,.10g}"
