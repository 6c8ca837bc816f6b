"""Shares of reconstructed targets: which claims they can refute, and audits that do and do not."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from dpaudit import audit
from dpaudit.accounting.reconstruction import accounted
from dpaudit.accounting.releases import Release, epsilon
from dpaudit.attack.blind_success import BlindSuccess, Kappa
from dpaudit.attack.reconstructed_share import (
    DECIBELS,
    _Curve,
    in_the_batch,
    untestable,
    worst_off,
)
from dpaudit.attack.victims import Scenario
from dpaudit.defense.contract import Gradient, Round
from dpaudit.defense.noise import Noise
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Finding, Name, Role, claim_column
from dpaudit.files.result import AuditResult
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import Graph
from dpaudit.registry import load_plugin
from dpaudit.reports.html import render

DPDPSGD = load_plugin("defenses", "dp-dpsgd")
CLAIM = Claim(text="ours", epsilon=1.0, delta=1e-5)


class NoiseForgotten(DPDPSGD):  # type: ignore[misc, valid-type]
    """Declares its noise, and adds next to none."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        bare = self.model_copy(update={"noise_multiplier": 1e-9})
        return DPDPSGD.step(bare, state, k, graph, gradient, noise)


@cache
def audited(broken: bool, n_agents: int = 8, batch_size: int = 1) -> AuditResult:
    """Agents of one record each, whose gradients the adversary hears."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (408, 8, 8), dtype=np.uint8), np.arange(408) % 2
    with TemporaryDirectory() as folder:
        path = Path(folder) / "images.npz"
        np.savez(path, x=x[:8], y=y[:8], x_test=x[8:], y_test=y[8:])
        config = {
            "seed": 3,
            "data": {"path": str(path), "n_agents": n_agents},
            "graph": {"name": "ring"},
            "model": {"name": "logistic"},
            "claim": [
                {"text": "ours", "epsilon": 1.0, "delta": 1e-5},
                {"text": "each round", "epsilon": 1.0, "delta": 1e-5, "scope": "round"},
            ],
            "attack": [
                {
                    "name": "gradient-inversion", "message": "noisy-gradient", "rounds": [2],
                    "targets": 8, "iterations": 20, "batch_sizes": ["training"],
                }
            ],
        }  # fmt: skip
        kind = NoiseForgotten if broken else DPDPSGD
        defense = kind(noise_multiplier=8.0, n_rounds=2, batch_size=batch_size)
        return audit(config, defense=defense, out=Path(folder) / "run", cores=1)


def of(result: AuditResult, role: Role) -> list[Finding]:
    return [f for f in result.findings if f.role is role and f.attack == "gradient-inversion"]


def test_images_that_are_read_off_refute_the_claim() -> None:
    """All eight are reconstructed, where the claim allows 1.35% of them, at kappa 1 / 200."""
    result = audited(broken=True)
    (test,) = of(result, Role.TEST)
    assert test.metrics[Name.RECONSTRUCTED].value == 1.0
    assert test.metrics[Name.RECONSTRUCTED_BLINDLY].value == pytest.approx(1 / 201, rel=0.03)
    assert test.metrics[Name.P_VALUE].value == test.metrics[Name.CLAIM_ALLOWS].value < 0.02
    assert test.metrics[Name.EPSILON_LOWER_BOUND].value > 2
    judged = result.claims[0]
    assert judged.verdict is Verdict.REFUTED
    assert "reconstructions of 8 targets certify" in judged.reason


def test_images_under_their_noise_do_not() -> None:
    result = audited(broken=False)
    (test,) = of(result, Role.TEST)
    assert test.metrics[Name.RECONSTRUCTED].value == 0.0
    assert test.metrics[Name.P_VALUE].value == 1.0
    assert all(claim.verdict is not Verdict.REFUTED for claim in result.claims)


def test_the_share_stands_beside_its_bounds_which_are_ordered() -> None:
    result = audited(broken=False)
    page = render(result, Path())
    (share,) = of(result, Role.RECONSTRUCTED_SHARE)
    columns = {name: np.array(values) for name, values in share.series.items()}
    low, high = columns[Column.BLIND_AT_LEAST], columns[Column.BLIND_AT_MOST]
    assert (low <= high).all()
    for bound in (Column.ACCOUNTING_ALLOWS, claim_column(0)):
        assert (high <= columns[bound] + 1e-12).all()
        assert (np.diff(columns[bound]) <= 1e-12).all()
    assert (columns[Column.SHARE] <= columns[Column.ACCOUNTING_ALLOWS] + 1e-9).all()
    assert columns[Column.SHARE][0] == 1.0
    assert "Share of targets reconstructed at least this well" in page
    assert "claim allows: ours" in page
    assert any("each round" in note and "over the whole run" in note for note in share.notes)


@pytest.mark.slow
@pytest.mark.parametrize("links", [1, 4])
def test_several_gradients_of_a_batch_are_one_target(links: int) -> None:
    """Interval of the share by four different images, half of them found by every link."""
    hits = np.full(len(DECIBELS), 2.0 * links)
    nothing: Any = None
    blind = BlindSuccess(Kappa(hits, hits), hits, hits)
    curve = _Curve(
        nothing, 4 * links, 4, hits, hits, blind, hits, hits, rounds=(1,), mechanism=(), known=1
    )
    share = curve._at_threshold()[Name.RECONSTRUCTED]
    exact = binomtest(2, 4).proportion_ci(0.95, "exact")
    assert (share.value, share.n) == (0.5, 4)
    assert (share.low, share.high) == pytest.approx((exact.low, exact.high))


def test_a_batch_of_several_is_drawn_and_refutes_nothing() -> None:
    result = audited(broken=True, n_agents=4, batch_size=2)
    assert of(result, Role.TEST) == []
    (share,) = of(result, Role.RECONSTRUCTED_SHARE)
    assert any("targets share a batch" in note for note in share.notes)
    one = audited(broken=True)
    kappa = [
        f.series[Column.BLIND_AT_MOST][-1]
        for r in (one, result)
        for f in of(r, Role.RECONSTRUCTED_SHARE)
    ]
    assert kappa[1] == pytest.approx(2 * kappa[0], rel=0.03)  # two guesses at each record


def scenario(**options: Any) -> Scenario:
    fields: dict[str, Any] = {
        "attack_index": 0, "attack_name": "a", "reconstruct": None, "message": "view",
        "rounds": (1,), "n_targets": 1, "threat_model": ThreatModel(name="eve"),
        "world": "defense", "batch_size": 1, "is_probe": False,
    }  # fmt: skip
    return Scenario(**{**fields, **options})


def gaussian(s: float, rate: float = 1.0, count: int = 1) -> Release:
    sampling = "none" if rate == 1 else "poisson"
    return Release(
        family="gaussian", noise_multiplier=s, sampling=sampling, sampling_rate=rate, count=count
    )


@pytest.mark.parametrize(
    ("claim", "options", "rate", "why"),
    [
        (CLAIM, {}, 1.0, None),
        (CLAIM.model_copy(update={"adjacency": "replace-one"}), {}, 1.0, None),
        (CLAIM.model_copy(update={"scope": "round"}), {}, 1.0, "not of one record over the whole"),
        (CLAIM.model_copy(update={"adjacency": "user"}), {}, 1.0, "not of one record"),
        (CLAIM, {"batch_size": 2}, 1.0, "share a batch"),
        (CLAIM, {"is_probe": True}, 1.0, "played again"),
        (CLAIM, {}, 0.5, "known to be in the batch"),
    ],
)
def test_why_a_share_cannot_refute_a_claim(
    claim: Claim, options: dict[str, Any], rate: float, why: str | None
) -> None:
    found = untestable(claim, scenario(**options), (gaussian(1.0, rate),))
    assert found is None if why is None else why in (found or "")


def test_records_known_to_be_in_a_batch_are_not_sampled() -> None:
    drawn = (gaussian(2.0, 0.1, 9), gaussian(1.0, 0.1, 3))
    known = in_the_batch(drawn, 1)
    assert sum(release.count for release in known) == 12
    assert [(r.noise_multiplier, r.count) for r in known if r.sampling == "none"] == [(1.0, 1)]
    assert epsilon(drawn, 1e-5).high < epsilon(known, 1e-5).high
    assert all(release.sampling == "none" for release in in_the_batch(drawn, 12))


def test_the_worst_off_reveals_as_much_as_each() -> None:
    some = [(gaussian(1.0, 0.1, 20),), (gaussian(0.9, 0.05, 20),), (gaussian(1.0, 0.02, 20),)]
    (worst,) = worst_off(some)
    assert (worst.noise_multiplier, worst.sampling_rate, worst.count) == (0.9, 0.1, 20)
    each = [float(accounted(0.01, one)) for one in some]
    assert float(accounted(0.01, (worst,))) >= max(each)
    unlike = worst_off([(gaussian(1.0),), (gaussian(1.0, 0.5),)])
    assert len(unlike) == 2
    assert worst_off([]) == ()
