"""What the calls of a function are evidence of: the noise, the distance, and what runs certify."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import Interval, Release, epsilon
from dpaudit.attack.figures import counted_test, without_errors
from dpaudit.defense.claim_accounting import (
    AccountedClaim,
    claimed_delta,
    claimed_epsilon,
    record_adjacency,
)
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role, known_releases
from dpaudit.files.mechanism_file import READER
from dpaudit.files.verdict import Verdict

from .search import ALPHA, OutputMove, PlayedPair, Search
from .shifts import OutputNoise

MECHANISM = "mechanism"  # the attack of a test that counts calls
NO_PURE = "Gaussian noise has no finite epsilon at delta 0: claim one at a delta above 0"
SLACK = 1e-3  # relative, of noise: to which it is measured; figures are in favour of the function
LEVELS = 64  # different sizes of Laplace releases
LEVEL = 1e-6  # probability of a false alarm about the independence of calls
CALLS = 2_000  # consecutive calls for that test
COORDINATES = 32  # coordinates that are tested
LAGS = 8
LEAST_SHARE = 0.2  # least share of calls above a number's median, for a test of signs
CONTINUOUS = 0.5  # share of distinct numbers among calls, for ranks almost without ties


class MeasuredFinding(NamedTuple):
    """The finding of what was measured, and what it comes to; no finding if nothing was."""

    finding: Finding | None
    accounted: AccountedClaim


class ComparedCalls(NamedTuple):
    """Calls that were held against recognised noise."""

    calls: int
    exceptions: int  # calls whose output was not a value plus this noise
    other: str  # what a call does besides, or where noise lies far out, as a clause; or ""

    @property
    def is_noise(self) -> bool:
        """Whether a call adds the noise that was recognised, and nothing speaks of more."""
        return not self.exceptions and not self.other


def tested(claim: Claim, played: PlayedPair) -> Finding:
    """The certified lower bound from the runs on the worst pair."""
    bound, metrics = counted_test(claim, played.counted, played.choosing, ALPHA)
    return Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title=f"runs on the worst pair of inputs: {played.move.pair.name}",
        claim=0,
        attack=MECHANISM,
        threat_model=READER.name,
        adjacency=claim.adjacency,
        world="defense",
        metrics=metrics | without_errors(claim, min(bound.n0, bound.n1), ALPHA),
        notes=(
            f"score: {played.score.name}, chosen with its threshold on other runs; "
            f"{'above' if bound.above else 'below'} {bound.threshold:.6g} is called the second "
            "input",
        ),
    )


def null_control(claim: Claim, search: Search, played: PlayedPair) -> Finding:
    """The same score on runs with one input alone, in which there is nothing to find."""
    pair = played.move.pair._replace(having=played.move.pair.without)
    n = min(1_000, search.function.options.runs)
    one, other = (played.score.of(side) for side in search.outputs(pair, search.few(n)))
    half = len(one) // 2
    counted, choosing = (one[:half], other[:half]), (one[half:], other[half:])
    bound, metrics = counted_test(claim, counted, choosing, ALPHA)
    found = bound.value > 0
    return Finding(
        role=Role.NULL_CONTROL,
        kind="control",
        title="the same input on both sides",
        claim=0,
        attack=MECHANISM,
        threat_model=READER.name,
        world="defense",
        metrics=metrics | without_errors(claim, min(bound.n0, bound.n1), ALPHA),
        notes=("the control found something that is not there",) if found else (),
    )


def distance(claim: Claim, search: Search) -> Finding | None:
    """How far the worst pair moves the output without noise; None if that depends on the draws."""
    move = search.moves[0]
    if move.moved is None:
        return None
    norms = {"L2": 2, "L1": 1}
    said = ", ".join(f"{name} {np.linalg.norm(move.moved, p):.6g}" for name, p in norms.items())
    return Finding(
        role=Role.SENSITIVITY,
        kind="sensitivity",
        title=f"distance of the outputs without noise: {move.pair.name}",
        claim=0,
        attack=MECHANISM,
        threat_model=READER.name,
        adjacency=claim.adjacency,
        metrics={Name.MEASURED: Metric(value=float(np.linalg.norm(move.moved)))},
        notes=(
            f"the outputs of two inputs are {said} apart, the largest of {search.n_pairs} pairs "
            "that were tried, in units of the noise; others may be further apart",
        ),
    )


def measured(claim: Claim, search: Search, compared: ComparedCalls) -> MeasuredFinding:
    """What the measured distance and the recognised noise add up to over all calls."""
    delta, claimed = claimed_delta(claim), claimed_epsilon(claim)
    noise, calls = search.noise, search.function.calls
    if noise is None or compared.exceptions or not search.is_additive:
        return MeasuredFinding(None, AccountedClaim(Interval(0.0, inf), delta, 0, ()))
    move = search.moves[0]
    family, source = noise.draw.family, noise.draw.name
    notes = (
        f"calls compose as releases do, here {calls} of them: {source} draws anew in each",
        f"in {compared.calls:,} calls the output was a fixed value plus {_said(noise)}",
        f"{search.n_pairs} pairs of inputs were tried; others may be further apart",
        *([NO_PURE] if family == "gaussian" and delta == 0 else []),
    )
    low = high = 0.0 if move.size == 0 else inf
    least, largest = _releases(search, move, np.min), _releases(search, move, np.max)
    if least and (delta > 0 or family == "laplace"):
        adjacency = record_adjacency(claim)
        low = epsilon(least, delta, adjacency).low
        high = epsilon(largest, delta, adjacency).high
    most = None if compared.other else largest  # other effects of a call may leak more
    high = high if most is not None else inf
    figure = AccountedClaim(Interval(low, high), delta, 0, notes, least, most)
    message = None if move.size < inf else "the output"
    finding = Finding(
        role=Role.MEASURED,
        kind="accounting",
        title="measured distance and recognised noise, accounted",
        claim=0,
        attack=MECHANISM,
        threat_model=READER.name,
        message=message,
        adjacency=claim.adjacency,
        metrics={
            Name.EPSILON: Metric(value=high, low=low, high=high),
            Name.CLAIMED_EPSILON: Metric(value=claimed),
            Name.DELTA: Metric(value=delta),
        },
        releases=known_releases(least, most),
        verdict=Verdict.UNSUPPORTED if low > claimed else None,
        notes=notes,
    )
    return MeasuredFinding(finding, figure)


def _releases(
    search: Search, move: OutputMove, of_level: Callable[[Array], np.floating]
) -> list[Release]:
    """The calls as releases: one for Gaussian noise, one for each size of a Laplace shift.

    What moves is the whole output, so that a release moves by its own size whatever the adjacency.

    Args:
        of_level: the size that stands for many different ones, their least or their largest.
    """
    if not 0 < move.size < inf or search.noise is None or move.moved is None:
        return []
    calls, family = search.function.calls, search.noise.draw.family
    counted = [(move.size, calls)]
    if family == "laplace":
        there = np.abs(move.moved) > 1e-9 * np.abs(move.moved).max()
        sizes = np.sort(np.abs(move.moved[there]) / search.unit[there])
        parts = [part for part in np.array_split(sizes, min(LEVELS, len(sizes))) if len(part)]
        if sizes[-1] - sizes[0] <= SLACK * sizes[-1]:
            parts = [sizes]
        counted = [(float(of_level(part)), calls * len(part)) for part in parts]
    return [
        Release(family=family, noise_multiplier=(1 + SLACK) / size, count=n, clipped="whole")
        for size, n in counted
    ]


def _said(noise: OutputNoise) -> str:
    """What the noise is, as a clause."""
    if noise.mix is None:
        return f"{noise.draw.name} times {_scale(noise)}"
    return f"sums of {noise.n_drawn} draws of {noise.draw.name}, of scale {_scale(noise)}"


def _scale(noise: OutputNoise) -> str:
    low, high = np.abs(noise.scale).min(), np.abs(noise.scale).max()
    return f"{high:.6g}" if high - low <= SLACK * high else f"{low:.6g} to {high:.6g}"


def between_calls(search: Search, played: PlayedPair, compared: ComparedCalls) -> Iterator[Finding]:
    """Whether calls are independent of one another, and what the noise was recognised as."""
    pair = search.moves[0].pair
    search.function.seed(search.seed + 2)
    n = min(CALLS, max(200, search.function.options.runs // 10), search.few(CALLS))
    out = search.function.in_turn([pair.without], n)[:, 0]
    in_order = [
        np.concatenate(sides) for sides in zip(played.choosing, played.counted, strict=True)
    ]
    what, p = _dependence(out, in_order)
    noise, metrics, odd = search.noise, {Name.P_VALUE: Metric(value=p, n=n)}, p < LEVEL
    if noise is None:
        known = "the noise is not what a known function draws; its law is not confirmed"
    elif compared.exceptions:
        known = (
            f"in {compared.exceptions:,} of {compared.calls:,} calls the output was something else "
            f"than a value and {_said(noise)}"
        )
    elif compared.other:
        known = f"{compared.other}: counted calls do not show how much that leaks"
    else:
        known = f"{_said(noise)}, in each of {compared.calls:,} calls"
        metrics[Name.NOISE_OVER_DECLARED] = Metric(value=1.0, low=1 - SLACK, high=1 + SLACK)
    yield Finding(
        role=Role.NOISE,
        kind="control",
        title=what if odd else "calls are independent of one another",
        attack=MECHANISM,
        threat_model=READER.name,
        world="defense",
        metrics=metrics,
        verdict=Verdict.UNSUPPORTED if odd else None,
        notes=(known, f"{n:,} calls in a row with one input, at level {LEVEL:g}"),
        unconfirmed=() if noise is not None and compared.is_noise else ("the output",),
    )
    yield Finding(
        role=Role.STATE,
        kind="control",
        title="Calls in a row",
        threat_model=READER.name,
        metrics={Name.ROUNDS: Metric(value=n, n=n)},
        notes=(
            f"{n:,} calls in a row with one input are independent of one another, and "
            f"{len(in_order[0]):,} runs do not change from first to last",
        ),
    )


def alignment(claim: Claim, search: Search, measured: Finding, n_calls: int) -> Iterator[Finding]:
    """What a figure of distance and noise rests on: the noise that makes two outputs the same."""
    calls, n_pairs = search.function.calls, search.n_pairs
    common: dict[str, Any] = {"threat_model": READER.name, "adjacency": claim.adjacency}
    yield Finding(
        role=Role.ALIGNMENT,
        kind="sensitivity",
        title="noise that makes the outputs for two inputs the same",
        claim=0,
        metrics={
            Name.MOVED_OVER_DECLARED: Metric(value=1.0),
            Name.ROUNDS: Metric(value=calls, n=calls),
        },
        releases=measured.releases,
        notes=(f"calls compose as releases do: of {calls}, each has noise of its own",),
        **common,
    )
    yield Finding(
        role=Role.DEPENDENCE,
        kind="sensitivity",
        title="what else depends on the input",
        claim=0,
        metrics={Name.FOUND: Metric(value=0.0, n=n_calls)},
        notes=(
            f"in {n_calls:,} calls the output has one shape and dtype, and is a value and noise; "
            "the time that a call takes was not examined",
        ),
        **common,
    )
    used = "the rows of a value are used whole in each call"
    if not search.function.options.records:
        used = f"a call uses a value whole, of {n_pairs} pairs that were tried"
    yield Finding(
        role=Role.RECORDS,
        kind="control",
        title="what a call uses",
        claim=0,
        threat_model=READER.name,
        notes=(used,),
    )


def _dependence(out: Array, in_order: Sequence[Array]) -> tuple[str, float]:
    """The most striking dependence between calls, and a p-value for it.

    Args:
        out: [n, n_out], of calls in a row.
        in_order: scores of many calls, in their order.
    """
    varied = np.flatnonzero(out.std(axis=0) > 0)
    columns = out[:, varied[:: -(-len(varied) // COORDINATES) or 1]]
    tests = [("calls in a row have like noise", p) for p in _lagged(columns)]
    every = [*columns.T, *in_order]
    tests += [("the noise changes from call to call", p) for p in _drifting(every)]
    if not tests:
        return "", 1.0
    what, p = min(tests, key=lambda one: one[1])
    return what, min(1.0, len(tests) * p)


def _lagged(columns: Array) -> Iterator[float]:
    """p-values of agreeing sides of the median at each lag, by coordinate."""
    n = len(columns)
    for column in columns.T:
        above = (column > np.median(column)).astype(float)
        share = above.mean()
        if share < LEAST_SHARE:
            continue
        unit = (above - share) / np.sqrt(share * (1 - share))
        for lag in range(1, LAGS + 1):
            agreeing = float(unit[lag:] @ unit[:-lag]) / np.sqrt(n - lag)
            yield float(2 * ndtr(-abs(agreeing)))


def _drifting(columns: Sequence[Array]) -> Iterator[float]:
    """p-values of the second half of the calls having other places or sizes, by ranks."""
    for column in columns:
        n, half = len(column), len(column) // 2
        if len(np.unique(column)) < CONTINUOUS * n:
            continue
        for values in (column, np.abs(column - np.median(column))):
            ranks = values.argsort().argsort() + 1.0
            mean, variance = half * (n + 1) / 2, half * (n - half) * (n + 1) / 12
            yield float(2 * ndtr(-abs(ranks[:half].sum() - mean) / np.sqrt(variance)))
