"""Whose draws may hide messages of a later round, in a log written by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture.runs import MessageId, NamedDraw
from dpaudit.capture.worlds import hiding_before, is_noise


def draw(key: str, agent: int, sequence: int, name: str = "z") -> NamedDraw:
    return NamedDraw(key, name, agent, sequence, 1.0, "gaussian")


def run(
    draws: list[tuple[NamedDraw, int]],
    messages: dict[MessageId, list[float]],
    spans: dict[int, tuple[int, int]],
    window: int = -1,
) -> Any:
    """With so many numbers of each draw, and when agents sent last before round 2 and in it."""
    return SimpleNamespace(
        draws=[one for one, _ in draws],
        tape={one.key: np.zeros(n) for one, n in draws},
        messages={m: np.array(values) for m, values in messages.items()},
        span=lambda agent, k: spans[agent],
        window=lambda k: (window, -1),
    )


def sent(agent: int, k: int, receivers: tuple[int, ...] = (1,), nth: int = 0) -> MessageId:
    return MessageId(agent, receivers, "a", k, nth)


@pytest.mark.parametrize(
    "drawn, sequence, ends, window, hides",
    [
        (3, 4, (5, 9), -1, True),
        (2, 4, (5, 9), -1, False),  # as many as were sent
        (3, 5, (5, 9), -1, False),  # for the round
        (3, 4, (5, 0), 2, True),
        (3, 4, (2, 0), 5, False),  # it sends in the round: by its own messages
        (3, 4, (2, -1), 5, True),  # it sends nothing: by everybody's
        (3, 4, (2, -1), 4, False),
        (3, 4, (5, -1), 2, True),
    ],
)
def test_who_drew_more_noise_than_it_sent_may_hide_messages(
    drawn, sequence, ends, window, hides
) -> None:
    messages = {sent(0, 1): [1.0, 2.0], sent(0, 2): [5.0, 6.0, 7.0]}
    base = run([(draw("0/0", 0, sequence), drawn)], messages, {0: ends}, window)
    assert (hiding_before(base, (), 2) == {0}) is hides


def test_what_several_get_counts_once() -> None:
    same = {sent(0, 1, (1,)): [1.0, 2.0], sent(0, 1, (2,), 1): [1.0, 2.0]}
    draws = [(draw("0/0", 0, 1), 2), (draw("0/1", 0, 2), 1)]
    assert hiding_before(run(draws, same, {0: (5, 9)}), (), 2) == {0}
    other = {**same, sent(0, 1, (2,), 2): [1.0, 3.0]}
    assert hiding_before(run(draws, other, {0: (5, 9)}), (), 2) == frozenset()
    named = [(draw("0/0", 0, 1), 2), (draw("0/1", 0, 2, "order"), 1)]
    assert hiding_before(run(named, same, {0: (5, 9)}), ("z",), 2) == frozenset()
    two = [*draws, (draw("1/0", 1, 1), 1)]
    assert hiding_before(run(two, same, {0: (5, 9), 1: (5, 9)}), (), 2) == {0, 1}
    assert [is_noise(draw("k", 0, 1), sites) for sites in ((), ("z",), ("y",))] == [
        True,
        True,
        False,
    ]
