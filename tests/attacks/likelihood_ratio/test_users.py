"""Claims on users: all records of an agent are added or removed at once.

Seeds are fixed. A certified bound exceeds the truth in at most 5% of seeds, and a claim that holds
is refuted in at most 5%; a claim that does not is chosen far off, where runs of both worlds part.
"""

from typing import Any

import pytest
import torch

from dpaudit.accounting.releases import epsilon
from dpaudit.attack.contract import AttackContext
from dpaudit.defense import ConfigError, Setting, ThreatModel, releases
from dpaudit.defense.claim_accounting import account_claim, refuse_claims
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Role
from dpaudit.files.verdict import Verdict
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from tests.scratch import scratch_run

EAVESDROPPER = ThreatModel(name="eavesdropper")
BATCH, NOISE, ROUNDS = 4, 16.0, 3


def dp_dpsgd(**options: Any) -> Any:
    chosen = {"noise_multiplier": NOISE, "n_rounds": ROUNDS, "batch_size": BATCH} | options
    return load_plugin("defenses", "dp-dpsgd")(**chosen)


def setting() -> Setting:
    return Setting(build_graph("ring", 5), (40,) * 5, 100)


def claimed(value: float) -> Claim:
    return Claim(text="users", epsilon=value, delta=1e-5, adjacency="user")


def found(value: float, **options: Any) -> dict[Role, Finding]:
    defense = dp_dpsgd(**options).calibrate(setting())
    context = AttackContext(None, setting(), defense, (claimed(value),), Streams(7), scratch_run())  # type: ignore[arg-type]
    attack = load_plugin("attacks", "likelihood-ratio")(trials=1000)
    measured = attack.measure(context, EAVESDROPPER, lambda done, total: None)
    return {finding.role: finding for finding in measured}


def test_a_users_batches_are_all_canaries_in_every_round() -> None:
    """Three rounds of a Gaussian whose sum moves by B clip norms; the accountant says the same."""
    truth = epsilon(releases([NOISE / BATCH] * ROUNDS, "none", 1.0), 1e-5)
    accounted = account_claim(claimed(9.0), EAVESDROPPER, dp_dpsgd(), setting())
    assert accounted.epsilon == pytest.approx(truth)
    assert any("4 of them in a batch" in said for said in accounted.assumptions)
    roles = found(9.0)
    exact, bound = roles[Role.EXACT_LEAK], roles[Role.TEST]
    assert exact.metrics["epsilon"].value == pytest.approx(truth.high, rel=1e-6)
    assert 0 < bound.metrics["epsilon lower bound"].value < truth.high


def test_what_is_accounted_for_one_record_is_no_claim_on_a_user() -> None:
    one = epsilon(releases([NOISE] * ROUNDS, "fixed", BATCH / 40), 1e-5).high
    roles = found(one)
    assert roles[Role.EXACT_LEAK].verdict is Verdict.UNSUPPORTED
    assert roles[Role.TEST].metrics["p-value"].value < 0.01


def test_of_poisson_batches_only_an_upper_end_is_proven() -> None:
    """All 40 records may come out in one batch; on average 4 do, which tell what 4 of 4 would."""
    defense = dp_dpsgd(sampling="poisson")
    accounted = account_claim(claimed(9.0), EAVESDROPPER, defense, setting())
    most = epsilon(releases([NOISE / 40] * ROUNDS, "none", 1.0), 1e-5)
    assert accounted.epsilon == (0.0, pytest.approx(most.high))
    roles = found(0.5, sampling="poisson")
    exact, bound = roles[Role.EXACT_LEAK], roles[Role.TEST]
    assert exact.verdict is None
    assert exact.metrics["epsilon"].low == 0
    assert any("random number of the user's records" in note for note in exact.notes)
    four = epsilon(releases([NOISE / BATCH] * ROUNDS, "none", 1.0), 1e-5).high
    assert 0 < bound.metrics["epsilon lower bound"].value < 2 * four


def test_a_users_poisson_batch_has_binomial_moments() -> None:
    """Mean and variance of 40,000 draws, within 6 standard errors (false with p < 1e-8)."""
    game = Game.of(dp_dpsgd(sampling="poisson"), setting(), 1, "user")
    count = game.records * game.draw(40_000, torch.Generator().manual_seed(3), torch.device("cpu"))
    rate = BATCH / 40
    mean, variance = 40 * rate, 40 * rate * (1 - rate)
    assert abs(count.mean().item() - mean) < 6 * (variance / 40_000) ** 0.5
    assert abs(count.var().item() - variance) < 6 * variance * (2.2 / 40_000) ** 0.5


def test_functions_are_no_users() -> None:
    defense = load_plugin("defenses", "sensitivity-reduced")(allow_outside_theory=True)
    stated = Claim(text="users", epsilon=1.0, adjacency="user")
    with pytest.raises(ConfigError, match='"user" is of records'):
        refuse_claims([stated], [EAVESDROPPER], defense, setting(), True)
