"""Adds up the releases of a ledger anew, from its text, with the accountant of `dpaudit verify`.

A ledger is what a program declares of itself. That its releases add up to no more than its budget
is arithmetic; whether they are all that was released, and as it says, is not examined by that.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import exp, inf, log, log1p
from typing import Any, NamedTuple

import numpy as np

from dpaudit.verify.accountant import (
    LossPair,
    epsilon,
    gaussian_epsilon,
    outcomes,
    worst_pair,
)

FORMAT = "dpaudit-ledger"
TOLERANCE = 1e-3  # relative: how far the upper ends of two accountants may lie apart
RESERVED = 1e-3  # share of delta for losses that a Renyi filter leaves out


class AgentTotal(NamedTuple):
    """What the releases about one agent's records add up to."""

    agent: str | None  # None: any agent that the file does not name
    releases: int
    epsilon: float
    holds: bool


def is_ledger(text: str) -> bool:
    """Whether a text is a ledger's, by its first line."""
    first, end, _ = text.partition("\n")
    try:
        content = json.loads(first) if end else None
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def totals(text: str) -> Iterator[AgentTotal]:
    """Totals of each agent, and of entries without an agent.

    Args:
        text: whole lines of a ledger whose keys and types were checked.
    """
    budget, *entries = (json.loads(line) for line in text.split("\n")[:-1])
    agents = sorted({entry["agent"] for entry in entries if "agent" in entry})
    for agent in [None, *agents]:
        mine = [entry for entry in entries if entry.get("agent") in (None, agent)]
        found = float(_total(mine, budget))
        count = sum(entry.get("release", {}).get("count", 1) for entry in mine)
        yield AgentTotal(agent, count, found, found <= budget["epsilon"] * (1 + TOLERANCE))


def _total(entries: Sequence[Mapping[str, Any]], budget: Mapping[str, Any]) -> float:
    delta, adjacency = budget["delta"], budget["adjacency"]
    releases = [{**_DEFAULTS, **e["release"]} for e in entries if "release" in e]
    events = [
        (e["event"]["epsilon"], e["event"].get("delta", 0.0)) for e in entries if "event" in e
    ]
    lost = sum(part for _, part in events)
    if budget["composition"] == "fixed":
        added = sum(part for part, _ in events)
        if lost > delta:
            return inf
        gaussian = any(release["family"] == "gaussian" for release in releases)
        if lost == delta and gaussian:
            return inf
        return added + (epsilon(releases, delta - lost, adjacency) if releases else 0.0)
    pairs = [
        (worst_pair(r, adjacency, side), r["count"]) for r in releases for side in ("remove", "add")
    ]
    if budget["composition"] == "gaussian-filter":
        if events or any(pair.family != "gaussian" or pair.rate < 1 for pair, _ in pairs):
            return inf
        return gaussian_epsilon(delta, sum(n / pair.scale**2 / 2 for pair, n in pairs) ** 0.5)
    a, spent = budget["order"], 0.0
    for release in releases:
        costs = [_renyi(worst_pair(release, adjacency, side), a) for side in ("remove", "add")]
        spent += release["count"] * max(cost for cost, _ in costs)
        lost += release["count"] * max(left for _, left in costs)
    for part, _ in events:
        truth = 1 / (1 + exp(-part))
        moment = truth**a * (1 - truth) ** (1 - a) + (1 - truth) ** a * truth ** (1 - a)
        spent += log(moment) / (a - 1)
    if lost > RESERVED * delta:
        return inf
    return max(0.0, spent + log1p(-1 / a) - log(a * (1 - RESERVED) * delta) / (a - 1))


_DEFAULTS = {"sampling": "none", "sampling_rate": 1.0, "count": 1, "clipped": "records"}


def _renyi(pair: LossPair, order: float) -> tuple[float, float]:
    """The divergence of a pair, and the mass of losses that count as infinite."""
    losses, masses, infinite = outcomes(pair)
    with np.errstate(divide="ignore"):
        moment = np.logaddexp.reduce(np.log(masses) + (order - 1) * losses)
    return max(0.0, float(moment) / (order - 1)), infinite
