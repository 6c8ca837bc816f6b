"""The figures and tables of a report as files, for a paper: SVG, PDF and PNG, and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.files.result import AuditResult
from dpaudit.files.whole import write_whole
from dpaudit.text import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
DPI = 200  # of PNG files
_COLOURED = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")
_NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
_FORMULA = ("=", "+", "-", "@")  # with which a spreadsheet takes a text for one


def write_figures(result: AuditResult, run_directory: Path, folder: Path) -> list[Path]:
    """Every figure of the report in each format, in the colours of the light page.

    Raises:
        DpauditError: a file cannot be written, or the report cannot be drawn.
    """
    from dpaudit.reports.figures.drawing import KEEP
    from dpaudit.reports.html import render

    written: list[Path] = []

    def keep(name: str, figure: "Figure") -> None:
        _colour(figure)
        for kind in FORMATS:
            path = folder / f"{_file_name(name)}.{kind}"
            content = io.BytesIO()
            figure.savefig(content, format=kind, dpi=DPI, metadata=_NO_DATE.get(kind))
            write_whole(path, content.getvalue())
            written.append(path)

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
        write_whole(paths[-1], _csv(rows).encode())
    return paths


def _csv(rows: Iterable[Mapping[str, object]]) -> str:
    found = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]) if found else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in found)
    return text.getvalue()


def _cell(value: object) -> object:
    """A text shows what is not seen, and is no formula of a spreadsheet."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name.removeprefix("run0-"))


def _colour(figure: "Figure") -> None:
    """The variables of the page's theme by their values on the light page."""
    from matplotlib.colors import to_hex, to_rgba_array

    from dpaudit.reports.figures.drawing import THEME
    from dpaudit.reports.html import TEMPLATES

    css = (TEMPLATES / "audit.css").read_text("utf-8")
    values = {}
    for placeholder, variable in THEME.items():
        found = re.search(rf"{variable[4:-1]}:\s*(#\w+)", css)
        assert found is not None, variable
        values[placeholder] = found[1]
    for artist in figure.findobj():
        for name in _COLOURED:
            colours = getattr(artist, f"get_{name}", lambda: None)()
            if colours is None or (isinstance(colours, str) and colours in ("none", "auto")):
                continue
            rgba = to_rgba_array(colours)
            shown = [values.get(to_hex(colour), to_hex(colour)) for colour in rgba]
            if shown != [to_hex(colour) for colour in rgba]:
                new = to_rgba_array(shown, rgba[:, 3])
                getattr(artist, f"set_{name}")(new if len(new) > 1 else new[0])
