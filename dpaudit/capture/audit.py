"""The audit of a program that was not written for dpaudit: runs, measures, accounts, judges."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from dpaudit.checkpoint import Checkpoint
from dpaudit.defense.claim_accounting import Accounted
from dpaudit.files.captured_attacks import GradientInversion
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Finding
from dpaudit.files.result import AuditResult, GraphSummary, JudgedClaim, ThreatModelSummary
from dpaudit.files.verdict import worst
from dpaudit.graphs.positions import positions
from dpaudit.inputs.recorder import recording
from dpaudit.pipeline.case import Judging
from dpaudit.pipeline.judge import bearing_on, judge
from dpaudit.pipeline.provenance import provenance_of
from dpaudit.progress import OnProgress
from dpaudit.registry import load_plugin
from dpaudit.source import below, hash_of, own_source
from dpaudit.training.checkpoints import StoredCheckpoint
from dpaudit.training.run_directory import RunDirectory

from .accounted import measured_accounting
from .drawn import drawn_noise
from .inverted import Inversion, Known, known_models
from .kept_runs import KeptRuns
from .program import Program
from .tested import Asked, Testing
from .worlds import Worlds, measured_worlds

SCRATCH = "worlds"  # of the run directory: what runs leave until they are read
NOTE = (
    "A program was audited by its runs: what it promises can be refuted or left unsupported by "
    "what was measured, and is never supported by it."
)


def run_captured(
    config: CapturedConfig,
    out: Path,
    cores: int = os.cpu_count() or 1,
    config_text: str = "",
    resume: bool = False,
    on_progress: OnProgress = lambda what, done, total: None,
) -> AuditResult:
    """Audit the program of a config; writes the run directory.

    Raises:
        DpauditError: the program fails, its runs cannot be compared, or the run directory does not
            allow it.
    """
    with recording():
        began = time.perf_counter()
        load_plugin("reports", "html")  # refused now and not after the last run
        known = known_models(config)
        program, folder = Program(config, out / SCRATCH, cores), config.program.folder
        fingerprint = {
            "config": config.model_dump(mode="json"),
            "code": {
                "dpaudit": hash_of(own_source()),
                "program": hash_of(below(folder, ".py"), folder),
                "weights": hash_of(config.weights),
            },
        }
        with RunDirectory(out).begun(config_text, fingerprint, resume) as run:
            with program.running():
                kept = KeptRuns(run, program.scratch)
                worlds = measured_worlds(
                    config, program, kept, _counter(on_progress, "worlds", config.least_runs)
                )
                claims, findings = _judged(config, known, program, worlds, on_progress, run)
            seconds = {"runs": time.perf_counter() - began}
            result = _result(config, worlds, fingerprint, claims, findings, seconds)
            run.write_text("audit.json", result.to_json())
            run.write_text("report.html", load_plugin("reports", "html")(result, run.path))
            kept.forget()
            return result


def _counter(on_progress: OnProgress, what: str, total: int) -> Callable[[], None]:
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        on_progress(what, done, max(total, done))

    return one_more


def _judged(
    config: CapturedConfig,
    known: Mapping[int, Known],
    program: Program,
    worlds: Worlds,
    on_progress: OnProgress,
    run: RunDirectory,
) -> tuple[list[JudgedClaim], list[Finding]]:
    """All evidence on each claim against each adversary, and the verdicts."""
    asked = [
        Asked(i, claim, model)
        for i, claim in enumerate(config.claim)
        for model in config.threat_model
        if claim.threat_model in (None, model.name)
    ]
    findings = drawn_noise(worlds.plain, config.noise.sites, worlds.replay.same)
    accounted: list[Accounted] = []
    for i, claim, model in asked:
        finding, figure = measured_accounting(i, config, worlds, claim, model)
        findings.append(finding)
        accounted.append(figure)
    counter = partial(_counter, on_progress)
    testing = Testing(config, worlds, asked)
    findings += testing.findings(program, counter, _kept(run, "short-runs"))
    findings += _inverted(config, known, program, worlds, on_progress, run)
    judgings = [
        Judging(
            i,
            claim,
            model,
            figure,
            tuple(bearing_on(i, claim, model, findings)),
            premise=worlds.sampling.premise(claim),
            unjudged=worlds.sampling.unknown(claim),
        )
        for (i, claim, model), figure in zip(asked, accounted, strict=True)
    ]
    return judge(judgings, findings), findings


def _inverted(
    config: CapturedConfig,
    known: Mapping[int, Known],
    program: Program,
    worlds: Worlds,
    on_progress: OnProgress,
    run: RunDirectory,
) -> Iterator[Finding]:
    attacks = [(i, a) for i, a in enumerate(config.attack) if isinstance(a, GradientInversion)]
    for done, (i, attack) in enumerate(attacks, 1):
        inversion = Inversion(i, attack, known[i], config, worlds, run)
        yield from inversion.findings(program, _kept(run, f"attack-{i}"))
        on_progress(attack.name, done, len(attacks))


def _kept(run: RunDirectory, job: str) -> Checkpoint:
    return StoredCheckpoint.of(run.folder, job, run.binding, torch.device("cpu"))


def _ignored(config: CapturedConfig) -> Iterator[str]:
    if config.messages.ignore:
        names = ", ".join(config.messages.ignore)
        yield f"Messages of {names} were left out as diagnostics: whatever they show is not judged."


def _graph(n_agents: int, links: list[tuple[int, int]]) -> GraphSummary:
    """What was seen: of mixing weights nothing is known."""
    return GraphSummary(
        name="captured",
        n_agents=n_agents,
        links=tuple(links),
        positions=tuple(map(tuple, positions("ring", n_agents).tolist())),
        spectral_gap=float("nan"),
    )


def _result(
    config: CapturedConfig,
    worlds: Worlds,
    fingerprint: dict[str, dict[str, object]],
    claims: list[JudgedClaim],
    findings: list[Finding],
    seconds: dict[str, float],
) -> AuditResult:
    links = sorted({(m.source, to) for m in worlds.base.messages for to in m.destinations})
    n_agents = max(worlds.base.agents) + 1
    program = str(fingerprint["code"]["program"])
    sizes = (0,) * n_agents
    return AuditResult(
        config=config.model_dump(mode="json"),
        calibrated={},
        provenance=provenance_of(
            "the program's own data", program, 0, sizes, config.seed, torch.device("cpu")
        ),
        verdict=worst([claim.verdict for claim in claims]),
        notes=(NOTE, *_ignored(config)),
        claims=tuple(claims),
        threat_models=tuple(
            ThreatModelSummary(
                name=model.name,
                sentence=model.sentence(),
                agents=model.agents,
                links=tuple(link for link in links if model.sees(*link)),
            )
            for model in config.threat_model
        ),
        graph=_graph(n_agents, links),
        findings=tuple(findings),
        utility={},
        timing=seconds,
    )
