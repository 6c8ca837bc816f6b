"""Logarithmic axes are labelled with numbers that a reader of plain text can read."""

import re

import pytest

from dpaudit.files.finding import Finding, Role
from dpaudit.files.result import Curve
from dpaudit.reports.figures.drawing import training_curve
from dpaudit.reports.figures.epsilon import tradeoff_curve
from dpaudit.reports.figures.search import search_by_iteration
from dpaudit.reports.figures.sensitivity import sensitivity_by_round

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
    "sensitivity": lambda: sensitivity_by_round(finding(Role.SENSITIVITY, series=SENSITIVITY), "a"),
    "trade-off": lambda: tradeoff_curve(finding(Role.TEST, series=RATES), "a", "title"),
    "search": lambda: search_by_iteration(
        [finding(Role.RECONSTRUCTION, world="defense", trace=SEARCH)], "a", "title"
    ),
    "consensus": lambda: training_curve({"defense": CONSENSUS}, "consensus_distance", "a"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_ticks_of_a_logarithmic_axis_are_numbers(name: str) -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", DRAWN[name]().replace("−", "-"))
    ticks = [text for text in texts if re.match(r"[\d.$]", text)]
    assert {f"{float(tick):g}" for tick in ticks} >= {"0.01", "0.1", "1"}
