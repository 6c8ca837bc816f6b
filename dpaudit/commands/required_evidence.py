"""What an audit keeps of each piece of evidence, and which evidence it always has.

A file without it was cut: what is left may be coherent, and yet says less than the audit found.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dpaudit.verify.figures import Basis, Finding, Flaw

CONTROLS = ("positive-control", "null-control")
FIGURES: Mapping[str, tuple[str, ...]] = {  # role -> figures of a finding that has any
    **dict.fromkeys(("declared", "measured"), ("epsilon", "claimed epsilon", "delta")),
    "exact-leak": ("epsilon", "claimed epsilon", "delta", "rounds"),
    "test": ("epsilon lower bound", "p-value", "ceiling", "claimed epsilon", "delta"),
    **dict.fromkeys(CONTROLS, ("epsilon lower bound", "claimed epsilon")),
    "sensitivity": ("measured",),
    "dependence": ("found",),
    **dict.fromkeys(("alignment", "state"), ("rounds",)),
}
WITH_THEM = {  # a figure that another one comes with, of such evidence
    "noise over declared": "p-value",
    "noise, at most times the declared": "p-value",
    "found": "p-value",
    "stated bound": "measured over stated",
    "measured over stated": "stated bound",
    "sampling rate": "declared sampling rate",
}
PAIRED = {  # role -> its figures among these
    "noise": ("noise over declared", "noise, at most times the declared", "found"),
    "sensitivity": ("stated bound", "measured over stated"),
    "records": ("sampling rate",),
}
JUDGED_BY = {"noise": "p-value", "dependence": "found", "sensitivity": "measured"}
EXPLAINED = ("exact-leak", "test", "records", "noise")  # roles with a note instead of a figure
SURE = ("captured", "mechanism", "gradient-inversion")  # roles whose tests always count something
CAN_MISS = ("dependence", "alignment", "noise", "state", "records")  # not all may be examined
OF_ONE = ("declared", "measured", "exact-leak", "test", "records", *CONTROLS)  # claim, adversary
OF_ADJACENCY = ("sensitivity", "alignment", "measured")
WORLDS = {"test": "defense", "null-control": "defense", "positive-control": "no-defense"}
VERDICTS: Mapping[str, tuple[str, ...]] = {  # role -> verdicts a finding can have
    **dict.fromkeys(("declared", "measured"), ("unsupported",)),
    **dict.fromkeys(("sensitivity", "dependence", "noise"), ("unsupported",)),
    "exact-leak": ("refuted", "unsupported"),
    **dict.fromkeys(CONTROLS, ("refuted",)),
}
ALWAYS = {  # the evidence about each claim and adversary, by what a config is of
    "defense": ("declared", "records", "state"),
    "program": ("measured", "records", "state", "dependence"),
    "mechanism": ("state", "noise", "test"),
}

PREMISES = 6
COUNTS = "likelihood-ratio"  # the attack that counts runs, and has controls


def differing(finding: Finding) -> Iterator[str]:
    """Where a finding that bears on a claim is not as an audit writes one of its role."""
    role = finding["role"]
    if role in OF_ONE and None in (finding["claim"], finding["threat_model"]):
        yield f"a finding of {role} names its claim and its adversary"
    if role == "noise" and finding["attack"] == COUNTS and finding["claim"] is None:
        yield "the noise of counted runs is of a claim"
    if role in OF_ADJACENCY and finding["adjacency"] is None:
        yield f"a finding of {role} names its adjacency"
    if role in WORLDS and finding["world"] != WORLDS[role]:
        yield f"a finding of {role} is of the world {WORLDS[role]!r}"
    if finding["not_examined"] and role not in CAN_MISS:
        yield f"a finding of {role} names nothing that was not examined"
    if role == "alignment" and bool(finding["not_examined"]) == bool(finding["metrics"]):
        yield "it has figures exactly where nothing was left out"
    yield from _gone(finding)


def _gone(finding: Finding) -> Iterator[str]:
    """Figures that such a finding has, and this one has not."""
    role, figures = finding["role"], finding["metrics"]
    if not figures and (role in FIGURES or role in EXPLAINED):
        explained = finding["not_examined"] or (role in EXPLAINED and finding["notes"])
        rest = any(finding[key] for key in ("verdict", "releases", "evidence", "series"))
        sure = finding["attack"] in SURE or (role == "noise" and finding["claim"] is None)
        if rest or (sure and role in ("test", "noise")) or not explained:
            yield "it has no figures"
        return
    needed = [*FIGURES.get(role, ())]
    needed += [WITH_THEM[name] for name in PAIRED.get(role, ()) if name in figures]
    if role == "records" and finding["attack"] is None and "declared sampling rate" in figures:
        needed.append("sampling rate")  # a captured program only states it
    needed += [JUDGED_BY[role]] if role in JUDGED_BY and finding["verdict"] is not None else []
    if gone := [name for name in dict.fromkeys(needed) if name not in figures]:
        yield f"it has no {', '.join(gone)}"


def missing(own: Basis) -> Iterator[Flaw]:
    """Evidence that an audit of a claim always has, and this one has not."""
    claim, config = own.claim, own.result["config"]
    what = next((key for key in ALWAYS if config.get(key)), None)
    for role in ALWAYS.get(str(what), ()):
        if not own.of(role):
            yield Flaw("claims.because", f"no finding of {role} bears on it", True)
    if claim["restated"] is None or (claim["range"] is None) != (not claim["premises"]):
        yield Flaw("claims", "it has no range, or is not restated for a record and a run", True)
    if bool(claim["premises"]) and len(claim["premises"]) != PREMISES:
        yield Flaw("claims.premises", f"accounting has {PREMISES} of them", True)
    counted = [t for t in own.of("test") if t["attack"] == COUNTS and t["metrics"]]
    for role in CONTROLS:
        if bool(counted) != any(f["attack"] == COUNTS for f in own.of(role)):
            yield Flaw("claims.because", f"a test by counted runs has a {role}", True)
    if _is_asked(config, claim["threat_model"]) and own.of("exact-leak") and not own.of("test"):
        yield Flaw("claims.because", "runs were to be counted, and no finding says of them", True)


def _is_asked(config: Mapping[str, Any], adversary: str) -> bool:
    """Whether runs were to be counted against an adversary."""
    asked = [attack for attack in config.get("attack") or () if attack["name"] == COUNTS]
    asked = [a for a in asked if a["threat_models"] is None or adversary in a["threat_models"]]
    return any(attack["trials"] != 0 for attack in asked)
