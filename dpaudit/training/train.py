"""Run a defense for all its rounds and record what was asked for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from dpaudit.checkpoint import Progress
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

EVALUATIONS = 20  # points of the training curves: of LeNet, one takes as long as ten rounds
TRANSCRIPT_BYTES = 4 * 2**30  # size of a world's transcript on disk, at most

T = TypeVar("T")


class Learning(Protocol):
    """What training needs of a learning problem."""

    loss_is: ClassVar[str]  # what ``evaluate`` returns as the loss

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
                f"GiB, more than {TRANSCRIPT_BYTES / 2**30:g} GiB",
                "attack fewer rounds, or a message that is broadcast instead of one for each link",
            )


NOTHING_RECORDED = Recording({}, {})


def _union(
    one: Mapping[int, frozenset[T]], other: Mapping[int, frozenset[T]]
) -> dict[int, frozenset[T]]:
    return {k: frozenset((*one.get(k, ()), *other.get(k, ()))) for k in (*one, *other)}


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

    ``evaluations``: points of these at most, evenly spaced; the last round is always one. Goes on
    from the last checkpoint of this world if the run directory has one; since every stream is named
    by its round, the result is the one of an uninterrupted run.

    Raises:
        RunError: a message or a model is no finite number; whatever would be found on such a run
            would be of the numbers' range and not of the defense.
        PluginError: a message has another width or precision than in the rounds before, or models
            have another shape.
    """

    play = partial(play_round, defense, problem, setting, streams)

    def start() -> Any:
        return defense.start(problem.initial(streams), setting)

    checkpoint = StoredCheckpoint.of(run, world, run.binding, streams.device)
    state, last = start(), checkpoint.last()
    # curve: a row for each point, with the columns of ``Curve``; traffic: messages and bytes so far
    done, curve, traffic, forms = (0, [], [0, 0], {}) if last is None else last.note
    if last is not None:
        state = type(state)(**last.tensors)
    shape = defense.models(state).shape
    every = -(-defense.n_rounds // evaluations)
    for k in range(done + 1, defense.n_rounds + 1):
        for batch_size in sorted(recording.probes.get(k, ())):
            sent = play(state, k, batch_size, "fixed").sent
            run.write_messages(world, k, batch_size, _chosen(sent, recording.messages[k]))
        state, sent = play(state, k, defense.batch_size, defense.drawing)[:2]
        refuse_changed_forms(defense, k, sent, forms)
        _refuse_other_shape(defense, k, defense.models(state), shape)
        _refuse_unless_finite(world, k, sent, defense.models(state))
        if k == 1:
            recording.refuse_if_too_large(sent)
        if k in recording.messages:
            run.write_messages(world, k, None, _chosen(sent, recording.messages[k]))
        traffic = _with_traffic(traffic, sent)
        del sent
        if k % every == 0 or k == defense.n_rounds:
            point = _measured(defense, state, problem, setting.network.server)
            curve.append((k, *point, *traffic))
        checkpoint.keep(lambda: Progress(state._asdict(), [k, curve, traffic, forms]))  # noqa: B023 (at once)
        on_round(k, defense.n_rounds)
    initial_loss, _ = problem.evaluate(defense.models(start()))
    return _by_columns(curve, problem.loss_is, initial_loss)


def _by_columns(curve: list[Any], loss_is: str, initial_loss: Tensor) -> Curve:
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


def play_round(
    defense: Defense,
    problem: Learning,
    setting: Setting,
    streams: Streams,
    state: Any,
    k: int,
    batch_size: int,
    sampling: str,
) -> Round:
    """One round of all agents, from nothing but the state, the round's number and the seed."""
    with unrecorded(problem.differentiates):
        gradient = problem.gradient(streams, k, batch_size, sampling)
        return defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k))


def _with_traffic(traffic: Sequence[int], sent: Messages) -> list[int]:
    """Messages that travelled on links, and bytes of their payloads, with one more round."""
    messages, size = traffic
    for message in sent.values():
        links, payload = message.senders.numel(), message.payload
        messages += links
        size += links * payload.shape[-1] * payload.element_size()
    return [messages, size]


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
        # a sum with a number in it that is none is none; one that overflows is looked into
        if not math.isfinite(values.sum().item()) and not torch.isfinite(values).all():
            twin = "; or divide by no norm that is 0 without noise, as norm.clamp(min=1e-12)"
            raise RunError(
                "DPA046",
                f"training, {world}: round {k} has a {what} that is infinite or no number, and "
                "nothing can be said of such a run",
                "lower defense.learning_rate, clip_norm or the "
                f"noise, or scale the data{twin if world == 'no-defense' else ''}",
            )


def _chosen(sent: Messages, names: frozenset[str]) -> Messages:
    """The messages of these names that travel on some link; without links nobody sends it."""
    travels = {name: m for name, m in sent.items() if m.senders.numel()}
    return {name: m for name, m in travels.items() if name in names or kind_of(name) in names}


def _measured(
    defense: Defense, state: Any, problem: Learning, server: int | None
) -> tuple[list[float], list[float] | None, float]:
    """Loss and accuracy of each agent, and root mean square distance to the mean.

    With a server its model is every agent's.
    """
    X, evaluated = defense.models(state), defense.evaluated(state)
    if server is not None:
        evaluated = evaluated[server].expand_as(evaluated)
    loss, accuracy = problem.evaluate(evaluated)
    consensus = (X - X.mean(dim=0)).norm(dim=1).square().mean().sqrt()
    return loss.tolist(), None if accuracy is None else accuracy.tolist(), consensus.item()
