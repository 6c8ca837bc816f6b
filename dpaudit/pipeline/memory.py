"""The memory that each part of an audit takes, told before any of it is spent.

By the shapes of what the parts compute, from the config and the model alone. Parts that do not fit
side by side are done one after the other; what does not fit by itself is refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from dpaudit.counted import LEAST, UNSEEN
from dpaudit.data.datasets import Dataset
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.memory import available, resident, size_text
from dpaudit.training.needs import examination_bytes, training_bytes
from dpaudit.training.run_directory import RunDirectory

from .jobs import NOISE_OF_THE_RUN, WORLDS, AttackJob, Prepared, context_of, jobs_of, recording_for
from .noise_of_the_run import n_examined

CURVE_BYTES = 2_000 * 40  # of a report for each agent: points of its curves, as numbers and drawn
REPORT_BYTES = 150 * 10**6  # of any report, with the libraries that draw it


LARGE = 10**9  # bytes that are worth a line before a run


class Need(NamedTuple):
    """What one part of an audit takes."""

    part: str
    size: int  # bytes, beside the prepared problem
    job: AttackJob | None = None  # if it is an attack
    unknown: str | None = None  # why its size is not known


class Limit(NamedTuple):
    """What an audit may take."""

    free: int | None  # bytes beside what this process holds; None: unknown, nothing is refused
    said: str  # how large it is and why, for people
    process: int  # bytes that every further process takes before its job begins

    @classmethod
    def of(cls, max_memory: int | None, device: torch.device) -> "Limit":
        """The bytes a caller allows in all, or what is free on the machine or device."""
        held = resident()
        if max_memory is not None:
            said = f"{size_text(max_memory)} is the limit, of which {size_text(held)} is in use"
            return cls(max(0, max_memory - held), said, held)
        free = available() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
        return cls(free, "" if free is None else f"{size_text(free)} is free", held)


class Plan(NamedTuple):
    """What the parts of an audit take, and how many are done side by side."""

    training: list[Need]
    attacks: list[Need]
    report: Need
    limit: Limit

    def workers(self, needs: list[Need], most: int) -> int:
        """How many of these parts can be done side by side, at least 1."""
        free, sizes = self.limit.free, sorted((need.size for need in needs), reverse=True)
        for n in range(min(most, len(sizes)), 1, -1):
            if free is None or sum(sizes[:n]) + n * self.limit.process <= free:
                return n
        return 1

    def lines(self) -> Iterator[str]:
        """The parts that take much, and of which that is not known: for each reason, which."""
        needs = (*self.training, *self.attacks, self.report)
        for why in dict.fromkeys(need.unknown for need in needs if need.unknown is not None):
            parts = [need.part for need in needs if need.unknown == why]
            several = f"{parts[0]} and {len(parts) - 1} more" if parts[1:] else parts[0]
            yield f"{several}: memory is not known beforehand: {why}"
        for need in needs:
            if need.size >= LARGE:
                yield f"{need.part} takes about {size_text(need.size)} of memory"


Again = Callable[[AuditConfig, Dataset | None], Prepared]  # another config, the same data


def plan_of(
    config: AuditConfig,
    prepared: Prepared,
    max_memory: int | None,
    again: Again,
    trains: bool = True,
) -> Plan:
    """What an audit takes, part by part.

    Raises:
        ConfigError: a part does not fit by itself; the line says what would.
    """
    limit = Limit.of(max_memory, prepared.streams.device)
    training = list(_training_needs(prepared)) if trains else []
    plan = Plan(training, list(_attack_needs(config, prepared)), _report_need(prepared), limit)
    worst = max((*plan.training, *plan.attacks, plan.report), key=lambda need: need.size)
    if limit.free is None or worst.size <= limit.free:
        return plan
    fits = next(_that_fit(config, prepared, worst, limit.free, again), None)
    remedy = "no smaller value of an option was found to" if fits is None else f"{fits} would"
    raise ConfigError(
        "DPA021",
        f"{worst.part} takes about {size_text(worst.size)} of memory"
        f", and {limit.said}; {remedy} fit",
    )


def _training_needs(prepared: Prepared) -> Iterator[Need]:
    """Of each world."""
    recording, learned = recording_for(prepared), prepared.learned

    def size(world: str) -> int:
        defense = prepared.defenses[world]
        return _whole(training_bytes(defense, learned.problem, prepared.setting, recording))

    for world in WORLDS:
        yield _need(f"training, {world}", partial(size, world))


def _attack_needs(config: AuditConfig, prepared: Prepared) -> Iterator[Need]:
    """Of every part of every attack, and of the examination of the noise."""

    def examination() -> int:
        defense, problem = prepared.defenses["defense"], prepared.learned.problem
        n_rounds = n_examined(defense.n_rounds)
        return _whole(examination_bytes(defense, problem, prepared.setting, n_rounds))

    for job in jobs_of(config, prepared):
        yield _need(f"attack {job.name}", partial(_attack_size, config, prepared, job), job)
    if config.claim:
        yield _need(NOISE_OF_THE_RUN, examination)


def _need(part: str, size: Callable[[], int], job: AttackJob | None = None) -> Need:
    """A plug-in that cannot be played on a small model keeps its size to itself."""
    try:
        return Need(part, size(), job)
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        return Need(part, LEAST, job, str(error).splitlines()[0] if str(error) else repr(error))


def _report_need(prepared: Prepared) -> Need:
    """Of drawing what was found."""
    return Need("report", REPORT_BYTES + CURVE_BYTES * prepared.setting.n_agents)


def _that_fit(
    config: AuditConfig,
    prepared: Prepared,
    worst: Need,
    free: int,
    again: Again,
) -> Iterator[str]:
    """Options with a value under which it fits, the part's own options first."""

    def all_fit(changed: AuditConfig) -> bool:
        try:
            p = again(changed, prepared.learned.dataset)
            needs = chain([_report_need(p)], _training_needs(p), _attack_needs(changed, p))
            return all(need.size <= free for need in needs)  # no more is counted than that takes
        except DpauditError:
            return False  # the graph, say, is of other numbers of agents

    if worst.job is not None:
        yield from _attack_options(config, prepared, worst.job, free)
    named = {a for m in config.threat_model for a in (*m.agents, *sum(m.links or (), ()))}
    fewest = max([2, *(agent + 1 for agent in named)])
    n = _largest(lambda n: all_fit(_with_agents(config, n)), fewest, config.data.n_agents - 1)
    if n is not None:
        yield f"n_agents = {n}"
    b = config.defense.options.get("batch_size", prepared.defenses["defense"].batch_size)
    b = _largest(lambda b: all_fit(_with_batch_size(config, b)), 1, b - 1)
    if b is not None:
        yield f"batch_size = {b}"


def _attack_options(
    config: AuditConfig, prepared: Prepared, job: AttackJob, free: int
) -> Iterator[str]:
    for option in job.attack.memory_grows_with:
        now = getattr(job.attack, option)
        if now is None and option == "n_rounds":
            now = prepared.defenses["defense"].n_rounds

        def fits(value: int, option: str = option) -> bool:
            try:
                changed = type(job.attack).model_validate({**dict(job.attack), option: value})
            except ValueError:
                return False
            return _attack_size(config, prepared, replace(job, attack=changed)) <= free

        value = None if now is None else _largest(fits, 1, now - 1)
        if value is not None:
            yield f"{option} = {value} of {job.attack_name}"


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number that fits, if all below it do; None if none was found."""
    found = None
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            found, low = middle, middle + 1
        else:
            high = middle - 1
    return found


def _attack_size(config: AuditConfig, prepared: Prepared, job: AttackJob) -> int:
    context = context_of(config, prepared, RunDirectory(Path()), job)  # nothing is read or written
    return _whole(job.attack.memory(context, job.threat_model))


def _whole(tensors: int) -> int:
    """What computing with so many bytes of tensors takes."""
    return int(UNSEEN * tensors) + LEAST


def _with_agents(config: AuditConfig, n: int) -> AuditConfig:
    data = config.data.model_copy(update={"n_agents": n})
    return config.model_copy(update={"data": data})


def _with_batch_size(config: AuditConfig, b: int) -> AuditConfig:
    options = {**config.defense.options, "batch_size": b}
    defense = type(config.defense)(name=config.defense.name, **options)
    return config.model_copy(update={"defense": defense})
