"""The noise that a program's own generators draw: fresh, and of the law and scale it states.

One run shows whether draws repeat. Runs with other seeds show more: whether other runs have other
noise, and how large it is for each agent, with an interval.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import ceil, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import chdtr, ndtr, ndtri, pdtrc

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.rules import CAPTURED
from dpaudit.statistics.noise_tests import (
    lag_p_values,
    parallel_pairs,
    size_of_draws,
    size_p_values,
    white_noise_test,
)
from dpaudit.text import apart

from .runs import NamedDraw, ProgramRun

LEVEL = 1e-6  # probability of a false alarm about a program's noise
LEAST_STEP, OFF_GRID = 1e-5, 0.05  # smallest step over the scale; largest distance over the step
FEW_VALUES = 8  # so few distinct numbers are not half precision of a continuous law
COARSEST = 2.0**-8  # largest relative rounding error of bfloat16
FEWEST_ON_GRID = 20  # numbers: of two, one is always a multiple of their gap
SIZE_LEVEL = 0.05  # probability that an interval misses the size of the noise
LEAST_SIZE = 0.9  # times what is stated: down to which noise may be and stay unseen
LEAST_NUMBERS = 3_000  # per agent and line of noise, over all runs
FEWEST_RUNS, MOST_RUNS = 8, 200  # each with a seed of its own
MOST_NUMBERS = 2_000_000  # tested at most; of more, every k-th
TAILS = (1.5, 2.0, 2.5, 3.0, 3.5)  # standard deviations, beyond which numbers are counted
MOST_COLUMNS = 1_000  # draws whose correlations are tested
FEWEST_PARALLEL = 8  # draws: of fewer, two coordinates may be multiples of one another by chance
EQUAL = 2.0**-21  # the chance of two numbers, at most
MEDIAN = 0.6744897501960817  # median of |N(0, 1)|


class NormalizedDraw(NamedTuple):
    """A draw of one run, in units of its scale."""

    run: int
    agent: int
    name: str
    occurrence: int  # number among the draws of its agent and name
    family: NoiseFamily
    values: Array


def runs_needed(plain: ProgramRun, sites: Sequence[str]) -> int:
    """How many seeds give each agent's noise so many numbers that 10% less of it is seen."""
    counts: defaultdict[tuple[int, str], int] = defaultdict(int)
    for draw in plain.draws:
        if not sites or draw.name in sites:
            counts[draw.agent, draw.name] += len(plain.tape[draw.key])
    least = min(counts.values(), default=1)
    return min(MOST_RUNS, max(FEWEST_RUNS, ceil(LEAST_NUMBERS / max(1, least))))


def drawn_noise(
    runs: Sequence[ProgramRun], sites: Sequence[str], same: Collection[str] = (), why: str = ""
) -> list[Finding]:
    """Whether the draws of plain runs are fresh, and of the law and scale that the program states.

    A draw of two numbers or more that equals another of its run is repeated. Otherwise draws are
    put in units of their scale, Laplace noise by its quantiles, and tested for N(0, 1) at ``LEVEL``
    for all of a program together.

    Noise that is larger than stated hides no less, and is tested in units of what it is.

    Args:
        runs: with seeds of their own; of one alone the size of the noise has no interval.
        same: keys of draws that another agent makes too, in noise that both share; they are no
            further draws.
        why: nothing more is known of the noise, if this is given.
    """
    used = [[d for d in _used(run, sites) if d.key not in same] for run in runs]
    drawings = list(_drawings(runs, used))
    if not drawings:
        return []
    grid = _on_a_grid(drawings) or _in_half_precision(runs, used)
    least = _least_repeated(drawings) if grid else 2  # one in single precision may come twice
    if fixed := _fixed(drawings, least if grid else 1):
        why, drawings = fixed, [drawing for drawing in drawings if drawing.run == 0]
    repeated = [
        text for run, draws in zip(runs, used, strict=True) for text in _repeated(run, draws, least)
    ]
    if repeated:
        what, p = f"{len(repeated)} draws repeat an earlier one: {repeated[0]}", 0.0
    else:
        what, p = _too_small(drawings) if grid else _least_likely(drawings)
    odd, n = p < LEVEL, sum(len(drawing.values) for drawing in drawings)
    metrics = {Name.P_VALUE: Metric(value=p, n=n)}
    if repeated or not odd:  # a verdict follows from repeats or from the p-value
        metrics[Name.FOUND] = Metric(value=len(repeated), n=len(drawings))
    missing = why or ("" if len(runs) > 1 else "one run shows no size of the noise")
    missing = missing or grid
    if not missing and not odd:
        metrics[Name.NOISE_OVER_DECLARED] = size = _size(drawings)
        if size.ends[0] < LEAST_SIZE:
            less = f"{100 * (1 - size.ends[0]):.2g}%"
            missing = f"noise of {size.n:,} numbers may be {less} too small unseen"
    return [
        Finding(
            role=Role.NOISE,
            kind="control",
            title=what if odd else "the noise that was drawn",
            attack=CAPTURED,
            world="defense",
            metrics=metrics,
            verdict=Verdict.UNSUPPORTED if odd else None,
            notes=tuple(_notes(len(runs), drawings, metrics)),
            not_examined=(missing,) if missing else (),
        )
    ]


def _used(run: ProgramRun, sites: Sequence[str]) -> list[NamedDraw]:
    """Noise of the sites that has numbers, and is not turned off."""
    named = [d for d in run.draws if not sites or d.name in sites]
    return [d for d in named if d.scale > 0 and len(run.tape[d.key])]


def _drawings(
    runs: Sequence[ProgramRun], used: Sequence[Sequence[NamedDraw]]
) -> Iterator[NormalizedDraw]:
    for i, (run, draws) in enumerate(zip(runs, used, strict=True)):
        for d in draws:
            values, occurrence = run.tape[d.key] / d.scale, int(d.key.split("/", 2)[1])
            yield NormalizedDraw(i, d.agent, d.name, occurrence, d.family, values)


def _notes(
    n_runs: int, drawings: Sequence[NormalizedDraw], metrics: Mapping[Name, Metric]
) -> Iterator[str]:
    size = metrics.get(Name.NOISE_OVER_DECLARED)
    n = sum(len(drawing.values) for drawing in drawings)
    if size is not None:
        low, high = (apart(end, 1) for end in size.ends)
        widths = [len(drawing.values) for drawing in drawings]
        one = sum(width == max(widths) for width in widths)
        yield (
            f"{n:,} numbers of {n_runs} runs with seeds of their own: that of the agent with the "
            f"least is {low} to {high} times as large as stated; noise {_seen(n):.2g}% too "
            f"small in all of them, or {_seen(one):.2g}% in one coordinate, would have been noticed"
        )
    yield (
        f"{len(drawings)} draws of {n_runs} runs with the program's own generators, held against "
        f"the law and the scale that the program states, at level {LEVEL:g}"
    )


def _seen(n: int) -> float:
    """How many percent too small noise of n numbers is that is noticed with probability 95%."""
    return 100 * min(1.0, float(ndtri(1 - LEVEL / 2) + ndtri(0.95)) / sqrt(2 * n))


def _on_a_grid(drawings: Sequence[NormalizedDraw]) -> str:
    """Say that all numbers of one name are multiples of a step; "" if they are not."""
    for name, values in _by_name(drawings).items():
        if step := _step(values):
            return (
                f'"{name}" has multiples of {step:.3g} times its scale alone: what is not on this '
                "grid is not hidden"
            )
    return ""


def _by_name(drawings: Sequence[NormalizedDraw]) -> dict[str, Array]:
    names = dict.fromkeys(drawing.name for drawing in drawings)
    return {name: np.concatenate([d.values for d in drawings if d.name == name]) for name in names}


def _step(values: Array) -> float:
    """The least gap of ``values`` that are on a grid, far from what rounding leaves; 0 if not.

    Of n continuous numbers, each other one is a multiple of it to within ``OFF_GRID`` with
    probability 2 ``OFF_GRID``, and no two are equal.
    """
    numbers = np.unique(values)
    step = float(np.diff(numbers).min(initial=np.inf))
    if len(values) < FEWEST_ON_GRID or not LEAST_STEP < step < np.inf:
        return 0.0
    steps = numbers / step
    return step if np.abs(steps - np.round(steps)).max() < OFF_GRID else 0.0


def _in_half_precision(runs: Sequence[ProgramRun], used: Sequence[Sequence[NamedDraw]]) -> str:
    """Say that all numbers of one name are float16, as drawn or divided by their scale; or "".

    A half has 11 bits: one in 8,000 numbers of single precision is one. Noise of a law has many of
    them: a few, such as zero or two signs, are held against the law.
    """
    found: defaultdict[tuple[str, bool], list[Array]] = defaultdict(list)
    for run, draws in zip(runs, used, strict=True):
        for d in draws:
            found[d.name, False].append(run.tape[d.key])
            found[d.name, True].append(run.tape[d.key] / d.scale)
    for (name, _), some in found.items():
        values = np.concatenate(some)
        mantissas = np.frexp(values)[0] * 2**11
        many = len(values) >= FEWEST_ON_GRID and len(np.unique(values)) > FEW_VALUES
        if many and (mantissas == np.round(mantissas)).all():
            return f'"{name}" has numbers of half precision, whose gaps hide nothing finer'
    return ""


def _too_small(drawings: Sequence[NormalizedDraw]) -> tuple[str, float]:
    """Test, with a p-value, whether coarse noise is smaller than any rounding makes it.

    On a grid or in half precision, noise has not the law of its name. Each number is taken as if
    it had been rounded towards zero, so that right noise is at least of its size.
    """
    steps = {name: _step(values) for name, values in _by_name(drawings).items()}
    found = []
    for what, of in (
        ("the size of an agent's noise", lambda d: (d.name, d.family, d.agent)),
        ("the size of a round's noise", lambda d: (d.name, d.family, d.occurrence)),
    ):
        groups: defaultdict[tuple[str, NoiseFamily, int], list[Array]] = defaultdict(list)
        for d in drawings:
            groups[of(d)].append(np.abs(d.values) * (1 + COARSEST) + steps[d.name])
        for (name, family, _), some in groups.items():
            sizes = np.concatenate(some)
            laplace = family == "laplace"  # twice a sum of sizes has 2 degrees for each number
            total, n = (2 * sizes, 2 * len(sizes)) if laplace else (np.square(sizes), len(sizes))
            found.append((f'"{name}": {what}', len(groups) * float(chdtr(n, total.sum()))))
    what, p = min(found, key=lambda one: one[1])
    return what, min(1.0, 2 * p)  # both kinds of group are tested


def _least_repeated(drawings: Sequence[NormalizedDraw]) -> float:
    """So many numbers on a grid are those of another draw, in any pair, with chance ``LEVEL``."""
    values = np.concatenate([d.values for d in drawings])
    _, counts = np.unique(values, return_counts=True)
    alike = float((counts * (counts - 1)).sum() / max(1, len(values) * (len(values) - 1)))
    pairs = len(drawings) ** 2
    return max(2.0, log(pairs / LEVEL) / -log(alike)) if 0 < alike < 1 else inf if alike else 2.0


def _fixed(drawings: Sequence[NormalizedDraw], least: float = 1) -> str:
    """Say that runs with other seeds draw the same ``least`` numbers or more; "" if not."""
    first = {(d.agent, d.occurrence, d.name): d.values for d in drawings if d.run == 0}
    for d in drawings:
        own = first.get((d.agent, d.occurrence, d.name))
        if d.run and len(d.values) >= least and own is not None and np.array_equal(own, d.values):
            return (
                f'"{d.name}" is the same in runs with other seeds: whoever knows the program knows '
                "its noise"
            )
    return ""


def _size(drawings: Sequence[NormalizedDraw]) -> Metric:
    """Noise over its stated size, for the agent and line whose interval has the lowest end."""
    groups: defaultdict[tuple[int, str, NoiseFamily], list[Array]] = defaultdict(list)
    for drawing in drawings:
        groups[drawing.agent, drawing.name, drawing.family].append(drawing.values)
    found = []
    for (_, _, family), some in groups.items():
        value, low, high = _size_of(some, family, SIZE_LEVEL / len(groups))
        found.append(Metric(value=value, low=low, high=high, n=sum(map(len, some))))
    return min(found, key=lambda metric: metric.ends[0])


def _size_of(
    some: Sequence[Array], family: NoiseFamily, level: float
) -> tuple[float, float, float]:
    """Size of draws divided by their scale, with its interval at a level."""
    values = np.concatenate(some)
    total = float(np.abs(values).sum() if family == "laplace" else np.square(values).sum())
    return size_of_draws(total, len(values), family, level)


def _least_likely(drawings: Sequence[NormalizedDraw]) -> tuple[str, float]:
    """The draw that looks least like its law, in which test, and the p-value of all together."""
    groups: defaultdict[tuple[str, int], list[NormalizedDraw]] = defaultdict(list)
    step = ceil(sum(len(d.values) for d in drawings) / MOST_NUMBERS)
    for d in _as_loud_as_stated(drawings):
        groups[d.name, len(d.values)].append(d._replace(values=_standard(d.values, d.family)))
    found = [(name, *_odd_group(group, step)) for (name, _), group in groups.items()]
    if not found:
        return "", 1.0
    name, test, p = min(found, key=lambda one: one[2])
    return f'"{name}": {test}', min(1.0, len(found) * p)


def _as_loud_as_stated(drawings: Sequence[NormalizedDraw]) -> Sequence[NormalizedDraw]:
    """The same, where noise is surely larger than stated in units of what it is.

    Draws come first, then agents and lines: a few loud draws would make all others of a line seem
    smaller than stated. Of fewer than ``FEWEST_RUNS`` draws loud ones are left out: in units of
    what they are, their lengths hardly vary.
    """
    for of in (
        lambda d: (d.family, d.name, d.agent, d.occurrence),
        lambda d: (d.family, d.name, d.agent),
        lambda d: (d.family, d.name),
    ):
        groups: defaultdict[tuple[Any, ...], list[Array]] = defaultdict(list)
        for d in drawings:
            groups[of(d)].append(d.values)
        sizes = {key: _size_of(some, key[0], LEVEL / len(groups)) for key, some in groups.items()}
        larger = {key: value for key, (value, low, _) in sizes.items() if low > 1}
        few = {key for key in larger if len(groups[key]) < FEWEST_RUNS}
        drawings = [
            d._replace(values=d.values / larger.get(of(d), 1.0))
            for d in drawings
            if of(d) not in few
        ]
    return drawings


def _odd_group(group: Sequence[NormalizedDraw], step: int = 1) -> tuple[str, float]:
    """The most striking test of draws of one line and size, and a p-value of all tests of it.

    Args:
        step: of every draw so many numbers are passed over, and so many draws of those whose
            numbers are compared with one another.
    """
    columns = np.stack([d.values[::step] for d in group], axis=1)  # one for each draw
    n, m = columns.shape
    chosen = columns[:, :: ceil(m / MOST_COLUMNS)]
    tests = [white_noise_test(chosen.T if n == 1 else chosen)]
    whole = np.stack([d.values for d in group[::step]], axis=1)
    tests += _among_coordinates(whole) if len(whole) > 1 else []
    tests += _of_parts(group, columns)
    what, p = min(tests, key=lambda one: one[1])
    return what, min(1.0, len(tests) * p)


def _of_parts(group: Sequence[NormalizedDraw], columns: Array) -> Iterator[tuple[str, float]]:
    """Sizes of agents, rounds and coordinates, means, neighbours, and the law: a p-value each."""
    from scipy.stats import binomtest  # a second that audits of no program do not wait for

    n, m = columns.shape
    squares = np.square(columns)
    for what, labels in (
        ("the size of an agent's noise", [d.agent for d in group]),
        ("the size of a round's noise", [d.occurrence for d in group]),
    ):
        parts = {label: [i for i, own in enumerate(labels) if own == label] for label in labels}
        p = [float(size_p_values(squares[:, i].sum(), n * len(i))) for i in parts.values()]
        yield what, min(1.0, len(p) * min(p))
    if m > 1:
        p_size = size_p_values(squares.sum(axis=1), m)
        yield "the size of a coordinate", min(1.0, n * float(np.min(p_size)))
        p_mean = 2 * ndtr(-np.abs(columns.sum(axis=1)) / sqrt(m))
        yield "the mean of a coordinate", min(1.0, n * float(np.min(p_mean)))
    for what, others in (
        ("an agent's draws in a row", lambda d: (d.run, d.agent, d.occurrence + 1)),
        ("draws of two agents", lambda d: (d.run, d.agent + 1, d.occurrence)),
        ("draws of two runs", lambda d: (d.run + 1, d.agent, d.occurrence)),
    ):
        place = {(d.run, d.agent, d.occurrence): i for i, d in enumerate(group)}
        pairs = [(i, place[others(d)]) for i, d in enumerate(group) if others(d) in place]
        for half in (0, 1):  # no draw is in two pairs of one half
            chosen = [(i, j) for i, j in pairs if _parity(group[i], group[j]) == half]
            if chosen:
                one, other = (columns[:, list(some)] for some in zip(*chosen, strict=True))
                yield what, _related(one, other)
    yield "numbers that were drawn before", _drawn_again(columns)
    yield "its law", _law(ndtr(columns.ravel()))
    for size in TAILS:
        beyond, chance = int((np.abs(columns) > size).sum()), float(2 * ndtr(-size))
        yield "its tails", float(binomtest(beyond, n * m, chance).pvalue)


def _drawn_again(columns: Array) -> float:
    """How many numbers have the size of another one, in whatever draw of whatever run.

    Equal pairs of independent numbers are nearly Poisson. Two are equal with probability 2**-25 if
    they are normal and of single precision, and 2**-22 if made of uniform ones of 23 bits.
    """
    again = int((np.diff(np.sort(np.abs(columns), axis=None)) == 0).sum())
    return float(pdtrc(again - 1, columns.size**2 / 2 * EQUAL)) if again else 1.0


def _among_coordinates(columns: Array) -> Iterator[tuple[str, float]]:
    """Whether coordinates of draws [n, m] share their noise or its size, and sums are as free."""
    n, m = columns.shape
    yield "neighbouring coordinates", _related(columns[:-1:2], columns[1::2])
    yield "mirrored coordinates", _related(columns[: n // 2], columns[::-1][: n // 2])
    for what, values in (
        ("coordinates some way apart", columns),
        ("the size of coordinates some way apart", np.abs(columns) - MEDIAN),
    ):
        p = lag_p_values(values.T)
        yield what, min(1.0, len(p) * float(p.min()))
    if m >= FEWEST_PARALLEL and parallel_pairs(columns, np.random.default_rng(0)):
        yield "two coordinates that are multiples of one another", 0.0
    yield "the lengths of draws", _law(chdtr(n, np.square(columns).sum(axis=0)))
    yield "the sums of draws", _law(ndtr(columns.sum(axis=0) / sqrt(n)))


def _parity(one: NormalizedDraw, other: NormalizedDraw) -> int:
    """Parity, in the first of two neighbouring draws, of the index in which they differ."""
    if one.run != other.run:
        return one.run % 2
    return (one.agent if one.agent != other.agent else one.occurrence) % 2


def _related(one: Array, other: Array) -> float:
    """p-value of independent pairs: given one side, the sum of products is normal."""
    length = float(np.linalg.norm(one))
    return float(2 * ndtr(-abs(float((one * other).sum())) / length)) if length else 1.0


def _law(quantiles: Array) -> float:
    """p-value of the distance from U(0, 1), by the bound of Dvoretzky, Kiefer and Wolfowitz."""
    ordered, n = np.sort(quantiles), len(quantiles)
    ranks = np.arange(n + 1) / n
    distance = float(np.maximum(ranks[1:] - ordered, ordered - ranks[:-1]).max())
    return min(1.0, 2 * float(np.exp(-2 * n * distance**2)))


def _standard(values: Array, family: str) -> Array:
    """Standard normal, if the law is as stated."""
    if family == "gaussian":
        return values
    upper = 0.5 * np.exp(-np.abs(values))  # the mass beyond
    return np.asarray(np.where(values > 0, -ndtri(upper), ndtri(upper)))


def _repeated(plain: ProgramRun, draws: Sequence[NamedDraw], least: float) -> list[str]:
    """Draws whose numbers were all drawn before, in words; of its own agent their negatives, too.

    Those of another agent are noise that both share, perhaps in rounds of other numbers.

    Args:
        least: numbers of a draw, of which fewer may repeat by chance.
    """
    first: dict[bytes, NamedDraw] = {}
    of_agent: dict[tuple[int, bytes], NamedDraw] = {}
    said = []
    for draw in draws:
        values = plain.tape[draw.key]
        if len(values) < least:
            continue
        less = of_agent.get((draw.agent, (-values).tobytes()))
        of_agent[draw.agent, values.tobytes()] = draw
        seen = first.setdefault(values.tobytes(), draw)
        if seen is not draw:
            said.append(f'"{draw.name}" of agent {draw.agent} is that of agent {seen.agent} before')
        elif less is not None:
            said.append(
                f'"{draw.name}" of agent {draw.agent} is the negative of its "{less.name}" before'
            )
    return said
