"""Rounds from a named line, or from what repeats in the calls of a process."""

import re
from collections.abc import Sequence
from itertools import product

import pytest

from dpaudit.capture.rounds import numbered, rounds_of, start_site
from dpaudit.files.recorded import RecordedDraw, RecordedEvent, SentTensor


def recorded(lines: str, to: Sequence[int] = ()) -> tuple[list[RecordedEvent], list[RecordedDraw]]:
    """Calls of rank 0, a letter each: its line. Small letters draw, others send.

    The shape that is sent is the number after a letter; destinations are 1, or those given.
    """
    events, draws = [], []
    listed = re.findall(r"([A-Za-z])(\d*)", lines)
    for i, (line, after) in enumerate(listed):
        site = f"train.py:{line}"
        fields = {"process": 0, "rank": 0, "sequence": i, "time": i, "round": None}
        fields |= {"call_site": site, "occurrence": [a for a, _ in listed[:i]].count(line)}
        shape = (int(after) if after else 4,)
        if line.islower():
            draws.append(
                RecordedDraw(
                    **fields, operator="normal_", shape=shape, dtype="float32", parameters=(0, 1)
                )
            )
            continue
        tensor = SentTensor(name="0", shape=shape, dtype="float32", file="", key="", sha256="")
        destination = to[len(events) % len(to)] if to else 1
        fields |= {"operator": "send", "group": (0, 1), "tag": 0, "source": 0}
        fields |= {"destinations": (destination,), "tensors": (tensor,), "inconsistent": False}
        events.append(RecordedEvent(**fields))
    return events, draws


def with_rounds(
    events: Sequence[RecordedEvent], draws: Sequence[RecordedDraw], starts_at: str | None = None
) -> tuple[list[RecordedEvent], list[RecordedDraw]]:
    """The same with their rounds."""
    found = rounds_of(events, draws, starts_at)
    return numbered(events, found), numbered(draws, found)


def rounds(lines: str, starts_at: str | None = None, to: Sequence[int] = ()) -> list[int]:
    """The round of each call, 0 for none."""
    events, draws = with_rounds(*recorded(lines, to), starts_at)
    found = {call.sequence: call.round or 0 for call in [*events, *draws]}
    return [found[i] for i in sorted(found)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("SSSS", [1, 2, 3, 4]),
        ("ISSSS", [0, 1, 2, 3, 4]),  # something before the first round
        ("nSnSnSn", [1, 1, 2, 2, 3, 3, 0]),  # a draw belongs to the message that follows
        ("S1S2S3S1S2S3", [1, 1, 1, 2, 2, 2]),  # the layers of a model
        ("ABABAB", [1, 1, 2, 2, 3, 3]),
        ("S1S1T2S1S1T2S1S1T2", [1, 1, 1, 2, 2, 2, 3, 3, 3]),  # the first one is there twice
        ("SSSSSESSSSSE", [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]),  # an evaluation now and then
        ("SESSSSSE", [1, 1, 2, 3, 4, 5, 6, 6]),  # after the first round, too
        ("IASTASASAS", [0, 1, 1, 1, 2, 2, 3, 3, 4, 4]),
        ("ABCD", [0, 0, 0, 0]),
        ("n", [0]),
        ("", []),
    ],
)
def test_rounds_are_the_period_of_the_calls(lines: str, expected: list[int]) -> None:
    assert rounds(lines) == expected


def test_what_each_process_sends_once_is_one_round() -> None:
    """As two clients that train for one round: nothing repeats."""
    first, draws = recorded("nS")
    later, more = recorded("nSI")
    one, *other = [
        [event.model_copy(update={"process": process}) for event in events]
        for process, events in enumerate((first, first, later))
    ]
    assert [e.round for e in with_rounds([*one, *other[0]], draws)[0]] == [1, 1]
    assert with_rounds(first, draws)[1][0].round == 1
    assert {e.round for e in with_rounds([*one, *other[1]], [*draws, *more])[0]} == {None}


def test_neighbours_in_turn_are_one_round() -> None:
    assert rounds("SSSSSS", to=[1, 2]) == [1, 1, 2, 2, 3, 3]
    assert rounds("SSSSSSSS", to=[1, 2, 5, 1, 3, 4, 2, 6]) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("to", "tags", "expected"),
    [
        ([1], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
        ([1, 2], [1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 3, 3]),  # a tag of each round
        ([1, 2], [1, 2, 3, 4, 5, 6], [1, 1, 2, 2, 3, 3]),  # one of each message
        ([1, 1, 2, 2, 5, 5], [0, 1, 0, 1, 0, 1], [1, 1, 2, 2, 3, 3]),  # one of each layer
        ([1, 2, 5, 3, 4, 6], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),  # both go on
    ],
)
def test_tags_may_count_the_rounds(to: list[int], tags: list[int], expected: list[int]) -> None:
    events, _ = recorded("SSSSSS", to)
    tagged = [e.model_copy(update={"tag": tag}) for e, tag in zip(events, tags, strict=True)]
    assert [event.round for event in with_rounds(tagged, [])[0]] == expected


def test_what_repeats_before_training_is_no_round() -> None:
    assert rounds("AAAASTSTSTST") == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_named_line_overrides_the_period() -> None:
    assert rounds("nSSnSS", "train.py:n") == [1, 1, 1, 2, 2, 2]
    assert rounds("nSSnSS", "train.py:S") == [1, 1, 2, 3, 3, 4]  # what repeats is a new round
    assert rounds("nSSnSS", "train.py:S", to=[1, 2]) == [1, 1, 1, 2, 2, 2]
    assert rounds("SSS", "train.py:X") == [0, 0, 0]


def test_the_line_that_starts_rounds_gives_the_same_rounds() -> None:
    found = with_rounds(*recorded("IABABAB"))
    assert start_site(*found) == "train.py:A"
    twice = with_rounds(*recorded("S1S1T2S1S1T2S1S1T2"))
    assert start_site(*twice) is None


def test_messages_of_one_call_are_of_one_round() -> None:
    events, draws = recorded("SSSSSS", to=[1, 2])
    scattered = [
        event.model_copy(update={"operator": "scatter", "tag": None, "occurrence": i // 2})
        for i, event in enumerate(events)
    ]
    again, _ = with_rounds(scattered, draws)
    assert [event.round for event in again] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("L1L1L1L1S40" * 3, [1] * 5 + [2] * 5 + [3] * 5),  # a loss after every batch
        ("L1L1L1S40" + "L1L1S40" + "L1L1L1L1S40", [1] * 4 + [2] * 3 + [3] * 5),
        ("nL1nL1nL1S40" * 2 + "nL1nL1S40", [1] * 7 + [2] * 7 + [3] * 5),
        ("S40L1" * 3, [1, 1, 2, 2, 3, 3]),  # after the model, it makes no more rounds
        ("S40T2S40T2", [1, 1, 2, 2]),  # layers
    ],
)
def test_what_sends_little_makes_no_more_rounds(lines: str, expected: list[int]) -> None:
    assert rounds(lines) == expected


def served(agents: Sequence[int], names: Sequence[str] = ("reply",)) -> list[int]:
    """The round of each reply that one worker shows the tap, of these agents in their order."""
    [first, *_], _ = recorded("S")
    shown = {"operator": "tap", "destinations": (9,), "group": (0, 9)}
    events = [
        first.model_copy(
            update={**shown, "sequence": i, "source": agent, "occurrence": i, "call_site": name}
        )
        for i, (agent, name) in enumerate(product(agents, names))
    ]
    events, _ = with_rounds(events, [])
    return [event.round or 0 for event in events]


@pytest.mark.parametrize("agents", [[0, 1, 2, 0, 1, 2], [2, 0, 1, 1, 0, 2], [1, 0, 2, 2, 0, 1]])
def test_a_worker_serves_agents_in_any_order(agents: list[int]) -> None:
    assert served(agents) == [1, 1, 1, 2, 2, 2]


def test_an_agent_that_is_served_once_has_its_round() -> None:
    assert served([0, 1, 2, 0, 2]) == [1, 1, 1, 2, 2]


def test_a_worker_that_serves_each_agent_once_plays_one_round() -> None:
    assert served([1, 2, 0]) == [1, 1, 1]
    assert served([1, 2, 0], ["reply", "metrics"]) == [1] * 6
    assert served([1], ["reply", "metrics"]) == [1, 1]


def test_names_that_count_are_no_single_round() -> None:
    assert served([0], ["model-1", "model-2"]) == [0, 0]
    assert served([0, 0], ["reply", "metrics"]) == [1, 1, 2, 2]


def test_a_draw_is_of_the_agent_that_sends_next() -> None:
    [first, *_], _ = recorded("S")
    _, [draw] = recorded("n")
    events, draws = [], []
    for i, agent in enumerate([0, 1, 1, 0]):
        place = {"sequence": 2 * i + 1, "occurrence": i}
        events.append(first.model_copy(update={"operator": "tap", "source": agent, **place}))
        draws.append(draw.model_copy(update={"sequence": 2 * i, "occurrence": i}))
    events, draws = with_rounds(events, draws)
    assert [event.round for event in events] == [draw.round for draw in draws] == [1, 1, 2, 2]
