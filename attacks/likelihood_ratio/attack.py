"""Empirical epsilon: which world a run came from, told by the strongest adversary of a view."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field, PositiveInt

from dpaudit.accounting.privacy_loss import Array
from dpaudit.attack.contract import Attack, Bench
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.errors import DpauditError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding
from dpaudit.files.threat import ThreatModel
from dpaudit.game.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.linearity import Nonlinear, defined, nonlinearity
from dpaudit.game.play import LearnedScore, Worlds, play, without_noise
from dpaudit.game.worst import PLAYED, coordinates
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import from_scores

from .bound import certified_bound, untested
from .controls import no_noise_control, noise_control, null_control, positive_control
from .exact import exact_leak
from .question import Question

WORK = 2 * 10**8  # messages simulated, in both worlds together: about 20 s of one CPU core
TRAINING = 1000  # runs of each world that a score is learned from


class LikelihoodRatio(Attack):
    """Plays the canary game many times and bounds epsilon from how often the adversary errs.

    The scores are log likelihood ratios under the noise that the defense asks for; where a score
    learned from other runs tells the worlds apart better, that one is taken. Threshold and
    direction are chosen on one half of the runs, and errors counted on the other. Rounds beyond the
    first ``n_rounds`` are left out, which only loses power: what a part of a run leaks, it leaks.
    """

    trials: Annotated[PositiveInt, Field(ge=40)] = 2000  # runs of each world
    n_rounds: PositiveInt | None = None  # the first ones, that are played; None: what 20 s take
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05  # of a false lower bound

    def measure(self, bench: Bench, threat_model: ThreatModel, on_step: OnStep) -> list[Finding]:
        claims = [
            (index, claim)
            for index, claim in enumerate(bench.claims)
            if claim.threat_model in (None, threat_model.name)
        ]
        found = []
        for i, (index, claim) in enumerate(claims):

            def on_round(done: int, total: int, i: int = i) -> None:
                on_step(i * total + done, len(claims) * total)

            question = self._question(bench, threat_model, index, claim)
            streams = Streams(
                bench.streams.numpy("likelihood-ratio", i).integers(2**62).item(),
                bench.streams.device,
            )
            found += list(self._findings(question, streams, on_round))
        return found

    def _question(
        self, bench: Bench, threat_model: ThreatModel, index: int, claim: Claim
    ) -> Question:
        """The record of the agent that is worst off, its batches drawn as they are accounted.

        A claim on a round or a message is about the one that tells most.
        """
        defense, setting = bench.defense, bench.setting
        victim = account_claim(claim, threat_model, defense, setting).victim
        declared = defense.mechanism(setting, threat_model, victim).most
        sampling = declared[0].sampling if declared and declared[0].sampling != "none" else None
        game = Game.of(defense, setting, victim, claim.adjacency, sampling)
        game, in_round = replace(game, in_one_round=claim.scope != "run"), None
        nonlinear = nonlinearity(game, threat_model, self._rounds(game))
        d = coordinates(game) if nonlinear is None else 1
        game = replace(game, spread=min(d, PLAYED))
        n_rounds, one = self._rounds(game), False
        foretold = game if nonlinear is None or nonlinear.defined else defined(game)
        adversary = Adversary(foretold, threat_model, n_rounds)
        if game.in_one_round:
            in_round = n_rounds = int(adversary.leak.by_round.argmax()) + 1
            one = claim.scope == "message"
            adversary = Adversary(foretold, threat_model, n_rounds, one)
        algebra = _algebra(adversary, nonlinear, one)
        leaked = () if algebra is None else algebra.leak.mechanism(game, in_round)
        return Question(
            index, claim, threat_model, game, adversary, algebra, nonlinear, in_round, leaked, d,
            self.alpha,
        )  # fmt: skip

    def _rounds(self, game: Game) -> int:
        n_rounds = game.defense.n_rounds
        if self.n_rounds is not None:
            return min(self.n_rounds, n_rounds)
        graph = game.setting.network.at(1)
        each = graph.n_edges + 2 * graph.n_agents
        messages = 2 * self.trials * each * game.spread
        return max(1, min(n_rounds, WORK // messages))

    def _findings(
        self, question: Question, streams: Streams, on_round: OnStep
    ) -> Iterator[Finding]:
        yield exact_leak(question)

        def played(name: str, trials: int, game: Game | None = None) -> Worlds:
            own = Streams(streams.numpy(name).integers(2**62).item(), streams.device)
            game = game or question.game
            return play(question.adversary, trials, own, question.in_round, game, on_round)

        try:
            worlds = played("counted", self.trials)
        except DpauditError as not_numbers:
            if question.nonlinear is None or question.nonlinear.defined:
                raise
            yield untested(question, str(not_numbers))
            return
        scores, learned = _scores(question, worlds, played("training", TRAINING), streams)
        yield certified_bound(question, scores, learned, self.trials, streams)
        gaussian = not any(reading.laplace.any() for reading in question.adversary.rounds)
        if question.nonlinear is not None and not question.nonlinear.quiet:
            yield no_noise_control(question, question.nonlinear)
        elif gaussian and worlds.without.features.shape[1]:
            yield noise_control(question, worlds.without)
        yield null_control(question, scores[0], streams)
        silent = played("without noise", self.trials // 2, without_noise(question.adversary.game))
        yield positive_control(question, silent, streams)


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


def _scores(
    question: Question, worlds: Worlds, training: Worlds, streams: Streams
) -> tuple[tuple[Array, Array], bool]:
    """Scores of both worlds: the likelihood ratio, or the learned one where it does better."""
    claimed = worlds.without.scores, worlds.with_record.scores
    if not training.without.features.shape[1]:
        return claimed, False
    half = TRAINING // 2
    first, second = (
        Worlds(*(type(w)(w.scores[part], w.features[part]) for w in training))
        for part in (slice(half), slice(half, None))
    )
    learned, rng = LearnedScore(first), streams.numpy("choice of score")
    delta = question.delta
    by_ratio = from_scores(second.without.scores, second.with_record.scores, delta, 0.05, rng)
    by_learned = from_scores(learned(second.without), learned(second.with_record), delta, 0.05, rng)
    if by_learned.value <= by_ratio.value + 0.5:
        return claimed, False
    learned = LearnedScore(training)
    return (learned(worlds.without), learned(worlds.with_record)), True
