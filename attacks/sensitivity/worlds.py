"""The same round in neighbouring worlds: one record or function differs, and nothing else does.

Worlds share the state before the round, the batches of everybody and every draw of noise, so that
what differs between their messages is the effect of the difference alone. Noise that is added drops
out of the comparison, without the defense being asked where it adds it.

The papers bound a message's sensitivity given all messages before it. Here that history is shared:
a round starts from one state in all worlds, or, where a world keeps a state of its own, its noise
is moved until its messages are those that were observed (`Coupled.replayed`).

All is computed in float64, where rounding is far below any effect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Gradient, Round, Setting
from dpaudit.defense.noise import Noise, Scale
from dpaudit.defense.transcript import Message, Messages
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.rng import Streams
from dpaudit.training.classification import Batch, BatchGradient, Classification
from dpaudit.training.sensor_fusion import SensorFusion

UNIT = 2.0**-53  # largest relative error of one rounding in float64


class Draw(NamedTuple):
    """What a defense asked of its noise."""

    stream: str
    family: str
    shape: torch.Size
    scale: Scale


class Witness(Noise):
    """The noise of a round, noted as it is drawn, and the same in all trials of a stack.

    Args:
        silent: every draw is 0, while scales are what they are: messages before noise.
        moves: what is added to the draws of a stream.
    """

    def __init__(
        self,
        streams: Streams,
        round: int,
        silent: bool = False,
        moves: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(streams, round)
        self.draws: list[Draw] = []
        self._silent, self._moves = silent, moves or {}

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        return self._noted(super().gaussian, Draw(message, "gaussian", like.shape, std), like)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        return self._noted(super().laplace, Draw(message, "laplace", like.shape, scale), like)

    def _noted(
        self, draw: Callable[[str, Scale, Tensor], Tensor], asked: Draw, like: Tensor
    ) -> Tensor:
        self.draws.append(asked)
        if self._silent:
            return torch.zeros_like(like)
        one_trial = like.detach().reshape(-1, *like.shape[-2:])[0]
        drawn = (draw(asked.stream, 1.0, one_trial) * asked.scale).expand_as(like)
        return drawn + self._moves.get(asked.stream, 0.0)


class Record(NamedTuple):
    """One record: what data sets differ in."""

    input: Tensor  # [*shape]
    label: Tensor  # []


class Played(NamedTuple):
    """A round of one world."""

    round: Round
    draws: list[Draw]

    @property
    def sent(self) -> Messages:
        return self.round.sent


@dataclass(frozen=True)
class FunctionChange(Gradient):
    """The oracle of a world in which one agent's f has ``slope``' x added to it."""

    oracle: Gradient
    victim: int
    slope: Tensor  # [d]

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.oracle.batch_size

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        rows = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        changed = (rows == self.victim).to(X)[:, None]
        return self.oracle(X, holders) + changed * self.slope

    def at_step(self, s: int) -> "FunctionChange":
        return replace(self, oracle=self.oracle.at_step(s))

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        """Raises DpauditError: a change of the function is no change of records to clip."""
        raise DpauditError(
            "DPA047",
            "claim.adjacency: function adjacency changes an agent's whole gradient, and this "
            "defense clips the gradients of records",
            "claim add-remove or replace-one",
        )


@dataclass(frozen=True)
class Coupled:
    """Plays rounds of a defense in worlds that differ at one agent, the victim."""

    defense: Defense
    problem: Classification | SensorFusion
    setting: Setting
    streams: Streams
    victim: int

    def start(self) -> Any:
        """The state before round 1, in float64, the same in all worlds."""
        return self.defense.start(self.problem.initial(self.streams).double(), self.setting)

    def oracle(self, k: int) -> Gradient:
        """The gradients of round k as the run draws its batches."""
        if isinstance(self.problem, Classification):
            return self.batches(k)
        return self.problem.gradient(self.streams, k)

    def batches(self, k: int) -> BatchGradient:
        """The same where agents hold records."""
        defense, problem = self.defense, self.classification
        drawn = problem.gradient(self.streams, k, defense.batch_size, defense.drawing)
        inputs = drawn.batch.inputs
        return replace(drawn, batch=drawn.batch._replace(inputs=inputs.double()))

    @property
    def holds_records(self) -> bool:
        return isinstance(self.problem, Classification)

    @property
    def classification(self) -> Classification:
        """The problem, whose agents hold records. Raises ConfigError if they do not."""
        if isinstance(self.problem, Classification):
            return self.problem
        raise ConfigError(
            "DPA047",
            "claim.adjacency: agents hold cost functions and no records to add or replace",
            "claim function adjacency",
        )

    def play(
        self,
        state: Any,
        k: int,
        oracle: Gradient,
        silent: bool = False,
        moves: Mapping[str, Tensor] | None = None,
    ) -> Played:
        noise = Witness(self.streams, k, silent, moves)
        round = self.defense.step(state, k, self.setting.network.at(k), oracle, noise)
        return Played(round, noise.draws)

    def own(self, sent: Message) -> Tensor:
        """The rows [..., n_rows, d] of a message that the victim sends."""
        return sent.payload[..., sent.rows[sent.senders == self.victim].unique(), :]

    def differences(self, here: Messages, there: Messages) -> dict[str, Tensor]:
        """How each message of the victim differs between two worlds, [..., n_rows, d] by name."""
        return {name: self.own(there[name]) - self.own(sent) for name, sent in here.items()}

    def keeps_noise(self, before: int) -> bool:
        """Whether the victim drew more numbers of noise before a round than it sent new ones.

        What is left of them may hide a later message that carries no noise of its round. A message
        that repeats the one of the round before is not new.
        """
        state, drawn, sent = self.start(), 0, 0
        last: dict[str, Tensor] = {}
        for k in range(1, before):
            played = self.play(state, k, self.oracle(k))
            state = played.round.state
            own = {name: self.own(message) for name, message in played.sent.items()}
            drawn += sum(draw.shape[-1] for draw in played.draws)
            sent += sum(
                payload.numel()
                for name, payload in own.items()
                if name not in last or not torch.equal(payload, last[name])
            )
            last = own
        return drawn > sent

    def replayed(self, state: Any, k: int, oracle: Gradient, observed: Messages) -> Any | None:
        """This world's state after round k, had its messages been the observed ones.

        Messages are moved by the noise that carries their name and is added to them, as a world
        explains what was observed; None where no such noise can, or where its scale is 0.
        """
        played = self.play(state, k, oracle)
        drawn = {d.stream for d in played.draws if bool(torch.as_tensor(d.scale != 0).all())}
        moves = {
            name: sent.payload - played.sent[name].payload
            for name, sent in observed.items()
            if name in drawn and sent.payload.shape == played.sent[name].payload.shape
        }
        if any(move.any() for move in moves.values()):
            played = self.play(state, k, oracle, moves=moves)
        same = all(
            _close(played.sent[name].payload, sent.payload) for name, sent in observed.items()
        )
        return played.round.state if same else None


def placed(
    oracle: BatchGradient, victim: int, record: Record | None, alone: bool = False
) -> BatchGradient:
    """The oracle with this record in the first place of the victim's batch, or with nothing there.

    ``alone``: nothing else is in the victim's batch.
    """
    inputs, labels, weights = oracle.batch
    inputs, labels = inputs.clone(), labels.clone()
    if record is not None:
        inputs[victim, 0], labels[victim, 0] = record.input, record.label
    if weights is not None or record is None or alone:
        weights = (
            torch.ones_like(labels, dtype=inputs.dtype) if weights is None else weights.clone()
        )
        weights[victim, 0] = float(record is not None)
        if alone:
            weights[victim, 1:] = 0.0
    return replace(
        oracle, batch=oracle.batch._replace(inputs=inputs, labels=labels, weights=weights)
    )


def reordered(oracle: BatchGradient) -> BatchGradient:
    """The same records, every batch in the opposite order."""
    inputs, labels, weights = oracle.batch
    flipped = Batch(inputs.flip(1), labels.flip(1), None if weights is None else weights.flip(1))
    return replace(oracle, batch=flipped)


@dataclass(frozen=True)
class Candidates(Gradient):
    """Worlds as trials [m]: one candidate record each beside ``oracle``'s, differentiable in it."""

    oracle: BatchGradient  # without the record
    victim: int
    inputs: Tensor  # [m, *shape]
    labels: Tensor  # [m]

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.oracle.batch_size

    @property
    def batch(self) -> Batch:
        """With the first of the candidates, for a defense that counts what it should not."""
        return placed(self.oracle, self.victim, Record(self.inputs[0], self.labels[0])).batch

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.clipped_sum(X, inf, holders) / self.batch_size

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        """Of X [m, n, d]."""
        m, n, d = X.shape
        whose = torch.arange(n, device=X.device) if holders is None else holders
        rows = (whose == self.victim).nonzero().flatten()
        if not len(rows):
            return self._others(X.detach(), clip_norm, holders, norm)
        record = torch.arange(m, device=X.device).repeat_interleave(len(rows))
        added = self.oracle.gradients.clipped_sum(
            X[:, rows].reshape(-1, d), self.inputs[:, None], self.labels[:, None],
            clip_norm, norm, holders=record, create_graph=self.inputs.requires_grad,
        )  # fmt: skip
        others = self._others(X.detach(), clip_norm, holders, norm)
        return others.index_add(-2, rows, added.view(m, -1, d))

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """Of X [m, n, d]: with one record more at the end of each batch, 0 at other agents."""
        n, d = X.shape[1], X.shape[-1]
        at = X if not own else X[..., -1, :]
        whose = torch.arange(n, device=X.device) if holders is None else holders
        rows = (whose == self.victim).nonzero().flatten()
        if not len(rows):
            return torch.stack([self.oracle.per_record(x, holders, own) for x in X.detach()])
        record = torch.arange(len(X), device=X.device).repeat_interleave(len(rows))
        added = self.oracle.gradients.clipped_sum(
            at[:, rows].reshape(-1, d), self.inputs[:, None], self.labels[:, None],
            None, holders=record, create_graph=self.inputs.requires_grad,
        )  # fmt: skip
        last = torch.zeros_like(at).index_add(-2, rows, added.view(len(X), -1, d))
        others = [self.oracle.per_record(x, holders, own) for x in _without_last(X, own)]
        return torch.cat([torch.stack(others), last[..., None, :]], dim=-2)

    def at_step(self, s: int) -> Gradient:
        """The record is in the batch of the first local step alone."""
        return self if s == 0 else self.oracle.at_step(s)

    def _others(self, X: Tensor, clip_norm: float, holders: Tensor | None, norm: int) -> Tensor:
        if torch.equal(X, X[:1].expand_as(X)):  # as at the start of a round: computed once
            sums = self.oracle.clipped_sum(X[0], clip_norm, holders, norm)
            return sums.expand(len(X), *sums.shape)
        return self.oracle.clipped_sum(X, clip_norm, holders, norm)


def _without_last(X: Tensor, own: bool) -> Tensor:
    """Models of the records that all worlds share, without a graph."""
    return (X[..., :-1, :] if own else X).detach()


def stacked(state: Any, m: int) -> Any:
    """A state in m trials. Masks over coordinates are the same for all and have no such axis."""
    return type(state)(*(t.expand(m, *t.shape) if t.is_floating_point() else t for t in state))


def lengths(differences: Tensor, norm: int) -> Tensor:
    """The largest L1 or L2 norm of the rows of [..., n_rows, d], [...]; 0 where there are none."""
    if differences.shape[-2] == 0:
        return differences.new_zeros(differences.shape[:-2])
    return torch.linalg.vector_norm(differences, norm, dim=-1).amax(-1)


def rounding(message: float, part: float, batch_size: int, d: int) -> float:
    """What rounding can add to the norm of a message's difference between two worlds.

    Args:
        message: the norm of the message; in each world at most 8 roundings of this size come
            after the sum over records, 16 in both.
        part: the largest norm of one record's part in it. Sums over a batch of b and norms over d
            coordinates are off by at most (b + d) roundings of all b parts (Higham 2002, section
            4.2).
    """
    return UNIT * (16 * message + (batch_size + d) * batch_size * part)


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two payloads differ by roundings alone: 64 of the size of the largest entry."""
    largest = max(a.abs().max().item(), b.abs().max().item()) if a.numel() else 0.0
    return bool((a - b).abs().le(64 * UNIT * largest).all())
