"""Matching: which of M runs has the record, held against what a claim allows of reconstructions.

The record is in one of M runs, each as likely, and the adversary names the run with the highest
score. All M runs together are one mechanism on a secret among M, and if Q is their law without the
record in any, the law with it in one of them differs from Q in that run alone: they are as hard to
tell apart as two worlds of one run. So the success is gamma(1 / M) at most under a claim on one
run (``dpaudit.accounting.reconstruction``), whatever the mechanism. For Gaussian noise it is the
same as matching M candidates whose gradients are orthogonal to one another, in a single run.

Source: the matching attack of Hayes, Mahloujifar and Balle 2023, arXiv:2302.07225.
"""

import numpy as np

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.reconstruction import matching_success
from dpaudit.accounting.releases import false_negative_rate
from dpaudit.attacks.matching import n_matched
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.game.worst_case.record import played_mechanism
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import clopper_pearson
from dpaudit.statistics.successes import EpsilonPromise, MuPromise, Promise, Successes, needed

from .question import Question
from .runs import CountedRuns


def matched_bound(
    question: Question, runs: CountedRuns, candidates: int, streams: Streams
) -> Finding:
    """The test of the claim by how often the run with the record is told from all others."""
    without, with_record = runs.scores
    n = min(len(with_record), len(without) // (candidates - 1))
    others = without[: n * (candidates - 1)].reshape(n, candidates - 1)
    hits = n_matched(with_record[:n], others, streams.numpy("matching"))
    found = Successes(hits, n, 1 / candidates, apart=True)
    return question.finding(
        Role.TEST,
        f"matching among {candidates} candidates",
        rounds=(1, question.n_rounds),
        world="defense",
        metrics=_metrics(question, found),
        notes=(
            f"{n} times the record is in one of {candidates} runs, each as likely, and the run "
            "with the highest score is named; success far below what accounting allows is the "
            "attack's weakness, and no protection",
        ),
    )


def _metrics(question: Question, found: Successes) -> dict[str, Metric]:
    mu, delta, alpha = question.claim.mu, question.delta, question.alpha
    promise = EpsilonPromise(question.claimed, delta) if mu is None else MuPromise(mu)
    n, candidates = found.n, round(1 / found.kappa)

    def epsilon(bound: float) -> float:
        return bound if mu is None else GAUSSIAN.epsilon(bound, delta)

    bound = found.bound(promise, alpha)
    metrics: dict[str, Metric] = {
        Name.EPSILON_LOWER_BOUND: Metric(value=epsilon(bound), n=n * candidates),
        Name.CLAIMED_EPSILON: Metric(value=question.claimed),
        Name.DELTA: Metric(value=delta),
        Name.CONFIDENCE: Metric(value=1 - alpha),
        Name.P_VALUE: Metric(value=found.p_value(promise)),
        Name.MATCHED: _share(found.hits, n),
        Name.MATCHED_BLINDLY: Metric(value=found.kappa),
        Name.CLAIM_ALLOWS: Metric(value=promise.gamma(found.kappa)),
        Name.CEILING: Metric(value=epsilon(found.ceiling(promise, alpha)), n=n),
        Name.TRIALS_NEEDED: Metric(value=(candidates - 1) * needed(promise, found.kappa, alpha)),
    }
    if mu is not None:
        metrics |= {Name.MU_LOWER_BOUND: Metric(value=bound), Name.CLAIMED_MU: Metric(value=mu)}
    metrics |= _foretold(question, found, promise)
    if Name.EXPECTED_BOUND in metrics:
        metrics[Name.EXPECTED_BOUND] = Metric(value=epsilon(metrics[Name.EXPECTED_BOUND].value))
    return metrics


def _foretold(question: Question, found: Successes, promise: Promise) -> dict[str, Metric]:
    """What the view's own algebra says of the success, where it covers all that is played."""
    mechanism = played_mechanism(question.mechanism, question.game.spread)
    derived = question.nonlinear is None and question.game.held is None and not question.meet
    if not (derived and mechanism):
        return {}

    def power(rates: Array) -> Array:
        return 1 - false_negative_rate(mechanism, rates, question.adjacency)

    success = matching_success(power, round(1 / found.kappa))
    expected = found.expected(promise, question.alpha, success)
    return {
        Name.ACCOUNTING_ALLOWS: Metric(value=float(power(np.array(found.kappa)))),
        Name.EXPECTED_BOUND: Metric(value=expected),
    }


def _share(hits: int, n: int) -> Metric:
    """A share and its 95% interval (Clopper and Pearson)."""
    low = 1 - float(clopper_pearson(n - hits, n, 0.025))
    return Metric(value=hits / n, low=low, high=float(clopper_pearson(hits, n, 0.025)), n=n)
