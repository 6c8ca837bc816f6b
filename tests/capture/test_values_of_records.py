"""What processes wrote down of sockets and messages, and records among others, by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from safetensors import safe_open

from dpaudit.capture import other_records, recording
from dpaudit.capture.addresses import addressed
from dpaudit.capture.channels import routed
from dpaudit.capture.other_records import HOWS, refuse_bare_numbers, refuse_otherwise_among_others
from dpaudit.capture.process_logs import Process
from dpaudit.capture.process_ranks import ranks_of
from dpaudit.capture.recording import CaptureFolder, LoggedTensor, Receipts, SentContents
from dpaudit.capture.runs import MessageId
from dpaudit.capture.visible_output import NotExamined
from dpaudit.errors import RunError
from dpaudit.files.recorded import TRANSCRIPT
from dpaudit.files.world import Change, World


def process(*records: dict[str, Any]) -> Process:
    return Process(Path("0.log"), records)


def end(kind: str, socket: int, address: str, name: str = "") -> dict[str, Any]:
    return {"kind": kind, "socket": socket, "address": address, "id": name}


def posted(socket: int, to: str | None = None, operator: str = "zmq.PUSH", **of: Any) -> Any:
    return {
        "kind": "addressed",
        "socket": socket,
        "to": to,
        "operator": operator,
        "site": "a:1",
    } | of


def sent_by(found: list[Process], number: int) -> list[tuple[int, list[int], list[int]]]:
    records = [r for r in found[number].records if r["kind"] == "sent"]
    return [(r["source"], r["destinations"], r["ranks"]) for r in records]


def test_a_message_goes_to_the_other_end_of_its_socket() -> None:
    """One socket is bound to a port, to which that of another process connects by another name."""
    other = {"kind": "draw"}
    found = addressed(
        [
            process(end("connected", 2, "tcp://host:5"), posted(2), other),
            process(end("bound", 1, "tcp://*:5"), end("bound", 3, "tcp://*:6")),
            process(end("connected", 2, "tcp://host:6"), posted(2)),
        ],
        {0: 7, 1: 4, 2: 5},
    )
    assert sent_by(found, 0) == [(7, [4], [4, 7])]
    assert sent_by(found, 2) == [(5, [4], [4, 5])]
    assert found[0].records[2] is other
    assert found[1].records == (end("bound", 1, "tcp://*:5"), end("bound", 3, "tcp://*:6"))


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("tcp://h:5", "tcp://*:5", True),
        ("tcp://h:5", "tcp://*:6", False),
        ("ipc://a:5", "ipc://a:5", True),
        ("ipc://a:5", "ipc://b:5", False),  # a path, whatever follows its colon
        ("inproc://a:1", "inproc://b:1", False),
    ],
)
def test_ends_of_one_address_meet(one: str, other: str, meet: bool) -> None:
    """Of tcp the port counts alone, for hosts have several names."""
    processes = [process(end("connected", 2, one), posted(2)), process(end("bound", 1, other))]
    if meet:
        assert sent_by(addressed(processes, {0: 7, 1: 4}), 0) == [(7, [4], [4, 7])]
    else:
        with pytest.raises(RunError, match="no peer"):
            addressed(processes, {0: 7, 1: 4})


@pytest.mark.parametrize(
    ("message", "bound", "destinations"),
    [
        (posted(2), ("ipc://a", "ipc://b"), None),
        (posted(2), ("ipc://a", "ipc://c"), [1]),
        (posted(2), ("ipc://c", "ipc://c"), None),
        (posted(2, operator="zmq.PUB"), ("ipc://a", "ipc://b"), [1, 2]),
        (posted(2, operator="zmq.XPUB"), ("ipc://a", "ipc://b"), [1, 2]),
        (posted(2, to="name 2"), ("ipc://a", "ipc://b"), [2]),
        (posted(2, to="another"), ("ipc://a", "ipc://b"), None),
    ],
)
def test_which_of_several_ends_got_a_message_is_known(message, bound, destinations) -> None:
    processes = [
        process(end("connected", 2, "ipc://a"), end("connected", 2, "ipc://b"), message),
        *(process(end("bound", 1, at, f"name {i}")) for i, at in enumerate(bound, 1)),
    ]
    if destinations is None:
        said = "no peer" if bound == ("ipc://c", "ipc://c") else "several peers"
        with pytest.raises(RunError, match=said):
            addressed(processes, {0: 0, 1: 1, 2: 2})
    else:
        found = addressed(processes, {0: 0, 1: 1, 2: 2})
        assert sent_by(found, 0) == [(0, destinations, [0, *destinations])]


@pytest.mark.parametrize(
    ("sent", "heard", "destinations"),
    [
        ({1: [8, 8, 9], 2: [9]}, [8, 8], [1]),
        ({1: [8, 9], 2: [9]}, [8, 8], None),  # it sent that once alone
        ({1: [8, 8], 2: [8, 8]}, [8, 8], None),
        ({1: [8], 2: [9]}, [], None),
    ],
)
def test_a_peer_without_a_name_is_known_by_what_it_sent(sent, heard, destinations) -> None:
    router = [end("bound", 5, "tcp://*:1")]
    router += [{"kind": "heard", "socket": 5, "id": "x", "crc32": c} for c in heard]
    dealers = [
        process(end("connected", 1, "tcp://h:1"), *(posted(1, crc32=c) for c in some))
        for some in sent.values()
    ]
    processes = [process(*router, posted(5, to="x", operator="zmq.ROUTER")), *dealers]
    if destinations is None:
        with pytest.raises(RunError, match="several peers"):
            addressed(processes, {0: 0, 1: 1, 2: 2})
    else:
        assert sent_by(addressed(processes, {0: 0, 1: 1, 2: 2}), 0) == [(0, destinations, [0, 1])]


def test_a_process_reads_nothing_of_its_own_rank() -> None:
    """Two processes that have one rank, as a program and what it starts again."""
    posted = {"kind": "posted", "operator": "pipe", "channel": "pipe:1", "crc32": 1, "back": False}
    took = {"kind": "took", "channel": "pipe:1", "crc32": None}
    agent = {"kind": "batch", "agent": 3}
    both = [process(agent, posted), process(agent, took)]
    found, left_out = routed(both)
    assert [r["kind"] for p in found for r in p.records] == ["batch", "batch", "took"]
    assert left_out == ["1 message went to processes that were not recorded: 1 by pipe"]
    found, left_out = routed([both[0], process({"kind": "batch", "agent": 1}, took)])
    assert sent_by(found, 0) == [(3, [1], [1, 3])]
    assert left_out == []


def test_ranks_follow_ports_and_addresses() -> None:
    """Those that are bound come first, then the lowest port, then addresses and names."""
    took = [{"kind": "took", "channel": f"1.2.3.4:5>6.7.8.9:{port}"} for port in (90, 80)]
    pipe = {"kind": "took", "channel": "pipe:7"}
    processes = [
        process(end("connected", 1, "b")), process(end("connected", 1, "a")),
        process(end("connected", 1, "a", "name")), process(pipe, took[0]), process(took[1]),
        process(end("bound", 1, "d")), process(end("bound", 1, "c"), took[0]), process({"kind": "draw"}),
        process(end("bound", 1, "e"), {"kind": "batch", "agent": 4}),
    ]  # fmt: skip
    ranks = ranks_of(processes)
    assert ranks[8] == 4
    assert sorted(ranks, key=lambda n: ranks[n]) == [8, 6, 5, 4, 3, 1, 0, 2]
    assert sorted(ranks.values()) == [*range(4, 12)]


def received(number: int, crc: int, rank: int = 1, anyone: bool = False, **of: Any) -> Any:
    return {
        "kind": "received", "group": (0, 1), "tag": 0, "source": 0, "rank": rank,
        "number": number, "crc32": [crc], "anyone": anyone, **of,
    }  # fmt: skip


def test_other_bytes_than_were_sent_are_seen_where_they_arrive() -> None:
    """The third process has the rank of the first, as its second generation."""
    first = SimpleNamespace(rank=1, of_kind=lambda kind: [received(0, 5), received(1, 6)])
    sender = SimpleNamespace(rank=0, of_kind=lambda kind: [])
    again = SimpleNamespace(rank=1, of_kind=lambda kind: [received(0, 7)])
    anyone = SimpleNamespace(
        rank=2, of_kind=lambda k: [received(i, c, 2, anyone=True) for i, c in ((0, 8), (1, 9))]
    )
    of = Receipts([first, sender, again, anyone])  # type: ignore[list-item]

    def differs(number: int, crc: int, to: tuple[int, ...] = (1,), process: int = 1) -> bool:
        record = {"destinations": to, "group": (0, 1), "tag": 0, "source": 0, "number": number}
        return of.contradict(process, record, [crc])

    assert [differs(0, 5), differs(1, 6), differs(0, 6), differs(1, 5)] == [
        False,
        False,
        True,
        True,
    ]
    assert not differs(2, 5)  # which nobody noted
    assert differs(0, 8, (2, 1))
    assert [differs(0, 9, (2,)), differs(0, 4, (2,))] == [False, True]
    assert [differs(0, 7, process=2), differs(0, 5, process=2)] == [False, True]


def test_contents_are_stored_once_in_files_of_limited_size(tmp_path: Path, monkeypatch) -> None:
    values = np.arange(6, dtype=np.float32)
    raw = values.tobytes() + values[:2].tobytes() + b"abc"
    (tmp_path / "3.bin").write_bytes(raw)
    of = SentContents(3, Process(tmp_path / "3.log", ()))
    monkeypatch.setattr(recording, "MOST_TENSORS", 2)
    monkeypatch.setattr(recording, "MOST_BYTES", 20)
    listed = [
        LoggedTensor("a", [2], "float32", 0, 8),
        LoggedTensor("b", [3, 1], "float32", 8, 12),
        LoggedTensor("c", [1, 2], "float32", 24, 8),  # as the first
        LoggedTensor("d", [2], "int32", 24, 8),  # of another type
        LoggedTensor("e", [1], "complex24", 32, 3),
        LoggedTensor("f", [1], "float32", 20, 4),
    ]
    assert [of.checksum(one) for one in listed[:2]] == [crc32(raw[:8]), crc32(raw[8:20])]
    found = [of.store(one) for one in listed]
    files = [f"{TRANSCRIPT}/process-0003-{i:04}.safetensors" for i in range(3)]
    assert [(one.file, one.key) for one in found] == [
        (files[0], "0"), (files[0], "1"), (files[0], "0"), (files[1], "2"), (files[1], "3"),
        (files[2], "4"),
    ]  # fmt: skip
    (tmp_path / TRANSCRIPT).mkdir()
    of.write(tmp_path)
    folder = CaptureFolder(tmp_path)
    assert folder.content(found[1]).tolist() == [[1 + 1], [3], [4]]
    assert folder.content(found[2]).tolist() == [[0.0, 1.0]]
    assert folder.content(found[5]).tolist() == [5.0]
    with safe_open(tmp_path / files[1], "np") as file:
        assert bytes(file.get_tensor("3").tolist()) == b"abc"
        assert file.get_tensor("2").dtype == np.int32
    for name in files:
        header = int.from_bytes((tmp_path / name).read_bytes()[:8], "little")
        assert header % 8 == 0  # where numbers are read from in place


def test_ranks_of_a_recording_are_those_that_sent_or_got() -> None:
    sides = [(3, (1,)), (1, (3, 8)), (5, ())]  # a set of which begins with 8
    of: Any = SimpleNamespace(events=[SimpleNamespace(source=s, destinations=d) for s, d in sides])
    assert CaptureFolder.ranks.fget(of) == (1, 3, 5, 8)  # type: ignore[attr-defined]


class Replay(SimpleNamespace):
    """Runs in which a record moves a round by the number of those that are others."""

    def __init__(self, n_records: int, each: float, rounds: Any = (1, 2, 3, 4, 5), unused: int = 0):
        replay = World(out=Path("out"))
        super().__init__(
            places={k: {0: None} for k in rounds}, stages=[(k, (0,)) for k in rounds],
            n_records=lambda v, batch: n_records, worlds=SimpleNamespace(replay=replay, leaves_out=True),
            program=None, changes=lambda k, victims, run: None, on_run=lambda: None, each=each,
            unused=unused, later=[],
        )  # fmt: skip


def moved_by(
    monkeypatch: pytest.MonkeyPatch, of: Replay, most: float, last: float = 0.0
) -> list[list[list[Change]]]:
    """The changes of all worlds, by how and round, where a step moves a round by ``each``.

    And the last step, in which the first record is left out, by ``last``.
    """
    asked: list[list[list[Change]]] = []

    def played(several: list[World], changes: Any) -> list[Any]:
        asked.append([list(world.changes) for world in several])
        return [len(world.changes) and world.changes[-1].how for world in several]

    def sizes(runs: Any, moves: Any, k: int, v: int, before: Any, after: Any) -> Any:
        yield (last if after == "absent" else of.each), most

    def later(runs: Any, k: int, worlds: list[World], several: list[Any]) -> None:
        of.later.append((k, [len(world.changes) for world in worlds], len(several)))

    monkeypatch.setattr(of, "played", played, raising=False)
    monkeypatch.setattr(other_records, "_sizes", sizes)
    monkeypatch.setattr(other_records, "_refuse_later", later)
    used = {0: {k: 2 for k in of.places if k != of.unused}}
    refuse_otherwise_among_others(of, None, used)  # type: ignore[arg-type]
    return asked


def test_records_become_others_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = moved_by(monkeypatch, replay := Replay(3, 2.0), 1.0)
    assert len(asked) == len(HOWS) * 3  # in the first round, one in the middle and the last
    assert [k for k, *_ in replay.later] == [1, 1, 1, 3, 3, 3]  # no round is after the last
    assert replay.later[0] == (1, [1, 2, 3, 4], 4)  # not the run in which nothing is changed
    zeroed, _, one_sided = asked[:3]
    assert [[c.record for c in some] for some in zeroed] == [
        [],
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 0],
    ]
    assert {(c.agent, c.batch, c.how) for some in zeroed[:-1] for c in some} == {(0, 2, "zeroed")}
    assert zeroed[-1][-1].how == "absent"
    assert [[c.how for c in some] for some in one_sided] == [
        ["own:1e-3"] * i + ["level:1e3"] * (3 - i) for i in range(4)
    ] + [["own:1e-3"] * 3 + ["absent"]]
    assert len(moved_by(monkeypatch, Replay(3, 2.0, unused=3), 1.0)) == len(HOWS) * 3
    assert len(moved_by(monkeypatch, Replay(3, 2.0, (1, 2), unused=1), 1.0)) == len(HOWS)
    many = moved_by(monkeypatch, Replay(80, 2.0, (1,)), 1.0)[0]
    assert [len(some) for some in many] == [0, 10, 20, 30, 40, 50, 60, 70, 80, 81]


@pytest.mark.parametrize(
    ("n_records", "each", "last", "most", "refused"),
    [
        (3, 2.0, 2.0, 1.0, ""),
        (3, 2.1, 0.0, 1.0, "0 of 3 records of a batch have inputs of 0, 1 more"),
        (3, 0.0, 2.1, 1.0, "3 of 3 records of a batch have inputs of 0, 1 more"),
        (3, 4.0, 0.0, 2.0, ""),
        (3, 4.1, 0.0, 2.0, "by 4.1 times its noise, and one alone by 2"),
        (80, 20.01, 0.0, 1.0, ""),
        (80, 20.03, 0.0, 1.0, "0 of 80 records of a batch have inputs of 0, 10 more"),
        (80, 0.0, 2.1, 1.0, "80 of 80 records of a batch have inputs of 0, 1 more"),
    ],
)
def test_a_record_moves_a_round_by_two_lengths_at_most(
    monkeypatch, n_records, each, last, most, refused
) -> None:
    """Of 80 records ten are changed at a time, and the last is left out alone."""
    of = Replay(n_records, each, (4,))
    if not refused:
        moved_by(monkeypatch, of, most, last)
        return
    with pytest.raises(NotExamined, match=refused) as error:
        moved_by(monkeypatch, of, most, last)
    assert error.value.premise == "distance"


def test_runs_among_others_that_fail_are_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Replay(3, 2.0, (4,))
    failed = [1, RunError("DPA060", "it fails")]
    monkeypatch.setattr(of, "played", lambda *_: failed, raising=False)
    with pytest.raises(NotExamined, match="where other records have inputs of 0: it fails"):
        refuse_otherwise_among_others(of, None, {0: {4: 1}})  # type: ignore[arg-type]


def test_later_rounds_are_looked_at_with_the_noise_moved() -> None:
    worlds = [World(out=Path(name)) for name in "ab"]
    draws = [SimpleNamespace(key="x"), SimpleNamespace(key="y")]
    asked: list[Any] = []

    def with_noise_moved(world: World, name: str, units: Any) -> World:
        asked.append((world.out.name, name, units))
        return world

    runs: Any = SimpleNamespace(
        places={2: {0: SimpleNamespace(draws=draws)}}, with_noise_moved=with_noise_moved,
        make_up=lambda k, v, changes: SimpleNamespace(units={1: (k, v, changes)}),
        refuse_differing=lambda several, premise: asked.append((several, premise)),
    )  # fmt: skip
    other_records._refuse_later(runs, 2, worlds, [{0: "one"}, {0: "other"}])  # type: ignore[list-item]
    assert asked == [
        ("a", "others-2-0", {0: {(2, "y"): (2, 0, "one")}}),
        ("b", "others-2-1", {0: {(2, "y"): (2, 0, "other")}}),
        (worlds, "state"),
    ]


def test_a_move_among_others_is_held_against_that_of_a_record() -> None:
    one, draws = MessageId(0, (1,), "x", 2), [SimpleNamespace(key="a"), SimpleNamespace(key="b")]
    made: list[Any] = []

    def make_up(k: int, victim: int, changes: Any) -> Any:
        made.append({m: c.tolist() for m, c in changes.items()})
        return SimpleNamespace(units={1: "of b"})

    runs: Any = SimpleNamespace(
        make_up=make_up, places={2: {0: SimpleNamespace(draws=draws)}},
        without_noise=lambda *_: None, families=lambda k, v: ["gaussian", "laplace"],
        size=lambda k, v, family, units, without: (family, units, without),
    )  # fmt: skip
    sizes = {(0, 2, "gaussian"): {"way": 3.0, "other": 4.0}, (0, 2, "laplace"): {"way": 5.0}}
    moves: Any = SimpleNamespace(sizes=sizes)
    before, after = ({0: {one: np.array([x])}} for x in (1.5, 4.0))
    found: Any = list(other_records._sizes(runs, moves, 2, 0, before, after))
    units = {(2, "b"): "of b"}
    assert found == [(("gaussian", units, {}), 4.0), (("laplace", units, {}), 5.0)]
    assert made == [{one: [2.5]}]
    runs.without_noise = lambda *_: "x"
    with pytest.raises(NotExamined, match="x depends on other records"):
        list(other_records._sizes(runs, moves, 2, 0, before, after))


def bare(
    by_agent: dict[int, list[float]], hidden: bool = False, k: int | None = 1, **of: Any
) -> Any:
    """What agents that hold records, 0 and 1, send; of agent 0 the records "a", or those given."""
    ids = [None if k is None else MessageId(i, (9,), "x", k) for i in by_agent]
    shapes = (("0", (2,), of.get("dtype", "float64")),)
    trace = SimpleNamespace(
        order=[(i, 9, 0, "x", None, shapes) for i in by_agent], ids=ids,
        contents=[np.array(v) for v in by_agent.values()],
    )  # fmt: skip
    runs: Any = SimpleNamespace(
        equal=SimpleNamespace(trace=trace), hidden=lambda m: np.array([True, hidden])
    )
    held = ((0, of.get("of_0", "a")), (1, "b"), (2, "c"))
    taken = [SimpleNamespace(agent=i, digests=d) for i, d in held]
    run = SimpleNamespace(batches=taken[: of.get("n", 2)])
    return runs, SimpleNamespace(base=run, plain=run)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (bare({0: [1.0, 2.0], 1: [1.5, 2.0]}), None),  # alike but for what is noised
        (bare({0: [1.0, 2.0], 1: [1.5, 2.5]}), "in round 1"),
        (bare({0: [1.0, 2.0], 1: [1.5, 2.5]}, hidden=True), None),
        (bare({0: [1.0, 2.0]}), "in round 1"),
        (bare({0: [1.0, 2.0], 1: [1.0, 2.0]}, of_0="b"), "in round 1"),  # of the same records
        (bare({0: [1.0, 2.0]}, n=1), "in round 1"),
        (bare({0: [1.0, 2.0], 1: [1.5, 2.0]}, k=None), "before round 1"),
        (bare({0: [1.0, 2.0], 1: [1.0, 2.0]}, k=None), None),
        (bare({2: [1.0, 2.0]}), None),  # of an agent without records
        (bare({0: [1.0, 0.0], 1: [1.0, 1.0]}), None),  # each agent's own number
        (bare({0: [1.0, 1.0], 1: [1.0, 0.0]}), "in round 1"),
        (bare({0: [0.0, 0.0], 1: [1.0, 2.0]}, k=None), "before round 1"),
        (bare({1: [1.0, 1.0], 2: [2.0, 2.0]}, k=None, n=3), None),  # who links to others
        (bare({1: [1.0, 1.0], 2: [2.0, 1.0]}, k=None, n=3), "before round 1"),
        (bare({1: [0.0, 0.0], 2: [0.0, 0.0]}, k=None, n=3), "before round 1"),  # of two alone
        (bare({1: [1.0, 1.0]}, k=None, n=3), "before round 1"),  # a number of one agent
        (bare({1: [0.0, 1.0], 2: [0.0, 2.0]}, k=None, n=3, dtype="uint8"), None),
        (bare({1: [1.0, 0.0], 2: [2.0, 0.0]}, k=None, n=3, dtype="uint8"), None),
        (bare({1: [1.0, 1.0], 2: [2.0, 2.0]}, k=None, n=3, dtype="uint8"), "before round 1"),
        (bare({1: [0.0, 1.0], 2: [0.0, 2.0]}, k=None, n=3), "before round 1"),
        (bare({0: [*b"from-0"], 1: [*b"from-1"]}, k=None, dtype="uint8"), None),  # who sends it
        (bare({0: [*b"from-0"], 1: [*b"from-2"]}, k=None, dtype="uint8"), "before round 1"),
        (bare({0: [*b"0 of 10"], 1: [*b"1 of 10"]}, k=None, dtype="uint8"), None),
        (bare({0: [*b"0 of 10"], 1: [*b"1 of 11"]}, k=None, dtype="uint8"), "before round 1"),
        (bare({0: [*b"0"], 1: [*b"01"]}, k=None, dtype="uint8"), "before round 1"),
        (bare({0: [48.0, 48.0], 1: [49.0, 49.0]}, k=None), "before round 1"),
    ],
)
def test_bare_numbers_must_be_the_same_of_all_agents(given: Any, refused: str | None) -> None:
    if refused is None:
        refuse_bare_numbers(*given)
    else:
        with pytest.raises(NotExamined, match=f'numbers of "x" {refused} have no noise'):
            refuse_bare_numbers(*given)
