"""The range of epsilon: marks in the order of their numbers, labels with room, nothing invented."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.files.result import EpsilonRange
from dpaudit.reports.figures.range import DECADES, END, LEFT, RIGHT, range_drawing

INF, NAN = math.inf, math.nan
NUMBERS = st.floats(1e-6, 1e6) | st.just(0.0) | st.just(INF)


def known(certified: float, accounted: float, measured: float) -> EpsilonRange:
    return EpsilonRange(certified=certified, accounted=accounted, measured=measured)


def test_a_linear_axis_has_its_marks_in_proportion() -> None:
    drawn = range_drawing(6.0, known(1.5, 6.0, 8.0))
    assert drawn.says == (
        "epsilon on one axis; claimed epsilon: 6; measured: 1.5 to 8; accounted as declared: 6"
    )
    assert drawn.claimed is not None
    assert drawn.measured is not None
    assert drawn.accounted is not None
    places = drawn.claimed.at, drawn.measured.low, drawn.measured.high, drawn.accounted.at
    expected = [LEFT + (RIGHT - LEFT) * x / 8 for x in (6.0, 1.5, 8.0, 6.0)]
    assert places == pytest.approx(expected, abs=0.01)
    assert [text for _, text in drawn.ticks] == ["0", "2", "4", "6", "8"]


def test_numbers_far_apart_stand_on_a_logarithmic_axis() -> None:
    drawn = range_drawing(0.5, known(5.0, 50.0, 500.0))
    assert drawn.claimed is not None
    assert drawn.measured is not None
    assert drawn.accounted is not None
    places = drawn.claimed.at, drawn.measured.low, drawn.accounted.at, drawn.measured.high
    steps = [b - a for a, b in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.02)  # a decade each
    assert [text for _, text in drawn.ticks] == ["0", "0.1", "1", "10", "100"]


@pytest.mark.parametrize(
    ("certified", "measured", "says", "low", "is_open"),
    [
        (0.0, INF, "measured: no bound", LEFT, True),
        (0.0, 1.0, "measured: at most 1", LEFT, False),
        (1.0, INF, "measured: 1 or more", RIGHT, True),
        (INF, INF, "measured: no finite epsilon", END, True),
        (NAN, 1.0, "measured: at most 1", LEFT, False),
        (0.12345, 0.6789, "measured: 0.123 to 0.679", None, False),  # rounded outward
    ],
)
def test_what_is_measured_is_one_interval(
    certified: float, measured: float, says: str, low: float | None, is_open: bool
) -> None:
    mark = range_drawing(1.0, known(certified, 0.5, measured)).measured
    assert mark is not None
    assert (mark.says, mark.is_open) == (says, is_open)
    assert low is None or mark.low == low
    assert (mark.high == END) == is_open


def test_what_is_infinite_or_void_stands_at_no_number() -> None:
    for void, end in ((False, "no upper end"), (True, "void")):
        mark = range_drawing(1.0, known(0.5, 0.75 if void else INF, INF), void=void).accounted
        assert mark is not None
        assert (mark.at, mark.is_open, mark.says) == (END, True, f"accounted as declared: {end}")


def test_a_claim_without_epsilon_has_no_mark() -> None:
    drawn = range_drawing(None, known(NAN, NAN, NAN))
    assert drawn[:3] == (None, None, None)
    drawn = range_drawing(None, known(NAN, 2.0, 3.0))
    assert drawn.says == "epsilon on one axis; measured: at most 3; accounted as declared: 2"


@given(st.none() | NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_marks_stand_in_the_order_of_their_numbers(claimed, certified, accounted, measured) -> None:
    drawn = range_drawing(claimed, known(certified, accounted, measured))
    assert drawn.measured is not None
    assert drawn.accounted is not None
    values = [(certified, drawn.measured.low), (measured, drawn.measured.high)]
    values.append((accounted, drawn.accounted.at))
    if claimed is not None:
        assert drawn.claimed is not None
        values.append((claimed, drawn.claimed.at))
    places = [at for _, at in sorted(values)]
    assert places == sorted(places)
    assert all(LEFT <= at <= END for at in places)
    assert 2 <= len(drawn.ticks) <= DECADES + 3
    ticks = [at for at, _ in drawn.ticks]
    assert ticks == sorted(set(ticks))
    assert all(LEFT <= at <= RIGHT for at in ticks)
