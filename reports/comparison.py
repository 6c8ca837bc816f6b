"""Several audits side by side as one HTML page."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Template
from markupsafe import Markup

from dpaudit.errors import DpauditError
from dpaudit.files.result import AuditResult
from dpaudit.text import lines

from .compared import ComparedRun, attack_columns, differing_keys
from .figures.curves import training_by_run
from .figures.drawing import Drawn
from .figures.information import AskedMessage, by_run, information_by_round
from .figures.privacy_utility import Point, privacy_utility
from .html import TEMPLATES, pages
from .numbers import number
from .run import Run

ACCURACY = "test accuracy"
MOST_PICTURED = 8  # runs whose images and curves are shown: all are in the report of each run


def render_comparison(results: Sequence[tuple[str, AuditResult, Path]], baseline: int = 0) -> str:
    """Several audits, each (label, result, run directory), side by side as one HTML page.

    Args:
        baseline: index of the run that the others are held against.

    Raises:
        DpauditError: there are no results, or an artifact's path leads out of its run directory.
    """
    if not results:
        raise DpauditError("DPA050", "nothing to compare: expected at least one run")
    runs = [
        ComparedRun(Run(label, i, result, path), i == baseline)
        for i, (label, result, path) in enumerate(results)
    ]
    of_runs = [run.run for run in runs]
    scored = ((s.key, k) for run in of_runs for s in run.scenarios if s.scored for k in s.rounds)
    quantity, points = _points(runs)
    page = _template().render(
        css=_css(),
        runs=runs,
        baseline=runs[baseline],
        columns=attack_columns(runs),
        keys=differing_keys(runs, runs[baseline]),
        rows=list(dict.fromkeys(scored)),
        information=_information(of_runs),
        scatter=privacy_utility(points, "privacy-utility", "Privacy against utility", quantity),
        quantity=quantity,
        left_out=[run for run in runs if run.run.number + 1 not in {p.number for p in points}],
        pictured=len(runs) <= MOST_PICTURED,
        courses=_courses(of_runs, quantity == ACCURACY) if len(runs) <= MOST_PICTURED else None,
        signed=signed,
    )
    return lines(page)


def signed(difference: float) -> str:
    """A difference with its sign, in three digits."""
    sign = "+" if difference > 0 else "±" if difference == 0 else ""
    return f"{sign}{number(difference)}"


def _points(runs: Sequence[ComparedRun]) -> tuple[str, list[Point]]:
    """What utility is measured by, and the runs that have both that and accounting."""
    finals = [final for run in runs if (final := run.utility.get("defense")) is not None]
    by_accuracy = all(final.accuracy for final in finals)
    loss_is = finals[0].loss_is if finals else "test loss"
    points = []
    for run in runs:
        final, worst = run.utility.get("defense"), run.worst_accounted
        utility = final and (final.accuracy if by_accuracy else final.loss)
        if worst is None or worst.accounted.metric is None or not utility:
            continue
        if not math.isfinite(utility.value):
            continue
        points.append(
            Point(
                number=run.run.number + 1,
                label=run.run.label,
                verdict=run.result.verdict,
                epsilon=worst.accounted.metric,
                certified=run.certified.most,
                utility=utility,
            )
        )
    return ACCURACY if by_accuracy else loss_is, points


def _courses(runs: Sequence[Run], by_accuracy: bool) -> Drawn | None:
    """Training under each defense, round by round."""
    found = {f"{run.number + 1} {run.label}": run.result.utility.get("defense") for run in runs}
    curves = {run: curve for run, curve in found.items() if curve is not None}
    return training_by_run(curves, by_accuracy, "courses")


def _information(runs: Sequence[Run]) -> list[tuple[AskedMessage, dict, Markup | None]]:
    asked = by_run((run.label, run.entries("mutual-information")) for run in runs)
    return [
        (question, found, information_by_round(found, f"budgets{i}", _asked(question)))
        for i, (question, found) in enumerate(asked.items())
    ]


def _asked(question: AskedMessage) -> str:
    who = question.threat_model or "an adversary"
    return f"Information by round under each defense: {question.message} read by {who}"


def _template() -> Template:
    return pages().get_template("comparison.html.j2")


@cache
def _css() -> Markup:
    return Markup(
        "".join((TEMPLATES / name).read_text("utf-8") for name in ("audit.css", "comparison.css"))
    )
