"""Membership told from the whole view: what a matched filter can tell, and what it cannot."""

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dpaudit.attacks.membership import _auc, _matched, _rate
from dpaudit.errors import DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.game import estimate
from dpaudit.game.estimate import Estimate, Input
from dpaudit.pipeline.run import Runtime, run_audit


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
            "attack": [{"name": "membership", "rounds": [2, 4], **options}],
        }
    )  # fmt: skip


def found(folder: Path, noise_multiplier: float, **options: Any) -> dict[str | None, Finding]:
    result = run_audit(config(noise_multiplier, **options), folder, Runtime(cores=1))
    return {f.world: f for f in result.findings if f.role is Role.MEMBERSHIP}


def test_without_noise_members_stand_out_and_under_noise_they_do_not(tmp_path: Path) -> None:
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
        where = Input(1, 0, 0)
        scores.append([float(_matched(g, Estimate(where, row, row, s, 0.0), 1)) for row in moved])
    auc = _auc(np.array(scores[1]), np.array(scores[0]))
    assert auc.value == pytest.approx(norm.cdf(1 / (s * sqrt(2))), abs=4 * 0.5 / sqrt(n))


def test_rates_and_areas_of_known_scores() -> None:
    assert _auc(np.array([2.0, 3.0]), np.array([0.0, 1.0])).value == 1.0
    assert _auc(np.array([1.0, 0.0]), np.array([0.0, 1.0])).value == 0.5
    rate = _rate(np.array([True, False, False, False]))
    assert (rate.value, rate.n) == (0.25, 4)
    assert (rate.low, rate.high) == pytest.approx((0.0063, 0.8059), abs=1e-4)


def test_a_view_that_tells_no_gradient_is_said_to_be_out_of_reach(tmp_path: Path) -> None:
    quiet = config(1.0).model_dump(mode="json", exclude_none=True)
    quiet["threat_model"] = [{"name": "agent 0", "kind": "curious", "agents": [0]}]
    result = run_audit(AuditConfig.from_dict(quiet), tmp_path, Runtime(cores=1))
    (one, _) = (f for f in result.findings if f.role is Role.MEMBERSHIP)
    assert one.notes[0].startswith("not available: ")
    assert not one.metrics


def test_a_view_too_large_for_its_estimate_is_out_of_reach_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "MOST_UNKNOWNS", 10)
    for one in found(tmp_path, 1.0).values():
        assert one.notes[0].startswith("not available: the view's estimate has ")
        assert not one.metrics


def test_data_without_records_are_refused(tmp_path: Path) -> None:
    sensors = config(1.0).model_dump(mode="json", exclude_none=True)
    sensors |= {"data": {"name": "sensor-fusion", "n_agents": 4}, "defense": {"name": "dgd"}}
    sensors.pop("model")
    with pytest.raises(DpauditError, match="membership needs records"):
        run_audit(AuditConfig.from_dict(sensors), tmp_path, Runtime(cores=1))
