"""Every way to get a claims file wrong, and the one line that is said about it."""

from pathlib import Path
from typing import Any

import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.claims_file import (
    CheckReport,
    Claims,
    ClaimsFile,
    KeyFigure,
    LedgerClaim,
    Statement,
    Threshold,
    ThresholdSubject,
)
from dpaudit.files.documents import line_of
from dpaudit.files.finding import Metric

VALID = """\
import_from = "code"

[[check]]
name = "by path"
audit = "audit.toml"
seconds = 60
significance = 0.01

[[check.threshold]]
metric = "psnr"
at_most = 12.0
kind = "reconstruction"
round = 20

[[check.threshold]]
metric = "epsilon lower bound"
at_most = "claim"

[[check]]
name = "inline"

[check.audit]
seed = 3

[check.audit.defense]
name = "dpdl"

[[check.threshold]]
metric = "ssim"
at_least = 0.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "audit.toml").touch()
    (tmp_path / "code").mkdir()
    return tmp_path


def said(folder: Path, text: str) -> list[str]:
    path = folder / "claims.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        ClaimsFile.read(path)
    return [line.removeprefix(f"{folder}/") for line in str(error.value).splitlines()]


def test_a_claims_file_names_audits_by_path_or_holds_them(folder: Path) -> None:
    (folder / "claims.toml").write_text(VALID)
    claims = ClaimsFile.read(folder / "claims.toml").claims
    assert [check.name for check in claims.check] == ["by path", "inline"]
    assert [len(check.threshold) for check in claims.check] == [2, 1]
    assert claims.check[0].threshold[1].at_most == "claim"
    assert claims.check[1].audit == {"seed": 3, "defense": {"name": "dpdl"}}
    assert (claims.check[1].seconds, claims.check[1].significance) == (600.0, 0.05)


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ('name = "inline"', 'name = "by path"',
         'claims.toml:20: check[2].name: another check is called "by path"'),
        ('audit = "audit.toml"', 'audit = "audti.toml"',
         'claims.toml:5: check[1].audit: there is no file "audti.toml" (did you mean "audit.toml"?)'),
        ("seconds = 60", "second = 60",
         'claims.toml:6: check[1].second: unknown key (did you mean "seconds"?); known here: name, '
         "audit, seconds, significance, fresh_seed, threshold"),
        ("seconds = 60", "seconds = 1",
         "claims.toml:6: check[1].seconds: Input should be greater than or equal to 5, got 1"),
        ("significance = 0.01", "significance = 0.5",
         "claims.toml:7: check[1].significance: Input should be less than 0.5, got 0.5"),
        ("at_most = 12.0\n", 'at_most = "x"\n',
         "claims.toml:11: check[1].threshold[1].at_most: Input should be a valid number, or "
         "'claim', got 'x'"),
        ("at_most = 12.0\n", "at_most = 12.0\nat_least = 1.0\n",
         "claims.toml:9: check[1].threshold[1]: give either at_most or at_least"),
        ("at_least = 0.0", "atleast = 0.0",
         'claims.toml:30: check[2].threshold[1].atleast: unknown key (did you mean "at_least"?); '),
        ('kind = "reconstruction"', 'kind = "reconstrucion"', "claims.toml:12: check[1].threshold[1].kind: "),
        ('"code"', '"cod"', 'claims.toml:1: import_from: there is no folder "cod"'),
        ('name = "inline"\n', 'name = "inline"\n[[ledger]]\nname = "inline"\nfile = "audit.toml"\n'
         "epsilon = 1\n", 'claims.toml:22: ledger[1].name: another check is called "inline"'),
        ('name = "inline"\n', 'name = "inline"\n[[ledger]]\nname = "l"\nfile = "l.jsonl"\n'
         "epsilon = 1\n", 'claims.toml:23: ledger[1].file: there is no file "l.jsonl"'),
        ("import_from", "importfrom",
         'claims.toml:1: importfrom: unknown key (did you mean "import_from"?)'),
        ('name = "inline"', "name = ", "claims.toml: not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_line_and_key(folder, old, new, expected) -> None:
    assert old in VALID
    lines = said(folder, VALID.replace(old, new, 1))
    assert lines[0].startswith(expected), lines


def test_a_missing_file_and_a_file_without_checks_are_one_line(folder: Path) -> None:
    with pytest.raises(ConfigError, match="absent.toml: No such file or directory"):
        ClaimsFile.read(folder / "absent.toml")
    for nothing in ("", "check = []"):
        assert said(folder, nothing) == [
            "claims.toml: expected at least one [[check]] or [[ledger]]"
        ]


def test_a_threshold_is_about_controls_only_when_asked() -> None:
    def finding(**fields: Any) -> ThresholdSubject:
        return ThresholdSubject(**{"kind": "reconstruction", "metrics": {}, **fields})

    threshold = Threshold(metric="psnr", at_most=1.0, round=20)
    assert threshold.selects(finding(world="defense", rounds=(10, 20)))
    assert not threshold.selects(finding(world="no-defense", rounds=(20,)))
    assert not threshold.selects(finding(world="defense", rounds=(10,)))
    for field, value in {
        "batch_size": 4,
        "attack": "a",
        "message": "x",
        "threat_model": "t",
    }.items():
        own = threshold.model_copy(update={field: value, "round": None})
        assert own.selects(finding(**{field: value}))
        assert not own.selects(finding())
    bound = Threshold(metric="epsilon lower bound", at_most="claim")
    assert bound.selects(finding(kind="empirical-epsilon"))
    assert not bound.selects(finding(kind="control"))
    assert bound.model_copy(update={"kind": "control"}).selects(finding(kind="control"))


def test_lines_of_nested_tables_are_found() -> None:
    assert line_of(VALID, ("check", 0, "threshold", 1, "at_most")) == 17
    assert line_of(VALID, ("check", 1, "audit", "defense", "name")) == 26
    assert line_of(VALID, ("check", 1, "threshold", 0, "metric")) == 29
    assert line_of(VALID, ("check", 1, "audit", "graph")) == 22


def test_a_ledger_alone_is_something_claimed(folder: Path) -> None:
    ledger = LedgerClaim(name="l", file="audit.toml", epsilon=2.0, delta=1e-5)
    assert ledger.sentence == "(2, 1e-05)-DP of all declared releases, add-remove adjacency"
    claims = Claims(ledger=(ledger,))
    file = ClaimsFile(folder / "claims.toml", VALID, claims)
    assert file.folder == folder
    assert [file.line(key) for key in (("check", 1, "name"), ("absent",))] == [20, 1]


def test_a_figure_is_named_by_its_metric_and_then_what_it_is_of() -> None:
    named = {"a | agent 3 | psnr": "psnr of a, agent 3", "psnr": "psnr"}
    for label, name in named.items():
        assert KeyFigure(label=label, now=Metric(value=1.0), before=None).name == name


@pytest.mark.parametrize(
    "outcomes, code, strictly",
    [
        ((), 0, 0),
        (("holds", "holds"), 0, 0),
        (("holds", "warning"), 0, 1),
        (("holds", "fails"), 1, 1),
        (("fails", "error"), 2, 2),
    ],
)
def test_the_worst_outcome_is_the_exit_code(outcomes, code: int, strictly: int) -> None:
    words = dict.fromkeys(("check", "subject", "adversary", "verdict", "message", "code"), "")
    statements = tuple(
        Statement(about="claim", outcome=outcome, line=1, **words) for outcome in outcomes
    )
    report = CheckReport(claims_file="c", version="1", checks=(), statements=statements)
    assert (report.exit_code(), report.exit_code(strict=True)) == (code, strictly)
