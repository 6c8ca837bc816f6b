"""Four lines that make a simulation of many agents auditable, and change nothing otherwise.

In a program whose processes are the agents messages are seen without them, and the agent is the
rank.

    from dpaudit_recorder import tap  # or: from dpaudit import tap

    x, y = tap.batch(agent, (x, y))                      # the records of one step
    noise = tap.noise(agent, "noise", noise, sigma)      # the noise that hides them
    message = tap.send(agent, neighbours, "x", message)  # what is sent

Without an audit each hands back what it was given. In the runs of an audit (`dpaudit audit
captured.toml`) messages are recorded, draws are replayed by name, and one record differs between
neighbouring worlds. Tensors of torch, arrays of NumPy and JAX, numbers and lists of numbers alike;
what comes back is of the kind that was given.
"""

from __future__ import annotations

import math
import operator
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import RecorderError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from .player import Player

__all__ = ["batch", "noise", "send"]
Value = TypeVar("Value")
STARTED = f"{__package__}.start"  # the module that dpaudit starts in a process it records
FAMILIES = ("gaussian", "laplace")
MOST_AGENTS = 2**31  # their numbers are below that


def batch(agent: SupportsIndex, records: Value) -> Value:
    """The records that an agent's next step is computed on, to be called once for each batch.

    Args:
        agent: 0, 1, ..., as an int or an integer of NumPy or torch.
        records: a tensor or array [n, ...], or a list of n lists of numbers, each of which is a
            record; or a tuple or dict of such with one n. Integers are labels.
    """
    player = _player()
    return records if player is None else player.batch(_agent("batch", agent), records)


def noise(
    agent: SupportsIndex, name: str, draw: Value, scale: float, family: str = "gaussian"
) -> Value:
    """The noise that is added, to be called once for each draw.

    Args:
        draw: a tensor or array of independent numbers, a number, or a list of numbers; or a list,
            tuple or dict of such, as of the layers of a model.
        scale: their standard deviation; of Laplace noise its scale b. 0 where there is no noise.
        family: "gaussian" or "laplace".
    """
    player = _player()
    if player is None:
        return draw
    if family not in FAMILIES:
        raise RecorderError("DPA061", f"tap.noise: expected one of {FAMILIES}; got {family!r}")
    return player.noise(_agent("noise", agent), str(name), draw, _scale(scale, draw), family)


def send(
    source: SupportsIndex,
    destinations: SupportsIndex | Sequence[SupportsIndex],
    name: str,
    value: Value,
) -> Value:
    """What the receivers get, to be called once for each message.

    ``destinations`` is one agent or several: an int, or a list, tuple, range, array or tensor.
    ``value`` is a tensor, an array, a number, bytes, or a list or dict of such.

    The k-th message of a name from one agent to the same receivers is that of round k.
    """
    player = _player()
    if player is not None:
        player.send(_agent("send", source), _agents(destinations), str(name), value)
    return value


def _agent(call: str, given: SupportsIndex) -> int:
    """The number of an agent. Raises RecorderError for what is none."""
    try:
        number = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = -1
    if not 0 <= number < MOST_AGENTS:
        raise RecorderError(
            "DPA061", f"tap.{call}: expected an agent's number, 0, 1, ...; got {given!r}"
        )
    return number


def _scale(given: Any, draw: Any) -> float:
    """Raises RecorderError for what is no scale, or for numbers of scale 0 that are not 0."""
    try:
        scale = float(given)
    except (TypeError, ValueError):
        scale = math.nan
    if not 0 <= scale < math.inf:
        got = type(given).__name__ if math.isnan(scale) else f"{scale:g}"
        raise RecorderError("DPA061", f"tap.noise: expected one scale, 0 or more; got {got}")
    if scale == 0 and _is_not_0(draw):
        raise RecorderError("DPA061", "tap.noise: the scale is 0, and the numbers are not")
    return scale


def _is_not_0(part: Any) -> bool:
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        return any(map(_is_not_0, part))
    found = part != 0
    return bool(found.any() if hasattr(found, "any") else found)


def _agents(given: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """The numbers of one agent or of several, as a list, a tuple, an array or a tensor."""
    if isinstance(given, str) or getattr(given, "ndim", None) == 0 or not hasattr(given, "__len__"):
        return (_agent("send", given),)  # type: ignore[arg-type]
    return tuple(_agent("send", one) for one in given)  # type: ignore[union-attr]


def _player() -> Player | None:
    """What this process was started with; None in one that is not recorded."""
    started: Any = sys.modules.get(STARTED)
    return None if started is None else started.player_here()
