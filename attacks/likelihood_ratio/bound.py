"""What runs with and without one record prove: a certified lower bound on epsilon, and controls."""

from collections.abc import Iterator
from math import ceil, exp, inf, log, log1p

import numpy as np

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.reconstruction import matching_success
from dpaudit.accounting.releases import false_negative_rate
from dpaudit.attack import Claim, Column, Evidence, Finding, Metric, Name, Role, Streams, Verdict
from dpaudit.attack.figures import counted_test, expected_value, of_claim, without_errors
from dpaudit.defense import CHANGED_RECORDS, DpauditError, Mechanism
from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.runs.play import Worlds, error_rates
from dpaudit.game.worst_case.record import played_mechanism
from dpaudit.statistics import betting, bounds
from dpaudit.statistics.bounds import bound_error, noise_factor_bound
from dpaudit.statistics.successes import EpsilonPromise, MuPromise, Successes, needed

from .exact import is_pure
from .question import Question
from .runs import CountedScores, RunScore

TITLE = "runs with and without one record"
LARGE = 700.0  # an epsilon whose exponential is finite
DECIDED = 1e-3  # p-value that still refutes among 50 statements of an audit
FEW = 4  # distinct releases at most, for a bound that composes them again and again


def certified_bound(question: Question, counted: CountedScores) -> Finding:
    """The test of the claim, from the scores of runs without and with the record."""
    choosing, delta, alpha = counted.score.choosing, question.delta, question.alpha
    path = betting.log_wealth(_bets(question, choosing), counted.scores)
    evidence: dict[str, tuple[float, ...]] = {}
    shape: Mechanism = ()
    if question.stop_early:  # add the bound that is valid wherever the runs were stopped
        value = betting.epsilon_from_bets(counted.scores, delta, alpha, choosing)
        evidence = _evidence(question, counted, value)
        metrics = {
            Name.EPSILON_LOWER_BOUND: Metric(value=value, n=2 * len(path)),
            **of_claim(question.claimed, delta, alpha, betting.anytime_p_value(path)),
            **power_of(question, len(path)),
        }
    else:
        shape = _shape(question)
        metrics = _by_counts(question, counted)
    metrics[Name.LOG_WEALTH] = Metric(value=float(path[-1]), n=len(path))
    return question.finding(
        Role.TEST,
        TITLE,
        rounds=(1, question.n_rounds),
        world="defense",
        metrics=metrics,
        notes=tuple(_notes(question, counted.score, len(path), metrics)),
        series=_tradeoff(question, counted.scores),
        releases={"most": tuple(shape)} if shape else {},
        evidence=evidence,
    )


def untested(question: Question, why: str) -> Finding:
    """No bound, because the runs of the game gave no numbers."""
    rounds = (1, question.n_rounds)
    return question.finding(Role.TEST, TITLE, rounds=rounds, world="defense", notes=(why,))


def matched_bound(
    question: Question, counted: CountedScores, candidates: int, streams: Streams
) -> Finding:
    """The test of the claim by how often the run with the record is named among all others.

    The record is in one of M runs, each as likely, and the adversary names the run with the highest
    score. All M runs together are one mechanism on a secret among M, and if Q is their law without
    the record in any, the law with it in one of them differs from Q in that run alone: they are as
    hard to distinguish as two worlds of one run. So the success is gamma(1 / M) at most under a
    claim on one run (``dpaudit.accounting.reconstruction``), whatever the mechanism. For Gaussian
    noise it is the same as matching M candidates whose gradients are orthogonal to one another, in
    a single run.

    Source: the matching attack of Hayes, Mahloujifar and Balle 2023, arXiv:2302.07225.
    """
    without, with_record = counted.scores
    n = min(len(with_record), len(without) // (candidates - 1))
    others = without[: n * (candidates - 1)].reshape(n, candidates - 1)
    hits = n_matched(with_record[:n], others, streams.numpy("matching"))
    found = Successes(hits, n, 1 / candidates, apart=True)
    return question.finding(
        Role.TEST,
        f"matching among {candidates} candidates",
        rounds=(1, question.n_rounds),
        world="defense",
        metrics=_of_matching(question, found),
        notes=(
            f"{n} times the record is in one of {candidates} runs, each as likely, and the run "
            "with the highest score is named; success far below what accounting allows is the "
            "attack's weakness, and no protection",
        ),
    )


def n_matched(used: Array, others: Array, rng: np.random.Generator) -> int:
    """How often the candidate that was used scores highest.

    Args:
        used: [n], its score.
        others: [n, m - 1], those of the other candidates.
        rng: by which one of equal scores is chosen, as by a guess.
    """
    ties = (others == used[:, None]).sum(axis=1)
    best = (others <= used[:, None]).all(axis=1)
    return int((best & (rng.random(len(used)) * (1 + ties) < 1)).sum())


def controls(question: Question, counted: CountedScores, streams: Streams) -> Iterator[Finding]:
    """Whether the auditor is alive: two worlds that are the same, and two without any noise."""
    without, _ = counted.scores
    half, rng = len(without) // 2, streams.numpy("null")
    note = (
        "both halves are runs of one world, without the record or with its opposite: the bound "
        f"should be 0, and is not with probability {question.alpha:g} at most"
    )
    yield _control(question, Role.NULL_CONTROL, (without[:half], without[half:]), rng, note)
    note, rng = "the noise is off: the bound should be near its ceiling", streams.numpy("positive")
    yield _control(question, Role.POSITIVE_CONTROL, counted.silent, rng, note)


def _control(
    question: Question,
    role: Role,
    scores: tuple[Array, Array],
    rng: np.random.Generator,
    note: str,
) -> Finding:
    bound = bounds.from_scores(*scores, question.delta, question.alpha, rng)
    top = bounds.ceiling(min(bound.n0, bound.n1), question.delta, question.alpha)
    return question.finding(
        role,
        role.replace("-", " "),
        world="no-defense" if role is Role.POSITIVE_CONTROL else "defense",
        metrics={
            Name.EPSILON_LOWER_BOUND: Metric(value=bound.value, n=bound.n0 + bound.n1),
            Name.CLAIMED_EPSILON: Metric(value=question.claimed),
            Name.CEILING: Metric(value=top),
            Name.FALSE_POSITIVES: Metric(value=bound.fp, n=bound.n0),
            Name.FALSE_NEGATIVES: Metric(value=bound.fn, n=bound.n1),
        },
        verdict=Verdict.REFUTED if bound.value > question.claimed else None,
        notes=(note,),
    )


def _notes(
    question: Question, score: RunScore, n_runs: int, metrics: dict[str, Metric]
) -> Iterator[str]:
    """What was played, and how it was read."""
    game = question.game
    yield (
        f"{n_runs} runs of each world over {question.n_rounds} of {game.defense.n_rounds} "
        f"rounds, the canary in the batch with probability {game.sampling_rate:.3g} a round; "
        f"{len(score.choosing[0])} other runs of each chose the threshold"
    )
    if score.learned:
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
        yield "the bound of the declared shape is proven for noise of the declared family alone"
    if question.claim.mu is not None:
        yield "mu is of the Gaussian family"


def is_decided(question: Question, score: RunScore, so_far: Worlds) -> bool:
    """Whether bets on these runs refute the claim, among some dozens of statements too."""
    path = betting.log_wealth(_bets(question, score.choosing), score(so_far))
    return betting.anytime_p_value(path) <= DECIDED


def _bets(question: Question, choosing: tuple[Array, Array]) -> betting.Bets:
    """Against the claim, or points of its whole curve."""
    points = [betting.Point(question.claimed, question.delta)]
    if question.claim.mu is not None:
        points = betting.gaussian_curve(question.claim.mu)
    return betting.bets(points, choosing)


def _evidence(
    question: Question, counted: CountedScores, certified: float
) -> dict[str, tuple[float, ...]]:
    """What the wealth of bets against the claim, and against what they certify, follows from."""
    choosing = counted.score.choosing
    groups = [_bets(question, choosing)]
    if certified > 0:
        groups.append(betting.bets([betting.Point(certified, question.delta)], choosing))
    found = betting.packed(groups, counted.scores)
    points = np.concatenate([on.points for on in groups])
    sides = np.concatenate([on.above for on in groups])
    return {
        Evidence.BET_EPSILON: tuple(points[:, 0].tolist()),
        Evidence.BET_DELTA: tuple(points[:, 1].tolist()),
        Evidence.BET_SIDE: tuple(sides.tolist()),
        Evidence.BET_PLACE: found.place,
        Evidence.BET_SHARE: found.share,
        Evidence.BET_GROUP: found.group,
        Evidence.PLACES: found.places,
        Evidence.N_PLACES: (found.n_places,),
    }


def _by_counts(question: Question, counted: CountedScores) -> dict[str, Metric]:
    """What the errors in a number of runs that was fixed beforehand prove."""
    alpha, delta = question.alpha, question.delta
    found, metrics = counted_test(question.claim, counted.scores, counted.score.choosing, alpha)
    value, fp, fn, n0, n1 = found.value, found.fp, found.fn, found.n0, found.n1
    if question.claim.mu is None:
        error = bound_error(
            fp, fn, n0, n1, lambda a, b: bounds.epsilon_lower_bound(a, b, n0, n1, delta, alpha)
        )
    else:
        error = bound_error(
            fp, fn, n0, n1, lambda a, b: bounds.family_lower_bound(a, b, n0, n1, alpha)
        )
        epsilon, more = (GAUSSIAN.epsilon(x, delta) for x in (value, value + error))
        error = more - epsilon
    with_error = metrics[Name.EPSILON_LOWER_BOUND].model_copy(update={"standard_error": error})
    metrics[Name.EPSILON_LOWER_BOUND] = with_error
    metrics |= power_of(question, min(n0, n1))
    if shape := _shape(question):
        of_shape = noise_factor_bound(fp, fn, n0, n1, delta, alpha, shape, question.adjacency)
        metrics[Name.EPSILON_OF_DECLARED_SHAPE] = Metric(value=of_shape.epsilon)
        metrics[Name.NOISE_FACTOR] = Metric(value=of_shape.noise_factor)
    return metrics


def _of_matching(question: Question, found: Successes) -> dict[str, Metric]:
    mu, delta, alpha = question.claim.mu, question.delta, question.alpha
    promise = EpsilonPromise(question.claimed, delta) if mu is None else MuPromise(mu)
    n, candidates = found.n, round(1 / found.kappa)

    def epsilon(bound: float) -> float:
        return bound if mu is None else GAUSSIAN.epsilon(bound, delta)

    def power(rates: Array) -> Array:
        return 1 - false_negative_rate(mechanism, rates, question.adjacency)

    bound = found.bound(promise, alpha)
    metrics: dict[str, Metric] = {
        Name.EPSILON_LOWER_BOUND: Metric(value=epsilon(bound), n=n * candidates),
        **of_claim(question.claimed, delta, alpha, found.p_value(promise)),
        Name.MATCHED: _share(found.hits, n),
        Name.MATCHED_BLINDLY: Metric(value=found.kappa),
        Name.CLAIM_ALLOWS: Metric(value=promise.gamma(found.kappa)),
        Name.CEILING: Metric(value=epsilon(found.ceiling(promise, alpha)), n=n),
        Name.TRIALS_NEEDED: Metric(value=(candidates - 1) * needed(promise, found.kappa, alpha)),
    }
    if mu is not None:
        metrics |= {Name.MU_LOWER_BOUND: Metric(value=bound), Name.CLAIMED_MU: Metric(value=mu)}
    mechanism = played_mechanism(question.mechanism, question.game.spread)
    derived = question.nonlinear is None and question.game.held is None and not question.meet
    if derived and mechanism:  # the view's own algebra covers all that is played
        expected = found.expected(promise, alpha, matching_success(power, candidates))
        metrics[Name.ACCOUNTING_ALLOWS] = Metric(value=float(power(np.array(found.kappa))))
        metrics[Name.EXPECTED_BOUND] = Metric(value=epsilon(expected))
    return metrics


def _share(hits: int, n: int) -> Metric:
    """A share and its 95% interval (Clopper and Pearson)."""
    low = 1 - float(bounds.clopper_pearson(n - hits, n, 0.025))
    return Metric(value=hits / n, low=low, high=float(bounds.clopper_pearson(hits, n, 0.025)), n=n)


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
    if not stop_early:
        return without_errors(claim, n, alpha)
    delta, small = claimed_delta(claim), exp(-claimed_epsilon(claim))
    errorless = np.zeros(n), np.ones(n)
    ceiling = betting.epsilon_from_bets(errorless, delta, alpha, errorless)
    gain = log1p(betting.SHARES[0] * small * (1 - delta) / (1 + small * delta))
    return {
        Name.CEILING: Metric(value=ceiling, n=n),
        Name.TRIALS_NEEDED: Metric(value=ceil(log(2 / alpha) / gain) if gain > 0 else inf),
    }


def _shape(question: Question) -> Mechanism:
    """The declared releases, if a bound on the noise of their family can be composed of them."""
    mechanism = _declared_releases(question)
    at_once = all(r.family == "gaussian" and r.sampling_rate == 1 for r in mechanism)
    few = at_once or len(mechanism) <= FEW
    noisy = all(r.noise_multiplier > 0 for r in mechanism)
    return mechanism if few and noisy and (question.delta > 0 or is_pure(mechanism)) else ()


def _declared_releases(question: Question) -> Mechanism:
    """Releases that no test of the view tells apart better, if the noise is as declared.

    Those of the view's own algebra where it covers all that is played; else, for a record and a
    whole run, those that the defense declares. None are known where batches meet in one message.
    """
    game, claim = question.game, question.claim
    alone = game.spread == 1 and game.width is None and not question.meet
    if question.mechanism and question.nonlinear is None and alone:
        return question.mechanism
    if question.meet or claim.scope != "run" or claim.adjacency not in CHANGED_RECORDS:
        return ()
    try:
        declared = game.defense.mechanism(game.setting, question.threat_model, game.victim)
    except DpauditError:  # it says nothing of such a view
        return ()
    return declared.most


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
