"""The memory that neighbouring worlds take, and the search for a record between them."""

import torch

from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.footprint import Footprint
from dpaudit.training.classification import Classification
from dpaudit.training.costs import gradient_bytes
from dpaudit.training.loaded_problem import Problem

from .search import at_once

NUMBER = 8  # bytes: all is float64
PLAYS = 2  # of each world, with noise and without


def worlds_bytes(defense: Defense, problem: Problem, setting: Setting, restarts: int) -> int:
    """Bytes of the worlds of one round, and of the search for a record in it.

    Args:
        restarts: of the search; 0: there is none.
    """
    step, d = Footprint.of(defense, setting), setting.d
    ways = 2 if defense.sampling == "poisson" else 1  # with the rest of the batch, and alone
    worlds = 4 * ways * PLAYS
    kept = int(NUMBER * d * worlds * (step.state + step.sent))
    playing = step.round(d, 1, NUMBER)
    playing += gradient_bytes(problem, defense, setting, step.gradients, 1, torch.float64)
    if not isinstance(problem, Classification):
        return kept + playing
    shape = problem.dataset.x.shape[1:]
    batches = 2 * worlds * NUMBER * setting.n_agents * defense.batch_size * shape.numel()
    natural = NUMBER * max(setting.sizes) * shape.numel()
    return kept + batches + natural + max(playing, _search(step, problem, setting, restarts))


def _search(step: Footprint, problem: Classification, setting: Setting, restarts: int) -> int:
    """A stack of restarts, each a world of its own, through which the messages are derived."""
    m, shape = min(restarts, at_once(setting, 1)), problem.dataset.x.shape[1:]
    if not m:
        return 0
    points = -(-step.gradients // setting.n_agents)
    graph = int(NUMBER * setting.d * m * (step.graph + step.state))
    return graph + problem.gradients.graph_bytes(m * points, 1, shape, torch.float64)
