"""One step of a protocol, probed from many states and with many noises at once.

The system is not written down for each defense: what a step makes of a unit of noise, of a record
and of what is left of earlier records is measured on the defense's own step. That is exact where
the defense is linear in its noise.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array
from dpaudit.defense.contract import Gradient
from dpaudit.defense.transcript import Messages
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.game.filtering.block_matrices import SparseMap
from dpaudit.game.oracles import Watched

from .observer import Observer
from .points import NOWHERE, Points, at_points, points_of
from .states import flat_state, state_of
from .tape import AskedNoise, Tape

RANK = 1e-9  # of the largest singular value: below it a combination of messages has no noise
NOISELESS = 1e-6  # of a record's effect: what may be left of it where there is no noise to hide it
LEAST_NOISELESS = 1e-8  # the same, where the singular values of the round are of like size
TINY = 1e-13  # of the largest number of a trial: a smaller move in it is rounding
ROUNDING = 1e-12  # of what a number of the state may hold: a smaller part that is left is rounding
LOST = 1e-14  # times the condition number of a round: what its linear algebra is off by
MOST_DRAWS = 4000  # noises of a round: the matrices of a round take their square


class Probed(NamedTuple):
    """What a step makes of noise, of the record and of earlier records, one unit of each."""

    round: int
    messages: list[tuple[str, int]]
    observed_noise: Tensor  # [spread + draws, n]: what each unit of noise does to observations
    state_noise: Tensor  # [spread + draws, width]: and to the state after the round
    laplace: Tensor  # [draws] bool
    record_seen: Tensor  # [n_points, n]: of its gradient at each point of the round alone
    record: Tensor  # [n_points, width]
    steps: list[int]  # of each point: the local step, whose batch it is of
    remnants_seen: Tensor  # [n_old, n]
    remnants: Tensor  # [n_old, width]
    askers: list[int]  # whose gradients the round asks for, one by one
    models_noise: Tensor  # [spread + draws, n_asked]: what noise does to the model of each
    models_record: Tensor  # [n_points, n_asked]
    models_remnants: Tensor  # [n_old, n_asked]
    next_state: Any  # of the run without noise and record
    scale: float  # size of the record's effect, which errors are relative to
    largest: float  # number in the messages of that run

    @property
    def most_telling(self) -> int:
        """The observation with the largest effect of the record in units of its own noise.

        Of the round's own batch, or of earlier ones where no message tells of that yet.
        """
        noise = torch.linalg.vector_norm(self.observed_noise, dim=0)
        seen = (self.record_seen if self.record_seen.any() else self.remnants_seen).sum(0)
        certain = torch.where(seen.abs() > NOISELESS * self.scale, torch.inf, 0.0)
        return int(torch.where(noise > 0, seen.abs() / noise, certain).argmax())

    def of_one_message(self, column: int) -> "Probed":
        """The same, with only this observation made."""
        one = [column]
        return self._replace(
            messages=[self.messages[column]],
            observed_noise=self.observed_noise[:, one],
            record_seen=self.record_seen[:, one],
            remnants_seen=self.remnants_seen[:, one],
        )


class Parts(NamedTuple):
    """How a round is read: by ``whiten`` and ``gain``, and what the record meets there."""

    whiten: Tensor | SparseMap  # [n_observations, rank]: to independent noise of variance 1
    gain: Tensor | SparseMap  # [rank, state]: what that tells about the state
    shifts: Tensor  # [*, m]: of the first m <= rank innovations, the record's effects
    stds: Tensor  # [rank]: of each innovation before it is whitened, in units of messages
    draws: Tensor | SparseMap  # [m, n_draws]: the noise of the round itself as it is estimated
    laplace: Tensor  # [n_draws] bool
    exact: bool  # whether every Laplace draw is recovered exactly
    has_laplace: bool  # whether the round has any


class Filter(NamedTuple):
    """What a round's observations tell about the noise: A' = U S V with A, C as in ``Probed``."""

    U: Tensor  # [n_observations, rank]
    S: Tensor  # [rank]
    V: Tensor  # [rank, spread + draws]
    whiten: Tensor  # U / S
    gain: Tensor  # V C

    @classmethod
    def of(cls, out: Probed) -> "Filter":
        """Raises DpauditError if the run without records is not finite."""
        A, C = out.observed_noise, out.state_noise
        refuse_infinite(out.round, A, C, out.record_seen, out.record)
        U, S, V = torch.linalg.svd(A.mT, full_matrices=False)
        rank = int((RANK * S.max() < S).sum()) if S.numel() and S.max() > 0 else 0
        U, S, V = U[:, :rank], S[:rank], V[:rank]
        return cls(U, S, V, U / S, V @ C)

    def shifts(self, seen: Tensor) -> Tensor:
        """What effects on observations [*, n] are in whitened ones, [*, rank]."""
        return seen @ self.whiten

    def noiseless(self, seen: Tensor) -> Tensor:
        """What is left of effects on observations [*, n] where there is no noise."""
        return seen - seen @ self.U @ self.U.mT

    def foretold(self, shifts: Tensor) -> Tensor:
        """What whitened effects [*, rank] make the adversary believe of the state, [*, width]."""
        return shifts @ self.gain

    def unknown(self, out: Probed) -> Tensor:
        """A factor of what is not known of the state after the round: (I - V'V) C.

        Each number of the state is measured by its size in C: of a number that the round reveals
        the difference leaves rounding, which is no noise and must not become the noise of a later
        round.
        """
        C = out.state_noise
        sizes = torch.linalg.vector_norm(C, dim=0)
        units = torch.where(sizes > 0, sizes, 1.0)
        left = (C - self.V.mT @ self.gain) / units
        return compressed(left, least_left(self.S.numpy())) * units

    @property
    def least_noiseless(self) -> float:
        """Of a record's effect: what is left of it by rounding where no noise hides it."""
        return least_noiseless(self.S.numpy())

    def parts(self, shifts: Tensor, laplace: Tensor) -> Parts:
        """What is kept of it, of a record that is seen as ``shifts``."""
        n_states = self.V.shape[1] - len(laplace)
        draws = self.V[:, n_states:]
        identity = torch.eye(draws.shape[1], dtype=torch.float64)
        known = (draws.mT @ draws - identity)[laplace].abs()
        exact = not n_states and (known.numel() == 0 or known.max().item() < 1e-6)
        has_laplace = bool(laplace.any())
        return Parts(self.whiten, self.gain, shifts, self.S, draws, laplace, exact, has_laplace)


class Probe:
    """One step of the protocol, from many states and with many noises at once.

    ``why``: what keeps it from being probed for many agents at once, for the line of a refusal.
    """

    def __init__(
        self, observer: Observer, state: Any, k: int, why: Exception | None = None
    ) -> None:
        self._why = why
        self._observer, self._state, self._k = observer, state, k
        self._game = observer.game
        self._graph = self._game.setting.network.at(k)

    def play(self, spread: Tensor, remnants: Tensor) -> Probed:
        draws, points = self._asked(), self._points()
        n_draws = sum(draw.numbers for draw in draws.values())
        first = 1 + len(remnants) + len(spread)  # trial of the first draw
        last = first + n_draws  # trial of the first point
        trials = last + len(points.steps)  # base, remnants, spread, noise, record
        self._refuse_too_many(trials, n_draws)
        start = flat_state(self._state).expand(trials, -1).clone()
        start[1:first] += torch.cat([remnants, spread])
        units = one_of_each(draws, trials, first)
        chosen = (torch.arange(trials) - last).clamp(min=NOWHERE)
        canary = self._game.gradient(torch.ones(trials, dtype=torch.float64))

        gradient = Watched(at_points(canary, points, chosen))
        state, sent = self._step(state_of(self._state, start), Tape(units), gradient)
        observed = self._observer.all_observations(self._k, sent, units)
        after = flat_state(state)
        moved, left = _moves(start, observed, after)
        models = gradient.moved(trials)
        laplace = [d.family == "laplace" for d in draws.values() for _ in range(d.numbers)]
        noise, old = slice(1 + len(remnants), last), slice(1, 1 + len(remnants))
        sizes_of = (t[last:].abs().max().item() for t in (moved, left) if t[last:].numel())
        return Probed(
            round=self._k,
            messages=self._observer.named(self._k, sent, draws),
            observed_noise=moved[noise],
            state_noise=left[noise],
            laplace=torch.tensor(laplace, dtype=torch.bool),
            record_seen=moved[last:],
            record=left[last:],
            steps=points.steps,
            remnants_seen=moved[old],
            remnants=left[old],
            askers=gradient.askers,
            models_noise=models[noise],
            models_record=models[last:],
            models_remnants=models[old],
            next_state=state_of(self._state, after[:1]),
            scale=max(sizes_of, default=0.0),
            largest=float(observed[0].abs().max()) if observed.numel() else 0.0,
        )

    def _asked(self) -> dict[str, AskedNoise]:
        """The noise that the step asks for."""
        asked = Tape()
        self._step(self._state, asked, self._game.gradient(torch.zeros(1, dtype=torch.float64)))
        self._observer.told(self._k, asked.known_to)
        return asked.draws

    def _points(self) -> Points:
        """Where the record's gradient is asked for; nowhere if it is in no batch."""
        points = points_of(self._game, anywhere(self._state, self._k), self._k, Tape())
        return points if self._game.uses(self._k) else points._replace(steps=[])

    def _refuse_too_many(self, trials: int, n_draws: int) -> None:
        if trials > MOST_DRAWS:
            known = "" if self._why is None else f" where all depends on all ({self._why})"
            raise ConfigError(
                "DPA022",
                f"graph: round {self._k} draws {n_draws} noises; its exact leak is computed "
                f"for {MOST_DRAWS} at most{known}; audit fewer agents or a sparser graph",
            )

    def _step(self, state: Any, noise: Tape, gradient: Gradient) -> tuple[Any, Messages]:
        round = self._game.defense.step(state, self._k, self._graph, gradient, noise)
        return round.state, round.sent


def anywhere(state: Any, k: int) -> Any:
    """A state in which no two agents' models agree by chance."""
    flat, generator = flat_state(state), torch.Generator().manual_seed(k)
    return state_of(state, flat + torch.rand(flat.shape, generator=generator, dtype=flat.dtype))


def refuse_infinite(k: int, *values: Tensor) -> None:
    """Raises DpauditError if the run without records is not finite."""
    if not all(bool(t.isfinite().all()) for t in values):
        raise DpauditError(
            "DPA046",
            f"round {k}: messages or states are not finite even in a run without records; "
            "expected options of the defense under which it does not overflow",
        )


def one_of_each(draws: Mapping[str, AskedNoise], trials: int, first: int) -> dict[str, Tensor]:
    """Draws [trials, rows, d] by name: from trial ``first`` on each has one draw of one unit."""
    units = {}
    for name, draw in draws.items():
        size = draw.numbers
        flat = torch.zeros(trials, size, dtype=torch.float64)
        flat[first + torch.arange(size), torch.arange(size)] = 1.0
        units[name] = flat.view(trials, *draw.shape[-2:])
        first += size
    return units


def compressed(factor: Tensor, least: float) -> Tensor:
    """Rows with the same Gram matrix; columns and rows up to ``least`` long are rounding."""
    factor = factor * (torch.linalg.vector_norm(factor, dim=0) > least)
    if not factor.any():
        return factor[:0]
    _, S, V = torch.linalg.svd(factor, full_matrices=False)
    keep = least < S
    return S[keep, None] * V[keep]


def least_left(singular_values: Array) -> float:
    """Of what a number of the state may hold: a smaller part that a round leaves is rounding."""
    return max(ROUNDING, LOST * condition_number(singular_values))


def least_noiseless(singular_values: Array) -> float:
    """Of a record's effect: what rounding may leave of it where no noise hides it."""
    lost = 100 * LOST * condition_number(singular_values)
    return min(NOISELESS, max(LEAST_NOISELESS, lost))


def condition_number(singular_values: Array) -> float:
    """The largest of some singular values over the smallest; 1 if there are none."""
    if not singular_values.size:
        return 1.0
    return float(singular_values.max() / singular_values.min())


def _moves(start: Tensor, observed: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """How far observations and states [trials, *] are from those of the first trial.

    What subtraction leaves of numbers that cancel, as of a message that is held over a round, is 0.
    """
    values = torch.cat([start, observed, after], dim=1).abs().amax(dim=1, keepdim=True)
    least = TINY * torch.maximum(values, values[0])
    moved, left = (v - v[0] for v in (observed, after))
    return (
        torch.where(moved.abs() <= least, 0.0, moved),
        torch.where(left.abs() <= least, 0.0, left),
    )
