"""What an audit.json says beside its figures has to agree with them, and with config.toml."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.commands.coherence import differing, flaws
from dpaudit.commands.reasons import REASONS

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
Content = dict[str, Any]


def of(name: str = "function") -> Content:
    content: Content = json.loads((GALLERY / name / "audit.json").read_text("utf-8"))
    return content


def where(content: Content, folder: Path = GALLERY) -> list[str]:
    return [flaw.where for flaw in flaws(content, folder)]


@pytest.mark.parametrize("name", [p.parent.name for p in sorted(GALLERY.glob("*/audit.json"))])
def test_results_of_the_gallery_agree_with_themselves(name: str) -> None:
    assert where(of(name)) == []


def test_the_rules_of_verdicts_have_these_reasons_and_no_others() -> None:
    rules = (ROOT / "dpaudit" / "pipeline" / "rules.py").read_text("utf-8")
    known = sorted(code for codes in REASONS.values() for code in codes)
    assert known == sorted({*re.findall(r'"(DPA\d{3})"', rules)})


def of_finding(role_of: str, **other: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        next(f for f in content["findings"] if f["role"] == role_of).update(other)

    return change


def of_claim(**other: Any) -> Callable[[Content], None]:
    return lambda content: content["claims"][0].update(other)


def curious(content: Content) -> None:
    content["config"]["threat_model"][0].update(kind="curious", agents=[0])


def premise_twice(content: Content) -> None:
    content["claims"][0]["premises"] *= 2


CHANGES: dict[str, tuple[Callable[[Content], None], str]] = {
    "code": (of_claim(codes=["DPA104"]), "claims.codes"),
    "evidence twice": (of_claim(because=[0, 1, 1]), "claims.because"),
    "premise twice": (premise_twice, "claims.premises"),
    "claim of a finding": (of_finding("measured", claim=1), "findings[0]"),
    "verdict of a finding": (of_finding("measured", verdict="supported"), "findings[0]"),
    "a test called void": (of_finding("test", void="so it is said"), "findings[1]"),
    "world of a control": (of_finding("null-control", world="no-defense"), "findings[2]"),
    "role of a control": (of_finding("null-control", role="positive-control"), "findings[2]"),
    "agents": (curious, "adversaries"),
    "no adversary": (lambda content: content.update(threat_models=[]), "adversaries"),
    "other sentences": (lambda content: content.update(adversaries={}), "adversaries"),
}


@pytest.mark.parametrize("change, place", CHANGES.values(), ids=CHANGES)
def test_what_disagrees_within_a_file_is_named(
    change: Callable[[Content], None], place: str
) -> None:
    content = copy.deepcopy(of())
    change(content)
    assert place in where(content)


@pytest.mark.parametrize(
    "stated, own, found",
    [
        (None, {"a": 1}, []),
        ("ring", {"name": "ring", "lazy": False}, []),
        ("ring", {"name": "torus", "lazy": False}, ["g.name"]),
        ({"a": 1}, {"a": 1.0, "b": 2}, []),
        ({"a": 1, "unknown": 3}, {"a": 2}, ["g.a"]),
        ([{"a": " x "}], [{"a": "x"}], []),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}], ["g[2].a"]),
        ([{"a": 1}], [{"a": 1}, {"a": 3}], ["the number of g"]),
        ({"a": True}, {"a": False}, ["g.a"]),
    ],
)
def test_stated_keys_are_those_of_the_whole_config(stated: Any, own: Any, found: list[str]) -> None:
    assert list(differing(stated, own, "g")) == found


def test_a_config_of_another_audit_is_named(tmp_path: Path) -> None:
    content = of("supported")
    (tmp_path / "config.toml").write_text((GALLERY / "supported.toml").read_text("utf-8"), "utf-8")
    assert where(content, tmp_path) == []
    (tmp_path / "config.toml").write_text('[[claim]]\ntext = "theirs"\n', "utf-8")
    assert where(content, tmp_path) == ["config.toml"]
    (tmp_path / "config.toml").write_text("[[claim", "utf-8")
    assert [flaw.contradicted for flaw in flaws(content, tmp_path)] == [False]
