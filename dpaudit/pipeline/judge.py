"""From claims, declared mechanisms and evidence to verdicts."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from dpaudit.defense.claim_accounting import Accounted, claimed_epsilon, record_adjacency
from dpaudit.files.claim import Claim
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

    A measured sensitivity above its bound bears on every claim. Runs with and without a record do
    not test a claim on replaced agents.
    """
    tested = () if claim.adjacency == "agent-identity" else ("empirical-epsilon", "control")
    return [
        i
        for i, finding in enumerate(findings)
        if finding.threat_model in (None, threat_model.name)
        and (
            (finding.kind == "sensitivity" and finding.verdict is not None)
            or (finding.claim == index and finding.kind in ("accounting", *tested))
        )
    ]


def judge(judgings: Sequence[Judging], findings: Sequence[Finding]) -> list[JudgedClaim]:
    """A verdict for each claim against each threat model, all refutations simultaneous.

    Statistical refutations are those that Holm's method keeps among all statements of the audit, so
    that one or more of them is false with probability 5% at most; several tests of one statement
    divide its share. A reconstruction, however good, certifies no lower bound on epsilon.
    """
    tests = [_tests(judging, findings) for judging in judgings]
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
    index, claim, threat_model, restated, because = judging
    verdict, reason = _verdict(judging, findings, refuted, n_tested)
    statistical = bool(_tests(judging, findings)) and (refuted or verdict is Verdict.NOT_REFUTED)
    low, high = restated.epsilon
    return JudgedClaim(
        claim=index,
        text=claim.text,
        sentence=claim.sentence(),
        epsilon=claim.epsilon,
        delta=claim.delta,
        mu=claim.mu,
        scope=claim.scope,
        adjacency=claim.adjacency,
        threat_model=threat_model.name,
        restated=Restated(
            epsilon=Metric(value=high, low=low, high=high),
            delta=restated.delta,
            adjacency=record_adjacency(claim),
            assumptions=(f"worst off: agent {restated.victim}", *restated.assumptions),
        ),
        verdict=verdict,
        confidence=1 - ALPHA if statistical else None,
        because=because,
        reason=reason,
    )


def _verdict(
    judging: Judging, findings: Sequence[Finding], refuted: bool, n_tested: int
) -> tuple[Verdict, str]:
    claim = judging.claim
    claimed = claimed_epsilon(claim)
    declared = _first(judging, findings, Role.DECLARED)
    exact = _first(judging, findings, Role.EXACT_LEAK)
    test = _best_test(judging, findings, refuted)
    bound = float(test.metrics[Name.EPSILON_LOWER_BOUND].value) if test else 0.0
    certified = (
        f" Runs with and without one record certify epsilon at least {bound:.3g} at 95% confidence."
        if bound > 0
        else ""
    )
    if exact and exact.verdict is Verdict.REFUTED:
        return Verdict.REFUTED, (
            f'"{exact.message}" shows the record with no noise at all to this adversary.{certified}'
        )
    if refuted:
        among = f", which is refuted among {n_tested} statements (Holm)" if n_tested > 1 else ""
        return Verdict.REFUTED, (
            f"Runs with and without one record certify epsilon at least {bound:.3g} at 95% "
            f"confidence; {claimed:.3g} is claimed{among}."
        )
    if declared and declared.metrics[Name.EPSILON].low == inf:
        return Verdict.REFUTED, (
            f"A message that depends on the data is sent with no noise at all.{certified}"
        )
    for finding, what in ((declared, "The noise really drawn"), (exact, "The protocol's algebra")):
        if finding and finding.verdict is Verdict.UNSUPPORTED:
            return (
                Verdict.UNSUPPORTED,
                f"{what} gives {_epsilon(finding)}; {claimed:.3g} is claimed.",
            )
    for i in judging.because:
        if findings[i].kind == "sensitivity" and findings[i].verdict is Verdict.UNSUPPORTED:
            return (
                Verdict.UNSUPPORTED,
                f"A measured sensitivity exceeds its bound: {findings[i].title}.",
            )
    for i in judging.because:
        if findings[i].role is Role.NOISE and findings[i].verdict is Verdict.UNSUPPORTED:
            return Verdict.UNSUPPORTED, (
                "The noise really drawn is not the independent noise that the defense asks for "
                f"(p = {findings[i].metrics[Name.P_VALUE].value:.1g}).{certified}"
            )
    return _not_exceeded(judging, findings, declared, test, bound)


def _not_exceeded(
    judging: Judging,
    findings: Sequence[Finding],
    declared: Finding | None,
    test: Finding | None,
    bound: float,
) -> tuple[Verdict, str]:
    claimed = claimed_epsilon(judging.claim)
    accounted = ""
    if declared:
        supports = float(declared.metrics[Name.EPSILON].high or 0) <= claimed
        stands = "supports the claim" if supports else "does not settle the claim"
        accounted = f"Accounting {stands} ({_epsilon(declared)}, {claimed:.3g} claimed)"
    if test is None:
        return Verdict.UNDERPOWERED, (
            f"{accounted}, and no attack in this audit could certify a lower bound on epsilon."
        )
    top, needed = test.metrics[Name.CEILING].value, test.metrics[Name.TRIALS_NEEDED].value
    if top <= claimed:
        return Verdict.UNDERPOWERED, (
            f"{accounted}. Even a perfect attack with these runs certifies {top:.3g} at most; "
            f"{needed:.3g} runs of each world would do."
        )
    controls = [findings[i] for i in judging.because if findings[i].role is Role.POSITIVE_CONTROL]
    if controls and not any(control.verdict is Verdict.REFUTED for control in controls):
        return Verdict.UNDERPOWERED, (
            f"{accounted}. The positive control, which has no noise, was not refuted either: the "
            "runs tell this adversary too little about the record."
        )
    if bound == 0:
        return Verdict.UNDERPOWERED, (
            f"{accounted}. The attack certified nothing: no smaller claim would have been refuted "
            f"either{_expected(test)}."
        )
    return Verdict.NOT_REFUTED, (
        f"{accounted}. Runs with and without one record certify epsilon at least {bound:.3g} at "
        f"95% confidence: a claim {claimed / bound:.3g} times smaller would have been refuted. "
        "This is no proof of privacy."
    )


def _expected(test: Finding) -> str:
    expected = test.metrics.get(Name.EXPECTED_BOUND)
    return f" ({expected.value:.3g} was to be expected)" if expected else ""


def _tests(judging: Judging, findings: Sequence[Finding]) -> list[Finding]:
    """The tests of the claim: findings of certified lower bounds on epsilon."""
    found = [findings[i] for i in judging.because if findings[i].role is Role.TEST]
    return [finding for finding in found if finding.metrics]


def _best_test(judging: Judging, findings: Sequence[Finding], refuted: bool) -> Finding | None:
    """The test that refuted the claim, or the one that came nearest to it."""
    tests = _tests(judging, findings)
    if refuted:
        return min(tests, key=lambda test: test.metrics[Name.P_VALUE].value)
    return max(
        tests,
        key=lambda test: (
            test.metrics[Name.EPSILON_LOWER_BOUND].value,
            test.metrics[Name.CEILING].value,
        ),
        default=None,
    )


def _first(judging: Judging, findings: Sequence[Finding], role: Role) -> Finding | None:
    """The finding of this role that bears on the claim."""
    return next((findings[i] for i in judging.because if findings[i].role is role), None)


def _epsilon(finding: Finding) -> str:
    metric, delta = finding.metrics[Name.EPSILON], finding.metrics[Name.DELTA].value
    low, high = float(metric.low or 0), float(metric.high or 0)
    size = f"{low:.3g}" if high - low <= 1e-3 * low else f"between {low:.3g} and {high:.3g}"
    return f"epsilon {size} at delta {delta:g}"
