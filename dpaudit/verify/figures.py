"""The figures of each finding, computed again from what the finding holds.

A figure is contradicted if it cannot follow from its evidence, and missing if that is not there.
What a test counted gives p-values of claimed parameters: its bound is the largest that is refuted.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import exp, inf, isclose
from pathlib import Path
from typing import Any, NamedTuple

from . import accountant, bets, counts, family
from .views import mus

Finding = Mapping[str, Any]  # or a claim, as audit.json has them
Ends = tuple[float, float]  # range of a figure
PValue = Callable[[float], float]  # p-value of a claimed parameter
FIGURES = ("p-value", "epsilon lower bound", "ceiling")  # figures of a test
CERTIFIED = ("epsilon", "low"), ("epsilon lower bound", "value")
NOISE_FACTOR = "noise, at most times the declared"
OF_SHAPE = "epsilon lower bound, declared shape"
DELTA_OF_MU = 1e-5  # delta at which a claim on mu is compared with figures
TOLERANCE = 5e-3  # relative: how far the two accountants may lie apart
NEARBY = 1 - TOLERANCE, 1 + TOLERANCE
MOST_LOSS = 600.0 * NEARBY[0]  # beyond it, lower ends may be smaller and upper ones infinite
SIDES = {"least": ("least",), "most": accountant.WORST}  # sides of a pair of worlds, for either end
ROUNDING = 1e-6  # relative, of figures that both compute in closed form
STEP = 2e-6  # largest rounding of a bound by the auditor
SENSITIVITY_ROUNDING = 1e-3  # rounding of a measured distance over its stated bound
NOISE_LEVEL = 1e-6  # p-value below which noise is not what is declared
FALSE = 0.05  # probability of a false refutation, among all statements of an audit
OWN = ("likelihood-ratio", "canaries", "gradient-inversion", "captured", "mechanism")  # at FALSE
MATRICES = re.compile(r"artifacts/linear-view-[0-9a-f]{64}\.npz")


class Flaw(NamedTuple):
    """A figure that does not follow from its evidence, or evidence that is not there."""

    where: str
    what: str
    contradicted: bool


class Basis(NamedTuple):
    """A claim, the findings that bear on it, and what their figures rest on beside them."""

    claim: Finding
    epsilon: float  # claimed epsilon; for a claim on mu, that at delta 1e-5
    delta: float
    mu: float | None
    findings: Sequence[Finding]
    result: Mapping[str, Any]  # the audit.json
    folder: Path | None  # folder of the artifacts
    verdict: str = ""  # verdict that the evidence gives
    by_algebra: bool = True  # whether a premise rests on an exact leak

    @property
    def adjacency(self) -> str:  # as accounted: a user counts like a record
        return "replace-one" if self.claim["adjacency"] == "replace-one" else "add-remove"

    @property
    def change(self) -> str:
        return str(self.claim["adjacency"]).replace("user", "add-remove")  # by one record each

    def of(self, *roles: str) -> list[Finding]:
        return [finding for finding in self.findings if finding["role"] in roles]

    def values(self, name: str, end: str, *roles: str) -> list[float]:
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


def evidence_of(claim: Finding, result: Mapping[str, Any], folder: Path | None) -> Basis:
    """What an audit.json in a folder says of a claim."""
    findings = [result["findings"][j] for j in claim["because"]]
    mu = None if claim["mu"] is None else number(claim["mu"])
    at = DELTA_OF_MU if mu is not None else number(claim["delta"])
    claimed = number(claim["epsilon"]) if mu is None else accountant.gaussian_epsilon(at, mu)
    return Basis(claim, claimed, at, mu, findings, result, folder)


def flaws(finding: Finding, where: str, evidence: Basis) -> Iterator[Flaw]:
    """What is wrong with a finding that bears on a claim."""
    check = CHECKS.get(finding["role"])
    if any(finding[key] not in (None, evidence.claim[key]) for key in ("claim", "threat_model")):
        yield Flaw(where, "it is of another claim or adversary", True)
    for what in check(finding, evidence) if check else ():
        yield Flaw(where, what.removeprefix("missing: "), not what.startswith("missing: "))
    own = {"claimed epsilon": evidence.epsilon, "delta": evidence.delta, "claimed mu": evidence.mu}
    for name, mine in own.items():
        said = metric(finding, name)
        if mine and said is not None and not isclose(said, mine, rel_tol=1e-5):
            yield Flaw(where, f"{name} {said:g} is not {mine:g}", True)


def _accounted(finding: Finding, evidence: Basis) -> Iterator[str]:
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
        own = accountant.epsilon(releases, at, evidence.adjacency, SIDES[end])
        wide = (said < own if end == "least" else said == inf) and min(said, own) >= MOST_LOSS
        if not wide and not isclose(own, said, rel_tol=TOLERANCE, abs_tol=1e-4):
            yield f"its releases give {own:.6g} at {end}, not {said:.6g}"
    if finding["role"] == "exact-leak" and low > 0 and not noiseless:
        yield from _seen(finding, evidence)


def _is_proven(value: float, evidence: Basis) -> bool:
    """Whether another finding of the claim certifies this epsilon; of a void one its releases."""
    sound = [f for f in evidence.findings if not f["void"] or "least" in f["releases"]]
    proven = [metric(f, *end) or 0.0 for f in sound for end in CERTIFIED]
    return any(isclose(value, x, rel_tol=ROUNDING) for x in proven)


def _seen(finding: Finding, evidence: Basis) -> Iterator[str]:
    """Whether the releases of an exact leak are what the matrices of the view give."""
    name = finding["artifacts"].get("linear view")
    if name is None or evidence.folder is None or not (evidence.folder / name).exists():
        if name or evidence.by_algebra or finding["verdict"] == evidence.verdict:
            yield "missing: the matrices of the view"
        return
    try:
        if not MATRICES.fullmatch(name):
            raise ValueError("they lie elsewhere")
        own = [ends for ends in mus(evidence.folder / name) if ends[1] > 1e-12]
    except Exception as error:  # numpy parses a header as Python, which fails in many ways
        yield f"the matrices of the view are none: {error}"
        return
    said: list[float] = []
    for r in finding["releases"].get("least", ()):
        noise = number(r["noise_multiplier"])
        said += [1 / noise if noise else inf] * min(int(r["count"]), len(own) + 1)
    fit = zip(sorted(said), own, strict=False)
    near = (low * (1 - ROUNDING) <= mu <= high * (1 + ROUNDING) for mu, (low, high) in fit)
    if len(said) != len(own) or not all(near):
        yield "its releases are not what the matrices of the view give"


def _tested(finding: Finding, evidence: Basis) -> Iterator[str]:
    """Tests at the level that they name; controls, which are of epsilon, at one of the config's."""
    control = finding["role"] != "test"
    bound, confidence = metric(finding, "epsilon lower bound"), metric(finding, "confidence")
    attack, asked = finding["attack"], evidence.result["config"].get("attack") or ()
    known = FALSE if attack in OWN else None
    levels = [a.get("alpha", known) for a in asked if a["name"] == attack] or [known]
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
    if OF_SHAPE in finding["metrics"]:
        yield from _of_shape(finding, evidence, levels[0])


def about(value: float) -> Ends:
    """Where a figure lies that both compute in closed form."""
    return value * (1 - 1e-5) - STEP, value * (1 + 1e-5) + 1e-7


def derived(finding: Finding, evidence: Basis, alpha: float) -> tuple[Ends, ...]:
    """p-value, bound and ceiling of a test of this level; none if what it counted is not there."""
    delta, mu = evidence.delta, evidence.mu
    if "sum" in finding["evidence"]:
        return _of_sum(finding, evidence, alpha)
    found = p_values(finding, delta, mu is not None)
    if found is None:
        return _of_bets(finding, evidence, alpha) if finding["evidence"] else ()
    claimed = evidence.epsilon if mu is None else mu
    bounds = [counts.largest(p, alpha) for p in found]
    if mu is not None:
        if not isclose(bounds[0], metric(finding, "mu lower bound") or 0.0, abs_tol=STEP):
            raise ValueError(f"its mu is {bounds[0]:.6g}")
        bounds = [accountant.gaussian_epsilon(delta, bound) for bound in bounds]
    ends = found[0](claimed - 1e-7) * (1 - 1e-4), found[0](claimed + STEP) * (1 + 1e-4)
    return ends, *map(about, bounds)


def p_values(finding: Finding, delta: float, of_mu: bool) -> tuple[PValue, PValue] | None:
    """p-values of a test's counts, and of as many cases without error. Raises ValueError."""
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
    of_successes = partial(counts.successes_p_value, kappa or 0.0, delta, of_mu, apart, n)
    return partial(of_successes, hits), partial(of_successes, n)


def _of_bets(finding: Finding, evidence: Basis, alpha: float) -> tuple[Ends, ...]:
    n, delta = int(metric(finding, "log wealth", "n") or 0), evidence.delta
    (against, wealth), *more = bets.wealths(finding["evidence"], n)
    mu, bound = evidence.mu, 0.0
    for e, d in against:  # each follows from the claim
        least = delta if mu is None else accountant.gaussian_delta(e, mu) * (1 - ROUNDING)
        if d < least or (mu is None and e < evidence.epsilon):
            raise ValueError("a bet is against more than is claimed")
    for points, own in more:
        ((bound, at),) = points
        if exp(-own.max()) > alpha or at != delta:
            raise ValueError("bets against the certified epsilon do not refute it")
    if not isclose(wealth[-1], metric(finding, "log wealth") or 0.0, rel_tol=ROUNDING):
        raise ValueError(f"the log wealth is {wealth[-1]:.6g}")
    return about(exp(-max(0.0, wealth.max()))), about(bound), about(bets.ceiling(n, delta, alpha))


def _of_sum(finding: Finding, evidence: Basis, alpha: float) -> tuple[Ends, ...]:
    """By the largest factor that the sum refutes, and the one that the claim allows."""
    own = family.CanaryLaw.of(finding["evidence"], int(metric(finding, "canaries") or 0))

    def reached(factor: float) -> float:
        found = accountant.epsilon_of(own.pairs(factor), evidence.delta) if factor else 0.0
        return min(accountant.MOST_EPSILON, found)

    factor = counts.largest(own.p, alpha - family.CHECKED)
    mu = accountant.total_mu(own.pairs(factor))
    for name, value in ((NOISE_FACTOR, 1 / factor if factor else inf), ("mu lower bound", mu)):
        said = metric(finding, name) or 0.0
        if value is not None and not isclose(said, value, rel_tol=1e-4, abs_tol=STEP):
            raise ValueError(f"its {name} is {value:.6g}")
    limit = counts.largest(reached, evidence.epsilon, 1e-4)
    p = [min(1.0, own.p(limit * x) + family.CHECKED) for x in NEARBY]
    low, high = (reached(factor) * x for x in NEARBY)
    return (p[0], p[1]), (low, high), (inf, inf)


def _of_shape(finding: Finding, evidence: Basis, alpha: float) -> Iterator[str]:
    """What the errors of a test say of noise of the declared family."""
    factor, said = metric(finding, NOISE_FACTOR), metric(finding, OF_SHAPE)
    releases, adjacency = finding["releases"].get("most"), evidence.adjacency
    if factor is None or said is None or releases is None:
        yield "missing: the releases of the declared family"
        return
    errors = (counted(finding, f"false {which}") for which in ("positives", "negatives"))
    rates = [counts.upper_rate(k, n, alpha / 2) for k, n in errors]
    less, more = (family.allow(releases, adjacency, factor * x, rates) for x in NEARBY)
    if not less or (more and factor < inf):
        yield f"its errors do not give {factor:.6g} times the declared noise"
    noise = accountant.scaled(accountant.counted(releases, adjacency, "least"), factor)
    own = accountant.epsilon_of(noise, evidence.delta) if factor < inf else 0.0
    if not isclose(own, said, rel_tol=TOLERANCE, abs_tol=1e-4):
        yield f"the noise of the declared family gives epsilon {own:.6g}, not {said:.6g}"


def _judged(finding: Finding, evidence: Basis) -> Iterator[str]:
    """Flaws of findings on distance, data dependence and noise whose verdict does not follow."""
    judged, ratio = finding["verdict"] is not None, metric(finding, "measured over stated")
    names = "measured", "stated bound", "found", "p-value"
    measured, stated, found, p = (metric(finding, name) for name in names)
    if measured is not None and stated and ratio is not None:
        if not isclose(ratio, measured / stated, rel_tol=ROUNDING):
            yield f"measured over stated is {measured / stated:.6g}, not {ratio:.6g}"
        if ratio > 1 + SENSITIVITY_ROUNDING and not judged:
            yield from _excess(measured - stated, " ".join(finding["notes"]))
    if found is not None and (found > 0) != judged:
        yield f"its verdict does not follow from the {found:g} that were found"
    if p is not None and (not 0 <= p <= 1 or (p < NOISE_LEVEL) != judged):
        yield f"its verdict does not follow from p = {p:g}"


def _excess(beyond: float, notes: str) -> Iterator[str]:
    """A distance beyond its bound, unless rounding of float32 accounts for it, as notes say."""
    rounded = map(float, re.findall(r"by more than (\S+), from rounding", notes))
    if beyond > max((x for x in rounded if x <= 1e-5), default=0.0):
        yield "missing: " * ("under noise:" in notes) + f"it moves {beyond:.3g} beyond its bound"


CHECKS = dict.fromkeys(("declared", "exact-leak", "measured"), _accounted)  # role -> check
CHECKS |= dict.fromkeys(("test", "positive-control", "null-control"), _tested)
CHECKS |= dict.fromkeys(("sensitivity", "dependence", "noise"), _judged)
