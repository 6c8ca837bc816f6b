"""Figures of single findings, against the formula that gives them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.accounting.releases import Release
from dpaudit.attacks.likelihood_ratio import runs
from dpaudit.attacks.likelihood_ratio.bound import (
    _by_counts,
    _share,
    _tradeoff,
    best_of,
    controls,
)
from dpaudit.attacks.likelihood_ratio.runs import (
    DIFFERENT,
    CountedScores,
    DrawnScores,
    RunScore,
    noise_by_runs,
)
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.game.runs.play import ScoredRuns, Worlds
from dpaudit.rng import Streams
from dpaudit.statistics.betting import SHARES
from dpaudit.statistics.bounds import (
    ceiling,
    family_from_scores,
    from_scores,
    mu_p_value,
    noise_factor_bound,
    noise_p_value,
)

DECLARED = (Release(family="gaussian", noise_multiplier=1.0, sampling="none", sampling_rate=1.0),)
N = 600


def question(claimed: float = 1.0) -> Any:
    return SimpleNamespace(
        adjacency="add-remove",
        alpha=0.05,
        delta=1e-5,
        claimed=claimed,
        nonlinear=SimpleNamespace(note="not linear"),
        finding=lambda role, title, **known: SimpleNamespace(role=role, **known),
    )


def scores(shift: float) -> tuple[np.ndarray, np.ndarray]:
    """The quantiles of two normal laws that lie so far apart."""
    without = norm.ppf((np.arange(N) + 0.5) / N)
    return without, without + shift


def drawn(k: int, shift: float) -> DrawnScores:
    return DrawnScores(k, scores(shift), scores(1.0))


def test_the_noise_of_two_rounds_is_tested_twice() -> None:
    """Of the two p-values the smaller counts, times two."""
    found = noise_by_runs(question(), DECLARED, [drawn(1, 1.0), drawn(4, 1.35)])
    bound = family_from_scores(*scores(1.35), 0.05, scores(1.0))
    counts = bound.fp, bound.fn, bound.n0, bound.n1
    p = noise_p_value(*counts, DECLARED, "add-remove")
    assert 0 < p < 0.01
    assert found.metrics[Name.P_VALUE].value == pytest.approx(2 * p, rel=1e-12)
    assert found.metrics[Name.P_VALUE].n == bound.n0 + bound.n1
    factor = noise_factor_bound(*counts, 1e-5, DIFFERENT / 2, DECLARED, "add-remove").noise_factor
    assert found.metrics[Name.NOISE_FACTOR].value == pytest.approx(factor, rel=1e-12)
    assert "batch of round 4 for certain" in found.notes[1]
    assert "the same of round 1" in found.notes[2]


@pytest.mark.parametrize(("shift", "verdict"), [(1.0, None), (2.2, Verdict.UNSUPPORTED)])
def test_noise_is_accused_below_a_p_value_of_one_in_a_million(shift, verdict) -> None:
    found = noise_by_runs(question(), DECLARED, [drawn(1, shift)])
    assert found.verdict is verdict
    assert (found.metrics[Name.P_VALUE].value < DIFFERENT) is (verdict is not None)


def test_the_null_control_halves_one_world() -> None:
    ordered = np.concatenate(scores(5.0))
    played = CountedScores(RunScore(scores(1.0), None), (ordered, ordered), scores(9.0))
    found, _ = controls(question(), played, Streams(0))
    bound = from_scores(*scores(5.0), 1e-5, 0.05, Streams(0).numpy("null"))
    assert found.metrics[Name.EPSILON_LOWER_BOUND].value == bound.value > 1.0
    assert (found.role, found.verdict) == (Role.NULL_CONTROL, Verdict.REFUTED)


def test_the_positive_control_is_refuted_above_the_claim_alone() -> None:
    bound = from_scores(*scores(9.0), 1e-5, 0.05, Streams(0).numpy("positive"))
    for claimed, verdict in ((bound.value - 0.1, Verdict.REFUTED), (bound.value, None)):
        played = CountedScores(RunScore(scores(1.0), None), scores(1.0), scores(9.0))
        _, found = controls(question(claimed), played, Streams(0))
        assert (found.verdict, found.world) == (verdict, "no-defense")
        top = ceiling(min(bound.n0, bound.n1), 1e-5, 0.05)
        assert found.metrics[Name.CEILING].value == pytest.approx(top)


def test_bets_without_an_error_need_two_over_alpha() -> None:
    """A bet gains by exp(-epsilon) of its share a pair; half of the wealth is on each direction."""
    claim = Claim(text="ours", epsilon=2.0, delta=1e-5)
    found = best_of(claim, 1000, 0.05, stop_early=True)
    small = np.exp(-2.0)
    gain = np.log1p(SHARES[0] * small * (1 - 1e-5) / (1 + small * 1e-5))
    assert found[Name.TRIALS_NEEDED].value == np.ceil(np.log(2 / 0.05) / gain)


def counted(mu: float | None, delta: float = 1e-5) -> tuple[Any, Any]:
    """A question about epsilon 1, or about mu, and runs whose scores lie 1.0 apart."""
    asked = question()
    asked.claim = (
        Claim(text="ours", mu=mu) if mu else SimpleNamespace(mu=None, delta=delta, epsilon=1.0)
    )
    asked.threat_model, declared = None, SimpleNamespace(most=DECLARED)
    asked.game = SimpleNamespace(
        spread=1,
        width=None,
        held=None,
        setting=None,
        victim=0,
        defense=SimpleNamespace(mechanism=lambda *_: declared),
    )
    asked.stop_early, asked.meet, asked.mechanism, asked.adversary = False, False, (), None
    return asked, SimpleNamespace(scores=scores(1.0), score=SimpleNamespace(choosing=scores(1.0)))


def test_a_claim_on_mu_is_held_against_its_own_family() -> None:
    asked, runs = counted(0.5)
    found = _by_counts(asked, runs)
    bound = family_from_scores(*scores(1.0), 0.05, scores(1.0))
    assert found[Name.MU_LOWER_BOUND].value == bound.value > 0.5
    counts = bound.fp, bound.fn, bound.n0, bound.n1
    assert found[Name.P_VALUE].value == mu_p_value(*counts, 0.5)


def test_a_nonlinear_step_is_held_to_its_declared_family() -> None:
    """By the releases of the whole run that the defense declares; one Gaussian one here."""
    asked, runs = counted(0.5)
    found = _by_counts(asked, runs)
    bound = family_from_scores(*scores(1.0), 0.05, scores(1.0))
    counts = bound.fp, bound.fn, bound.n0, bound.n1
    of_family = noise_factor_bound(*counts, 1e-5, 0.05, DECLARED)
    assert found[Name.EPSILON_OF_DECLARED_SHAPE].value == of_family.epsilon > 0
    assert found[Name.NOISE_FACTOR].value == of_family.noise_factor


def test_a_claim_allows_no_errors_below_its_curve() -> None:
    """max(0, 1 - delta - e^epsilon f, e^-epsilon (1 - delta - f)) at false positive rates f."""
    asked, _ = counted(None, 0.1)
    found = _tradeoff(asked, scores(1.0))
    f = np.array(found[Column.FALSE_POSITIVE_RATE])
    allowed = np.maximum(0.0, np.maximum(0.9 - np.e * f, (0.9 - f) / np.e))
    assert found[Column.LEAST_ALLOWED] == pytest.approx(allowed.tolist())
    assert 0 < (allowed > 0).sum() < len(f)


def test_a_share_has_its_two_sided_interval_of_95_percent() -> None:
    """Clopper and Pearson: 7 of 20 have [0.1539, 0.5922]."""
    share = _share(7, 20)
    assert (share.low, share.high) == pytest.approx((0.15391, 0.59219), abs=1e-4)


@pytest.mark.parametrize(("more", "is_learned"), [(0.5, False), (0.501, True)])
def test_a_learned_score_is_taken_from_half_a_nat_on(
    monkeypatch: pytest.MonkeyPatch, more: float, is_learned: bool
) -> None:
    certified = iter([1.0, 1.0 + more])  # by the ratio, by the learned score
    monkeypatch.setattr(runs, "from_scores", lambda *_: SimpleNamespace(value=next(certified)))
    rng = np.random.default_rng(0)
    worlds = [ScoredRuns(rng.normal(m, 1, 50), rng.normal(m, 1, (50, 2))) for m in (0.0, 1.0)]
    chosen = RunScore.of(1e-5, Worlds(*worlds), Streams(1))
    assert (chosen.learned is not None) == is_learned
