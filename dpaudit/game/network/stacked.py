"""The Gram matrices of a view of linear gossip from B itself: all messages of the run at once.

With L [n T, n T] block lower triangular, of blocks (t, s) = W_(t-1) ... W_s, a run sends

    messages = L (g + (D kron F) z),

D [T, T] being how draws of different rounds add up to the noise of one: the inverse of a strategy
matrix M where noise is correlated over rounds, else the identity. Whoever reads some rows A of L
holds O = A g + B z, and H = A' (B B')^+ A. It takes the square of all that is read in the run.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.files.threat import ThreatModel
from dpaudit.game.matrices import RANK
from dpaudit.game.probing.probed_round import NOISELESS

from .gossip import Gossip, Participation

NUMBER = 8  # bytes: all is float64


class StackedView(NamedTuple):
    """What an adversary holds of a run, in units of its noise."""

    rows: list[tuple[int, int]]  # (round, sender) of each message
    told: Tensor  # [rank, n_rounds, n_agents]: whitened shifts of a unit of each gradient
    noiseless: Tensor  # [n_messages, n_rounds, n_agents]: what of them no noise hides

    @classmethod
    def of(
        cls, gossip: Gossip, adversary: ThreatModel, strategy: Tensor | None = None
    ) -> "StackedView":
        """``strategy``: M [n_rounds, n_rounds] with noise M^-1 z over rounds; None: independent."""
        sigma, T = gossip.unknown(adversary.agents), gossip.n_rounds
        n = len(sigma)
        rows = [(t, j) for t in range(T) for j in gossip.heard(t, adversary)]
        A = workload(gossip, n)[[t * n + j for t, j in rows]]
        D = torch.eye(T, dtype=torch.float64) if strategy is None else torch.linalg.inv(strategy)
        values, U = torch.linalg.eigh(sigma)
        F = U * values.clamp(min=0).sqrt()
        B = (A.view(-1, T, n).movedim(1, 2) @ D).movedim(1, 2) @ F
        Q, S, _ = torch.linalg.svd(B.reshape(len(rows), -1), full_matrices=False)
        Q, S = Q[:, RANK * S.max() < S], S[RANK * S.max() < S]
        told = (Q / S).mT @ A
        noiseless = A - Q @ (Q.mT @ A)
        return cls(rows, told.view(-1, T, n), noiseless.view(-1, T, n))

    def grams(self, schema: Participation, victims: list[int]) -> list[Tensor]:
        """H of each class of rounds that a record may be used in, [n_victims, k, k]."""
        parts = [self.told[:, c][:, :, victims] for c in schema.classes(self.told.shape[1])]
        return [torch.einsum("rsv,rtv->vst", part, part) for part in parts]

    def shown(self, victims: list[int]) -> list[tuple[int, tuple[int, int]]]:
        """Victims of whom a use shows without noise; the round, from 1, and sender that show it."""
        found = []
        for v in victims:
            use = self.noiseless[:, :, v].abs()
            if bool(use.max() > NOISELESS):
                t, j = self.rows[int(use.amax(1).argmax())]
                found.append((v, (t + 1, j)))
        return found


def workload(gossip: Gossip, n: int) -> Tensor:
    """L [n T, n T]: what a unit added in any round at any agent adds to each message."""
    T = gossip.n_rounds
    L = torch.zeros(T, n, T, n, dtype=torch.float64)
    for s in range(T):
        power = torch.eye(n, dtype=torch.float64)
        for t in range(s, T):
            L[t, :, s] = power
            power = gossip.at(t) @ power
    return L.view(T * n, T * n)


def bytes_needed(n: int, n_rounds: int) -> int:
    """Of L, B and their factors, where everything is read."""
    return 6 * NUMBER * (n * n_rounds) ** 2
