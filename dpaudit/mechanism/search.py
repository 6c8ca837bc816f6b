"""The search for the worst neighbouring inputs, and the runs on them.

Where the function adds noise to a value, each pair is measured by a few calls that share their
draws, and the pair that moves the output furthest in units of the noise is played. Elsewhere every
pair is played in short, and the one whose best score promises the largest bound is played in full.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.statistics.bounds import Scores, from_scores

from .function import AuditedFunction, FunctionError
from .neighbours import BEYOND, NEAR, PLAIN_SCALES, SCALES, Direction, NeighbouringInputs, Pair
from .random_pairs import DrawnPairs
from .scores import OutputScore, best, promise, scores
from .shifts import SEEDS, OutputNoise, recognised, shift

PILOT = 200  # runs that make a score of a pair, and as many that choose it
MOST_FIT = 2_000  # the same of the pairs that are played in full
LEAST_PILOT = 60
LEAST_CHOOSING = 1_000
NUMBERS = 8 * 10**6  # numbers of outputs held at once
DRAWN = (20, 400)  # pairs that are drawn, at least and at most
MOST_PAIRS = 64  # pairs that get short runs
FINALISTS = 3
ALPHA = 0.05  # probability of a false bound
ROUNDING = 1e-6  # relative: sizes of moves that differ by less are one
FURTHER = 1e-3  # relative: by which a value far beyond moves the output further than a clip lets it
OnRun = Callable[[int, int], None]  # runs that are done, of all


class OutputMove(NamedTuple):
    """A pair of inputs, and by how much it moves the output where that is known."""

    pair: Pair
    moved: Array | None  # [n_out], of one call; None: it depends on the draws
    size: float  # length in units of the noise: L2, or L1 for Laplace noise


class PlayedPair(NamedTuple):
    """The runs on one pair: the score that was chosen, and its values."""

    move: OutputMove
    score: OutputScore
    counted: Scores
    choosing: Scores
    n_calls: int = 0  # calls made in a row after one seed


@dataclass(frozen=True)
class Search:
    """All pairs for one function and one claim.

    Args:
        delta: at which bounds are compared.
    """

    function: AuditedFunction
    neighbours: NeighbouringInputs
    delta: float
    seed: int

    @cached_property
    def start(self) -> Array:
        """[n_seeds, n_out]: what the value 0 gives for shared seeds."""
        zero = self.neighbours.zero
        return self.function.in_turn([zero], len(SEEDS), SEEDS)[:, 0]

    @cached_property
    def noise(self) -> OutputNoise | None:
        """The noise that is added to 0, if it is recognised."""
        return recognised(self.function, self.neighbours.zero)

    @cached_property
    def unit(self) -> Array:
        """[n_out]: the scale of the noise, or an estimate from a few calls with the value 0."""
        if self.noise is not None:
            return np.abs(self.noise.scale)
        self.function.seed(self.seed)
        zero = self.neighbours.zero
        return np.std(self.function.in_turn([zero], 32)[:, 0], axis=0)

    @cached_property
    def moves(self) -> list[OutputMove]:
        """Every pair that is tried, the largest move first; those that are not known last."""
        found = [*self._at_corners, *self._between]
        most = max((move.size for move in found if move.moved is not None), default=0.0)
        return sorted(found, key=lambda move: _rank(move, most))

    @cached_property
    def _at_corners(self) -> list[OutputMove]:
        if self.neighbours.finds_clip:
            return list(self._of_lengths())
        return [self._measured(pair) for pair in self.neighbours.fixed()]

    @cached_property
    def n_drawn(self) -> int:
        """How many pairs are drawn: none where each would have to be played to be compared."""
        if self.noise is None or any(move.moved is None for move in self._at_corners):
            return 0
        numbers = self.start.shape[1] + sum(part.size for part in self.neighbours.zero)
        return int(np.clip(NUMBERS // numbers, *DRAWN))

    @property
    def n_pairs(self) -> int:
        """How many pairs are tried."""
        return len(self._at_corners) + self.n_drawn

    @cached_property
    def _between(self) -> list[OutputMove]:
        """Random pairs, each of which moves the output further than those before.

        Those whose move depends on the draws count as such.
        """
        pairs, best, found = DrawnPairs(self.neighbours, self.seed), None, list[OutputMove]()
        for i in range(self.n_drawn):
            one = pairs.first() if best is None or i < self.n_drawn // 2 else pairs.near(best)
            move = self._measured(pairs.pair(one))
            if move.moved is None and len(found) >= DRAWN[0]:
                break
            if move.moved is None or move.size > max((m.size for m in found), default=0.0):
                best, found = one, [*found, move]
        return found

    @cached_property
    def is_additive(self) -> bool:
        """Whether every pair moves the output by the same whatever is drawn."""
        return all(move.moved is not None for move in self.moves)

    @cached_property
    def follows(self) -> bool:
        """Whether the output moves as far as the input, at every length that was tried."""
        if not (self.neighbours.finds_clip and self.is_additive):
            return False
        return self._longest > 0.5 * SCALES[-1]

    @property
    def _longest(self) -> float:
        with np.errstate(over="ignore"):
            return max(float(np.linalg.norm(m.moved)) for m in self.moves if m.moved is not None)

    def _of_lengths(self) -> Iterator[OutputMove]:
        """Pairs of all directions, at lengths of every size and around where outputs stop moving.

        Where the move depends on the draws, a clip cannot be found: plain lengths are tried.
        """
        for direction in self.neighbours.directions:
            values = [self.neighbours.at(direction, length) for length in SCALES]
            moved = [shift(self.function, self.start, value) for value in values]
            known = [float(np.linalg.norm(one)) for one in moved if one is not None]
            lengths: list[float] = list(PLAIN_SCALES)
            if len(known) == len(moved):
                lengths = [*SCALES, *(times * max(known) for times in NEAR if 0 < max(known) < 1e6)]
                lengths += self._unclipped(direction, known[-1])
            for pair in self.neighbours.along(direction, lengths):
                yield self._measured(pair)

    def _unclipped(self, direction: Direction, clipped: float) -> Iterator[float]:
        """Lengths far beyond, where a clip is left out, as where a norm overflows.

        A function may fail there.

        Args:
            clipped: how far the largest of the plain lengths moves the output.
        """
        if clipped > 0.5 * SCALES[-1]:
            return
        for length in BEYOND.get(self.function.options.dtype, ()):
            value = self.neighbours.at(direction, length)
            try:
                with np.errstate(all="ignore"):
                    moved = shift(self.function, self.start, value)
            except FunctionError:
                continue
            if moved is None or np.linalg.norm(moved) > (1 + FURTHER) * clipped:
                yield length

    def _measured(self, pair: Pair) -> OutputMove:
        try:
            moves = [shift(self.function, self.start, v) for v in (pair.having, pair.without)]
        except ValueError:  # arrays of other sizes, as the output of fewer records may be
            moves = [None, None]
        if moves[0] is None or moves[1] is None:
            return OutputMove(pair, None, inf)
        moved = moves[0] - moves[1]
        return OutputMove(pair, moved, self.size(moved))

    def size(self, moved: Array) -> float:
        """Size of a move in units of the noise; infinite if a number without noise moves."""
        if self.noise is not None and self.noise.mix is not None:
            options = self.function.options
            return self.noise.hides(moved, options.output_dtype or options.dtype)
        there = np.abs(moved) > 1e-9 * np.abs(moved).max(initial=0.0)
        if (self.unit[there] == 0).any():
            return inf
        units = moved[there] / self.unit[there]
        laplace = self.noise is not None and self.noise.draw.family == "laplace"
        return float(np.linalg.norm(units, 1 if laplace else 2))

    def played(self, on_run: OnRun) -> PlayedPair:
        """The worst pair, played in full."""
        self.function.seed(self.seed + 1)
        runs = self.function.options.runs
        on_run(0, runs)
        if self.is_additive and self.noise is not None:
            finalists = self.moves[:1]
        else:
            some = _spread(self.moves, MOST_PAIRS)
            pilot = self.few(min(PILOT, max(LEAST_PILOT, runs // 10)))
            promises = [self._chosen(move, pilot, pilot, self._promised)[1] for move in some]
            order = np.argsort(promises)[::-1][:FINALISTS]
            finalists = [some[i] for i in order]
        fit = self.few(min(MOST_FIT, max(PILOT, runs // 2)))
        choose = max(min(LEAST_CHOOSING, runs // 2), runs // 4)
        found = [
            (move, *self._chosen(move, fit, self.few(choose), self._certified))
            for move in finalists
        ]
        move, score, _ = max(found, key=lambda one: one[2])
        choosing = self._scored(move.pair, score, choose, on_run)
        counted = self._scored(move.pair, score, runs, on_run)
        n_runs = choose + runs + len(finalists) * (fit + self.few(choose))
        return PlayedPair(move, score, counted, choosing, 2 * self.function.calls * n_runs)

    def few(self, n: int) -> int:
        """So many runs, or as many as outputs can be held of."""
        return int(np.clip(NUMBERS // (self.start.shape[1] * self.function.calls), 50, n))

    def _promised(self, values0: Array, values1: Array) -> float:
        return promise(values0, values1, self.delta)

    def _certified(self, values0: Array, values1: Array) -> float:
        """What these runs would certify, had they not chosen the threshold themselves."""
        if not (np.isfinite(values0).all() and np.isfinite(values1).all()):
            return 0.0
        found = from_scores(values0, values1, self.delta, ALPHA, (values0, values1))
        return found.value + 1e-3 * self._promised(values0, values1)

    def _chosen(
        self, move: OutputMove, fit: int, choose: int, merit: Callable[[Array, Array], float]
    ) -> tuple[OutputScore, float]:
        pair = move.pair
        flat = [
            np.concatenate([a.ravel() for a in v]).astype(float)
            for v in (pair.without, pair.having)
        ]
        moved = None if move.moved is None else np.tile(move.moved, self.function.calls)
        found = scores(*self.outputs(pair, fit), moved, (flat[0], flat[1]))
        return best(found, self.outputs(pair, choose), merit)

    def outputs(self, pair: Pair, n: int) -> tuple[Array, Array]:
        """[n, calls * n_out] of either input, played in turn."""
        runs = self.function.runs([pair.without, pair.having], n)
        return runs[:, 0], runs[:, 1]

    def _scored(self, pair: Pair, score: OutputScore, n: int, on_run: OnRun) -> tuple[Array, Array]:
        """[n] of either input."""
        block, values = self.few(1_000), []
        for start in range(0, n, block):
            on_run(start, n)
            some = self.outputs(pair, min(block, n - start))
            values.append([score.of(one) for one in some])
        on_run(n, n)
        without, having = (np.concatenate([part[i] for part in values]) for i in (0, 1))
        return without, having


def _rank(move: OutputMove, most: float) -> tuple[bool, float]:
    """Largest moves first; those that equal the largest but for rounding as they were tried."""
    if move.moved is None:
        return True, 0.0
    return False, -most if move.size >= (1 - ROUNDING) * most else -move.size


def _spread(moves: Sequence[OutputMove], most: int) -> list[OutputMove]:
    """At most so many of them, evenly."""
    places = np.unique(np.linspace(0, len(moves) - 1, most).round().astype(int))
    return [moves[i] for i in places]
