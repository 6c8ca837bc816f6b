"""Whether the report beside an audit.json was made from it, and shows its verdicts."""

import hashlib
import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpaudit.verify.figures import Flaw

DIGEST = re.compile(r'<meta name="audit-json" content="sha256-([0-9a-f]{64})">')
LARGEST = 500_000_000  # bytes of a report that is read


def flaws(result: Mapping[str, Any], file: Path) -> Iterator[Flaw]:
    """What is wrong with report.html in the folder of ``file``; nothing if there is none."""
    page = file.parent / "report.html"
    if not page.is_file():
        return
    if page.stat().st_size > LARGEST:
        yield Flaw("report.html", "it is too large to be read", False)
        return
    text = page.read_text("utf-8", errors="replace")
    if DIGEST.findall(text) != [hashlib.sha256(file.read_bytes()).hexdigest()]:
        yield Flaw("report.html", "it was not made from this audit.json", True)
    shown = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())
    for claim in result["claims"]:
        for part in (str(claim["verdict"]), str(claim["reason"])):
            plain = part.isascii() and part.isprintable()  # a report shows other signs escaped
            if plain and " ".join(part.split()) not in shown:
                yield Flaw("report.html", f"it does not show: {part}", True)
