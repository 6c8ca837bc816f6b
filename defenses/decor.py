"""DECOR: gossip SGD under noise of one's own, and noise that each pair of neighbours cancels."""

import math
from functools import lru_cache, partial

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Models, Noise, Round, Setting, ThreatModel
from dpaudit.defense.correlated import Left, correlated_releases, laplacian, left_of_acting


class Decor(dp.GaussianSGD):
    """Allouah et al. 2024, Algorithm 1; rows of X, Y [..., n_agents, d] are agents.

    With S the sum over the batch of per-record gradients at X, clipped to norm C, and v_ij = -v_ji
    drawn by neighbours i and j from a seed that they share, round k is
        1.  N_i = s (Z_i + ratio sum over neighbours j of v_ij),  Z and v ~ N(0, C^2 I)
        2.  Y = X - eta (S + N) / B, sent to the neighbours
        3.  X <- W Y
    The noises of a round have the covariance C^2 s^2 (I + ratio^2 L), L the Laplacian of the graph,
    and the v cancel in the mean over agents. An adversary without secrets knows the noise of an
    agent from all messages up to C^2 / [(s^2 (I + ratio^2 L))^-1]_ii: s is such that this is at
    least sigma^2 C^2 for every agent. An agent's neighbours know its v: against all of them
    together s^2 C^2 is left.

    Under weather pairs are those of the graph without it: agents draw v before they know who hears
    them. Where one end takes no step, or is not heard, what its neighbour drew is not cancelled in
    the mean.

    Readings: the paper clips the gradient of a user; here records are clipped, as in its example
    level experiments, and batches are drawn as the audit says. Its noise is set by Renyi
    differential privacy, here by exact accounting.
    """

    waits = True
    paper = "Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui: DECOR"
    claims = "(epsilon, delta)-DP over the run, one record, for who has no secrets"
    messages = {
        "y": "the model after the local step; holds the sender's clipped gradient under Gaussian "
        "noise of its own and noise that it shares with each neighbour"
    }

    theory_graph = dp.GraphCondition(
        "DECOR needs undirected graphs with a symmetric doubly stochastic W, over whose links "
        "pairs of agents cancel their noise",
        dp.is_symmetric,
    )

    ratio: NonNegativeFloat = 3.0  # of a pair's noise to an agent's own

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, eta, C, B = state.X, self.learning_rate, self.clip_norm, gradient.batch_size
        s = self.own_noise(graph) * C
        pairs = pairs_of(graph.planned or graph).to(X.device)
        i, j = pairs.T

        S = dp.of_acting(graph, X, lambda at, who: gradient.clipped_sum(at, C, who))
        Z = noise.gaussian("own", s, X)  # 1
        V = noise.shared("pair", self.ratio * s, X[..., i, :], pairs)
        N = Z.index_add(-2, i, V).index_add(-2, j, -V)
        Y = X - eta * (S + dp.stepping(graph, N)) / B  # 2
        return Round(Models(graph.mix(Y)), {"y": dp.broadcast(graph, Y)}, {"gradient": S / B})  # 3

    def own_noise(self, graph: Graph) -> float:
        """s, the standard deviation of Z over C."""
        return self.sigma * _own_noise(graph.planned or graph, self.ratio)

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """SecLDP: what is left of the victim's noise for who holds the secrets of some agents."""
        left_in = partial(_left, self, agents=threat_model.agents)
        said = "all agents share the initial model, and secrets are known to both ends alone"
        return correlated_releases(self, setting, threat_model, victim, left_in, said)

    observables = {"noisy-gradient": dp.step_seen("y")}


@lru_cache(maxsize=256)
def pairs_of(graph: Graph) -> Tensor:
    """The pairs of agents with a link in either direction, [n_pairs, 2], each once."""
    links = set(graph.links)
    ends = [sorted(link) for link in graph.links if link[0] < link[1] or link[::-1] not in links]
    return torch.tensor(ends, dtype=torch.long).view(-1, 2)


@lru_cache(maxsize=256)
def _own_noise(graph: Graph, ratio: float) -> float:
    """s that leaves every agent's noise a variance of at least 1."""
    unit = torch.eye(graph.n_agents, dtype=torch.float64) + ratio**2 * laplacian(graph)
    return math.sqrt(torch.linalg.inv(unit).diagonal().max().item())  # 1 / [.]_ii is left of i's


@lru_cache(maxsize=256)
def _left(defense: Decor, graph: Graph, agents: tuple[int, ...]) -> Left:
    """Covariance of the noises over C, given the secrets of these agents."""
    s, planned = defense.own_noise(graph), graph.planned or graph
    own = torch.eye(graph.n_agents, dtype=torch.float64)
    covariance = s**2 * (own + defense.ratio**2 * laplacian(planned, without=agents))
    return left_of_acting(covariance, graph)
