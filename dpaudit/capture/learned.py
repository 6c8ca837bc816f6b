"""A score of messages that are not linear in their noise, learned from runs that share noise.

Signs, the largest numbers, rounding, or later steps at noisy weights: no likelihood is known. Runs
in pairs, with a record and without and the same noise, show what the record moves on average. The
score is that of a linear discriminant with a diagonal covariance, of the numbers of the messages,
of which of them are not zero, and of how many there are. Runs that learn it are no runs that it is
tested by, so that what these certify holds, however poor the score is.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array

from .runs import MessageId, ProgramRun

FLOOR = 1e-3  # of the largest variance: what is added to that of a number which seldom moves


class LearnedScore(NamedTuple):
    """About the log likelihood ratio; 0 in all runs if the record moved nothing on average."""

    messages: tuple[MessageId, ...]
    sizes: tuple[int, ...]  # of the messages
    weights: Array  # [sum of 2 * sizes + 1]
    middle: float = 0.0  # of what a run weighs with the record and without, on average

    @classmethod
    def of(
        cls,
        messages: Sequence[MessageId],
        without: Sequence[ProgramRun],
        having: Sequence[ProgramRun],
    ) -> "LearnedScore":
        """Of runs in pairs that share noise."""
        sizes = tuple(len(without[0].messages[m]) for m in messages)
        unlearned = cls(tuple(messages), sizes, np.empty(0))
        sides = [np.stack([unlearned.features(run) for run in some]) for some in (without, having)]
        apart = sides[1].mean(axis=0) - sides[0].mean(axis=0)
        variance = (sides[0].var(axis=0) + sides[1].var(axis=0)) / 2
        floor = FLOOR * variance.max(initial=0.0) or 1.0
        weights = apart / (variance + floor)
        middle = float(weights @ np.concatenate(sides).mean(axis=0))
        return unlearned._replace(weights=weights, middle=middle)

    def features(self, run: ProgramRun) -> Array:
        """The numbers of each message, which of them are not zero, and how many there are."""
        parts: list[Array] = []
        for message, size in zip(self.messages, self.sizes, strict=True):
            numbers = numbers_of(run, message, size)
            n = len(run.messages.get(message, ()))
            parts += [np.nan_to_num(numbers), numbers != 0, np.array([n])]
        return np.concatenate(parts, dtype=float)

    def of_run(self, run: ProgramRun) -> float:
        return float(self.weights @ self.features(run)) - self.middle


def numbers_of(run: ProgramRun, message: MessageId, size: int) -> Array:
    """The first ones that a run sends in a message, [size]; 0 where it sends fewer, or nothing."""
    found = np.zeros(size)
    sent = run.messages.get(message, found)[:size]
    found[: len(sent)] = sent
    return found
