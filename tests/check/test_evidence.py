"""Evidence accumulated from check to check: it adds up where it may, and nowhere else."""

import json
from math import inf, log
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from dpaudit.check.baseline import Baseline
from dpaudit.check.evidence import (
    Stake,
    accumulated,
    as_notes,
    merged,
    of_notes,
    settled,
    stakes_of,
)
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.statistics.betting import Point, bets, log_wealth
from tests.check.stub_audits import CLAIMS, change, check, runs

GOLDEN = AuditResult.read(Path(__file__).parents[1] / "golden" / "audit.json")
ALPHA = 0.05


def stake(seed: int, won: float, config: str = "a", claim: str = "c; against e") -> Stake:
    return Stake(
        check="first", config=config, claim=claim, attack="bets", seed=seed, log_wealth=won
    )


def audit(seed: int, won: float) -> AuditResult:
    """One whose only claim was bet against."""
    claim = GOLDEN.claims[0].model_copy(update={"because": (0,), "decisive": None})
    test = Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title="runs",
        claim=claim.claim,
        attack="likelihood-ratio",
        threat_model=claim.threat_model,
        metrics={Name.LOG_WEALTH: Metric(value=won, n=100), Name.P_VALUE: Metric(value=1.0)},
    )
    provenance = GOLDEN.provenance.model_copy(update={"seed": seed})
    return GOLDEN.model_copy(
        update={"claims": (claim,), "findings": (test,), "provenance": provenance}
    )


def p_of(stakes: list[Stake]) -> float:
    return accumulated(merged(stakes), stakes[0].history).p


def gaussian(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=n), rng.normal(1.0, size=n)


def test_several_audits_refute_what_none_of_them_does_alone() -> None:
    """Epsilon 2 is claimed of mu 1, whose epsilon is 4.4; one fixed seed."""
    rng, stakes = np.random.default_rng(4), []
    for seed in range(20):
        on = bets([Point(2.0, 1e-5)], gaussian(rng, 1_000))
        stakes += stakes_of("first", "a", audit(seed, log_wealth(on, gaussian(rng, 2_000))[-1]))
    alone = [p_of([one]) <= ALPHA for one in stakes]
    assert sum(alone) < 10
    together = [p_of(stakes[:n]) for n in range(1, 21)]
    assert together[-1] <= 1e-3
    assert together == sorted(together, reverse=True)  # the largest wealth there was


def test_a_tight_claim_is_refuted_in_5_percent_of_histories() -> None:
    """400 histories of 5 audits of randomised response; fails wrongly with probability 1e-6."""
    rng, alarms = np.random.default_rng(6), 0

    def answers(n: int) -> tuple[np.ndarray, np.ndarray]:
        told = rng.random((2, n)) < expit(1.0)
        return 1.0 - told[0], told[1].astype(float)

    for _ in range(400):
        on = bets([Point(1.0, 0.0)], answers(60))
        won = [float(log_wealth(on, answers(80))[-1]) for _ in range(5)]
        alarms += p_of([stake(seed, w) for seed, w in enumerate(won)]) <= ALPHA
    assert alarms <= binom.isf(1e-6, 400, ALPHA)


def test_the_same_seed_counts_once_whatever_the_code_was() -> None:
    """A lucky seed that is replayed at every commit would else refute any claim."""
    assert p_of([stake(7, 2.0)] * 50) == p_of([stake(7, 2.0)])
    assert p_of([stake(7, 2.0), stake(7, 2.5)]) == p_of([stake(7, 2.0)])
    assert p_of([stake(7, 2.0), stake(8, 2.0)]) < ALPHA


@pytest.mark.parametrize("other", [{"config": "b"}, {"claim": "another; against e"}])
def test_another_config_and_another_claim_begin_anew(other: dict[str, str]) -> None:
    stakes = merged([stake(1, 2.0), stake(2, 2.0, **other)])
    assert [accumulated(stakes, s.history).n for s in stakes] == [1, 1]


def test_a_settled_history_begins_anew() -> None:
    old = [stake(1, 2.0), stake(2, 2.0)]
    closed = settled(merged(old), [old[0].history])
    again = merged([*closed, *old, stake(3, 0.5)])
    assert accumulated(again, old[0].history) == (1, 0.5)


def test_a_wealth_without_end_is_no_stake() -> None:
    """A later audit could take nothing of it back."""
    won = [[s.log_wealth for s in stakes_of("first", "a", audit(1, w))] for w in (2.0, inf, -inf)]
    assert won == [[2.0], [], []]


def test_only_a_test_of_the_claim_is_a_stake() -> None:
    """A wealth that another finding mentions, or none at all, was not bet against the claim."""
    result = audit(1, 2.0)
    (test,) = result.findings
    for other in ({"role": Role.NOISE_BOUND}, {"metrics": {}}):
        changed = result.model_copy(update={"findings": (test.model_copy(update=other),)})
        assert stakes_of("first", "a", changed) == []


def test_notes_give_back_what_was_noted() -> None:
    stakes = merged([stake(1, 2.0), stake(2, -0.25)])
    assert of_notes([*as_notes(stakes), "{}", "nothing"]) == list(stakes)


def commit(folder: Path, number: int, seed: int, won: float, *arguments: str) -> tuple[int, str]:
    """What a check says of another version of the code."""
    change(folder, number)
    leaves = folder / "leaves.json"
    leaves.write_text(audit(seed, won).model_dump_json())
    code, out, error = check(folder, *arguments, STUB_LEAVES=str(leaves))
    return code, out + error


@pytest.fixture
def checked(folder: Path) -> Path:
    """A folder with a baseline, of an audit that won a little."""
    claims = CLAIMS.partition("[[check.threshold]]")[0]
    (folder / "claims.toml").write_text(claims)
    commit(folder, 0, 0, 1.2, "--update-baseline")
    return folder


@pytest.mark.slow
def test_commits_add_up_until_a_claim_is_refuted(checked) -> None:
    baseline = ("--baseline", "baseline.json")
    code, said = commit(checked, 1, 1, 1.2, *baseline)
    assert "is not refuted by 2 audits" in said
    for _ in range(3):
        assert (
            "is not refuted by 2 audits" in commit(checked, 1, 1, 1.2, *baseline)[1]
        )  # from the cache
    assert (
        "is not refuted by 2 audits" in commit(checked, 2, 1, 9.9, *baseline)[1]
    )  # the seed replayed
    code, said = commit(checked, 3, 2, 1.2, *baseline)
    assert code == 1
    assert "is refuted by 3 audits" in said
    code, said = commit(checked, 3, 2, 1.2, "--update-baseline")
    assert "evidence begins anew" in said
    assert "is refuted by" not in commit(checked, 4, 3, 0.1, *baseline)[1]
    kept = Baseline.read(checked / "baseline.json").evidence
    assert [(s.seed, s.settled) for s in kept] == [(0, True), (1, True), (2, True)]
    assert log(1 / ALPHA) < sum(s.log_wealth for s in kept)


def test_a_baseline_with_evidence_of_no_number_is_refused(checked) -> None:
    path = checked / "baseline.json"
    content = json.loads(path.read_text())
    content["evidence"][0]["log_wealth"] = "much"
    path.write_text(json.dumps(content))
    code, _, error = check(checked, "--baseline", "baseline.json")
    assert code == 2
    assert len(error.strip().splitlines()) == 1
    assert "evidence" in error
    assert "log_wealth" in error


@pytest.mark.slow
def test_a_fresh_seed_follows_from_the_content(checked) -> None:
    """The cache has an entry for each content, and none is made again."""
    claims = (checked / "claims.toml").read_text()
    (checked / "claims.toml").write_text(claims + "fresh_seed = true\n")
    seeds = []
    for number in (0, 1, 0):
        change(checked, number)
        check(checked)
        seeds.append(json.loads((checked / "seed.json").read_text()))
    assert seeds[0] != seeds[1] == seeds[2]  # the third was in the cache
    assert runs(checked) == 3  # one for the baseline, and one for each content
    (checked / "claims.toml").write_text(claims + "fresh_seed = 1\n")
    assert "fresh_seed" in check(checked)[2]
