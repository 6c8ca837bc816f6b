"""The order in which records are changed, where agents send on what they get in a round."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture.alignment import MOST_ROUNDS, Alignments
from dpaudit.capture.runs import AgentRound, MessageId, NamedDraw
from dpaudit.capture.visible_output import NotExamined
from dpaudit.files.world import World

SENT = [(1, 0), (1, 1), (2, 1), (2, 0)]  # round and agent, in order of time


def alignments(
    folder: Any,
    moved_by: dict[int, set[int]],
    ranks: int | None = None,
    n_rounds: int = 2,
    moved_in: int = 0,
) -> Alignments:
    """Of two agents: whose messages of a round, or of the last, the noise of each agent moves."""
    sent = [*SENT, *((k, v) for k in range(3, n_rounds + 1) for v in (0, 1))]
    messages = {MessageId(v, (1 - v,), "x", k): np.zeros(2) for k, v in sent}
    base = SimpleNamespace(messages=messages)

    def each(worlds: list[World], *_: object) -> list[object]:
        runs = []
        for world in worlds:
            [key] = world.silent
            of = moved_by[int(key)]
            at = moved_in or n_rounds
            moved = {m: a + (m.source in of and m.round == at) for m, a in messages.items()}
            runs.append(SimpleNamespace(messages=moved))
        return runs

    places = {
        k: {
            v: AgentRound(v, k, (), (NamedDraw(str(v), "z", v, 0, 1.0, "gaussian", k),), batch=k)
            for v in (0, 1)
        }
        for k in range(1, n_rounds + 1)
    }
    worlds = SimpleNamespace(
        rounds={},
        base=base,
        replay=World(out=folder, seed=0),
        config=SimpleNamespace(program=SimpleNamespace(ranks=ranks)),
    )
    found = Alignments(worlds, SimpleNamespace(each=each), {}, lambda: None, None)  # type: ignore[arg-type]
    found.__dict__["places"] = places
    return found


def test_agents_of_a_round_are_changed_together(tmp_path) -> None:
    found = alignments(tmp_path, {0: {0}, 1: {1}})
    assert not found.sends_on
    assert found.stages == [(1, (0, 1)), (2, (0, 1))]


def test_agents_that_send_on_are_changed_in_order_of_time(tmp_path) -> None:
    found = alignments(tmp_path, {0: {0}, 1: {0, 1}})
    assert found.sends_on
    assert found.stages == [(1, (0,)), (1, (1,)), (2, (1,)), (2, (0,))]


def test_processes_that_send_on_have_no_known_order(tmp_path) -> None:
    with pytest.raises(NotExamined, match="processes send on what they get"):
        _ = alignments(tmp_path, {0: {0, 1}, 1: {1}}, ranks=2).stages


def test_agents_that_send_on_often_are_not_played(tmp_path) -> None:
    half = MOST_ROUNDS // 2
    assert len(alignments(tmp_path, {0: {1}, 1: {1}}, n_rounds=half).stages) == MOST_ROUNDS
    with pytest.raises(NotExamined, match="102 times; 100 at most are played"):
        _ = alignments(tmp_path, {0: {1}, 1: {1}}, n_rounds=half + 1).stages


def test_a_last_round_that_was_measured_is_not_tried_again(tmp_path) -> None:
    found = alignments(tmp_path, {0: {1}, 1: {0}})
    places = {v: place._replace(others=()) for v, place in found.places[2].items()}
    found.worlds.rounds[2] = SimpleNamespace(places=places)  # type: ignore[index]
    assert not found.sends_on
    others = (MessageId(1, (0,), "x", 2),)
    found.__dict__.pop("sends_on")
    among = SimpleNamespace(places={0: places[0]._replace(others=others)})
    found.worlds.rounds[2] = among  # type: ignore[index]
    assert found.sends_on


def test_a_server_that_sends_on_is_no_agent_that_does(tmp_path) -> None:
    """Its messages move with the noise of agents 0 and 1, and theirs with their own alone."""
    found = alignments(tmp_path, {0: {0, 2}, 1: {1, 2}}, ranks=3)
    found.worlds.base.messages[MessageId(2, (0,), "mean", 2)] = np.zeros(2)
    assert not found.sends_on
    assert found.stages == [(1, (0, 1)), (2, (0, 1))]


def test_agents_that_send_on_in_one_order_alone_are_seen(tmp_path) -> None:
    """In round 1 agent 0 sends first, as in round 3 and later, and in round 2 agent 1 does."""
    assert alignments(tmp_path, {0: {0}, 1: {0, 1}}, n_rounds=4, moved_in=2).sends_on
    assert not alignments(tmp_path, {0: {0}, 1: {0, 1}}, n_rounds=4, moved_in=3).sends_on
    of_processes = alignments(tmp_path, {0: {0}, 1: {0, 1}}, 2, n_rounds=4, moved_in=2)
    assert not of_processes.sends_on
