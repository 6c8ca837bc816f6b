"""A result in Python and notebooks: figures by name, tables as frames, the verdict in a cell."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.errors import ConfigError, nearest
from dpaudit.files.atomic_files import write_whole
from dpaudit.files.finding import Column, Role
from dpaudit.files.result import AuditResult
from dpaudit.text import lines

from .comparison import compared_runs
from .figures.drawing import FORMATS, DrawnFigure, as_file, drawn_figures, on_light
from .figures.evidence import accounting_figures
from .html import pages
from .run import Run
from .tables import TABLES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class ReportFigure:
    """A figure of the report: shown by a notebook, saved as a file, and its numbers."""

    def __init__(self, name: str, drawn: DrawnFigure, figure: "Figure") -> None:
        self.name = name
        self.caption = drawn.caption
        self._drawn, self._figure = drawn, figure

    def __repr__(self) -> str:
        return f"<figure {self.name}: {self.caption}>"

    def _repr_svg_(self) -> str:
        return as_file(self._drawn.name, self._figure, "svg").decode()

    @property
    def frame(self) -> "pd.DataFrame":
        """The numbers behind the figure, a row for each point or interval."""
        import pandas as pd

        return pd.DataFrame(self._drawn.rows)

    def save(self, path: str | Path) -> None:
        """Write it as SVG, PDF or PNG, by the ending of the path.

        Raises:
            ConfigError: another ending.
            RunError: the file cannot be written.
        """
        kind = Path(path).suffix.removeprefix(".").lower()
        if kind not in FORMATS:
            raise ConfigError("DPA014", f"{path}: expected a name that ends in .svg, .pdf or .png")
        write_whole(Path(path), as_file(self._drawn.name, self._figure, kind))


class Figures(Mapping[str, ReportFigure]):
    """The figures of a result by name; each is drawn when it is first asked for.

    Of several of a kind, as for several adversaries, the second is called "trade-off 2".
    """

    def __init__(self, run: Run) -> None:
        self._run, self._drawn = run, dict[str, list[ReportFigure]]()

    def __getitem__(self, name: str) -> ReportFigure:
        numbered = re.fullmatch(r"(.+) (\d+)", name)
        kind, number = (numbered[1], int(numbered[2])) if numbered else (name, 1)
        found = self._of_kind(kind) if kind in _SOURCES else []
        if not 0 < number <= len(found):
            names = list(self)
            known = f"there are: {', '.join(names)}" if names else "this result has none"
            raise ConfigError(
                "DPA006", f'no figure is called "{name}"{nearest(name, names)}; {known}'
            )
        return found[number - 1]

    def __iter__(self) -> Iterator[str]:
        for kind in _SOURCES:
            yield from (figure.name for figure in self._of_kind(kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(name == one for one in self)

    def get(self, name: str, default: Any = None) -> Any:
        """The figure of this name, or the default; ``self[name]`` raises ConfigError instead."""
        try:
            return self[name]
        except ConfigError:
            return default

    def __repr__(self) -> str:
        return f"<figures: {', '.join(self)}>"

    def _of_kind(self, kind: str) -> list[ReportFigure]:
        if kind not in self._drawn:
            self._drawn[kind] = self._draw(kind)
        return self._drawn[kind]

    def _draw(self, kind: str) -> list[ReportFigure]:
        part, draw = _SOURCES[kind]
        with drawn_figures() as figures:
            drawn = draw(self._run)
        return [
            ReportFigure(kind if i == 0 else f"{kind} {i + 1}", one, figures[one.name])
            for i, one in enumerate(one for one in drawn if part in one.name)
        ]


class ReportNotebook:
    """What a notebook is shown of a result."""

    def __init__(self, result: AuditResult, run_directory: Path) -> None:
        self._run = Run("", 0, result, run_directory)
        self.figures = Figures(self._run)

    def frame(self, table: str) -> "pd.DataFrame":
        """One of ``TABLES``. Raises ConfigError for another name."""
        import pandas as pd

        if table not in TABLES:
            known = ", ".join(TABLES)
            raise ConfigError(
                "DPA006", f'no table is called "{table}"{nearest(table, TABLES)}; known: {known}'
            )
        return pd.DataFrame(list(TABLES[table](self._run.result)))

    def html(self) -> str:
        """The verdict, a table of claims and what there is to draw of what decided."""
        decided = self._run.result.decided_by
        drawn = self._run.decisive_figures(decided) if decided else []
        page = pages().get_template("notebook.html.j2")
        [compared] = compared_runs([self._run])
        return on_light(lines(page.render(run=self._run, claims=compared.claims, drawn=drawn)))


def notebook(result: AuditResult, run_directory: Path) -> ReportNotebook:
    """A result as Python and notebooks show it."""
    return ReportNotebook(result, run_directory)


def _leaks(run: Run, is_matrix: bool) -> list[DrawnFigure]:
    found = [f for f in run.result.findings if (f.role is Role.WHO_LEARNS_WHAT) is is_matrix]
    return accounting_figures(found, "run0-matrix" if is_matrix else "run0-exact")


def _information(run: Run) -> list[DrawnFigure]:
    return [drawn for leak in run.leaks for drawn in run.drawings_of(leak)]


# What a figure is called, a part of its identity on the page, and what draws it among others.
_SOURCES: Mapping[str, tuple[str, Callable[[Run], list[DrawnFigure]]]] = {
    "bounds": ("-bounds", lambda run: run.figures_of("empirical-epsilon")),
    "trade-off": ("-tradeoff", lambda run: run.figures_of("empirical-epsilon")),
    "exact leak": ("-exact", lambda run: _leaks(run, is_matrix=False)),
    "who learns what": ("-matrix", lambda run: _leaks(run, is_matrix=True)),
    "sensitivity": ("-sensitivity", lambda run: run.figures_of("sensitivity")),
    "information": (f"-{Column.ROUND}", _information),
    "estimates": (f"-{Column.PRIVATE}", _information),
    "SSIM": ("-ssim", lambda run: [d for a in run.adversaries for d in run.ssim_figures(a)]),
    "search": ("-search", lambda run: [d for s in run.scenarios for d in run.search_figures(s)]),
    "loss": ("-loss", Run.curves),
    "accuracy": ("-accuracy", Run.curves),
    "consensus distance": ("-consensus_distance", Run.curves),
}
