"""What changed since a baseline: keys of audits are named, and looser limits are said."""

from datetime import date
from math import inf
from typing import Any

import pytest

from dpaudit.check.baseline import Baseline, config_hash
from dpaudit.check.changes import changes, kept, loosened
from dpaudit.files.claims_file import Check, Threshold
from tests.check.stub_audits import CLAIMS, check

MOST, LEAST = {"metric": "ssim", "at_most": 0.5}, {"metric": "psnr", "at_least": 10.0}


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 2, "c": 2}}, ["a.b: it was 1 and is 2"]),
        ({"a": 1}, {}, ["a: it was 1 and is absent"]),
        ({}, {"a": {"b": "x"}}, ['a: it was absent and is {"b": "x"}']),
        ({"a": [{"b": 1}, 2]}, {"a": [{"b": 3}, 2]}, ["a.0.b: it was 1 and is 3"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a: it was [1] and is [1, 2]"]),
        ({"a": True}, {"a": 1}, ["a: it was true and is 1"]),
        ({"a": "x" * 99}, {"a": 1}, [f'a: it was "{"x" * 56}... and is 1']),
    ],
)
def test_keys_that_differ_are_named(before: Any, now: Any, found: list[str]) -> None:
    said = [f"{'.'.join(map(str, one.key))}: {one.sentence}" for one in changes(before, now)]
    assert said == found


def test_what_is_kept_of_an_audit_is_json() -> None:
    audit = {"seed": 1, "data": {"path": "/a/b.npz"}, "d": date(2026, 1, 2), "e": [inf]}
    assert kept(audit) == {"data": {"path": "b.npz"}, "d": "2026-01-02", "e": ["inf"]}
    assert config_hash(audit) == config_hash({**audit, "seed": 2, "data": {"path": "b.npz"}})


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ([MOST, LEAST], [LEAST, MOST], []),
        ([MOST], [{**MOST, "at_most": 0.4}], []),
        (
            [MOST],
            [{**MOST, "at_most": 0.6}],
            ['the baseline has the limit "ssim at most 0.5", which is 0.6 now'],
        ),
        ([LEAST], [{**LEAST, "at_least": 11.0}], []),
        (
            [LEAST],
            [{**LEAST, "at_least": 9.0}],
            ['the baseline has the limit "psnr at least 10", which is 9 now'],
        ),
        ([MOST, LEAST], [MOST], ['the baseline has the limit "psnr at least 10", which is gone']),
        (
            [MOST],
            [{"metric": "ssim", "at_least": 0.5}],
            ['the baseline has the limit "ssim at most 0.5", which is gone'],
        ),
        (
            [MOST],
            [{**MOST, "round": 3}],
            ['the baseline has the limit "ssim at most 0.5", which is gone'],
        ),
        (
            [{**MOST, "round": 3}],
            [MOST],
            ['the baseline has the limit "ssim, round 3 at most 0.5", which is gone'],
        ),
        ([MOST], [{**MOST, "at_most": 0.9}, MOST], []),
        (
            [{**MOST, "at_most": "claim"}],
            [MOST],
            ['the baseline has the limit "ssim at most claim", which is 0.5 now'],
        ),
        ([], [MOST], []),
    ],
)
def test_looser_limits_are_found(before: Any, now: Any, found: list[str]) -> None:
    limits = tuple(map(Threshold.model_validate, before))
    own = Check(name="c", audit={}, threshold=tuple(map(Threshold.model_validate, now)))
    assert [one.sentence for one in loosened(limits, 0.05, own)] == found


@pytest.mark.parametrize(("before", "is_said"), [(None, False), (0.01, False), (0.1, True)])
def test_a_smaller_significance_is_a_looser_limit(before: float | None, is_said: bool) -> None:
    found = list(loosened((), before, Check(name="c", audit={})))
    assert bool(found) is is_said
    assert all('"significance 0.1", which is 0.05 now' in one.sentence for one in found)


def test_a_looser_limit_is_a_warning_of_its_line(folder) -> None:
    code = check(folder, "--update-baseline")[0]
    assert "DPA145" not in check(folder)[1]
    (folder / "claims.toml").write_text(CLAIMS.replace("at_most = 0.9", "at_most = 0.95"))
    again, out, _ = check(folder)
    assert (again, 'the baseline has the limit "ssim at most 0.9", which is 0.95 now' in out) == (
        code,
        True,
    )
    [line] = [line for line in out.splitlines() if "DPA145" in line]
    assert "WARNING" in line.upper()
    (folder / "claims.toml").write_text(CLAIMS.split("[[check.threshold]]")[0])
    assert 'the baseline has the limit "ssim at most 0.9", which is gone' in check(folder)[1]


def test_an_older_baseline_names_no_key(folder) -> None:
    check(folder, "--update-baseline")
    file = folder / "baseline.json"
    baseline = Baseline.read(file)
    older = {"written": None, "limits": None, "significance": None}
    checks = {name: one.model_copy(update=older) for name, one in baseline.checks.items()}
    baseline.model_copy(update={"checks": checks}).write(file)
    (folder / "claims.toml").write_text(CLAIMS.replace("at_most = 0.9", "at_most = 0.95"))
    assert "DPA145" not in check(folder)[1]
    (folder / "claims.toml").write_text(CLAIMS.replace("mine:Mine", "mine:Other"))
    assert 'check "first" was made from another config; if' in check(folder)[2]
