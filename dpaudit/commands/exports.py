"""The figures and tables of a report as files, for a paper: SVG, PDF and PNG, and CSV."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit.files.result import AuditResult
from dpaudit.files.whole import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figures(result: AuditResult, run_directory: Path, folder: Path) -> list[Path]:
    """Every figure of the report in each format, in the colours of the light page.

    Raises:
        DpauditError: a file cannot be written, or the report cannot be drawn.
    """
    from dpaudit.reports.figures.drawing import KEEP
    from dpaudit.reports.figures.files import FORMATS, as_file
    from dpaudit.reports.html import render

    written: list[Path] = []

    def keep(name: str, figure: "Figure") -> None:
        for kind in FORMATS:
            written.append(folder / f"{_file_name(name)}.{kind}")
            write_whole(written[-1], as_file(figure, kind))

    token = KEEP.set(keep)
    try:
        render(result, run_directory)
    finally:
        KEEP.reset(token)
    return written


def write_tables(result: AuditResult, folder: Path) -> list[Path]:
    """claims.csv, metrics.csv, series.csv, traces.csv and training.csv: a row for each number.

    Raises:
        RunError: a file cannot be written.
    """
    from dpaudit.reports import tables

    every = {
        "claims": tables.claims(result),
        "metrics": tables.metrics(enumerate(result.findings)),
        "series": tables.series(result),
        "traces": tables.traces(result),
        "training": tables.training(result),
    }
    paths = []
    for name, rows in every.items():
        paths.append(folder / f"{name}.csv")
        write_whole(paths[-1], tables.as_csv(rows).encode())
    return paths


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name.removeprefix("run0-"))
