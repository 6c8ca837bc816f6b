"""What a verdict rests on, in one file from which anyone can derive it again.

``docs/certificate.md`` says what its fields mean to a reviewer, and the schema of these models is
``docs/certificate.schema.json``. Hashes are SHA-256 of the canonical form of RFC 8785: keys sorted
by their UTF-16 code units, no white space, numbers as ECMAScript writes them. Integers beyond 2^53,
which that standard leaves out, have all of their digits.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, TypeAdapter

from dpaudit.codes import entries
from dpaudit.errors import RunError
from dpaudit.strict import Strict, Text

from .atomic_files import artifact_file
from .documents import JSON_BYTES, reason
from .finding import Finding
from .glossary import ENTRIES
from .ledger_file import Budget, LedgerEntry
from .result import AuditResult, Code, JudgedClaim, Provenance
from .verdict import Verdict

NAME = "certificate.json"
MATRICES = "linear view"  # artifacts by which a figure is derived again
MOST_BYTES = 2**26  # limit for matrices in a certificate; larger ones stay beside it
OTHERS = ("audit.json", "config.toml", "report.html")
FOLDERS = ("transcript", "artifacts")
DECLARATION = (
    "A program declared these releases in its ledger, and they add up to no more than its budget. "
    "No audit examined whether the noise was drawn and the batches sampled as declared, or whether "
    "anything else was released. This supports no claim."
)
_HASHES = "hashes", "sha256"
_MATRICES = re.compile(r"artifacts/[a-z-]+-[0-9a-f]{64}\.npz")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class Certificate(Strict):
    """The claims of one audit, with all that ``dpaudit verify`` derives their verdicts from."""

    format: Literal["dpaudit-certificate"] = "dpaudit-certificate"
    format_version: Literal[1] = 1
    schema_version: Literal[3] = 3  # version of audit.json, to which the next eight keys belong
    config: dict[str, Any]  # the audit file, with all defaults
    calibrated: dict[str, Any]  # the options of the defense with its calibrated noise
    provenance: Provenance
    verdict: Verdict | None  # the worst of all claims
    notes: tuple[str, ...]
    note_codes: tuple[Code, ...]
    claims: tuple[JudgedClaim, ...]
    findings: tuple[Finding, ...]  # without the series and traces of figures
    adversaries: dict[str, str]  # threat model -> what it reads and knows, in a sentence
    words: dict[str, str]  # what the codes and terms in this file mean
    files: dict[str, Sha256]  # path in the run directory -> hash
    matrices: dict[str, Base64]  # path -> a view from which leaks are derived
    hashes: dict[str, Sha256] = {}  # hash of the canonical form of each part above
    sha256: Sha256 = 64 * "0"  # hash of the canonical form of this file without this line

    def to_json(self) -> str:
        """The text of certificate.json. Raises RunError as ``text_with_hashes``."""
        return text_with_hashes(self)


class AgentSum(Strict):
    """What the declared releases about one agent's records add up to."""

    agent: str | None  # None: any agent that the ledger does not name
    releases: int
    epsilon: float  # in nats, at the budget's delta


class Declaration(Strict):
    """What a ledger declares to have released, and the sum of it. No audit examined it."""

    format: Literal["dpaudit-declaration"] = "dpaudit-declaration"
    format_version: Literal[1] = 1
    basis: Literal["declared, not audited"] = "declared, not audited"
    meaning: str = DECLARATION
    budget: Budget  # its first line: what all releases may not exceed
    entries: tuple[LedgerEntry, ...]  # its other lines
    sums: tuple[AgentSum, ...]  # one per agent
    ledger: Text  # the name of the file
    ledger_bytes: PositiveInt  # its length then; it may have grown since
    ledger_sha256: Sha256  # hash of the first ``ledger_bytes``
    hashes: dict[str, Sha256] = {}  # hash of the canonical form of each part above
    sha256: Sha256 = 64 * "0"  # hash of the canonical form of this file without this line

    def to_json(self) -> str:
        """The text of certificate.json. Raises RunError as ``text_with_hashes``."""
        return text_with_hashes(self)


def schema() -> dict[str, Any]:
    """The JSON Schema of both kinds of certificates."""
    either = TypeAdapter[Any](Annotated[Certificate | Declaration, Field(discriminator="format")])
    return either.json_schema(mode="serialization")


def text_with_hashes(certificate: Strict) -> str:
    """The text of a certificate, with the hashes of its parts and of the whole.

    Raises:
        RunError: it would be larger than a file that is read.
    """
    parts = certificate.model_dump(mode="json", exclude=set(_HASHES))
    whole = {**parts, "hashes": {key: digest(part) for key, part in parts.items()}}
    text = json.dumps({**whole, "sha256": digest(whole)}, indent=2, ensure_ascii=False) + "\n"
    if len(text.encode()) > JSON_BYTES:
        raise RunError("DPA016", f"{NAME}: cannot write: larger than {JSON_BYTES:,} bytes")
    return text


def certificate_of(result: AuditResult, folder: Path) -> Certificate:
    """The certificate of the result of a run directory.

    Raises:
        RunError: a file of the directory cannot be read, or lies outside of it.
    """
    try:
        files, matrices = _hashes(folder), _matrices(result, folder)
    except OSError as error:
        raise RunError("DPA007", f"{error.filename or folder}: {reason(error)}") from None
    drawn: dict[str, Any] = {"series": {}, "trace": {}}  # used by figures only
    shared = {name: getattr(result, name) for name in _SHARED}
    findings = tuple(finding.model_copy(update=drawn) for finding in result.findings)
    return Certificate(
        **{**shared, "findings": findings},
        adversaries={model.name: model.sentence for model in result.threat_models},
        words=_words(result),
        files=files,
        matrices=matrices,
    )


_SHARED = set(AuditResult.model_fields) & set(Certificate.model_fields)


def _words(result: AuditResult) -> dict[str, str]:
    """What the codes mean, the verdicts, and who is protected."""
    codes = {code for claim in result.claims for code in claim.codes} | {*result.note_codes}
    terms = {str(claim.verdict) for claim in result.claims} | {"epsilon", "delta", "scope"}
    terms |= {claim.adjacency for claim in result.claims}
    explained = {code: f"{entries()[code].title}. {entries()[code].meaning}" for code in codes}
    return dict(sorted({**explained, **{term: ENTRIES[term] for term in terms}}.items()))


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of what an audit wrote, by path; no link is followed."""
    paths = [folder / name for name in OTHERS]
    for name in FOLDERS:
        paths += sorted((folder / name).rglob("*")) if not (folder / name).is_symlink() else []
    found = {}
    for path in paths:
        if path.is_file() and not path.is_symlink():
            found[path.relative_to(folder).as_posix()] = _hash_of(path)
    return found


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _matrices(result: AuditResult, folder: Path) -> dict[str, str]:
    """The views of linear protocols in base64; none if they are too large or incomplete."""
    names = sorted({f.artifacts[MATRICES] for f in result.findings if MATRICES in f.artifacts})
    paths = [artifact_file(folder, name) for name in names]
    if not all(map(Path.is_file, paths)) or sum(p.stat().st_size for p in paths) > MOST_BYTES:
        return {}
    encoded = (base64.b64encode(path.read_bytes()).decode() for path in paths)
    return dict(zip(names, encoded, strict=True))


def changes(content: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """Where a certificate is not what was written, or a file in its folder is not the one it names.

    Raises KeyError, OSError, TypeError or ValueError if it is none.
    """
    yield from _changed_parts(content, Certificate)
    for name, sha256 in content["files"].items():
        path = artifact_file(folder, name)
        if path.is_file() and _hash_of(path) != sha256:
            yield f"files.{name}", "the file beside the certificate is another one"


def declaration_changes(content: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """The same of a declaration; a ledger in its folder may have grown.

    Raises KeyError, OSError, TypeError or ValueError if it is none.
    """
    yield from _changed_parts(content, Declaration)
    Declaration.model_validate(content)
    path = folder / content["ledger"]
    if path.parent == folder and path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            then = file.read(content["ledger_bytes"])
        if hashlib.sha256(then).hexdigest() != content["ledger_sha256"]:
            yield "ledger", "the file beside the certificate does not begin with this ledger"


def _changed_parts(
    content: Mapping[str, Any], kind: type[Certificate | Declaration]
) -> Iterator[tuple[str, str]]:
    parts = {key: part for key, part in content.items() if key not in _HASHES}
    for key in sorted(set(kind.model_fields) ^ set(content)):
        yield key, "no part of a certificate" if key in content else "it is missing"
    for key in sorted({*parts, *content["hashes"]}):
        if content["hashes"].get(key) != digest(parts.get(key)):
            yield f"hashes.{key}", "not the hash of this part"
    if content["sha256"] != digest({**parts, "hashes": content["hashes"]}):
        yield "sha256", "not the hash of this certificate"


def unpack(content: Mapping[str, Any], folder: Path) -> bool:
    """Write its matrices below an empty folder, if there are any. Raises ValueError."""
    for name, text in content["matrices"].items():
        if not _MATRICES.fullmatch(name):
            raise ValueError(f"{name!r} are no matrices")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(base64.b64decode(text, validate=True))
    return bool(content["matrices"])


def digest(part: Any) -> str:
    """SHA-256 of the canonical form of a value that JSON can hold."""
    return hashlib.sha256(canonical(part).encode()).hexdigest()


def canonical(value: Any) -> str:
    """A value of JSON in the one way in which RFC 8785 writes it."""
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in keys) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, value)) + "]"
    return _number(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _number(x: float) -> str:
    """A number as ECMAScript writes it: shortest digits, positional from 1e-6 to below 1e21."""
    if x == 0:
        return "0"
    if 1e-6 <= abs(x) < 1e21:
        return f"{Decimal(repr(x)):f}".removesuffix(".0")
    digits, _, exponent = repr(x).partition("e")
    return f"{digits}e{int(exponent):+d}"
