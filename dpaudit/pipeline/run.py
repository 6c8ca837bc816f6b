"""run_audit: the whole flow on one screen."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpaudit.attack.contract import Part
from dpaudit.data.datasets import Dataset, load_dataset
from dpaudit.data.text import load_text
from dpaudit.defense.claim_accounting import refuse_claims
from dpaudit.defense.contract import Defense, Setting
from dpaudit.errors import ConfigError, RunError, nearest
from dpaudit.files.config import TEXT, AuditConfig
from dpaudit.files.finding import Finding
from dpaudit.files.result import AuditResult, Curve, GraphSummary, Note
from dpaudit.game.probing.replayability import refuse_unless_replayable
from dpaudit.graphs.graph import build_graph
from dpaudit.graphs.mixing import positions
from dpaudit.inputs.recorder import recording
from dpaudit.progress import OnProgress, one_step
from dpaudit.rng import Streams
from dpaudit.training.loaded_problem import load_problem
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import bound_to

from .caller_objects import NOTHING, CallerObjects
from .costs import SHORT, AuditCosts, costs_ahead, estimate_costs
from .fork_server import begin
from .jobs import (
    NOISE_OF_THE_RUN,
    WORLDS,
    Power,
    Prepared,
    examinations,
    faults_in_a_line,
    jobs_of,
    names_of_attacks,
    powers_of,
    recording_for,
    run_attack,
    train_world,
)
from .judge import AuditEvidence, accounted, audited, concluded
from .link_coverage import absent_notes, links_of, refuse_absent_links, refuse_waiting, with_regions
from .noise_law import examine_law
from .noise_of_the_run import examine_noise
from .notes import learning_notes, problem_notes, vacuous_notes
from .provenance import code_of, provenance_of
from .requirements import refuse_missing_packages
from .workers import Work, Workers

CONCLUSION = ("accounting", "the report")  # after all jobs


@dataclass(frozen=True)
class Runtime:
    """Where and how an audit is computed; nothing here changes what comes out on one device.

    Processes share one accelerator badly, so ``workers`` counts on the CPU alone.
    """

    device: torch.device = torch.device("cpu")
    data_root: Path | None = None
    download: bool = False
    cores: int = os.cpu_count() or 1
    max_memory: int | None = None  # bytes of all processes together; None: what is free

    @property
    def workers(self) -> int:
        return self.cores if self.device.type == "cpu" else 1


def run_audit(
    config: AuditConfig,
    out: Path,
    runtime: Runtime = Runtime(),
    config_text: str = "",
    resume: bool = False,
    on_progress: OnProgress = lambda what, done, total: None,
    own: CallerObjects = NOTHING,
    say: Callable[[str], None] | None = None,
    report: bool = True,
) -> AuditResult:
    """One audit: train, intercept, attack, account, judge; writes the run directory.

    ``own`` holds objects of the caller that stand in the place of what the config names; ``say`` is
    called with a line for all that takes much memory or time, before anything is run, and for an
    audit of another config that is replaced. Without ``report`` there is no report.html.

    Raises:
        DpauditError: the config, the data, the run directory or the memory does not allow it.
    """
    with recording():
        prepared = prepare(config, runtime, own)
        timed = say is not None and not resume
        costs = estimate_costs(prepared, runtime.max_memory, timed=timed)
        trained = _Trained(prepared, runtime, costs, own)
        fingerprint = fingerprint_of(prepared, runtime)

        def evidence(run: RunDirectory) -> AuditEvidence:
            return trained.evidence(run, run.noted(on_progress), say)

        return audited(config, out, config_text, resume, fingerprint, evidence, report, say)


def attack_again(
    out: Path,
    runtime: Runtime = Runtime(),
    names: tuple[str, ...] = (),
    on_progress: OnProgress = lambda what, done, total: None,
) -> AuditResult:
    """Attack a recorded transcript again, without training, and judge anew.

    The attacks are those of the run directory's config.toml, only those called ``names`` if any
    are given; everything else in it must be as it was.

    Raises:
        DpauditError: it is no run directory, a name fits no attack, something else than the
            attacks changed, or the attacks need a message that was not recorded.
    """
    if out.exists() and not out.is_dir():
        raise RunError("DPA019", f"{out}: not a folder; expected a run directory of dpaudit audit")
    RunDirectory(out).read_json("run.json")  # else it is none, and nothing is written there
    with RunDirectory(out).held() as run:
        recorded = _recorded(run)
        config = _edited(out, recorded["config"], names)
        prepared = prepare(config, runtime)
        now = fingerprint_of(prepared, runtime)
        if any(now[key] != recorded.get(key) for key in ("data", "device")):
            raise RunError("DPA017", f"{out}: data or device differ from those of the recorded run")
        _refuse_unrecorded(run, prepared)
        costs = estimate_costs(prepared, runtime.max_memory, trains=False)
        run.forget("findings/[0-9]*.json")
        trained = _Trained(prepared, runtime, costs)
        noted = run.noted(on_progress)
        trained.announce((), noted)
        with trained.workers(run, bound_to(now)) as workers:
            found = trained.attacked(run, bound_to(now), workers, noted)
        return concluded(config, run, found)


def outlook(config: AuditConfig, runtime: Runtime) -> tuple[AuditCosts, list[Power]]:
    """What ``run_audit`` would take and could prove; no more than first steps are played.

    Raises:
        DpauditError: the config, the data or the memory does not allow the audit.
    """
    prepared = prepare(config, runtime)
    costs = costs_ahead(prepared, runtime.max_memory)
    return costs, list(powers_of(prepared))


@dataclass(frozen=True)
class _Trained:
    """A defense that is trained here, and its twin without noise."""

    prepared: Prepared
    runtime: Runtime
    costs: AuditCosts
    own: CallerObjects = NOTHING

    def evidence(
        self, run: RunDirectory, on_progress: OnProgress, say: Callable[[str], None] | None
    ) -> AuditEvidence:
        began = time.perf_counter()
        costs, runtime = self.costs, self.runtime
        alone = SHORT if costs.is_short else 0.0
        if runtime.workers > 1 and not alone:
            begin()
        if say is not None:
            for line in costs.lines(runtime.workers):
                say(line)
        self.announce(WORLDS, on_progress)
        at_once = costs.workers(costs.training, 1 if alone else runtime.workers)
        with self.workers(run, run.binding) as workers:
            workers.run(WORLDS, at_once, on_progress)
            seconds = {"training": time.perf_counter() - began}
            return self.attacked(run, run.binding, workers, on_progress, seconds, alone)

    def workers(self, run: RunDirectory, binding: str) -> Workers[str]:
        """Processes that train and then attack: each takes a second to start."""
        arguments = (self.prepared.config, run, binding, self.runtime, self.own)
        return Workers(worker, arguments, self.runtime.workers)

    def announce(self, first: Sequence[str], on_progress: OnProgress) -> None:
        """Report what is ahead: some jobs, all attacks, and the end."""
        for job in (*first, *_longest_first(self.prepared), *CONCLUSION):
            on_progress(_said(job), 0, 0)

    def attacked(
        self,
        run: RunDirectory,
        binding: str,
        workers: Workers[str],
        on_progress: OnProgress,
        seconds: Mapping[str, float] = {},
        alone: float = 0.0,
    ) -> AuditEvidence:
        """The evidence of all attacks on what was recorded, and of accounting."""
        began = time.perf_counter()
        prepared, runtime, costs = self.prepared, self.runtime, self.costs
        jobs = names_of_attacks(prepared)
        at_once = costs.workers(costs.attacks, runtime.workers)
        workers.run(_longest_first(prepared), at_once, on_progress, alone)
        found = [Finding.model_validate(f) for job in jobs for f in _result_of(run, job, binding)]
        learned = prepared.learned
        with one_step(on_progress, CONCLUSION[0]):
            judgings, findings = accounted(prepared, found)
        curves = {
            world: Curve.model_validate(_result_of(run, world, run.binding)) for world in WORLDS
        }
        return AuditEvidence(
            judgings,
            findings,
            prepared.graph,
            provenance_of(
                learned.name,
                learned.fingerprint,
                prepared.config.seed,
                runtime.device,
                learned.n_records,
                learned.sizes,
            ),
            (*prepared.notes, *problem_notes(learned), *learning_notes(curves)),
            {**seconds, "attacks": time.perf_counter() - began},
            prepared.defense.model_dump(mode="json"),
            curves,
        )


def _longest_first(prepared: Prepared) -> list[str]:
    """The order to begin in: a long job that is begun last runs alone.

    The noise of the run is the longest, and whole attacks take longer than parts of attacks.
    """
    parts = {job.name for job in jobs_of(prepared) if job.part != Part()}
    return sorted(
        names_of_attacks(prepared), key=lambda job: (job != NOISE_OF_THE_RUN, job in parts)
    )


def _said(job: str) -> str:
    """What reports of progress call a job."""
    if job in WORLDS:
        return f"training, {job}"
    return job if job in (NOISE_OF_THE_RUN, *CONCLUSION) else f"attack {job}"


def _recorded(run: RunDirectory) -> dict[str, Any]:
    """What run.json says of a run. Raises RunError if it is not what ``run_audit`` wrote."""
    recorded = run.recorded()
    where = run.path / "run.json"
    if not isinstance(recorded, dict) or not isinstance(recorded.get("config"), dict):
        raise RunError("DPA020", f"{where}: damaged: no config in it", "run dpaudit audit again")
    try:
        config = AuditConfig.from_dict(recorded["config"])
    except ConfigError as error:
        what = str(error).partition("\n")[0]
        raise RunError("DPA020", f"{where}: damaged: {what}", "run dpaudit audit again") from None
    return {**recorded, "config": config.model_dump(mode="json")}


def _edited(out: Path, recorded: dict[str, Any], names: tuple[str, ...]) -> AuditConfig:
    """The run directory's config with its attacks as they are now in config.toml."""
    fixed = bool((recorded["model"] or {}).get("fix"))
    edited = AuditConfig.from_toml(out / "config.toml", recorded["seed"], fixed)
    now = edited.model_dump(mode="json")
    now["data"]["path"] = recorded["data"]["path"]  # was relative to another folder
    changed = [key for key in now if key != "attack" and now[key] != recorded[key]]
    if changed:
        raise ConfigError(
            "DPA017",
            f"{out / 'config.toml'}: {', '.join(changed)} changed since the run; only attacks may "
            "change here, so run dpaudit audit for the rest",
        )
    known = [attack.name for attack in edited.attack]
    for name in names:
        if name not in known:
            raise ConfigError(
                "DPA006", f'--attack: config.toml has no attack "{name}"{nearest(name, known)}'
            )
    chosen = [a for a in now["attack"] if not names or a["name"] in names]
    return AuditConfig.from_dict({**now, "attack": chosen})


def _refuse_unrecorded(run: RunDirectory, prepared: Prepared) -> None:
    recording = recording_for(prepared)
    for world in WORLDS:
        for k, names in recording.messages.items():
            for size in (None, *recording.probes.get(k, ())):
                if not run.has_messages(world, k, size, names):
                    batch = "" if size is None else f" at batch size {size}"
                    raise RunError(
                        "DPA053",
                        f"{run.path}: round {k}{batch} with {', '.join(sorted(names))} was not "
                        "recorded",
                        "run dpaudit audit with these attacks",
                    )


def prepare(config: AuditConfig, runtime: Runtime, own: CallerObjects = NOTHING) -> Prepared:
    """Data, partition, graph, model and calibrated defense of a config."""
    if torch.get_default_dtype() is not torch.float32:
        raise ConfigError(
            "DPA014",
            f"torch's default dtype is {torch.get_default_dtype()}; an audit needs torch.float32: "
            "call torch.set_default_dtype(torch.float32) before it",
        )
    streams = Streams(config.seed, runtime.device)
    defense: Defense = own.defense or config.defense.create("defenses")
    refuse_missing_packages(config.defense.name, defense)
    attacks = tuple(plugin.create("attacks") for plugin in config.attack)
    size = defense.batch_size
    generator, n_rounds = streams.numpy("graph"), defense.n_rounds
    weather = streams.numpy("weather") if config.graph.has_weather else None
    network = build_graph(config.graph, config.data.n_agents, generator, n_rounds, weather)
    learned = load_problem(
        config, lambda: own.data or _loaded(config, runtime), own.model, streams, size
    )
    places = positions(config.graph.name, config.data.n_agents)
    drawn = GraphSummary(
        name=config.graph.name,
        n_agents=network.at(1).n_agents,
        links=tuple(sorted(links_of(network, n_rounds)) if network.drawn else network.at(1).links),
        positions=tuple(map(tuple, places.tolist())),
        spectral_gap=network.calm.at(1).spectral_gap,
    )
    refuse_waiting(config.graph, network, defense)
    config = with_regions(config, network, n_rounds)
    refuse_absent_links(config.threat_model, config.graph, network, defense.n_rounds)
    setting = Setting(network, learned.sizes, learned.d, learned.layers)
    for attack in attacks:
        attack.refuse(learned, setting)
    calibrated = defense.calibrate(setting)
    on_records = learned.dataset is not None
    refuse_claims(config.claim, config.threat_model, calibrated, setting, on_records)
    replayed = refuse_unless_replayable(calibrated, setting)
    examined = tuple(examinations(config, calibrated, setting, streams))
    worlds = {"defense": calibrated, "no-defense": calibrated.without_noise()}
    notes = tuple(_notes(config, defense, setting))
    return Prepared(
        config, learned, setting, worlds, attacks, examined, streams, notes, drawn, replayed
    )


def _notes(config: AuditConfig, defense: Defense, setting: Setting) -> Iterator[Note]:
    if defense.reconstructed is not None:
        text = (
            "A part of this method is reconstructed, and may differ from its authors' own: "
            f"{defense.reconstructed}."
        )
        yield Note("DPA123", text)
    condition = defense.outside_theory(setting)
    if condition is not None:
        text = (
            f"This run is outside the theory of its paper, as allowed by its config: {condition}."
        )
        yield Note("DPA124", text)
    yield from vacuous_notes(config.claim, setting)
    yield from absent_notes(config.threat_model, setting.network, defense.n_rounds)


def _loaded(config: AuditConfig, runtime: Runtime) -> Dataset:
    if config.data.name == TEXT:
        return load_text(config.data.path, config.data.text, config.seed)
    source = config.data.name or config.data.path
    assert source is not None
    loaded = load_dataset(
        source, data_root=runtime.data_root, download=runtime.download, seed=config.seed
    )
    return loaded.in_units() if config.data.scale == "unit" else loaded


def worker(
    config: AuditConfig, run: RunDirectory, binding: str, runtime: Runtime, own: CallerObjects
) -> Work[str]:
    """What a process does with a job: train a world, or run a scenario, by name.

    ``binding`` is of all that decides the findings; the transcript has its own, which is the run's.
    """
    prepared = prepare(config, runtime, own)
    jobs = {job.name: job for job in jobs_of(prepared)}

    def work(job: str, on_progress: OnProgress) -> None:
        if run.read_result(f"findings/{job}.json", binding) is not None:
            return
        if job in WORLDS:
            train_world(prepared, run, job, on_progress)
        elif job == NOISE_OF_THE_RUN:
            with faults_in_a_line(job, prepared.defense):
                finding = examine_noise(prepared, config.threat_model, partial(on_progress, job))
                law = examine_law(prepared, config.threat_model)
            found = [f.model_dump(mode="json") for f in (finding, law) if f is not None]
            run.write_result(f"findings/{job}.json", found, binding)
        else:
            run_attack(prepared, run, jobs[job], binding, on_progress, runtime.max_memory)

    return work


def _result_of(run: RunDirectory, job: str, binding: str) -> Any:
    found = run.read_result(f"findings/{job}.json", binding)
    if found is None:
        raise RunError(
            "DPA020",
            f"{run.path}: findings/{job}.json is gone, damaged or was changed",
            "run dpaudit audit with --resume, which makes it anew",
        )
    return found


def fingerprint_of(prepared: Prepared, runtime: Runtime) -> dict[str, object]:
    """All that decides what comes out: no other run is resumed."""
    return {
        "config": prepared.config.model_dump(mode="json"),
        "device": runtime.device.type,
        "data": prepared.learned.fingerprint,
        "code": code_of(type(prepared.defense), *map(type, prepared.attacks)),
    }
