"""The figures and tables of a report as files, for a paper: SVG, PDF and PNG, and CSV."""

import re
from pathlib import Path

from dpaudit.files.result import AuditResult
from dpaudit.files.whole import write_whole


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
        for kind in FORMATS:
            written.append(folder / f"{_file_name(name)}.{kind}")
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


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name.removeprefix("run0-"))
