"""What the ranks of one run have written, as the files of one run: messages, noise, batches."""

import shutil
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dpaudit.errors import RunError
from dpaudit.files.captured_file import MessageOptions
from dpaudit.files.recorded import DRAWS, EVENTS, Draw, Event, write_at_once
from dpaudit.files.world import BATCHES, RECORDS, TAPE, Taken, draw_key, record_key

from .gathered import Process, draws_of, events_of, processes_in
from .inside.start import TORCH
from .recording import Recording
from .rounds import with_rounds
from .run import MOST_BYTES, RAW, too_large
from .transcript_files import TranscriptFiles


class Merging:
    """Gives the messages of every run the rounds that those of the plain run have."""

    def __init__(self, options: MessageOptions) -> None:
        self._options = options
        self._of_message: dict[Hashable, int | None] = {}
        self._of_draw: dict[Hashable, int | None] = {}

    def merge(self, out: Path, plain: bool) -> None:
        """Write the files of a run; a run that ends early has too few rounds to be told by.

        Raises RunError if it sent more than is kept, or by ZeroMQ.
        """
        processes = processes_in(out / RAW)
        if any(process.of_kind("full") for process in processes):
            raise too_large(MOST_BYTES)
        if any(process.of_kind("addressed") for process in processes):
            raise RunError(
                "DPA060",
                "the program sends by ZeroMQ sockets too, which an audit does not see; dpaudit "
                "capture records them",
            )
        events, draws = events_of(processes, TranscriptFiles(out)), draws_of(processes)
        if plain:
            self._learn(events, draws)
        events = [
            event.model_copy(update={"round": self._of_message.get(name)})
            for event, name in zip(events, _names(events), strict=True)
        ]
        draws = [d.model_copy(update={"round": self._of_draw.get(_name(d))}) for d in draws]
        write_at_once(out / EVENTS, events)
        write_at_once(out / DRAWS, draws)
        write_at_once(out / BATCHES, _batches(processes))
        save_file(dict(_tape(processes)), out / TAPE)
        save_file(dict(_records(processes)), out / RECORDS)
        shutil.rmtree(out / RAW)

    def learn(self, out: Path) -> None:
        """The rounds of a plain run that was merged before."""
        recording = Recording(out)
        events = recording.events
        self._of_message = {n: e.round for n, e in zip(_names(events), events, strict=True)}
        self._of_draw = {_name(draw): draw.round for draw in recording.draws}

    def _learn(self, events: Sequence[Event], draws: Sequence[Draw]) -> None:
        protocol = [e for e in events if e.call_site not in self._options.ignore]
        timed, drawn = with_rounds(protocol, draws, self._options.round_starts_at or None)
        rounds = {(event.process, event.sequence): event.round for event in timed}
        names = zip(events, _names(events), strict=True)
        self._of_message = {name: rounds.get((e.process, e.sequence)) for e, name in names}
        self._of_draw = {_name(draw): draw.round for draw in drawn}


def noted(out: Path) -> str | None:
    """Why a process refused to be run, if one did."""
    if not (out / RAW).exists():
        return None
    notes = [r["text"] for p in processes_in(out / RAW) for r in p.of_kind("refused")]
    return f"{notes[0]}; supported are: torch {' and '.join(TORCH)}" if notes else None


def _names(events: Sequence[Event]) -> list[Hashable]:
    """The same message has the same name in every run."""
    counts: Counter[Hashable] = Counter()
    names: list[Hashable] = []
    for e in events:
        what = (e.source, e.operator, e.call_site, e.destinations, e.tag)
        counts[what] += 1
        names.append((what, counts[what]))
    return names


def _name(draw: Draw) -> Hashable:
    return draw.rank, draw.call_site, draw.occurrence


def _batches(processes: Sequence[Process]) -> Iterable[Taken]:
    for process in processes:
        for record in process.of_kind("batch"):
            about = {key: record[key] for key in ("agent", "sequence", "records")}
            yield Taken(**about, digests=tuple(record.get("digests", ())))


def _tape(processes: Sequence[Process]) -> Iterable[tuple[str, Tensor]]:
    for process in processes:
        held = process.path.with_suffix(".bin").read_bytes()
        for record in process.of_kind("noise"):
            key = draw_key(record["rank"], record["occurrence"], record["site"])
            yield key, _stored(held, *record["tensors"][0])


def _records(processes: Sequence[Process]) -> Iterable[tuple[str, Tensor]]:
    for process in processes:
        held = process.path.with_suffix(".bin").read_bytes()
        for record in process.of_kind("batch"):
            for i, part in enumerate(record.get("tensors", ())):
                yield record_key(record["agent"], record["number"], i), _stored(held, *part)


def _stored(held: bytes, name: str, shape: Sequence[int], dtype: str, at: int, size: int) -> Tensor:
    kind: Any = getattr(torch, dtype)
    if not size:
        return torch.empty(list(shape), dtype=kind)
    return torch.frombuffer(bytearray(held[at : at + size]), dtype=kind).reshape(list(shape))
