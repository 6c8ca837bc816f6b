"""What each premise of accounting asks of the evidence, and what the range of epsilon is made of."""

from collections.abc import Mapping
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chi2, gamma

from dpaudit.accounting.releases import Release, epsilon
from dpaudit.data.datasets import from_arrays
from dpaudit.data.partition import split
from dpaudit.files.claim import Claim
from dpaudit.files.finding import KINDS, Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.batch_rate import counted_rate
from dpaudit.pipeline.premises import _failure, epsilon_range, premises
from dpaudit.rng import Streams
from dpaudit.statistics.noise_tests import size_of_draws
from dpaudit.training.classification import Classification

RELEASE = Release(
    family="gaussian", noise_multiplier=2.0, sampling="poisson", sampling_rate=0.5, count=4
)
ACCOUNTED = epsilon([RELEASE], 1e-5).high
CLAIM = Claim(text="c", epsilon=ACCOUNTED, delta=1e-5)
ROUNDS = {Name.ROUNDS: Metric(value=4, n=4)}
DRAWN = {Name.ROUNDS: Metric(value=2, n=4)}


def finding(role: Role, metrics: Mapping[Any, Metric], **more: Any) -> Finding:
    return Finding(role=role, kind=KINDS[role], title=role, metrics=dict(metrics), **more)


def interval(high: float) -> dict[Any, Metric]:
    return {Name.EPSILON: Metric(value=high, low=0.0, high=high), **ROUNDS}


DECLARED = finding(Role.DECLARED, interval(ACCOUNTED), claim=0, releases={"most": (RELEASE,)})
ALGEBRA = finding(Role.EXACT_LEAK, interval(ACCOUNTED), claim=0)
MOVED = {Name.MEASURED: Metric(value=1.0), Name.STATED_BOUND: Metric(value=1.0)}
DISTANCE = finding(Role.SENSITIVITY, MOVED, adjacency="add-remove", message="x")
BESIDE = finding(Role.DEPENDENCE, {Name.FOUND: Metric(value=0.0), **ROUNDS})
SIZE = {Name.NOISE_OVER_DECLARED: Metric(value=1.0, low=0.9, high=1.1)}
NOISE = finding(Role.NOISE, {Name.P_VALUE: Metric(value=0.5), **ROUNDS, **SIZE})
STATE = finding(Role.STATE, ROUNDS)
RATE = Metric(value=0.5, low=0.48, high=0.55)
RECORDS = finding(
    Role.RECORDS, {Name.SAMPLING_RATE: RATE, Name.DECLARED_RATE: Metric(value=0.5)}, claim=0
)
LINEAR = (DECLARED, ALGEBRA, DISTANCE, BESIDE, NOISE, STATE, RECORDS)
ALIGNED = finding(
    Role.ALIGNMENT,
    {Name.MOVED_OVER_DECLARED: Metric(value=1.0), **ROUNDS},
    adjacency="add-remove",
    releases={"most": (RELEASE,)},
)


def missing(*evidence: Finding) -> list[str]:
    found = premises(CLAIM, list(enumerate(evidence)))
    return [premise.name for premise in found if premise.status != "examined"]


def without(*left_out: Finding) -> list[Finding]:
    return [one for one in LINEAR if one not in left_out]


def test_a_linear_step_rests_on_algebra_and_tests() -> None:
    assert missing(*LINEAR) == []
    assert missing(*without(ALGEBRA)) == ["noise", "composition"]
    assert missing(*without(DISTANCE)) == ["distance"]
    assert missing(*without(NOISE)) == ["noise"]
    assert missing(*without(STATE)) == ["state"]
    assert missing(*without(RECORDS)) == ["records"]
    assert missing(*without(BESIDE)) == ["distance", "completeness"]
    assert premises(CLAIM, list(enumerate(without(DECLARED)))) == ()


def test_an_alignment_stands_for_algebra_distance_and_noise() -> None:
    assert missing(*without(ALGEBRA, DISTANCE, NOISE), ALIGNED) == []


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {Name.MOVED_OVER_DECLARED: Metric(value=1.01), **ROUNDS}},
        {"metrics": {Name.MOVED_OVER_DECLARED: Metric(value=1.0), **DRAWN}},
        {"metrics": ROUNDS},
        {"adjacency": "replace-one"},
        {"releases": {"most": (RELEASE.model_copy(update={"count": 5}),)}},
        {"releases": {"most": (RELEASE.model_copy(update={"noise_multiplier": 1.0}),)}},
    ],
)
def test_another_alignment_stands_for_nothing(change: dict[str, Any]) -> None:
    other = ALIGNED.model_copy(update=change)
    left = missing(*without(ALGEBRA, DISTANCE, NOISE), other)
    assert left == ["distance", "noise", "composition"]


def test_records_that_move_nothing_examine_no_distance() -> None:
    """As where sums are rounded to a grid that the records of the run never reach."""
    still = {Name.MOVED_OVER_DECLARED: Metric(value=0.0), **ROUNDS}
    unmoved = ALIGNED.model_copy(update={"metrics": still})
    assert missing(*without(ALGEBRA, DISTANCE, NOISE), unmoved) == ["distance"]
    short = {**MOVED, Name.MEASURED_OVER_STATED: Metric(value=0.0)}
    assert missing(*without(DISTANCE), DISTANCE.model_copy(update={"metrics": short})) == [
        "distance"
    ]


def test_premises_say_how_they_were_examined() -> None:
    said = {p.name: p.says for p in premises(CLAIM, list(enumerate(LINEAR)))}
    size = "; it is 0.9 to 1.1 times as large as declared"
    tested = "tested in all 4 rounds for scale, law and independence"
    assert said["noise"] == f"{tested}{size}; the algebra covers all 4 rounds"
    assert said["records"] == "a batch holds a record with probability 0.48 to 0.55"
    gives = f"gives epsilon {ACCOUNTED:.3g} at most"
    assert said["composition"] == f"the algebra of all 4 rounds {gives}"
    assert said["state"] == "all 4 rounds are the same when they are played again"
    other = premises(CLAIM, list(enumerate((*without(ALGEBRA, DISTANCE), ALIGNED))))
    of_alignment = {p.name: p.says for p in other}
    fresh = "every draw that hides a record is fresh and of the declared family"
    assert of_alignment["noise"] == fresh + size
    moves = "all 4 rounds move no more noise than the releases declared"
    assert of_alignment["composition"] == moves


def test_declared_accounting_without_an_upper_end_is_open() -> None:
    open_ = DECLARED.model_copy(update={"metrics": interval(inf)})
    found = premises(CLAIM, list(enumerate((*without(DECLARED), open_))))
    (said,) = (p.says for p in found if p.name == "composition")
    assert said == "no upper end follows from what is declared"


def test_noise_of_the_claim_s_own_runs_is_no_noise_of_the_run() -> None:
    of_claim = NOISE.model_copy(update={"claim": 0, "not_examined": ("x",)})
    assert missing(*LINEAR, of_claim) == []


@pytest.mark.parametrize("declares", [False, True])
def test_an_alignment_without_releases_stands_for_nothing(declares: bool) -> None:
    """Neither one that aligned none, nor one beside accounting that declares none."""
    bare = {"releases": {}}
    aligned = ALIGNED if declares else ALIGNED.model_copy(update=bare)
    declared = DECLARED.model_copy(update=bare) if declares else DECLARED
    evidence = (declared, aligned, *without(DECLARED, ALGEBRA, DISTANCE, NOISE))
    assert missing(*evidence) == ["distance", "noise", "composition"]


@pytest.mark.parametrize(
    "role, message, says",
    [
        (Role.SENSITIVITY, None, "t: epsilon 1"),
        (Role.NOISE, "x", "t: epsilon 1"),
        (Role.SENSITIVITY, "x", 'no noise of the round hides how "x" moves'),
    ],
)
def test_only_a_message_that_moves_fails_by_its_distance(
    role: Role, message: str | None, says: str
) -> None:
    metrics = {Name.EPSILON: Metric(value=2.0, low=1.0, high=3.0)}
    against = Finding(role=role, kind=KINDS[role], title="t", message=message, metrics=metrics)
    assert _failure(against) == says
    assert _failure(Finding(role=Role.NOISE, kind="control", title="t")) == "t"


def test_a_premise_that_fails_says_so() -> None:
    against = DISTANCE.model_copy(update={"verdict": Verdict.UNSUPPORTED})
    found = premises(CLAIM, list(enumerate((*without(DISTANCE), against))))
    assert {p.name: p.status for p in found}["distance"] == "failed"


def composition_of(declared: Finding, *others: Finding) -> str:
    evidence = (*without(DECLARED, ALGEBRA), declared, *others)
    return {p.name: p.status for p in premises(CLAIM, list(enumerate(evidence)))}["composition"]


def leaking(of: Finding, low: float, high: float, **more: Any) -> Finding:
    metrics = {Name.EPSILON: Metric(value=low, low=low, high=high), **ROUNDS}
    against = {"verdict": Verdict.UNSUPPORTED, "metrics": metrics, **more}
    return of.model_copy(update=against)


def test_accounting_above_the_claim_contradicts_no_composition() -> None:
    """What is claimed is then false; what is declared covers all rounds nevertheless."""
    declared = leaking(DECLARED, 8.0, 8.0)
    assert composition_of(declared, leaking(ALGEBRA, 8.0, 8.0)) == "examined"
    assert composition_of(declared, leaking(ALGEBRA, 8.1, 8.1)) == "failed"
    assert composition_of(DECLARED, leaking(ALGEBRA, 8.0, 8.0)) == "failed"
    assert composition_of(leaking(DECLARED, inf, inf)) == "failed"
    shown = leaking(ALGEBRA, 0.0, 8.0, verdict=Verdict.REFUTED)
    assert composition_of(declared, shown) == "failed"
    bare = finding(Role.MEASURED, {Name.EPSILON: Metric(value=inf, low=inf, high=inf)}, message="y")
    assert composition_of(declared, ALGEBRA, leaking(bare, inf, inf)) == "failed"


@pytest.mark.parametrize(
    "adjacency, cause",
    [("add-remove", ": clipping is missing or too weak, or the noise too small"), ("function", "")],
)
def test_a_failed_distance_blames_clipping_of_records_alone(adjacency: str, cause: str) -> None:
    ratio = {**MOVED, Name.MEASURED_OVER_STATED: Metric(value=4.0)}
    change = {"verdict": Verdict.UNSUPPORTED, "metrics": ratio, "adjacency": adjacency}
    against = DISTANCE.model_copy(update=change)
    assert _failure(against) == f'"x" moves 4 times its stated bound{cause}'


@pytest.mark.parametrize("ratio", [None, 1.0 + 3e-14, 0.5])
def test_a_distance_within_its_bound_fails_for_want_of_noise(ratio: float | None) -> None:
    """It counts against a claim only where the message is the same with the noise and without."""
    moved = {Name.MEASURED: Metric(value=1.0)}
    moved |= {} if ratio is None else {Name.MEASURED_OVER_STATED: Metric(value=ratio)}
    against = DISTANCE.model_copy(update={"verdict": Verdict.UNSUPPORTED, "metrics": moved})
    assert _failure(against) == 'no noise of the round hides how "x" moves'


@pytest.mark.parametrize(
    "of, change, name",
    [
        (NOISE, {"not_examined": ("x",)}, "noise"),
        (NOISE, {"unconfirmed": ("x",)}, "noise"),
        (BESIDE, {"not_examined": ("x",)}, "completeness"),
        (RECORDS, {"not_examined": ("x",)}, "records"),
        (STATE, {"not_examined": ("x",)}, "state"),
        (DISTANCE, {"metrics": {Name.MEASURED: Metric(value=1.0)}}, "distance"),
        (ALGEBRA, {"metrics": interval(2 * ACCOUNTED)}, "composition"),
    ],
)
def test_what_was_not_examined_is_missing(of: Finding, change: Any, name: str) -> None:
    assert missing(*without(of), of.model_copy(update=change)) == [name]


def test_a_run_of_which_part_is_followed_is_not_composed() -> None:
    part = ALGEBRA.model_copy(update={"metrics": {**ALGEBRA.metrics, **DRAWN}})
    assert missing(*without(ALGEBRA), part) == ["noise", "composition"]


def test_measured_epsilon_is_that_of_unfavourable_ends() -> None:
    found = epsilon_range(CLAIM, list(enumerate(LINEAR)), 0.25, held=True)
    worse = RELEASE.model_copy(update={"noise_multiplier": 1.8, "sampling_rate": 0.55})
    assert found is not None
    assert (found.certified, found.accounted) == (0.25, ACCOUNTED)
    assert found.measured == epsilon([worse], 1e-5).high > ACCOUNTED
    open_ = epsilon_range(CLAIM, list(enumerate(LINEAR)), 0.25, held=False)
    assert open_ is not None
    assert open_.measured == inf


@pytest.mark.parametrize("family, law", [("gaussian", chi2), ("laplace", gamma)])
def test_the_interval_of_a_scale_is_exact(family: Any, law: Any) -> None:
    n, level = 50, 0.1
    value, low, high = size_of_draws(60.0, n, family, level)
    power = 0.5 if family == "gaussian" else 1.0
    assert value == pytest.approx(1.2**power)
    for end, p in ((low, level / 2), (high, 1 - level / 2)):  # at its end the total is a quantile
        assert law(n).cdf(60.0 / end ** (1 / power)) == pytest.approx(1 - p)


def of_48_records(drawing: str) -> Any:
    """Four agents with 9 of them each, which are not held out, and batches of 3."""
    x = torch.arange(48.0)[:, None].numpy()
    data = from_arrays(x, torch.arange(48).numpy() % 3, seed=0)
    parts = split(data.y.numpy(), 4, "even", Streams(0).numpy("p"))
    problem = Classification(data, parts, "logistic", torch.device("cpu"))
    return SimpleNamespace(
        learned=SimpleNamespace(problem=problem),
        defense=SimpleNamespace(batch_size=3, drawing=drawing),
        setting=SimpleNamespace(sizes=tuple(parts.sizes.tolist())),
        streams=Streams(0),
    )


@pytest.mark.parametrize("drawing", ["poisson", "fixed", "cyclic"])
def test_batches_are_counted_as_they_are_drawn(drawing: str) -> None:
    """The rate of Poisson batches is missed by its interval with probability 5% at most."""
    prepared = of_48_records(drawing)
    rate = counted_rate(prepared)
    assert rate is not None
    assert rate.n % sum(prepared.setting.sizes) == 0
    assert rate.low <= 1 <= rate.high <= 1.05
    assert (rate.low == rate.high) == (drawing != "poisson")


@pytest.mark.parametrize("limit, most, trials", [("COUNTED", 100, 2), ("MOST_NUMBERS", 120, 3)])
def test_batches_are_counted_in_as_many_trials_as_fit(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, trials: int
) -> None:
    """A trial counts 36 records in 36 numbers."""
    monkeypatch.setattr(f"dpaudit.pipeline.batch_rate.{limit}", most)
    rate = counted_rate(of_48_records("fixed"))
    assert rate == (1.0, 1.0, 1.0, 36 * trials)


@pytest.mark.parametrize("rate", [None, Metric(value=0.0, low=0.0, high=0.1)])
def test_without_a_measured_rate_the_declared_one_stands(rate: Metric | None) -> None:
    metrics = {} if rate is None else {Name.SAMPLING_RATE: rate}
    records = RECORDS.model_copy(update={"metrics": metrics})
    evidence = list(enumerate((*without(RECORDS), records)))
    found = epsilon_range(CLAIM, evidence, 0.25, held=True)
    assert found is not None
    less = RELEASE.model_copy(update={"noise_multiplier": 1.8})  # the noise's lower end
    assert found.measured == epsilon([less], 1e-5).high


def of_program(*evidence: Finding) -> dict[str, tuple[str, str]]:
    """Status and sentence of each premise of a captured program."""
    measured = finding(Role.MEASURED, interval(inf), attack="captured", claim=0, notes=("m",))
    found = premises(CLAIM, list(enumerate((measured, *evidence))))
    return {p.name: (p.status, p.says) for p in found}


def test_premises_of_a_program_say_what_is_missing() -> None:
    nothing, aligned = (
        ("not examined", "it was not looked at"),
        ("not examined", "no alignment of "),
    )
    found = of_program()
    assert {found[name] for name in ("distance", "noise", "records", "state")} == {nothing}
    assert found["composition"][1].startswith(aligned[1])
    noise = NOISE.model_copy(update={"notes": ("n",)})
    assert of_program(noise)["noise"] == ("examined", "n")
    unlike = noise.model_copy(update={"metrics": {Name.P_VALUE: Metric(value=0.5)}})
    said = ("not examined", "how large the noise is was not measured")
    assert of_program(unlike)["noise"] == said
    state = STATE.model_copy(update={"notes": ("s",)})  # needs no noise and no alignment
    assert of_program(state)["state"] == ("examined", "s")
    left_out = state.model_copy(update={"not_examined": ("x",)})
    assert of_program(left_out)["state"] == ("not examined", "x")
    against = state.model_copy(update={"verdict": Verdict.UNSUPPORTED, "title": "t"})
    assert of_program(against)["state"] == ("failed", "t")


def test_noise_that_draws_do_not_explain_is_no_premise() -> None:
    other = {Name.NOISE_OVER_DECLARED: Metric(value=30.0, low=29.0, high=31.0)}
    louder = NOISE.model_copy(update={"metrics": {**NOISE.metrics, **other}})
    assert missing(*without(NOISE), louder) == ["noise"]
    assert missing(*without(NOISE), louder, ALIGNED) == ["noise"]
