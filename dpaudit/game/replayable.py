"""Can a round be played again? All randomness has to come from the noise that a step is handed.

An audit plays rounds with and without a record under the same noise, from checkpoints, and with
unit noise. Of a step that draws from a generator of its own none of that says anything: its noise
counts as an effect of the record, or as no noise. Nor can rounds be held against each other if
other data send other messages.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.transcript import Capture, refuse_other_messages
from dpaudit.errors import ConfigError
from dpaudit.rng import Streams

from .game import LENGTH
from .linearity import COORDINATES, RELATIVE, Everybody
from .tape import Overheard

FIRST = 2  # rounds that are played
DIFFERS = (
    "differs when it is played again with the same noise: step draws from a generator of its own, "
    "such as torch's or NumPy's; expected noise.gaussian or noise.laplace, which play again"
)


def refuse_own_randomness(defense: Defense, setting: Setting) -> None:
    """Play the first rounds twice, on a model of a few coordinates.

    What cannot be played at all is for the run itself to say.

    Raises:
        ConfigError: they differ, or a draw has no row for each agent or link.
    """
    try:
        one, other = (list(_played(defense, setting, LENGTH, 0)) for _ in range(2))
    except Exception:
        return
    for k, (here, there) in enumerate(zip(one, other, strict=True), start=1):
        for name, draw in here.draws.items():
            if draw.ndim < 2:
                raise ConfigError(
                    f'defense: the noise "{name}" of round {k} is drawn without rows; expected it '
                    "like a tensor [..., rows, d] with a row for each agent or link that draws; "
                    "where several share a draw, expand a row"
                )
        if here.values.keys() != there.values.keys():
            raise ConfigError(f"defense: which messages are sent in round {k} {DIFFERS}")
        for name, value in here.values.items():
            if not _same(value, there.values[name]):
                raise ConfigError(f"defense: {name} of round {k} {DIFFERS}")


def refuse_changing_messages(defense: Defense, setting: Setting) -> None:
    """Play the first rounds with other gradients and other noise.

    What cannot be played at all is for the run itself to say.

    Raises:
        ConfigError: they have other messages, or messages of another shape.
    """
    for length, seed in ((0.0, 0), (-LENGTH, 0), (LENGTH, 1)):
        try:
            one = list(_played(defense, setting, LENGTH, 0))
            other = list(_played(defense, setting, length, seed))
        except Exception:
            return
        for k, (here, there) in enumerate(zip(one, other, strict=True), start=1):
            refuse_other_messages(k, here.sent, there.sent)


class _Played(NamedTuple):
    """A round: its messages, the numbers in them and in the state after it, and its noise."""

    sent: Capture
    values: Mapping[str, Tensor]
    draws: Mapping[str, Tensor]


def _played(defense: Defense, setting: Setting, length: float, seed: int) -> Iterator[_Played]:
    """The first rounds, under the same noise whenever they are played with this seed."""
    gradient = Everybody(length, defense.batch_size)
    X = torch.zeros(setting.n_agents, COORDINATES, dtype=torch.float64)
    state: Any = defense.start(X, setting.stand_in(COORDINATES))
    for k in range(1, 1 + min(FIRST, defense.n_rounds)):
        noise = Overheard(Streams(seed), k)
        state, sent, *_ = defense.step(state, k, setting.network.at(k), gradient, noise)
        named = {f'message "{name}"': message.payload for name, message in sent.items()}
        kept = {f"{n} of the state": t for n, t in state._asdict().items()}
        yield _Played(sent, {**named, **kept}, noise.units)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.double(), RELATIVE, 0.0, equal_nan=True)
