"""What a claim is held against: the agent that is worst off, and the round that is."""

from collections import Counter
from math import inf

import pytest

from dpaudit.accounting.releases import Release, epsilon
from dpaudit.defense import claim_accounting
from dpaudit.defense.claim_accounting import (
    _composed,
    _in_a_round,
    _undominated,
    account_claim,
    account_restated,
)
from dpaudit.defense.contract import Bracket, Setting
from dpaudit.defenses.dfedsam import DPDFedSAM
from dpaudit.defenses.dgd import DPDGD
from dpaudit.defenses.dpdl import DPDL
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.defenses.dyn_d2p import DynD2P
from dpaudit.defenses.feddpa import FedDPA
from dpaudit.defenses.paillier_consensus import PaillierConsensus
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.judge import accounting_finding, judge
from dpaudit.pipeline.rules import Judging

EAVESDROPPER = ThreatModel(name="eavesdropper")
DELTA = 1e-5
SIZES = (30, 20, 80, 40)  # a record of agent 1 is drawn most often, then one of agent 0


def test_the_agent_with_the_largest_epsilon_decides() -> None:
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


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_agents_that_are_left_out_have_no_larger_epsilon(adjacency, sampling, monkeypatch) -> None:
    defense = DPDL(batch_size=8, epsilon=0.5, sampling=sampling, n_rounds=20, delta=DELTA)
    setting = Setting(build_graph("ring", 4), SIZES, 10)
    calibrated = defense.calibrate(setting)
    claim = Claim(text="run", epsilon=1.0, delta=DELTA, adjacency=adjacency)
    composed = Counter[int]()

    def counting(bracket, claim, delta, victim, defense):
        composed[victim] += 1
        return _composed(bracket, claim, delta, victim, defense)

    monkeypatch.setattr(claim_accounting, "_composed", counting)
    found = account_claim(claim, EAVESDROPPER, calibrated, setting)
    assert composed == {1: 1}  # the record that is drawn most often
    every = (calibrated.mechanism(setting, EAVESDROPPER, victim) for victim in range(4))
    ends = [epsilon(one.least, DELTA, adjacency).low for one in every]
    assert found.epsilon.low == max(ends)


def test_agents_of_whom_neither_releases_more_are_all_composed() -> None:
    often = Release(family="gaussian", noise_multiplier=2.0, sampling="poisson", sampling_rate=0.5)
    louder = often.model_copy(update={"noise_multiplier": 1.0, "sampling_rate": 0.1})
    less = often.model_copy(update={"noise_multiplier": 2.5, "sampling_rate": 0.4})
    brackets = [Bracket((), (one,), ()) for one in (less, often, louder, often)]
    assert _undominated(brackets) == [1, 2]
    of_laplace = Bracket((), (often.model_copy(update={"family": "laplace"}),), ())
    assert _undominated([brackets[0], of_laplace, Bracket((), (), ())]) == [0, 1, 2]


def test_a_claim_on_a_round_is_held_to_the_least_noise() -> None:
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


GAUSSIAN = DPDPSGD(batch_size=8, noise_multiplier=2.0, n_rounds=5)  # hides a record
BARE = DPDPSGD(batch_size=8, noise_multiplier=0.0, n_rounds=5)
OF_FUNCTIONS = DPDGD(n_rounds=5, epsilon=0.1)  # hides an agent's function
SILENT = PaillierConsensus(n_rounds=5)  # ciphertexts alone, to those without a key


@pytest.mark.parametrize(
    "defense, adjacency, supports",
    [
        (GAUSSIAN, "add-remove", True),
        (GAUSSIAN, "replace-one", True),
        (GAUSSIAN, "user", True),
        (GAUSSIAN, "agent-identity", False),
        (OF_FUNCTIONS, "function", True),
        (OF_FUNCTIONS, "add-remove", False),
        (OF_FUNCTIONS, "replace-one", False),
        (OF_FUNCTIONS, "agent-identity", False),
        (SILENT, "function", True),
        (SILENT, "agent-identity", True),  # nothing is released, of whatever adjacency
    ],
)
def test_only_accounting_of_the_very_adjacency_supports_a_claim(
    defense, adjacency, supports
) -> None:
    setting = Setting(build_graph("ring", 4), (40,) * 4, 10)
    claim = Claim(text="vast", epsilon=1e6, delta=DELTA, adjacency=adjacency)
    found = account_claim(claim, EAVESDROPPER, defense.calibrate(setting), setting)
    assert (found.epsilon.high <= 1e6) is supports
    finding = accounting_finding(0, claim, EAVESDROPPER, found)
    (judged,) = judge([Judging(0, claim, EAVESDROPPER, found, (0,))], [finding])
    assert judged.verdict is Verdict.UNDERPOWERED
    assert ("Accounting stays within the claim" in judged.reason) is supports
    if not supports:
        assert "Accounting does not settle the claim (epsilon at least" in judged.reason


@pytest.mark.parametrize(
    "defense, low", [(GAUSSIAN, 0.0), (OF_FUNCTIONS, 0.0), (BARE, inf)], ids=str
)
def test_accounting_of_a_record_is_silent_on_agents(defense, low) -> None:
    """But for messages without any noise, which tell agents apart that differ."""
    setting = Setting(build_graph("ring", 4), (40,) * 4, 10)
    claim = Claim(text="agents", epsilon=1e-6, delta=DELTA, adjacency="agent-identity")
    defense = defense.calibrate(setting)
    assert account_claim(claim, EAVESDROPPER, defense, setting).epsilon == (low, inf)
    common = account_restated(claim, EAVESDROPPER, defense, setting).epsilon
    assert common.low > 1e-3  # of one record, as it is reported beside a claim


def test_a_record_that_functions_must_show_still_counts() -> None:
    """A record that moves the function by the stated distance is one of those that there may be."""
    setting = Setting(build_graph("ring", 4), (40,) * 4, 10)
    defense = OF_FUNCTIONS.calibrate(setting)
    record = Claim(text="record", epsilon=1e-6, adjacency="add-remove")
    function = record.model_copy(update={"adjacency": "function"})
    low = account_claim(record, EAVESDROPPER, defense, setting).epsilon.low
    assert low == account_claim(function, EAVESDROPPER, defense, setting).epsilon.low > 1e-3


def test_one_of_several_messages_reveals_no_more_than_all() -> None:
    """DPDL sends a cross-gradient on each link and the momentum in every round."""
    setting = Setting(build_graph("ring", 4), (40,) * 4, 5)
    defense = DPDL(n_rounds=5, batch_size=8, noise_multiplier=1.0).calibrate(setting)
    everybody = ThreatModel(name="eavesdropper")
    a_round, message = (
        account_claim(
            Claim(text="ours", epsilon=1.0, delta=1e-5, scope=scope), everybody, defense, setting
        ).epsilon
        for scope in ("round", "message")
    )
    assert 0 < a_round.low <= a_round.high == message.high
    assert message.low == 0
    single = DPDPSGD(n_rounds=5, batch_size=8, noise_multiplier=1.0).calibrate(setting)
    only = Claim(text="ours", epsilon=1.0, delta=1e-5, scope="message")
    assert account_claim(only, everybody, single, setting).epsilon.low > 0


@pytest.mark.parametrize(
    "kind, options, counts, expected",
    [
        (DPDPSGD, {}, (), 0),
        (DPDPSGD, {}, (1,), 1),  # never more than there are
        (DPDPSGD, {}, (5,), 1),
        (DPDPSGD, {}, (2, 2), 1),  # a gradient that is sent in the next round: 4 of 5 rounds
        (DPDPSGD, {}, (8,), 2),
        (DPDPSGD, {}, (20,), 5),  # 4 in each of 5 rounds, or 5 in each of 4
        (DPDPSGD, {}, (7,), 2),  # in no equal numbers
        (DPDPSGD, {"n_rounds": 1}, (3,), 3),
        (DPDFedSAM, {"local_steps": 3}, (8,), 3),  # each batch is a release
        (DPDFedSAM, {"local_steps": 3}, (1, 1), 2),
        (FedDPA, {"local_steps": 3}, (8,), 2),  # all batches of a round are one release
    ],
)
def test_a_round_has_as_many_releases_as_there_may_be(kind, options, counts, expected) -> None:
    defense = kind(**{"n_rounds": 5, "noise_multiplier": 1.0, **options})
    mechanism = tuple(
        Release(family="gaussian", noise_multiplier=1.0 + i, count=n) for i, n in enumerate(counts)
    )
    assert _in_a_round(mechanism, defense) == expected
