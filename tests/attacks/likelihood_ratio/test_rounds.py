"""Claims on one round or one message: which batch they are about, and who tells of it when."""

from typing import Any

import pytest

from dpaudit.attack.contract import AttackContext
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Setting
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from tests.scratch import scratch_run

EVERY_LINK = ThreatModel(name="every link")


def audited(name: str, claim: Claim, **options: Any) -> tuple[tuple[float, float], Finding]:
    """What accounting and the exact leak say of a claim, five agents on a ring."""
    setting = Setting(build_graph("ring", 5), (40,) * 5, 8)
    defense = load_plugin("defenses", name)(n_rounds=4, **options).calibrate(setting)
    context = AttackContext(None, setting, defense, (claim,), Streams(3), scratch_run())  # type: ignore[arg-type]
    attack = load_plugin("attacks", "likelihood-ratio")(trials=40)
    found = attack.measure(context, EVERY_LINK, lambda done, total: None)
    accounted = account_claim(claim, EVERY_LINK, defense, setting).epsilon
    (leak,) = (finding for finding in found if finding.role is Role.EXACT_LEAK)
    return accounted, leak


@pytest.mark.parametrize("name", ["dp-dgd", "wang-nedic"])
def test_a_gradient_that_the_next_round_sends_is_told_there(name: str) -> None:
    """Messages of round 1 hold no gradient: nothing was found to leak of a round."""
    claim = Claim(text="ours", epsilon=1e-3, delta=1e-5, scope="round", adjacency="function")
    accounted, leak = audited(name, claim, epsilon=0.5)
    assert 0.5 * accounted[0] < leak.metrics["epsilon"].low <= accounted[1]
    assert leak.verdict is Verdict.UNSUPPORTED
    assert leak.rounds == (1, 2)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("dp-netfleet", "message"),
        ("dp-dfedsam", "round"),
        pytest.param("dp-netfleet", "round", marks=pytest.mark.slow),
        pytest.param("dp-dfedsam", "message", marks=pytest.mark.slow),
    ],
)
def test_a_round_of_local_steps_is_as_many_releases(name: str, scope: Any) -> None:
    claim = Claim(text="ours", epsilon=1.0, delta=1e-5, scope=scope)
    (low, high), leak = audited(
        name, claim, noise_multiplier=2.0, batch_size=8, sampling="poisson", local_steps=4
    )
    assert low <= leak.metrics["epsilon"].low <= high


def test_rounds_that_tell_of_several_batches_have_no_upper_end() -> None:
    claim = Claim(text="ours", epsilon=1.0, delta=1e-5, scope="round", adjacency="function")
    leak = audited("xuan-wang", claim, epsilon=2.0)[1]
    assert leak.metrics["epsilon"].high == float("inf")
    assert any("Rounds reveal several rounds' gradients" in note for note in leak.notes)
