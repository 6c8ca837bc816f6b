"""A score of messages that are not linear in their noise, learned from runs that share noise.

Signs, the largest numbers, rounding, or later steps at noisy weights: no likelihood is known. Runs
in pairs, with a record and without and the same noise, show what the record moves on average. The
score is that of a linear discriminant with a diagonal covariance, of the numbers of the messages,
of which of them are zero or finite, and of how many there are. Runs that learn it are no runs that
it is tested by, so that what these certify holds, however poor the score is.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array

from .runs import MessageId, ProgramRun

LARGEST = 1e30  # numbers of messages are clipped to this size
FLOOR = 0.01  # share of a number's mean square move that is added to its variance
ROUNDING = 1e-9  # mean moves below this share of a number's largest value count as zero


class MessageScore(NamedTuple):
    """About the log likelihood ratio; 0 in all runs if the record moved nothing on average."""

    messages: tuple[MessageId, ...]
    sizes: tuple[int, ...]  # number of numbers in each message
    weights: Array  # [sum of 3 * sizes + 1]
    middle: float = 0.0  # mean of the scores with and without the record

    @classmethod
    def of(
        cls,
        messages: Sequence[MessageId],
        without: Sequence[ProgramRun],
        having: Sequence[ProgramRun],
    ) -> "MessageScore":
        """Learn a score from pairs of runs that share noise."""
        sizes = tuple(len(without[0].messages[m]) for m in messages)
        unlearned = cls(tuple(messages), sizes, np.empty(0))
        sides = [np.stack([unlearned.features(run) for run in some]) for some in (without, having)]
        both = np.concatenate(sides)
        apart = sides[1].mean(axis=0) - sides[0].mean(axis=0)
        apart[np.abs(apart) <= ROUNDING * np.abs(both).max(axis=0)] = 0.0
        variance = (sides[0].var(axis=0) + sides[1].var(axis=0)) / 2 + FLOOR * apart**2
        weights = np.divide(apart, variance, out=np.zeros_like(apart), where=apart != 0)
        middle = float(weights @ both.mean(axis=0))
        return unlearned._replace(weights=weights, middle=middle)

    def features(self, run: ProgramRun) -> Array:
        """Features of each message of a run."""
        each = zip(self.messages, self.sizes, strict=True)
        return np.concatenate([features_of(run, message, size) for message, size in each])

    def of_run(self, run: ProgramRun) -> float:
        return float(self.weights @ self.features(run)) - self.middle


def features_of(run: ProgramRun, message: MessageId, size: int) -> Array:
    """The first numbers of a message, which of them are not 0, which are finite, and how many.

    Returns:
        [3 * size + 1]. Numbers that a run does not send, or that are not finite, are 0.
    """
    sent = run.messages.get(message, np.empty(0))
    numbers = np.zeros(size)
    numbers[: len(sent)] = sent[:size]
    finite = np.isfinite(numbers)
    bounded = np.clip(np.where(finite, numbers, 0.0), -LARGEST, LARGEST)
    return np.concatenate([bounded, numbers != 0, finite, [len(sent)]], dtype=float)
