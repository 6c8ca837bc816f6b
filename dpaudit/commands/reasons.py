"""Whether the reason of a verdict, its words and its codes, is what its evidence gives.

The room ``dpaudit/verify`` derives the verdict. Which rule gave it, on which finding it rests, and
what is void besides, follows from the same findings: here it is derived again for ``verify``.
"""

from collections.abc import Iterator, Mapping
from math import inf

from dpaudit.verify.figures import FALSE, Basis, Finding, Flaw, metric

REASONS: Mapping[str, tuple[str, ...]] = {  # the codes that the reason of a verdict can have
    "refuted": ("DPA101", "DPA102", "DPA103"),
    "unsupported": ("DPA104", "DPA105", "DPA106", "DPA107", "DPA108", "DPA109", "DPA110"),
    "underpowered": ("DPA111", "DPA112", "DPA113", "DPA114", "DPA115", "DPA116"),
    "not refuted": ("DPA117", "DPA118"),
    "supported": ("DPA141",),
}
BY_ITSELF = ("DPA111", "DPA112")  # reasons that no finding has
SAYS: Mapping[str, str] = {  # words that the sentence of a reason has
    "DPA101": "shows the record with no noise at all",
    "DPA102": "certify at least",
    "DPA103": "is sent with no noise at all",
    "DPA104": "the noise that is declared",
    "DPA105": "the noise that is really added",
    "DPA106": "what was measured of a record and the noise",
    "DPA107": "moves with the record, and no noise hides it",
    "DPA108": "moves by",
    "DPA109": "beside the values of messages",
    "DPA110": "independent noise",
    "DPA111": "This adversary reads nothing",
    "DPA113": "no attack in this audit could certify a lower bound on epsilon",
    "DPA114": "Even a perfect attack with these runs certifies",
    "DPA115": "The positive control, which has no noise,",
    "DPA116": "certified nothing: no smaller claim would have been refuted either",
    "DPA117": "not beside the other tests of this audit (Holm)",
    "DPA118": "This is no proof of privacy",
    "DPA141": "each premise that this rests on was examined and held",
}
DECIDES: Mapping[str, tuple[str, ...]] = {  # the roles of the finding that a reason rests on
    "DPA101": ("exact-leak",),
    "DPA102": ("test",),
    **dict.fromkeys(("DPA103", "DPA104"), ("declared",)),
    "DPA105": ("exact-leak",),
    **dict.fromkeys(("DPA106", "DPA107"), ("measured",)),
    "DPA108": ("sensitivity", "alignment"),
    "DPA109": ("dependence",),
    "DPA110": ("noise",),
    **dict.fromkeys(("DPA114", "DPA115", "DPA116", "DPA117", "DPA118"), ("test",)),
    "DPA141": ("declared", "measured"),
}


def flaws(own: Basis) -> Iterator[Flaw]:
    """Where the reason of a claim, its codes, or what is void does not follow from its evidence."""
    codes = own.claim["codes"]
    if not codes or codes[0] not in REASONS[own.claim["verdict"]]:
        what = f'{codes[0] if codes else "none"} is no reason of "{own.claim["verdict"]}"'
        yield Flaw("claims.codes", what, True)
        return
    yield from _of_reason(own)
    yield from _of_words(own)
    yield from _of_void(own)


def _of_reason(own: Basis) -> Iterator[Flaw]:
    """Another reason than the first of its verdict whose evidence is there."""
    codes, verdict = own.claim["codes"], own.claim["verdict"]
    drawn = own.result.get("threat_models", ())
    reads = any(m["links"] for m in drawn if m["name"] == own.claim["threat_model"])
    if codes[0] == "DPA111" and reads:
        yield Flaw("claims.codes", "DPA111: this adversary reads links", True)
    if codes[0] in BY_ITSELF or verdict == "supported":
        return
    found = [code for code in _reasons(own) if code in REASONS[verdict]]
    if found[:2] == ["DPA102", "DPA103"]:  # a test may not refute it beside others
        found = [codes[0], *found] if codes[0] == "DPA103" else found
    if codes[0] != next(iter(found), None):
        yield Flaw("claims.codes", f"{codes[0]} is not what its evidence gives", True)


def _reasons(own: Basis) -> Iterator[str]:
    """The codes whose evidence is there, in the order in which a verdict takes them."""
    roles = "exact-leak", "declared", "measured"
    exact, declared, measured = (next(iter(own.of(role)), None) for role in roles)
    tests = [test for test in own.of("test") if test["metrics"]]
    if exact is not None and exact["verdict"] == "refuted":
        yield "DPA101"
    if any((metric(test, "p-value") or 0.0) <= FALSE for test in tests):
        yield "DPA102"
    if declared is not None and metric(declared, "epsilon", "low") == inf:
        yield "DPA103"
    of_message = measured is not None and measured["message"] is not None
    by_role = {"DPA104": declared, "DPA105": exact, "DPA107" if of_message else "DPA106": measured}
    unsupported = [f for f in own.findings if f["verdict"] == "unsupported"]
    yield from (code for code, finding in by_role.items() if finding in unsupported)
    for finding in (f for f in unsupported if f["kind"] == "sensitivity"):
        yield "DPA109" if finding["role"] == "dependence" else "DPA108"
    if any(finding["role"] == "noise" for finding in unsupported):
        yield "DPA110"
    yield from _powers(own, tests)


def _powers(own: Basis, tests: list[Finding]) -> Iterator[str]:
    """Codes for a claim that nothing speaks against, by what its best test could certify."""
    figures = "epsilon lower bound", "ceiling"
    strengths = [tuple(metric(test, name) or 0.0 for name in figures) for test in tests]
    bound, ceiling = max(strengths, default=(0.0, 0.0))
    if not tests:
        yield "DPA113"
        return
    if ceiling <= own.epsilon:
        yield "DPA114"
    controls = own.of("positive-control")
    if controls and not any(control["verdict"] == "refuted" for control in controls):
        yield "DPA115"
    if bound <= 0:
        yield "DPA116"
    yield "DPA117" if bound > own.epsilon else "DPA118"


def _of_words(own: Basis) -> Iterator[Flaw]:
    """Words of the reason and of the meaning, the finding that decided, and what is limited."""
    claim, code = own.claim, own.claim["codes"][0]
    if SAYS.get(code, "") not in claim["reason"]:
        yield Flaw("reason", f"it does not say what {code} means", True)
    decisive = claim["decisive"]
    role = None if decisive is None else own.result["findings"][decisive]["role"]
    if (role is None) != (code not in DECIDES) or role not in (None, *DECIDES.get(code, ())):
        yield Flaw("claims.decisive", f"{role} does not decide as {code} says", True)
    held = claim["premises"] and all(p["status"] == "examined" for p in claim["premises"])
    against = claim["verdict"] in ("refuted", "unsupported")
    if "by accounting" in claim["meaning"] and (against or not held):
        yield Flaw("meaning", "accounting bounds nothing: not all of its premises held", True)
    if claim["range"] and ("nothing bounds" in claim["meaning"]) != _is_endless(claim):
        yield Flaw("meaning", "it is not what is certified", True)
    settled = against or claim["verdict"] == "supported"
    missing = any(f["not_examined"] for f in own.findings)
    missing = missing or any(p["status"] == "not examined" for p in claim["premises"])
    unconfirmed = any(f["unconfirmed"] for f in own.of("noise"))
    for limit, applies in (("DPA119", missing), ("DPA120", unconfirmed)):
        if (limit in claim["codes"]) != (applies and not settled):
            yield Flaw("claims.codes", f"{limit}: its evidence says otherwise", True)


def _is_endless(claim: Finding) -> bool:
    """Whether an infinite epsilon is certified."""
    return bool(claim["range"]["certified"] == "inf")


def _of_void(own: Basis) -> Iterator[Flaw]:
    """What is declared is void if its evidence falsifies it, and so is what it is restated as.

    An infinite epsilon stands: nothing is taken back from it.
    """
    restated, codes = own.claim["restated"], own.claim["codes"]
    declared = next(iter(own.of("declared")), None)
    void = restated and restated["void"]
    if ("DPA121" in codes) != (void is not None):
        yield Flaw(
            "claims.codes", "DPA121 says that what is declared is void, as does `void`", True
        )
    if declared is None:
        if void is not None:
            yield Flaw("claims.restated", "nothing is declared that could be void", True)
        return
    stands = metric(declared, "epsilon", "low") == inf
    leaks = [leak["void"] for leak in own.of("exact-leak")]
    if not stands and any(leak not in (None, declared["void"]) for leak in leaks):
        yield Flaw("exact-leak", "it is void for another cause than what is declared", True)
    untouched = void is None and restated and restated["epsilon"]["low"] == "inf"
    if restated and not stands and void != declared["void"] and not untouched:
        what = f"void: {void!r} is not {declared['void']!r}, as of what is declared"
        yield Flaw("claims.restated", what, True)
    if void is not None and restated["epsilon"]["high"] != "inf":
        yield Flaw("claims.restated", "it is void and has an upper end", True)
    if not stands and declared["void"] is None and any(map(_falsifies, own.findings)):
        yield Flaw("claims.void", "its evidence falsifies what is declared", True)


def _falsifies(finding: Finding) -> bool:
    """Whether it speaks against the bounds or the noise that what is declared rests on."""
    quiet = "noise over what the stated bound needs" in finding["metrics"]
    of_bounds = finding["role"] in ("dependence", "noise", "sensitivity") and not quiet
    return of_bounds and finding["verdict"] == "unsupported"
