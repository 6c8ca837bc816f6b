"""The golden result, the pictures that it names, and its pages."""

from pathlib import Path

import pytest

from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.reports.comparison import render_comparison
from dpaudit.reports.html import render
from dpaudit.reports.leaderboard import Leaderboard
from tests.reports.benchmarks import audited, benchmark, cell, written
from tests.reports.pages import GOLDEN, Page, png


@pytest.fixture(scope="session")
def golden() -> AuditResult:
    return AuditResult.read(GOLDEN)


@pytest.fixture(scope="session")
def run_directory(golden: AuditResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every artifact that the golden result names."""
    folder = tmp_path_factory.mktemp("run")
    for i, path in enumerate(p for f in golden.findings for p in f.artifacts.values()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(png(i))
    return folder


@pytest.fixture(scope="session")
def few(golden: AuditResult) -> AuditResult:
    """The golden result with a third of its reconstructions, for pages that are soon looked at."""
    kept = [
        i
        for i, finding in enumerate(golden.findings)
        if finding.kind != "reconstruction"
        or (finding.message == "cross_gradient" and finding.batch_size == 1)
    ]
    claims = tuple(
        claim.model_copy(update={"because": tuple(map(kept.index, claim.because))})
        for claim in golden.claims
    )
    findings = tuple(golden.findings[i] for i in kept)
    return golden.model_copy(update={"findings": findings, "claims": claims})


@pytest.fixture(scope="session")
def html(golden: AuditResult, run_directory: Path) -> str:
    return render(golden, run_directory)


@pytest.fixture(scope="session")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture(scope="session")
def comparison(golden: AuditResult, run_directory: Path) -> str:
    claims = tuple(claim.model_copy(update={"because": ()}) for claim in golden.claims)
    changes = {"verdict": Verdict.NOT_REFUTED, "claims": claims, "findings": golden.findings[:9]}
    other = golden.model_copy(update=changes)
    return render_comparison([("first", golden, run_directory), ("second", other, run_directory)])


@pytest.fixture(scope="session")
def leaderboard(golden: AuditResult, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of six combinations in two seeds, of which some failed."""
    cells, results = [], {}
    for i, defense in enumerate(("dpdl", "dpop", "zip-dl")):
        for graph in ("ring", "complete"):
            for seed in (1, 2):
                name = f"{defense}-{graph}-{seed}"
                values = defense, graph, 2.0
                if (defense, seed) == ("zip-dl", 2):
                    failed = {"state": "failed", "error": "out of memory"}
                    cells.append(cell(name, seed, values=values, **failed))
                    continue
                cells.append(cell(name, seed, values=values))
                results[name] = audited(golden, 0.4 + 0.1 * (i + seed), graph, epsilon=1.0 + i)
    folder = written(tmp_path_factory.mktemp("benchmark"), results)
    return Leaderboard(benchmark(*cells), folder).html()
