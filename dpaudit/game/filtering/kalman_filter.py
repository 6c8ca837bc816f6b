"""The adversary's Kalman filter on real runs: it predicts each round, and learns from the rest."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.transcript import Messages, refuse_other_messages
from dpaudit.game.matrices import column_norms
from dpaudit.game.oracles import CanaryGradient
from dpaudit.game.probing.chosen_noise import ChosenNoise
from dpaudit.game.probing.probed_round import NOISELESS
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


class LeakByAgent(NamedTuple):
    """Of the records of some agents, each used in some rounds."""

    H: Tensor  # [n_agents, n_uses, n_uses]: Gram matrices of the whitened shifts
    noiseless: dict[int, str]  # agent -> the message that shows its record without noise


def leak_by_agent(adversary: Adversary, agents: Sequence[int], rounds: Tensor) -> LeakByAgent:
    """The leak of a record of each of the ``agents``, used in ``rounds`` [n_uses].

    How the adversary filters messages depends on the noise alone. So the filter is found once, and
    what each use of each agent's record changes is sent through it.

    The adversary's game is about a record that is there for certain, of any agent. Trial i has the
    record of one agent in one round. Nothing else is random, so innovations are that record alone.
    """
    game, n_uses = adversary.game, len(rounds)
    H = torch.zeros(len(agents), n_uses, n_uses, dtype=torch.float64)
    noiseless: dict[int, str] = {}
    victims, used = torch.tensor(agents).repeat_interleave(n_uses), rounds.repeat(len(agents))
    state = game.start(len(victims))
    kalman, batch_size = KalmanFilter(adversary, state), game.silent().batch_size
    scale = torch.zeros(len(victims), 1, dtype=torch.float64)  # of each record's effect
    for k in range(1, adversary.n_rounds + 1):
        drawn = (used == k).double()
        gradient, tape = CanaryGradient(victims, game.length, drawn, batch_size), ChosenNoise()
        state, sent, *_ = game.step(state, k, gradient, tape)
        own = {m: torch.zeros(d.shape, dtype=torch.float64) for m, d in tape.draws.items()}
        reading, raw, whitened = kalman.update(k, sent, own)
        if bool(drawn.any()):
            hidden = flat_state(state) - kalman.believed
            moved = torch.cat([raw, hidden], dim=1).abs().amax(dim=1, keepdim=True)
            scale = torch.where(drawn[:, None] > 0, moved, scale)
        shifts = whitened.view(len(agents), n_uses, -1)
        H += shifts @ shifts.mT
        U = torch.from_numpy(reading.whiten.matrix / column_norms(reading.whiten.matrix))
        shown = (raw - raw @ U @ U.mT).abs() > NOISELESS * scale
        for i in shown.any(dim=1).nonzero().flatten().tolist():
            message = reading.messages[int(shown[i].int().argmax())][0]
            noiseless.setdefault(agents[i // n_uses], message)
    return LeakByAgent(H, noiseless)
