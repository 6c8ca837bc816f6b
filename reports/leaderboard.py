"""The leaderboard of a benchmark: one HTML page, and one table as CSV and Parquet."""

import io
import math
from collections import Counter
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpaudit.errors import ConfigError
from dpaudit.files.atomic_files import write_whole
from dpaudit.files.benchmark_result import BenchmarkResult
from dpaudit.files.finding import Metric
from dpaudit.files.published import ResultTable, ResultTables
from dpaudit.files.verdict import SEVERITY
from dpaudit.text import duration, lines

from .equal_epsilon import equal_epsilon_table
from .figures.drawing import DrawnFigure, as_file, drawn_figures
from .figures.privacy_utility import RunPoint, common_scale, pareto
from .html import pages
from .standings import FIGURES, Gap, Standing, as_markdown, as_rows, as_table, gaps_of, standings
from .tables import Row, as_csv

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = "confidence"
MOST_PANELS = 24  # small figures of the page


class Panels(NamedTuple):
    """All rows of one adversary in one figure, and those of each graph in a small one."""

    adversary: str
    whole: DrawnFigure
    by_graph: list[tuple[str, DrawnFigure]]


class Leaderboard:
    """What became of a benchmark, row by row, and what its page asks for.

    Args:
        folder: holds cells/NAME/audit.json for each cell that is done.
    """

    def __init__(self, benchmark: BenchmarkResult, folder: Path) -> None:
        self.benchmark, self.folder = benchmark, folder
        self.standings = standings(benchmark, folder)
        self.gaps: list[Gap] = gaps_of(self.standings)
        self.seeds = [seed for row in self.standings for seed in row.seeds]
        self.axes = [axis.removesuffix(".name") for axis in benchmark.axes]  # names of columns

    @property
    def rows(self) -> list[Row]:
        """A row for each combination of axes, adversary and claim, over its seeds."""
        return list(as_rows(self.benchmark.axes, self.standings))

    def frame(self) -> "pd.DataFrame":
        """The same as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def parquet(self) -> bytes:
        """The same as the content of a Parquet file.

        Raises:
            ConfigError: the package that writes it is not installed.
        """
        try:
            import pyarrow  # noqa: F401  (what pandas writes with)
        except ImportError:
            raise ConfigError(
                "DPA023", 'a Parquet file needs the package pyarrow: pip install "dpaudit[parquet]"'
            ) from None
        content = io.BytesIO()
        self.frame().to_parquet(content, engine="pyarrow", index=False)
        return content.getvalue()

    def html(self) -> str:
        """The page, which loads nothing from elsewhere."""
        template = pages().get_template("leaderboard.html.j2")
        return lines(template.render(page=self))

    def published(self, command: str, date: str) -> ResultTables:
        """The rows as data of a folder like docs/results.

        Args:
            command: that makes the same again.
        """
        of = self.benchmark
        seconds = duration(sum(of.timing.values()))
        about = f"{len(of.cells)} cells, dpaudit {of.version}: {seconds} of all cells together."
        axes = dict(zip(of.axes, self.axes, strict=True))
        equal = self.equal_epsilon
        tables = (*([equal] if equal else []), as_table(axes, self.standings, about))
        title = f"Leaderboard: {of.name}"
        return ResultTables(title=title, command=command, date=date, tables=tables)

    def write(self) -> list[Path]:
        """leaderboard.html, .csv and .md in the folder, and .parquet where that can be written.

        And for each adversary privacy against utility as leaderboard-NUMBER.svg.

        Raises:
            RunError: a file cannot be written.
        """
        with drawn_figures() as figures:
            content = {".html": self.html().encode()}
        content[".csv"] = as_csv(self.rows).encode()
        content[".md"] = as_markdown(self.axes, self.standings).encode()
        with suppress(ConfigError):  # an extra that most do without; the CSV has the same
            content[".parquet"] = self.parquet()
        whole = [name for name in figures if name.removeprefix("pareto").isdigit()]
        for i, name in enumerate(whole, start=1):
            content[f"-{i}.svg"] = as_file(name, figures[name], "svg")
        for ending, data in content.items():
            write_whole(self.folder / f"leaderboard{ending}", data)
        return [self.folder / f"leaderboard{ending}" for ending in content]

    @cached_property
    def equal_epsilon(self) -> ResultTable | None:
        """Accuracy at equal measured epsilon; None: nothing was measured or classified."""
        axes = dict(zip(self.benchmark.axes, self.axes, strict=True))
        return equal_epsilon_table(axes, self.standings)

    @property
    def columns(self) -> dict[str, str]:
        """The figures that some row has, by the key of each its heading."""
        present = {key for row in self.standings for key in row.figures} - {CONFIDENCE}
        return {key: figure.heading for key, figure in FIGURES.items() if key in present}

    @property
    def counts(self) -> Counter[str]:
        """Cells by what became of them."""
        waiting = sum(gap.cell.state == "waiting" for gap in self.gaps)
        failed = len(self.gaps) - waiting  # a result that cannot be read is none
        done = len(self.benchmark.cells) - len(self.gaps)
        return Counter(done=done, failed=failed, waiting=waiting)

    @cached_property
    def confidences(self) -> list[float]:
        """The confidence of every tested claim, seed by seed."""
        return [seed.figures[CONFIDENCE] for seed in self.seeds if CONFIDENCE in seed.figures]

    @property
    def wrongly_refuted(self) -> float:
        """How many of them would be on average, at most, if all claims were true."""
        return round(math.fsum(1 - confidence for confidence in self.confidences), 6)

    @cached_property
    def choices(self) -> dict[str, tuple[str, list[str]]]:
        """By the mark of a row what can be chosen: what it is called, and its values."""
        verdicts = {row.verdict for row in self.standings}
        axes = {
            f"axis{i}": (axis, list(dict.fromkeys(row.values[i] for row in self.standings)))
            for i, axis in enumerate(self.axes)
        }
        return {
            **axes,
            "adversary": ("adversary", list(dict.fromkeys(seed.adversary for seed in self.seeds))),
            "verdict": ("verdict", [v.value for v in SEVERITY if v in verdicts]),
        }

    def chosen(self, row: Standing) -> dict[str, str | None]:
        """The ``choices`` that select a row."""
        values = {f"axis{i}": value for i, value in enumerate(row.values)}
        return {**values, "adversary": row.adversary, "verdict": row.verdict}

    @property
    def graph_axis(self) -> int | None:
        return self.axes.index("graph") if "graph" in self.axes else None

    @cached_property
    def by_accuracy(self) -> bool:
        """Whether utility is accuracy; else it is the loss."""
        trained = [row.figures for row in self.standings if "test_loss" in row.figures]
        return all("test_accuracy" in figures for figures in trained)

    @property
    def utility(self) -> str:
        losses = (seed.loss_is for seed in self.seeds if seed.loss_is)
        return "test accuracy" if self.by_accuracy else next(losses, "loss")

    @property
    def left_out(self) -> int:
        """Rows without accounting or utility, which no figure shows."""
        return sum(bool(row.seeds) and self._point(row) is None for row in self.standings)

    @cached_property
    def panels(self) -> list[Panels]:
        """A figure for each adversary, and small ones for each graph if there are several."""
        found: list[Panels] = []
        axis = self.graph_axis
        for i, adversary in enumerate(self.choices["adversary"][1]):
            points: list[RunPoint] = []
            by_graph: dict[str, list[RunPoint]] = {}
            for row in self.standings:
                point = self._point(row)
                if row.seeds and row.adversary == adversary and point is not None:
                    graph = row.seeds[0].graph if axis is None else row.values[axis]
                    by_graph.setdefault(graph, []).append(point)
                    points.append(point)
            if not points:
                continue
            scale = common_scale(points, self.utility, self.by_accuracy)
            read = f"read by {adversary}"
            several = list(by_graph.items())[:MOST_PANELS] if len(by_graph) > 1 else []
            small = [
                (graph, pareto(own, f"pareto{i}-{j}", f"{graph}, {read}", scale, small=True))
                for j, (graph, own) in enumerate(several)
            ]
            found.append(Panels(adversary, pareto(points, f"pareto{i}", read, scale), small))
        return found

    def _point(self, row: Standing) -> RunPoint | None:
        """A row as a mark: at the upper end of accounting, which what is void has not.

        Its label is what sets it apart within a panel: the axes that vary, without the graph.
        """
        accounted = row.accounted
        worth = row.figures.get("test_accuracy" if self.by_accuracy else "test_loss")
        if accounted is None or worth is None or not math.isfinite(worth.value):
            return None
        if row.void:
            accounted = Metric(value=math.inf, low=accounted.low, high=math.inf)
        varying = (
            value
            for i, value in enumerate(row.values)
            if i != self.graph_axis and len(self.choices[f"axis{i}"][1]) > 1
        )
        certified = row.figures.get("certified_epsilon")
        return RunPoint(
            number=0,
            label=", ".join(varying) or self.benchmark.name,
            verdict=row.verdict,
            epsilon=accounted,
            certified=None if certified is None else certified.value,
            utility=worth,
        )


def leaderboard(benchmark: BenchmarkResult, folder: Path) -> Leaderboard:
    """The leaderboard of a benchmark whose cells lie in a folder."""
    return Leaderboard(benchmark, folder)
