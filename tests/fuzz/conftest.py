"""Changes to files, each from a generator: bytes, and the values, keys and depth of what they hold."""

import json
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel

from dpaudit.errors import MOST_LINES, DpauditError

SECONDS = 10
LONGEST = 500  # characters of a line
INPUTS = {  # how many of each format the fast suite makes; the slow one as many for each other seed
    **{"audit": 150, "claims": 150, "result": 150, "page": 10, "baseline": 150, "run": 100},
    **{"npz": 140, "idx": 140, "audit document": 150, "claims document": 100},
    **{"result document": 150, "capture": 110, "checkpoint": 100, "finding": 100, "curve": 100},
    **{"entry": 100, "ledger": 100},
}
TOKENS = (  # what may stand for a value in TOML or JSON, or in neither
    *("0", "-0.0", "-1", "1e300", "1e-320", "1e308", "-1e308", "1e400", "5e-324", "nan", "inf"),
    *("NaN", "Infinity", "null", "true", "false", '""', '"x"', '"inf"', '"nan"', '"1e300"', "[]"),
    *("{}", "[[]]", "[0]", '"a\\u0000b"', '"\\ud800"', '"\\u202e"', '"../../etc/passwd"', "2.5"),
    *(str(2**31), str(2**63 - 1), str(2**64), "9" * 400, "9" * 5000, f'"{"x" * 5000}"'),
    *("[" * 60 + "]" * 60, "[" * 3000, "1979-05-27", '"é\U0001f600"', "1e-100", "1e100", "7"),
)


def of_bytes(content: bytes, rng: Random) -> bytes:
    """Some bytes flipped, cut, repeated, put in or moved."""
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        i, j = sorted(rng.randrange(len(out) + 1) for _ in range(2))
        how = rng.randrange(6)
        if how == 0 and i < len(out):
            out[i] ^= 1 << rng.randrange(8)
        elif how == 1:
            del out[i:]
        elif how == 2:
            del out[i : min(j, i + 40)]
        elif how == 3:
            out[i:i] = out[i : min(j, i + 200)]
        elif how == 4:
            out[i:i] = rng.choice(
                (b"\0", b"\xff\xfe", b"\n", b'"', b"[", b"{", bytes(64), b"9" * 30)
            )
        elif i < len(out):
            out[i : i + 8] = rng.choice((b"\xff" * 8, bytes(8), rng.randbytes(8)))
    return bytes(out)


def of_toml(content: bytes, rng: Random) -> bytes:
    """Lines with other values, other keys, in other places, or twice."""
    lines = content.decode().splitlines()
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        i = rng.randrange(len(lines))
        key, equals, _ = lines[i].partition("=")
        how = rng.randrange(8)
        if how < 4 and equals:
            lines[i] = f"{key}= {rng.choice(TOKENS)}"
        elif how == 4:
            lines.insert(i, rng.choice(lines))
        elif how == 5 and len(lines) > 1:
            del lines[i]
        elif how == 6 and equals:
            lines[i] = f"{rng.choice(('x', 'a.b', key[::-1], 'é'))} ={lines[i].partition('=')[2]}"
        elif how == 7:
            lines.insert(
                i, f"{rng.choice(('name', 'n_rounds', 'path', 'x'))} = {rng.choice(TOKENS)}"
            )
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def of_json(content: bytes, rng: Random) -> bytes:
    """Values of other types, keys gone, renamed or twice, and branches in other places."""
    tree = json.loads(content)
    raw: dict[str, str] = {}
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        holder, key = rng.choice(places)
        how = rng.randrange(7)
        if how < 3:
            mark = f"@raw{len(raw)}@"
            raw[f'"{mark}"'], holder[key] = rng.choice(TOKENS), mark
        elif how == 3:
            del holder[key]
        elif how == 4:
            other, name = rng.choice(places)
            holder[key] = json.loads(json.dumps(other.get(name) if isinstance(other, dict) else 0))
        elif how == 5 and isinstance(holder, dict):
            holder[rng.choice(("x", "schema_version", "é", str(key) * 50))] = holder.pop(key)
        elif how == 6 and isinstance(holder, list):
            holder.extend(json.loads(json.dumps(holder[-3:])))
    text = json.dumps(tree)
    for mark, token in raw.items():
        text = text.replace(mark, token)
    if rng.random() < 0.05:
        text = text.replace("{", '{"seed": 1, "seed": 2, ', 1)
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    """Holder and key of each value of a tree, few of long lists."""
    if isinstance(value, dict):
        inside = list(value.items())
    else:
        inside = list(enumerate(value))[:4] if isinstance(value, list) else []
    for key, child in inside:
        yield value, key
        yield from _places(child)


class TooLong(BaseException):
    """An input took longer than ``SECONDS``."""


@contextmanager
def limited() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def numbers(value: Any) -> Iterator[float]:
    """All numbers in a value that was read."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for child in value:
            yield from numbers(child)
    elif isinstance(value, int | float):
        yield value


def wrong_with(read: Callable[[], Any]) -> str:
    """What is wrong with how an input is read; nothing if it is a value or a few lines."""
    try:
        with limited():
            value = read()
    except DpauditError as error:
        lines = str(error).splitlines()
        if not 0 < len(lines) <= MOST_LINES + 1 or max(map(len, lines)) >= LONGEST:
            return f"{len(lines)} lines of up to {max(map(len, lines), default=0)} characters"
    except TooLong:
        return f"took more than {SECONDS} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    else:
        if not all(math.isfinite(x) for x in numbers(value)):
            return "has a number that is not finite"
    return ""


@pytest.fixture
def mutations() -> dict[str, Callable[[bytes, Random], bytes]]:
    """Every change by its name."""
    return {"of_bytes": of_bytes, "of_toml": of_toml, "of_json": of_json}


@pytest.fixture
def inputs() -> Mapping[str, int]:
    """How many of each format."""
    return INPUTS


@pytest.fixture(autouse=True)
def _plugins_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.registry.entry_points", _entry_points)


_entry_points = cache(entry_points)


@pytest.fixture
def wrong() -> Callable[[Callable[[], Any]], str]:
    return wrong_with
