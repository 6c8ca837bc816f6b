"""One self-contained HTML page from an audit.json: formatting, and no arithmetic beyond it.

The page loads nothing: style, drawings and images are inside it, and one script of our own, which
its content security policy allows by its hash alone. All text is escaped, and shows what is unseen.
"""

import base64
import hashlib
import math
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dpaudit.codes import entries
from dpaudit.errors import RunError
from dpaudit.files.finding import Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import MEANING
from dpaudit.text import lines

from .claims import PREMISES, SIGNS, next_step, noticed
from .figures.graph import graph_drawing
from .numbers import (
    as_json,
    at_least,
    at_most,
    estimate,
    exact,
    hundredths,
    metric_name,
    number,
    span,
)
from .reconstructions import metric_names
from .run import Run
from .tables import CROWD, filled

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TABLE = 300  # rows behind a figure


def render(result: AuditResult, run_directory: Path) -> str:
    """One audit as one HTML page; an artifact that is missing is said to be, in its place.

    Args:
        result: what audit.json holds.
        run_directory: the folder to which the artifacts' paths in the findings are relative.

    Raises:
        DpauditError: an artifact's path leads out of the run directory.
    """
    page = pages().get_template("audit.html.j2")
    digest = _digest(result, run_directory)  # dpaudit verify compares it
    return lines(page.render(run=Run("", 0, result, run_directory), digest=digest))


def _digest(result: AuditResult, run_directory: Path) -> str:
    """SHA-256 of the audit.json of the run, if it holds this result; else of what it will be.

    One of an earlier version has other bytes than this version would write.
    """
    content = result.to_json()
    file = run_directory / "audit.json"
    try:
        same = file.is_file() and AuditResult.read(file).to_json() == content
    except RunError:
        same = False
    return hashlib.sha256(file.read_bytes() if same else content.encode()).hexdigest()


def script_hash(script: str) -> str:
    """The hash by which a content security policy allows a script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def pages() -> Environment:
    """The templates, with all text escaped."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        number,
        at_least,
        at_most,
        hundredths,
        estimate,
        span,
        metric_name,
        as_json,
        exact,
        filled,
    )
    found.filters |= {f.__name__: f for f in filters} | {"is_infinite": math.isinf}
    script = (TEMPLATES / "audit.js").read_text(encoding="utf-8")
    found.globals |= {
        "script": Markup(script),
        "script_hash": script_hash(script),
        "css": Markup((TEMPLATES / "audit.css").read_text(encoding="utf-8")),
        "wide_css": Markup((TEMPLATES / "comparison.css").read_text(encoding="utf-8")),
        "longest_table": LONGEST_TABLE,
        "meaning": MEANING,
        "pages_of_codes": entries(),
        "next_step": next_step,
        "noticed": noticed,
        "premises": PREMISES,
        "premise_signs": SIGNS,
        "Role": Role,
        "metric_names": metric_names,
        "Name": Name,
        "graph_drawing": graph_drawing,
        "most_agents": CROWD,
    }
    return found
