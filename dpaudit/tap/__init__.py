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

import os
import threading
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from dpaudit.files.world import RANKS, WORLD, Noise

if TYPE_CHECKING:
    from .player import Player
    from .rank import RankPlayer

__all__ = ["batch", "noise", "send"]
Value = TypeVar("Value")
_starting = threading.Lock()


def batch(agent: int, records: Value) -> Value:
    """The records that an agent's next step is computed on, to be called once for each batch.

    Args:
        agent: 0, 1, ...
        records: a tensor or array [n, ...], or a tuple, list or dict of such with one n. Integers
            are labels.
    """
    player = _player()
    return records if player is None else player.batch(agent, records)


def noise(agent: int, name: str, draw: Value, scale: float, family: Noise = "gaussian") -> Value:
    """The noise that is added, to be called once for each draw.

    Args:
        draw: a tensor or array of independent numbers.
        scale: their standard deviation; of Laplace noise its scale b.
    """
    player = _player()
    return draw if player is None else player.noise(agent, name, draw, scale, family)


def send(source: int, destinations: int | Sequence[int], name: str, value: Value) -> Value:
    """What the receivers get, to be called once for each message.

    The k-th message of a name from one agent to the same receivers is that of round k.
    """
    player = _player()
    if player is not None:
        to = (destinations,) if isinstance(destinations, int) else tuple(destinations)
        player.send(source, to, name, value)
    return value


def _player() -> "Player | RankPlayer | None":
    if WORLD not in os.environ:
        return None
    if RANKS in os.environ:
        from .rank import here

        return here()
    with _starting:  # threads have one player
        return _started(os.environ[WORLD], os.getpid())


@cache
def _started(world: str, process: int) -> "Player":
    """The player of a process; a fork does not have that of its parent."""
    from .player import Player

    return Player.started(world)


if RANKS in os.environ:
    import torch  # noqa: F401  # its hooks seed the process, which the program does after this
