"""Whether a record moves messages no further among other records than those of the data.

A program may choose by a sum that no noise hides: to stop where it is short, to take half of a step
where the loss is large, to clip at the median norm. Where the records of the data are all on one
side of it, none that is changed alone shows that. So one record of a batch after the other becomes
one of no inputs, or one far out with another label, until all are. What the others of the data add
may cancel, so that records which are far out along one direction lose nearly all of their inputs,
too: a choice by the sign of a short sum, which none at all does not show, falls both ways then.
Each of these steps replaces a record, which may move a round by two lengths, and so does the last
one left out.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.errors import RunError
from dpaudit.files.world import Change, How, World

from .alignment import LEFT, Alignments, Changed
from .batch_tests import batches_of
from .record_changes import PLATEAU, RecordMoves
from .record_shift import Booleans
from .runs import BYTES
from .visible_output import NotExamined, in_short
from .worlds import MeasuredRuns

HOWS: dict[tuple[How, How | None], str] = {  # changes -> what they are called
    ("zeroed", None): "have inputs of 0",
    ("own:1e3:other-label", None): "are far out, with another label",
    ("own:1e-3", "level:1e3"): "have hardly any inputs, and the others are alike and far out",
}
INTEGERS = (1, 2, 4, 8)  # bytes of one
DECIMAL_OR_BYTE = re.compile(rb"(?<![0-9])(?:0|[1-9][0-9]{0,8})(?![0-9])|.", re.DOTALL)
ROUNDS = 3  # rounds that are examined: the first, one in the middle and the last
STEPS = 8  # largest number of steps in which a batch's records are changed


def refuse_otherwise_among_others(
    runs: Alignments, moves: RecordMoves, used: Mapping[int, Mapping[int, int]]
) -> None:
    """Raises NotExamined where a record moves a round further among other records.

    Args:
        used: by victim and round: the number of its batch.
    """
    there = [k for k, places in runs.places.items() if any(k in used[v] for v in places)]
    chosen = np.linspace(0, len(there) - 1, min(ROUNDS, len(there))).round().astype(int)
    rounds = [there[i] for i in chosen]
    for k, of_stage in runs.stages:
        victims = [v for v in of_stage if k in used[v]]
        for how in HOWS if k in rounds and victims else ():
            _refuse(runs, moves, used, k, victims, how)


def _refuse(
    runs: Alignments,
    moves: RecordMoves,
    used: Mapping[int, Mapping[int, int]],
    k: int,
    victims: Sequence[int],
    how: tuple[How, How | None],
) -> None:
    sizes = {v: runs.n_records(v, used[v][k]) for v in victims}
    steps = np.linspace(0, 1, min(STEPS, max(sizes.values())) + 1)
    numbers = [{v: round(step * n) for v, n in sizes.items()} for step in steps.tolist()]
    worlds = [
        _world(runs, {(v, used[v][k]): (m, sizes[v]) for v, m in some.items()}, how, absent)
        for some, absent in [
            *((some, False) for some in numbers),
            *([(numbers[-1], True)] if runs.worlds.leaves_out else []),
        ]
    ]
    numbers += numbers[-1:] if runs.worlds.leaves_out else []
    found = runs.played(worlds, partial(runs.changes, k, victims))
    for one in found:
        if isinstance(one, RunError):
            raise NotExamined("distance", f"where other records {HOWS[how]}: {in_short(one)}")
    several = [one for one in found if not isinstance(one, RunError)]
    if k < max(runs.places):
        _refuse_later(runs, k, worlds[1:], several[1:])
    for (before, some), (after, more) in pairwise(zip(several, numbers, strict=True)):
        for v in victims:
            count = max(1, more[v] - some[v])
            for moved, most in _sizes(runs, moves, k, v, before, after):
                if moved > 2 * count * (1 + PLATEAU) * most:
                    raise NotExamined(
                        "distance",
                        f"where {some[v]} of {sizes[v]} records of a batch {HOWS[how]}, {count} "
                        f"more may move round {k} of agent {v} by {moved:.3g} times its noise, "
                        f"and one alone by {most:.3g}",
                    )


def _refuse_later(
    runs: Alignments, k: int, worlds: Sequence[World], several: Sequence[Changed]
) -> None:
    """Raises NotExamined where later rounds depend on records of this one by more than it sends.

    As by a clip norm that is chosen by norms of its records. Once the noise of the round is moved,
    all that is sent must be that of the base run again.
    """
    again = []
    for i, (world, changed) in enumerate(zip(worlds, several, strict=True)):
        units = {
            v: {
                (k, runs.places[k][v].draws[j].key): u
                for j, u in runs.make_up(k, v, by_message).units.items()
            }
            for v, by_message in changed.items()
        }
        again.append(runs.with_noise_moved(world, f"others-{k}-{i}", units))
    runs.refuse_differing(again, "state")


def _world(
    runs: Alignments,
    changed: Mapping[tuple[int, int], tuple[int, int]],
    how: tuple[How, How | None],
    absent: bool,
) -> World:
    """A run in which the first records of these batches are others, and the first is left out.

    Args:
        changed: by victim and number of its batch: how many of how many.
        how: what they become, and what the records after them are; None: as they are.
    """
    first, rest = how
    changes = [
        Change(agent=v, batch=number, how=new, record=i)
        for (v, number), (m, n) in changed.items()
        for new, some in ((first, range(m)), (rest, range(m, n)))
        for i in some
        if new is not None
    ]
    if absent:
        changes += [Change(agent=v, batch=number, how="absent") for v, number in changed]
    return runs.worlds.replay.model_copy(update={"changes": tuple(changes)})


def _sizes(
    runs: Alignments, moves: RecordMoves, k: int, victim: int, before: Changed, after: Changed
) -> Iterator[tuple[float, float]]:
    """By family of noise: how far a round moves, and the most that one record moved it by."""
    changes = {m: after[victim][m] - before[victim][m] for m in after[victim]}
    move = runs.make_up(k, victim, changes)
    draws = runs.places[k][victim].draws
    units = {(k, draws[i].key): u for i, u in move.units.items()}
    if (shown := runs.without_noise(k, victim, changes, move)) is not None:
        raise NotExamined("distance", f"{shown} depends on other records by what no noise hides")
    for family in runs.families(k, victim):
        yield runs.size(k, victim, family, units, {}), max(moves.sizes[victim, k, family].values())


def refuse_by_place(runs: Alignments, used: Mapping[int, Mapping[int, int]]) -> None:
    """Raises NotExamined where it matters at which place of a batch a record is.

    A record that is left out shows that, as all after it have other places then. Where none is, the
    first one comes last: of the batch as it is, and of one whose records are all far out.
    """
    far = "own:1e3:other-label"
    for k, of_stage in runs.stages:
        batches = {v: used[v][k] for v in of_stage if k in used[v]}
        last = [Change(agent=v, batch=n, how="put-last") for v, n in batches.items()]
        distant = [
            Change(agent=v, batch=n, how=far, record=i)
            for v, n in batches.items()
            for i in range(runs.n_records(v, n))
        ]
        several = ([], last, distant, [*distant, *last]) if batches else ()
        worlds = [runs.worlds.replay.model_copy(update={"changes": tuple(one)}) for one in several]
        found = runs.played(worlds, partial(runs.changes, k, tuple(batches)))
        for before, after in zip(found[::2], found[1::2], strict=True):
            if isinstance(before, RunError) or isinstance(after, RunError):
                failed = before if isinstance(before, RunError) else after
                assert isinstance(failed, RunError)
                why = f"where the first record of a batch comes last: {in_short(failed)}"
                raise NotExamined("records", why)
            for v in batches:
                changes = {m: after[v][m] - before[v][m] for m in after[v]}
                move = runs.make_up(k, v, changes)
                over = [float(np.linalg.norm(units)) for units in move.units.values()]
                shown = runs.without_noise(k, v, changes, move)
                if shown is not None or max([move.left, *over]) > LEFT:
                    why = f"where records are in a batch decides what agent {v} sends in round {k}"
                    raise NotExamined("records", why)


def refuse_bare_numbers(runs: Alignments, worlds: MeasuredRuns) -> None:
    """Raises NotExamined where an agent with records sends numbers without noise of its own.

    No run changes records that are not in a batch, so that such a number may be of these. One that
    all agents send alike is of none, if they hold different records; nor is an agent's own number,
    which several agents send to say who they are, as integers or as the bytes of these.
    """
    holding, trace = {taken.agent for taken in worlds.base.batches}, runs.equal.trace
    held = {frozenset(d for batch in batches_of(worlds.plain, i) for d in batch) for i in holding}
    differ = len(held) == len(holding) > 1
    bare: dict[tuple[Any, ...], dict[int, list[tuple[Booleans, Array]]]] = defaultdict(dict)
    others: defaultdict[tuple[Any, ...], set[int]] = defaultdict(set)  # -> agents that differ
    for order, message, content in zip(trace.order, trace.ids, trace.contents, strict=True):
        source, name = order[0], order[3]
        if source not in holding:
            continue
        k = None if message is None else message.round
        noised = np.zeros(len(content), bool) if message is None else runs.hidden(message)
        is_bytes = _is_of_bytes(order)
        if not _are_own(content[~noised], source, is_bytes):
            others[name, k].add(source)
        if is_bytes and not noised.any():
            content = _read(content)
            noised = np.zeros(len(content), bool)
        bare[name, k].setdefault(source, []).append((noised, content[~noised]))
    for (name, k), by_agent in bare.items():
        if all(noised.all() for some in by_agent.values() for noised, _ in some):
            continue
        if differ and len(by_agent) > 1 and not others[name, k]:
            continue
        if not (differ and {*by_agent} == holding and _of_all_alike(by_agent)):
            where = "before round 1" if k is None else f"in round {k}"
            raise NotExamined(
                "completeness",
                f'numbers of "{name}" {where} have no noise: they may be of records that are in no '
                "batch",
            )


def _is_of_bytes(order: tuple[Any, ...]) -> bool:
    """Whether a message is bytes in which no numbers were recognised, by its part in a trace."""
    return {dtype for _, _, dtype in order[-1]} == BYTES


def _are_own(numbers: Array, agent: int, is_bytes: bool) -> bool:
    """Whether these are an agent's own number, or the bytes of it as an integer."""
    if not is_bytes or len(numbers) not in INTEGERS:
        return bool((numbers == agent).all())
    data = numbers.astype(np.uint8).tobytes()
    return agent in (int.from_bytes(data, "big"), int.from_bytes(data, "little"))


def _read(content: Array) -> Array:
    """Bytes as numbers; decimal digits, as in "agent-1", are the number that they spell."""
    parts = DECIMAL_OR_BYTE.findall(content.astype(np.uint8).tobytes())
    return np.array([float(part) if part.isdigit() else part[0] for part in parts], float)


def _of_all_alike(by_agent: Mapping[int, Sequence[tuple[Booleans, Array]]]) -> bool:
    """Whether each number without noise is the same of all agents, or each agent's own number."""
    places = {tuple(tuple(noised) for noised, _ in some) for some in by_agent.values()}
    if len(places) > 1:
        return False
    numbers = np.array([np.concatenate([bare for _, bare in some]) for some in by_agent.values()])
    own = np.array([*by_agent])[:, None]
    return bool(((numbers == numbers[0]).all(axis=0) | (numbers == own).all(axis=0)).all())
