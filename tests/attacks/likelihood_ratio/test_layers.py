"""Layers that are clipped one by one: what accounting says of them is what is found."""

from typing import Any

import pytest

from dpaudit.attack.contract import AttackContext
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Gradient, Graph, Noise, Round, Setting
from dpaudit.defenses.fed_cdp import FedCDP
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from tests.scratch import scratch_run

LAYERS = (("0.weight", 20), ("0.bias", 4), ("1.weight", 30), ("1.bias", 6))
EVERY_LINK = ThreatModel(name="every link")


class HalfOfTheNoise(FedCDP):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        less = self.model_copy(update={"noise_multiplier": self.sigma / 2})
        return FedCDP.step(less, state, k, graph, gradient, noise)


def audited(
    defense: type[FedCDP], trials: int, **options: Any
) -> tuple[tuple[float, float], dict[Role, Finding]]:
    setting = Setting(build_graph("ring", 5), (40,) * 5, 60, LAYERS)
    ready = defense(n_rounds=3, batch_size=8, **options).calibrate(setting)
    accounted = account_claim(CLAIM, EVERY_LINK, ready, setting).epsilon
    claim = CLAIM.model_copy(update={"epsilon": 1.01 * accounted.high})
    context = AttackContext(None, setting, ready, (claim,), Streams(3), scratch_run())  # type: ignore[arg-type]
    attack = load_plugin("attacks", "likelihood-ratio")(trials=trials)
    found = attack.measure(context, EVERY_LINK, lambda done, total: None)
    return accounted, {finding.role: finding for finding in found}


CLAIM = Claim(text="ours", epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_exact_leak_is_what_accounting_says(sampling: str) -> None:
    accounted, found = audited(FedCDP, 40, noise_multiplier=3.0, sampling=sampling)
    leak = found[Role.EXACT_LEAK]
    assert leak.verdict is None
    assert leak.metrics["epsilon"].low == pytest.approx(accounted.low, rel=1e-3)
    assert leak.metrics["epsilon"].high == pytest.approx(accounted.high, rel=1e-3)
    assert any("moves all 4 to the end of its clip, 2 times" in note for note in leak.notes)


@pytest.mark.slow
def test_half_of_the_noise_is_found() -> None:
    accounted, found = audited(HalfOfTheNoise, 40, noise_multiplier=5.0, sampling="poisson")
    assert found[Role.EXACT_LEAK].verdict is Verdict.UNSUPPORTED
    assert found[Role.EXACT_LEAK].metrics["epsilon"].low > 2 * accounted.high
