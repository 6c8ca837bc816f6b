"""Linear gossip: mixing matrices, noise, and who reads and knows what of it.

m_t = theta_t + g_t + n_t, sent to all that weigh it;    theta_(t+1) = W_t m_t,    n_t = F z_t
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel

SINGULAR = 1e-12  # of the largest variance: below it a combination has no noise


class Gossip(NamedTuple):
    """Linear gossip: the matrices of all rounds, or one for all, and its noise."""

    matrices: tuple[Tensor, ...]  # [n, n] each
    n_rounds: int
    factor: Tensor  # F, [n, n_draws]
    known_to: tuple[frozenset[int], ...]  # of each draw, who knows it

    @property
    def n_agents(self) -> int:
        return len(self.matrices[0])

    @property
    def period(self) -> int:
        return len(self.matrices)

    def at(self, t: int) -> Tensor:
        """W of a round, counted from 0."""
        return self.matrices[t % len(self.matrices)]

    def unknown(self, agents: tuple[int, ...]) -> Tensor:
        """Covariance [n, n] of a round's noise, to these agents.

        They know their own noise, and the draws that one of them knows: secrets of pairs, seeds.
        """
        open_ = [i for i, who in enumerate(self.known_to) if not who & set(agents)]
        F, S = self.factor[:, open_], list(agents)
        sigma = F @ F.mT
        if S:
            cut = SINGULAR * float(sigma.diagonal().max())
            told = torch.linalg.pinv(sigma[S][:, S], atol=cut, hermitian=True)
            sigma = sigma - sigma[:, S] @ told @ sigma[S]
            sigma[S] = 0.0
            sigma[:, S] = 0.0
        return sigma

    def heard(self, t: int, adversary: ThreatModel) -> list[int]:
        """Whose messages an adversary reads in a round, beside its own agents'."""
        linked = self.at(t) != 0
        linked.fill_diagonal_(False)
        read = {
            j
            for i, j in linked.nonzero().tolist()
            if j not in adversary.agents and adversary.sees(j, i)
        }
        return sorted(read)


def gossip_of(
    W: Tensor | Sequence[Tensor],
    n_rounds: int,
    noise: float | Tensor,
    known_to: Sequence[Sequence[int]] | None,
) -> Gossip:
    """Checked. Raises ConfigError: a shape or a number that is none."""
    matrices = tuple(w.double() for w in ([W] if isinstance(W, Tensor) else W))
    n = len(matrices[0]) if matrices else 0
    for k, w in enumerate(matrices, start=1):
        if w.shape != (n, n) or n < 2:
            raise ConfigError(
                "DPA071", f"W {k}: shape {tuple(w.shape)}; expected [n, n] of 2 agents or more"
            )
        if not w.isfinite().all():
            raise ConfigError("DPA071", f"W {k}: not all weights are finite")
    if not matrices:
        raise ConfigError("DPA071", "W: no matrix; expected one, or one for each round")
    F = torch.as_tensor(noise, dtype=torch.float64)
    F = F * torch.eye(n, dtype=torch.float64) if F.ndim == 0 else F
    F = torch.diag(F) if F.ndim == 1 else F
    if F.ndim != 2 or len(F) != n or not F.isfinite().all():
        expected = f"expected finite numbers: one, [{n}], or [{n}, n_draws]"
        raise ConfigError("DPA071", f"noise: shape {tuple(F.shape)}; {expected}")
    known = [[]] * F.shape[1] if known_to is None else known_to
    if len(known) != F.shape[1]:
        raise ConfigError(
            "DPA071", f"known_to: {len(known)} entries for {F.shape[1]} draws of the noise"
        )
    return Gossip(matrices, n_rounds, F, tuple(frozenset(who) for who in known))


def refuse_adversary(gossip: Gossip, adversary: ThreatModel) -> None:
    """Raises ConfigError: it has agents that are not there, nobody to attack, or no message."""
    n = gossip.n_agents
    absent = [a for a in adversary.agents if not 0 <= a < n]
    if absent:
        raise ConfigError(
            "DPA051", f'adversary "{adversary.name}": agent {absent[0]}; expected 0 to {n - 1}'
        )
    if len(adversary.agents) == n:
        raise ConfigError(
            "DPA051", f'adversary "{adversary.name}": holds every agent, the victim among them'
        )
    rounds = range(min(gossip.n_rounds, len(gossip.matrices)))
    if not any(gossip.heard(t, adversary) for t in rounds):
        raise ConfigError(
            "DPA051", f'adversary "{adversary.name}": reads no message in {gossip.n_rounds} rounds'
        )


Schema = str | tuple[int, int]  # "once", "every-round", or how many times and every how many rounds


@dataclass(frozen=True)
class Participation:
    """A record is used ``times`` times, ``every`` so many rounds, from any round where that fits.

    Admissible are the rounds s, s + every, ..., s + (times - 1) every for each s with which they
    lie within the run. With times x every = n_rounds that is the schema of batches taken in turn,
    and s says in which batch the record is.
    """

    times: int
    every: int

    @classmethod
    def of(cls, schema: Schema, n_rounds: int) -> Self:
        """The schema in so many rounds. Raises ConfigError: there is none, or it does not fit."""
        if isinstance(schema, str) and schema not in ("once", "every-round"):
            raise ConfigError(
                "DPA071",
                f'participation: "{schema}" is no schema; expected "once", "every-round" or '
                "[times, every]",
            )
        named = {"once": (1, max(1, n_rounds)), "every-round": (n_rounds, 1)}
        times, every = named[schema] if isinstance(schema, str) else schema
        if min(n_rounds, times, every) < 1:
            raise ConfigError(
                "DPA071",
                f"participation: {times} times every {every} rounds of {n_rounds}; expected at "
                "least 1 of each",
            )
        last = (times - 1) * every
        if last >= n_rounds:
            raise ConfigError(
                "DPA071",
                f"participation: {times} times every {every} rounds takes {last + 1} rounds of "
                f"{n_rounds}; expected {1 + (n_rounds - 1) // every} times at most",
            )
        return cls(times, every if times > 1 else n_rounds)

    def classes(self, n_rounds: int) -> list[Tensor]:
        """The rounds, counted from 0, that one record may be used in; each round is in one class.

        An admissible set is ``times`` consecutive rounds of a class.
        """
        classes = [torch.arange(s, n_rounds, self.every) for s in range(self.every)]
        return [rounds for rounds in classes if len(rounds) >= self.times]
