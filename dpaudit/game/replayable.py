"""Can a round be played again? All randomness has to come from the noise that a step is handed.

An audit plays rounds with and without a record under the same noise, from checkpoints, and with
unit noise. Of a step that draws from a generator of its own none of that says anything: its noise
counts as an effect of the record, or as no noise. Nor can rounds be held against each other if
other data send other messages.
"""

from collections.abc import Mapping
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
OTHERS = ((0.0, 0), (-LENGTH, 0), (LENGTH, 1))  # lengths of gradients, and seeds of noise
DIFFERS = (
    "differs when it is played again with the same noise: step draws from a generator of its own, "
    "such as torch's or NumPy's; expected noise.gaussian or noise.laplace, which play again"
)


def refuse_unless_replayable(defense: Defense, setting: Setting) -> None:
    """Play the first rounds again, on a model of a few coordinates: as before, and otherwise.

    What cannot be played at all is for the run itself to say.

    Raises:
        ConfigError: they differ, or a draw has no row for each agent or link; or they have other
            messages, or messages of another shape, with other gradients or other noise.
    """
    first, again = (_play(defense, setting, LENGTH, 0) for _ in range(2))
    for k, (one, other) in enumerate(zip(first, again, strict=False), start=1):
        _refuse_own_randomness(k, one, other)
    for length, seed in OTHERS:
        other_run = _play(defense, setting, length, seed)
        for k, (one, other) in enumerate(zip(first, other_run, strict=False), start=1):
            refuse_other_messages(k, one.sent, other.sent)


class _Played(NamedTuple):
    """A round: its messages, the numbers in them and in the state after it, and its noise."""

    sent: Capture
    values: Mapping[str, Tensor]
    draws: Mapping[str, Tensor]


def _play(defense: Defense, setting: Setting, length: float, seed: int) -> list[_Played]:
    """The first rounds, under the same noise whenever this seed is given; none if they fail."""
    gradient = Everybody(length, defense.batch_size)
    X = torch.zeros(setting.n_agents, COORDINATES, dtype=torch.float64)
    played = []
    try:
        state: Any = defense.start(X, setting.stand_in(COORDINATES))
        for k in range(1, 1 + min(FIRST, defense.n_rounds)):
            noise = Overheard(Streams(seed), k)
            state, sent, *_ = defense.step(state, k, setting.network.at(k), gradient, noise)
            named = {f'message "{name}"': message.payload for name, message in sent.items()}
            kept = {f"{n} of the state": t for n, t in state._asdict().items()}
            played.append(_Played(sent, {**named, **kept}, noise.units))
    except Exception:
        return []
    return played


def _refuse_own_randomness(k: int, one: _Played, again: _Played) -> None:
    """Hold two plays of round k against each other, of the same data and noise."""
    for name, draw in one.draws.items():
        if draw.ndim < 2:
            raise ConfigError(
                f'defense: the noise "{name}" of round {k} is drawn without rows; expected it '
                "like a tensor [..., rows, d] with a row for each agent or link that draws; "
                "where several share a draw, expand a row"
            )
    if one.values.keys() != again.values.keys():
        raise ConfigError(f"defense: which messages are sent in round {k} {DIFFERS}")
    for name, value in one.values.items():
        if not _same(value, again.values[name]):
            raise ConfigError(f"defense: {name} of round {k} {DIFFERS}")


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.double(), RELATIVE, 0.0, equal_nan=True)
