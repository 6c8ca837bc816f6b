"""Runs of a step that mixes coordinates: several are played, and read along the record.

A model of one coordinate says little of a step that takes the mean over coordinates away, divides
by the norm of all of them or gives no number there, as a standard deviation of one is none. So the
step is played at more, of which the record moves the first, or all alike. Who attacks knows that
direction, and of every message that it reads takes the part along it; no algebra foretells what
that should be, so a score is learned from other runs. It is a test like any other: what it
certifies holds, and how much it misses is not known.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dpaudit.defense.transcript import Messages
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.tape import Tape


def along(game: Game, values: Tensor) -> Tensor:
    """The part along the record of values [..., d] at the coordinates that are played, [..., 1]."""
    return values[..., :1] if game.spread == 1 else values.mean(-1, keepdim=True)


class Along:
    """An adversary that reads the first ``n_rounds`` along the record of a game."""

    def __init__(self, game: Game, threat_model: ThreatModel, n_rounds: int) -> None:
        self.game, self.threat_model, self.n_rounds = game, threat_model, n_rounds
        self._observer = Observer(game, threat_model)

    @property
    def observed(self) -> int:
        """Numbers that are read of the first round."""
        asked, silent = Tape(), self.game.played_gradient(torch.zeros(1, dtype=torch.float64))
        state = self.game.start(1, torch.float64, torch.device("cpu"), self.game.played)
        graph = self.game.setting.network.at(1)
        sent = self.game.defense.step(state, 1, graph, silent, asked).sent
        return len(self._observer.named(1, sent, asked.draws))

    def hear(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Tensor:
        """What it makes of a round [trials, n]: of its own noise too."""
        told = {name: replace(s, payload=along(self.game, s.payload)) for name, s in sent.items()}
        own = {name: along(self.game, drawn) for name, drawn in units.items()}
        return self._observer.all_observations(k, told, own)
