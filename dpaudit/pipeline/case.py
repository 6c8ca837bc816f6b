"""A claim against one adversary, the evidence that bears on it, and words for its figures."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from dpaudit.defense.claim_accounting import Accounted, claimed_epsilon
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel

CAPTURED = "captured"  # the attack of a test that counts records of short runs
ALPHA = 0.05  # of one false refutation among all claims and adversaries of an audit


class Judging(NamedTuple):
    """A claim against one threat model, and the findings that bear on it, by their index."""

    claim_index: int  # into the audit's claims
    claim: Claim
    threat_model: ThreatModel
    restated: Accounted  # one record, the whole run
    because: tuple[int, ...]
    reads_nothing: bool = False  # the adversary has no link in any round
    premise: str = ""  # what a verdict assumes beside its evidence, as a sentence
    unjudged: str | None = None  # why neither runs nor measurements can judge the claim
    void: str | None = None  # what of the same evidence falsifies what was restated


@dataclass(frozen=True)
class ClaimCase:
    """A claim against one adversary, and the evidence that bears on it."""

    judging: Judging
    findings: tuple[Finding, ...]
    refuted: bool  # by a test, among all statements of the audit
    n_tested: int  # of those statements

    @property
    def claimed(self) -> float:
        return claimed_epsilon(self.judging.claim)

    @property
    def claims(self) -> str:
        """The beginning of a sentence that says what was found instead."""
        mu = self.judging.claim.mu
        if mu is None:
            return f"Claimed epsilon {self.claimed:.3g}"
        return f"Claimed mu {mu:.3g}, which is epsilon {self.claimed:.3g} at delta 1e-05"

    @property
    def adversary(self) -> str:
        return f'"{self.judging.threat_model.name}"'

    def of(self, role: Role) -> list[Finding]:
        return [finding for finding in self.findings if finding.role is role]

    def first(self, role: Role) -> Finding | None:
        return next(iter(self.of(role)), None)

    @property
    def tests(self) -> list[Finding]:
        """Findings of certified lower bounds, those that this adversary's view allowed."""
        return [finding for finding in self.of(Role.TEST) if finding.metrics]

    @property
    def best_test(self) -> Finding | None:
        """The test that refuted the claim, or the one that came nearest to it."""
        if self.refuted:
            return min(self.tests, key=lambda test: test.metrics[Name.P_VALUE].value)
        return max(
            self.tests,
            key=lambda test: (
                test.metrics[Name.EPSILON_LOWER_BOUND].value,
                test.metrics[Name.CEILING].value,
            ),
            default=None,
        )

    @property
    def bound(self) -> float:
        """The certified lower bound of that test; 0 without one."""
        test = self.best_test
        return float(test.metrics[Name.EPSILON_LOWER_BOUND].value) if test else 0.0

    @property
    def certified(self) -> str:
        """What that test certifies, as a clause; "" if nothing."""
        test = self.best_test
        if test is None or not self.bound > 0:
            return ""
        by = f"{_cases(test)} certify at least {self.bound:.3g}"
        return f"{by} at {test.value(Name.CONFIDENCE) or 1 - ALPHA:.0%} confidence"

    @property
    def not_examined(self) -> str:
        """A sentence with all that an examination could not look at; "" if that is nothing."""
        parts = dict.fromkeys(
            f"the noise of {what}" if finding.role is Role.NOISE else what
            for finding in self.findings
            for what in finding.not_examined
        )
        return f" Not examined: {'; '.join(parts)}." if parts else ""

    @property
    def unconfirmed(self) -> list[str]:
        """Of what the declared law of the noise was not confirmed."""
        return [what for finding in self.of(Role.NOISE) for what in finding.unconfirmed]

    @property
    def also(self) -> str:
        """The same at the end of another reason."""
        return f"; {self.certified}" if self.certified else ""


def epsilon_size(metric: Metric) -> str:
    """Both ends of an accountant's epsilon, or one where they are as good as equal."""
    low, high = float(metric.low or 0), float(metric.high or 0)
    if high == inf > low:
        return f"at least {low:.3g}"
    return f"{low:.3g}" if high - low <= 1e-3 * low else f"between {low:.3g} and {high:.3g}"


def epsilon_of(finding: Finding) -> str:
    """The same with its delta."""
    delta = finding.metrics[Name.DELTA].value
    return f"epsilon {epsilon_size(finding.metrics[Name.EPSILON])} at delta {delta:g}"


def _cases(test: Finding) -> str:
    """What a test counted: runs of both worlds, or guesses, canaries or targets of one run."""
    guesses, runs = test.value(Name.GUESSES), test.metrics[Name.EPSILON_LOWER_BOUND].n
    canaries, targets = test.value(Name.CANARIES), test.metrics.get(Name.RECONSTRUCTED)
    if targets is not None:
        return f"reconstructions of {targets.n:,} targets"
    if canaries is not None:
        return f"{canaries:,.0f} canaries"
    if guesses is not None:
        return f"{guesses:,.0f} guesses"
    if test.attack == CAPTURED:
        return f"{runs:,} records that short runs held or not"
    return "runs" if runs is None else f"{runs:,} runs"
