"""What two runs differ in, lines of logs, and what an audit makes of what it saw, by hand."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from dpaudit.capture import audit, draft, log_lines, program, visible_output, worlds
from dpaudit.capture.channels import BESIDE, routed
from dpaudit.capture.composition import Ends
from dpaudit.capture.draft import _sites, _start, why_no_draft
from dpaudit.capture.log_lines import lines_of
from dpaudit.capture.process_logs import Process, given_by_system, without_given
from dpaudit.capture.program import Servers
from dpaudit.capture.runs import ProgramRun, _described
from dpaudit.capture.visible_output import (
    OF_ORDER,
    EqualRuns,
    NotExamined,
    VisibleOutput,
    are_alike,
    printed,
    refuse_differing,
)
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.mechanism_file import MechanismConfig
from dpaudit.files.world import World

from .test_log_lines import ABOUT, SENT, written
from .test_values_of_programs import note, options


def trace(order: str = "a", draws: Any = (("k", 1.0, "gaussian"),), **of: Any) -> VisibleOutput:
    sent = tuple((letter,) for letter in order)
    return VisibleOutput(
        sent, (), (), draws, of.get("batches", ((0, 1),)), of.get("printed", ()), "all"
    )  # fmt: skip


def test_two_runs_differ_in_what_decides_their_messages() -> None:
    one = trace()
    assert one.other_order(trace()) is None
    assert one.other_order(trace(printed=("b",))) is None
    assert str(one.other_order(trace("b"))).startswith("which messages are sent")
    scale = "which noise is drawn, or its scale"
    assert one.other_order(trace(draws=(("k", 1.0 + 2e-8, "gaussian"),))) == scale
    assert one.other_order(trace(draws=(("k", 1.0 + 1e-10, "gaussian"),))) is None
    assert one.other_order(trace(draws=(("k", 1.0, "laplace"),))) == scale
    assert one.other_order(trace(draws=())) == scale
    batches = "which batches an agent takes, or how large they are"
    assert one.other_order(trace(batches=((0, 2),))) == batches


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("at http://127.0.0.1:40001/ now", "at http://127.0.0.1:50002/ now", True),
        ("listening on 40001.", "listening on 50002.", True),
        ("listening on 40001", "listening on 50003", False),  # which the run does not have
        ("loss 40001.5", "loss 50002.5", False),
        ("file40001", "file50002", False),
        ("agent 7 of 40001", "agent 8 of 50002", False),
    ],
)
def test_ports_that_are_printed_are_not_compared(
    one: str, other: str, alike: bool, tmp_path: Path
) -> None:
    given = [frozenset({port, "7"}) for port in ("40001", "50002")]
    lines = [
        printed(tmp_path / "none", (text,), own)
        for text, own in zip((one, other), given, strict=True)
    ]
    assert are_alike(*lines) is alike
    for name, text in (("one", one), ("other", other)):
        (tmp_path / name).write_text(text)
    said = [
        printed(tmp_path / name, (), own) for name, own in zip(("one", "other"), given, strict=True)
    ]
    assert are_alike(*said) is alike


def test_times_that_are_printed_to_another_count_nothing() -> None:
    nothing = Path("none")

    def are_equal(*texts: str) -> bool:
        return are_alike(*(printed(nothing, (text,)) for text in texts))

    assert are_equal("printed: 10:00:01 up", "printed: 10:00:02 up")
    assert not are_equal("printed: 10:00:01 up", "printed: 10:00:02 down")
    assert not are_equal("0.at: 10:00:01", "0.at: 10:00:02")  # sent as it is


def test_the_system_gives_ports_and_numbers_of_processes() -> None:
    def process(pid: int, **channel: str) -> Process:
        kind = "bound" if "address" in channel else "took"
        return Process(Path("a"), ({"kind": "process", "pid": pid}, {"kind": kind, **channel}))

    processes = [
        process(1234, channel="127.0.0.1:40001>127.0.0.1:80"),
        process(99, channel="pipe:55555"),
        process(5678, channel="grpc:50051>"),
        process(2345, address="tcp://127.0.0.1:7777"),
    ]
    assert given_by_system(processes) == {"1234", "5678", "2345", "40001", "50051", "7777"}


def test_a_port_that_is_told_is_alike_in_all_runs() -> None:
    given = frozenset({"40001", "40002"})

    def left(*tensors: torch.Tensor) -> list[list[float]]:
        return [one.flatten().tolist() for one in without_given(list(tensors), given)]

    assert left(torch.tensor(40001), torch.tensor(3)) == [[], [3]]
    assert left(torch.tensor([40001, 40002])) == [[]]
    assert left(torch.tensor([[1, 40002], [0, 40001]])) == [[1, 0]]  # agents, with their ports
    assert left(torch.tensor([40001, 40003])) == [[40001, 40003]]
    assert left(torch.tensor(40001.0)) == [[40001]]
    assert left(torch.tensor(40001), torch.ones(2)) == [[40001], [1, 1]]  # not an agent's own
    assert left(torch.tensor([1, 255], dtype=torch.uint8), torch.tensor(True)) == [[1, 255], [1]]


def equal(monkeypatch: pytest.MonkeyPatch, *runs: dict[str, str], **of: Any) -> EqualRuns:
    """Of runs whose order and prints are given, by "all", "source" and "link"."""
    asked: list[Any] = []

    def each(worlds: Any, use: Any) -> Any:
        asked.extend(worlds)
        return [use(one) for one in runs]

    monkeypatch.setattr(VisibleOutput, "of", lambda one, ordered: trace(
        one[ordered], printed=tuple(one.get("printed", "").split())
    ))  # fmt: skip
    playing: Any = SimpleNamespace(each=each, workers=2)
    found = EqualRuns.of(playing, World(out=Path("out")), of.get("simulated", True))
    assert len(asked) == visible_output.EQUAL_RUNS + 2
    return found


def shown(order: str, source: str = "s", link: str = "l", printed: str = "") -> dict[str, str]:
    return {"all": order, "source": source, "link": link, "printed": printed}


def test_equal_runs_have_the_finest_order_that_is_theirs(monkeypatch) -> None:
    found = equal(monkeypatch, shown("a", printed="x"), shown("a", printed="x"))
    assert (found.trace.order, found.printed) == ((("a",),), (("x",),))
    found = equal(monkeypatch, shown("a"), shown("a"), shown("b"))
    assert found.trace.order == (("s",),)
    found = equal(monkeypatch, shown("a"), shown("b", "t"))
    assert found.trace.order == (("l",),)
    with pytest.raises(NotExamined, match="the order of messages differs") as error:
        equal(monkeypatch, shown("a"), shown("b", "t", "m"))
    assert error.value.premise == "state"


@pytest.mark.parametrize(
    ("said", "simulated", "printed"),
    [
        (["a b", "a b"], True, [("a", "b")]),
        (["a b", "a", "a b"], True, [("a", "b"), ("a",)]),  # a fork does not print what was before
        (["a b", "a"], False, None),
        (["a b", "c"], True, None),
        (["a b", "a c"], True, None),
        (["a b c", "a b", "a"], True, None),
        (["a a", "a"], True, None),
    ],
)
def test_equal_runs_print_the_same(monkeypatch, said, simulated, printed) -> None:
    runs = [shown("a", printed=one) for one in said]
    if printed is not None:
        assert list(equal(monkeypatch, *runs, simulated=simulated).printed) == printed
        return
    with pytest.raises(NotExamined, match="what is printed or sent as text differs") as error:
        equal(monkeypatch, *runs, simulated=simulated)
    assert error.value.premise == "completeness"


@pytest.mark.parametrize(
    ("one", "other", "line"),
    [
        (("a 1", "b"), ("a 1", "b", "c"), '"c"'),
        (("a 1", "b"), ("a 2", "b"), '"a 1"'),
        (("a 1.0000000001", "b"), ("a 1", "d"), '"b"'),
        (("a", "a"), ("a",), ""),  # as often as not
        (("x" * 99,), (), f'"{"x" * 37} ... {"x" * 37}"'),
        (("\x1b[2J",), (), '"\\x1b[2J"'),
    ],
)
def test_a_line_that_differs_is_quoted(one: Any, other: Any, line: str) -> None:
    assert visible_output.other_line(one, other) == line


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (log_lines._Size, [0, 2**62 - 1], [-1, 2**62]),
        (log_lines._Rank, [0, 2**31 - 1], [-1, 2**31]),
        (log_lines._Name, ["", "a" * 4096], ["a" * 4097]),
        (log_lines._Tensor, [("0", [0] * 64, "f", 0, 0)], [("0", [0] * 65, "f", 0, 0)]),
    ],
)
def test_numbers_and_names_of_a_log_have_limits(kind: Any, right: Any, wrong: Any) -> None:
    adapter = TypeAdapter(kind)
    for value in right:
        assert adapter.validate_python(value) == value
    for value in wrong:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


BATCH = {"kind": "batch", "number": 1, "agent": 0, "records": 0, "sequence": 0}


def test_a_log_is_refused_by_its_size_and_its_lines(tmp_path: Path, monkeypatch) -> None:
    first = lines_of(written(tmp_path, ABOUT, {**BATCH, "digests": ["0" * 16]}))[1]
    assert first["digests"] == ["0" * 16]
    for change, said in (
        ({"number": 0}, "1.log:2: batch.number: Input should be greater than or equal to 1"),
        ({"digests": ["g" * 16]}, "1.log:2: batch.digests.0: String should match pattern"),
        ({"digests": ["0" * 17]}, "1.log:2: batch.digests.0: String should match pattern"),
    ):
        with pytest.raises(RunError) as error:
            lines_of(written(tmp_path, ABOUT, {**BATCH, **change}))
        assert said.replace("batch.", "") in str(error.value)
    path = written(tmp_path, ABOUT, SENT)
    size = path.stat().st_size
    monkeypatch.setattr(log_lines, "MOST_BYTES", size)
    assert len(lines_of(path)) == 2
    monkeypatch.setattr(log_lines, "MOST_BYTES", size - 1)
    with pytest.raises(RunError, match=r"1\.log:0: .* of lines; at most"):
        lines_of(path)
    assert log_lines._misfit([2, 2], "float32", 4, 16, 20) is None
    assert log_lines._misfit([2, 2], "float32", 5, 16, 20) == "bytes 5 to 21 of 20"
    assert log_lines._misfit([2, 3], "float16", 0, 10, 20) == "10 bytes; [2, 3] of float16 has 12"
    assert log_lines._misfit([], "int64", 0, 8, 8) is None


def test_an_audit_is_of_what_its_file_describes(monkeypatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    for name in ("run_captured", "run_mechanism", "run_audit"):
        monkeypatch.setattr(
            audit, name, lambda *given, name=name, **of: asked.append((name, given, of))
        )
    runtime: Any = SimpleNamespace(cores=7)
    progress: Any = object()
    for kind in (CapturedConfig, MechanismConfig, SimpleNamespace):
        config = kind.__new__(kind)
        audit.run_audit_of(config, tmp_path, runtime, "text", True, progress, print)
        name, (first, *rest), of = asked[-1]
        assert first is config
        assert (name, rest, of) == {
            CapturedConfig: ("run_captured", [tmp_path, 7, "text", True, progress, print], {}),
            MechanismConfig: ("run_mechanism", [tmp_path, "text", True, progress], {"say": print}),
            SimpleNamespace: ("run_audit", [tmp_path, runtime, "text", True, progress], {"say": print}),
        }[kind]  # fmt: skip


def test_runs_are_counted_beyond_what_was_expected() -> None:
    told: list[tuple[str, int, int]] = []
    count = audit._counter(lambda *of: told.append(of), "worlds", 2)
    for _ in range(3):
        count()
    assert told == [("worlds", 1, 2), ("worlds", 2, 2), ("worlds", 3, 3)]


def test_the_graph_of_a_program_has_the_links_that_were_seen() -> None:
    messages = [
        SimpleNamespace(source=2, destinations=(0, 3)),
        SimpleNamespace(source=0, destinations=(2,)),
    ]
    of: Any = SimpleNamespace(base=SimpleNamespace(agents=[0, 2, 3], messages=messages * 2))
    found = audit._graph(of)
    assert (found.name, found.n_agents) == ("captured", 4)
    assert found.links == ((0, 2), (2, 0), (2, 3))
    assert np.allclose(found.positions, audit.positions("ring", 4))


def test_what_a_bound_assumes_is_a_sentence() -> None:
    of: Any = SimpleNamespace(assumed=("a holds", "b does", "c is"))
    assert audit.assumed(Ends(()), of) == "It is assumed that a holds, that b does, and that c is."
    assert audit.assumed(Ends(None), of) == ""


def test_a_message_is_read_at_the_end_that_was_passed_on() -> None:
    """A descriptor of a pipe is handed to a third process, which reads in the place of the second."""
    posted = {"kind": "posted", "operator": "pipe", "channel": "pipe:1", "crc32": 1, "back": False}
    passed = {"kind": "passed", "channel": "pipe:1", "to": "pipe:2"}

    def process(*records: dict[str, Any]) -> Process:
        return Process(Path("0.log"), records)

    def batch(agent: int) -> dict[str, Any]:
        return {"kind": "batch", "agent": agent}

    found, left_out = routed([
        process(batch(3), posted), process(batch(1), passed),
        process(batch(5), {"kind": "took", "channel": "pipe:2", "crc32": 1}),
    ])  # fmt: skip
    [sent] = [r for r in found[0].records if r["kind"] == "sent"]
    assert (sent["source"], sent["destinations"], sent["ranks"], left_out) == (3, [5], [3, 5], [])


def test_channels_beside_messages_are_named_in_order() -> None:
    posted = [
        {"kind": "posted", "operator": f"{kind}.send", "channel": "1", "crc32": 1, "back": False}
        for kind in ("socket", "pipe", "queue", "pipe", "fifo")
    ]
    sent = {"kind": "sent", "source": 0, "sequence": 1}
    for n, said in ((1, "1 message"), (5, "5 messages")):
        kinds = ["socket"] if n == 1 else ["fifo", "pipe", "queue", "socket"]
        found, left_out = routed([Process(Path("0.log"), (*posted[:n], sent))])
        assert left_out == [BESIDE.format(said, ", ".join(kinds))]
        assert len(found) == 1


def test_contents_of_messages_stay_with_their_process() -> None:
    found = _described(3, {"tensors": [("0", [2, 3], "float32", 8, 24)]})
    [tensor] = found["tensors"]
    assert (tensor.name, tensor.shape, tensor.dtype) == ("0", (2, 3), "float32")
    assert found["inconsistent"] is False
    assert _described(3, {}) == {"tensors": (), "inconsistent": False}


def test_what_a_recording_lacks_is_said_in_its_draft(monkeypatch) -> None:
    monkeypatch.setattr(draft, "noise_of_tap", lambda recording: None)
    monkeypatch.setattr(draft, "noise_lines", lambda recording: [
        SimpleNamespace(site="a.py:1", why_not=None, doubt=""),
        SimpleNamespace(site="a.py:2", why_not="is of a model", doubt=""),
    ])  # fmt: skip
    monkeypatch.setattr(draft, "start_site", lambda events, draws: None)
    recording: Any = SimpleNamespace(events=(), draws=(), children=())
    for simulated in (True, False):
        monkeypatch.setattr(draft, "is_simulation", lambda *_, now=simulated: now)
        sites, start = _sites(recording).splitlines(), _start(recording, None)
        assert start.startswith("# rounds: an agent" if simulated else "# round_starts_at = ")
        assert sites[0].startswith("sites = []  # none: show noise" if simulated else "sites = [")
        assert ('# "a.py:1" is it noise?' in sites) is simulated
        assert '# "a.py:2" is of a model' in sites
    assert _start(recording, "b.py:3") == 'round_starts_at = "b.py:3"'
    shown: Any = SimpleNamespace(transport="mine")
    assert why_no_draft(["python", "a.py"], recording, shown) == (
        "an audit does not see the messages that a --transport adapter shows"
    )


def test_a_run_tells_what_it_saw_beside_numbers() -> None:
    of: Any = SimpleNamespace(
        _processes=[Process(Path("0.log"), ({"kind": "beside", "text": t}, note("unseen", t))) for t in "ab"],
        all_draws=[SimpleNamespace(call_site=site) for site in ("y", "x", "y")],
        left_out=["left out"], _all=["e", "f"], _content=lambda e: f"of {e}",
        _ids={"m": SimpleNamespace(process=1, sequence=4), "n": SimpleNamespace(process=0, sequence=2)},
    )  # fmt: skip
    assert ProgramRun.beside.fget(of) == ("a", "b")  # type: ignore[attr-defined]
    assert ProgramRun.drawing_lines.func(of) == ("y", "x")  # type: ignore[attr-defined]
    assert ProgramRun.all_sent.fget(of) == [("e", "of e"), ("f", "of f")]  # type: ignore[attr-defined]
    assert ProgramRun.id_of.fget(of) == {(1, 4): "m", (0, 2): "n"}  # type: ignore[attr-defined]
    assert ProgramRun.unseen.fget(of) == ("a", "b", "left out")  # type: ignore[attr-defined]


def test_a_victim_without_a_part_is_told_its_rounds(monkeypatch) -> None:
    message = SimpleNamespace(source=0, round=2)
    plain: Any = SimpleNamespace(messages=[message], n_rounds=12)
    monkeypatch.setattr(worlds, "place_of", lambda run, victim, k: k if k > 2 else None)
    error = worlds._no_part(plain, 0, 2)
    assert (error.code, str(error).partition(";")[0]) == (
        "DPA059",
        "agent 0 takes no batch in round 2",
    )
    error = worlds._no_part(plain, 0, 1)
    assert error.code == "DPA064"
    said = "agent 0 sends nothing in round 1 of 12; it takes a batch and sends in rounds "
    assert str(error) == said + "3, 4, 5, 6, 7, 8, 9, 10"
    plain.n_rounds = 2
    assert str(worlds._no_part(plain, 0, 1)).endswith("in rounds none")


def test_servers_end_with_their_block(monkeypatch, tmp_path: Path) -> None:
    started: list[Any] = []

    class Server:
        def __init__(self, command: Any, **how: Any) -> None:
            self.stdin = SimpleNamespace(
                write=lambda text: self.said.append(text), flush=lambda: None,
                close=lambda: self.said.append("closed"),
            )  # fmt: skip
            self.stdout = SimpleNamespace(readline=lambda: self.answers.pop(0))
            self.said, self.answers, self.how = list[str](), ["3\n", ""], how
            self.terminate, self.wait = (lambda: self.said.append("ended")), lambda: None
            started.append(self)

    monkeypatch.setattr(program, "subprocess", SimpleNamespace(Popen=Server, PIPE=subprocess.PIPE))
    of = Servers(options("torchrun", "a.py", ranks=2, folder=tmp_path), ["a.py"], 2)
    with of.running():
        assert len(started) == of.workers == 2
        world = World(out=tmp_path)
        assert of.run(Path("w.json"), world) == 3  # by the first that is free
        assert of.run(Path("v.json"), world) == 3
        assert of.run(Path("u.json"), world) is None
    assert [one.said for one in started] == [
        ["w.json\n", "u.json\n", "closed", "ended"], ["v.json\n", "closed", "ended"],
    ]  # fmt: skip
    environment = started[0].how["env"]
    assert started[0].how["cwd"] == tmp_path
    assert environment[program.RANKS] == environment["OMP_NUM_THREADS"] == "1"
    assert environment["PYTHONHASHSEED"] == "0"


ALIKE, ORDER = (None, ""), ("completeness", f"{OF_ORDER} depends on the record")


def refused(premise: Any, *results: list[Any]) -> tuple[list[list[int]], Any]:
    """The worlds that are played, one time after the other, and the error; each has results."""
    played: list[list[int]] = []

    def play(worlds: Any) -> list[Any]:
        played.append(list(worlds))
        return [results[i].pop(0) for i in worlds]

    try:
        refuse_differing(range(len(results)), play, premise)  # type: ignore[arg-type]
    except NotExamined as error:
        return played, error
    return played, None


def test_what_runs_refuse_is_of_their_premise() -> None:
    assert refused("state", [ALIKE], [ALIKE]) == ([[0, 1]], None)
    failed = RunError("DPA058", "it ended")
    for found, premise, named, said in (
        (failed, "state", "state", "it ended"),
        (("composition", "it moves"), "state", "state", "it moves"),
        (("composition", "it moves"), "composition", "composition", "it moves"),
        (("completeness", "it prints"), "state", "completeness", "it prints"),
    ):
        _, error = refused(premise, [ALIKE], [found], [failed])
        assert (error.premise, said in error.why) == (named, True)


def test_a_run_in_another_order_is_played_again() -> None:
    """As of a server that answers whoever asks first; what a record decides stays so."""
    assert refused("state", [ALIKE], [ORDER, ORDER, ALIKE]) == ([[0, 1], [1], [1]], None)
    played, error = refused("state", [ORDER, ALIKE], [ORDER] * 4)
    assert (played, error.premise) == ([[0, 1], [0, 1], [1], [1]], "completeness")
    assert refused("state", [ORDER, ("state", "it moves")])[1].why == "it moves"
