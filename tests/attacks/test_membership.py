"""Membership told from the whole view: what a matched filter can tell, and what it cannot."""

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

import dpaudit
from dpaudit.attack.membership_rates import auc, rate
from dpaudit.attacks.membership import _Fits, is_matched
from dpaudit.defense import Round, broadcast
from dpaudit.errors import DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.game.estimating.estimate import GradientEstimate
from dpaudit.game.estimating.window import GradientInput
from dpaudit.pipeline.run import Runtime, run_audit
from tests.foreign import Foreign


def config(noise_multiplier: float, **options: Any) -> AuditConfig:
    return AuditConfig.from_dict(
        {
            "seed": 3,
            "data": {"name": "digits", "n_agents": 4},
            "graph": {"name": "ring"},
            "model": {"name": "logistic"},
            "defense": {
                "name": "dp-dpsgd", "n_rounds": 4, "batch_size": 8,
                "noise_multiplier": noise_multiplier,
            },
            "threat_model": [{"name": "eavesdropper"}],
            "attack": [{"name": "membership"} | {"rounds": [2, 4]} | options],
        }
    )  # fmt: skip


def found(folder: Path, noise_multiplier: float, **options: Any) -> dict[str | None, Finding]:
    result = run_audit(config(noise_multiplier, **options), folder, Runtime(cores=1))
    return {f.world: f for f in result.findings if f.role is Role.MEMBERSHIP}


def test_members_stand_out_without_noise_alone(tmp_path: Path) -> None:
    """Under noise 50 times the clip norm, scores say nothing: |AUC - 1/2| of 64 members is below 4
    standard errors but with probability 1e-4; the seed is fixed."""
    by_world = found(tmp_path, 50.0)
    bare, noisy = by_world["no-defense"], by_world["defense"]
    assert bare.metrics[Name.AUC].low is not None
    assert bare.metrics[Name.AUC].low > 0.7
    assert noisy.metrics[Name.AUC].value == pytest.approx(0.5, abs=4 * sqrt(1 / (12 * 64)))
    assert bare.metrics[Name.AUC].n == noisy.metrics[Name.AUC].n == 4 * 2 * 8
    assert any("against 359 that nobody holds" in note for note in bare.notes)
    assert bare.metrics[Name.TPR_AT_001].low is not None


def test_a_round_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    once, twice = (
        found(tmp_path / name, 1.0, rounds=rounds, candidates=4)
        for name, rounds in (("once", [2, 4]), ("twice", [4, 2, 4, 4]))
    )
    assert {w: f.metrics for w, f in twice.items()} == {w: f.metrics for w, f in once.items()}
    assert twice["defense"].notes == once["defense"].notes


def test_a_matched_filter_is_as_good_as_its_theory(tmp_path: Path) -> None:
    """Orthogonal records of length 1 in a batch of one, under noise of std s: AUC is
    Phi(1 / (s sqrt 2)), within 4 standard errors of 2,000 batches."""
    d, s, n = 400, 0.8, 2000
    rng = torch.Generator().manual_seed(4)
    u = s * torch.randn(n, d, generator=rng)
    g = torch.eye(d)[0].expand(1, d)
    scores = []
    for shift in (0.0, 1.0):
        moved = u.clone()
        moved[:, 0] += shift
        where = GradientInput(1, 0, 0)
        fits = [_Fits.together([g], row) for row in moved]
        assert fits[0].are_below_noise(GradientEstimate(where, u[0], u[0], s, 0.0))
        scores.append([float(one.scores(True, 1)[0]) for one in fits])
    area = auc(np.array(scores[1]), np.array(scores[0]))
    assert area.value == pytest.approx(norm.cdf(1 / (s * sqrt(2))), abs=4 * 0.5 / sqrt(n))


@pytest.mark.parametrize("m, std, batch_size", [(2, 1.0, 1), (8, 0.5, 1), (8, 0.25, 4)])
def test_candidates_match_as_often_as_their_likelihood_allows(m, std, batch_size) -> None:
    """Orthogonal gradients of length 1 under noise of std s in the mean of B: the right one has
    1/B + s z, each other s z', so it is nearest with probability E Phi(z + 1/(B s))^(m - 1).
    Within 4 standard errors of 4,000 matches: a correct share fails with probability 6e-5."""
    n, generator = 4_000, torch.Generator().manual_seed(2)
    noise = std * torch.randn(n, m, generator=generator, dtype=torch.float64)
    gradients, rng = torch.eye(m, dtype=torch.float64), np.random.default_rng(3)
    hits = [
        is_matched(gradients[0] / batch_size + z, gradients[0], gradients[1:], batch_size, rng)
        for z in noise
    ]
    truth, _ = quad(
        lambda z: norm.pdf(z) * norm.cdf(z + 1 / (batch_size * std)) ** (m - 1), -10, 10
    )
    assert np.mean(hits) == pytest.approx(truth, abs=4 * sqrt(truth * (1 - truth) / n))


def test_what_is_nearest_is_no_matter_of_length() -> None:
    """Without noise the right one is at distance 0, be another longer or shorter."""
    record, rng = torch.tensor([1.0, 0.0]), np.random.default_rng(0)
    for factor in (0.5, 0.8, 1.2, 2.0):
        assert is_matched(record / 4, record, factor * record[None], 4, rng)


def of_own(defense: Foreign) -> Metric:
    """How often one of 10 candidates is matched, by two rounds of four agents."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (300, 4, 4), dtype=np.uint8), np.arange(300) % 4
    told = config(1.0, candidates=10).model_dump(mode="json", exclude_none=True)
    told = {name: told[name] for name in ("seed", "graph", "model", "threat_model", "attack")}
    told |= {"data": {"n_agents": 4}}
    result = dpaudit.audit(told, defense=defense, data=(x, y), cores=1)
    by_world = {f.world: f for f in result.findings if f.role is Role.MEMBERSHIP}
    return by_world["defense"].metrics[Name.MATCHED]


def test_a_defense_that_names_only_messages_is_matched() -> None:
    matched = of_own(Foreign(n_rounds=4, sigma=0.001, hint_sigma=1.0, batch_size=8))
    assert matched.value == 1.0
    assert matched.n == 8


class LocalSteps(Foreign):
    """Two steps on batches of their own; the first one's gradient has the more noise."""

    @property
    def batches_per_round(self) -> int:
        return 2

    def step(self, state, k, graph, gradient, noise):
        first, second = gradient(state.V), gradient.at_step(1)(state.V)
        hint = first + noise.gaussian("hint", self.hint_sigma, first)
        Z = state.V - (second + noise.gaussian("z", self.sigma, second))
        return Round(
            type(state)(graph.mix(Z)),
            {n: broadcast(graph, m) for n, m in (("z", Z), ("hint", hint))},
        )


def test_a_later_local_step_is_held_against_its_own_batch() -> None:
    matched = of_own(LocalSteps(n_rounds=4, sigma=1e-3, hint_sigma=1.0, batch_size=8))
    assert matched.value == 1.0
    assert matched.n == 8


def test_an_adversary_of_all_agents_has_nobody_to_attack(tmp_path: Path) -> None:
    everybody = config(1.0).model_dump(mode="json", exclude_none=True)
    everybody["threat_model"] = [{"name": "all", "kind": "colluding", "agents": [0, 1, 2, 3]}]
    result = run_audit(AuditConfig.from_dict(everybody), tmp_path, Runtime(cores=1))
    one = next(f for f in result.findings if f.role is Role.MEMBERSHIP)
    assert one.notes == ("not available: every agent that holds data is the adversary's own",)


def test_what_no_candidate_tells_is_matched_as_by_a_guess() -> None:
    """Of 5 equal candidates: within 4 standard errors of 2,000 matches (6e-5)."""
    same, rng = torch.ones(5, 3), np.random.default_rng(3)
    hits = [is_matched(same[0], same[0], same[1:], 1, rng) for _ in range(2_000)]
    assert np.mean(hits) == pytest.approx(1 / 5, abs=4 * sqrt(0.2 * 0.8 / 2_000))


def test_records_match_without_noise_and_else_by_guess(tmp_path) -> None:
    """Of 12 batches by guesses of 1/10 more than 6 are matched with probability 5e-5."""
    by_world = found(tmp_path, 50.0, rounds=[2, 3, 4], candidates=10)
    bare, noisy = by_world["no-defense"].metrics, by_world["defense"].metrics
    assert bare[Name.MATCHED].value == 1.0
    assert bare[Name.MATCHED].n == noisy[Name.MATCHED].n == 12
    assert bare[Name.MATCHED].low == pytest.approx(0.025 ** (1 / 12))  # Clopper and Pearson
    assert noisy[Name.MATCHED].value <= 6 / 12
    assert noisy[Name.MATCHED_BLINDLY].value == bare[Name.MATCHED_BLINDLY].value == 1 / 10
    said = "matched: of each batch one record among 9 that nobody holds"
    assert any(note.startswith(said) for note in by_world["defense"].notes)


def test_poisson_batches_are_matched_too(tmp_path: Path) -> None:
    poisson = config(0.0, candidates=5).model_dump(mode="json", exclude_none=True)
    poisson["defense"] |= {"sampling": "poisson"}
    result = run_audit(AuditConfig.from_dict(poisson), tmp_path, Runtime(cores=1))
    one = next(f for f in result.findings if f.role is Role.MEMBERSHIP)
    assert one.metrics[Name.MATCHED].value == 1.0


def test_batches_that_drew_no_record_are_left_out(tmp_path: Path) -> None:
    """Of 8 batches of 1 expected record, some hold none; with this seed, each world's too."""
    poisson = config(1.0, candidates=5).model_dump(mode="json", exclude_none=True)
    poisson["defense"] |= {"sampling": "poisson", "batch_size": 1}
    result = run_audit(AuditConfig.from_dict(poisson), tmp_path, Runtime(cores=1))
    for one in (f for f in result.findings if f.role is Role.MEMBERSHIP):
        matched = one.metrics[Name.MATCHED].n
        assert matched is not None
        assert 0 < matched < 8
        assert f" records of {matched} batches against 359" in one.notes[0]
        [left] = [note for note in one.notes if note.startswith("out of reach")]
        assert left.startswith(f"out of reach {8 - matched} times: round ")
        assert left.endswith(" drew no record")


def test_more_candidates_than_free_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DpauditError, match=r"attack.candidates: .* expected 2 to 360"):
        run_audit(config(1.0, candidates=361), tmp_path, Runtime(cores=1))


def test_rates_and_areas_of_known_scores() -> None:
    assert auc(np.array([2.0, 3.0]), np.array([0.0, 1.0])).value == 1.0
    assert auc(np.array([1.0, 0.0]), np.array([0.0, 1.0])).value == 0.5
    share = rate(np.array([True, False, False, False]))
    assert (share.value, share.n) == (0.25, 4)
    assert (share.low, share.high) == pytest.approx((0.0063, 0.8059), abs=1e-4)


def test_copies_among_those_that_nobody_holds_are_counted(tmp_path: Path) -> None:
    rng, y = np.random.default_rng(1), np.arange(240) % 2
    np.savez(tmp_path / "few.npz", x=rng.normal(size=(2, 6)).astype("f4")[y], y=y)
    of_file = config(1.0).model_dump(mode="json", exclude_none=True)
    of_file["data"] = {"path": str(tmp_path / "few.npz"), "n_agents": 4}
    run = run_audit(AuditConfig.from_dict(of_file), tmp_path / "run", Runtime(cores=1))
    (one, _) = (f for f in run.findings if f.role is Role.MEMBERSHIP)
    assert any(note.startswith("48 of these 48 are copies of records") for note in one.notes)


def test_few_members_that_all_score_highest_prove_little() -> None:
    found = auc(np.array([9.0]), np.arange(8.0))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.3864, abs=1e-3)
    mirrored = auc(np.array([-1.0]), np.arange(8.0))
    assert (mirrored.value, mirrored.low) == (0.0, 0.0)
    assert mirrored.high == pytest.approx(1 - found.low)
    assert auc(np.arange(9.0, 18.0), np.arange(8.0)).low > 0.7


@pytest.mark.parametrize("members, others", [(2, 20), (8, 20), (16, 200)])
@pytest.mark.parametrize("apart", [0.0, 1.0, 2.5])
def test_intervals_of_an_area_hold_the_true_one(members: int, others: int, apart: float) -> None:
    """In 95% of 400 samples: fewer than 90% have a probability of 2e-5 at 95%."""
    rng, true = np.random.default_rng(5), norm.cdf(apart / sqrt(2))
    found = [auc(rng.normal(size=members) + apart, rng.normal(size=others)) for _ in range(400)]
    assert np.mean([f.low <= true <= f.high for f in found]) >= 0.9


def test_a_view_that_tells_no_gradient_is_out_of_reach(tmp_path: Path) -> None:
    quiet = config(1.0).model_dump(mode="json", exclude_none=True)
    quiet["threat_model"] = [{"name": "agent 0", "kind": "curious", "agents": [0]}]
    result = run_audit(AuditConfig.from_dict(quiet), tmp_path, Runtime(cores=1))
    (one, _) = (f for f in result.findings if f.role is Role.MEMBERSHIP)
    assert one.notes[0].startswith("not available: ")
    assert not one.metrics


def test_data_without_records_are_refused(tmp_path: Path) -> None:
    sensors = config(1.0).model_dump(mode="json", exclude_none=True)
    sensors |= {"data": {"name": "sensor-fusion", "n_agents": 4}, "defense": {"name": "dgd"}}
    sensors.pop("model")
    with pytest.raises(DpauditError, match="membership needs records"):
        run_audit(AuditConfig.from_dict(sensors), tmp_path, Runtime(cores=1))
