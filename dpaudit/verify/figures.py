"""The figures of each finding, computed again from what the finding holds.

A figure is contradicted if it cannot follow from its evidence, and missing if the evidence for it
is not there. What follows (a finding's own verdict) is checked with it. What a test counted gives
the p-value of a claimed epsilon, or mu, as a function: its bound is the largest that is refuted,
and its ceiling that of a test without errors.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
OWN = ("likelihood-ratio", "canaries", "gradient-inversion", "captured", "mechanism")  # at FALSE
MATRICES = re.compile(r"artifacts/linear-view-[0-9a-f]{64}\.npz")


class Flaw(NamedTuple):
    """A figure that does not follow from its evidence, or evidence that is not there."""

    where: str
    what: str
    contradicted: bool


class Evidence(NamedTuple):
    """A claim, the findings that bear on it, and what their figures rest on beside them."""

    claim: Claim
    epsilon: float  # that is claimed; of a claim on mu, that at delta 1e-5
    delta: float
    mu: float | None
    findings: Sequence[Finding]
    result: Mapping[str, Any]  # the audit.json
    folder: Path | None  # that artifacts lie in
    verdict: str = ""  # as the evidence gives it
    by_algebra: bool = True  # whether a premise rests on an exact leak

    @property
    def adjacency(self) -> str:
        """The change of a record that is accounted; of a user, that of one record."""
        return "replace-one" if self.claim["adjacency"] == "replace-one" else "add-remove"

    def of(self, *roles: str) -> list[Finding]:
        """The findings of these roles."""
        return [finding for finding in self.findings if finding["role"] in roles]

    def values(self, name: str, end: str, *roles: str) -> list[float]:
        """A metric of those that have it."""
        return [x for f in self.of(*roles) if (x := metric(f, name, end)) is not None]


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


def evidence_of(
    claim: Claim, findings: Sequence[Finding], result: Mapping[str, Any], folder: Path | None
) -> Evidence:
    """What an audit.json in a folder says of a claim."""
    mu = None if claim["mu"] is None else number(claim["mu"])
    at = DELTA_OF_MU if mu is not None else number(claim["delta"])
    claimed = number(claim["epsilon"]) if mu is None else gaussian_epsilon(at, mu)
    return Evidence(claim, claimed, at, mu, findings, result, folder)


def flaws(finding: Finding, where: str, evidence: Evidence) -> Iterator[Flaw]:
    """What is wrong with a finding that bears on a claim."""
    check = CHECKS.get(finding["role"])
    if finding["claim"] not in (None, evidence.claim["claim"]):
        yield Flaw(where, "it is of another claim", True)
    for what in check(finding, evidence) if check else ():
        yield Flaw(where, what.removeprefix("missing: "), not what.startswith("missing: "))
    own = {"claimed epsilon": evidence.epsilon, "delta": evidence.delta, "claimed mu": evidence.mu}
    for name, mine in own.items():
        said = metric(finding, name)
        if mine and said is not None and not isclose(said, mine, rel_tol=1e-5):
            yield Flaw(where, f"{name} {said:g} is not {mine:g}", True)


def _accounted(finding: Finding, evidence: Evidence) -> Iterator[str]:
    low, high = metric(finding, "epsilon", "low"), metric(finding, "epsilon", "high")
    noiseless = finding["verdict"] == "refuted" and finding["message"] is not None
    if low is None or high is None:
        if finding["verdict"] is not None and not noiseless:
            yield "missing: the interval behind its verdict"
        return
    value, delta = metric(finding, "epsilon"), metric(finding, "delta")
    if not 0 <= low <= high or value not in (low, high):
        yield f"epsilon {value:g} from {low:g} to {high:g} is no interval"
    exceeds = low > evidence.epsilon or (finding["role"] == "exact-leak" and noiseless)
    if (finding["verdict"] is not None) != exceeds and not finding["void"]:
        yield f"its verdict does not follow from epsilon {low:g} and the claim"
    for end, said, proves_nothing in (("least", low, 0.0), ("most", high, inf)):
        releases = finding["releases"].get(end)
        if releases is None:
            if said != proves_nothing and not (finding["void"] and _is_proven(said, evidence)):
                yield f"missing: the releases behind the {end} epsilon"
            continue
        at = evidence.delta if delta is None else delta
        own = epsilon(releases, at, evidence.adjacency)
        near, far = own.low * (1 - ROUNDING), own.low * (1 + LOOSE)
        if end == "most":
            near, far = max(near, own.high * (1 - TOLERANCE)), own.high * (1 + TOLERANCE)
        if not near - 1e-4 <= said <= far + 1e-4:
            yield f"its releases give {own.low:.6g} to {own.high:.6g} at {end}, not {said:.6g}"
    if finding["role"] == "exact-leak" and low > 0 and not noiseless:
        yield from _seen(finding, evidence)


def _is_proven(value: float, evidence: Evidence) -> bool:
    """Whether another finding of the claim, which is not void, certifies this epsilon."""
    ends = ("epsilon", "low"), ("epsilon lower bound", "value")
    sound = [f for f in evidence.findings if not f["void"]]
    proven = [x for f in sound for name in ends if (x := metric(f, *name))]
    return any(isclose(value, x, rel_tol=ROUNDING) for x in proven)


def _seen(finding: Finding, evidence: Evidence) -> Iterator[str]:
    """Whether the releases of an exact leak are what the matrices of the view give."""
    name = finding["artifacts"].get("linear view")
    if name is None or evidence.folder is None or not (evidence.folder / name).exists():
        if name or evidence.by_algebra or finding["verdict"] == evidence.verdict:
            yield "missing: the matrices of the view"
        return
    try:
        if not MATRICES.fullmatch(name):
            raise ValueError("they lie elsewhere")
        own = [ends for ends in mus(evidence.folder / name) if ends[1] > NEGLIGIBLE]
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


def _tested(finding: Finding, evidence: Evidence) -> Iterator[str]:
    """Tests at the level that they name; controls, which are of epsilon, at one of the config's."""
    control = finding["role"] != "test"
    bound, confidence = metric(finding, "epsilon lower bound"), metric(finding, "confidence")
    known = FALSE if finding["attack"] in OWN else None
    asked = [
        a for a in evidence.result["config"].get("attack") or () if a["name"] == finding["attack"]
    ]
    levels = [a.get("alpha", known) for a in asked] or [known]
    levels = [number(level) for level in levels if level is not None]
    if not finding["metrics"] or (control and bound is None):
        return
    if control:
        evidence = evidence._replace(mu=None)
        if (finding["verdict"] is not None) != ((bound or 0.0) > evidence.epsilon):
            yield f"its verdict does not follow from its bound {bound:g}"
    elif confidence is None or not any(isclose(1 - confidence, x, rel_tol=1e-6) for x in levels):
        unknown = "missing: " if confidence is None or not levels else ""
        yield f"{unknown}its confidence {confidence} is not what the config asks for"
        return
    else:
        levels = [1 - confidence]
    try:
        own = [derived(finding, evidence, level) for level in levels]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        yield f"its figures cannot be derived: {error}"
        return
    if not own or not own[0]:
        yield "missing: what it counted"
        return
    for name, *ends in list(zip(FIGURES, *own, strict=True))[control:]:
        value = metric(finding, name)
        if value is None or not any(low <= value <= high for low, high in ends):
            yield f"its evidence gives {name} {ends[0][1]:.6g}, not {value}"


def about(value: float) -> Ends:
    """Where a figure lies that both compute in closed form."""
    return value * (1 - 1e-5) - STEP, value * (1 + 1e-5) + 1e-7


def derived(finding: Finding, evidence: Evidence, alpha: float) -> tuple[Ends, ...]:
    """p-value, bound and ceiling of a test of this level; none if what it counted is not there."""
    delta, mu = evidence.delta, evidence.mu
    found = p_values(finding, delta, mu is not None)
    if found is None:
        return _of_bets(finding, evidence, alpha) if finding["evidence"] else ()
    claimed = evidence.epsilon if mu is None else mu
    bounds = [counts.largest(p, alpha) for p in found]
    if mu is not None:
        if not isclose(bounds[0], metric(finding, "mu lower bound") or 0.0, abs_tol=STEP):
            raise ValueError(f"its mu is {bounds[0]:.6g}")
        bounds = [gaussian_epsilon(delta, bound) for bound in bounds]
    ends = found[0](claimed - 1e-7) * (1 - 1e-4), found[0](claimed + STEP) * (1 + 1e-4)
    return ends, *map(about, bounds)


def p_values(finding: Finding, delta: float, of_mu: bool) -> tuple[PValue, PValue] | None:
    """Of what a test counted, and of as many cases without an error. Raises ValueError."""
    names = finding["metrics"]
    if "false positives" in names:
        fp, n0 = counted(finding, "false positives")
        fn, n1 = counted(finding, "false negatives")
        p, n = partial(counts.errors_p_value, delta, of_mu), min(n0, n1)
        return partial(p, (fp, fn, n0, n1)), partial(p, (0, 0, n, n))
    if "guesses" in names:
        right, r = counted(finding, "right guesses")
        m = int(metric(finding, "epsilon lower bound", "n") or 0)
        if metric(finding, "guesses") != r or r > m or of_mu:
            raise ValueError("these are no guesses")
        of_guesses = partial(counts.guesses_p_value, delta, m, r)
        return partial(of_guesses, right), partial(of_guesses, r)
    apart = "matched" in names
    if not apart and "reconstructed" not in names:
        return None
    kappa = metric(finding, "matched blindly" if apart else "reconstructed blindly, at most")
    hits, n = counted(finding, "matched" if apart else "reconstructed", share=True)
    if kappa is None or not 0 < kappa <= 1:
        raise ValueError("these are no successes")
    of_successes = partial(counts.successes_p_value, kappa, delta, of_mu, apart, n)
    return partial(of_successes, hits), partial(of_successes, n)


def _of_bets(finding: Finding, evidence: Evidence, alpha: float) -> tuple[Ends, ...]:
    n, delta = int(metric(finding, "log wealth", "n") or 0), evidence.delta
    (against, wealth), *more = bets.wealths(finding["evidence"], n)
    mu, bound = evidence.mu, 0.0
    for e, d in against:  # each follows from the claim
        least = delta if mu is None else gaussian_delta(e, mu) * (1 - ROUNDING)
        if d < least or (mu is None and e < evidence.epsilon):
            raise ValueError("a bet is against more than is claimed")
    for points, own in more:
        ((bound, at),) = points
        if exp(-own.max()) > alpha or at != delta:
            raise ValueError("bets against the certified epsilon do not refute it")
    if not isclose(wealth[-1], metric(finding, "log wealth") or 0.0, rel_tol=ROUNDING):
        raise ValueError(f"the log wealth is {wealth[-1]:.6g}")
    return about(exp(-max(0.0, wealth.max()))), about(bound), about(bets.ceiling(n, delta, alpha))


def _judged(finding: Finding, evidence: Evidence) -> Iterator[str]:
    """Of distances, of what depends on data and of noise: whether the verdict follows from them."""
    judged, ratio = finding["verdict"] is not None, metric(finding, "measured over stated")
    measured, stated = metric(finding, "measured"), metric(finding, "stated bound")
    found, p = metric(finding, "found"), metric(finding, "p-value")
    if measured is not None and min(measured, stated or 0.0) < 0:
        yield "a distance is negative"
    if measured is not None and stated and ratio is not None:
        if not isclose(ratio, measured / stated, rel_tol=ROUNDING):
            yield f"measured over stated is {measured / stated:.6g}, not {ratio:.6g}"
        if ratio > 1 + SENSITIVITY_ROUNDING and not judged:
            yield f"it moves {ratio:.3g} times its bound and has no verdict"
    if found is not None and (found > 0) != judged:
        yield f"its verdict does not follow from the {found:g} that were found"
    if p is not None and (not 0 <= p <= 1 or (p < NOISE_LEVEL) != judged):
        yield f"its verdict does not follow from p = {p:g}"


CHECKS = dict.fromkeys(("declared", "exact-leak", "measured"), _accounted)  # by role
CHECKS |= dict.fromkeys(("test", "positive-control", "null-control"), _tested)
CHECKS |= dict.fromkeys(("sensitivity", "dependence", "noise"), _judged)
