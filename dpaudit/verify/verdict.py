"""The verdict of each claim, derived again from its evidence by the published rule.

The most severe reason that applies decides: a message without noise, runs that refute the claim, an
accounting of what is declared or really added that exceeds it, a premise that is false. A claim
that none of these speaks against is supported if what is declared is no more than it and each
premise was examined, not refuted if an attack had the power to refute it, and underpowered if none
had.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import exp, inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from . import coherence, premises
from .counts import holm
from .figures import FALSE, Audit, Claim, Finding, Flaw, claimed_epsilon, flaws, metric, number

SEVERITY = ("refuted", "unsupported", "underpowered", "not refuted", "supported")
OF_ONE_CLAIM = ("accounting", "empirical-epsilon", "control")
WITHOUT_VIEW = ("DPA111", "DPA112")  # codes of claims that no evidence can judge
ENDS = ("value", "low", "high", "n")  # of a metric
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


class ClaimCheck(NamedTuple):
    """What the evidence says of one claim against one adversary."""

    claim: str
    threat_model: str
    verdict: str  # as audit.json has it
    derived: str  # as the evidence gives it
    flaws: tuple[Flaw, ...]

    @property
    def answer(self) -> str:
        """Contradicted if a figure or the verdict does not follow; not checkable if one may not."""
        if self.verdict != self.derived or any(p.contradicted for p in self.flaws):
            return "contradicted"
        return "not checkable" if self.flaws else "confirmed"


def check(result: Mapping[str, Any], folder: Path | None = None) -> list[ClaimCheck]:
    """Every claim of an audit.json in a folder; KeyError, TypeError or ValueError if it is none."""
    claims, findings = result["claims"], result["findings"]
    evidence = [[findings[i] for i in claim["because"]] for claim in claims]
    tested = {i: p for i, own in enumerate(evidence) if (p := _least_p(own)) is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    refuted = [adjusted.get(i, inf) <= FALSE for i in range(len(claims))]
    return [_checked(result, i, refuted[i], folder) for i in range(len(claims))]


def overall(result: Mapping[str, Any]) -> Iterator[Flaw]:
    """What is wrong with the verdict of the whole audit, and with the number of its claims."""
    said = [claim["verdict"] for claim in result["claims"]]
    worst = min(said, key=SEVERITY.index, default=None)
    if result["verdict"] != worst:
        yield Flaw("verdict", f'the worst of its claims is "{worst}"', True)
    yield from coherence.flaws(result)
    asked = result["config"].get("claim") or []
    models = [model["name"] for model in result["config"].get("threat_model") or []]
    pairs = {
        (i, name)
        for i, claim in enumerate(asked)
        for name in models
        if claim.get("threat_model") in (None, name)
    }
    if pairs != {(claim["claim"], claim["threat_model"]) for claim in result["claims"]}:
        yield Flaw("claims", "they are not those of the config and its threat models", True)


def _least_p(evidence: Sequence[Finding]) -> float | None:
    """The p-value of a statement: the least of its tests, times how many there are."""
    found = [p for f in evidence if f["role"] == "test" and (p := metric(f, "p-value")) is not None]
    return min(1.0, len(found) * min(found)) if found else None


def _checked(result: Mapping[str, Any], i: int, refuted: bool, folder: Path | None) -> ClaimCheck:
    claim, ends = result["claims"][i], (("epsilon", "low"), ("epsilon lower bound", "value"))
    evidence = [result["findings"][j] for j in claim["because"]]
    proven = [x for f in evidence for name in ends if (x := metric(f, *name)) and not f["void"]]
    audit, found = Audit(result["config"], tuple(proven), folder), list[Flaw]()
    for j, finding in zip(claim["because"], evidence, strict=True):
        found += flaws(finding, f"findings[{j}]", claim, audit)
    found += [*_of_config(result, claim), *_left_out(result, i), *_numbers(result, claim)]
    found += _restated(claim, evidence)
    found += coherence.of_claim(claim, result["findings"])
    found += premises.flaws(claim, evidence, _certified(claim, evidence, refuted))
    derived = derive(claim, evidence, refuted)
    named = (claim["text"], claim["threat_model"], claim["verdict"])
    return ClaimCheck(*named, derived, tuple(found))


def _of_config(result: Mapping[str, Any], claim: Claim) -> Iterator[Flaw]:
    """A claim says what the config claims."""
    asked = result["config"]["claim"][claim["claim"]]
    for key in ("epsilon", "delta", "mu", "scope", "adjacency", "text"):
        if asked.get(key) != claim[key]:
            yield Flaw(f"claims.{key}", f"{claim[key]!r} is not {asked.get(key)!r}", True)
    if claim["confidence"] not in (None, 1 - FALSE):
        yield Flaw("claims.confidence", f"{claim['confidence']} is not {1 - FALSE}", True)
    if claim["decisive"] is not None and claim["decisive"] not in claim["because"]:
        yield Flaw("claims.decisive", "it is none of the evidence", True)


def _restated(claim: Claim, evidence: Sequence[Finding]) -> Iterator[Flaw]:
    """A claim on one record and the whole run is restated as what is declared."""
    restated = claim["restated"]
    same = claim["scope"] == "run" and restated and restated["adjacency"] == claim["adjacency"]
    for finding in evidence if same and not restated["void"] else ():
        if finding["role"] == "declared" and len(finding["releases"]) == 2:
            own = finding["metrics"]["epsilon"], metric(finding, "delta")
            if own != (restated["epsilon"], restated["delta"]):
                yield Flaw("claims.restated", "it is not what is declared", True)


def _left_out(result: Mapping[str, Any], i: int) -> Iterator[Flaw]:
    """Evidence about the claim and its adversary that the claim does not name."""
    claim = result["claims"][i]
    change = "add-remove" if claim["adjacency"] == "user" else claim["adjacency"]
    for j, finding in enumerate(result["findings"]):
        if finding["threat_model"] not in (None, claim["threat_model"]) or j in claim["because"]:
            continue
        own = finding["claim"] == claim["claim"] and finding["kind"] in OF_ONE_CLAIM
        moved = finding["kind"] == "sensitivity" and finding["adjacency"] in (None, change)
        of_all = finding["role"] in ("noise", "state") and finding["claim"] is None
        if own or moved or of_all:
            yield Flaw(f"findings[{j}]", "it bears on the claim, which does not name it", True)


def derive(claim: Claim, evidence: Sequence[Finding], refuted: bool) -> str:
    """The verdict that the evidence gives."""

    def of(role: str) -> list[Finding]:
        return [finding for finding in evidence if finding["role"] == role]

    claimed = claimed_epsilon(claim)
    declared_low = max((metric(f, "epsilon", "low") or 0.0 for f in of("declared")), default=0.0)
    noiseless = any(finding["verdict"] == "refuted" for finding in of("exact-leak"))
    if noiseless or refuted or declared_low == inf:
        return "refuted"
    if any(f["verdict"] == "unsupported" for f in evidence if f["kind"] != "empirical-epsilon"):
        return "unsupported"
    if claim["codes"] and claim["codes"][0] in WITHOUT_VIEW:
        return "underpowered"
    tests = [f for f in of("test") if f["metrics"]]
    names = "epsilon lower bound", "ceiling"
    strengths = [[metric(test, name) or 0.0 for name in names] for test in tests]
    bound, ceiling = max(strengths, default=[0.0, 0.0])
    declared = premises.accounting(evidence)
    if declared is not None and bound <= claimed:
        held = premises.premises(claim, evidence)
        if all(held.values()) and (metric(declared, "epsilon", "high") or 0.0) <= claimed:
            return "supported"
    if ceiling <= claimed:
        return "underpowered"
    controls = of("positive-control")
    if controls and not any(control["verdict"] == "refuted" for control in controls):
        return "underpowered"
    return "not refuted" if bound > 0 else "underpowered"


def _certified(claim: Claim, evidence: Sequence[Finding], refuted: bool) -> float:
    """The largest epsilon that is certainly reached."""
    accounted = [f for f in evidence if f["role"] in ("exact-leak", "measured", "declared")]
    if any(f["role"] == "exact-leak" and f["verdict"] == "refuted" for f in evidence):
        return inf
    tests = [f for f in evidence if f["role"] == "test" and f["metrics"]]
    if refuted:
        tests = [min(tests, key=lambda test: metric(test, "p-value") or 0.0)]
    bound = max((metric(test, "epsilon lower bound") or 0.0 for test in tests), default=0.0)
    lows = (metric(finding, "epsilon", "low") or 0.0 for finding in accounted)
    return max([bound if refuted else min(bound, claimed_epsilon(claim)), *lows])


def _numbers(result: Mapping[str, Any], claim: Claim) -> Iterator[Flaw]:
    """Each number in the sentences of a claim is a figure of its evidence, or of the claim."""
    findings = result["findings"]
    evidence = [findings[j] for j in claim["because"]]
    spoken = [("reason", claim["reason"], evidence), ("meaning", claim["meaning"], evidence)]
    spoken += [("sentence", claim["sentence"], [])]
    of_training = any(finding["role"] == "declared" for finding in evidence)
    for premise in claim["premises"] if of_training else ():
        cited = [findings[j] for j in premise["findings"]]
        spoken.append((f"premises.{premise['name']}", premise["says"], cited))
    for where, text, some in spoken:
        known = _known(claim, some) | {
            str(n) for n in range(len(evidence) + 10) if where == "reason"
        }
        names = {claim["text"], claim["threat_model"], *(f["message"] or "" for f in some)}
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, "") if name else text
        unknown = [found for found in NUMBER.findall(text) if found not in known]
        if unknown:
            yield Flaw(where, f"{', '.join(unknown)}: in none of its evidence", True)


def _known(claim: Claim, evidence: Sequence[Finding]) -> set[str]:
    """The figures of a claim and its evidence, as sentences write them."""
    figures = [x for f in evidence for m in f["metrics"].values() for x in map(m.get, ENDS)]
    figures += [claim[key] for key in ("epsilon", "delta", "mu")]
    values = [number(x) for x in figures if x is not None] + [claimed_epsilon(claim)]
    values += [100 * (metric(f, "confidence") or 0.0) for f in evidence]
    values += [1e-5, FALSE, 100 * (1 - FALSE)] if evidence else []
    certified = [metric(f, "epsilon lower bound") or 0.0 for f in evidence]
    values += [claimed_epsilon(claim) / bound for bound in certified if bound > 0]
    texts = [f[key] for f in evidence for key in ("not_examined", "unconfirmed", "title", "void")]
    return set(NUMBER.findall(str(texts))).union(*map(_written, values))


def _written(value: float) -> tuple[str, ...]:
    """How sentences write a figure, or how far it lets odds rise."""
    if not isfinite(value):
        return ()
    odds = exp(min(value, 50.0)) if value >= 0 else 0.0
    forms = [f"{x:{form}}" for x in (value, odds) for form in (".3g", "g", ",.0f", ".1g", ".0f")]
    return tuple(forms)
