"""Derives the verdicts of a run again, by a checker that shares no code with the audit."""

import json
import re
from math import isclose, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from dpaudit.errors import RunError
from dpaudit.files import documents
from dpaudit.progress import one_step

from .options import DataRoot, Device, runtime_of
from .running import progress_bars
from .terminal import complain, say, say_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpaudit.files.ledger_file import Budget
    from dpaudit.ledger.verified import AgentTotal
    from dpaudit.verify.figures import Flaw
    from dpaudit.verify.verdict import ClaimCheck

CERTIFICATE, DECLARATION = "dpaudit-certificate", "dpaudit-declaration"
LEDGER = "dpaudit-ledger"
KINDS = {
    CERTIFICATE: "a certificate",
    DECLARATION: "the certificate of a ledger",
    LEDGER: "a ledger",
}
NAMES = {"audit.json": "an audit.json", "certificate.json": KINDS[CERTIFICATE]}
EXPECTED = "expected an audit.json, a certificate or a ledger"
_FORMAT = re.compile(r'\{\s*"(format|schema_version)":\s*("[a-z-]*|[0-9])')  # begins what we write
AGAIN = "get the whole file again: from whoever sent it, or by dpaudit audit or certificate"
EXIT = {"confirmed": 0, "contradicted": 1, "not checkable": 2}


def verify(
    run_directory: Annotated[
        Path,
        Argument(
            metavar="DIR|FILE", help="A run directory, its audit.json, a certificate, or a ledger."
        ),
    ],
    as_json: Annotated[bool, Option("--json", help="Print the answer as JSON.")] = False,
    replay: Annotated[
        int | None,
        Option(min=1, metavar="K", help="Play K of the recorded rounds again, and compare."),
    ] = None,
    device: Device = "cpu",
    data_root: DataRoot = None,
) -> int:
    """Derive each verdict again from the evidence in audit.json, or in a certificate.

    Of a ledger, or the certificate of one, add up what it declares.

    Exits 0 if all are confirmed, 1 if a figure or a verdict does not follow from its evidence, and
    2 if evidence is missing. Only --replay runs a defense: an installed one.
    """
    from dpaudit.files import certificate
    from dpaudit.ledger import verified
    from dpaudit.verify.figures import Flaw
    from dpaudit.verify.verdict import check, overall

    from .coherence import flaws as incoherent
    from .page import flaws as flaws_of_page

    file = run_directory / "audit.json" if run_directory.is_dir() else run_directory
    if verified.is_ledger(text := _text(file)):
        return _ledger(file, text, as_json)
    result = _content(file, text)
    if result.get("format") == DECLARATION:
        return _declaration(file, result, as_json)
    try:
        with TemporaryDirectory() as unpacked:
            folder, flaws = file.parent, list(overall(result))
            if "format" in result:
                flaws += [Flaw(*change, True) for change in certificate.changes(result, folder)]
                folder = Path(unpacked) if certificate.unpack(result, Path(unpacked)) else folder
            else:
                flaws += flaws_of_page(result, file)
            checked = check(result, folder)
            of_claims = [flaw for one in checked for flaw in one.flaws]
            if not any(flaw.contradicted for flaw in (*flaws, *of_claims)):
                _refuse_malformed(file, result)  # a contradiction says more than what a key holds
            flaws += incoherent(result, file.parent)
    except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError) as error:
        raise RunError(
            "DPA011", f"{file}: not what an audit writes ({error!r})", "run the audit again"
        ) from None
    if replay is not None:
        flaws += _replayed(run_directory, replay, device, data_root)
    return _answered(file, checked, flaws, as_json)


def _refuse_malformed(file: Path, result: dict[str, Any]) -> None:
    """Raises RunError: a key is unknown, missing or of another type than an audit writes."""
    from pydantic import BaseModel, ValidationError

    from dpaudit.files.certificate import Certificate, Declaration
    from dpaudit.files.file_problems import located, problems_of
    from dpaudit.files.result import AuditResult

    kinds: dict[str, type[BaseModel]] = {CERTIFICATE: Certificate, DECLARATION: Declaration}
    model = kinds.get(str(result.get("format")), AuditResult)
    try:
        model.model_validate(result)
    except ValidationError as error:
        key, problem = next(problems_of(error, model, result))
        said = located(file, "", key, problem).text
        raise RunError("DPA011", f"{said}; no audit writes that", AGAIN) from None


def _answered(
    file: Path, checked: "Sequence[ClaimCheck]", flaws: "Sequence[Flaw]", as_json: bool
) -> int:
    """Print the answer on each claim, and give the exit code."""
    answers = [one.answer for one in checked]
    answers += ["contradicted" if p.contradicted else "not checkable" for p in flaws]
    worst = max(answers, key=list(EXIT).index, default="confirmed")
    worst = "contradicted" if "contradicted" in answers else worst
    if as_json:
        claims = [{**one._asdict(), "answer": one.answer} for one in checked]
        claims = [{**one, "flaws": [p._asdict() for p in one["flaws"]]} for one in claims]
        beside = [flaw._asdict() for flaw in flaws]
        say_json(json.dumps({"answer": worst, "claims": claims, "flaws": beside}, indent=2))
        return EXIT[worst]
    _print(checked, flaws)
    say(f"{file}: {worst}")
    return EXIT[worst]


def _print(checked: "Sequence[ClaimCheck]", flaws: "Sequence[Flaw]") -> None:
    """A line for each verdict, and below it what speaks against it."""
    for one in checked:
        derived = "" if one.derived == one.verdict else f"; the evidence gives {one.derived}"
        against = f'"{one.claim}" against "{one.threat_model}"'
        say(f"{one.answer.upper()}  {against}: {one.verdict}{derived}")
        for flaw in one.flaws:
            say(f"  {_line(flaw)}")
    for flaw in flaws:
        say(_line(flaw))


def _text(file: Path) -> str:
    try:
        return documents.text_of(file, documents.JSON_BYTES)
    except OSError as error:
        raise RunError("DPA007", f"{file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise _unreadable(file, error.object.decode(errors="replace"), error) from None
    except ValueError as error:
        raise RunError("DPA011", f"{file}: {error}; {EXPECTED}") from None


def _unreadable(file: Path, text: str, error: ValueError) -> RunError:
    """What a file really is that is no JSON: nothing, another kind, or a part of one of ours."""
    if not text.strip():
        return RunError("DPA011", f"{file}: empty; {EXPECTED}", AGAIN)
    kind = NAMES.get(file.name) if text.startswith("{") else None
    if begun := _FORMAT.match(text):
        kind = next((KINDS[one] for one in KINDS if one.startswith(begun[2].strip('"'))), None)
        kind = kind if begun[1] == "format" else NAMES["audit.json"]
    if kind is None:
        return RunError("DPA011", f"{file}: {EXPECTED}, found neither ({documents.reason(error)})")
    return RunError("DPA011", f"{file}: {kind} {documents.broken(text, error)}", AGAIN)


def _ledger(file: Path, text: str, as_json: bool) -> int:
    """A line for each agent of a ledger, and what such a sum is."""
    from dpaudit.files.ledger_file import CUT_OFF, counted_lines, read_ledger
    from dpaudit.ledger import verified

    lines, is_cut_off = counted_lines(text.encode())
    budget, _ = read_ledger(lines, file)
    if is_cut_off:
        complain(f"{file}: {CUT_OFF}", "warning")
    return _print_sums(file, budget, list(verified.totals(lines.decode())), [], as_json)


def _declaration(file: Path, content: dict[str, Any], as_json: bool) -> int:
    """The certificate of a ledger: its sums, derived from its entries."""
    from dpaudit.files import certificate
    from dpaudit.files.ledger_file import to_line
    from dpaudit.ledger import verified
    from dpaudit.verify.figures import Flaw

    _refuse_malformed(file, content)
    try:
        flaws = [
            Flaw(*change, True) for change in certificate.declaration_changes(content, file.parent)
        ]
    except (OSError, TypeError, ValueError) as error:
        raise RunError("DPA011", f"{file}: not a certificate of a ledger ({error!r})") from None
    stated = certificate.Declaration.model_validate(content)
    lines = to_line(stated.budget) + b"".join(map(to_line, stated.entries))
    found = list(verified.totals(lines.decode()))
    agents = [one.agent for one in stated.sums] + [one.agent for one in found]
    for agent in dict.fromkeys(agents):
        here = [(one.releases, one.epsilon) for one in found if one.agent == agent]
        there = [(one.releases, one.epsilon) for one in stated.sums if one.agent == agent]
        if [n for n, _ in here] != [n for n, _ in there] or not all(
            isclose(a, b, rel_tol=verified.TOLERANCE)
            for (_, a), (_, b) in zip(here, there, strict=True)
        ):
            flaws.append(Flaw("sums", f"{there} of agent {agent}; its entries give {here}", True))
    if stated.meaning != certificate.DECLARATION:
        flaws.append(Flaw("meaning", "not what a declaration means", True))
    return _print_sums(file, stated.budget, found, flaws, as_json)


def _print_sums(
    file: Path,
    budget: "Budget",
    found: "Sequence[AgentTotal]",
    flaws: "Sequence[Flaw]",
    as_json: bool,
) -> int:
    """A line for each agent of a ledger, and what such a sum is."""
    limit = f"{budget.epsilon:g} at delta {budget.delta:g}"
    holds = all(one.holds for one in found) and not flaws
    answer = "confirmed" if holds else "contradicted"
    if as_json:
        totals = [{**one._asdict(), "epsilon": _finite(one.epsilon)} for one in found]
        lists = {"totals": totals, "flaws": [f._asdict() for f in flaws]}
        say_json(json.dumps({"answer": answer, "kind": "declaration", **lists}, indent=2))
        return EXIT[answer]
    for one in found:
        whose = "agents that it does not name" if one.agent is None else f'agent "{one.agent}"'
        whose = "all releases" if len(found) == 1 else whose
        side = "at most" if one.holds else "above"
        say(f"{whose}: {one.releases:,} add up to epsilon {one.epsilon:.4g}, {side} {limit}")
    for flaw in flaws:
        say(_line(flaw))
    say(f"{file}: {answer}. A ledger is what a program declares: no audit examined it.")
    return EXIT[answer]


def _finite(value: float) -> float | str:
    """A number of JSON, or its text where JSON has none: as audit.json writes it."""
    return value if isfinite(value) else str(value)


def _replayed(folder: Path, count: int, device: Device, data_root: Path | None) -> list[Any]:
    """What differs in rounds that are played again."""
    if not folder.is_dir():
        raise RunError("DPA019", f"{folder}: not a folder; --replay needs the run directory")
    from dpaudit.files.result import AuditResult
    from dpaudit.pipeline.replay import replay

    result = AuditResult.read(folder / "audit.json")
    with progress_bars(False) as on_progress, one_step(on_progress, "playing rounds again"):
        return replay(folder, result, count, runtime_of(device, data_root, 1, None))


def _line(flaw: Any) -> str:
    how = "does not follow" if flaw.contradicted else "not checkable"
    return f"{flaw.where}: {how}: {flaw.what}"


def _content(file: Path, text: str) -> dict[str, Any]:
    try:
        result = documents.json_from(text)
    except ValueError as error:
        raise _unreadable(file, text, error) from None
    if not isinstance(result, dict) or not {"format", "schema_version"} & {*result}:
        raise RunError("DPA011", f"{file}: {EXPECTED}, found another JSON file")
    if "format" in result:
        found = result["format"], result.get("format_version")
        if found not in ((CERTIFICATE, 1), (DECLARATION, 1)):
            said = f"{found[0]!r}, format_version {found[1]!r}"
            raise RunError(
                "DPA010", f"{file}: {said}; dpaudit verify reads certificates of version 1"
            )
        if found[0] == DECLARATION:
            return result
    version = result.get("schema_version")
    if version != 3:
        raise RunError(
            "DPA010",
            f"{file}: schema_version {version!r}; dpaudit verify reads version 3",
            "run the audit again",
        )
    return result
