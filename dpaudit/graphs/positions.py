"""Where the agents of a graph are drawn."""

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]  # [n_agents, 2]


def positions(name: str, n_agents: int) -> Points:
    """[n_agents, 2] coordinates in [-1, 1] to draw a graph of this name at."""
    i = np.arange(n_agents)
    if name == "bipartite":
        return _columns(i < n_agents // 2)
    if name == "hub2":
        return _columns(i < n_agents - 2)
    if name == "path":
        return np.stack([np.linspace(-1, 1, n_agents), np.zeros(n_agents)], axis=1)
    if name in ("star", "server"):
        return np.concatenate([np.zeros((1, 2)), _circle(n_agents - 1)])
    return _circle(n_agents)


def _circle(n: int) -> Points:
    """Clockwise, from the top."""
    angle = 2 * np.pi * np.arange(n) / n
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def _columns(left: NDArray[np.bool_]) -> Points:
    """Two columns, each from top to bottom."""
    out = np.empty((len(left), 2))
    for side, x in ((left, -0.6), (~left, 0.6)):
        out[side, 0] = x
        out[side, 1] = np.linspace(1, -1, side.sum() + 2)[1:-1]
    return out
