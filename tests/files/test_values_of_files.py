"""What files may hold and how problems in them are named, value by value."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from dpaudit.errors import DataError, RunError
from dpaudit.files import file_problems
from dpaudit.files.atomic_files import artifact_file
from dpaudit.files.certificate import Certificate, _changed_parts, canonical, digest, unpack
from dpaudit.files.claim import Claim
from dpaudit.files.documents import _refuse_unfit, _table, reason
from dpaudit.files.file_problems import _code, _inside, _key_in, problems_of
from dpaudit.files.finding import canonical as spelt
from dpaudit.files.result import JudgedClaim
from dpaudit.files.score_file import read_scores
from dpaudit.files.verdict import SEVERITY, Verdict, worst


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("a.png", True),
        ("artifacts/a.png", True),
        ("a..png", True),
        ("/a.png", False),
        ("../a.png", False),
        ("artifacts/../../a.png", False),
        ("artifacts/..", False),
        ("C:\\a.png", False),
        ("\\a.png", False),
        ("artifacts\\..\\a.png", False),
    ],
)
def test_an_artifact_lies_in_its_run_directory(tmp_path: Path, path: str, allowed: bool) -> None:
    if allowed:
        assert artifact_file(tmp_path, path) == tmp_path / path
        return
    with pytest.raises(RunError, match="is outside the run directory"):
        artifact_file(tmp_path, path)


def test_an_artifact_lies_behind_no_link(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    (run / "in").mkdir(parents=True)
    other.mkdir()
    (run / "link").symlink_to(other)
    (run / "in" / "a").symlink_to(other / "a")
    for path in ("link", "link/a", "in/a"):
        with pytest.raises(RunError, match="is a link"):
            artifact_file(run, path)
    (tmp_path / "linked").symlink_to(run)
    assert artifact_file(tmp_path / "linked", "in/b") == tmp_path / "linked" / "in" / "b"


def test_an_error_is_one_line_without_its_path() -> None:
    assert reason(OSError(2, "x", "/a/b")) == "No such file or directory"
    assert reason(OSError("two\n lines")) == "two lines"
    assert reason(ValueError("a\n\tb")) == "a b"
    with pytest.raises(ValueError, match='key "b" is written twice'):
        _table([("a", 1), ("b", 2), ("c", 3), ("b", 4)])
    assert _table([("a", 1), ("b", 2)]) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        *((2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)),
        *((1e308, True), (float("inf"), False), (-float("inf"), False), ("text", True)),
    ],
)
def test_values_have_sixty_four_bits(value: Any, fits: bool) -> None:
    if fits:
        return _refuse_unfit(value)
    with pytest.raises(ValueError, match=r"64 bits|infinite"):
        _refuse_unfit(value)


def sealed(**changed: Any) -> dict[str, Any]:
    """A certificate whose parts are their names; hashes are made before what is changed."""
    parts = {key: key for key in Certificate.model_fields if key not in ("hashes", "sha256")}
    hashes = {key: digest(part) for key, part in parts.items()}
    content = {**parts, "hashes": hashes, "sha256": digest({**parts, "hashes": hashes})}
    return content | changed


def test_each_change_of_a_certificate_is_named() -> None:
    def where(content: dict[str, Any]) -> list[str]:
        return [name for name, _ in _changed_parts(content, Certificate)]

    part = next(key for key in sealed() if key not in ("hashes", "sha256"))
    assert where(sealed()) == []
    assert where(sealed(sha256="0")) == ["sha256"]
    assert where(sealed(**{part: "other"})) == [f"hashes.{part}", "sha256"]
    assert where(sealed(further=1)) == ["further", "hashes.further", "sha256"]
    own = sealed(**{part: "other"})
    own["hashes"] = own["hashes"] | {part: digest("other")}
    assert where(own) == ["sha256"]
    without = sealed()
    del without[part]
    assert where(without) == [part, f"hashes.{part}", "sha256"]
    assert digest({"b": 1, "a": [True, None]}) == (
        hashlib.sha256(b'{"a":[true,null],"b":1}').hexdigest()
    )
    assert canonical({"\U0001f600": 1, "\ufb33": 2}) == '{"\U0001f600":1,"\ufb33":2}'


def test_matrices_of_a_certificate_are_unpacked(tmp_path: Path) -> None:
    name = f"artifacts/linear-view-{'a' * 64}.npz"
    assert unpack({"matrices": {name: "AAE="}}, tmp_path)
    assert (tmp_path / name).read_bytes() == b"\x00\x01"
    assert not unpack({"matrices": {}}, tmp_path)
    for other in ("artifacts/x.npz", f"../{name}"):
        with pytest.raises(ValueError, match="are no matrices"):
            unpack({"matrices": {other: "AAE="}}, tmp_path)


@pytest.mark.parametrize(
    ("of", "allowed"),
    [
        *(({"epsilon": 1e-9}, True), ({"epsilon": 0.0}, False), ({"epsilon": -1.0}, False)),
        *(({"epsilon": True}, False), ({}, False), ({"epsilon": 1.0, "mu": 1.0}, False)),
        *(({"epsilon": 1.0, "delta": 0.499}, True), ({"epsilon": 1.0, "delta": 0.5}, False)),
        *(({"epsilon": 1.0, "delta": -0.1}, False), ({"epsilon": 1.0, "delta": 1.0}, False)),
        *(({"mu": 1e6}, True), ({"mu": 1.1e6}, False), ({"mu": 0.0}, False)),
        ({"mu": 1.0, "delta": 1e-9}, False),
    ],
)
def test_a_claim_promises_one_thing_within_limits(of: Any, allowed: bool) -> None:
    if allowed:
        Claim.model_validate({"text": "c", **of})
        return
    with pytest.raises(ValidationError):
        Claim.model_validate({"text": "c", **of})


def test_the_worst_verdict_is_the_most_severe() -> None:
    assert [one.value for one in SEVERITY] == [
        *("refuted", "unsupported", "underpowered", "not refuted", "supported")
    ]
    assert worst([]) is None
    assert worst([Verdict.SUPPORTED, Verdict.NOT_REFUTED]) is Verdict.NOT_REFUTED
    assert worst([Verdict.UNDERPOWERED, Verdict.REFUTED, Verdict.SUPPORTED]) is Verdict.REFUTED


def test_an_archive_of_scores_is_no_list(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.savez(file, a=np.arange(100.0))
    with pytest.raises(DataError, match="found an archive of several"):
        read_scores(tmp_path / "a.npz")
    np.save(tmp_path / "o.npy", np.array([1.0, None] * 50), allow_pickle=True)
    with pytest.raises(DataError, match="Python objects, which are not loaded"):
        read_scores(tmp_path / "o.npy")


def test_names_of_metrics_have_one_spelling() -> None:
    assert spelt("M_NMI") == spelt("m-nmi") == "m-nmi"
    assert spelt("EPSILON_lower-bound") == "epsilon lower bound"
    assert spelt("My Own_metric") == "My Own_metric"


class Inner(BaseModel):
    n: int


class Model(BaseModel):
    a: int = 0
    b: tuple[int, int] = (0, 0)
    c: Inner | int = 0
    d: dict[str, Any] = {}
    e: list[int] = []
    f: Inner | None = None


def problems(content: dict[str, Any]) -> list[tuple[Any, str, str]]:
    try:
        Model.model_validate(content)
    except ValidationError as error:
        found = problems_of(error, Model, content)
        return [(key, one.code, one.text) for key, one in found]
    return []


def test_problems_are_named_by_their_keys() -> None:
    assert problems({}) == []
    [(key, code, text)] = problems({"a": "x"})
    assert (key, code) == (("a",), "DPA003")
    assert text.endswith(", got 'x'")
    assert problems({"b": [1]})[0][0::2] == (("b",), "expected 2 values, got [1]")
    assert problems({"d": 3})[0][2].startswith("expected a table")
    assert problems({"b": {"x": 1}})[0][2] == "expected an array, whose tables begin with [[b]]"
    assert [key for key, *_ in problems({"f": {}})] == [("f", "n")]
    assert [key for key, *_ in problems({"e": [1, "x", 3, "y"]})] == [("e", 1), ("e", 3)]


def test_later_problems_are_codes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_problems, "MOST_LINES", 2)
    found = problems({"e": ["x"] * 4})
    assert [key for key, *_ in found] == [("e", i) for i in range(4)]
    assert [", got" in text for *_, text in found] == [True, True, False, False]


def test_kinds_of_problems_have_their_codes() -> None:
    assert [_code(kind) for kind in ("int_type", "int_parsing", "greater_than")] == [
        *("DPA003", "DPA003", "DPA004")
    ]


def test_a_location_is_that_of_the_file() -> None:
    content = {"a": [{"b": 1}], "c": 2}
    for location, key in (
        (("a", 0, "b"), ("a", 0, "b")),
        (("a", 0, "Tag", "b"), ("a", 0, "b")),
        (("a", 1, "b"), ("a",)),
        (("a", "0"), ("a",)),
        (("c", 0), ("c",)),
        (("x",), ()),
    ):
        assert _key_in(content, location)[: len(key)] == key
    some: Any = [{"loc": ("a", 0, "b")}, {"loc": ("c",)}]
    assert [_inside(at, some) for at in (("a",), ("a", 0), ("a", 0, "b"), ("c",), ("d",))] == [
        *(True, True, False, False, False)
    ]


def test_what_a_claim_lacks_is_its_first_premise() -> None:
    def lacking(verdict: Verdict, span: Any, missing: list[str], epsilon: float | None) -> str:
        premises = [SimpleNamespace(sentence=one) for one in missing]
        claim: Any = SimpleNamespace(verdict=verdict, range=span, missing=premises, epsilon=epsilon)
        getter = JudgedClaim.lacking.fget
        assert getter is not None
        return str(getter(claim))

    span, other = SimpleNamespace(accounted=2.0), Verdict.UNDERPOWERED
    assert lacking(Verdict.SUPPORTED, span, ["a"], 1.0) == ""
    assert lacking(other, None, ["a"], 1.0) == "no premise was examined"
    assert lacking(other, span, ["a", "b"], 1.0) == "a"
    assert lacking(other, span, [], 2.0) == "no premise is missing"
    assert lacking(other, span, [], 1.9) == "accounting does not settle the claim"
    assert lacking(other, span, [], None) == "accounting does not settle the claim"
