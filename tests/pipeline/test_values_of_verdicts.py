"""Sentences and premises of verdicts, and what of them void figures take back, value by value."""

from math import inf, log
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.files.claim import Claim
from dpaudit.files.finding import KINDS, Column, Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline import link_coverage, premises, rules, void_figures
from dpaudit.pipeline.notes import problem_notes, vacuous_notes
from dpaudit.pipeline.rules import decide
from dpaudit.pipeline.void_figures import Doubt
from tests.pipeline.test_premises import (
    ALIGNED,
    BESIDE,
    CLAIM,
    DISTANCE,
    NOISE,
    RECORDS,
    RELEASE,
    ROUNDS,
    without,
)
from tests.pipeline.test_rules import case, certified, finding


def metrics(**values: float) -> dict[Any, Metric]:
    return {Name[name]: Metric(value=value) for name, value in values.items()}


@pytest.mark.parametrize(("bound", "times"), [(0.5, "4"), (0.3, "6.67"), (2.0, "1")])
def test_the_smaller_claim_is_the_claim_over_the_bound(bound: float, times: str) -> None:
    decision = decide(case(certified(bound)))
    assert decision.code == "DPA118"
    assert f"a claim {times} times smaller would have been refuted" in decision.reason


@pytest.mark.parametrize(
    ("n", "of_test", "attack", "said"),
    [
        (None, {}, None, "runs"),
        (2000, {}, None, "2,000 runs"),
        (2000, {}, rules.CAPTURED, "2,000 records that short runs held or not"),
        (2000, {"GUESSES": 1500.0}, None, "1,500 guesses"),
        (2000, {"GUESSES": 1500.0, "CANARIES": 1200.0}, None, "1,200 canaries"),
    ],
)
def test_a_test_says_what_it_counted(n: Any, of_test: Any, attack: Any, said: str) -> None:
    bound = {Name.EPSILON_LOWER_BOUND: Metric(value=1.0, n=n)}
    test = finding(Role.TEST, metrics=bound | metrics(**of_test), attack=attack)
    assert rules._cases(test) == said
    targets = {Name.RECONSTRUCTED: Metric(value=0.5, n=1234)}
    of_targets = test.model_copy(update={"metrics": {**test.metrics, **targets}})
    assert rules._cases(of_targets) == "reconstructions of 1,234 targets"


def test_a_claim_in_mu_says_its_epsilon() -> None:
    own = case()
    assert own.claims == "Claimed epsilon 2"
    of_mu = Claim.model_validate({"text": "c", "mu": 1.0})
    own = own.__class__(own.judging._replace(claim=of_mu), (), False, 1)
    assert own.claims == "Claimed mu 1, which is epsilon 4.38 at delta 1e-05"


def test_a_message_without_noise_is_named_before_its_figure() -> None:
    against: dict[str, Any] = {"verdict": Verdict.UNSUPPORTED}
    for role, message, code, said in (
        (
            Role.MEASURED,
            None,
            "DPA106",
            "what was measured of a record and the noise gives epsilon",
        ),
        (Role.MEASURED, '"x" of round 1', "DPA107", '"x" of round 1 moves with the record, and no'),
        (Role.EXACT_LEAK, "x", "DPA105", "the noise that is really added gives epsilon"),
        (Role.DECLARED, "x", "DPA104", "the noise that is declared gives epsilon"),
    ):
        decision = decide(case(finding(role, 3.0, 3.5, message=message, **against)))
        assert (decision.verdict, decision.code) == (Verdict.UNSUPPORTED, code)
        assert decision.reason.startswith(f"Claimed epsilon 2; {said}")


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({}, "the messages of the real run do not carry independent noise in every number: noise"),
        ({"claim": 0}, "the noise really drawn is not the independent noise that the defense asks"),
        (
            {"factor": 0.501},
            "runs with the record in a batch tell of 0.501 times the declared noise",
        ),
        ({"factor": 0.9996, "claim": 0}, "tell of 0.9996 times the declared noise, or less"),
    ],
)
def test_other_noise_is_said_by_what_shows_it(of: Any, said: str) -> None:
    factor = metrics(NOISE_FACTOR=of["factor"]) if "factor" in of else {}
    p = metrics(P_VALUE=1.23e-9)
    found = finding(
        Role.NOISE, metrics=factor | p, claim=of.get("claim"), verdict=Verdict.UNSUPPORTED
    )
    decision = decide(case(found))
    assert decision.code == "DPA110"
    assert said in decision.reason
    assert decision.reason.endswith("(p = 1e-09).")


def test_of_several_reasons_the_surest_is_given() -> None:
    exact = finding(Role.EXACT_LEAK, inf, message="x", verdict=Verdict.REFUTED)
    noiseless = finding(Role.DECLARED, inf, verdict=Verdict.UNSUPPORTED)
    beside = finding(Role.DEPENDENCE, metrics=metrics(FOUND=1.0), verdict=Verdict.UNSUPPORTED)
    noise = finding(Role.NOISE, metrics=metrics(P_VALUE=1e-9), verdict=Verdict.UNSUPPORTED)
    some = (noise, beside, noiseless, exact)
    codes = [decide(case(*some[:n])).code for n in (4, 3, 2, 1)]
    assert codes == ["DPA101", "DPA103", "DPA109", "DPA110"]
    assert (
        '"x" shows the record with no noise at all to "eavesdropper"' in decide(case(exact)).reason
    )
    own = case(certified(2.5), refuted=True)
    decision = decide(own)
    assert (decision.code, decision.finding) == ("DPA102", own.findings[0])
    assert "among" not in decision.reason
    several = own.__class__(own.judging, own.findings, True, 3)
    assert ", which is refuted among 3 statements (Holm); runs certify" in decide(several).reason


def test_no_test_is_the_last_that_is_said() -> None:
    assert [d.code for d in rules._undecided(case())] == ["DPA113"]
    blind = case(certified(0.5))
    blind = blind.__class__(
        blind.judging._replace(reads_nothing=True, unjudged="why"), blind.findings, False, 1
    )
    assert [d.code for d in rules._undecided(blind)] == ["DPA111", "DPA112", "DPA118"]
    assert "Claimed epsilon 2; why." in [d.reason for d in rules._undecided(blind)]


def of_function(*evidence: Finding) -> dict[str, tuple[str, str]]:
    epsilon = {Name.EPSILON: Metric(value=1.0, low=0.0, high=1.0), **ROUNDS}
    measured = Finding(
        role=Role.MEASURED, kind="accounting", title="m", metrics=epsilon, claim=0,
        releases={"most": (RELEASE,)}, notes=("what was measured",),
    )  # fmt: skip
    found = premises.premises(CLAIM, [*enumerate(evidence), (len(evidence), measured)])
    return {p.name: (p.status, p.says) for p in found}


def test_of_a_function_the_evidence_says_what_was_measured() -> None:
    notes = {"notes": ("as it was found", "more")}
    some = [one.model_copy(update=notes) for one in (*without(*without(BESIDE, RECORDS)), ALIGNED)]
    found = of_function(*some)
    assert found["completeness"] == ("examined", "as it was found")
    assert found["records"] == ("examined", "as it was found")
    assert found["composition"] == ("examined", "what was measured")
    assert found["state"] == ("not examined", "rounds were not played again")


def of_program(*evidence: Finding) -> dict[str, Any]:
    epsilon = {Name.EPSILON: Metric(value=1.0, low=0.0, high=1.0), **ROUNDS}
    measured = Finding(
        role=Role.MEASURED, kind="accounting", title="m", metrics=epsilon, attack="captured",
        claim=0, releases={"most": (RELEASE,)}, notes=("m",),
    )  # fmt: skip
    found = premises.premises(CLAIM, list(enumerate((measured, *evidence))))
    return {p.name: p for p in found}


def test_an_alignment_of_another_adjacency_is_not_cited() -> None:
    """Where one covers the claim, what is missing of others is not missing."""
    own = ALIGNED.model_copy(update={"notes": ("moved",)})
    other = own.model_copy(update={"adjacency": "replace-one", "not_examined": ("why",)})
    found = of_program(other, own)
    assert (found["distance"].status, found["distance"].says) == ("examined", "moved")
    assert found["distance"].findings == (2,)
    assert (found["composition"].status, found["composition"].findings) == ("examined", (0, 2))
    alone = of_program(other)
    assert (alone["distance"].status, alone["distance"].says) == ("not examined", "why")
    assert alone["distance"].findings == (1,)
    assert of_program(own)["noise"].says == "it was not looked at"


@pytest.mark.parametrize(("low", "high", "known"), [(0.5, 0.9, True), (0.5, 0.89, False)])
def test_noise_of_a_program_may_be_a_tenth_smaller(low: float, high: float, known: bool) -> None:
    size = {Name.NOISE_OVER_DECLARED: Metric(value=0.7, low=low, high=high)}
    noise = NOISE.model_copy(update={"notes": ("n",), "metrics": {**ROUNDS, **size}})
    assert (of_program(noise)["noise"].status == "examined") is known


def said(*evidence: Finding) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = premises.premises(CLAIM, list(enumerate(evidence)))
    return {p.name: (p.says, p.findings) for p in found}


def test_distances_are_measured_in_all_rounds() -> None:
    ratio = {**DISTANCE.metrics, Name.MEASURED_OVER_STATED: Metric(value=0.5)}
    half = DISTANCE.model_copy(update={"metrics": ratio})
    quarter = half.model_copy(
        update={"metrics": {**ratio, Name.MEASURED_OVER_STATED: Metric(value=0.25)}}
    )
    found, cited = said(*without(DISTANCE), quarter, half)["distance"]
    assert found.startswith("in all 4 rounds a record moves a message by")
    assert "0.5" in found
    assert cited == (6, 7)
    still = half.model_copy(
        update={"metrics": {**ratio, Name.MEASURED_OVER_STATED: Metric(value=0.0)}}
    )
    assert said(*without(DISTANCE), still, half)["distance"][0] == found
    assert said(*without(DISTANCE), still, still)["distance"][0] == premises.UNMOVED
    part = BESIDE.model_copy(
        update={"metrics": {Name.FOUND: Metric(value=0.0), Name.ROUNDS: Metric(value=2, n=4)}}
    )
    found, _ = said(*without(BESIDE), part)["distance"]
    assert found == "2 of 4 rounds were measured, and no others"
    bare = DISTANCE.model_copy(update={"metrics": {Name.MEASURED: Metric(value=1.0)}})
    assert said(*without(DISTANCE), half, bare)["distance"][0] == 'no bound is stated for "x"'
    other = half.model_copy(update={"adjacency": "replace-one"})
    assert said(*without(DISTANCE), other)["distance"][0].startswith("how far a record moves")
    found, cited = said(*without(DISTANCE), ALIGNED)["distance"]
    assert found.startswith("in all 4 rounds a record moves what noise hides by")
    assert cited == (6,)


def test_the_size_of_noise_may_be_that_of_draws() -> None:
    unsized = NOISE.model_copy(update={"metrics": {Name.P_VALUE: Metric(value=0.5), **ROUNDS}})
    sized = Metric(value=1.0, low=0.95, high=1.05)
    drawn = ALIGNED.model_copy(
        update={"adjacency": "replace-one", "metrics": {Name.NOISE_OVER_DECLARED: sized}}
    )
    found, cited = said(*without(NOISE), unsized, drawn)["noise"]
    assert "; it is 0.95 to 1.05 times as large as declared; the algebra covers" in found
    assert cited == (6, 7)
    assert said(*without(NOISE), NOISE, drawn)["noise"][1] == (6,)


def test_records_without_a_rate_are_as_noted() -> None:
    counted = RECORDS.model_copy(update={"metrics": {}, "notes": ("in every batch",)})
    assert said(*without(RECORDS), counted)["records"] == ("in every batch", (6,))


@pytest.mark.parametrize(
    ("epsilon", "delta", "adjacency", "n_notes"),
    [
        (13.8, 1e-5, "add-remove", 0),
        (13.82, 1e-5, "add-remove", 1),
        (1.0, 0.01, "add-remove", 1),
        (1.0, 0.0099, "add-remove", 0),
        (1.0, 0.01, "function", 0),
        (1.0, 0.2, "function", 1),
        (14.0, 0.2, "replace-one", 2),
    ],
)
def test_a_claim_that_promises_little_has_a_note(epsilon, delta, adjacency, n_notes) -> None:
    """Of at most 100 records of an agent, and five agents; a guess errs once in a million."""
    content = {"text": "c", "epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    setting: Any = SimpleNamespace(sizes=(50, 100), n_agents=5)
    notes = list(vacuous_notes([Claim.model_validate(content)], setting))
    assert [note.code for note in notes] == ["DPA122"] * n_notes
    for note in notes:
        assert (
            f"epsilon {epsilon:.3g} allows" in note.text or f"delta {delta:g} is 1 / " in note.text
        )
    assert -log(1e-6) == pytest.approx(13.8155)


def test_layers_that_were_replaced_are_named() -> None:
    data = SimpleNamespace(n_distinct=10)
    learned: Any = SimpleNamespace(dataset=data, replaced=("a by b", "c by d"), n_records=10)
    [note] = problem_notes(learned)
    assert (note.code, note.text) == (
        "DPA125", "The model was fixed, each BatchNorm replaced: a by b; c by d.",
    )  # fmt: skip
    learned.dataset = None
    assert list(problem_notes(learned)) == []


def test_who_has_a_final_model_reads_something() -> None:
    final: Any = SimpleNamespace(has_final_model=True)
    nothing: Any = None
    assert link_coverage.reads_nothing(final, nothing, 3) is False


def levels(bound: float, *pairs: tuple[float, float]) -> Finding:
    series = {
        Column.LEVEL: tuple(a for a, _ in pairs),
        Column.CERTIFIED: tuple(e for _, e in pairs),
    }
    return finding(Role.TEST, metrics=metrics(EPSILON_LOWER_BOUND=bound), series=series)


def test_runs_void_a_figure_by_what_they_certify_beyond_it() -> None:
    some = levels(2.5, (0.05, 2.5), (0.01, 1.5), (0.001, 1.0))
    assert [void_figures._certified(some, most, 1) for most in (2.4, 2.5, 1.2)] == [2.5, 0.0, 2.5]
    assert [void_figures._certified(some, 1.2, n) for n in (2, 5, 6, 50)] == [2.5, 2.5, 0.0, 0.0]
    assert [void_figures._certified(some, 0.9, n) for n in (6, 50, 51)] == [2.5, 2.5, 0.0]
    other = finding(Role.POSITIVE_CONTROL, metrics=metrics(EPSILON_LOWER_BOUND=2.5))
    assert void_figures._certified(other, 1.0, 1) == 0.0
    assert void_figures._certified(certified(2.5), 1.0, 1) == 0.0  # what was counted is not known
    assert void_figures._certified(finding(Role.TEST), 1.0, 1) == 0.0


@pytest.mark.parametrize(
    ("fp", "n", "most", "n_tests", "voids"),
    [
        (0, 500, 1.0, 1, True),
        (0, 500, 1.0, 10**6, True),
        (0, 20, 2.0, 1, False),
        (240, 500, 1.0, 1, False),
    ],
)
def test_counted_runs_void_a_figure_by_their_p_value(fp, n, most, n_tests, voids) -> None:
    counts = {name: Metric(value=fp, n=n) for name in (Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES)}
    given = metrics(EPSILON_LOWER_BOUND=3.0)
    test = finding(Role.TEST, metrics={**given, **counts})
    assert void_figures._certified(test, most, n_tests) == (3.0 if voids else 0.0)
    without_n = {**given, **counts, Name.FALSE_NEGATIVES: Metric(value=fp)}
    assert void_figures._certified(finding(Role.TEST, metrics=without_n), most, n_tests) == 0.0


def test_reconstructions_are_counted_beside_blind_guesses() -> None:
    reached = {Name.RECONSTRUCTED: Metric(value=0.25, n=40)} | metrics(RECONSTRUCTED_BLINDLY=0.1)
    found = void_figures._successes_of(finding(Role.TEST, metrics=reached))
    assert found is not None
    assert (found.hits, found.n, found.kappa, found.apart) == (10, 40, 0.1, False)
    matched = {Name.MATCHED: Metric(value=0.5, n=40)} | metrics(MATCHED_BLINDLY=0.2)
    both = void_figures._successes_of(finding(Role.TEST, metrics={**reached, **matched}))
    assert both is not None
    assert (both.hits, both.kappa, both.apart) == (20, 0.2, True)
    assert void_figures._successes_of(finding(Role.TEST, metrics=metrics(MATCHED=0.5))) is None


def test_what_is_falsified_is_taken_back() -> None:
    given = metrics(CLAIMED_EPSILON=2.0)
    declared = finding(
        Role.DECLARED, 0.5, 1.5, metrics=given, releases={"least": (RELEASE,), "most": (RELEASE,)},
        notes=("own",),
    )  # fmt: skip
    doubt = Doubt("it is wrong", 0.25, True)
    found = void_figures._taken_back(declared, doubt)
    epsilon = found.metrics[Name.EPSILON]
    assert (epsilon.value, epsilon.low, epsilon.high) == (inf, 0.25, inf)
    assert found.metrics[Name.CLAIMED_EPSILON].value == 2.0
    assert found.metrics[Name.DELTA].value == 1e-5
    assert (found.void, found.releases, found.title) == ("it is wrong", {}, Role.DECLARED)
    assert found.notes == (
        "void: it would be epsilon between 0.5 and 1.5, but it is wrong", "own",
    )  # fmt: skip
    against = declared.model_copy(update={"verdict": Verdict.UNSUPPORTED})
    kept = void_figures._taken_back(against, doubt)
    assert kept.metrics[Name.EPSILON].low == 0.5
    assert kept.releases == {"least": (RELEASE,)}
    assert (
        void_figures._taken_back(against, doubt._replace(proven=0.75)).metrics[Name.EPSILON].low
        == 0.75
    )
    exact = declared.model_copy(update={"role": Role.EXACT_LEAK})
    assert void_figures._taken_back(exact, doubt).title == "leak of the view"
    assert void_figures._taken_back(exact, doubt).metrics[Name.EPSILON].low == 0.5
    of_noise = Doubt("it is wrong", 0.0, True, True)
    assert void_figures._taken_back(exact, of_noise).metrics[Name.EPSILON].low == 0.0
    assert void_figures._taken_back(exact, doubt._replace(of_algebra=False)) is exact
    measured = declared.model_copy(update={"role": Role.MEASURED})
    assert void_figures._taken_back(measured, doubt) is measured
    for same in (finding(Role.DECLARED, inf, metrics=given), finding(Role.DECLARED)):
        assert void_figures._taken_back(same, doubt) is same
    nothing = finding(Role.DECLARED, 0.0, inf, metrics=given)
    assert void_figures._taken_back(nothing, doubt).notes == ()


def sensitivity(ratio: float | None, **more: Any) -> Finding:
    given = {} if ratio is None else metrics(MEASURED_OVER_STATED=ratio)
    given |= more.pop("metrics", {})
    return Finding(
        role=Role.SENSITIVITY, kind=KINDS[Role.SENSITIVITY], title="t", message="x",
        metrics=given, verdict=Verdict.UNSUPPORTED, **more,
    )  # fmt: skip


def test_a_doubt_has_the_first_reason_that_applies() -> None:
    declared, exact = finding(Role.DECLARED, 0.5, 1.5), finding(Role.EXACT_LEAK, 1.0, 1.4)

    def doubt(*evidence: Finding, n: int = 1, final: bool = False) -> Doubt | None:
        return void_figures._doubt(evidence, n, final)

    assert doubt(declared, exact) is None
    assert doubt() is None
    moves = doubt(declared, exact, sensitivity(3.0))
    assert moves == Doubt('"x" moves 3 times as far as its noise is made for', 1.0, True, False)
    for ratio in (1.0, None):
        found = doubt(sensitivity(ratio))
        assert found == Doubt(
            '"x" moves with the data as no stated bound or noise covers', 0.0, True, False
        )
    beside = finding(Role.DEPENDENCE, verdict=Verdict.UNSUPPORTED)
    assert doubt(declared, exact, beside) == Doubt(
        "more than the values of messages depends on the data", 1.0, True, False
    )
    noise = finding(Role.NOISE, verdict=Verdict.UNSUPPORTED)
    why = "the noise is not the independent noise that the defense asks for"
    assert doubt(declared, exact, noise) == Doubt(why, 0.0, True, True)
    known = exact.model_copy(update={"verdict": Verdict.UNSUPPORTED})
    assert doubt(declared, known, noise) == Doubt(why, 1.0, True, False)
    shown = exact.model_copy(update={"verdict": Verdict.REFUTED})
    assert doubt(declared, shown) == Doubt(
        "the noise that is really added leaves no bound", inf, False
    )
    more = finding(Role.EXACT_LEAK, 1.6, 1.7)
    assert doubt(declared, more) == Doubt("the noise that is really added leaves more", 1.6, False)
    beyond = levels(2.5, (0.05, 2.5))
    assert doubt(declared, more, beyond) == Doubt(
        "the noise that is really added leaves more", 2.5, True
    )
    assert doubt(declared, exact, beyond) == Doubt("runs certify more", 2.5, True)
    loose = finding(Role.EXACT_LEAK, 1.0, 3.0)
    assert doubt(declared, loose, beyond) == Doubt("runs certify more", 2.5, False)
    assert doubt(declared, loose) is None
    of_model = doubt(declared, loose, final=True)
    assert of_model is not None
    assert of_model.why.startswith("no algebra shows that the last model")
    assert doubt(declared, exact, final=True) is None
    quiet = sensitivity(1.0, metrics=metrics(NOISE_OVER_NEEDED=0.5))
    assert doubt(declared, exact, quiet) == Doubt(
        '"x" carries 0.5 of the noise that its stated bound needs', 1.0, of_algebra=False
    )
    assert [void_figures._least(one) for one in (None, exact, shown, finding(Role.EXACT_LEAK))] == [
        0,
        1,
        inf,
        0,
    ]
    assert [void_figures._most(one) for one in (None, exact, finding(Role.EXACT_LEAK))] == [
        inf,
        1.4,
        inf,
    ]
