"""Values on which the checker decides, one by one: ends, levels, counts, premises and verdicts."""

from functools import partial
from math import e, exp, inf, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from dpaudit.statistics import sums
from dpaudit.verify import counts, family, figures, premises, verdict
from dpaudit.verify.accountant import gaussian_epsilon
from dpaudit.verify.figures import Basis, Finding

DELTA = 1e-5
PLAIN = {"sampling": "none", "sampling_rate": 1.0, "clipped": "records", "count": 1}
RELEASE = {"family": "gaussian", "noise_multiplier": 2.0, **PLAIN}
OF_RELEASE = gaussian_epsilon(DELTA, 0.5)


def metrics(**of: Any) -> dict[str, Any]:
    """Metrics by their name with "_" for " "; a pair is a value and n, three numbers are ends."""
    found = {}
    for name, given in of.items():
        one = given if isinstance(given, tuple) else (given,)
        keys = ("low", "value", "high") if len(one) == 3 else ("value", "n")
        found[name.replace("_", " ")] = dict(zip(keys, one, strict=False))
    return found


def finding(role: str, kind: str = "accounting", *, of: Any = None, **more: Any) -> dict[str, Any]:
    keys = ("claim", "verdict", "message", "void", "attack", "adjacency", "threat_model")
    plain = dict.fromkeys(keys) | {"releases": {}, "artifacts": {}, "evidence": {}, "title": "t"}
    plain |= {"unconfirmed": [], "not_examined": [], "notes": [], "role": role, "kind": kind}
    return plain | {"metrics": of or {}} | more


def evidence(*findings: Finding, epsilon: float = 4.0, **more: Any) -> Basis:
    own = ("delta", "mu", "verdict", "by_algebra", "config")
    claim = {"claim": 0, "adjacency": "add-remove", "scope": "run", "codes": [], "epsilon": epsilon}
    claim |= {"threat_model": "m"} | {k: v for k, v in more.items() if k not in own}
    result = {"findings": findings, "config": more.get("config", {})}
    how = {"verdict": more.get("verdict", ""), "by_algebra": more.get("by_algebra", True)}
    delta, mu = more.get("delta", DELTA), more.get("mu")
    return Basis(claim, epsilon, delta, mu, findings, result, None, **how)


def test_texts_of_numbers_are_numbers_and_bools_are_none() -> None:
    assert [figures.number(x) for x in (3, 0.5, "inf", "-inf")] == [3.0, 0.5, inf, -inf]
    for other in (True, None, []):
        with pytest.raises(ValueError, match="expected a number"):
            figures.number(other)


@pytest.mark.parametrize(
    "measured, notes, said",
    [
        (
            8e-15,
            ["a bound counts as exceeded by more than 7e-15, from rounding"],
            "beyond its bound",
        ),
        (6e-15, ["a bound counts as exceeded by more than 7e-15, from rounding"], None),
        (6e-15, [], "beyond its bound"),
        (0.5, ["a bound counts as exceeded by more than 1, from rounding"], "beyond its bound"),
        (0.5, ["it moves further as a function of values under noise: with it"], "missing: "),
    ],
)
def test_what_rounding_or_noise_makes_up_for_needs_no_verdict(measured, notes, said) -> None:
    ratio = measured / 2e-18
    distances = metrics(measured=measured, stated_bound=2e-18, measured_over_stated=ratio)
    found = list(figures._judged(finding("sensitivity", of=distances, notes=notes), evidence()))
    assert [said in one for one in found] == ([True] if said else [])


@pytest.mark.parametrize(
    "value, n, share, found",
    [
        *((3.0, 10, False, (3, 10)), (0.3, 10, True, (3, 10)), (0.0, 1, False, (0, 1))),
        *((10.0, 10, False, (10, 10)), (1.0, 7, True, (7, 7)), (1 / 3, 3, True, (1, 3))),
        *((11.0, 10, False, None), (-1.0, 10, False, None), (0.5, 10, False, None)),
        *((0.0, 0, False, None), (0.35, 10, True, None)),
    ],
)
def test_a_count_is_whole_and_of_no_fewer_cases(value, n, share, found) -> None:
    one = finding("test", of=metrics(hits=(value, n)))
    if found:
        assert figures.counted(one, "hits", share) == found
        return
    with pytest.raises(ValueError, match="is no count"):
        figures.counted(one, "hits", share)


@pytest.mark.parametrize(
    "of, said",
    [
        ({"measured": 2.0, "stated_bound": 1.0, "measured_over_stated": 2.0}, (1, 0)),
        ({"measured": 4.0, "stated_bound": 2.0, "measured_over_stated": 1.0009}, (1, 1)),
        ({"measured": 2.0018, "stated_bound": 2.0, "measured_over_stated": 1.0009}, (0, 0)),
        ({"measured": 1.0011, "stated_bound": 1.0, "measured_over_stated": 1.0011}, (1, 0)),
        ({"measured": 0.5, "stated_bound": 1.0, "measured_over_stated": 0.5 * (1 + 5e-7)}, (0, 0)),
        ({"measured": 0.5, "stated_bound": 1.0, "measured_over_stated": 0.5 * (1 + 2e-6)}, (1, 1)),
        ({"measured": 2.0, "measured_over_stated": 2.0}, (0, 0)),
        *(({"found": 0.0}, (0, 1)), ({"found": 1.0}, (1, 0)), ({"p-value": 1e-6}, (0, 1))),
        *(({"p-value": 9e-7}, (1, 0)), ({"p-value": 0.0}, (1, 0)), ({"p-value": 1.0}, (0, 1))),
        *(({"p-value": 1.1}, (1, 1)), ({"p-value": -0.1}, (1, 1))),
    ],
)
def test_distances_and_noise_have_the_verdict_of_figures(of, said) -> None:
    """The number of flaws without a verdict, and with one."""
    for given, n in zip((None, "unsupported"), said, strict=True):
        one = finding("noise", of=metrics(**of), verdict=given)
        assert len(list(figures._judged(one, evidence()))) == n


def large(low: float, high: float) -> Any:
    """Of releases that give epsilon 2800.6."""
    some = [RELEASE | {"noise_multiplier": 0.02, "count": 2}]
    both = {"least": some, "most": some}
    return accounted(low, high, releases=both, verdict="unsupported")


def accounted(low: float, high: float, value: float | None = None, **more: Any) -> Any:
    of = metrics(epsilon=(low, high if value is None else value, high))
    both = {"least": [RELEASE], "most": [RELEASE]}
    return finding("declared", of=of, **{"releases": both, **more})


@pytest.mark.parametrize(
    "one, said",
    [
        (accounted(OF_RELEASE, OF_RELEASE), []),
        (accounted(OF_RELEASE * 0.996, OF_RELEASE * 1.004), []),
        (accounted(OF_RELEASE * 0.996, OF_RELEASE * 1.004, OF_RELEASE * 0.996), []),
        (accounted(OF_RELEASE, OF_RELEASE * 1.006), ["its releases give"]),
        (large(1200.0, inf), []),  # losses beyond 600 of a release are as if infinite, or 600
        (large(700.0, inf), []),
        (large(500.0, inf), ["its releases give"]),
        (large(3000.0, inf), ["its releases give"]),
        (large(1200.0, 3000.0), ["its releases give"]),
        (large(1200.0, 1500.0), ["its releases give"]),
        (accounted(OF_RELEASE, inf), ["its releases give"]),
        (accounted(OF_RELEASE * 0.994, OF_RELEASE), ["its releases give"]),
        (accounted(OF_RELEASE * 0.999, OF_RELEASE, 1.0), ["epsilon 1 from"]),
        (accounted(OF_RELEASE * 1.001, OF_RELEASE), ["epsilon"]),
        (accounted(OF_RELEASE * 1.001, OF_RELEASE, OF_RELEASE * 1.001), ["epsilon"]),
        (accounted(OF_RELEASE, OF_RELEASE, verdict="unsupported"), ["its verdict"]),
        (accounted(OF_RELEASE, OF_RELEASE, verdict="unsupported", void="x"), []),
        (accounted(0.0, inf, releases={}), []),
        (accounted(0.1, inf, releases={}), ["missing: the releases behind the least"]),
        (accounted(0.0, 1.0, releases={}), ["missing: the releases behind the most"]),
        (accounted(0.0, 1.0, releases={}, void="x"), ["missing: the releases behind the most"]),
        (accounted(0.0, 1.5, releases={}, void="x"), []),  # which a test certifies
        (finding("declared"), []),
        (finding("declared", verdict="unsupported"), ["missing: the interval"]),
        (finding("declared", verdict="refuted"), ["missing: the interval"]),
        (finding("declared", verdict="refuted", message="m"), []),
    ],
)
def test_an_interval_is_that_of_its_releases(one: Finding, said: list[str]) -> None:
    proof = finding("test", of=metrics(epsilon_lower_bound=1.5))
    found = list(figures._accounted(one, evidence(proof)))
    assert len(found) == len(said)
    assert all(a.startswith(b) for a, b in zip(found, said, strict=True))


def test_an_interval_above_the_claim_has_a_verdict() -> None:
    claimed = evidence(epsilon=OF_RELEASE * 0.99)
    assert len(list(figures._accounted(accounted(OF_RELEASE, OF_RELEASE), claimed))) == 1
    judged = accounted(OF_RELEASE, OF_RELEASE, verdict="unsupported")
    assert list(figures._accounted(judged, claimed)) == []
    at_it = evidence(epsilon=OF_RELEASE)
    assert list(figures._accounted(accounted(OF_RELEASE, OF_RELEASE), at_it)) == []


def test_epsilon_is_that_at_the_delta_of_its_finding() -> None:
    at = gaussian_epsilon(1e-3, 0.5)
    one = accounted(at, at)
    assert len(list(figures._accounted(one, evidence()))) == 2
    one["metrics"] |= metrics(delta=1e-3)
    assert list(figures._accounted(one, evidence())) == []


BOUND = counts.errors_bound(0.0, False, (0, 0, 100, 100), 0.05)
P_VALUE = counts.errors_p_value(0.0, False, (0, 0, 100, 100), 1.0)


def counted_runs(role: str = "test", attack: str = "likelihood-ratio", **of: Any) -> dict[str, Any]:
    given = {"false_positives": (0.0, 100), "false_negatives": (0.0, 100), "confidence": 0.95}
    given |= {"p-value": P_VALUE, "epsilon_lower_bound": BOUND, "ceiling": BOUND, **of}
    kept = {name: value for name, value in given.items() if value is not None}
    return finding(role, "empirical-epsilon", of=metrics(**kept), attack=attack)


@pytest.mark.parametrize(
    "one, said",
    [
        (counted_runs(), []),
        (counted_runs(**{"p-value": P_VALUE * 1.01}), ["its evidence gives p-value"]),
        (counted_runs(**{"p-value": P_VALUE * 0.99}), ["its evidence gives p-value"]),
        (counted_runs(epsilon_lower_bound=BOUND + 1e-3), ["its evidence gives epsilon"]),
        (counted_runs(epsilon_lower_bound=BOUND - 1e-3), ["its evidence gives epsilon"]),
        (counted_runs(ceiling=BOUND + 1e-3), ["its evidence gives ceiling"]),
        (counted_runs(ceiling=None), ["its evidence gives ceiling"]),
        (counted_runs(confidence=0.9), ["its confidence 0.9"]),
        (counted_runs(confidence=None), ["missing: its confidence None"]),
        (counted_runs(attack="other"), ["missing: its confidence 0.95"]),
        (counted_runs(false_positives=None), ["its figures cannot be derived"]),
        (finding("test"), []),
        (finding("null-control", of=metrics(ceiling=1.0)), []),
        (counted_runs("positive-control"), ["its verdict does not follow"]),
        (
            counted_runs("positive-control", attack="other"),
            ["its verdict", "missing: what it counted"],
        ),
    ],
)
def test_a_test_has_the_figures_of_its_counts(one: Finding, said: list[str]) -> None:
    if one["metrics"].get("false positives") is None and said and one["role"] == "test":
        one["metrics"]["false positives"] = {"value": 0.5, "n": 100}
    found = list(figures._tested(one, evidence(epsilon=1.0, delta=0.0)))
    assert [a[: len(b)] for a, b in zip(found, said, strict=True)] == said


def test_a_test_of_a_claim_on_mu_has_its_bounds_at_delta() -> None:
    """p-value of the claimed mu, and epsilon at delta of the mu that the counts refute."""
    bound = counts.errors_bound(DELTA, True, (2, 3, 100, 100), 0.05)
    most = counts.errors_bound(DELTA, True, (0, 0, 100, 100), 0.05)
    of = metrics(false_positives=(2.0, 100), false_negatives=(3.0, 100), mu_lower_bound=bound)
    one = finding("test", of=of)
    p, *ends = figures.derived(one, evidence(mu=2.5), 0.05)
    expected = counts.errors_p_value(DELTA, True, (2, 3, 100, 100), 2.5)
    assert p == pytest.approx((expected, expected), rel=3e-4)
    assert p[0] <= expected <= p[1]
    at = [figures.about(gaussian_epsilon(DELTA, mu)) for mu in (bound, most)]
    assert ends == [pytest.approx(one, rel=1e-9) for one in at]
    of["mu lower bound"]["value"] = bound - 1e-5
    with pytest.raises(ValueError, match="its mu is"):
        figures.derived(one, evidence(mu=2.5), 0.05)


def test_the_level_of_a_test_is_that_of_the_config() -> None:
    asked = {"attack": [{"name": "likelihood-ratio", "alpha": 0.01}]}
    at = evidence(epsilon=1.0, delta=0.0, config=asked)
    assert len(list(figures._tested(counted_runs(), at))) == 1
    own = counts.errors_bound(0.0, False, (0, 0, 100, 100), 0.01)
    one = counted_runs(confidence=0.99, epsilon_lower_bound=own, ceiling=own)
    assert list(figures._tested(one, at)) == []


def test_p_values_are_of_what_was_counted() -> None:
    of = metrics(guesses=10.0, right_guesses=(9.0, 10), epsilon_lower_bound=(1.0, 20))
    found = figures.p_values(finding("test", of=of), DELTA, False)
    assert found is not None
    assert [p(1.0) for p in found] == [
        counts.guesses_p_value(DELTA, 20, 10, right, 1.0) for right in (9, 10)
    ]
    for name, n in (("guesses", {"value": 9.0}), ("epsilon lower bound", {"n": 9})):
        with pytest.raises(ValueError, match="no guesses"):
            figures.p_values(finding("test", of={**of, name: n}), DELTA, False)
    with pytest.raises(ValueError, match="no guesses"):
        figures.p_values(finding("test", of=of), DELTA, True)
    for name, blind in (
        ("matched", "matched blindly"),
        ("reconstructed", "reconstructed blindly, at most"),
    ):
        of = {name: {"value": 0.3, "n": 10}, blind: {"value": 0.1}}
        for of_mu in (True, False):
            found = figures.p_values(finding("test", of=of), DELTA, of_mu)
            assert found is not None
            p = partial(counts.successes_p_value, 0.1, DELTA, of_mu, name == "matched", 10)
            assert [q(0.7) for q in found] == [p(3, 0.7), p(10, 0.7)]
    assert figures.p_values(finding("test"), DELTA, False) is None


@pytest.mark.parametrize("times, n", [(1.0, 0), (1.01, 1), (1 / 1.01, 1)])
def test_errors_say_how_much_less_noise_there_is(times: float, n: int) -> None:
    """Of one Gaussian release of scale 2, errors at most a and b have mu -z_a - z_b = 1 / 2s."""
    a, b = counts.upper_rate(3, 100, 0.025), counts.upper_rate(5, 200, 0.025)
    mu = -float(ndtri(a) + ndtri(b))
    factor = 0.5 / mu
    of = metrics(false_positives=(3.0, 100), false_negatives=(5.0, 200))
    of |= metrics(**{figures.NOISE_FACTOR: factor * times, figures.OF_SHAPE: 1.0})
    own = gaussian_epsilon(DELTA, mu / times)
    one = finding("test", of=of, releases={"most": [RELEASE]})
    for said, more in ((own, 0), (own * 1.01, 1)):
        of[figures.OF_SHAPE]["value"] = said
        assert len(list(figures._of_shape(one, evidence(), 0.05))) == n + more
    assert len(list(figures._of_shape({**one, "releases": {}}, evidence(), 0.05))) == 1


def test_a_finding_names_its_claim_and_what_is_claimed() -> None:
    def flawed(one: Finding, **more: Any) -> int:
        return len(list(figures.flaws(one, "here", evidence(**more))))

    of = metrics(claimed_epsilon=4.0, delta=DELTA, claimed_mu=1.0)
    assert [flawed(finding("state", claim=i)) for i in (None, 0, 1)] == [0, 0, 1]
    assert flawed(finding("state", of=of)) == 0
    assert flawed(finding("state", of=of), mu=1.0) == 0
    assert flawed(finding("state", of=of), mu=1.1) == 1
    assert flawed(finding("state", of=of), mu=1.1, delta=2e-5, epsilon=4.1) == 3
    assert flawed(finding("state", of=of), epsilon=4.0 * (1 + 5e-6)) == 0
    assert flawed(finding("state", of=of), epsilon=4.0 * (1 + 2e-5)) == 1


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_gaussian_noise_allows_errors_on_its_curve(noise: float) -> None:
    """mu = 1 / 2 of the release, less by the factor: z_FPR + z_FNR = -mu."""
    for off, is_allowed in ((-1e-6, True), (1e-6, False)):
        rates = float(ndtr(-0.3)), float(ndtr(0.3 - 0.5 / noise - off))
        assert family.allow([RELEASE], "add-remove", noise, rates) is is_allowed


def test_sampled_laplace_noise_allows_errors_on_its_curve() -> None:
    """Of rate 1/2 likelihood ratios lie from 1 / 2 + 1 / 2e to 1 / 2 + e / 2."""
    release = {"family": "laplace", "noise_multiplier": 1.0, **PLAIN}
    release |= {"sampling": "poisson", "sampling_rate": 0.5}
    most, least = (1 + e) / 2, (1 + 1 / e) / 2
    for off, is_allowed in ((1e-3, True), (-1e-3, False)):
        for rates in ((0.1, 1 - 0.1 * most + off), (1 - 0.1 / least + off, 0.1)):
            assert family.allow([release], "add-remove", 1.0, rates) is is_allowed


def channel_sum(value: float, rate: float, scales: tuple[float, ...]) -> family.CanaryLaw:
    sizes, uses = np.array([0.5, 1.0]), np.array([2.0, 3.0])
    return family.CanaryLaw(value, sizes, uses, rate, 20.0, 30.0, scales)


@pytest.mark.parametrize("factor", [0.0, 0.7, 1.0])
def test_a_sum_of_unsampled_canaries_is_normal(factor: float) -> None:
    """N(c s mu^2, s^2 mu^2 (1/20 + 1/30)) with mu^2 = 2 0.5^2 + 3 = 3.5."""
    found = channel_sum(2.0, 1.0, (0.8, 1.25)).p(factor)
    tails = [
        ndtr((factor * s * 3.5 - 2.0) / (s * sqrt(3.5 * (1 / 20 + 1 / 30)))) for s in (0.8, 1.25)
    ]
    assert found == pytest.approx(max(tails), abs=1e-6)


def test_a_sum_of_sampled_canaries_is_that_of_the_auditor() -> None:
    sizes = np.array([0.5] * 2 + [1.0] * 3)
    own = sums.CanarySum(sizes, 0.3, 20, 30)
    for value in (-0.2, 0.3, 0.9):
        for factor in (0.0, 0.5, 1.0):
            found = channel_sum(value, 0.3, (1.0,)).p(factor)
            assert found == pytest.approx(own.tail(value, factor), abs=1e-6)


def test_a_sum_is_read_with_the_scale_of_its_noise() -> None:
    noise = np.random.default_rng(3).normal(0, 1.1, (30, 5))
    given = {"sizes of uses": [0.5, 1.0], "uses of each size": [2, 3], "sum": [0.4]}
    given |= {"rate of uses": [0.3], "canaries there": [20], "mean square": [np.mean(noise**2)]}
    found = family.CanaryLaw.of(given, 50)
    assert (found.value, found.rate, found.present, found.absent) == (0.4, 0.3, 20.0, 30.0)
    scale = sums.noise_scale(noise, family.CHECKED / 4)
    assert list(found.scales) == pytest.approx([scale.low, scale.high])
    pairs = found.pairs(2.0)
    assert [(pair.scale, pair.rate, n) for pair, n in pairs] == [(1.0, 0.3, 2.0), (0.5, 0.3, 3.0)]


def sound(**changed: Any) -> list[dict[str, Any]]:
    """Findings by which each premise holds, changed by role."""
    whole = metrics(rounds=(5.0, 5))
    made = {
        "declared": accounted(0.5, 1.0),
        "alignment": finding(
            "alignment",
            of={**whole, **metrics(noise_moved_over_declared=1.0)},
            releases={"most": [RELEASE]},
            adjacency="add-remove",
        ),
        "noise": finding("noise", of=metrics(noise_over_declared=(0.95, 1.0, 1.02))),
        "records": finding("records", of=metrics(sampling_rate=(0.1, 0.2, 0.25))),
        "dependence": finding("dependence", of=whole | metrics(found=0.0)),
        "state": finding("state"),
    }
    for role, change in changed.items():
        of = change.pop("of", {}) if change else {}
        if change is None:
            made.pop(role)
        else:
            made[role] = {**made[role], **change, "metrics": {**made[role]["metrics"], **of}}
    return list(made.values())


def missing(**changed: Any) -> set[str]:
    found = premises.premises(evidence(*sound(**changed)))
    return {name for name, held in found.items() if not held}


@pytest.mark.parametrize(
    "changed, names",
    [
        ({}, set()),
        ({"alignment": {"of": metrics(noise_moved_over_declared=0.0)}}, {"distance"}),
        ({"alignment": {"of": metrics(noise_moved_over_declared=1 + 9e-7)}}, set()),
        *(
            ({"alignment": change}, {"distance", "noise", "composition"})
            for change in (
                {"of": metrics(noise_moved_over_declared=1 + 2e-6)},
                {"of": metrics(rounds=(4.0, 5))},
                {"adjacency": "replace-one"},
                {"releases": {"most": [RELEASE | {"count": 2}]}},
                {"releases": {"most": [RELEASE | {"noise_multiplier": 3.0}]}},
                {"releases": {}},
                None,
            )
        ),
        ({"noise": {"of": metrics(noise_over_declared=(1.1, 1.2, 1.3))}}, set()),
        ({"noise": {"of": metrics(noise_over_declared=(1.11, 1.2, 1.3))}}, {"noise"}),
        ({"noise": {"of": metrics(noise_over_declared=(0.5, 0.6, 0.9))}}, set()),
        ({"noise": {"of": metrics(noise_over_declared=(0.5, 0.6, 0.89))}}, {"noise"}),
        ({"noise": {"verdict": "unsupported"}}, {"noise"}),
        ({"records": {"not_examined": ["x"]}}, {"records"}),
        ({"records": None}, {"records"}),
        ({"dependence": {"of": {"found": None}}}, {"completeness"}),
        ({"dependence": {"not_examined": ["x"]}}, {"completeness"}),
        ({"dependence": {"verdict": "unsupported"}}, {"completeness"}),
        ({"state": None}, {"state"}),
        ({"declared": {"void": "x"}}, {"composition"}),
        ({"declared": {"of": metrics(epsilon=(0.5, inf, inf))}}, {"composition"}),
    ],
)
def test_each_premise_falls_with_what_it_rests_on(changed: Any, names: set[str]) -> None:
    assert missing(**{role: change and dict(change) for role, change in changed.items()}) == names


def test_the_measured_epsilon_has_least_noise_and_most_rate() -> None:
    sampled = RELEASE | {"sampling": "poisson", "sampling_rate": 0.4}
    for release, times in ((RELEASE, 1.0), (sampled, 1.25)):
        some = sound(declared={"releases": {"most": [release]}, "of": metrics(epsilon=(0, 0, 0))})
        found = premises._measured(evidence(*some), some[0])
        less = release | {"noise_multiplier": 1.9, "sampling_rate": release["sampling_rate"]}
        if times > 1:
            less["sampling_rate"] *= times
        assert found == pytest.approx(figures.accountant.epsilon([less], DELTA, "add-remove"))
    some = sound()
    some[0]["metrics"] |= metrics(epsilon=(0.5, 30.0, 30.0))
    assert premises._measured(evidence(*some), some[0]) == 30.0
    assert premises._measured(evidence(some[0]), some[0]) == inf
    some[0]["releases"] = {"most": []}
    assert premises._measured(evidence(*some), some[0]) == 30.0


def test_rounds_are_all_or_so_many_of_them() -> None:
    of = [finding("noise", of=metrics(rounds=(n, 5))) for n in (4.0, 5.0)]
    assert [premises._rounds(one) for one in of] == ["4 of 5 rounds", "all 5 rounds"]
    assert [premises._is_whole(one) for one in of] == [False, True]


def control(judged: str | None) -> Finding:
    return finding("positive-control", "control", verdict=judged)


def power(bound: float, ceiling: float) -> Finding:
    return finding(
        "test", "empirical-epsilon", of=metrics(epsilon_lower_bound=bound, ceiling=ceiling)
    )


@pytest.mark.parametrize(
    "findings, said",
    [
        ((), "underpowered"),
        ((power(0.1, 4.1),), "not refuted"),
        ((power(0.0, 4.1),), "underpowered"),
        ((power(0.1, 4.0),), "underpowered"),
        ((power(0.1, 4.1), control("refuted")), "not refuted"),
        ((power(0.1, 4.1), control(None)), "underpowered"),
        ((power(0.1, 4.1), power(0.2, 3.0)), "underpowered"),  # the stronger one counts
        (sound(), "supported"),
        ((*sound(), power(4.0, 5.0)), "supported"),
        ((*sound(), power(4.1, 5.0)), "not refuted"),
        (sound(declared={"of": metrics(epsilon=(0.5, 4.1, 4.1))}), "underpowered"),
        (sound(state=None), "underpowered"),
        (sound(declared={"of": metrics(epsilon=(inf, inf, inf))}), "refuted"),
        ((finding("exact-leak", verdict="refuted"),), "refuted"),
        ((finding("noise", verdict="unsupported"),), "unsupported"),
        ((finding("test", "empirical-epsilon", verdict="unsupported"),), "underpowered"),
    ],
)
def test_the_most_severe_reason_that_applies_decides(findings: Any, said: str) -> None:
    assert verdict.derive(evidence(*findings), False) == said
    assert verdict.derive(evidence(*findings), True) == "refuted"
    own = verdict.derive(evidence(*findings, codes=["DPA112"]), False)
    assert own == (said if said in ("refuted", "unsupported") else "underpowered")


def test_what_is_certified_is_the_largest_that_counts() -> None:
    tests = [power(4.5, 5.0), power(3.0, 5.0)]
    tests[0]["metrics"] |= metrics(**{"p-value": 0.2})
    tests[1]["metrics"] |= metrics(**{"p-value": 0.1})
    assert verdict._certified(evidence(*tests), False) == 4.0  # no test refutes it
    assert verdict._certified(evidence(*tests), True) == 3.0  # that of the least p-value
    assert verdict._certified(evidence(*tests, accounted(3.5, 6.0)), True) == 3.5
    assert verdict._certified(evidence(), False) == 0.0
    leak = finding("exact-leak", verdict="refuted")
    assert verdict._certified(evidence(*tests, leak), False) == inf


def test_a_figure_is_written_as_it_is_and_as_odds() -> None:
    assert {"2", "7.39", "7"} <= set(verdict._written(2.0))
    assert verdict._written(-1.0)[:2] == ("-1", "-1")
    assert "0" in verdict._written(-1.0)
    assert verdict._written(inf) == ()
    assert f"{exp(50.0):.3g}" in verdict._written(60.0)
