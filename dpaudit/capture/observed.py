"""What one run of a program sent, drew and took, as numbers that runs can be compared by."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.errors import RunError
from dpaudit.files.captured_file import MessageOptions
from dpaudit.files.recorded import Event, read_lines
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import BATCHES, RECORDS, TAPE, Change, How, Taken, draw_key

from .recording import Recording
from .reductions import Contents, is_summed, numbers

FAMILIES: dict[str, NoiseFamily] = {"gaussian": "gaussian", "laplace": "laplace"}


class MessageId(NamedTuple):
    """The same message in every world."""

    source: int
    destinations: tuple[int, ...]
    name: str
    round: int
    nth: int = 0  # of those of this name to these destinations in this round

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


@dataclass(frozen=True)
class Observed:
    """One run, read from the folder it has left."""

    path: Path
    options: MessageOptions = MessageOptions()

    @cached_property
    def messages(self) -> dict[MessageId, Array]:
        """Contents, flat and in float64, in the order in which they were sent."""
        contents = Contents(self._recording, self._events, self.options.reductions)
        return {
            message: contents.of(event)
            for message, event in zip(self._ids, self._events, strict=True)
        }

    @cached_property
    def sequence(self) -> dict[MessageId, int]:
        """When each was sent, among what its agent drew and took."""
        return {m: event.sequence for m, event in zip(self._ids, self._events, strict=True)}

    @cached_property
    def summed(self) -> frozenset[MessageId]:
        """Messages of which others see the sum alone."""
        pairs = zip(self._ids, self._events, strict=True)
        return frozenset(m for m, event in pairs if is_summed(event, self.options.reductions))

    @cached_property
    def _recording(self) -> Recording:
        return Recording(self.path)

    @cached_property
    def _events(self) -> list[Event]:
        return [
            event
            for event in self._recording.events
            if event.round is not None and event.call_site not in self.options.ignore
        ]

    @cached_property
    def _ids(self) -> list[MessageId]:
        counts: Counter[MessageId] = Counter()
        ids = []
        for event in self._events:
            assert event.round is not None
            first = MessageId(event.source, event.destinations, event.call_site, event.round)
            ids.append(first._replace(nth=counts[first]))
            counts[first] += 1
        return ids

    @cached_property
    def draws(self) -> list[NamedDraw]:
        return list(self._named_draws())

    @cached_property
    def tape(self) -> dict[str, Array]:
        """The numbers of each draw, flat and in float64."""
        return {key: numbers(values) for key, values in self.stored_tape.items()}

    @cached_property
    def batches(self) -> list[Taken]:
        return list(read_lines(self.path / BATCHES, Taken))

    @cached_property
    def records(self) -> dict[tuple[int, int], list[Tensor]]:
        """The parts of batches, by agent and by 1, 2, ..., where the world keeps them."""
        found: dict[tuple[int, int], list[Tensor]] = {}
        stored = load_file(self.path / RECORDS)
        for key in sorted(stored, key=lambda key: [int(part) for part in key.split("/")]):
            agent, batch, _ = map(int, key.split("/"))
            found.setdefault((agent, batch), []).append(stored[key])
        return found

    def told_before(self, message: MessageId, name: str) -> list[tuple[Event, Array]]:
        """What its agent had sent or been sent by a name, before round 1 too, in order of time."""
        end = next(e for m, e in zip(self._ids, self._events, strict=True) if m == message).time
        agent, events = message.source, self._recording.events
        told = [
            e
            for e in events
            if e.call_site == name and e.time < end and agent in (e.source, *e.destinations)
        ]
        contents = Contents(self._recording, told, self.options.reductions)
        return [(event, contents.of(event)) for event in told]

    @property
    def agents(self) -> list[int]:
        """Those that sent or received."""
        return sorted({a for m in self.messages for a in (m.source, *m.destinations)})

    @property
    def n_rounds(self) -> int:
        return max((message.round for message in self.messages), default=0)

    def sent_until(self, k: int) -> dict[int, int]:
        """By agent: how many messages, ignored ones too, it has sent when round k is over."""
        sent: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for event, of_round in self._all_rounds:
            counts[event] += 1
            if of_round is not None and of_round <= k:
                sent[event] = counts[event]
        return sent

    @cached_property
    def _all_rounds(self) -> list[tuple[int, int | None]]:
        """Source and round of every event; None: of a message that is none of the protocol's."""
        ignored = self.options.ignore
        return [
            (e.source, None if e.call_site in ignored else e.round) for e in self._recording.events
        ]

    @cached_property
    def drawing_lines(self) -> tuple[str, ...]:
        """Names and call sites of all draws that were seen, noise or not."""
        return tuple(dict.fromkeys(draw.call_site for draw in self._recording.draws))

    def loaded(self) -> "Observed":
        """The same with everything read, so that its folder may go."""
        parts = (self.messages, self.sequence, self.summed, self._all_rounds, self.drawing_lines)
        for part in (*parts, self.draws, self.tape, self.batches):
            assert part is not None
        return self

    @cached_property
    def stored_tape(self) -> dict[str, Tensor]:
        """The draws as they were, of their shapes and types."""
        try:
            return load_file(self.path / TAPE)
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError("DPA066", f"{self.path / TAPE}: {error}") from None

    def write_tape(self, folder: Path) -> Path:
        """Its draws as a file of their own."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.stored_tape, folder / TAPE)
        return folder / TAPE

    def _named_draws(self) -> Iterator[NamedDraw]:
        for draw in self._recording.draws:
            scale = draw.parameters[1] if len(draw.parameters) > 1 else None
            if draw.rank is not None and draw.operator in FAMILIES and scale is not None:
                key = draw_key(draw.rank, draw.occurrence, draw.call_site)
                family = FAMILIES[draw.operator]
                yield NamedDraw(
                    key, draw.call_site, draw.rank, draw.sequence, scale, family, draw.round
                )


class Place(NamedTuple):
    """One agent's part in one round: what it sends, the noise drawn for that, its batch."""

    victim: int
    round: int
    messages: tuple[MessageId, ...]
    draws: tuple[NamedDraw, ...]  # its own, or those of all where agents share noise
    batch: int  # 1 is its first
    record: int = 0  # which of the batch
    others: tuple[MessageId, ...] = ()  # messages of other agents, where agents share noise
    owners: Mapping[str, frozenset[int]] = {}  # of draws that several agents have made, by key

    def change(self, how: How) -> Change:
        """What becomes of the record."""
        return Change(agent=self.victim, batch=self.batch, how=how, record=self.record)

    def owners_of(self, draw: NamedDraw) -> frozenset[int]:
        return self.owners.get(draw.key, frozenset({draw.agent}))


def place_of(run: Observed, victim: int, k: int) -> Place:
    """What an agent does after its messages of the round before and until its last one of round k.

    Raises:
        RunError: it sends nothing in that round, or takes no batch.
    """
    sent = tuple(m for m in run.messages if (m.source, m.round) == (victim, k))
    if not sent:
        raise RunError("DPA064", f"agent {victim} sends nothing in round {k} of {run.n_rounds}")
    begin, end = _span(run, victim, k)
    draws = tuple(d for d in run.draws if d.agent == victim and begin < d.sequence < end)
    if any(message in run.summed for message in sent):  # the noise of all is in a sum
        of_round = [d for d in run.draws if d.round == k]
        draws = tuple(sorted(of_round, key=lambda d: (d.agent, d.sequence)))
    own = [taken for taken in run.batches if taken.agent == victim]
    batch = next((i for i, t in enumerate(own, 1) if begin < t.sequence < end), None)
    if batch is None:
        raise RunError(
            "DPA059",
            f"agent {victim} takes no batch in round {k}; expected tap.batch(agent, records) "
            "before each message",
        )
    return Place(victim, k, sent, draws, batch)


def draws_for(run: Observed, k: int) -> tuple[NamedDraw, ...]:
    """What all agents draw for round k, as ``place_of``; who sends nothing, by the draw's round."""
    spans = {agent: _span(run, agent, k) for agent in {m.source for m in run.messages}}
    found = []
    for draw in run.draws:
        begin, end = spans.get(draw.agent, (-1, -1))
        if begin < draw.sequence < end or (end < 0 and draw.round == k):
            found.append(draw)
    return tuple(sorted(found, key=lambda d: (d.agent, d.sequence)))


def _span(run: Observed, agent: int, k: int) -> tuple[int, int]:
    """The last message of an agent before round k, and its last one of round k; -1: none."""
    sent = [(m.round, s) for m, s in run.sequence.items() if m.source == agent]
    begin = max((s for of, s in sent if of < k), default=-1)
    return begin, max((s for of, s in sent if of == k), default=-1)


def first_difference(
    a: Observed, b: Observed, of: Sequence[MessageId] | None = None
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
