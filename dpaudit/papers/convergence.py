"""Figures of convergence: training loss and test accuracy by round, and what single rounds show."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient, Round
from dpaudit.defense.noise import Noise
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification, n_evaluated
from dpaudit.training.loaded_problem import Problem

from .accuracy import ACCURACY, CURVE, POINTS, percent, prepared_of, trained
from .experiment import Around, Measured, Settings

LOSS = "training loss by round"
LEAST = "training loss, least of these rounds"


@dataclass(frozen=True)
class TrainingLoss:
    """A learning problem that is evaluated by the loss on its first training records.

    Accuracy is that on test records. 2,000 records at most, as many as test records.
    """

    problem: Classification
    loss_is: ClassVar[str] = "training loss"

    @property
    def differentiates(self) -> bool:
        return self.problem.differentiates

    def initial(self, streams: Streams) -> Tensor:
        return self.problem.initial(streams)

    def gradient(self, streams: Streams, k: int, batch_size: int, sampling: str) -> Gradient:
        return self.problem.gradient(streams, k, batch_size, sampling)

    def evaluate(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Training loss and test accuracy of each model of X [n_agents, d], both [n_agents]."""
        data, n = self.problem.dataset, n_evaluated(len(X))
        holders = torch.zeros(len(X), dtype=torch.long, device=X.device)
        x, y = data.x[None, :n].to(X.device), data.y[None, :n].to(X.device)
        loss, _ = self.problem.gradients.evaluate(X, x, y, holders)
        return loss, self.problem.evaluate(X)[1]


def convergence(settings: Settings, seed: int, around: Around) -> Iterator[Measured]:
    """Test accuracy and training loss at each of some rounds, the last of one, the least of other.

    Means over agents. Raises as ``accuracy``.
    """
    found = trained(settings, seed, around, POINTS, _by_training_loss)
    losses = [fmean(agents) for agents in found.loss]
    for k, agents, loss in zip(found.rounds, found.accuracy, losses, strict=True):
        yield Measured(CURVE, percent(agents), at=k)
        yield Measured(LOSS, loss, at=k)
    yield Measured(ACCURACY, percent(found.accuracy[-1]))
    yield Measured(LEAST, min(losses))


def _by_training_loss(problem: Problem) -> TrainingLoss:
    assert isinstance(problem, Classification)  # accuracy is that of classifiers
    return TrainingLoss(problem)


def played(settings: Settings, seed: int, around: Around) -> Iterator[Round]:
    """Every round in turn, with what agents keep to themselves. Nothing of it is kept on disk."""
    prepared, world = prepared_of(settings, seed, around)
    defense, setting = prepared.defenses[world], prepared.setting
    problem, streams = prepared.learned.problem, prepared.streams
    with torch.no_grad():
        state = defense.start(problem.initial(streams), setting)
        for k in range(1, defense.n_rounds + 1):
            gradient = problem.gradient(streams, k, defense.batch_size, defense.drawing)
            round = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k))
            yield round
            state = round.state
            around.on_step(k, defense.n_rounds)
