"""Noise that is correlated between agents: what of it hides one of them from whom.

All agents send x_i - eta (g_i + n_i), with noise n of one covariance Sigma [n_agents, n_agents] in
every coordinate. Who reads all messages and knows all other gradients knows all other n_j. What
then hides agent v is what these leave open of n_v, the conditional variance

    Var(n_v | n_R) = Sigma_vv - Sigma_vR Sigma_RR^+ Sigma_Rv = 1 / [Sigma^-1]_vv

where Sigma is invertible. Source: Allouah et al. 2024, arXiv:2405.01031, section
4, which has the inverse; the conditional variance is the same where a sum of noises is 0.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import MOST_DENSE, Graph
from dpaudit.memory import size_text

from .contract import Bracket, Defense, Setting
from .gossip import known_rounds, releases, steps_of

SINGULAR = 1e-9  # combinations of noises with less variance, relative to the largest, are 0
NO_PART = 1e-18  # squared weight in such a combination, below which an agent has no part in it


class Left(NamedTuple):
    """Variances of agents' noises, [n_agents] each."""

    of_all: Tensor  # if the noises of all others are known
    alone: Tensor  # if no other noise is known


def left_of(covariance: Tensor) -> Left:
    """What is open of each agent's noise; 0 where a combination with others' noises is 0.

    Args:
        covariance: [n_agents, n_agents], positive semidefinite.
    """
    alone = covariance.diagonal()
    values, vectors = torch.linalg.eigh(covariance)
    zero = values <= SINGULAR * alone.max()
    fixed = vectors[:, zero].square().sum(1) > NO_PART
    precision = vectors[:, ~zero].square() @ (1 / values[~zero])
    return Left(torch.where(fixed, 0.0, 1 / precision), alone)


def left_of_acting(covariance: Tensor, graph: Graph) -> Left:
    """The same in a round of this graph: who takes no step adds no noise, and nobody learns it."""
    if graph.active is None:
        return left_of(covariance)
    acting = list(graph.active)
    alone, of_all = covariance.diagonal(), covariance.diagonal().clone()
    if acting:
        of_all[acting] = left_of(covariance[acting][:, acting]).of_all
    return Left(of_all, alone)


def laplacian(graph: Graph, without: tuple[int, ...] = ()) -> Tensor:
    """Laplacian of links in either direction, [n_agents, n_agents], without some agents.

    Raises:
        ConfigError: there are more than ``MOST_DENSE`` agents.
    """
    n = graph.n_agents
    if n > MOST_DENSE:
        raise ConfigError(
            "DPA022",
            f"graph: noise that {n} agents share has a covariance of {size_text(8 * n * n)}, which "
            f"is computed for {MOST_DENSE} agents at most",
            "audit fewer agents",
        )
    linked = torch.zeros(graph.n_agents, graph.n_agents, dtype=torch.float64)
    linked[graph.senders, graph.receivers] = linked[graph.receivers, graph.senders] = 1.0
    linked[list(without)] = 0.0
    linked[:, list(without)] = 0.0
    return torch.diag(linked.sum(1)) - linked


def correlated_releases(
    defense: Defense,
    setting: Setting,
    threat_model: ThreatModel,
    victim: int,
    left_in: Callable[[Graph], Left],
    said: str,
) -> Bracket:
    """The releases of agents of whose noise so much is left in a round with this graph.

    They are in units of what one record adds to an agent's sum at most, and what the adversary
    knows by secrets of its own is subtracted from them. At most the adversary reads all messages;
    at least it reads the victim's own, in rounds where it can tell the step from them, and those of
    all others in rounds where it can tell every step.
    """
    graph_of = setting.network.at
    known = known_rounds(graph_of, defense.n_rounds, threat_model, victim)
    takes = steps_of(graph_of, defense.n_rounds, victim)
    everybody = threat_model.reads_every_link
    n_rounds, n = defense.n_rounds, setting.n_agents
    steps = [steps_of(graph_of, n_rounds, i) for i in range(n)]
    seen = [known_rounds(graph_of, n_rounds, threat_model, i) for i in range(n)]
    all_known = np.all(np.stack(seen) | ~np.stack(steps), axis=0)
    rate = min(1.0, defense.batch_size / setting.sizes[victim])
    least, most = [], []
    for k in np.flatnonzero(takes).tolist():
        of_all, alone = left_in(graph_of(k + 1))
        hidden = math.sqrt(of_all[victim])
        most.append(hidden)
        least += [hidden if everybody and all_known[k] else math.sqrt(alone[victim])] * bool(
            known[k]
        )
    how = defense.sampling, rate
    return Bracket(releases(np.array(least), *how), releases(np.array(most), *how), (said,))
