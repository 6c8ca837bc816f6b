"""Rounds, batches and draws of a recording, value by value: by hand, and by loops beside the code."""

from math import pi
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture import rounds
from dpaudit.capture.other_draws import other_draws
from dpaudit.capture.rounds import ProgramCall, is_small, numbered, start_site
from dpaudit.capture.runs import MessageId, TakenBatch
from dpaudit.capture.sampling import Sampling, pattern_of
from dpaudit.capture.unnamed_noise import drawn_beside
from dpaudit.errors import RunError


@pytest.mark.parametrize(
    ("size", "largest", "small"),
    [
        *((0, 0, False), (1, 1, False), (1, 2, True), (2, 15, False), (2, 20, True)),
        *((3, 20, False), (10, 100, True), (11, 100, False), (100, 100, False), (0, 1, True)),
    ],
)
def test_a_tenth_of_the_largest_message_is_small(size: int, largest: int, small: bool) -> None:
    assert is_small(size, largest) is small


def keys(lines: str) -> list[ProgramCall]:
    return [ProgramCall(0, line, (line,)) for line in lines]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", None),
        ("A", None),
        ("AA", (0, 1, 2)),
        ("BCDEAA", (4, 1, 2)),  # a third of the calls
        ("BCDEFAA", None),
        ("ABCABC", (0, 3, 6)),
        ("ABCABD", None),
        ("SSSSESSSSE", (0, 1, 8)),  # four fifths of what the best explains, with other lines left
        ("SSSESSSE", (0, 4, 8)),
        ("SSSSESSSSES", (0, 5, 11)),
        ("SSSSSTSSSSST", (0, 1, 10)),
        ("XABABYABAB", (1, 2, 8)),
    ],
)
def test_a_period_is_what_explains_the_calls(lines: str, expected: Any) -> None:
    assert rounds._period(keys(lines)) == expected


def test_a_shorter_period_leaves_no_call_of_its_lines() -> None:
    """Four fifths have the period 1; what is left is sent at the same line, or at another."""
    for site, length in (("S", 5), ("E", 1)):
        one, other = ProgramCall(0, "S", ("1",)), ProgramCall(0, site, ("2",))
        found = rounds._period([one, one, one, one, other] * 2)
        assert found is not None
        assert found.length == length


@pytest.mark.parametrize(("period", "found"), [(5, True), (6, False)])
def test_rounds_have_so_many_calls_at_most(monkeypatch, period: int, found: bool) -> None:
    assert rounds.LONGEST_PERIOD == 1000
    monkeypatch.setattr(rounds, "LONGEST_PERIOD", 5)
    expected = (0, period, 2 * period) if found else None
    assert rounds._period(keys("ABCDEF"[:period] * 2)) == expected


def repeated(codes: list[int], period: int) -> list[bool]:
    """By every stretch that repeats with the period, and goes on no further."""
    n, inside, longest = len(codes), [False] * len(codes), []
    for begin in range(n):
        end = begin + period
        while end < n and codes[end] == codes[end - period]:
            end += 1
        starts = (
            not begin or begin + period - 1 >= n or codes[begin - 1] != codes[begin + period - 1]
        )
        if starts and end - begin >= 2 * period:
            inside[begin:end] = [True] * (end - begin)
            longest = max(longest, codes[begin:end], key=len)
    return [within and code in longest for within, code in zip(inside, codes, strict=True)]


@pytest.mark.parametrize("period", [1, 2, 3, 4])
def test_what_repeats_is_that_of_a_loop(period: int) -> None:
    rng = np.random.default_rng(period)
    for n_codes in (2, 3, 5):
        for codes in rng.integers(n_codes, size=(60, 14)):
            assert rounds._repeated(codes, period).tolist() == repeated(codes.tolist(), period)


def calls(lines: str, *sizes: int) -> list[ProgramCall]:
    """Small letters draw, others send so many numbers, one by default."""
    each = [*sizes, *[1] * (len(lines) - len(sizes))]
    return [
        ProgramCall(i, line, (line,) if line.isupper() else (), size=size * line.isupper())
        for i, (line, size) in enumerate(zip(lines, each, strict=True))
    ]


@pytest.mark.parametrize(
    ("lines", "starts", "expected"),
    [
        ("SSS", [True, False, True], [1, 1, 2]),
        ("ISS", [False, True, True], [None, 1, 2]),
        ("nSn", [False, True, False], [1, 1, None]),
        ("nSn", [True, False, True], [1, 1, None]),
        ("nInS", [False, False, False, True], [None, None, 1, 1]),
    ],
)
def test_a_draw_has_the_round_of_what_follows(lines, starts, expected) -> None:
    assert rounds._numbers(calls(lines), starts) == expected


def test_a_line_starts_a_round_where_it_comes_anew() -> None:
    """Directly after itself only if one repeats what another of its stretch sent."""

    def at(*parts: str) -> list[bool]:
        some = [ProgramCall(i, part[0], (part,)) for i, part in enumerate(parts)]
        return rounds._at_site(some, "S")

    assert at("S1", "S2", "S1") == [True, False, True]
    assert at("S1", "S2", "S3", "S2", "S1", "S3", "S2") == [
        *(True, False, False, True),
        *(False, False, True),
    ]
    assert at("S1", "T1", "S2", "S1") == [True, False, True, False]
    assert at("T1", "T1", "S1", "T1", "S1") == [False, False, True, False, True]
    assert at("S1", "T9", "S2", "T9", "T9", "S3", "S2") == [
        *(True, False, True, False),
        *(False, True, False),
    ]


def test_small_messages_belong_to_the_next_large_one() -> None:
    sizes = (0, 1, 1, 40, 0, 1, 40, 1, 1, 1, 40)
    found = rounds._by_period(calls("nLLSnLSLLLS", *sizes))
    assert [i for i, start in enumerate(found) if start] == [1, 5, 7]
    assert rounds._by_period([]) == []
    assert rounds._by_period(calls("nnn")) == [False] * 3
    early = rounds._by_period(calls("LSLSLLS", 1, 40, 1, 40, 1, 1, 40))
    assert [i for i, start in enumerate(early) if start] == [0, 2, 4]


def sent(sequence: int, site: str, k: int | None, process: int = 0) -> Any:
    about = {"operator": "send", "occurrence": sequence, "tensors": (), "destinations": (1,)}
    event: Any = SimpleNamespace(process=process, sequence=sequence, call_site=site, round=k, tag=0)
    vars(event).update(about)
    event.model_copy = lambda update: SimpleNamespace(**{**vars(event), **update})
    return event


def test_one_line_starts_the_rounds_of_all_processes() -> None:
    one, other = [sent(0, "a", 1), sent(1, "b", 1), sent(2, "a", 2)], sent(0, "a", 1, 1)
    assert start_site([*one, other], []) == "a"
    assert start_site([*one, sent(0, "b", 1, 1)], []) is None
    assert start_site([sent(0, "a", 2)], []) is None
    assert start_site([sent(0, "a", 1), sent(1, "b", 2)], []) is None
    found = numbered(one, {(0, 0): 5, (1, 1): 6})
    assert [event.round for event in found] == [5, None, None]


@pytest.mark.parametrize(
    ("batches", "pattern"),
    [
        ([], "unknown"),
        (["a"], "unknown"),
        (["aa", "a"], "unknown"),
        (["a", "aa"], "unknown"),
        (["ab", "ba"], "whole"),
        (["a", "bcd", "e"], "random"),  # sizes that differ by 2
        (["bcd", "a", "e"], "random"),
        (["a", "bc", "d"], "unknown"),
        (["ab", "c", "de"], "unknown"),
        (["a", "b", "cd"], "random"),  # the last of a pass is not the largest
        (["abc", "def", "abd", "ecf", "ab"], "unknown"),
        (["ab", "cd", "ef", "ab", "ac"], "random"),  # the second pass dropped more than a batch
        (["ab", "ac", "bd", "ef", "cd", "ab"], "random"),
        (["ab", "cd", "ef", "gh", "ij", "kl", "ab"], "epochs"),  # by chance 0.91e-4
        ([*"abcdefghijk", *"abc"], "unknown"),  # by chance 1.04e-4
    ],
)
def test_batches_show_their_pattern(batches: list[str], pattern: str) -> None:
    assert pattern_of(batches) == pattern


@pytest.mark.parametrize(("n", "size", "refused"), [(5, 31, False), (5, 32, True)])
def test_equal_sizes_are_refused_by_their_chance(n: int, size: int, refused: bool) -> None:
    """(2 pi size / 2)^-2 is 1.05e-4 of 31 records and 0.99e-4 of 32."""
    assert ((2 * pi * size / 2) ** (-(n - 1) / 2) < 1e-4) == refused
    some = [TakenBatch(0, i, size, tuple(f"{i}-{j}" for j in range(size))) for i in range(n)]
    stated: Any = SimpleNamespace(sampling="poisson", sampling_rate=0.5, victims=(0,))
    if not refused:
        assert Sampling.of(stated, some) == ("poisson", 0.5, "unknown")
        return
    with pytest.raises(RunError, match=f"all 5 batches of agent 0 have {size} records"):
        Sampling.of(stated, some)


MESSAGE = MessageId(0, (1,), "x", 3)


def batch(sequence: int, agent: int = 0, process: int = 0) -> Any:
    return SimpleNamespace(sequence=sequence, agent=agent, process=process)


def draw(sequence: int, n: int, site: str = "a.py:1", process: int = 0) -> Any:
    about = {
        "operator": "rand",
        "purpose": None,
        "shape": (n,),
        "process": process,
        "parameters": (),
    }
    return SimpleNamespace(sequence=sequence, call_site=site, **about)


def beside(taken: list[Any], draws: list[Any], size: int = 2) -> str:
    """Of a message of so many numbers in a round between sequences 2 and 7."""
    run: Any = SimpleNamespace(
        taken=taken, all_draws=draws, messages={MESSAGE: np.zeros(size)}, as_bytes=frozenset()
    )
    run.span = lambda agent, k: {(0, 3): (2, 7)}[agent, k]
    return drawn_beside(run, (), MESSAGE)


@pytest.mark.parametrize(
    ("taken", "draws", "said"),
    [
        ([batch(3)], [draw(5, 2)], "a.py:1"),
        ([batch(3)], [draw(5, 1)], ""),
        ([batch(3)], [draw(5, 1), draw(6, 1)], "a.py:1"),
        ([batch(3)], [draw(5, 1, "b.py:1"), draw(6, 3), draw(4, 2, "c.py:1")], "a.py:1"),
        ([batch(2)], [draw(5, 2)], ""),  # a batch of the round before
        ([batch(7)], [draw(8, 2)], ""),
        ([batch(3, agent=1)], [draw(5, 2)], ""),
        ([batch(3), batch(3, 1, 1)], [draw(5, 2, process=1)], ""),
        ([batch(3), batch(6)], [draw(5, 2)], "a.py:1"),  # after the first of two batches
        ([batch(3), batch(1)], [draw(2, 2)], ""),
        ([batch(3)], [draw(7, 2)], ""),
        ([batch(5)], [draw(4, 2)], ""),
        ([batch(3, process=1)], [draw(5, 2)], ""),
        ([batch(3, process=1)], [draw(5, 2, process=1)], "a.py:1"),
    ],
)
def test_what_is_drawn_in_a_round_hides_its_message(taken, draws, said: str) -> None:
    found = beside(taken, draws)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_message_without_numbers_is_hidden_by_nothing() -> None:
    assert beside([batch(3)], [], size=0) == ""


def test_draws_are_taken_in_their_order_by_process() -> None:
    noise: Any = SimpleNamespace(**{**vars(draw(6, 2, "noise")), "operator": "gaussian"})

    def of(*draws: Any, taken: tuple[Any, ...] = (batch(2),)) -> str:
        return other_draws(SimpleNamespace(taken=taken, all_draws=draws), ())  # type: ignore[arg-type]

    assert of(noise, draw(5, 2)) == ""  # as they were drawn, not as they are listed
    assert "2 numbers" in of(noise, draw(7, 2))
    assert "2 numbers" in of(noise, draw(5, 2, process=1))
    assert "1 numbers" in of(noise, draw(5, 1))
    assert of(noise, draw(5, 2), draw(1, 3)) == ""
    assert "draws numbers" in of(noise, draw(5, 2), draw(3, 3))
    later = batch(4), batch(2)
    assert "draws numbers" in of(noise, draw(5, 2), draw(3, 3), taken=later)
