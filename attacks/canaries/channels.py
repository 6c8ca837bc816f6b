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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpaudit.accounting.privacy_loss import Array
from dpaudit.checkpoint import NO_CHECKPOINT, Checkpoint, Progress, joined, under
from dpaudit.defense.contract import Defense, Gradient, Setting
from dpaudit.defense.transcript import Messages
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.follower import Follower
from dpaudit.game.filtering.leak import NEGLIGIBLE
from dpaudit.game.game import Game
from dpaudit.game.probing.tape import Overheard
from dpaudit.game.runs.play import Tally
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification


class Channels(NamedTuple):
    """What each canary's channel showed of it, in standard deviations of the declared noise."""

    seen: Array  # [n_canaries, T], by use: of mean ``size`` if the canary was in the batch, else 0
    sizes: Array  # [T], of a use


class Evidence(NamedTuple):
    """Of each canary of a set: how strongly the run speaks for it, and whether it was there."""

    log_ratios: Array  # [n_canaries]
    included: Array  # [n_canaries] bool, the secret
    channels: Channels | None = None  # None: the canaries share the model


@dataclass(frozen=True, eq=False)
class WithCanaries(Gradient):
    """The real oracle, and the canaries of one agent on coordinates of their own."""

    real: Gradient
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
        """With a record for each canary behind the real ones of each batch, 0 at other agents."""
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
    defense: Defense,
    problem: Classification,
    setting: Setting,
    sampled: Adversary,
    always: Adversary,
    n_canaries: int,
    streams: Streams,
    on_round: OnStep,
    checkpoint: Checkpoint = NO_CHECKPOINT,
) -> tuple[Evidence, Evidence]:
    """One run of the real problem: evidence on canaries drawn like records, and in every batch.

    The adversaries of the two sets, ``sampled`` and ``always``, read the first rounds of the run.
    """
    included = torch.from_numpy(streams.numpy("coins").random(2 * n_canaries) < 0.5)
    sets = (sampled, slice(0, n_canaries)), (always, slice(n_canaries, 2 * n_canaries))
    readers = [_Reader(who, which, setting.d, streams.device) for who, which in sets]
    X = problem.initial(streams)
    beside = torch.cat([X, X.new_zeros(len(X), 2 * n_canaries)], dim=1)
    state = defense.start(beside, _beside(setting, 2 * n_canaries))
    done, state = _resumed(checkpoint.last(), state, readers)
    for k in range(done + 1, sampled.n_rounds + 1):
        real = problem.gradient(streams, k, defense.batch_size, defense.drawing)
        first, *later = (
            sampled.game.effect
            * (included & _sampled(sampled.game, k, n_canaries, streams, s)).to(X)
            for s in range(defense.batches_per_round)
        )
        game, B = sampled.game, defense.batch_size
        oracle = WithCanaries(real, setting.d, game.victim, game.length, first, B, tuple(later))
        noise = Overheard(streams, k)
        state, sent, *_ = defense.step(state, k, setting.network.at(k), oracle, noise)
        for reader in readers:
            reader.read(k, sent, noise.units)
        checkpoint.keep(partial(_progress, k, state, readers))
        on_round(k, sampled.n_rounds)
    return tuple(  # type: ignore[return-value]
        Evidence(reader.log_ratios(), included[reader.canaries].numpy(), reader.channels())
        for reader in readers
    )


def _beside(setting: Setting, n: int) -> Setting:
    """With a coordinate more for each canary."""
    layers = (*setting.layers, ("canaries", n)) if setting.layers else ()
    return replace(setting, d=setting.d + n, layers=layers)


def _progress(k: int, state: Any, readers: list["_Reader"]) -> Progress:
    heard = {str(i): reader.tensors() for i, reader in enumerate(readers)}
    return Progress(joined({"state": state._asdict(), **heard}), k)


def _resumed(last: Progress | None, state: Any, readers: list["_Reader"]) -> tuple[int, Any]:
    """Rounds that were played, and what they left; readers are told what they heard in them."""
    if last is None:
        return 0, state
    for i, reader in enumerate(readers):
        reader.resume(under(last.tensors, str(i)))
    return last.note, type(state)(**under(last.tensors, "state"))


def _sampled(game: Game, k: int, n_canaries: int, streams: Streams, step: int) -> Tensor:
    """Which canaries could be in a batch of round k: some of the first set, all of the second."""
    name = ("canaries", k, step) if step else ("canaries", k)
    chance = torch.rand(n_canaries, generator=Streams(streams.seed)(*name))
    always = torch.ones(n_canaries, dtype=torch.bool)
    return torch.cat([chance < game.sampling_rate, always])


class _Reader:
    """An adversary that follows every canary's own coordinate, as if each were a run."""

    def __init__(self, adversary: Adversary, canaries: slice, d: int, device: torch.device) -> None:
        self.canaries, self._coordinates = canaries, slice(d + canaries.start, d + canaries.stop)
        self._n = canaries.stop - canaries.start
        start = adversary.game.start(self._n, torch.float64, device)
        self._follower = Follower(adversary, start)
        self._tally = Tally(adversary.game, self._n)
        self._seen: list[Tensor] = []  # [n_canaries] of each use
        self._sizes: list[float] = []

    def read(self, k: int, sent: Messages, units: dict[str, Tensor]) -> None:
        own = {name: self._by_canary(drawn) for name, drawn in units.items()}
        seen = {
            name: replace(message, payload=self._by_canary(message.payload))
            for name, message in sent.items()
        }
        innovation = self._follower.hear(k, seen, own)
        self._tally.add(innovation)
        for shift in innovation.reading.shifts.values():
            size = float(shift.norm())
            if size > NEGLIGIBLE:
                self._seen.append(
                    (innovation.whitened @ shift.to(innovation.whitened) / size).cpu()
                )
                self._sizes.append(size)

    def tensors(self) -> dict[str, Tensor]:
        """All that it heard so far; ``resume`` takes it back."""
        channels = {"seen": self._stacked(), "sizes": torch.tensor(self._sizes).double()}
        read = {"follower": self._follower.tensors(), "tally": self._tally.tensors()}
        return joined({**read, "channels": channels})

    def resume(self, tensors: Mapping[str, Tensor]) -> None:
        self._follower.resume(under(tensors, "follower"))
        self._tally.resume(under(tensors, "tally"))
        channels = under(tensors, "channels")
        self._seen, self._sizes = list(channels["seen"].cpu()), channels["sizes"].tolist()

    def channels(self) -> Channels:
        return Channels(self._stacked().numpy().T, np.array(self._sizes))

    def _stacked(self) -> Tensor:
        """[T, n_canaries]"""
        return torch.stack(self._seen) if self._seen else torch.zeros(0, self._n).double()

    def log_ratios(self) -> Array:
        return self._tally.scores(None).numpy()

    def _by_canary(self, values: Tensor) -> Tensor:
        """Values [rows, d] on the canaries' coordinates, [n_canaries, rows, 1]; scalars as are."""
        if values.shape[-1] == 1:
            return values.double().expand(self._n, *values.shape)
        return values[..., self._coordinates].double().mT[..., None]


def channel_sizes(adversary: Adversary) -> Array:
    """Of each use of a canary, in order, as the protocol declares them, [T]."""
    shifts = [shift for reading in adversary.rounds for shift in reading.shifts.values()]
    sizes = np.array([float(shift.norm()) for shift in shifts])
    return sizes[sizes > NEGLIGIBLE]


def game_in_every_batch(game: Game) -> Game:
    """The same game with the record in every batch."""
    return replace(game, sampling_rate=1.0)
