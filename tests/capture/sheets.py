"""Recordings held beside the answer sheets that the receivers wrote."""

import json
import linecache
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from dpaudit.capture.recording import CaptureFolder
from dpaudit.files.recorded import RecordedEvent

GUESTS = Path(__file__).parent / "guests"
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
OMITTED = "# not on the sheet"


def on_the_sheet(events: Iterable[RecordedEvent]) -> list[RecordedEvent]:
    """Without those of lines that say that they are left out."""
    return [e for e in events if OMITTED not in _line(e.call_site)]


def assert_every_message_on_its_link(recording: CaptureFolder, sheets: Path) -> None:
    """In order and bit for bit; of reductions, that the contributions give the sum."""
    sent: dict[tuple[int, int], list[list[tuple[str, tuple[int, ...], bytes]]]] = defaultdict(list)
    for event in on_the_sheet(recording.events):
        if event.operator not in REDUCTIONS:
            said = [(t.dtype, t.shape, _bytes(recording.content(t))) for t in event.tensors]
            for destination in event.destinations:
                sent[event.source, destination].append(said)
    got = defaultdict(list)
    for answer in _answers(sheets):
        if "got" in answer:
            said = [
                (one["dtype"], tuple(one["shape"]), bytes.fromhex(one["bytes"]))
                for one in answer["got"]
            ]
            got[answer["source"], answer["rank"]].append(said)
    assert set(sent) == set(got)
    for link in sent:
        assert sent[link] == got[link], link


def assert_every_sum(recording: CaptureFolder, sheets: Path) -> None:
    """The contributions of others that a rank was sent, and its own, are what it got."""
    reduced = [e for e in recording.events if e.operator in REDUCTIONS]
    for rank in recording.ranks:
        to_rank = defaultdict(list)
        for event in reduced:
            if rank in event.destinations:
                to_rank[event.source].append(recording.content(event.tensors[0]))
        sums = [a for a in _answers(sheets) if a["rank"] == rank and "sum" in a]
        assert {len(contributions) for contributions in to_rank.values()} == {len(sums)}
        for k, answer in enumerate(sums):
            others = sum(contributions[k] for contributions in to_rank.values())
            assert torch.equal(others + _tensor(answer["own"]), _tensor(answer["sum"]))


def _answers(sheets: Path) -> list[dict]:
    paths = sorted(sheets.glob("rank-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def _tensor(said: dict) -> Tensor:
    content = bytearray(bytes.fromhex(said["bytes"]))
    return torch.frombuffer(content, dtype=getattr(torch, said["dtype"])).reshape(said["shape"])


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _line(call_site: str) -> str:
    file, _, number = call_site.rpartition(":")
    return linecache.getline(str(GUESTS / file), int(number))


def assert_every_message_on_its_channel(recording: CaptureFolder, printed: str) -> None:
    """Of the guest channels.py: what receivers printed was sent, to them, and nothing else."""
    got = sorted(line for line in printed.splitlines() if " got " in line)
    server = {e.source for e in recording.events} & {
        to for e in recording.events for to in e.destinations if len(_asking(recording, to)) > 1
    }
    assert len(server) == 1
    clients: dict[int, int] = {}  # by rank
    sent = []
    for event in recording.events:
        content = recording.content(event.tensors[-1])
        if content.dtype != torch.float64:
            continue  # the length before an array
        value, (to,) = float(content[0]), event.destinations
        answers = event.source in server
        rank, client = (to, value / 20) if answers else (event.source, value / 10)
        assert clients.setdefault(rank, int(client)) == int(client)
        sent.append(f"{clients[rank] if answers else 0} got {value:g}")
    assert sorted(sent) == got
    assert sorted(clients.values()) == [1, 2]


def assert_every_array_on_its_link(recording: CaptureFolder, printed: str) -> None:
    """Of guests whose receivers print "SOURCE->RECEIVER [numbers]": all of it was sent."""
    found = []
    for event in recording.events:
        content = recording.content(event.tensors[-1])
        if content.dtype == torch.float64:
            numbers = content.flatten().tolist()
            found += [f"{event.source}->{to} {numbers}" for to in event.destinations]
    assert sorted(found) == sorted(printed.splitlines())


def _asking(recording: CaptureFolder, rank: int) -> set[int]:
    return {event.source for event in recording.events if rank in event.destinations}
