"""The front: nothing that is not beaten is missing, nothing that is beaten is on it."""

import math
import random

import pytest

from dpaudit.files.finding import Metric
from dpaudit.files.verdict import Verdict
from dpaudit.reports.figures.privacy_utility import (
    RunPoint,
    common_scale,
    pareto,
    pareto_front,
)


def point(epsilon: float, utility: float, label: str = "") -> RunPoint:
    return RunPoint(
        number=0,
        label=label,
        verdict=Verdict.NOT_REFUTED,
        epsilon=Metric(value=epsilon, low=min(epsilon, 1.0), high=epsilon),
        certified=None,
        utility=Metric(value=utility),
    )


def beaten(p: RunPoint, by: RunPoint, sign: int) -> bool:
    less, better = by.epsilon.value <= p.epsilon.value, sign * (by.utility.value - p.utility.value)
    return less and better >= 0 and (by.epsilon.value < p.epsilon.value or better > 0)


@pytest.mark.parametrize("more_is_better", [True, False])
def test_the_front_is_what_no_other_beats(more_is_better: bool) -> None:
    rng, sign = random.Random(20240611), 1 if more_is_better else -1
    for _ in range(50):
        points = [point(rng.randint(1, 9), rng.randint(1, 9) / 10) for _ in range(20)]
        front = pareto_front(points, more_is_better)
        free = {
            (p.epsilon.value, p.utility.value)
            for p in points
            if not any(beaten(p, by, sign) for by in points)
        }
        assert {(p.epsilon.value, p.utility.value) for p in front} == free
        assert len(front) == len(free)
        assert [p.epsilon.value for p in front] == sorted(p.epsilon.value for p in front)


def test_what_has_no_upper_end_is_never_on_the_front() -> None:
    assert pareto_front([point(math.inf, 0.9)], True) == []
    assert pareto_front([point(math.inf, 0.9), point(2.0, 0.1)], True) == [point(2.0, 0.1)]


def test_the_front_is_numbered_and_every_mark_says_its_row() -> None:
    points = [point(1.0, 0.5, "first"), point(2.0, 0.75, "second"), point(3.0, 0.6, "beaten")]
    points.append(point(math.inf, 0.9, "void"))
    scale = common_scale(points, "test accuracy", True)
    drawn = pareto(points, "p", "a title", scale).drawing
    for p in points:
        assert f"<title>{p.label}: " in drawn
    assert ">1</text>" in drawn
    assert drawn.count("not refuted</text>") == 1
    small = pareto(points, "q", "a title", scale, small=True).drawing
    assert "not refuted</text>" not in small
    assert "<title>beaten: " in small


def test_panels_of_one_scale_show_all_intervals() -> None:
    wide = point(1.0, 0.5)._replace(utility=Metric(value=0.5, low=-2.0, high=3.0))
    scale = common_scale([wide, point(20.0, 0.75)], "test accuracy", True)
    assert -0.2 < scale.low < 0 < 1 < scale.high < 1.2
    assert scale.largest_epsilon == 20.0
    loss = common_scale([wide], "loss", False)
    assert loss.low < -2.0 < 3.0 < loss.high
