"""Drawings: plain numbers on axes, the size of their content, values, colours of worlds."""

import math
import re
from itertools import combinations

import pytest

from dpaudit.files.finding import Finding, Role
from dpaudit.files.result import Curve
from dpaudit.reports.figures.curves import training_curve
from dpaudit.reports.figures.drawing import LOOKS
from dpaudit.reports.figures.evidence import sensitivity_by_round, tradeoff_curve
from dpaudit.reports.figures.reconstruction import search_by_iteration
from dpaudit.reports.html import TEMPLATES

SENSITIVITY = {"round": (1, 2), "natural": (0.003, 5.0), "stated bound": (6.0, 6.0)}
RATES = {
    "false positive rate": (0.001, 0.2, 1.0),
    "false negative rate": (1.0, 0.3, 0.002),
    "least that the claim allows": (0.9, 0.2, 0.001),
}
SEARCH = {"iteration": (0, 1, 2), "loss": (50.0, 1.0, 0.002), "psnr": (3.0, 4.0, 5.0)}
CONSENSUS = Curve(
    rounds=(0, 5), loss=((1.0,), (1.0,)), accuracy=(), consensus_distance=(0.001, 2000.0)
)


def finding(role: Role, **changes: object) -> Finding:
    kinds = {Role.TEST: "empirical-epsilon"}
    return Finding(role=role, kind=kinds.get(role, str(role)), title="t", **changes)


DRAWN = {
    "sensitivity": lambda: (
        sensitivity_by_round(finding(Role.SENSITIVITY, series=SENSITIVITY), "a").drawing
    ),
    "trade-off": lambda: tradeoff_curve(finding(Role.TEST, series=RATES), "a", "title").drawing,
    "search": lambda: (
        search_by_iteration(
            [finding(Role.RECONSTRUCTION, world="defense", trace=SEARCH)], "a", "title"
        )[0].drawing
    ),
    "consensus": lambda: training_curve({"defense": CONSENSUS}, "consensus_distance", "a").drawing,
}


@pytest.mark.parametrize("name", DRAWN)
def test_ticks_of_a_logarithmic_axis_are_numbers(name: str) -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", DRAWN[name]().replace("−", "-"))
    ticks = [text for text in texts if re.match(r"[\d.$]", text)]
    assert {f"{float(tick):g}" for tick in ticks} >= {"0.01", "0.1", "1"}


def test_between_powers_of_ten_stand_numbers_too() -> None:
    trace = {"iteration": (0, 1, 2), "loss": (0.9, 0.5, 0.22), "psnr": (3.0, 4.0, 5.0)}
    searched = finding(Role.RECONSTRUCTION, world="defense", trace=trace)
    (figure,) = search_by_iteration([searched], "a", "title")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", figure.drawing)
    assert {"0.5", "1"} <= set(texts)
    assert not any("e" in text for text in texts if text[:1].isdigit())
    assert "0.9" not in texts  # no crowd below 1


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_as_wide_as_its_content(name: str) -> None:
    svg = DRAWN[name]()
    (width,) = re.findall(r'style="width: (\d+)px"', svg)
    assert 300 < int(width) < 500
    assert re.search(r'<svg[^>]*viewBox="0 0 [\d.]+ [\d.]+"', svg)
    assert not re.search(r"<svg[^>]*\swidth=", svg)


def test_each_mark_says_its_value() -> None:
    series = {"round": (1, 2), "natural": (0.003, 5.0), "stated bound": (6.0, 6.5)}
    svg = sensitivity_by_round(finding(Role.SENSITIVITY, series=series), "a").drawing
    titles = re.findall(r"<use[^>]*><title>([^<]*)</title></use>", svg)
    assert titles == [
        "natural: round 1, norm of the difference 0.003",
        "natural: round 2, norm of the difference 5",
        "stated bound: round 1, norm of the difference 6",
        "stated bound: round 2, norm of the difference 6.5",
    ]


def test_the_rounds_of_a_search_are_side_by_side_on_one_scale() -> None:
    other = SEARCH | {"loss": (500.0, 1.0, 0.02)}
    searched = [
        finding(Role.RECONSTRUCTION, world="defense", rounds=(k,), trace=trace)
        for k, trace in ((3, SEARCH), (9, other))
    ]
    first, second = search_by_iteration(searched, "a", "title")
    assert (first.caption, second.caption) == ("round 3", "round 9")
    ticks = [set(re.findall(r"<text[^>]*>([\d.]+)</text>", f.drawing)) for f in (first, second)]
    assert ticks[0] == ticks[1] >= {"0.1", "10"}
    assert [row["loss"] for row in second.rows] == [500.0, 1.0, 0.02]


MACHADO = {  # Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as it is seen
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}  # fmt: skip


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]


def lab(rgb: list[float]) -> list[float]:
    """CIELAB under D65 of linear RGB."""
    matrix = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(m * c for m, c in zip(row, rgb, strict=True)) for row in matrix]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (max(v, 0) / white for v, white in zip(xyz, (0.9505, 1, 1.089), strict=True))
    )
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("seen", [*MACHADO, "all colours"])
def test_worlds_differ_in_colour_whoever_looks(theme: int, seen: str) -> None:
    css = (TEMPLATES / "audit.css").read_text()
    colours = [re.findall(rf"--{world}: (#\w+)", css)[theme] for world in LOOKS]
    matrix = MACHADO.get(seen, ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    shown = [
        lab([sum(m * c for m, c in zip(row, linear(colour), strict=True)) for row in matrix])
        for colour in colours
    ]
    for one, other in combinations(shown, 2):
        assert math.dist(one, other) > 20
    paper = linear(re.findall(r"--paper: (#\w+)", css)[theme])
    for colour in map(linear, colours):  # contrast of graphics, WCAG 1.4.11
        light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (paper, colour)]
        assert (max(light) + 0.05) / (min(light) + 0.05) >= 3
