"""Whether noise far out, which is hardly ever drawn, hides a record as well as noise that is drawn.

A program may cut its noise off, or draw it again where it is long. What it does so once in many
runs no run of an audit shows, and counts all the same. So the noise of a round is put far out in
two runs that differ in a record, which the same move must make equal.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from safetensors.torch import load_file, save_file
from torch import full_like

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.files.world import World

from .alignment import LEFT, Alignments
from .record_changes import RecordMoves, Units, Variant
from .runs import MessageId, ProgramRun
from .visible_output import NotExamined

# times the scale of noise: probabilities 4e-8 and 3e-7, more than a usual delta of a thousand draws
FAR: Mapping[NoiseFamily, float] = {"gaussian": 5.5, "laplace": 15.0}
PART = 0.01  # moves below this share of a record's move are rounding of large noise
ROUNDS = 3  # rounds that are examined: the first, one in the middle and the last


def refuse_other_noise_far_out(runs: Alignments, moves: RecordMoves) -> None:
    """Raises NotExamined where noise far out does not hide that a record is changed.

    It is left out, or is what moves most where every claim is of a record in its place.
    """
    way = _changed(runs, moves)
    there = [k for k, places in runs.places.items() if any(p.draws for p in places.values())]
    chosen = np.linspace(0, len(there) - 1, min(ROUNDS, len(there))).round().astype(int)
    rounds = [there[i] for i in chosen]
    for k, victims in (stage for stage in runs.stages if stage[0] in rounds):
        absent = victims if runs.sends_on else runs.victims
        for sign in (1.0, -1.0):
            worlds = [
                _far_out(runs, world, k, victims, sign)
                for world in (runs.worlds.replay, runs.world(way, moves.units[way], absent))
            ]
            found = runs.played(worlds, partial(_sent, runs, k, victims))
            without = [one for one in found if not isinstance(one, dict)]
            pair = [one for one in found if isinstance(one, dict)]
            if without or _is_shown(runs, k, victims, moves.units[way], *pair):
                raise NotExamined(
                    "noise",
                    f"where the noise of round {k} is far out, on the {_side(sign)} side, it does "
                    "not hide a record",
                )


def _changed(runs: Alignments, moves: RecordMoves) -> Variant:
    def size(way: Variant) -> float:
        units = [u for of in moves.units[way].values() for u in of.values()]
        return max((float(np.linalg.norm(u)) for u in units), default=0.0)

    if runs.worlds.leaves_out:
        return Variant("absent", 0)
    return max((way for way in runs.ways if way.place == 0), key=size)


def _side(sign: float) -> str:
    return "positive" if sign > 0 else "negative"


def _far_out(runs: Alignments, world: World, k: int, victims: Sequence[int], sign: float) -> World:
    """The world in which these victims' noise of a round lies far out, moved as before."""
    assert world.tape is not None
    assert runs.worlds.replay.tape is not None
    own, tape = load_file(runs.worlds.replay.tape), dict(load_file(world.tape))
    for draw in {d.key: d for v in victims for d in runs.places[k][v].draws}.values():
        key, level = draw.key, sign * FAR[draw.family] * draw.scale
        if key not in runs.worlds.replay.same:
            tape[key] = tape[key] - own[key] + full_like(own[key], level)
    path = world.tape.with_name(f"far-{_side(sign)}-{k}-{world.tape.name}")
    save_file(tape, path)
    return world.model_copy(update={"tape": path})


def _sent(
    runs: Alignments, k: int, victims: Sequence[int], _: World, run: ProgramRun
) -> dict[MessageId, Array]:
    return {m: run.messages[m] for v in victims for m in runs.places[k][v].messages}


def _is_shown(
    runs: Alignments,
    k: int,
    victims: Sequence[int],
    moved: Mapping[int, Units],
    one: Mapping[MessageId, Array],
    other: Mapping[MessageId, Array],
) -> bool:
    """Whether messages of a round differ by a part of what the record moves the noise by."""
    for victim in victims:
        changes = {m: other[m] - one[m] for m in runs.places[k][victim].messages}
        move = runs.make_up(k, victim, changes)
        over = [float(np.linalg.norm(units)) for units in move.units.values()]
        own = [float(np.linalg.norm(u)) for (of, _), u in moved[victim].items() if of == k]
        if not max([move.left, *over]) <= LEFT + PART * max(own, default=0.0):
            return True
    return False
