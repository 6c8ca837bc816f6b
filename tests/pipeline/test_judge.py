"""Verdicts: what refutes, what does not support, and what says nothing."""

from math import inf
from typing import Any

import pytest

from dpaudit.accounting.releases import Interval
from dpaudit.defense.claim_accounting import (
    AccountedClaim,
    account_claim,
    account_restated,
    claimed_delta,
    claimed_epsilon,
)
from dpaudit.defense.contract import Setting
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import LEFT_OUT, Finding, Metric, Role
from dpaudit.files.result import JudgedClaim
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.judge import accounting_finding, bearing_on, judge
from dpaudit.pipeline.rules import Judging
from dpaudit.registry import load_plugin

EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
CLAIM = Claim(text="a claim", epsilon=2.0, delta=1e-5)


def accounted(low: float, high: float) -> AccountedClaim:
    return AccountedClaim(Interval(low, high), 1e-5, 0, ())


def certified(
    bound: float, p: float, ceiling: float = 6.0, index: int = 0, needed: float = 500
) -> Finding:
    return Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title="runs",
        claim=index,
        attack="likelihood-ratio",
        threat_model="eavesdropper",
        metrics={
            "epsilon lower bound": Metric(value=bound),
            "p-value": Metric(value=p),
            "ceiling": Metric(value=ceiling),
            "trials needed": Metric(value=needed),
        },
    )


def control(refuted: bool, ceiling: float = 6.0) -> Finding:
    return Finding(
        role=Role.POSITIVE_CONTROL,
        kind="control",
        title="positive control",
        claim=0,
        threat_model="eavesdropper",
        metrics={"ceiling": Metric(value=ceiling)},
        verdict=Verdict.REFUTED if refuted else None,
    )


def judged(*evidence: Finding, interval: AccountedClaim | None = None, **claim: Any) -> JudgedClaim:
    stated = CLAIM.model_copy(update=claim)
    interval = interval or accounted(1.0, 1.5)
    findings = [*evidence, accounting_finding(0, stated, EAVESDROPPER, interval)]
    because = (*bearing_on(0, stated, EAVESDROPPER, evidence), len(findings) - 1)
    (found,) = judge([Judging(0, stated, EAVESDROPPER, interval, because)], findings)
    return found


def test_a_certified_bound_above_the_claim_refutes_it() -> None:
    found = judged(certified(2.6, 0.001))
    assert (found.verdict, found.confidence) == (Verdict.REFUTED, 0.95)
    assert "at least 2.6" in found.reason
    assert found.reason.startswith("Claimed epsilon 2; ")


def test_a_claim_that_stood_names_the_smaller_that_would_not() -> None:
    found = judged(certified(1.0, 0.6), control(True))
    assert found.verdict is Verdict.NOT_REFUTED
    assert "a claim 2 times smaller would have been refuted" in found.reason
    assert "no proof" in found.reason


def test_a_bound_that_other_tests_leave_in_doubt_is_nothing() -> None:
    found = judged(certified(2.1, 0.04), certified(0.1, 1.0), control(True))
    assert found.verdict is Verdict.NOT_REFUTED
    assert "certify at least 2.1 at 95% confidence by itself, more than is claimed" in found.reason
    assert "(Holm)" in found.reason
    assert "times smaller" not in found.reason
    assert "8.17-fold" not in found.meaning  # e^2.1


@pytest.mark.parametrize(
    ("bound", "shown"), [(1.0, True), (0.0, True), (1.9, False), (1.696, True), (1.7, False)]
)
def test_a_larger_bound_of_the_declared_family_stands_beside_it(bound: float, shown: bool) -> None:
    test = certified(bound, 0.6)
    of_family = {"epsilon lower bound, declared shape": Metric(value=1.7)}
    test = test.model_copy(update={"metrics": {**test.metrics, **of_family}})
    found = judged(test, control(True))
    assert ("(1.7 if the noise is of the declared family)" in found.reason) is shown


NOT_EXAMINED = Finding(
    role=Role.NOISE,
    kind="control",
    title="noise of the real run",
    threat_model="eavesdropper",
    not_examined=("all messages (too large)",),
    unconfirmed=('"x" in round 1',),
)


@pytest.mark.parametrize(
    "evidence, interval, codes",
    [
        ((certified(2.6, 0.001),), (1.0, 1.5), ("DPA102",)),
        ((), (inf, inf), ("DPA103",)),
        ((certified(1.0, 0.6), control(True)), (2.5, 3.0), ("DPA104",)),
        ((), (1.0, 1.5), ("DPA113", "DPA119")),
        ((certified(0.5, 1.0, ceiling=1.9), control(True)), (1.0, 1.5), ("DPA114", "DPA119")),
        ((certified(0.5, 1.0), control(False)), (1.0, 1.5), ("DPA115", "DPA119")),
        ((certified(0.0, 1.0), control(True)), (1.0, 1.5), ("DPA116", "DPA119")),
        ((certified(2.1, 0.04), certified(0.1, 1.0)), (1.0, 1.5), ("DPA117", "DPA119")),
        ((certified(1.0, 0.6), control(True)), (1.0, 1.5), ("DPA118", "DPA119")),
        ((certified(1.0, 0.6), NOT_EXAMINED), (1.0, 1.5), ("DPA118", "DPA119", "DPA120")),
        ((certified(2.6, 0.001), NOT_EXAMINED), (1.0, 1.5), ("DPA102",)),
    ],
)
def test_a_verdict_has_the_codes_of_its_reason_and_limits(evidence, interval, codes) -> None:
    assert judged(*evidence, interval=accounted(*interval)).codes == codes


def test_without_power_nothing_is_said() -> None:
    assert judged().verdict is Verdict.UNDERPOWERED
    few = judged(certified(0.5, 1.0, ceiling=1.9), control(True))
    assert few.verdict is Verdict.UNDERPOWERED
    assert "500 runs of each world would do" in few.reason
    none = judged(certified(0.5, 1.0, ceiling=1.9, needed=inf), control(True))
    assert "no number of runs that can be played would do" in none.reason
    dead = judged(certified(0.5, 1.0), control(False))
    assert dead.verdict is Verdict.UNDERPOWERED
    assert "positive control" in dead.reason
    assert judged(certified(0.0, 1.0), control(True)).verdict is Verdict.UNDERPOWERED


def test_a_ceiling_or_bound_at_the_claim_is_not_above_it() -> None:
    assert judged(certified(0.5, 1.0, ceiling=2.0), control(True)).verdict is Verdict.UNDERPOWERED
    assert "(Holm)" not in judged(certified(2.0, 1.0), control(True)).reason


def test_the_test_with_the_least_p_value_refutes() -> None:
    found = judged(certified(2.6, 0.001), certified(3.0, 0.01))
    assert found.verdict is Verdict.REFUTED
    assert "at least 2.6 " in found.reason


def test_the_best_of_several_controls_decides() -> None:
    one = judged(certified(0.5, 1.0), control(False), control(True))
    assert one.verdict is Verdict.NOT_REFUTED
    none = judged(certified(0.5, 1.0), control(False, ceiling=1.9), control(False, ceiling=2.4))
    assert "the runs tell this adversary too little" in none.reason


def test_a_control_of_too_few_runs_is_not_called_telling() -> None:
    found = judged(certified(0.5, 1.0, ceiling=2.4), control(False, ceiling=1.9))
    assert found.verdict is Verdict.UNDERPOWERED
    assert "even a perfect attack certifies 1.9 at most; more runs" in found.reason
    assert "too little" not in found.reason


def test_nothing_is_said_of_an_adversary_that_reads_nothing() -> None:
    findings = [accounting_finding(0, CLAIM, EAVESDROPPER, accounted(0.0, 1.5))]
    judging = Judging(0, CLAIM, EAVESDROPPER, accounted(0.0, 1.5), (0,), reads_nothing=True)
    (found,) = judge([judging], findings)
    assert found.verdict is Verdict.UNDERPOWERED
    assert found.reason.startswith("This adversary reads nothing")
    assert "supports" not in found.reason


def test_accounting_above_the_claim_leaves_it_unsupported() -> None:
    found = judged(certified(1.0, 0.6), control(True), interval=accounted(2.5, 3.0))
    assert found.verdict is Verdict.UNSUPPORTED
    assert "epsilon between 2.5 and 3" in found.reason


def test_accounting_is_silent_on_a_claim_between_its_ends() -> None:
    """Only what is certainly exceeded is unsupported: the lower end decides."""
    for interval in (accounted(1.5, 2.5), accounted(2.0, 2.5), accounted(0.0, inf)):
        assert accounting_finding(0, CLAIM, EAVESDROPPER, interval).verdict is None
        found = judged(certified(1.0, 0.6), control(True), interval=interval)
        assert found.verdict is Verdict.NOT_REFUTED
        assert "does not settle the claim" in found.reason
    barely = accounting_finding(0, CLAIM, EAVESDROPPER, accounted(2.001, 2.5))
    assert barely.verdict is Verdict.UNSUPPORTED


def test_a_message_without_noise_refutes() -> None:
    assert judged(interval=accounted(inf, inf)).verdict is Verdict.REFUTED
    leak = Finding(
        role=Role.EXACT_LEAK,
        kind="accounting",
        title="exact leak of the view",
        claim=0,
        attack="likelihood-ratio",
        threat_model="eavesdropper",
        message="momentum",
        verdict=Verdict.REFUTED,
        metrics={"epsilon": Metric(value=inf, low=inf, high=inf), "delta": Metric(value=1e-5)},
    )
    found = judged(leak)
    assert found.verdict is Verdict.REFUTED
    assert '"momentum" shows the record with no noise' in found.reason


def test_sensitivity_above_its_bound_leaves_claims_unsupported() -> None:
    excess = Finding(
        role=Role.SENSITIVITY,
        kind="sensitivity",
        title="v in round 3",
        verdict=Verdict.UNSUPPORTED,
    )
    assert judged(excess).verdict is Verdict.UNSUPPORTED  # of no single adjacency
    of_one = excess.model_copy(update={"adjacency": "add-remove"})
    for adjacency in ("add-remove", "user"):
        assert judged(of_one, adjacency=adjacency).verdict is Verdict.UNSUPPORTED
    for adjacency in ("replace-one", "function", "agent-identity"):
        assert judged(of_one, adjacency=adjacency).verdict is not Verdict.UNSUPPORTED


def test_noise_that_was_not_examined_is_named_in_the_reason() -> None:
    missed = '"x" in round 3 (it is not finite)'
    noise = Finding(role=Role.NOISE, kind="control", title="noise", not_examined=(missed,))
    for found in (judged(certified(1.0, 0.6), control(True), noise), judged(noise)):
        assert found.verdict in (Verdict.NOT_REFUTED, Verdict.UNDERPOWERED)
        assert f" Not examined: the noise of {missed}; " in found.reason
    assert missed not in judged(noise.model_copy(update={"not_examined": ()})).reason


def test_a_reason_omits_what_was_left_out_for_its_cause() -> None:
    missed = '"x" in round 3 (it is not finite)'
    noise = Finding(role=Role.NOISE, kind="control", title="noise", not_examined=(LEFT_OUT, missed))
    found = judged(noise)
    assert missed in found.reason
    assert LEFT_OUT not in found.reason


def test_other_noise_of_the_run_leaves_every_claim_unsupported() -> None:
    noise = Finding(
        role=Role.NOISE,
        kind="control",
        title='no noise on coordinates 15 to 17 (bias) of "x"',
        metrics={"p-value": Metric(value=0.0, n=60)},
        verdict=Verdict.UNSUPPORTED,
    )
    found = judged(certified(1.0, 0.6), control(True), noise)
    assert found.verdict is Verdict.UNSUPPORTED
    assert 'no noise on coordinates 15 to 17 (bias) of "x"' in found.reason
    on_agents = CLAIM.model_copy(update={"adjacency": "agent-identity"})
    assert bearing_on(1, on_agents, EAVESDROPPER, [noise]) == [0]
    assert bearing_on(1, CLAIM, EAVESDROPPER, [noise.model_copy(update={"claim": 0})]) == []
    alike = noise.model_copy(update={"verdict": None})
    assert judged(certified(1.0, 0.6), control(True), alike).verdict is Verdict.NOT_REFUTED


def test_refutations_of_one_audit_are_simultaneous() -> None:
    """p = 0.03 refutes alone, not as one of two; two tests of one claim share its part."""
    other = Claim(text="another claim", epsilon=2.0, delta=1e-5)
    evidence = [certified(2.1, 0.03), certified(1.0, 0.7, index=1)]
    interval = accounted(1.0, 1.5)
    claims = list(enumerate((CLAIM, other)))
    findings = [*evidence, *(accounting_finding(i, c, EAVESDROPPER, interval) for i, c in claims)]
    judgings = [Judging(i, c, EAVESDROPPER, interval, (i, 2 + i)) for i, c in claims]
    assert Verdict.REFUTED not in [c.verdict for c in judge(judgings, findings)]
    assert judge(judgings[:1], findings)[0].verdict is Verdict.REFUTED
    assert judged(certified(2.1, 0.03), certified(1.0, 0.5)).verdict is not Verdict.REFUTED
    assert judged(certified(2.1, 0.02), certified(1.0, 0.5)).verdict is Verdict.REFUTED


def test_a_claim_on_agents_is_tested_by_its_own_runs() -> None:
    found = judged(certified(2.6, 0.001), adjacency="agent-identity")
    assert found.verdict is Verdict.REFUTED


def dp_dpsgd(**options: Any) -> tuple[Any, Setting]:
    setting = Setting(build_graph("ring", 4), (40,) * 4, 10)
    return load_plugin("defenses", "dp-dpsgd")(batch_size=8, **options), setting


def test_a_claim_on_a_round_is_restated_for_the_run() -> None:
    defense, setting = dp_dpsgd(noise_multiplier=2.0, sampling="poisson", n_rounds=50)
    claim = Claim(text="per round", epsilon=1.0, delta=1e-5, scope="round")
    stated = account_claim(claim, EAVESDROPPER, defense, setting)
    common = account_restated(claim, EAVESDROPPER, defense, setting)
    assert stated.epsilon.high < common.epsilon.low


def test_a_claim_of_mu_is_held_at_delta_1e_5() -> None:
    """mu = 1 is epsilon 4.377 there (auditing check value)."""
    claim = Claim(text="mu", mu=1.0)
    assert claimed_epsilon(claim) == pytest.approx(4.377, abs=5e-4)
    assert claimed_delta(claim) == 1e-5


def test_a_pure_claim_on_gaussian_noise_is_refused() -> None:
    defense, setting = dp_dpsgd(noise_multiplier=2.0)
    with pytest.raises(ConfigError, match="Gaussian noise has no epsilon at delta = 0"):
        account_claim(Claim(text="pure", epsilon=1.0), EAVESDROPPER, defense, setting)


def test_an_adversary_of_all_agents_leaves_nobody_to_attack() -> None:
    defense, setting = dp_dpsgd(noise_multiplier=2.0)
    everybody = ThreatModel(name="all", kind="colluding", agents=(0, 1, 2, 3))
    with pytest.raises(ConfigError, match="no agent is left to attack"):
        account_claim(CLAIM, everybody, defense, setting)


def test_two_claims_of_one_text_keep_their_evidence_apart() -> None:
    """0.1 is refuted by its own runs; 8, of the same words, rests on its own alone."""
    small, large = (Claim(text="Theorem 1", epsilon=e, delta=1e-5) for e in (0.1, 8.0))
    evidence = [certified(1.0, 1e-6, index=0), certified(1.0, 0.9, ceiling=9.0, index=1)]
    assert bearing_on(0, small, EAVESDROPPER, evidence) == [0]
    assert bearing_on(1, large, EAVESDROPPER, evidence) == [1]
    interval = accounted(0.05, 0.09)
    judgings = [
        Judging(i, claim, EAVESDROPPER, interval, (i,)) for i, claim in enumerate((small, large))
    ]
    verdicts = [found.verdict for found in judge(judgings, evidence)]
    assert verdicts == [Verdict.REFUTED, Verdict.NOT_REFUTED]


def test_a_claim_that_ends_anothers_words_has_own_evidence() -> None:
    """ "DP" once collected what "scheme: DP" was tested by."""
    evidence = [certified(3.0, 1e-6, index=0)]
    short = Claim(text="DP", epsilon=2.0, delta=1e-5)
    assert bearing_on(1, short, EAVESDROPPER, evidence) == []
