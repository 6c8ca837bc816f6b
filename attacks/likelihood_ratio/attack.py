"""Empirical epsilon: which world a run came from, told by the strongest adversary of a view."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from dpaudit.attack.contract import Attack, Bench, Misfit, Significance, too_long
from dpaudit.defense.claim_accounting import claimed_delta, record_adjacency, worst_off
from dpaudit.defense.contract import Defense, Setting
from dpaudit.errors import DpauditError, RunError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric
from dpaudit.files.threat import ThreatModel
from dpaudit.game.adversary import LOCAL, Adversary, Telling
from dpaudit.game.along import Along
from dpaudit.game.fewest import PLAYED, fewest_coordinates
from dpaudit.game.game import Game
from dpaudit.game.layers import in_layers
from dpaudit.game.linearity import Nonlinear, defined, nonlinearity
from dpaudit.game.needs import GameShape
from dpaudit.game.play import Worlds, play, without_noise
from dpaudit.game.reacting import with_every_link
from dpaudit.game.turns import in_worst_batch
from dpaudit.game.victims import most_moving, of_most_moved_agent, of_worst_agent
from dpaudit.game.width import Wider, wider
from dpaudit.game.worst import coordinates
from dpaudit.kept import Kept
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.pace import Pace, seconds_of

from .agents import as_asked, game_on_agents, states_distances, whole_agent
from .bound import best_of, certified_bound, is_decided, power_of, untested
from .certain import declared_of_a_draw, noise_by_runs
from .controls import no_noise_control, noise_control, null_control, positive_control
from .exact import exact_leak
from .matched import matched_bound
from .question import Question
from .runs import Runs, Score

WORK = 2 * 10**8  # messages simulated, in both worlds together: about 20 s of one CPU core
LONG = 10  # times as much, which a round may take where a step needs many coordinates
TRAINING = 1000  # runs of each world, at least, that choose the score and its threshold


UNKNOWN_DRAWS = (
    "the graph is drawn anew in every round and the adversary does not know the draws; runs are "
    "played with the draws of this audit, which its scores would know"
)

FIRST, RUNS = 2, 400  # rounds and runs that are timed
FOLLOWED = 50  # runs of each world by which it is seen whether all have numbers
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
    """

    memory_grows_with: ClassVar[tuple[str, ...]] = ("n_rounds", "trials")

    trials: Annotated[PositiveInt, Field(ge=40)] = 2000  # runs of each world that are counted
    n_rounds: PositiveInt | None = None  # the first ones, that are played; None: what 20 s take
    alpha: Significance = 0.05  # of a false lower bound
    stop_early: bool = False  # as soon as bets have refuted all claims that the runs test
    candidates: Annotated[int, Field(ge=2)] | None = None  # to be matched; None: none are

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

    def misfits(self, n_rounds: int, n_agents: int) -> Iterator[Misfit]:
        return too_long(self.n_rounds, n_rounds)

    def memory(self, bench: Bench, threat_model: ThreatModel) -> int:
        """Its adversary and that of every link, and the runs that they score."""
        game = self._largest_game(bench, threat_model)
        if game is None:
            return 0
        n_rounds = self._rounds(bench.defense, bench.setting, game.played)
        shape = GameShape.of(game, threat_model)
        everything = GameShape.of(game, with_every_link(threat_model))
        runs = max(self.trials, TRAINING) + self.trials
        return (
            shape.adversary(n_rounds)
            + everything.adversary(n_rounds)
            + shape.runs(game, runs, n_rounds)
        )

    def seconds(self, bench: Bench, threat_model: ThreatModel, pace: Pace) -> float | None:
        """Of its runs, by one block of runs of a few rounds; None: these would take long."""
        game = self._largest_game(bench, threat_model)
        if game is None:
            return 0.0
        shape = GameShape.of(game, threat_model)
        if _is_large(shape):
            return None
        n_rounds = self._rounds(bench.defense, bench.setting, game.played)
        own = Streams(bench.streams.numpy("pace").integers(2**62).item(), bench.streams.device)
        claimed = _claimed(bench, threat_model).values()
        controls = 2 if any(claim.adjacency == "replace-one" for claim in claimed) else 1
        runs = self.trials + self._choosing + controls * self.trials // 2
        first = min(n_rounds, FIRST)
        reads = Adversary if game.width is None else Along
        adversary = reads(game, threat_model, first)
        n = min(runs, max(2, RUNS * MEASURED // max(MEASURED, shape.observed)))
        one = seconds_of(lambda: play(adversary, n, own)) / (n * first)
        known = _seconds_of_a_round(game, threat_model)
        each = n_rounds * (runs * one + ADVERSARIES * known) + JUDGED
        return len(set(map(_game_of, claimed))) * each

    def power(
        self, bench: Bench, threat_model: ThreatModel, patience: float = inf
    ) -> Iterator[tuple[int, Mapping[str, Metric]]]:
        """By the leak of the first rounds that the runs would play."""
        derived = patience == inf or self._is_derived(bench, threat_model, patience)
        for index, claim in _claimed(bench, threat_model).items():
            if not derived:
                if _is_tested(bench, threat_model, claim):
                    yield index, best_of(claim, self.trials, self.alpha, self.stop_early)
                continue
            question = self._question(bench, threat_model, index, claim, _streams(bench))
            if question is not None and not question.guesses:
                yield index, power_of(question, self.trials)

    def _is_derived(self, bench: Bench, threat_model: ThreatModel, patience: float) -> bool:
        """Whether following its rounds takes no more seconds than this, about."""
        game = self._largest_game(bench, threat_model)
        if game is None or _is_large(GameShape.of(game, threat_model)):
            return game is None
        n_rounds = self._rounds(bench.defense, bench.setting, game.played)
        return n_rounds * _seconds_of_a_round(game, threat_model) <= patience

    def _largest_game(self, bench: Bench, threat_model: ThreatModel) -> Game | None:
        """That of any honest agent, if something is claimed of one."""
        defense, setting = bench.defense, bench.setting
        honest = next((i for i in setting.holders if i not in threat_model.agents), None)
        if honest is None or not bench.claims:
            return None
        game = in_layers(Game.of(defense, setting, honest, "add-remove"))
        fewest = fewest_coordinates(game)
        if fewest > 1:
            return replace(game, width=fewest)
        return replace(game, spread=min(coordinates(game), PLAYED))

    def measure(self, bench: Bench, threat_model: ThreatModel, on_step: OnStep) -> list[Finding]:
        claims = _claimed(bench, threat_model)
        alike: dict[object, list[int]] = {}
        for index, claim in claims.items():
            alike.setdefault(_game_of(claim), []).append(index)
        streams = _streams(bench)
        found: dict[int, list[Finding]] = {}
        for i, indices in enumerate(alike.values()):

            def on_round(done: int, total: int, i: int = i) -> None:
                on_step(i * total + done, len(alike) * total)

            first = self._question(bench, threat_model, indices[0], claims[indices[0]], streams)
            if first is None:
                continue
            asked = [replace(first, index=j, claim=claims[j]) for j in indices]
            why = UNKNOWN_DRAWS if first.guesses else self._not_played(first)
            if why is not None:
                found |= {q.index: [exact_leak(q), untested(q, why)] for q in asked}
                continue
            runs = self._play(asked, streams, on_round, bench.kept.stage(i))
            for question in asked:
                found[question.index] = [
                    as_asked(f, question.game)
                    for f in _findings(question, runs, streams, self.candidates)
                ]
        return [finding for index in claims for finding in found.get(index, [])]

    def _question(
        self, bench: Bench, threat_model: ThreatModel, index: int, claim: Claim, streams: Streams
    ) -> Question | None:
        """The record of the agent that is worst off.

        Of agents that declare the same noise it is the one of which the first rounds tell most.

        A claim on a round, a message or agents is about the one that tells most. None: no message
        that this adversary sees is claimed to hide an agent.
        """
        defense, setting = bench.defense, bench.setting
        if claim.adjacency == "agent-identity" and claim.scope != "run":
            return self._question_on_agents(bench, threat_model, index, claim, streams)
        victim = worst_off(claim, threat_model, defense, setting)
        game = Game.of(defense, setting, victim, claim.adjacency)
        if claim.adjacency == "agent-identity":
            game = whole_agent(defense, setting, victim)
        if claim.scope != "run":  # whatever batch is taken there
            game = replace(game, in_one_round=True, cycle=1)
        game = in_layers(game)
        nonlinear = nonlinearity(game, threat_model, self._rounds(defense, setting))
        if nonlinear is not None and nonlinear.fewest > 1:
            return self._question_along(index, claim, threat_model, game, nonlinear, streams)
        game, worst, more = _played(game, claim, threat_model, nonlinear, streams)
        n_rounds, one = self._rounds(defense, setting, game.played), claim.scope == "message"
        foretold = game if nonlinear is None or nonlinear.defined else defined(game)
        if nonlinear is not None and not _is_followed(foretold, threat_model, n_rounds, streams):
            return self._question_along(index, claim, threat_model, game, nonlinear, streams)
        game = in_worst_batch(game, threat_model, n_rounds)
        foretold = replace(foretold, first=game.first)
        adversary, telling = Adversary(foretold, threat_model, n_rounds), None
        if game.in_one_round:
            telling = adversary.most_telling()
            adversary = Adversary(foretold, threat_model, telling.told_in, one)
        algebra, used = _algebra(adversary, nonlinear, one), telling and telling.of_round
        leaked = algebra.leak.mechanism(game, used) if algebra and game.held is None else ()
        reads: Adversary | Along = adversary
        if game.width is not None:
            reads = Along(foretold, threat_model, adversary.n_rounds)
        return Question(
            index, claim, threat_model, game, reads, algebra, nonlinear, telling, leaked,
            worst, self.alpha, self.stop_early, more,
        )  # fmt: skip

    def _question_along(
        self,
        index: int,
        claim: Claim,
        threat_model: ThreatModel,
        game: Game,
        nonlinear: Nonlinear,
        streams: Streams,
    ) -> Question:
        """Of a step that one coordinate does not play, or that no algebra follows."""
        if nonlinear.fewest > 1:
            game = replace(game, width=nonlinear.fewest)
            game = _of_victim(game, claim, threat_model, nonlinear, streams)
            game = most_moving(game, threat_model, streams)
        game = replace(game, width=game.played)
        telling = Telling(1, 1, alone=False) if game.in_one_round else None
        n_rounds = 1 if telling else self._rounds(game.defense, game.setting, game.played)
        along = Along(defined(game), threat_model, n_rounds)
        return Question(
            index, claim, threat_model, game, along, None, nonlinear, telling, (),
            1, self.alpha, self.stop_early,
        )  # fmt: skip

    def _not_played(self, question: Question) -> str | None:
        """Why runs at the coordinates that a step needs are none; None: they are played."""
        if not isinstance(question.adversary, Along):
            return None
        if question.claim.scope == "message":
            return "no runs: they are read by rounds, and the claim is on one message"
        numbers = self._numbers(question.game.setting, question.game.played)
        if numbers <= LONG * WORK:
            return None
        return (
            f"no runs: the step needs {question.game.played} coordinates, at which a round of "
            f"{self.trials} trials has {numbers:.2g} numbers; they are played up to {LONG * WORK:g}"
        )

    def _question_on_agents(
        self, bench: Bench, threat_model: ThreatModel, index: int, claim: Claim, streams: Streams
    ) -> Question | None:
        """The two agents whose exchange tells most in one round."""
        n_rounds = self._rounds(bench.defense, bench.setting)
        game = game_on_agents(bench.defense, bench.setting, threat_model, n_rounds, streams)
        if game is None:
            return None
        adversary = Adversary(game, ThreatModel(name=threat_model.name), 1)
        leaked = adversary.leak.mechanism(game, None)
        known = (game, adversary, adversary, None, None, leaked, 1)
        return Question(index, claim, threat_model, *known, self.alpha, self.stop_early)

    def _rounds(self, defense: Defense, setting: Setting, coordinates: int = 1) -> int:
        n_rounds = defense.n_rounds
        if self.n_rounds is not None:
            return min(self.n_rounds, n_rounds)
        return max(1, min(n_rounds, WORK // self._numbers(setting, coordinates)))

    def _numbers(self, setting: Setting, coordinates: int) -> int:
        """Of a round of all runs."""
        graph = setting.network.at(1)
        return 2 * self.trials * (graph.n_edges + 2 * graph.n_agents) * coordinates

    @property
    def _choosing(self) -> int:
        """Runs of each world that choose the score and its threshold; few, if others may stop."""
        return TRAINING if self.stop_early else max(TRAINING, self.trials // 5)

    def _play(
        self, asked: Sequence[Question], streams: Streams, on_round: OnStep, kept: Kept
    ) -> Runs | str:
        """The runs, or why there are none: a division by zero that no noise hides."""
        question = asked[0]

        def played(
            name: str, trials: int, game: Game | None = None, score: Score | None = None
        ) -> Worlds:
            own = Streams(streams.numpy(name).integers(2**62).item(), streams.device)
            game = game or question.game
            played_as = question.adversary, trials, own, question.in_round, game, on_round
            enough = None if score is None else partial(_are_decided, asked, score)
            return play(*played_as, kept=kept.stage(name), enough=enough)

        try:
            training = played("training", self._choosing)
            score = Score.of(question.delta, training, streams)
            counted = played("counted", self.trials, score=score if self.stop_early else None)
        except RunError:
            raise  # of the run's folder, not of the runs
        except DpauditError as not_numbers:
            if question.nonlinear is None or question.nonlinear.quiet:
                raise
            return str(not_numbers)
        fewer = min(self.trials // 2, len(counted.without.scores))  # where runs stopped early
        silent = played("without noise", fewer, without_noise(question.adversary.game))
        bare = counted.without.features
        if question.game.is_replacement and (
            question.nonlinear is None or question.nonlinear.quiet
        ):
            none = played("without a record", fewer, replace(question.game, length=0.0))
            bare = np.concatenate([none.without.features, none.with_record.features])
        return Runs(counted, score, silent, bare, self._drawn(question, streams, on_round, kept))

    def _drawn(
        self, question: Question, streams: Streams, on_round: OnStep, kept: Kept
    ) -> tuple[Worlds, Score] | None:
        """Runs with the record in one batch, where no algebra tells of the noise."""
        if declared_of_a_draw(question) is None:
            return None
        game = replace(question.game, sampling_rate=1.0)
        in_round = question.in_round or game.first

        def played(name: str, trials: int) -> Worlds:
            own = Streams(streams.numpy(name).integers(2**62).item(), streams.device)
            played_as = question.adversary, trials, own, in_round, game, on_round
            return play(*played_as, kept=kept.stage(name))

        try:
            score = Score.of(question.delta, played("drawn, training", self._choosing), streams)
            return played("drawn", self.trials), score
        except RunError:
            raise  # of the run's folder, not of the runs
        except DpauditError:  # no numbers
            return None


def _of_victim(
    game: Game,
    claim: Claim,
    threat_model: ThreatModel,
    nonlinear: Nonlinear | None,
    streams: Streams,
) -> Game:
    """The game of the agent that is attacked, of those that declare what its victim does."""
    if claim.adjacency == "agent-identity":  # all of an agent's records
        return game
    if nonlinear is not None or game.setting.n_agents >= LOCAL:
        return of_most_moved_agent(game, threat_model, streams)
    at = claimed_delta(claim) or 1e-5
    return of_worst_agent(game, threat_model, at, record_adjacency(claim))


def _played(
    game: Game,
    claim: Claim,
    threat_model: ThreatModel,
    nonlinear: Nonlinear | None,
    streams: Streams,
) -> tuple[Game, int, Wider | None]:
    """The game that runs play: whose record it is, and how many coordinates of how many it moves.

    With it the coordinates of the worst record, and what the model's own dimension shows.
    """
    if nonlinear is None:
        game = _of_victim(game, claim, threat_model, nonlinear, streams)
        worst, more = coordinates(game), wider(game, threat_model)
        if more is not None and more.mixes and worst == 1 and claim.scope != "message":
            return replace(game, width=min(PLAYED, game.coordinates)), worst, more
        return replace(game, spread=min(worst, PLAYED)), worst, more
    game = _of_victim(game, claim, threat_model, nonlinear, streams)
    game = most_moving(game, threat_model, streams)
    if claim.scope == "message":  # who reads along reads whole rounds
        game = replace(game, width=None)
    return game, 1, None


def _is_followed(game: Game, threat_model: ThreatModel, n_rounds: int, streams: Streams) -> bool:
    """Whether an adversary that foretells rounds has numbers, of a step that is not linear.

    What is believed of a mean of squares may be negative, which has no root. With the record in
    every batch, under noise and without, as all runs have it at most.
    """
    own = Streams(streams.numpy("followed").integers(2**62).item(), streams.device)
    game = replace(game, width=None)
    drawn = replace(game, sampling_rate=1.0)
    try:
        adversary = Adversary(game, threat_model, n_rounds)
        for played in (drawn, without_noise(drawn)):
            play(adversary, FOLLOWED, own, game=played)
    except DpauditError:
        return False
    return True


def _is_large(shape: GameShape) -> bool:
    """Whether a few rounds of it take too long to be timed."""
    return shape.observed > MEASURED and shape.entries is None


def _seconds_of_a_round(game: Game, threat_model: ThreatModel) -> float:
    """Of an adversary that follows the first rounds of a game; of one that reads along it, 0."""
    if game.width is not None:
        return 0.0
    first = min(game.defense.n_rounds, FIRST)
    return seconds_of(lambda: Adversary(game, threat_model, first)) / first


def _are_decided(asked: Sequence[Question], score: Score, so_far: Worlds) -> bool:
    return all(is_decided(question, score, so_far) for question in asked)


def _claimed(bench: Bench, threat_model: ThreatModel) -> dict[int, Claim]:
    """What is claimed against this adversary, by its index."""
    return {
        index: claim
        for index, claim in enumerate(bench.claims)
        if claim.threat_model in (None, threat_model.name)
    }


def _is_tested(bench: Bench, threat_model: ThreatModel, claim: Claim) -> bool:
    """Whether runs would test it, told by little: they leave aside what they would know too much
    of, and what is claimed of agents whom no message is said to hide.
    """
    if bench.setting.network.drawn and not threat_model.knows_draws:
        return False
    if claim.adjacency != "agent-identity" or claim.scope == "run":
        return True
    return states_distances(bench.defense, bench.setting, threat_model, _streams(bench))


def _streams(bench: Bench) -> Streams:
    """From which all of the game is drawn."""
    seed = bench.streams.numpy("likelihood-ratio").integers(2**62).item()
    return Streams(seed, bench.streams.device)


def _game_of(claim: Claim) -> object:
    """What decides which runs test a claim; of claims against one threat model."""
    return claimed_delta(claim), claim.scope, claim.adjacency


def _algebra(adversary: Adversary, nonlinear: Nonlinear | None, single: bool) -> Adversary | None:
    """Of messages that are linear in the noise, and a record in one coordinate: an exact leak."""
    if nonlinear is not None and not (nonlinear.bare and adversary.leak.unhidden):
        messages = nonlinear.affine
    elif adversary.game.spread == 1:
        return adversary
    else:
        messages = None
    if messages is not None and not messages:
        return None
    game = replace(adversary.game, spread=1)
    return Adversary(game, adversary.threat_model, adversary.n_rounds, single, messages)


def _findings(
    question: Question, runs: Runs | str, streams: Streams, candidates: int | None
) -> Iterator[Finding]:
    yield exact_leak(question)
    if isinstance(runs, str):
        yield untested(question, runs)
        return
    yield certified_bound(question, runs)
    if candidates is not None:
        yield matched_bound(question, runs, candidates, streams)
    gaussian = isinstance(question.adversary, Adversary) and not any(
        reading.has_laplace for reading in question.adversary.rounds
    )
    declared = declared_of_a_draw(question)
    if declared is not None and runs.drawn is not None:
        yield noise_by_runs(question, declared, *runs.drawn)
    elif question.nonlinear is not None and not question.nonlinear.quiet:
        yield no_noise_control(question, question.nonlinear)
    elif gaussian and runs.bare.shape[1]:
        yield noise_control(question, runs.bare)
    yield null_control(question, runs.scores[0], streams)
    yield positive_control(question, runs.silent_scores, streams)
