"""The innovations of linear gossip: what an adversary cannot predict, and what they reveal.

Each round the adversary subtracts its prediction from the messages that it reads (a Kalman filter)
and whitens the rest, the innovation. A unit that is moved at v in round s stands at Phi(t, s) e_v
in what the adversary does not know in round t, and all rounds from t on reveal J_t of it there:

    H_v[s, t] = [J_t Phi(t, s)]_vv,    Phi(t, s) = A_(t-1) ... A_s,
    J_t = c_t'c_t + A_t' J_(t+1) A_t,

for all agents v at once, with c_t the rows of the whitened innovation and A_t = W_t (I - G_t c_t)
what is left of an error after the round. Halving the rounds splits Phi(t, s) = Phi(t, m) Phi(m, s):
O(T log T) products of [n, n] for an adversary, and an inner product of n numbers for each entry.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.files.threat import ThreatModel
from dpaudit.game.probing.probed_round import NOISELESS

from .gossip import SINGULAR, Gossip, Participation

FORGOTTEN = 1e-15  # of a unit: what is left of it in the state is rounding
LEAF = 4  # rounds between which entries are found one by one


class Innovations(NamedTuple):
    """Of each round, what the adversary is told and what is left open."""

    heard: list[list[int]]  # senders
    told: list[Tensor]  # c_t, [rank, n]: whitened
    noiseless: list[Tensor]  # [rest, n]: combinations of messages without noise
    left: list[Tensor]  # A_t, [n, n]

    @classmethod
    def of(cls, gossip: Gossip, adversary: ThreatModel) -> "Innovations":
        sigma = gossip.unknown(adversary.agents)
        n, P = len(sigma), torch.zeros_like(sigma)
        heard = [gossip.heard(t, adversary) for t in range(min(gossip.period, gossip.n_rounds))]
        found = cls([], [], [], [])
        for t in range(gossip.n_rounds):
            W, rows = gossip.at(t), heard[t % len(heard)]
            M = P + sigma
            values, U = torch.linalg.eigh(M[rows][:, rows])
            noisy = values > SINGULAR * M.diagonal().max()
            c = _placed(U[:, noisy] / values[noisy].sqrt(), rows, n)
            G = M @ c.mT
            rest = M - G @ G.mT
            rest[rows], rest[:, rows] = 0.0, 0.0
            P = W @ (rest + rest.mT) @ W.mT / 2
            found.heard.append(rows)
            found.told.append(c)
            found.noiseless.append(_placed(U[:, ~noisy], rows, n))
            found.left.append(W - (W @ G) @ c)
        return found

    def grams(self, schema: Participation, victims: list[int]) -> list[Tensor]:
        """H of each class of rounds that a record may be used in, [n_victims, k, k]."""
        J, sizes = self._told_from(self.told), map(len, schema.classes(len(self.told)))
        grams = [torch.zeros(len(J[0]), k, k, dtype=torch.float64) for k in sizes]
        entries = _Entries(grams, schema.every)
        for t, told in enumerate(J):
            entries.set(t, t, told.diagonal())
        if schema.times > 1:
            self._between(0, len(J), J, entries)
        return [H[victims] for H in grams]

    def shown(self, victims: list[int]) -> Iterator[tuple[int, tuple[int, int]]]:
        """Victims of whom a use shows without noise; the round, from 1, and sender that show it."""
        if not any(len(rows) for rows in self.noiseless):
            return
        J = self._told_from(self.noiseless)
        for v in victims:
            t = next((t for t, told in enumerate(J) if told[v, v] > NOISELESS**2), None)
            if t is not None:
                yield v, self._where(t, v)

    def _where(self, t: int, v: int) -> tuple[int, int]:
        """Which message shows a use of v in round t first."""
        moved = torch.zeros(len(self.left[0]), dtype=torch.float64)
        moved[v] = 1.0
        while not (self.noiseless[t] @ moved).norm() > NOISELESS / len(self.left):
            moved, t = self.left[t] @ moved, t + 1
        seen = self.noiseless[t].mT @ (self.noiseless[t] @ moved)
        return t + 1, int(seen.abs().argmax())

    def _told_from(self, rows: list[Tensor]) -> list[Tensor]:
        """J_t of each round: what these rows tell of a unit, from then on."""
        found = [rows[-1].mT @ rows[-1]]
        for c, A in zip(rows[-2::-1], self.left[-2::-1], strict=True):
            found.append(c.mT @ c + A.mT @ (found[-1] @ A))
        return found[::-1]

    def _between(self, low: int, high: int, J: list[Tensor], entries: "_Entries") -> None:
        """The entries of rounds low <= s < t < high."""
        if high - low <= LEAF:
            for t in range(low + 1, high):
                self._one_by_one(low, t, J[t], entries)
            return
        middle = (low + high) // 2
        entries.add(*self._before(low, middle), *self._after(middle, high, J))
        self._between(low, middle, J, entries)
        self._between(middle, high, J, entries)

    def _one_by_one(self, low: int, t: int, J: Tensor, entries: "_Entries") -> None:
        for s in range(t - 1, low - 1, -1):
            entries.set(s, t, (J * self.left[s].mT).sum(1))
            if s > low:
                J = J @ self.left[s]

    def _before(self, low: int, middle: int) -> tuple[int, Tensor]:
        """Phi(middle, s)' of the rounds s before, from the first on of which something is left."""
        n = len(self.left[0])
        phi, found = torch.eye(n, dtype=torch.float64), self.left[0].new_empty(middle - low, n, n)
        for s in range(middle - 1, low - 1, -1):
            phi = torch.mm(self.left[s].mT, phi, out=found[s - low])
            if phi.norm() < FORGOTTEN:
                return s + 1, found[s + 1 - low :]
        return low, found

    def _after(self, middle: int, high: int, J: list[Tensor]) -> tuple[int, Tensor]:
        """J_t Phi(t, middle) of the rounds t from the middle on, until nothing is left."""
        n = len(J[0])
        phi, found = torch.eye(n, dtype=torch.float64), J[0].new_empty(high - middle, n, n)
        for t in range(middle, high):
            torch.mm(J[t], phi, out=found[t - middle])
            phi = self.left[t] @ phi
            if phi.norm() < FORGOTTEN:
                return middle, found[: t + 1 - middle]
        return middle, found


class _Entries(NamedTuple):
    """Entries of H of each class of rounds; round t is in class t % every, in place t // every."""

    grams: list[Tensor]  # [n, k, k]
    every: int

    def set(self, s: int, t: int, values: Tensor) -> None:
        o = s % self.every
        if (t - s) % self.every == 0 and o < len(self.grams):
            i, j = s // self.every, t // self.every
            self.grams[o][:, i, j] = self.grams[o][:, j, i] = values

    def add(self, before: int, left: Tensor, after: int, right: Tensor) -> None:
        """H_v[s, t] = <left_s, right_t>_v of the rounds from before on and from after on."""
        for o, H in enumerate(self.grams):
            rows = left[(o - before) % self.every :: self.every]
            columns = right[(o - after) % self.every :: self.every]
            if len(rows) and len(columns):
                found = rows.movedim(0, 1) @ columns.permute(1, 2, 0)
                i, j = self._places(before, o, len(rows)), self._places(after, o, len(columns))
                H[:, i, j], H[:, j, i] = found, found.mT

    def _places(self, first: int, o: int, count: int) -> slice:
        """Of so many rounds of class o from round ``first`` on."""
        place = -(-(first - o) // self.every)
        return slice(place, place + count)


def _placed(combinations: Tensor, rows: list[int], n: int) -> Tensor:
    """Columns over some agents as rows over all, [n_combinations, n]."""
    placed = torch.zeros(combinations.shape[1], n, dtype=torch.float64)
    placed[:, rows] = combinations.mT
    return placed
