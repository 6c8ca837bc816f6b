"""Which lines of a recorded program draw noise, as far as a recording can show it."""

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import NamedTuple, get_args

from dpaudit.files.recorded import RecordedDraw
from dpaudit.files.world import Noise
from dpaudit.recorder.draws.torch_draws import is_laplace

from .recording import CaptureFolder

_LAWS = ("normal", "laplace", "uniform", "exponential", "gamma", "geometric", "lognormal")
CONTINUOUS = (  # operators
    *("normal_", "normal", "uniform_", "exponential_"),
    *("cauchy_", "log_normal_", "geometric_", "_standard_gamma", "trunc_normal_"),
    *(f"{library}.{law}" for library in ("numpy", "random", "jax") for law in _LAWS),
)
REPLAYED = (  # operators of noise that an audit can replay
    *("normal_", "normal", "numpy.normal", "numpy.laplace"),
    *("random.normal", "jax.normal", "jax.laplace"),
)
PURPOSES = {
    "model": "draws weights, or what a model does to its inputs",
    "data": "draws what becomes of records",
}


class NoiseLine(NamedTuple):
    """A line that draws continuous numbers between messages."""

    site: str
    why_not: str | None  # it is no noise, or none that an audit replays; None: it may be
    doubt: str = ""


def noise_lines(recording: CaptureFolder) -> list[NoiseLine]:
    """Lines that drew continuous numbers between two messages of one process, as first met.

    One that draws as many numbers as no message has is no noise if another line draws as many.
    They count from the first message of round 1 on, where there are rounds: what is drawn before
    it alone is of data and of initial weights.
    """
    by_site: defaultdict[str, list[RecordedDraw]] = defaultdict(list)
    for draw in _between(recording):
        by_site[draw.call_site].append(draw)
    sizes = _sizes(recording)
    lines = [_line(site, drawn, sizes) for site, drawn in by_site.items()]
    if all(line.doubt for line in lines if line.why_not is None):
        return lines
    return [NoiseLine(line.site, line.why_not or line.doubt or None) for line in lines]


def noise_of_tap(recording: CaptureFolder) -> list[str] | None:
    """The lines that drew what ``tap.noise`` was shown; None: it was shown nothing.

    It is the last draw of as many numbers, or else of a multiple, as where one call draws the noise
    of all agents.
    """
    found: dict[str, None] = {}
    drawn: defaultdict[int, dict[int, str]] = defaultdict(dict)  # process -> draw's number -> line
    was_called = False
    for draw in sorted(recording.draws, key=lambda one: (one.process, one.sequence)):
        before, n = drawn[draw.process], prod(draw.shape)
        if draw.operator in get_args(Noise):
            was_called = True
            sizes = [size for size in before if n and size % n == 0]
            origin = before.get(n) or next((before[size] for size in reversed(sizes)), None)
            found.update(dict.fromkeys(filter(None, [origin])))
        elif draw.operator in CONTINUOUS and draw.purpose is None:
            before.pop(n, None)
            before[n] = draw.call_site
    return list(found) if was_called else None


def _between(recording: CaptureFolder) -> list[RecordedDraw]:
    span: dict[int, list[int]] = {}
    rounds = any(event.round is not None for event in recording.events)
    for event in recording.events:
        if event.round is not None or not rounds:
            span.setdefault(event.process, []).append(event.sequence)
    return [
        draw
        for draw in recording.draws
        if draw.operator in CONTINUOUS
        and draw.process in span
        and span[draw.process][0] < draw.sequence < span[draw.process][-1]
    ]


def _line(site: str, drawn: Sequence[RecordedDraw], sizes: frozenset[int]) -> NoiseLine:
    purposes = {draw.purpose for draw in drawn} - {None}
    if purposes:
        return NoiseLine(
            site, " and ".join(PURPOSES[one] for one in sorted(filter(None, purposes)))
        )
    other = next((draw.operator for draw in drawn if not _is_replayed(draw)), None)
    if other is not None:
        return NoiseLine(
            site, f"draws by {other}, which an audit cannot replay; if it is noise, use tap.noise"
        )
    by_round: defaultdict[tuple[int, int | None], int] = defaultdict(int)
    for draw in drawn:
        by_round[draw.process, draw.round] += prod(draw.shape)
    if sizes & {*map(prod, (draw.shape for draw in drawn)), *by_round.values()}:
        return NoiseLine(site, None)
    n = prod(drawn[0].shape)
    return NoiseLine(site, None, f"draws {n} numbers, and no message has as many: is it noise?")


def _is_replayed(draw: RecordedDraw) -> bool:
    return draw.operator in REPLAYED or is_laplace(draw.operator, draw.parameters)


def _sizes(recording: CaptureFolder) -> frozenset[int]:
    """How many numbers a tensor, a message, and all of a round's to one receiver have."""
    found: set[int] = set()
    of_round: defaultdict[object, int] = defaultdict(int)
    for event in recording.events:
        sizes = [prod(tensor.shape) for tensor in event.tensors]
        found |= {*sizes, sum(sizes)}
        of_round[event.source, event.destinations, event.round] += sum(sizes)
    return frozenset(found | {*of_round.values()})
