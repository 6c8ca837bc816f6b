"""One training run with many canaries in it, each with a channel of its own.

The model gets one coordinate for each canary, on which no real record has a gradient. The canary's
own gradient is that coordinate, longer than any clip norm, so that its channel carries the canary,
the defense's noise on that coordinate, and nothing else, while the real model trains beside it.
Each canary is in the data or not by a fair coin of its own.

Two sets of canaries. Those of the first are records: in a batch as often as any other record, they
bound epsilon. Those of the second are in every batch: theirs are Gaussian channels (where the noise
is), which bound the noise of the run far more tightly, without what sampling adds.

Sources: Steinke, Nasr and Jagielski 2023, arXiv:2305.08846; Nasr et al. 2023, arXiv:2302.07956.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.accounting.privacy_loss import Array
from dpaudit.game.filtering.adversary import Adversary, KalmanFilter
from dpaudit.game.filtering.leak import NEGLIGIBLE
from dpaudit.game.game import Game
from dpaudit.game.runs.play import LogRatios
from dpaudit.game.step_inputs import RecordedNoise


class CanaryChannels(NamedTuple):
    """What each canary's channel showed of it, in standard deviations of the declared noise."""

    seen: Array  # [n_canaries, T], by use: of mean ``size`` if the canary was in the batch, else 0
    sizes: Array  # [T], of a use


class CanaryEvidence(NamedTuple):
    """How strongly the run speaks for each canary of a set, and whether it was included."""

    log_ratios: Array  # [n_canaries]
    included: Array  # [n_canaries] bool, the secret
    channels: CanaryChannels | None = None  # None: the canaries share the model


@dataclass(frozen=True, eq=False)
class WithCanaries(dp.Gradient):
    """The real oracle, and the canaries of one agent on coordinates of their own."""

    real: dp.Gradient
    d: int  # coordinates of the real model
    victim: int
    length: float
    drawn: Tensor  # [n_canaries]: 1 if in the victim's batch
    batch_size: int
    later: tuple[Tensor, ...] = ()  # the same of further local steps

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        real = self.real(X[..., : self.d], holders)
        return self._beside(real, X, holders, self.length / self.batch_size)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        real = self.real.clipped_sum(X[..., : self.d], clip_norm, holders, norm)
        return self._beside(real, X, holders, min(self.length, clip_norm))

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """Append a record for each canary to the real ones of each batch, 0 at other agents."""
        n = len(self.drawn)
        real = self.real.per_record(
            X[..., :-n, : self.d] if own else X[..., : self.d], holders, own
        )
        rows = torch.arange(real.shape[-3], device=X.device) if holders is None else holders
        held = (rows == self.victim).to(X)[:, None, None]
        own_coordinates = self.length * held * torch.diag(self.drawn.to(X))
        canaries = nn.functional.pad(own_coordinates, (self.d, 0))
        wide = nn.functional.pad(real, (0, n))
        return torch.cat([wide, canaries.expand(*wide.shape[:-2], n, -1)], dim=-2)

    def at_step(self, s: int) -> "WithCanaries":
        drawn = self.drawn if s == 0 else self.later[s - 1]
        return replace(self, real=self.real.at_step(s), drawn=drawn)

    def _beside(self, real: Tensor, X: Tensor, holders: Tensor | None, length: float) -> Tensor:
        rows = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        held = (rows == self.victim).to(X)[:, None]
        canaries = length * held * self.drawn.to(X)
        return torch.cat([real, canaries.expand(*X.shape[:-1], -1)], dim=-1)


def train_with_canaries(
    context: da.AttackContext,
    sampled: Adversary,
    always: Adversary,
    n_canaries: int,
    on_round: da.OnStep,
) -> tuple[CanaryEvidence, CanaryEvidence]:
    """One run of the real problem: evidence on canaries drawn like records, and in every batch.

    The adversaries of the two sets, ``sampled`` and ``always``, read the first rounds of the run.
    """
    defense, setting, streams = context.defense, context.setting, context.streams
    problem, game, n = context.problem, sampled.game, 2 * n_canaries
    assert isinstance(problem, da.Classification)  # the others were refused
    included = torch.from_numpy(streams.numpy("coins").random(n) < 0.5)
    sets = (sampled, slice(0, n_canaries)), (always, slice(n_canaries, n))
    readers = [_CanaryReader(own, which, setting.d, streams.device) for own, which in sets]
    layers = (*setting.layers, ("canaries", n)) if setting.layers else ()
    X = nn.functional.pad(problem.initial(streams), (0, n))
    done, state = 0, defense.start(X, replace(setting, d=setting.d + n, layers=layers))
    if (last := context.checkpoint.last()) is not None:
        done, values, *seen = last.parts
        state = type(state)(*values)
        for reader, parts in zip(readers, seen, strict=True):
            reader.resume(*parts)
    for k in range(done + 1, sampled.n_rounds + 1):
        real = problem.gradient(streams, k, defense.batch_size, defense.drawing)
        first, *later = (
            game.effect * (included & _sampled(game, k, n_canaries, streams, s)).to(X)
            for s in range(defense.batches_per_round)
        )
        own = game.victim, game.length, first, defense.batch_size, tuple(later)
        oracle, noise = WithCanaries(real, setting.d, *own), RecordedNoise(streams, k)
        state, sent, *_ = defense.step(state, k, setting.network.at(k), oracle, noise)
        for reader in readers:
            reader.read(k, sent, noise.units)
        seen = [reader.progress() for reader in readers]
        context.checkpoint.keep(partial(da.Progress.of, k, state, *seen))
        on_round(k, sampled.n_rounds)
    by_sampled, by_always = (
        CanaryEvidence(reader.log_ratios(), included[reader.canaries].numpy(), reader.channels())
        for reader in readers
    )
    return by_sampled, by_always


def _sampled(game: Game, k: int, n_canaries: int, streams: da.Streams, step: int) -> Tensor:
    """Which canaries could be in a batch of round k: some of the first set, all of the second."""
    name = ("canaries", k, step) if step else ("canaries", k)
    chance = torch.rand(n_canaries, generator=da.Streams(streams.seed)(*name))
    always = torch.ones(n_canaries, dtype=torch.bool)
    return torch.cat([chance < game.sampling_rate, always])


class _CanaryReader:
    """An adversary that follows every canary's own coordinate, as if each were a run."""

    def __init__(self, adversary: Adversary, canaries: slice, d: int, device: torch.device) -> None:
        self.canaries, self._coordinates = canaries, slice(d + canaries.start, d + canaries.stop)
        self._n = canaries.stop - canaries.start
        start = adversary.game.start(self._n, torch.float64, device)
        self._kalman = KalmanFilter(adversary, start)
        self._tally = LogRatios(adversary.game, self._n)
        self._seen: list[Tensor] = []  # [n_canaries] of each use
        self._sizes: list[float] = []

    def read(self, k: int, sent: dp.Messages, units: dict[str, Tensor]) -> None:
        own = {name: self._by_canary(drawn) for name, drawn in units.items()}
        heard = {n: replace(m, payload=self._by_canary(m.payload)) for n, m in sent.items()}
        innovation = self._kalman.update(k, heard, own)
        self._tally.add(innovation)
        for shift in innovation.reading.shifts.values():
            size = float(shift.norm())
            if size > NEGLIGIBLE:
                seen = innovation.whitened @ shift.to(innovation.whitened) / size
                self._seen.append(seen.cpu())
                self._sizes.append(size)

    def progress(self) -> list[Any]:
        """What ``resume`` takes, to go on after the rounds that were read."""
        return [self._kalman.progress(), self._tally.progress(), self._seen, self._sizes]

    def resume(
        self,
        kalman: list[Any],
        tally: list[Any],
        seen: list[Tensor],
        sizes: list[float],
    ) -> None:
        self._kalman.resume(*kalman)
        self._tally.resume(*tally)
        self._seen, self._sizes = [each.cpu() for each in seen], sizes

    def channels(self) -> CanaryChannels:
        seen = torch.stack(self._seen) if self._seen else torch.zeros(0, self._n).double()
        return CanaryChannels(seen.numpy().T, np.array(self._sizes))

    def log_ratios(self) -> Array:
        return self._tally.scores(None).numpy()

    def _by_canary(self, values: Tensor) -> Tensor:
        """Values [rows, d] on the canaries' coordinates, [n_canaries, rows, 1]; scalars as are."""
        if values.shape[-1] == 1:
            return values.double().expand(self._n, *values.shape)
        return values[..., self._coordinates].double().mT[..., None]


def channel_sizes(adversary: Adversary) -> Array:
    """Sizes of each use of a canary, in order, as the protocol declares them, [T]."""
    shifts = [shift for reading in adversary.rounds for shift in reading.shifts.values()]
    sizes = np.array([float(shift.norm()) for shift in shifts])
    return sizes[sizes > NEGLIGIBLE]
