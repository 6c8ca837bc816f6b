"""One audit, whether its evidence comes from a defense that is trained or a program that is run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding
from dpaudit.files.result import (
    AuditResult,
    Curve,
    GraphSummary,
    Note,
    Provenance,
    ThreatModelSummary,
)
from dpaudit.files.verdict import worst
from dpaudit.progress import OnProgress
from dpaudit.registry import load_plugin
from dpaudit.training.run_directory import RunDirectory

from .case import Judging
from .judge import judge


class Evidence(NamedTuple):
    """What a source has found, and what a result shows beside the verdicts on it."""

    judgings: Sequence[Judging]
    findings: Sequence[Finding]
    graph: GraphSummary
    provenance: Provenance
    notes: tuple[Note, ...]
    timing: dict[str, float]
    calibrated: Mapping[str, Any] = {}  # of a defense
    utility: Mapping[str, Curve] = {}  # of trained models


class Source(ABC):
    """Where the evidence of an audit comes from."""

    config: AuditConfig | CapturedConfig

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """Everything that decides what comes out: no other run is resumed."""

    @abstractmethod
    def evidence(self, run: RunDirectory, on_progress: OnProgress) -> Evidence:
        """Run what is audited and attack it. Raises DpauditError."""


def audited(
    source: Source, out: Path, config_text: str, resume: bool, on_progress: OnProgress
) -> AuditResult:
    """Take the evidence of a source and judge it; writes the run directory.

    Raises:
        DpauditError: the source or the run directory does not allow it.
    """
    load_plugin("reports", "html")  # refused now and not after the last attack
    with RunDirectory(out).begun(config_text, source.fingerprint(), resume) as run:
        return concluded(source, run, source.evidence(run, on_progress))


def concluded(source: Source, run: RunDirectory, evidence: Evidence) -> AuditResult:
    """Judge the claims by the evidence; writes audit.json and report.html."""
    config, graph = source.config, evidence.graph
    claims = judge(evidence.judgings, evidence.findings)
    result = AuditResult(
        config=config.model_dump(mode="json"),
        calibrated=dict(evidence.calibrated),
        verdict=worst([claim.verdict for claim in claims]),
        claims=tuple(claims),
        threat_models=tuple(
            ThreatModelSummary(
                name=model.name,
                sentence=model.sentence(),
                agents=model.agents,
                links=tuple(link for link in graph.links if model.sees(*link)),
            )
            for model in config.threat_model
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
    run.write_text("report.html", load_plugin("reports", "html")(result, run.path))
    return result
