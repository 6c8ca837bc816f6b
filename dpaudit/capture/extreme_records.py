"""Records far out: whether all move a round by one length, and what overflows in their squares.

A program may leave out its clip where a norm is infinite, or is no number. Each round is played
with such records by itself, and no finite number of a message may move further than a clip allows.
Where a message is no finite number, or the program ends, as of most networks, nothing is seen of
the clip: a support then assumes that there are no such records.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.errors import RunError
from dpaudit.files.world import FAR, OVERFLOWING, Change, How, World

from .alignment import Alignments, Changed, below_overflow
from .record_changes import PLATEAU, RecordMoves, Units, Variant
from .runs import MessageId, ProgramRun
from .visible_output import NotExamined

DIRECTIONS = "own", "level", "few"  # prefixes of the changes in FAR
Used = Mapping[int, Mapping[int, int]]  # victim -> round -> number of its batch


class ShownRound(NamedTuple):
    """What one run shows of a round."""

    changes: Changed  # 0 where a number of a message is not finite
    unseen: frozenset[int]  # victims some of whose numbers are not


def with_overflowing(
    runs: Alignments, moves: RecordMoves, used: Used
) -> tuple[RecordMoves, tuple[str, ...]]:
    """The moves with those of records whose squares overflow.

    Returns:
        The moves, and the factors of inputs with which some message is no finite number.
    """
    sizes = {at: dict(found) for at, found in moves.sizes.items()}
    ways = [Variant(how, 0) for how in OVERFLOWING]
    units: dict[Variant, dict[int, Units]] = {way: {v: {} for v in runs.victims} for way in ways}
    unseen = dict[str, None]()
    for k, of_stage in runs.stages:
        places, victims = runs.places[k], [victim for victim in of_stage if k in used[victim]]
        for way, shown in _shown(runs, k, ways, victims, used):
            if shown.unseen:
                unseen[way.how.partition(":")[2].lstrip("-")] = None
            for victim, changes in shown.changes.items():
                move = runs.make_up(k, victim, changes)
                of = {(k, places[victim].draws[i].key): u for i, u in move.units.items()}
                units[way][victim] |= of
                nothing = moves.without[way.place, victim]
                for family in runs.families(k, victim):
                    size = runs.size(k, victim, family, nothing, of)
                    sizes[victim, k, family][way.how] = size
    return moves._replace(sizes=sizes, overflowing=units), tuple(unseen)


def _shown(
    runs: Alignments, k: int, ways: Sequence[Variant], victims: Sequence[int], used: Used
) -> Iterator[tuple[Variant, ShownRound]]:
    """Runs with the records of all victims changed, or of each by itself where a run fails."""
    if not victims:
        return
    worlds = [_world(runs, k, way, victims, used) for way in ways]
    found = runs.played(worlds, partial(_changes, runs, k, victims))
    for way, one in zip(ways, found, strict=True):
        if not isinstance(one, RunError):
            yield way, one
        elif len(victims) > 1:
            for victim in victims:
                yield from _shown(runs, k, [way], [victim], used)
        else:
            yield way, ShownRound({}, frozenset(victims))


def _world(runs: Alignments, k: int, way: Variant, victims: Sequence[int], used: Used) -> World:
    """A run in which records of these victims are changed in one round."""
    changes = tuple(
        Change(agent=v, batch=n, how=way.how, record=runs.records[v][n][way.place])
        for v in victims
        for n in [used[v][k]]
    )
    return runs.worlds.replay.model_copy(update={"changes": changes})


def _changes(
    runs: Alignments, k: int, victims: Sequence[int], _: World, run: ProgramRun
) -> ShownRound:
    """How far the finite numbers of a round are from those of the base run."""
    base, unseen = runs.worlds.base.messages, set[int]()
    found: dict[int, Mapping[MessageId, Array]] = {}
    for victim in victims:
        changes = {m: np.zeros(len(base[m])) for m in runs.places[k][victim].messages}
        for message, change in changes.items():
            content = run.messages.get(message)
            if content is None or content.shape != change.shape:
                unseen.add(victim)
                continue
            finite = np.isfinite(content)
            change[finite] = content[finite] - base[message][finite]
            if not finite.all():
                unseen.add(victim)
        found[victim] = below_overflow(changes)
    return ShownRound(found, frozenset(unseen))


def refuse_whole_numbers(runs: Alignments, used: Used) -> None:
    """Raises NotExamined where records are whole numbers, which no change puts far out.

    As images of bytes, and tokens. The part of a batch with most numbers is what a model is given.
    """
    kept = runs.worlds.replay.model_copy(update={"keeps_records": True})
    [records] = runs.program.each([kept], lambda run: run.records, runs.on_run)
    for victim, of_rounds in used.items():
        for number in of_rounds.values():
            parts = records.get((victim, number), [])
            largest = max(parts, key=lambda part: part.numel(), default=None)
            if largest is not None and not largest.is_floating_point():
                kind = str(largest.dtype).removeprefix("torch.")
                raise NotExamined(
                    "distance",
                    f"the records of agent {victim} are whole numbers ({kind}), so that none was "
                    "put far out; images are shown to tap.batch as floating point",
                )


def refuse_unbounded(moves: RecordMoves, used: Mapping[int, Iterable[int]]) -> None:
    """Raises NotExamined where records far out do not all move a round by one length.

    Those of which a few inputs alone are not 0 may move it by a shorter one, at both distances, as
    behind a clip of each layer: they do not reach all layers. Whatever norm is clipped but one of
    layers or numbers, the two other directions have lengths that differ.

    Args:
        used: by victim: the rounds in whose batches a record was changed.
    """
    distances = sorted({how.partition(":")[2].lstrip("-") for how in FAR})
    if moves.not_seen:
        raise NotExamined("distance", moves.not_seen)
    for victim, rounds in used.items():
        for k in rounds:
            own = [s for (v, of, _), s in moves.sizes.items() if (v, of) == (victim, k)]
            moving = [sizes for sizes in own if max(sizes.values()) > 0]
            if not moving:
                why = f"no record that was tried moves the messages of agent {victim} in round {k}"
                raise NotExamined("distance", why)
            for sizes in moving:
                top = max(sizes.values())
                there = [h for h in FAR if sizes[h] >= (1 - PLATEAU) * top]
                far = {h.partition(":")[2].lstrip("-") for h in there}
                short = _short_directions(sizes, there, top)
                if short or far != {*distances}:
                    least = min(max(sizes[h] for h in FAR if h.startswith(d)) for d in DIRECTIONS)
                    digits = next((n for n in (3, 5) if f"{least:.{n}g}" != f"{top:.{n}g}"), 8)
                    raise NotExamined(
                        "distance",
                        f"records far out move round {k} of agent {victim} by {least:.{digits}g} "
                        f"to {top:.{digits}g} times its noise: no bound is seen that holds of all "
                        "records",
                    )


def _short_directions(sizes: Mapping[How, float], there: Sequence[How], top: float) -> set[str]:
    """Directions in which extreme records move a round less than all others, and should not.

    Args:
        there: those that move it by the longest length, ``top``.
    """
    short = {*DIRECTIONS} - {how.partition(":")[0] for how in there}
    of_few = defaultdict[str, float](float)  # distance -> largest move
    for how in FAR:
        if how.startswith("few"):
            distance = how.partition(":")[2].lstrip("-")
            of_few[distance] = max(of_few[distance], sizes[how])
    alike = max(of_few.values()) - min(of_few.values()) <= PLATEAU * top
    return short - {"few"} if alike else short
