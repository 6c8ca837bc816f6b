"""At how many coordinates can a step be played at all?

The game's model has one. A step that takes coordinates by number fails there, one that shapes them
as the layers of its model needs all of them, and a standard deviation of one coordinate is no
number. Such a step is played at the fewest coordinates at which it gives numbers.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.noise import Noise
from dpaudit.errors import NotObservable
from dpaudit.game.game import LENGTH, Game
from dpaudit.game.oracles import every_agent_holds
from dpaudit.rng import Streams

from .states import flat_state

PLAYED = 64  # coordinates that runs play at most where one is not enough and fewer than all do
FIRST = 2  # rounds that are played
ENTRIES = 10**7  # numbers of a round


def fewest_coordinates(game: Game) -> int:
    """The fewest, of 1, ``PLAYED`` and the model's own, at which the step gives numbers; else 1.

    The model's own are not played where a round has more than ``ENTRIES`` numbers.
    """
    some, every = min(PLAYED, game.coordinates), game.coordinates
    found = next((d for d in (1, some) if _gives_numbers(game, d)), None)
    if found is not None:
        return found
    graph = game.setting.network.at(1)
    is_large = (graph.n_edges + graph.n_agents) * every > ENTRIES
    return every if is_large or _gives_numbers(game, every) else 1


def refuse_several(defense: Defense, setting: Setting) -> None:
    """For what plays a step on the model of this setting, which has few coordinates.

    Raises:
        NotObservable: it fails there, or gives no number.
    """
    X = torch.zeros(1, setting.n_agents, setting.d, dtype=torch.float64)
    if not _numbers(defense, setting, lambda: defense.start(X, setting)):
        raise NotObservable(
            "DPA054",
            f"gradients are told by algebra at d = {setting.d}, and there the step fails "
            "or gives no number",
        )


def _gives_numbers(game: Game, d: int) -> bool:
    start = partial(game.start, 1, coordinates=d)
    return _numbers(game.defense, game.setting, start)


def _numbers(defense: Defense, setting: Setting, start: Callable[[], Any]) -> bool:
    """Whether the first rounds give them, of agents that all hold a record, under noise."""
    gradient = every_agent_holds(LENGTH, defense.batch_size)
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a deviation of one coordinate is none
            state: Any = start()
            for k in range(1, 1 + min(FIRST, defense.n_rounds)):
                graph, noise = setting.network.at(k), Noise(Streams(0), k)
                state, sent, *_ = defense.step(state, k, graph, gradient, noise)
                values = [flat_state(state), *(message.payload for message in sent.values())]
                if not all(bool(value.isfinite().all()) for value in values):
                    return False
    except Exception:  # whatever a step raises of coordinates that are not there
        return False
    return True
