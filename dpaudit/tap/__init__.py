"""Four lines that make a simulation of many agents auditable, and change nothing otherwise.

In a program of torch.distributed messages are seen without them, and the agent is the rank.

    from dpaudit import tap

    x, y = tap.batch(agent, (x, y))                      # the records of one step
    noise = tap.noise(agent, "noise", noise, sigma)      # the noise that hides them
    message = tap.send(agent, neighbours, "x", message)  # what is sent

Without an audit each hands back what it was given. In the runs of an audit (`dpaudit audit
captured.toml`) messages are recorded, draws are replayed by name, and one record differs between
neighbouring worlds. Tensors and NumPy arrays alike; what comes back is of the kind that was given.
"""

import operator
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from dpaudit.errors import RunError
from dpaudit.files.world import RANKS, WORLD, Noise

if TYPE_CHECKING:
    from .player import TapPlayer

__all__ = ["batch", "noise", "send"]
Value = TypeVar("Value")
RECORDING = "_dpaudit_inside.start"  # the module that dpaudit capture starts in a process


def batch(agent: SupportsIndex, records: Value) -> Value:
    """The records that an agent's next step is computed on, to be called once for each batch.

    Args:
        agent: 0, 1, ..., as an int or an integer of NumPy or torch.
        records: a tensor or array [n, ...], or a tuple, list or dict of such with one n. Integers
            are labels.
    """
    player = _player()
    return records if player is None else player.batch(_agent("batch", agent), records)


def noise(
    agent: SupportsIndex, name: str, draw: Value, scale: float, family: Noise = "gaussian"
) -> Value:
    """The noise that is added, to be called once for each draw.

    Args:
        draw: a tensor or array of independent numbers.
        scale: their standard deviation; of Laplace noise its scale b.
    """
    player = _player()
    if player is None:
        return draw
    return player.noise(_agent("noise", agent), name, draw, scale, family)


def send(
    source: SupportsIndex,
    destinations: SupportsIndex | Sequence[SupportsIndex],
    name: str,
    value: Value,
) -> Value:
    """What the receivers get, to be called once for each message.

    ``destinations`` is one agent or several: an int, or a list, tuple, range, array or tensor.

    The k-th message of a name from one agent to the same receivers is that of round k.
    """
    player = _player()
    if player is not None:
        player.send(_agent("send", source), _agents(destinations), name, value)
    return value


def _agent(call: str, given: SupportsIndex) -> int:
    """The number of an agent. Raises RunError for what is none."""
    try:
        number = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = -1
    if number < 0:
        raise RunError(
            "DPA061", f"tap.{call}: expected an agent's number, 0, 1, ...; got {given!r}"
        )
    return number


def _agents(given: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """The numbers of one agent or of several, as a list, a tuple, an array or a tensor."""
    if isinstance(given, str) or getattr(given, "ndim", None) == 0 or not hasattr(given, "__len__"):
        return (_agent("send", given),)  # type: ignore[arg-type]
    return tuple(_agent("send", one) for one in given)  # type: ignore[union-attr]


def _player() -> "TapPlayer | None":
    recording: Any = sys.modules.get(RECORDING)
    if recording is None and WORLD not in os.environ:
        return None
    from . import player

    return player.here() if WORLD in os.environ else player.TapPlayer(recording.logs[0])


if RANKS in os.environ:
    import torch  # noqa: F401  # its hooks seed the process, which the program does after this
