"""What `dpaudit lint` found, as lines, JSON and SARIF 2.1.0."""

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from dpaudit.codes import entries, help_for
from dpaudit.files.hint import Hint, LintResult
from dpaudit.text import one_line
from dpaudit.version import __version__

from .ci import sarif_log, sarif_place, sarif_text


def text(linted: LintResult) -> Iterator[str]:
    """A line for each hint, one for each rule with what would confirm it, and the number."""
    for hint in linted.hints:
        yield f"{hint.place}: {hint.code} {hint.message}"
    for code in sorted({hint.code for hint in linted.hints}):
        yield f"{code}: to confirm it: {entries()[code].confirm}"
        yield f"  help: {help_for(code)}"
    n = len(linted.hints)
    files = f"{linted.n_files:,} file{'s' * (linted.n_files != 1)}"
    yield f"{n} hint{'s' * (n != 1)} in {files}; a hint is no verdict"


def to_json(linted: LintResult) -> str:
    """The hints with their titles and what would confirm each, and what was not examined."""
    content = {
        "schema_version": 1,
        "dpaudit": __version__,
        "n_files": linted.n_files,
        "hints": [
            hint._asdict() | {"title": entry.title, "confirm": entry.confirm}
            for hint in linted.hints
            for entry in [entries()[hint.code]]
        ],
        "not_examined": [{"path": one.path, "reason": one.reason} for one in linted.unread],
    }
    return json.dumps(content, indent=2) + "\n"


def sarif(linted: LintResult, exit_code: int) -> str:
    """SARIF 2.1.0: a result of level "note" for each hint."""
    codes = sorted({hint.code for hint in linted.hints})
    results = [_result(hint, codes.index(hint.code)) for hint in linted.hints]
    return sarif_log(codes, results, exit_code, __version__)


def _result(hint: Hint, rule: int) -> dict[str, Any]:
    region = {} if hint.cell else {"startLine": hint.line, "startColumn": hint.column}
    where = f" (cell {hint.cell}, line {hint.line})" if hint.cell else ""
    confirm = entries()[hint.code].confirm
    identity = "\0".join((hint.path, hint.code, hint.message))
    return {
        "ruleId": hint.code,
        "ruleIndex": rule,
        "level": "note",
        "message": sarif_text(f"{hint.message}{where}. To confirm it: {confirm}"),
        "locations": sarif_place(hint.path, **region),
        "partialFingerprints": {"dpaudit/v1": sha256(one_line(identity).encode()).hexdigest()[:16]},
    }
