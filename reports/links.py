"""Where a link to a finding or a claim leads: names made of what it is, not of where it stands."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from dpaudit.files.finding import Finding
from dpaudit.files.result import JudgedClaim

LONGEST = 40  # characters of a title in an address


def finding_links(findings: Iterable[Finding], claims: Sequence[JudgedClaim]) -> list[str]:
    """For each finding a name that stays when others are added and when its numbers change."""
    words = {claim.claim: claim.text for claim in claims}
    return _apart(
        _name(
            "finding", f.title, f.role, f.attack, f.threat_model, f.message, f.adjacency, f.rounds,
            f.world, f.batch_size, None if f.claim is None else words.get(f.claim),
        )
        for f in findings
    )  # fmt: skip


def claim_links(claims: Iterable[JudgedClaim]) -> list[str]:
    """For each claim, against its adversary."""
    return _apart(_name("claim", c.threat_model, c.sentence, c.text) for c in claims)


def _name(kind: str, title: str, *parts: object) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower())[:LONGEST].strip("-")
    digest = hashlib.sha256(repr((title, *parts)).encode("utf-8", "backslashreplace"))
    return "-".join(part for part in (kind, slug, digest.hexdigest()[:8]) if part)


def _apart(names: Iterable[str]) -> list[str]:
    """What has the same name is counted, in its order."""
    seen = Counter[str]()
    told = []
    for name in names:
        seen[name] += 1
        told.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return told
