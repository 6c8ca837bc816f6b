"""What a claim is held against: the agent that is worst off, and the round that is."""

from dpaudit.accounting.releases import Release, epsilon
from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Setting
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.defenses.dyn_d2p import DynD2P
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph

EAVESDROPPER = ThreatModel(name="eavesdropper")
DELTA = 1e-5
SIZES = (30, 20, 80, 40)  # a record of agent 1 is drawn most often, then one of agent 0


def test_the_agent_with_the_largest_epsilon_is_held_against_a_claim() -> None:
    defense = DPDPSGD(batch_size=8, noise_multiplier=2.0, sampling="poisson", n_rounds=50)
    setting = Setting(build_graph("ring", 4), SIZES, 10)
    claim = Claim(text="whole run", epsilon=1.0, delta=DELTA)
    curious = ThreatModel(name="agent 1", kind="curious", agents=(1,))
    for adversary, worst_off in ((EAVESDROPPER, 1), (curious, 0)):
        found = account_claim(claim, adversary, defense, setting)
        mechanism = defense.mechanism(setting, adversary, worst_off)
        low = epsilon(mechanism.least, DELTA).low
        assert (found.victim, found.epsilon.low) == (worst_off, low)
        assert found.epsilon.high == epsilon(mechanism.most, DELTA).high


def test_a_claim_on_a_round_is_held_against_the_round_with_the_least_noise() -> None:
    setting = Setting(build_graph("ring", 4), (40,) * 4, 10)
    defense = DynD2P(n_rounds=6, epsilon=1.0).calibrate(setting)
    claim = Claim(text="per round", epsilon=1.0, delta=DELTA, scope="round")
    found = account_claim(claim, EAVESDROPPER, defense, setting).epsilon

    def of_each_round(mechanism: tuple[Release, ...]) -> list[tuple[float, float]]:
        return [epsilon((r.model_copy(update={"count": 1}),), DELTA) for r in mechanism]

    bracket = defense.mechanism(setting, EAVESDROPPER, 0)
    least, most = of_each_round(bracket.least), of_each_round(bracket.most)
    assert len(set(least)) > 1  # rounds differ
    assert found.low == max(low for low, _ in least)
    assert found.high == max(high for _, high in most)
