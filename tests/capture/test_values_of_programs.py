"""How a program is started, why a run counts for nothing, and which runs are kept, by hand."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from dpaudit.capture import audit, log_lines, program, run, traces, worlds
from dpaudit.capture.channels import routed
from dpaudit.capture.draft import _sites, _start, why_no_draft
from dpaudit.capture.log_lines import lines_of
from dpaudit.capture.process_logs import Process
from dpaudit.capture.program import (
    KEPT,
    KeptRuns,
    Program,
    Servers,
    refuse_missing_script,
    torchrun,
)
from dpaudit.capture.runs import ProgramRun
from dpaudit.capture.traces import EqualRuns, NotExamined, Trace
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.captured_file import CapturedConfig, ProgramOptions
from dpaudit.files.mechanism_file import MechanismConfig
from dpaudit.files.world import World
from dpaudit.recorder.forks import TIMED_OUT
from dpaudit.recorder.player import ERROR, FAILED, RAW, SAID
from dpaudit.training.run_directory import RunDirectory

from .test_log_lines import ABOUT, SENT, written


def options(*command: str, **of: Any) -> ProgramOptions:
    return ProgramOptions(command=command, **of)


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        ("torchrun a.py x --y", ["a.py", "x", "--y"]),
        ("/usr/bin/torchrun --nproc-per-node 1 a.py", ["a.py"]),
        ("torchrun --nproc_per_node=1 --standalone a.py --nnodes 3", ["a.py", "--nnodes", "3"]),
        ("torchrun --master-port 29500 --nnodes 1 --nnodes=1 a.py", ["a.py"]),
        ("torchrun --master_port=29500 a.py", ["a.py"]),
        ("python -m torch.distributed.run a.py 3", ["a.py", "3"]),
        ("python3.11 -m torch.distributed.launch --standalone a.py", ["a.py"]),
        ("python -m torch.distributed a.py", None),
        ("python -m", None),
        ("python a.py", None),
        ("accelerate launch a.py", None),
        ("torchrun --nnodes 2 a.py", None),
        ("torchrun --nnodes=2 a.py", None),
        ("torchrun --rdzv-backend c10d a.py", None),
        ("torchrun --nproc-per-node", None),
        ("torchrun -m module", None),
        ("torchrun --standalone", None),
        ("torchrun module", None),
    ],
)
def test_torchrun_is_started_without_its_launcher(command: str, launched: Any) -> None:
    assert torchrun(options(*command.split(), ranks=1)) == launched


@pytest.mark.parametrize("n", ["--nproc-per-node 3", "--nproc_per_node=3"])
def test_a_command_starts_the_ranks_of_its_file(n: str) -> None:
    command = ["torchrun", *n.split(), "a.py"]
    assert torchrun(options(*command, ranks=3)) == ["a.py"]
    with pytest.raises(ConfigError, match=r"program\.ranks: 2; the command starts 3"):
        torchrun(options(*command, ranks=2))


@pytest.mark.parametrize(
    ("command", "ranks", "said"),
    [
        ("python a.py x", None, ""),
        ("/bin/python3 a.py", None, ""),
        ("python gone.py", None, "gone.py: no such file"),
        ("python -m module", None, "a simulation in one process"),
        ("python", None, "a simulation in one process"),
        ("ruby a.py", None, "a simulation in one process"),
        ("torchrun a.py", 2, ""),
        ("torchrun -m module", 2, ""),
        ("mpirun --module module", 2, ""),
        ("torchrun module", 2, "names no program"),
        ("torchrun gone.py", 2, "gone.py: no such file"),
        ("torchrun --x y.py a.py", 2, "y.py: no such file"),  # the first that is named
    ],
)
def test_a_command_names_a_script_that_is_there(tmp_path: Path, command, ranks, said) -> None:
    (tmp_path / "a.py").touch()
    given = options(*command.split(), ranks=ranks, folder=tmp_path)
    if not said:
        refuse_missing_script(given)
        return
    with pytest.raises(ConfigError, match=said) as error:
        refuse_missing_script(given)
    assert error.value.code == "DPA057"


@pytest.mark.parametrize(
    ("ranks", "cores", "workers"), [(None, 3, 3), (2, 3, 3), (4, 3, 1), (1, 3, 6), (9, 3, 1)]
)
def test_so_many_runs_are_played_side_by_side(ranks, cores, workers) -> None:
    of = Servers(options("python", "a.py", ranks=ranks), ["a.py", "x"], cores)
    assert of.workers == workers
    assert of._command[:3] == [sys.executable, "-c", program.SERVE]
    assert of._command[3:] == ["120.0", str(ranks or 0), "a.py", "x"]
    other = Servers(options("python", "a.py", python=Path("/opt/python")), ["a.py"], 1)
    assert other._command[0] == "/opt/python"


def note(kind: str, text: str = "", time: float = 0.0) -> dict[str, Any]:
    return {"kind": kind, "text": text, "time": time}


MESSAGE = {"kind": "sent", "sequence": 0, "source": 0}
OVER = {"kind": "over"}


@pytest.mark.parametrize(
    ("status", "records", "files", "code", "said"),
    [
        (0, [MESSAGE], {}, "", ""),
        (None, [MESSAGE], {}, "DPA058", "python a.py x: the process that runs it has ended"),
        (TIMED_OUT, [MESSAGE], {}, "DPA058", r"not done after 1\.5 s \(program\.seconds\)"),
        (0, [MESSAGE], {ERROR: "it is wrong"}, "DPA058", "python a.py x: it is wrong"),
        (0, [MESSAGE], {ERROR: "DPA061 it differs"}, "DPA061", "python a.py x: it differs"),
        (0, [MESSAGE], {ERROR: "DPA999 it differs"}, "DPA058", "x: DPA999 it differs"),
        (0, [MESSAGE, note("refused", "DPA061 no"), note("refused", "b")], {}, "DPA061", "x: no"),
        (1, [MESSAGE, note("refused", "no")], {}, "DPA058", "x: no"),
        (1, [MESSAGE, note("refused", "no")], {ERROR: "first"}, "DPA058", "x: first"),
        (1, [MESSAGE], {}, "DPA058", "x: ended with status 1; it said last:"),
        (1, [MESSAGE, note("failed", "Error: a")], {}, "DPA058", "ended with status 1: Error: a"),
        (1, [MESSAGE, OVER], {}, "", ""),  # what goes wrong after the end changes no message
        (0, [MESSAGE, {"kind": "full"}], {}, "DPA066", "the transcript is larger than"),
        (0, [MESSAGE], {f"{RAW}/1.lost": "disk"}, "DPA066", f"x: disk: {run.LOST}"),
        (0, [], {}, "DPA059", "no message seen; expected tap.send"),
    ],
)
def test_a_run_that_failed_is_refused_with_its_reason(
    tmp_path: Path, status, records, files, code: str, said: str
) -> None:
    (tmp_path / RAW).mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    of: Any = SimpleNamespace(options=options("python", "a.py", "x", seconds=1.5))
    processes = [Process(Path("0.log"), tuple(records))]
    if not code:
        Program._refuse_failure(of, status, processes, tmp_path)
        return
    with pytest.raises(RunError, match=said) as error:
        Program._refuse_failure(of, status, processes, tmp_path)
    assert error.value.code == code


def test_a_failed_run_is_quoted_by_its_last_lines(tmp_path: Path) -> None:
    of: Any = SimpleNamespace(options=options("torchrun", "a.py", ranks=2))
    (tmp_path / SAID).write_text("".join(f"line {i}\n" for i in range(9)))

    def said(status: int = 1) -> list[str]:
        with pytest.raises(RunError) as error:
            Program._refuse_failure(of, status, [], tmp_path)
        return [one.text for one in error.value.problems]

    assert said()[1:] == [f"line {i}" for i in range(4, 9)]
    (tmp_path / FAILED).write_text("Error: EADDRINUSE\n")
    assert said()[1:] == ["Error: EADDRINUSE"]
    assert "; the port is in use" in said()[0]
    assert "expected a program that sends by a transport of the table" in said(0)[0]


def test_the_end_of_a_long_text_is_read(tmp_path: Path) -> None:
    assert program._text_of(tmp_path / "none") == ""
    (tmp_path / "long").write_bytes(b"a" * 100 + b"b" * program.MOST_SAID)
    assert program._text_of(tmp_path / "long") == "b" * program.MOST_SAID
    (tmp_path / "short").write_bytes(b"ab\xff")
    assert program._text_of(tmp_path / "short") == "ab\ufffd"


class Plays:
    """Runs that write their number into a file of their folder."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.n, self.asked = scratch, 0, list[World]()

    def each(self, worlds: list[World], use: Any, on_done: Any) -> list[Any]:
        found = []
        for world in worlds:
            self.n += 1
            out = self.scratch / str(self.n)
            (out / RAW).mkdir(parents=True)
            (out / RAW / "0.log").write_text(f"run {self.n}")
            self.asked.append(world)
            found.append(use(self.read(world.model_copy(update={"out": out}))))
            on_done()
        return found

    def read(self, world: World) -> Any:
        said = (world.out / RAW / "0.log").read_text()
        run = SimpleNamespace(world=world, said=said)
        run.loaded = lambda: run
        return run


def test_runs_that_were_played_before_are_read_again(tmp_path: Path) -> None:
    """Equal worlds are kept one by one. What was changed since, or is of another audit, is not."""
    directory = RunDirectory(tmp_path / "out")
    directory.binding = "audit"
    one, other = World(out=tmp_path), World(out=tmp_path, seed=1)
    tape = World(out=tmp_path / "elsewhere", tape=tmp_path / "tape")
    counted: list[int] = []

    def loaded(*asked: World, binding: str = "audit") -> tuple[list[str], int]:
        directory.binding = binding
        plays = Plays(tmp_path / f"scratch {len(counted)}")
        counted.append(0)
        kept = KeptRuns(plays, directory, lambda: counted.append(1))  # type: ignore[arg-type]
        return [run.said for run in kept.loaded(list(asked))], plays.n

    assert loaded(one, one, tape) == (["run 1", "run 2", "run 3"], 3)
    assert sum(counted) == 3
    files = sorted((tmp_path / "out" / KEPT).iterdir())
    assert [file.name.rpartition("-")[2] for file in files].count("1.safetensors") == 1
    assert loaded(one, other, one, one) == (["run 1", "run 1", "run 2", "run 2"], 2)
    assert loaded(one, one, one, other) == (["run 1", "run 2", "run 2", "run 1"], 0)
    assert sum(counted) == 3 + 4 + 4
    assert loaded(tape.model_copy(update={"out": tmp_path}), binding="other") == (["run 1"], 1)
    assert loaded(tape, binding="audit") == (["run 1"], 1)  # in the place of the one that was kept
    assert program._name(one) == program._name(one.model_copy(update={"sites": ("z",)}))
    assert program._name(one) != program._name(tape)
    assert program._name(tape) == program._name(tape.model_copy(update={"tape": tmp_path}))
    assert len(program._name(one)) == 32


def trace(order: str = "a", draws: Any = (("k", 1.0, "gaussian"),), **of: Any) -> Trace:
    sent = tuple((letter,) for letter in order)
    return Trace(
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


def equal(monkeypatch: pytest.MonkeyPatch, *runs: dict[str, str], **of: Any) -> EqualRuns:
    """Of runs whose order and prints are given, by "all", "source" and "link"."""
    asked: list[Any] = []

    def each(worlds: Any, use: Any) -> Any:
        asked.extend(worlds)
        return [use(one) for one in runs]

    monkeypatch.setattr(Trace, "of", lambda one, ordered: trace(
        one[ordered], printed=tuple(one.get("printed", "").split())
    ))  # fmt: skip
    playing: Any = SimpleNamespace(each=each, workers=2)
    found = EqualRuns.of(playing, World(out=Path("out")), of.get("simulated", True))
    assert len(asked) == traces.EQUAL_RUNS + 2
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
            CapturedConfig: ("run_captured", [tmp_path, 7, "text", True, progress], {}),
            MechanismConfig: ("run_mechanism", [tmp_path, "text", True, progress], {}),
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
    from dpaudit.capture.accounted import Ends

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


def test_what_a_recording_lacks_is_said_in_its_draft(monkeypatch) -> None:
    from dpaudit.capture import draft

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
