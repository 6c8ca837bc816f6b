"""Empirical epsilon: which world a run came from, as the strongest adversary of a view decides."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

import dpaudit.attack as da
from dpaudit.defense.claim_accounting import claimed_delta
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import PLAYED, fewest_coordinates
from dpaudit.game.released_model import as_seen_by
from dpaudit.game.runs.play import ProjectionAdversary, Worlds
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.game.worst_case.layers import in_layers
from dpaudit.game.worst_case.record import coordinates
from dpaudit.training.costs import seconds_of
from dpaudit.training.run_directory import RunDirectory

from . import bound
from .agents import as_asked, queries
from .exact import exact_leak, with_matrices
from .plan import USUAL, planned
from .question import WORK, Question, QuestionContext
from .runs import (
    NOISE_RUNS,
    TRAINING,
    GamePlayer,
    PlayedRuns,
    RunScore,
    no_noise_test,
    noise_findings,
)

LONG = 10  # times as much, which a round may take where a step needs many coordinates
FEWEST = 40  # runs of each world that can be counted
MATCHINGS = 20  # matchings of the record with its candidates, at least

UNKNOWN_DRAWS = (
    "the graph is drawn anew in every round and the adversary does not know the draws; runs are "
    "played with the draws of this audit, which its scores would know"
)

FIRST = 2  # rounds that are timed
MEASURED = 400  # numbers that a view has of a round, beyond which none is


class LikelihoodRatio(da.Attack):
    """Plays the canary game many times and bounds epsilon from how often the adversary errs.

    The scores are log likelihood ratios under the noise that the defense asks for; where a score
    learned from other runs distinguishes the worlds better, that one is taken. Those other runs
    choose threshold and direction too, so that errors are counted on all ``trials``. Rounds beyond
    the first ``n_rounds`` are left out, which only loses power: what a part of a run leaks, it
    leaks. Without ``trials`` both are what can be expected to certify most in about 20 s. With
    ``stop_early`` claims are tested by bets, which allow that, and not by the number of errors in
    all ``trials``. Claims that are tested by the same game, as those that differ in
    epsilon alone, share their runs; what is found on a claim does not depend on which others there
    are, but that runs which stop early go on until all are decided. With ``candidates`` the same
    runs also say how often one of so many is found out (``matched``).

    With ``trials = 0`` no run is counted and nothing is certified: there is the exact leak, and
    the test of the noise by a few runs. Every audit with a claim has these.
    """

    final_model = ("white-box",)

    trials: NonNegativeInt | None = None  # counted runs of each world; None: what certifies most
    n_rounds: PositiveInt | None = None  # the first ones, that are played; None: what 20 s take
    alpha: da.Significance = 0.05  # probability of a false lower bound
    stop_early: bool = False  # stop when bets have refuted all claims that the runs test
    candidates: Annotated[int, Field(ge=2)] | None = None  # to match with; None: no matching

    @field_validator("trials")
    @classmethod
    def _are_none_or_enough(cls, trials: int | None) -> int | None:
        if trials is not None and 0 < trials < FEWEST:
            raise ValueError(
                f"{trials} trials certify nothing; expected {FEWEST} or more, or 0 for the exact "
                "leak alone"
            )
        return trials

    @model_validator(mode="after")
    def _candidates_fit_into_the_trials(self) -> Self:
        if self.candidates is not None and self.trials is not None and self.trials < self._least:
            raise ValueError(
                f"{self.candidates} candidates are matched {self.trials // (self.candidates - 1)} "
                f"times in {self.trials} trials; expected trials = {self._least} at the least, "
                f"for {MATCHINGS} times"
            )
        if self.candidates is not None and self.stop_early:
            raise ValueError("candidates are matched in all trials; leave out one of the two")
        return self

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        return da.too_long(self.n_rounds, n_rounds)

    def refuse_too_large(self, context: da.AttackContext, threat_model: da.ThreatModel) -> None:
        """Called before anything is run. Raises ConfigError: a part of a run has no final model."""
        if threat_model.has_final_model and self.n_rounds not in (None, context.defense.n_rounds):
            raise da.ConfigError(
                "DPA052",
                f'likelihood-ratio: n_rounds: "{threat_model.name}" has the model after all '
                f"{context.defense.n_rounds} rounds, so fewer cannot be played; leave it out",
            )

    def power(
        self, context: da.AttackContext, threat_model: da.ThreatModel, patience: float = inf
    ) -> Iterator[tuple[int, Mapping[str, da.Metric]]]:
        """By the leak of the first rounds that the runs would play."""
        if self.trials == 0:
            return
        asking = self._asking(context, threat_model)
        derived = patience == inf or self._is_derived(asking, patience)
        for index, claim in _claimed(asking).items():
            if not derived:
                if _is_tested(asking, claim):
                    yield index, bound.best_of(claim, asking.trials, self.alpha, self.stop_early)
                continue
            asked, question = self._question(asking, claim)
            if question is not None and not question.guesses:
                yield index, bound.power_of(question, asked.trials)

    def _is_derived(self, asking: QuestionContext, patience: float) -> bool:
        """Whether following its rounds takes no more seconds than this, about."""
        game, threat_model = _largest_game(asking), asking.threat_model
        if game is None:
            return True
        shape = GameShape.of(game, threat_model)
        if shape.observed > MEASURED and shape.entries is None:  # too long to be timed
            return False
        if game.width is not None:  # read along the record: nothing is followed
            return True
        first = min(game.defense.n_rounds, FIRST)
        one = seconds_of(lambda: Adversary(game, threat_model, first)) / first
        return asking.rounds(game.played) * one <= patience

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        asking = self._asking(context, threat_model)
        claims, alike = _claimed(asking), dict[object, list[int]]()
        for index, claim in claims.items():  # each with the runs that test it
            same = claimed_delta(claim), claim.scope, claim.adjacency
            alike.setdefault(same, []).append(index)
        found: list[da.Finding] = []
        for i, indices in enumerate(alike.values()):

            def on_round(done: int, total: int, i: int = i) -> None:
                on_step(i * total + done, len(alike) * total)

            own, first = self._question(asking, claims[indices[0]])
            if first is None:
                continue
            asked = [replace(first, index=j, claim=claims[j]) for j in indices]
            stage, trials = context.checkpoint.stage(i), 0 if self.trials == 0 else own.trials
            choosing = TRAINING if self.stop_early else max(TRAINING, trials // 5)
            player = GamePlayer(first, asking.streams, on_round, stage, trials, choosing)
            runs = self._runs(asked, own, player)
            for question in asked:
                findings = self._findings(question, runs, player, context.run)
                found += [as_asked(finding, question.game) for finding in findings]
        return sorted(found, key=lambda finding: finding.claim or 0)

    def _findings(
        self, question: Question, runs: PlayedRuns | str, player: GamePlayer, run: RunDirectory
    ) -> Iterator[da.Finding]:
        yield with_matrices(exact_leak(question), question, run)
        if isinstance(runs, str):
            missing = bound.untested if player.trials else no_noise_test
            yield missing(question, runs)
            return
        counted = runs.counted
        if counted is not None:
            yield bound.certified_bound(question, counted)
            if self.candidates is not None:
                yield bound.matched_bound(question, counted, self.candidates, player.streams)
        yield from noise_findings(question, runs, player)
        if counted is not None:
            yield from bound.controls(question, counted, player.streams)

    def _runs(
        self, asked: Sequence[Question], asking: QuestionContext, player: GamePlayer
    ) -> PlayedRuns | str:
        """The runs, or why there are none."""
        question = asked[0]
        if question.guesses:
            return UNKNOWN_DRAWS
        if isinstance(question.adversary, ProjectionAdversary):
            if question.claim.scope == "message":
                return "no runs: they are read by rounds, and the claim is on one message"
            played = question.game.played
            if (numbers := asking.numbers(played)) > LONG * WORK:
                return (
                    f"no runs: the step needs {played} coordinates, at which a round of "
                    f"{asking.trials} trials has {numbers:.2g} numbers; they are played up to "
                    f"{LONG * WORK:g}"
                )

        def decided(score: RunScore, so_far: Worlds) -> bool:
            return all(bound.is_decided(each, score, so_far) for each in asked)

        return player.runs(decided if self.stop_early else None)

    def _question(
        self, asking: QuestionContext, claim: da.Claim
    ) -> tuple[QuestionContext, Question | None]:
        """The question with the requested runs, or those that are expected to certify most."""
        if self.trials is None:
            return planned(asking, claim, self._least)
        return asking, asking.question(claim)

    def _asking(self, context: da.AttackContext, threat_model: da.ThreatModel) -> QuestionContext:
        trials, first = NOISE_RUNS if self.trials == 0 else self.trials or USUAL, self.n_rounds
        context = replace(context, defense=as_seen_by(threat_model, context.defense))
        asking = QuestionContext(context, threat_model, trials, first, self.alpha, self.stop_early)
        if self.trials != 0 or first is not None or (game := _largest_game(asking)) is None:
            return asking
        followed = GameShape.of(game, threat_model).followed(context.defense.n_rounds)
        return replace(asking, first_rounds=followed)

    @property
    def _least(self) -> int:
        """Runs of each world that matching its candidates needs."""
        return 0 if self.candidates is None else MATCHINGS * (self.candidates - 1)


def _claimed(asking: QuestionContext) -> dict[int, da.Claim]:
    """What is claimed against this adversary, by its index."""
    return {
        index: claim
        for index, claim in enumerate(asking.context.claims)
        if claim.threat_model in (None, asking.threat_model.name)
    }


def _largest_game(asking: QuestionContext) -> Game | None:
    """The game of an honest agent; None if nothing is claimed."""
    context = asking.context
    honest = [i for i in context.setting.holders if i not in asking.threat_model.agents]
    if not honest or not context.claims:
        return None
    game = in_layers(Game.of(context.defense, context.setting, honest[0], "add-remove"))
    fewest = fewest_coordinates(game)
    if fewest > 1:
        return replace(game, width=fewest)
    return replace(game, spread=min(coordinates(game), PLAYED))


def _is_tested(asking: QuestionContext, claim: da.Claim) -> bool:
    """Whether runs would test it, judged by little: they leave aside what they would know too much
    of, and what is claimed of agents whom no message is said to hide.
    """
    context, threat_model = asking.context, asking.threat_model
    if context.setting.network.drawn and not threat_model.knows_draws:
        return False
    if claim.adjacency != "agent-identity" or claim.scope == "run":
        return True
    alone = context.setting.stand_in(1)
    return any(True for _ in queries(context.defense, alone, threat_model, 1, asking.streams))
