"""All that one run of a program shows to others, so that two runs can be held side by side.

That is every message in its order, with those before round 1, texts in them, and what is printed.
The draws of noise and the batches are there too: which are made may not depend on a record.
"""

import re
from collections.abc import Callable, Sequence
from math import isclose
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.errors import RunError, shortened
from dpaudit.files.recorded import RecordedEvent
from dpaudit.files.result import PremiseName
from dpaudit.files.world import World
from dpaudit.recorder.player import SAID
from dpaudit.recorder.transports.unseen import PRINTED
from dpaudit.text import one_line

from .program import Program
from .runs import MessageId, ProgramRun

WARNED = re.compile(  # warnings of numbers that are not finite, with the program's line below
    r".*:\d+: RuntimeWarning: (?:overflow|underflow|invalid value|divide by zero)"
)
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
CLOCK = re.compile(  # dates and times of day, durations, and rates as of samples/s
    r"(?:\d{4}-\d\d-\d\d[T ])?(?:\d+:)?\d?\d:\d\d(?:[.,]\d+)?\b"
    rf"|{NUMBER.pattern} ?(?:[A-Za-z]+/)?(?:[mnuµ]?s|secs?|seconds?|minutes?)(?:/[A-Za-z]+)?\b"
)
WHOLE = re.compile(r"(?<![\w.])\d{4,}(?!\w|\.\d)")  # a whole number of four digits or more
LONGEST = 80  # length of a quoted line
SAME = 1e-6  # relative or absolute: by which numbers that are printed may differ, from rounding
Ordered = Literal["all", "source", "link"]
SENT_ON = (
    "processes send on what they get in the same round, in an order that is not known; agents in "
    "one process, which show their messages to tap.send, are played in their order"
)
OF_ORDER = "which messages are sent, to whom, in which order or of which size"
AGAIN = 3  # times that a run is played which shows another order
EQUAL_RUNS = 4  # and one for each server; of agents that are threads, one order is unlikely


class NotExamined(Exception):
    """Why a premise cannot be examined."""

    def __init__(self, premise: PremiseName, why: str) -> None:
        super().__init__(why)
        self.premise, self.why = premise, why


def in_short(error: RunError) -> str:
    """Why a run failed: with the last line of what the program said, if it said something."""
    first, *more = error.problems
    return f"{first.text} {more[-1].text}" if more else first.text


Differs = tuple[PremiseName | None, str]  # the premise against which a run speaks, and why


def refuse_differing(
    worlds: Sequence[World],
    play: Callable[[Sequence[World]], Sequence[Differs | RunError]],
    premise: PremiseName,
) -> None:
    """Raises NotExamined for the first world whose run is not the same as another one.

    The order of messages to several receivers may be another one by chance, as of a server that
    answers whoever asks first. Such a run is played again: the record decides what stays so.
    """
    found = list(play(worlds))
    for _ in range(AGAIN):
        other = [i for i, one in enumerate(found) if _is_of_order(one)]
        for i, one in zip(other, play([worlds[i] for i in other]) if other else (), strict=True):
            found[i] = one
    for one in found:
        if isinstance(one, RunError):
            raise NotExamined(premise, in_short(one))
        named, why = one
        if named is not None:
            raise NotExamined(premise if named == "composition" else named, why)


def _is_of_order(found: Differs | RunError) -> bool:
    return not isinstance(found, RunError) and found[1].startswith(OF_ORDER)


def is_same(one: Array, other: Array, size: float = 0.0) -> bool:
    """Whether two contents are the same but for rounding, relative to the largest number."""
    size = max(size, float(np.abs(one).max(initial=0.0)))
    return one.shape == other.shape and bool((np.abs(one - other) <= SAME * size).all())


class VisibleOutput(NamedTuple):
    """What a run sends, and what decides that."""

    order: tuple[tuple[Any, ...], ...]  # sender, receivers, place and shape of each message
    contents: tuple[Array, ...]
    ids: tuple[MessageId | None, ...]
    draws: tuple[tuple[str, float, str], ...]  # key, scale and family of noise
    batches: tuple[tuple[int, int], ...]  # agent and number of records, before one is changed
    printed: tuple[str, ...]
    ordered: Ordered

    @classmethod
    def of(cls, run: ProgramRun, ordered: Ordered) -> "VisibleOutput":
        """Read a run, while its folder is there.

        Args:
            ordered: keep the order of all messages, or that of each agent's alone, for agents that
                run side by side have no other in common; or that on each link alone, as a server
                answers whoever asks first.
        """
        everything = run.all_sent
        if ordered == "all" and len({event.process for event, _ in everything}) > 1:
            ordered = "source"
        sent = sorted(everything, key=lambda one: (_first_by(one[0], ordered), one[0].sequence))
        order = tuple(
            (e.source, e.destinations, e.operator, e.call_site, e.tag, _shapes(e.tensors))
            for e, _ in sent
        )
        ids = run.id_of
        drawn = sorted(run.draws, key=lambda d: (d.agent, d.sequence))
        taken = sorted(run.batches, key=lambda t: (t.agent, t.sequence))
        return cls(
            order,
            tuple(content for _, content in sent),
            tuple(ids.get((e.process, e.sequence)) for e, _ in sent),
            tuple((d.key, d.scale, d.family) for d in drawn),
            tuple((t.agent, t.records) for t in taken),
            printed(run.world.out / SAID, run.beside, run.given_by_system),
            ordered,
        )

    def other_order(self, other: "VisibleOutput") -> str | None:
        """What beside the values of messages differs from another run, in words."""
        if self.order != other.order:
            return OF_ORDER
        if _rounded(self.draws) != _rounded(other.draws):
            return "which noise is drawn, or its scale"
        if self.batches != other.batches:
            return "which batches an agent takes, or how large they are"
        return None


def _first_by(event: RecordedEvent, ordered: Ordered) -> tuple[object, ...]:
    """What messages are sorted by, before the time of sending."""
    if ordered == "all":
        return ()
    return (event.source,) if ordered == "source" else (event.source, event.destinations)


def _shapes(tensors: tuple[object, ...]) -> tuple[object, ...]:
    return tuple((t.name, t.shape, t.dtype) for t in tensors)  # type: ignore[attr-defined]


def _rounded(draws: tuple[tuple[str, float, str], ...]) -> list[tuple[str, str, str]]:
    return [(key, f"{scale:.9g}", family) for key, scale, family in draws]


def printed(
    path: Path, beside: tuple[str, ...] = (), given: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """The lines that a run printed, in order of their texts, without times and warnings of numbers.

    Args:
        beside: texts that are sent, as if they were printed, and what its processes printed to it.
        given: numbers that the system gave to the run, as ports, which other runs have others of.
    """

    def in_all_runs(line: str) -> str:
        return WHOLE.sub(lambda found: "(given)" if found[0] in given else found[0], line)

    found, warned = [_without_times(text) for text in beside], False
    for line in path.read_text("utf-8", "replace").splitlines() if path.exists() else ():
        is_code, warned = warned and line.startswith("  "), bool(WARNED.match(line))
        if not (is_code or warned):
            found.append(CLOCK.sub("(time)", line))
    return tuple(sorted(map(in_all_runs, found), key=lambda line: NUMBER.sub(_short, line)))


def _without_times(text: str) -> str:
    """A line that a process printed to the program; other texts are sent as they are."""
    return CLOCK.sub("(time)", text) if text.startswith(PRINTED) else text


def _short(found: re.Match[str]) -> str:
    return f"{float(found[0]):.3g}"


def are_alike(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two runs have printed the same, but for the rounding of numbers."""
    return len(one) == len(other) and all(map(_is_alike, one, other))


def other_line(one: tuple[str, ...], other: tuple[str, ...]) -> str:
    """A line of one run that the other has not printed, or of the other, quoted; or ""."""
    for here, there in ((one, other), (other, one)):
        for line in here:
            if not any(_is_alike(line, of) for of in there):
                return f'"{shortened(one_line(line), LONGEST)}"'
    return ""


def _is_alike(one: str, other: str) -> bool:
    if one == other:
        return True
    a, b = ([float(n) for n in NUMBER.findall(line)] for line in (one, other))
    same = NUMBER.sub("0", one) == NUMBER.sub("0", other)
    return same and all(
        isclose(x, y, rel_tol=SAME, abs_tol=SAME) for x, y in zip(a, b, strict=True)
    )


class EqualRuns(NamedTuple):
    """What runs show that share every draw."""

    trace: VisibleOutput
    printed: tuple[tuple[str, ...], ...]  # also as texts of messages, of a run and of a forked one

    @classmethod
    def of(cls, program: Program, replay: World, is_simulation: bool) -> "EqualRuns":
        """Play a program again and again. Raises NotExamined, RunError."""
        runs = program.each(
            [replay] * (EQUAL_RUNS + program.workers),
            lambda run: [VisibleOutput.of(run, ordered) for ordered in get_args(Ordered)],
        )
        for same in zip(*runs, strict=True):
            if any(one.other_order(same[0]) for one in same):
                continue
            printed: list[tuple[str, ...]] = []
            for one in same:
                if not any(are_alike(one.printed, other) for other in printed):
                    printed.append(one.printed)
            least, *more = sorted(printed, key=len)
            forked = is_simulation and len(more) == 1 and {*least} < {*more[0]}
            if more and not forked:  # forks would print again what came before the first tap
                line = other_line(least, more[0])
                why = "what is printed or sent as text differs between equal runs"
                raise NotExamined("completeness", f"{why}, as {line}" if line else why)
            return cls(same[0], tuple(printed))
        raise NotExamined("state", "the order of messages differs between equal runs")
