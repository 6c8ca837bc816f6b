"""The time that each part of an audit takes, told before it is spent and never enforced.

Counts of what the parts do, from the config, times the pace of this machine.
"""

from pathlib import Path
from typing import NamedTuple

from dpaudit.defense.contract import Setting
from dpaudit.errors import DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.text import duration
from dpaudit.training.needs import examination_plays
from dpaudit.training.noise_rounds import left_out
from dpaudit.training.pace import Pace, measured
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.woven import global_randomness

from .jobs import NOISE_OF_THE_RUN, WORLDS, AttackJob, Prepared, context_of, jobs_of, recording_for
from .noise_of_the_run import n_examined
from .workers import one_thread

LONG = 10  # seconds of an audit that are worth a line before it
SHORT = 5  # seconds of an audit, on one core, that start no process: a start takes some itself
TOLD = 1  # seconds of a part that are worth a word
_UNPLAYABLE = (DpauditError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError)


class Took(NamedTuple):
    """How long one job takes, and the part of the audit that it is told with."""

    part: str
    seconds: float | None  # on one thread; None: unknown


class Estimate(NamedTuple):
    """Of all jobs of an audit: those that train, and after them those that attack."""

    training: list[Took]
    attacks: list[Took]

    def seconds(self, training_workers: int, attack_workers: int) -> float:
        """Of the whole, where so many jobs are done side by side; what is unknown is left out."""
        training = _side_by_side(self.training, training_workers)
        return training + _side_by_side(self.attacks, attack_workers)

    @property
    def is_short(self) -> bool:
        """Whether it takes longer to start processes than they would save."""
        every = (*self.training, *self.attacks)
        return all(took.seconds is not None for took in every) and self.seconds(1, 1) <= SHORT

    def line(self, training_workers: int, attack_workers: int) -> str | None:
        """What to say of it where so many jobs are done side by side; None: not worth a line."""
        whole = self.seconds(training_workers, attack_workers)
        if whole <= LONG:
            return None
        parts: dict[str, float | None] = {}
        for part, seconds in (*self.training, *self.attacks):
            before = parts.get(part, 0.0)
            parts[part] = None if before is None or seconds is None else before + seconds
        told = [f"{part} {_text(s)}" for part, s in parts.items() if s is None or s >= TOLD]
        least = "at least " if None in parts.values() else ""
        cores = max(training_workers, attack_workers)
        on = f"{cores} core{'s' * (cores > 1)}"
        return f"{least}about {_text(whole)} on {on}; on one: {', '.join(told)}"


def estimate(config: AuditConfig, prepared: Prepared) -> Estimate | None:
    """By a short measurement on one thread, which draws nothing that the audit draws.

    None: the defense or its gradients cannot be timed; the run will say why.
    """
    defense, setting = prepared.defenses["defense"], prepared.setting
    with one_thread(), global_randomness(0):
        try:
            pace = measured(defense, prepared.learned.problem, setting, prepared.streams)
        except _UNPLAYABLE:
            return None
        training = pace.training(defense.n_rounds, recording_for(prepared))
        attacks = [_of_attack(config, prepared, job, pace) for job in jobs_of(config, prepared)]
    if config.claim:
        attacks.append(Took(NOISE_OF_THE_RUN, _of_examination(setting, defense.n_rounds, pace)))
    return Estimate([Took("training", training) for _ in WORLDS], attacks)


def _of_attack(config: AuditConfig, prepared: Prepared, job: AttackJob, pace: Pace) -> Took:
    context = context_of(config, prepared, RunDirectory(Path()), job)  # nothing is read or written
    whom = f" ({job.threat_model.name})" if job.attack.per_threat_model else ""
    try:
        seconds = job.attack.seconds(context, job.threat_model, pace)
    except _UNPLAYABLE:
        seconds = None
    return Took(f"{job.attack_name}{whom}", seconds)


def _of_examination(setting: Setting, n_rounds: int, pace: Pace) -> float:
    rounds = n_examined(n_rounds)
    if left_out(setting, rounds) is not None:
        return 0.0
    return rounds * (2 * pace.round + examination_plays(setting, rounds) * pace.step)


def _side_by_side(jobs: list[Took], workers: int) -> float:
    """No less than the longest of them takes; what is unknown is left out."""
    known = [took.seconds for took in jobs if took.seconds is not None]
    return max([0.0, sum(known) / workers, *known])


def _text(seconds: float | None) -> str:
    return "unknown" if seconds is None else duration(seconds)
