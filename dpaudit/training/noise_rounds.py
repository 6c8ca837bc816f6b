"""Rounds of the real problem, played with noise, without, and with parts of either.

From one state a round is played many times with the same gradients. What the messages with noise
have over those without is the noise that is really sent; whatever a defense keeps cancels. Noise
that a message first carries in the round after is heard there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Gradient, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Capture, Sent, refuse_other_messages
from dpaudit.files.threat import ThreatModel
from dpaudit.rng import Streams

from .loaded_problem import Problem
from .proportion import (
    LOUD,
    Messages,
    Twofold,
    is_in_proportion,
    is_linear,
    near,
    rounding,
    size_like,
)
from .woven import Repeated, Signs, Woven, global_randomness

ENTRIES = 1_500_000  # of the messages of a round that are held at once for one way to play it
ROWS = 48  # of a message that are looked at
PLAYS = 9  # streams times rounds at least: fewer numbers of a coordinate could look alike
MOST = 64  # streams of noise
FINE = (2.0**-12, 2.0**-16, 2.0**-30)  # changes of the noise, relative
PLAYED_WAYS = 26  # of a round that are held at once, with what is made of them
CROWD = 1024  # agents of whom rounds are played whatever the size of their models
MOST_NUMBERS = 10**8  # of the models of more agents than that, under all streams
LATE = " one round later"  # of the name of a message, within this module


@dataclass(frozen=True, eq=False)
class Heard:
    """One message in one round, and what noise and gradients make of it."""

    name: str
    round: int
    rows: tuple[tuple[int, int | None], ...]  # sender, and receiver if it goes to one alone
    readers: tuple[frozenset[str], ...]  # of each row
    noise: Tensor  # [streams, rows, d], what the noise of the round adds to it
    louder: Tensor  # [streams, rows, d], what ``LOUD`` times the noise adds
    # [rows, d], how it moves with gradients by two patterns of signs, which are loud, or where that
    # takes a linear step too far as large as the noise
    data: tuple[Tensor, Tensor]
    linear: bool  # twice the noise adds twice as much, two draws add what each does
    loudly_linear: bool  # so it is for loud noise
    own: bool  # draws that are not asked of ``Noise`` are in it
    noise_stays: bool  # noise of one coordinate stays in it
    data_stays: bool  # so do gradients
    fewer: bool  # a draw has fewer numbers than there are coordinates
    asked: Tensor  # [rows, d], the scale that the defense asks for
    coarse: bool  # noise has coarser steps than the data under it


class RealRounds:
    """Plays rounds of a run under several streams of noise.

    Args:
        rounds: in order; one that does not follow the one before it is played from the state that
            it leaves all the same, in which the noise of a round is no other.
    """

    def __init__(
        self,
        defense: Defense,
        problem: Problem,
        setting: Setting,
        seed: Streams,
        own: Streams,
        readers: tuple[ThreatModel, ...],
        rounds: tuple[int, ...],
    ) -> None:
        self._defense, self._setting = defense, setting
        self.own, self.readers = own, readers
        self.other = Streams(own.numpy("other").integers(2**62).item(), own.device)
        self.streams = streams_of(setting, len(rounds))
        self._rounds = rounds
        X = problem.initial(seed)
        self._start = X.expand(self.streams, *X.shape).clone()
        self._oracle = lambda k: Repeated(
            problem.gradient(seed, k, defense.batch_size, defense.drawing)
        )

    def play(self, on_round: Callable[[int], None]) -> Iterator[Heard]:
        """What is heard of the rounds, each from the state that the one before it leaves."""
        state: Any = self._defense.start(self._start, self._setting)
        following: Repeated | None = None
        for i, k in enumerate(self._rounds):
            follows = i > 0 and self._rounds[i - 1] == k - 1
            oracle = following if following is not None and follows else self._oracle(k)
            after = self.step(state, k, oracle.again(), Woven(self.own, k)).state
            following = None
            if k < self._defense.n_rounds:
                following = self._oracle(k + 1)
                self.step(after, k + 1, following.again(), Woven(self.own, k + 1))
            yield from _Round(self, state, k, oracle, following).heard()
            state = after
            on_round(i + 1)

    def step(self, state: Any, k: int, oracle: Gradient, noise: Noise) -> Any:
        graph = self._setting.network.at(k)
        return self._defense.step(state, k, graph, oracle, noise)


class _Plays(NamedTuple):
    """All messages of one round, by how it is played."""

    silent: Messages
    played: Messages
    noisy: Messages  # the same with other generators of the process
    loud: Messages
    signs: tuple[Messages, ...]  # two patterns in the place of loud draws
    unit: Messages  # the first of them, whatever scale is asked
    moved: tuple[Messages, ...]  # two loud patterns added to gradients, without noise
    moved_back: tuple[Messages, ...]  # and subtracted
    twofold: tuple[Twofold, ...]  # of noise as it is, and of loud noise


class _Round:
    """One round from one state, in all the ways that it is played."""

    def __init__(
        self, run: RealRounds, state: Any, k: int, oracle: Repeated, following: Repeated | None
    ) -> None:
        self._run, self._state, self._k = run, state, k
        self._oracle, self._following = oracle, following
        self._rows: dict[str, Tensor] = {}
        self._sent: dict[str, Sent] = {}
        self._later: Capture | None = None  # what the round after it sends
        self._finer: dict[float, Messages] = {}
        self._fewest: int | None = None

    def heard(self) -> Iterator[Heard]:
        plays = _Plays(
            silent=self._play(0.0),
            played=self._play(1.0),
            noisy=self._play(1.0, seed=1),
            loud=self._play(LOUD),
            signs=tuple(self._play(LOUD, signs="asked", pattern=i) for i in (0, 1)),
            unit=self._play(LOUD, signs="unit"),
            moved=tuple(self._play(0.0, move=LOUD, pattern=i) for i in (0, 1)),
            moved_back=tuple(self._play(0.0, move=-LOUD, pattern=i) for i in (0, 1)),
            twofold=tuple(self._twofold(weight) for weight in (1.0, LOUD)),
        )
        for name in self._of_interest(plays):
            yield self._one(name, plays)

    def _twofold(self, weight: float) -> Twofold:
        return Twofold(
            self._play(2 * weight),
            self._play(0.0, other=weight),
            self._play(weight, other=weight),
        )

    def _one(self, name: str, plays: _Plays) -> Heard:
        base, played = plays.silent[name], plays.played[name]
        tolerance = rounding(played, base)
        noise, alone = plays.noisy[name] - base, played - base
        louder = plays.loud[name] - base
        once = zip((alone, louder), plays.twofold, strict=True)
        linear = [is_linear(x, t, name, base, tolerance) for x, t in once]
        own = not near(noise, alone, tolerance)
        data, in_proportion = self._data(name, plays, alone[0], linear[0], tolerance)
        signs, unit = self._signs(name, plays, alone[0], linear, tolerance)
        return Heard(
            name=name.removesuffix(LATE),
            round=self._k + name.endswith(LATE),
            rows=self._links(name),
            readers=self._readers(name),
            noise=noise,
            louder=louder,
            data=data,
            linear=linear[0] and not own,
            loudly_linear=linear[1] and not own and (linear[0] or self._moves_alike(name, plays)),
            own=own,
            noise_stays=near(signs[0], signs[1], tolerance),
            data_stays=near(data[0].abs(), data[1].abs(), tolerance if in_proportion else 0.0),
            fewer=self._fewest is not None and self._fewest < base.shape[-1],
            asked=torch.where(unit > 0, signs[0] / unit, 0.0),
            coarse=self._is_coarse(name, played, alone, data[0] / LOUD),
        )

    def _data(
        self, name: str, plays: _Plays, noise: Tensor, linear: bool, tolerance: float
    ) -> tuple[tuple[Tensor, Tensor], bool]:
        """How gradients move a message by two patterns [rows, d], and whether loud ones tell.

        Where a step that is linear in its noise is not so far away, as behind a clamp, they are as
        large as the noise, times as much as they are less loud.
        """

        def move(size: float, pattern: int = 0) -> Tensor:
            ways = (self._play(0.0, move=way * size, pattern=pattern)[name] for way in (1, -1))
            there, back = (moved[0] for moved in ways)
            return (there - back) / 2

        both_ways = zip(plays.moved, plays.moved_back, strict=True)
        first, second = ((m[name][0] - back[name][0]) / 2 for m, back in both_ways)
        if not linear or is_in_proportion(move, first, LOUD, tolerance):
            return (first, second), True
        size = size_like(noise, move, first, tolerance)
        if size == LOUD:
            return (first, second), False
        return (move(size) * (LOUD / size), move(size, 1) * (LOUD / size)), False

    def _signs(
        self, name: str, plays: _Plays, noise: Tensor, linear: list[bool], tolerance: float
    ) -> tuple[list[Tensor], Tensor]:
        """What two patterns of signs in the place of draws do to a message [rows, d], and the first
        of them by ``LOUD`` times 1, whatever scale is asked; by as little as the noise where loud
        noise passes by what a step is linear in.
        """
        base = plays.silent[name][0]
        signs = [(s[name][0] - base).abs() for s in plays.signs]
        unit = (plays.unit[name][0] - base).abs()
        if linear[1] or not linear[0]:
            return signs, unit

        def play(size: float) -> Tensor:
            return (self._play(size, signs="unit")[name][0] - base).abs()

        size = size_like(noise, play, unit, tolerance)
        quiet = (self._play(1.0, signs="asked", pattern=i)[name][0] - base for i in (0, 1))
        return [LOUD * s.abs() for s in quiet], play(size) * (LOUD / size)

    def _moves_alike(self, name: str, plays: _Plays) -> bool:
        """Whether gradients move a message under loud noise as they do without: their scale is its.

        Near a threshold, which loud noise passes by, they do not.
        """
        silent, loud = plays.silent[name], plays.loud[name]
        under_noise = self._play(LOUD, move=LOUD)[name] - loud
        return near(under_noise, plays.moved[0][name] - silent, rounding(loud, silent))

    def _is_coarse(self, name: str, played: Tensor, alone: Tensor, data: Tensor) -> bool:
        """Whether small changes of the noise do not show, and as small ones of the data do.

        They are another small draw, and no other scale, which a step that divides by the length of
        a noisy gradient takes out again. Changes of the data are made either way, as one number
        that all are divided by may cross a step of a grid on one, and count only where they are as
        small as they were to be: what loud data do through a step that saturates tells no more.
        """
        ulp = torch.finfo(played.dtype).eps * played.abs()
        for change in FINE:
            valid = change * alone.abs() > 8 * ulp
            if valid.float().mean() < 0.25:
                return False
            stuck = (self._finely(change)[name] == played)[valid].float().mean().item()
            if stuck < 0.5:
                continue
            small = change * alone.square().mean().sqrt()
            size = (small / data.square().mean().sqrt().clamp(min=1e-15)).item()
            shows = (size * data).abs() > 8 * ulp
            moves = [self._play(1.0, move=way * size)[name] - played for way in (1, -1)]
            if shows.any() and all(
                (move != 0)[shows].float().mean() > 0.9 and move.square().mean().sqrt() < 8 * small
                for move in moves
            ):
                return True
        return False

    def _finely(self, change: float) -> Messages:
        if change not in self._finer:
            self._finer[change] = self._play(1.0, other=change)
        return self._finer[change]

    def _of_interest(self, plays: _Plays) -> list[str]:
        """Messages of this round that its noise or gradients move; the others one round later."""
        chosen, every = [], (plays.silent, plays.played, plays.loud, *plays.moved)
        for name, late in ((name, name + LATE) for name in self._sent):
            idle = all(torch.equal(plays.silent[name], m[name]) for m in every)
            chosen += [late] if idle and late in plays.silent else [] if idle else [name]
        finite = [n for n in chosen if all(bool(m[n].isfinite().all()) for m in every)]
        return [n for n in finite if plays.silent[n].numel()]

    def _links(self, name: str) -> tuple[tuple[int, int | None], ...]:
        sent = self._sent[name.removesuffix(LATE)]
        alone = len(sent.rows.unique()) == len(sent.rows)
        edges = [
            int((sent.rows == row).nonzero()[0]) for row in self._rows[name.removesuffix(LATE)]
        ]
        return tuple(
            (int(sent.senders[e]), int(sent.receivers[e]) if alone else None) for e in edges
        )

    def _readers(self, name: str) -> tuple[frozenset[str], ...]:
        sent = self._sent[name.removesuffix(LATE)]
        by_edge = _readers_of(sent, self._run.readers)
        return tuple(
            frozenset().union(*(by_edge[e] for e in (sent.rows == row).nonzero().flatten()))
            for row in self._rows[name.removesuffix(LATE)]
        )

    def _play(
        self,
        weight: float,
        other: float = 0.0,
        signs: Signs | None = None,
        pattern: int = 0,
        move: float = 0.0,
        seed: int = 0,
    ) -> Messages:
        run, k = self._run, self._k
        again = (run.other, other) if other else None
        noise = Woven(run.own, k, weight, again, signs, pattern)
        with global_randomness(seed):
            round = run.step(self._state, k, self._oracle.again(move, pattern), noise)
            messages = self._read(round.sent)
            refuse_other_messages(k, self._sent, round.sent)
            if self._following is not None:
                silence = Woven(run.own, k + 1, 0.0)
                later = run.step(round.state, k + 1, self._following.again(), silence)
                self._later = later.sent if self._later is None else self._later
                refuse_other_messages(k + 1, self._later, later.sent)
                messages |= {n + LATE: payload for n, payload in self._read(later.sent).items()}
        if noise.fewest is not None:
            self._fewest = min(noise.fewest, self._fewest or noise.fewest)
        return messages

    def _read(self, sent: Mapping[str, Sent]) -> Messages:
        if not self._sent:
            self._sent = dict(sent)
            self._rows = {name: _rows(s, self._run) for name, s in sent.items()}
        return {
            name: s.payload[..., self._rows[name], :]
            .expand(self._run.streams, len(self._rows[name]), s.payload.shape[-1])
            .cpu()
            for name, s in sent.items()
            if name in self._sent and s.payload.shape == self._sent[name].payload.shape
        }


def left_out(setting: Setting, n_rounds: int) -> str | None:
    """Why rounds of so many agents and of so large a model are not played; None: they are."""
    numbers = streams_of(setting, n_rounds) * setting.n_agents * setting.d
    if setting.n_agents <= CROWD or numbers <= MOST_NUMBERS:
        return None
    return (
        f"{setting.n_agents} agents' models under {streams_of(setting, n_rounds)} streams of noise "
        f"are {numbers:.2g} numbers, which are held in {PLAYED_WAYS} ways; expected "
        f"{MOST_NUMBERS:.2g} at most of more than {CROWD} agents"
    )


def streams_of(setting: Setting, n_rounds: int) -> int:
    """Under how many streams of noise each of so many rounds is played."""
    links = len(setting.network.at(1).senders) + setting.n_agents
    return max(-(-PLAYS // n_rounds), min(MOST, ENTRIES // (links * setting.d)))


def kept_rows(streams: int, d: int) -> int:
    """How many rows of a message are kept at most."""
    return max(2, min(ROWS, 4 * ENTRIES // (streams * d)))


def _rows(sent: Sent, run: RealRounds) -> Tensor:
    """Rows of the payload that an adversary reads, as many as there is room for."""
    seen = [bool(readers) for readers in _readers_of(sent, run.readers)]
    rows = sent.rows[torch.tensor(seen, dtype=torch.bool)].unique()
    room = kept_rows(run.streams, sent.payload.shape[-1])
    return rows[torch.linspace(0, len(rows) - 1, min(room, len(rows))).long()]


def _readers_of(sent: Sent, readers: tuple[ThreatModel, ...]) -> list[set[str]]:
    """Names of those who read each edge; what an adversary's own agents send hides from others."""
    keys = [None] * len(sent.rows) if sent.readers is None else sent.readers.tolist()
    edges = zip(sent.senders.tolist(), sent.receivers.tolist(), keys, strict=True)

    def reads(who: ThreatModel, j: int, i: int, key: int | None) -> bool:
        return who.sees(j, i) and j not in who.agents and (key is None or key in who.agents)

    return [{who.name for who in readers if reads(who, *edge)} for edge in edges]
