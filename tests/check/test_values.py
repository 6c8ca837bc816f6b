"""Values on which a check decides, one by one: texts of figures, limits, keys, ledgers, seeds."""

import os
from math import inf, log
from pathlib import Path
from typing import Any

import pytest

from dpaudit.check import baseline, cache
from dpaudit.check.baseline import Baseline, check_baseline
from dpaudit.check.cache import AuditCache, Seal, machine_key
from dpaudit.check.evidence import (
    AccumulatedEvidence,
    History,
    accumulated,
    by_history,
    merged,
    settled,
)
from dpaudit.check.ledgers import DeclaredLedger, declared
from dpaudit.check.statements import (
    _interval,
    _is,
    _p_of_limit,
    _speakers,
    _value,
    beside_baseline,
    statements,
)
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.claims_file import Claims, ClaimsFile, LedgerClaim, Threshold, ThresholdSubject
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.ledger_file import Budget
from dpaudit.files.verdict import Verdict
from dpaudit.ledger import event, laplace
from dpaudit.ledger import open as open_ledger
from dpaudit.statistics.bounds import mu_p_value

from .test_evidence import stake
from .test_statements import GOLDEN, audit_of, empirical, file_of, ssim


@pytest.mark.parametrize(
    "metric, interval, value",
    [
        (Metric(value=1.5), "no interval", "1.5"),
        (Metric(value=1.5, n=3), "no interval, n = 3", "1.5"),
        (Metric(value=1.5, low=1.0), "no interval", "1.5"),
        (Metric(value=1.5, high=2.0), "no interval", "1.5"),
        (Metric(value=1.5, low=1.0, high=2.0), "1 to 2", "1.5 (1 to 2)"),
        (Metric(value=1.5, low=1.0, high=2.0, n=3), "1 to 2, n = 3", "1.5 (1 to 2, n = 3)"),
        (Metric(value=1.5, low=1.5, high=1.5), "1.5 to 1.5", "1.5"),
        (Metric(value=1.5, low=1.5, high=1.5, n=3), "1.5 to 1.5, n = 3", "1.5 (1.5 to 1.5, n = 3)"),
    ],
)
def test_a_figure_is_written_with_its_interval(metric: Metric, interval: str, value: str) -> None:
    assert (_interval(metric), _value(metric), _is(metric)) == (interval, value, f"is {value}")


def test_a_figure_without_an_end_says_so() -> None:
    assert _is(Metric(value=inf)) == "has no upper end"


COUNTS = {
    Name.FALSE_POSITIVES: Metric(value=40, n=1000),
    Name.FALSE_NEGATIVES: Metric(value=300, n=1000),
    Name.DELTA: Metric(value=1e-5),
    Name.CONFIDENCE: Metric(value=0.9),
}


def p_of_limit(counts: dict[str, Metric], limit: float = 1.5, **metric: Any) -> float:
    given = {"value": 1.9, "n": 2000} | metric
    bound = Metric(**given)
    threshold = Threshold.model_validate({"metric": Name.EPSILON_LOWER_BOUND, "at_most": limit})
    subject = ThresholdSubject("empirical-epsilon", {**counts, threshold.metric: bound})
    return _p_of_limit(threshold, subject, bound, limit, "above")


def test_a_bound_beyond_a_limit_has_the_p_value_of_its_counts() -> None:
    assert p_of_limit(COUNTS) < 1e-6
    for missing in (Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES, Name.DELTA):
        fewer = {name: metric for name, metric in COUNTS.items() if name != missing}
        assert p_of_limit(fewer) == pytest.approx(0.1)
    for name in (Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES):
        assert p_of_limit({**COUNTS, name: Metric(value=40)}) == pytest.approx(0.1)
    assert p_of_limit({}) == pytest.approx(0.05)
    assert p_of_limit(COUNTS, limit=1.9) == p_of_limit({}, limit=2.0) == 1.0
    assert p_of_limit(COUNTS, n=None) == p_of_limit(COUNTS)
    assert p_of_limit({}, n=None) == pytest.approx(0.05)  # no certified bound is an exact number


def test_a_bound_on_mu_beyond_a_limit_has_a_p_value_of_mu() -> None:
    """Counts that refute mu 2.0 speak less of a limit of 2.0 on epsilon."""
    names = Name.MU_LOWER_BOUND, Name.EPSILON_OF_DECLARED_SHAPE, Name.MU_OF_WHOLE_CURVE

    def p_of(name: Name, counts: dict[str, Metric]) -> float:
        bound = Metric(value=2.1)
        threshold = Threshold.model_validate({"metric": name, "at_most": 2.0})
        subject = ThresholdSubject("empirical-epsilon", {**counts, name: bound})
        return _p_of_limit(threshold, subject, bound, 2.0, "above")

    assert p_of(names[0], COUNTS) == mu_p_value(40, 300, 1000, 1000, 2.0)
    assert p_of(names[1], COUNTS) == p_of(names[2], COUNTS) == pytest.approx(0.1)
    assert [p_of(name, {}) for name in names] == pytest.approx([0.05] * 3)


def test_wealth_is_written_as_far_as_floats_reach() -> None:
    """The exponential of 710 is beyond them."""
    file = file_of({"metric": "epsilon", "at_most": 100.0, "kind": "accounting"})
    [speaker] = _speakers(file, {"c": audit_of(Verdict.NOT_REFUTED)})
    history = History("c", "config", "claim", "attack")
    for log_wealth, said in ((log(20.0), "20, p = 0.05"), (1e300, "1.01e+304, p = 0")):
        found = speaker.together(history, AccumulatedEvidence(2, log_wealth))
        assert found.statement.message.endswith(f"reached a wealth of {said}")


def test_a_void_figure_is_said_with_its_least_value() -> None:
    for low, said in ((None, ""), (0.0, ""), (0.25, " (at least 0.25)"), (inf, "")):
        metric = Metric(value=inf, low=low, high=inf)
        finding = Finding(
            role=Role.DECLARED, kind="accounting", title="t", metrics={"epsilon": metric}, void="x"
        )
        limit = {"metric": "epsilon", "at_most": 100.0, "kind": "accounting"}
        found = statements(file_of(limit), {"c": audit_of(Verdict.UNSUPPORTED, finding)})[1]
        assert found.message.endswith(f"is broken: its figure is void, because x{said}")


def test_what_got_worse_is_said_of_its_own_check_alone() -> None:
    before, now = (audit_of(Verdict.NOT_REFUTED, ssim(s, 0.01)) for s in (0.2, 0.9))
    old = Baseline(checks={name: check_baseline({}, before) for name in ("a", "b")})
    said = beside_baseline(file_of(names=("a", "b")), {"a": before, "b": now}, old, "content")
    assert [(s.check, s.outcome, s.verdict) for s in said] == [
        ("a", "holds", "not worse"),
        ("b", "fails", "worse"),
    ]
    assert "adjusted p = " in said[1].message
    assert f"level {old.ledger.level('content'):.2g}" in said[1].message
    assert "it is 0.9 (0.89 to 0.91, n = 8) and was 0.2 (0.19 to 0.21, n = 8)" in said[1].message


def test_a_claim_without_a_code_and_one_at_its_level() -> None:
    """Significance is inclusive; a p-value at it rejects, whatever 1 - 0.95 is in binary."""
    found = audit_of(Verdict.REFUTED, empirical(1 - 0.95), confidence=0.95, codes=())
    (said,) = statements(file_of(significance=0.05), {"c": found})
    assert (said.outcome, said.code) == ("fails", "DPA134")
    found = audit_of(Verdict.REFUTED, empirical(0.0501), confidence=0.95)
    assert statements(file_of(significance=0.05), {"c": found})[0].outcome == "warning"


def test_evidence_below_a_wealth_of_one_is_none() -> None:
    assert AccumulatedEvidence(1, -3.0).p == 1.0
    assert AccumulatedEvidence(1, 0.5).p == pytest.approx(0.60653066)
    one, other = stake(1, -3.0), stake(1, 2.0, claim="another; against e")
    assert accumulated([], one.history) == (0, 0.0)
    assert accumulated([stake(1, 2.0), stake(2, -1.0)], one.history) == (2, 2.0)
    assert [s.settled for s in settled([one, other], [one.history])] == [True, False]
    assert by_history([one, other, one]) == {one.history: [one, one], other.history: [other]}
    assert merged([one, stake(1, 9.0), other]) == (one, other)


def held(epsilon: float, budget: dict[str, Any] | None = None, **claim: Any) -> DeclaredLedger:
    fields = {"epsilon": 2.0, "delta": 1e-5}
    stated = {"name": "loop", "file": "ledger.jsonl", **fields, **claim}
    asked = Budget.model_validate(fields | (budget or {}))
    return DeclaredLedger(LedgerClaim.model_validate(stated), 3, asked, 40, epsilon, False)


@pytest.mark.parametrize(
    "epsilon, budget, claim, outcome, code",
    [
        (2.0, {}, {}, "holds", "DPA143"),
        (2.0 + 1e-9, {}, {}, "holds", "DPA143"),
        (2.0 + 1e-8, {}, {}, "fails", "DPA143"),
        (1.0, {"epsilon": 2.1}, {}, "warning", "DPA144"),
        (1.0, {"delta": 2e-5}, {}, "warning", "DPA144"),
        (1.0, {"epsilon": 1.9, "delta": 9e-6}, {}, "holds", "DPA143"),
        (1.0, {"adjacency": "replace-one"}, {}, "fails", "DPA143"),
        (1.0, {"adjacency": "replace-one"}, {"adjacency": "replace-one"}, "holds", "DPA143"),
    ],
)
def test_a_ledger_holds_within_the_claim_and_its_budget(
    epsilon, budget, claim, outcome, code
) -> None:
    said = held(epsilon, budget, **claim).statement
    assert (said.outcome, said.code, said.line) == (outcome, code, 3)
    assert f"40 declared releases add up to epsilon {epsilon:.4g} at delta 1e-05" in said.message


def test_a_ledger_beside_its_baseline_is_worse_above_rounding() -> None:
    before = held(1.0).baseline
    assert before.metrics == {Name.EPSILON: Metric(value=1.0)}
    outcomes = [held(e).beside(before).outcome for e in (0.9, 1.0 + 5e-10, 1.0 + 5e-9)]
    assert outcomes == ["holds", "holds", "fails"]
    kept = Baseline(checks={"loop": before})
    checked = held(1.5).checked(kept)
    assert (checked.name, checked.line, checked.seconds, checked.cached) == ("loop", 3, 0.0, False)
    (figure,) = checked.figures
    assert figure.before is not None
    assert (figure.now.value, figure.before.value) == (1.5, 1.0)
    for none in (None, Baseline(checks={"other": before})):
        assert held(1.5).checked(none).figures[0].before is None


def test_a_ledger_counts_each_release_and_the_worst_agent(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.jsonl", epsilon=2.0) as budget:
        budget.release(laplace(10.0), count=3)
        budget.release(event(0.25), count=2, agent="a")
    own = {"name": "loop", "file": "ledger.jsonl", "epsilon": 2.0, "delta": 0.0}
    claims = Claims.model_validate({"ledger": [own]})
    found = declared(ClaimsFile(tmp_path / "claims.toml", "", claims), 0)
    assert found.releases == 4
    assert found.epsilon == pytest.approx(0.3 + 0.5)
    assert "cut off" not in found.statement.message
    with (tmp_path / "ledger.jsonl").open("a") as written:
        written.write('{"event": {"eps')
    torn = declared(ClaimsFile(tmp_path / "claims.toml", "", claims), 0)
    assert (torn.releases, torn.epsilon) == (found.releases, found.epsilon)
    assert "But its last line is cut off and does not count" in torn.statement.message
    absent = ClaimsFile(
        tmp_path / "claims.toml", "", Claims.model_validate({"ledger": [own | {"file": "a"}]})
    )
    with pytest.raises(RunError, match="No such file"):
        declared(absent, 0)


def test_a_hash_of_a_config_and_labels_of_metrics() -> None:
    assert len(baseline.config_hash({"data": {"path": "a"}})) == 16
    finding = Finding(
        role=Role.RECONSTRUCTION,
        kind="reconstruction",
        title="t",
        message="x",
        threat_model="e",
        claim=0,
        rounds=(1, 3),
        batch_size=2,
        metrics={"psnr": Metric(value=1.0)},
    )

    def label(found: Finding) -> str:
        return baseline._label(found, "psnr", {0: "ours"})

    assert label(finding) == "reconstruction | ours | x | e | round 1,3 | batch 2 | psnr"
    plain = finding.model_copy(update={"rounds": (), "batch_size": None, "attack": "a"})
    assert label(plain) == "reconstruction | a | x | e | psnr"
    thrice = GOLDEN.model_copy(update={"findings": (finding, finding, finding), "claims": ()})
    labels = [key.label.partition(" (")[2] for key in baseline.key_metrics(thrice)]
    assert labels == ["", "2)", "3)"]


@pytest.mark.parametrize(
    "metric, known",
    [
        (Metric(value=1.0, n=2, standard_error=0.1), True),
        (Metric(value=1.0, n=1, standard_error=0.1), False),
        (Metric(value=1.0, n=2, low=0.5, high=1.5), True),
        (Metric(value=1.0, n=2, low=0.5), False),
        (Metric(value=1.0, n=2), False),
        (Metric(value=1.0, low=0.5, high=1.5), False),
    ],
)
def test_an_error_is_known_of_two_cases_or_more(metric: Metric, known: bool) -> None:
    assert baseline._has_error(metric) is known


def test_the_folder_of_a_cache_is_no_part_of_a_commit(
    tmp_path: Path,
) -> None:
    AuditCache(tmp_path / "a" / "b", Seal("k" * 32))
    assert (tmp_path / "a" / "b" / ".gitignore").read_text() == "*\n"
    (tmp_path / "a" / "b" / ".gitignore").write_text("mine")
    found = AuditCache(tmp_path / "a" / "b", Seal("k" * 32))
    assert (found.path / ".gitignore").read_text() == "mine"
    partial = found.partial("key")
    assert partial.name == f"{found.seal.of('partial', 'key')[:32]}.partial"
    assert partial != AuditCache(found.path, Seal("l" * 32)).partial("key")


def test_files_of_an_entry_are_sealed_in_their_order(tmp_path: Path, monkeypatch) -> None:
    for name in ("c", "a", "b"):
        (tmp_path / name).touch()
    listed = [tmp_path / name for name in ("c", "a", "b")]
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(listed))
    assert [path.name for path in cache._files(tmp_path)] == ["a", "b", "c"]


def test_of_a_link_to_a_folder_the_link_is_removed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for path in (tmp_path / "link", tmp_path / "absent"):
        cache._remove(path)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_key_is_that_of_the_variable_or_a_file_of_ones_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for given in ("k" * 32, "k" * 40):
        monkeypatch.setenv(cache.VARIABLE, given)
        assert machine_key() == given
    monkeypatch.setenv(cache.VARIABLE, "k" * 31)
    with pytest.raises(ConfigError, match="at least 32 characters, got 31"):
        machine_key()
    monkeypatch.setenv(cache.VARIABLE, "")
    key, path = machine_key(), tmp_path / "dpaudit" / "cache-key"
    assert len(key) == 64
    assert machine_key() == key == path.read_text()
    own = os.geteuid()
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: own + 1)
        with pytest.raises(RunError, match="that nobody else can read or write"):
            machine_key()
    for text, is_key in (("k" * 32, True), ("k" * 31, False)):
        path.write_text(text)
        if is_key:
            assert machine_key() == text
        else:
            with pytest.raises(RunError, match="not a key"):
                machine_key()
