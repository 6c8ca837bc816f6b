"""HTML pages as trees, and small results to render."""

import struct
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

from dpaudit.files.finding import Finding, Metric, Role
from dpaudit.files.recorded import RecordedDraw, RecordedEvent, SentTensor
from dpaudit.files.result import AuditResult, EpsilonRange, Premise, PremiseName
from dpaudit.files.verdict import Verdict

GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"

HOSTILE = """"><script>hacked=1</script><img src=x onerror=hacked=1>' {{ 7 }} $\\frac{$ <!-- --> &lt; ]]>"""

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Element:
    def __init__(self, tag: str, attributes: dict[str, str], parent: "Element | None") -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.content: list[Element | str] = []

    def every(self, tag: str | None = None) -> "Iterator[Element]":
        for part in self.content:
            if isinstance(part, Element):
                if tag in (None, part.tag):
                    yield part
                yield from part.every(tag)

    def text(self, without: frozenset[str] = frozenset()) -> str:
        parts = (
            part if isinstance(part, str) else "" if part.tag in without else part.text(without)
            for part in self.content
        )
        return " ".join(" ".join(parts).split())

    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()


class Page(HTMLParser):
    """A page as a tree; an element that is closed out of turn or not at all is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.root = self.at = Element("", {}, None)
        self.feed(html)
        self.close()
        assert self.at is self.root, f"<{self.at.tag}> is never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.content.append(element)
        if tag not in VOID:
            self.at = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.at.content.append(Element(tag, {name: value or "" for name, value in attrs}, self.at))

    def handle_endtag(self, tag: str) -> None:
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.content.append(data)

    def by_id(self, name: str) -> Element:
        (found,) = (e for e in self.root.every() if e.attributes.get("id") == name)
        return found


def visible(page: Page) -> str:
    return page.root.text(without=frozenset({"style", "svg", "head", "script"}))


def png(seed: int, width: int = 17, height: int = 8) -> bytes:
    """A grey PNG of that size whose content depends on the seed."""
    rows = b"".join(
        b"\0" + bytes((seed * 37 + i) % 256 for i in range(width)) for _ in range(height)
    )
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def with_findings(result: AuditResult, *findings: Finding, **changes: Any) -> AuditResult:
    return result.model_copy(update={"findings": findings, "claims": (), "utility": {}, **changes})


def with_premises(result: AuditResult, verdict: Verdict, *statuses: str) -> AuditResult:
    """Every claim with a range of epsilon, and a premise of each status."""
    names = get_args(PremiseName)
    fields = {
        "verdict": verdict,
        "range": EpsilonRange(certified=0.5, accounted=0.75, measured=0.8125),
        "premises": tuple(
            Premise(name=name, status=status, says=f"says of {name}")
            for name, status in zip(names, statuses, strict=False)
        ),
    }
    claims = tuple(claim.model_copy(update=fields) for claim in result.claims)
    return result.model_copy(update={"claims": claims, "verdict": verdict})


def small_finding(**changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "role": Role.RECONSTRUCTION,
        "kind": "reconstruction",
        "title": "x, batch of 1",
        "attack": "gradient-inversion",
        "threat_model": "eavesdropper",
        "message": "x",
        "rounds": (3,),
        "world": "defense",
        "batch_size": 1,
        "metrics": {"ssim": Metric(value=0.25, low=0.125, high=0.375, n=8)},
    }
    return Finding(**(fields | changes))


def hostile(value: Any) -> Any:
    """A result's content with every free text replaced, and every path kept."""
    if isinstance(value, dict):
        kept = {"role", "kind", "world", "verdict", "artifacts", "scope", "adjacency"}
        return {k: v if k in kept else hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(part) for part in value]
    return HOSTILE if isinstance(value, str) and value not in ("inf", "-inf", "nan") else value


EVENT = RecordedEvent(
    process=0,
    rank=0,
    sequence=0,
    time=0,
    operator="send",
    call_site=f"{HOSTILE}.py:7",
    occurrence=0,
    group=(0, 1, 2),
    tag=0,
    source=2,
    destinations=(0, 1),
    round=3,
    tensors=(SentTensor(name="0", shape=(2, 5), dtype="bfloat16", file="f", key="0", sha256="0"),),
    inconsistent=True,
)
DRAW = RecordedDraw(
    process=0,
    rank=2,
    sequence=1,
    time=0,
    operator="normal_",
    call_site="train.py:63",
    occurrence=0,
    round=3,
    shape=(10,),
    dtype="float32",
    parameters=(0.0, None),
)
