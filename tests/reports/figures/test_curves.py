"""Training as it is drawn of several runs: what the lines are, and what is behind them."""

import re

from dpaudit.files.result import Curve
from dpaudit.reports.figures.curves import training_by_run, training_curve
from dpaudit.reports.tables import CROWD

INF = float("inf")


def curve(*loss: tuple[float, ...], accuracy: tuple[tuple[float, ...], ...] = ()) -> Curve:
    rounds = tuple(range(1, len(loss) + 1))
    return Curve(rounds=rounds, loss=loss, accuracy=accuracy, consensus_distance=(0.0,) * len(loss))


def test_each_run_is_its_mean_over_agents() -> None:
    runs = {"1 a": curve((2.0, 4.0), (1.0, 2.0)), "2 " + "b" * 40: curve((8.0, 6.0), (5.0, 5.0))}
    drawn = training_by_run(runs, False, "c")
    assert drawn is not None
    found = re.findall(r"<title>([^<]*test loss [^<]*)</title>", drawn.drawing)
    long = "2 " + "b" * 25 + "…"
    assert found == [
        "1 a: round 1, test loss 3", "1 a: round 2, test loss 1.5",
        f"{long}: round 1, test loss 7", f"{long}: round 2, test loss 5",
    ]  # fmt: skip
    assert [row["test loss"] for row in drawn.rows] == [2, 4, 1, 2, 8, 6, 5, 5]


def test_accuracy_is_drawn_where_it_is_asked_for() -> None:
    drawn = training_by_run({"1 a": curve((2.0,), accuracy=((0.25,),))}, True, "c")
    assert drawn is not None
    assert [row["test accuracy"] for row in drawn.rows] == [0.25]
    assert training_by_run({"1 a": curve((INF,))}, False, "c") is None
    assert training_by_run({}, False, "c") is None


def test_of_many_agents_the_range_is_drawn_and_not_each() -> None:
    """A world has one line for each agent and one for their mean, or one for the mean alone."""
    lines = {}
    for n in (CROWD, CROWD + 1):
        agents = tuple(float(agent) for agent in range(n))
        drawn = training_curve({"defense": curve(agents, agents)}, "loss", "c")
        assert drawn is not None
        lines[n] = drawn.drawing.count("<path")
    assert lines[CROWD] - lines[CROWD + 1] >= CROWD - 1
