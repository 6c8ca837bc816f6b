"""What runs with and without one record prove: a certified lower bound on epsilon."""

from collections.abc import Iterator
from math import ceil, exp, inf, log, log1p

import numpy as np

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.accounting.privacy_loss import Array
from dpaudit.attack.counted import counted_test, expected_value, without_errors
from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.runs.play import Worlds, error_rates
from dpaudit.statistics.betting import (
    SHARES,
    Point,
    anytime_p_value,
    bets,
    epsilon_from_bets,
    gaussian_curve,
    log_wealth,
)
from dpaudit.statistics.bounds import (
    ScoreBound,
    epsilon_lower_bound,
    family_lower_bound,
)
from dpaudit.statistics.noise_factor import noise_factor_bound
from dpaudit.statistics.power import (
    bound_error,
)

from .question import Question, is_pure
from .runs import CountedRuns, Score

TITLE = "runs with and without one record"
LARGE = 700.0  # an epsilon whose exponential is finite
DECIDED = 1e-3  # p-value that still refutes among 50 statements of an audit
FEW = 4  # distinct releases at most, for a bound that composes them again and again


def certified_bound(question: Question, runs: CountedRuns) -> Finding:
    """The test of the claim, from the scores of runs without and with the record."""
    path = _wealth(question, runs.score, runs.counted)
    metrics = _by_bets(question, runs, path) if question.stop_early else _by_counts(question, runs)
    metrics[Name.LOG_WEALTH] = Metric(value=float(path[-1]), n=len(path))
    return question.finding(
        Role.TEST,
        TITLE,
        rounds=(1, question.n_rounds),
        world="defense",
        metrics=metrics,
        notes=tuple(_notes(question, runs, len(path), metrics)),
        series=_tradeoff(question, runs.scores),
    )


def untested(question: Question, why: str) -> Finding:
    """No bound, because the runs of the game gave no numbers."""
    rounds = (1, question.n_rounds)
    return question.finding(Role.TEST, TITLE, rounds=rounds, world="defense", notes=(why,))


def _notes(
    question: Question, runs: CountedRuns, n_runs: int, metrics: dict[str, Metric]
) -> Iterator[str]:
    """What was played, and how it was read."""
    game = question.game
    yield (
        f"{n_runs} runs of each world over {question.n_rounds} of {game.defense.n_rounds} "
        f"rounds, the canary in the batch with probability {game.sampling_rate:.3g} a round; "
        f"{len(runs.score.choosing[0])} other runs of each chose the threshold"
    )
    if runs.score.learned:
        yield "scores learned from other runs"
    else:
        yield "scores are likelihood ratios under the noise that the defense asks for"
    if question.stop_early:
        yield (
            "bets on each pair of runs, which stop between blocks of runs once the claims are "
            "decided: p is 1 / largest wealth"
        )
    if game.filled > 1:
        yield f"the record moves all {game.filled} layers, each to the end of its clip"
    if game.width is not None:
        yield (
            f"{game.width} coordinates are played together, as the step mixes them or needs them; "
            "messages are read along the record, which moves "
            + ("the first" if game.spread == 1 else "all alike")
        )
    if game.spread > 1:
        why = (
            "the worst behind a clip in L2 under Laplace noise"
            if question.nonlinear is None
            else "which moves more of this step than one coordinate does"
        )
        yield (
            f"the record has the same size in each of {game.spread} coordinates, {why}; of "
            f"{game.coordinates} in the model"
        )
    if Name.NOISE_FACTOR in metrics:
        yield "the bound of the declared shape is proven for such mechanisms alone"
    if question.claim.mu is not None:
        yield "mu is of the Gaussian family"


def is_decided(question: Question, score: Score, so_far: Worlds) -> bool:
    """Whether bets on these runs refute the claim, among some dozens of statements too."""
    return anytime_p_value(_wealth(question, score, so_far)) <= DECIDED


def _wealth(question: Question, score: Score, played: Worlds) -> Array:
    """Log wealth after each pair of runs, of bets against the claim or its whole curve."""
    mu = question.claim.mu
    points = [Point(question.claimed, question.delta)] if mu is None else gaussian_curve(mu)
    return log_wealth(bets(points, score.choosing), score(played))


def _by_bets(question: Question, runs: CountedRuns, path: Array) -> dict[str, Metric]:
    """What holds wherever the runs were stopped."""
    bound = epsilon_from_bets(runs.scores, question.delta, question.alpha, runs.score.choosing)
    certified = Metric(value=bound, n=2 * len(path))
    return _metrics(question, certified, anytime_p_value(path)) | power_of(question, len(path))


def _by_counts(question: Question, runs: CountedRuns) -> dict[str, Metric]:
    """What the errors in a number of runs that was fixed beforehand prove."""
    alpha, delta = question.alpha, question.delta
    found, metrics = counted_test(question.claim, runs.scores, runs.score.choosing, alpha)
    value, fp, fn, n0, n1 = found.value, found.fp, found.fn, found.n0, found.n1
    if question.claim.mu is None:
        error = bound_error(
            fp, fn, n0, n1, lambda a, b: epsilon_lower_bound(a, b, n0, n1, delta, alpha)
        )
    else:
        error = bound_error(fp, fn, n0, n1, lambda a, b: family_lower_bound(a, b, n0, n1, alpha))
        epsilon, more = (GAUSSIAN.epsilon(x, delta) for x in (value, value + error))
        error = more - epsilon
    certified = metrics[Name.EPSILON_LOWER_BOUND].model_copy(update={"standard_error": error})
    metrics[Name.EPSILON_LOWER_BOUND] = certified
    return metrics | power_of(question, min(n0, n1)) | _declared_shape(question, found)


def _metrics(question: Question, certified: Metric, p: float) -> dict[str, Metric]:
    return {
        Name.EPSILON_LOWER_BOUND: certified,
        Name.CLAIMED_EPSILON: Metric(value=question.claimed),
        Name.DELTA: Metric(value=question.delta),
        Name.CONFIDENCE: Metric(value=1 - question.alpha),
        Name.P_VALUE: Metric(value=p),
    }


def power_of(question: Question, counted: int) -> dict[str, Metric]:
    """What could be expected before any run: of these runs, at best, and how many would do.

    What bets may expect is not known.
    """
    claim, delta, alpha = question.claim, question.delta, question.alpha
    power = best_of(claim, counted, alpha, question.stop_early)
    predicted = isinstance(question.adversary, Adversary)
    derived = predicted and question.nonlinear is None and question.game.held is None
    if question.stop_early or not derived:  # nothing is known of what is to be expected
        return power
    of_mu = claim.mu is not None
    bound = max(expected_value(counted, of_mu, delta, alpha, each) for each in question.tradeoffs())
    expected = bound if claim.mu is None else GAUSSIAN.epsilon(bound, delta)
    power[Name.EXPECTED_BOUND] = Metric(value=expected)
    return power


def best_of(claim: Claim, n: int, alpha: float, stop_early: bool) -> dict[str, Metric]:
    """What so many runs prove without an error, and how many would then do, of any defense."""
    claimed, delta = claimed_epsilon(claim), claimed_delta(claim)
    if stop_early:
        return _best_of_bets(claimed, delta, alpha, n)
    return without_errors(claim, n, alpha)


def _best_of_bets(claimed: float, delta: float, alpha: float, counted: int) -> dict[str, Metric]:
    errorless = np.zeros(counted), np.ones(counted)
    small = exp(-claimed)
    gain = log1p(SHARES[0] * small * (1 - delta) / (1 + small * delta))
    return {
        Name.CEILING: Metric(
            value=epsilon_from_bets(errorless, delta, alpha, errorless), n=counted
        ),
        Name.TRIALS_NEEDED: Metric(value=ceil(log(2 / alpha) / gain) if gain > 0 else inf),
    }


def _declared_shape(question: Question, bound: ScoreBound) -> dict[str, Metric]:
    mechanism, delta = question.mechanism, question.delta
    usable = 0 < len(mechanism) <= FEW and all(r.noise_multiplier > 0 for r in mechanism)
    alone = question.game.spread == 1 and question.game.width is None and not question.meet
    shaped = question.nonlinear is None and alone
    if not (shaped and usable) or (delta == 0 and not is_pure(mechanism)):
        return {}
    counts = (bound.fp, bound.fn, bound.n0, bound.n1)
    found = noise_factor_bound(*counts, delta, question.alpha, mechanism, question.adjacency)
    return {
        Name.EPSILON_OF_DECLARED_SHAPE: Metric(value=found.epsilon),
        Name.NOISE_FACTOR: Metric(value=found.noise_factor),
    }


def _tradeoff(question: Question, scores: tuple[Array, Array]) -> dict[str, tuple[float, ...]]:
    """Error rates of the score at many thresholds, all runs, beside what the claim allows."""
    fpr, fnr = error_rates(*scores)
    if question.claim.mu is not None:
        allowed = GAUSSIAN.false_negative_rate(question.claim.mu, fpr)
    else:
        e, delta = min(question.claimed, LARGE), question.claim.delta
        present, absent = 1 - delta - np.exp(e) * fpr, np.exp(-e) * (1 - delta - fpr)
        allowed = np.maximum(0, np.maximum(present, absent))
    return {
        Column.FALSE_POSITIVE_RATE: tuple(fpr.tolist()),
        Column.FALSE_NEGATIVE_RATE: tuple(fnr.tolist()),
        Column.LEAST_ALLOWED: tuple(allowed.tolist()),
    }
