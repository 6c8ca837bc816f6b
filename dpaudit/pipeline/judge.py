"""From claims, declared mechanisms and evidence to verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from dpaudit.defense.claim_accounting import Accounted, claimed_epsilon, record_adjacency
from dpaudit.files.claim import Claim, measured_change
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.result import JudgedClaim, Restated
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.statistics.p_values import holm

ALPHA = 0.05  # of one false refutation among all claims and adversaries of an audit


class Judging(NamedTuple):
    """A claim against one threat model, and the findings that bear on it, by their index."""

    claim_index: int  # into the audit's claims
    claim: Claim
    threat_model: ThreatModel
    restated: Accounted  # one record, the whole run
    because: tuple[int, ...]
    reads_nothing: bool = False  # the adversary has no link in any round


def accounting_finding(
    index: int, claim: Claim, threat_model: ThreatModel, accounted: Accounted
) -> Finding:
    """The evidence that accounting gives; ``unsupported`` if even the least exceeds the claim."""
    low, high = accounted.epsilon
    exceeded = low > claimed_epsilon(claim)
    return Finding(
        role=Role.DECLARED,
        kind="accounting",
        title="declared releases, accounted",
        claim=index,
        threat_model=threat_model.name,
        metrics={
            Name.EPSILON: Metric(value=high, low=low, high=high),
            Name.CLAIMED_EPSILON: Metric(value=claimed_epsilon(claim)),
            Name.DELTA: Metric(value=accounted.delta),
        },
        verdict=Verdict.UNSUPPORTED if exceeded else None,
        notes=(f"worst off: agent {accounted.victim}", *accounted.assumptions),
    )


def bearing_on(
    index: int, claim: Claim, threat_model: ThreatModel, findings: Sequence[Finding]
) -> list[int]:
    """The findings that bear on a claim, given its index, against a threat model.

    A measured sensitivity above its bound bears on the claims of its adjacency, a dependence beside
    the values of messages on every claim, and so does the noise of the real run.
    """
    measured = (None, measured_change(claim.adjacency))
    return [
        i
        for i, finding in enumerate(findings)
        if finding.threat_model in (None, threat_model.name)
        and (
            (
                finding.kind == "sensitivity"
                and finding.verdict is not None
                and finding.adjacency in measured
            )
            or (finding.role is Role.NOISE and finding.claim is None)
            or (
                finding.claim == index
                and finding.kind in ("accounting", "empirical-epsilon", "control")
            )
        )
    ]


def judge(judgings: Sequence[Judging], findings: Sequence[Finding]) -> list[JudgedClaim]:
    """A verdict for each claim against each threat model, all refutations simultaneous.

    Statistical refutations are those that Holm's method keeps among all statements of the audit, so
    that one or more of them is false with probability 5% at most; several tests of one statement
    divide its share. A reconstruction, however good, certifies no lower bound on epsilon.
    """
    tests = [
        [findings[i] for i in judging.because if findings[i].role is Role.TEST]
        for judging in judgings
    ]
    tests = [[test for test in some if test.metrics] for some in tests]
    tested = {
        i: min(1.0, min(len(found) * float(t.metrics[Name.P_VALUE].value) for t in found))
        for i, found in enumerate(tests)
        if found
    }
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return [
        _judged(judging, findings, adjusted.get(i, inf) <= ALPHA, len(tested))
        for i, judging in enumerate(judgings)
    ]


def _judged(
    judging: Judging, findings: Sequence[Finding], refuted: bool, n_tested: int
) -> JudgedClaim:
    claim, restated = judging.claim, judging.restated
    case = _Case(judging, tuple(findings[i] for i in judging.because), refuted, n_tested)
    verdict, reason = next(found for rule in RULES if (found := rule(case)) is not None)
    statistical = bool(case.tests) and (refuted or verdict is Verdict.NOT_REFUTED)
    low, high = restated.epsilon
    return JudgedClaim(
        claim=judging.claim_index,
        text=claim.text,
        sentence=claim.sentence(),
        epsilon=claim.epsilon,
        delta=claim.delta,
        mu=claim.mu,
        scope=claim.scope,
        adjacency=claim.adjacency,
        threat_model=judging.threat_model.name,
        restated=Restated(
            epsilon=Metric(value=high, low=low, high=high),
            delta=restated.delta,
            adjacency=record_adjacency(claim),
            assumptions=(f"worst off: agent {restated.victim}", *restated.assumptions),
        ),
        verdict=verdict,
        confidence=1 - ALPHA if statistical else None,
        because=judging.because,
        reason=reason,
    )


@dataclass(frozen=True)
class _Case:
    """A claim against one adversary, and the evidence that bears on it."""

    judging: Judging
    findings: tuple[Finding, ...]
    refuted: bool  # by a test, among all statements of the audit
    n_tested: int  # of those statements

    @property
    def claimed(self) -> float:
        return claimed_epsilon(self.judging.claim)

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
        """What was certified, as a sentence to add to another reason."""
        if not self.bound > 0:
            return ""
        return (
            f" Runs with and without one record certify epsilon at least {self.bound:.3g} at 95% "
            "confidence."
        )

    @property
    def accounted(self) -> str:
        """What accounting of the declared noise says, as the beginning of a sentence."""
        declared = self.first(Role.DECLARED)
        if declared is None:
            return ""
        supports = float(declared.metrics[Name.EPSILON].high or 0) <= self.claimed
        stands = "supports the claim" if supports else "does not settle the claim"
        return f"Accounting {stands} ({_epsilon(declared)}, {self.claimed:.3g} claimed)"


Rule = Callable[[_Case], tuple[Verdict, str] | None]


def _bare_message(case: _Case) -> tuple[Verdict, str] | None:
    exact = case.first(Role.EXACT_LEAK)
    if exact is None or exact.verdict is not Verdict.REFUTED:
        return None
    shown = f'"{exact.message}" shows the record with no noise at all to this adversary.'
    return Verdict.REFUTED, shown + case.certified


def _refuted_by_runs(case: _Case) -> tuple[Verdict, str] | None:
    if not case.refuted:
        return None
    n = case.n_tested
    among = f", which is refuted among {n} statements (Holm)" if n > 1 else ""
    return Verdict.REFUTED, (
        f"Runs with and without one record certify epsilon at least {case.bound:.3g} at 95% "
        f"confidence; {case.claimed:.3g} is claimed{among}."
    )


def _declared_without_noise(case: _Case) -> tuple[Verdict, str] | None:
    declared = case.first(Role.DECLARED)
    if declared is None or declared.metrics[Name.EPSILON].low != inf:
        return None
    bare = "A message that depends on the data is sent with no noise at all."
    return Verdict.REFUTED, bare + case.certified


def _accounting_exceeds(case: _Case) -> tuple[Verdict, str] | None:
    for role, what in (
        (Role.DECLARED, "The noise really drawn"),
        (Role.EXACT_LEAK, "The protocol's algebra"),
    ):
        finding = case.first(role)
        if finding is not None and finding.verdict is Verdict.UNSUPPORTED:
            reason = f"{what} gives {_epsilon(finding)}; {case.claimed:.3g} is claimed."
            return Verdict.UNSUPPORTED, reason
    return None


def _sensitivity_exceeds(case: _Case) -> tuple[Verdict, str] | None:
    for finding in case.findings:
        if finding.kind == "sensitivity" and finding.verdict is Verdict.UNSUPPORTED:
            reason = f"A measured sensitivity exceeds its bound: {finding.title}."
            return Verdict.UNSUPPORTED, reason
    return None


def _other_noise(case: _Case) -> tuple[Verdict, str] | None:
    for finding in case.of(Role.NOISE):
        if finding.verdict is Verdict.UNSUPPORTED and finding.claim is None:
            p = finding.metrics[Name.P_VALUE].value
            return Verdict.UNSUPPORTED, (
                "The messages of the real run do not carry independent noise in every number: "
                f"{finding.title} (p = {p:.1g}).{case.certified}"
            )
        if finding.verdict is Verdict.UNSUPPORTED:
            return Verdict.UNSUPPORTED, (
                "The noise really drawn is not the independent noise that the defense asks for "
                f"(p = {finding.metrics[Name.P_VALUE].value:.1g}).{case.certified}"
            )
    return None


def _reads_nothing(case: _Case) -> tuple[Verdict, str] | None:
    """Whatever is claimed holds against an adversary without a view, and says nothing."""
    if not case.judging.reads_nothing:
        return None
    return Verdict.UNDERPOWERED, (
        "This adversary reads nothing: none of its links is in the graph of any round. Nothing "
        "is supported or refuted by what it sees."
    )


def _no_power(case: _Case) -> tuple[Verdict, str] | None:
    """Why this audit could not have refuted the claim, if it could not."""
    test, accounted = case.best_test, case.accounted
    if test is None:
        return Verdict.UNDERPOWERED, (
            f"{accounted}, and no attack in this audit could certify a lower bound on epsilon."
        )
    top, needed = test.metrics[Name.CEILING].value, test.metrics[Name.TRIALS_NEEDED].value
    if top <= case.claimed:
        return Verdict.UNDERPOWERED, (
            f"{accounted}. Even a perfect attack with these runs certifies {top:.3g} at most; "
            f"{needed:.3g} runs of each world would do."
        )
    controls = case.of(Role.POSITIVE_CONTROL)
    if controls and not any(control.verdict is Verdict.REFUTED for control in controls):
        return Verdict.UNDERPOWERED, (
            f"{accounted}. The positive control, which has no noise, was not refuted either: the "
            "runs tell this adversary too little about the record."
        )
    if case.bound == 0:
        return Verdict.UNDERPOWERED, (
            f"{accounted}. The attack certified nothing: no smaller claim would have been refuted "
            f"either{_expected(test)}."
        )
    return None


def _stood(case: _Case) -> tuple[Verdict, str]:
    return Verdict.NOT_REFUTED, (
        f"{case.accounted}. Runs with and without one record certify epsilon at least "
        f"{case.bound:.3g} at 95% confidence: a claim {case.claimed / case.bound:.3g} times "
        "smaller would have been refuted. This is no proof of privacy."
    )


RULES: tuple[Rule, ...] = (  # the first that applies decides
    _bare_message,
    _refuted_by_runs,
    _declared_without_noise,
    _accounting_exceeds,
    _sensitivity_exceeds,
    _other_noise,
    _reads_nothing,
    _no_power,
    _stood,
)


def _expected(test: Finding) -> str:
    expected = test.metrics.get(Name.EXPECTED_BOUND)
    return f" ({expected.value:.3g} was to be expected)" if expected else ""


def _epsilon(finding: Finding) -> str:
    metric, delta = finding.metrics[Name.EPSILON], finding.metrics[Name.DELTA].value
    low, high = float(metric.low or 0), float(metric.high or 0)
    size = f"{low:.3g}" if high - low <= 1e-3 * low else f"between {low:.3g} and {high:.3g}"
    size = f"at least {low:.3g}" if high == inf > low else size
    return f"epsilon {size} at delta {delta:g}"
