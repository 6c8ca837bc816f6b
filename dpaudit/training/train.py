"""Run a defense for all its rounds and record what was asked for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from dpaudit.checkpoint import Checkpoint, Progress
from dpaudit.defense.contract import (
    Defense,
    Gradient,
    Round,
    Setting,
    named,
    refuse_changed_forms,
)
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Messages, kind_of
from dpaudit.errors import ConfigError, PluginError, RunError
from dpaudit.files.result import Curve
from dpaudit.progress import OnStep
from dpaudit.rng import Streams

from .checkpoints import StoredCheckpoint
from .run_directory import RunDirectory
from .trials import unrecorded

EVALUATIONS = 40  # points of the training curves
TRANSCRIPT_BYTES = 4 * 2**30  # what a world's transcript may take on disk

# Of the curve, by its columns.
Point = tuple[int, list[float], list[float] | None, float, int, int]


class Learning(Protocol):
    """What training needs of a learning problem."""

    loss_is: ClassVar[str]  # what ``evaluate`` gives as the loss

    @property
    def differentiates(self) -> bool:
        """Whether its gradients need automatic differentiation."""
        ...

    def initial(self, streams: Streams) -> Tensor:
        """Initial models, [n_agents, d]."""
        ...

    def gradient(self, streams: Streams, k: int, batch_size: int, sampling: str) -> Gradient:
        """The gradient oracle of round k."""
        ...

    def evaluate(self, X: Tensor) -> tuple[Tensor, Tensor | None]:
        """Loss of each model of X [n_agents, d] and, where there is one, accuracy, [n_agents]."""
        ...


@dataclass(frozen=True)
class Recording:
    """Which messages of which rounds go into the transcript.

    Args:
        messages: round -> names of its messages.
        probes: round -> batch sizes at which that round is also played, once for the transcript
            and with no effect on the run: what would have been sent had every batch been of
            exactly that size.
    """

    messages: Mapping[int, frozenset[str]]
    probes: Mapping[int, frozenset[int]]

    def __or__(self, other: "Recording") -> "Recording":
        """All that either asks for."""
        return Recording(_union(self.messages, other.messages), _union(self.probes, other.probes))

    def write(self, run: RunDirectory, world: str, k: int, sent: Messages) -> None:
        """What round k has for the transcript. Raises ConfigError: it will be too large."""
        if k == 1:
            self.refuse_if_too_large(sent)
        if k in self.messages:
            run.write_messages(world, k, None, _chosen(sent, self.messages[k]))

    def refuse_if_too_large(self, sent: Messages) -> None:
        """Raises ConfigError if the transcript would exceed ``TRANSCRIPT_BYTES``."""
        size = {name: s.payload.numel() * s.payload.element_size() for name, s in sent.items()}
        total = sum(
            sum(size[name] for name in _chosen(sent, names)) * (1 + len(self.probes.get(k, ())))
            for k, names in self.messages.items()
        )
        if total > TRANSCRIPT_BYTES:
            raise ConfigError(
                "DPA022",
                f"attack.rounds: recording {len(self.messages)} rounds takes {total / 2**30:.1f} "
                f"GiB, more than {TRANSCRIPT_BYTES / 2**30:g} GiB; attack fewer rounds, or a "
                "message that is broadcast instead of one for each link",
            )


T = TypeVar("T")

NOTHING_RECORDED = Recording({}, {})


def _union(
    one: Mapping[int, frozenset[T]], other: Mapping[int, frozenset[T]]
) -> dict[int, frozenset[T]]:
    nothing: frozenset[T] = frozenset()
    return {k: one.get(k, nothing) | other.get(k, nothing) for k in (*one, *other)}


def train(
    defense: Defense,
    problem: Learning,
    setting: Setting,
    streams: Streams,
    recording: Recording,
    run: RunDirectory,
    world: str,
    on_round: OnStep,
    evaluations: int = EVALUATIONS,
) -> Curve:
    """Play every round, write the recorded ones, and return the training curves.

    ``evaluations``: points of these, evenly spaced; the last round is always one. Goes on from the
    last checkpoint of this world if the run directory has one; since every stream is named by its
    round, the result is the one of an uninterrupted run.

    Raises:
        RunError: a message or a model is no finite number; whatever would be found on such a run
            would be of the numbers' range and not of the defense.
        PluginError: a message has another width or precision than in the rounds before, or models
            have another shape.
    """
    rounds = _Rounds(defense, problem, setting, streams)
    checkpoint = StoredCheckpoint.of(run.folder, world, run.binding, streams.device)
    state, done, curve, traffic, forms = _resumed(checkpoint, rounds)
    shape = defense.models(state).shape
    every = max(1, defense.n_rounds // evaluations)
    for k in range(done + 1, defense.n_rounds + 1):
        for batch_size in sorted(recording.probes.get(k, ())):
            _write_probe(run, world, rounds, state, k, batch_size, recording.messages[k])
        state, sent = rounds.play(state, k, defense.batch_size, defense.drawing)[:2]
        refuse_changed_forms(defense, k, sent, forms)
        _refuse_other_shape(defense, k, defense.models(state), shape)
        _refuse_unless_finite(world, k, sent, defense.models(state))
        recording.write(run, world, k, sent)
        traffic = traffic.and_of(sent)
        del sent
        if k % every == 0 or k == defense.n_rounds:
            measured = _measured(k, defense, state, problem, setting.network.server)
            curve.append((*measured, *traffic))
        checkpoint.keep(lambda: Progress(state._asdict(), [k, curve, traffic, forms]))  # noqa: B023 (at once)
        on_round(k, defense.n_rounds)
    initial, _ = problem.evaluate(defense.models(rounds.start()))
    return _by_columns(curve, problem.loss_is, initial)


@dataclass(frozen=True)
class _Rounds:
    """One round of all agents, from nothing but the state, the round's number and the seed."""

    defense: Defense
    problem: Learning
    setting: Setting
    streams: Streams

    def start(self) -> Any:
        return self.defense.start(self.problem.initial(self.streams), self.setting)

    def play(self, state: Any, k: int, batch_size: int, sampling: str) -> Round:
        with unrecorded(self.problem.differentiates):
            gradient = self.problem.gradient(self.streams, k, batch_size, sampling)
            graph = self.setting.network.at(k)
            return self.defense.step(state, k, graph, gradient, Noise(self.streams, k))


class _Traffic(NamedTuple):
    """How many messages travelled on links, and the bytes of their payloads as they are here."""

    messages: int = 0
    bytes: int = 0

    def and_of(self, sent: Messages) -> "_Traffic":
        """With those of one more round."""
        messages, size = self
        for message in sent.values():
            links, payload = message.senders.numel(), message.payload
            messages += links
            size += links * payload.shape[-1] * payload.element_size()
        return _Traffic(messages, size)


def _resumed(
    checkpoint: Checkpoint, rounds: _Rounds
) -> tuple[Any, int, list[Point], _Traffic, dict[str, str]]:
    """State, and rounds done, curve, traffic and forms of messages so far.

    From the last checkpoint, or from the start.
    """
    state, last = rounds.start(), checkpoint.last()
    if last is None:
        return state, 0, [], _Traffic(), {}
    done, curve, traffic, forms = last.note
    return type(state)(**last.tensors), done, curve, _Traffic(*traffic), forms


def _write_probe(
    run: RunDirectory,
    world: str,
    rounds: _Rounds,
    state: Any,
    k: int,
    batch_size: int,
    names: frozenset[str],
) -> None:
    """What round k would send of these messages with every batch of this size."""
    sent = rounds.play(state, k, batch_size, "fixed").sent
    run.write_messages(world, k, batch_size, _chosen(sent, names))


def _refuse_other_shape(defense: Defense, k: int, X: Tensor, shape: torch.Size) -> None:
    if X.shape != shape:
        raise PluginError(
            "DPA043",
            f"{named(defense)}: step of round {k} leaves models {list(X.shape)}; expected "
            f"{list(shape)}, as before it",
        )


def _refuse_unless_finite(world: str, k: int, sent: Messages, X: Tensor) -> None:
    payloads = {f'message "{name}"': message.payload for name, message in sent.items()}
    for what, values in {**payloads, "model": X}.items():
        if not _all_finite(values):
            twin = (
                "; or divide by no norm that is 0 where there is no noise, as norm.clamp(min=1e-12)"
            )
            raise RunError(
                "DPA046",
                f"training, {world}: round {k} has a {what} that is infinite or no number, and "
                "nothing can be said of such a run; lower defense.learning_rate, clip_norm or the "
                f"noise, or scale the data{twin if world == 'no-defense' else ''}",
            )


def _all_finite(values: Tensor) -> bool:
    """A sum with a number in it that is none is none; one that overflows is looked into."""
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def _chosen(sent: Messages, names: frozenset[str]) -> Messages:
    """The messages of these names that travel on some link; without links nobody sends it."""
    travels = {name: m for name, m in sent.items() if m.senders.numel()}
    return {name: m for name, m in travels.items() if name in names or kind_of(name) in names}


def _measured(
    k: int, defense: Defense, state: Any, problem: Learning, server: int | None
) -> tuple[int, list[float], list[float] | None, float]:
    """Round, loss and accuracy of each agent, and root mean square distance to the mean.

    With a server its model is every agent's.
    """
    X, evaluated = defense.models(state), defense.evaluated(state)
    if server is not None:
        evaluated = evaluated[server].expand_as(evaluated)
    loss, accuracy = problem.evaluate(evaluated)
    consensus = (X - X.mean(dim=0)).norm(dim=1).square().mean().sqrt()
    shares = None if accuracy is None else accuracy.tolist()
    return k, loss.tolist(), shares, consensus.item()


def _by_columns(curve: list[Point], loss_is: str, initial_loss: Tensor) -> Curve:
    rounds, loss, accuracy, consensus, messages, sizes = zip(*curve, strict=True)
    return Curve(
        rounds=rounds,
        loss=loss,
        loss_is=loss_is,
        accuracy=() if None in accuracy else accuracy,
        consensus_distance=consensus,
        initial_loss=tuple(initial_loss.tolist()),
        messages=messages,
        bytes=sizes,
    )
