"""The figures of each finding, computed again from what the finding holds.

A figure is contradicted if it cannot follow from its evidence, and missing if the evidence for it
is not there. What follows (a finding's own verdict) is checked with it.
"""

from collections.abc import Callable, Iterator, Mapping
from math import inf, isclose, log
from typing import Any, NamedTuple

from .accountant import EpsilonEnds, epsilon, gaussian_epsilon
from .counts import epsilon_bound, mu_bound, p_value

Finding = Mapping[str, Any]
Claim = Mapping[str, Any]
DELTA_OF_MU = 1e-5  # at which a claim on mu is held against figures
TOLERANCE = 5e-3  # relative: how far the upper ends of the two accountants may lie apart
LOOSE = 0.05  # likewise of the lower ends, of which the checker's is coarser
ROUNDING = 1e-6  # relative, of figures that both compute in closed form
SENSITIVITY_ROUNDING = 1e-3  # of a measured distance over its stated bound
NOISE_LEVEL = 1e-6  # p-value below which noise is not what is declared
FALSE = 0.05  # probability of a false refutation, among all statements of an audit


class Flaw(NamedTuple):
    """A figure that does not follow from its evidence, or evidence that is not there."""

    where: str
    what: str
    contradicted: bool


def number(value: object) -> float:
    """A number of audit.json, whose texts "inf", "-inf" and "nan" are numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, got {value!r}")
    return float(value)


def metric(finding: Finding, name: str, end: str = "value") -> float | None:
    """A metric of a finding, or an end of its interval; None where there is none."""
    found = finding["metrics"].get(name)
    return None if found is None or found.get(end) is None else number(found[end])


def claimed_epsilon(claim: Claim) -> float:
    """The claim as an epsilon at its delta; a claim on mu at delta 1e-5."""
    if claim["mu"] is not None:
        return gaussian_epsilon(DELTA_OF_MU, number(claim["mu"]))
    return number(claim["epsilon"])


def claimed_delta(claim: Claim) -> float:
    """The delta at which figures are held against the claim."""
    return DELTA_OF_MU if claim["mu"] is not None else number(claim["delta"])


def flaws(finding: Finding, where: str, claim: Claim) -> Iterator[Flaw]:
    """What is wrong with a finding that bears on a claim."""
    for what in _of_role(finding["role"])(finding, claim):
        contradicted = not what.startswith("missing: ")
        yield Flaw(where, what.removeprefix("missing: "), contradicted)
    stated, delta = metric(finding, "claimed epsilon"), metric(finding, "delta")
    if stated is not None and not isclose(stated, claimed_epsilon(claim), rel_tol=ROUNDING):
        yield Flaw(where, f"claimed epsilon {stated:g} is not the claim's", True)
    if delta is not None and claimed_delta(claim) not in (0.0, delta):
        yield Flaw(where, f"delta {delta:g} is not the claim's", True)


def _of_role(role: str) -> Callable[[Finding, Claim], Iterator[str]]:
    return {
        "declared": _accounted,
        "exact-leak": _accounted,
        "measured": _accounted,
        "test": _tested,
        "sensitivity": _moved,
        "dependence": _depends,
        "noise": _noise,
        "positive-control": _controlled,
        "null-control": _controlled,
    }.get(role, _nothing)


def _nothing(finding: Finding, claim: Claim) -> Iterator[str]:
    yield from ()


def composed(finding: Finding, claim: Claim, end: str) -> EpsilonEnds | None:
    """Epsilon of the releases that an end of the interval is of; None if they are not there."""
    releases = (finding.get("releases") or {}).get(end)
    if releases is None:
        return None
    delta = metric(finding, "delta")
    adjacency = "replace-one" if claim["adjacency"] == "replace-one" else "add-remove"
    return epsilon(releases, claimed_delta(claim) if delta is None else delta, adjacency)


def _accounted(finding: Finding, claim: Claim) -> Iterator[str]:
    low, high = metric(finding, "epsilon", "low"), metric(finding, "epsilon", "high")
    if low is None or high is None:
        if finding["verdict"] is not None and not _is_noiseless(finding):
            yield "missing: the interval behind its verdict"
        return
    value = metric(finding, "epsilon")
    if not 0 <= low <= high or value not in (low, high):
        yield f"epsilon {value:g} from {low:g} to {high:g} is no interval"
    exceeds = low > claimed_epsilon(claim)
    if finding["role"] == "exact-leak" and _is_noiseless(finding):
        exceeds = True
    if (finding["verdict"] is not None) != exceeds:
        yield f"its verdict does not follow from epsilon {low:g} and the claim"
    for end, said, proves_nothing in (("least", low, 0.0), ("most", high, inf)):
        own = composed(finding, claim, end)
        if own is None:
            if said != proves_nothing:
                yield f"missing: the releases behind the {end} epsilon"
        elif not own.low * (1 - LOOSE) - 1e-3 <= said <= own.high * (1 + TOLERANCE) + 1e-4:
            yield f"its releases give an epsilon of {own.high:.6g} at {end}, not {said:.6g}"
        elif end == "most" and said < own.low * (1 - ROUNDING):
            yield f"its releases give more than {said:.6g}: {own.low:.6g} or more"


def _is_noiseless(finding: Finding) -> bool:
    return finding["verdict"] == "refuted" and finding["message"] is not None


def _tested(finding: Finding, claim: Claim) -> Iterator[str]:
    if not finding["metrics"]:
        return
    p, bound = metric(finding, "p-value"), metric(finding, "epsilon lower bound")
    counts = [finding["metrics"].get(name) for name in ("false positives", "false negatives")]
    if p is None or bound is None:
        yield "missing: its p-value or its bound"
        return
    if any(count is None or count.get("n") is None for count in counts):
        yield "missing: the counts behind its p-value"
        return
    (fp, n0), (fn, n1) = ((number(c["value"]), number(c["n"])) for c in counts if c is not None)
    if not (0 <= fp <= n0 and 0 <= fn <= n1):
        yield f"{fp:g} of {n0:g} and {fn:g} of {n1:g} are no counts"
        return
    delta, mu = claimed_delta(claim), None if claim["mu"] is None else number(claim["mu"])
    own = p_value(fp, fn, n0, n1, delta, claimed_epsilon(claim), mu)
    if abs(log(max(own, 1e-300)) - log(max(p, 1e-300))) > 1e-4:
        yield f"its counts give p = {own:.4g}, not {p:.4g}"
    alpha = 1 - (metric(finding, "confidence") or 0.0)
    if mu is None:
        certified = epsilon_bound(fp, fn, n0, n1, delta, alpha)
        ceiling = epsilon_bound(0, 0, min(n0, n1), min(n0, n1), delta, alpha)
    else:
        at = min(n0, n1)
        certified = gaussian_epsilon(delta, mu_bound(fp, fn, n0, n1, alpha))
        ceiling = gaussian_epsilon(delta, mu_bound(0, 0, at, at, alpha))
    for name, mine in (("epsilon lower bound", certified), ("ceiling", ceiling)):
        stated = metric(finding, name)
        if stated is not None and not isclose(stated, mine, rel_tol=1e-5, abs_tol=1e-7):
            yield f"its counts give {name} {mine:.6g}, not {stated:.6g}"


def _controlled(finding: Finding, claim: Claim) -> Iterator[str]:
    bound = metric(finding, "epsilon lower bound")
    if bound is not None and (finding["verdict"] is not None) != (bound > claimed_epsilon(claim)):
        yield f"its verdict does not follow from its bound {bound:g}"


def _moved(finding: Finding, claim: Claim) -> Iterator[str]:
    measured, stated = metric(finding, "measured"), metric(finding, "stated bound")
    ratio = metric(finding, "measured over stated")
    if measured is None:
        return
    if measured < 0 or (stated is not None and stated < 0):
        yield "a distance is negative"
    if stated is not None and ratio is not None and stated > 0:
        if not isclose(ratio, measured / stated, rel_tol=ROUNDING):
            yield f"measured over stated is {measured / stated:.6g}, not {ratio:.6g}"
        if ratio > 1 + SENSITIVITY_ROUNDING and finding["verdict"] is None:
            yield f"it moves {ratio:.3g} times its bound and has no verdict"


def _depends(finding: Finding, claim: Claim) -> Iterator[str]:
    found = metric(finding, "found")
    if found is not None and (found > 0) != (finding["verdict"] is not None):
        yield f"its verdict does not follow from the {found:g} that were found"


def _noise(finding: Finding, claim: Claim) -> Iterator[str]:
    p = metric(finding, "p-value")
    if p is not None and not 0 <= p <= 1:
        yield f"{p:g} is no p-value"
    if p is not None and (p < NOISE_LEVEL) != (finding["verdict"] is not None):
        yield f"its verdict does not follow from p = {p:g}"
