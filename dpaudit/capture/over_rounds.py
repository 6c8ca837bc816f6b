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

from .accounted import NOISELESS, Least, least, released
from .aligned import LEFT, PLACES, Alignments, Moves, Way, is_same, played
from .drawn_batches import batches_of
from .runs import MessageId, ProgramRun
from .traces import NotExamined
from .worlds import hiding_before

Pair = tuple[Way, Way]


class RunCost(NamedTuple):
    """What one record of a victim costs a run at least, in units of the noise."""

    victim: int
    adjacency: RecordAdjacency
    sizes: Mapping[NoiseFamily, Sequence[float]]  # of the rounds
    noiseless: MessageId | None = None  # that shows it


def costs_of_runs(
    runs: Alignments, moves: Moves, adjacencies: Collection[RecordAdjacency]
) -> Iterator[RunCost]:
    """Of each victim whose records' costs are known: of the pair of records that costs most."""
    places = range(len(PLACES))
    if not any(_is_one_record(runs, v, place) for v in runs.victims for place in places):
        try:
            runs = _of_first_record(runs, moves)
            moves = runs.moves()
        except NotExamined:
            return
    shown = None if moves.noiseless is None else moves.noiseless[0]
    last = runs.worlds.base.n_rounds if shown is None else shown.round
    if last == 1 or hiding_before(runs.worlds.base, runs.worlds.config.noise.sites, last):
        return
    for victim in runs.victims if shown is None else (shown.source,):
        for adjacency in adjacencies:
            pair = _furthest(runs, moves, victim, adjacency)
            if pair is None or not _are_same_before(runs, moves, victim, pair, last):
                continue
            sizes = {} if shown is not None else _sizes(runs, moves, victim, pair)
            yield RunCost(victim, adjacency, sizes, shown)


@dataclass
class OfOneRecord(Alignments):
    """The same runs with few ways to change a record, which batches hold or do not."""

    chosen: tuple[Way, ...] = ()

    @property
    def ways(self) -> list[Way]:
        return [*self.chosen]


def _of_first_record(runs: Alignments, moves: Moves) -> OfOneRecord:
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
    chosen = (Way("absent", 0), *([] if furthest is None else [furthest]))
    own = OfOneRecord(runs.worlds, runs.program, records, runs.on_run, runs.equal, chosen)
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
    runs: Alignments, moves: Moves, victim: int, adjacency: RecordAdjacency
) -> Pair | None:
    """What one record is in the two runs that are furthest apart; None if there is no such record.

    Where no noise hides a message, one of them is what it showed.
    """
    found: list[Pair] = []
    for place in dict.fromkeys(way.place for way in runs.ways):
        if not _is_one_record(runs, victim, place):
            continue
        ways = [Way("present", place), *(way for way in runs.ways if way.place == place)]
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
    runs: Alignments, moves: Moves, victim: int, pair: Pair
) -> dict[NoiseFamily, list[float]]:
    """By family of noise: how far the two are apart in each round."""
    one, other = (moves.units[way][victim] if way in moves.units else {} for way in pair)
    found: dict[NoiseFamily, list[float]] = {}
    for k, places in runs.places.items():
        for family in runs.families(k, victim) if victim in places else ():
            found.setdefault(family, []).append(runs.size(k, victim, family, one, other))
    return found


def _are_same_before(runs: Alignments, moves: Moves, victim: int, pair: Pair, last: int) -> bool:
    """Whether both records send the same until a round, once the noise of each is moved."""
    ways = [way for way in pair if way.how != "present"]
    worlds = [runs.world(way, moves.units[way], (victim,)) for way in ways]
    found = played(runs.program, worlds, partial(_is_same_before, runs, last))
    for _ in worlds:
        runs.on_run()
    return all(one is True for one in found)


def _is_same_before(runs: Alignments, last: int, _: World, run: ProgramRun) -> bool:
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
