"""The filter of an adversary of many agents, of which each step reaches few others.

It is the filter of ``adversary``, with every matrix sparse. What is exact about leaving parts out:

- A number of the state that reaches no later observation, and no model of which a gradient does,
  changes nothing that is read: its uncertainty is not carried on (``local_ahead``).
- Noises and observations that hang together in no way share no singular vector (``blocks``).
- Nothing but noise or a record moves a state away from the run without either, so that steps are
  probed along what these may have moved alone (``live``).
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dpaudit.game.probing.dense_probe import NOISELESS, TINY, Parts, least_left, least_noiseless
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.sparse_probe import LocalProbe, LocalStep
from dpaudit.game.probing.states import flat_state

from .block_matrices import Factors, Mask, Matrix, SparseMap, compressed, factors
from .relevance import with_columns

LOCAL = 256  # agents from which on steps are probed for many of them at once


class LocalProbed(NamedTuple):
    """``Probed`` with sparse matrices of noise."""

    round: int
    messages: list[tuple[str, int]]
    observed_noise: Matrix  # [spread + draws, n]
    state_noise: Matrix  # [spread + draws, width]
    models_noise: Matrix  # [spread + draws, n_asked]
    laplace: Tensor  # [draws] bool
    record_seen: Tensor  # [n_points, n]
    record: Tensor  # [n_points, width]
    models_record: Tensor  # [n_points, n_asked]
    steps: list[int]
    remnants_seen: Tensor  # [n_old, n]
    remnants: Tensor  # [n_old, width]
    models_remnants: Tensor  # [n_old, n_asked]
    askers: list[int]
    scale: float
    largest: float

    @classmethod
    def of(cls, step: LocalStep, spread: Matrix, remnants: Tensor, relevant: Mask) -> "LocalProbed":
        """A step, after which the ``relevant`` numbers of the state [width] are looked at."""
        of_state, of_noise, keep = step.of_state, step.of_noise, torch.from_numpy(relevant)
        noise = [
            sparse.csr_array(sparse.vstack([_product(spread, old), new]))
            for old, new in zip(of_state, of_noise, strict=True)
        ]
        old = [torch.from_numpy(remnants.numpy() @ effect) for effect in of_state]
        moved = (step.record_seen, step.record)
        scale = max((float(t.abs().max()) for t in moved if t.numel()), default=0.0)
        return cls(
            step.round, step.messages,
            noise[0], with_columns(noise[1], relevant), noise[2], step.laplace,
            step.record_seen, step.record * keep, step.models_record, step.steps,
            old[0], old[1] * keep, old[2], step.askers, scale, step.largest,
        )  # fmt: skip

    @property
    def most_telling(self) -> int:
        """The observation with the largest effect of the record in units of its own noise.

        Of the round's own batch, or of earlier ones where no message tells of that yet.
        """
        noise = torch.from_numpy(np.sqrt(self.observed_noise.power(2).sum(0)))
        seen = (self.record_seen if self.record_seen.any() else self.remnants_seen).sum(0)
        certain = torch.where(seen.abs() > NOISELESS * self.scale, torch.inf, 0.0)
        return int(torch.where(noise > 0, seen.abs() / noise, certain).argmax())

    def of_one_message(self, column: int) -> "LocalProbed":
        """The same, with only this observation made."""
        one = [column]
        return self._replace(
            messages=[self.messages[column]],
            observed_noise=sparse.csr_array(self.observed_noise[:, one]),
            record_seen=self.record_seen[:, one],
            remnants_seen=self.remnants_seen[:, one],
        )


class LocalFilter(NamedTuple):
    """``Filter`` with sparse matrices."""

    found: Factors
    gain: Matrix  # [rank, width]
    n_states: int

    @classmethod
    def of(cls, out: LocalProbed, n_states: int) -> "LocalFilter":
        """Raises NotLocal: too much hangs together."""
        found = factors(out.observed_noise)
        return cls(found, sparse.csr_array(found.V @ out.state_noise), n_states)

    @property
    def _whiten(self) -> Matrix:
        return sparse.csr_array(self.found.U * (1 / self.found.S))

    def shifts(self, seen: Tensor) -> Tensor:
        return torch.from_numpy(seen.numpy() @ self._whiten)

    def noiseless(self, seen: Tensor) -> Tensor:
        U = self.found.U
        return seen - torch.from_numpy((seen.numpy() @ U) @ U.T)

    def foretold(self, shifts: Tensor) -> Tensor:
        return torch.from_numpy(shifts.numpy() @ self.gain)

    def unknown(self, out: LocalProbed) -> Matrix:
        """A factor of what is not known of the state after the round, as of ``Filter``."""
        C = out.state_noise
        sizes = np.sqrt(C.power(2).sum(0))
        units = np.where(sizes > 0, sizes, 1.0)
        left = (C - self.found.V.T @ self.gain) * (1 / units)
        return compressed(sparse.csr_array(left), least_left(self.found.S)) * units

    @property
    def least_noiseless(self) -> float:
        """Of a record's effect: what is left of it by rounding where no noise hides it."""
        return least_noiseless(self.found.S)

    def parts(self, shifts: Tensor, laplace: Tensor) -> Parts:
        """The innovations that the record reaches come first, and their draws alone are kept."""
        block = self.found.block
        moved = np.isin(block, block[shifts.numpy().any(axis=0)])
        order = np.concatenate([np.flatnonzero(moved), np.flatnonzero(~moved)])
        n = int(moved.sum())
        draws = sparse.csr_array(self.found.V[:, self.n_states :])
        told = np.asarray(draws.power(2).sum(0))[laplace.numpy()]
        here = sparse.csr_array(draws[order[:n]])
        reached = np.unique(here.indices)
        return Parts(
            SparseMap(sparse.csr_array(self._whiten[:, order])),
            SparseMap(sparse.csr_array(self.gain[order])),
            shifts[:, order[:n]],
            torch.from_numpy(self.found.S[order]),
            SparseMap(sparse.csr_array(here[:, reached])),
            laplace[reached],
            not self.n_states and bool((1 - told).max(initial=0.0) < 1e-12),
            bool(laplace.any()),
        )


def steps_of(observer: Observer, n_rounds: int) -> list[LocalStep]:
    """All rounds, around the run without noise and record. Raises NotLocal."""
    state: Any = observer.game.start(1, torch.float64, torch.device("cpu"))
    live, found = np.zeros(flat_state(state).shape[-1], dtype=bool), []
    for k in range(1, n_rounds + 1):
        step = LocalProbe(observer, state, k, live).play()
        moved = (step.of_state.state[live], step.of_noise.state)
        live = np.logical_or.reduce([_reached(effects) for effects in moved])
        live |= step.record.numpy().any(axis=0)
        found.append(step)
        state = step.next_state
    return found


def _product(factor: Matrix, effects: Matrix) -> Matrix:
    """``factor`` [rows, n] times ``effects`` [n, m], without what rounding leaves of zeros."""
    found = sparse.csr_array(factor @ effects)
    largest = sparse.csr_array(abs(factor) @ abs(effects))
    return sparse.csr_array(found.multiply(abs(found) > TINY * largest))


def _reached(effects: Matrix) -> Mask:
    """Which numbers some unit moves."""
    there = np.zeros(effects.shape[1], dtype=bool)
    there[effects.indices] = True
    return there
