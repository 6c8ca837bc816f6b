"""What a message that is not linear in its noise reveals to who reads the linear ones beside it.

A client sends weights with noise, and the loss of its records at these weights. The loss moves with
the noise and is not linear in it, but the weights tell the noise: no noise hides the records of
the loss. So a record is changed, and the noise is moved such that every linear message stays the
same. If another message moves then, it shows the record.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from safetensors.torch import load_file, save_file
from torch import from_numpy

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.world import How, World

from .program import KeptRuns
from .record_shift import AGREE, NOTHING, Response, apart, making_up_for
from .runs import AgentRound, MessageId, ProgramRun

JITTER = 1e-6  # least size, relative to the noise, of random moves of other messages
MOST_JITTER = 1e-3  # relative to the noise: larger moves change messages that should stay the same
SHOWN = 1e-3  # share of a move by noise above which the record moves a message, too
TIMES = 1e3  # a record moves a message if by so many times what such a random move does
SIGNS = 2  # vectors of signs of the jitter, each with its negative

Revealed = dict[How, tuple[MessageId, ...]]
Units = dict[int, Array]  # draw of a place -> its numbers, divided by its scale


class ConditionalQuestion(NamedTuple):
    """A victim with linear messages that tell all of its noise, and others beside."""

    place: AgentRound
    linear: Mapping[MessageId, Sequence[Response]]
    beside: tuple[MessageId, ...]


def asked_of(
    place: AgentRound,
    linear: Mapping[MessageId, Sequence[Response]],
    beside: Iterable[MessageId],
    base: ProgramRun,
    silent: Sequence[ProgramRun],
) -> ConditionalQuestion | None:
    """What may reveal a record; None where there is nothing, or the noise is not determined.

    Args:
        beside: the messages that are not linear in the noise.
        silent: by draw of the place: the run without it.
    """
    own = tuple(m for m in beside if all(_is_sent(run, m, base) for run in silent))
    responses = [r for m in place.messages for r in linear.get(m, ())]
    for j, draw in enumerate(place.draws):
        told = {n for r in responses if r.draw == j for n in r.number.tolist()}
        moves = any(apart(silent[j].messages[m], base.messages[m]).any() for m in own)
        if moves and len(told) < len(base.tape[draw.key]):
            return None
    return ConditionalQuestion(place, linear, own) if own and responses else None


def _is_sent(run: ProgramRun, message: MessageId, base: ProgramRun) -> bool:
    content = run.messages.get(message)
    return content is not None and content.shape == base.messages[message].shape


def revealed(
    asked: Sequence[ConditionalQuestion],
    changed: Mapping[int, Mapping[How, ProgramRun]],
    silent: Sequence[ProgramRun],
    playing: KeptRuns,
    until: World,
    base: ProgramRun,
) -> dict[int, Revealed]:
    """By victim and what becomes of its record: messages that move, where all linear ones stay.

    Args:
        changed: by victim: the runs with each change of its record; "present" is the base.
        until: the world of the base, until the end of the round.
    """
    found: dict[int, Revealed] = {}
    for one in asked:
        own = changed[one.place.victim]
        moves = {how: _move(one, run, base) for how, run in own.items() if how != "present"}
        known = {how: units for how, units in moves.items() if units is not None}
        worlds = [_moved(until, one.place, units, how) for how, units in known.items()]
        worlds = [
            world.model_copy(update={"changes": one.place.changes(how)})
            for how, world in zip(known, worlds, strict=True)
        ]
        runs = dict(zip(known, playing.loaded(worlds), strict=True))
        off = max((_off(one, run, base) for run in runs.values()), default=MOST_JITTER)
        if off >= MOST_JITTER / 4:
            continue
        jitter = max(JITTER, 4 * off)
        beside = playing.loaded(list(_jittered(until, one.place, jitter, base)))
        found[one.place.victim] = {
            how: tuple(m for m in one.beside if _shows(m, run, base, beside, silent, jitter))
            for how, run in runs.items()
        }
    return found


def _move(one: ConditionalQuestion, run: ProgramRun, base: ProgramRun) -> Units | None:
    """The noise that makes up for a change of the record; None where none does."""
    changes = {m: apart(run.messages[m], base.messages[m]) for m in one.linear}
    lengths = {j: len(base.tape[draw.key]) for j, draw in enumerate(one.place.draws)}
    move = making_up_for(one.linear, changes, lengths)
    largest = max((np.abs(a).max(initial=0.0) for a in changes.values()), default=0.0)
    furthest = max((np.abs(u).max(initial=0.0) for u in move.units.values()), default=0.0)
    is_whole = move.bare <= NOTHING * largest and move.left <= AGREE * max(1.0, furthest)
    return dict(move.units) if is_whole and not move.hidden else None


def _moved(until: World, place: AgentRound, units: Mapping[int, Array], name: str) -> World:
    """The same world on a tape of its own, on which the noise is moved back."""
    assert until.tape is not None
    named = f"beside-{place.victim}-{place.round}-{name.replace(':', '-')}.safetensors"
    path, tape = until.tape.with_name(named), dict(load_file(until.tape))
    for j, of in units.items():
        key, scale = place.draws[j].key, place.draws[j].scale
        own = tape[key]
        tape[key] = (own.double() - from_numpy(of * scale).reshape(own.shape)).to(own.dtype)
    save_file(tape, path)
    return until.model_copy(update={"tape": path})


def _off(one: ConditionalQuestion, run: ProgramRun, base: ProgramRun) -> float:
    """How far linear messages are from those of the base after all, in units of their noise."""
    far = [
        np.abs(apart(run.messages[m], base.messages[m])[r.places] / r.size).max(initial=0.0)
        for m, responses in one.linear.items()
        for r in responses
    ]
    return float(max(far, default=0.0))


def _jittered(until: World, place: AgentRound, jitter: float, base: ProgramRun) -> Iterable[World]:
    """Worlds whose noise alone is moved, by what rounding may leave and more, one way and back."""
    for i in range(SIGNS):
        rng = np.random.default_rng(i)
        units = {
            j: jitter * rng.choice([-1.0, 1.0], len(base.tape[draw.key]))
            for j, draw in enumerate(place.draws)
        }
        back = {j: -of for j, of in units.items()}
        yield _moved(until, place, units, f"jitter-{i}")
        yield _moved(until, place, back, f"back-{i}")


def _shows(
    message: MessageId,
    run: ProgramRun,
    base: ProgramRun,
    jittered: Sequence[ProgramRun],
    silent: Sequence[ProgramRun],
    jitter: float,
) -> bool:
    """Whether a message moves with the record, by far more than rounding explains."""
    if not all(_is_sent(one, message, base) for one in (run, *jittered)):
        return False  # its size is another question
    own = base.messages[message]
    by_noise = max(np.abs(apart(one.messages[message], own)).max(initial=0.0) for one in silent)
    beside = np.max([np.abs(apart(one.messages[message], own)) for one in jittered], axis=0)
    n = sum(len(values) for values in base.tape.values())
    least = max(SHOWN, 4 * float(np.sqrt(n)) * jitter) * by_noise
    moved = np.abs(apart(run.messages[message], own)) - TIMES * beside
    return bool(np.isfinite(by_noise) and (moved > least).any())
