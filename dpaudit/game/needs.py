"""The memory that an adversary and its runs take, by the shapes of one round of the game."""

from dataclasses import dataclass
from typing import Any

import torch

from dpaudit.defense.footprint import Footprint
from dpaudit.files.threat import ThreatModel

from .adversary import visible_rows
from .game import Game
from .play import FEATURES, block_of
from .states import flat_state
from .tape import Tape

NUMBER = 8  # bytes: all is float64


@dataclass(frozen=True)
class GameShape:
    """What one adversary reads of one round of a game on one coordinate."""

    footprint: Footprint
    observed: int  # numbers that the view holds of a round
    draws: int  # numbers of noise in a round
    width: int  # numbers of the state
    points: int  # at which a record's gradient is taken in a round

    @classmethod
    def of(cls, game: Game, threat_model: ThreatModel) -> "GameShape":
        """By one step without noise. Raises DpauditError: the defense cannot be played."""
        state: Any = game.start(1, torch.float64, torch.device("cpu"))
        asked, nobody = Tape(), game.gradient(torch.zeros(1, dtype=torch.float64))
        sent = game.defense.step(state, 1, game.setting.network.at(1), nobody, asked).sent
        footprint = Footprint.of(game.defense, game.setting)
        n, draws = game.setting.n_agents, [draw.shape[-2] for draw in asked.draws.values()]
        own = len(threat_model.agents) * len(draws)
        return cls(
            footprint,
            own + sum(len(visible_rows(message, threat_model)) for message in sent.values()),
            sum(draws),
            flat_state(state).shape[-1],
            -(-footprint.gradients // n),
        )

    def adversary(self, n_rounds: int) -> int:
        """Bytes of what an adversary knows of so many rounds, and of probing one of them."""
        n, w = self.observed, self.width
        noise = w + self.draws  # factors of what is uncertain
        rank = min(n, noise)
        uses = self.points * n_rounds
        readings = n_rounds * rank * (n + w + self.draws) + rank * uses * n_rounds // 2
        grams = uses * uses
        trials = 1 + min(uses, w) + noise + self.points
        probing = trials * (2 * self.draws + 4 * n + 4 * w)
        solving = 4 * noise * (n + w) + 2 * rank * rank + 2 * uses * (n + w)
        step = self.footprint.round(1, trials, NUMBER)
        return NUMBER * (readings + grams + probing + solving) + step

    def runs(self, game: Game, trials: int, n_rounds: int) -> int:
        """Bytes of playing so many runs of each world, and of what is kept of them."""
        spread, rank = game.spread, min(self.observed, self.width + self.draws)
        block = 2 * min(trials, block_of(self.rows(game), spread))
        kept = min(FEATURES, rank * spread * n_rounds)
        playing = 2 * self.footprint.round(spread, block, NUMBER)
        reading = block * spread * (4 * self.observed + 3 * self.width + 3 * self.draws)
        whole = block * (kept + rank * spread)  # features of the rounds before they are cut
        return playing + NUMBER * (reading + 2 * whole + 6 * trials * kept)

    def rows(self, game: Game) -> int:
        return self.observed + 2 * game.setting.n_agents
