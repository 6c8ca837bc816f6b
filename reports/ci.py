"""A check as JUnit XML, SARIF 2.1.0, a Markdown job summary and GitHub annotations."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from itertools import groupby
from math import isinf
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from dpaudit.codes import entries, help_for, page
from dpaudit.errors import Problem
from dpaudit.files.claims_file import CheckReport, Statement
from dpaudit.files.finding import Metric
from dpaudit.files.verdict import MEANING, Verdict
from dpaudit.text import one_line, whole_line

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
LEVELS = {"error": "error", "fails": "error", "warning": "warning"}
STRICT_LEVELS = LEVELS | {"warning": "error"}


def junit(report: CheckReport, strict: bool = False) -> str:
    """JUnit XML: a suite for each check, a case for each statement.

    The statements of a check come of one audit: each has an equal share of its seconds.
    """
    failing = ("fails", "warning") if strict else ("fails",)

    def counts(cases: Sequence[Statement]) -> dict[str, str]:
        failed = sum(s.outcome in failing for s in cases)
        errors = sum(s.outcome == "error" for s in cases)
        return {"tests": str(len(cases)), "failures": str(failed), "errors": str(errors)}

    root = ElementTree.Element("testsuites", counts(report.statements))
    for check in report.checks:
        cases = [s for s in report.statements if s.check == check.name]
        skipped = 0 if strict else sum(s.outcome == "warning" for s in cases)
        own = {"name": one_line(check.name), "skipped": str(skipped)}
        suite = ElementTree.SubElement(
            root, "testsuite", counts(cases) | own, time=f"{check.seconds:.3f}"
        )
        for s in cases:
            name = f"{s.subject} against {s.adversary}" if s.adversary else s.subject
            about = {"name": one_line(name), "classname": one_line(s.check)}
            share = f"{check.seconds / len(cases):.3f}"
            case = ElementTree.SubElement(suite, "testcase", about, time=share)
            message = one_line(s.message)
            if s.outcome in failing:
                own = {"message": message, "type": one_line(s.verdict)}
                failure = ElementTree.SubElement(case, "failure", own)
                failure.text = f"{message} [{s.code}] help: {_to_do(s)}"
            elif s.outcome == "error":
                error = ElementTree.SubElement(case, "error", message=message, type=s.code)
                error.text = f"help: {_to_do(s)}"
            elif s.outcome == "warning":
                ElementTree.SubElement(case, "skipped").text = f"{message} ({s.code})"
            else:
                ElementTree.SubElement(case, "system-out").text = message
    return _document(root)


def junit_of_problems(claims_file: str, problems: Sequence[Problem], seconds: float = 0.0) -> str:
    """JUnit XML of a check that could not be run: an error for each problem.

    Args:
        seconds: that it took; each problem has an equal share of them.
    """
    share = f"{seconds / max(1, len(problems)):.3f}"
    counts = {"tests": str(len(problems)), "failures": "0", "errors": str(len(problems))}
    root = ElementTree.Element("testsuites", counts)
    own = {"name": one_line(claims_file), "time": f"{seconds:.3f}"}
    suite = ElementTree.SubElement(root, "testsuite", counts, **own)
    for problem in problems:
        message, name = one_line(problem.text), one_line(claims_file)
        case = ElementTree.SubElement(suite, "testcase", name=message, classname=name, time=share)
        error = ElementTree.SubElement(case, "error", message=message, type=problem.code)
        error.text = f"help: {help_for(problem.code, problem.help)}"
    return _document(root)


def _document(root: ElementTree.Element) -> str:
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def sarif(report: CheckReport, strict: bool = False) -> str:
    """SARIF 2.1.0: a result for each statement that does not hold, at its line.

    Args:
        strict: whether warnings are errors.
    """
    levels = STRICT_LEVELS if strict else LEVELS
    shown = [s for s in report.statements if s.outcome in LEVELS]
    codes = sorted({s.code for s in shown})
    results = [
        _sarif_result(s, codes.index(s.code), report.claims_file) | {"level": levels[s.outcome]}
        for s in shown
    ]
    return sarif_log(codes, results, report.exit_code(strict), report.version)


def sarif_log(
    codes: Sequence[str], results: Sequence[Mapping[str, Any]], exit_code: int, version: str
) -> str:
    """A log of SARIF 2.1.0, whose rules are codes of dpaudit with their pages."""
    driver = {
        "name": "dpaudit",
        "semanticVersion": version,
        "rules": [
            {
                "id": code,
                "name": entry.title,
                "shortDescription": {"text": entry.title},
                "fullDescription": {"text": f"{entry.meaning} {entry.why}"},
                "help": {"text": help_for(code), "markdown": page(code)},
            }
            for code in codes
            for entry in [entries()[code]]
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": exit_code < 2, "exitCode": exit_code}],
        "results": results,
    }
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2) + "\n"


def sarif_text(text: str) -> dict[str, str]:
    """A message as plain text, in which "[text](address)" would be a link (3.11.6)."""
    return {"text": one_line(text).replace("](", "] (")}


def sarif_place(file: str, **region: int) -> list[dict[str, Any]]:
    """Where a result is: a file, and a region of it if one is given."""
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(one_line(file.replace("\\", "/")))}}
    if region:
        place["region"] = region
    return [{"physicalLocation": place}]


def markdown(report: CheckReport, pictures: Mapping[str, str], strict: bool = False) -> str:
    """A job summary: what is said of each claim and limit, then the key figures of each audit.

    Args:
        report: the check.
        pictures: by check, where its picture is, relative to the summary.
        strict: whether warnings are errors.
    """
    failed = sum(s.outcome == "fails" for s in report.statements)
    warned = sum(s.outcome == "warning" for s in report.statements)
    errors = sum(s.outcome == "error" for s in report.statements)
    title = f"## dpaudit: {failed} of {len(report.statements) - errors} statements fail, "
    title += f"{warned} warning{'s' * (warned != 1)}"
    if strict and warned:
        title += ", which --strict counts as errors" if warned > 1 else ", an error by --strict"
    lines = [title + (f", {errors} could not be checked" if errors else ""), ""]
    order = ("error", "fails", "warning", "holds")
    ordered = sorted(report.statements, key=lambda s: order.index(s.outcome))
    failing = (s for s in ordered if s.outcome in ("error", "fails"))
    for _, alike in groupby(failing, lambda s: (s.check, s.verdict, s.cause, _to_do(s))):
        lines += [*_failure(list(alike)), ""]
    others = [
        (s.outcome, s.check, s.subject, s.adversary, s.verdict, s.message)
        for s in ordered
        if s.outcome in ("warning", "holds")
    ]
    if others:
        header = ("", "check", "about", "adversary", "verdict", "in one sentence")
        lines += markdown_table(header, others)
    for check in report.checks:
        if not check.figures and not check.report:
            continue  # it could not be made
        where = "unchanged, from the cache" if check.cached else f"{check.seconds:.0f} s"
        lines += ["", f"### Figures of {markdown_cell(check.name)} ({where})", ""]
        if check.figures:
            rows = [(one.name, _number(one.now), _number(one.before)) for one in check.figures]
            lines += markdown_table(("key figure", "now", "baseline"), rows)
        if check.name in pictures:
            caption = "The defended reconstruction that comes closest to the truth"
            lines += ["", f"![{caption}]({quote(pictures[check.name])})", "", f"{caption}."]
    meanings = [v for v in Verdict if any(s.verdict == v for s in report.statements)]
    lines += ["", *(f"*{verdict}*: {MEANING[verdict]}" for verdict in meanings)]
    return "\n".join(lines) + "\n"


def _failure(alike: Sequence[Statement]) -> Iterator[str]:
    """The cause, the figures, then what to do: a paragraph each."""
    first, several = alike[0], len(alike) > 1
    yield f"### {markdown_cell(f'{first.check}: {first.verdict}')}"
    if first.cause:
        yield f"\n**{markdown_cell(first.cause)}.**"
    yield ""
    for s in alike:
        said = markdown_cell(s.message.removeprefix(f"{s.cause}. "))
        yield f"- {said}" if several else said
    yield f"\nWhat to do: {markdown_cell(_to_do(first))}."


def _to_do(s: Statement) -> str:
    return help_for(s.code, s.remedy)


def _with_advice(s: Statement) -> str:
    """What is said, and the advice that is not that of the code's page."""
    return f"{s.message} What to do: {s.remedy}" if s.remedy else s.message


def annotations(report: CheckReport, strict: bool = False) -> list[str]:
    """GitHub's workflow commands for all that does not hold; ``strict``: warnings are errors."""
    levels = STRICT_LEVELS if strict else LEVELS
    return [
        f"::{levels[s.outcome]} file={_property(report.claims_file)},line={s.line},"
        f"title={_property(f'{s.check}: {s.verdict} ({s.code})')}::{_data(_with_advice(s))}"
        for s in report.statements
        if s.outcome in LEVELS
    ]


def plain(report: CheckReport) -> Iterator[str]:
    """One line for each statement but errors, whatever is in it."""
    for s in report.statements:
        if s.outcome == "error":
            continue
        code = "" if s.outcome == "holds" else f" [{s.code}]"
        yield whole_line(f"{s.outcome.upper():8}{s.check}: {s.message}{code}")


def _sarif_result(statement: Statement, rule: int, claims_file: str) -> dict[str, Any]:
    identity = "\0".join((statement.check, statement.about, statement.subject, statement.adversary))
    return {
        "ruleId": statement.code,
        "ruleIndex": rule,
        "message": sarif_text(_with_advice(statement)),
        "locations": sarif_place(claims_file, startLine=statement.line),
        "partialFingerprints": {"dpaudit/v1": sha256(one_line(identity).encode()).hexdigest()[:16]},
        "properties": {
            "check": one_line(statement.check),
            "adversary": one_line(statement.adversary),
            "verdict": one_line(statement.verdict),
        },
    }


def _number(metric: Metric | None) -> str:
    if metric is None:
        return ""
    value = "infinite" if isinf(metric.value) else f"{metric.value:.4g}"
    if metric.low is None or metric.high is None:
        return value
    ends = f"{metric.low:.4g} to {metric.high:.4g}"
    return value if ends == f"{value} to {value}" else f"{value} ({ends})"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, whatever text is in its cells."""
    return table_lines([[markdown_cell(text) for text in row] for row in (header, *rows)])


def table_lines(table: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, of which the first row is the header, as its cells are written."""
    rows = table[0], ["---"] * len(table[0]), *table[1:]
    return [f"| {' | '.join(row)} |" for row in rows]


def markdown_cell(text: str) -> str:
    """Text that Markdown and HTML leave alone."""
    shown = escape(one_line(text), quote=False)
    shown = re.sub(r"([\\`*_{}\[\]|#!~])", r"\\\1", shown)
    return shown.replace("://", "&#58;//").replace("www.", "www&#46;")  # GitHub's automatic links


def _data(text: str) -> str:
    return whole_line(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
