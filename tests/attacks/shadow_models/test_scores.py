"""LiRA and RMIA: their formulas written as loops, and rates that are known in closed form."""

from math import exp, log, sqrt

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from dpaudit.attack.membership_rates import membership_rates
from dpaudit.attacks.shadow_models.scores import (
    References,
    is_scored,
    lira_offline,
    lira_online,
    rmia,
    tuned_offline_a,
)
from dpaudit.files.finding import Name

RUNS, RECORDS = 12, 5


def drawn(k: int, seed: int = 0) -> tuple[np.ndarray, References]:
    """Statistics of 3 attacked runs, and of reference runs, of k numbers each."""
    rng = np.random.default_rng(seed)
    included = rng.random((RUNS, RECORDS)) < 0.5
    included[:4] = np.array([True, True, False, False])[:, None]  # every record is scored
    statistics = rng.normal(0, 1, (RUNS, RECORDS, k)) @ rng.normal(0, 1, (k, k))
    return rng.normal(0, 1, (3, RECORDS, k)), References(statistics + included[..., None], included)


def moments(references: References, wanted: bool, k: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Means of records, and the covariance around them, shrunk by k / (k + runs) if k > 1."""
    means, total, degrees = [], np.zeros((k, k)), 0
    for r in range(RECORDS):
        rows = [s[r] for s, i in zip(*references, strict=True) if i[r] == wanted]
        means.append(sum(rows) / len(rows))
        degrees += len(rows) - 1
        for row in rows:
            total += np.outer(row - means[-1], row - means[-1])
    covariance = total / degrees
    weight = k / (k + RUNS) if k > 1 else 0.0
    for i in range(k):
        for j in range(k):
            covariance[i, j] *= 1.0 if i == j else 1 - weight
    return means, covariance


@pytest.mark.parametrize("k", [1, 3])
def test_online_lira_is_a_ratio_of_normal_densities(k: int) -> None:
    statistics, references = drawn(k)
    (m_in, S_in), (m_out, S_out) = (moments(references, w, k) for w in (True, False))
    found = lira_online(statistics, references)
    for t in range(3):
        for r in range(RECORDS):
            s = statistics[t, r]
            expected = multivariate_normal.logpdf(s, m_in[r], S_in)
            expected -= multivariate_normal.logpdf(s, m_out[r], S_out)
            assert found[t, r] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("k", [1, 3])
def test_own_variances_are_those_of_each_record(k: int) -> None:
    """Of one statistic normal densities with them; of several, of one record, the same as pooled."""
    statistics, references = drawn(k)
    if k > 1:
        one = References(references.statistics[:, :1], references.included[:, :1])
        pooled, own = (lira_online(statistics[:, :1], one, v) for v in ("pooled", "own"))
        assert own == pytest.approx(pooled, rel=1e-6)
        return
    (m_in, _), (m_out, _) = (moments(references, wanted, k) for wanted in (True, False))
    found = lira_online(statistics, references, "own")
    for r in range(RECORDS):
        expected, s = 0.0, statistics[0, r, 0]
        for wanted, sign, mean in ((True, 1, m_in[r][0]), (False, -1, m_out[r][0])):
            here = references.included == wanted
            rows = references.statistics[here[:, r], r, 0]
            variance = np.square(rows - mean).mean() * here.sum() / (here.sum() - RECORDS)
            expected += sign * norm.logpdf(s, mean, sqrt(variance))
        assert found[0, r] == pytest.approx(expected, rel=1e-6)


def test_offline_lira_is_the_distance_from_runs_without_it() -> None:
    statistics, references = drawn(1)
    means, covariance = moments(references, False, 1)
    for t in range(3):
        for r in range(RECORDS):
            z = (statistics[t, r, 0] - means[r][0]) / sqrt(covariance[0, 0])
            assert lira_offline(statistics, references)[t, r] == pytest.approx(z, rel=1e-6)


def test_offline_lira_of_a_sequence_reads_other_directions() -> None:
    statistics, references = drawn(3)
    (m_in, _), (m_out, S) = (moments(references, wanted, 3) for wanted in (True, False))
    for r in range(RECORDS):
        others = [m_in[q] - m_out[q] for q in range(RECORDS) if q != r]
        D = np.linalg.solve(S, sum(others) / len(others))
        z = (statistics[0, r] - m_out[r]) @ D / sqrt(D @ S @ D)
        assert lira_offline(statistics, references)[0, r] == pytest.approx(z, rel=1e-6)


def probability(log_odds: float) -> float:
    return 1 / (1 + exp(-log_odds))


@pytest.mark.parametrize("a", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("k", [1, 2])
def test_rmia_counts_the_public_records_that_are_beaten(a: float | None, k: int) -> None:
    statistics, references = drawn(k)
    rng = np.random.default_rng(5)
    public, public_in_references = rng.normal(0, 1, (3, 40, k)), rng.normal(0, 1, (RUNS, 40, k))
    found = rmia(statistics, references, public, public_in_references, a)

    def mean(values: list[float]) -> float:
        return sum(map(probability, values)) / len(values)

    def offline(p_out: float) -> float:
        weight = 1.0 if a is None else a
        return ((1 + weight) * p_out + (1 - weight)) / 2

    def ratio(s: np.ndarray, typical: list[float]) -> float:
        logs = (log(probability(s[i]) / typical[i]) for i in range(k))
        return sum(logs) / k

    for t in range(3):
        for r in range(RECORDS):
            typical = []
            for i in range(k):
                pairs = list(
                    zip(references.statistics[:, r, i], references.included[:, r], strict=True)
                )
                p_in = mean([s for s, there in pairs if there])
                p_out = mean([s for s, there in pairs if not there])
                typical.append((p_in + p_out) / 2 if a is None else offline(p_out))
            x, beaten = ratio(statistics[t, r], typical), 0
            for z in range(40):
                own = [offline(mean(list(public_in_references[:, z, i]))) for i in range(k)]
                beaten += x > ratio(public[t, z], own)
            assert found[t, r] == pytest.approx(beaten / 40, abs=1e-12)


def toy(k: int, shift: np.ndarray, n_runs: int) -> tuple[np.ndarray, np.ndarray, References]:
    """Records at places of their own, moved by ``shift`` in runs that hold them, under N(0, S)."""
    rng = np.random.default_rng(11)
    n = 2000
    S = 0.7 * np.ones((k, k)) + 0.3 * np.eye(k)
    places = rng.normal(0, 5, (n, k))
    included = rng.random((n_runs + 2, n)) < 0.5
    noise = rng.normal(0, 1, (n_runs + 2, n, k)) @ np.linalg.cholesky(S).T
    statistics = places + included[..., None] * shift + noise
    return (
        statistics[n_runs:],
        included[n_runs:],
        References(statistics[:n_runs], included[:n_runs]),
    )


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("score", [lira_online, lira_offline])
def test_a_gaussian_toy_has_the_rates_of_its_closed_form(k: int, score) -> None:
    """At a false positive rate of 1%, mu-GDP has the true positive rate Phi(mu - Phi^-1(0.99)).

    With n reference runs means err, which divides mu by sqrt(1 + 2 / n) at the least (offline).
    The threshold and the rate are of 1,000 records each: 6 standard errors of both, and 1e-8 to
    be beyond.
    """
    shift = np.linspace(2.0, 1.0, k)
    S, n_runs = 0.7 * np.ones((k, k)) + 0.3 * np.eye(k), 128
    mu = sqrt(shift @ np.linalg.solve(S, shift))
    (choosing, counting), (first, second), references = toy(k, shift, n_runs)
    scores = [score(s[None], references)[0] for s in (choosing, counting)]
    found = membership_rates(scores[1][second], scores[0][~first], scores[1][~second])
    expected = norm.cdf(mu - norm.isf(0.01))
    density = norm.pdf(mu - norm.isf(0.01)) / norm.pdf(norm.isf(0.01))  # of TPR by FPR
    error = sqrt(expected * (1 - expected) / 1000 + density**2 * 0.01 * 0.99 / 1000)
    slack = norm.pdf(mu - norm.isf(0.01)) * mu * 2 / n_runs
    assert found.metrics[Name.TPR_AT_001].value == pytest.approx(expected, abs=6 * error + slack)
    area = norm.cdf(mu / sqrt(2))
    assert found.metrics[Name.AUC].value == pytest.approx(area, abs=6 * 0.5 / sqrt(1000))


def test_scores_of_a_run_do_not_know_who_was_in_it() -> None:
    """Where membership moves nothing, the area is 1/2: within 6 standard errors, 1e-8 beyond."""
    (choosing, counting), (first, second), references = toy(3, np.zeros(3), 32)
    for score in (lira_online, lira_offline):
        one, other = (score(s[None], references)[0] for s in (choosing, counting))
        area = membership_rates(other[second], one[~first], other[~second]).metrics[Name.AUC].value
        assert area == pytest.approx(0.5, abs=6 * sqrt(1 / (12 * 500)))


def test_records_without_two_runs_of_either_kind_are_not_scored() -> None:
    included = np.array([[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]], dtype=bool)
    assert is_scored(included).tolist() == [False, True, False, True]


def test_the_offline_weight_is_that_of_the_largest_area() -> None:
    rng = np.random.default_rng(2)
    included = rng.random((16, 300)) < 0.5
    statistics = rng.normal(0, 2, 300)[None, :, None] + rng.normal(0, 0.3, (16, 300, 1))
    statistics += included[..., None]
    public = rng.normal(0, 2, 100)[None, :, None] + rng.normal(0, 0.3, (16, 100, 1))
    references = References(statistics, included)
    best = tuned_offline_a(references, public)
    attacked = References(statistics[1:], included[1:])
    areas = {}
    for a in np.linspace(0, 1, 11):
        (scores,) = rmia(statistics[:1], attacked, public[:1], public[1:], float(a))
        members, others = scores[included[0]], scores[~included[0]]
        areas[float(a)] = (
            np.mean(members[:, None] > others) + np.mean(members[:, None] == others) / 2
        )
    assert areas[best] == pytest.approx(max(areas.values()), abs=1e-12)


def test_the_offline_weight_is_of_a_run_with_both_kinds() -> None:
    """The first run holds all scored records, as it does of few test records."""
    rng = np.random.default_rng(4)
    included = rng.random((16, 300)) < 0.5
    included[0] = True
    statistics, public = rng.normal(0, 2, (16, 300, 1)), rng.normal(0, 2, (16, 100, 1))
    statistics += included[..., None]
    order = np.r_[1, 0, 2:16]
    expected = tuned_offline_a(References(statistics[order], included[order]), public[order])
    assert tuned_offline_a(References(statistics, included), public) == expected
    assert tuned_offline_a(References(statistics, np.ones((16, 300), dtype=bool)), public) == 1
