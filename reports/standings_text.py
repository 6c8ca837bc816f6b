"""Rows of a leaderboard as a table in Markdown, for a page of documentation or a README."""

from collections.abc import Sequence

from dpaudit.files.finding import Metric

from .ci import markdown_cell
from .measured import FIGURES
from .numbers import number, span
from .standings import Standing

SHOWN = (  # figures, if some row has them
    "certified_epsilon",
    "ssim_above_blind",
    "tpr_at_1%_fpr",
    "bits",
    "test_accuracy",
    "messages_a_round",
    "bytes_a_round",
)


def as_markdown(axes: Sequence[str], rows: Sequence[Standing]) -> str:
    """A table of what fits on a page; all figures are in the CSV file.

    Args:
        axes: what its first columns are called.
    """
    shown = [key for key in SHOWN if any(key in row.figures for row in rows)]
    several = len({row.adversary for row in rows if row.seeds}) > 1
    head = [*axes, *["adversary"] * several, "claimed epsilon", "accounted", "verdict"]
    lines = [head + [FIGURES[key].heading for key in shown], ["---"] * (len(head) + len(shown))]
    for row in rows:
        who = [row.adversary] * several
        lines.append([*row.values, *who, *_judged(row), *(_figure(row, key) for key in shown)])
    return "".join(f"| {' | '.join(map(_whole, line))} |\n" for line in lines)


def _whole(text: str) -> str:
    return text if text == "---" else markdown_cell(text)


def _judged(row: Standing) -> list[str]:
    """What is claimed, what accounting gives, and the verdict, or why there is none."""
    if not row.seeds:
        return ["", "", row.gaps[0].why]
    claim = row.claim
    if claim is None:
        return ["", "", "no claim"]
    claimed = f"mu {number(claim.mu)}" if claim.epsilon is None else number(claim.epsilon)
    accounted = "" if row.accounted is None else "void" if row.void else span(row.accounted)
    n = len(row.seeds)
    share = f" in {row.agreeing} of {n} seeds" if row.agreeing < n else ""
    return [f"{claimed}, {claim.adjacency}, {claim.scope}", accounted, f"{row.verdict}{share}"]


def _figure(row: Standing, key: str) -> str:
    metric: Metric | None = row.figures.get(key)
    if metric is None:
        return row.lacks(key)
    if metric.low is None or metric.high is None:
        return number(metric.value)
    return f"{number(metric.value)} ({number(metric.low)} to {number(metric.high)})"
