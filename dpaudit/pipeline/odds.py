"""What a verdict means for the one whose record it is about."""

from collections.abc import Mapping
from math import exp, inf

from dpaudit.files.claim import Adjacency
from dpaudit.files.finding import Name, Role
from dpaudit.files.verdict import Verdict

from .case import Case

BEYOND_TELLING = 14.0  # epsilon from which on odds are a million and more
TOLD: Mapping[Adjacency, str] = {
    "add-remove": "that a given record was used",
    "replace-one": "on which of two records was used",
    "function": "on which of two functions an agent has",
    "agent-identity": "on which agent it is",
    "user": "that the records of a given agent were used",
}


def meaning(case: Case, verdict: Verdict) -> str:
    """How far an adversary's odds can rise: at epsilon e, at most e^e-fold but for delta."""
    odds = f"the odds of {case.adversary} {TOLD[case.judging.claim.adjacency]}"
    on_agents = case.judging.claim.adjacency in ("function", "agent-identity")
    whose = "For an agent" if on_agents else "For the owner of a record"
    allowed = f"the claim allows {_fold(case.claimed)}"
    least, most = _least(case), _most(case)
    if least == inf:
        return f"{whose}: nothing bounds {odds}; {allowed}."
    if verdict is Verdict.REFUTED or least > case.claimed:
        return f"{whose}: {odds} can rise {_between(least, most)}; {allowed}."
    if verdict is Verdict.UNSUPPORTED or most == inf:
        return f"{whose}: no bound on how far {odds} can rise is proven here; {allowed}."
    return f"{whose}: {odds} rise {_fold(most)} at most, by accounting; {allowed}."


def _least(case: Case) -> float:
    """The largest epsilon that is certainly reached."""
    lows = [
        float(finding.metrics[Name.EPSILON].low or 0)
        for role in (Role.EXACT_LEAK, Role.MEASURED, Role.DECLARED)
        for finding in case.of(role)
        if Name.EPSILON in finding.metrics
    ]
    noiseless = any(finding.verdict is Verdict.REFUTED for finding in case.of(Role.EXACT_LEAK))
    certified = case.bound if case.refuted else min(case.bound, case.claimed)
    return max([inf if noiseless else certified, *lows])


def _most(case: Case) -> float:
    """The smallest epsilon that accounting proves not to be exceeded; infinite without one."""
    highs = [
        float(inf if (high := finding.metrics[Name.EPSILON].high) is None else high)
        for finding in (*case.of(Role.EXACT_LEAK), *case.of(Role.DECLARED))
        if Name.EPSILON in finding.metrics and finding.void is None
    ]
    return min(highs, default=inf)


def _between(least: float, most: float) -> str:
    """How far odds can rise; once where both ends are written alike."""
    if not least <= most < inf:
        return f"{_fold(least)} or more"
    if _fold(least) == _fold(most):
        return _fold(least)
    return f"{_fold(least)} or more, and {_fold(most)} at most"


def _fold(epsilon: float) -> str:
    if epsilon > BEYOND_TELLING:
        return "more than a million-fold"
    times = exp(epsilon)
    return f"{times:,.0f}-fold" if times >= 100 else f"{times:.3g}-fold"
