"""One step of a protocol, probed from many states and with many noises at once.

The system is not written down for each defense: what a step makes of a unit of noise, of a record
and of what is left of earlier records is measured on the defense's own step. That is exact where
the defense is linear in its noise.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.defense.transcript import Capture
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.graphs.graph import Graph

from .game import Game
from .inputs import Watched
from .points import NOWHERE, at_points, points_of
from .states import flat_state, state_of
from .tape import AskedNoise, Tape

RANK = 1e-9  # of the largest singular value: below it a combination of messages has no noise
NOISELESS = 1e-6  # of a record's effect: what may be left of it where there is no noise to hide it
MOST_DRAWS = 4000  # noises of a round: the matrices of a round take their square


class Observer(Protocol):
    """Whose view is probed."""

    game: Game

    def all_observations(self, k: int, sent: Capture, units: Mapping[str, Tensor]) -> Tensor:
        """Observations [trials, n] of round k."""
        ...

    def told(self, k: int, known_to: Mapping[str, Tensor]) -> None:
        """Who knows the rows of the draws of round k that agents share."""
        ...

    def named(
        self, k: int, sent: Capture, draws: Mapping[str, AskedNoise], graph: Graph
    ) -> list[tuple[str, int]]:
        """What each of them is: message (or draw) and row."""
        ...


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

    @property
    def most_telling(self) -> int:
        """The observation with the largest effect of the record in units of its own noise."""
        noise, seen = torch.linalg.vector_norm(self.observed_noise, dim=0), self.record_seen.sum(0)
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


class Filter(NamedTuple):
    """What a round's observations tell about the noise: A' = U S V with A, C as in ``Probed``."""

    U: Tensor  # [n_observations, rank]
    V: Tensor  # [rank, spread + draws]
    whiten: Tensor  # U / S
    gain: Tensor  # V C

    @classmethod
    def of(cls, out: Probed) -> "Filter":
        """Raises DpauditError if the run without records is not finite."""
        A, C = out.observed_noise, out.state_noise
        if not all(bool(t.isfinite().all()) for t in (A, C, out.record_seen, out.record)):
            raise DpauditError(
                f"round {out.round}: messages or states are not finite even in a run without "
                "records; expected options of the defense under which it does not overflow"
            )
        U, S, V = torch.linalg.svd(A.mT, full_matrices=False)
        rank = int((RANK * S.max() < S).sum()) if S.numel() and S.max() > 0 else 0
        U, S, V = U[:, :rank], S[:rank], V[:rank]
        return cls(U, V, U / S, V @ C)


class Probe:
    """One step of the protocol, from many states and with many noises at once."""

    def __init__(self, adversary: Observer, state: Any, k: int) -> None:
        self._adversary, self._state, self._k = adversary, state, k
        self._game = adversary.game
        self._graph = self._game.setting.network.at(k)

    def play(self, spread: Tensor, remnants: Tensor) -> Probed:
        asked = Tape()
        self._step(self._state, asked, self._game.gradient(torch.zeros(1, dtype=torch.float64)))
        draws = asked.draws
        self._adversary.told(self._k, asked.known_to)
        sizes = {name: draw.shape[-2] for name, draw in draws.items()}
        points = points_of(self._game, self._anywhere(), self._k, Tape())
        points = points if self._game.uses(self._k) else points._replace(steps=[])
        first = 1 + len(remnants) + len(spread)  # trial of the first draw
        last = first + sum(sizes.values())  # trial of the first point
        trials = last + len(points.steps)  # base, remnants, spread, noise, record
        self._refuse_too_many(trials, sum(sizes.values()))
        start = flat_state(self._state).expand(trials, -1).clone()
        start[1:first] += torch.cat([remnants, spread])
        units = one_of_each(sizes, trials, first)
        chosen = (torch.arange(trials) - last).clamp(min=NOWHERE)
        canary = self._game.gradient(torch.ones(trials, dtype=torch.float64))

        gradient = Watched(at_points(canary, points, chosen))
        state, sent = self._step(state_of(self._state, start), Tape(units), gradient)
        observed = self._adversary.all_observations(self._k, sent, units)
        after = flat_state(state)
        moved, left = observed - observed[0], after - after[0]
        models = gradient.moved(trials)
        laplace = [draws[m].family == "laplace" for m, size in sizes.items() for _ in range(size)]
        noise, old = slice(1 + len(remnants), last), slice(1, 1 + len(remnants))
        sizes_of = (t[last:].abs().max().item() for t in (moved, left) if t[last:].numel())
        return Probed(
            round=self._k,
            messages=self._adversary.named(self._k, sent, draws, self._graph),
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
        )

    def _anywhere(self) -> Any:
        """A state in which no two agents' models agree by chance."""
        flat = flat_state(self._state)
        generator = torch.Generator().manual_seed(self._k)
        return state_of(
            self._state, flat + torch.rand(flat.shape, generator=generator, dtype=flat.dtype)
        )

    def _refuse_too_many(self, trials: int, n_draws: int) -> None:
        if trials > MOST_DRAWS:
            raise ConfigError(
                f"graph: round {self._k} draws {n_draws} noises; its exact leak is computed "
                f"for {MOST_DRAWS} at most; audit fewer agents or a sparser graph"
            )

    def _step(self, state: Any, noise: Tape, gradient: Gradient) -> tuple[Any, Capture]:
        round = self._game.defense.step(state, self._k, self._graph, gradient, noise)
        return round.state, round.sent


def one_of_each(sizes: Mapping[str, int], trials: int, first: int) -> dict[str, Tensor]:
    """Draws [trials, size, 1] by name: from trial ``first`` on each has one draw of one unit."""
    units = {}
    for name, size in sizes.items():
        units[name] = torch.zeros(trials, size, 1, dtype=torch.float64)
        units[name][first + torch.arange(size), torch.arange(size), 0] = 1.0
        first += size
    return units


def compressed(factor: Tensor) -> Tensor:
    """Rows with the same Gram matrix, of which none is zero."""
    if not factor.any():
        return factor[:0]
    _, S, V = torch.linalg.svd(factor, full_matrices=False)
    keep = RANK * S.max() < S
    return S[keep, None] * V[keep]
