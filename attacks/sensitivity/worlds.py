"""The same round in neighbouring worlds: one record or function differs, and nothing else does.

Worlds share the state before the round, the batches of everybody and every draw of noise, so that
what differs between their messages is the effect of the difference alone. Noise that is added drops
out of the comparison, without the defense being asked where it adds it.

The papers bound a message's sensitivity given all messages before it. Here that history is shared:
a round starts from one state in all worlds, or, where a world keeps a state of its own, its noise
is moved until its messages are those that were observed (`Coupled.replayed`).

Where noise is added is seen while a round is played: a draw is handed out as a tensor that notes
what it is added to. Only the move of noise comes from that. The judgement is on a real step under
real noise, so a draw that is used twice, or a value that is sent without noise too, is not hidden.

All is computed in float64, where rounding is far below any effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.attack import Classification, ConfigError, DpauditError, Streams
from dpaudit.defense import (
    Defense,
    Gradient,
    Mechanism,
    Message,
    Messages,
    Setting,
    ThreatModel,
)
from dpaudit.game.step_inputs import WrappedGradient, refuse_further_batches
from dpaudit.training.classification import Batch, BatchGradient, in_double
from dpaudit.training.sensor_fusion import SensorFusion

from .noise_log import DrawSizes, NoiseLog, RequestedDraw, plain
from .side_effects import watched as watched_beside
from .world_cache import KeptAnswers, UnsentNoise

EVERY_LINK = ThreatModel(name="every link")
LATER_ROUNDS = 4  # later rounds whose oracles are kept
UNIT = 2.0**-53  # largest relative error of one rounding in float64

Key = tuple[int, str]  # a round, and a stream of noise in it
Moves = Mapping[Key, Tensor]  # draw -> what is added to it


class Record(NamedTuple):
    """One record: what data sets differ in."""

    input: Tensor  # [*shape]
    label: Tensor  # []


class PlayedRound(NamedTuple):
    """A round of one world."""

    state: Any
    sent: Messages
    draws: list[RequestedDraw]
    values: dict[str, list[Tensor]]  # stream -> values that its noise was added to, if watched
    drawn: dict[NoiseFamily, DrawSizes] = {}
    beside: tuple[str, ...] = ()  # what was printed, logged, written and opened


@dataclass(eq=False)
class FunctionChange(WrappedGradient):
    """The oracle of a world in which one agent's f has ``slope``' x added to it."""

    victim: int
    slope: Tensor  # [d]

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        rows = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        changed = (rows == self.victim).to(X)[:, None]
        return self.of(X, holders) + changed * self.slope

    per_record = Gradient.per_record  # a function has no records

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
class CoupledWorlds:
    """Plays rounds of a defense in worlds that differ at one agent, the victim."""

    defense: Defense
    problem: Classification | SensorFusion
    setting: Setting
    streams: Streams
    victim: int
    _oracles: dict[int, Gradient] = field(default_factory=dict, init=False, compare=False)
    _noise_kept: list[UnsentNoise] = field(default_factory=list, init=False, compare=False)
    _declared: dict[int, Mechanism] = field(default_factory=dict, init=False, compare=False)

    def looking_at(self, victim: int) -> "CoupledWorlds":
        """The same run with another victim. What was played of it is shared."""
        other = replace(self, victim=victim)
        object.__setattr__(other, "_oracles", self._oracles)
        object.__setattr__(other, "_noise_kept", self._noise_kept)
        object.__setattr__(other, "_declared", self._declared)
        return other

    def declared(self, agent: int) -> Mechanism:
        """What is released of an agent at most in the run, to who reads every link."""
        if agent not in self._declared:
            bracket = self.defense.mechanism(self.setting, EVERY_LINK, agent)
            self._declared[agent] = tuple(bracket.most)  # a plug-in may give a list
        return self._declared[agent]

    def start(self) -> Any:
        """The state before round 1, in float64, the same in all worlds."""
        return self.defense.start(self.problem.initial(self.streams).double(), self.setting)

    def oracle(self, k: int) -> Gradient:
        """The gradients of round k as the run draws its batches."""
        if isinstance(self.problem, Classification):
            return self.batches(k)
        return self.problem.gradient(self.streams, k)

    def kept_oracle(self, k: int) -> Gradient:
        """The same for all worlds that come to this round."""
        kept = self._oracles
        if k not in kept:
            oracle = self.oracle(k)
            kept[k] = KeptAnswers.of(oracle) if isinstance(oracle, BatchGradient) else oracle
            later = [round for round in kept if round > 1]
            if len(later) > LATER_ROUNDS:
                del kept[later[0]]
        return kept[k]

    def kept_batches(self, k: int) -> KeptAnswers:
        """The same where agents hold records. Raises ConfigError if they do not."""
        _ = self.classification
        oracle = self.kept_oracle(k)
        assert isinstance(oracle, KeptAnswers)
        return oracle

    def batches(self, k: int) -> BatchGradient:
        """The same where agents hold records."""
        defense, problem = self.defense, self.classification
        drawn = problem.gradient(self.streams, k, defense.batch_size, defense.drawing)
        inputs, further = drawn.batch.inputs, drawn.draw

        def draw(s: int) -> Batch:
            refuse_further_batches(s, defense.batches_per_round)
            assert further is not None
            return further(s)

        batch = drawn.batch._replace(inputs=in_double(inputs))
        return replace(drawn, batch=batch, draw=draw)

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
        moves: Moves | None = None,
        watched: bool = False,
        flipped: Mapping[str, int] | None = None,
        streams: Streams | None = None,
        levels: Mapping[str, float | Tensor] | None = None,
    ) -> PlayedRound:
        """Round k; ``streams``: of its noise, if they are not those of the run."""
        own = {stream: move for (of, stream), move in (moves or {}).items() if of == k}
        trials, graph = self.defense.models(state).shape[:-2], self.setting.network.at(k)
        noise = NoiseLog(streams or self.streams, k, silent, own, watched, flipped, trials, levels)
        with watched_beside() as beside:
            state, sent, _ = self.defense.step(state, k, graph, oracle, noise)
        if watched:
            state = type(state)(*map(plain, state))
            sent = {name: replace(m, payload=plain(m.payload)) for name, m in sent.items()}
        return PlayedRound(state, sent, noise.draws, noise.values, noise.drawn, beside.texts())

    def own(self, sent: Message) -> Tensor:
        """The rows [..., n_rows, d] of a message that the victim sends."""
        rows, senders = sent.rows.numpy(force=True), sent.senders.numpy(force=True)
        own = sorted({*rows[senders == self.victim].tolist()})  # faster than with torch
        if len(own) == 1:
            return sent.payload[..., own[0] : own[0] + 1, :]
        return sent.payload[..., torch.tensor(own, dtype=torch.long), :]

    def differences(self, here: Messages, there: Messages) -> dict[str, Tensor]:
        """How each message of the victim differs between two worlds, [..., n_rows, d] by name."""
        return {name: self.own(there[name]) - self.own(sent) for name, sent in here.items()}

    def keeps_noise(self, before: int) -> bool:
        """Whether the victim drew more numbers of noise before a round than it sent new ones.

        What is left of them may hide a later message that carries no noise of its round.
        """
        run = self._run()
        while len(run.kept) < before - 1:
            k = len(run.kept) + 1
            self.note_noise(k, self.play(run.state, k, self.oracle(k)))
        return before > 1 and bool(run.kept[before - 2][self.victim])

    def note_noise(self, k: int, played: PlayedRound) -> None:
        """A round of the run, so that ``keeps_noise`` need not play it again."""
        run = self._run()
        if len(run.kept) == k - 1:
            run.note(played.state, sum(d.shape[-1] for d in played.draws), played.sent)

    def _run(self) -> UnsentNoise:
        if not self._noise_kept:
            none = torch.zeros(self.setting.n_agents, dtype=torch.long)
            self._noise_kept.append(UnsentNoise(self.start(), none))
        return self._noise_kept[0]

    def replayed(self, state: Any, k: int, oracle: Gradient, observed: Messages) -> Any | None:
        """This world's state after round k, had its messages been the observed ones.

        Messages are moved by the noise that carries their name and is added to them, as a world
        explains what was observed; None where no such noise can, or where its scale is 0.
        """
        played = self.play(state, k, oracle)
        drawn = {d.stream for d in played.draws if bool(torch.as_tensor(d.scale != 0).all())}
        moves = {
            (k, name): sent.payload - played.sent[name].payload
            for name, sent in observed.items()
            if name in drawn and sent.payload.shape == played.sent[name].payload.shape
        }
        if any(move.any() for move in moves.values()):
            played = self.play(state, k, oracle, moves=moves)
        same = all(
            _close(played.sent[name].payload, sent.payload) for name, sent in observed.items()
        )
        return played.state if same else None


class WatchedRound(NamedTuple):
    """A world as it was played, and the values that its noise was added to."""

    rounds: tuple[PlayedRound, ...]
    values: dict[Key, list[Tensor]]  # draw -> sums that it was added to, in order
    draws: dict[Key, RequestedDraw]

    @property
    def played(self) -> PlayedRound:
        """The last round."""
        return self.rounds[-1]


@dataclass(frozen=True)
class PlayedWorld:
    """A round from a state of its own, and ``lag`` rounds after it, whose last messages count."""

    coupled: CoupledWorlds
    state: Any
    k: int
    oracle: Gradient
    lag: int = 0
    streams: Streams | None = None  # streams of the noise; None: those of the run
    levels: Mapping[str, float | Tensor] | None = None  # values of draws, for ``NoiseLog``
    _before: "PlayedWorld | None" = field(default=None, init=False, compare=False)

    def later(self) -> "PlayedWorld":
        """The same world one round later."""
        world = replace(self, lag=self.lag + 1)
        object.__setattr__(world, "_before", self)
        return world

    @cached_property
    def noisy(self) -> PlayedRound:
        return self._last(silent=False)

    @cached_property
    def quiet(self) -> PlayedRound:
        """Before noise."""
        return self._last(silent=True)

    def _last(self, silent: bool) -> PlayedRound:
        if self._before is None:
            return self._rounds(silent=silent)[-1]
        coupled, state, k = self.coupled, self._before.play(silent).state, self.k + self.lag
        noise: dict[str, Any] = {"streams": self.streams, "levels": self.levels}
        return coupled.play(state, k, coupled.kept_oracle(k), silent, **noise)

    def play(self, silent: bool) -> PlayedRound:
        return self.quiet if silent else self.noisy

    def flipped(self, flipped: Mapping[str, int]) -> PlayedRound:
        """The last round, with some draws reversed along an axis, by stream."""
        return self._rounds(flipped=flipped)[-1]

    def watched(self, moves: Moves) -> WatchedRound:
        """The round with its noise moved, and the values that noise is added to."""
        rounds = self._rounds(moves=moves, watched=True)
        values, draws = dict[Key, list[Tensor]](), dict[Key, RequestedDraw]()
        for k, played in enumerate(rounds, start=self.k):
            values |= {(k, stream): value for stream, value in played.values.items()}
            draws |= {(k, draw.stream): draw for draw in played.draws}
        return WatchedRound(tuple(rounds), values, draws)

    def _rounds(self, **noise: Any) -> list[PlayedRound]:
        """All rounds that are played; ``noise``: the options of ``NoiseLog``."""
        coupled, k = self.coupled, self.k
        noise = {**noise, "streams": self.streams, "levels": self.levels}
        rounds = [coupled.play(self.state, k, self.oracle, **noise)]
        for later in range(k + 1, k + 1 + self.lag):
            rounds.append(
                coupled.play(rounds[-1].state, later, coupled.kept_oracle(later), **noise)
            )
        return rounds


WorldPair = tuple[PlayedWorld, PlayedWorld]


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
        weights = ones(oracle.batch) if weights is None else weights.clone()
        weights[victim, 0] = float(record is not None)
        if alone:
            weights[victim, 1:] = 0.0
    return replace(
        oracle, batch=oracle.batch._replace(inputs=inputs, labels=labels, weights=weights)
    )


def all_without_first(oracle: BatchGradient, there: bool, holders: Sequence[int]) -> BatchGradient:
    """The oracle with the first record of every batch of agents with records, or without it."""
    weights = oracle.batch.weights
    weights = ones(oracle.batch) if weights is None else weights.clone()
    weights[list(holders), 0] = float(there)
    return replace(oracle, batch=oracle.batch._replace(weights=weights))


def ones(batch: Batch) -> Tensor:
    """A weight for each record [n, b]; token ids have no dtype for them."""
    dtype = batch.inputs.dtype if batch.inputs.is_floating_point() else torch.float32
    return torch.ones(batch.labels.shape[:2], dtype=dtype, device=batch.labels.device)


def reordered(oracle: BatchGradient) -> BatchGradient:
    """The same records, every batch in the opposite order."""
    inputs, labels, weights = oracle.batch
    flipped = Batch(inputs.flip(1), labels.flip(1), None if weights is None else weights.flip(1))
    return replace(oracle, batch=flipped)


def moves(
    coupled: CoupledWorlds, pairs: Sequence[WorldPair], silent: bool
) -> list[dict[str, Tensor]]:
    """How each message of the victim differs in each pair, by name; ``silent``: without noise."""
    return [
        coupled.differences(one.play(silent).sent, other.play(silent).sent) for one, other in pairs
    ]


def largest(
    moved: Sequence[Mapping[str, Tensor]], names: Sequence[str], norm: int, weights: Tensor | None
) -> float:
    """How far messages, side by side, move at most in one of these ``moves``.

    Args:
        weights: factors of their coordinates [d].

    Returns: inf where one moves by no number.
    """
    every = (torch.cat([one[name] for name in names], -1) for one in moved)
    weighted = (by if weights is None else by * weights for by in every)
    return max(lengths(by, norm).nan_to_num(inf, inf).item() for by in weighted)


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
