"""Which premises of accounting the findings of an audit examined, derived again.

All rounds are proven by the algebra of a linear step, or by noise that moves as far as declared.
"""

import re
from collections.abc import Iterator
from math import inf, isclose

from .accountant import WORST, counted, epsilon_of, scaled
from .figures import TOLERANCE, Basis, Finding, Flaw, metric, number

ALLOWED = 1 + 1e-6  # times what is declared or stated
ROUNDS = re.compile(r"(?:all|\d+ of) \d+ rounds")
CITED = {  # roles of the findings that examine a premise; else that of its name
    "distance": {"sensitivity", "alignment"},
    "noise": {"noise", "alignment"},
    "completeness": {"dependence"},
    "composition": {"declared", "exact-leak", "alignment"},
}
STATUS = {True: "examined", False: "not examined", None: "failed"}
SAID_BESIDE = {"distance": ("dependence",), "noise": ("exact-leak",)}  # may state its rounds
KIND = "family", "noise_multiplier", "clipped"  # keys of a release


def accounting(evidence: Basis) -> Finding | None:
    """What is declared, or was measured; of a function only if that has an upper end."""
    found = evidence.of("declared") + evidence.of("measured")
    ended = (f for f in found if f["attack"] != "mechanism" or metric(f, "epsilon", "high") != inf)
    return next(ended, None)


def premises(evidence: Basis) -> dict[str, bool | None]:
    """By name, whether each premise was examined and held; None: it failed. {} if none is there."""
    declared = accounting(evidence)
    if declared is None:
        return {}
    moved = [f for f in evidence.of("sensitivity") if f["adjacency"] in (None, evidence.change)]
    noise, beside, leaks = map(evidence.of, ("noise", "dependence", "exact-leak"))
    of_part = evidence.claim["scope"] != "run"
    whole = [f for f in leaks if f["void"] is None and (of_part or _is_whole(f))]
    aligned = (move := moved_noise(evidence)) is not None
    highs = [x for f in whole if (x := metric(f, "epsilon", "high")) is not None and x < inf]
    unsure = any(f["unconfirmed"] or (f["claim"] is None and f["not_examined"]) for f in noise)
    low, top = (evidence.values("noise over declared", end, "noise") for end in ("low", "high"))
    measured = moved and all(metric(f, "stated bound") is not None for f in moved)
    measured = measured and any(metric(f, "measured over stated") != 0 for f in moved)
    tested = evidence.values("rounds", "value", "noise") and highs and not unsure
    drawn = low and not unsure  # more noise than a program states hides no less
    if declared["attack"] != "captured":
        drawn = (aligned or tested) and max(low, default=1.0) <= 1.1
    high = metric(declared, "epsilon", "high") or 0.0
    fits = high < inf and (aligned or (highs or [inf])[0] <= high * ALLOWED)
    held = {
        "distance": move != 0 if aligned else measured and any(map(_is_whole, beside)),
        "noise": drawn and min(top, default=1.0) >= 0.9,
        "records": _is_complete(evidence.of("records")),
        "completeness": evidence.values("found", "value", "dependence") and _is_complete(beside),
        "composition": declared["void"] is None and fits,
        "state": _is_complete(evidence.of("state")),
    }
    bounds = [(f, metric(f, "epsilon", "low")) for f in evidence.of("declared", "measured") + leaks]
    more = [f for f, low in bounds if f["verdict"] == "refuted" or (low or 0) >= high * ALLOWED]
    cited = dict(distance=moved, noise=noise, completeness=beside, composition=more)
    failed = {name for name, some in cited.items() if any(f["verdict"] for f in some)}
    return {name: None if name in failed else bool(how) for name, how in held.items()}


def _is_complete(found: list[Finding]) -> bool:
    return bool(found) and not any(f["not_examined"] for f in found)


def _is_whole(finding: Finding) -> bool:
    rounds, of = metric(finding, "rounds"), metric(finding, "rounds", "n")
    return rounds is not None and of is not None and rounds >= of


def moved_noise(evidence: Basis) -> float | None:
    """How far an alignment of all rounds, by the releases of all links, moves what is declared."""
    own = most_of(accounting(evidence))
    for finding in evidence.of("alignment"):
        ratio, every = metric(finding, "noise moved over declared"), most_of(finding)
        kinds, all_kinds = ({tuple(r[k] for k in KIND) for r in some} for some in (own, every))
        n, most = (sum(int(r["count"]) for r in some) for some in (own, every))
        moves = ratio is not None and ratio <= ALLOWED and _is_whole(finding)
        same = finding["adjacency"] == evidence.claim["adjacency"]
        if moves and same and own and kinds <= all_kinds and n >= most:
            return ratio
    return None


def most_of(finding: Finding | None) -> list[Finding]:
    """The releases behind the upper end of a finding; none if they are not there."""
    return list(((finding and finding["releases"]) or {}).get("most") or ())


def flaws(evidence: Basis, certified: float) -> Iterator[Flaw]:
    """Where the premises or the range of a claim do not follow from its findings."""
    yield from _miscited(evidence)
    own, claim, declared = premises(evidence), evidence.claim, accounting(evidence)
    said = {p["name"]: p["status"] for p in claim["premises"]}
    for name in {**own, **said}:
        if name not in own or said.get(name) != STATUS[own[name]]:
            yield Flaw("premises", f"{name}: its evidence says otherwise", True)
    sampled = [r for r in most_of(declared) if r["sampling"] != "none"]
    rate = min((number(r["sampling_rate"]) for r in sampled), default=1.0)
    for stated in evidence.values("declared sampling rate", "value", "records"):
        if declared and "most" in declared["releases"] and not isclose(stated, rate, rel_tol=1e-9):
            yield Flaw("premises", f"the declared rate is {rate:.6g}, not {stated:.6g}", True)
    if declared is None or claim["range"] is None:
        return
    accounted = metric(declared, "epsilon", "high")
    measured = _measured(evidence, declared) if all(own.values()) else inf
    for name, value in dict(certified=certified, accounted=accounted, measured=measured).items():
        given = number(claim["range"][name])
        if value is None or not isclose(given, value, rel_tol=TOLERANCE, abs_tol=1e-4):
            what = f"{name} is {value}, not {given:.6g}"
            yield Flaw("range", what, name != "measured" or "most" in declared["releases"])


def _miscited(evidence: Basis) -> Iterator[Flaw]:
    """Where a premise cites what does not examine it."""
    claim, findings = evidence.claim, evidence.result["findings"]
    for premise in claim["premises"] if evidence.of("declared") else ():
        name, cited = premise["name"], premise["findings"]
        where, roles = f"premises.{name}", CITED.get(name, {name})
        examine = {i for i in claim["because"] if findings[i]["role"] in roles}
        some = {i for i in examine if findings[i]["kind"] == "sensitivity"}  # not all are needed
        if not examine - some <= {*cited} <= examine or len({*cited}) < len(cited):
            yield Flaw(where, "it does not cite what examines it", True)
        known = [findings[i] for i in cited] + evidence.of(*SAID_BESIDE.get(name, ()))
        if (said := ROUNDS.search(premise["says"])) and said[0] not in map(_rounds, known):
            yield Flaw(where, f"{said[0]}: by none of its findings", True)


def _rounds(finding: Finding) -> str:
    value, n = metric(finding, "rounds") or 0, metric(finding, "rounds", "n") or 0
    return f"all {n:g} rounds" if value >= n else f"{value:g} of {n:g} rounds"


def _measured(evidence: Basis, declared: Finding) -> float:
    """Epsilon of the declared releases with noise and rate at their unfavourable ends."""
    accounted, releases = metric(declared, "epsilon", "high") or 0.0, most_of(declared)
    low = "noise over declared", "low"
    sizes = evidence.values(*low, "noise") + evidence.values(*low, "alignment")
    if not releases or not sizes:
        return accounted if not releases and "most" in (declared["releases"] or {}) else inf
    rates, highs = (evidence.values("sampling rate", end, "records") for end in ("value", "high"))
    times = max(1.0, highs[0] / rates[0]) if rates and highs and rates[0] else 1.0
    noise, adjacency = min(1.0, sizes[0]), evidence.adjacency
    pairs = (scaled(counted(releases, adjacency, side), noise, times) for side in WORST)
    return max(accounted, *(epsilon_of(side, evidence.delta) for side in pairs))
