"""The noise that a step really sends: one round, played many times from one state.

Where a step is linear in its noise the algebra predicts the law of what is sent. Elsewhere it is
played: without the record, and with it in the batch of the round for certain.

A defense may draw noise beyond what is declared, and hide enough without some of its draws.

A step that is affine in its noise and the record sends S + A z + B w of independent draws z and w.
Whoever knows w learns no less than whoever does not, and what is sent is then S + A z up to a shift
that does not depend on the data. So S + A z + B w reveals no more of a record than S + A z does,
whatever w is: the same in all rounds, in all agents, or in all coordinates. A test of independent
noise accuses w all the same. Here are the defenses that leave draws out, each drawn as 0, and hide
a record as well as it is declared. Where such noise is independent, the further draws take nothing
from it.

Draws are separated by name, because different names have independent streams in all rounds.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, zip_longest
from math import ceil, hypot
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import Mechanism, Release
from dpaudit.defense import CHANGED_RECORDS, Defense, Gradient, Noise, Round, Scale, Setting
from dpaudit.defense.transcript import Messages
from dpaudit.errors import DpauditError, NotObservable, is_out_of_memory
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import SPARSE_FROM, Adversary, with_every_link
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import PLAYED, Nonlinear, fewest_coordinates, nonlinearity
from dpaudit.game.probing.observer import senders_by_row, visible_rows
from dpaudit.game.step_inputs import ChosenNoise, WrappedDefense, flat_state, state_of
from dpaudit.game.worst_case.layers import in_layers
from dpaudit.graphs.graph import Graph
from dpaudit.rng import Streams

FEW = 4  # distinct releases at most, which are composed again and again
PILOT = 8  # plays by which a message is seen to carry noise
AHEAD = 4  # rounds in which noise that is drawn in one shows at the latest
SENDERS = 4  # senders of a message whose noise is examined
ENTRIES = 2 * 10**7  # numbers of the messages that are held
WORK = 4 * 10**7  # numbers that are drawn and sent for one sample
BLOCK = 2 * 10**6  # numbers that are played at once
MOST, LEAST = 100_000, 1_000  # plays
LATEST = 100  # round that is reached for the law of its noise
ROUNDING = 1e-6  # relative: a leak this much above the declared one is no larger
ROUNDS = 200  # followed for one agent's record, at most
ROUNDS_OF_ALL = 300  # followed for the records of all others together, roughly
FIRST = 10  # followed for each of these, at least
FEW_NAMES = 4  # names, of which every set is left out; of more, single ones
MANY_NAMES = 16  # more names are tested together


class NoisyRow(NamedTuple):
    """One row of one message."""

    message: str
    row: int
    sender: int
    width: int


def declared_of_a_round(game: Game, everybody: ThreatModel) -> Mechanism | None:
    """What is declared of a record that is in the batch of one round for certain, at most.

    As many releases as there are for each round, those with the least noise of all. None: nothing
    is declared that runs could be held against.
    """
    if game.adjacency not in CHANGED_RECORDS:  # more than a record is what the game moves
        return None
    defense: Defense = game.defense
    try:
        declared = defense.mechanism(game.setting, everybody, game.victim).most
    except DpauditError:  # it says nothing of such a view
        return None
    n = ceil(sum(release.count for release in declared) / defense.n_rounds)
    first = []
    for release in sorted(declared, key=lambda release: release.noise_multiplier):
        count = min(n, release.count)
        n -= count
        update = {
            "count": count,
            "sampling": "none",
            "sampling_rate": 1.0,
            "noise_multiplier": release.noise_over(game.displacement),
        }
        first += [release.model_copy(update=update)] if count else []
    usable = 0 < len(first) <= FEW and first[0].noise_multiplier > 0
    return first if usable else None


def has_randomness_of_its_own(game: Game) -> bool:
    """Whether a round differs though its noise is the same."""
    first, again = (game.first_sent(ChosenNoise()) for _ in (0, 1))
    return any(
        not torch.equal(sent.payload.nan_to_num(), again[name].payload.nan_to_num())
        for name, sent in first.items()
    )


def wide_game(game: Game) -> Game:
    """The same at the coordinates that the law of the noise is looked at."""
    d = min(PLAYED, game.coordinates)
    return replace(game, width=max(d, fewest_coordinates(game)), spread=1, sampling_rate=1.0)


class RepeatedRound:
    """One round from the state that a run without the record leaves before it.

    Args:
        game: at the coordinates that are played.
        nonlinear: which messages are linear in their noise, and not looked at.
        adversaries: adversaries; what none of them reads is not looked at.

    Raises:
        NotObservable: the round is too large to be played often.
    """

    def __init__(
        self,
        game: Game,
        k: int,
        nonlinear: Nonlinear | None,
        adversaries: Iterable[ThreatModel],
        streams: Streams,
    ) -> None:
        self._game, self._streams, self.round = game, streams, k
        self._left_out = frozenset() if nonlinear is None else nonlinear.affine
        state: Any = game.start(1, coordinates=game.played)
        for i in range(1, k):
            state, _ = _step(game, state, i, 0.0, Noise(streams, i))
        self._state, self._asked = state, ChosenNoise()
        _, sent = _step(game, state, k, 0.0, self._asked)
        self._shown_in, self.places = self._where(list(adversaries))
        numbers = sum(message.payload[0].numel() for message in sent.values())
        self._numbers = max(
            1, (numbers + self._asked.n_draws) * (self._shown_in - k + 1)
        )  # numbers of one play
        if self._numbers * LEAST > 10 * WORK:
            raise NotObservable(
                "DPA022",
                f"a round has {self._numbers} numbers, and is to be played {LEAST} times at least",
            )

    def _where(self, adversaries: list[ThreatModel]) -> tuple[int, list[NoisyRow]]:
        """The first round in which noise of this one shows, and the rows that show it."""
        last = min(self._game.defense.n_rounds, self.round + AHEAD - 1)
        for until, sent in self._played(self._game, PILOT, self._streams, 0.0, last):
            places = [p for name in sent for p in self._noisy(name, sent, adversaries)]
            if places:
                return until, places
        return self.round, []

    def _noisy(self, name: str, sent: Messages, adversaries: list[ThreatModel]) -> list[NoisyRow]:
        message = sent[name]
        if name in self._left_out or message.payload.shape[0] < PILOT:
            return []
        moves = (message.payload != message.payload[:1]).flatten(2).any(2).any(0)
        seen = {
            row for adversary in adversaries for row in visible_rows(message, adversary).tolist()
        }
        senders = senders_by_row(message).tolist()
        rows = [r for r in sorted(seen) if moves[r]]
        by_sender = {senders[r]: r for r in reversed(rows)}
        some = sorted(by_sender)
        if not some:
            return []
        chosen = {some[i] for i in np.linspace(0, len(some) - 1, SENDERS).round().astype(int)}
        d = message.payload.shape[-1]
        return [NoisyRow(name, by_sender[j], j, d) for j in sorted(chosen)]

    @property
    def plays(self) -> int:
        """How many are made for one sample."""
        held = sum(place.width for place in self.places)
        return max(LEAST, min(MOST, ENTRIES // max(1, held), WORK // self._numbers))

    @property
    def families(self) -> set[str]:
        """Families of the noise that the step asks for."""
        return {draw.family for draw in self._asked.draws.values()}

    def sample(
        self, n: int, name: str, places: list[NoisyRow], victim: int = 0, drawn: float = 0.0
    ) -> list[Array]:
        """Messages [n, d] of n plays under independent noise, for each place.

        Args:
            victim: whose record it is.
            drawn: how often the record is in the batch; -1 for its opposite.
        """
        game = replace(self._game, victim=victim)
        parts: list[list[Array]] = [[] for _ in places]
        for i, some in enumerate(np.array_split(np.arange(n), -(-n * self._numbers // BLOCK))):
            own = Streams(self._streams.numpy(name, self.round, i).integers(2**62).item())
            *_, (_, sent) = self._played(game, len(some), own, drawn, self._shown_in)
            for place, part in zip(places, parts, strict=True):
                payload = sent[place.message].payload[..., place.row, :]
                part.append(payload.expand(len(some), -1).numpy())
        return [np.concatenate(part) for part in parts]

    def _played(
        self, game: Game, n: int, streams: Streams, drawn: float, last: int
    ) -> Iterator[tuple[int, Messages]]:
        """Each round from this one on; the record is in the batch of the first alone."""
        state = state_of(self._state, flat_state(self._state).expand(n, -1).clone())
        for k in range(self.round, last + 1):
            times = drawn if k == self.round else 0.0
            state, sent = _step(game, state, k, times, Noise(streams, k), n)
            yield k, sent


def _step(
    game: Game, state: Any, k: int, drawn: float, noise: Noise, n: int = 1
) -> tuple[Any, Messages]:
    with torch.inference_mode():
        round = game.step(state, k, game.drawn_alike(drawn, n), noise)
    return round.state, round.sent


def rounds_played(n_rounds: int, streams: Streams) -> list[int]:
    """The first, and one that is drawn of the others up to ``LATEST``."""
    if n_rounds == 1:
        return [1]
    return [1, streams.numpy("round").integers(2, min(LATEST, n_rounds) + 1).item()]


class _Silenced(Noise):
    """Mixed into another source of noise: draws of some names are 0."""

    silenced: frozenset[str] = frozenset()

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        if message in self.silenced:
            return torch.zeros_like(like)
        return super().gaussian(message, std, like)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        if message in self.silenced:
            return torch.zeros_like(like)
        return super().laplace(message, scale, like)


def silenced(noise: Noise, names: frozenset[str]) -> Noise:
    """The same source of noise without draws of these names.

    It is of the class of ``noise`` and shares its attributes, so that a step may copy it and seed
    the copy for another round, and what it notes is noted in ``noise``.
    """
    kind = type(noise)
    made: type[Noise] = type(kind.__name__, (_Silenced, kind), {"silenced": names})
    other = object.__new__(made)
    other.__dict__ = noise.__dict__
    return other


class WithoutDraws(WrappedDefense):
    """Another defense whose draws of these names are 0."""

    names: frozenset[str]

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        return self.of.step(state, k, graph, gradient, silenced(noise, self.names))

    @property
    def note(self) -> str:
        """Why a test of the noise is of this defense, for people."""
        draws = ", ".join(f'"{name}"' for name in sorted(self.names))
        return (
            f"without the draws {draws} the noise is as it should be and hides what is declared; "
            "further independent noise hides no less"
        )


def hiding_without(
    defense: Defense, setting: Setting, adversaries: Iterable[ThreatModel], n_rounds: int
) -> Iterator[WithoutDraws]:
    """The defense without some of its draws, wherever it hides a record as well as is declared.

    Nothing where a step is not affine in its noise and the record, or has other randomness.

    Args:
        defense: calibrated.
        setting: of the real model.
        adversaries: the adversaries from whom a record is hidden.
        n_rounds: how many of the first rounds are followed, up to ``ROUNDS``.
    """
    adversaries, n_rounds = tuple(adversaries), min(n_rounds, ROUNDS, defense.n_rounds)
    try:
        games = list(_games(defense, setting))
        asked = _asked(games[0], n_rounds)
        if len(asked) < 2 or has_randomness_of_its_own(games[0]):
            return
        if any(
            nonlinearity(games[0], threat_model, n_rounds) is not None
            for threat_model in adversaries
        ):
            return
        others = min(n_rounds, max(FIRST, ROUNDS_OF_ALL // len(games)))
        followed = [(game, others if i else n_rounds) for i, game in enumerate(games)]
        for names in _sets(asked):
            fewer = WithoutDraws.playing(defense, names=names)
            if all(
                _hides(*each, fewer, threat_model)
                for threat_model in adversaries
                for each in followed
            ):
                yield fewer
    except Exception as error:  # whatever a step raises without these draws
        if is_out_of_memory(error):
            raise


def _games(defense: Defense, setting: Setting) -> Iterator[Game]:
    """About a record of every agent that holds some; of many agents, of ``SPARSE_FROM`` of them."""
    adjacency: Adjacency = "user" if defense.protects == "user" else "add-remove"
    if defense.function_distance() is not None:
        adjacency = "function"
    holders = setting.holders[:: -(-len(setting.holders) // SPARSE_FROM)]
    first = in_layers(Game.of(defense, setting, holders[0], adjacency))
    for victim in holders:
        yield replace(Game.of(defense, setting, victim, adjacency), filled=first.filled)


def _asked(game: Game, n_rounds: int) -> frozenset[str]:
    """Names of the draws that the first rounds ask for."""
    names = set[str]()
    state: Any = game.start(1)
    for k in range(1, n_rounds + 1):
        noise = ChosenNoise()
        state = game.step(state, k, game.silent(), noise).state
        names |= noise.draws.keys()
    return frozenset(names)


def _sets(names: frozenset[str]) -> Iterator[frozenset[str]]:
    """Sets of names, but all of them; names that differ in a number alone also as one."""
    stems: dict[str, set[str]] = {}
    for name in sorted(names):
        stems.setdefault(re.sub(r"\d+", "", name), set()).add(name)
    found: dict[frozenset[str], None] = {}
    for parts in ([{name} for name in sorted(names)], list(stems.values())):
        most = len(parts) - 1 if len(parts) <= FEW_NAMES else int(len(parts) <= MANY_NAMES)
        for n in range(1, most + 1):
            found |= dict.fromkeys(frozenset().union(*some) for some in combinations(parts, n))
    yield from sorted(found, key=len)


def _hides(game: Game, n_rounds: int, fewer: WithoutDraws, threat_model: ThreatModel) -> bool:
    """Whether it leaks in each use of a record no more than the defense declares."""
    if game.victim in threat_model.agents:
        return True
    declared = game.defense.mechanism(game.setting, threat_model, game.victim).most
    if game.held is not None or any(release.noise_multiplier == 0 for release in declared):
        return False
    silent = replace(game, defense=fewer)
    adversary = Adversary(silent, threat_model, n_rounds)
    if adversary.reacts is not None:  # reading every link reveals no less
        adversary = Adversary(silent, with_every_link(threat_model), n_rounds)
    leak = adversary.leak
    if leak.noiseless or not leak.is_proven or adversary.reacts is not None:
        return False
    leaked = leak.mechanism(game, None, high=True)
    if not leaked:
        return True  # nothing of the record reaches this view
    if {_kind(r) for r in leaked} != {_kind(r) for r in declared}:
        return False
    ours, theirs = _losses(leaked), _losses(declared)
    if not game.is_lasting:
        return all(x <= y * (1 + ROUNDING) for x, y in zip_longest(ours, theirs, fillvalue=0.0))
    share = n_rounds / game.defense.n_rounds
    if leaked[0].family == "laplace":
        one = sum(ours) / game.displacement  # a loss of Laplace noise is of all that a draw moves
        return one <= share * sum(theirs) * (1 + ROUNDING)
    return hypot(*ours) <= share**0.5 * hypot(*theirs) * (1 + ROUNDING)


def _kind(release: Release) -> tuple[str, float]:
    return release.family, round(release.sampling_rate, 12)


def _losses(mechanism: Mechanism) -> list[float]:
    """By how much of its noise one record moves each release, from the largest on.

    Any change of data moves what is clipped as a whole by twice as much at most.
    """
    each = [
        ((0.5 if r.clipped == "whole" else 1.0) / r.noise_multiplier, r.count) for r in mechanism
    ]
    return sorted((loss for loss, count in each for _ in range(count)), reverse=True)
