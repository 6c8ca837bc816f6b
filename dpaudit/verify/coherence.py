"""Numbers of an audit that stand in several places are the same, and within their range."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .figures import Evidence, Finding, Flaw, metric, number

COUNTED = ("found", "rounds", "sampling rate", "noise over declared")  # not below 0
ROUNDS = re.compile(r"(?:all|\d+ of) \d+ rounds")
CITED = {  # roles of the findings that examine a premise
    "distance": {"sensitivity", "alignment"},
    "noise": {"noise", "alignment"},
    "records": {"records"},
    "completeness": {"dependence"},
    "composition": {"declared", "exact-leak", "alignment"},
    "state": {"state"},
}


def flaws(result: Mapping[str, Any]) -> Iterator[Flaw]:
    """Where a number is not what another place says."""
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
        if value < low or value > high or (low < 0 and name in COUNTED):
            yield f"{name} {value:g} from {low:g} to {high:g} is out of its range"
    rounds, n = metric(finding, "rounds"), metric(finding, "rounds", "n")
    if rounds is not None and n is not None and (rounds > n or n_rounds not in (None, n)):
        yield f"{rounds:g} of {n:g} rounds are not of {n_rounds}"


def of_claim(evidence: Evidence, findings: list[Finding]) -> Iterator[Flaw]:
    """Where a premise cites what does not examine it."""
    claim, named = evidence.claim, evidence.claim["because"]
    for premise in claim["premises"] if evidence.of("declared") else ():
        cited, where = premise["findings"], f"premises.{premise['name']}"
        examine = {i for i in named if findings[i]["role"] in CITED[premise["name"]]}
        some = {i for i in examine if findings[i]["kind"] == "sensitivity"}  # not all are needed
        if not examine - some <= {*cited} <= examine or len({*cited}) < len(cited):
            yield Flaw(where, "it does not cite what examines it", True)
        said = ROUNDS.search(premise["says"])
        if said and said[0] not in {_rounds(findings[i]) for i in cited}:
            yield Flaw(where, f"{said[0]}: by none of its findings", True)


def _rounds(finding: Finding) -> str:
    value, n = metric(finding, "rounds") or 0, metric(finding, "rounds", "n") or 0
    return f"all {n:g} rounds" if value >= n else f"{value:g} of {n:g} rounds"
