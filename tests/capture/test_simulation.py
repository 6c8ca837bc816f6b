"""Rounds and agents of a simulation, by the order of its calls of the tap."""

import re
from pathlib import Path

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.capture.simulation import Counting, with_counted_rounds
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.recorded import RecordedBatch, RecordedDraw, RecordedEvent
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict


def counted(
    calls: str, threads: bool = False
) -> tuple[list[int | None], list[tuple[str, int | None, int | None]]]:
    """Rounds of messages; lines, agents and rounds of draws.

    Args:
        calls: "b0" takes a batch for agent 0, "n0" shows noise, "d" draws, "s01" sends to agent 1
            and "t01" sends something else.
    """
    events, draws, batches = [], [], []
    common = {"process": 0, "time": 0.0, "occurrence": 0, "round": None}
    for i, (call, agents) in enumerate(re.findall(r"([bndst])(\d*)", calls)):
        agent, to = (int(agents[0]) if agents else None), tuple(map(int, agents[1:]))
        at = {**common, "sequence": i, "call_site": call}
        if call == "b":
            batches.append(RecordedBatch(process=0, agent=agent, number=1, sequence=i, records=1))
        elif call in "nd":
            operator = "gaussian" if call == "n" else "numpy.normal"
            about = {"shape": (), "dtype": "float64", "parameters": (0, 1), "operator": operator}
            draws.append(RecordedDraw(**at, **about, rank=agent))
        else:
            about = {"operator": "tap", "rank": agent, "source": agent, "destinations": to}
            more = {"group": (0, 1), "tag": None, "tensors": (), "inconsistent": False}
            events.append(RecordedEvent(**at, **about, **more))
    found, drawn = with_counted_rounds(
        events, draws, batches, Counting.of(events, batches, threads)
    )
    return [e.round for e in found], [(d.call_site, d.rank, d.round) for d in drawn]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("b0 s01 b1 s10 b0 s01 b1 s10", [1, 1, 2, 2]),
        ("s01 s10 s01 s10", [1, 1, 2, 2]),  # what is sent again begins a round without batches
        ("b0 b1 s01 s10 s01 s10", [1, 1, 2, 2]),  # one batch for all rounds
        ("s01 s10 b0 s01 b1 s10", [1, 1, 2, 2]),  # the model is sent before a batch is taken
        ("b0 s01 s01 b1 s10 s10 b0 s01 s01", [1, 1, 1, 1, 2, 2]),  # layers of one name
        ("b0 s01 b1 s10 t01 t10 b0 s01 b1 s10 t01 t10", [1, 1, 1, 1, 2, 2, 2, 2]),  # two phases
        ("b0 s01 b0 s02 b0 s01", [1, 2, 3]),  # a peer by chance
        ("b0 b0 s01 b0 b0 s01", [1, 2]),  # local steps
        ("b0 s01 b1 s10 b1 s10 b0 s01 b0 s01 b1 s10", [1, 1, 2, 2, 3, 3]),
        ("b0 s01 b0 s01 b1 s10 b1 s10", [1, 2, 2, 3]),  # asynchronous
    ],
)
def test_rounds_are_counted_by_batches_and_messages(calls: str, expected: list[int]) -> None:
    assert counted(calls)[0] == expected


def test_threads_that_begin_as_many_rounds_count_their_own() -> None:
    calls = "b0 s01 b0 s01 b1 s10 b0 s01 b1 s10 b1 s10"
    assert counted(calls, threads=True)[0] == [1, 2, 1, 3, 2, 3]
    assert counted(calls + "b0 s01", threads=True)[0] == counted(calls + "b0 s01")[0]


def test_a_first_model_of_a_thread_begins_no_round() -> None:
    """One agent or both send the model that all begin with, and all begin two rounds."""
    begun = (
        "s01 s10 b0 s01 b1 s10",
        "s01 b0 s01 b1 s10",
        "s01 b1 s10 b0 s01",
        "s01 b1 b0 s01 s10",
        "b1 s10 s01 s01 b0 s01",
    )
    for calls in (f"{first} {then}" for first in begun for then in ("b0s01b1s10", "b1s10b0s01")):
        found = counted(calls, threads=True)[0]
        assert found == [1] * (len(found) - 2) + [2, 2]
    assert counted("b1 s10 s01 b0 s01 b0 s01 b1 s10")[0] == [1, 1, 2, 3, 3]  # no threads


def test_agents_that_miss_rounds_are_in_the_round_of_the_others() -> None:
    """Agent 1 sends in the first and the third round alone, and agent 2 takes no batch once."""
    rounds, _ = counted("b0s01 b1s12 b2s20  b0s01 b2s20  b0s01 b1s12 s20")
    assert rounds == [1, 1, 1, 2, 2, 3, 3, 3]


def test_draws_are_of_the_agent_whose_call_comes_next() -> None:
    _, draws = counted("d b0 d n0 s01 b1 d n1 s10 d b0 d n0 s01 d")
    assert draws == [
        ("d", None, None),  # before the tap was called: data, weights
        ("d", 0, 1),
        ("n", 0, 1),
        ("d", 1, 1),
        ("n", 1, 1),
        ("d", 0, 2),
        ("d", 0, 2),
        ("n", 0, 2),
        ("d", None, None),
    ]


ASYNCHRONOUS = """
import sys
import numpy as np
from dpaudit import tap

rng, factor = np.random.default_rng(1), float(sys.argv[1])
x, models = rng.normal(size=(4, 6, 3)), np.zeros((4, 3))
for k in range(6):
    for agent in (0, 3) if k == 1 else rng.permutation(4)[: 2 + k % 3]:
        peer = int(rng.choice([i for i in range(4) if i != agent]))
        if (k, agent) != (1, 0):  # where it sends again what it has
            batch = tap.batch(agent, x[agent, rng.permutation(6)[:3]])
            clipped = batch / np.maximum(1, np.linalg.norm(batch, axis=1))[:, None]
            noise = tap.noise(agent, "z", factor * rng.normal(size=3), factor)
            models[agent] += clipped.sum(0) + noise
        tap.send(agent, peer, "model", models[agent])
        models[peer] = (models[peer] + models[agent]) / 2
"""


def audited(tmp_path: Path, *claimed: str) -> AuditResult:
    (tmp_path / "program.py").write_text(ASYNCHRONOUS)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "program.py", *claimed), "folder": tmp_path},
            "record": {"victims": (1, 2), "rounds": (1, 2, 3, 4), "sampling": "none"},
            "certify": {"runs": 8},
            "claim": ({"text": "a round", "mu": 1.0, "scope": "round"},),
        }
    )
    return run_captured(config, tmp_path / "out", cores=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, None), (0.5, Verdict.UNSUPPORTED)],
)
def test_agents_may_miss_rounds_and_batches(
    tmp_path: Path, factor: float, verdict: Verdict | None
) -> None:
    """A record of norm 1 over noise of scale ``factor``; agents 1 and 2 miss the third round."""
    result = audited(tmp_path, str(factor))
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    assert measured.value(Name.LARGEST_MU_OF_A_ROUND) == pytest.approx(1 / factor, rel=1e-9)
    assert measured.verdict == verdict
    missed = [note for note in measured.notes if "takes no batch or sends nothing in" in note]
    assert missed
    assert all("3" in note for note in missed)
