"""What one run of a program sent, drew and took, as numbers that runs can be compared by."""

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import save_file
from torch import Tensor, view_as_real

from dpaudit.accounting.privacy_loss import Array, Integers, NoiseFamily
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig, MessageOptions
from dpaudit.files.recorded import RecordedBatch, RecordedDraw, RecordedEvent, SentTensor
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import TAPE, Change, How, World, draw_key
from dpaudit.recorder.player import RAW

from .channels import routed
from .process_logs import (
    Record,
    batches_of,
    draws_of,
    events_of,
    given_by_system,
    in_threads,
    processes_in,
    unseen_by,
    without_given,
)
from .rounds import RoundsFound, numbered, rounds_of
from .simulation import Counting, with_counted_rounds

SINGLE = {"float32"}
FAMILIES: dict[str, NoiseFamily] = {"gaussian": "gaussian", "laplace": "laplace"}
BYTES = {"uint8"}
NAMED = 3  # tensors of a message
SUMMED = "all_reduce"  # the one reduction to which every part is recorded


class MessageId(NamedTuple):
    """The same message in every world."""

    source: int
    destinations: tuple[int, ...]
    name: str
    round: int
    nth: int = 0  # number among messages with this name, destinations and round

    def __str__(self) -> str:
        to = ", ".join(map(str, self.destinations)) or "nobody"
        which = f" (number {self.nth + 1} of it)" if self.nth else ""
        return f'"{self.name}"{which} of round {self.round} from agent {self.source} to {to}'

    def read_by(self, threat_model: ThreatModel) -> bool:
        return any(threat_model.sees(self.source, to) for to in self.destinations)


class NamedDraw(NamedTuple):
    """One draw of noise."""

    key: str
    name: str
    agent: int
    sequence: int
    scale: float
    family: NoiseFamily
    round: int | None = None


class TakenBatch(NamedTuple):
    """One batch that an agent took."""

    agent: int
    sequence: int  # rises over batches, draws and messages together
    records: int
    digests: tuple[str, ...]  # one per record, in a run without replayed draws


class RoundNumbers:
    """Which round each message and draw of a run is of.

    Those of a simulation are counted. Runs of other programs have the rounds of the first run,
    because one that ends early has too few to find them in; so has what begins a round.
    """

    def __init__(self, config: CapturedConfig) -> None:
        self._options, self._counted = config.messages, config.program.ranks is None
        self._of: dict[Hashable, int | None] = {}
        self._counting: Counting | None = None

    def numbered(
        self,
        events: Sequence[RecordedEvent],
        draws: Sequence[RecordedDraw],
        batches: Sequence[RecordedBatch],
        first: bool,
        threads: bool,
    ) -> tuple[list[RecordedEvent], list[RecordedDraw]]:
        """Events and draws of a run with their rounds."""
        if self._counted:
            if first or self._counting is None:
                self._counting = Counting.of(events, batches, threads)
            return with_counted_rounds(events, draws, batches, self._counting)
        found = self._found(events, draws, first)
        return numbered(events, found), numbered(draws, found)

    def _found(
        self, events: Sequence[RecordedEvent], draws: Sequence[RecordedDraw], first: bool
    ) -> RoundsFound:
        """The rounds of a run; those of the first one are for all others."""
        both: list[RecordedEvent | RecordedDraw] = [*events, *draws]
        places = [(one.process, one.sequence) for one in both]
        named = list(zip(_names(both), places, strict=True))
        if first and not self._of:
            protocol = [e for e in events if e.call_site not in self._options.ignore]
            rounds = rounds_of(protocol, draws, self._options.round_starts_at or None)
            self._of = {name: rounds.get(place) for name, place in named}
        return {place: self._of.get(name) for name, place in named}


def _names(both: Sequence[RecordedEvent | RecordedDraw]) -> Iterator[Hashable]:
    """The same message or draw has the same name in every run."""
    counts: Counter[Hashable] = Counter()
    for one in both:
        if isinstance(one, RecordedDraw):
            yield one.rank, one.call_site, one.occurrence
            continue
        what = one.source, one.operator, one.call_site, one.destinations, one.tag
        counts[what] += 1
        yield what, counts[what]


class ProgramRun:
    """One run, from the logs in the folder that it has left.

    Args:
        world: of the run; where draws are its own, the rounds of all runs are found in it.

    Raises RunError where a reduction is not what the options say.
    """

    def __init__(self, world: World, options: MessageOptions, rounds: RoundNumbers) -> None:
        self.world, self._options = world, options
        self._processes, self.left_out = routed(processes_in(world.out / RAW))
        events, draws = events_of(self._processes, _described), draws_of(self._processes)
        self.taken = batches_of(self._processes)
        first = world.tape is None
        threads = in_threads(self._processes)
        self._all, self.all_draws = rounds.numbered(events, draws, self.taken, first, threads)
        self._together: defaultdict[Hashable, list[RecordedEvent]] = defaultdict(list)
        for event in self._all:
            self._together[_call(event)].append(event)
        self._all = [event for event in self._all if not self._is_cut_off(event)]

    @cached_property
    def _ids(self) -> dict[MessageId, RecordedEvent]:
        counts: Counter[MessageId] = Counter()
        ids = {}
        for event in self._all:
            if event.round is not None and event.call_site not in self._options.ignore:
                first = MessageId(event.source, event.destinations, event.call_site, event.round)
                ids[first._replace(nth=counts[first])] = event
                counts[first] += 1
        return ids

    @cached_property
    def messages(self) -> dict[MessageId, Array]:
        """Contents, flat and in float64, in the order in which they were sent."""
        return {message: self._content(event) for message, event in self._ids.items()}

    def tensors_with(self, message: MessageId, places: Integers) -> str:
        """The tensors of a message that hold numbers at these places; "" if it has but one."""
        tensors = self._ids[message].tensors
        sizes = [prod(t.shape) * (2 if t.dtype.startswith("complex") else 1) for t in tensors]
        if len(tensors) < 2 or sum(sizes) != len(self.messages[message]):
            return ""
        of = np.unique(np.searchsorted(np.cumsum(sizes), places, side="right"))
        names = [f'"{tensors[i].name}"' for i in of]
        return ", ".join(names) if len(names) <= NAMED else f"{len(names)} tensors"

    def span(self, agent: int, k: int) -> tuple[int, int]:
        """When an agent sent its last message before round k, and its last one of it; -1: none."""
        sent = [(m.round, e.sequence) for m, e in self._ids.items() if m.source == agent]
        begin = max((sequence for of, sequence in sent if of < k), default=-1)
        return begin, max((sequence for of, sequence in sent if of == k), default=-1)

    def window(self, k: int) -> tuple[int, int]:
        """The same of all agents, where one process sends all; otherwise no time is of a round."""
        if len({event.process for event in self._ids.values()}) > 1:
            return -1, -1
        sent = [(m.round, e.sequence) for m, e in self._ids.items()]
        begin = max((sequence for of, sequence in sent if of < k), default=-1)
        return begin, max((sequence for of, sequence in sent if of == k), default=-1)

    @property
    def beside(self) -> tuple[str, ...]:
        """Texts, and the identity of bytes, that messages hold beside numbers."""
        return tuple(r["text"] for p in self._processes for r in p.of_kind("beside"))

    @cached_property
    def given_by_system(self) -> frozenset[str]:
        """Its ports and the numbers of its processes, which say nothing of a record."""
        return given_by_system(self._processes)

    @cached_property
    def seen_by_receivers(self) -> frozenset[int]:
        """Agents of which a message was seen where it was received, and not where it was sent."""
        kept = [(e, self._processes[e.process].sent[e.sequence]) for e in self._all]
        return frozenset(event.source for event, record in kept if record.get("back"))

    @cached_property
    def summed(self) -> frozenset[MessageId]:
        """Messages of which others see the sum alone."""
        return frozenset(m for m, event in self._ids.items() if self._is_summed(event))

    @cached_property
    def as_bytes(self) -> frozenset[MessageId]:
        """Messages of bytes, in which no numbers were recognised, beside single whole ones."""
        counted = {
            m: [t for t in e.tensors if t.shape or "int" not in t.dtype]
            for m, e in self._ids.items()
        }
        return frozenset(m for m, of in counted.items() if {t.dtype for t in of} == BYTES)

    @cached_property
    def draws(self) -> list[NamedDraw]:
        """The draws of noise."""
        found = []
        for draw in self.all_draws:
            agent, name, scale = draw.rank, draw.call_site, (*draw.parameters, None, None)[1]
            if agent is not None and draw.operator in FAMILIES and scale is not None:
                key, family = draw_key(agent, draw.occurrence, name), FAMILIES[draw.operator]
                found.append(NamedDraw(key, name, agent, draw.sequence, scale, family, draw.round))
        return found

    @cached_property
    def drawing_lines(self) -> tuple[str, ...]:
        """Names and call sites of all draws that were seen, noise or not."""
        return tuple(dict.fromkeys(draw.call_site for draw in self.all_draws))

    @cached_property
    def tape(self) -> dict[str, Array]:
        """The numbers of each draw, flat and in float64."""
        return {key: numbers(values) for key, values in self._stored_tape.items()}

    @cached_property
    def _stored_tape(self) -> dict[str, Tensor]:
        """The draws as they were, of their shapes and types."""
        return {
            draw_key(record["rank"], record["occurrence"], record["site"]): tensor
            for process in self._processes
            for record in process.of_kind("noise")
            for tensor in process.tensors(record)
        }

    def write_tape(self, folder: Path) -> Path:
        """Write its draws as a file of their own, which stays when the run is gone."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self._stored_tape, folder / TAPE)
        return folder / TAPE

    @cached_property
    def batches(self) -> list[TakenBatch]:
        """All batches, each agent's in the order in which it took them."""
        return [
            TakenBatch(r["agent"], r["sequence"], r["records"], tuple(r.get("digests", ())))
            for process in self._processes
            for r in process.of_kind("batch")
        ]

    @cached_property
    def records(self) -> dict[tuple[int, int], list[Tensor]]:
        """The parts of batches, by agent and by 1, 2, ..., where the world keeps them."""
        found = {
            (r["agent"], r["number"]): process.tensors(r)
            for process in self._processes
            for r in process.of_kind("batch")
        }
        return dict(sorted(found.items()))

    def refuse_agents_of_several_processes(self) -> None:
        """Raises RunError where batches or draws of an agent are numbered anew in a process."""
        first: dict[Hashable, int] = {}
        for i, process in enumerate(self._processes):
            for r in process.of_kind("batch", "noise"):
                agent = r["agent"] if r["kind"] == "batch" else r["rank"]
                what = r["kind"], agent, r.get("number"), r.get("site"), r.get("occurrence")
                if first.setdefault(what, i) != i:
                    raise RunError(
                        "DPA060",
                        f"agent {agent} is played by several processes, and each numbers its "
                        "batches and draws anew; expected one process for all rounds of an agent",
                        "record a run of one round, or keep the agent's process from round to "
                        "round",
                    )

    def known_before(self, message: MessageId, name: str) -> list[tuple[RecordedEvent, Array]]:
        """What its agent had sent or been sent by a name, before round 1 too, in order of time."""
        end, agent = self._ids[message].time, message.source
        return [
            (e, self._content(e))
            for e in self._all
            if e.call_site == name and e.time < end and agent in (e.source, *e.destinations)
        ]

    @property
    def agents(self) -> list[int]:
        """Agents that sent or received."""
        return sorted({a for m in self._ids for a in (m.source, *m.destinations)})

    @property
    def n_rounds(self) -> int:
        return max((message.round for message in self._ids), default=0)

    def sent_until(self, k: int) -> dict[int, int]:
        """By agent: how many messages, ignored ones too, it has sent when round k is over."""
        sent: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for event in self._all:
            counts[event.source] += 1
            if event.call_site not in self._options.ignore and event.round in range(1, k + 1):
                sent[event.source] = counts[event.source]
        return sent

    @property
    def all_sent(self) -> list[tuple[RecordedEvent, Array]]:
        """Every message, before round 1 and those that are ignored too, with what others see."""
        return [(event, self._content(event)) for event in self._all]

    @cached_property
    def single(self) -> frozenset[MessageId]:
        """Messages of numbers in single precision."""
        return frozenset(m for m, e in self._ids.items() if {t.dtype for t in e.tensors} == SINGLE)

    @property
    def id_of(self) -> dict[tuple[int, int], MessageId]:
        """The messages that have a round, by process and sequence."""
        return {(event.process, event.sequence): m for m, event in self._ids.items()}

    @property
    def unseen(self) -> tuple[str, ...]:
        """What the recorder says that it could not see, a sentence each."""
        return (*unseen_by(self._processes), *self.left_out)

    def loaded(self) -> "ProgramRun":
        """The same with everything read, so that its folder may go."""
        for part in (self.messages, self.tape):
            assert part is not None
        for process in self._processes:
            process.__dict__.pop("contents", None)
        return self

    def _is_summed(self, event: RecordedEvent) -> bool:
        return self._options.reductions == "sum only" and event.operator == SUMMED

    def _is_cut_off(self, event: RecordedEvent) -> bool:
        """Whether a run was ended before all ranks gave their part of this last sum of a line."""
        if not self._is_summed(event):
            return False
        n, (*line, last) = len(event.group), _call(event)
        calls = [(*line, i) for i in range(last + 1)]
        is_whole = [len(self._together.get(call, ())) == n for call in calls]
        return any(is_whole) and not is_whole[-1] and (*line, last + 1) not in self._together

    def _sent(self, event: RecordedEvent) -> list[Tensor]:
        process = self._processes[event.process]
        return without_given(process.tensors(process.sent[event.sequence]), self.given_by_system)

    def _content(self, event: RecordedEvent) -> Array:
        """What others see of a message: what was sent, or of a reduction the sum or a row alone."""
        if self._is_summed(event):
            return self._summed(event)
        parts = self._sent(event)
        if event.operator == SUMMED and self._options.reductions == "rows of a padded stack":
            parts = [_own_row(event, stack) for stack in parts]
        return np.concatenate([numbers(part) for part in parts]) if parts else np.empty(0)

    def _summed(self, event: RecordedEvent) -> Array:
        events = self._together[_call(event)]
        if len(events) != len(event.group):
            raise RunError(
                "DPA060",
                f"{event.call_site}: {len(events)} of {len(event.group)} ranks contribute from "
                'this line; messages.reductions = "sum only" needs all',
            )
        parts = [np.concatenate([numbers(part) for part in self._sent(e)]) for e in events]
        return np.asarray(sum(parts))


def _described(number: int, record: Record) -> dict[str, Any]:
    """The tensors of a message, whose contents stay where its process wrote them."""
    tensors = [
        SentTensor(name=name, shape=tuple(shape), dtype=dtype, file="", key="", sha256="")
        for name, shape, dtype, _, _ in record.get("tensors", ())
    ]
    return {"tensors": tuple(tensors), "inconsistent": False}


def _call(event: RecordedEvent) -> tuple[str, tuple[int, ...], str, int]:
    return event.operator, event.group, event.call_site, event.occurrence


def _own_row(event: RecordedEvent, stack: Tensor) -> Tensor:
    """The row of the rank that sends a stack of one for each rank."""
    place, n = event.group.index(event.source), len(event.group)
    if stack.shape[:1] != (n,) or bool(stack[[i for i in range(n) if i != place]].any()):
        raise RunError(
            "DPA060",
            f"{event.call_site}: rank {event.source} contributes {tuple(stack.shape)}; "
            f'messages.reductions = "rows of a padded stack" expects {n} rows, and zeros in those '
            "of others",
        )
    return stack[place]


def numbers(content: Tensor) -> Array:
    """Flat and in float64; of a complex number its two parts."""
    if content.is_complex():
        content = view_as_real(content.resolve_conj())
    return content.reshape(-1).double().numpy()


class AgentRound(NamedTuple):
    """One agent's part in one round: what it sends, the noise drawn for that, its batch."""

    victim: int
    round: int
    messages: tuple[MessageId, ...]
    draws: tuple[NamedDraw, ...]  # its own, or those of all where agents share noise
    batch: int  # the first of the round; 1 is the agent's first
    n_batches: int = 1  # batches in the round, one per local step
    record: int = 0  # index of the record in the batch
    digest: str | None = None  # of the record; None: it may be in no other batch
    again: tuple[tuple[int, int], ...] = ()  # other batches of the round that hold it, and where
    others: tuple[MessageId, ...] = ()  # messages of other agents, where agents share noise
    owners: Mapping[str, frozenset[int]] = {}  # key of a draw -> the agents that made it

    def changes(self, how: How) -> tuple[Change, ...]:
        """What becomes of the record, in every batch of the round that holds it."""
        places = ((self.batch, self.record), *self.again)
        return tuple(Change(agent=self.victim, batch=b, how=how, record=i) for b, i in places)

    def without(self, messages: Container[MessageId]) -> "AgentRound":
        """The same, but for some of its messages."""
        return self._replace(messages=tuple(m for m in self.messages if m not in messages))

    def owners_of(self, draw: NamedDraw) -> frozenset[int]:
        return self.owners.get(draw.key, frozenset({draw.agent}))


def place_of(run: ProgramRun, victim: int, k: int) -> AgentRound | None:
    """What an agent does after its messages of the round before and until its last one of round k.

    None: it sends nothing in that round, or takes no batch.
    """
    sent = tuple(m for m in run.messages if (m.source, m.round) == (victim, k))
    begin, end = run.span(victim, k)
    draws = tuple(d for d in run.draws if d.agent == victim and begin < d.sequence < end)
    if any(message in run.summed for message in sent):  # the noise of all is in a sum
        of_round = [d for d in run.draws if d.round == k]
        draws = tuple(sorted(of_round, key=lambda d: (d.agent, d.sequence)))
    own = [taken for taken in run.batches if taken.agent == victim]
    taken = [i for i, t in enumerate(own, 1) if begin < t.sequence < end]
    return AgentRound(victim, k, sent, draws, taken[0], len(taken)) if sent and taken else None


def draws_for(run: ProgramRun, k: int) -> tuple[NamedDraw, ...]:
    """What each agent draws for round k, as ``place_of``; without a message in it, by its time.

    An agent that does not send in a round may draw noise that others add: as one that deals noise
    to all, or the one of a pair that sleeps.
    """
    spans = {agent: run.span(agent, k) for agent in {draw.agent for draw in run.draws}}
    begins, ends = run.window(k)
    found = []
    for draw in run.draws:
        begin, end = spans[draw.agent]
        beside = draw.round == k or begins < draw.sequence < ends
        if begin < draw.sequence < end or (end < 0 and beside):
            found.append(draw)
    return tuple(sorted(found, key=lambda d: (d.agent, d.sequence)))


def first_difference(
    a: ProgramRun, b: ProgramRun, of: Sequence[MessageId] | None = None
) -> MessageId | None:
    """The first message that two runs do not both have with the same content; None: there is none.

    Args:
        of: the messages to compare; None: all that one of them has.
    """
    for message in of if of is not None else dict.fromkeys((*a.messages, *b.messages)):
        one, other = a.messages.get(message), b.messages.get(message)
        if one is None or other is None or not np.array_equal(one, other, equal_nan=True):
            return message
    return None
