"""Post-processing of a protected value, told from a choice that depends on the data.

Clipping, rounding or masking a value under noise may move a message further than the value itself
moves, and tells no more than the value does. So where a message moves too far, the other world is
played again with its noise moved until the noisy value is the one of the first world. A message
that is then the same is a function of noisy values, and what protects it is what the noise had to
be moved by: no more than the record moves a sum in the releases that the defense declares.

Where noise is added is seen while a round is played: a draw is handed out as a tensor that notes
what it is added to. Only the move comes from that. The judgement is on a real step under real
noise, so a draw that is used twice, or a value that is sent without noise too, is not hidden.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import CHANGED_RECORDS, Gradient
from dpaudit.defense.noise import Scale
from dpaudit.defense.transcript import Messages
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel
from dpaudit.rng import Streams

from .worlds import Coupled, Draw, Played, Witness, lengths

SAME = 1e-10  # of a message's norm: two replays of one value differ by less, in float64
ALLOWED = 1 + 1e-9  # times the declared move, from rounding
DIRECTIONS = 16  # of noise, in which a step is tried
EVERY_LINK = ThreatModel(name="every link")

Key = tuple[int, str]  # a round, and a stream of noise in it
Moves = Mapping[Key, Tensor]  # what is added to its draws


class Marked(Tensor):
    """A draw of noise, perhaps scaled, that notes the value which it is added to."""

    note: Callable[[Tensor], None]  # of that value, in units of the draw
    factor: Any  # that the draw was multiplied by

    @classmethod
    def of(cls, drawn: Tensor, note: Callable[[Tensor], None], factor: Any = 1.0) -> "Marked":
        marked = drawn.as_subclass(cls)
        marked.note, marked.factor = note, factor
        return marked

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Sums are noted, multiples stay marked, and everything else is a plain tensor."""
        marked = next((a for a in args if isinstance(a, cls)), None)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if marked is None or kwargs or len(args) > 2 or not isinstance(result, Tensor):
                return _plain(result)
            name, first = func.__name__.strip("_"), args[0] is marked
            other = _plain(args[-1] if first else args[0])
            if name == "neg":
                return cls.of(_plain(result), marked.note, -marked.factor)
            if name in ("mul", "rmul") or (name in ("div", "truediv") and first):
                factor = marked.factor * other if "mul" in name else marked.factor / other
                return cls.of(_plain(result), marked.note, factor)
            added = _added(name, first, other, _plain(result), _plain(marked))
            if added is not None:
                value, sign = added
                marked.note(value / (sign * marked.factor))
        return _plain(result)


def _added(
    name: str, first: bool, other: Any, result: Tensor, noise: Tensor
) -> tuple[Tensor, float] | None:
    """The value in a sum of value and noise, and the sign of the noise; None: it is no sum."""
    if name in ("add", "radd", "iadd"):  # in place the value is overwritten, or the noise is
        return (torch.as_tensor(other) if first else result - noise), 1.0
    if name in ("sub", "isub") and first:
        return -torch.as_tensor(other), 1.0
    if name in ("sub", "isub", "rsub"):
        return (torch.as_tensor(other) if name == "rsub" else result + noise), -1.0
    return None


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, Marked) else value


class Watching(Witness):
    """The noise of a round, which notes what each of its draws is added to first."""

    def __init__(self, streams: Streams, round: int, moves: Mapping[str, Tensor]) -> None:
        super().__init__(streams, round, moves=moves)
        self.values: dict[str, Tensor] = {}  # by stream, in units of its draw

    def _noted(
        self, draw: Callable[[str, Scale, Tensor], Tensor], asked: Draw, like: Tensor
    ) -> Tensor:
        drawn = super()._noted(draw, asked, like)

        def note(value: Tensor) -> None:
            if value.shape == drawn.shape:
                self.values.setdefault(asked.stream, value.detach().clone())

        return Marked.of(drawn.clone(), note)


class Watched(NamedTuple):
    """A world as it was played, and the values that its noise was added to."""

    played: Played
    values: dict[Key, Tensor]
    draws: dict[Key, Draw]


@dataclass(frozen=True)
class World:
    """A round from a state of its own, and perhaps the round after it, whose messages count."""

    coupled: Coupled
    state: Any
    k: int
    oracle: Gradient
    lag: bool = False

    @cached_property
    def noisy(self) -> Played:
        return self._played(silent=False)

    @cached_property
    def quiet(self) -> Played:
        """Before noise."""
        return self._played(silent=True)

    def play(self, silent: bool) -> Played:
        return self.quiet if silent else self.noisy

    def _played(self, silent: bool) -> Played:
        played = self.coupled.play(self.state, self.k, self.oracle, silent)
        if self.lag:
            after = self.coupled.oracle(self.k + 1)
            played = self.coupled.play(played.round.state, self.k + 1, after, silent)
        return played

    def watched(self, moves: Moves) -> Watched:
        """With its noise moved, and watched."""
        coupled, state, oracle = self.coupled, self.state, self.oracle
        values: dict[Key, Tensor] = {}
        draws: dict[Key, Draw] = {}
        for k in range(self.k, self.k + 1 + self.lag):
            own = {stream: move for (round, stream), move in moves.items() if round == k}
            noise = Watching(coupled.streams, k, own)
            oracle = oracle if k == self.k else coupled.oracle(k)
            played = coupled.defense.step(state, k, coupled.setting.network.at(k), oracle, noise)
            state = played.state
            values |= {(k, stream): value for stream, value in noise.values.items()}
            draws |= {(k, draw.stream): draw for draw in noise.draws}
        return Watched(Played(played, noise.draws), values, draws)


class Replay(NamedTuple):
    """The first world, and the other with its noise moved so that noisy values are the same."""

    here: Played
    there: Played
    same: frozenset[str]  # messages of the victim that are then the same
    moved: float  # the largest move of one draw's noise, as a part of what is declared


def replay(here: World, there: World, adjacency: Adjacency) -> Replay:
    """The other world with its noise moved; later noise is moved after what earlier noise did."""
    first = here.watched({})
    moves: dict[Key, Tensor] = {}
    for _ in range(1 + len(first.values)):
        second = there.watched(moves)
        now = {k: v - second.values[k] for k, v in first.values.items() if k in second.values}
        if all(torch.equal(move, moves.get(key, move * 0)) for key, move in now.items()):
            break
        moves = now
    second = there.watched(moves)
    coupled, sent = here.coupled, first.played.sent
    apart = coupled.differences(sent, second.played.sent) if _alike(sent, second) else {}
    same = frozenset(
        name
        for name, difference in apart.items()
        if bool(lengths(difference, 2) <= SAME * lengths(coupled.own(sent[name]), 2))
    )
    return Replay(first.played, second.played, same, _moved(coupled, moves, second, adjacency))


def _alike(sent: Messages, other: Watched) -> bool:
    there = other.played.sent
    return all(n in there and there[n].payload.shape == s.payload.shape for n, s in sent.items())


def _moved(coupled: Coupled, moves: Moves, watched: Watched, adjacency: Adjacency) -> float:
    """The largest move, in units of the noise, over what a record may move a declared release."""
    declared = coupled.defense.mechanism(coupled.setting, EVERY_LINK, coupled.victim).most
    records = CHANGED_RECORDS.get(adjacency, 1)
    largest = 0.0
    for key, move in moves.items():
        draw = watched.draws[key]
        noises = (r.noise_over(records) for r in declared if r.family == draw.family)
        least = min(noises, default=inf)
        units = (move / draw.scale).nan_to_num(0.0, inf, inf)  # 0/0: no noise on what did not move
        size = torch.linalg.vector_norm(units, 1 if draw.family == "laplace" else 2).item()
        largest = max(largest, size * least if size else 0.0)
    return largest


def is_linear(world: World, message: str) -> bool:
    """Whether a message of the victim is affine in the noise of the round.

    In every one of several random directions, as a choice by noisy values may come out alike along
    some of them.
    """
    zero = world.watched({})
    generator = torch.Generator().manual_seed(0)
    for _ in range(DIRECTIONS):
        step = {
            key: torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
            * zero.draws[key].scale
            for key, value in zero.values.items()
        }
        twice = {key: 2.0 * move for key, move in step.items()}
        plays = zero, world.watched(step), world.watched(twice)
        none, one, two = (world.coupled.own(play.played.sent[message]) for play in plays)
        size = max(lengths(m, 2).max().item() for m in (none, one, two))
        if lengths(two - 2 * one + none, 2).max() > SAME * size:
            return False
    return True


def explained(pairs: Iterable[tuple[World, World]], message: str, adjacency: Adjacency) -> bool:
    """Whether what a message moved by is post-processing of values under the declared noise."""
    for here, there in pairs:
        if is_linear(here, message):
            return False
        replayed = replay(here, there, adjacency)
        if message not in replayed.same or replayed.moved > ALLOWED:
            return False
    return True
