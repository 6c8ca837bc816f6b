"""Matching among candidates: what it finds of sound and of broken defenses, and how it is judged."""

from functools import partial

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.accounting.reconstruction import under_mu
from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.likelihood_ratio.bound import n_matched
from dpaudit.defense.claim_accounting import AccountedClaim, account_claim
from dpaudit.defense.contract import Defense, Setting
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.judge import judge
from dpaudit.pipeline.rules import Judging
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.selftest.bugs import BUGS
from dpaudit.selftest.correct import PrivateGossip
from tests.scratch import scratch_run

EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
NoiseHalved = next(type(bug.planted.defense) for bug in BUGS if bug.name == "noise halved")
LikelihoodRatio = load_plugin("attacks", "likelihood-ratio")
SETTING = Setting(build_graph("ring", 5), (8,) * 5, 1)
FALSE_FAILURE = 1e-9  # probability that a correct program fails a test, over fresh seeds


def matching(
    defense: Defense, claim: Claim, trials: int = 9_000, candidates: int = 10, seed: int = 11
) -> Finding:
    context = AttackContext(None, SETTING, defense, (claim,), Streams(seed), scratch_run())  # type: ignore[arg-type]
    attack = LikelihoodRatio(trials=trials, candidates=candidates)
    tests = [f for f in attack.measure(context, EAVESDROPPER, lambda done, total: None)]
    (found,) = (f for f in tests if f.role is Role.TEST and Name.MATCHED in f.metrics)
    return found


def mu(value: float) -> Claim:
    return Claim(text="ours", mu=value)


def gossip(mu_of_run: float, kind: type[PrivateGossip] = PrivateGossip) -> PrivateGossip:
    """All records in every batch of one round, so that its mu is that of Gaussian noise."""
    options = {"n_rounds": 1, "batch_size": 8, "sampling": "poisson"}
    return kind(noise_multiplier=1 / mu_of_run, **options)


@pytest.mark.parametrize(
    ("value", "success", "bound"),
    [(1.0, 0.3409, 0.3891), (2.0, 0.6736, 0.7638), (4.0, 0.9832, 0.9967)],
)
def test_success_of_ten_candidates_is_that_of_the_check_values(
    value: float, success: float, bound: float
) -> None:
    found = matching(gossip(value), mu(value)).metrics
    n = found[Name.MATCHED].n
    assert n == 1_000
    low, high = binom.interval(1 - FALSE_FAILURE, n, success)
    assert low <= n * found[Name.MATCHED].value <= high
    assert found[Name.CLAIM_ALLOWS].value == pytest.approx(bound, abs=5e-5)
    assert found[Name.ACCOUNTING_ALLOWS].value == pytest.approx(bound, abs=5e-5)
    assert found[Name.MATCHED_BLINDLY].value == 0.1


def judged(defense: Defense, claim: Claim, test: Finding) -> Verdict:
    restated: AccountedClaim = account_claim(claim, EAVESDROPPER, defense, SETTING)
    return judge([Judging(0, claim, EAVESDROPPER, restated, (0,))], [test])[0].verdict


def test_half_the_noise_is_refuted_and_all_of_it_is_not() -> None:
    """Refuted falsely with probability 0.05 at most, for a claim that is exactly tight."""
    sound, broken = gossip(1.0), gossip(1.0, NoiseHalved)
    stands, refuted = matching(sound, mu(1.0)), matching(broken, mu(1.0))
    assert refuted.metrics[Name.P_VALUE].value < 1e-9
    assert refuted.metrics[Name.MU_LOWER_BOUND].value > 1.0
    assert judged(broken, mu(1.0), refuted) is Verdict.REFUTED
    assert judged(sound, mu(1.0), stands) is Verdict.NOT_REFUTED


def test_a_smaller_claim_of_epsilon_is_refuted_too() -> None:
    claim = Claim(text="ours", epsilon=0.5, delta=1e-5)
    found = matching(gossip(2.0), claim)
    assert found.metrics[Name.EPSILON_LOWER_BOUND].value > 0.5
    assert found.metrics[Name.P_VALUE].value < 1e-9
    assert judged(gossip(2.0), claim, found) is Verdict.REFUTED
    assert found.metrics[Name.TRIALS_NEEDED].value < 9_000


def test_an_expected_bound_is_about_what_runs_certify() -> None:
    metrics = matching(gossip(1.0), mu(1.5)).metrics
    found, expected = metrics[Name.EPSILON_LOWER_BOUND].value, metrics[Name.EXPECTED_BOUND].value
    assert found == pytest.approx(expected, abs=0.8)  # four standard deviations of the share
    assert metrics[Name.CEILING].value > found


def test_equal_scores_are_matched_as_often_as_by_a_guess() -> None:
    n = 10_000
    hits = n_matched(np.zeros(n), np.zeros((n, 4)), np.random.default_rng(2))
    low, high = binom.interval(1 - FALSE_FAILURE, n, 0.2)
    assert low <= hits <= high
    assert n_matched(np.full(5, np.inf), np.zeros((5, 4)), np.random.default_rng(2)) == 5


def test_too_few_trials_for_the_candidates_are_refused() -> None:
    config = {
        "seed": 1,
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "defense": {"name": "dp-dpsgd", "noise_multiplier": 1.0},
        "attack": [{"name": "likelihood-ratio", "trials": 100, "candidates": 10}],
    }
    with pytest.raises(ConfigError, match="expected trials = 180 at the least") as refused:
        AuditConfig.from_dict(config)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_tight_claims_are_refuted_in_one_of_twenty_audits() -> None:
    """400 audits of a claim that is exactly tight; the attack reaches less than the bound."""
    measure = partial(matching, gossip(2.0), mu(2.0), trials=360, candidates=2)
    p_values = [measure(seed=seed).metrics[Name.P_VALUE].value for seed in range(400)]
    assert sum(p <= 0.05 for p in p_values) <= binom.isf(FALSE_FAILURE, 400, 0.05)
    success = np.mean([measure(seed=seed).metrics[Name.MATCHED].value for seed in range(5)])
    assert success <= under_mu(0.5, 2.0)
