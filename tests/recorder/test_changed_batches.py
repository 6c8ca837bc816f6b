"""A record of a batch is changed once, however often the program shows the batch."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpaudit.capture.world_files import write_world
from dpaudit.files.world import Change, How, World
from dpaudit.recorder import player
from dpaudit.recorder.log import Log

X, Y = np.arange(1.0, 7.0).reshape(3, 2), np.array([0, 1, 1])


@pytest.fixture(params=["absent", "scaled", "other-label"])
def how(request: pytest.FixtureRequest) -> How:
    chosen: How = request.param
    return chosen


def played(folder: Path, how: How, batches: int) -> player.Player:
    changes = tuple(Change(agent=0, batch=number + 1, how=how) for number in range(batches))
    world = World(out=folder, changes=changes)
    return player.Player(Log(str(folder), 10_000), player.World(str(write_world(world))))


def sizes(folder: Path) -> list[int]:
    [path] = folder.glob("*.log")
    lines = map(json.loads, path.read_text().splitlines())
    return [line["records"] for line in lines if line["kind"] == "batch"]


def test_a_batch_that_is_shown_again_is_changed_once(tmp_path: Path, how: How) -> None:
    """As one that is kept from one local step to the next, or that a loader has shown before."""
    run = played(tmp_path, how, 3)
    first = run.batch(0, (X, Y))
    again = run.batch(0, tuple(part.copy() for part in first))
    third = run.batch(0, again)
    for one, other in zip((*first, *first), (*again, *third), strict=True):
        assert np.array_equal(one, other)
    assert sizes(tmp_path) == [3, 3, 3]


def test_records_that_are_taken_anew_are_changed_anew(tmp_path: Path, how: How) -> None:
    run = played(tmp_path, how, 2)
    first, again = run.batch(0, (X, Y)), run.batch(0, (X, Y))
    changed = [np.array_equal(one, given) for one, given in zip(first, (X, Y), strict=True)]
    assert not all(changed)
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert sizes(tmp_path) == [3, 3]


def test_another_agent_may_take_what_one_was_handed(tmp_path: Path, how: How) -> None:
    run = played(tmp_path, how, 1)
    first = run.batch(0, (X, Y))
    assert run.batch(1, first) is first
    assert sizes(tmp_path) == [3, 2 if how == "absent" else 3]
