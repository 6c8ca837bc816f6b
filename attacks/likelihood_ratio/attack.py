"""Empirical epsilon: which world a run came from, told by the strongest adversary of a view."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from dpaudit.attack.contract import Attack, AttackContext, InvalidOption, Significance, too_long
from dpaudit.defense.claim_accounting import claimed_delta
from dpaudit.errors import DpauditError, RunError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.probing.playable_dimension import PLAYED, fewest_coordinates
from dpaudit.game.runs.further_noise import hiding_without
from dpaudit.game.runs.play import ProjectionAdversary, Worlds, play
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.game.worst_case.layers import in_layers
from dpaudit.game.worst_case.record import coordinates
from dpaudit.progress import OnStep
from dpaudit.training.costs import seconds_of

from .agents import as_asked, states_distances
from .asking import WORK, Asking
from .bound import best_of, certified_bound, is_decided, power_of, untested
from .certain import declared_of_a_draw, noise_by_runs, rounds_of_a_draw
from .controls import (
    no_noise_test,
    noise_control,
    null_control,
    positive_control,
)
from .exact import exact_leak
from .matched import matched_bound
from .question import Question
from .runs import CountedRuns, DrawnRuns, NoiseRuns, Player, Score

LONG = 10  # times as much, which a round may take where a step needs many coordinates
TRAINING = 1000  # runs of each world, at least, that choose the score and its threshold
FEWEST = 40  # runs of each world that can be counted
NOISE_RUNS = 100  # of each world, by which noise is tested where no run is counted
ALGEBRA = 10**9  # products, about, in which rounds are followed where no run is counted
MOST_ROUNDS = 200  # that are followed there

UNKNOWN_DRAWS = (
    "the graph is drawn anew in every round and the adversary does not know the draws; runs are "
    "played with the draws of this audit, which its scores would know"
)

FIRST, RUNS = 2, 400  # rounds and runs that are timed
MEASURED = 400  # numbers that a view has of a round, beyond which fewer runs are timed
ADVERSARIES = 3  # that are made for a question
JUDGED = 1.5  # seconds for bounds and controls


class LikelihoodRatio(Attack):
    """Plays the canary game many times and bounds epsilon from how often the adversary errs.

    The scores are log likelihood ratios under the noise that the defense asks for; where a score
    learned from other runs tells the worlds apart better, that one is taken. Those other runs
    choose threshold and direction too, so that errors are counted on all ``trials``. Rounds beyond
    the first ``n_rounds`` are left out, which only loses power: what a part of a run leaks, it
    leaks. With ``stop_early`` claims are tested by bets, which allow that, and not by the number of
    errors in all ``trials``. Claims that are tested by the same game, as those that differ in
    epsilon alone, share their runs; what is found on a claim does not depend on which others there
    are, but that runs which stop early go on until all are decided. With ``candidates`` the same
    runs also tell how often one of so many is found out (``matched``).

    With ``trials = 0`` no run is counted and nothing is certified: there is the exact leak, and
    the test of the noise by a few runs. Every audit with a claim has these.
    """

    trials: NonNegativeInt = 2000  # runs of each world that are counted; 0: the exact leak alone
    n_rounds: PositiveInt | None = None  # the first ones, that are played; None: what 20 s take
    alpha: Significance = 0.05  # of a false lower bound
    stop_early: bool = False  # as soon as bets have refuted all claims that the runs test
    candidates: Annotated[int, Field(ge=2)] | None = None  # to be matched; None: none are

    @field_validator("trials")
    @classmethod
    def _are_none_or_enough(cls, trials: int) -> int:
        if 0 < trials < FEWEST:
            raise ValueError(
                f"{trials} trials certify nothing; expected {FEWEST} or more, or 0 for the exact "
                "leak alone"
            )
        return trials

    @model_validator(mode="after")
    def _candidates_fit_into_the_trials(self) -> Self:
        if self.candidates is not None and self.trials < 20 * (self.candidates - 1):
            raise ValueError(
                f"{self.candidates} candidates are matched {self.trials // (self.candidates - 1)} "
                f"times in {self.trials} trials; expected trials = {20 * (self.candidates - 1)} at "
                "the least, for 20 times"
            )
        if self.candidates is not None and self.stop_early:
            raise ValueError("candidates are matched in all trials; leave out one of the two")
        return self

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[InvalidOption]:
        return too_long(self.n_rounds, n_rounds)

    def power(
        self, context: AttackContext, threat_model: ThreatModel, patience: float = inf
    ) -> Iterator[tuple[int, Mapping[str, Metric]]]:
        """By the leak of the first rounds that the runs would play."""
        if not self.trials:
            return
        derived = patience == inf or self._is_derived(context, threat_model, patience)
        asking = self._asking(context, threat_model)
        for index, claim in _claimed(context, threat_model).items():
            if not derived:
                if _is_tested(asking, claim):
                    yield index, best_of(claim, self.trials, self.alpha, self.stop_early)
                continue
            question = asking.question(index, claim)
            if question is not None and not question.guesses:
                yield index, power_of(question, self.trials)

    def _is_derived(
        self, context: AttackContext, threat_model: ThreatModel, patience: float
    ) -> bool:
        """Whether following its rounds takes no more seconds than this, about."""
        game = self._largest_game(context, threat_model)
        if game is None or _is_large(GameShape.of(game, threat_model)):
            return game is None
        n_rounds = self._asking(context, threat_model).rounds(game.played)
        return n_rounds * _seconds_of_a_round(game, threat_model) <= patience

    def _largest_game(self, context: AttackContext, threat_model: ThreatModel) -> Game | None:
        """That of any honest agent, if something is claimed of one."""
        defense, setting = context.defense, context.setting
        honest = next((i for i in setting.holders if i not in threat_model.agents), None)
        if honest is None or not context.claims:
            return None
        game = in_layers(Game.of(defense, setting, honest, "add-remove"))
        fewest = fewest_coordinates(game)
        if fewest > 1:
            return replace(game, width=fewest)
        return replace(game, spread=min(coordinates(game), PLAYED))

    def measure(
        self, context: AttackContext, threat_model: ThreatModel, on_step: OnStep
    ) -> list[Finding]:
        claims = _claimed(context, threat_model)
        alike: dict[object, list[int]] = {}
        for index, claim in claims.items():
            alike.setdefault(_game_of(claim), []).append(index)
        asking = self._asking(context, threat_model)
        found: dict[int, list[Finding]] = {}
        for i, indices in enumerate(alike.values()):

            def on_round(done: int, total: int, i: int = i) -> None:
                on_step(i * total + done, len(alike) * total)

            first = asking.question(indices[0], claims[indices[0]])
            if first is None:
                continue
            asked = [replace(first, index=j, claim=claims[j]) for j in indices]
            player = Player(first, asking.streams, on_round, context.checkpoint.stage(i))
            runs = self._runs(asked, asking, player)
            for question in asked:
                found[question.index] = [
                    as_asked(f, question.game) for f in self._findings(question, runs, player)
                ]
        return [finding for index in claims for finding in found.get(index, [])]

    def _findings(
        self, question: Question, runs: CountedRuns | NoiseRuns | str, player: Player
    ) -> Iterator[Finding]:
        yield exact_leak(question)
        if isinstance(runs, str):
            yield untested(question, runs) if self.trials else no_noise_test(question, runs)
        elif isinstance(runs, NoiseRuns):
            yield from _noise_findings(question, runs, player)
        else:
            yield certified_bound(question, runs)
            if self.candidates is not None:
                yield matched_bound(question, runs, self.candidates, player.streams)
            yield from _noise_findings(question, runs.noise, player)
            yield null_control(question, runs.scores[0], player.streams)
            yield positive_control(question, runs.silent_scores, player.streams)

    def _runs(
        self, asked: Sequence[Question], asking: Asking, player: Player
    ) -> CountedRuns | NoiseRuns | str:
        """The runs, or why there are none."""
        question = asked[0]
        why = UNKNOWN_DRAWS if question.guesses else _not_played(question, asking)
        if why is not None:
            return why
        try:
            if not self.trials:
                return self._of_noise(player)
            training = player.play("training", trials=self._choosing)
            score = Score.of(question.delta, training, player.streams)

            def decided(so_far: Worlds) -> bool:
                return all(is_decided(each, score, so_far) for each in asked)

            enough = decided if self.stop_early else None
            counted = player.play("counted", trials=self.trials, enough=enough)
        except RunError:
            raise  # of the run's folder, not of the runs
        except DpauditError as not_numbers:  # a division by zero that no noise hides
            if self.trials and question.is_followed:
                raise
            return str(not_numbers)
        fewer = min(self.trials // 2, len(counted.without.scores))  # where runs stopped early
        game = question.adversary.game.without_noise()
        silent = player.play("without noise", trials=fewer, game=game)
        noiseless = counted.without.features
        if question.game.is_replacement and question.is_followed:
            nobody = replace(question.game, length=0.0)
            none = player.play("without a record", trials=fewer, game=nobody)
            noiseless = np.concatenate([none.without.features, none.with_record.features])
        return CountedRuns(counted, score, silent, NoiseRuns(noiseless, self._drawn(player)))

    def _of_noise(self, player: Player) -> NoiseRuns:
        """Those by which the noise is tested where no run is counted."""
        question, drawn = player.question, self._drawn(player)
        if _is_gaussian(question) and question.is_followed:
            game = question.game
            nobody = replace(game, length=0.0) if game.is_replacement else game
            noise = player.play("noise", trials=NOISE_RUNS, game=nobody)
            return NoiseRuns(noise.without.features, drawn)
        return NoiseRuns(np.empty((0, 0)), drawn)

    def _drawn(self, player: Player) -> tuple[DrawnRuns, ...]:
        """Runs with the record in one batch for certain, where no algebra covers the noise."""
        question, found = player.question, list[DrawnRuns]()
        if declared_of_a_draw(question) is None:
            return ()
        game = replace(question.game, sampling_rate=1.0)
        try:
            for k in rounds_of_a_draw(question, player.streams):
                training = player.play("drawn, training", k, trials=self._choosing, game=game)
                score = Score.of(question.delta, training, player.streams)
                runs = player.play("drawn", k, trials=self.trials or TRAINING, game=game)
                found.append(DrawnRuns(k, runs, score))
        except RunError:
            raise  # of the run's folder, not of the runs
        except DpauditError:  # no numbers
            return ()
        return tuple(found)

    def _asking(self, context: AttackContext, threat_model: ThreatModel) -> Asking:
        trials, first = self.trials or NOISE_RUNS, self.n_rounds
        if not self.trials and first is None:
            first = self._followed(context, threat_model)
        return Asking(context, threat_model, trials, first, self.alpha, self.stop_early)

    def _followed(self, context: AttackContext, threat_model: ThreatModel) -> int | None:
        """How many rounds are followed where no run is counted."""
        game = self._largest_game(context, threat_model)
        if game is None:
            return None
        return GameShape.of(game, threat_model).followed(context.defense.n_rounds)

    @property
    def _choosing(self) -> int:
        """Runs of each world that choose the score and its threshold; few, if others may stop."""
        return TRAINING if self.stop_early else max(TRAINING, self.trials // 5)


def _not_played(question: Question, asking: Asking) -> str | None:
    """Why runs at the coordinates that a step needs are none; None: they are played."""
    if not isinstance(question.adversary, ProjectionAdversary):
        return None
    if question.claim.scope == "message":
        return "no runs: they are read by rounds, and the claim is on one message"
    played = question.game.played
    numbers = asking.numbers(played)
    if numbers <= LONG * WORK:
        return None
    return (
        f"no runs: the step needs {played} coordinates, at which a round of {asking.trials} trials "
        f"has {numbers:.2g} numbers; they are played up to {LONG * WORK:g}"
    )


def _is_large(shape: GameShape) -> bool:
    """Whether a few rounds of it take too long to be timed."""
    return shape.observed > MEASURED and shape.entries is None


def _seconds_of_a_round(game: Game, threat_model: ThreatModel) -> float:
    """Of an adversary that follows the first rounds of a game; of one that reads along it, 0."""
    if game.width is not None:
        return 0.0
    first = min(game.defense.n_rounds, FIRST)
    return seconds_of(lambda: Adversary(game, threat_model, first)) / first


def _claimed(context: AttackContext, threat_model: ThreatModel) -> dict[int, Claim]:
    """What is claimed against this adversary, by its index."""
    return {
        index: claim
        for index, claim in enumerate(context.claims)
        if claim.threat_model in (None, threat_model.name)
    }


def _is_tested(asking: Asking, claim: Claim) -> bool:
    """Whether runs would test it, told by little: they leave aside what they would know too much
    of, and what is claimed of agents whom no message is said to hide.
    """
    context, threat_model = asking.context, asking.threat_model
    if context.setting.network.drawn and not threat_model.knows_draws:
        return False
    if claim.adjacency != "agent-identity" or claim.scope == "run":
        return True
    return states_distances(context.defense, context.setting, threat_model, asking.streams)


def _game_of(claim: Claim) -> object:
    """What decides which runs test a claim; of claims against one threat model."""
    return claimed_delta(claim), claim.scope, claim.adjacency


def _noise_findings(question: Question, runs: NoiseRuns, player: Player) -> Iterator[Finding]:
    declared = declared_of_a_draw(question)
    if declared is not None and runs.drawn:
        yield noise_by_runs(question, declared, runs.drawn)
    elif not question.is_followed:
        assert question.nonlinear is not None
        yield no_noise_test(question, question.nonlinear.note)
    elif _is_gaussian(question) and runs.noiseless.shape[1]:
        found = noise_control(question, runs.noiseless)
        if found.verdict is not None:
            found = _without_further_noise(question, len(runs.noiseless), player, found) or found
        yield found


def _without_further_noise(
    question: Question, trials: int, player: Player, alarm: Finding
) -> Finding | None:
    """The same test of the defense without draws that come on top of enough noise.

    None: the noise differs whatever draws are left out, or hides too little without them.
    """
    game, n_rounds = question.game, question.n_rounds
    real = replace(game.setting, d=game.coordinates, layers=game.layers)
    for fewer in hiding_without(game.defense, real, [question.threat_model], n_rounds):
        silent = replace(game, defense=fewer)
        adversary = Adversary(silent, question.threat_model, n_rounds)
        nobody = replace(silent, length=0.0) if game.is_replacement else silent
        own = player.streams.child("without draws")
        without = play(adversary, trials, own, question.in_round, nobody).without
        found = noise_control(question, without.features)
        if without.features.shape[1] and found.verdict is None:
            p = alarm.metrics[Name.P_VALUE].value
            notes = (*found.notes, fewer.note, f"with these draws p = {p:.2g}")
            return found.model_copy(update={"notes": notes})
    return None


def _is_gaussian(question: Question) -> bool:
    """Whether innovations are Gaussian by the algebra of the adversary."""
    adversary = question.adversary
    return isinstance(adversary, Adversary) and not any(r.has_laplace for r in adversary.rounds)
