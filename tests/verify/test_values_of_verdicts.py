"""What a claim's verdict, its premises and the matrices of a view rest on, one by one."""

import hashlib
from math import exp, inf, log, log1p, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.verify import bets, counts, figures, premises, verdict, views
from dpaudit.verify.figures import Flaw
from dpaudit.verify.verdict import ClaimCheck, derive
from tests.verify import test_values as of


def held_without_alignment(**changed: Any) -> set[str]:
    """Premises that do not hold where distances, noise and an exact leak were examined instead."""
    whole = of.metrics(rounds=(5.0, 5))
    moved = of.metrics(measured=0.5, stated_bound=1.0, measured_over_stated=0.5)
    leak = whole | of.metrics(epsilon=(0.5, 0.9, 0.9))
    made = of.sound(alignment=None, noise={"of": whole})
    made += [of.finding("sensitivity", of=moved), of.finding("exact-leak", of=leak)]
    for role, change in changed.items():
        name = role.replace("_", "-")
        [one] = [f for f in made if f["role"] == name]
        given = dict(change or {})
        one["metrics"] = {**one["metrics"], **given.pop("of", {})}
        one |= given
        if change is None:
            made.remove(one)
    found = premises.premises(of.evidence(*made))
    return {name for name, held in found.items() if not held}


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, set()),
        ({"exact_leak": None}, {"noise", "composition"}),
        ({"exact_leak": {"void": "x"}}, {"noise", "composition"}),
        ({"exact_leak": {"of": of.metrics(rounds=(4.0, 5))}}, {"noise", "composition"}),
        ({"exact_leak": {"of": of.metrics(rounds=5.0)}}, {"noise", "composition"}),
        ({"exact_leak": {"of": of.metrics(epsilon=(0.5, inf, inf))}}, {"noise", "composition"}),
        ({"exact_leak": {"of": of.metrics(epsilon=(0.5, 1.0, 1.0))}}, set()),
        ({"exact_leak": {"of": of.metrics(epsilon=(0.5, 1.1, 1.1))}}, {"composition"}),
        ({"exact_leak": {"verdict": "refuted"}}, {"composition"}),
        (
            {"exact_leak": {"verdict": "x", "of": of.metrics(epsilon=(1.1, 0.9, 0.9))}},
            {"composition"},
        ),
        ({"exact_leak": {"verdict": "x"}}, set()),
        ({"sensitivity": None}, {"distance"}),
        ({"sensitivity": {"adjacency": "replace-one"}}, {"distance"}),
        ({"sensitivity": {"adjacency": "add-remove"}}, set()),
        ({"sensitivity": {"of": {"stated bound": {}}}}, {"distance"}),
        ({"sensitivity": {"of": of.metrics(measured_over_stated=0.0)}}, {"distance"}),
        ({"sensitivity": {"verdict": "unsupported"}}, {"distance"}),
        ({"dependence": {"of": of.metrics(rounds=(4.0, 5))}}, {"distance"}),
        ({"noise": {"of": {"rounds": {}}}}, {"noise"}),
        ({"noise": {"unconfirmed": ["x"]}}, {"noise"}),
        ({"noise": {"not_examined": ["x"]}}, {"noise"}),
        ({"noise": {"not_examined": ["x"], "claim": 0}}, set()),
        ({"declared": {"of": {"epsilon": {}}}}, {"composition"}),
        ({"declared": {"attack": "captured"}}, set()),
        (
            {"declared": {"attack": "captured"}, "noise": {"of": {"noise over declared": {}}}},
            {"noise"},
        ),
    ],
)
def test_premises_hold_by_distances_and_an_exact_leak(changed: Any, names: set[str]) -> None:
    assert held_without_alignment(**changed) == names


def test_two_distances_are_examined_together() -> None:
    def held(*ratios: float | None) -> bool:
        whole = of.metrics(rounds=(5.0, 5))
        moved = [of.metrics(measured=0.5, stated_bound=1.0, measured_over_stated=x) if x is not None
                 else of.metrics(measured=0.5) for x in ratios]  # fmt: skip
        leak = of.finding("exact-leak", of=whole | of.metrics(epsilon=(0.5, 0.9, 0.9)))
        some = of.sound(alignment=None, noise={"of": whole})
        some += [leak, *(of.finding("sensitivity", of=one) for one in moved)]
        return premises.premises(of.evidence(*some))["distance"]

    assert [held(0.5, 0.0), held(0.0, 0.0), held(0.5, None), held()] == [True, False, False, False]


def test_a_rate_that_is_measured_does_not_lower_epsilon() -> None:
    sampled = of.RELEASE | {"sampling": "poisson", "sampling_rate": 0.4}
    own = of.metrics(epsilon=(0.0, 0.0, 0.0))
    for high, times in ((0.1, 1.0), (0.2, 1.0), (0.4, 2.0)):
        rates = {"of": of.metrics(sampling_rate=(0.05, 0.2, high))}
        some = of.sound(declared={"releases": {"most": [sampled]}, "of": own}, records=rates)
        less = sampled | {"noise_multiplier": 1.9, "sampling_rate": 0.4 * times}
        expected = figures.accountant.epsilon([less], of.DELTA, "add-remove")
        assert premises._measured(of.evidence(*some), some[0]) == pytest.approx(expected)


def flaws_of(premise: Any = (), span: Any = None, **changed: Any) -> list[tuple[str, bool]]:
    some = of.sound(**changed)
    said = premises.premises(of.evidence(*some))
    names = {"distance": [1], "noise": [1, 2], "records": [3], "completeness": [4],
             "composition": [0, 1], "state": [5]}  # fmt: skip
    given = {
        name: {"name": name, "status": premises.STATUS[held], "says": "", "findings": f}
        for (name, f), held in zip(names.items(), map(said.get, names), strict=True)
    }
    for name, change in dict(premise).items():
        given[name] |= change
    evidence = of.evidence(*some)
    own = {"premises": list(given.values()), "because": [*range(6)], "range": span}
    evidence = evidence._replace(claim=evidence.claim | own)
    return [(flaw.where, flaw.contradicted) for flaw in premises.flaws(evidence, 0.7)]


MEASURED = figures.accountant.epsilon(
    [of.RELEASE | {"noise_multiplier": 1.9}], of.DELTA, "add-remove"
)
SPAN = {"certified": 0.7, "accounted": 1.0, "measured": max(1.0, MEASURED)}
ENDLESS = SPAN | {"measured": inf}


@pytest.mark.parametrize(
    ("premise", "span", "changed", "where"),
    [
        ({}, SPAN, {}, []),
        ({}, None, {}, []),
        ({"state": {"status": "not examined"}}, SPAN, {}, [("premises", True)]),
        ({"state": {"status": "failed"}}, SPAN, {}, [("premises", True)]),
        ({}, ENDLESS, {"state": {"not_examined": ["x"]}}, []),
        (
            *({"state": {"status": "failed"}}, ENDLESS, {"state": {"not_examined": ["x"]}}),
            [("premises", True)],
        ),
        ({}, ENDLESS, {"noise": {"verdict": "unsupported"}}, []),
        (
            *({"noise": {"status": "not examined"}}, ENDLESS),
            *({"noise": {"verdict": "unsupported"}}, [("premises", True)]),
        ),
        ({}, SPAN | {"certified": 0.8}, {}, [("range", True)]),
        ({}, SPAN | {"accounted": 1.1}, {}, [("range", True)]),
        ({}, SPAN | {"measured": 3.0}, {}, [("range", True)]),
        ({}, SPAN | {"accounted": 1.004}, {}, []),
        ({}, SPAN, {"state": {"not_examined": ["x"]}}, [("range", True)]),
        ({}, SPAN, {"records": {"of": of.metrics(declared_sampling_rate=1.0)}}, []),
        (
            *({}, SPAN, {"records": {"of": of.metrics(declared_sampling_rate=0.9)}}),
            [("premises", True)],
        ),
        ({"noise": {"findings": [1]}}, SPAN, {}, [("premises.noise", True)]),
        ({"noise": {"findings": [1, 2, 2]}}, SPAN, {}, [("premises.noise", True)]),
        ({"noise": {"findings": [1, 2, 3]}}, SPAN, {}, [("premises.noise", True)]),
        ({"distance": {"says": "in all 5 rounds"}}, SPAN, {}, []),
        ({"distance": {"says": "in 4 of 5 rounds"}}, SPAN, {}, [("premises.distance", True)]),
    ],
)
def test_premises_and_ranges_follow_from_findings(premise, span, changed, where) -> None:
    assert flaws_of(premise, span, **{k: dict(v) for k, v in changed.items()}) == where


def test_a_measured_end_without_releases_is_not_checkable() -> None:
    def where(**releases: Any) -> list[tuple[str, bool]]:
        return flaws_of({}, SPAN | {"measured": 3.0}, declared={"releases": releases})

    assert ("range", True) in where(most=[of.RELEASE])
    assert ("range", False) in where()
    own = {"of": of.metrics(declared_sampling_rate=0.5)}
    assert flaws_of({}, None, records=own, declared={"releases": {}}) == []
    sampled = of.RELEASE | {"sampling": "poisson", "sampling_rate": 0.5}
    plain = of.RELEASE | {"sampling_rate": 0.25}
    assert flaws_of({}, None, records=own, declared={"releases": {"most": [sampled, plain]}}) == []


@pytest.mark.parametrize(
    ("own", "derived", "flaws", "answer"),
    [
        ("a", "a", (), "confirmed"),
        ("a", "b", (), "contradicted"),
        ("a", "a", (Flaw("w", "x", False),), "not checkable"),
        ("a", "a", (Flaw("w", "x", False), Flaw("w", "x", True)), "contradicted"),
        ("a", "b", (Flaw("w", "x", False),), "contradicted"),
    ],
)
def test_an_answer_is_of_the_verdict_and_its_flaws(own, derived, flaws, answer) -> None:
    assert ClaimCheck("c", "m", own, derived, flaws).answer == answer


def test_claims_are_refuted_together_by_holm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement has its least p-value, as often as it has tests; all hold at 5% together."""
    seen: list[bool] = []
    monkeypatch.setattr(verdict, "derive", lambda own, refuted: seen.append(refuted) or "v")
    for name in ("_restated", "_left_out", "_numbers"):
        monkeypatch.setattr(verdict, name, lambda own, refuted=False: [])
    monkeypatch.setattr(verdict.premises, "flaws", lambda own, certified: [])
    monkeypatch.setattr(verdict.premises, "premises", lambda own: {})
    monkeypatch.setattr(verdict, "flaws", lambda finding, where, own: [])
    monkeypatch.setattr(verdict, "_certified", lambda own, refuted: 0.0)

    def refuted(*p_values: list[float]) -> list[bool]:
        seen.clear()
        tests, claims = [], []
        for some in p_values:
            first = len(tests)
            tests += [of.finding("test", of=of.metrics(**{"p-value": p})) for p in some]
            claims.append({"because": [*range(first, len(tests))], "mu": None, "delta": 0.0,
                           "epsilon": 1.0, "text": "", "threat_model": "", "verdict": "v"})  # fmt: skip
        verdict.check({"claims": claims, "findings": tests})
        return [*seen]

    assert refuted([0.05], []) == [True, False]
    assert refuted([0.051]) == [False]
    assert refuted([0.026], [0.5]) == [False, False]
    assert refuted([0.025], [0.5]) == [True, False]
    assert refuted([0.025], [0.05]) == [True, True]
    assert refuted([0.025, 0.9]) == [True]
    assert refuted([0.026, 0.9]) == [False]
    assert refuted([0.9, 0.025]) == [True]


def whole(**changed: Any) -> list[str]:
    """Where an audit of two claims against two adversaries is incoherent."""
    claims = [{"claim": i, "threat_model": m, "verdict": v}
              for (i, m), v in zip([(0, "a"), (0, "b"), (1, "b")],
                                   ["supported", "refuted", "unsupported"], strict=True)]  # fmt: skip
    result = {
        "verdict": "refuted",
        "claims": claims,
        "findings": [],
        "calibrated": {"n_rounds": 5},
        "provenance": {"agent_sizes": [4, 4], "seed": 7},
        "config": {
            "seed": 7,
            "claim": [{}, {"threat_model": "b"}],
            "threat_model": [{"name": "a"}, {"name": "b"}],
            "defense": {"n_rounds": 5},
            "data": {"n_agents": 2},
        },
    } | {key: value for key, value in changed.items() if key != "config"}
    result["config"] |= changed.get("config", {})  # type: ignore[operator]
    flaws = [*verdict.overall(result)]
    assert all(flaw.contradicted for flaw in flaws)
    return [flaw.where for flaw in flaws]


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({}, []),
        ({"verdict": "unsupported"}, ["verdict"]),
        ({"config": {"claim": [{}]}}, ["claims"]),
        ({"config": {"claim": [{}, {}]}}, ["claims"]),
        ({"config": {"seed": 8}}, ["provenance.seed"]),
        ({"config": {"seed": None}}, []),
        ({"config": {"data": {"n_agents": 3}}}, ["config.data.n_agents"]),
        ({"config": {"data": {}}}, []),
        ({"config": {"data": None}}, []),
        ({"config": {"defense": {"n_rounds": 6}}}, ["calibrated.n_rounds"]),
        ({"config": {"defense": None}}, []),
        ({"provenance": {"agent_sizes": [], "seed": 7}, "config": {"data": None}}, []),
        (
            {"findings": [of.finding("noise", of=of.metrics(rounds=(3.0, 4)))]},
            ["findings[0]"],
        ),
        ({"findings": [of.finding("noise", of=of.metrics(rounds=(3.0, 5)))]}, []),
    ],
)
def test_an_audit_is_that_of_its_config(changed: Any, where: list[str]) -> None:
    assert whole(**changed) == where


@pytest.mark.parametrize(
    ("of_finding", "named"),
    [
        ({"role": "test", "kind": "empirical-epsilon", "claim": 0}, True),
        ({"role": "test", "kind": "empirical-epsilon", "claim": 1}, False),
        ({"role": "test", "kind": "empirical-epsilon"}, False),
        ({"role": "x", "kind": "information", "claim": 0}, False),
        ({"role": "x", "kind": "sensitivity"}, True),
        ({"role": "x", "kind": "sensitivity", "adjacency": "add-remove"}, True),
        ({"role": "x", "kind": "sensitivity", "adjacency": "replace-one"}, False),
        ({"role": "x", "kind": "x", "adjacency": "add-remove"}, False),
        ({"role": "noise", "kind": "x"}, True),
        ({"role": "state", "kind": "x"}, True),
        ({"role": "noise", "kind": "x", "claim": 1}, False),
        ({"role": "noise", "kind": "x", "threat_model": "m"}, True),
        ({"role": "noise", "kind": "x", "threat_model": "other"}, False),
        ({"role": "records", "kind": "x"}, False),
    ],
)
def test_evidence_that_bears_on_a_claim_is_named(of_finding: Any, named: bool) -> None:
    one = of.finding(**of_finding)
    for because, left in (([], named), ([0], False)):
        evidence = of.evidence(one, threat_model="m", because=because)
        found = [flaw.where for flaw in verdict._left_out(evidence)]
        assert found == (["findings[0]"] if left else [])


def test_a_refuting_test_certifies_its_own_bound() -> None:
    one, nothing = of.power(4.5, 5.0), of.finding("test")
    one["metrics"] |= of.metrics(**{"p-value": 0.01})
    assert verdict._certified(of.evidence(one, nothing), True) == 4.5
    assert verdict._certified(of.evidence(nothing, one), True) == 4.5
    assert verdict._certified(of.evidence(one), False) == 4.0


def test_without_tests_accounting_alone_decides() -> None:
    small = of.metrics(epsilon=(0.1, 0.2, 0.2))
    assert derive(of.evidence(*of.sound(declared={"of": small}), epsilon=0.3), False) == "supported"
    assert derive(of.evidence(epsilon=0.3), False) == "underpowered"


def spoken(findings: list[Any], **said: str) -> list[str]:
    text = {"reason": "", "meaning": "", "sentence": ""} | said
    claim = {"text": "t 77", "threat_model": "m 88", "premises": [], "delta": 1e-3, "mu": None}
    evidence = of.evidence(*findings, **claim, **text)
    evidence = evidence._replace(claim=evidence.claim | claim | text)
    return [flaw.where for flaw in verdict._numbers(evidence)]


def test_numbers_of_sentences_are_figures_of_evidence() -> None:
    test = of.finding("test", of=of.metrics(confidence=0.9, epsilon_lower_bound=0.5))
    assert spoken([test], reason="t 77, m 88: 0.5, 90%, 11 of them") == ["reason"]
    assert spoken([test], reason="10 findings") == []  # one and nine beside it
    assert spoken([test], meaning="10 findings") == ["meaning"]
    assert spoken([], reason="9 findings") == []
    assert spoken([], reason="10 findings") == ["reason"]
    assert spoken([test], sentence="0.5") == ["sentence"]
    assert spoken([test], sentence="epsilon 4, delta 0.001") == []
    assert spoken([test], meaning="90% and 95%") == []
    assert spoken([test], meaning="90.9%") == ["meaning"]
    named = of.finding("test", message="w 66")
    assert spoken([named], reason="w 66") == []
    short = of.finding("test", message="e")  # a letter of 1e-05, too
    assert spoken([short], reason='"e" at delta 1e-05') == []
    assert spoken([short], reason="e 77") == ["reason"]


@pytest.mark.parametrize("unit", [1.0, 1e6, 1e-6])
def test_noise_below_a_billionth_is_none(unit: float) -> None:
    A = unit * np.array([[3.0, 0.0], [0.0, 4.0]])
    for least, rank in ((2e-9, 2), (0.9e-9, 1)):
        w, error = views.whitened(A, unit * np.diag([1.0, least]))
        assert w[:, 0] == pytest.approx([3.0, 0.0])
        assert (error[1] == inf) == (rank == 1)
        assert rank == 1 or w[1, 1] == pytest.approx(4 / least)
    w, error = views.whitened(A, np.zeros((2, 2)))
    assert (w == 0).all()
    assert error.tolist() == [inf, inf]
    assert views.whitened(0 * A, np.zeros((2, 2)))[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("unit", [1.0, 1e3, 1e-3])
def test_what_noise_does_not_reach_is_shown(unit: float) -> None:
    """Beyond a millionth of a use; less is an error, in units of the least noise."""
    B = unit * np.array([[0.5], [0.0]])
    for rest, error in ((5e-7, 1e-6), (2e-6, inf)):
        w, found = views.whitened(unit * np.array([[1.0], [rest]]), B)
        assert w == pytest.approx(np.array([[2.0]]))
        assert found == pytest.approx([error])
    both = views.whitened(np.eye(2)[:, :1], np.diag([0.5, 0.25]))[1]
    assert both == pytest.approx([0.0], abs=1e-12)


def written(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "a.npz", **arrays)
    content = (folder / "a.npz").read_bytes()
    return (folder / "a.npz").rename(folder / f"{hashlib.sha256(content).hexdigest()}.npz")


def test_mu_of_uses_has_an_error_on_either_side(tmp_path: Path, monkeypatch) -> None:
    """w of (3, 0) and (0, 4), which may be off by 0.1 and 0.2; and two that cancel."""
    w = np.array([[3.0, 0.0, 3.0, -3.0], [0.0, 4.0, 0.0, 0.0]])
    monkeypatch.setattr(views, "whitened", lambda A, B: (w, np.array([0.1, 0.2, 0.0, 0.3])))
    of_both = np.array([0, 0, 1, 1])
    file = written(tmp_path, record=np.zeros((2, 4)), noise=np.eye(2), inclusion=of_both)
    other, first = views.mus(file)
    assert first == pytest.approx((5 - 0.3, sqrt(25 + 0.3 * (2 * 7 + 0.3))))
    assert other == pytest.approx((-0.3, sqrt(36 + 0.3 * (2 * 6 + 0.3))))
    bare = written(tmp_path, record=np.array([[3.0], [4.0]]), inclusion=np.zeros(1))
    assert views.mus(bare) == [(5.0, 5.0)]
    with pytest.raises(ValueError, match="no regular file"):
        views.mus(tmp_path)
    sizes = 2 * 128 + 8 * 3
    for limit, is_read in ((10**4, True), (sizes - 1, False)):
        monkeypatch.setattr(views, "LARGEST", limit)
        if is_read:
            assert views.mus(bare)
            continue
        with pytest.raises(ValueError, match="too large"):
            views.mus(bare)


def ceiling(n: int, delta: float, alpha: float) -> float:
    """Loop by loop: half of the wealth on the share that grows most, half on all."""
    rate, best = 1 / (n + 2), 0.0
    grid = [i * log(max(n, 2)) / 63 for i in range(64)]
    for e in grid:

        def won(out: int, into: int, e: float = e) -> float:
            return (exp(-e) * (into - delta) - out) / (1 + exp(-e) * delta)

        chance = {(o, i): (rate if o else 1 - rate) * (1 - rate if i else rate)
                  for o in (0, 1) for i in (0, 1)}  # fmt: skip
        growth = [sum(p * log1p(s * won(*at)) for at, p in chance.items()) for s in bets.SHARES]
        wealth = sum(
            (0.5 / 7 + 0.5 * (j == int(np.argmax(growth)))) * (1 + s * won(0, 1)) ** n
            for j, s in enumerate(bets.SHARES)
        )
        if wealth < 1 / alpha:
            return best
        best = e
    return best


@pytest.mark.parametrize("n", [1, 3, 5, 8, 13, 40, 300])
@pytest.mark.parametrize(("delta", "alpha"), [(0.0, 0.05), (0.01, 0.5), (0.1, 0.9)])
def test_the_ceiling_of_bets_is_that_of_loops(n: int, delta: float, alpha: float) -> None:
    assert bets.ceiling(n, delta, alpha) == pytest.approx(ceiling(n, delta, alpha))


def test_a_leak_without_noise_is_refuted_whatever_its_figure() -> None:
    about = {"verdict": "refuted", "message": "m"}
    low = (of.OF_RELEASE, of.OF_RELEASE)
    leak = of.accounted(*low, **about) | {"role": "exact-leak"}
    assert list(figures._accounted(leak, of.evidence(by_algebra=False))) == []
    assert len(list(figures._accounted(of.accounted(*low, **about), of.evidence()))) == 1


def test_a_void_figure_is_proven_by_sound_evidence() -> None:
    def proven(value: float, **more: Any) -> bool:
        test = of.finding("test", of=of.metrics(epsilon_lower_bound=1.5), **more)
        return figures._is_proven(value, of.evidence(test, of.finding("noise")))

    assert proven(1.5)
    assert proven(0.0)
    assert not proven(0.5)
    assert not proven(1.5, void="x")
    bounded = of.finding("declared", of=of.metrics(epsilon=(0.7, 1.0, 1.0)))
    assert figures._is_proven(0.7, of.evidence(bounded))
    assert not figures._is_proven(1.0, of.evidence(bounded))


def test_the_least_leak_of_a_void_view_is_proven() -> None:
    """Its own releases are held against it; without them nothing is."""
    least = {"least": ["a release"]}
    leak = of.finding(
        "exact-leak", of=of.metrics(epsilon=(0.7, inf, inf)), void="x", releases=least
    )
    assert figures._is_proven(0.7, of.evidence(leak))
    assert not figures._is_proven(0.8, of.evidence(leak))
    assert not figures._is_proven(0.7, of.evidence({**leak, "releases": {"most": []}}))


def test_a_distance_without_a_ratio_has_no_flaw() -> None:
    one = of.finding("sensitivity", of=of.metrics(measured=2.0, stated_bound=1.0))
    assert list(figures._judged(one, of.evidence())) == []
    assert figures.about(2.0) == pytest.approx((2 - 2e-5 - 2e-6, 2 + 2e-5 + 1e-7), abs=1e-12)
    assert (figures.FALSE, figures.NOISE_LEVEL) == (0.05, 1e-6)


def test_what_a_guess_may_reach_is_a_probability() -> None:
    assert counts.allowed(0.9, 0.2, False, 0.0) == 1.0
    assert counts.allowed(0.1, 0.05, False, 0.0) == pytest.approx(0.15)
    assert counts.allowed(0.6, 0.0, False, 1.0) == pytest.approx(1 - 0.4 * exp(-1))
    assert counts.allowed(0.5, 0.0, True, 0.0) == pytest.approx(0.5)
