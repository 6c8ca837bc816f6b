"""The noise that a step really sends: one round, played many times from one state.

Where a step is linear in its noise the algebra tells the law of what is sent. Elsewhere it is
played: without the record, and with it in the batch of the round for certain.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import Mechanism
from dpaudit.defense.contract import CHANGED_RECORDS, Defense
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Messages
from dpaudit.errors import DpauditError, NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.probing.chosen_noise import ChosenNoise
from dpaudit.game.probing.linearity import Nonlinear
from dpaudit.game.probing.observer import senders_by_row, visible_rows
from dpaudit.game.probing.playable_dimension import PLAYED, fewest_coordinates
from dpaudit.game.probing.states import flat_state, state_of
from dpaudit.rng import Streams

FEW = 4  # distinct releases at most, which are composed again and again
PILOT = 8  # plays by which a message is seen to carry noise
AHEAD = 4  # rounds in which noise that is drawn in one shows at the latest
SENDERS = 4  # of a message, whose noise is looked at
ENTRIES = 2 * 10**7  # numbers of the messages that are held
WORK = 4 * 10**7  # numbers that are drawn and sent for one sample
BLOCK = 2 * 10**6  # of them that are played at once
MOST, LEAST = 100_000, 1_000  # plays
LATEST = 100  # round that is reached for the law of its noise


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
    plays = [
        _step(game, game.start(1, coordinates=game.played), 1, 0.0, ChosenNoise())[1]
        for _ in (0, 1)
    ]
    return any(
        not torch.equal(sent.payload.nan_to_num(), plays[1][name].payload.nan_to_num())
        for name, sent in plays[0].items()
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
        )  # of one play
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
        """Of the noise that the step asks for."""
        return {draw.family for draw in self._asked.draws.values()}

    def sample(
        self, n: int, name: str, places: list[NoisyRow], victim: int = 0, drawn: float = 0.0
    ) -> list[Array]:
        """Of each place, messages [n, d] of n plays under independent noise.

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
