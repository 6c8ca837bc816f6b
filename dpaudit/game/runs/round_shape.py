"""The memory that an adversary and its runs take, by the shape of one round of the game."""

from dataclasses import dataclass

from dpaudit.defense.footprint import Footprint
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.narrow_view import is_narrow
from dpaudit.game.game import Game
from dpaudit.game.matrices import NotLocal
from dpaudit.game.probing.observer import Observer, visible_rows
from dpaudit.game.probing.sparse_probe import NUMBERS, SPARSE_FROM, steps_of
from dpaudit.game.step_inputs import ChosenNoise, flat_state

FIRST = 2  # rounds that are followed at the least
MOST_ROUNDS = 200
ALGEBRA = 10**9  # products, about, in which rounds are followed
NUMBER = 8  # bytes: all is float64
ENTRY = 16  # bytes of a number of a sparse matrix, with its places
COPIES = 8  # matrices of that size: the observed part, the rest, and temporary ones
PROBED = 2  # rounds of which the entries are counted: in the first nothing stays of earlier ones


@dataclass(frozen=True)
class GameShape:
    """What one adversary reads of one round of a game on one coordinate."""

    footprint: Footprint
    observed: int  # numbers that the view holds of a round
    draws: int  # numbers of noise in a round
    width: int  # numbers of the state
    points: int  # models at which a round takes a record's gradient
    n_agents: int
    entries: int | None  # entries of a step's sparse matrices; None: they are dense

    @classmethod
    def of(cls, game: Game, threat_model: ThreatModel) -> "GameShape":
        """By one step without noise. Raises DpauditError: the defense cannot be played."""
        d = game.width or 1
        state = game.start(1, coordinates=d)
        asked = ChosenNoise()
        sent = game.step(state, 1, game.played_gradient(game.silent().drawn), asked).sent
        footprint = Footprint.of(game.defense, game.setting.stand_in(d))
        n, draws = game.setting.n_agents, [draw.numbers // d for draw in asked.draws.values()]
        own = len(threat_model.agents) * len(draws)
        return cls(
            footprint,
            own + sum(len(visible_rows(message, threat_model)) for message in sent.values()),
            sum(draws),
            flat_state(state).shape[-1] // d,
            -(-footprint.gradients // n),
            n,
            _entries(game, threat_model),
        )

    @property
    def products(self) -> int:
        """Approximate number of products in the algebra of one round."""
        if self.entries is not None:
            return COPIES * self.entries
        noise = self.width + self.draws
        return self.observed * noise * min(self.observed, noise)

    def followed(self, n_rounds: int) -> int:
        """How many of so many rounds are followed where no run is counted."""
        return max(FIRST, min(MOST_ROUNDS, n_rounds, self.affordable))

    @property
    def affordable(self) -> int:
        """Rounds that are followed in moderate time."""
        rounds = ALGEBRA // max(1, self.products)
        if self.entries is not None and self._is_narrow(FIRST):
            while not self._is_narrow(rounds):  # all of them are factored at once
                rounds -= 1
        return rounds

    def _is_narrow(self, n_rounds: int) -> bool:
        return is_narrow(self.observed, self.draws, self.n_agents, n_rounds)

    def adversary(self, n_rounds: int) -> int:
        """Bytes of what an adversary knows of so many rounds, and of probing one of them."""
        if self.entries is not None:
            return self._of_sparse(self.entries, n_rounds)
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

    def _of_sparse(self, entries: int, n_rounds: int) -> int:
        """The same of sparse matrices, of which each round keeps some and makes some."""
        n, w, uses = self.observed, self.width, self.points * n_rounds
        matrices = COPIES * ENTRY * entries * n_rounds
        records = NUMBER * uses * (3 * n + 3 * w + uses)
        if self._is_narrow(n_rounds):
            m = n * n_rounds  # all observations: their factor, what reaches them, and their gains
            records += NUMBER * m * (3 * m + 4 * (w + self.draws))
        block = max(1, NUMBERS // w)
        return matrices + records + self.footprint.round(1, block, 2 * NUMBER)


def _entries(game: Game, threat_model: ThreatModel) -> int | None:
    """Numbers of the matrices of a step, the largest of the first; None: they are dense."""
    if game.setting.n_agents < SPARSE_FROM or game.width is not None:
        return None
    try:
        steps = steps_of(Observer(game, threat_model), min(PROBED, game.defense.n_rounds))
    except NotLocal:
        return None
    return max(sum(e.nnz for e in (*s.alone.earlier, *s.alone.noise)) for s in steps)
