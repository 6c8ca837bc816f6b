"""Tables of published results as CSV and as a page."""

from pathlib import Path

from dpaudit.files.published import ResultTables, TableEntry
from dpaudit.files.whole import write_whole

from .ci import markdown_cell, table_lines
from .tables import as_csv


def write(folder: Path, name: str, results: ResultTables) -> None:
    """NAME.json and NAME.csv in a folder like docs/results. Raises RunError."""
    write_whole(folder / f"{name}.json", results.to_json().encode())
    write_whole(folder / f"{name}.csv", as_csv(results.rows).encode())


def page(name: str, results: ResultTables) -> str:
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
