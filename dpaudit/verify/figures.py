"""The figures of each finding, computed again from what the finding holds.

A figure is contradicted if it cannot follow from its evidence, and missing if the evidence for it
is not there. What follows (a finding's own verdict) is checked with it. What a test counted gives
the p-value of a claimed epsilon, or mu, as a function: its bound is the largest that is refuted,
and its ceiling that of a test without errors.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import exp, inf, isclose
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

from . import bets, counts
from .accountant import epsilon, gaussian_delta, gaussian_epsilon
from .views import mus

Finding = Mapping[str, Any]
Claim = Mapping[str, Any]
Ends = tuple[float, float]  # between which a figure lies
PValue = Callable[[float], float]  # of a claimed parameter
FIGURES = ("p-value", "epsilon lower bound", "ceiling")  # of a test
DELTA_OF_MU = 1e-5  # at which a claim on mu is held against figures
TOLERANCE = 5e-3  # relative: how far the upper ends of the two accountants may lie apart
LOOSE = 0.01  # likewise of the lower ends, of which the checker's is coarser
ROUNDING = 1e-6  # relative, of figures that both compute in closed form
STEP = 2e-6  # by which the auditor may round a bound down
NEGLIGIBLE = 1e-12  # in mu
SENSITIVITY_ROUNDING = 1e-3  # of a measured distance over its stated bound
NOISE_LEVEL = 1e-6  # p-value below which noise is not what is declared
FALSE = 0.05  # probability of a false refutation, among all statements of an audit
OWN = (
    "likelihood-ratio",
    "canaries",
    "gradient-inversion",
    "captured",
    "mechanism",
)  # alpha is FALSE if unset
MATRICES = re.compile(r"artifacts/linear-view-[0-9a-f]{64}\.npz")


class Audit(NamedTuple):
    """What figures of a finding rest on beside it."""

    config: Mapping[str, Any]
    proven: tuple[float, ...] = ()  # what others of the same claim certify
    folder: Path | None = None  # that artifacts lie in


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


def counted(finding: Finding, name: str, share: bool = False) -> tuple[int, int]:
    """A metric that is a number of cases, or their share, and of how many. Raises ValueError."""
    value, n = metric(finding, name) or 0.0, metric(finding, name, "n") or 0.0
    cases = value * n if share else value
    if not 0 <= cases <= n or not isclose(cases, round(cases), rel_tol=1e-9) or n < 1:
        raise ValueError(f"{name} {value:g} of {n:g} is no count")
    return round(cases), int(n)


def claimed_mu(claim: Claim) -> float | None:
    """The mu that is claimed, if it is one."""
    return None if claim["mu"] is None else number(claim["mu"])


def claimed_epsilon(claim: Claim) -> float:
    """The claim as an epsilon at its delta; a claim on mu at delta 1e-5."""
    mu = claimed_mu(claim)
    return number(claim["epsilon"]) if mu is None else gaussian_epsilon(DELTA_OF_MU, mu)


def claimed_delta(claim: Claim) -> float:
    """The delta at which figures are held against the claim."""
    return DELTA_OF_MU if claim["mu"] is not None else number(claim["delta"])


def flaws(finding: Finding, where: str, claim: Claim, audit: Audit) -> Iterator[Flaw]:
    """What is wrong with a finding that bears on a claim."""
    check = CHECKS.get(finding["role"])
    if finding["claim"] not in (None, claim["claim"]):
        yield Flaw(where, "it is of another claim", True)
    for what in check(finding, claim, audit) if check else ():
        yield Flaw(where, what.removeprefix("missing: "), not what.startswith("missing: "))
    own = {"claimed epsilon": claimed_epsilon, "claimed mu": claimed_mu, "delta": claimed_delta}
    for name, of in own.items():
        mine = of(claim)
        said = metric(finding, name)
        if mine and said is not None and not isclose(said, mine, rel_tol=1e-5):
            yield Flaw(where, f"{name} {said:g} is not {mine:g}", True)


def _accounted(finding: Finding, claim: Claim, audit: Audit) -> Iterator[str]:
    low, high = metric(finding, "epsilon", "low"), metric(finding, "epsilon", "high")
    noiseless = finding["verdict"] == "refuted" and finding["message"] is not None
    if low is None or high is None:
        if finding["verdict"] is not None and not noiseless:
            yield "missing: the interval behind its verdict"
        return
    value, delta = metric(finding, "epsilon"), metric(finding, "delta")
    if not 0 <= low <= high or value not in (low, high):
        yield f"epsilon {value:g} from {low:g} to {high:g} is no interval"
    exceeds = low > claimed_epsilon(claim) or (finding["role"] == "exact-leak" and noiseless)
    if (finding["verdict"] is not None) != exceeds and not finding["void"]:
        yield f"its verdict does not follow from epsilon {low:g} and the claim"
    for end, said, proves_nothing in (("least", low, 0.0), ("most", high, inf)):
        releases = finding["releases"].get(end)
        if releases is None:
            known = (isclose(said, x, rel_tol=ROUNDING) for x in audit.proven)
            if said != proves_nothing and not (finding["void"] and any(known)):
                yield f"missing: the releases behind the {end} epsilon"
            continue
        adjacency = "replace-one" if claim["adjacency"] == "replace-one" else "add-remove"
        own = epsilon(releases, claimed_delta(claim) if delta is None else delta, adjacency)
        near, far = own.low * (1 - ROUNDING), own.low * (1 + LOOSE)
        if end == "most":
            near, far = max(near, own.high * (1 - TOLERANCE)), own.high * (1 + TOLERANCE)
        if not near - 1e-4 <= said <= far + 1e-4:
            yield f"its releases give {own.low:.6g} to {own.high:.6g} at {end}, not {said:.6g}"
    if finding["role"] == "exact-leak" and low > 0 and not noiseless:
        yield from _seen(finding, audit)


def _seen(finding: Finding, audit: Audit) -> Iterator[str]:
    """Whether the releases of an exact leak are what the matrices of the view give."""
    name = finding["artifacts"].get("linear view")
    if name is None or audit.folder is None or not (audit.folder / name).exists():
        yield "missing: the matrices of the view"
        return
    try:
        if not MATRICES.fullmatch(name):
            raise ValueError("they lie elsewhere")
        own = [ends for ends in mus(audit.folder / name) if ends[1] > NEGLIGIBLE]
    except (KeyError, OSError, ValueError, BadZipFile) as error:
        yield f"the matrices of the view are none: {error}"
        return
    said: list[float] = []
    for r in finding["releases"].get("least", ()):
        noise, most = number(r["noise_multiplier"]), len(own) + 1
        said += [1 / noise if noise else inf] * min(int(r["count"]), most)
    fit = zip(sorted(said), own, strict=False)
    near = (low * (1 - ROUNDING) <= mu <= high * (1 + ROUNDING) for mu, (low, high) in fit)
    if len(said) != len(own) or not all(near):
        yield "its releases are not what the matrices of the view give"


def _tested(finding: Finding, claim: Claim, audit: Audit) -> Iterator[str]:
    if not finding["metrics"]:
        return
    confidence, levels = metric(finding, "confidence"), _levels(finding, audit)
    if confidence is None or not any(isclose(1 - confidence, x, rel_tol=ROUNDING) for x in levels):
        unknown = "missing: " if confidence is None or not levels else ""
        yield f"{unknown}its confidence {confidence} is not what the config asks for"
        return
    try:
        own = derived(finding, claim, 1 - confidence)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        yield f"its figures cannot be derived: {error}"
        return
    if own is None:
        yield "missing: what it counted"
    for name, (low, high) in zip(FIGURES, own or (), strict=False):
        value = metric(finding, name)
        if value is None or not low <= value <= high:
            yield f"its evidence gives {name} {high:.6g}, not {value}"


def _levels(finding: Finding, audit: Audit) -> list[float]:
    """At which the config has tests of this attack err."""
    known = FALSE if finding["attack"] in OWN else None
    asked = [a for a in audit.config.get("attack") or () if a["name"] == finding["attack"]]
    levels = [a.get("alpha", known) for a in asked] or [known]
    return [number(level) for level in levels if level is not None]


def about(value: float) -> Ends:
    """Where a figure lies that both compute in closed form."""
    return value * (1 - 1e-5) - STEP, value * (1 + 1e-5) + 1e-7


def derived(finding: Finding, claim: Claim, alpha: float) -> tuple[Ends, ...] | None:
    """p-value, bound and ceiling of a test of this level; None: what it counted is not there."""
    of = next((of for name, of in COUNTS.items() if name in finding["metrics"]), None)
    if of is None:
        return _of_bets(finding, claim, alpha) if finding["evidence"] else None
    delta, mu = claimed_delta(claim), claimed_mu(claim)
    p, perfect = of(finding, delta, mu is not None)
    claimed = claimed_epsilon(claim) if mu is None else mu
    bounds = [counts.largest(one, alpha) for one in (p, perfect)]
    if mu is not None:
        if not isclose(bounds[0], metric(finding, "mu lower bound") or 0.0, abs_tol=STEP):
            raise ValueError(f"its mu is {bounds[0]:.6g}")
        bounds = [gaussian_epsilon(delta, bound) for bound in bounds]
    ends = p(claimed - 1e-7) * (1 - 1e-4), p(claimed + STEP) * (1 + 1e-4)
    return ends, *map(about, bounds)


def _of_runs(finding: Finding, delta: float, of_mu: bool) -> tuple[PValue, PValue]:
    """Of the errors among runs, and of none among as many."""
    (fp, n0), (fn, n1) = counted(finding, "false positives"), counted(finding, "false negatives")
    p = partial(counts.errors_p_value, delta, of_mu)
    return partial(p, (fp, fn, n0, n1)), partial(p, (0, 0, min(n0, n1), min(n0, n1)))


def _of_guesses(finding: Finding, delta: float, of_mu: bool) -> tuple[PValue, PValue]:
    right, r = counted(finding, "right guesses")
    m = int(metric(finding, "epsilon lower bound", "n") or 0)
    if metric(finding, "guesses") != r or r > m or of_mu:
        raise ValueError("these are no guesses")
    p = partial(counts.guesses_p_value, delta, m, r)
    return partial(p, right), partial(p, r)


def _of_successes(finding: Finding, delta: float, of_mu: bool) -> tuple[PValue, PValue]:
    apart = "matched" in finding["metrics"]
    kappa = metric(finding, "matched blindly" if apart else "reconstructed blindly, at most")
    hits, n = counted(finding, "matched" if apart else "reconstructed", share=True)
    if kappa is None or not 0 < kappa <= 1:
        raise ValueError("these are no successes")
    p = partial(counts.successes_p_value, kappa, delta, of_mu, apart, n)
    return partial(p, hits), partial(p, n)


COUNTS = {"false positives": _of_runs, "guesses": _of_guesses}  # by a metric of what was counted
COUNTS |= dict.fromkeys(("matched", "reconstructed"), _of_successes)


def _of_bets(finding: Finding, claim: Claim, alpha: float) -> tuple[Ends, ...]:
    n, delta = int(metric(finding, "log wealth", "n") or 0), claimed_delta(claim)
    (against, wealth), *more = bets.wealths(finding["evidence"], n)
    mu, bound = claimed_mu(claim), 0.0
    for e, d in against:  # each follows from the claim
        least = delta if mu is None else gaussian_delta(e, mu) * (1 - ROUNDING)
        if d < least or (mu is None and e < claimed_epsilon(claim)):
            raise ValueError("a bet is against more than is claimed")
    for points, own in more:
        ((bound, at),) = points
        if exp(-own.max()) > alpha or at != delta:
            raise ValueError("bets against the certified epsilon do not refute it")
    if not isclose(wealth[-1], metric(finding, "log wealth") or 0.0, rel_tol=ROUNDING):
        raise ValueError(f"the log wealth is {wealth[-1]:.6g}")
    return about(exp(-max(0.0, wealth.max()))), about(bound), about(bets.ceiling(n, delta, alpha))


def _controlled(finding: Finding, claim: Claim, audit: Audit) -> Iterator[str]:
    bound, levels = metric(finding, "epsilon lower bound"), _levels(finding, audit)
    if bound is None:
        return
    if (finding["verdict"] is not None) != (bound > claimed_epsilon(claim)):
        yield f"its verdict does not follow from its bound {bound:g}"
    if "false positives" not in finding["metrics"] or not levels:
        yield "missing: the counts behind its bound"
        return
    try:
        found = _of_runs(finding, claimed_delta(claim), False)
    except ValueError as error:
        yield f"its figures cannot be derived: {error}"
        return
    for name, p in zip(FIGURES[1:], found, strict=True):
        own = [about(counts.largest(p, level)) for level in levels]
        if not any(low <= (metric(finding, name) or 0.0) <= high for low, high in own):
            yield f"its counts give {name} {own[0][1]:.6g}"


def _moved(finding: Finding, claim: Claim, audit: Audit) -> Iterator[str]:
    measured, stated = metric(finding, "measured"), metric(finding, "stated bound")
    ratio = metric(finding, "measured over stated")
    if measured is not None and min(measured, stated or 0.0) < 0:
        yield "a distance is negative"
    if measured is not None and stated and ratio is not None:
        if not isclose(ratio, measured / stated, rel_tol=ROUNDING):
            yield f"measured over stated is {measured / stated:.6g}, not {ratio:.6g}"
        if ratio > 1 + SENSITIVITY_ROUNDING and finding["verdict"] is None:
            yield f"it moves {ratio:.3g} times its bound and has no verdict"


def _depends(finding: Finding, claim: Claim, audit: Audit) -> Iterator[str]:
    found = metric(finding, "found")
    if found is not None and (found > 0) != (finding["verdict"] is not None):
        yield f"its verdict does not follow from the {found:g} that were found"


def _noise(finding: Finding, claim: Claim, audit: Audit) -> Iterator[str]:
    p = metric(finding, "p-value")
    if p is not None and not (
        0 <= p <= 1 and (p < NOISE_LEVEL) == (finding["verdict"] is not None)
    ):
        yield f"its verdict does not follow from p = {p:g}"


CHECKS: Mapping[str, Callable[[Finding, Claim, Audit], Iterator[str]]] = {
    **dict.fromkeys(("declared", "exact-leak", "measured"), _accounted),
    **dict.fromkeys(("positive-control", "null-control"), _controlled),
    "test": _tested,
    "sensitivity": _moved,
    "dependence": _depends,
    "noise": _noise,
}
