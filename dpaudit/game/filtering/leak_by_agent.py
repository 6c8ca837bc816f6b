"""What a view reveals of each agent's record, all agents and uses at once.

How the adversary filters messages depends on the noise alone. So the filter is found once, and what
each use of each agent's record changes is sent through it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.game.matrices import column_norms
from dpaudit.game.oracles import CanaryGradient
from dpaudit.game.probing.chosen_noise import ChosenNoise
from dpaudit.game.probing.probed_round import NOISELESS
from dpaudit.game.probing.states import flat_state

from .adversary import Adversary
from .kalman_filter import KalmanFilter


class LeakByAgent(NamedTuple):
    """Of the records of some agents, each used in some rounds."""

    H: Tensor  # [n_agents, n_uses, n_uses]: Gram matrices of the whitened shifts
    noiseless: dict[int, str]  # agent -> the message that shows its record without noise


def leak_by_agent(adversary: Adversary, agents: Sequence[int], rounds: Tensor) -> LeakByAgent:
    """The leak of a record of each of the ``agents``, used in ``rounds`` [n_uses].

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
