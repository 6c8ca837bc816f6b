"""From claims, declared mechanisms and evidence to verdicts, and to the result of an audit."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from dpaudit.defense.claim_accounting import (
    AccountedClaim,
    account_claim,
    account_restated,
    claimed_epsilon,
    record_adjacency,
)
from dpaudit.files.claim import Claim, measured_change
from dpaudit.files.finding import Finding, Metric, Name, Role, known_releases
from dpaudit.files.kinds import AnyConfig
from dpaudit.files.result import (
    AuditResult,
    Curve,
    GraphSummary,
    JudgedClaim,
    Note,
    Provenance,
    Restated,
    ThreatModelSummary,
)
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import AGAINST, Verdict, worst
from dpaudit.registry import load_plugin
from dpaudit.statistics.p_values import holm
from dpaudit.training.run_directory import RunDirectory

from .batch_rate import counted_rate, records_finding
from .jobs import Prepared
from .link_coverage import reads_nothing
from .premises import epsilon_range, premises, state_finding
from .rules import ALPHA, ClaimCase, Judging, decide, meaning
from .void_figures import void_figures


def accounting_finding(
    index: int, claim: Claim, threat_model: ThreatModel, accounted: AccountedClaim
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
        releases=known_releases(accounted.least, accounted.most),
        verdict=Verdict.UNSUPPORTED if exceeded else None,
        notes=(f"worst off: agent {accounted.victim}", *accounted.assumptions),
    )


def bearing_on(
    index: int, claim: Claim, threat_model: ThreatModel, findings: Sequence[Finding]
) -> list[int]:
    """The findings that bear on a claim, given its index, against a threat model.

    What was measured of a change bears on the claims of its adjacency; a dependence beside the
    values of messages, the noise of the real run and rounds played again bear on every claim.
    """
    measured = (None, measured_change(claim.adjacency))
    return [
        i
        for i, finding in enumerate(findings)
        if finding.threat_model in (None, threat_model.name)
        and (
            (finding.kind == "sensitivity" and finding.adjacency in measured)
            or (finding.role in (Role.NOISE, Role.STATE) and finding.claim is None)
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
    evidence = tuple(findings[i] for i in judging.because)
    indexed = list(zip(judging.because, evidence, strict=True))
    rests_on = premises(claim, indexed)
    held = bool(rests_on) and all(premise.status == "examined" for premise in rests_on)
    case = ClaimCase(judging, evidence, refuted, n_tested, rests_on)
    verdict, code, reason, decisive = decide(case)
    if judging.premise and judging.unjudged is None:
        reason = f"{reason} {judging.premise}"
    against = verdict in AGAINST
    settled = against or verdict is Verdict.SUPPORTED
    not_examined = "" if settled else case.not_examined
    unconfirmed = not settled and case.unconfirmed
    limits = {"DPA119": not_examined, "DPA120": unconfirmed, "DPA121": judging.void}
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
            void=judging.void,
        ),
        verdict=verdict,
        confidence=1 - ALPHA if statistical else None,
        because=judging.because,
        decisive=next((i for i, finding in indexed if finding is decisive), None),
        reason=reason + not_examined,
        codes=(code, *(limit for limit, applies in limits.items() if applies)),
        meaning=meaning(case, verdict),
        premises=rests_on,
        range=epsilon_range(claim, indexed, case.least, held),
    )


def accounted(
    prepared: Prepared, evidence: Sequence[Finding]
) -> tuple[list[Judging], list[Finding]]:
    """What is to be judged, and the evidence with accounting and without void figures."""
    findings, judgings = list(evidence), []
    config, defense, setting = prepared.config, prepared.defense, prepared.setting
    if config.claim:
        findings.append(state_finding(prepared))
    rate = counted_rate(prepared) if config.claim else None
    for i, claim in enumerate(config.claim):
        for threat_model in config.threat_model:
            if claim.threat_model in (None, threat_model.name):
                because = bearing_on(i, claim, threat_model, findings)
                accounted, common = (
                    account(claim, threat_model, defense, setting)
                    for account in (account_claim, account_restated)
                )
                findings.append(accounting_finding(i, claim, threat_model, accounted))
                name = threat_model.name
                findings.append(records_finding(i, claim, name, accounted, rate, prepared))
                because += [len(findings) - 2, len(findings) - 1]
                blind = reads_nothing(threat_model, setting.network, defense.n_rounds)
                judgings.append(Judging(i, claim, threat_model, common, tuple(because), blind))
    return void_figures(judgings, findings)


class AuditEvidence(NamedTuple):
    """What an audit has found, and what a result shows beside the verdicts on it."""

    judgings: Sequence[Judging]
    findings: Sequence[Finding]
    graph: GraphSummary
    provenance: Provenance
    notes: tuple[Note, ...]
    timing: dict[str, float]
    calibrated: Mapping[str, Any] = {}  # options of the calibrated defense
    utility: Mapping[str, Curve] = {}  # curves of trained models
    sentences: Mapping[str, str] = {}  # adversary that reads no link -> its sentence


def audited(
    config: AnyConfig,
    out: Path,
    config_text: str,
    resume: bool,
    fingerprint: Mapping[str, object],
    evidence: Callable[[RunDirectory], AuditEvidence],
    report: bool = True,
    say: Callable[[str], None] | None = None,
) -> AuditResult:
    """Take the evidence of an audit and judge it; writes the run directory.

    Args:
        fingerprint: everything that decides what comes out: no other run is resumed.
        evidence: runs what is audited and attacks it.
        report: whether report.html is written, which takes a third of a small audit's time.
        say: called with a line if the folder has an audit of another config, which is replaced.

    Raises:
        DpauditError: what is audited or the run directory does not allow it.
    """
    load_plugin("reports", "html")  # refused now and not after the last attack
    with RunDirectory(out).begun(config_text, fingerprint, resume, say) as run:
        return concluded(config, run, evidence(run), report)


def concluded(
    config: AnyConfig, run: RunDirectory, evidence: AuditEvidence, report: bool = True
) -> AuditResult:
    """Judge the claims by the evidence; writes audit.json and report.html."""
    graph = evidence.graph
    claims = judge(evidence.judgings, evidence.findings)
    result = AuditResult(
        config=config.model_dump(mode="json"),
        calibrated=dict(evidence.calibrated),
        verdict=worst([claim.verdict for claim in claims]),
        claims=tuple(claims),
        threat_models=tuple(
            ThreatModelSummary(
                name=model.name,
                sentence=evidence.sentences.get(model.name) or model.sentence(),
                agents=model.agents,
                links=tuple(link for link in graph.links if model.sees(*link)),
            )
            for model in (model.within(graph.links) for model in config.threat_model)
        ),
        graph=graph,
        findings=tuple(evidence.findings),
        notes=tuple(note.text for note in evidence.notes),
        note_codes=tuple(note.code for note in evidence.notes),
        utility=dict(evidence.utility),
        provenance=evidence.provenance,
        timing=evidence.timing,
    )
    run.write_text("audit.json", result.to_json())
    if report:
        run.write_text("report.html", load_plugin("reports", "html")(result, run.path))
    return result
