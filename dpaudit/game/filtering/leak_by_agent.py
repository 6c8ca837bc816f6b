"""What a view tells of each agent's record, all agents and uses at once.

How the adversary filters messages depends on the noise alone. So the filter is found once, and what
each use of each agent's record changes is sent through it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.game.game import CanaryGradient
from dpaudit.game.probing.dense_probe import NOISELESS
from dpaudit.game.probing.states import flat_state
from dpaudit.game.probing.tape import Tape

from .adversary import Adversary
from .follower import Follower, Innovation


class Told(NamedTuple):
    """Of the records of some agents, each used in some rounds."""

    H: Tensor  # [n_agents, n_uses, n_uses]: Gram matrices of the whitened shifts
    noiseless: dict[int, str]  # agent -> the message that shows its record without noise


def told_of_each(adversary: Adversary, agents: Sequence[int], rounds: Tensor) -> Told:
    """What the adversary reads of a record of each of the ``agents``, used in ``rounds`` [n_uses].

    The adversary's game is about a record that is there for certain, of any agent.
    """
    n_uses = len(rounds)
    H = torch.zeros(len(agents), n_uses, n_uses, dtype=torch.float64)
    noiseless: dict[int, str] = {}
    of_trial = torch.tensor(agents).repeat_interleave(n_uses), rounds.repeat(len(agents))
    for innovation, without in _innovations(adversary, *of_trial):
        shifts = innovation.whitened.view(len(agents), n_uses, -1)
        H += shifts @ shifts.mT
        for i in without.any(dim=1).nonzero().flatten().tolist():
            shown = innovation.reading.messages[int(without[i].int().argmax())][0]
            noiseless.setdefault(agents[i // n_uses], shown)
    return Told(H, noiseless)


def _innovations(
    adversary: Adversary, victims: Tensor, rounds: Tensor
) -> Iterator[tuple[Innovation, Tensor]]:
    """Of each round without any noise, and what was seen noiseless [n_trials, n_observations].

    Trial i has the record of victim i in round i. Nothing else is random, so what the adversary
    cannot foretell is that record alone.
    """
    game, n = adversary.game, len(victims)
    state = game.start(n, torch.float64, torch.device("cpu"))
    follower = Follower(adversary, state)
    batch_size = game.gradient(torch.zeros(1)).batch_size
    scale = torch.zeros(n, 1, dtype=torch.float64)  # of each record's effect
    for k in range(1, adversary.n_rounds + 1):
        drawn = (rounds == k).double()
        gradient, tape = CanaryGradient(victims, game.length, drawn, batch_size), Tape()
        state, sent, *_ = game.defense.step(state, k, game.setting.network.at(k), gradient, tape)
        own = {m: torch.zeros(d.shape, dtype=torch.float64) for m, d in tape.draws.items()}
        innovation = follower.hear(k, sent, own)
        if bool(drawn.any()):
            hidden = flat_state(state) - follower.believed
            moved = torch.cat([innovation.raw, hidden], dim=1).abs().amax(dim=1, keepdim=True)
            scale = torch.where(drawn[:, None] > 0, moved, scale)
        U = innovation.reading.whiten
        U = U / torch.linalg.vector_norm(U, dim=0)
        noiseless = innovation.raw - innovation.raw @ U @ U.mT
        yield innovation, noiseless.abs() > NOISELESS * scale
