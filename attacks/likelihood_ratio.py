"""Empirical epsilon: which world a run came from, told by the strongest adversary of a view."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import Interval, Mechanism, epsilon, false_negative_rate
from dpaudit.attack.contract import Attack, Bench
from dpaudit.defense.claim_accounting import (
    account_claim,
    claimed_delta,
    claimed_epsilon,
    record_adjacency,
)
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.game.adversary import Adversary, Leak
from dpaudit.game.game import Game
from dpaudit.game.play import LearnedScore, Scored, Worlds, error_rates, play, without_noise
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import (
    ScoreBound,
    ceiling,
    family_from_scores,
    from_scores,
    mu_p_value,
    p_value,
)
from dpaudit.statistics.noise_factor import noise_factor_bound
from dpaudit.statistics.power import expected_bound, trials_needed
from dpaudit.statistics.white_noise import white_noise_test

WORK = 2 * 10**8  # messages simulated, in both worlds together: about 20 s of one CPU core
TRAINING = 1000  # runs of each world that a score is learned from
LARGE = 700.0  # an epsilon whose exponential is finite
DIFFERENT = 1e-6  # p-value below which noise is not what it should be
FEW = 4  # distinct releases at most, for a bound that composes them again and again


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

            found += list(_Audit(self, bench, threat_model, index, claim).findings(i, on_round))
        return found


@dataclass(frozen=True)
class _Audit:
    """One claim against one adversary."""

    options: LikelihoodRatio
    bench: Bench
    threat_model: ThreatModel
    index: int  # of the claim, into the audit's claims
    claim: Claim

    def findings(self, i: int, on_round: OnStep) -> Iterator[Finding]:
        game = self._game()
        adversary, in_round = self._adversary(game)
        leak = adversary.leak
        mechanism = leak.mechanism(game, in_round)
        streams = Streams(
            self.bench.streams.numpy("likelihood-ratio", i).integers(2**62).item(),
            self.bench.streams.device,
        )
        yield self._exact(game, adversary, leak, mechanism, in_round)

        def played(name: str, trials: int, what: Game | None = None) -> Worlds:
            own = Streams(streams.numpy(name).integers(2**62).item(), streams.device)
            return play(adversary, trials, own, in_round, what, on_round)

        worlds = played("counted", self.options.trials)
        scores, learned = self._scores(worlds, played("training", TRAINING), streams)
        yield self._bound(game, adversary, mechanism, scores, learned, streams)
        gaussian = not any(reading.laplace.any() for reading in adversary.rounds)
        if gaussian and worlds.without.features.shape[1]:
            yield self._noise(worlds.without)
        yield self._null(scores[0], streams)
        silent = played("without noise", self.options.trials // 2, without_noise(game))
        yield self._positive(silent, streams)

    def _game(self) -> Game:
        """The record of the agent that is worst off, its batches drawn as they are accounted."""
        defense, setting, claim = self.bench.defense, self.bench.setting, self.claim
        victim = account_claim(claim, self.threat_model, defense, setting).victim
        declared = defense.mechanism(setting, self.threat_model, victim).most
        sampling = declared[0].sampling if declared and declared[0].sampling != "none" else None
        game = Game.of(defense, setting, victim, claim.adjacency, sampling)
        return replace(game, in_one_round=claim.scope != "run")

    def _adversary(self, game: Game) -> tuple[Adversary, int | None]:
        """Whose view it is, and the round in which alone the record is used, if it is one."""
        adversary = Adversary(game, self.threat_model, self._rounds(game))
        if not game.in_one_round:
            return adversary, None
        loudest = int(adversary.leak.by_round.argmax()) + 1
        single = self.claim.scope == "message"
        return Adversary(game, self.threat_model, loudest, one_message=single), loudest

    def _rounds(self, game: Game) -> int:
        n_rounds = game.defense.n_rounds
        if self.options.n_rounds is not None:
            return min(self.options.n_rounds, n_rounds)
        graph = game.setting.network.at(1)
        messages = 2 * self.options.trials * (graph.n_edges + 2 * graph.n_agents)
        return max(1, min(n_rounds, WORK // messages))

    def _scores(
        self, worlds: Worlds, training: Worlds, streams: Streams
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
        delta = claimed_delta(self.claim)
        by_ratio = from_scores(second.without.scores, second.with_record.scores, delta, 0.05, rng)
        by_learned = from_scores(
            learned(second.without), learned(second.with_record), delta, 0.05, rng
        )
        if by_learned.value <= by_ratio.value + 0.5:
            return claimed, False
        learned = LearnedScore(training)
        return (learned(worlds.without), learned(worlds.with_record)), True

    def _exact(
        self,
        game: Game,
        adversary: Adversary,
        leak: Leak,
        mechanism: Mechanism,
        in_round: int | None,
    ) -> Finding:
        """What the view leaks by the protocol's own algebra, without a single run."""
        claimed, delta = claimed_epsilon(self.claim), claimed_delta(self.claim)
        adjacency = record_adjacency(self.claim)
        account_at = delta if delta > 0 or _is_pure(mechanism) else 1e-5
        exact = epsilon(mechanism, account_at, adjacency) if mechanism else Interval(0.0, 0.0)
        certain = leak.separate or in_round is not None
        notes = [f"the record is agent {game.victim}'s", _PROBED]
        if adversary.n_rounds < game.defense.n_rounds and in_round is None:
            notes.append(
                f"the first {adversary.n_rounds} of {game.defense.n_rounds} rounds; the run leaks "
                "at least as much"
            )
        if not certain:
            notes.append(
                "a record's effect outlasts its round in this view; the rounds are composed as if "
                "it did not, an approximation"
            )
        notes += [
            f'round {k}: "{message}" shows the record without noise'
            for k, message in list(leak.unhidden.items())[:1]
        ]
        mu = leak.by_round.tolist()
        return Finding(
            role=Role.EXACT_LEAK,
            kind="accounting",
            title="exact leak of the view",
            claim=self.index,
            attack="likelihood-ratio",
            threat_model=self.threat_model.name,
            message=next(iter(leak.unhidden.values()), None),
            rounds=(1, adversary.n_rounds),
            metrics={
                Name.EPSILON: Metric(value=exact.high, low=exact.low, high=exact.high),
                Name.CLAIMED_EPSILON: Metric(value=claimed),
                Name.DELTA: Metric(value=account_at),
                Name.LARGEST_MU_OF_A_ROUND: Metric(value=max(mu, default=0.0)),
            },
            verdict=(
                Verdict.REFUTED
                if leak.unhidden
                else Verdict.UNSUPPORTED
                if certain and exact.low > claimed
                else None
            ),
            notes=tuple(notes),
            series={Column.ROUND: tuple(range(1, len(mu) + 1)), Column.MU: tuple(mu)},
        )

    def _bound(
        self,
        game: Game,
        adversary: Adversary,
        mechanism: Mechanism,
        scores: tuple[Array, Array],
        learned: bool,
        streams: Streams,
    ) -> Finding:
        claim, alpha, delta = self.claim, self.options.alpha, claimed_delta(self.claim)
        claimed = claimed_epsilon(claim)
        if claim.mu is None:
            bound = from_scores(*scores, delta, alpha, streams.numpy("halves"))
            p = p_value(bound.fp, bound.fn, bound.n0, bound.n1, delta, claimed)
        else:
            bound = family_from_scores(*scores, alpha, streams.numpy("halves"))
            p = mu_p_value(bound.fp, bound.fn, bound.n0, bound.n1, claim.mu)
        counted = min(bound.n0, bound.n1)
        mu = GAUSSIAN.epsilon(bound.value, delta) if claim.mu is not None else bound.value
        metrics: dict[str, Metric] = {
            Name.EPSILON_LOWER_BOUND: Metric(value=mu, n=bound.n0 + bound.n1),
            Name.CLAIMED_EPSILON: Metric(value=claimed),
            Name.DELTA: Metric(value=delta),
            Name.CONFIDENCE: Metric(value=1 - alpha),
            Name.P_VALUE: Metric(value=p),
            Name.FALSE_POSITIVES: Metric(value=bound.fp, n=bound.n0),
            Name.FALSE_NEGATIVES: Metric(value=bound.fn, n=bound.n1),
            Name.CEILING: Metric(value=ceiling(counted, delta, alpha), n=counted),
        }
        if claim.mu is not None:
            metrics[Name.MU_LOWER_BOUND] = Metric(value=bound.value)
            metrics[Name.CLAIMED_MU] = Metric(value=claim.mu)
        metrics |= self._power(mechanism, counted)
        shape = self._declared_shape(mechanism, bound)
        metrics |= shape
        return Finding(
            role=Role.TEST,
            kind="empirical-epsilon",
            title="runs with and without one record",
            claim=self.index,
            attack="likelihood-ratio",
            threat_model=self.threat_model.name,
            rounds=(1, adversary.n_rounds),
            world="defense",
            metrics=metrics,
            notes=(
                f"{self.options.trials} runs of each world over {adversary.n_rounds} of "
                f"{game.defense.n_rounds} rounds, the canary in the batch with probability "
                f"{game.sampling_rate:.3g} a round; half of the runs chose the threshold",
                "scores learned from other runs"
                if learned
                else "scores are likelihood ratios under the noise that the defense asks for",
                *(
                    ["the bound of the declared shape is proven for such mechanisms alone"]
                    if shape
                    else []
                ),
                *(["mu is of the Gaussian family"] if claim.mu is not None else []),
            ),
            series=_tradeoff(scores, claim),
        )

    def _power(self, mechanism: Mechanism, counted: int) -> dict[str, Metric]:
        """What could be expected before any run: the bound, and how many runs would do."""
        claimed, delta, alpha = (
            claimed_epsilon(self.claim),
            claimed_delta(self.claim),
            self.options.alpha,
        )

        def really(rates: Array) -> Array:
            if not mechanism:
                return 1 - np.asarray(rates)
            return false_negative_rate(mechanism, rates, record_adjacency(self.claim))

        enough = trials_needed(claimed, delta, alpha, lambda rates: np.zeros_like(rates))
        return {
            Name.EXPECTED_BOUND: Metric(value=expected_bound(counted, delta, alpha, really)),
            Name.TRIALS_NEEDED: Metric(value=inf if enough is None else 2 * enough),
        }

    def _declared_shape(self, mechanism: Mechanism, bound: ScoreBound) -> dict[str, Metric]:
        usable = 0 < len(mechanism) <= FEW and all(r.noise_multiplier > 0 for r in mechanism)
        delta = claimed_delta(self.claim)
        if not usable or (delta == 0 and not _is_pure(mechanism)):
            return {}
        found = noise_factor_bound(
            bound.fp,
            bound.fn,
            bound.n0,
            bound.n1,
            delta,
            self.options.alpha,
            mechanism,
            record_adjacency(self.claim),
        )
        return {
            Name.EPSILON_OF_DECLARED_SHAPE: Metric(value=found.epsilon),
            Name.NOISE_FACTOR: Metric(value=found.noise_factor),
        }

    def _noise(self, played: Scored) -> Finding:
        """Whether what is left of the messages is the noise that the defense asked for."""
        test, p = white_noise_test(played.features)
        differs = p < DIFFERENT
        return Finding(
            role=Role.NOISE,
            kind="control",
            title="noise really drawn",
            claim=self.index,
            attack="likelihood-ratio",
            threat_model=self.threat_model.name,
            world="defense",
            metrics={Name.P_VALUE: Metric(value=p, n=len(played.features))},
            verdict=Verdict.UNSUPPORTED if differs else None,
            notes=(
                "what the adversary cannot foretell of the messages should be independent noise of "
                f"the scale that the defense asks for; most striking: {test}",
                f"differs from it at p < {DIFFERENT:g}" if differs else "no difference was found",
            ),
        )

    def _null(self, scores: Array, streams: Streams) -> Finding:
        """Two worlds that are the same: any bound above 0 is a false alarm."""
        half = len(scores) // 2
        bound = from_scores(
            scores[:half],
            scores[half:],
            claimed_delta(self.claim),
            self.options.alpha,
            streams.numpy("null"),
        )
        return self._control(
            Role.NULL_CONTROL,
            bound,
            "the record is in neither world: the bound should be 0, and is not with probability "
            f"{self.options.alpha:g} at most",
        )

    def _positive(self, silent: Worlds, streams: Streams) -> Finding:
        """The noise is off: an auditor that is alive refutes the claim."""
        bound = from_scores(
            silent.without.scores,
            silent.with_record.scores,
            claimed_delta(self.claim),
            self.options.alpha,
            streams.numpy("positive"),
        )
        return self._control(
            Role.POSITIVE_CONTROL, bound, "the noise is off: the bound should be near its ceiling"
        )

    def _control(self, role: Role, bound: ScoreBound, note: str) -> Finding:
        delta, alpha = claimed_delta(self.claim), self.options.alpha
        top = ceiling(min(bound.n0, bound.n1), delta, alpha)
        claimed = claimed_epsilon(self.claim)
        return Finding(
            role=role,
            kind="control",
            title=role.replace("-", " "),
            claim=self.index,
            attack="likelihood-ratio",
            threat_model=self.threat_model.name,
            world="no-defense" if role is Role.POSITIVE_CONTROL else "defense",
            metrics={
                Name.EPSILON_LOWER_BOUND: Metric(value=bound.value, n=bound.n0 + bound.n1),
                Name.CLAIMED_EPSILON: Metric(value=claimed),
                Name.CEILING: Metric(value=top),
            },
            verdict=Verdict.REFUTED if bound.value > claimed else None,
            notes=(note,),
        )


_PROBED = (
    "from the defense's own step, probed with unit noise around a run without records; exact for "
    "defenses that are linear in their noise"
)


def _is_pure(mechanism: Mechanism) -> bool:
    return all(release.family == "laplace" for release in mechanism)


def _tradeoff(scores: tuple[Array, Array], claim: Claim) -> dict[str, tuple[float, ...]]:
    """Error rates of the score at many thresholds, all runs, beside what the claim allows."""
    fpr, fnr = error_rates(*scores)
    if claim.mu is not None:
        allowed = GAUSSIAN.false_negative_rate(claim.mu, fpr)
    else:
        e, delta = min(claimed_epsilon(claim), LARGE), claim.delta
        present, absent = 1 - delta - np.exp(e) * fpr, np.exp(-e) * (1 - delta - fpr)
        allowed = np.maximum(0, np.maximum(present, absent))
    return {
        Column.FALSE_POSITIVE_RATE: tuple(fpr.tolist()),
        Column.FALSE_NEGATIVE_RATE: tuple(fnr.tolist()),
        Column.LEAST_ALLOWED: tuple(allowed.tolist()),
    }
