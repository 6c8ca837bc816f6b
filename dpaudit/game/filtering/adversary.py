"""What the strongest adversary of a threat model learns, from the protocol's own algebra.

Around a run with no record in it, a defense is a linear system: the state and the messages of a
round are linear in the state before, in the noise and in the record's gradient. The adversary knows
that system, so it runs the protocol along with the agents and keeps an estimate of what it cannot
see (a Kalman filter). Each round it subtracts its prediction, with the noise that it already holds,
from what it intercepted. The rest is a combination of fresh noise and the record's gradient, and is
whitened. Summed over rounds the whitened shifts are the leak of the view, mu^2 = a' (B B')^+ a for
messages O = A G + B Z: of gradients G that are given, nothing in a view reveals more. So it is
exact for averaging, and in training where the view reveals every model that a gradient is taken at.
Elsewhere agents may relay more (``reacts``), and it is a lower end.

A record's effect on a combination of messages without noise is an infinite leak, and is named.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense.transcript import Messages
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.matrices import (
    Array,
    LinearMap,
    Matrix,
    NotLocal,
    column_norms,
    compressed,
    factors,
    scaled,
)
from dpaudit.game.probing.dense_probe import DenseProbes
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.probed_round import NOISELESS, ProbedRound, Probes
from dpaudit.game.probing.sparse_probe import SPARSE_FROM, SparseProbes

from .gradient_reaction import Reaction, reaction
from .leak import EVERY_ROUND, Leak, Reading, Use, leak_of

FORGOTTEN = 1e-9  # of a record's effect: a smaller residual in the state is rounding
RESOLVED = 1e-9  # of the largest number in messages: less noise may be rounding in a run

LEAST_NOISELESS = 1e-8  # as NOISELESS, where the singular values of the round are of like size
ROUNDING = 1e-12  # of what a number of the state may hold: a smaller part that is left is rounding
LOST = 1e-14  # times the condition number of a round: what its linear algebra is off by
RECOVERED = 1e-12  # of a draw's variance: what may be left of one that is recovered exactly


class Update(NamedTuple):
    """What the adversary makes of a round, and what it knows after it.

    The record reaches the first m of the innovations alone, and draws are given by these.
    """

    whiten: LinearMap  # [n_observations, rank]: to independent noise of variance 1
    gain: LinearMap  # [rank, width]: what whitened innovations reveal of the state
    stds: Tensor  # [rank]: of each innovation before it is whitened, in units of messages
    shifts: Tensor  # [n_uses, m]: the record's effect on whitened innovations
    noiseless: Tensor  # [n_uses, n_observations]: its effect where there is no noise
    least_noiseless: float  # of the record's effect: less of it without noise is rounding
    residuals: Tensor  # [n_uses, width]: its effect on the state that the adversary does not know
    factor: Matrix  # [*, width]: of the covariance of the state after the round
    draws: LinearMap  # [m, n_draws]: the noise of the round itself as it is estimated
    laplace: Tensor  # [n_draws] bool
    exact: bool  # whether every Laplace draw of the round is recovered exactly
    has_laplace: bool  # whether there is any


def kalman_update(out: ProbedRound) -> Update:
    """The Kalman update of A' = U S V, with A and C the noise of observations and state.

    Before a round the adversary does not know the state up to a covariance, of which it keeps a
    factor. The innovation is the part of the observations that it does not predict; whitened, it
    has independent entries of variance 1. The gain V C times it is what the adversary then believes
    of the state, and (I - V'V) C is the factor after it. Matrices are dense or sparse as those of
    the probe are.

    Raises:
        NotLocal: too much of a sparse round hangs together.
    """
    seen, C = out.records_seen, out.noise.state
    V, S, U, block = factors(out.noise.seen)
    whiten, gain = scaled(U, 1 / S), V @ C
    shifts = seen @ whiten
    reached = np.isin(block, block[shifts.any(axis=0)])
    order = np.concatenate([np.flatnonzero(reached), np.flatnonzero(~reached)])
    first = order[: int(reached.sum())]
    draws = V[:, out.n_states :]
    of_first = draws[first]
    drawn = column_norms(of_first) > 0
    left = 1 - column_norms(draws)[out.laplace.numpy()] ** 2
    state = np.concatenate([out.earlier.state, out.record.state])
    return Update(
        whiten=LinearMap(whiten[:, order]),
        gain=LinearMap(gain[order]),
        stds=torch.from_numpy(S[order]),
        shifts=torch.from_numpy(shifts[:, first]),
        noiseless=torch.from_numpy(seen - (seen @ U) @ U.T),
        least_noiseless=min(NOISELESS, max(LEAST_NOISELESS, 100 * LOST * _condition_number(S))),
        residuals=torch.from_numpy(state - shifts @ gain),
        factor=_unknown(C, C - V.T @ gain, S),
        draws=LinearMap(of_first[:, np.flatnonzero(drawn)]),
        laplace=out.laplace[torch.from_numpy(drawn)],
        exact=not out.n_states and bool(left.max(initial=0.0) < RECOVERED),
        has_laplace=bool(out.laplace.any()),
    )


def _unknown(C: Matrix, left: Matrix, S: Array) -> Matrix:
    """A factor of what is ``left`` of the covariance with factor C after the round.

    Each number of the state is measured by its size in C: of a number that the round reveals the
    difference leaves rounding, which is no noise and must not become the noise of a later round.
    """
    sizes = column_norms(C)
    units = np.where(sizes > 0, sizes, 1.0)
    least = max(ROUNDING, LOST * _condition_number(S))
    return scaled(compressed(scaled(left, 1 / units), least), units)


def _condition_number(S: Array) -> float:
    """The largest singular value over the smallest; 1 if there are none."""
    return float(S.max() / S.min()) if S.size else 1.0


class RevealedBatch(NamedTuple):
    of_round: int  # whose batch is revealed
    in_round: int  # the first round that reveals it
    alone: bool  # whether each round reveals one round's batches at most, no two of the same


class Adversary:
    """Reads rounds one after the other; knows everything but whether the record is there.

    Args:
        game: the defense and the record.
        threat_model: whose view it is.
        n_rounds: how many rounds are read.
        one_message: of the last round, only the message that reveals most of the record.
        messages: those that are read; None: all.
    """

    def __init__(
        self,
        game: Game,
        threat_model: ThreatModel,
        n_rounds: int,
        one_message: bool = False,
        messages: frozenset[str] | None = None,
    ) -> None:
        self._observer = Observer(game, threat_model, messages)
        self.game, self.threat_model, self.n_rounds = game, threat_model, n_rounds
        self._one_message = one_message
        self._column: int | None = None  # of the last round's observations, if one is read alone
        self._largest = 0.0  # number in the messages of the rounds so far, and of their noise
        self.reacts: Reaction | None = None  # a gradient at a hidden model
        self.rounds = self._rounds()

    @cached_property
    def leak(self) -> Leak:
        """The exact leak of each round's use of the record, through this round and all later."""
        return leak_of(self.rounds, self.game)

    @property
    def observed(self) -> int:
        """Numbers that are read of the first round."""
        return len(self.rounds[0].messages)

    def most_revealing(self) -> RevealedBatch:
        """The batch that is revealed best where it first is; that of round 1 if none is."""
        first, alone = dict[int, tuple[float, int]](), True  # by round: how well, and in which
        for k, reading in enumerate(self.rounds, 1):
            here = reading.reveals()
            alone &= len(here) <= 1 and here.keys().isdisjoint(first)
            for of_round, size in here.items():
                first.setdefault(of_round, (size, k))
        best = max(first, key=lambda of_round: first[of_round][0], default=1)
        return RevealedBatch(best, first[best][1] if first else 1, alone)

    def observe(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Tensor:
        """Observations [trials, n] of round k: the messages of the view, and own noise."""
        seen = self._observer.all_observations(k, sent, units)
        return seen if self._column is None or k < self.n_rounds else seen[..., [self._column]]

    def _rounds(self) -> list[Reading]:
        """How each is read. Of many agents by sparse matrices, where a step reaches few others.

        Raises:
            ConfigError: too many agents whose noise hangs together.
        """
        why = None
        if self.game.setting.n_agents >= SPARSE_FROM:
            try:
                return list(self._filtered(SparseProbes(self._observer, self.n_rounds)))
            except NotLocal as reason:
                why, self.reacts, self._largest = reason, None, 0.0
        return list(self._filtered(DenseProbes(self._observer, self.n_rounds, why)))

    def _filtered(self, probes: Probes) -> Iterator[Reading]:
        """Each round of the protocol in turn, with the uncertainty carried on. Raises NotLocal."""
        factor = probes.nothing
        width = factor.shape[1]
        residuals: dict[Use, Tensor] = {}  # of uses before, in the state, [width]
        scale = 0.0  # of a record's effect so far: in some rounds its agent takes no step
        for k in range(1, self.n_rounds + 1):
            left = [rest.numpy() for rest in residuals.values()]
            out = probes.round(k, factor, np.stack(left) if left else np.zeros((0, width)))
            scale = max(scale, out.scale)
            out = replace(out, scale=scale)
            if self.reacts is None:
                self.reacts = reaction(self.threat_model, out, partial(probes.answers, k))
            if self._one_message and k == self.n_rounds and out.messages:
                self._column = out.most_revealing
                out = out.of_one_message(self._column)
            update = kalman_update(out)
            fresh = [(self._inclusion(k, s), k, point) for point, s in enumerate(out.steps)]
            uses = [*residuals, *fresh]
            residuals = {
                use: rest
                for use, rest in zip(uses, update.residuals, strict=True)
                if rest.abs().max() > FORGOTTEN * scale
            }
            factor = update.factor
            yield self._reading(out, update, uses)

    def _reading(self, out: ProbedRound, update: Update, uses: list[Use]) -> Reading:
        least = update.least_noiseless * out.scale
        noiseless = {
            use: rest
            for use, rest in zip(uses, update.noiseless, strict=True)
            if rest.numel() and rest.abs().max() > least
        }
        together = _by_inclusion(uses, update.noiseless)
        self._largest = max(self._largest, out.largest, *update.stds.tolist())
        return Reading(
            messages=out.messages,
            whiten=update.whiten,
            gain=update.gain,
            columns=dict(zip(uses, update.shifts, strict=True)),
            shifts=_by_inclusion(uses, update.shifts),
            resolved=update.stds > RESOLVED * self._largest,
            shown={
                j: rest / (rest @ rest)
                for j, rest in together.items()
                if rest.numel() and rest.abs().max() > least
            },
            noiseless={
                use[0]: out.messages[int(rest.abs().argmax())][0] for use, rest in noiseless.items()
            },
            draws=update.draws,
            laplace=update.laplace,
            exact=update.exact,
            has_laplace=update.has_laplace,
        )

    def _inclusion(self, k: int, step: int) -> int:
        """Whether the record is there is drawn once, or once a round, or for each batch."""
        if self.game.is_lasting:
            return EVERY_ROUND
        own = 0 if self.game.sampling_rate == 1 else step
        return (k - 1) * self.game.batches + own + 1


def _by_inclusion(uses: list[Use], effects: Tensor) -> dict[int, Tensor]:
    """The sums of effects [n_uses, n] of a record whose gradient is the same at all points."""
    total: dict[int, Tensor] = {}
    for (j, *_), effect in zip(uses, effects, strict=True):
        total[j] = total[j] + effect if j in total else effect
    return total
