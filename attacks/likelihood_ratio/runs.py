"""The runs that test a claim: those that are counted, and those that choose how."""

from dataclasses import dataclass

from dpaudit.accounting.privacy_loss import Array
from dpaudit.game.play import LearnedScore, Worlds, cross_fitted
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import from_scores

BETTER = 0.5  # by which a learned score must certify more than the ratio does, to be taken


@dataclass(frozen=True)
class Runs:
    """What was played for all claims that one game tests."""

    counted: Worlds
    scores: tuple[Array, Array]  # of the counted runs, without and with the record
    choosing: tuple[Array, Array]  # of other runs, by which the threshold is chosen
    learned: bool  # whether scores are learned ones
    silent: Worlds  # without noise

    @classmethod
    def of(
        cls, delta: float, counted: Worlds, training: Worlds, silent: Worlds, streams: Streams
    ) -> "Runs":
        """Scores by the likelihood ratio, or by the learned score where that does better.

        A score that is learned from the very runs that choose its threshold would look too good
        there, so each of those runs is scored by what the others teach.
        """
        ratio = cls(counted, counted.scores, training.scores, False, silent)
        if not training.without.features.shape[1]:
            return ratio
        held_out, rng = cross_fitted(training), streams.numpy("choice of score")
        by_ratio = from_scores(*training.scores, delta, 0.05, rng)
        by_learned = from_scores(*held_out, delta, 0.05, rng)
        if by_learned.value <= by_ratio.value + BETTER:
            return ratio
        score = LearnedScore(training)
        scores = score(counted.without), score(counted.with_record)
        return cls(counted, scores, held_out, True, silent)
