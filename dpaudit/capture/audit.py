"""A program that was not written for dpaudit as a source of an audit: what its runs show."""

import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from dpaudit.checkpoint import Checkpoint
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Finding
from dpaudit.files.kinds import AnyConfig
from dpaudit.files.mechanism_file import MechanismConfig
from dpaudit.files.result import AuditResult, GraphSummary, Note
from dpaudit.graphs.mixing import positions
from dpaudit.inputs.recorder import recording
from dpaudit.mechanism.source import run_mechanism
from dpaudit.pipeline.judge import AuditEvidence, audited, bearing_on
from dpaudit.pipeline.provenance import provenance_of
from dpaudit.pipeline.rules import Judging
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.progress import OnProgress
from dpaudit.source import below, hash_of, own_source
from dpaudit.training.checkpoints import StoredCheckpoint
from dpaudit.training.run_directory import RunDirectory

from .composition import Ends, measured_accounting
from .coupled_draws import (
    with_noise_left_behind,
    with_noise_made_of_several,
    with_other_draws,
)
from .file_times import FileState, files_below, unedited
from .gradient_inversion import Inversion, KnownModel, known_models
from .premises import PremiseExamination
from .program import KEPT, KeptRuns, Program
from .short_runs import ClaimAgainst, findings_of_short_runs
from .sizes import with_sizes
from .worlds import MeasuredRuns, measured_worlds

SCRATCH = "worlds"  # in the run directory: output of runs until it is read
NOTE = Note(
    "DPA129",
    "A program was audited by its runs: what was measured supports a claim only where each "
    "premise was examined, and under the assumptions that are listed.",
)
UNNAMED = (
    "{}. What such messages show of a record speaks against no claim. Show this noise to "
    "tap.noise{}"
)
UNMEASURED = "{}. Short runs alone test such messages. To have them measured: {}."
IGNORED = "Messages of {} were left out as diagnostics: whatever they show is not judged."


def run_audit_of(
    config: AnyConfig,
    out: Path,
    runtime: Runtime,
    config_text: str = "",
    resume: bool = False,
    on_progress: OnProgress = lambda what, done, total: None,
    say: Callable[[str], None] | None = None,
) -> AuditResult:
    """The audit of a defense, a program or a function, as the config says: see ``run_audit``."""
    if isinstance(config, CapturedConfig):
        return run_captured(config, out, runtime.cores, config_text, resume, on_progress, say)
    if isinstance(config, MechanismConfig):
        return run_mechanism(config, out, config_text, resume, on_progress, say=say)
    return run_audit(config, out, runtime, config_text, resume, on_progress, say=say)


def run_captured(
    config: CapturedConfig,
    out: Path,
    cores: int = os.cpu_count() or 1,
    config_text: str = "",
    resume: bool = False,
    on_progress: OnProgress = lambda what, done, total: None,
    say: Callable[[str], None] | None = None,
) -> AuditResult:
    """Audit the program of a config; writes the run directory.

    ``say`` is called with a line if the folder has an audit of another config, which is replaced.

    Raises:
        DpauditError: the program fails, its runs cannot be compared, or the run directory does not
            allow it.
    """
    with recording():
        source = ProgramSource(config, Program(config, out / SCRATCH, cores), known_models(config))
        fingerprint, evidence = source.fingerprint(), partial(source.evidence, on_progress)
        result = audited(config, out, config_text, resume, fingerprint, evidence, say=say)
        with RunDirectory(out).held() as run:
            run.forget(f"{KEPT}/*")
        return result


@dataclass(frozen=True)
class ProgramSource:
    """A program, run as often as its record and its noise need."""

    config: CapturedConfig
    program: Program
    inverted: Mapping[int, KnownModel]  # index of the attack -> model

    def fingerprint(self) -> dict[str, object]:
        return {
            "config": self.config.model_dump(mode="json"),
            "code": {
                "dpaudit": hash_of(own_source()),
                "program": self._code(),
                "weights": hash_of(self.config.weights),
            },
        }

    def _code(self) -> str:
        folder = self.config.program.folder
        return hash_of(below(folder, ".py"), folder)

    def evidence(self, on_progress: OnProgress, run: RunDirectory) -> AuditEvidence:
        """Raises RunError also where the program's code was changed meanwhile."""
        with unedited(self.config.program.folder, lambda: run.forget(f"{KEPT}/*")):
            return self._evidence(on_progress, run)

    def _evidence(self, on_progress: OnProgress, run: RunDirectory) -> AuditEvidence:
        began, config = time.perf_counter(), self.config
        ignored, on_progress = config.messages.ignore, run.noted(on_progress)
        for what in ("worlds", "alignments", "short runs", "the report"):
            on_progress(what, 0, 0)
        files = files_below(config.program.folder, self.program.scratch.parent)
        with self.program.running() as program:
            counter = partial(_counter, on_progress)
            runs = KeptRuns(program, run, counter("worlds", config.least_runs))
            worlds = with_other_draws(_measured(config, runs), runs)
            worlds = with_noise_left_behind(with_sizes(worlds, runs), runs)
            worlds = with_noise_made_of_several(worlds, runs)
            judgings, findings = self._judgings(worlds, files, counter, run, on_progress)
        left_out = [IGNORED.format(", ".join(ignored))] if ignored else []
        left_out += [worlds.not_measured] if worlds.not_measured else []
        problems = [error.problems[0] for error in worlds.unmeasured.values()]
        left_out += [UNMEASURED.format(one.text, one.help) for one in problems[:1]]
        where = ", or name its line in noise.sites" if config.program.ranks else ""
        left_out += [UNNAMED.format(hiding, where)] if (hiding := worlds.hiding()) else []
        notes = [Note("DPA130", text) for text in (*left_out, *worlds.plain.left_out)]
        return AuditEvidence(
            judgings,
            findings,
            _graph(worlds),
            provenance_of("the program's own data", self._code(), config.seed, torch.device("cpu")),
            (NOTE, *notes),
            {"runs": time.perf_counter() - began},
        )

    def _judgings(
        self,
        worlds: MeasuredRuns,
        files: Mapping[Path, FileState],
        counter: Callable[[str, int], Callable[[], None]],
        run: RunDirectory,
        on_progress: OnProgress,
    ) -> tuple[list[Judging], list[Finding]]:
        """All evidence on each claim against each adversary."""
        config, sampling = self.config, worlds.sampling
        asked = [
            ClaimAgainst(i, claim, model)
            for i, claim in enumerate(config.claim)
            for model in config.threat_model
            if claim.threat_model in (None, model.name)
        ]
        before = [measured_accounting(worlds, *one)[0] for one in asked]
        examination = PremiseExamination(worlds, self.program, counter("alignments", 0), files)
        examination.examine(asked, all(finding.verdict is not None for finding in before))
        findings = list(examination.findings(asked))
        ends = [examination.ends(claim, model) for _, claim, model in asked]
        measured = [
            measured_accounting(worlds, *one, own) for one, own in zip(asked, ends, strict=True)
        ]
        findings += [finding for finding, _ in measured]
        checkpoint = _checkpoint(run, "short-runs")
        findings += findings_of_short_runs(worlds, asked, self.program, counter, checkpoint)
        for done, (i, known) in enumerate(self.inverted.items(), 1):
            inversion = Inversion(i, known, worlds, run)
            findings += inversion.findings(self.program, _checkpoint(run, f"attack-{i}"))
            on_progress(known.attack.name, done, len(self.inverted))
        judgings = [
            Judging(
                i,
                claim,
                model,
                figure,
                tuple(bearing_on(i, claim, model, findings)),
                premise=" ".join(
                    filter(None, [sampling.premise(claim), assumed(own, examination)])
                ),
                unjudged=sampling.unknown(claim),
            )
            for (i, claim, model), (_, figure), own in zip(asked, measured, ends, strict=True)
        ]
        return judgings, findings


def _measured(config: CapturedConfig, runs: KeptRuns) -> MeasuredRuns:
    """Without leaving a record out, where runs cannot be compared then and no claim is of that."""
    try:
        return measured_worlds(config, runs)
    except RunError:
        if not config.only_replaces:
            raise
        return measured_worlds(config, runs, leaves_out=False)


def assumed(ends: Ends, examination: PremiseExamination) -> str:
    """What a bound of a record rests on that no run can show, as a sentence; "" without one."""
    if ends.most is None:
        return ""
    *first, last = examination.assumed
    return f"It is assumed that {', that '.join(first)}, and that {last}."


def _counter(on_progress: OnProgress, what: str, total: int) -> Callable[[], None]:
    numbers = itertools.count(1)

    def one_more() -> None:
        done = next(numbers)
        on_progress(what, done, max(total, done) if total else 0)  # 0: nobody knows

    return one_more


def _checkpoint(run: RunDirectory, job: str) -> Checkpoint:
    return StoredCheckpoint.of(run, job, run.binding, torch.device("cpu"))


def _graph(worlds: MeasuredRuns) -> GraphSummary:
    """The links that were seen. Nothing is known of mixing weights."""
    n_agents = max(worlds.base.agents) + 1
    links = sorted({(m.source, to) for m in worlds.base.messages for to in m.destinations})
    places = tuple(map(tuple, positions("ring", n_agents).tolist()))
    return GraphSummary(name="captured", n_agents=n_agents, links=tuple(links), positions=places)
