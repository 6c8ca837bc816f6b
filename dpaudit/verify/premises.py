"""Which premises of accounting the findings of an audit examined, derived again.

Two proofs may stand behind the premises: the algebra of a step that is linear in its noise, for all
rounds; or an alignment of all rounds, in which noise moves by no more than is declared.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isclose
from typing import Any

from .accountant import epsilon
from .figures import Claim, Finding, Flaw, claimed_delta, metric, number

ALLOWED = 1 + 1e-6  # times what is declared or stated
AGAINST = ("refuted", "unsupported")
NAMES = ("distance", "noise", "records", "completeness", "composition", "state")
TOLERANCE = 5e-3  # relative, of epsilon at measured quantities


def premises(claim: Claim, evidence: Sequence[Finding]) -> dict[str, bool]:
    """By name, whether each premise was examined and held; none without accounting."""
    declared = accounting(evidence)
    return {} if declared is None else _examined(claim, evidence, declared)


def accounting(evidence: Sequence[Finding]) -> Finding | None:
    """What is declared; of a function what was measured, if that has an upper end."""
    ended = [f for f in _of(evidence, "measured") if (metric(f, "epsilon", "high") or inf) < inf]
    return next(iter(_of(evidence, "declared") + ended), None)


def _examined(claim: Claim, evidence: Sequence[Finding], declared: Finding) -> dict[str, bool]:
    change = "add-remove" if claim["adjacency"] == "user" else claim["adjacency"]
    moved = [f for f in _of(evidence, "sensitivity") if f["adjacency"] in (None, change)]
    noise, beside = _of(evidence, "noise"), _of(evidence, "dependence")
    exact = [
        metric(f, "epsilon", "high") or 0.0
        for f in _of(evidence, "exact-leak")
        if f["void"] is None and (claim["scope"] != "run" or _is_whole(f))
    ]
    bounds = [high for high in exact if 0 < high < inf] or [inf]
    aligned = any(_aligns(finding, claim, declared) for finding in _of(evidence, "alignment"))
    tested = any(metric(f, "rounds") is not None for f in noise)
    unsure = any(f["unconfirmed"] or (f["claim"] is None and f["not_examined"]) for f in noise)
    high = metric(declared, "epsilon", "high") or 0.0
    looked = any(metric(f, "found") is not None for f in beside)
    measured = bool(moved) and all(metric(f, "stated bound") is not None for f in moved)
    held = {
        "distance": aligned or (measured and any(_is_whole(f) for f in beside)),
        "noise": aligned or (tested and not unsure and bounds[0] < inf),
        "records": _is_complete(evidence, "records"),
        "completeness": looked and not any(f["not_examined"] for f in beside),
        "composition": declared["void"] is None
        and high < inf
        and (aligned or bounds[0] <= high * ALLOWED),
        "state": _is_complete(evidence, "state"),
    }
    cited = {"distance": moved, "noise": noise, "completeness": beside}
    cited["composition"] = [declared, *_of(evidence, "exact-leak")]
    for name, some in cited.items():
        held[name] &= not any(f["verdict"] in AGAINST for f in some)
    return held


def _of(evidence: Sequence[Finding], role: str) -> list[Finding]:
    return [finding for finding in evidence if finding["role"] == role]


def _is_complete(evidence: Sequence[Finding], role: str) -> bool:
    found = _of(evidence, role)
    return bool(found) and not any(finding["not_examined"] for finding in found)


def _is_whole(finding: Finding) -> bool:
    rounds, of = metric(finding, "rounds"), metric(finding, "rounds", "n")
    return rounds is not None and of is not None and rounds >= of


def _aligns(finding: Finding, claim: Claim, declared: Finding) -> bool:
    """Whether its moves are allowed by as many releases as an eavesdropper of all links faces."""
    ratio = metric(finding, "noise moved over declared")
    if ratio is None or ratio > ALLOWED or not _is_whole(finding):
        return False
    own, every = ((f["releases"] or {}).get("most", []) for f in (declared, finding))
    kinds, all_kinds = (
        {(r["family"], r["noise_multiplier"], r["clipped"]) for r in some} for some in (own, every)
    )
    n, most = (sum(int(r["count"]) for r in some) for some in (own, every))
    same = finding["adjacency"] == claim["adjacency"]
    return same and bool(own) and kinds <= all_kinds and n >= most


def flaws(claim: Claim, evidence: Sequence[Finding], certified: float) -> Iterator[Flaw]:
    """Where the premises or the range of a claim do not follow from its findings."""
    own = premises(claim, evidence)
    said = {p["name"]: p["status"] for p in claim["premises"]}
    if list(said) != list(own):
        yield Flaw("premises", f"{', '.join(said) or 'none'} are not {', '.join(own)}", True)
        return
    for name, held in own.items():
        if (said[name] == "examined") != held:
            yield Flaw("premises", f"{name} is {said[name]}, its evidence says otherwise", True)
    declared = accounting(evidence)
    if declared is None or claim["range"] is None:
        return
    expected = {
        "certified": certified,
        "accounted": metric(declared, "epsilon", "high"),
        "measured": _measured(claim, evidence, declared) if all(own.values()) else inf,
    }
    for name, value in expected.items():
        given = number(claim["range"][name])
        close = given == value or isclose(given, value or 0.0, rel_tol=TOLERANCE, abs_tol=1e-4)
        if value is None or not close:
            known = name != "measured" or "most" in declared["releases"]
            yield Flaw("range", f"{name} is {value}, not {given:.6g}", known)


def _measured(claim: Claim, evidence: Sequence[Finding], declared: Finding) -> float:
    """Epsilon of the declared releases with noise and rate at their unfavourable ends."""
    releases: Sequence[Mapping[str, Any]] | None = (declared["releases"] or {}).get("most")
    accounted = metric(declared, "epsilon", "high") or 0.0
    sizes = [
        low
        for role in ("noise", "alignment")
        for f in _of(evidence, role)
        if (low := metric(f, "noise over declared", "low")) is not None
    ]
    if not releases:
        return accounted if releases is not None else inf
    if not sizes:
        return inf
    records = next(iter(_of(evidence, "records")), None)
    rate, high = (
        (metric(records, "sampling rate", end) if records else None) for end in ("value", "high")
    )
    times = max(1.0, high / rate) if rate and high else 1.0
    as_measured = [
        {
            **release,
            "noise_multiplier": number(release["noise_multiplier"]) * min(1.0, sizes[0]),
            "sampling_rate": min(1.0, number(release.get("sampling_rate", 1.0)) * times),
        }
        for release in releases
    ]
    adjacency = "replace-one" if claim["adjacency"] == "replace-one" else "add-remove"
    return max(accounted, epsilon(as_measured, claimed_delta(claim), adjacency).high)
