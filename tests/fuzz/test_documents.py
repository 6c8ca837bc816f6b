"""Documents of any shape, of TOML and JSON alike: nested, of wrong types, of extreme values.

Where bytes and lines that change at random are seldom a document any more, these always are one
(or hold a text or number that no document may have), so they come as far as the models that check
them. A failure is made smaller by hypothesis and shown.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpaudit.check.baseline import key_metrics
from dpaudit.commands.starter import starter
from dpaudit.files.claims_file import ClaimsFile
from dpaudit.files.config import AuditConfig
from dpaudit.files.documents import toml_from
from dpaudit.files.result import AuditResult

ROOT = Path(__file__).parents[1]
EXTREME = (0, -1, 2**31, 2**63 - 1, 2**63, 10**400, 0.0, -0.0, 5e-324, 1e308, -1e308, 1e-100)
WORDS = ("", "x", "inf", "nan", "../../etc", "\0", "\ud800", "\u202e", "é\U0001f600", "x" * 5_000)
KEYS = ("name", "path", "kind", "n_rounds", "epsilon", "value", "audit", "x", "", "é", "a b", '"')

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(EXTREME),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=20),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=8,
)
deep = st.builds(
    lambda n, table: _nested(n, table), st.sampled_from((5, 39, 41, 200)), st.booleans()
)


def _nested(n: int, table: bool) -> Any:
    value: Any = 0
    for _ in range(n):
        value = {"x": value} if table else [value]
    return value


@st.composite
def documents(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    """A whole document with up to three branches of another shape, gone, or elsewhere."""
    tree = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = tree
        while True:
            key = draw(st.sampled_from([*holder] if isinstance(holder, dict) else range(len(holder))))  # fmt: skip
            inside = holder[key]
            if not (isinstance(inside, dict | list) and inside and draw(st.integers(0, 4))):
                break
            holder = inside
        how = draw(st.sampled_from(("value", "value", "value", "deep", "gone", "also", "twice")))
        if how == "gone" and len(tree) > 1:
            del holder[key]
        elif how == "also" and isinstance(holder, dict):
            holder[draw(st.sampled_from(KEYS))] = draw(values)
        elif how == "twice" and isinstance(holder, list):
            holder.append(json.loads(json.dumps(inside)))
        else:
            holder[key] = draw(deep if how == "deep" else values)
    return tree


def toml(value: Any) -> str:
    """A value as TOML has it, on one line; what it has not (null) as an empty array."""
    if value is None:
        return "[]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def write_toml(path: Path, tree: dict[str, Any]) -> None:
    lines = (f"{json.dumps(key)} = {toml(value)}" for key, value in tree.items())
    path.write_text("\n".join(lines), "utf-8", "surrogatepass")


def write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree))


def read_result(path: Path) -> AuditResult:
    result = AuditResult.read(path)
    key_metrics(result)
    return result


def an_audit(folder: Path) -> dict[str, Any]:
    return toml_from(starter("dpdl"))


def some_claims(folder: Path) -> dict[str, Any]:
    write_toml(folder / "audit.toml", an_audit(folder))
    claims = toml_from((ROOT / "example_project" / "claims.toml").read_text())
    return {**claims, "check": [*claims["check"], {"name": "own", "audit": an_audit(folder)}]}


def a_result(folder: Path) -> dict[str, Any]:
    content = json.loads(AuditResult.read(ROOT / "golden" / "audit.json").to_json())
    for finding in content["findings"]:
        finding["series"] = {k: v[:3] for k, v in finding.get("series", {}).items()}
    return content


DOCUMENTS: dict[str, tuple[str, Callable[[Path], dict[str, Any]], Callable, Callable]] = {
    "audit document": ("a.toml", an_audit, write_toml, AuditConfig.from_toml),
    "claims document": ("claims.toml", some_claims, write_toml, ClaimsFile.read),
    "result document": ("audit.json", a_result, write_json, read_result),
}


@pytest.fixture
def fuzz(tmp_path: Path, inputs, wrong) -> Callable[[str, int], None]:
    """Reads as many documents of a format as it has inputs, from a seed."""

    def many(name: str, seed: int) -> None:
        file, whole_of, write, read = DOCUMENTS[name]
        path, read_inputs = tmp_path / file, 0

        @hypothesis.seed(seed)
        @settings(max_examples=inputs[name], database=None, suppress_health_check=HealthCheck)
        @given(documents(whole_of(tmp_path)))
        def each(tree: dict[str, Any]) -> None:
            nonlocal read_inputs
            read_inputs += 1
            write(path, tree)
            assert wrong(lambda: read(path)) == ""

        each()
        assert read_inputs == inputs[name]

    return many


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_whole_documents_are_read(name: str, tmp_path: Path) -> None:
    file, whole_of, write, read = DOCUMENTS[name]
    write(tmp_path / file, whole_of(tmp_path))
    read(tmp_path / file)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_end_in_a_value_or_a_few_lines(name: str, fuzz) -> None:
    fuzz(name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 12))
@pytest.mark.parametrize("name", DOCUMENTS)
def test_many_documents_end_in_a_value_or_a_few_lines(name: str, seed: int, fuzz) -> None:
    fuzz(name, seed)
