"""Messages on their way: what agents mix where links take several rounds.

Agents keep what they sent in the last rounds as part of their state, and what of it arrives in a
round is mixed with the prompt messages of that round. Who reads a link reads a message once, in the
round in which it is sent.
"""

import torch
from torch import Tensor

from dpaudit.graphs.graph import Graph

from .contract import Setting


def in_flight(X: Tensor, setting: Setting) -> Tensor:
    """What is on its way before round 1: nothing, [..., n_agents, delay, d] for X [..., d]."""
    return X.new_zeros(*X.shape[:-1], setting.network.delay, X.shape[-1])


def arrived(graph: Graph, X: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """What agents mix in a round in which they send X, and what is on its way after it.

    Args:
        X: [..., n_agents, d].
        past: [..., n_agents, delay, d]: what they sent one round ago, two rounds ago, ...

    Returns:
        W X plus the weighted messages of earlier rounds that arrive now, [..., n_agents, d]; and
        ``past`` of the next round.
    """
    if past.shape[-2] == 0:
        return graph.mix(X), past
    mixed = graph.mix(X) + graph.mix_late(past)
    return mixed, torch.cat([X.unsqueeze(-2), past[..., :-1, :]], dim=-2)
