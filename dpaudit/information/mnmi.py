"""How much a view reveals about a private variable: M-NMI over rounds, and its error.

Xie, Liu and Chai, eq. (43): the maximum over rounds of I(V; view) / I(V; V), each round's
information estimated over independent trials. The ratio is reported as they define it. Beside it
stand the bits, a coefficient that does not drift with the number of trials, and what a maximum over
noisy estimates needs: its distribution without a leak, and an interval that holds for all rounds.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from dpaudit.checkpoint import NO_CHECKPOINT, Checkpoint, Progress
from dpaudit.errors import ConfigError, DataError

from .estimators import (
    NEIGHBOURS,
    check_neighbours,
    gaussian_information,
    information_correlation,
    ksg_of_samples,
    self_information,
)
from .neighbours import Counts, Floats
from .reduction import EstimatorWarning, ReducedSamples, Reduction, break_ties

Item = TypeVar("Item")
Result = TypeVar("Result")
Trials = NDArray[np.int64]

STANDARDISED = Reduction()
AT_ONCE = 50  # estimates for each thread, between two looks at whether to keep them


@dataclass(frozen=True, slots=True, eq=False)
class MaximumInformation:
    """The largest information over rounds, with everything needed to judge it.

    Bits are as estimated: with little information they fall below zero by chance.
    """

    bits: float  # the largest estimate over rounds
    round: int  # 1-based
    m_nmi: float  # the largest ratio to I(V; V), eq. (43)
    m_nmi_ends: tuple[float, float]  # ends of its interval, with the estimate of I(V; V)
    self_information: float  # bits of I(V; V) in that round, as NPEET estimates it
    n: int  # trials
    k: int  # neighbours
    reduction: str  # reductions of the private variable and of the view
    per_round: Floats  # bits, [n_rounds], as the next three
    lows: Floats  # lower ends of simultaneous intervals for all rounds
    highs: Floats
    baselines: Floats  # mean over shuffles in each round
    gaussian: float  # bits in that round were the samples jointly Gaussian
    low: float  # bits: the interval for the largest true information, see ``intervals``
    high: float
    confidence: float
    standard_error: float  # bits, of the estimate in that round
    drift: float  # bits that the estimate in that round gains when only half the trials are used
    baseline: float  # bits, mean over shuffles of the largest estimate over rounds
    p_value: float  # p-value of no information in any round, by those shuffles
    n_permutations: int

    @property
    def correlation(self) -> float:
        """Linfoot's coefficient of the bits, between 0 and 1 whatever the number of trials."""
        return information_correlation(self.bits)


def maximum_information(
    private: Sequence[ArrayLike] | Floats,
    view: Sequence[ArrayLike] | Floats,
    rng: np.random.Generator,
    *,
    k: int = NEIGHBOURS,
    reduce_private: Reduction = STANDARDISED,
    reduce_view: Reduction = STANDARDISED,
    n_permutations: int = 99,
    n_splits: int = 20,
    confidence: float = 0.95,
    workers: int | None = None,
    checkpoint: Checkpoint = NO_CHECKPOINT,
) -> MaximumInformation:
    """The largest information that the view of one round holds about V in that round: M-NMI.

    Source: Xie, Liu and Chai, eq. (43); the estimator is ``dpaudit.information.ksg``. It is called
    about 1 + n_permutations + n_splits times for each round.

    Args:
        private: V, [n_rounds, n] or [n_rounds, n, dims], n independent trials of each round.
        view: what the adversary holds, likewise, trial for trial.
        rng: breaks ties, shuffles, splits. The result does not depend on ``workers``.
        k, confidence: neighbours; of the interval, over all rounds together.
        reduce_private, reduce_view: what is done to the samples first.
        n_permutations, n_splits: shuffles of the trials for the p-value, random splits into halves
            for the interval. 0: none.
        workers, checkpoint: threads, by default one a core; where it keeps how far it is.

    Raises:
        ConfigError: k, ``n_permutations``, ``n_splits`` or ``confidence`` out of range.
        DataError: shapes that do not pair, values not finite, constant columns, too few trials.

    Warns: EstimatorWarning for columns that defeat the estimator, with the remedy.
    """
    for name, count in (("n_permutations", n_permutations), ("n_splits", n_splits)):
        if count < 0:
            raise ConfigError("DPA071", f"{name} = {count}; expected a count, or 0 to leave it out")
    if not 0 < confidence < 1:
        raise ConfigError("DPA071", f"confidence = {confidence}; expected a number between 0 and 1")
    workers = workers or os.cpu_count() or 1
    pairs = _pairs(private, view, reduce_private, reduce_view, rng, workers)
    estimates = _estimated(pairs, k, n_permutations, n_splits, rng, workers, checkpoint)
    return _judged(pairs, estimates, k, confidence)


Warned = tuple[str, ...]


def without_warnings(estimate: Callable[[], Result]) -> tuple[Result, Warned]:
    """What a function returns, and the texts of the ``EstimatorWarning``s it gave, once each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EstimatorWarning)
        result = estimate()
    texts = [str(w.message) for w in caught if issubclass(w.category, EstimatorWarning)]
    return result, tuple(dict.fromkeys(texts))


class _Pair(NamedTuple):
    """The two sides of one round, ready for the estimator."""

    private: ReducedSamples
    view: ReducedSamples

    @property
    def n(self) -> int:
        return len(self.private.samples)

    @property
    def dims(self) -> int:
        return self.private.samples.shape[1] + self.view.samples.shape[1]


def _pairs(
    private: Sequence[ArrayLike] | Floats,
    view: Sequence[ArrayLike] | Floats,
    reduce_private: Reduction,
    reduce_view: Reduction,
    rng: np.random.Generator,
    workers: int,
) -> list[_Pair]:
    if len(private) != len(view) or not len(private):
        raise DataError(
            "DPA073",
            f"private variables of {len(private)} rounds, views of {len(view)}; expected as many, "
            "each of shape [n_rounds, n] or [n_rounds, n, dims]",
        )

    def reduce(item: tuple[int, ArrayLike, ArrayLike, np.random.Generator]) -> _Pair:
        number, private, view, rng = item
        return _Pair(
            reduce_private(f"private, round {number}", private, rng),
            reduce_view(f"view, round {number}", view, rng),
        )

    numbers = range(1, len(private) + 1)
    items = zip(numbers, private, view, rng.spawn(len(private)), strict=True)
    pairs = _in_threads(reduce, items, workers)
    sizes = {len(side.samples) for pair in pairs for side in pair}
    if len(sizes) > 1:
        raise DataError(
            "DPA073", f"between {min(sizes)} and {max(sizes)} trials; expected the same for all"
        )
    _warn(pairs)
    return pairs


def _warn(pairs: list[_Pair]) -> None:
    """One warning for each thing of concern, however many rounds it concerns."""
    rounds: dict[str, list[int]] = {}
    for number, pair in enumerate(pairs, start=1):
        for side, reduced in zip(pair._fields, pair, strict=True):
            for concern in reduced.concerns:
                rounds.setdefault(f"{side}: {concern}", []).append(number)
    for text, numbers in rounds.items():
        where = f"round {numbers[0]}" + (f" and {len(numbers) - 1} more" if numbers[1:] else "")
        warnings.warn(f"{text} ({where})", EstimatorWarning, stacklevel=4)


_Part = tuple[Trials, Trials]  # trials of the private variable, and of the view


def _plan(n: int, n_permutations: int, n_splits: int, rng: np.random.Generator) -> list[_Part]:
    """All trials as they are, then shuffled, then in halves; the same for all rounds."""
    everything = np.arange(n)
    shuffles = [(rng.permutation(n), everything) for _ in range(n_permutations)]
    orders = [rng.permutation(n) for _ in range(n_splits)]
    halves = [half for o in orders for half in (o[: n // 2], o[n // 2 : n // 2 * 2])]
    return [(everything, everything), *shuffles, *((half, half) for half in halves)]


class _Estimates(NamedTuple):
    """Bits of every round: as the trials are, shuffled, in halves, and of V about itself."""

    observed: Floats  # [n_rounds]
    shuffled: Floats  # [n_rounds, n_permutations], a permutation the same one for all rounds
    halves: Floats  # [n_rounds, n_splits, 2]
    of_itself: Floats  # [n_rounds]


def _estimated(
    pairs: list[_Pair],
    k: int,
    n_permutations: int,
    n_splits: int,
    rng: np.random.Generator,
    workers: int,
    checkpoint: Checkpoint,
) -> _Estimates:
    n = pairs[0].n
    _check_trials(n, k, n_splits, max(pair.dims for pair in pairs))
    plan = _plan(n, n_permutations, n_splits, rng)
    table = _table(
        pairs, plan, k, workers, checkpoint
    )  # [n_rounds, 1 + n_permutations + 2 n_splits]
    halves = table[:, 1 + n_permutations :].reshape(len(pairs), n_splits, 2)
    of_itself = np.array([_of_itself(pair.private, k, rng) for pair in pairs])
    return _Estimates(table[:, 0], table[:, 1 : 1 + n_permutations], halves, of_itself)


def _table(
    pairs: list[_Pair], plan: list[_Part], k: int, workers: int, checkpoint: Checkpoint
) -> Floats:
    """Bits of every round for every part of the plan, [n_rounds, len(plan)]."""
    cells = list(product(range(len(pairs)), range(len(plan))))

    def estimate(cell: tuple[int, int]) -> float:
        (private, view), (v, w) = pairs[cell[0]], plan[cell[1]]
        return ksg_of_samples(private.samples[v], view.samples[w], k)

    last = checkpoint.last()
    bits: list[float] = [] if last is None else last.note
    while len(bits) < len(cells):
        some = cells[len(bits) : len(bits) + AT_ONCE * workers]
        bits += _in_threads(estimate, some, workers)
        checkpoint.keep(partial(Progress, {}, bits))
    return np.array(bits).reshape(len(pairs), len(plan))


def _judged(
    pairs: list[_Pair], estimates: _Estimates, k: int, confidence: float
) -> MaximumInformation:
    """The round with the largest estimate, beside what chance makes of such a maximum.

    The p-value counts the shuffles whose largest estimate reaches the observed one (Westfall and
    Young 1993, single-step max T): the maximum over rounds is compared with such maxima.
    """
    bits, shuffled, halves, of_itself = estimates
    interval = intervals(bits, halves, np.array([pair.dims for pair in pairs]), confidence)
    n_permutations, top = shuffled.shape[1], int(bits.argmax())
    private, view = pairs[top]
    maxima = shuffled.max(axis=0)  # [n_permutations]
    return MaximumInformation(
        bits=float(bits[top]),
        round=top + 1,
        m_nmi=float((bits / of_itself).max()),
        m_nmi_ends=(
            float((interval.low / of_itself).max()),
            float((interval.high / of_itself).max()),
        ),
        self_information=float(of_itself[top]),
        n=pairs[top].n,
        k=k,
        reduction=f"private {private.name}; view {view.name}",
        per_round=bits,
        lows=interval.low,
        highs=interval.high,
        baselines=shuffled.mean(axis=1) if n_permutations else np.full(len(pairs), np.nan),
        gaussian=gaussian_information(private.samples, view.samples),
        low=float(interval.low.max()),
        high=float(interval.high.max()),
        confidence=confidence,
        standard_error=float(interval.standard_error[top]),
        drift=float(interval.drift[top]),
        baseline=float(maxima.mean()) if n_permutations else float("nan"),
        p_value=permutation_p_value(float(bits[top]), maxima),
        n_permutations=n_permutations,
    )


def _in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> list[Result]:
    """The searches release the interpreter lock, so threads use all cores and copy nothing."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


def _of_itself(private: ReducedSamples, k: int, rng: np.random.Generator) -> float:
    """NPEET's I(V; V): in closed form, but estimated where values of V repeat."""
    if private.repeating is None:
        return self_information(len(private.samples), k)
    first, second = break_ties(private.repeating, rng), break_ties(private.repeating, rng)
    return ksg_of_samples(first, second, k)


def _check_trials(n: int, k: int, n_splits: int, dims: int) -> None:
    check_neighbours(k, n)
    if n <= dims:
        raise DataError(
            "DPA073",
            f"{n} trials of {dims} columns in all; expected more trials, or fewer columns by "
            "Reduction(n_components=...)",
        )
    if n_splits and n // 2 < k + 1:
        raise DataError(
            "DPA073",
            f"{n} trials; the interval needs halves of at least k + 1 = {k + 1}, "
            "or leave it out with n_splits = 0",
        )


def permutation_p_value(observed: float, shuffled: Floats) -> float:
    """(1 + number of shuffled values that reach the observed one) / (1 + number of shuffles).

    At most u with probability at most u where nothing leaks (Phipson and Smyth 2010); NaN
    without shuffles.
    """
    if not len(shuffled):
        return float("nan")
    return float(1 + (shuffled >= observed).sum()) / (1 + len(shuffled))


class Intervals(NamedTuple):
    """One interval for each round, all of which hold together with the stated confidence."""

    low: Floats  # bits, [n_rounds], as all fields
    high: Floats
    standard_error: Floats
    drift: Floats


def intervals(bits: Floats, halves: Floats, dims: Counts, confidence: float) -> Intervals:
    """Simultaneous intervals for the information of each round, from estimates on halves.

    Two halves of the trials are independent, so half the squared difference of their estimates
    is unbiased for the variance of an estimate at n / 2, and a quarter of it, by the 1/n law, at n.
    The mean over S random splits of the same trials counts as S / 2 degrees of freedom, which is
    conservative (its spread over fresh samples is that of about S). A bootstrap would not do: it
    repeats samples, and a repeated sample is its own nearest neighbour.

    The bias is taken to fall like n^-a with a = min(1, 2 / dims), the rate for densities with two
    derivatives, so the drift D from full size to half extrapolates to ``bits - D / (2^a - 1)``.
    The interval reaches from the lower of the estimate and its extrapolation to the higher, and
    beyond by Student's quantile at (1 - confidence) / (2 n_rounds) (Bonferroni). Where all hold,
    the largest true information lies between the largest lower and the largest upper end.

    Args:
        bits: [n_rounds].
        halves: [n_rounds, S, 2], the estimates on the two halves of each split.
        dims: [n_rounds], dimension of the private variable and the view together.
        confidence: of all intervals together.

    Source: Holmes and Nemenman 2019 for the variance from parts of the sample, arXiv:1903.09280;
    Berrett, Samworth and Yuan 2019 for the rate, that of nearest-neighbour entropies,
    arXiv:1606.00304.
    """
    n_rounds, n_splits, _ = halves.shape
    if n_splits == 0:
        return Intervals(*np.full((4, n_rounds), np.nan))
    standard_error = np.sqrt(((halves[..., 0] - halves[..., 1]) ** 2).mean(axis=1) / 4)
    drift = halves.mean(axis=(1, 2)) - bits
    extrapolated = bits - drift / (2 ** np.minimum(1, 2 / dims) - 1)
    reach = -stdtrit(n_splits / 2, (1 - confidence) / (2 * n_rounds)) * standard_error
    low, high = np.minimum(bits, extrapolated) - reach, np.maximum(bits, extrapolated) + reach
    return Intervals(low, high, standard_error, drift)
