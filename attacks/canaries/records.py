"""One training run with canaries that are records: mislabelled ones, or crafted ones.

Weaker than canaries with a channel of their own, and nearer to what is in data: their gradients
share the model with all others, so that the score of one is its share of the gradient that the
adversary derives of the victim's batch, summed over rounds.

Source: Steinke, Nasr and Jagielski 2023, arXiv:2305.08846, for the test; Nasr et al. 2021,
arXiv:2101.04535, for mislabelled and crafted records.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.checkpoint import NO_CHECKPOINT, Checkpoint, Progress, joined, under
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import (
    Defense,
    Gradient,
    Observable,
    ObservedGradient,
    Setting,
    Target,
)
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Messages, Transcript, messages_of, tensors_of
from dpaudit.defense.view import View
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.models.gradients import Gradients
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification

from .channels import Evidence

RIDGE = 0.1  # of the canaries' mean squared length: what of the rest is taken for noise

CanaryKind = Literal["mislabelled", "crafted"]


@dataclass(frozen=True, eq=False)
class WithRecords(Gradient):
    """The real oracle, and further records of one agent that are in its batch this round."""

    real: Gradient
    gradients: Gradients
    victim: int
    inputs: Tensor  # [n_canaries, ...]
    labels: Tensor  # [n_canaries]
    drawn: Tensor  # [n_canaries]: 1 if in the batch
    batch_size: int
    later: tuple[Tensor, ...] = ()  # the same of further local steps

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        real = self.real(X, holders)
        return self._added(real, X, holders, inf, 2, 1 / self.batch_size)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        real = self.real.clipped_sum(X, clip_norm, holders, norm)
        return self._added(real, X, holders, clip_norm, norm, 1.0)

    def at_step(self, s: int) -> "WithRecords":
        drawn = self.drawn if s == 0 else self.later[s - 1]
        return replace(self, real=self.real.at_step(s), drawn=drawn)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """With the canaries behind the real records of each batch, 0 at other agents."""
        n = len(self.labels)
        real = self.real.per_record(X[..., :-n, :] if own else X, holders, own)
        at = X[..., -n:, :] if own else X.unsqueeze(-2).expand(*X.shape[:-1], n, X.shape[-1])
        agents = torch.arange(at.shape[-3], device=X.device) if holders is None else holders
        rows = (agents == self.victim).nonzero().flatten()
        each = self.gradients.clipped_sum(
            at[rows].reshape(-1, X.shape[-1]), self.inputs[:, None], self.labels[:, None], None,
            holders=torch.arange(n, device=X.device).repeat(len(rows)),
        ).view(len(rows), n, -1)  # fmt: skip
        last = torch.zeros_like(at).index_add(0, rows, each * self.drawn[:, None].to(X))
        return torch.cat([real, last], dim=-2)

    def _added(
        self,
        real: Tensor,
        X: Tensor,
        holders: Tensor | None,
        clip_norm: float,
        norm: int,
        factor: float,
    ) -> Tensor:
        agents = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        rows = (agents == self.victim).nonzero().flatten()
        total = self.gradients.clipped_sum(
            X[rows],
            self.inputs[None],
            self.labels[None],
            clip_norm,
            norm,
            self.drawn[None].to(X),
            torch.zeros(len(rows), dtype=torch.long, device=X.device),
        )
        return real.index_add(0, rows, factor * total)


class Planted(NamedTuple):
    """Canaries that are records, and the secret of which are there."""

    inputs: Tensor  # [n_canaries, ...]
    labels: Tensor  # [n_canaries]
    included: Tensor  # [n_canaries] bool

    @property
    def n(self) -> int:
        return len(self.labels)


def planted(
    kind: CanaryKind, dataset: Dataset, n: int, rng: np.random.Generator, device: torch.device
) -> Planted:
    """Canaries on the device, each of which is there by its own fair coin."""
    inputs, labels = (t.to(device) for t in records(kind, dataset, n, rng))
    return Planted(inputs, labels, torch.from_numpy(rng.random(n) < 0.5))


def records(
    kind: CanaryKind, dataset: Dataset, n: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs [n, ...] and labels [n]: public records with wrong labels, or extreme pixels.

    Crafted inputs have every coordinate at an end of the data's range, by coin, so that no two of
    them, and no real record, are alike.
    """
    if kind == "mislabelled":
        few = n > len(dataset.x_test)  # then some come twice, and are harder to tell apart
        chosen = torch.from_numpy(rng.choice(len(dataset.x_test), size=n, replace=few))
        wrong = torch.from_numpy(rng.integers(1, dataset.n_classes, size=n))
        return dataset.x_test[chosen], (dataset.y_test[chosen] + wrong) % dataset.n_classes
    low, high = dataset.value_range
    coins = torch.from_numpy(rng.random((n, *dataset.x.shape[1:])) < 0.5)
    inputs = torch.where(coins, high, low).to(dataset.x)
    return inputs, torch.from_numpy(rng.integers(dataset.n_classes, size=n))


def train_with_records(
    defense: Defense,
    problem: Classification,
    setting: Setting,
    threat_model: ThreatModel,
    victim: int,
    kind: CanaryKind,
    n_canaries: int,
    n_rounds: int,
    streams: Streams,
    on_round: OnStep,
    checkpoint: Checkpoint = NO_CHECKPOINT,
) -> Evidence:
    """One run in which each canary is among the victim's records by its own fair coin.

    Evidence is the score less the median score: half of the canaries are guessed to be there.
    Raises ConfigError if messages give no gradient, NotObservable if this view gives none.
    """
    observable, rng = _observable(defense), streams.numpy("canaries")
    canaries = planted(kind, problem.dataset, n_canaries, rng, streams.device)
    rate = min(1.0, defense.batch_size / setting.sizes[victim])
    start = defense.start(problem.initial(streams), setting)
    done, state, before, scores, n_read = _resumed(checkpoint.last(), start, n_canaries)
    per_round = defense.batches_per_round, n_canaries
    rng.random((done, *per_round))  # what the rounds that were played drew
    for k in range(done + 1, n_rounds + 1):
        real = problem.gradient(streams, k, defense.batch_size, defense.drawing)
        drawn = list(canaries.included & torch.from_numpy(rng.random(per_round) < rate))
        oracle = _with_canaries(real, problem, victim, canaries, drawn, defense.batch_size)
        state, sent, *_ = defense.step(state, k, setting.network.at(k), oracle, Noise(streams, k))
        view = _view(threat_model, k, before, sent)
        for derived in _derived(observable, defense, view, setting, victim, k):
            scores += _presence(canaries, derived, problem.gradients, defense.clip_norm_in(k))
            n_read += 1
        before = sent
        checkpoint.keep(partial(_progress, _Heard(k, state, before, scores, n_read)))
        on_round(k, n_rounds)
    if n_read:
        return Evidence((scores - scores.median()).numpy(), canaries.included.numpy())
    raise NotObservable("DPA054", f"{threat_model.name} can derive no gradient of agent {victim}")


class _Heard(NamedTuple):
    """What a round left."""

    round: int
    state: Any
    sent: Messages
    scores: Tensor  # [n_canaries], of all rounds so far
    n_read: int  # gradients that were derived in them


def _progress(now: _Heard) -> Progress:
    sent, scores = tensors_of(now.sent), {"scores": now.scores}
    return Progress(
        joined({"state": now.state._asdict(), "sent": sent, "": scores}), [now.round, now.n_read]
    )


def _resumed(last: Progress | None, start: Any, n_canaries: int) -> _Heard:
    if last is None:
        return _Heard(0, start, {}, torch.zeros(n_canaries, dtype=torch.float64), 0)
    (k, n_read), tensors = last.note, last.tensors
    state = type(start)(**under(tensors, "state"))
    sent, scores = messages_of(under(tensors, "sent")), tensors["/scores"].cpu()
    return _Heard(k, state, sent, scores, n_read)


def _observable(defense: Defense) -> Observable:
    """The first by which a gradient can be derived from messages."""
    if not defense.observables:
        raise ConfigError(
            "DPA052",
            "attack canaries: no gradient can be derived from this defense's messages; use kind = "
            '"gradient"',
        )
    return next(iter(defense.observables.values()))


def _with_canaries(
    real: Gradient,
    problem: Classification,
    victim: int,
    canaries: Planted,
    drawn: list[Tensor],
    batch_size: int,
) -> WithRecords:
    inputs, labels, _ = canaries
    first, *later = (d.to(labels.device) for d in drawn)
    given = real, problem.gradients, victim, inputs, labels, first, batch_size
    return WithRecords(*given, later=tuple(later))


def _presence(
    canaries: Planted, derived: ObservedGradient, gradients: Gradients, clip_norm: float | None
) -> Tensor:
    """How much of each canary's gradient, at the same model, is in a derived one, [n_canaries].

    By ridge regression on all at once, lest canaries that resemble one another are taken for one
    another.
    """
    each = gradients.clipped_sum(
        derived.model.expand(canaries.n, -1),
        canaries.inputs[:, None],
        canaries.labels[:, None],
        clip_norm or inf,
        holders=torch.arange(canaries.n, device=canaries.labels.device),
    )
    return _shares(each.double(), derived.gradient.double()).cpu()


def _shares(each: Tensor, gradient: Tensor) -> Tensor:
    """The ridge regression of a gradient [d] on the rows of each [n_canaries, d]."""
    overlaps = each @ each.T
    ridge = RIDGE * overlaps.diagonal().mean() * torch.eye(len(each)).to(overlaps)
    return torch.linalg.solve(overlaps + ridge, each @ gradient)


def _view(threat_model: ThreatModel, k: int, before: Messages, sent: Messages) -> View:
    """What an adversary holds of round k and the one before it."""
    read = Transcript({k - 1: before, k: sent} if k > 1 else {k: sent})
    return View.of(threat_model, read, {k - 1, k})


def _derived(
    observable: Observable, defense: Defense, view: View, setting: Setting, victim: int, k: int
) -> list[ObservedGradient]:
    """Gradients of the victim and their models, from each link that tells another one."""
    receivers = [i for j, i in view.edges(observable.links, k) if j == victim]
    found = []
    for receiver in receivers if observable.differs_by_link else receivers[:1]:
        try:
            found.append(observable.derive(defense, view, setting, Target(k, victim, receiver)))
        except NotObservable:
            continue
    return found
