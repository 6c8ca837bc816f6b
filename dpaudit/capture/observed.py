"""What one run of a program sent, drew and took, as numbers that runs can be compared by."""

from collections import Counter
from collections.abc import Iterator, Sequence
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
from dpaudit.files.recorded import Event, read_lines
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import BATCHES, TAPE, Taken, draw_key

from .recording import Recording

FAMILIES: dict[str, NoiseFamily] = {"gaussian": "gaussian", "laplace": "laplace"}


class MessageId(NamedTuple):
    """The same message in every world."""

    source: int
    destinations: tuple[int, ...]
    name: str
    round: int

    def __str__(self) -> str:
        to = ", ".join(map(str, self.destinations)) or "nobody"
        return f'"{self.name}" of round {self.round} from agent {self.source} to {to}'

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


@dataclass(frozen=True)
class Observed:
    """One run, read from the folder it has left."""

    path: Path

    @cached_property
    def messages(self) -> dict[MessageId, Array]:
        """Contents, flat and in float64, in the order in which they were sent."""
        recording = Recording(self.path)
        return {
            _id(event): np.concatenate([_numbers(recording.content(s)) for s in event.tensors])
            for event in self._events
        }

    @cached_property
    def sequence(self) -> dict[MessageId, int]:
        """When each was sent, among what its agent drew and took."""
        return {_id(event): event.sequence for event in self._events}

    @cached_property
    def _events(self) -> list[Event]:
        return [event for event in Recording(self.path).events if event.round is not None]

    @cached_property
    def draws(self) -> list[NamedDraw]:
        return list(self._named_draws())

    @cached_property
    def tape(self) -> dict[str, Array]:
        """The numbers of each draw, flat and in float64."""
        return {key: _numbers(values) for key, values in self.stored_tape.items()}

    @cached_property
    def batches(self) -> list[Taken]:
        return list(read_lines(self.path / BATCHES, Taken))

    @property
    def agents(self) -> list[int]:
        """Those that sent or received."""
        return sorted({a for m in self.messages for a in (m.source, *m.destinations)})

    @property
    def n_rounds(self) -> int:
        return max((message.round for message in self.messages), default=0)

    def sent_until(self, k: int) -> dict[int, int]:
        """By agent: how many messages it has sent when all of round k are sent."""
        sent: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for message in self.messages:
            counts[message.source] += 1
            if message.round <= k:
                sent[message.source] = counts[message.source]
        return sent

    def loaded(self) -> "Observed":
        """The same with everything read, so that its folder may go."""
        for part in (self.messages, self.sequence, self.draws, self.tape, self.batches):
            assert part is not None
        return self

    @cached_property
    def stored_tape(self) -> dict[str, Tensor]:
        """The draws as they were, of their shapes and types."""
        try:
            return load_file(self.path / TAPE)
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"{self.path / TAPE}: {error}") from None

    def write_tape(self, folder: Path) -> Path:
        """Its draws as a file of their own."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.stored_tape, folder / TAPE)
        return folder / TAPE

    def _named_draws(self) -> Iterator[NamedDraw]:
        for draw in Recording(self.path).draws:
            scale = draw.parameters[1] if len(draw.parameters) > 1 else None
            if draw.rank is not None and draw.operator in FAMILIES and scale is not None:
                key = draw_key(draw.rank, draw.occurrence, draw.call_site)
                family = FAMILIES[draw.operator]
                yield NamedDraw(key, draw.call_site, draw.rank, draw.sequence, scale, family)


class Place(NamedTuple):
    """One agent's part in one round: what it sends, the noise drawn for that, its batch."""

    victim: int
    round: int
    messages: tuple[MessageId, ...]
    draws: tuple[NamedDraw, ...]
    batch: int  # 1 is its first


def place_of(run: Observed, victim: int, k: int) -> Place:
    """What an agent does after its messages of the round before and until its last one of round k.

    Raises:
        RunError: it sends nothing in that round, or takes no batch.
    """
    sent = tuple(m for m in run.messages if (m.source, m.round) == (victim, k))
    if not sent:
        raise RunError(f"agent {victim} sends nothing in round {k} of {run.n_rounds}")
    before = [s for m, s in run.sequence.items() if m.source == victim and m.round < k]
    begin, end = max(before, default=-1), max(run.sequence[m] for m in sent)
    draws = tuple(d for d in run.draws if d.agent == victim and begin < d.sequence < end)
    own = [taken for taken in run.batches if taken.agent == victim]
    batch = next((i for i, t in enumerate(own, 1) if begin < t.sequence < end), None)
    if batch is None:
        raise RunError(
            f"agent {victim} takes no batch in round {k}; expected tap.batch(agent, records) "
            "before each message"
        )
    return Place(victim, k, sent, draws, batch)


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


def _id(event: Event) -> MessageId:
    assert event.round is not None
    name = event.call_site
    return MessageId(event.source, event.destinations, name, event.round)


def _numbers(content: Tensor) -> Array:
    return content.reshape(-1).double().numpy()
