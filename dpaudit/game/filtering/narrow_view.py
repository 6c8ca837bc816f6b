"""Reads a view of few messages in a network of many agents, without a covariance of its state.

The Kalman filter of ``adversary`` carries the covariance of the state on. With many agents, linked
by more than a line, all states within reach hang together after a few rounds, and it is a matrix of
[n_agents, n_agents]. One agent, or an eavesdropper of a region, reads few numbers y. Their noise is
found from the messages backwards. With the sparse matrices of step r (``sparse_probe``) in

    x_r = x_(r-1) S_r + z_r N_r,    y_r = x_(r-1) O_r + z_r M_r,

what state x_r does to all later observations is a matrix of as many columns as these,

    X_(r-1) = [O_r, S_r X_r],    X_T of no columns,

and z_r does [M_r, N_r X_r] to them. Stacked over r, these are B' of y = z B'. Of it a triangular
factor F is kept alone, F'F = B B', with as many rows as observations (``factor_with``). It holds
all that the filter needs: the innovation of round k is the part of the columns of F of that round
that is orthogonal to the columns of earlier rounds. Singular values of it are those that the filter
finds in that round, so that what counts as noiseless is the same. A use of the record adds
[seen, state X_r] to the observations, and what of it was predicted from earlier innovations is
subtracted. It is the same figure, of the whole light cone: nothing is left out.

Runs are scored by what innovations reveal of the state, the gain: the covariance of the innovation
of round k and of x_k, by one way back from round k (what each draw does to the innovation) and one
forward (what it does to x_k).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from dpaudit.game import matrices
from dpaudit.game.matrices import Array, Indices, Mask, Matrix, factor_with
from dpaudit.game.probing.probed_round import NOISELESS, Effects, ProbedRound
from dpaudit.game.probing.sparse_probe import SparseProbes

from .leak import RoundReading

NARROW = 8  # agents for each number that is observed of a round, at the least
WORK = 2 * 10**12  # products of numbers, about, that the factor of all observations takes
DENSE = 0.1  # share of nonzero entries above which columns are held as a dense matrix
SAMPLED = 32  # models of a round that are looked at first
AT_ONCE = 512  # models that are looked at together, beyond these


def work_of(observed: int, draws: int, n_rounds: int) -> int:
    """Products of numbers that a factor of so many observations of each round takes, about."""
    return (draws + observed * n_rounds) * observed**2 * n_rounds**3 // 3


def is_narrow(observed: int, draws: int, n_agents: int, n_rounds: int) -> bool:
    """Whether so few numbers are observed of a round that all rounds are factored at once."""
    return observed * NARROW <= n_agents and work_of(observed, draws, n_rounds) <= WORK


class Sweep(NamedTuple):
    """What all draws and all uses of the record do to some functionals of a run."""

    factor: Array  # [*, n]: F with F'F the covariance of the functionals
    uses: Array  # [n_uses, n]: of the record, in order of rounds and points


class Functionals(NamedTuple):
    """Numbers that depend on the state before a round and on its draws."""

    by_state: Matrix  # [width, n]
    by_draws: Matrix  # [n_draws, n]
    by_record: Array  # [n_points, n]


def swept(steps: Sequence[ProbedRound], of_round: Sequence[Functionals]) -> Sweep:
    """Functionals of each round, from the last round to the first; columns in order of rounds."""
    X: Matrix = sparse.csr_array((steps[0].earlier.state.shape[1], 0))
    F, uses = np.zeros((0, 0)), list[Array]()
    for step, here in zip(reversed(steps), reversed(of_round), strict=True):
        later, n = step.noise.state @ X, X.shape[1]
        block = _beside(later, here.by_draws)
        there = np.flatnonzero(abs(block).sum(1))
        F = factor_with(F, _dense(block[there]))
        uses.append(np.concatenate([step.record.state @ X, here.by_record], axis=1))
        X = _beside(step.earlier.state @ X, here.by_state)
    # columns are there from the last round to the first, those of one round in their order
    widths = [here.by_state.shape[1] for here in reversed(of_round)]
    order = np.concatenate([np.zeros(0, dtype=np.int64), *_reversed_blocks(widths)])
    n = X.shape[1]
    padded = [np.pad(use, ((0, 0), (0, n - use.shape[1]))) for use in reversed(uses)]
    return Sweep(F[:, order], np.concatenate(padded)[:, order])


def _reversed_blocks(widths: Sequence[int]) -> list[Indices]:
    """The places of consecutive blocks of these widths, the last block first."""
    ends = np.cumsum(widths)
    return [np.arange(e - w, e) for w, e in zip(widths[::-1], ends[::-1], strict=True)]


def _beside(one: Matrix, other: Matrix) -> Matrix:
    """Columns of both; as a dense matrix once many entries are not 0."""
    if isinstance(one, np.ndarray):
        return np.concatenate([one, _dense(other)], axis=1)
    both = sparse.csr_array(sparse.hstack([one, other]))
    return both.toarray() if both.nnz > DENSE * both.shape[0] * both.shape[1] else both


def _dense(matrix: Matrix) -> Array:
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


class NarrowView:
    """The innovations of a view, round by round."""

    def __init__(self, probes: SparseProbes) -> None:
        self._probes, self._steps = probes, [step.alone for step in probes.steps]
        self._swept = swept(self._steps, [_observed(step) for step in self._steps])
        self._first = np.cumsum([0, *(len(step.messages) for step in self._steps)])
        self._n_uses = np.cumsum([0, *(len(step.steps) for step in self._steps)])
        self._known = np.zeros((0, len(self._swept.factor)))  # orthonormal rows, of innovations
        self._of_uses = np.zeros((len(self._swept.uses), 0))  # whitened shifts, of all uses so far
        self._maps = np.zeros((0, 0))  # [observations, innovations]: innovations of raw numbers

    @classmethod
    def of(cls, probes: SparseProbes, n_agents: int) -> "NarrowView | None":
        """None: the view is not narrow, or its observations of all rounds are too many."""
        steps = [step.alone for step in probes.steps]
        observed = max(len(step.messages) for step in steps)
        draws = max(step.noise.seen.shape[0] for step in steps)
        if is_narrow(observed, draws, n_agents, len(steps)):
            return cls(probes)
        return None

    def innovation(self, k: int) -> ProbedRound:
        """Round k with what is not predicted of it as its noise; it has no state."""
        step, own = self._steps[k - 1], self._columns(k)
        F, effects = self._swept.factor[:, own], self._swept.uses[:, own]
        for _ in range(2):  # once more for what rounding leaves
            F = F - self._known.T @ (self._known @ F)
        predicted = self._known @ self._swept.factor[:, own]
        n = self._n_uses[k]
        left = effects[:n] - self._of_uses[:n] @ predicted
        old, new = left[: self._n_uses[k - 1]], left[self._n_uses[k - 1] :]
        return replace(
            step,
            noise=Effects(F, np.zeros((len(F), 0)), np.zeros((len(F), 0))),
            n_states=len(F),
            laplace=torch.zeros(0, dtype=torch.bool),
            record=Effects(new, np.zeros((len(new), 0)), np.zeros((len(new), 0))),
            earlier=Effects(old, np.zeros((len(old), 0)), np.zeros((len(old), 0))),
        )

    def noted(
        self, k: int, out: ProbedRound, reading: RoundReading, column: int | None
    ) -> RoundReading:
        """The reading with its draws and its gain, after which its innovations are known.

        Args:
            out: ``innovation(k)``.
            column: of the observations, if one of the last round is read alone.
        """
        step, rank = self._steps[k - 1], reading.whiten.shape[1]
        seen = step.noise.seen if column is None else step.noise.seen[:, [column]]
        if column is None:
            gain = self._note(k, out, reading.whiten)
        else:  # nothing is predicted from the last round
            gain = np.zeros((rank, step.earlier.state.shape[1]))
        first = max((len(shift) for shift in reading.columns.values()), default=0)
        moved = np.asarray(seen @ reading.whiten[:, :first])
        there = np.abs(moved).sum(1) > 0
        return reading._replace(
            gain=gain,
            draws=moved[there].T,
            laplace=step.laplace[torch.from_numpy(there)],
            exact=False,  # other agents' draws are hidden
            has_laplace=bool(step.laplace.any()),
        )

    def _note(self, k: int, out: ProbedRound, whiten: Array) -> Array:
        """Takes the innovations of round k as known; returns their gain [rank, width]."""
        own = self._columns(k)
        V = (out.noise.seen @ whiten).T
        predicted = self._known @ self._swept.factor[:, own]
        back = -self._maps @ (predicted @ whiten)
        below = np.zeros((len(whiten), self._maps.shape[1]))
        self._maps = np.block([[self._maps, back], [below, whiten]])
        shifts = np.zeros((len(self._of_uses), whiten.shape[1]))
        shifts[: self._n_uses[k]] = out.records_seen @ whiten
        self._known = np.concatenate([self._known, V])
        self._of_uses = np.concatenate([self._of_uses, shifts], axis=1)
        return self._gain(k, self._maps[:, self._maps.shape[1] - whiten.shape[1] :])

    def _gain(self, k: int, combinations: Array) -> Array:
        """The covariance of combinations [observations so far, rank] with the state after k."""
        steps, moved = self._steps[:k], list[Array]()
        X: Array = np.zeros((steps[0].earlier.state.shape[1], combinations.shape[1]))
        for r, step in zip(range(k, 0, -1), steps[::-1], strict=True):
            own = combinations[self._columns(r)]
            moved.append(step.noise.seen @ own + step.noise.state @ X)
            X = step.earlier.seen @ own + step.earlier.state @ X
        G: Array = np.zeros_like(X)
        for step, drawn in zip(steps, reversed(moved), strict=True):
            G = step.earlier.state.T @ G + step.noise.state.T @ drawn
        return G.T

    def _columns(self, k: int) -> slice:
        return slice(int(self._first[k - 1]), int(self._first[k]))

    def hidden_models(self, k: int, known: Mask) -> Iterator[int]:
        """Which models that gradients of round k are taken at the view does not determine.

        Args:
            known: [n_asked] bool: those that the adversary has.
        """
        answers = self._probes.answers(k)
        live = np.flatnonzero(answers.shows & ~known & self._moved(k))
        sample = live[:: max(1, len(live) // SAMPLED)]
        others = np.setdiff1d(live, sample)
        parts = [sample, *np.split(others, range(AT_ONCE, len(others), AT_ONCE))]
        for chosen in parts:
            if len(chosen):
                yield from chosen[self._is_hidden(k, chosen, answers.before)].tolist()

    def _moved(self, k: int) -> Mask:
        """[n_asked] bool: models of round k that noise or the record moves."""
        live = np.zeros(self._steps[0].earlier.state.shape[1], dtype=bool)
        for step in self._steps[: k - 1]:
            noise, record = _any(step.noise.state), step.record.state.any(0)
            live = _any(step.earlier.state[np.flatnonzero(live)]) | noise | record
        step = self._steps[k - 1]
        by_state = _any(step.earlier.models[np.flatnonzero(live)])
        return by_state | _any(step.noise.models) | step.record.models.any(0)

    def _is_hidden(self, k: int, chosen: Indices, before: Mask) -> Mask:
        """By what earlier observations, and those that no gradient moves, leave of a model."""
        steps, seen = self._steps[:k], np.flatnonzero(before)
        last = steps[-1]
        functionals = [_observed(step) for step in steps[:-1]]
        functionals.append(
            Functionals(
                _beside(last.earlier.seen[:, seen], last.earlier.models[:, chosen]),
                _beside(last.noise.seen[:, seen], last.noise.models[:, chosen]),
                np.concatenate([last.record.seen[:, seen], last.record.models[:, chosen]], axis=1),
            )
        )
        found, n = swept(steps, functionals), len(chosen)
        F, models = found.factor[:, :-n], found.factor[:, -n:]
        V, S, U, _ = matrices.factors(F, NOISELESS)
        gain = V @ models
        noise = np.abs(models - V.T @ gain).max(0, initial=0.0)
        record = found.uses[:, -n:] - ((found.uses[:, :-n] @ U) / S) @ gain
        scale = max(step.scale for step in steps)
        by_record = np.abs(record).max(0, initial=0.0) > NOISELESS * scale
        return (noise > NOISELESS * np.abs(models).max(initial=0.0)) | by_record


def _observed(step: ProbedRound) -> Functionals:
    return Functionals(step.earlier.seen, step.noise.seen, step.record.seen)


def _any(effects: Matrix) -> Mask:
    """Which columns have an entry that is not 0."""
    return np.asarray(abs(effects).sum(0) > 0).ravel()
