"""Runs that differ in a record, made the same by moving the noise of the agent that holds it.

Where the whole program then sends the same, in every message of every round, what an adversary
reads of the record costs what moving this noise costs (Zhang and Kifer 2017; see
``attacks/sensitivity/alignment.py``). A message is linear in the noise of its round, number by
number, which runs with other noise have tested, so that the move does not depend on the draw. That
holds of the records that are tried. They are changed far out, in three directions and at two
distances: a program that clips in L2 moves all of these by one length, which is the bound of all
records; where it does not, no bound is seen.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from safetensors.torch import load_file, save_file
from torch import from_numpy

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.accounting.releases import RecordAdjacency
from dpaudit.errors import RunError
from dpaudit.files.result import PremiseName
from dpaudit.files.world import FAR, NEARER, Change, How, World

from .other_draws import draws_beside
from .program import Program
from .record_changes import NOT_SEEN, PLACES, RecordMoves, Units, Variant, distance, to_nothing
from .record_shift import AGREE, NOTHING, Booleans, NoiseMove, Response, making_up_for, noise_of
from .runs import AgentRound, MessageId, ProgramRun, first_difference
from .unnamed_noise import MOVES, UnnamedNoise
from .visible_output import (
    SENT_ON,
    Differs,
    EqualRuns,
    NotExamined,
    VisibleOutput,
    are_alike,
    in_short,
    is_same,
    other_line,
    refuse_differing,
)
from .worlds import MeasuredRuns, NeighbouringRuns, OnRun, is_noise, perturbed

Found = TypeVar("Found")
Noised = Mapping[MessageId, Sequence[Response]]
Changed = Mapping[int, Mapping[MessageId, Array]]  # victim -> distance of messages from base
MOST_ROUNDS = 100  # of a program; each is played once for each change of the record
LEFT = 1e-4  # share of a run's noise by which rounding may leave a change
FAR_OWN_LABEL, FAR_OTHER_LABEL = FAR[: len(FAR) // 2], FAR[len(FAR) // 2 :]
MOST_MOVED = 1e30  # largest move of a message's number; larger ones are scaled down


@dataclass
class Alignments:
    """The runs of a program in which each victim's record is changed in every batch.

    Args:
        records: by victim and number of a batch: which record of it is that of each place.
    """

    worlds: MeasuredRuns
    program: Program
    records: Mapping[int, Mapping[int, Sequence[int]]]
    on_run: OnRun
    equal: EqualRuns

    @property
    def ways(self) -> list[Variant]:
        """All that a record becomes; as it is, it needs no move."""
        named = [
            how for how in self.worlds.config.record.hows() if how not in ("present", "absent")
        ]
        if not self.worlds.leaves_out:
            far = [*FAR_OWN_LABEL, *FAR_OTHER_LABEL]
            of_places = [*named, *far], [*NEARER, *far], far
            return [
                Variant(how, i) for i, some in enumerate(of_places) for how in dict.fromkeys(some)
            ]
        by_place = [*named, *FAR_OWN_LABEL], NEARER, FAR_OTHER_LABEL
        hows = [dict.fromkeys(("absent", *some)) for some in by_place]
        return [Variant(how, place) for place, some in enumerate(hows) for how in some]

    def n_records(self, victim: int, number: int) -> int:
        """The number of records in a batch that a victim takes."""
        own = [taken for taken in self.worlds.plain.batches if taken.agent == victim]
        return len(own[number - 1].digests)

    @property
    def victims(self) -> tuple[int, ...]:
        return self.worlds.config.record.victims

    def played(
        self, worlds: Iterable[World], use: Callable[[World, ProgramRun], Found]
    ) -> list[Found | RunError]:
        """What ``use`` makes of each run, or why there is none."""

        def one(world: World) -> Found | RunError:
            try:
                return self.program.each([world], partial(use, world), self.on_run)[0]
            except RunError as error:
                self.on_run()
                return error

        with ThreadPoolExecutor(self.program.workers) as pool:
            return list(pool.map(one, worlds))

    @cached_property
    def stages(self) -> list[tuple[int, tuple[int, ...]]]:
        """Rounds and victims in the order in which they send; apart where they send on.

        Those of one stage may be changed in one run, as no message of one depends on another.
        Raises NotExamined.
        """
        if not self.sends_on:
            return [(k, tuple(places)) for k, places in self.places.items()]
        if self.worlds.config.program.ranks is not None:  # the order of processes is not known
            raise NotExamined("composition", SENT_ON)
        sent = dict.fromkeys((m.round, m.source) for m in self.worlds.base.messages)
        by_round = sorted(sent, key=lambda at: at[0])
        found: list[tuple[int, tuple[int, ...]]] = [
            (k, (v,)) for k, v in by_round if v in self.places.get(k, ())
        ]
        if len(found) > MOST_ROUNDS:
            why = (
                f"agents send on what they get {len(found)} times; {MOST_ROUNDS} at most are played"
            )
            raise NotExamined("composition", why)
        return found

    @cached_property
    def sends_on(self) -> bool:
        """Whether a victim's messages depend on noise of another in a round, as of what it got.

        A server that sends on is none. It is tried in measured rounds in which anybody sends on, in
        the last one, and in the first of each order of agents; that of processes is not known.
        """
        base, rounds = self.worlds.base, self.worlds.rounds
        alone = {k for k, of in rounds.items() if not any(p.others for p in of.places.values())}
        last, orders = max(self.places), dict[tuple[int, ...], int]()
        for k in [*rounds, last, *self.places]:
            sources = tuple(dict.fromkeys(m.source for m in base.messages if m.round == k))
            is_ordered = self.worlds.config.program.ranks is None
            orders.setdefault(sources if is_ordered else tuple(sorted(sources)), k)
        for k in sorted({*orders.values(), last, *rounds} - alone):
            places = self.places[k]
            silent = [tuple(draw.key for draw in of.draws) for of in places.values()]
            worlds = [self.worlds.replay.model_copy(update={"silent": keys}) for keys in silent]
            runs = self.program.each(worlds, ProgramRun.loaded, self.on_run)
            sent = [m for m in base.messages if m.round == k and m.source in places]
            for victim, run in zip(places, runs, strict=True):
                if first_difference(base, run, [m for m in sent if m.source != victim]) is not None:
                    return True
        return False

    @cached_property
    def places(self) -> dict[int, dict[int, AgentRound]]:
        """By round and victim: what it sends and draws there."""
        base, sites = self.worlds.base, self.worlds.config.noise.sites
        found: dict[int, dict[int, AgentRound]] = {}
        for k in range(1, base.n_rounds + 1):
            if (known := self._known(k)) is not None:
                found[k] = dict(known.places)
                continue
            found[k] = {}
            for victim in self.victims:
                sent = tuple(m for m in base.messages if (m.source, m.round) == (victim, k))
                begin, end = base.span(victim, k)
                drawn = [d for d in base.draws if d.agent == victim and is_noise(d, sites)]
                draws = tuple(d for d in drawn if begin < d.sequence < end)
                if sent:
                    found[k][victim] = AgentRound(victim, k, sent, draws, batch=0)
        return found

    @cached_property
    def noised(self) -> dict[int, dict[int, Noised]]:
        """By round and victim: the noise of its messages. Raises NotExamined."""
        found: dict[int, dict[int, Noised]] = {k: {} for k in self.places}
        for k, victims in self.stages:
            if (known := self._known(k)) is not None:
                found[k] = dict(known.noised)
                continue
            try:
                found[k] |= self._noise_in([self.places[k][victim] for victim in victims])
            except RunError as error:
                raise NotExamined("composition", in_short(error)) from None
        return found

    def _known(self, k: int) -> NeighbouringRuns | None:
        """What was measured of a round in which every victim has a part."""
        known = self.worlds.rounds.get(k)
        if known is None or any(place.others for place in known.places.values()):
            return None
        return known if {*known.places} == {*self.victims} else None

    def _noise_in(self, places: Sequence[AgentRound]) -> dict[int, Noised]:
        n_draws = max((len(place.draws) for place in places), default=0)
        worlds = [self.worlds.replay.model_copy(update=u) for u in perturbed(places, n_draws)]
        runs = self.program.each(worlds, ProgramRun.loaded, self.on_run)
        silent, signed = runs[::3], list(zip(runs[1::3], runs[2::3], strict=True))
        base = self.worlds.base
        found: dict[int, Noised] = {}
        for place in places:
            found[place.victim], unmeasured = noise_of(place, base, silent, signed)
            for error in unmeasured.values():
                raise error
        return found

    def moves(self) -> RecordMoves:
        """How far each way to change the record moves each round. Raises NotExamined.

        All victims are changed together, round by round, the noise of earlier rounds moved, and
        that of agents that have sent before in the round.
        """
        moved: dict[Variant, dict[int, Units]] = {
            w: {v: {} for v in self.victims} for w in self.ways
        }
        noiseless: tuple[MessageId, Variant] | None = None
        for k, victims in self.stages:
            worlds = [self.world(way, moved[way], self.victims) for way in moved]
            found = self.played(worlds, partial(self.changes, k, victims))
            by_way = list(zip(moved, found, strict=True))
            for way, changed in by_way:
                if isinstance(changed, RunError):
                    what = "is left out" if way.how == "absent" else f"becomes {way.how}"
                    raise NotExamined("distance", f"where a record {what}: {in_short(changed)}")
            changes = {h: c for h, c in by_way if not isinstance(c, RunError)}
            for way, changed in changes.items():
                for victim, by_message in changed.items():
                    if hidden := self._unnamed and self._unnamed.moved(by_message):
                        raise NotExamined("composition", hidden)
                    move = self.make_up(k, victim, by_message)
                    shown = self.without_noise(k, victim, by_message, move)
                    noiseless = noiseless or (None if shown is None else (shown, way))
                    draws = self.places[k][victim].draws
                    moved[way][victim] |= {(k, draws[i].key): u for i, u in move.units.items()}
            if noiseless is not None:
                if drawn := self.worlds.unnamed.beside(noiseless[0]):
                    raise NotExamined("composition", MOVES.format(noiseless[0], drawn))
                break
        without, not_seen = self._without(moved)
        return RecordMoves(self._sizes(moved, without), noiseless, moved, {}, without, not_seen)

    @cached_property
    def _unnamed(self) -> UnnamedNoise | None:
        """Noise that nobody has named, where the program draws anything beside."""
        config, plain = self.worlds.config, self.worlds.plain
        return self.worlds.unnamed if draws_beside(plain, config.noise.sites) else None

    def furthest(
        self, victim: int, k: int, way: Variant, moves: RecordMoves, adjacency: RecordAdjacency
    ) -> How:
        """What takes the record's place, or nothing, for its messages of a round to be far apart.

        Where no noise hides a message, anything else does.
        """
        others = [one for one in self.ways if one.place == way.place and one.how != way.how]
        if adjacency == "add-remove":
            return "absent" if way.how != "absent" else others[0].how
        present = [one for one in others if one.how != "absent"]
        if moves.noiseless is not None:
            return present[0].how
        units, families = {**moves.units, **moves.overflowing}, self.families(k, victim)

        def apart(one: Variant) -> float:
            parts = [
                self.size(k, victim, family, units[one][victim], units[way][victim])
                for family in families
            ]
            return max(parts, default=0.0)

        return max(present, key=apart).how

    def apart(
        self, victim: int, k: int, pair: tuple[Variant, Variant], number: int
    ) -> dict[NoiseFamily, float] | MessageId | None:
        """How far two records in one batch move its round, nothing else changed: a lower end.

        Returns:
            By family of noise; a message that moves with no noise to hide it; or None if the
            messages do not tell the noise.
        """
        units = []
        changes = [
            Change(agent=victim, batch=number, how=how, record=record)
            for how, place in pair
            for record in [self.records[victim][number][place]]
        ]
        worlds = [self.worlds.replay.model_copy(update={"changes": (c,)}) for c in changes]
        for found in self.played(worlds, partial(self.changes, k, (victim,))):
            if isinstance(found, RunError):
                return None
            move = self.make_up(k, victim, found[victim])
            shown = self.without_noise(k, victim, found[victim], move)
            if shown is not None:
                return shown
            if move.hidden and k > 1:
                return None
            draws = self.places[k][victim].draws
            units.append({(k, draws[i].key): u for i, u in move.units.items()})
        return {family: self.size(k, victim, family, *units) for family in self.families(k, victim)}

    def families(self, k: int, victim: int) -> list[NoiseFamily]:
        return list(dict.fromkeys(draw.family for draw in self.places[k][victim].draws))

    def size(self, k: int, victim: int, family: NoiseFamily, one: Units, other: Units) -> float:
        """Between two moves of a round: L2 of Gaussian noise, L1 of Laplace."""
        keys = [(k, d.key) for d in self.places[k][victim].draws if d.family == family]
        return distance(one, other, keys, 2 if family == "gaussian" else 1)

    def make_up(self, k: int, victim: int, changes: Mapping[MessageId, Array]) -> NoiseMove:
        draws = self.places[k][victim].draws
        lengths = {i: len(self.worlds.base.tape[draw.key]) for i, draw in enumerate(draws)}
        return making_up_for(self.noised[k][victim], changes, lengths)

    def without_noise(
        self, k: int, victim: int, changes: Mapping[MessageId, Array], move: NoiseMove
    ) -> MessageId | None:
        """A message that moves by what no noise makes up for, beyond rounding."""
        base = self.worlds.base.messages
        if all(is_same(base[m], base[m] + change) for m, change in changes.items()):
            return None
        largest = max((np.abs(a).max(initial=0.0) for a in changes.values()), default=0.0)
        furthest = max((np.abs(u).max(initial=0.0) for u in move.units.values()), default=0.0)
        if move.bare > NOTHING * largest:
            for message, change in changes.items():
                if np.abs(change[~self.hidden(message)]).max(initial=0.0) == move.bare:
                    return message
        return next(iter(changes)) if move.left > AGREE * max(1.0, furthest) else None

    def hidden(self, message: MessageId) -> Booleans:
        """Which numbers of a message of a victim have noise of its own."""
        found = np.zeros(len(self.worlds.base.messages[message]), bool)
        for response in self.noised[message.round].get(message.source, {}).get(message, ()):
            found[response.places] = True
        return found

    def changes(self, k: int, victims: Sequence[int], world: World, run: ProgramRun) -> Changed:
        """How far the messages of these victims in a round are from those of the base run."""
        if self.worlds.otherwise and any(change.how == "absent" for change in world.changes):
            raise RunError("DPA063", self.worlds.otherwise)
        base = self.worlds.base.messages
        found: dict[int, dict[MessageId, Array]] = {}
        for victim in victims:
            found[victim] = {}
            for message in self.places[k][victim].messages:
                content = run.messages.get(message)
                if content is None or content.shape != base[message].shape:
                    raise RunError("DPA063", f"{message} is not sent, or has another size")
                if not np.isfinite(content).all():
                    raise RunError("DPA063", f"{message} is not a finite number")
                found[victim][message] = content - base[message]
            found[victim] = below_overflow(found[victim])
        return found

    def _sizes(
        self, moved: Mapping[Variant, Mapping[int, Units]], without: Mapping[tuple[int, int], Units]
    ) -> dict[tuple[int, int, NoiseFamily], dict[How, float]]:
        """The moves from where the record adds nothing; the largest of all places."""
        present = [(Variant("present", 0), dict.fromkeys(self.victims, Units()))]
        found: dict[tuple[int, int, NoiseFamily], dict[How, float]] = {}
        for k, places in self.places.items():
            for victim, family in ((v, family) for v in places for family in self.families(k, v)):
                sizes = found[victim, k, family] = {}
                for way, of in [*moved.items(), *present]:
                    if way.how != "absent":
                        nothing = without[way.place, victim]
                        size = self.size(k, victim, family, nothing, of[victim])
                        sizes[way.how] = max(size, sizes.get(way.how, 0.0))
        return found

    def _without(
        self, moved: Mapping[Variant, Mapping[int, Units]]
    ) -> tuple[dict[tuple[int, int], Units], str]:
        """By place and victim the move to a record that adds nothing, or why it is not known."""
        at = [(place, v) for place in sorted({way.place for way in moved}) for v in self.victims]
        if self.worlds.leaves_out:
            return {(place, v): moved[Variant("absent", place)][v] for place, v in at}, ""
        found, not_seen = {one: Units() for one in at}, ""
        for (place, victim), units in found.items():
            ways = {way.how: of[victim] for way, of in moved.items() if way.place == place}
            for k in (k for k, places in self.places.items() if victim in places):
                for family in self.families(k, victim):
                    draws = [d for d in self.places[k][victim].draws if d.family == family]
                    keys = [(k, d.key) for d in draws]
                    own = to_nothing(ways, keys, 2 if family == "gaussian" else 1)
                    units |= own or {}
                    not_seen = not_seen or ("" if own is not None else NOT_SEEN.format(k, victim))
        return found, not_seen

    def world(
        self, way: Variant, moved: Mapping[int, Units], victims: Sequence[int], first: bool = False
    ) -> World:
        """A run in which records of these victims are changed and their noise is moved.

        Args:
            first: in their first batch alone.
        """
        whose = "-".join(map(str, victims))
        changes = tuple(
            Change(agent=victim, batch=number, how=way.how, record=records[way.place])
            for victim in victims
            for number, records in list(self.records[victim].items())[: 1 if first else None]
        )
        return self.with_noise_moved(
            self.worlds.replay.model_copy(update={"changes": changes}),
            f"{way.how}-{PLACES[way.place]}-{whose}",
            {victim: moved[victim] for victim in victims},
        )

    def with_noise_moved(self, world: World, name: str, moved: Mapping[int, Units]) -> World:
        """The same run with a tape of its own, on which the noise of these agents is moved back."""
        scales = {d.key: d.scale for d in self.worlds.base.draws}
        assert world.tape is not None
        path, tape = world.tape.with_name(f"{name}.safetensors"), dict(load_file(world.tape))
        for units_of in moved.values():
            for (_, key), units in units_of.items():
                own = tape[key]
                move = from_numpy(units * scales[key]).reshape(own.shape)
                tape[key] = (own.double() - move).to(own.dtype)
        save_file(tape, path)
        return world.model_copy(update={"tape": path})

    def verify(self, moves: RecordMoves) -> None:
        """Play each victim's record alone, its noise moved: all that is sent must be the same.

        Raises NotExamined where it is not.
        """
        moved = moves.units
        worlds = [self.world(way, of, (v,)) for way, of in moved.items() for v in self.victims]
        self.refuse_differing(worlds, "composition")
        rounds = {v: self._first_round(v) for v in self.victims}
        firsts = {
            way: {v: {at: u for at, u in of[v].items() if at[0] == k} for v, k in rounds.items()}
            for way, of in moved.items()
            if way.how in ("absent", *FAR[:2])
        }
        worlds = [self.world(way, of, self.victims, first=True) for way, of in firsts.items()]
        self.refuse_differing(worlds, "state")

    def _first_round(self, victim: int) -> int | None:
        """The round of the first batch in which the victim's record is changed."""
        base = self.worlds.base
        own = [taken.sequence for taken in base.batches if taken.agent == victim]
        for number in list(self.records[victim])[:1]:
            for k in self.places:
                begin, end = base.span(victim, k)
                if begin < own[number - 1] < end:
                    return k
        return None

    def refuse_differing(self, worlds: Sequence[World], premise: PremiseName) -> None:
        """Raises NotExamined for the first run that is not the same as the base."""
        refuse_differing(worlds, partial(self.played, use=self.what_differs), premise)

    def what_differs(self, world: World, run: ProgramRun) -> Differs:
        """The premise against which a run speaks that should show the same, and how."""
        base = self.equal.trace
        own = VisibleOutput.of(run, base.ordered)
        other = base.other_order(own)
        if other is not None:
            return "completeness", f"{other} depends on the record"
        if not any(are_alike(own.printed, printed) for printed in self.equal.printed):
            line = other_line(own.printed, self.equal.printed[0])
            said = "what the program prints, or sends as text, depends on the record"
            return "completeness", f"{said}, as {line}" if line else said
        changes = {
            m: b - a
            for m, a, b in zip(base.ids, base.contents, own.contents, strict=True)
            if m is not None and m.source in self.victims
        }
        for k, places in self.places.items():
            for victim, place in places.items():
                move = self.make_up(k, victim, {m: changes[m] for m in place.messages})
                over = [float(np.linalg.norm(units)) for units in move.units.values()]
                if max([move.left, *over]) > LEFT:
                    later = f"a move of noise does not hide the record in round {k}"
                    return "composition", f"{later} from agent {victim}"
        for m, a, b in zip(base.ids, base.contents, own.contents, strict=True):
            noised = np.zeros(len(a), bool) if m is None else self.hidden(m)
            if not is_same(a[~noised], b[~noised], np.abs(a).max(initial=0.0)):
                what = "a message before round 1" if m is None else str(m)
                return "composition", f"{what} depends on the record, with no noise of its own"
        return None, ""


def below_overflow(changes: Mapping[MessageId, Array]) -> dict[MessageId, Array]:
    """Changes of one agent, all by one factor, so that their squares are finite: a lower end."""
    largest = max((np.abs(a).max(initial=0.0) for a in changes.values()), default=0.0)
    factor = min(1.0, MOST_MOVED / max(largest, 1.0))
    return {message: change * factor for message, change in changes.items()}
