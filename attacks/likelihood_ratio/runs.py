"""The runs that test a claim: those that are counted, and those that choose how."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dpaudit.accounting.privacy_loss import Array
from dpaudit.checkpoint import Checkpoint
from dpaudit.game.game import Game
from dpaudit.game.runs.play import LearnedScore, Worlds, cross_fitted, play
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import from_scores

from .question import Question

BETTER = 0.5  # by which a learned score must certify more than the ratio does, to be taken


@dataclass(frozen=True)
class Score:
    """How runs are scored, chosen by runs that are not counted."""

    choosing: tuple[Array, Array]  # scores of those runs, without and with the record
    learned: LearnedScore | None  # None: by the likelihood ratio

    @classmethod
    def of(cls, delta: float, training: Worlds, streams: Streams) -> "Score":
        """The likelihood ratio, or the learned score where that does better or no ratio is known.

        A score that is learned from the very runs that choose its threshold would look too good
        there, so each of those runs is scored by what the others teach.
        """
        ratio = cls(training.scores, None)
        if not training.without.features.shape[1]:
            return ratio
        held_out, rng = cross_fitted(training), streams.numpy("choice of score")
        by_ratio = from_scores(*training.scores, delta, 0.05, rng)
        by_learned = from_scores(*held_out, delta, 0.05, rng)
        is_known = any(scores.any() for scores in training.scores)
        if is_known and by_learned.value <= by_ratio.value + BETTER:
            return ratio
        return cls(held_out, LearnedScore(training))

    def __call__(self, worlds: Worlds) -> tuple[Array, Array]:
        """Scores of runs without and with the record."""
        if self.learned is None:
            return worlds.scores
        return self.learned(worlds.without), self.learned(worlds.with_record)


class DrawnRuns(NamedTuple):
    """Runs with the record in the batch of one round for certain."""

    round: int
    worlds: Worlds
    score: Score


@dataclass(frozen=True)
class Player:
    """Plays runs of the game of a question, each kind by a name of its own."""

    question: Question
    streams: Streams
    on_round: OnStep
    checkpoint: Checkpoint

    def play(
        self,
        name: str,
        in_round: int | None = None,
        *,
        trials: int,
        game: Game | None = None,
        enough: Callable[[Worlds], bool] | None = None,
    ) -> Worlds:
        """``trials`` runs of each world; ``in_round``: the only one with the record."""
        own, stage = self.streams.child(name), name
        if in_round is not None:
            own, stage = self.streams.child(name, in_round), f"{name}, round {in_round}"
        return play(
            self.question.adversary,
            trials,
            own,
            self.question.in_round if in_round is None else in_round,
            game or self.question.game,
            self.on_round,
            checkpoint=self.checkpoint.stage(stage),
            enough=enough,
        )


class NoiseRuns(NamedTuple):
    """What the noise is tested by."""

    noiseless: Array  # [runs, n], innovations of runs without any record
    drawn: tuple[DrawnRuns, ...]


@dataclass(frozen=True)
class CountedRuns:
    """What was played for all claims that one game tests."""

    counted: Worlds
    score: Score
    silent: Worlds  # without noise
    noise: NoiseRuns

    @property
    def scores(self) -> tuple[Array, Array]:
        """Of the counted runs, without and with the record."""
        return self.score(self.counted)

    @property
    def silent_scores(self) -> tuple[Array, Array]:
        """Of those without noise: by the ratio, if one is known."""
        ratios = self.silent.scores
        return ratios if any(scores.any() for scores in ratios) else self.score(self.silent)
