"""Benchmarks of small results, as folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpaudit.files.benchmark_result import BenchmarkResult, Cell
from dpaudit.files.claim import Adjacency
from dpaudit.files.finding import Column, Finding, Metric, Name, Role, claim_column
from dpaudit.files.result import (
    AuditResult,
    Curve,
    EpsilonRange,
    JudgedClaim,
    Premise,
    Restated,
    ThreatModelSummary,
)
from dpaudit.files.verdict import Verdict
from tests.reports.pages import small_finding

AXES = ("defense.name", "graph.name", "claim.epsilon")
EVERYWHERE = ThreatModelSummary(name="eavesdropper", sentence="reads all", links=())


def cell(name: str, seed: int = 1, **changes: Any) -> Cell:
    """One that is done; ``values`` are of ``AXES``."""
    values = dict(zip(AXES, changes.pop("values", ("dpdl", "ring", 2.0)), strict=True))
    return Cell(name=name, values=values, seed=seed, **({"state": "done"} | changes))


def benchmark(*cells: Cell, axes: Sequence[str] = AXES) -> BenchmarkResult:
    return BenchmarkResult(name="a few", version="0.2.0", axes=tuple(axes), cells=cells)


def written(folder: Path, results: dict[str, AuditResult]) -> Path:
    """The folder with the results of cells of these names."""
    for name, result in results.items():
        (folder / "cells" / name).mkdir(parents=True, exist_ok=True)
        (folder / "cells" / name / "audit.json").write_text(result.to_json())
    return folder


def audited(
    golden: AuditResult, accuracy: float = 0.5, graph: str = "ring", **judged: Any
) -> AuditResult:
    """A claim of epsilon 2 against an eavesdropper, with every kind of evidence."""
    curve = Curve(
        rounds=(2, 10), loss=((2.0, 2.0), (1.5, 1.5)), consensus_distance=(0.5, 0.25),
        accuracy=((0.1, 0.1), (accuracy - 0.1, accuracy + 0.1)),
        messages=(16, 80), bytes=(1600, 8000),
    )  # fmt: skip
    return golden.model_copy(
        update={
            "claims": (_claim(**judged),),
            "threat_models": (EVERYWHERE,),
            "graph": golden.graph.model_copy(update={"name": graph}),
            "findings": tuple(_evidence()),
            "utility": {"defense": curve},
            "verdict": judged.get("verdict", Verdict.NOT_REFUTED),
        }
    )


def _claim(
    epsilon: float = 1.5,
    void: str | None = None,
    verdict: Verdict = Verdict.NOT_REFUTED,
    claimed: float = 2.0,
    adjacency: Adjacency = "add-remove",
    known: EpsilonRange | None = None,
    premises: tuple[Premise, ...] = (),
) -> JudgedClaim:
    high = float("inf") if void else epsilon
    restated = Restated(
        epsilon=Metric(value=high, low=epsilon / 2, high=high), delta=1e-5, adjacency=adjacency,
        assumptions=(), void=void,
    )  # fmt: skip
    return JudgedClaim(
        claim=0, text="ours", sentence="ours: epsilon 2", epsilon=claimed, delta=1e-5, mu=None,
        scope="run", adjacency=adjacency, threat_model="eavesdropper", restated=restated,
        verdict=verdict, confidence=None, because=(0,), reason="because",
        range=known, premises=premises,
    )  # fmt: skip


def _evidence() -> list[Finding]:
    def of(role: Role, kind: str, metrics: dict[str, float], **changes: Any) -> Finding:
        shown = {name: Metric(value=value) for name, value in metrics.items()}
        return small_finding(role=role, kind=kind, metrics=shown, **changes)

    bits = {Name.INFORMATION: 0.25, Name.M_NMI: 0.0625, Name.CAPACITY: 4.0}
    share = {Name.RECONSTRUCTED: 0.75, Name.THRESHOLD: 20.0, Name.ACCOUNTING_ALLOWS: 0.875}
    levels = {Column.PSNR_AT_LEAST: (10.0, 20.0), claim_column(0): (1.0, 0.9375)}
    return [
        of(Role.TEST, "empirical-epsilon", {Name.EPSILON_LOWER_BOUND: 0.5, Name.CONFIDENCE: 0.95}),
        of(Role.RECONSTRUCTION, "reconstruction", {Name.PSNR: 9.0, Name.SSIM: 0.5}),
        of(
            Role.RECONSTRUCTION, "reconstruction", {Name.PSNR: 7.0, Name.SSIM: 0.125}, world="blind"
        ),
        of(Role.RECONSTRUCTION, "reconstruction", {Name.PSNR: 8.0, Name.SSIM: 0.0}, world="blind"),
        of(Role.RECONSTRUCTED_SHARE, "reconstruction", share, series=levels),
        of(Role.MEMBERSHIP, "membership", {Name.TPR_AT_001: 0.125, Name.AUC: 0.75}),
        of(Role.MEMBERSHIP, "membership", {Name.TPR_AT_001: 1.0}, world="no-defense"),
        of(Role.INFORMATION, "mutual-information", bits, message="view"),
        of(Role.INFORMATION, "mutual-information", {Name.INFORMATION: 0.1, Name.M_NMI: 0.5}),
        of(Role.INFORMATION, "mutual-information", {Name.INFORMATION: 9.0}, world="no-defense"),
    ]
