"""What changed in a claims file since its baseline was written: keys of audits, and limits."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from dpaudit.files.claims_file import Check, Threshold
from dpaudit.files.file_problems import FileKey

Content = Mapping[str, Any]
SHOWN = 60  # characters of a value


def as_written(audit: Content) -> dict[str, Any]:
    """An audit as it is written, without its seed; of a data file's path only the name."""
    written = {key: value for key, value in audit.items() if key != "seed"}
    data = written.get("data")
    if isinstance(data, dict) and "path" in data:
        written["data"] = {**data, "path": PurePath(str(data["path"])).name}
    return written


def kept(audit: Content) -> dict[str, Any]:
    """The same as JSON has it: dates and infinite numbers are their texts."""
    found: dict[str, Any] = _finite(json.loads(json.dumps(as_written(audit), default=str)))
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class ChangedKey(NamedTuple):
    """A key of an audit that is another one now; None: it is not there."""

    key: FileKey
    before: Any
    now: Any

    @property
    def sentence(self) -> str:
        """What it was, and what it is."""
        return f"it was {_shown(self.before)} and is {_shown(self.now)}"


def changes(before: Any, now: Any, key: FileKey = ()) -> Iterator[ChangedKey]:
    """The innermost keys that differ, in the order of the file."""
    if isinstance(before, dict) and isinstance(now, dict):
        for one in dict.fromkeys((*now, *before)):
            yield from changes(before.get(one), now.get(one), (*key, one))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from changes(one, other, (*key, i))
    elif before != now or type(before) is not type(now):
        yield ChangedKey(key, before, now)


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


class LoosenedLimit(NamedTuple):
    """A limit that allows more than it did; ``at`` is None where it is gone."""

    at: int | None  # among those of the check
    about: str
    before: float | str
    now: float | str | None

    @property
    def sentence(self) -> str:
        """Which limit it is, and what became of it."""
        became = "is gone" if self.now is None else f"is {_number(self.now)} now"
        return f'the baseline has the limit "{self.limit}", which {became}'

    @property
    def limit(self) -> str:
        """The limit as it was."""
        return f"{self.about} {_number(self.before)}"


def loosened(
    before: tuple[Threshold, ...], significance: float | None, check: Check
) -> Iterator[LoosenedLimit]:
    """The limits of a baseline that a check lacks, or of which it allows more.

    A limit is the same if all that selects its findings is. Of several on one metric, the strictest
    counts. "claim" and a number cannot be compared: one in place of the other is said.
    """
    now: dict[str, tuple[int, Threshold]] = {}
    for i, threshold in enumerate(check.threshold):
        other = now.get(_selector(threshold))
        if other is None or _allows_more(_limit(other[1]), _limit(threshold), threshold):
            now[_selector(threshold)] = i, threshold
    for old in before:
        found = now.get(_selector(old))
        if found is None:
            yield LoosenedLimit(None, _about(old), _limit(old), None)
        elif _allows_more(_limit(found[1]), _limit(old), old):
            yield LoosenedLimit(found[0], _about(old), _limit(old), _limit(found[1]))
    if significance is not None and check.significance < significance:
        yield LoosenedLimit(None, "significance", significance, check.significance)


def _selector(threshold: Threshold) -> str:
    """All of a limit but its number."""
    which = threshold.model_dump(mode="json", exclude={"at_most", "at_least"})
    return json.dumps([which, threshold.at_most is None], sort_keys=True)


def _limit(threshold: Threshold) -> float | str:
    limit = threshold.at_least if threshold.at_most is None else threshold.at_most
    assert limit is not None
    return limit


def _allows_more(one: float | str, other: float | str, threshold: Threshold) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one != other
    return one < other if threshold.at_most is None else one > other


def _about(threshold: Threshold) -> str:
    """A limit without its number."""
    given = threshold.model_dump(exclude={"metric", "at_most", "at_least"}, exclude_none=True)
    given = {key: value for key, value in given.items() if (key, value) != ("world", "defense")}
    of = "".join(f", {key} {value}" for key, value in given.items())
    return f"{threshold.metric}{of} {'at least' if threshold.at_most is None else 'at most'}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
