"""Orders that processes carry out one after the other, each in a fork of its own."""

import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from dpaudit.pipeline.processes import EndedAudit, Order, side_by_side
from tests.material.ended import ended_by

SERVER = """
import json, os, sys, time
from pathlib import Path
from dpaudit.errors import RunError
from dpaudit.pipeline.processes import serve

state = []  # which an order must not find as another has left it

def carry_out(order):
    order = json.loads(order)
    state.append(order)
    Path(order["to"]).write_text(f"{os.getppid()} {os.getpid()} {len(state)} {'json' in sys.modules}")
    match order["act"]:
        case "print":
            print("not an answer", flush=True)
        case "fail":
            raise RunError("DPA070", "no luck\\nnone at all")
        case "bug":
            sys.exit("left by the audited code")
        case "hang":
            time.sleep(60)
        case "leave":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), 9)
        case "kill both":
            os.kill(os.getppid(), 9)
            time.sleep(60)

sys.exit(serve(carry_out, modules=("json",)))
"""


def carried_out(folder: Path, *acts: str, places: int = 1, seconds: float = 30) -> list[EndedAudit]:
    orders = {
        f"{i} {act}": Order(json.dumps({"act": act, "to": str(folder / f"{i}")}), folder / "none")
        for i, act in enumerate(acts)
    }
    command = (sys.executable, "-c", SERVER)
    over = side_by_side(command, orders, [{}] * places, lambda _: None, lambda _: seconds)
    with closing(over):
        return list(over)


def pids(folder: Path, i: int) -> tuple[str, str]:
    """Of the process that took an order, and of the one that carried it out."""
    parent, own, n_orders, imported = (folder / f"{i}").read_text().split()
    assert (n_orders, imported) == ("1", "True")
    return parent, own


def test_orders_in_one_place_share_a_process_and_no_state(tmp_path: Path) -> None:
    over = carried_out(tmp_path, "print", "print", "print")
    assert [(one.name, one.problems) for one in over] == [(f"{i} print", ()) for i in range(3)]
    takers, forks = zip(*(pids(tmp_path, i) for i in range(3)), strict=True)
    assert len(set(takers)) == 1
    assert len(set(forks)) == 3


def test_places_have_processes_of_their_own(tmp_path: Path) -> None:
    carried_out(tmp_path, "print", "print", places=2)
    assert pids(tmp_path, 0)[0] != pids(tmp_path, 1)[0]


@pytest.mark.parametrize(
    ("act", "code", "said"),
    [
        ("fail", "DPA070", ("no luck", "none at all")),
        ("bug", "DPA027", ("left by the audited code",)),
        ("leave", "DPA027", ("a bug in dpaudit or a plug-in (exit code 7): ",)),
        ("kill", "DPA026", ("killed, perhaps for lack of memory",)),
        ("kill both", "DPA026", ("killed, perhaps for lack of memory",)),
    ],
)
def test_what_ends_one_order_ends_no_other(
    tmp_path: Path, act: str, code: str, said: tuple[str, ...]
) -> None:
    first, second = carried_out(tmp_path, act, "print")
    assert len(first.problems) == len(said)
    assert all(part in one.text for part, one in zip(said, first.problems, strict=True))
    assert {one.code for one in first.problems} == {code}
    assert second.problems == ()
    assert (pids(tmp_path, 0)[0] == pids(tmp_path, 1)[0]) == (act != "kill both")


@pytest.mark.slow
def test_an_order_that_is_late_is_stopped_with_its_process(tmp_path: Path) -> None:
    first, second = carried_out(tmp_path, "hang", "print", seconds=3)
    assert first.out_of_time
    assert (second.problems, second.out_of_time) == ((), False)
    for pid in pids(tmp_path, 0):
        ended_by(pid, time.monotonic() + 10)


def test_a_fork_ends_with_who_asked(tmp_path: Path) -> None:
    order = {"x": Order(json.dumps({"act": "hang", "to": str(tmp_path / "0")}), tmp_path / "none")}
    asker = os.fork()
    if asker == 0:
        list(side_by_side((sys.executable, "-c", SERVER), order, [{}], lambda _: None))
        os._exit(0)
    until = time.monotonic() + 30
    while not ((tmp_path / "0").exists() and (tmp_path / "0").read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(asker, 9)
    os.waitpid(asker, 0)
    for pid in pids(tmp_path, 0):
        ended_by(pid, time.monotonic() + 10)
