"""Test accuracy of trained defenses, as an experiment measures it: settings are an audit file's."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import Curve
from dpaudit.memory import available, size_text
from dpaudit.pipeline.caller_objects import NOTHING
from dpaudit.pipeline.jobs import Prepared, faults_in_a_line
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.pipeline.workers import one_thread
from dpaudit.training.loaded_problem import Problem
from dpaudit.training.needs import training_bytes
from dpaudit.training.pace import measured as pace_of
from dpaudit.training.train import NOTHING_RECORDED, Learning, train
from dpaudit.training.woven import global_randomness

from .experiment import Around, Measured, Settings

ACCURACY = "test accuracy, %"
CURVE = "test accuracy by round, %"
POINTS = 7  # of a curve, even in rounds: one takes as long as some rounds do
WORLD = "world"  # the setting that turns the noise off: "no-defense"
RECORDS = "records of an agent"  # the setting for how many each has; without it they share all
BESIDE = 600 * 10**6  # bytes of a process beside what training counts: libraries and data


def accuracy(settings: Settings, seed: int, around: Around) -> Iterator[Measured]:
    """After the last round, the mean over agents, on the first 2,000 test records at most.

    Raises:
        DpauditError: it cannot be trained, does not fit in memory, or a number stops being one.
    """
    found = trained(settings, seed, around, evaluations=1)
    yield Measured(ACCURACY, percent(found.accuracy[-1]))


def curve(settings: Settings, seed: int, around: Around) -> Iterator[Measured]:
    """The same at each of some rounds. Raises as ``accuracy``."""
    found = trained(settings, seed, around, POINTS)
    for k, agents in zip(found.rounds, found.accuracy, strict=True):
        yield Measured(CURVE, percent(agents), at=k)


def percent(agents: Sequence[float]) -> float:
    """The mean of their shares."""
    return 100 * fmean(agents)


def trained(
    settings: Settings,
    seed: int,
    around: Around,
    evaluations: int,
    evaluated: Callable[[Problem], Learning] = lambda problem: problem,
) -> Curve:
    """What training measures of the agents' models, by the problem as ``evaluated`` has it.

    Raises:
        DpauditError: as ``accuracy``.
    """
    prepared, world = prepared_of(settings, seed, around)
    defense = prepared.defenses[world]
    need, free = _bytes(prepared, world), available()
    if free is not None and need > free:
        raise ConfigError(
            "DPA021",
            f"training takes about {size_text(need)} of memory, and {size_text(free)} is free",
        )
    with faults_in_a_line(f"training, {around.stage}", defense):
        found = train(
            defense,
            evaluated(prepared.learned.problem),
            prepared.setting,
            prepared.streams,
            NOTHING_RECORDED,
            around.run,
            around.stage,
            around.on_step,
            evaluations,
        )
    around.run.forget(f"checkpoints/{around.stage}/*")
    return found


def estimate_cost(settings: Settings, seed: int, around: Around) -> tuple[float, int]:
    """Seconds of training on one thread, by one round in CPU time; and bytes of its process."""
    prepared, world = prepared_of(settings, seed, around)
    defense, problem = prepared.defenses[world], prepared.learned.problem
    with one_thread(), global_randomness(0):
        pace = pace_of(defense, problem, prepared.setting, prepared.streams, time.process_time)
    seconds = defense.n_rounds * pace.round + (POINTS + 1) * pace.evaluation
    return seconds, _bytes(prepared, world) + BESIDE


def prepared_of(settings: Settings, seed: int, around: Around) -> tuple[Prepared, str]:
    """The audit of these settings, up to its first round, and which world is trained."""
    table = nested(settings)
    world, records = table.pop(WORLD, "defense"), table.pop(RECORDS, None)
    config = AuditConfig.from_dict({**table, "seed": seed})
    dataset = around.dataset
    if dataset is not None and records is not None:
        n = records * config.data.n_agents
        dataset = replace(dataset, x=dataset.x[:n], y=dataset.y[:n])
    if dataset is not None and config.data.scale == "unit":
        dataset = dataset.in_units()  # prepare takes a caller's data as they are
    return prepare(config, Runtime(), replace(NOTHING, data=dataset)), world


def nested(settings: Settings) -> dict[str, Any]:
    """Settings by dotted keys as the tables of an audit file."""
    table: dict[str, Any] = {}
    for key, value in settings.items():
        *path, name = key.split(".")
        inner = table
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return table


def _bytes(prepared: Prepared, world: str) -> int:
    learned = prepared.learned
    defense = prepared.defenses[world]
    return training_bytes(defense, learned.problem, prepared.setting, NOTHING_RECORDED)
