"""Runs of a step that mixes coordinates: several are played, and read along the record.

A model of one coordinate says little of a step that takes the mean over coordinates away, divides
by the norm of all of them or gives no number there, as a standard deviation of one is none. So the
step is played at more, of which the record moves the first, or all alike. The adversary knows that
direction and takes the part of every message along it. No algebra predicts that part, so a score is
learned from other runs. It is a test like any other: what it
certifies holds, and how much it misses is not known.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from dpaudit.defense.transcript import Messages
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.probing.chosen_noise import ChosenNoise
from dpaudit.game.probing.observer import Observer


class ProjectionAdversary:
    """An adversary that reads the first ``n_rounds`` along the record of a game."""

    def __init__(self, game: Game, threat_model: ThreatModel, n_rounds: int) -> None:
        self.game, self.threat_model, self.n_rounds = game, threat_model, n_rounds
        self._observer = Observer(game, threat_model)

    @property
    def observed(self) -> int:
        """Numbers that are read of the first round."""
        game, asked = self.game, ChosenNoise()
        state = game.start(1, coordinates=game.played)
        sent = game.step(state, 1, game.played_gradient(game.silent().drawn), asked).sent
        return len(self._observer.named(1, sent, asked.draws))

    def observe(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Tensor:
        """What it reads of a round [trials, n], its own noise too."""
        along = self.game.along_record
        read = {name: replace(s, payload=along(s.payload)) for name, s in sent.items()}
        own = {name: along(drawn) for name, drawn in units.items()}
        return self._observer.all_observations(k, read, own)
