"""No figure is shown that the same audit disproves, on broken defenses and on a sound one."""

import re
from functools import cache
from math import exp, inf, isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit import audit
from dpaudit.accounting.releases import Interval
from dpaudit.check.baseline import key_metrics
from dpaudit.check.statements import statements
from dpaudit.defense.claim_accounting import AccountedClaim
from dpaudit.files.claim import Claim
from dpaudit.files.claims_file import Claims, ClaimsFile
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.judge import accounting_finding, judge
from dpaudit.pipeline.rules import Judging
from dpaudit.pipeline.void_figures import Doubt, _doubt, _taken_back, _without_mu, void_figures
from dpaudit.reports.comparison import render_comparison
from dpaudit.reports.html import render
from dpaudit.reports.numbers import number
from dpaudit.selftest.bugs import BUGS
from dpaudit.selftest.correct import PrivateGossip
from tests.reports.pages import Page, visible
from tests.some_fast import fast_if

pytestmark = pytest.mark.usefixtures("no_report")

PLANTED: dict[str, Any] = {bug.name: type(bug.planted.defense) for bug in BUGS}


class NoiseNotDrawn(PrivateGossip):
    def noise(self, like, k, noise):
        return torch.zeros_like(like)


RUNS = {
    "halved": PLANTED["noise halved"](n_rounds=2, noise_multiplier=8.0),
    "L2 clip, Laplace for L1": PLANTED["L2 clip under L1 accounting"](
        n_rounds=2, noise_multiplier=40.0, family="laplace"
    ),
    "not drawn": NoiseNotDrawn(n_rounds=2, noise_multiplier=8.0),
    "sound": PrivateGossip(n_rounds=2, noise_multiplier=8.0),
}
BROKEN = [name for name in RUNS if name != "sound"]


@cache
def audited(name: str) -> AuditResult:
    """A claim of epsilon 1, which is what none of the defenses declares to exceed."""
    rng = np.random.default_rng(1)
    data = rng.normal(size=(48, 11)).astype(np.float32), np.arange(48) % 3
    config = {
        "seed": 3,
        "data": {"n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "claim": [{"text": "ours", "epsilon": 1.0, "delta": 1e-5}],
        "attack": [
            {"name": "likelihood-ratio", "trials": 200},
            {"name": "sensitivity", "points": 2, "restarts": 2, "steps": 5},
        ],
    }
    return audit(config, defense=RUNS[name], data=data, cores=1)


@cache
def page_of(name: str) -> Page:
    return Page(render(audited(name), Path("nowhere")))


def declared(defense: PrivateGossip) -> float:
    """What the same releases are worth where they are as declared."""
    result = audited("sound")
    (found,) = (f for f in result.findings if f.role is Role.DECLARED)
    assert defense.noise_multiplier == RUNS["sound"].noise_multiplier
    return found.metrics[Name.EPSILON].value


@pytest.mark.parametrize("name", fast_if(lambda name: name == "halved", BROKEN))
def test_what_a_broken_run_declares_is_void_in_every_figure(name: str) -> None:
    result = audited(name)
    (claim,) = result.claims
    (accounted,) = (f for f in result.findings if f.role is Role.DECLARED)
    assert claim.restated is not None
    assert claim.restated.void == accounted.void != None  # noqa: E711
    for metric in (claim.restated.epsilon, accounted.metrics[Name.EPSILON]):
        assert (metric.value, metric.high) == (inf, inf)
    assert "Accounting supports" not in claim.reason
    (key,) = (k for k in key_metrics(result) if k.label.startswith("accounting"))
    assert key.metric == Metric(value=inf)


@pytest.mark.parametrize("name", fast_if(lambda name: name == "halved", BROKEN))
def test_no_page_of_a_broken_run_shows_the_declared_figure(name: str) -> None:
    """Beside a sound run it does not look more private, either."""
    result, nowhere = audited(name), Path("nowhere")
    runs = [("broken", result, nowhere), ("sound", audited("sound"), nowhere)]
    for page in (page_of(name), Page(render_comparison(runs))):
        claims = page.by_id("claims").text()
        assert "void" in claims
        assert result.claims[0].restated.void in claims
    (hero,) = (e for e in page_of(name).root.every("section") if "hero" in e.classes())
    assert "void" in hero.text()


def test_a_sound_run_keeps_its_figures() -> None:
    result = audited("sound")
    (claim,) = result.claims
    assert all(f.void is None for f in result.findings)
    assert claim.restated is not None
    assert claim.restated.void is None
    assert claim.reason.startswith("Accounting supports the claim")
    assert "void" not in visible(page_of("sound"))


def test_halved_noise_leaves_what_its_algebra_gives() -> None:
    result = audited("halved")
    (exact,) = (f for f in result.findings if f.role is Role.EXACT_LEAK)
    metric = exact.metrics[Name.EPSILON]
    assert exact.void is None
    assert metric.low > 1.5 * declared(RUNS["halved"])
    assert result.claims[0].restated.epsilon.low == metric.low
    assert result.claims[0].restated.void == "the noise that is really added leaves more"
    text = visible(page_of("halved"))
    assert text.count(f"leaves more (at least {number(metric.low)})") >= 2
    assert "at least ∞" not in text
    for said in re.findall(r"void[^)]{0,120}\)", text):
        assert said.count(number(metric.low)) <= 1, said


@pytest.mark.parametrize("less_noise", [False, True])
def test_less_noise_than_a_bound_needs_voids_the_declared(less_noise: bool) -> None:
    """It moves as far as is stated and no further, which is what the algebra counts."""
    claim = Claim(text="ours", epsilon=1.0, delta=1e-5)
    metrics = {Name.MEASURED_OVER_STATED: Metric(value=1.8)}
    if less_noise:
        metrics[Name.NOISE_OVER_NEEDED] = Metric(value=0.5)
    of_sensitivity: dict[str, Any] = {"role": Role.SENSITIVITY, "kind": "sensitivity"}
    moved = Finding(
        **of_sensitivity, title="x", message="x", metrics=metrics, verdict=Verdict.UNSUPPORTED
    )
    half, given = Metric(value=0.5, low=0.5, high=0.5), Metric(value=1.0)
    known = {Name.EPSILON: half, Name.CLAIMED_EPSILON: given, Name.DELTA: Metric(value=1e-5)}
    leak = Finding(role=Role.EXACT_LEAK, kind="accounting", title="exact leak", metrics=known)
    accounted = AccountedClaim(Interval(0.5, 0.6), 1e-5, 0, ())
    findings = [moved, leak, accounting_finding(0, claim, EAVESDROPPER, accounted)]
    judging = Judging(0, claim, EAVESDROPPER, accounted, (0, 1, 2))
    (judged,), (_, algebra, of_accounting) = void_figures([judging], findings)
    assert of_accounting.void
    assert judged.void
    assert bool(algebra.void) is not less_noise


@pytest.mark.slow
def test_an_l2_clip_voids_the_exact_leak_of_a_view_too() -> None:
    result = audited("L2 clip, Laplace for L1")
    (claim,) = result.claims
    (exact,) = (f for f in result.findings if f.role is Role.EXACT_LEAK)
    (moved,) = (f for f in result.findings if f.role is Role.SENSITIVITY)
    assert moved.verdict is Verdict.UNSUPPORTED
    ratio = moved.metrics[Name.MEASURED_OVER_STATED].value
    assert ratio > 2
    assert claim.verdict is Verdict.UNSUPPORTED
    assert f"{ratio:.3g} times the bound that its noise is made for" in claim.reason
    assert exact.metrics[Name.EPSILON].high == inf
    assert exact.void == f'"x" moves {ratio:.3g} times as far as its noise is made for'
    assert exact.series == {}


@pytest.mark.parametrize("name", RUNS)
def test_check_says_the_reason_and_certifies_nothing(name: str) -> None:
    result = audited(name)
    claims = Claims.model_validate({"check": [{"name": "c", "audit": {}}]})
    (said,) = statements(ClaimsFile(Path("claims.toml"), "", claims), {"c": result})
    [claim] = result.claims
    assert claim.range is not None
    known = claim.range.sentence.removeprefix("epsilon")
    assert f"is {claim.verdict}: {claim.reason} Epsilon{known}." in said.message
    assert "certified bound" not in said.message
    assert "exact accounting" not in said.message


EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
CLAIM = Claim(text="a claim", epsilon=2.0, delta=1e-5)


def counted(errors: int, bound: float) -> Finding:
    metrics = {
        Name.EPSILON_LOWER_BOUND: Metric(value=bound, n=2000),
        Name.DELTA: Metric(value=1e-5),
        Name.CONFIDENCE: Metric(value=0.95),
        Name.P_VALUE: Metric(value=1.0),
        Name.FALSE_POSITIVES: Metric(value=errors, n=1000),
        Name.FALSE_NEGATIVES: Metric(value=errors, n=1000),
        Name.CEILING: Metric(value=5.6),
        Name.TRIALS_NEEDED: Metric(value=12),
    }
    return Finding(role=Role.TEST, kind="empirical-epsilon", title="runs", claim=0, metrics=metrics)


def matched(hits: int, bound: float) -> Finding:
    """Of 1,000 times among ten."""
    metrics = counted(0, bound).metrics | {
        Name.MATCHED: Metric(value=hits / 1000, n=1000),
        Name.MATCHED_BLINDLY: Metric(value=0.1),
    }
    for counts in (Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES):
        del metrics[counts]
    return Finding(
        role=Role.TEST, kind="empirical-epsilon", title="match", claim=0, metrics=metrics
    )


def test_matches_that_certify_more_than_is_declared_void_it() -> None:
    """250 of 1,000 among ten certify 0.82; epsilon 0.5 allows 165."""
    for declares, void in ((0.5, True), (0.9, False)):
        accounted = AccountedClaim(Interval(declares, declares), 1e-5, 0, ())
        evidence = [matched(250, 0.82), accounting_finding(0, CLAIM, EAVESDROPPER, accounted)]
        _, findings = void_figures([Judging(0, CLAIM, EAVESDROPPER, accounted, (0, 1))], evidence)
        assert (findings[1].void is not None) is void


def summed(*by_level: float) -> Finding:
    """A sum over canaries, which certifies so much at levels 0.05, 0.025 and 0.0125."""
    metrics = counted(0, by_level[0]).metrics | {Name.CANARIES: Metric(value=1000)}
    for counts in (Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES, Name.TRIALS_NEEDED):
        del metrics[counts]
    series = {Column.LEVEL: (0.05, 0.025, 0.0125), Column.CERTIFIED: by_level}
    canaries = Finding(
        role=Role.TEST, kind="empirical-epsilon", title="sum", claim=0, metrics=metrics
    )
    return canaries.model_copy(update={"series": series})


@pytest.mark.parametrize(
    "declares, tests, void",
    [(0.5, 1, True), (0.5, 2, True), (0.65, 1, True), (0.65, 2, False), (0.9, 1, False)],
)
def test_a_sum_that_certifies_more_than_declared_voids_it(
    declares: float, tests: int, void: bool
) -> None:
    """At 95%, of all tests of the audit together: of two, what each certifies at 97.5%."""
    accounted = AccountedClaim(Interval(declares, declares), 1e-5, 0, ())
    evidence = [summed(0.7, 0.6, 0.55), accounting_finding(0, CLAIM, EAVESDROPPER, accounted)]
    evidence += [counted(500, 0.0)] * (tests - 1)
    which = tuple(range(len(evidence)))
    judgings, findings = void_figures([Judging(0, CLAIM, EAVESDROPPER, accounted, which)], evidence)
    assert (findings[1].void is not None) is void
    assert (judgings[0].restated.epsilon.low == 0.7) is void


def test_runs_that_certify_more_than_declared_void_it() -> None:
    """300 errors of 1,000 in each world certify 0.71, below the claim of 2 and above 0.5."""
    for declares, void in ((0.5, True), (0.9, False)):
        accounted = AccountedClaim(Interval(declares, declares), 1e-5, 0, ())
        evidence = [counted(300, 0.71), accounting_finding(0, CLAIM, EAVESDROPPER, accounted)]
        judging = Judging(0, CLAIM, EAVESDROPPER, accounted, (0, 1))
        judgings, findings = void_figures([judging], evidence)
        (claim,) = judge(judgings, findings)
        assert claim.verdict is Verdict.NOT_REFUTED
        assert (claim.restated.void is not None) is void
        assert ("which no accounting supports" in claim.reason) is void
        assert claim.restated.epsilon.low == (0.71 if void else 0.9)


@pytest.mark.parametrize("tests", [1, 2])
@pytest.mark.parametrize("test, declares", [(counted(300, 0.71), 0.7), (matched(250, 0.82), 0.81)])
def test_each_of_two_tests_has_half_the_level(test: Finding, declares: float, tests: int) -> None:
    """Their p-values are 0.034 and 0.032: below 5% alone, and not among two."""
    accounted = AccountedClaim(Interval(declares, declares), 1e-5, 0, ())
    evidence = [test, accounting_finding(0, CLAIM, EAVESDROPPER, accounted)]
    evidence += [counted(500, 0.0)] * (tests - 1)
    judging = Judging(0, CLAIM, EAVESDROPPER, accounted, tuple(range(len(evidence))))
    _, findings = void_figures([judging], evidence)
    assert (findings[1].void is not None) is (tests == 1)


def test_what_declared_noise_lets_through_is_no_limit() -> None:
    """Of a share of reconstructed targets, and of the bits of a view."""
    allowed = Column.ACCOUNTING_ALLOWS
    share = Finding(
        role=Role.RECONSTRUCTED_SHARE, kind="reconstruction", title="t",
        threat_model=EAVESDROPPER.name,
        metrics={Name.RECONSTRUCTED: Metric(value=0.5), Name.ACCOUNTING_ALLOWS: Metric(value=0.6)},
        series={allowed: (0.6, 0.7), Column.SHARE: (0.5, 0.4)},
    )  # fmt: skip
    bits = Finding(
        role=Role.INFORMATION, kind="mutual-information", title="t",
        threat_model=EAVESDROPPER.name, metrics={Name.CAPACITY: Metric(value=2.0)},
    )  # fmt: skip
    for declares, void in ((0.6, True), (0.9, False)):
        accounted = AccountedClaim(Interval(declares, declares), 1e-5, 0, ())
        evidence = [counted(300, 0.71), accounting_finding(0, CLAIM, EAVESDROPPER, accounted)]
        judging = Judging(0, CLAIM, EAVESDROPPER, accounted, (0, 1))
        _, (_, _, told, limited) = void_figures([judging], [*evidence, share, bits])
        assert [isnan(x) for x in told.series[allowed]] == [void, void]
        assert told.series[Column.SHARE] == share.series[Column.SHARE]
        for finding, name in ((told, Name.ACCOUNTING_ALLOWS), (limited, Name.CAPACITY)):
            assert (name not in finding.metrics) is void
            assert (f"void: {name}, for runs certify more" in finding.notes) is void


def test_the_owner_of_a_record_is_told_how_far_odds_rise() -> None:
    result = audited("sound")
    (claim,) = result.claims
    assert claim.meaning == (
        f'For the owner of a record: the odds of "eavesdropper" that a given record was used rise '
        f"{exp(declared(RUNS['sound'])):.3g}-fold at most, by accounting; the claim allows "
        "2.72-fold."
    )
    assert "nothing bounds the odds" in audited("not drawn").claims[0].meaning
    assert "no bound on how far" in audited("L2 clip, Laplace for L1").claims[0].meaning


def found_of(role: Role, kind: str, *ends: float, **more: Any) -> Finding:
    given = {Name.EPSILON: Metric(value=ends[-1], low=ends[0], high=ends[-1])} if ends else {}
    given |= {name: Metric(value=value) for name, value in more.pop("values", {}).items()}
    return Finding(role=role, kind=kind, title="t", metrics=given, message="x", **more)


LEAK = found_of(Role.EXACT_LEAK, "accounting", 2.0, 3.0)
DECLARES = found_of(Role.DECLARED, "accounting", 0.5, 2.0)
AGAINST = {"verdict": Verdict.UNSUPPORTED}
FAR = found_of(Role.SENSITIVITY, "sensitivity", values={Name.MEASURED_OVER_STATED: 2.0}, **AGAINST)
QUIET = found_of(Role.SENSITIVITY, "sensitivity", values={Name.NOISE_OVER_NEEDED: 0.5}, **AGAINST)
BESIDE = found_of(Role.DEPENDENCE, "sensitivity", **AGAINST)
NOISY = found_of(Role.NOISE, "control", **AGAINST)


def runs_of(bound: float, fn: int) -> Finding:
    """A bound of 10,000 runs of either world: no false positive, so many false negatives."""
    counts = {Name.FALSE_POSITIVES: 0, Name.FALSE_NEGATIVES: fn}
    given = {name: Metric(value=k, n=10_000) for name, k in counts.items()}
    given |= {Name.EPSILON_LOWER_BOUND: Metric(value=bound), Name.DELTA: Metric(value=1e-5)}
    return Finding(role=Role.TEST, kind="empirical-epsilon", title="t", metrics=given)


@pytest.mark.parametrize(
    "evidence, of_final_model, why, rest",
    [
        ((LEAK, DECLARES), False, None, ()),
        ((LEAK,), False, None, ()),
        ((found_of(Role.EXACT_LEAK, "accounting", 2.00001, 3.0), DECLARES), False,
         "the noise that is really added leaves more", (2.00001, False, False)),
        ((found_of(Role.EXACT_LEAK, "accounting", verdict=Verdict.REFUTED), DECLARES), False,
         "the noise that is really added leaves no bound", (inf, False, False)),
        ((LEAK, DECLARES, FAR), False, '"x" moves 2 times as far as its noise is made for',
         (2.0, True, False)),
        ((LEAK, DECLARES, BESIDE), False, "more than the values of messages depends on the data",
         (2.0, True, False)),
        ((LEAK, DECLARES, NOISY), False, "the noise is not the independent noise that the defense "
         "asks for", (0.0, True, True)),
        ((LEAK.model_copy(update=AGAINST), DECLARES, NOISY), False, "the noise is not the "
         "independent noise that the defense asks for", (2.0, True, False)),
        ((LEAK, DECLARES, QUIET), False, '"x" carries 0.5 of the noise that its stated bound needs',
         (2.0, False, False)),
        ((LEAK, DECLARES), True, "no algebra shows that the last model holds no more than messages "
         "do", (2.0, False, False)),
        ((DECLARES, runs_of(2.5, 10)), False, "runs certify more", (2.5, False, False)),
        ((LEAK, DECLARES, runs_of(3.5, 10)), False, "runs certify more", (3.5, True, False)),
        ((LEAK, DECLARES, runs_of(2.5, 9_990)), False, None, ()),
    ],
)  # fmt: skip
def test_what_speaks_against_figures_of_a_claim(evidence, of_final_model, why, rest) -> None:
    found = _doubt(evidence, 1, of_final_model)
    assert found == (None if why is None else Doubt(why, *rest))


def test_figures_that_are_taken_back_leave_what_is_proven() -> None:
    doubt = Doubt("why", 1.5, of_algebra=True)
    declared = _taken_back(DECLARES_AT, doubt)
    assert declared.metrics[Name.EPSILON] == Metric(value=inf, low=1.5, high=inf)
    assert declared.metrics[Name.DELTA] == DECLARES_AT.metrics[Name.DELTA]
    assert (declared.void, declared.title) == ("why", "t")
    assert declared.notes[0] == "void: it would be epsilon between 0.5 and 2, but why"
    judged = DECLARES_AT.model_copy(update={"verdict": Verdict.UNSUPPORTED})
    assert _taken_back(judged, doubt._replace(proven=0.1)).metrics[Name.EPSILON].low == 0.5
    both = {Name.CLAIMED_EPSILON: Metric(value=1.0), Name.DELTA: Metric(value=1e-5)}
    leak = LEAK.model_copy(update={"metrics": LEAK.metrics | both})
    found = _taken_back(leak, doubt)
    assert (found.title, found.metrics[Name.EPSILON].low) == ("leak of the view", 2.0)
    assert _taken_back(leak, doubt._replace(of_noise=True)).metrics[Name.EPSILON].low == 0.0
    assert _taken_back(leak, doubt._replace(of_algebra=False)) == leak
    nothing = leak.model_copy(
        update={"metrics": {**leak.metrics, Name.EPSILON: Metric(value=inf, low=0.0, high=inf)}}
    )
    assert _taken_back(nothing, doubt).notes == ()
    assert _taken_back(FAR, doubt) == FAR
    infinite = found_of(Role.DECLARED, "accounting", inf, inf)
    assert _taken_back(infinite, doubt) == infinite


DECLARES_AT = found_of(
    Role.DECLARED, "accounting", 0.5, 2.0, values={Name.CLAIMED_EPSILON: 1.0, Name.DELTA: 1e-5}
)


def test_only_figures_in_units_of_the_noise_fall_with_it() -> None:
    pairs = {Name.LARGEST_MU: 2.0, Name.PAIRS_WITHOUT_NOISE: 3.0}
    one = found_of(Role.WHO_LEARNS_WHAT, "accounting", values=pairs, series={"mu": (1.0,)})
    found = _without_mu(one, "why")
    assert {name: m.value for name, m in found.metrics.items()} == {**pairs, Name.LARGEST_MU: inf}
    assert (found.void, found.series) == ("why", {})
    weather = found_of(Role.WEATHER, "accounting", values={Name.WORST_MU: 2.0})
    assert _without_mu(weather, "why").metrics[Name.WORST_MU].value == inf
    empty = found_of(Role.WEATHER, "accounting")
    assert _without_mu(empty, "why") == empty
    assert _without_mu(LEAK, "why") == LEAK
