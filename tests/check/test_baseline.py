"""The baseline: never a false alarm on noise, always one on a real worsening, never half-written."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, t

from dpaudit.attack.figures import information_metrics
from dpaudit.attack.membership_rates import rate
from dpaudit.check.baseline import (
    ALPHA,
    Baseline,
    Contents,
    check_baseline,
    compare,
    config_hash,
    key_metrics,
    not_compared,
)
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.finding import Finding, Metric, Role
from dpaudit.files.result import AuditResult, EpsilonRange
from dpaudit.information.mnmi import maximum_information
from dpaudit.statistics.bounds import bound_error, epsilon_lower_bound, from_scores
from dpaudit.statistics.p_values import p_worse

GOLDEN = AuditResult.read(Path(__file__).parents[1] / "golden" / "audit.json")
FALSE_FAILURE = 1e-9
EMPTY = Contents()
AUDIT = {"seed": 1, "data": {"path": "/somewhere/my.npz"}, "defense": {"name": "dpdl"}}


def result(scores: np.ndarray) -> AuditResult:
    """An audit whose reconstructions have these SSIMs [n_metrics, n], with 95% t intervals."""
    n = scores.shape[1]
    half = t.isf(0.025, n - 1) * scores.std(axis=1, ddof=1) / math.sqrt(n)
    findings = tuple(
        Finding(
            role=Role.RECONSTRUCTION,
            kind="reconstruction",
            title=f"a{i}",
            attack=f"a{i}",
            metrics={"ssim": Metric(value=mean, low=mean - h, high=mean + h, n=n)},
        )
        for i, (mean, h) in enumerate(zip(scores.mean(axis=1), half, strict=True))
    )
    return GOLDEN.model_copy(update={"findings": findings, "claims": ()})


def drawn(rng: np.random.Generator, n_metrics: int, n: int, mean: float = 0.2) -> AuditResult:
    """Correlated scores of n targets, as of several attacks on the same ones."""
    return result(mean + rng.normal(0, 0.03, n) + rng.normal(0, 0.1, (n_metrics, n)))


def baseline_of(found: AuditResult, ledger: Contents = EMPTY) -> Baseline:
    return Baseline(checks={"c": check_baseline(AUDIT, found)}, ledger=ledger)


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_unchanged_code_cries_wolf_in_one_of_200_checks(n: int) -> None:
    """At place 1 of the ledger, which spends most; fails wrongly with probability 1e-9."""
    rng, checks = np.random.default_rng(20240611), 1_000 if n > 4 else 500
    alarms = 0
    for _ in range(checks):
        before, now = drawn(rng, 24, n), drawn(rng, 24, n)
        worse, compared = compare(baseline_of(before), {"c": now}, "new content")
        assert compared == 24
        alarms += bool(worse)
    assert alarms <= binom.isf(FALSE_FAILURE, checks, ALPHA)


@pytest.mark.slow
def test_a_whole_history_cries_wolf_at_most_once_in_200() -> None:
    """30 contents against one baseline, 4 metrics; fails wrongly with probability 1e-9."""
    rng, histories, alarms = np.random.default_rng(5), 200, 0
    for _ in range(histories):
        baseline = baseline_of(drawn(rng, 4, 8))
        alarm = False
        for commit in range(30):
            content = str(commit)
            worse, _ = compare(baseline, {"c": drawn(rng, 4, 8)}, content)
            alarm |= bool(worse)
            ledger = baseline.ledger.with_([content])
            baseline = baseline.model_copy(update={"ledger": ledger})
        alarms += alarm
    assert alarms <= binom.isf(FALSE_FAILURE, histories, ALPHA)


def test_a_real_worsening_is_seen() -> None:
    """SSIM 0.2 to 0.6 at 8 targets of standard deviation 0.1 is 8 standard errors."""
    rng = np.random.default_rng(6)
    seen = 0
    for _ in range(50):
        baseline = baseline_of(drawn(rng, 6, 8), Contents(contents=("first",)))
        worse, _ = compare(baseline, {"c": drawn(rng, 6, 8, mean=0.6)}, "second")
        seen += bool(worse)
    assert seen >= 40
    baseline = baseline_of(drawn(rng, 6, 8, mean=0.6))
    assert compare(baseline, {"c": drawn(rng, 6, 8)}, "better")[0] == []


def test_the_levels_of_all_places_sum_to_alpha() -> None:
    contents = [str(i) for i in range(2_000)]
    ledger = Contents(contents=tuple(contents))
    spent = sum(ledger.level(content) for content in contents)
    assert spent == pytest.approx(ALPHA, rel=1e-3)
    assert spent < ALPHA
    assert ledger.level("3") == pytest.approx(ALPHA * 6 / math.pi**2 / 16)
    assert ledger.with_(["3"]) == ledger
    assert ledger.with_(["new"]).place("new") == ledger.place("new") == 2_001


def test_identical_numbers_are_never_worse() -> None:
    assert compare(baseline_of(GOLDEN), {"c": GOLDEN}, "x")[0] == []
    assert compare(baseline_of(GOLDEN), {"c": GOLDEN}, "x")[1] > 10


def accounted(value: float, seed: int) -> AuditResult:
    finding = Finding(
        role=Role.DECLARED,
        kind="accounting",
        title="declared",
        claim=0,
        threat_model="eavesdropper",
        metrics={"epsilon": Metric(value=value, low=value, high=value)},
    )
    provenance = GOLDEN.provenance.model_copy(update={"seed": seed})
    return GOLDEN.model_copy(update={"findings": (finding,), "provenance": provenance})


def test_exact_accounting_is_asked_for_at_the_same_seed_alone() -> None:
    old = check_baseline(AUDIT, accounted(2.0, seed=1))
    without = old.model_copy(update={"metrics": {}})
    assert not_compared(without, accounted(2.0, seed=1)) == [*old.metrics]
    assert not_compared(without, accounted(2.0, seed=2)) == []


def test_accounting_that_rises_is_worse_but_for_a_new_split() -> None:
    baseline = baseline_of(accounted(2.0, seed=1))
    [worse] = compare(baseline, {"c": accounted(2.1, seed=1)}, "x")[0]
    assert worse.label == "accounting | DPDL, Theorem 1 | eavesdropper | epsilon"
    assert compare(baseline, {"c": accounted(1.9, seed=1)}, "x")[0] == []
    assert compare(baseline, {"c": accounted(2.1, seed=2)}, "x") == ([], 0)


def test_key_metrics_are_of_the_defended_run_with_own_labels() -> None:
    keys = key_metrics(GOLDEN)
    assert len({key.label for key in keys}) == len(keys)
    assert not any("no-defense" in key.label or "control" in key.label for key in keys)
    twice = GOLDEN.findings[:1] * 2
    labels = [key.label for key in key_metrics(GOLDEN.model_copy(update={"findings": twice}))]
    assert any(label.endswith(" (2)") for label in labels)


def test_a_baseline_survives_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    written = baseline_of(GOLDEN, Contents(contents=("a",)))
    written.write(path)
    assert Baseline.read(path) == written
    text = path.read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert [p.name for p in tmp_path.iterdir()] == ["baseline.json"]


def test_a_baseline_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch) -> None:
    path = tmp_path / "baseline.json"
    baseline_of(GOLDEN).write(path)
    before = path.read_text()

    class Full(io.FileIO):
        def write(self, content: bytes) -> int:
            super().write(content[: len(content) // 2])
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode: Full(path, mode.replace("b", "")))
        with pytest.raises(RunError, match=r"baseline.json: cannot write: No space left on device"):
            baseline_of(GOLDEN, Contents(contents=("new",))).write(path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["baseline.json"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("{", "a baseline that is cut off"),
        (
            '{"schema_version": 3}',
            "schema_version 3, this dpaudit reads versions 1 and 2; write it",
        ),
        ('{"schema_version": 2}', "checks: Field required"),
        ('{"schema_version": 1}', "checks: Field required"),
        ("[]", "not a baseline (expected an object, found list)"),
    ],
)
def test_a_damaged_or_other_baseline_is_one_line(tmp_path, text, expected) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        Baseline.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_baseline_of_version_1_has_verdicts_and_no_ranges() -> None:
    old = Baseline.read(Path(__file__).parents[1] / "example_project" / "baseline.json")
    [check] = old.checks.values()
    assert (list(check.claims.values()), check.ranges) == (["not refuted"], {})


def test_a_baseline_remembers_the_range_of_each_claim(tmp_path) -> None:
    known = EpsilonRange(certified=0.5, accounted=2.0, measured=math.inf)
    claim = GOLDEN.claims[0].model_copy(update={"range": known})
    written = baseline_of(GOLDEN.model_copy(update={"claims": (claim, GOLDEN.claims[1])}))
    written.write(tmp_path / "baseline.json")
    assert [*Baseline.read(tmp_path / "baseline.json").checks["c"].ranges.values()] == [known]


def test_the_hash_of_a_config_leaves_out_seed_and_place() -> None:
    same = {"seed": 9, "data": {"path": "elsewhere/my.npz"}, "defense": {"name": "dpdl"}}
    assert config_hash(same) == config_hash(AUDIT)
    assert config_hash({**AUDIT, "data": {"path": "other.npz"}}) != config_hash(AUDIT)
    assert config_hash({**AUDIT, "defense": {"name": "dpps"}}) != config_hash(AUDIT)


def test_a_baseline_cannot_ask_for_another_level(tmp_path) -> None:
    path = tmp_path / "baseline.json"
    baseline_of(GOLDEN).write(path)
    path.write_text(path.read_text().replace(f'"alpha": {ALPHA}', '"alpha": 1e-300'))
    with pytest.raises(ConfigError, match=r"ledger.alpha: .*expected 0.005"):
        Baseline.read(path)


def test_what_a_baseline_or_a_result_leaves_out_is_named() -> None:
    rng = np.random.default_rng(1)
    whole = drawn(rng, 3, 8)
    old = check_baseline(AUDIT, whole)
    assert not_compared(old, whole) == []
    first, *others = old.metrics
    fewer = old.model_copy(update={"metrics": {label: old.metrics[label] for label in others}})
    assert not_compared(fewer, whole) == [first]
    less = whole.model_copy(update={"findings": whole.findings[1:]})
    assert not_compared(old, less) == [first]
    blurred = {**old.metrics, first: Metric(value=0.2, n=8)}
    assert not_compared(old.model_copy(update={"metrics": blurred}), whole) == [first]
    assert not_compared(check_baseline(AUDIT, GOLDEN), GOLDEN) == []


def certified(rng: np.random.Generator, mu: float, n: int = 1_000) -> AuditResult:
    """An audit whose test certifies a lower bound on the epsilon of a Gaussian, with its error."""
    scores = rng.normal(size=n), rng.normal(mu, size=n)
    found = from_scores(*scores, 1e-5, 0.05, (rng.normal(size=400), rng.normal(mu, size=400)))

    def bound(fp: np.ndarray, fn: np.ndarray) -> np.ndarray:
        return epsilon_lower_bound(fp, fn, n, n, 1e-5, 0.05)

    error = bound_error(found.fp, found.fn, n, n, bound)
    test = Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title="runs",
        attack="likelihood-ratio",
        metrics={
            "epsilon lower bound": Metric(value=found.value, n=2 * n, standard_error=error),
        },
    )
    return GOLDEN.model_copy(update={"findings": (test,), "claims": ()})


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_an_unmoved_bound_cries_wolf_in_1_of_200_at_most(
    mu: float,
) -> None:
    """Fails wrongly with probability 1e-9, of 400 checks at place 1 of the ledger."""
    rng, alarms = np.random.default_rng(12), 0
    for _ in range(400):
        worse, compared = compare(
            baseline_of(certified(rng, mu)), {"c": certified(rng, mu)}, "new content"
        )
        assert compared == 1
        alarms += bool(worse)
    assert alarms <= binom.isf(FALSE_FAILURE, 400, ALPHA)


def test_a_certified_bound_that_rose_beyond_its_error_is_worse() -> None:
    rng = np.random.default_rng(13)
    worse, _ = compare(baseline_of(certified(rng, 1.0)), {"c": certified(rng, 2.0)}, "new content")
    assert [w.label for w in worse] == [
        "empirical-epsilon | likelihood-ratio | epsilon lower bound"
    ]


def test_every_metric_of_the_file_counts_in_holms_method() -> None:
    """Of three metrics the smallest p-value counts three times, the next one twice."""
    rng = np.random.default_rng(14)
    before, now = drawn(rng, 3, 8), drawn(rng, 3, 8, mean=0.5)
    raw = sorted(
        p_worse(now.findings[i].metrics["ssim"], before.findings[i].metrics["ssim"], "above")
        for i in range(3)
    )
    worse, compared = compare(baseline_of(before), {"c": now}, "new content")
    adjusted = [3 * raw[0], max(3 * raw[0], 2 * raw[1]), max(3 * raw[0], 2 * raw[1], raw[2])]
    level = EMPTY.level("new content")
    assert compared == 3
    assert 2 * raw[1] < level  # so that Holm's factors decide nothing here but the numbers
    assert sorted(w.p for w in worse) == pytest.approx([p for p in adjusted if p <= level])


def test_a_void_figure_is_kept_without_its_ends() -> None:
    metric = Metric(value=math.inf, low=0.5, high=math.inf)
    declared = Finding(
        role=Role.DECLARED, kind="accounting", title="d", void="why", metrics={"epsilon": metric}
    )
    [key] = key_metrics(GOLDEN.model_copy(update={"findings": (declared,)}))
    assert (key.metric, key.exact) == (Metric(value=math.inf), True)


def informed(seed: int, n_splits: int = 20) -> AuditResult:
    """An audit of what a message tells of a number with the correlation 0.6, M-NMI with its error."""
    rng = np.random.default_rng(seed)
    private = rng.normal(size=(1, 200))
    view = 0.6 * private + 0.8 * rng.normal(size=(1, 200))
    found = maximum_information(private, view, rng, n_permutations=0, n_splits=n_splits)
    finding = Finding(
        role=Role.INFORMATION,
        kind="mutual-information",
        title="i",
        attack="mutual-information",
        metrics=information_metrics(found, shuffled=False),
    )
    return GOLDEN.model_copy(update={"findings": (finding,), "claims": ()})


def test_an_m_nmi_that_moved_within_its_error_is_not_worse() -> None:
    """It fails wrongly with probability 0.005 for each seed at most, and has these seeds."""
    results = [informed(seed) for seed in range(4)]
    values = [r.findings[0].metrics["m-nmi"] for r in results]
    assert all(m.low < m.value < m.high and m.n == 200 for m in values)
    assert max(m.value for m in values) > values[0].value
    for now in results:
        assert compare(baseline_of(results[0]), {"c": now}, "new content") == ([], 1)


def test_estimates_without_an_error_are_named_and_not_compared() -> None:
    """As of M-NMI in baselines that had none, or without splits of the trials."""
    with_error, without = informed(1), informed(2, n_splits=0)
    label = "mutual-information | mutual-information | m-nmi"
    old = check_baseline(AUDIT, with_error)
    bare = old.model_copy(update={"metrics": {label: Metric(value=0.0)}})
    assert compare(Baseline(checks={"c": bare}), {"c": with_error}, "x")[0] == []
    assert not_compared(bare, with_error) == not_compared(old, without) == [label]


@pytest.mark.parametrize(
    "role, kind, name",
    [
        (Role.TEXT_RECOVERY, "reconstruction", "tokens recovered"),
        (Role.TEXT_RECOVERY, "reconstruction", "sequences recovered"),
        (Role.MEMBERSHIP, "membership", "auc"),
        (Role.TOPOLOGY, "topology", "auc"),
    ],
)
def test_text_members_and_links_that_are_found_are_worse(role: Role, kind: Any, name: str) -> None:
    def found(hits: int) -> AuditResult:
        metric = rate(np.arange(40) < hits)
        finding = Finding(role=role, kind=kind, title="t", metrics={name: metric})
        return GOLDEN.model_copy(update={"findings": (finding,), "claims": ()})

    worse, compared = compare(baseline_of(found(20)), {"c": found(39)}, "new content")
    assert ([w.label for w in worse], compared) == ([f"{kind} | {name}"], 1)
    assert compare(baseline_of(found(20)), {"c": found(22)}, "new content") == ([], 1)
