"""The adversary's Kalman filter on real runs: it predicts each round, and learns from the rest."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.transcript import Messages, refuse_other_messages
from dpaudit.game.probing.chosen_noise import ChosenNoise
from dpaudit.game.probing.states import flat_state, state_of

from .adversary import Adversary
from .leak import Reading


class Innovation(NamedTuple):
    """The part of a round's observations that was not predicted."""

    reading: Reading
    raw: Tensor  # [trials, n_observations]
    whitened: Tensor  # [trials, rank]: independent noise of variance 1, if there is no record


class KalmanFilter:
    """Runs the protocol along with the agents, of many trials at once.

    Args:
        adversary: whose view it is, and how it reads each round.
        state: of all trials before round 1, which is public.
    """

    def __init__(self, adversary: Adversary, state: Any) -> None:
        self._adversary, self._like = adversary, state
        self.believed = flat_state(state)  # [trials, width], of the agents' states

    def progress(self) -> list[Any]:
        """All that it believes; ``resume`` takes it back."""
        return [self._like._asdict(), self.believed]

    def resume(self, like: Mapping[str, Tensor], believed: Tensor) -> None:
        self._like, self.believed = type(self._like)(**like), believed

    def update(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Innovation:
        """Round k: ``sent`` by the agents, with noise of which ``units`` were drawn.

        Raises:
            ConfigError: without data and noise the round would have sent other messages.
        """
        adversary, game = self._adversary, self._adversary.game
        nobody = game.gradient(self.believed.new_zeros(len(self.believed)))
        predicted = game.step(state_of(self._like, self.believed), k, nobody, ChosenNoise())
        refuse_other_messages(k, sent, predicted.sent)
        silent = {name: torch.zeros_like(drawn) for name, drawn in units.items()}
        raw = adversary.observe(k, sent, units) - adversary.observe(k, predicted.sent, silent)
        reading = adversary.rounds[k - 1]
        whitened = reading.whiten.of(raw)
        self._like = predicted.state
        self.believed = flat_state(predicted.state) + reading.gain.of(whitened)
        return Innovation(reading, raw, whitened)
