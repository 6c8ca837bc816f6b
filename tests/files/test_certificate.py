"""Certificates: their canonical form is that of RFC 8785, their schema the published one."""

import base64
import hashlib
import json
import math
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.files import certificate
from dpaudit.files.certificate import (
    MATRICES,
    Declaration,
    _hashes,
    _matrices,
    canonical,
    certificate_of,
    changes,
    declaration_changes,
    digest,
    schema,
    unpack,
)
from dpaudit.files.ledger_file import Budget
from dpaudit.files.result import AuditResult

DOCS = Path(__file__).parents[2] / "docs"
# RFC 8785, Appendix B: the bits of a double, and how it is written
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inside: (
        st.lists(inside, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inside, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("bits, written", NUMBERS.items())
def test_numbers_are_written_as_the_standard_lists(bits: str, written: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == written


def test_an_object_is_written_as_in_the_standard() -> None:
    """RFC 8785, 3.2.2 and 3.2.3: escapes, and keys in the order of UTF-16 code units."""
    text = '"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/"'
    literals = json.loads(f'{{"string": {text}, "literals": [null, true, false]}}')
    euro = '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'
    assert canonical(literals) == f'{{"literals":[null,true,false],"string":{euro}}}'
    keys = ["\r", "1", "\x80", "\xf6", "€", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical(dict.fromkeys(reversed(keys))))) == keys


def test_integers_beyond_doubles_keep_their_digits() -> None:
    assert canonical([2**63 - 1, 1.0, 4]) == "[9223372036854775807,1,4]"


@given(VALUES)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_canonical_form_holds_the_same_value(value: object) -> None:
    text = canonical(value)
    assert json.loads(text, parse_int=float) == value  # numbers are doubles
    assert canonical(json.loads(text)) == text
    assert digest(json.loads(json.dumps(value, indent=3))) == digest(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_next_number_has_another_form(x: float) -> None:
    assert canonical(x) != canonical(math.nextafter(x, math.inf if x <= 0 else -math.inf))


def test_the_schema_in_docs_is_the_one_of_the_models() -> None:
    assert json.loads((DOCS / "certificate.schema.json").read_text()) == schema(), (
        "write certificate.schema.json anew from dpaudit.files.certificate.schema"
    )


def test_matrices_are_in_a_certificate_if_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"artifacts/{name}.npz": content for name, content in (("a", b"one"), ("b", b"two!"))}
    findings = [SimpleNamespace(artifacts={MATRICES: name}) for name in files]
    result: Any = SimpleNamespace(findings=[*findings, SimpleNamespace(artifacts={})])
    (tmp_path / "artifacts").mkdir()
    for name, content in files.items():
        assert _matrices(result, tmp_path) == {}
        (tmp_path / name).write_bytes(content)
    encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
    assert _matrices(result, tmp_path) == encoded
    monkeypatch.setattr(certificate, "MOST_BYTES", 7)  # as many as they have
    assert _matrices(result, tmp_path) == encoded
    monkeypatch.setattr(certificate, "MOST_BYTES", 6)
    assert _matrices(result, tmp_path) == {}


GOLDEN = AuditResult.read(DOCS.parent / "tests" / "golden" / "audit.json")


def written(folder: Path) -> dict[str, Any]:
    """The certificate of a folder in which a transcript and a report lie."""
    (folder / "transcript" / "deep").mkdir(parents=True)
    for name in ("report.html", "transcript/b", "transcript/deep/a", "other"):
        (folder / name).write_text(name)
    (folder / "audit.json").symlink_to("report.html")
    (folder / "artifacts").symlink_to("transcript")
    return json.loads(certificate_of(GOLDEN, folder).to_json())


def test_a_certificate_names_what_an_audit_wrote_and_no_links(tmp_path: Path) -> None:
    content = written(tmp_path)
    names = ["report.html", "transcript/b", "transcript/deep/a"]
    assert content["files"] == {n: hashlib.sha256(n.encode()).hexdigest() for n in names}
    assert _hashes(tmp_path / "absent") == {}
    assert {*content["words"]} >= {"epsilon", "delta", "scope", "add-remove"}
    assert {*content["words"]} > {code for claim in content["claims"] for code in claim["codes"]}
    assert all(not finding["series"] and not finding["trace"] for finding in content["findings"])
    assert list(changes(content, tmp_path)) == []
    noted = GOLDEN.model_copy(update={"notes": ("é",), "note_codes": ()})
    assert '"é"' in certificate_of(noted, tmp_path).to_json()


def test_each_change_of_a_certificate_is_named(tmp_path: Path) -> None:
    content = written(tmp_path)

    def found(**changed: Any) -> list[str]:
        return [where for where, _ in changes({**content, **changed}, tmp_path)]

    assert found(notes=["new"]) == ["hashes.notes", "sha256"]
    assert found(sha256="0") == ["sha256"]
    assert found(hashes={**content["hashes"], "notes": "0"}) == ["hashes.notes", "sha256"]
    assert found(more=1) == ["more", "hashes.more", "sha256"]
    del content["notes"]
    assert found() == ["notes", "hashes.notes", "sha256"]
    (tmp_path / "transcript" / "b").write_text("another")
    (tmp_path / "transcript" / "deep" / "a").unlink()
    assert found()[-1] == "files.transcript/b"


def test_matrices_alone_are_unpacked(tmp_path: Path) -> None:
    name, text = f"artifacts/view-{64 * '0'}.npz", base64.b64encode(b"one").decode()
    assert not unpack({"matrices": {}}, tmp_path)
    assert unpack({"matrices": {name: text, name.replace("0", "1"): text}}, tmp_path)
    assert (tmp_path / name).read_bytes() == b"one"
    for wrong in ({f"../{name}": text}, {name: text + "!"}):
        with pytest.raises(ValueError):
            unpack({"matrices": wrong}, tmp_path)


def test_a_ledger_may_grow_beyond_its_certificate(tmp_path: Path) -> None:
    (ledger := tmp_path / "l.jsonl").write_bytes(b"then")
    declared = Declaration(
        budget=Budget(epsilon=1.0, delta=0.0),
        entries=(),
        sums=(),
        ledger="l.jsonl",
        ledger_bytes=4,
        ledger_sha256=hashlib.sha256(b"then").hexdigest(),
    )
    content = json.loads(declared.to_json())
    ledger.write_bytes(b"then and more")
    assert list(declaration_changes(content, tmp_path)) == []
    ledger.write_bytes(b"them and more")
    assert [where for where, _ in declaration_changes(content, tmp_path)] == ["ledger"]
    ledger.rename(other := tmp_path / "other")
    assert list(declaration_changes(content, tmp_path)) == []  # it is not beside the certificate
    ledger.symlink_to(other)
    assert list(declaration_changes(content, tmp_path)) == []
