"""Values on which a verdict rests, one by one: ends, texts, premises and what an audit takes."""

from dataclasses import replace
from math import inf, log, nextafter
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.accounting import epsilon, gaussian_epsilon
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.options import graph_options
from dpaudit.files.result import Curve
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline import batch_rate, premises, rules
from dpaudit.pipeline.costs import AuditCosts, PartCost
from dpaudit.pipeline.judge import bearing_on
from dpaudit.pipeline.link_coverage import absent_notes, refuse_waiting
from dpaudit.pipeline.notes import learning_notes, problem_notes
from dpaudit.pipeline.rules import ClaimCase, Judging, epsilon_size
from dpaudit.release import Release
from tests.pipeline.test_judge import CLAIM, EAVESDROPPER, accounted, certified, control, judged


def finding(role: Role, kind: str = "accounting", **more: Any) -> Finding:
    return Finding.model_validate({"role": role, "kind": kind, "title": "t", **more})


def epsilon_of(low: float | None, high: float | None, **more: Any) -> Finding:
    role = more.pop("role", Role.DECLARED)
    metrics = {
        Name.EPSILON: Metric(value=high if high is not None else inf, low=low, high=high),
        Name.DELTA: Metric(value=1e-5),
        **more.pop("metrics", {}),
    }
    return finding(role, metrics=metrics, **more)


def case(*findings: Finding, refuted: bool = False, n_tested: int = 1) -> ClaimCase:
    judging = Judging(0, CLAIM, EAVESDROPPER, accounted(1.0, 1.5), tuple(range(len(findings))))
    return ClaimCase(judging, findings, refuted, n_tested)


@pytest.mark.parametrize(
    "low, high, said",
    [
        (1.0, 1.0, "1"),
        (1.0, 1.001, "1"),
        (1.0, 1.0011, "between 1 and 1"),
        (100.0, 100.09, "100"),
        (0.01, 0.0105, "between 0.01 and 0.0105"),
        (1.5, 2.0, "between 1.5 and 2"),
        (0.0, 0.0, "0"),
        (None, 2.0, "between 0 and 2"),
        (1.5, inf, "at least 1.5"),
    ],
)
def test_both_ends_of_an_epsilon_are_written_if_they_differ(low, high, said) -> None:
    assert epsilon_size(Metric(value=1.0, low=low, high=high)) == said


def test_the_ends_of_what_is_known_are_those_of_the_evidence() -> None:
    exact = epsilon_of(0.7, 0.9, role=Role.EXACT_LEAK)
    assert case().least == 0.0
    assert case().most == inf
    assert case(epsilon_of(None, 2.0)).least == 0.0
    assert case(epsilon_of(0.5, 2.0)).least == 0.5
    assert case(epsilon_of(0.5, 2.0), exact).least == 0.7
    assert case(epsilon_of(0.5, 2.0), exact).most == 0.9
    assert case(epsilon_of(0.5, 0.8), exact).most == 0.8
    assert case(epsilon_of(0.5, None)).most == inf
    assert case(epsilon_of(0.5, 0.8, void="x"), exact).most == 0.9
    measured = epsilon_of(0.6, 0.8, role=Role.MEASURED)
    assert (case(measured).least, case(measured).most) == (0.6, 0.8)
    assert case(epsilon_of(0.1, 2.0), measured).accounting == epsilon_of(0.1, 2.0)
    assert case(epsilon_of(0.1, inf, role=Role.MEASURED)).accounting is None
    shown = exact.model_copy(update={"verdict": Verdict.REFUTED})
    assert case(shown).least == inf
    assert case(certified(2.5, 0.9)).least == 2.0  # of one test alone no more than is claimed
    assert case(certified(2.5, 0.01), refuted=True).least == 2.5
    assert case(certified(1.5, 0.9), epsilon_of(1.6, 1.9)).least == 1.6


def test_the_best_test_is_the_largest_bound_or_least_p_value() -> None:
    tests = certified(1.0, 0.3, ceiling=5.0), certified(1.0, 0.2, ceiling=6.0), certified(0.5, 0.1)
    assert case(*tests).best_test == tests[1]
    assert case(*tests, refuted=True).best_test == tests[2]
    assert case(tests[0]).certified == "runs certify at least 1 at 95% confidence"
    other = {**tests[0].metrics, Name.CONFIDENCE: Metric(value=0.9)}
    of_family = {**other, Name.EPSILON_OF_DECLARED_SHAPE: Metric(value=0.05)}
    assert case(tests[0].model_copy(update={"metrics": other})).certified.endswith(
        "at 90% confidence"
    )
    assert case(tests[0].model_copy(update={"metrics": of_family})).of_declared_family == ""
    assert case(certified(0.0, 1.0)).of_declared_family == case().of_declared_family == ""
    assert (
        case(certified(0.0, 1.0)).certified
        == case().certified
        == case(tests[0].model_copy(update={"metrics": {}})).certified
        == ""
    )


def moved(**metrics: float) -> str:
    names = {name.replace("_", " "): Metric(value=value) for name, value in metrics.items()}
    return rules._moves(finding(Role.SENSITIVITY, "sensitivity", message="x", metrics=names))


def test_what_moves_is_said_with_how_much_more() -> None:
    assert moved(measured=3.0) == '"x" moves by 3 when the data change, and no noise hides it'
    assert moved(measured=3.0, stated_bound=2.0).endswith("and no noise hides it")
    assert moved(measured=3.0, measured_over_stated=1.5).endswith("and no noise hides it")
    assert moved(measured=3.0, stated_bound=3.001, measured_over_stated=1.0).endswith("hides it")
    assert moved(measured=3.0, stated_bound=2.0, measured_over_stated=1.5) == (
        '"x" moves by 3 when the data change, 1.5 times the bound that its noise is made for (2)'
    )
    assert moved() == "a measured sensitivity exceeds its bound: t"
    for n, said in ((1, "1 thing beside the values of messages depends"), (2, "2 things beside")):
        found = finding(Role.DEPENDENCE, "sensitivity", metrics={Name.FOUND: Metric(value=n)})
        assert rules._moves(found).startswith(said)


@pytest.mark.parametrize(
    "epsilon, said",
    [
        (0.0, "1-fold"),
        (log(7.349), "7.35-fold"),
        (log(99.96), "100-fold"),
        (log(100.4), "100-fold"),
        (log(1234.4), "1,234-fold"),
        (14.0, "1,202,604-fold"),
        (nextafter(14.0, 15), "more than a million-fold"),
    ],
)
def test_odds_are_written_to_three_digits_or_as_a_whole_number(epsilon, said) -> None:
    assert rules._fold(epsilon) == said


def test_what_stands_beside_a_claim_follows_from_its_upper_end() -> None:
    for high, said in ((2.0, "stays within"), (2.0001, "does not settle"), (0.0, "stays within")):
        found = epsilon_of(0.0, high)
        assert rules._stands("Accounting", found, case(found)).startswith(f"Accounting {said} the")
    one = certified(1.0, 0.6)
    assert judged(one, control(True)).decisive == 0
    assert judged(control(True), one).decisive == 1
    assert judged(interval=accounted(2.5, 3.0)).decisive == 0


def test_a_claims_accounting_tests_and_controls_bear_on_it() -> None:
    made = [
        finding(Role.DECLARED, claim=0),
        finding(Role.TEST, "empirical-epsilon", claim=0),
        finding(Role.POSITIVE_CONTROL, "control", claim=0),
        finding(Role.RECONSTRUCTION, "reconstruction", claim=0),
        finding(Role.DECLARED, claim=1),
        finding(Role.DECLARED),
        finding(Role.STATE, "control"),
        finding(Role.NOISE, "control", claim=1),
        finding(Role.DECLARED, claim=0, threat_model="other"),
    ]
    assert bearing_on(0, CLAIM, EAVESDROPPER, made) == [0, 1, 2, 6]


def test_agents_that_wait_need_a_defense_that_waits() -> None:
    def network(*active: object, delay: int = 0) -> Any:
        graphs = [SimpleNamespace(active=one) for one in active]
        return SimpleNamespace(graphs=graphs, delay=delay, weather=None)

    def refused(found: Any, waits: bool = False, delays: bool = False) -> str:
        defense: Any = SimpleNamespace(waits=waits, delays=delays)
        try:
            refuse_waiting(graph_options("ring"), found, defense)
        except ConfigError as error:
            return str(error)
        return ""

    assert refused(network(None, None)) == ""
    for some in (network(None, object()), network(object(), None), network(object())):
        assert "some agents wait in some rounds" in refused(some)
        assert refused(some, waits=True) == ""
    assert "some messages are mixed rounds after" in refused(network(None, delay=1))
    assert refused(network(None, delay=1), delays=True) == ""


def test_a_note_names_the_links_that_are_not_there() -> None:
    ring = build_graph("ring", 4)
    there = ThreatModel(name="spy", links=((0, 1),))
    for model in (there, ThreatModel(name="all")):
        assert list(absent_notes([model], ring, 2)) == []
    (note,) = absent_notes([ThreatModel(name="spy", links=((0, 1), (0, 2)))], ring, 2)
    assert "reads less: the graph that was drawn has no link 0 -> 2." in note.text
    (note,) = absent_notes([ThreatModel(name="spy", links=((0, 2), (3, 1)))], ring, 2)
    assert "reads nothing: the graph that was drawn has no link 0 -> 2, 3 -> 1." in note.text


@pytest.mark.parametrize(
    "before, after, said",
    [
        (1.0, 999.0, None),
        (1.0, 1001.0, "diverged"),
        (1.0, float("nan"), "diverged"),
        (1.0, 1.0 + 5e-7, "changed nothing"),
        (1.0, 1.0 - 5e-7, "changed nothing"),
        (1.0, 1.0 - 5e-6, None),
        (2.0, 2.0 + 1.5e-6, "changed nothing"),
        (0.0, 5.0, None),
    ],
)
def test_a_run_that_learns_nothing_has_a_note(before, after, said) -> None:
    curve = Curve.model_construct(
        initial_loss=(before, before), loss=((7.0, 7.0), (after, after)), loss_is="loss"
    )
    notes = [note.text for note in learning_notes({"defense": curve})]
    assert (said is None and notes == []) or (said is not None and said in notes[0])


@pytest.mark.parametrize("distinct, has_note", [(50, True), (51, False), (100, False)])
def test_records_of_which_most_are_copies_have_a_note(distinct, has_note) -> None:
    data = SimpleNamespace(n_distinct=distinct)
    learned: Any = SimpleNamespace(dataset=data, replaced=(), n_records=100)
    assert [note.code for note in problem_notes(learned)] == ["DPA126"] * has_note


def size(low: float, high: float, role: Role = Role.NOISE, **more: Any) -> Finding:
    metric = Metric(value=(low + high) / 2, low=low, high=high, n=9)
    kind = "control" if role is Role.NOISE else "sensitivity"
    return finding(role, kind, metrics={Name.NOISE_OVER_DECLARED: metric}, **more)


@pytest.mark.parametrize(
    "low, high, is_drawn",
    [(0.9, 1.1, True), (1.1, 1.5, True), (1.11, 1.5, False), (0.5, 0.9, True), (0.5, 0.89, False)],
)
def test_noise_is_as_drawn_within_a_tenth(low, high, is_drawn) -> None:
    metric = Metric(value=1.0, low=low, high=high)
    assert premises._is_as_drawn(metric) is is_drawn


def rounds(n: int, of: int | None, **metrics: float) -> Finding:
    found = {name: Metric(value=value) for name, value in metrics.items()}
    return finding(
        Role.ALIGNMENT, "sensitivity", metrics={Name.ROUNDS: Metric(value=n, n=of), **found}
    )


def test_rounds_are_all_or_so_many_of_them() -> None:
    assert premises._rounds(rounds(3, 5)) == "3 of 5 rounds"
    assert premises._rounds(rounds(5, 5)) == premises._rounds(rounds(6, 5)) == "all 5 rounds"
    assert premises._rounds(rounds(5, None)) == "the rounds"
    real = rounds(5, 5, **{Name.REAL_ROUNDS: 2})
    assert premises._rounds(real) == "all 5 rounds (2 of them with the real model)"
    covers = [
        premises._covers(f) for f in (rounds(4, 5), rounds(5, 5), rounds(5, None), size(1, 1))
    ]
    assert covers == [False, True, False, False]


RELEASE = Release(family="gaussian", noise_multiplier=2.0, sampling="poisson", sampling_rate=0.5)


def measured(release: Release, *found: Finding, held: bool = True) -> Any:
    declared = epsilon_of(0.1, 0.2, releases={"most": (release,)})
    evidence = list(enumerate((declared, *found)))
    known = premises.epsilon_range(CLAIM, evidence, 0.25, held)
    assert known is not None
    return known.certified, known.accounted, known.measured


def test_an_epsilon_as_measured_has_least_noise_and_most_rate() -> None:
    whole = Release(family="gaussian", noise_multiplier=2.0)
    rate = Metric(value=0.5, low=0.4, high=0.55, n=9)
    counted = finding(Role.RECORDS, "control", metrics={Name.SAMPLING_RATE: rate})
    found = measured(RELEASE, size(0.95, 1.02), counted)
    changed = {"noise_multiplier": 1.9, "sampling_rate": 0.55}
    most = epsilon([RELEASE.model_copy(update=changed)], 1e-5).high
    assert found == (0.25, 0.2, pytest.approx(most))
    of_draws = size(0.95, 1.0, Role.ALIGNMENT)
    for noise, sizes in (
        (2.0, [size(1.01, 1.02)]),
        (1.9, [size(0.95, 1.02)]),
        (1.9, [of_draws]),
        (1.8, [of_draws, size(0.9, 1.0)]),
    ):
        most = gaussian_epsilon(1e-5, 1 / noise)
        assert measured(whole, *sizes)[2] == pytest.approx(most)
    assert measured(whole, size(0.95, 1.02), counted)[2] == pytest.approx(
        gaussian_epsilon(1e-5, 1 / 1.9)
    )
    assert measured(whole, counted) == (0.25, 0.2, inf)
    assert measured(whole, size(0.95, 1.02), held=False)[2] == inf
    assert premises._measured(CLAIM, (), [], premises.ClaimEvidence(CLAIM, ())) == 0.0
    assert premises.epsilon_range(CLAIM, [], 0.25, True) is None


def test_declared_releases_are_all_that_an_eavesdropper_faces() -> None:
    other = RELEASE.model_copy(update={"noise_multiplier": 3.0})
    twice = RELEASE.model_copy(update={"count": 2})
    assert premises._are_all((RELEASE,), (RELEASE,))
    assert premises._are_all((RELEASE, other), (twice,))
    assert not premises._are_all((twice,), (RELEASE,))
    assert not premises._are_all((RELEASE,), (other,))
    assert not premises._are_all((), ())


def failed(ratio: float | None, **more: Any) -> str:
    metrics = {} if ratio is None else {Name.MEASURED_OVER_STATED: Metric(value=ratio)}
    return premises._failure(
        finding(Role.SENSITIVITY, "sensitivity", message="x", metrics=metrics, **more)
    )


def test_what_fails_a_premise_is_said_by_how_far_it_moves() -> None:
    hidden = 'no noise of the round hides how "x" moves'
    assert failed(None) == failed(1.0) == failed(1 + 9e-7) == hidden
    cause = "clipping is missing or too weak, or the noise too small"
    assert failed(1.0029) == f'"x" moves 0.29% further than its stated bound: {cause}'
    assert failed(1 + 2e-6) == f'"x" moves 0.0002% further than its stated bound: {cause}'
    assert failed(2.0, adjacency="function") == '"x" moves 2 times its stated bound'
    assert premises._failure(epsilon_of(1.5, 2.0)) == "t: epsilon 1.5"
    bare = epsilon_of(inf, inf).model_copy(update={"message": "x"})
    assert premises._failure(bare) == '"x" moves with a record, and no noise hides it'
    ranks = bare.model_copy(update={"message": '"x" of round 1'})
    assert premises._failure(ranks).startswith('"x" of round 1 moves with a record')
    assert premises._failure(epsilon_of(inf, inf)) == "t: epsilon inf"
    assert premises._failure(finding(Role.NOISE, "control")) == "t"


def costs(free: int | None, sizes: list[int], seconds: list[float | None]) -> AuditCosts:
    attacks = [
        PartCost(f"a{i // 2}", n, seconds=s)
        for i, (n, s) in enumerate(zip(sizes, seconds, strict=True))
    ]
    limit: Any = SimpleNamespace(free=free, process=10)
    return AuditCosts([PartCost("t", 5, seconds=2.0)], attacks, PartCost("report", 1), limit)


def test_parts_are_done_side_by_side_as_memory_allows() -> None:
    found = costs(100, [30, 20, 40], [1.0, 3.0, 2.0])
    assert [found.workers(found.attacks, most) for most in (1, 2, 3, 9)] == [1, 2, 2, 2]
    assert costs(120, [30, 20, 40], [1.0] * 3).workers(found.attacks, 9) == 3
    assert costs(119, [30, 20, 40], [1.0] * 3).workers(found.attacks, 9) == 2
    assert costs(None, [30, 20, 40], [1.0] * 3).workers(found.attacks, 9) == 3
    assert (found.cores(9), found.workers([], 9)) == (2, 1)
    assert found.seconds(1) == 2.0 + 6.0
    assert found.seconds(9) == 2.0 + 3.0  # no less than the longest takes
    assert costs(100, [1, 1], [None, None]).seconds(1) == 2.0
    assert [found.is_short, costs(1, [1], [3.0]).is_short, costs(1, [1], [3.1]).is_short] == [
        False,
        True,
        False,
    ]
    parts = {name: (s, n, jobs) for name, s, n, jobs in found.by_part()}
    assert parts == {"t": (2.0, 5, 1), "a0": (4.0, 30, 2), "a1": (2.0, 40, 1)}
    assert [s for _, s, _, _ in costs(1, [1, 1], [1.0, None]).by_part()] == [2.0, None]


def test_a_claim_is_supported_if_all_premises_held() -> None:
    held = premises.Premise(name="noise", status="examined", says="s")
    failed = held.model_copy(update={"status": "failed"})

    def supported(*findings: Finding, rests_on: tuple[Any, ...] = (held,)) -> bool:
        return replace(case(*findings), premises=rests_on).is_supported

    assert supported(epsilon_of(0.5, 2.0))
    assert not supported(epsilon_of(0.5, 2.0001))
    assert not supported(epsilon_of(0.5, 2.0, void="x"))
    assert not supported(epsilon_of(0.5, 2.0), certified(2.1, 0.04))
    assert supported(epsilon_of(0.5, 2.0), certified(2.0, 0.04))
    for rests_on in ((), (failed,), (held, failed)):
        assert not supported(epsilon_of(0.5, 2.0), rests_on=rests_on)
    assert not supported()


def covered(n: int, of: int, high: float = 1.0, **more: Any) -> Finding:
    every = {Name.ROUNDS: Metric(value=n, n=of)}
    return epsilon_of(0.5, high, role=Role.EXACT_LEAK, metrics=every, **more)


def test_the_algebra_of_a_run_covers_all_its_rounds() -> None:
    def algebra(found: Finding, scope: str = "run") -> Finding | None:
        claim = Claim.model_validate({"text": "c", "epsilon": 2.0, "delta": 1e-5, "scope": scope})
        return premises.ClaimEvidence(claim, ((0, found),)).algebra

    whole, part = covered(5, 5), covered(4, 5)
    assert algebra(whole) == whole
    assert algebra(part) is None
    assert algebra(part, "round") == part
    assert algebra(covered(5, 5, inf)) is algebra(covered(5, 5, void="x")) is None


def test_composition_is_examined_by_what_bounds_all_rounds() -> None:
    def said(declared: Finding, *more: Finding) -> str | None:
        evidence = premises.ClaimEvidence(CLAIM, tuple(enumerate((declared, *more))))
        return premises._composition(evidence)[0]

    assert said(epsilon_of(0.5, 1.0), covered(5, 5)) is None
    assert said(epsilon_of(0.5, 1.0), covered(5, 5, 1 + 9e-7)) is None
    assert (
        said(epsilon_of(0.5, 1.0), covered(5, 5, 1 + 2e-6))
        == "the algebra bounds epsilon by 1 alone"
    )
    assert said(epsilon_of(0.5, inf), covered(5, 5)) == "no upper end follows from what is declared"
    assert said(epsilon_of(0.5, 1.0, void="x")) == "what is declared is void: x"
    assert said(epsilon_of(0.5, 1.0)) == "neither the algebra nor an alignment covers all rounds"


@pytest.mark.parametrize(
    "declared, sampling, rate_high, missing",
    [
        (0.2, "poisson", 0.21, 0),
        (0.25, "poisson", 0.21, 0),  # more often than it is: an upper end
        (0.19, "poisson", 0.21, 1),
        (0.2, "fixed", 0.21, 1),
        (0.2, "poisson", inf, 1),
        (0.19, "fixed", inf, 3),
    ],
)
def test_batches_are_held_against_the_declared_rate(declared, sampling, rate_high, missing) -> None:
    release = RELEASE.model_copy(update={"sampling": sampling, "sampling_rate": declared})
    prepared: Any = SimpleNamespace(
        defense=SimpleNamespace(batch_size=8, drawing="poisson"),
        setting=SimpleNamespace(sizes=(80, 40)),
    )
    of: Any = SimpleNamespace(
        victim=1, most=(release, release.model_copy(update={"sampling_rate": 1.0}))
    )
    rate = batch_rate.Rate(1.0, 0.9, rate_high / 0.2, 100)
    found = batch_rate.records_finding(0, CLAIM, "a", of, rate, prepared)
    assert len(found.not_examined) == missing
    metric = found.metrics[Name.SAMPLING_RATE]
    assert (metric.value, metric.low, metric.n) == (0.2, pytest.approx(0.18), 100)
    assert metric.high == pytest.approx(min(1.0, rate_high))
    assert found.metrics[Name.DECLARED_RATE].value == declared
    none: Any = SimpleNamespace(victim=1, most=None)
    whole = batch_rate.records_finding(0, CLAIM, "a", none, rate, prepared)
    assert whole.metrics[Name.DECLARED_RATE].value == 1.0
    assert batch_rate.records_finding(0, CLAIM, "a", none, None, prepared).metrics == {}


def test_what_an_audit_takes_is_said_where_it_is_much() -> None:
    def lines(parts: list[PartCost], seconds: float = 1.0) -> list[str]:
        limit: Any = SimpleNamespace(free=None, process=10)
        training = [PartCost("t", 5, seconds=seconds)]
        return list(AuditCosts(training, parts, PartCost("report", 1), limit).lines(1))

    assert lines([PartCost("a", 10**9 - 1, seconds=1.0)]) == []
    assert lines([PartCost("a", 10**9, seconds=1.0)])[0].startswith("a takes about 1")
    unknown = [PartCost(name, 1, unknown="why", seconds=1.0) for name in ("a", "b", "c")]
    assert lines(unknown[:1]) == ["a: memory is not known beforehand: why"]
    assert lines(unknown[:2]) == ["a and 1 more: memory is not known beforehand: why"]
    assert lines(unknown) == ["a and 2 more: memory is not known beforehand: why"]
    assert lines([PartCost("a", 1, seconds=0.5)], 9.5) == []
    (said,) = lines([PartCost("a", 1, seconds=0.5), PartCost("b", 1, seconds=1.0)], 9.5)
    assert said.startswith("about ")
    assert " on 1 core; on one: t " in said
    assert said.count(", b ") == 1
    assert ", a " not in said
    (said,) = lines([PartCost("a", 1, seconds=None)], 11.0)
    assert said.startswith("at least about ")
    assert said.endswith("a unknown")
