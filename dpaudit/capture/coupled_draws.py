"""What a program draws beside the noise that moves its messages.

Dropout, and random changes of images, draw numbers for each record of a batch. With one record less
they draw fewer, and all other records get other ones: messages move by these, too, and how far the
record alone moves them is not seen. Where another record takes its place, all draws are the same.
Noise that is shown to the tap may be drawn and sent, and what the tap returns left behind. Or it is
made of more numbers than it has, as by rejection: these hide nothing then, as it is replaced.
"""

import math
from collections import Counter
from typing import Any

from dpaudit.errors import RunError
from dpaudit.files.recorded import RecordedDraw
from dpaudit.files.world import Change, World

from .other_draws import DISCRETE, draws_beside, kind_of, may_be_seed, not_shown
from .program import KeptRuns
from .runs import FAMILIES, MessageId, ProgramRun, first_difference
from .worlds import MeasuredRuns

OTHERWISE = (
    "{} draws other numbers beside noise, as dropout does for one record less, so that all other "
    "records have other ones, too"
)
BY_CHANCE = (
    "{} draws more numbers in some runs than in others, as where they are rejected until one fits, "
    "so that two runs do not share their draws"
)

Line = tuple[int, str, str]  # a process, a call site, and what is drawn there
LEFT_BEHIND = (
    'no message is made of what tap.noise returns for "{}", and other draws move it: go on with '
    "what tap.noise returns"
)


def with_other_draws(worlds: MeasuredRuns, runs: KeptRuns) -> MeasuredRuns:
    """The same, with the line whose draws are others without the records that are left out.

    That takes two runs whose draws are their own, if the program draws numbers beside noise at all.
    They have another seed than all others, as a simulation is forked where it has drawn some of its
    numbers, and what it draws is written down only where it is not.

    Raises RunError.
    """
    config, plain = worlds.config, worlds.plain
    if not (worlds.leaves_out and draws_beside(plain, config.noise.sites)):
        return worlds
    places = [place for n in worlds.rounds.values() for place in n.places.values()]
    left_out = [c for place in places for c in place.changes("absent")]
    changes = dict.fromkeys((c.agent, c.batch) for c in left_out)
    world = World(out=plain.world.out, seed=(config.seed + 1) % 2**32)
    without = world.model_copy(
        update={"changes": tuple(Change(agent=i, batch=n, how="absent") for i, n in changes)}
    )
    one, other = runs.loaded([world, without])
    sites = config.noise.sites
    by_chance = _differing(plain, one, sites)
    if by_record := _differing(one, other, sites) - by_chance:
        return worlds._replace(otherwise=OTHERWISE.format(min(by_record)))
    return worlds._replace(otherwise=BY_CHANCE.format(min(by_chance)) if by_chance else "")


def with_noise_left_behind(worlds: MeasuredRuns, runs: KeptRuns) -> MeasuredRuns:
    """The same, with messages that may have their noise from draws that the program only shows.

    A program that does not go on with what tap.noise returns sends its own draw: what replaces it
    moves nothing. Whether other draws move the message is seen in a run with another seed.
    """
    unused = {
        victim: name for victim in worlds.config.record.victims if (name := _unused(worlds, victim))
    }
    if not unused:
        return worlds
    base, left = worlds.base, dict[MessageId, str]()
    try:
        [other] = runs.loaded([worlds.replay.model_copy(update={"seed": worlds.config.seed ^ 1})])
    except RunError:  # its draws have other shapes then
        return worlds
    for message in base.messages:
        if message.source in unused and first_difference(base, other, [message]) is not None:
            left[message] = LEFT_BEHIND.format(unused[message.source])
    return worlds._replace(left_behind=left)


def with_noise_made_of_several(worlds: MeasuredRuns, runs: KeptRuns) -> MeasuredRuns:
    """The same, with messages that draws which are not shown as noise move in no way.

    Noise may be made of several draws, as Laplace noise of exponential ones. What is sent is the
    same whatever they are, where the tap replaces that noise, and they hide nothing. Two runs with
    another seed show that, if they draw other numbers: one with its own noise, and a replay.
    """
    config = worlds.config
    lines = _lines_beside(worlds.plain, config.noise.sites)
    if not lines:
        return worlds
    seed = config.seed ^ 1
    plain = World(out=worlds.plain.world.out, seed=seed)
    try:
        own, other = runs.loaded([plain, worlds.replay.model_copy(update={"seed": seed})])
    except RunError:  # its noise has other shapes then
        return worlds
    if not all(_draws_others(_at(line, worlds.plain), _at(line, own)) for line in lines):
        return worlds
    sent = [m for m in worlds.base.messages if m in other.messages]
    alike = [m for m in sent if first_difference(worlds.base, other, [m]) is None]
    return worlds._replace(of_noise_alone=frozenset(alike))


def _lines_beside(run: ProgramRun, sites: tuple[str, ...]) -> set[Line]:
    """Which lines of a process draw numbers that are not shown, after it has taken a batch."""
    processes = {batch.process for batch in run.taken}
    left = [draw for of in processes for draw, _ in not_shown(run, sites, of)[0]]
    lines = {(draw.process, draw.call_site, draw.operator) for draw in left}
    return {line for line in lines if _at(line, run)}


def _draws_others(one: list[RecordedDraw], other: list[RecordedDraw]) -> bool:
    """Whether what a line draws in one run and in another is known to differ."""
    pairs = [(a.crc32, b.crc32) for a, b in zip(one, other, strict=False)]
    same = [a == b for a, b in pairs]
    may_be_same = kind_of(one[0]) in DISCRETE and not any(map(may_be_seed, one))
    known = bool(pairs) and all(None not in pair for pair in pairs)
    return known and not (all(same) if may_be_same else any(same))


def _at(line: Line, run: ProgramRun) -> list[RecordedDraw]:
    """What a line of a process draws after the process has taken its first batch, in order."""
    first = min((b.sequence for b in run.taken if b.process == line[0]), default=math.inf)
    drawn = [d for d in run.all_draws if (d.process, d.call_site, d.operator) == line]
    return sorted((d for d in drawn if d.sequence > first), key=lambda d: d.sequence)


def _unused(worlds: MeasuredRuns, victim: int) -> str:
    """Noise of a round that the victim shows to the tap and that moves none of its messages."""
    for of in worlds.rounds.values():
        if victim not in of.places or of.unmeasured.get(victim):
            continue
        used = {response.draw for found in of.noised[victim].values() for response in found}
        for j, draw in enumerate(of.places[victim].draws):
            if (
                draw.agent == victim
                and j not in used
                and draw.name not in worlds.config.noise.sites
            ):
                return draw.name
    return ""


def _differing(one: ProgramRun, other: ProgramRun, sites: tuple[str, ...]) -> set[str]:
    """The lines at which two runs draw numbers of other shapes, or not as often."""
    counts = [_counts(run, sites) for run in (one, other)]
    differ = (counts[0] - counts[1]) + (counts[1] - counts[0])
    return {site for site, *_ in differ}


def _counts(run: ProgramRun, sites: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
    """What is drawn beside noise since the first batch."""
    first: dict[int, int] = {}
    for batch in run.taken:
        first[batch.process] = min(batch.sequence, first.get(batch.process, batch.sequence))
    return Counter(
        (d.call_site, d.operator, d.shape)
        for d in run.all_draws
        if d.operator not in FAMILIES
        and d.call_site not in sites
        and d.sequence > first.get(d.process, d.sequence)
    )
