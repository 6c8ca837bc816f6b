"""Every claim of an audit against every adversary that it is made against."""

from collections.abc import Sequence

from dpaudit.defense.claim_accounting import account_claim, account_restated
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding

from .case import Judging
from .jobs import Prepared
from .judge import accounting_finding, bearing_on
from .reach import reads_nothing
from .void import void_figures


def accounted(
    config: AuditConfig, prepared: Prepared, evidence: Sequence[Finding]
) -> tuple[list[Judging], list[Finding]]:
    """What is to be judged, and the evidence with accounting and without void figures."""
    findings, judgings = list(evidence), []
    defense, setting = prepared.defenses["defense"], prepared.setting
    for i, claim in enumerate(config.claim):
        for threat_model in config.threat_model:
            if claim.threat_model in (None, threat_model.name):
                because = bearing_on(i, claim, threat_model, evidence)
                accounted, common = (
                    account(claim, threat_model, defense, setting)
                    for account in (account_claim, account_restated)
                )
                findings.append(accounting_finding(i, claim, threat_model, accounted))
                because.append(len(findings) - 1)
                blind = reads_nothing(threat_model, setting.network, defense.n_rounds)
                judgings.append(Judging(i, claim, threat_model, common, tuple(because), blind))
    return void_figures(judgings, findings)
