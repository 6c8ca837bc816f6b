"""How a program is started, why a run counts for nothing, and which runs are kept, by hand."""

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpaudit.capture import named_models, program, run
from dpaudit.capture.process_logs import Process
from dpaudit.capture.program import (
    KEPT,
    KeptRuns,
    Program,
    Servers,
    refuse_missing_script,
    torchrun,
)
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.captured_file import ProgramOptions
from dpaudit.files.world import World
from dpaudit.recorder.forks import TIMED_OUT
from dpaudit.recorder.player import ERROR, FAILED, RAW, SAID
from dpaudit.training.run_directory import RunDirectory

MESSAGE = {"kind": "sent", "sequence": 0, "source": 0}
OVER = {"kind": "over"}


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


def test_a_model_is_imported_as_its_program_would(tmp_path: Path) -> None:
    """It is forgotten then, and so is what it imports of the folder; what was there before stays."""
    for name in ("seen_before", "own_model", "beside_model"):
        (tmp_path / f"{name}.py").write_text("import sys\nNAMES = list(sys.argv), sys.path[0]\n")
    given = options("python", "-u", "own_model.py", "x", folder=tmp_path)
    path, arguments = list(sys.path), list(sys.argv)
    sys.path.insert(0, str(tmp_path))
    before = import_module("seen_before")
    sys.path[:] = path
    with named_models._importing_from(given):
        found = [import_module(name) for name in ("own_model", "beside_model", "seen_before")]
        sys.modules["of_torch"] = torch
    assert (["own_model.py", "x"], str(tmp_path)) == found[0].NAMES
    assert found[2] is sys.modules.pop("seen_before") is before
    assert sys.modules.pop("of_torch") is torch
    assert not {"own_model", "beside_model"} & {*sys.modules}
    assert (sys.path, sys.argv) == (path, arguments)


def test_a_network_of_a_program_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "nets_of_a_test.py").write_text(
        "import torch\nfrom torch import nn\n\nclass Inner:\n    Net = staticmethod(lambda: "
        "nn.Linear(2, 3, dtype=torch.float64))\n\ndef batch():\n    return nn.BatchNorm1d(2)\n"
    )
    given = options("python", "a.py", folder=tmp_path)
    one, again = (named_models.named_model("nets_of_a_test:Inner.Net", given, 3) for _ in "ab")
    assert one.weight.dtype == torch.float32
    assert torch.equal(one.weight, again.weight)
    other = named_models.named_model("nets_of_a_test:Inner.Net", given, 4)
    assert not torch.equal(one.weight, other.weight)
    with pytest.raises(RunError, match=r"keeps state beside its parameters \(running_mean\)"):
        named_models.named_model("nets_of_a_test:batch", given, 3)
    assert named_models.n_classes_of(one, (2,)) == 3
    with pytest.raises(RunError, match=r"Linear cannot take records of shape \[4\]: ") as error:
        named_models.n_classes_of(one, (4,))
    assert error.value.code == "DPA034"


def test_what_was_lost_is_said_by_process(monkeypatch, tmp_path: Path) -> None:
    """In the order of their files; a transcript that is too large is said before the time."""
    for name in ("1", "2"):
        (tmp_path / f"{name}.lost").write_text(f"disk {name}")
        (tmp_path / f"{name}.bin").write_bytes(bytes(8))
    raw: Any = SimpleNamespace(
        glob=lambda pattern: sorted(tmp_path.glob(pattern), reverse=pattern == "*.lost")
    )
    left: list[int] = []

    def status_of(
        command: Any, environment: Any, seconds: float, is_over: Any, *_: Any, on_end: Any
    ) -> Any:
        on_end(left)
        return code if not is_over() else None

    monkeypatch.setattr(run, "status_of", status_of)
    code: int | None = 3
    given: Any = SimpleNamespace(most_bytes=16, seconds=2.5)
    found = run._run(["prog"], {}, raw, given)
    lost = tuple(f"disk {i}: {run.LOST}" for i in (1, 2))
    assert (found.code, found.failure, found.unseen) == (3, None, lost)
    left[:] = [7]
    assert run._run(["prog"], {}, raw, given).unseen[2:] == (run.LEFT_RUNNING.format("1 process"),)
    left[:] = [7, 8]
    assert run._run(["prog"], {}, raw, given).unseen[2] == run.LEFT_RUNNING.format("2 processes")
    code = None
    late = run._run(["prog"], {}, raw, given)
    assert str(late.failure) == "prog: still running after 2.5 seconds, and was ended"
    given.most_bytes = 15
    large = run._run(["prog"], {}, raw, given)
    assert "the transcript is larger than" in str(large.failure)
    assert large.failure.problems[0].help.endswith(", or give a larger --max-bytes")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("records", "code", "said"),
    [
        ([{"kind": "sent"}], 0, None),
        ([{"kind": "sent"}, OVER], 1, None),
        ([{"kind": "sent"}], -9, "prog a: was ended by signal 9; its own output says why"),
        ([{"kind": "sent"}], 2, "prog a: ended with exit code 2; its own output says why"),
        ([], 0, "prog a: no message was seen; expected a program that sends"),
        ([{"kind": "full"}], 0, "the transcript is larger than"),
    ],
)
def test_a_command_without_a_recording_says_why(records, code, said) -> None:
    processes = [Process(Path("0.log"), tuple(records))]
    ended: Any = SimpleNamespace(code=code, failure=None, unseen=("z",))
    found = run._failure(["prog", "a"], ended, processes, 10**6)
    assert (found is None) == (said is None)
    assert said is None or str(found).startswith(said)


def test_what_a_recorder_refuses_comes_first() -> None:
    records = [note("refused", "no\nway"), note("full"), note("failed", "Error: EADDRINUSE")]
    ended: Any = SimpleNamespace(code=1, failure=None, unseen=())
    first = run._failure(["p"], ended, [Process(Path("0.log"), tuple(records))], 5)
    assert (first.code, str(first)) == ("DPA060", "p: no\\nway")  # type: ignore[union-attr]
    called = [note("refused", "DPA061 tap.send: no"), *records]
    first = run._failure(["p"], ended, [Process(Path("0.log"), tuple(called))], 5)
    assert (first.code, str(first)) == ("DPA061", "p: tap.send: no")  # type: ignore[union-attr]
    failed = run._failure(["p"], ended, [Process(Path("0.log"), tuple(records[2:]))], 5)
    assert str(failed) == (
        "p: ended with exit code 1: Error: EADDRINUSE; the port is in use: end what holds it, or "
        "give another one"
    )


def note(kind: str, text: str = "", time: float = 0.0) -> dict[str, Any]:
    return {"kind": kind, "text": text, "time": time}


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
