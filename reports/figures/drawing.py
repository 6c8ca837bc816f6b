"""A result's own numbers as inline SVG, in the colours of the page's theme, light or dark.

Every drawing is deterministic: no date, salted ids, matplotlib's own defaults whatever the user's.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

from dpaudit.reports.tables import Row

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
else:
    Axes = Any  # for annotations: a page without drawings loads no matplotlib

# Each colour as it is drawn, and the variable of audit.css in which it is shown.
_VARIABLES = ["ink", "muted", "rule", "defense", "no-defense", "blind", "green", "purple", "ochre"]
THEME = {f"#0d0a{i:02}": f"var(--{name})" for i, name in enumerate(_VARIABLES, start=1)}
INK, MUTED, RULE, DEFENSE, NO_DEFENSE, BLIND, GREEN, PURPLE, OCHRE = THEME
FORMATS = ("svg", "pdf", "png")  # file formats
DPI = 200  # resolution of PNG files
_DRAWN: ContextVar[dict[str, "Figure"] | None] = ContextVar("_DRAWN", default=None)
_COLOURED = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")
_NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
PADDING = 6.0  # pixels at 100 to the inch, around each panel
EPSILONS = (0.0, 0.5, *(m * 10.0**e for e in range(7) for m in (1, 2, 5)))  # ticks
LONGEST_LINE = 250  # points of a line that each show their value


class DrawnFigure(NamedTuple):
    """A figure of the page, and its numbers as a table behind it."""

    caption: str
    drawing: Markup
    rows: Sequence[Row] = ()
    rounds: tuple[int, ...] = ()  # rounds of the figure, if other figures are of others
    name: str = ""  # a part of ids


class Look(NamedTuple):
    colour: str
    marker: str
    dash: tuple[int, ...]  # on, off, in line widths; empty: solid


# Marker and dash distinguish the worlds where colour does not.
LOOKS = {
    "no-defense": Look(NO_DEFENSE, "s", (3, 2)),
    "defense": Look(DEFENSE, "o", ()),
    "blind": Look(BLIND, "D", (1, 1)),
}
OTHER = Look(MUTED, "^", (5, 1, 1, 1))
SERIES = (  # colours, in turn, of runs and kinds of neighbour
    Look(GREEN, "o", ()),
    Look(PURPLE, "s", (3, 2)),
    Look(OCHRE, "D", (1, 1)),
    Look(INK, "v", (4, 1, 1, 1)),
    OTHER,
)

_STYLE = {
    "text.parse_math": False,  # a name with dollar signs is a name
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's font
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": RULE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def whole_rounds(axes: Axes) -> None:
    """No fractions of a round on the axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plain_numbers(*every: "Axis") -> None:
    """On logarithmic axes, for which matplotlib would write mathematics: 1, 2, 5, 10, 20, ...

    Once their limits are set: ticks at 2 and 5 are enough, and soon drawn, but within an octave.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator

    def between(x: float, axis: "Axis") -> str:
        low, high = axis.get_view_interval()
        labelled = "25" if high > 2 * low else "23456789"
        return f"{x:g}" if high <= 100 * low and f"{x:e}"[0] in labelled else ""

    for axis in every:
        low, high = axis.get_view_interval()
        if high > 2 * low:
            axis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(FuncFormatter(lambda x, _, axis=axis: between(x, axis)))


def epsilon_ticks(axes: Axes, largest: float) -> None:
    """Logarithmic from 1 on, where an epsilon over 10 is drawn."""
    if largest > 10:
        axes.set_xscale("symlog", linthresh=1.0)
        ticks = [tick for tick in EPSILONS if tick <= largest]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)


def named_rows(axes: Axes, names: Sequence[str]) -> None:
    """A row of marks for each name, from the top."""
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def legend_above(axes: Axes, ncols: int, **more: Any) -> "Legend":
    """A legend over the middle of the axes."""
    return axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=ncols, **more)


def clipped(text: str, longest: int) -> str:
    """A name that fits beside a mark."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


@contextmanager
def drawn_figures() -> Iterator[dict[str, "Figure"]]:
    """Every figure that is drawn meanwhile, by its name, for those who want files of them."""
    figures: dict[str, Figure] = {}
    token = _DRAWN.set(figures)
    try:
        yield figures
    finally:
        _DRAWN.reset(token)


def as_file(name: str, figure: "Figure", kind: str) -> bytes:
    """A figure that a page has drawn as one of ``FORMATS``: light colours and no date."""
    from matplotlib.colors import to_hex, to_rgba_array

    values = _light_colours()
    for artist in figure.findobj():
        for attribute in _COLOURED:
            colours = getattr(artist, f"get_{attribute}", lambda: None)()
            if colours is None or (isinstance(colours, str) and colours in ("none", "auto")):
                continue
            rgba = to_rgba_array(colours)
            shown = [values.get(to_hex(colour), to_hex(colour)) for colour in rgba]
            if shown != [to_hex(colour) for colour in rgba]:
                new = to_rgba_array(shown, rgba[:, 3])
                getattr(artist, f"set_{attribute}")(new if len(new) > 1 else new[0])
    content = io.BytesIO()
    with _styled(name):
        figure.savefig(content, format=kind, dpi=DPI, metadata=_NO_DATE.get(kind))
    return content.getvalue()


def on_light(drawing: str) -> str:
    """A drawing of a page for a page that has no variables for colours."""
    values = _light_colours()
    for placeholder, variable in THEME.items():
        drawing = drawing.replace(variable, values[placeholder])
    return drawing


@cache
def _light_colours() -> dict[str, str]:
    """What the variables of the page's theme are on the light page, by what is drawn."""
    css = (Path(__file__).parents[1] / "templates" / "audit.css").read_text("utf-8")
    values = {}
    for placeholder, variable in THEME.items():
        found = re.search(rf"{variable[4:-1]}:\s*(#\w+)", css)
        assert found is not None, variable
        values[placeholder] = found[1]
    return values


def draw(
    name: str,
    title: str,
    inches: tuple[float, float],
    paint: Callable[..., None],
    caption: str = "",
    rows: Iterable[Row] = (),
    rounds: tuple[int, ...] = (),
    panels: int = 1,
) -> DrawnFigure:
    """What ``paint`` makes of so many axes side by side, as a part of a page.

    Args:
        name: unique on the page; becomes a part of ids.
        title: what the drawing shows, for those who do not see it.
        caption: of the figure; by default its title.
        rows: its numbers.
    """
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with _styled(name):
        figure = Figure(figsize=inches)
        paint(*figure.subplots(1, panels, squeeze=False)[0])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # the page has fonts of its own
            _fit(figure)
            values = dict(_readable(figure))
            figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
            if (drawn := _DRAWN.get()) is not None:
                drawn[name] = figure
    svg = _inline(_with_values(buffer.getvalue(), values), name, title, inches[0])
    return DrawnFigure(caption or title, svg, list(rows), rounds, name)


@contextmanager
def _styled(name: str) -> Iterator[None]:
    """matplotlib's settings for a figure of this name; the caller's are restored afterwards."""
    from matplotlib import style

    with style.context(["default", _STYLE | {"svg.hashsalt": name}]):
        yield


def _fit(figure: "Figure") -> None:
    """Panels of equal size, with as much room around each as its labels take.

    What matplotlib's own layouts give, in half the time: they draw everything twice.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    around = []  # left, bottom, right and top of each panel, in pixels
    for axes in figure.axes:
        beyond = [artist for artist in (axes.get_legend(), *axes.texts) if artist]  # not clipped
        outer = axes.get_tightbbox(renderer, bbox_extra_artists=beyond)
        inner = axes.get_window_extent(renderer)
        assert outer is not None
        sides = inner.x0 - outer.x0, inner.y0 - outer.y0, outer.x1 - inner.x1, outer.y1 - inner.y1
        around.append([max(0.0, side) + PADDING for side in sides])
    width, height = figure.bbox.width, figure.bbox.height
    below, above = max(sides[1] for sides in around), max(sides[3] for sides in around)
    room = (width - sum(left + right for left, _, right, _ in around)) / len(around)
    x = 0.0
    for axes, (left, _, right, _) in zip(figure.axes, around, strict=True):
        box = (x + left, below, max(room, 10.0), max(height - below - above, 10.0))
        axes.set_position((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        x += left + room + right


def _readable(figure: "Figure") -> Iterator[tuple[str, list[str]]]:
    """Values of marks as text, by the id of their group; lines get invisible marks for this.

    What has no label of its own, such as a thin line of many, has none.
    """
    import numpy as np

    for i, axes in enumerate(figure.axes):
        labels = [axis.get_label_text() for axis in (axes.xaxis, axes.yaxis)]
        for j, line in enumerate(axes.lines):
            places = np.asarray(line.get_xydata(), dtype=float).tolist()
            points = [pair for pair in places if all(map(math.isfinite, pair))]
            if _is_named(line) and 0 < len(points) <= LONGEST_LINE:
                if line.get_marker() in (None, "None", "none", "", " "):
                    line.set(marker="o", markersize=7, markerfacecolor="none")
                    line.set(markeredgecolor="none", markevery=None)
                if line.get_markevery() is None:
                    line.set_gid(f"values-{i}-{j}")
                    named = (zip(labels, pair, strict=True) for pair in points)
                    texts = (", ".join(f"{k} {x:.4g}" for k, x in pair if k) for pair in named)
                    yield f"values-{i}-{j}", [f"{line.get_label()}: {text}" for text in texts]
        for j, patch in enumerate(axes.patches):
            if _is_named(patch):
                patch.set_gid(f"value-{i}-{j}")
                yield f"value-{i}-{j}", [str(patch.get_label())]


def _is_named(artist: "Artist") -> bool:
    return not str(artist.get_label()).startswith("_")


def _with_values(svg: str, values: Mapping[str, Sequence[str]]) -> str:
    """Each mark with its value as a title, which browsers show where a pointer rests."""
    for group, texts in values.items():
        head, found, rest = svg.partition(f'<g id="{group}">')
        own, following, tail = rest.partition("<g id=")
        tag = "use" if group.startswith("values") else "path"
        marks = re.findall(rf"<{tag} [^>]*/>", own)
        if len(marks) == len(texts):  # none lies beyond the drawing
            for mark, text in zip(marks, texts, strict=True):
                titled = f"{mark[:-2]}><title>{escape(text)}</title></{tag}>"
                own = own.replace(mark, titled, 1)
        svg = head + found + own + following + tail
    return svg


def _inline(svg: str, name: str, title: str, width: float) -> Markup:
    """matplotlib's file as a part of an HTML page: themed, titled, its ids not those of others.

    It shrinks where there is no room, and never grows beyond its ``width`` in inches.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<[^>]+>", lambda tag: _page_tag(tag[0], name), svg)
    head, body = re.sub(r"\s*\n\s*", " ", svg).split(">", 1)
    label = f'role="img" aria-labelledby="{name}-title" style="width: {96 * width:.0f}px">'
    label += f'<title id="{name}-title">{escape(title)}'
    return Markup(f"{head} {label}</title>{body}")


def _page_tag(tag: str, name: str) -> str:
    """One tag of matplotlib's: colours to theme variables, ids made unique, no font, no size."""
    for colour, variable in THEME.items():
        tag = tag.replace(colour, variable)
    tag = re.sub(r'\sid="', f' id="{name}-', tag)
    tag = re.sub(r'\s(?:xlink:)?href="#', f' href="#{name}-', tag)
    tag = tag.replace("url(#", f"url(#{name}-")
    tag = re.sub(r"\sfont-family:[^;\"]*;?", "", tag)
    if tag.startswith("<svg"):
        tag = re.sub(r'\s(?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", tag)
    return tag
