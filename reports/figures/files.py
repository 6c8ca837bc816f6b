"""A figure as the content of a file, in the colours of the light page and without a date."""

import io
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from .drawing import THEME

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
DPI = 200  # of PNG files
_COLOURED = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")
_NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def as_file(figure: "Figure", kind: str) -> bytes:
    """A figure that a page has drawn, as one of ``FORMATS``."""
    _colour(figure)
    content = io.BytesIO()
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
    from dpaudit.reports.html import TEMPLATES

    css = (TEMPLATES / "audit.css").read_text("utf-8")
    values = {}
    for placeholder, variable in THEME.items():
        found = re.search(rf"{variable[4:-1]}:\s*(#\w+)", css)
        assert found is not None, variable
        values[placeholder] = found[1]
    return values


def _colour(figure: "Figure") -> None:
    from matplotlib.colors import to_hex, to_rgba_array

    values = _light_colours()
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
