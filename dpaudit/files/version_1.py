"""Results that an older dpaudit wrote: version 1 of audit.json, read as version 2.

Version 1 had no roles, and joined findings to claims by words. Here the join is by what the claims
themselves cite, and the role by what a finding holds.
"""

from collections.abc import Mapping
from typing import Any

from .finding import Name, Role, canonical

_BY_KIND = {
    "accounting": Role.DECLARED,
    "sensitivity": Role.SENSITIVITY,
    "empirical-epsilon": Role.TEST,
    "reconstruction": Role.RECONSTRUCTION,
    "mutual-information": Role.INFORMATION,
    "control": Role.NULL_CONTROL,
}


def upgraded(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a version 1 file as version 2; what is malformed is left for the checks."""
    claims = _indexed(content)
    cited = _citing(claims)
    findings = [
        _finding(finding, cited.get(i)) if isinstance(finding, dict) else finding
        for i, finding in enumerate(_list(content, "findings"))
    ]
    return {**content, "schema_version": 2, "claims": claims, "findings": findings}


def _indexed(content: Mapping[str, Any]) -> list[Any]:
    """The judged claims, each with the index of the config's claim that it judges.

    They stand claim by claim, and for each claim one for each adversary that it is made against.
    """
    config = content.get("config")
    stated = _list(config, "claim") if isinstance(config, dict) else []
    models = len(_list(content, "threat_models"))
    indexes = [
        i
        for i, claim in enumerate(stated)
        for _ in range(1 if isinstance(claim, dict) and claim.get("threat_model") else models)
    ]
    claims = _list(content, "claims")
    indexes += [max(0, len(stated) - 1)] * (len(claims) - len(indexes))
    return [
        {**claim, "claim": i} if isinstance(claim, dict) else claim
        for i, claim in zip(indexes, claims, strict=False)
    ]


def _citing(claims: list[Any]) -> dict[int, int]:
    """The claim of each finding that only one claim cites."""
    found: dict[int, set[int]] = {}
    for claim in claims:
        if isinstance(claim, dict):
            for i in _list(claim, "because"):
                if isinstance(i, int):
                    found.setdefault(i, set()).add(claim["claim"])
    return {i: min(several) for i, several in found.items() if len(several) == 1}


def _finding(finding: Mapping[str, Any], claim: int | None) -> dict[str, Any]:
    metrics = finding.get("metrics")
    if isinstance(metrics, dict):
        metrics = {canonical(name): metric for name, metric in metrics.items()}
    upgraded = {**finding, "metrics": metrics or {}, "claim": claim}
    return {**upgraded, "role": _role(upgraded)}


def _role(finding: Mapping[str, Any]) -> str:
    kind, metrics, series = finding.get("kind"), finding["metrics"], finding.get("series")
    metrics, series = (x if isinstance(x, dict) else {} for x in (metrics, series))
    if kind == "control" and finding.get("world") == "no-defense":
        return Role.POSITIVE_CONTROL
    if kind == "control" and Name.P_VALUE in metrics:
        return Role.NOISE
    if kind == "accounting" and finding.get("attack"):
        return Role.WHO_LEARNS_WHAT if "victim" in series else Role.EXACT_LEAK
    if kind == "sensitivity" and Name.FOUND in metrics:
        return Role.DEPENDENCE
    if kind == "empirical-epsilon" and metrics and Name.EPSILON_LOWER_BOUND not in metrics:
        return Role.NOISE_BOUND
    if kind == "mutual-information" and Name.VARIANCE_EXPLAINED in metrics:
        return Role.BEST_ESTIMATE
    return _BY_KIND.get(str(kind), Role.TEST)


def _list(content: Any, key: str) -> list[Any]:
    found = content.get(key)
    return list(found) if isinstance(found, list | tuple) else []
