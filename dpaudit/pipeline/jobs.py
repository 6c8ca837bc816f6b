"""The jobs of an audit: training each world, and every attack by every adversary."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import inf
from operator import or_
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel

from dpaudit.attack.contract import Attack, AttackContext, Part
from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.contract_checks import kind, unchanged_settings
from dpaudit.errors import DpauditError, PluginError, RunError, is_out_of_memory
from dpaudit.files.config import AuditConfig, Plugin
from dpaudit.files.finding import Finding, Metric, Role
from dpaudit.files.result import GraphSummary, Note
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import with_every_link
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import fewest_coordinates
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.game.worst_case.layers import in_layers
from dpaudit.memory import available, resident, size_text
from dpaudit.progress import OnProgress, OnStep
from dpaudit.rng import Streams
from dpaudit.training.checkpoints import StoredCheckpoint
from dpaudit.training.costs import distances_bytes
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import NOTHING_RECORDED, Recording, train

LEAK = "likelihood-ratio"
DISTANCE = "sensitivity"
EXAMINES = {LEAK: "the exact leak of the view", DISTANCE: "how far a record moves messages"}
NUMBERS = 2 * 10**6  # of the gradients of all rounds that are examined for distances, about
REACH = 20  # rounds that are played where not all of a run are examined
LARGE = 1e9  # an option beyond it is not meant; up to it, products of four fit into float32
WORLDS = ("defense", "no-defense")
NOISE_OF_THE_RUN = "noise-of-the-run"  # the job that examines it
EXAMINATION = "claim"  # begins the name of a job that every audit with a claim has
FIRST = "00"  # the place of an attack that is alone, whose draws all others of its name have
# bytes of tensors beyond which an examination is left out: matrices, and models of all agents
MOST_BYTES = {LEAK: 5 * 10**8, DISTANCE: 6 * 10**9}

Examination = tuple[str, Attack]  # by the name of the attack that it is a short form of


def examinations(
    config: AuditConfig, defense: Defense, setting: Setting, streams: Streams
) -> Iterator[Examination]:
    """What every audit with a claim examines, whatever attacks its file asks for.

    Two attacks have a short form that tests what a claim rests on. The exact leak and the noise,
    by `likelihood-ratio` without counted runs, are examined against each adversary that no such
    attack of the file has. The distance that a record moves a message is examined by
    `sensitivity`, on as many rounds as take little time, unless the file asks for it.
    """
    if not config.claim:
        return
    claimed = {claim.threat_model for claim in config.claim}
    options = [attack.options for attack in config.attack if attack.name == LEAK]
    asked = [given.get("threat_models") for given in options]  # whose exact leak the file asks for
    unread = tuple(
        model.name
        for model in config.threat_model
        if claimed & {None, model.name}
        and model.access == "white-box"  # of losses there is no algebra
        and not any(names is None or model.name in names for names in asked)
    )
    if unread:
        yield _examination(LEAK, trials=0, threat_models=unread)
    if all(attack.name != DISTANCE for attack in config.attack):
        rounds = examined_for_distances(defense, setting, streams)
        yield _examination(DISTANCE, rounds=rounds, restarts=2, steps=0)


def examined_for_distances(defense: Defense, setting: Setting, streams: Streams) -> tuple[int, ...]:
    """All rounds of a small run; else the first, and others that are drawn from the first ones."""
    one = setting.n_agents * setting.d * defense.batch_size
    n, n_rounds = max(2, NUMBERS // one), defense.n_rounds
    if n >= n_rounds:
        return tuple(range(1, n_rounds + 1))
    reach = min(n_rounds, max(n, REACH))
    drawn = streams.numpy("rounds of distances").choice(reach - 1, min(n, reach) - 1, False)
    return tuple(sorted({1, *(int(k) + 2 for k in drawn)}))


def _examination(name: str, **options: Any) -> Examination:
    return name, Plugin(name=name, **options).create("attacks")


def examined_bytes(name: str, context: AttackContext, threat_model: ThreatModel) -> int:
    """What the examination of this name holds at once, by shapes alone: nothing is allocated."""
    defense, setting = context.defense, context.setting
    if name == DISTANCE:
        return distances_bytes(defense, context.problem, setting)
    honest = next((i for i in setting.holders if i not in threat_model.agents), None)
    if honest is None:
        return 0
    game = in_layers(Game.of(defense, setting, honest, "add-remove"))
    fewest = fewest_coordinates(game)
    game = replace(game, width=fewest) if fewest > 1 else game
    shapes = [GameShape.of(game, view) for view in (threat_model, with_every_link(threat_model))]
    n_rounds = shapes[0].followed(defense.n_rounds)
    return sum(shape.adversary(n_rounds) for shape in shapes)


def reason_not_examined(error: Exception) -> str:
    """Why something is not examined, which the defense made impossible; else the error is raised.

    A step may raise anything on other data or at other coordinates. Lack of memory, a run directory
    that is gone and an error of dpaudit's own code are no reasons.
    """
    frames = walk_tb(error.__traceback__)
    by_defense = any(isinstance(frame.f_locals.get("self"), Defense) for frame, _ in frames)
    numerical = isinstance(error, DpauditError | ArithmeticError | RuntimeError | ValueError)
    if isinstance(error, RunError) or is_out_of_memory(error) or not (by_defense or numerical):
        raise error
    return (str(error) or repr(error)).splitlines()[0]


@dataclass(frozen=True)
class AttackJob:
    """One part of one attack by one adversary."""

    index: int | None  # index of the attack in the config; None: every audit with a claim has it
    attack_name: str
    attack: Attack
    threat_model: ThreatModel
    part: Part

    @property
    def name(self) -> str:
        return self._named(EXAMINATION if self.index is None else f"{self.index:02d}")

    @property
    def stream(self) -> str:
        """Name of its random stream: an attack draws as if it were the only one."""
        return self._named(EXAMINATION if self.index is None else FIRST)

    def _named(self, place: str) -> str:
        what = f"{place}-{self.attack_name}-{self.threat_model.slug}"
        if self.part == Part():
            return what
        size = "" if self.part.batch_size is None else f"-batch-{self.part.batch_size}"
        return f"{what}{size}-{self.part.world}"

    @property
    def of(self) -> str:
        """What it is a part of, for people: all jobs of an attack by an adversary."""
        what = "examination" if self.index is None else f"attack {self.index:02d}"
        whom = f" ({self.threat_model.name})" if self.attack.per_threat_model else ""
        return f"{what} {self.attack_name}{whom}"


class Limit(NamedTuple):
    """The memory that an audit may take."""

    free: int | None  # bytes beside what this process holds; None: unknown, nothing is refused
    reason: str  # how large it is and why, for people
    process: int  # bytes that every further process takes before its job begins

    @classmethod
    def of(cls, max_memory: int | None, device: torch.device) -> "Limit":
        """The bytes a caller allows in all, or what is free on the machine or device."""
        held = resident()
        if max_memory is not None:
            reason = f"{size_text(max_memory)} is the limit, of which {size_text(held)} is in use"
            return cls(max(0, max_memory - held), reason, held)
        free = available() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
        return cls(free, "" if free is None else f"{size_text(free)} is free", held)


class Prepared(NamedTuple):
    """Everything that a config determines before the first round."""

    config: AuditConfig
    learned: LoadedProblem
    setting: Setting
    defenses: dict[str, Defense]  # world -> defense
    attacks: tuple[Attack, ...]
    examinations: tuple[Examination, ...]
    streams: Streams
    notes: tuple[Note, ...]  # what to know before reading any number
    graph: GraphSummary
    replayed: int  # rounds that were the same when they were played again

    @property
    def defense(self) -> Defense:
        """The one that is audited; the other world has no noise."""
        return self.defenses["defense"]


def train_world(prepared: Prepared, run: RunDirectory, world: str, on_progress: OnProgress) -> None:
    """Train one world; its curve and the recorded rounds are left in the run directory."""

    def on_round(done: int, total: int) -> None:
        on_progress(f"training, {world}", done, total)

    with faults_in_a_line(f"training, {world}", prepared.defenses[world]):
        curve = train(
            prepared.defenses[world],
            prepared.learned.problem,
            prepared.setting,
            prepared.streams,
            recording_for(prepared),
            run,
            world,
            on_round,
        )
    run.write_result(f"findings/{world}.json", curve.model_dump(mode="json"), run.binding)
    run.forget(f"checkpoints/{world}/*")


def run_attack(
    prepared: Prepared,
    run: RunDirectory,
    job: AttackJob,
    binding: str,
    on_progress: OnProgress,
    max_memory: int | None = None,
) -> None:
    """One part of an attack by one adversary; its findings are left in the run directory.

    Raises:
        RunError: after a step it holds more memory than an audit may take.
    """
    device = prepared.streams.device
    limit = Limit.of(max_memory, device)

    def on_step(done: int, total: int) -> None:
        grown = resident() - limit.process
        if device.type == "cpu" and limit.free is not None and grown > limit.free:
            raise RunError(
                "DPA021",
                f"attack {job.name} takes {size_text(grown)} of memory after {done} of {total} "
                f"steps, and {limit.reason}",
                f"lower n_agents or the options of {job.attack_name}",
            )
        on_progress(f"attack {job.name}", done, total)

    checkpoint = StoredCheckpoint.of(run, job.name, binding, device)
    context = replace(context_of(prepared, run, job), checkpoint=checkpoint)
    by = f'attack "{job.attack_name}": measure'
    measure = job.attack.measure if job.index is not None else partial(_examined, job)
    with (
        faults_in_a_line(f"attack {job.name}", context.defense, job.attack),
        unchanged_settings(by),
    ):
        measured: object = measure(context, job.threat_model, on_step)
        answers = list(measured) if isinstance(measured, Iterable) else [measured]
    findings = [one for one in answers if isinstance(one, Finding)]
    for other in (one for one in answers if not isinstance(one, Finding)):
        raise PluginError("DPA043", f"{by} returns {kind(other)}; expected a list of Finding")
    found = [finding.model_dump(mode="json") for finding in findings]
    run.write_result(f"findings/{job.name}.json", found, binding)
    run.forget(f"checkpoints/{job.name}/*")


def _examined(
    job: AttackJob, context: AttackContext, threat_model: ThreatModel, on_step: OnStep
) -> list[Finding]:
    """What an examination finds, or why there is none: nobody asked for it, so nothing fails."""
    try:
        size = examined_bytes(job.attack_name, context, threat_model)
        most = MOST_BYTES[job.attack_name]
        if size <= most:
            return job.attack.measure(context, threat_model, on_step)
        why = f"it takes {size_text(size)} of memory, more than {size_text(most)}"
    except Exception as error:
        why = reason_not_examined(error)
    return [
        Finding(
            role=Role.DEPENDENCE,
            kind="sensitivity",
            title=f"not examined by {job.attack_name}",
            attack=job.attack_name,
            threat_model=threat_model.name if job.attack.per_threat_model else None,
            not_examined=(f"{EXAMINES[job.attack_name]} ({why})",),
        )
    ]


def context_of(prepared: Prepared, run: RunDirectory, job: AttackJob) -> AttackContext:
    """What an attack works on in one of its jobs."""
    config = prepared.config
    return AttackContext(
        prepared.learned.problem,
        prepared.setting,
        prepared.defense,
        config.claim,
        prepared.streams.child("measurement", job.stream),
        run,
        job.part,
        job.attack_name,
        len(config.attack) if job.index is None else job.index,
        config.seed,
    )


@contextmanager
def faults_in_a_line(what: str, *options: BaseModel) -> Iterator[None]:
    """Numbers too large to compute with, or more than memory holds, are the config's doing.

    torch raises no error of its own for a number that float32 does not hold: a RuntimeError is put
    down to that where some option is beyond ``LARGE``, and is a bug where none is.
    """
    try:
        yield
    except (OverflowError, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise RunError(
                "DPA021",
                f"{what}: out of memory",
                "lower n_agents or the options of this part, or give --workers 1",
            ) from None
        large = any(abs(x) > LARGE for one in options for x in _numbers(one.model_dump()))
        if not isinstance(error, OverflowError) and not large:
            raise
        raise RunError(
            "DPA046",
            f"{what}: numbers exceed what float32 holds",
            "lower defense.clip_norm, learning_rate or the noise",
        ) from None


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in the options of a plug-in."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int | float):
        yield value


def jobs_of(prepared: Prepared) -> Iterator[AttackJob]:
    """Every part of every attack by every adversary it is meant for."""
    config = prepared.config
    asked = [(i, config.attack[i].name, attack) for i, attack in enumerate(prepared.attacks)]
    for i, name, attack in (*asked, *((None, *e) for e in prepared.examinations)):
        adversaries = [
            model
            for model in config.threat_model
            if attack.threat_models is None or model.name in attack.threat_models
        ]
        for model in adversaries[: None if attack.per_threat_model else 1]:
            for part in attack.parts(prepared.defense):
                yield AttackJob(i, name, attack, model, part)


def names_of_attacks(prepared: Prepared) -> list[str]:
    """The jobs that come after training."""
    names = [job.name for job in jobs_of(prepared)]
    return [*names, NOISE_OF_THE_RUN] if prepared.config.claim else names


def recording_for(prepared: Prepared) -> Recording:
    """All that the attacks read of the training."""
    return reduce(or_, (a.recording(prepared.defense) for a in prepared.attacks), NOTHING_RECORDED)


class Power(NamedTuple):
    """What one attack is expected to prove of one claim against one adversary."""

    attack: str
    claim: int  # index into the config's claims
    threat_model: str
    metrics: Mapping[str, Metric]


def powers_of(prepared: Prepared, patience: float = inf) -> Iterator[Power]:
    """Each attack once for each adversary, whatever the parts of its work.

    Args:
        patience: seconds that each may take, about.
    """
    seen = set()
    for job in jobs_of(prepared):
        key = job.index, job.threat_model.name
        if key not in seen:
            seen.add(key)
            context = context_of(prepared, RunDirectory(Path()), job)  # writes nothing
            for claim, metrics in job.attack.power(context, job.threat_model, patience):
                yield Power(job.attack_name, claim, job.threat_model.name, metrics)
