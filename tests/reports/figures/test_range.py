"""The range of epsilon: marks in the order of their numbers, labels with room, nothing invented."""

import math

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
    assert [(mark.name, mark.says) for mark in drawn.marks] == [
        ("claimed", "claimed: epsilon at most 6"),
        ("certified", "certified: at least 1.5"),
        ("accounted", "accounted as declared: 6"),
        ("measured", "measured: at most 8"),
    ]
    width = RIGHT - LEFT
    expected = [LEFT + width * x / 8 for x in (6.0, 1.5, 6.0, 8.0)]
    assert [mark.at for mark in drawn.marks] == pytest.approx(expected, abs=0.01)
    assert [text for _, text in drawn.ticks] == ["0", "2", "4", "6", "8"]


def test_numbers_far_apart_stand_on_a_logarithmic_axis() -> None:
    drawn = range_drawing(0.5, known(5.0, 50.0, 500.0))
    steps = [b.at - a.at for a, b in zip(drawn.marks, drawn.marks[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.02)  # a decade each
    assert [text for _, text in drawn.ticks] == ["0", "0.1", "1", "10", "100"]


def test_what_is_infinite_is_an_arrow_at_the_end_without_a_number() -> None:
    drawn = range_drawing(1.0, known(0.0, INF, INF))
    at = {mark.name: (mark.at, mark.is_infinite, mark.says) for mark in drawn.marks}
    assert at["certified"] == (LEFT, False, "certified: at least 0")
    assert at["measured"] == (END, True, "measured: no upper end")
    assert at["accounted"] == (END, True, "accounted as declared: no upper end")
    leaks = range_drawing(1.0, known(INF, INF, INF)).mark("certified")
    assert leaks is not None
    assert leaks.says == "certified: at least ∞"


def test_what_is_void_stands_at_no_number() -> None:
    mark = range_drawing(1.0, known(0.5, 0.75, INF), void=True).mark("accounted")
    assert mark is not None
    assert (mark.at, mark.says) == (END, "accounted as declared: void")


def test_a_claim_without_epsilon_and_what_is_no_number_have_no_mark() -> None:
    drawn = range_drawing(None, known(NAN, 2.0, 3.0))
    assert [mark.name for mark in drawn.marks] == ["accounted", "measured"]
    assert drawn.says == "epsilon on one axis; accounted as declared: 2; measured: at most 3"


@given(st.none() | NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_marks_stand_in_the_order_of_their_numbers(claimed, certified, accounted, measured) -> None:
    drawn = range_drawing(claimed, known(certified, accounted, measured))
    values = {"claimed": claimed, "certified": certified, "accounted": accounted}
    values["measured"] = measured
    ordered = sorted((values[mark.name], mark.at) for mark in drawn.marks)
    places = [at for _, at in ordered]
    assert places == sorted(places)
    assert all(LEFT <= at <= END for at in places)
    assert 2 <= len(drawn.ticks) <= DECADES + 3
    ticks = [at for at, _ in drawn.ticks]
    assert ticks == sorted(set(ticks))
    assert all(LEFT <= at <= RIGHT for at in ticks)
