"""The first rounds of the real problem, played with noise, without, and with parts of either.

From one state a round is played many times with the same gradients. What the messages with noise
have over those without is the noise that is really sent; whatever a defense keeps cancels. Noise
that a message first carries in the round after is heard there.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Gradient, Setting
from dpaudit.defense.noise import Noise, Scale
from dpaudit.defense.transcript import Sent
from dpaudit.files.threat import ThreatModel
from dpaudit.rng import Streams

from .loaded_problem import Problem

ENTRIES = 1_500_000  # of the messages of a round that are held at once for one way to play it
ROWS = 48  # of a message that are looked at
FEWEST, MOST = 8, 64  # streams of noise

Asked = Literal["drawn", "asked", "unit"]
Messages = dict[str, Tensor]  # name -> [streams, rows, d]


class Woven(Noise):
    """Real noise times a weight, another draw of it added; or signs that all rows share.

    Args:
        weight: of the draws; 0 leaves zeros.
        other: streams of a second draw.
        signs: instead of draws, patterns of signs over coordinates times one number for each row,
            "asked": times the scale that is asked, "unit": as they are.
    """

    def __init__(
        self,
        streams: Streams,
        round: int,
        weight: float = 1.0,
        other: Streams | None = None,
        signs: Asked = "drawn",
        pattern: int = 0,
    ) -> None:
        super().__init__(streams, round)
        self.fewest: int | None = None  # numbers of a row of any draw
        self._weight, self._other, self._signs = weight, other, signs
        self._pattern = pattern

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        return self._woven("gaussian", message, std, like)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        return self._woven("laplace", message, scale, like)

    def _woven(self, family: str, message: str, scale: Scale, like: Tensor) -> Tensor:
        width = like.shape[-1]
        self.fewest = min(width, self.fewest or width)
        if self._signs != "drawn":
            size = scale if self._signs == "asked" else 1.0
            return (pattern_of(like, self._pattern) * size).to(like.dtype).expand_as(like)
        if self._weight == 0:
            return torch.zeros_like(like)
        draw = super().gaussian if family == "gaussian" else super().laplace
        drawn = draw(message, scale, like) * self._weight
        if self._other is None:
            return drawn
        other = Noise(self._other, self._round)
        again = other.gaussian if family == "gaussian" else other.laplace
        return drawn + again(message, scale, like)


def pattern_of(like: Tensor, pattern: int, salt: int = 0) -> Tensor:
    """Random signs over coordinates, times a number for each row, [rows, d]."""
    rows, d = like.shape[-2:]
    signs = torch.randint(0, 2, (d,), generator=torch.Generator().manual_seed(pattern + 1))
    sizes = torch.rand(rows, 1, generator=torch.Generator().manual_seed(1000 + salt)) + 0.5
    return ((2.0 * signs - 1) * sizes).to(like)


class Repeated(Gradient):
    """The gradients of the first stream for all of them, computed once, and moved if asked.

    Args:
        oracle: of the round.
    """

    def __init__(self, oracle: Gradient) -> None:
        self._oracle, self.batch_size = oracle, oracle.batch_size
        self._values: list[Tensor] = []
        self._next, self._move = 0, 0.0
        self._pattern, self._keep = 0, 1.0

    def again(self, move: float = 0.0, pattern: int = 0, keep: float = 1.0) -> "Repeated":
        """From the first call on; ``keep`` times the values, moved by a pattern of this size."""
        self._next, self._move, self._pattern, self._keep = 0, move, pattern, keep
        return self

    @property
    def size(self) -> float:
        """Root mean square of the largest of its values; 1 if all are 0."""
        return max((v.square().mean().sqrt().item() for v in self._values), default=0.0) or 1.0

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self._given(X, lambda first: self._oracle(first, holders))

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self._given(
            X, lambda first: self._oracle.clipped_sum(first, clip_norm, holders, norm)
        )

    def _given(self, X: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        i, self._next = self._next, self._next + 1
        if i == len(self._values):
            self._values.append(compute(X.reshape(-1, *X.shape[-2:])[0].contiguous()))
        value = self._keep * self._values[i]
        if self._move:
            value = value + self._move * pattern_of(value, self._pattern, 1 + i)
        return value.expand_as(X)


@dataclass(frozen=True, eq=False)
class Heard:
    """One message in one round, and what noise and gradients make of it."""

    name: str
    round: int
    rows: tuple[tuple[int, int | None], ...]  # sender, and receiver if it goes to one alone
    sent: Tensor  # [streams, rows, d], as in a run
    noise: Tensor  # [streams, rows, d], what the noise of the round has added to it
    louder: Tensor  # [streams, rows, d], what noise of many times its size adds
    data: tuple[Tensor, Tensor]  # [rows, d], how it moves with gradients moved by two patterns
    linear: bool  # twice the noise adds twice as much, two draws add what each does
    own: bool  # draws that are not asked of ``Noise`` are in it
    noise_stays: bool  # noise of one coordinate stays in it
    data_stays: bool  # so do gradients
    fewer: bool  # a draw has fewer numbers than there are coordinates
    scale: Tensor | None  # [rows, d]: by which the noise of coordinates may differ
    coarse: bool  # noise has coarser steps than the data under it


class RealRounds:
    """Plays the first rounds of a run under several streams of noise."""

    def __init__(
        self,
        defense: Defense,
        problem: Problem,
        setting: Setting,
        seed: Streams,
        own: Streams,
        readers: tuple[ThreatModel, ...],
    ) -> None:
        self._defense, self._setting, self._own = defense, setting, own
        self._readers = readers
        self._other = Streams(own.numpy("other").integers(2**62).item(), own.device)
        links = len(setting.network.at(1).senders) + setting.n_agents
        self.streams = max(FEWEST, min(MOST, ENTRIES // (links * setting.d)))
        X = problem.initial(seed)
        self._start = X.expand(self.streams, *X.shape).clone()
        self._oracle = lambda k: Repeated(
            problem.gradient(seed, k, defense.batch_size, defense.sampling)
        )

    def play(self, n_rounds: int, on_round: Callable[[int], None]) -> Iterator[Heard]:
        """What is heard of rounds 1 to ``n_rounds``, the run going on with its noise."""
        state: Any = self._defense.start(self._start, self._setting)
        oracle = self._oracle(1)
        for k in range(1, n_rounds + 1):
            after = self._step(state, k, oracle.again(), Woven(self._own, k)).state
            following = None
            if k < self._defense.n_rounds:
                following = self._oracle(k + 1)
                self._step(after, k + 1, following.again(), Woven(self._own, k + 1))
            yield from _Round(self, state, k, oracle, following).heard()
            state, oracle = after, following or oracle
            on_round(k)

    def _step(self, state: Any, k: int, oracle: Gradient, noise: Noise) -> Any:
        graph = self._setting.network.at(k)
        return self._defense.step(state, k, graph, oracle, noise)


LOUD = 1e4  # times the noise: what that does not move, none does
CLOSE = 1e-3  # of what is compared: a difference that no test here would tell
FINE = (2.0**-12, 2.0**-16, 2.0**-30)  # changes of the noise, relative


class _Round:
    """One round from one state, in all the ways that it is played."""

    def __init__(
        self, run: RealRounds, state: Any, k: int, oracle: Repeated, following: Repeated | None
    ) -> None:
        self._run, self._state, self._k = run, state, k
        self._oracle, self._following = oracle, following
        self._rows: dict[str, Tensor] = {}
        self._sent: dict[str, Sent] = {}
        self._finer: dict[float, Messages] = {}
        self.fewest: int | None = None

    def heard(self) -> Iterator[Heard]:
        silent, played = self._play(0.0), self._play(1.0)
        noisy = self._play(1.0, seed=1)
        doubled, both = self._play(2.0), self._play(1.0, other=True)
        second = self._play(0.0, other=True)
        loud = self._play(LOUD)
        moves = [self._play(0.0, move=self._oracle.size, pattern=i) for i in (0, 1)]
        signs = [self._play(1.0, signs="asked", pattern=i) for i in (0, 1)]
        unit = self._play(1.0, signs="unit")
        for name in self._of_interest(silent, played, moves[0]):
            base = silent[name]
            tolerance = _rounding(played[name], base)
            noise, alone = noisy[name] - base, played[name] - base
            size = CLOSE * alone.square().mean().sqrt() + tolerance
            twice, sum_ = doubled[name] - base, both[name] - base
            linear = bool(
                ((twice - 2 * alone).abs() <= 2 * size).all()
                and ((sum_ - alone - (second[name] - base)).abs() <= 2 * size).all()
            )
            own = bool(((noise - alone).abs() > size).any())
            data = tuple((m[name] - base)[0] for m in moves)
            by_signs = [(s[name] - base)[0] for s in signs]
            noise_stays = _same_size(by_signs[0], by_signs[1], tolerance)
            data_stays = _same_size(data[0], data[1], tolerance)
            scale = None
            if noise_stays:
                asked, plain = by_signs[0].abs(), (unit[name] - base)[0].abs()
                scale = torch.where(plain > 0, asked / plain, 0.0)
                scale = self._with_data(name, scale, data[0], data_stays, tolerance)
            yield Heard(
                name.removesuffix(LATE),
                self._k + name.endswith(LATE),
                self._links(name),
                noisy[name],
                noise,
                loud[name] - base,
                (data[0], data[1]),
                linear and not own,
                own,
                noise_stays,
                data_stays,
                self.fewest is not None and self.fewest < base.shape[-1],
                scale,
                self._is_coarse(name, played[name], alone, data[0]),
            )

    def _with_data(
        self, name: str, scale: Tensor, data: Tensor, data_stays: bool, tolerance: float
    ) -> Tensor | None:
        """The scale that is asked times that by which gradients enter; None if neither is known."""
        if not data_stays:
            moved = [
                self._play(0.0, move=move, pattern=pattern, keep=0.0)[name][0]
                for move, pattern in ((0.0, 0), (self._oracle.size, 0), (self._oracle.size, 1))
            ]
            data = moved[1] - moved[0]
            if not _same_size(data, moved[2] - moved[0], tolerance):
                return None
        return scale * data.abs()

    def _is_coarse(self, name: str, played: Tensor, alone: Tensor, data: Tensor) -> bool:
        """Whether small changes of the noise do not show, and as small ones of the data do."""
        ulp = torch.finfo(played.dtype).eps * played.abs()
        for change in FINE:
            valid = change * alone.abs() > 8 * ulp
            if valid.float().mean() < 0.25:
                return False
            stuck = (self._fine(change)[name] == played)[valid].float().mean().item()
            if stuck < 0.5:
                continue
            size = alone.square().mean().sqrt() / data.square().mean().sqrt().clamp(min=1e-30)
            move = change * size.item() * self._oracle.size
            moved = self._play(1.0, move=move, pattern=0)[name]
            shows = (change * size * data).abs() > 8 * ulp
            if shows.any() and (moved != played)[shows].float().mean() > 0.9:
                return True
        return False

    def _fine(self, change: float) -> Messages:
        if change not in self._finer:
            self._finer[change] = self._play(1.0 + change)
        return self._finer[change]

    def _of_interest(self, silent: Messages, played: Messages, moved: Messages) -> list[str]:
        """Messages of this round that its noise or gradients move; the others one round later."""
        chosen = []
        for name in self._sent:
            now, late = name, name + LATE
            idle = all(torch.equal(silent[now], m[now]) for m in (played, moved))
            names = [late] if idle and late in silent else [] if idle else [now]
            chosen += [
                n for n in names if all(bool(m[n].isfinite().all()) for m in (silent, played))
            ]
        return [n for n in chosen if silent[n].numel()]

    def _links(self, name: str) -> tuple[tuple[int, int | None], ...]:
        sent = self._sent[name.removesuffix(LATE)]
        links = []
        for row in self._rows[name.removesuffix(LATE)].tolist():
            edges = (sent.rows == row).nonzero().flatten()
            alone = len(edges) == 1 and len(sent.rows.unique()) == len(sent.rows)
            links.append(
                (int(sent.senders[edges[0]]), int(sent.receivers[edges[0]]) if alone else None)
            )
        return tuple(links)

    def _play(
        self,
        weight: float,
        other: bool = False,
        signs: Asked = "drawn",
        pattern: int = 0,
        move: float = 0.0,
        keep: float = 1.0,
        seed: int = 0,
    ) -> Messages:
        run, k = self._run, self._k
        noise = Woven(run._own, k, weight, run._other if other else None, signs, pattern)
        if weight == 0 and other:
            noise = Woven(run._other, k)
        with _global_randomness(seed):
            oracle = self._oracle.again(move, pattern, keep)
            round = run._step(self._state, k, oracle, noise)
            messages = self._read(round.sent)
            if self._following is not None:
                silence = Woven(run._own, k + 1, 0.0)
                later = run._step(round.state, k + 1, self._following.again(), silence)
                for name in self._sent.keys() & later.sent.keys():
                    payload = later.sent[name].payload
                    if len(self._rows[name]) and payload.shape == round.sent[name].payload.shape:
                        messages[name + LATE] = payload[..., self._rows[name], :]
        if noise.fewest is not None:
            self.fewest = min(noise.fewest, self.fewest or noise.fewest)
        return messages

    def _read(self, sent: Mapping[str, Sent]) -> Messages:
        if not self._sent:
            self._sent = dict(sent)
            self._rows = {name: _read_rows(s, self._run._readers) for name, s in sent.items()}
        streams = self._run.streams
        return {
            name: s.payload[..., self._rows[name], :].expand(
                streams, len(self._rows[name]), s.payload.shape[-1]
            )
            for name, s in sent.items()
            if name in self._rows
        }


LATE = " one round later"  # of the name of a message, within this module


def _read_rows(sent: Sent, readers: tuple[ThreatModel, ...]) -> Tensor:
    """Rows of the payload that one of these adversaries reads, ``ROWS`` of them at most."""
    keys = [None] * len(sent.rows) if sent.readers is None else sent.readers.tolist()
    edges = zip(sent.senders.tolist(), sent.receivers.tolist(), keys, strict=True)
    seen = [
        any(who.sees(j, i) and (key is None or key in who.agents) for who in readers)
        for j, i, key in edges
    ]
    rows = sent.rows[torch.tensor(seen, dtype=torch.bool)].unique()
    return rows[torch.linspace(0, len(rows) - 1, min(ROWS, len(rows))).long()]


def _rounding(*messages: Tensor) -> float:
    largest = max(m.abs().max().item() for m in messages)
    return 64 * torch.finfo(messages[0].dtype).eps * largest


def _same_size(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two patterns of signs leave the same sizes, as they do if no coordinates mix."""
    size = CLOSE * one.square().mean().sqrt().item() + tolerance
    return bool(((one.abs() - other.abs()).abs() <= size).all())


@contextmanager
def _global_randomness(seed: int) -> Iterator[None]:
    """Generators of the process as after this seed, and afterwards as they were."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])
