"""What an audit.json, or a certificate, says beside its figures and may not contradict them.

The room ``dpaudit/verify`` derives figures and verdicts. Here are words and lists: they cannot be
derived, but each has to agree with another part of the file, or with config.toml beside it.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.verify.figures import Flaw, evidence_of

from . import reasons, required_evidence

CONTROLS = {"positive-control": True, "null-control": False}  # whether the noise is off
CAN_BE_VOID = ("declared", "exact-leak", "who-learns-what", "weather")
STATED = ("claim", "threat_model", "defense", "graph", "model")  # what config.toml states
STATED_OF_CLAIM = ("text", "epsilon", "delta", "mu", "scope", "adjacency")
LARGEST = 10_000_000  # bytes of a config.toml that is read


def flaws(result: Mapping[str, Any], folder: Path) -> Iterator[Flaw]:
    """What disagrees within a file, or with the config.toml of its folder.

    Raises KeyError, TypeError or ValueError if the file is none of ours.
    """
    for claim in result["claims"]:
        own = evidence_of(claim, result, folder)
        yield from _of_claim(claim)
        yield from reasons.flaws(own)
        yield from required_evidence.missing(own)
    for i, finding in enumerate(result["findings"]):
        for what in _of_finding(finding, len(result["config"].get("claim") or ())):
            yield Flaw(f"findings[{i}]", what, True)
    for i in sorted({i for claim in result["claims"] for i in claim["because"]}):
        for what in required_evidence.differing(result["findings"][i]):
            yield Flaw(f"findings[{i}]", what, True)
    if len(result.get("notes", ())) != len(result.get("note_codes", ())):
        yield Flaw("notes", "not each has a code", True)
    yield from _of_adversaries(result)
    yield from _of_config(result["config"], folder / "config.toml")


def _of_claim(claim: Mapping[str, Any]) -> Iterator[Flaw]:
    """A sentence that is not what is claimed, and what is named twice."""
    stated = Claim.model_validate({key: claim[key] for key in STATED_OF_CLAIM})
    if claim["sentence"] != stated.sentence():
        yield Flaw("sentence", f"the claim is: {stated.sentence()}", True)
    named = {"because": claim["because"], "premises": [p["name"] for p in claim["premises"]]}
    for key, names in named.items():
        if len({*names}) < len(names):
            yield Flaw(f"claims.{key}", "it names one of them twice", True)


def _of_finding(finding: Mapping[str, Any], n_claims: int) -> Iterator[str]:
    role, claim = finding["role"], finding["claim"]
    if claim is not None and not 0 <= claim < n_claims:
        yield "the config has no such claim"
    if finding["verdict"] not in (None, *required_evidence.VERDICTS.get(role, ())):
        yield f'no such evidence has the verdict "{finding["verdict"]}"'
    if role in CONTROLS and (finding["world"] == "no-defense") != CONTROLS[role]:
        yield f"a {role} has {'no' if CONTROLS[role] else 'the'} noise of the defense"
    if finding["void"] is not None and role not in CAN_BE_VOID:
        yield "nothing makes such a figure void"


def _of_adversaries(result: Mapping[str, Any]) -> Iterator[Flaw]:
    """Adversaries are shown as the config has them."""
    asked = {model["name"]: model for model in result["config"].get("threat_model") or ()}
    drawn = result.get("threat_models", ())  # only in an audit.json; a certificate has sentences
    shown = result.get("adversaries", {model["name"]: model["sentence"] for model in drawn})
    if shown.keys() != asked.keys():
        yield Flaw("adversaries", "they are not the threat models of the config", True)
        return
    for name, sentence in shown.items():
        agents = [*map(str, asked[name].get("agents") or ())]
        if agents and not {*agents} <= {*re.findall(r"\d+", sentence)}:
            yield Flaw("adversaries", f'"{name}" has other agents in the config', True)
    for model in drawn:
        if [*model["agents"]] != [*(asked[model["name"]].get("agents") or ())]:
            what = f'"{model["name"]}" has other agents in the config'
            yield Flaw("threat_models", what, True)
            continue
        own = ThreatModel.model_validate(asked[model["name"]])
        drawn = own.model_copy(update={"agents": ()}).with_agents(
            *_seed_and_agents(result["config"])
        )
        if own.drawn is not None and drawn.agents != own.agents:
            yield Flaw("threat_models", f'"{model["name"]}" has agents that nobody drew', True)
        links = [(sender, receiver) for sender, receiver in result["graph"]["links"]]
        own = own.within(links)
        read = [link for link in links if own.sees(*link)]
        said = model["sentence"] == own.sentence() or not read  # others have another sentence
        if not said or [tuple(link) for link in model["links"]] != read:
            yield Flaw("threat_models", f'"{model["name"]}" reads other links', True)


def _seed_and_agents(config: Mapping[str, Any]) -> tuple[int, int]:
    """By which agents of an adversary are drawn; 0 of a program, which has none."""
    return int(config.get("seed") or 0), int((config.get("data") or {}).get("n_agents") or 0)


def _of_config(config: Mapping[str, Any], file: Path) -> Iterator[Flaw]:
    """What config.toml states otherwise than the config of the audit; nothing without one.

    Attacks may be edited there for `dpaudit attack`, and options may stand in for its seed, data
    and device. No plug-in is imported: only what the file states is compared.
    """
    if not file.is_file() or file.stat().st_size > LARGEST:
        return
    try:
        stated = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        yield Flaw("config.toml", "it cannot be read", False)
        return
    for key in STATED:
        for where in differing(stated.get(key), config.get(key), key):
            yield Flaw("config.toml", f"{where} is not that of the audit", True)


def differing(stated: Any, own: Any, where: str) -> Iterator[str]:
    """The keys that a TOML file states otherwise than a config with all defaults filled in."""
    if stated is None:
        return
    if isinstance(stated, str) and isinstance(own, Mapping):  # a name, and no options
        stated = {"name": stated}
    if isinstance(stated, Mapping) and isinstance(own, Mapping):
        for key in (key for key in stated if key in own):
            yield from differing(stated[key], own[key], f"{where}.{key}")
    elif isinstance(stated, list) and isinstance(own, list):
        if len(stated) != len(own):
            yield f"the number of {where}"
        for i, (one, other) in enumerate(zip(stated, own, strict=False), 1):
            yield from differing(one, other, f"{where}[{i}]")
    elif _plain(stated) != _plain(own):
        yield where


def _plain(value: Any) -> Any:
    """A value without the spaces that a config leaves out of texts."""
    return value.strip() if isinstance(value, str) else value
