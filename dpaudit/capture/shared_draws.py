"""Draws that several agents make alike, as of noise that both share and one takes away."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from dpaudit.accounting.privacy_loss import Array

from .runs import NamedDraw, ProgramRun

Sign = Literal[1, -1]
Same = dict[str, tuple[str, Sign]]


def same_draws(plain: ProgramRun, sites: Sequence[str], rounds: Sequence[int]) -> Same:
    """Which draws are the numbers that another agent drew in the same round, or less these.

    What that shows of a record is measured, in the rounds that are measured. In other rounds only
    those count that the same agents draw by the same names there: what repeats otherwise is a
    fault.
    """
    found = {
        later.key: (first, later, sign)
        for first, later, sign in _pairs([d for d in plain.draws if not sites or d.name in sites],
                                         plain.tape)
    }  # fmt: skip
    measured = {_link(a, b) for a, b, _ in found.values() if a.round in rounds}
    return {key: (a.key, sign) for key, (a, b, sign) in found.items() if _link(a, b) in measured}


def _pairs(
    draws: Sequence[NamedDraw], tape: Mapping[str, Array]
) -> Iterator[tuple[NamedDraw, NamedDraw, Sign]]:
    first: dict[tuple[int | None, bytes], NamedDraw] = {}
    for draw in draws:
        values = tape[draw.key]
        if not values.any():
            continue
        seen = first.setdefault((draw.round, values.tobytes()), draw)
        less = first.get((draw.round, (-values).tobytes()))
        for other, sign in ((seen, 1), (less, -1)):
            if other is not None and other.agent != draw.agent:
                yield other, draw, sign  # type: ignore[misc]
                break


def _link(a: NamedDraw, b: NamedDraw) -> tuple[int, str, int, str]:
    return a.agent, a.name, b.agent, b.name


def owners(draws: Sequence[NamedDraw], same: Same) -> dict[str, frozenset[int]]:
    """The agents that made each of these draws, by its key."""
    found = {draw.key: {draw.agent} for draw in draws}
    for key, (first, _) in same.items():
        if first in found:
            found[first].add(int(key.partition("/")[0]))
    return {key: frozenset(agents) for key, agents in found.items()}
