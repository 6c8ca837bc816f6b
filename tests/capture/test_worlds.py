"""Runs that share every draw, and what must be the same in them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.capture.process_logs import Process
from dpaudit.capture.runs import MessageId, ProgramRun, TakenBatch
from dpaudit.capture.worlds import refuse_other_batches
from dpaudit.errors import RunError

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
