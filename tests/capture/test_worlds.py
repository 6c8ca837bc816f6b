"""Runs that share every draw, and what must be the same in them."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture.process_logs import Process
from dpaudit.capture.program import Program
from dpaudit.capture.refusals import refuse_absent, refuse_difference, refuse_other_batches
from dpaudit.capture.runs import MessageId, ProgramRun, TakenBatch
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.world import World
from dpaudit.recorder.player import RAW

from .test_log_lines import ABOUT, written

CONFIG: Any = SimpleNamespace(record=SimpleNamespace(victims=(0,), rounds=(1, 2)))


def run(*taken: int) -> Any:
    """One of two rounds, whose messages are the calls 10 and 20, and batches those that are given.

    A thread that takes batches when it likes makes such runs.
    """
    return SimpleNamespace(
        messages={MessageId(0, (1,), "x", k): None for k in (1, 2)},
        summed=(),
        draws=[],
        batches=[TakenBatch(0, sequence, 1, ()) for sequence in taken],
        span=lambda agent, k: ((-1, 10), (10, 20))[k - 1],
    )


def test_batches_of_other_rounds_in_equal_runs_are_refused() -> None:
    refuse_other_batches(CONFIG, run(5, 15), run(6, 14))
    for other in (run(5, 8), run(5, 6, 15)):
        with pytest.raises(RunError, match="agent 0 takes other batches before its messages") as e:
            refuse_other_batches(CONFIG, run(5, 15), other)
        assert e.value.problems[0].code == "DPA062"


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        (3e-8, "by 1e-08 of its largest number; something is added up in the order in which it"),
        (1e-3, "until then; something of the program is random and not seeded"),
        (float("nan"), "until then; something of the program is random and not seeded"),
    ],
)
def test_a_sum_in_another_order_is_told_from_chance(moved: float, said: str) -> None:
    def sent(*numbers: float) -> Any:
        return SimpleNamespace(messages={MessageId(0, (1,), "x", 2): np.array(numbers)})

    refuse_difference(sent(1, -3), sent(1, -3))
    with pytest.raises(RunError, match=said) as error:
        refuse_difference(sent(1, -3), sent(1 + moved, -3))
    assert error.value.problems[0].code == "DPA062"
    with pytest.raises(RunError, match="until then; something of the program is random"):
        refuse_difference(sent(1, -3), sent(1, -3, 0))


def test_an_agent_of_changing_processes_is_refused() -> None:
    """As a client of Flower's deployment. Both would take the batch and the draws of one."""
    batch = {"kind": "batch", "agent": 0, "number": 1}
    noise = {"kind": "noise", "rank": 0, "site": "z", "occurrence": 0}

    def refuse(*of_processes: list[dict[str, Any]]) -> None:
        processes = [Process(Path("0.log"), tuple(records)) for records in of_processes]
        run: Any = SimpleNamespace(_processes=processes)
        ProgramRun.refuse_agents_of_several_processes(run)

    refuse([batch, {**batch, "number": 2}], [noise], [{**batch, "agent": 1}])
    for again in (batch, noise):
        with pytest.raises(RunError, match="agent 0 is played by several processes") as error:
            refuse([batch, noise], [again])
        assert error.value.problems[0].code == "DPA060"


def test_an_agent_may_change_its_process_in_no_run(tmp_path: Path) -> None:
    """A pool hands a task to whichever process is free: one of its runs says nothing of others."""
    (tmp_path / "a.py").touch()
    command = {"command": ("python", "a.py"), "folder": tmp_path, "ranks": 2}
    config = CapturedConfig.model_validate({"program": command, "record": {"victims": (0,)}})
    program = Program(config, tmp_path / "scratch", cores=1)
    batch = {"kind": "batch", "agent": 0, "number": 1, "records": 1, "sequence": 0, "tensors": []}
    for name, numbers in (("kept", (1, 2)), ("changed", (1, 1))):
        raw = tmp_path / name / RAW
        for i, number in enumerate(numbers):
            (raw / str(i)).mkdir(parents=True)
            log = written(raw / str(i), {**ABOUT, "pid": i}, {**batch, "number": number})
            for path in (log, log.with_suffix(".bin")):
                path.rename(raw / f"{i}{path.suffix}")
    assert len(program.read(World(out=tmp_path / "kept")).batches) == 2
    with pytest.raises(RunError, match="agent 0 is played by several processes"):
        program.read(World(out=tmp_path / "changed"))


def test_a_run_may_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").touch()
    command = {"command": ("python", "a.py"), "folder": tmp_path}
    config = CapturedConfig.model_validate({"program": command})
    program, done = Program(config, tmp_path / "scratch", cores=1), []
    monkeypatch.setattr(program, "_runs", SimpleNamespace(workers=1, run=lambda *_: 0))
    monkeypatch.setattr(program, "read", lambda world: world.out)
    monkeypatch.setattr(program, "_refuse_failure", lambda *_: None)
    found = program.each([World(out=tmp_path)], shutil.rmtree, lambda: done.append(1))
    assert (found, done) == ([None], [1])


@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ({}, "", ""),
        ({"victims": (0, 1)}, "", ""),
        ({"messages": {}}, "DPA059", 'no rounds were found: "x" sends and draws nothing'),
        ({"messages": {}, "starts": ""}, "DPA059", "no rounds were found: the messages have no"),
        ({"back": {0}}, "DPA064", "messages of agent 0 were seen where they are received alone"),
        ({"back": {1}}, "", ""),
        ({"victims": (7,)}, "DPA064", "agent 7 sends nothing; there are agents 0, 1"),
        ({"rounds": (2, 3)}, "DPA064", "record.rounds: 3; the program has 2 rounds"),
        ({"sites": ("z", "y")}, "DPA064", '"y" is never reached; drawn were: u, z'),
        ({"sites": ("y",), "lines": ()}, "DPA064", '"y" is never reached; drawn were: none'),
        ({"summed": True}, "", ""),
        ({"summed": True, "victims": (0, 1)}, "DPA005", "expected one with messages.reductions"),
    ],
)
def test_what_a_plain_run_lacks_is_refused(changed: Any, code: str, said: str) -> None:
    of = {"victims": (0,), "rounds": (1, 2), "sites": ("z",), "starts": "x", **changed}
    config: Any = SimpleNamespace(
        messages=SimpleNamespace(round_starts_at=of["starts"]),
        record=SimpleNamespace(victims=of["victims"], rounds=of["rounds"]),
        noise=SimpleNamespace(sites=of["sites"]),
    )
    plain: Any = SimpleNamespace(
        messages=of.get("messages", {"m": None}), seen_by_receivers=of.get("back", ()),
        agents=[0, 1], n_rounds=2, draws=[SimpleNamespace(name="z")],
        drawing_lines=of.get("lines", ("u", "z")), summed=of.get("summed", False),
    )  # fmt: skip
    if not code:
        refuse_absent(config, plain)
        return
    with pytest.raises(RunError, match=said) as error:
        refuse_absent(config, plain)
    assert error.value.problems[0].code == code
