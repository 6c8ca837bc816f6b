"""One training run with canaries that are records: mislabelled ones, or crafted ones.

Weaker than canaries with a channel of their own, and nearer to what is in data: their gradients
share the model with all others, so that the score of one is its share of the gradient that the
adversary derives of the victim's batch, summed over rounds. Of a final model it is the share of it
in the way from the initial model, or the log odds of its label where only losses are seen; both are
compared with the same of reference runs.

Source: Steinke, Nasr and Jagielski 2023, arXiv:2305.08846, for the test; Nasr et al. 2021,
arXiv:2101.04535, for mislabelled and crafted records.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attacks.shadow_models.scores import References, is_scored, lira_online
from dpaudit.data.datasets import Dataset
from dpaudit.defense.transcript import messages_of, tensors_of
from dpaudit.game.released_model import ReleasedModel
from dpaudit.models.gradients import Gradients

from .channels import CanaryEvidence

RIDGE = 0.1  # share of the mean squared length of canaries that counts as noise

CanaryKind = Literal["mislabelled", "crafted"]


@dataclass(frozen=True, eq=False)
class WithRecords(dp.Gradient):
    """The real oracle, and further records of one agent that are in its batch this round."""

    real: dp.Gradient
    gradients: Gradients
    victim: int
    inputs: Tensor  # [n_canaries, ...]
    labels: Tensor  # [n_canaries], or [n_canaries, positions]
    drawn: Tensor  # [n_canaries]: 1 if in the batch
    batch_size: int
    later: tuple[Tensor, ...] = ()  # the same of further local steps

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self._added(self.real(X, holders), X, holders, 1 / self.batch_size, inf)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        real = self.real.clipped_sum(X, clip_norm, holders, norm)
        return self._added(real, X, holders, 1.0, clip_norm, norm)

    def at_step(self, s: int) -> "WithRecords":
        drawn = self.drawn if s == 0 else self.later[s - 1]
        return replace(self, real=self.real.at_step(s), drawn=drawn)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """Append the canaries to the real records of each batch, 0 at other agents."""
        n = len(self.labels)
        real = self.real.per_record(X[..., :-n, :] if own else X, holders, own)
        at = X[..., -n:, :] if own else X.unsqueeze(-2).expand(*X.shape[:-1], n, X.shape[-1])
        agents = torch.arange(at.shape[-3], device=X.device) if holders is None else holders
        rows = (agents == self.victim).nonzero().flatten()
        each = self.gradients.clipped_sum(
            at[rows].reshape(-1, X.shape[-1]), self.inputs[:, None], self.labels[:, None], None,
            holders=torch.arange(n, device=X.device).repeat(len(rows)),
        ).view(len(rows), n, X.shape[-1])  # fmt: skip
        last = torch.zeros_like(at).index_add(0, rows, each * self.drawn[:, None].to(X))
        return torch.cat([real, last], dim=-2)

    def _added(
        self, real: Tensor, X: Tensor, holders: Tensor | None, by: float, C: float, norm: int = 2
    ) -> Tensor:
        agents = torch.arange(X.shape[-2], device=X.device) if holders is None else holders
        rows = (agents == self.victim).nonzero().flatten()
        total = self.gradients.clipped_sum(
            X[rows], self.inputs[None], self.labels[None], C, norm,
            self.drawn[None].to(X), torch.zeros_like(rows),
        )  # fmt: skip
        return real.index_add(0, rows, by * total)


def records(
    kind: CanaryKind, dataset: Dataset, n: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs [n, ...] and labels [n]: public records with wrong labels, or extreme pixels.

    Labels at positions, [n, positions], are wrong at each of them.

    Crafted inputs have every coordinate at an end of the data's range, by coin, so that no two of
    them, and no real record, are alike.
    """
    if kind == "mislabelled":
        few = n > len(dataset.x_test)  # then some come twice, and are harder to distinguish
        chosen = torch.from_numpy(rng.choice(len(dataset.x_test), size=n, replace=few))
        shape = n, *dataset.y_test.shape[1:]
        wrong = torch.from_numpy(rng.integers(1, dataset.n_classes, size=shape))
        return dataset.x_test[chosen], (dataset.y_test[chosen] + wrong) % dataset.n_classes
    low, high = dataset.value_range
    is_high = torch.from_numpy(rng.random((n, *dataset.x.shape[1:])) < 0.5)
    inputs = torch.where(is_high, high, low).to(dataset.x)
    shape = n, *dataset.y_test.shape[1:]
    return inputs, torch.from_numpy(rng.integers(dataset.n_classes, size=shape))


def train_with_records(
    context: da.AttackContext,
    threat_model: da.ThreatModel,
    victim: int,
    kind: CanaryKind,
    n_canaries: int,
    n_rounds: int,
    n_references: int,
    on_round: da.OnStep,
) -> CanaryEvidence:
    """One run in which each canary is among the victim's records by its own fair coin.

    Evidence is the score less the median score: half of the canaries are guessed to be there. Of a
    final model it is the log density ratio of the score, by ``n_references`` runs of the adversary
    with coins of their own (`_calibrated`).

    Raises ConfigError if messages give no gradient, NotObservable if this view gives none.
    """
    streams, problem = context.streams, context.problem
    assert isinstance(problem, da.Classification)  # the others were refused
    rng = streams.numpy("canaries")
    inputs, labels = (t.to(streams.device) for t in records(kind, problem.dataset, n_canaries, rng))
    initial = problem.initial(streams)
    read = _reader(context, threat_model, victim, inputs, labels, initial[0])
    played = _Played(context, victim, inputs, labels, initial, n_rounds, read)
    if threat_model.has_final_model:
        return _calibrated(played, rng, n_references, on_round)
    found = played.scored(streams, rng, context.checkpoint, on_round)
    if found is None:
        raise da.NotObservable(
            "DPA054", f"{threat_model.name} can derive no gradient of agent {victim}"
        )
    scores, included = found
    return CanaryEvidence((scores - scores.median()).numpy(), included.numpy())


def _calibrated(
    played: "_Played", rng: np.random.Generator, n: int, on_round: da.OnStep
) -> CanaryEvidence:
    """By runs of the same algorithm on the same records with other coins, batches and noise.

    A final model has moved by all that the real records taught it, which is far more than one
    canary does, and a canary's score says above all how easy it is to learn. The adversary knows
    both, as it knows all other records: it trains ``n`` runs itself, and compares the score with
    those of runs with and without the canary (LiRA, Carlini et al. 2022, arXiv:2112.03570).
    """
    context, runs = played.context, list[tuple[Tensor, Tensor]]()
    for i in range(n + 1):
        own = context.streams.child("reference", i) if i else context.streams
        coins = own.numpy("canaries") if i else rng
        progress = partial(da.step_of_part, on_round, i, n + 1)
        found = played.scored(own, coins, context.checkpoint.stage(i), progress)
        assert found is not None  # a final model is read in every run
        runs.append(found)
    statistics = torch.stack([scores for scores, _ in runs]).numpy()[..., None]
    included = torch.stack([coins for _, coins in runs]).numpy()
    fit = is_scored(included[1:])
    ratios = np.zeros(len(fit))  # 0 if too few runs had the canary, or lacked it: nothing is known
    references = References(statistics[1:, fit], included[1:, fit])
    ratios[fit] = lira_online(statistics[:1, fit], references)[0]
    return CanaryEvidence(ratios, included[0])


class _Played(NamedTuple):
    """What runs with canaries have in common."""

    context: da.AttackContext
    victim: int
    inputs: Tensor  # [n_canaries, ...]
    labels: Tensor  # [n_canaries]
    initial: Tensor  # [n_agents, d]
    n_rounds: int
    read: "Reader"

    def scored(
        self, streams: da.Streams, rng: np.random.Generator, saved: da.Checkpoint,
        on_round: da.OnStep,
    ) -> tuple[Tensor, Tensor] | None:  # fmt: skip
        """Scores [n_canaries], and which canaries were there; None if the view gives no score.

        Args:
            streams: of batches and noise.
            rng: of the coins, and of which batch has which canary.
        """
        context, n, n_rounds = self.context, len(self.labels), self.n_rounds
        defense, setting, problem = context.defense, context.setting, context.problem
        assert isinstance(problem, da.Classification)
        included = torch.from_numpy(rng.random(n) < 0.5)
        rate = min(1.0, defense.batch_size / setting.sizes[self.victim])
        state = defense.start(self.initial, setting)
        done, n_read, scores = 0, 0, torch.zeros(n, dtype=torch.float64)
        before: dp.Messages = {}
        if (last := saved.last()) is not None:
            done, n_read, values, sent, heard = last.parts
            state, before, scores = type(state)(*values), messages_of(sent), heard.cpu()
        per_round = defense.batches_per_round, n
        rng.random((done, *per_round))  # skip what the rounds played so far drew
        for k in range(done + 1, n_rounds + 1):
            real = problem.gradient(streams, k, defense.batch_size, defense.drawing)
            used = (included & torch.from_numpy(rng.random(per_round) < rate)).to(streams.device)
            batch = self.inputs, self.labels, used[0], defense.batch_size, tuple(used[1:])
            oracle = WithRecords(real, problem.gradients, self.victim, *batch)
            noise = dp.Noise(streams, k)
            state, sent, *_ = defense.step(state, k, setting.network.at(k), oracle, noise)
            for found in self.read(k, before, sent, state):
                scores += found
                n_read += 1
            before = sent
            now = partial(da.Progress.of, k, n_read, state, tensors_of(sent), scores)
            (saved.done(now()) if k == n_rounds else saved.keep(now))
            on_round(k, n_rounds)
        return (scores, included) if n_read else None


Reader = Callable[[int, dp.Messages, dp.Messages, Any], Iterator[Tensor]]


def _reader(
    context: da.AttackContext,
    threat_model: da.ThreatModel,
    victim: int,
    inputs: Tensor,
    labels: Tensor,
    initial: Tensor,
) -> Reader:
    """Scores of all canaries, [n_canaries] each, that round k gives an adversary.

    By the round's messages and those before, or by the state after the last round. Raises
    ConfigError: messages give no gradient.
    """
    defense, problem = context.defense, context.problem
    assert isinstance(problem, da.Classification)
    gradients, observables = problem.gradients, tuple(defense.observables.values())
    released = ReleasedModel.playing(defense, model_of=threat_model.model_of)

    def of_final_model(
        k: int, before: dp.Messages, sent: dp.Messages, state: Any
    ) -> Iterator[Tensor]:
        if k < defense.n_rounds:
            return
        (model,) = released.released(state)
        if threat_model.access == "black-box":
            holder = torch.zeros(1, dtype=torch.long, device=model.device)
            yield gradients.log_odds(model[None], inputs[None], labels[None], holder)[0].cpu()
            return
        moved = dp.ObservedGradient(initial - model, model)
        yield _presence(inputs, labels, moved, gradients, defense.clip_norm_in(k))

    def of_messages(k: int, before: dp.Messages, sent: dp.Messages, state: Any) -> Iterator[Tensor]:
        read = dp.Transcript({k - 1: before, k: sent} if k > 1 else {k: sent})
        view = dp.View.of(threat_model, read, {k - 1, k})
        for derived in _derived(observables[0], defense, view, context.setting, victim, k):
            yield _presence(inputs, labels, derived, gradients, defense.clip_norm_in(k))

    if threat_model.has_final_model:
        return of_final_model
    if not observables:
        raise da.ConfigError(
            "DPA052",
            "attack canaries: no gradient can be derived from this defense's messages",
            'use kind = "gradient"',
        )
    return of_messages


def _presence(
    inputs: Tensor,
    labels: Tensor,
    derived: dp.ObservedGradient,
    gradients: Gradients,
    clip_norm: float | None,
) -> Tensor:
    """How much of each canary's gradient, at the same model, is in a derived one, [n_canaries].

    By ridge regression on all at once, lest canaries that resemble one another are taken for one
    another.
    """
    n, model = len(labels), derived.model
    each = gradients.clipped_sum(
        model.expand(n, -1), inputs[:, None], labels[:, None], clip_norm,
        holders=torch.arange(n, device=labels.device),
    ).double()  # fmt: skip
    overlaps = each @ each.T
    ridge = RIDGE * overlaps.diagonal().mean() * torch.eye(n).to(overlaps)
    return torch.linalg.solve(overlaps + ridge, each @ derived.gradient.double()).cpu()


def _derived(
    observable: dp.Observable,
    defense: dp.Defense,
    view: dp.View,
    setting: dp.Setting,
    victim: int,
    k: int,
) -> list[dp.ObservedGradient]:
    """Gradients of the victim and their models, from each link that reveals another one."""
    receivers = [i for j, i in view.edges(observable.links, k) if j == victim]
    found = []
    for receiver in receivers if observable.differs_by_link else receivers[:1]:
        try:
            found.append(observable.derive(defense, view, setting, dp.Target(k, victim, receiver)))
        except da.NotObservable:
            continue
    return found
