"""The law of what a small run shows, from nothing but its steps: no accounting and no game.

A step whose messages are affine in its noise is probed with one unit draw at a time. A view is then
a + B z, with standard draws z that the adversary does not know. Two worlds, which are two lists of
records at one agent, move a. All models are of one coordinate unless layers are given.
"""

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.optimize import brentq, linprog
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm
from torch import Tensor

from dpaudit.defense.contract import Defense, Gradient, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Message
from dpaudit.files.threat import ThreatModel

MOST_PATTERNS = 1 << 8  # of signs, which are tried all; of more, so many random ones
NOTHING = 1e-13  # of the largest value that an observation has: rounding
RANK = 1e-9  # of the largest singular value: below it a combination of messages has no noise
LONG = 1e3  # a gradient above every clip norm
REACH = 12.0  # standard deviations beyond which an integral ends

Records = tuple[float, ...]  # the gradient of each record of the victim, times a sign
Mixture = dict[float, float]  # shift -> probability


@dataclass
class Probed(Noise):
    """Draws of a round that are given: [trials, all draws of the run], in the order asked for."""

    k: int
    values: Tensor
    asked: dict[tuple[int, str], tuple[int, str, Tensor]]  # offset, family, agents that know a row
    known_to: dict[str, Tensor] = field(default_factory=dict)

    def gaussian(self, message, std, like):
        return self._drawn(message, "gaussian", std, like)

    def laplace(self, message, scale, like):
        return self._drawn(message, "laplace", scale, like)

    def _drawn(self, message, family, std, like):
        if not isinstance(std, Tensor) and std == 0:
            return torch.zeros_like(like)
        rows, d = like.shape[-2:]
        key = self.k, message
        if key not in self.asked:
            offset = sum(t.shape[0] for *_, t in self.asked.values())
            known = self.known_to.get(message, torch.arange(rows)[:, None])
            self.asked[key] = offset, family, known.repeat_interleave(d, dim=0)
        offset = self.asked[key][0]
        if self.values.shape[1] < offset + rows * d:
            return torch.zeros_like(like)
        drawn = self.values[:, offset : offset + rows * d].reshape(-1, rows, d)
        return drawn * std + torch.zeros_like(like)


@dataclass(frozen=True)
class OfRecords(Gradient):
    """Gradients of the victim's records at any model, which another model may turn around."""

    victim: int
    records: Records
    batch_size: int
    signs: Tensor  # [trials, rounds, steps, queries]
    k: int
    again: bool = False  # whether a second query is at the model of the step before
    s: int = 0

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        d, rows = X.shape[-1], X.shape[-3 if own else -2]
        agents = torch.arange(rows) if holders is None else holders
        trials = max(len(self.signs), len(X))
        each = torch.zeros(trials, rows, len(self.records), d, dtype=X.dtype)
        for q, row in enumerate((agents == self.victim).nonzero().flatten().tolist()):
            each[:, row] = self._sign(q)[:, None, None] * torch.tensor(self.records)[:, None]
        return each

    def _sign(self, q: int) -> Tensor:
        k, s = self.k - 1, self.s
        if self.again and q == 1:
            q, (k, s) = 0, ((k, s - 1) if s else (k - 1, self.signs.shape[2] - 1))
        return self.signs[:, k, s, q]

    def __call__(self, X, holders=None):
        return self.per_record(X, holders).sum(-2) / self.batch_size

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        each = self.per_record(X, holders)
        length = torch.linalg.vector_norm(each, norm, dim=-1, keepdim=True)
        return (each * (clip_norm / length.clamp(min=1e-300)).clamp(max=1)).sum(-2)

    def at_step(self, s):
        return replace(self, s=s)


@dataclass(frozen=True)
class Run:
    """A calibrated defense, and the agent whose records are another's to guess."""

    defense: Defense
    setting: Setting
    victim: int
    queries: int = 1  # models at which one batch is asked for its gradient
    again: bool = False

    def patterns(self) -> Tensor:
        """Signs of a record's gradient at each model that it meets, [trials, rounds, steps, q]."""
        shape = self.defense.n_rounds, self.defense.batches_per_round, self.queries
        n = math.prod(shape)
        if 1 << n <= MOST_PATTERNS:
            every = torch.tensor(list(itertools.product((1.0, -1.0), repeat=n)))
        else:
            generator = torch.Generator().manual_seed(0)
            every = torch.randint(2, (MOST_PATTERNS, n), generator=generator) * 2.0 - 1
            every[0] = 1
        return every.double().view(-1, *shape)

    def play(self, records: Records, signs: Tensor, values: Tensor, asked: dict) -> list:
        """The messages of each round, of as many trials as signs and values have."""
        trials, n, d = max(len(signs), len(values)), self.setting.n_agents, self.setting.d
        padded = (*records, *[0.0] * (self.defense.batch_size - len(records)))
        state = self.defense.start(torch.zeros(trials, n, d, dtype=torch.float64), self.setting)
        sent = []
        for k in range(1, self.defense.n_rounds + 1):
            oracle = OfRecords(self.victim, padded, self.defense.batch_size, signs, k, self.again)
            done = self.defense.step(
                state, k, self.setting.network.at(k), oracle, Probed(k, values, asked)
            )
            state = done.state
            sent.append(done.sent)
        return sent

    def seen(self, threat_model: ThreatModel, sent: list, trials: int) -> Tensor:
        """What the adversary reads, [trials, observations]."""
        read = []
        for messages in sent:
            for message in messages.values():
                edges = [e for e, link in enumerate(_links(message)) if _reads(threat_model, *link)]
                payload = message.payload[..., message.rows[edges], :]
                read.append(payload.reshape(*payload.shape[:-2], -1).expand(trials, -1))
        return torch.cat(read, dim=-1) if read else torch.zeros(trials, 0, dtype=torch.float64)


@dataclass(frozen=True)
class View:
    """The observations that are affine in the noise, as far as they depend on anything."""

    B: Tensor  # [observations, draws that the adversary does not know]
    laplace: bool
    affine: Tensor  # [all observations] bool: which they are of all
    run: Run
    threat_model: ThreatModel

    @classmethod
    def of(cls, run: Run, threat_model: ThreatModel, records: Records) -> "View":
        """Probed with these records, and with none."""
        constant = run.patterns()[:1]
        asked: dict = {}
        nothing = torch.zeros(1, 0, dtype=torch.float64)
        run.play(records, constant, nothing, asked)
        m = sum(len(known) for *_, known in asked.values())
        generator = torch.Generator().manual_seed(1)
        at_random = torch.randn(3, m, generator=generator, dtype=torch.float64)
        values = torch.cat([torch.zeros(1, m), torch.eye(m), at_random]).double()

        def played(records: Records) -> tuple[Tensor, Tensor]:
            sent = run.play(records, constant, values, asked)
            view = run.seen(threat_model, sent, len(values))
            moved = view[1:] - view[:1]
            size = view.abs().amax(0).clamp(min=1e-300)
            off = (moved[m:] - at_random @ moved[:m]).abs().amax(0)
            B = torch.where(moved[:m].abs() > NOTHING * size, moved[:m], 0.0).T
            return B, off <= 1e-9 * size

        B, affine = played(records)
        also, affine_too = played((0.0,) * len(records))
        affine = affine & affine_too & (_largest(B - also) <= 1e-9 * _largest(B))
        unknown = torch.cat([torch.zeros(0).bool(), *(
            ~_known(*key, known, run, threat_model) for key, (_, _, known) in asked.items()
        )])  # fmt: skip
        families = {family for _, family, _ in asked.values()}
        return cls(B[affine][:, unknown], families == {"laplace"}, affine, run, threat_model)

    def shifts(self, one: Records, other: Records) -> Tensor:
        """By how much two worlds differ, for all patterns of signs, [patterns, observations]."""
        signs = self.run.patterns()
        nothing = torch.zeros(1, 0, dtype=torch.float64)
        first, second = (
            self.run.seen(self.threat_model, self.run.play(r, signs, nothing, {}), len(signs))
            for r in (one, other)
        )
        size = torch.maximum(first.abs(), second.abs())
        moved = first - second
        return torch.where(moved.abs() > NOTHING * size, moved, 0.0)[:, self.affine]

    def size(self, one: Records, other: Records) -> float:
        """mu of the worst signs, or of Laplace noise their loss; infinite where none hides them.

        Both are of the least draws z with B z = shift. Of Laplace noise that is exact: far out
        along -shift, densities fall by what the least norm is, so that losses come as near to it
        as one likes.
        """
        shifts = self.shifts(one, other)
        shifts = shifts[shifts.abs().amax(1) > 0] if shifts.numel() else shifts[:0]
        if not len(shifts):
            return 0.0
        least, hidden = self.least_draws(shifts)
        if not hidden.all():
            return math.inf
        if not self.laplace:
            return float(least.norm(dim=1).max())
        return max(_least_l1(self.B, shift) for shift in shifts)

    def least_draws(self, shifts: Tensor) -> tuple[Tensor, Tensor]:
        """In L2 norm, [shifts, draws], and whether they do the same as each shift."""
        rows = torch.maximum(_largest(self.B), _largest(shifts.T))
        scale = torch.where(rows > 0, rows, 1.0)
        B, a = self.B / scale[:, None], shifts / scale
        U, S, Vh = torch.linalg.svd(B, full_matrices=False)
        kept = RANK * max(S.tolist(), default=0.0) < S
        U, S, Vh = U[:, kept], S[kept], Vh[kept]
        along = a @ U
        left = (a - along @ U.T).norm(dim=1)
        return along / S @ Vh, left <= 1e-7 * a.norm(dim=1)


def _least_l1(B: Tensor, shift: Tensor) -> float:
    """The least L1 norm of z with B z = shift."""
    used = _largest(B) > 0
    scale = _largest(B)[used]
    A, b = (B[used] / scale[:, None]).numpy(), (shift[used] / scale).numpy()
    found = linprog(np.ones(2 * A.shape[1]), A_eq=np.hstack([A, -A]), b_eq=b, method="highs")
    assert found.status == 0, found.message
    return float(found.fun)


def _links(message: Message) -> list[tuple[int, int, int | None]]:
    """Sender, receiver, and the one agent that can read it if it travels encrypted."""
    n = len(message.senders)
    readers = [None] * n if message.readers is None else message.readers.tolist()
    return list(zip(message.senders.tolist(), message.receivers.tolist(), readers, strict=True))


def _reads(threat_model: ThreatModel, sender: int, receiver: int, reader: int | None) -> bool:
    seen = threat_model.sees(sender, receiver)
    return seen and (reader is None or bool({reader, sender} & {*threat_model.agents}))


def _largest(rows: Tensor) -> Tensor:
    return rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))


def _known(k: int, message: str, known: Tensor, run: Run, threat_model: ThreatModel) -> Tensor:
    """Which rows of a draw the adversary's agents know: their own, those of their links.

    A draw for each link is known by its rows, on graphs with more or fewer links than agents.
    """
    graph, n, d = run.setting.network.at(k), run.setting.n_agents, run.setting.d
    if known.shape == (graph.n_edges * d, 1) and graph.n_edges != n:
        known = graph.senders.repeat_interleave(d)[:, None]
    agents = torch.tensor(threat_model.agents, dtype=torch.long)
    return torch.isin(known, agents).any(1)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Of N(0, 1) against N(mu, 1); Balle and Wang 2018, equation (6)."""
    if mu == 0 or mu == math.inf:
        return mu

    def excess(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(ndtr(a) - np.exp(epsilon + log_ndtr(b))) - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, mu * (mu + 40), xtol=1e-13))


def hockey_stick(one: Mixture, other: Mixture, epsilon: float) -> float:
    """delta at epsilon of two mixtures of N(shift, 1)."""
    shifts = [*one, *other]
    x = np.linspace(min(shifts) - REACH, max(shifts) + REACH, 40_001)

    def density(mixture: Mixture) -> np.ndarray:
        return sum((p * norm.pdf(x - shift) for shift, p in mixture.items()), np.zeros_like(x))

    beyond = np.maximum(density(one) - np.exp(epsilon) * density(other), 0.0)
    return float(beyond.sum() * (x[1] - x[0]))
