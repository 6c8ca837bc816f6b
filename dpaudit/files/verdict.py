"""What evidence may say about a claim, and nothing beyond."""

from collections.abc import Mapping, Sequence
from enum import StrEnum


class Verdict(StrEnum):
    """What the evidence says about a claim; never that something is private or safe."""

    REFUTED = "refuted"  # a certified lower bound exceeds it, or a message leaks with no noise
    UNSUPPORTED = "unsupported"  # exact accounting of the noise really drawn gives more
    UNDERPOWERED = "underpowered"  # this audit could not have refuted it
    NOT_REFUTED = "not refuted"  # there was power to refute it, and it stood; no proof


SEVERITY = (Verdict.REFUTED, Verdict.UNSUPPORTED, Verdict.UNDERPOWERED, Verdict.NOT_REFUTED)

MEANING: Mapping[Verdict, str] = {
    Verdict.REFUTED: "An attack proved, at the stated confidence, that more leaks than is claimed.",
    Verdict.UNSUPPORTED: "The noise that was really drawn does not add up to what is claimed: "
    "exact accounting gives a larger epsilon, a measured sensitivity exceeds the stated bound, or "
    "it is not the noise that the defense asks for.",
    Verdict.UNDERPOWERED: "Nothing was found against the claim, but this audit could not have "
    "refuted it: too few runs for any attack, or a view in which its attacks certify nothing. It "
    "says nothing in the claim's favour.",
    Verdict.NOT_REFUTED: "The audit had the power to refute the claim and did not. This is not a "
    "proof of privacy: a stronger attack may succeed.",
}


def worst(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The most severe of some verdicts; None of none."""
    return min(verdicts, key=SEVERITY.index, default=None)
