"""The verdict of each claim, derived again from its evidence by the rule of docs/verdicts.md."""

import re
from collections.abc import Iterator, Mapping
from math import exp, floor, inf, isfinite, log10
from pathlib import Path
from typing import Any, NamedTuple

from . import premises
from .counts import holm
from .figures import FALSE, FIGURES, Basis, Finding, Flaw, evidence_of, flaws, metric, number

SEVERITY = ("refuted", "unsupported", "underpowered", "not refuted", "supported")
OF_ONE_CLAIM = ("accounting", "empirical-epsilon", "control")
SIZES = "measured", "stated bound", "found", "rounds", "sampling rate", "noise over declared"
MODEL = "threat_model"
FORMS = ".3g", ".4g", ".5g", "g", ".7g", ",.0f", ".1g", ".0f"  # of figures in sentences
ENDS = ("value", "low", "high", "n")  # keys of a metric
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


class ClaimCheck(NamedTuple):
    """What the evidence says of one claim against one adversary."""

    claim: str
    threat_model: str
    verdict: str  # verdict in audit.json
    derived: str  # verdict that the evidence gives
    flaws: tuple[Flaw, ...]

    @property
    def answer(self) -> str:
        """Contradicted if a figure or the verdict does not follow; not checkable if one may not."""
        if self.verdict != self.derived or any(p.contradicted for p in self.flaws):
            return "contradicted"
        return "not checkable" if self.flaws else "confirmed"


def check(result: Mapping[str, Any], folder: Path | None = None) -> list[ClaimCheck]:
    """Every claim of an audit.json in a folder; KeyError, TypeError or ValueError if it is none."""
    evidence = [evidence_of(claim, result, folder) for claim in result["claims"]]
    tests = [own.values("p-value", "value", "test") for own in evidence]
    least = {i: min(1.0, len(p) * min(p)) for i, p in enumerate(tests) if p}  # by statement
    adjusted = dict(zip(least, holm(list(least.values())), strict=True))
    checked = []
    for i, own in enumerate(evidence):
        refuted = adjusted.get(i, inf) <= FALSE
        derived, held = derive(own, refuted), premises.premises(own)
        proven = bool(held.get("noise") or held.get("composition"))
        own = own._replace(verdict=derived, by_algebra=proven and premises.moved_noise(own) is None)
        of_one = zip(own.claim["because"], own.findings, strict=True)
        found = [flaw for j, f in of_one for flaw in flaws(f, f"findings[{j}]", own)]
        found += [*_restated(own, refuted), *_left_out(own), *_numbers(own)]
        found += premises.flaws(own, _certified(own, refuted))
        named = (own.claim["text"], own.claim[MODEL], own.claim["verdict"])
        checked.append(ClaimCheck(*named, derived, tuple(found)))
    return checked


def overall(result: Mapping[str, Any]) -> Iterator[Flaw]:
    """What is wrong with the verdict of the whole audit, and with the number of its claims."""
    worst = min((one["verdict"] for one in result["claims"]), key=SEVERITY.index, default=None)
    if result["verdict"] != worst:
        yield Flaw("verdict", f'the worst of its claims is "{worst}"', True)
    yield from _incoherent(result)
    asked = result["config"].get("claim") or []
    models = [model["name"] for model in result["config"].get("threat_model") or []]
    pairs = [(i, m) for i, c in enumerate(asked) for m in models if c.get(MODEL) in (None, m)]
    if sorted(pairs) != sorted((claim["claim"], claim[MODEL]) for claim in result["claims"]):
        yield Flaw("claims", "they are not those of the config and its threat models", True)


def _incoherent(result: Mapping[str, Any]) -> Iterator[Flaw]:
    config, options, made = result["config"], result["calibrated"], result["provenance"]
    asked, sizes = config.get("defense") or {}, made["agent_sizes"]
    same = {f"calibrated.{key}": (options[key], asked.get(key)) for key in options}
    same["provenance.seed"] = made["seed"], config.get("seed")
    if sizes:
        same["config.data.n_agents"] = (config.get("data") or {}).get("n_agents"), len(sizes)
    for where, (said, own) in same.items():
        if None not in (said, own) and said != own:
            yield Flaw(where, f"{said} is not {own}", True)
    for i, finding in enumerate(result["findings"]):
        for what in _of_finding(finding, options.get("n_rounds")):
            yield Flaw(f"findings[{i}]", what, True)


def _of_finding(finding: Finding, n_rounds: int | None) -> Iterator[str]:
    for name, found in finding["metrics"].items():
        value, ends = number(found["value"]), [metric(finding, name, x) for x in ("low", "high")]
        low, high = (value if end is None else end for end in ends)
        if value < low or value > high or (low < 0 and name in SIZES):
            yield f"{name} {value:g} from {low:g} to {high:g} is out of its range"
    rounds, n = metric(finding, "rounds"), metric(finding, "rounds", "n")
    if rounds is not None and n is not None and (rounds > n or n_rounds not in (None, n)):
        yield f"{rounds:g} of {n:g} rounds are not of {n_rounds}"


def _restated(evidence: Basis, refuted: bool) -> Iterator[Flaw]:
    """A claim says what the config claims; of a record and the run it restates what is declared."""
    claim, asked = evidence.claim, {**evidence.result["config"]["claim"][evidence.claim["claim"]]}
    asked["confidence"] = 1 - FALSE if refuted or evidence.verdict == "not refuted" else None
    for key in ("epsilon", "delta", "mu", "scope", "adjacency", "text", "confidence"):
        if asked.get(key) != claim[key]:
            yield Flaw(f"claims.{key}", f"{claim[key]!r} is not {asked.get(key)!r}", True)
    if claim["decisive"] is not None and claim["decisive"] not in claim["because"]:
        yield Flaw("claims.decisive", "it is none of the evidence", True)
    restated = claim["restated"]
    same = claim["scope"] == "run" and restated and restated["adjacency"] == claim["adjacency"]
    for finding in evidence.of("declared", "measured") if same and not restated["void"] else ():
        own = finding["metrics"].get("epsilon"), metric(finding, "delta")
        if len(finding["releases"]) == 2 and own != (restated["epsilon"], restated["delta"]):
            yield Flaw("claims.restated", "it is not what is declared", True)


def _left_out(evidence: Basis) -> Iterator[Flaw]:
    """Evidence about the claim and its adversary that the claim does not name."""
    claim = evidence.claim
    for j, finding in enumerate(evidence.result["findings"]):
        if finding["threat_model"] not in (None, claim["threat_model"]) or j in claim["because"]:
            continue
        own = finding["claim"] == claim["claim"] and finding["kind"] in OF_ONE_CLAIM
        moved = finding["kind"] == "sensitivity" and finding["adjacency"] in (None, evidence.change)
        of_all = finding["role"] in ("noise", "state") and finding["claim"] is None
        if own or moved or of_all:
            yield Flaw(f"findings[{j}]", "it bears on the claim, which does not name it", True)


def derive(evidence: Basis, refuted: bool) -> str:
    noiseless = any(finding["verdict"] == "refuted" for finding in evidence.of("exact-leak"))
    if noiseless or refuted or inf in evidence.values("epsilon", "low", "declared"):
        return "refuted"
    judged = [f for f in evidence.findings if f["kind"] != "empirical-epsilon"]
    if any(finding["verdict"] == "unsupported" for finding in judged):
        return "unsupported"
    if evidence.claim["codes"][:1] in (["DPA111"], ["DPA112"]):  # no evidence can judge it
        return "underpowered"
    strengths = [[metric(test, x) or 0.0 for x in FIGURES[1:]] for test in evidence.of("test")]
    bound, ceiling = max(strengths, default=[0.0, 0.0])
    declared, held = premises.accounting(evidence), premises.premises(evidence)
    accounted = (metric(declared, "epsilon", "high") or 0.0) if declared else inf
    if all(held.values()) and max(bound, accounted) <= evidence.epsilon:
        return "supported"
    controls = evidence.of("positive-control")
    blind = controls and not any(control["verdict"] == "refuted" for control in controls)
    weak = ceiling <= evidence.epsilon or blind or bound <= 0
    return "underpowered" if weak else "not refuted"


def _certified(evidence: Basis, refuted: bool) -> float:
    """The largest epsilon that is certainly reached."""
    if any(f["verdict"] == "refuted" for f in evidence.of("exact-leak")):
        return inf
    tests = [f for f in evidence.of("test") if f["metrics"]]
    tests = [min(tests, key=lambda test: metric(test, "p-value") or 0.0)] if refuted else tests
    bound = max((metric(test, "epsilon lower bound") or 0.0 for test in tests), default=0.0)
    lows = evidence.values("epsilon", "low", "exact-leak", "measured", "declared")
    return max([bound if refuted else min(bound, evidence.epsilon), *lows])


def _numbers(evidence: Basis) -> Iterator[Flaw]:
    """Each number in the sentences of a claim is a figure of its evidence, or of the claim."""
    claim, own = evidence.claim, evidence.findings
    spoken = [("reason", claim["reason"], own), ("meaning", claim["meaning"], own)]
    spoken += [("sentence", claim["sentence"], [])]
    for premise in claim["premises"] if evidence.of("declared") else ():
        cited = [evidence.result["findings"][j] for j in premise["findings"]]
        cited += evidence.of(*premises.SAID_BESIDE.get(premise["name"], ()))
        spoken.append((f"premises.{premise['name']}", premise["says"], cited))
    for where, text, some in spoken:
        counts = {str(n) for n in range(len(own) + 10) if where == "reason"}
        names = {claim["text"], claim["threat_model"], *(f["message"] or "" for f in some)}
        for name in sorted(names, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "", text) if name else text
        known = _known(evidence._replace(findings=some)) | counts
        unknown = [found for found in NUMBER.findall(text) if found not in known]
        if unknown:
            yield Flaw(where, f"{', '.join(unknown)}: in none of its evidence", True)


def _known(evidence: Basis) -> set[str]:
    """The figures of a claim and its evidence, as sentences write them."""
    claim, findings = evidence.claim, evidence.findings
    figures = [x for f in findings for m in f["metrics"].values() for x in map(m.get, ENDS)]
    figures += [evidence.epsilon, *(claim[key] for key in ("epsilon", "delta", "mu"))]
    values = [number(x) for x in figures if x is not None]
    values += [1e-5, FALSE, 100 * (1 - FALSE)] if findings else []
    values += [100 * (metric(f, "confidence") or 0.0) for f in findings]
    values += [evidence.epsilon / b for f in findings if (b := metric(f, "epsilon lower bound"))]
    beyond = {f"{100 * ((metric(f, 'measured over stated') or 1) - 1):.2g}" for f in findings}
    texts = [f[key] for f in findings for key in ("not_examined", "unconfirmed", "title", "void")]
    return beyond.union(NUMBER.findall(str(texts)), *map(_written, values))


def _written(value: float) -> tuple[str, ...]:
    odds = exp(min(value, 50.0)) if value >= 0 else 0.0
    down = value - (10.0 ** floor(log10(abs(value))) / 200 if 0 < abs(value) < inf else 0.0)
    return tuple(f"{x:{form}}" for x in (value, odds, down) for form in FORMS if isfinite(value))
