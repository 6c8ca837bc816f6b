"""Which runs of a program measure what one record moves, and what they show."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product, repeat
from math import inf
from typing import Any, NamedTuple

import numpy as np

from dpaudit.accounting.releases import RecordAdjacency
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import How, World

from .conditional_leak import Revealed, asked_of, revealed
from .learned_score import features_of
from .program import KeptRuns
from .record_shift import (
    NO_LEAK,
    NotMeasured,
    Response,
    RoundLeak,
    leak,
    noise_of,
    of_other_sizes,
)
from .refusals import refuse_absent, refuse_difference, refuse_other_batches
from .runs import (
    AgentRound,
    MessageId,
    NamedDraw,
    ProgramRun,
    draws_for,
    first_difference,
    place_of,
)
from .sampling import Sampling
from .shared_draws import owners, same_draws
from .unnamed_noise import UnnamedNoise

Pair = tuple[How, How]  # what the record is in one run, and in the other
OnRun = Callable[[], None]
ROUNDED = 2.0**-20  # relative error of a float32 sum of up to 16 numbers


@dataclass(frozen=True)
class NeighbouringRuns:
    """Worlds of one round that share all draws: each victim's record as one of several things."""

    places: Mapping[int, AgentRound]  # by victim; a victim that has no part in the round is missing
    noised: Mapping[int, Mapping[MessageId, tuple[Response, ...]]]
    runs: Mapping[int, Mapping[How, ProgramRun]]  # victim -> change -> run
    base: ProgramRun = field(repr=False)
    hidden_before: Collection[int] = ()  # victims whose earlier noise their messages may not show
    others_hid: bool = False  # another agent has drawn noise before, and may not have sent it
    # By victim: messages that are not linear in their noise, or differ in size.
    unmeasured: Mapping[int, Mapping[MessageId, NotMeasured]] = field(default_factory=dict)
    revealed: Mapping[int, Revealed] = field(default_factory=dict)  # by victim
    # By victim: how many numbers a message has, or None, where that depends on its record alone.
    sizes: Mapping[int, Mapping[MessageId, Mapping[How, int | None]]] = field(default_factory=dict)

    def read(self, victim: int, threat_model: ThreatModel, name: str | None) -> list[MessageId]:
        """The victim's messages of this round that an adversary reads; None: of all names."""
        sent = self.places[victim].messages if victim in self.places else ()
        return [m for m in sent if m.read_by(threat_model) and name in (None, m.name)]

    def leak(
        self, victim: int, threat_model: ThreatModel, pair: Pair, name: str | None = None
    ) -> RoundLeak:
        """What an adversary reads of the victim's record in this round."""
        own = self.read(victim, threat_model, name)
        if not own:
            return NO_LEAK
        place, noised = self.places[victim], self.noised[victim]
        without, having = (self.runs[victim][how] for how in pair)
        moved = {
            m for m in place.others if not np.array_equal(without.messages[m], having.messages[m])
        }
        read = [
            m
            for m in noised
            if m.read_by(threat_model) and name in (None, m.name) and m not in moved
            and m.source not in threat_model.agents
        ]  # fmt: skip
        known = {
            j
            for j, draw in enumerate(place.draws)
            if place.owners_of(draw) & {*threat_model.agents}
        } | {
            response.draw
            for m in place.others
            if m.source in threat_model.agents and m not in moved
            for response in noised.get(m, ())
        }
        sizes = {m: [of[how] for how in pair] for m, of in self.sizes.get(victim, {}).items()}
        shown = [m for m in own if m in sizes and sizes[m][0] != sizes[m][1]]
        found = leak(place, noised, read, without, having, known, self._rounding(noised, read))
        if name is None and "present" in pair and all(m in own for m in noised):
            of_pair = [m for how in pair for m in self.revealed.get(victim, {}).get(how, ())]
            shown += [m for m in of_pair if m in own]
        found = RoundLeak(inf, inf, shown[0]) if shown else found
        everything = all(
            m.source in threat_model.agents or m.read_by(threat_model) for m in self._before(place)
        )
        may_hide = found.hidden or (self.others_hid and found.noiseless is not None)
        hidden = place.round > 1 and (may_hide or victim in self.hidden_before)
        state_is_known = everything and not hidden
        summed = any(m in self.base.summed for m in place.messages)
        return found if state_is_known and not summed else found._replace(upper=True)

    def _rounding(
        self, noised: Mapping[MessageId, Sequence[Response]], read: Sequence[MessageId]
    ) -> float:
        """How far sums in single precision may be off, of numbers as large as those with noise."""
        of = [(m, response.places) for m in read if m in self.base.single for response in noised[m]]
        sizes = [np.abs(self.base.messages[m][places]).max(initial=0.0) for m, places in of]
        return ROUNDED * max(sizes, default=0.0)

    def _before(self, place: AgentRound) -> Iterator[MessageId]:
        """The messages that the victim's own of this round may depend on."""
        several = len({m.name for m in place.messages}) > 1
        for m in self.base.messages:
            inside = m.round == place.round and several and place.victim in m.destinations
            if m.round < place.round or inside:
                yield m

    def worst(
        self, victim: int, threat_model: ThreatModel, adjacency: RecordAdjacency | None = None
    ) -> tuple[Pair, RoundLeak]:
        """The pair of worlds of this adjacency that shows most.

        Of those that show as much, the one that moves most of what is not measured.
        """
        found = [(pair, self.leak(victim, threat_model, pair)) for pair in self.pairs(adjacency)]
        return max(found, key=lambda one: (one[1].size, self._moved_unmeasured(victim, one[0])))

    def _moved_unmeasured(self, victim: int, pair: Pair) -> float:
        sizes = {m: len(self.base.messages[m]) for m in self.unmeasured.get(victim, ())}
        runs = [self.runs[victim][how] for how in pair if sizes]
        moved = [np.subtract(*(features_of(run, m, n) for run in runs)) for m, n in sizes.items()]
        return float(sum(np.square(one).sum() for one in moved))

    def pairs(self, adjacency: RecordAdjacency | None = None) -> list[Pair]:
        """Pairs of an adjacency; None: pairs with a record left out, if there are any."""
        every: list[How] = [*next(iter(self.runs.values()))]
        there: list[How] = [how for how in every if how != "absent"]
        if adjacency == "add-remove" or (adjacency is None and "absent" in every):
            return [("absent", how) for how in there]
        return list(combinations(there, 2))


class MeasuredRuns(NamedTuple):
    """The plain run, the same replayed, and neighbours in each round."""

    config: CapturedConfig
    sampling: Sampling
    plain: ProgramRun
    base: ProgramRun
    replay: World  # the world in which runs share every draw
    rounds: Mapping[int, NeighbouringRuns]
    not_measured: str = ""  # a round, with why
    otherwise: str = ""  # draws that depend on the record or on the run, as a sentence
    # By message: why other draws may hide it than what tap.noise returns, which moves nothing.
    left_behind: Mapping[MessageId, str] = {}
    leaves_out: bool = True  # a record; else others take its place alone
    of_noise_alone: Collection[MessageId] = ()  # messages that no draw moves which is not shown

    @property
    def unmeasured(self) -> dict[MessageId, NotMeasured]:
        """Messages that are not linear in their noise, or differ in size."""
        by_victim = [of for n in self.rounds.values() for of in n.unmeasured.values()]
        return {message: error for of in by_victim for message, error in of.items()}

    @property
    def unnamed(self) -> UnnamedNoise:
        """Noise that may be there, and that nobody has named."""
        sites = self.config.noise.sites
        return UnnamedNoise(self.plain, sites, self.left_behind, self.of_noise_alone)

    def hiding(self) -> str:
        """Noise that nobody has named and that may hide a record from all, as a clause, or ""."""
        everyone = ThreatModel(name="every link")
        for neighbours in self.rounds.values():
            for victim in neighbours.places:
                found = neighbours.worst(victim, everyone)[1]
                if hidden := self.unnamed.hidden(found):
                    return f"{hidden[0]} may be hidden by noise that was not named: {hidden[1]}"
        return ""


def measured_worlds(
    config: CapturedConfig, runs: KeptRuns, leaves_out: bool = True
) -> MeasuredRuns:
    """Run the program as often as its record and its noise need.

    Args:
        leaves_out: a record; else others take its place alone.

    Raises:
        RunError: a run fails; it sends nothing; runs that share every draw differ; a victim has no
            part in any of the rounds.
    """
    tape = runs.program.scratch / "tape"
    plain = runs.loaded([World(out=tape, seed=config.seed)])[0]
    refuse_absent(config, plain)
    same = same_draws(plain, config.noise.sites, config.record.rounds)
    replay = World(out=tape, seed=config.seed, tape=plain.write_tape(tape), same=same)
    base, again = runs.loaded([replay, replay])
    for other in (plain, again):
        refuse_difference(base, other)
        refuse_other_batches(config, base, other)
    sampling = Sampling.of(config.record, plain.batches)
    records = _records(config, plain)
    digests = {victim: _digests(plain, victim) for victim in config.record.victims}
    rounds: dict[int, NeighbouringRuns] = {}
    not_measured = ""
    for k in config.record.rounds:
        try:
            found = _neighbours(config, leaves_out, runs, replay, base, records, digests, k)
            if any(
                any(before.unmeasured.values()) for before in rounds.values()
            ):  # they tell no draws
                found = replace(found, hidden_before=tuple(found.places))
            rounds[k] = found
        except RunError as error:
            if not any(map(_shows_without_noise, rounds.values(), repeat(config.threat_model))):
                raise
            not_measured = f"round {k} was not measured: {error.problems[0].text}"
            break
    return MeasuredRuns(
        config, sampling, plain, base, replay, rounds, not_measured, leaves_out=leaves_out
    )


def _shows_without_noise(of_round: NeighbouringRuns, models: Sequence[ThreatModel]) -> bool:
    """Whether a round speaks against every claim, so that later ones need not be measured."""
    pairs = product(of_round.places, models, of_round.pairs())
    found = [of_round.leak(victim, model, pair) for victim, model, pair in pairs]
    return any(leak.noiseless is not None and not leak.upper for leak in found)


def _records(config: CapturedConfig, plain: ProgramRun) -> dict[tuple[int, int], dict[str, Any]]:
    """By victim and round: which record of the batch is changed, as fields of an AgentRound.

    It is the first record of the first round's batch wherever that occurs, and elsewhere the first.
    An agent that takes several local steps in a round may hold it in several batches of the round.
    """
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for victim in config.record.victims:
        own = _digests(plain, victim)
        places = {k: place_of(plain, victim, k) for k in config.record.rounds}
        acting = {k: place for k, place in places.items() if place is not None}
        if not acting or len(own) == 1 < len(places):
            raise _no_part(plain, victim, next(k for k, p in places.items() if p is None))
        first = own[next(iter(acting.values())).batch - 1]
        taken = [b for p in acting.values() for b in own[p.batch - 1 :][: p.n_batches]]
        apart = all(len(set(batch)) == len(batch) > 0 for batch in taken)
        found |= {(victim, k): _record_in(own, p, first, apart) for k, p in acting.items()}
    return found


def _record_in(
    own: Sequence[Sequence[str]], place: AgentRound, first: Sequence[str], apart: bool
) -> dict[str, Any]:
    """The first record of a batch, wherever it is in those of a place.

    Args:
        own: the digests of all batches of the agent.
        apart: whether no batch holds a record twice.
    """
    batches = own[place.batch - 1 :][: place.n_batches]
    i = batches[0].index(first[0]) if apart and first[0] in batches[0] else 0
    digest = batches[0][i] if apart else None
    numbered = enumerate(batches[1:], place.batch + 1)
    again = tuple((n, other.index(digest)) for n, other in numbered if digest in other)
    return {"record": i, "digest": digest, "again": again}


def _later(place: AgentRound, own: Sequence[Sequence[str]]) -> AgentRound:
    """The same without its first batch, no record of which moves anything that is sent."""
    later = place._replace(batch=place.batch + 1, n_batches=place.n_batches - 1)
    apart = place.digest is not None
    return later._replace(**_record_in(own, later, own[later.batch - 1], apart))


def _digests(plain: ProgramRun, victim: int) -> list[tuple[str, ...]]:
    return [taken.digests for taken in plain.batches if taken.agent == victim]


def _idle(
    places: Mapping[int, AgentRound], base: ProgramRun, runs: Sequence[ProgramRun]
) -> list[int]:
    """Victims with several batches, of whose changed record no message of the round says anything.

    Others of a round are local steps, or batches of an evaluation.
    """
    return [
        victim
        for victim, place in places.items()
        if place.n_batches > 1
        and all(first_difference(base, run, place.messages) is None for run in runs)
    ]


def _no_part(plain: ProgramRun, victim: int, k: int) -> RunError:
    if any((m.source, m.round) == (victim, k) for m in plain.messages):
        return RunError(
            "DPA059",
            f"agent {victim} takes no batch in round {k}; expected tap.batch(agent, records) "
            "before each message",
            "name in record.victims the agents that hold records, and in record.rounds rounds in "
            "which each takes a batch",
        )
    acting = [k for k in range(1, plain.n_rounds + 1) if place_of(plain, victim, k) is not None]
    return RunError(
        "DPA064",
        f"agent {victim} sends nothing in round {k} of {plain.n_rounds}; it takes a batch and "
        f"sends in rounds {', '.join(map(str, acting[:8])) or 'none'}",
        "name a round of each victim in record.rounds",
    )


def _neighbours(
    config: CapturedConfig,
    leaves_out: bool,
    playing: KeptRuns,
    replay: World,
    base: ProgramRun,
    records: Mapping[tuple[int, int], dict[str, Any]],
    digests: Mapping[int, Sequence[Sequence[str]]],
    k: int,
) -> NeighbouringRuns:
    victims, sites = config.record.victims, config.noise.sites
    of_all = tuple(d for d in draws_for(base, k) if is_noise(d, sites) and d.key not in replay.same)
    places = _places(config, replay, base, records, of_all, k)
    left = {"present"} if leaves_out else {"present", "absent"}
    hows = [how for how in config.record.hows() if how not in left]
    if not places:
        same: dict[How, ProgramRun] = dict.fromkeys(("present", *hows), base)
        return NeighbouringRuns({}, {}, dict.fromkeys(victims, same), base)
    until = replay.model_copy(update={"last": base.sent_until(k)})
    n_draws = max(len(place.draws) for place in places.values())
    changed_noise = [until.model_copy(update=u) for u in perturbed([*places.values()], n_draws)]
    foreign = {v: tuple(d.key for d in of_all if d not in p.draws) for v, p in places.items()}
    quiet = [until.model_copy(update={"silent": keys}) for keys in foreign.values() if keys]
    of_noise = playing.loaded([*changed_noise, *quiet])
    of_round = tuple(m for m in base.messages if m.round == k)
    drawn_by_several = any(len(place.owners_of(d)) > 1 for place in places.values() for d in of_all)
    together = [[*places]]
    if drawn_by_several or _agents_share(base, places, foreign, of_noise, n_draws):
        together = [[victim] for victim in places]  # a record may move messages of another, too
        for victim, place in places.items():
            others = tuple(m for m in of_round if m.source != victim)
            places[victim] = place._replace(draws=of_all, others=others)
        n_draws, one = len(of_all), list(places.values())[:1]
        of_noise = playing.loaded([until.model_copy(update=u) for u in perturbed(one, n_draws)])
    changed = _of_records(places, together, hows, playing, until, base, digests)
    earlier = [m for m in base.messages if m.round < k]
    of_others = [m for place in places.values() for m in place.others]
    played = [*of_noise, *(run for of in changed.values() for run in of.values())]
    for run in played:
        refuse_difference(base, run, earlier)
    for error in of_other_sizes(base, played, of_others).values():
        raise error
    silent, one_way, other_way = (of_noise[: 3 * n_draws][i::3] for i in range(3))
    noised, unmeasured = {}, {}
    for victim, place in places.items():
        unmeasured[victim] = of_other_sizes(base, played, place.messages)
        rest = place.without(unmeasured[victim])
        signed = list(zip(one_way, other_way, strict=True))
        noised[victim], not_linear = noise_of(rest, base, silent, signed)
        unmeasured[victim] |= not_linear
    hiding = hiding_before(base, sites, k)
    silent_ones = hiding - {m.source for m in earlier}
    hidden = [v for v in places if v in hiding]
    if silent_ones or (hiding and (replay.same or len(together) > 1)):
        hidden = [*places]  # what one agent keeps may appear in messages of all agents
    told: dict[int, Revealed] = {}
    if len(together) == 1:  # each agent's messages have its own noise
        asked = [asked_of(p, noised[v], unmeasured[v], base, silent) for v, p in places.items()]
        told = revealed([one for one in asked if one], changed, silent, playing, until, base)
    return NeighbouringRuns(places, noised, changed, base, hidden, bool(hiding), unmeasured, told)


def _places(
    config: CapturedConfig,
    replay: World,
    base: ProgramRun,
    records: Mapping[tuple[int, int], dict[str, Any]],
    of_all: Sequence[NamedDraw],
    k: int,
) -> dict[int, AgentRound]:
    """By victim: its part in the round, with its noise, which is in that of all agents."""
    places = {}
    for victim in config.record.victims:
        place = place_of(base, victim, k)
        if place is None:
            continue
        noise = [d for d in place.draws if is_noise(d, config.noise.sites)]
        keys = [replay.same.get(d.key, (d.key, 1))[0] for d in noise]
        draws = [d for d in (*of_all, *place.draws) if d.key in keys]
        places[victim] = place._replace(
            draws=tuple(dict.fromkeys(draws)),
            owners=owners(of_all, replay.same),
            **records[victim, k],
        )
    return places


def _of_records(
    places: dict[int, AgentRound],
    together: Sequence[Sequence[int]],
    hows: Sequence[How],
    playing: KeptRuns,
    until: World,
    base: ProgramRun,
    digests: Mapping[int, Sequence[Sequence[str]]],
) -> dict[int, dict[How, ProgramRun]]:
    """By victim: runs with each change of its record; batches that move nothing leave places.

    Args:
        together: victims whose records are changed in one run.
    """
    found: dict[int, dict[How, ProgramRun]] = {}
    for victims in together:
        idle = [*victims]
        while idle:
            changes = [sum((places[v].changes(how) for v in victims), ()) for how in hows]
            runs = playing.loaded([until.model_copy(update={"changes": one}) for one in changes])
            idle = _idle({v: places[v] for v in victims}, base, runs)
            places |= {victim: _later(places[victim], digests[victim]) for victim in idle}
        changed: dict[How, ProgramRun] = {"present": base, **dict(zip(hows, runs, strict=True))}
        found |= dict.fromkeys(victims, changed)
    return found


def hiding_before(base: ProgramRun, sites: Sequence[str], k: int) -> frozenset[int]:
    """Agents that have drawn more numbers of noise before a round than they have sent.

    What is not determined then may hide messages of the round too, as noise that is drawn once and
    added in every round, and nothing but the noise drawn for the round is measured. An agent that
    has sent nothing may have drawn it for others.
    """
    drawn, sent = Counter[int](), Counter[int]()
    spans = {agent: base.span(agent, k) for agent in {draw.agent for draw in base.draws}}
    of_all, _ = base.window(k)
    for draw in base.draws:
        begin, end = spans[draw.agent]
        before = begin if end >= 0 else max(begin, of_all)  # agent that sends nothing now
        if is_noise(draw, sites) and draw.sequence < before:
            drawn[draw.agent] += len(base.tape[draw.key])
    contents = {  # one content, even if several receivers get it
        (message.source, content.tobytes()): len(content)
        for message, content in base.messages.items()
        if message.round < k
    }
    for (agent, _), n in contents.items():
        sent[agent] += n
    return frozenset(agent for agent, n in drawn.items() if n > sent[agent])


def is_noise(draw: NamedDraw, sites: Sequence[str]) -> bool:
    """Whether a draw is one of ``noise.sites``, which names all if it is empty."""
    return not sites or draw.name in sites


def _agents_share(
    base: ProgramRun,
    places: Mapping[int, AgentRound],
    foreign: Mapping[int, tuple[str, ...]],
    runs: Sequence[ProgramRun],
    n_draws: int,
) -> bool:
    """Whether a draw of one agent moves a message of another in the round, directly or not.

    Args:
        foreign: by victim: the draws that are not its own.
        runs: of ``perturbed``, and without the foreign draws of each victim that has some.
    """
    without_own, quiet = runs[: 3 * n_draws : 3], runs[3 * n_draws :]
    k = next(iter(places.values())).round
    victims = [victim for victim, keys in foreign.items() if keys]
    for victim, run in zip(victims, quiet, strict=True):
        if first_difference(base, run, places[victim].messages) is not None:
            return True
    beside = [m for m in base.messages if m.round == k and m.source not in places]
    return any(first_difference(base, run, beside) is not None for run in without_own)


def perturbed(places: Sequence[AgentRound], n_draws: int) -> Iterator[dict[str, object]]:
    """Worlds without the j-th draw of every victim, and with two patterns of its signs."""
    for j in range(n_draws):
        keys = tuple(place.draws[j].key for place in places if j < len(place.draws))
        yield {"silent": keys}
        yield {"signs": keys, "sign_seed": 0}
        yield {"signs": keys, "sign_seed": 1}
