"""Rows that benchmarks measured, put into training.json and .csv of docs/results."""

from collections.abc import Iterable
from pathlib import Path

from dpaudit.files.published import ResultTables, TableEntry
from dpaudit.reports import published

TableRow = tuple[TableEntry, ...]


def put(folder: Path, title: str, rows: Iterable[TableRow]) -> None:
    """Rows of the table of that title: each replaces one of the same first entry, or is added."""
    found = ResultTables.read(folder / "training.json")
    [table] = (table for table in found.tables if table.title == title)
    merged = {row[0]: row for row in (*table.rows, *rows)}
    changed = table.model_copy(update={"rows": tuple(merged.values())})
    tables = tuple(changed if one is table else one for one in found.tables)
    published.write_tables(folder, "training", found.model_copy(update={"tables": tables}))
