"""Linear gossip: mixing matrices, noise, who reads and knows what of it, and what that reveals.

m_t = theta_t + g_t + n_t, sent to all that weigh it;    theta_(t+1) = W_t m_t,    n_t = F z_t

What an adversary cannot predict is the innovation of a round (``Innovations``).

Each round the adversary subtracts its prediction from the messages that it reads (a Kalman filter)
and whitens the rest, the innovation. A unit that is moved at v in round s stands at Phi(t, s) e_v
in what the adversary does not know in round t, and all rounds from t on reveal J_t of it there:

    H_v[s, t] = [J_t Phi(t, s)]_vv,    Phi(t, s) = A_(t-1) ... A_s,
    J_t = c_t'c_t + A_t' J_(t+1) A_t,

for all agents v at once, with c_t the rows of the whitened innovation and A_t = W_t (I - G_t c_t)
what is left of an error after the round. Halving the rounds splits Phi(t, s) = Phi(t, m) Phi(m, s):
O(T log T) products of [n, n] for an adversary, and an inner product of n numbers for each entry.

Or all messages of the run are taken at once (``StackedView``). With L [n T, n T] block lower
triangular, of blocks (t, s) = W_(t-1) ... W_s, a run sends

    messages = L (g + (D kron F) z),

D [T, T] being how draws of different rounds add up to the noise of one: the inverse of a strategy
matrix M where noise is correlated over rounds, else the identity. Whoever reads some rows A of L
holds O = A g + B z, and H = A' (B B')^+ A. It takes the square of all that is read in the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from dpaudit.defense import ConfigError, ThreatModel
from dpaudit.game.matrices import RANK
from dpaudit.game.probing.probed_round import NOISELESS

SINGULAR = 1e-12  # combinations with less variance, relative to the largest, have no noise
FORGOTTEN = 1e-15  # smaller residuals of a unit in the state are rounding
LEAF = 4  # rounds between which entries are found one by one
NUMBER = 8  # bytes: all is float64


class Gossip(NamedTuple):
    """Linear gossip: the matrices of all rounds, or one for all, and its noise."""

    matrices: tuple[Tensor, ...]  # [n, n] each
    n_rounds: int
    factor: Tensor  # F, [n, n_draws]
    known_to: tuple[frozenset[int], ...]  # agents that know a draw, by draw

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
            inverse = torch.linalg.pinv(sigma[S][:, S], atol=cut, hermitian=True)
            sigma = sigma - sigma[:, S] @ inverse @ sigma[S]
            sigma[S] = 0.0
            sigma[:, S] = 0.0
        return sigma

    def heard(self, t: int, adversary: ThreatModel) -> list[int]:
        """Agents, other than its own, whose messages an adversary reads in a round."""
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


class Innovations(NamedTuple):
    """What the adversary observes in each round, and what it cannot know."""

    heard: list[list[int]]  # senders
    revealed: list[Tensor]  # c_t, [rank, n]: whitened
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
            found.revealed.append(c)
            found.noiseless.append(_placed(U[:, ~noisy], rows, n))
            found.left.append(W - (W @ G) @ c)
        return found

    def grams(self, schema: Participation, victims: list[int]) -> list[Tensor]:
        """H of each class of rounds that a record may be used in, [n_victims, k, k]."""
        J, sizes = self._revealed_from(self.revealed), map(len, schema.classes(len(self.revealed)))
        grams = [torch.zeros(len(J[0]), k, k, dtype=torch.float64) for k in sizes]
        entries = _Entries(grams, schema.every)
        for t, revealed in enumerate(J):
            entries.set(t, t, revealed.diagonal())
        if schema.times > 1:
            self._between(0, len(J), J, entries)
        return [H[victims] for H in grams]

    def shown(self, victims: list[int]) -> Iterator[tuple[int, tuple[int, int]]]:
        """Victims of whom a use shows without noise; the round, from 1, and sender that show it."""
        if not any(len(rows) for rows in self.noiseless):
            return
        J = self._revealed_from(self.noiseless)
        for v in victims:
            t = next((t for t, revealed in enumerate(J) if revealed[v, v] > NOISELESS**2), None)
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

    def _revealed_from(self, rows: list[Tensor]) -> list[Tensor]:
        """J_t of each round: what these rows reveal of a unit, from then on."""
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
        """Places of ``count`` rounds of class o from round ``first`` on."""
        place = -(-(first - o) // self.every)
        return slice(place, place + count)


def _placed(combinations: Tensor, rows: list[int], n: int) -> Tensor:
    """Columns over some agents as rows over all, [n_combinations, n]."""
    placed = torch.zeros(combinations.shape[1], n, dtype=torch.float64)
    placed[:, rows] = combinations.mT
    return placed


class StackedView(NamedTuple):
    """What an adversary holds of a run, in units of its noise."""

    rows: list[tuple[int, int]]  # (round, sender) of each message
    revealed: Tensor  # [rank, n_rounds, n_agents]: whitened shifts of a unit of each gradient
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
        revealed = (Q / S).mT @ A
        noiseless = A - Q @ (Q.mT @ A)
        return cls(rows, revealed.view(-1, T, n), noiseless.view(-1, T, n))

    def grams(self, schema: Participation, victims: list[int]) -> list[Tensor]:
        """H of each class of rounds that a record may be used in, [n_victims, k, k]."""
        parts = [self.revealed[:, c][:, :, victims] for c in schema.classes(self.revealed.shape[1])]
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


def stacked_bytes(n: int, n_rounds: int) -> int:
    """Bytes of L, B and their factors, if everything is read."""
    return 6 * NUMBER * (n * n_rounds) ** 2
