"""What evidence may say about a claim, and nothing beyond."""

from collections.abc import Mapping, Sequence
from enum import StrEnum


class Verdict(StrEnum):
    """What the evidence says about a claim; never that something is private or safe."""

    REFUTED = "refuted"  # a certified lower bound exceeds it, or a message leaks with no noise
    UNSUPPORTED = "unsupported"  # exact accounting of the noise really drawn gives more
    UNDERPOWERED = "underpowered"  # this audit could not have refuted it
    NOT_REFUTED = "not refuted"  # there was power to refute it, and it stood; no proof
    SUPPORTED = "supported"  # accounting settles it, and each premise was examined and held


SEVERITY = tuple(Verdict)  # the most severe first
AGAINST = (Verdict.REFUTED, Verdict.UNSUPPORTED)

# What each means, and what it does not; why it was given, a claim's reason says.
MEANING: Mapping[Verdict, str] = {
    Verdict.REFUTED: "More leaks than is claimed. That does not mean that a record was "
    "reconstructed.",
    Verdict.UNSUPPORTED: "The argument for the claim fails in this run. That does not mean that an "
    "attack has succeeded.",
    Verdict.UNDERPOWERED: "Nothing was found against the claim, but accounting does not settle it "
    "here, and this audit could not have refuted it.",
    Verdict.NOT_REFUTED: "The audit had the power to refute the claim and did not. This is not a "
    "proof of privacy: a stronger attack may succeed.",
    Verdict.SUPPORTED: "The argument for the claim was checked against the program, and holds "
    "under the premises listed beside it. This does not mean that the program is private.",
}


NEXT_STEP: Mapping[Verdict, str] = {
    Verdict.REFUTED: "look for the cause in the evidence below, correct the code or weaken the "
    "claim, and audit again.",
    Verdict.UNSUPPORTED: "correct the noise, or claim what the accounting supports, and audit "
    "again.",
    Verdict.UNDERPOWERED: "look up which premise is missing, or request attacks and give them more "
    "trials, until the ceiling lies above the claim.",
    Verdict.NOT_REFUTED: "add the attacks and adversaries that matter to you, and keep the claim "
    "checked in CI with dpaudit check.",
    Verdict.SUPPORTED: "read the premises and their resolution, and keep the claim checked in CI "
    "with dpaudit check.",
}


def worst(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The most severe of some verdicts; None of none."""
    return min(verdicts, key=SEVERITY.index, default=None)
