"""The memory and time that each part of an audit takes, estimated before any of it is begun.

Memory follows from the shapes of the rounds that a part plays or reads, time from one measured
round. Parts that do not fit side by side are done one after the other. An audit with a part that
does not fit by itself is refused. What an attack takes beyond its rounds is measured while it runs
(``jobs``), or by its first steps (``costs_ahead``).
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, main_thread
from typing import NamedTuple

from dpaudit.attack.contract import AttackContext
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.memory import size_text
from dpaudit.tensor_memory import LEAST, UNSEEN
from dpaudit.text import duration
from dpaudit.training.costs import (
    examination_bytes,
    pace_of,
    too_large_to_examine,
    training_bytes,
)
from dpaudit.training.noise_rounds import PLAYED_WAYS, streams_of
from dpaudit.training.partial_inputs import global_randomness
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import NOTHING_RECORDED, train

from .jobs import (
    NOISE_OF_THE_RUN,
    WORLDS,
    AttackJob,
    Limit,
    Prepared,
    context_of,
    jobs_of,
    recording_for,
)
from .noise_of_the_run import n_examined
from .workers import Enough, one_thread

CURVE_BYTES = 2_000 * 40  # per agent in a report: points of its curves, as numbers and drawn
REPORT_BYTES = 150 * 10**6  # of any report, with the libraries that draw it
LARGE = 10**9  # bytes of a part that are worth a line before the run
LONG = 10  # seconds of an audit that are worth a line before it
SHORT = 5  # seconds of an audit on one core for which no process is started: a start takes some
MADE_OF_PLAYS = 1.5  # times the time of playing rounds of noise, with what is made of them, about
SHOWN = 1  # seconds of a part that are worth a word
ENOUGH = 0.3  # seconds of an attack that show its time
PATIENCE = 2.0  # seconds in which it must have reported a step
_UNPLAYABLE = (DpauditError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError)


class PartCost(NamedTuple):
    """What one job of an audit takes."""

    part: str  # its name, for people: the jobs of one attack by one adversary share it
    size: int  # bytes beside the prepared problem; the least of any job where it is not known
    job: AttackJob | None = None  # if it is an attack
    unknown: str | None = None  # why its size is not known
    seconds: float | None = None  # on one thread; None: not known


class AuditCosts(NamedTuple):
    """What the parts of an audit take, and how many of them are done side by side."""

    training: list[PartCost]
    attacks: list[PartCost]
    report: PartCost
    limit: Limit
    tuning: float | None = None  # seconds of a training that is evaluated once, on one thread

    def workers(self, parts: list[PartCost], most: int) -> int:
        """How many of these parts can be done side by side, at least 1."""
        free, sizes = self.limit.free, sorted((part.size for part in parts), reverse=True)
        for n in range(min(most, len(sizes)), 1, -1):
            if free is None or sum(sizes[:n]) + n * self.limit.process <= free:
                return n
        return 1

    @property
    def parts(self) -> list[PartCost]:
        return [*self.training, *self.attacks]

    def cores(self, most: int) -> int:
        """How many cores the audit uses of so many."""
        return max(self.workers(parts, most) for parts in (self.training, self.attacks))

    def seconds(self, cores: int) -> float | None:
        """Time of the whole audit; parts of unknown time are left out. None: all are unknown."""
        total = None
        for parts in (self.training, self.attacks):
            known = [part.seconds for part in parts if part.seconds is not None]
            if known:  # no less than the longest of them takes
                side_by_side = sum(known) / self.workers(parts, cores)
                total = (total or 0.0) + max(side_by_side, *known)
        return total

    @property
    def is_short(self) -> bool:
        """Whether training would take longer to start processes than they would save."""
        known = all(part.seconds is not None for part in self.training)
        return known and (self.seconds(1) or 0.0) <= SHORT

    def by_part(self) -> Iterator[tuple[str, float | None, int | None, int]]:
        """Name, seconds and bytes of each part, and in how many jobs it is done."""
        for name, group in groupby(self.parts, key=lambda part: part.part):
            jobs = list(group)
            seconds = [job.seconds for job in jobs if job.seconds is not None]
            known = all(job.unknown is None for job in jobs)
            size = max(job.size for job in jobs) if known else None
            yield name, sum(seconds) if len(seconds) == len(jobs) else None, size, len(jobs)

    def lines(self, cores: int) -> Iterator[str]:
        """What a user must know before the run: parts that take much, and whether it is long."""
        parts = (*self.parts, self.report)
        for why in dict.fromkeys(part.unknown for part in parts if part.unknown is not None):
            names = [part.part for part in parts if part.unknown == why]
            several = f"{names[0]} and {len(names) - 1} more" if names[1:] else names[0]
            yield f"{several}: memory is not known beforehand: {why}"
        for part in parts:
            if part.size >= LARGE:
                yield f"{part.part} takes about {size_text(part.size)} of memory"
        whole = self.seconds(cores)
        if whole is not None and whole > LONG:
            times = [(name, seconds) for name, seconds, _, _ in self.by_part()]
            shown = [
                f"{name} {'unknown' if s is None else duration(s)}"
                for name, s in times
                if s is None or s >= SHOWN
            ]
            least = "at least " if any(s is None for _, s in times) else ""
            n = self.cores(cores)
            on = f"{n} core{'s' * (n > 1)}"
            yield f"{least}about {duration(whole)} on {on}; on one: {', '.join(shown)}"


def estimate_costs(
    prepared: Prepared,
    max_memory: int | None,
    trains: bool = True,
    timed: bool = False,
) -> AuditCosts:
    """What an audit takes, part by part, with times if ``timed``.

    Raises:
        ConfigError: a part does not fit by itself; the line says what to lower.
    """
    setting, problem, defense = prepared.setting, prepared.learned.problem, prepared.defense
    sizes = dict[str, int]()

    def training(world: str) -> int:
        recording = recording_for(prepared)
        return training_bytes(prepared.defenses[world], problem, setting, recording)

    def attacking(job: AttackJob) -> int:
        """About what the rounds take that it reads or plays."""
        if job.index is not None:
            context = context_of(prepared, RunDirectory(Path()), job)  # writes nothing
            job.attack.refuse_too_large(context, job.threat_model)
        if job.of not in sizes:
            recording = job.attack.recording(defense)
            sizes[job.of] = training_bytes(defense, problem, setting, recording)
        return sizes[job.of]

    def examination() -> int:
        given = defense, problem, setting, n_examined(defense.n_rounds)
        return examination_bytes(*given) if too_large_to_examine(*given) is None else 0

    worlds = [_cost(f"training ({world})", partial(training, world)) for world in WORLDS]
    attacks = [_cost(j.of, partial(attacking, j), j) for j in jobs_of(prepared)]
    if prepared.config.claim:
        attacks.append(_cost(NOISE_OF_THE_RUN, examination))
    report = PartCost("report", REPORT_BYTES + CURVE_BYTES * setting.n_agents)
    limit = Limit.of(max_memory, prepared.streams.device)
    costs = AuditCosts(worlds if trains else [], attacks, report, limit)
    largest = max((*costs.parts, report), key=lambda part: part.size)
    if limit.free is not None and largest.size > limit.free:
        raise ConfigError(
            "DPA021",
            f"{largest.part} takes about {size_text(largest.size)} of memory, and {limit.reason}",
            f"lower {_remedy(prepared.config, largest, limit.free)}",
        )
    return _with_times(costs, prepared) if timed else costs


def _cost(part: str, size: Callable[[], int], job: AttackJob | None = None) -> PartCost:
    """A plug-in that cannot be played on a small model keeps its size to itself."""
    try:
        return PartCost(part, int(UNSEEN * size()) + LEAST, job)
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        return PartCost(part, LEAST, job, str(error).splitlines()[0] if str(error) else repr(error))


def _remedy(config: AuditConfig, part: PartCost, free: int) -> str:
    """Options by which a part becomes smaller, with the value at which it fits in proportion."""
    share = max(0, free - LEAST) / max(1, part.size - LEAST)
    n = int(share * config.data.n_agents)
    return "n_agents or batch_size" + (f"; about n_agents = {n} would fit" if n else "")


def _with_times(costs: AuditCosts, prepared: Prepared) -> AuditCosts:
    """By one measured round, which draws nothing that the audit draws.

    Nothing is known of a defense, or of gradients, that cannot be played; the run will say why. Nor
    of attacks, before they have begun.
    """
    defense, setting, problem = prepared.defense, prepared.setting, prepared.learned.problem
    rounds = n_examined(defense.n_rounds)
    left = too_large_to_examine(defense, problem, setting, rounds)
    copies = streams_of(setting, rounds) if left is None else 1
    with one_thread(), global_randomness(0):
        try:
            pace = pace_of(defense, problem, setting, prepared.streams, copies=copies)
        except _UNPLAYABLE:
            return costs
    trained = pace.training(defense.n_rounds, recording_for(prepared))
    tuning = pace.training(defense.n_rounds, NOTHING_RECORDED, evaluations=1)
    plays = MADE_OF_PLAYS * PLAYED_WAYS * max(1, len(defense.messages))
    examined = rounds * (2 * pace.round + plays * pace.step)
    if left is not None:
        examined = 0.0
    return costs._replace(
        training=[part._replace(seconds=trained) for part in costs.training],
        attacks=[p if p.job else p._replace(seconds=examined) for p in costs.attacks],
        tuning=tuning,
    )


def costs_ahead(prepared: Prepared, max_memory: int | None) -> AuditCosts:
    """What an audit takes, with the time of each attack by its first steps.

    These are played in a folder that is thrown away. An attack that reads rounds of the training is
    timed if they are soon played, and batches of one size take as long with noise as without.
    """
    costs = estimate_costs(prepared, max_memory, timed=True)
    found: dict[object, float | None] = {}
    with TemporaryDirectory() as folder, one_thread(), global_randomness(0):
        run = RunDirectory(Path(folder))
        played = _record(prepared, run)
        for i, part in enumerate(costs.attacks):
            if (job := part.job) is not None:
                key = job.of, job.part.batch_size
                reads = max(job.attack.recording(prepared.defense).messages, default=0)
                if key not in found:
                    context = context_of(prepared, run, job)
                    found[key] = None if reads > played else _seconds(job, context)
                costs.attacks[i] = part._replace(seconds=found[key])
    return costs


def _record(prepared: Prepared, run: RunDirectory) -> int:
    """The rounds that attacks read, if they are soon played; the last round that was."""
    recording, last = recording_for(prepared), 0

    def on_round(done: int, total: int) -> None:
        nonlocal last
        last = done
        if done >= max(recording.messages):
            raise Enough

    given = prepared.learned.problem, prepared.setting, prepared.streams, recording, run, "defense"
    if recording.messages:
        with suppress(Enough, Exception), _soon():
            train(prepared.defense, *given, on_round)
    return last


def _seconds(job: AttackJob, context: AttackContext) -> float | None:
    """On one thread; None: it reports no step soon, or cannot be played, as the run will say."""
    began, steps = time.perf_counter(), list[tuple[float, int, int]]()

    def on_step(done: int, total: int) -> None:
        steps.append((time.perf_counter() - began, done, total))
        if len(steps) > 1 and steps[-1][0] > ENOUGH:
            raise Enough

    try:
        with _soon():
            job.attack.measure(context, job.threat_model, on_step)
        return time.perf_counter() - began
    except Enough:
        if not steps:
            return None
        (first, start, _), (last, done, total) = steps[0], steps[-1]
        each = last / done if done == start else (last - first) / (done - start)
        return last + each * (total - done)
    except Exception:
        return None


@contextmanager
def _soon() -> Iterator[None]:
    """Ends what takes longer than ``PATIENCE``, where the system has alarms."""

    def late(*given: object) -> None:
        raise Enough

    if not hasattr(signal, "setitimer") or current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    # again and again: what is raised where Python frees an object is lost
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
