"""The leaderboard of a benchmark: one HTML page, and one table as CSV and Parquet."""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from dpaudit.errors import ConfigError
from dpaudit.files.benchmark_result import BenchmarkResult
from dpaudit.files.finding import Metric
from dpaudit.files.verdict import SEVERITY
from dpaudit.files.whole import write_whole
from dpaudit.text import lines

from .figures.drawing import KEEP, Drawn, styled
from .figures.files import as_file
from .figures.pareto import Scale, common_scale, pareto, pareto_front
from .figures.privacy_utility import Point
from .html import TEMPLATES, pages
from .measured import FIGURES
from .standings import Gap, Standing, as_rows, gaps_of, standings
from .standings_text import as_markdown
from .tables import Row, as_csv

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PARETO = "pareto"  # begins the names of figures
MOST_PANELS = 24  # small figures of the page


class Panels(NamedTuple):
    """All rows of one adversary in one figure, and those of each graph in a small one."""

    adversary: str
    whole: Drawn
    by_graph: list[tuple[str, Drawn]]


class Leaderboard:
    """What became of a benchmark, row by row.

    Args:
        folder: holds cells/NAME/audit.json for each cell that is done.
    """

    def __init__(self, benchmark: BenchmarkResult, folder: Path) -> None:
        self.benchmark, self.folder = benchmark, folder
        self.standings = standings(benchmark, folder)

    @property
    def rows(self) -> list[Row]:
        """A row for each combination of axes, adversary and claim, over its seeds."""
        return list(as_rows(self.benchmark.axes, self.standings))

    def frame(self) -> "pd.DataFrame":
        """The same as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def csv(self) -> str:
        """The same as the text of a CSV file."""
        return as_csv(self.rows)

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
        return lines(template.render(page=Page(self), css=_css()))

    def markdown(self) -> str:
        """The rows as a table in Markdown, with what fits on a page."""
        return as_markdown(list(map(heading, self.benchmark.axes)), self.standings)

    def write(self) -> list[Path]:
        """leaderboard.html, .csv and .md in the folder, and .parquet where that can be written.

        And for each adversary privacy against utility as leaderboard-NUMBER.svg.

        Raises:
            RunError: a file cannot be written.
        """
        figures: dict[str, Figure] = {}
        token = KEEP.set(figures.__setitem__)
        try:
            page = self.html()
        finally:
            KEEP.reset(token)
        content = {".html": page.encode(), ".csv": self.csv().encode()}
        content[".md"] = self.markdown().encode()
        with suppress(ConfigError):  # an extra that most do without; the CSV has the same
            content[".parquet"] = self.parquet()
        whole = [name for name in figures if name.removeprefix(PARETO).isdigit()]
        for i, name in enumerate(whole, start=1):
            with styled(name):
                content[f"-{i}.svg"] = as_file(figures[name], "svg")
        for ending, data in content.items():
            write_whole(self.folder / f"leaderboard{ending}", data)
        return [self.folder / f"leaderboard{ending}" for ending in content]


def leaderboard(benchmark: BenchmarkResult, folder: Path) -> Leaderboard:
    """The leaderboard of a benchmark whose cells lie in a folder."""
    return Leaderboard(benchmark, folder)


class Page:
    """What the template asks for: the rows, what can be chosen of them, and the figures."""

    def __init__(self, board: Leaderboard) -> None:
        self.benchmark, self.rows = board.benchmark, board.standings
        self.gaps: list[Gap] = gaps_of(self.rows)
        told = {key for row in self.rows for key in row.figures} - {CONFIDENCE}
        self.columns = {key: f.heading for key, f in FIGURES.items() if key in told}

    @property
    def counts(self) -> Counter[str]:
        """Cells by what became of them."""
        waiting = sum(gap.cell.state == "waiting" for gap in self.gaps)
        failed = len(self.gaps) - waiting  # a result that cannot be read is none
        done = len(self.benchmark.cells) - len(self.gaps)
        return Counter(done=done, failed=failed, waiting=waiting)

    @property
    def most_seeds(self) -> int:
        return max((len(row.seeds) for row in self.rows), default=0)

    @property
    def tested(self) -> int:
        """How many claims were tested, each seed's by itself."""
        return len(self._confidences)

    @property
    def wrongly_refuted(self) -> float:
        """How many of them would be on average, at most, if all claims were true."""
        return round(math.fsum(1 - confidence for confidence in self._confidences), 6)

    @cached_property
    def _confidences(self) -> list[float]:
        seeds = (seed for row in self.rows for seed in row.seeds)
        return [seed.figures[CONFIDENCE] for seed in seeds if CONFIDENCE in seed.figures]

    @cached_property
    def choices(self) -> dict[str, tuple[str, list[str]]]:
        """By the mark of a row what can be chosen: what it is called, and its values."""
        axes = {
            f"axis{i}": (heading(axis), [row.values[i] for row in self.rows])
            for i, axis in enumerate(self.benchmark.axes)
        }
        verdicts = {row.verdict for row in self.rows}
        return {
            **{key: (said, list(dict.fromkeys(values))) for key, (said, values) in axes.items()},
            "adversary": ("adversary", self.adversaries),
            "verdict": ("verdict", [v.value for v in SEVERITY if v in verdicts]),
        }

    @cached_property
    def adversaries(self) -> list[str]:
        return list(dict.fromkeys(row.adversary for row in self.rows if row.seeds))

    def about(self, row: Standing) -> Markup:
        """The marks by which a row is chosen."""
        values = {f"axis{i}": value for i, value in enumerate(row.values)}
        values |= {"adversary": row.adversary, "verdict": row.verdict.value if row.verdict else ""}
        return self._marks(values)

    def about_panel(self, adversary: str, graph: str | None = None) -> Markup:
        """Those of a figure of one adversary, and one graph if its panels are of that axis."""
        by_axis = {} if graph is None or self._axis is None else {f"axis{self._axis}": graph}
        return self._marks({"adversary": adversary, **by_axis})

    def _marks(self, values: Mapping[str, str]) -> Markup:
        return Markup("").join(
            Markup(' data-{}="{}"').format(key, self.choices[key][1].index(value))
            for key, value in values.items()
            if value in self.choices[key][1]
        )

    @property
    def _axis(self) -> int | None:
        """Which axis is the graph's."""
        found = (i for i, axis in enumerate(self.benchmark.axes) if heading(axis) == "graph")
        return next(found, None)

    @cached_property
    def by_accuracy(self) -> bool:
        """Whether utility is accuracy; else it is the loss."""
        told = [row.figures for row in self.rows if "test_loss" in row.figures]
        return all("test_accuracy" in figures for figures in told)

    @property
    def utility(self) -> str:
        losses = (seed.loss_is for row in self.rows for seed in row.seeds if seed.loss_is)
        return "test accuracy" if self.by_accuracy else next(losses, "loss")

    @property
    def left_out(self) -> int:
        """Rows without accounting or utility, which no figure shows."""
        return sum(bool(row.seeds) and self._point(row) is None for row in self.rows)

    @cached_property
    def panels(self) -> list[Panels]:
        """A figure for each adversary, and small ones for each graph if there are several."""
        return [made for i, who in enumerate(self.adversaries) if (made := self._panels(i, who))]

    def _panels(self, i: int, adversary: str) -> Panels | None:
        own = [row for row in self.rows if row.seeds and row.adversary == adversary]
        drawn = [(row, point) for row in own if (point := self._point(row)) is not None]
        if not drawn:
            return None
        points = [point for _, point in drawn]
        scale = common_scale(points, self.utility, self.by_accuracy)
        by_graph: dict[str, list[Point]] = {}
        for row, point in drawn:
            by_graph.setdefault(self._graph(row), []).append(point)
        several = list(by_graph.items())[:MOST_PANELS] if len(by_graph) > 1 else []
        small = [
            (graph, _drawn(some, f"{PARETO}{i}-{j}", f"{graph}, read by {adversary}", scale, True))
            for j, (graph, some) in enumerate(several)
        ]
        return Panels(
            adversary, _drawn(points, f"{PARETO}{i}", f"read by {adversary}", scale), small
        )

    def _graph(self, row: Standing) -> str:
        return row.seeds[0].graph if self._axis is None else row.values[self._axis]

    def _point(self, row: Standing) -> Point | None:
        """A row as a mark: at the upper end of accounting, which what is void has not."""
        accounted = row.accounted
        worth = row.figures.get("test_accuracy" if self.by_accuracy else "test_loss")
        if accounted is None or worth is None or not math.isfinite(worth.value):
            return None
        if row.void:
            accounted = Metric(value=math.inf, low=accounted.low, high=math.inf)
        certified = row.figures.get("certified_epsilon")
        return Point(
            number=0,
            label=self._label(row),
            verdict=row.verdict,
            epsilon=accounted,
            certified=None if certified is None else certified.value,
            utility=worth,
        )

    def _label(self, row: Standing) -> str:
        """What sets a row apart within a panel: axes that vary, but for the graph."""
        varying = (
            value
            for i, value in enumerate(row.values)
            if i != self._axis and len(self.choices[f"axis{i}"][1]) > 1
        )
        return ", ".join(varying) or self.benchmark.name


CONFIDENCE = "confidence"


def heading(axis: str) -> str:
    """An axis as a column is called: "defense.name" is the defense."""
    return axis.removesuffix(".name")


def _drawn(points: Sequence[Point], name: str, of: str, scale: Scale, small: bool = False) -> Drawn:
    """A panel, with the rows of its front behind it."""
    front = list(enumerate(pareto_front(points, scale.more_is_better), start=1))
    rows: list[Row] = [
        {"number": i, "row": p.label, "epsilon": p.epsilon.value, scale.utility: p.utility.value}
        for i, p in front
    ]
    named = "; ".join(f"{i} {p.label}" for i, p in front) or "nothing, as no epsilon has an end"
    title = f"Privacy against utility: {of}"
    return Drawn(f"On the front: {named}", pareto(points, name, title, scale, small), rows)


@cache
def _css() -> Markup:
    names = ("audit.css", "comparison.css")
    return Markup("".join((TEMPLATES / name).read_text("utf-8") for name in names))
