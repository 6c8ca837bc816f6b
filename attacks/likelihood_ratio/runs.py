"""The runs that test a claim, those that choose how, and those by which the noise is tested.

No algebra predicts the noise of a step that is not linear in it, and runs in which a record is
seldom in a batch reveal little of it. So further runs have the record in the batch of one round for
certain: the first, and the one that asks for the least noise or, where all ask for as much, the
last. A step size that decays has less noise and hides as much, so what is asked for says where to
look, and the runs say what is so.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

import dpaudit.attack as da
from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import Mechanism
from dpaudit.game.filtering.adversary import Adversary, with_every_link
from dpaudit.game.game import Game
from dpaudit.game.runs.noise_law import declared_of_a_round, hiding_without
from dpaudit.game.runs.play import LearnedScore, Worlds, cross_fitted, play
from dpaudit.game.step_inputs import RecordedNoise
from dpaudit.statistics.bounds import (
    family_from_scores,
    from_scores,
    noise_factor_bound,
    noise_p_value,
)
from dpaudit.statistics.noise_tests import white_noise_test

from .question import Question

BETTER = 0.5  # by how much a learned score must certify more than the ratio to be chosen
TRAINING = 1000  # runs of each world, at least, that choose the score and its threshold
NOISE_RUNS = 100  # of each world, to test the noise if no run is counted
DIFFERENT = 1e-6  # p-value below which noise is not what it should be
NOISE = "noise really drawn"
LESS = 0.99  # times the noise of the first round, from which on it is less


@dataclass(frozen=True)
class RunScore:
    """How runs are scored, chosen by runs that are not counted."""

    choosing: tuple[Array, Array]  # scores of those runs, without and with the record
    learned: LearnedScore | None  # None: by the likelihood ratio

    @classmethod
    def of(cls, delta: float, training: Worlds, streams: da.Streams) -> "RunScore":
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
        if _is_known(training) and by_learned.value <= by_ratio.value + BETTER:
            return ratio
        return cls(held_out, LearnedScore(training))

    def __call__(self, worlds: Worlds) -> tuple[Array, Array]:
        """Scores of runs without and with the record."""
        if self.learned is None:
            return worlds.scores
        return self.learned(worlds.without), self.learned(worlds.with_record)


class CountedScores(NamedTuple):
    """Scores of runs without and with the record."""

    score: RunScore
    scores: tuple[Array, Array]
    silent: tuple[Array, Array]  # scores of runs without noise, by the ratio if it is known


class DrawnScores(NamedTuple):
    """The same of runs with the record in the batch of one round for certain."""

    round: int
    scores: tuple[Array, Array]
    choosing: tuple[Array, Array]  # scores of other runs, which choose the threshold


class PlayedRuns(NamedTuple):
    """What was played for all claims that one game tests."""

    noiseless: Array  # [runs, n], innovations without any record; n = 0: they are not Gaussian
    declared: Mechanism | None  # declared noise, which ``drawn`` is compared with
    drawn: list[DrawnScores]
    counted: CountedScores | None = None


@dataclass(frozen=True)
class GamePlayer:
    """Plays runs of the game of a question, each kind by a name of its own."""

    question: Question
    streams: da.Streams
    on_round: da.OnStep
    checkpoint: da.Checkpoint
    trials: int  # counted runs of each world; 0: none, but some to test the noise
    choosing: int  # runs of each world that choose a score and its threshold

    def runs(self, decided: Callable[[RunScore, Worlds], bool] | None) -> PlayedRuns | str:
        """All that are played, or why there are none.

        Args:
            decided: whether counted runs so far will do, by their score; None: they never will.
        """
        question, game = self.question, self.question.game
        try:
            if not self.trials:  # the noise is tested all the same
                noiseless: Array = np.empty((0, 0))
                if _is_gaussian(question) and question.is_followed:
                    played = self.play("noise", NOISE_RUNS, without_record(game))
                    noiseless = played.without.features
                return self._with_drawn(noiseless)
            score = self._score("training")
            enough = None if decided is None else partial(decided, score)
            counted = self.play("counted", self.trials, enough=enough)
        except da.DpauditError as error:  # no numbers, as of a division by zero that no noise hides
            if isinstance(error, da.RunError) or (self.trials and question.is_followed):
                raise
            return str(error)
        fewer = min(self.trials // 2, len(counted.without.scores))  # runs may have stopped early
        silent = self.play("without noise", fewer, question.adversary.game.without_noise())
        noiseless = counted.without.features
        if game.is_replacement and question.is_followed:
            none = self.play("without a record", fewer, without_record(game))
            noiseless = np.concatenate([none.without.features, none.with_record.features])
        silent_scores = silent.scores if _is_known(silent) else score(silent)
        return self._with_drawn(noiseless, CountedScores(score, score(counted), silent_scores))

    def play(
        self,
        name: str,
        trials: int,
        game: Game | None = None,
        in_round: int | None = None,
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

    def _score(self, name: str, game: Game | None = None, in_round: int | None = None) -> RunScore:
        training = self.play(name, self.choosing, game, in_round)
        return RunScore.of(self.question.delta, training, self.streams)

    def _with_drawn(self, noiseless: Array, counted: CountedScores | None = None) -> PlayedRuns:
        """Runs with the record in one batch for certain, where no algebra covers the noise."""
        question, drawn = self.question, list[DrawnScores]()
        if not _is_gaussian(question):
            noiseless = noiseless[:, :0]
        declared, game = None, replace(question.game, sampling_rate=1.0)
        if not question.is_followed:  # against the strongest adversary, who reads every link
            everybody = with_every_link(question.threat_model)
            declared = declared_of_a_round(question.game, everybody)
        try:
            for k in rounds_of_a_draw(question, self.streams) if declared else ():
                score = self._score("drawn, training", game, k)
                runs = self.play("drawn", self.trials or TRAINING, game, k)
                drawn.append(DrawnScores(k, score(runs), score.choosing))
        except da.DpauditError as error:
            if isinstance(error, da.RunError):
                raise  # an error of the run's folder, not of the runs
            drawn = []  # no numbers
        return PlayedRuns(noiseless, declared, drawn, counted)


def without_record(game: Game) -> Game:
    """The same game, whose world without the record has none: in place of its opposite."""
    return replace(game, length=0.0) if game.is_replacement else game


def rounds_of_a_draw(question: Question, streams: da.Streams) -> list[int]:
    """The first round that uses the record, and the one that asks for least noise, or the last."""
    game = question.game
    if question.in_round is not None:
        return [question.in_round]
    asked: dict[int, dict[str, float]] = {}  # round -> mean standard deviations of its draws
    nobody = torch.zeros(2, dtype=torch.float64, device=streams.device)
    state: Any = game.start(len(nobody), torch.float64, streams.device, game.played)
    for k in range(1, question.adversary.n_rounds + 1):
        noise = RecordedNoise(streams, k)
        with torch.inference_mode():
            state = game.step(state, k, game.played_gradient(nobody), noise).state
        if game.uses(k):
            asked[k] = {name: std.mean().item() for name, std in noise.stds.items()}
    usual = asked[game.first]

    def part(k: int) -> float:
        """The smallest share of the first round's noise that a draw of round k has.

        Of a round with other draws nothing is said: it may have more releases.
        """
        if asked[k].keys() != usual.keys():
            return 1.0
        parts = (std / usual[name] for name, std in asked[k].items() if usual[name])
        return min(parts, default=1.0)

    least = min(asked, key=part)
    other = least if part(least) < LESS else max(asked)
    return list(dict.fromkeys([game.first, other]))


def _is_known(worlds: Worlds) -> bool:
    """Whether the likelihood ratio of runs is known."""
    return any(scores.any() for scores in worlds.scores)


def _is_gaussian(question: Question) -> bool:
    """Whether innovations are Gaussian by the algebra of the adversary."""
    adversary = question.adversary
    return isinstance(adversary, Adversary) and not any(r.has_laplace for r in adversary.rounds)


def noise_findings(
    question: Question, runs: PlayedRuns, player: GamePlayer
) -> Iterator[da.Finding]:
    """The test that the step allows, if there is one."""
    if runs.declared is not None and runs.drawn:
        yield noise_by_runs(question, runs.declared, runs.drawn)
    elif not question.is_followed:
        assert question.nonlinear is not None
        yield no_noise_test(question, question.nonlinear.note)
    elif runs.noiseless.shape[1]:
        found = _noise_control(question, runs.noiseless)
        if found.verdict is not None:
            found = _without_further_noise(question, len(runs.noiseless), player, found) or found
        yield found


def no_noise_test(question: Question, why: str) -> da.Finding:
    """The noise that was really drawn was not tested against what the defense asks for."""
    return question.finding(da.Role.NOISE, NOISE, world="defense", notes=(why,))


def noise_by_runs(
    question: Question, declared: Mechanism, drawn: Sequence[DrawnScores]
) -> da.Finding:
    """Whether runs with the record in the batch are distinguished better than is declared.

    Whatever the step makes of what is released there, no test distinguishes the worlds better
    than as many of the declared releases as there are for each round, of batches that are not drawn
    by chance. That holds of any round.
    """
    adjacency, tests = question.adjacency, []
    for k, scores, choosing in drawn:
        found = family_from_scores(*scores, question.alpha, choosing)
        counts = found.fp, found.fn, found.n0, found.n1
        tests.append((noise_p_value(*counts, declared, adjacency), k, counts))
    least, k, counts = min(tests)
    p, alpha = min(1.0, len(drawn) * least), DIFFERENT / len(drawn)
    factor = noise_factor_bound(*counts, question.delta, alpha, declared, adjacency).noise_factor
    assert question.nonlinear is not None
    n0, n1 = counts[2:]
    notes = (
        question.nonlinear.note,
        f"{n0} runs of each world, with the record in the batch of round {k} for certain; no "
        "test tells them apart better than as many declared releases as there are for each round",
        *(
            f"the same of round {other}, p = {p_other:.2g}: p-values are of {len(drawn)} tests"
            for p_other, other, _ in tests
            if other != k
        ),
    )
    return _tested(question, p, n0 + n1, notes, {da.Name.NOISE_FACTOR: da.Metric(value=factor)})


def _noise_control(question: Question, innovations: Array) -> da.Finding:
    """Whether what is left of the messages is the noise that the defense asked for.

    Args:
        innovations: [runs, n], of runs without a record.
    """
    test, p = white_noise_test(innovations)
    notes = (
        "what the adversary cannot predict of the messages should be independent noise of "
        f"the scale that the defense asks for; most striking: {test}",
        f"differs from it at p < {DIFFERENT:g}" if p < DIFFERENT else "no difference was found",
    )
    return _tested(question, p, len(innovations), notes, {})


def _tested(
    question: Question, p: float, n: int, notes: tuple[str, ...], further: dict[str, da.Metric]
) -> da.Finding:
    return question.finding(
        da.Role.NOISE,
        NOISE,
        world="defense",
        metrics={da.Name.P_VALUE: da.Metric(value=p, n=n), **further},
        verdict=da.Verdict.UNSUPPORTED if p < DIFFERENT else None,
        notes=notes,
    )


def _without_further_noise(
    question: Question, trials: int, player: GamePlayer, alarm: da.Finding
) -> da.Finding | None:
    """The same test of the defense without draws that come on top of enough noise.

    None: the noise differs whatever draws are left out, or hides too little without them.
    """
    game, n_rounds = question.game, question.n_rounds
    real = replace(game.setting, d=game.coordinates, layers=game.layers)
    for fewer in hiding_without(game.defense, real, [question.threat_model], n_rounds):
        silent = replace(game, defense=fewer)
        adversary = Adversary(silent, question.threat_model, n_rounds)
        own = player.streams.child("without draws")
        played = play(adversary, trials, own, question.in_round, without_record(silent))
        innovations = played.without.features
        found = _noise_control(question, innovations)
        if innovations.shape[1] and found.verdict is None:
            p = alarm.metrics[da.Name.P_VALUE].value
            notes = (*found.notes, fewer.note, f"with these draws p = {p:.2g}")
            return found.model_copy(update={"notes": notes})
    return None
