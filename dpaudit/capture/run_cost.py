"""What a record costs over a whole run, where later rounds remember it.

A record that is changed in one batch alone shows what the round of that batch sends of it. A
program may keep more: a clip norm chosen by clean norms, weights that it never sends, a momentum
without noise. So the record is changed in every batch that holds it, and the noise of each round is
moved such that the round sends the same. The adversary has then read the same until the next round,
whose messages show the rest. The moves of all rounds add up to what the run costs, along the
messages of the base run; a number that no noise moves shows the record.

That holds where the messages until a round determine its agent's noise until then. Where batches
hold different records, the first one of the first batch alone is changed, wherever it is.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import hypot
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.accounting.releases import RecordAdjacency
from dpaudit.files.world import How, World

from .alignment import LEFT, Alignments
from .batch_tests import batches_of
from .composition import NOISELESS, Least, least, released
from .record_changes import PLACES, RecordMoves, Variant
from .runs import MessageId, ProgramRun
from .visible_output import NotExamined, is_same
from .worlds import hiding_before, is_noise

Pair = tuple[Variant, Variant]


class RunCost(NamedTuple):
    """What one record of a victim costs a run at least, in units of the noise."""

    victim: int
    adjacency: RecordAdjacency
    sizes: Mapping[NoiseFamily, Sequence[float]]  # move in each round
    noiseless: MessageId | None = None  # a message that shows the record without noise


def costs_of_runs(
    runs: Alignments, moves: RecordMoves, adjacencies: Collection[RecordAdjacency]
) -> Iterator[RunCost]:
    """Cost of a run for each victim, by the pair of records that costs most, if it is known."""
    places = range(len(PLACES))
    if not any(_is_one_record(runs, v, place) for v in runs.victims for place in places):
        try:
            runs = _of_first_record(runs, moves)
            moves = runs.moves()
        except NotExamined:
            return
    shown = None if moves.noiseless is None else moves.noiseless[0]
    last = runs.worlds.base.n_rounds if shown is None else shown.round
    if last == 1 or not _is_determined(runs, last):
        return
    for victim in runs.victims if shown is None else (shown.source,):
        for adjacency in adjacencies:
            pair = _furthest(runs, moves, victim, adjacency)
            if pair is None or not _are_same_before(runs, moves, victim, pair, last, shown):
                continue
            sizes = {} if shown is not None else _sizes(runs, moves, victim, pair)
            yield RunCost(victim, adjacency, sizes, shown)


@dataclass
class SingleRecordRuns(Alignments):
    """The same runs with few ways to change a record, which batches hold or do not."""

    chosen: tuple[Variant, ...] = ()

    @property
    def ways(self) -> list[Variant]:
        return [*self.chosen]


def _of_first_record(runs: Alignments, moves: RecordMoves) -> SingleRecordRuns:
    """Runs in which that of the first batch is left out, or is what moved the first round most."""
    records: dict[int, dict[int, tuple[int, ...]]] = {}
    for victim, by_batch in runs.records.items():
        batches, first = batches_of(runs.worlds.plain, victim), min(by_batch, default=1)
        record = batches[first - 1][by_batch[first][0]] if by_batch else ""
        holding = [n for n, batch in enumerate(batches, 1) if record in batch]
        records[victim] = {n: (batches[n - 1].index(record),) for n in holding}
    sizes: dict[How, float] = {}
    for (_, k, _), found in moves.sizes.items():
        if k == min(runs.places):
            sizes |= {how: max(size, sizes.get(how, 0.0)) for how, size in found.items()}
    there = [way for way in runs.ways if way.place == 0 and way.how != "absent"]
    furthest = max(there, key=lambda way: sizes.get(way.how, 0.0), default=None)
    absent = [Variant("absent", 0)] if runs.worlds.leaves_out else []
    chosen = (*absent, *([] if furthest is None else [furthest]))
    own = SingleRecordRuns(runs.worlds, runs.program, records, runs.on_run, runs.equal, chosen)
    known = ("stages", "sends_on", "places", "noised")
    vars(own).update({name: vars(runs)[name] for name in known if name in vars(runs)})
    return own


def least_of_run(costs: Sequence[RunCost], delta: float) -> tuple[Least, str | None]:
    """The largest of these costs, and the message that shows a record without noise, if one does.

    Of Laplace noise only the sum of a round's moves is known, which bounds epsilon at delta = 0.
    """
    shown = next((cost.noiseless for cost in costs if cost.noiseless is not None), None)
    if shown is not None:
        return NOISELESS, str(shown)
    found = []
    for cost in costs:
        releases = [
            released(family, size)
            for family, sizes in cost.sizes.items()
            for size in sizes
            if size > 0 and (family == "gaussian" or delta == 0)
        ]
        found.append(least(releases, delta, cost.adjacency))
    return max(found, key=lambda one: one.epsilon, default=Least(0.0)), None


def _furthest(
    runs: Alignments, moves: RecordMoves, victim: int, adjacency: RecordAdjacency
) -> Pair | None:
    """What one record is in the two runs that are furthest apart; None if there is no such record.

    Where no noise hides a message, one of them is what it showed.
    """
    found: list[Pair] = []
    for place in dict.fromkeys(way.place for way in runs.ways):
        if not _is_one_record(runs, victim, place):
            continue
        ways = [Variant("present", place), *(way for way in runs.ways if way.place == place)]
        pairs = combinations(ways, 2)
        found += [
            p for p in pairs if ("absent" in {w.how for w in p}) == (adjacency == "add-remove")
        ]
    if moves.noiseless is not None:
        way = moves.noiseless[1]
        found = [pair for pair in found if way in pair]

    def size(pair: Pair) -> float:
        by_family = _sizes(runs, moves, victim, pair)
        return hypot(*by_family.get("gaussian", ())) + sum(by_family.get("laplace", ()))

    return max(found, key=size, default=None)


def _is_one_record(runs: Alignments, victim: int, place: int) -> bool:
    """Whether the same record is changed in all batches that hold it."""
    batches = batches_of(runs.worlds.plain, victim)
    changed = [batches[n - 1][of[place]] for n, of in runs.records[victim].items()]
    holding = [batch for batch in batches if changed and changed[0] in batch]
    return len({*changed}) == 1 and len(holding) == len(changed)


def _sizes(
    runs: Alignments, moves: RecordMoves, victim: int, pair: Pair
) -> dict[NoiseFamily, list[float]]:
    """By family of noise: how far the two are apart in each round."""
    one, other = (moves.units[way][victim] if way in moves.units else {} for way in pair)
    found: dict[NoiseFamily, list[float]] = {}
    for k, places in runs.places.items():
        for family in runs.families(k, victim) if victim in places else ():
            found.setdefault(family, []).append(runs.size(k, victim, family, one, other))
    return found


def _is_determined(runs: Alignments, last: int) -> bool:
    """Whether the messages of earlier rounds tell all noise that was drawn before a round.

    Noise that is drawn in one round and sent in another one may hide what later rounds show.
    """
    base, sites = runs.worlds.base, runs.worlds.config.noise.sites
    told = set[str]()
    for k, places in runs.places.items():
        for victim, place in places.items() if k < last else ():
            for i, draw in enumerate(place.draws):
                numbers = [
                    response.number
                    for responses in runs.noised[k][victim].values()
                    for response in responses
                    if response.draw == i
                ]
                if len({*np.concatenate([*numbers, []]).tolist()}) == len(base.tape[draw.key]):
                    told.add(draw.key)
    before = [d for d in base.draws if is_noise(d, sites) and (d.round is None or d.round < last)]
    return all(d.key in told for d in before) and not hiding_before(base, sites, last)


def _are_same_before(
    runs: Alignments,
    moves: RecordMoves,
    victim: int,
    pair: Pair,
    last: int,
    shown: MessageId | None,
) -> bool:
    """Whether both records send the same until a round, once the noise of each is moved.

    The message of that round that shows the record then has to move by more than the rounding of
    all that was sent before may give.
    """
    ways = [way for way in pair if way.how != "present"]
    worlds = [runs.world(way, moves.units[way], (victim,)) for way in ways]
    found = runs.played(worlds, partial(_moved, runs, last, shown))
    sizes = [one for one in found if isinstance(one, float)]
    return len(sizes) == len(worlds) and (shown is None or max(sizes) > LEFT)


def _moved(
    runs: Alignments, last: int, shown: MessageId | None, _: World, run: ProgramRun
) -> float | None:
    """How far a message moves, relative to all that its agent has sent until then.

    Returns:
        None where what is sent before its round is not that of the base run.
    """
    if not _is_same_before(runs, last, run):
        return None
    if shown is None:
        return 0.0
    base, content = runs.worlds.base.messages, run.messages.get(shown)
    if content is None or content.shape != base[shown].shape:
        return None
    own = [m for m in base if m.source == shown.source and m.round <= last]
    size = max(float(np.abs(base[m]).max(initial=0.0)) for m in own)
    return float(np.abs(content - base[shown]).max(initial=0.0)) / (size or 1.0)


def _is_same_before(runs: Alignments, last: int, run: ProgramRun) -> bool:
    base = runs.worlds.base.messages
    sent = {message: run.messages.get(message) for message in base if message.round < last}
    for message, content in sent.items():
        if content is None or content.shape != base[message].shape:
            return False
        bare = ~runs.hidden(message)
        size = float(np.abs(base[message]).max(initial=0.0))
        if not (np.isfinite(content).all() and is_same(base[message][bare], content[bare], size)):
            return False
    for k, places in runs.places.items():
        for victim, place in places.items() if k < last else ():
            changes = {m: run.messages[m] - base[m] for m in place.messages}
            move = runs.make_up(k, victim, changes)
            over = [float(np.linalg.norm(units)) for units in move.units.values()]
            if move.hidden or max([move.left, *over]) > LEFT:
                return False
    return True
