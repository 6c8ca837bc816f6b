"""Zip-DL: noises on an agent's links that cancel in the mean."""

import math

import numpy as np
import torch
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Models, Noise, Round, Setting, ThreatModel


class ZipDL(dp.GaussianSGD):
    """Biswas et al. 2025, one exchange a round; rows of X, Y [..., n_agents, d] are agents.

    With S the sum over the batch of per-record gradients at X, clipped to norm C, m noises U_1,
    ..., U_m ~ N(0, I m / (m - 1)) for each agent, one for each neighbour and with ``self_noise``
    one for itself, and s = eta sigma C / B, round k is
        1.  Y = X - eta S / B
        2.  N_i = s (U_i - mean of U), so that an agent's noises sum to 0; each has the variance s^2
        3.  Y + N_j is sent to neighbour j alone
        4.  X <- W Y and each agent's noises, at the weight at which it is heard
    Weights are one number for all links of the graph, as in the paper: noise of an agent then
    cancels in the mean over agents. Without ``self_noise`` the mean of what an agent sends is Y,
    its model without any noise, for whoever reads all its links; its next model shows Y too.

    Under weather an agent draws noises for all links of the graph without it. What is lost of them
    does not cancel.

    Readings: the paper's public code has no clip and no budget for a record. Here records are
    clipped, and sigma is the noise of one link over what one record adds to it at most. A budget is
    that of one message: it is not composed over rounds, for no noise hides a gradient of an earlier
    round but that of later links.
    """

    waits = True
    paper = "Biswas et al.: Zip-DL"
    reconstructed = (
        "the clip of records and the budget, of which the algorithm in its public code has none"
    )
    claims = "(epsilon, delta)-DP of one message on one link, one record"
    messages = {
        "y": "the model after the local step under noise of this link; all noises of a sender sum "
        "to zero, with one that it keeps if there is self_noise"
    }

    self_noise: bool = False

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, eta, C, B = state.X, self.learning_rate, self.clip_norm, gradient.batch_size
        j, i = graph.senders.to(X.device), graph.receivers.to(X.device)
        S = dp.of_acting(graph, X, lambda at, who: gradient.clipped_sum(at, C, who))
        Y = X - eta * S / B  # 1
        planned = graph.planned or graph
        on_links, kept = self._noises(planned, Y, noise, eta * self.sigma * C / B)  # 2
        arrives = _places(graph, planned).to(X.device)
        sent = Y[..., j, :] + on_links[..., arrives, :]  # 3
        w, own = graph.on_links.to(X), graph.own.to(X)
        heard = torch.zeros_like(Y).index_add(-2, i, w[:, None] * sent)  # 4
        if graph.planned is not None:  # who sends nothing keeps no noise either
            kept = (j.bincount(minlength=graph.n_agents) > 0)[:, None] * kept
        X = heard + own[:, None] * (Y + kept)
        return Round(Models(X), {"y": dp.unicast(graph, sent)}, {"gradient": S / B})

    def _noises(self, graph: Graph, like: Tensor, noise: Noise, s: float) -> tuple[Tensor, Tensor]:
        """On each link [..., n_edges, d], and what each agent keeps [..., n_agents, d]."""
        j = graph.senders.to(like.device)
        m = _noises_of(graph, self.self_noise).to(like)[:, None]  # of each agent
        U = noise.gaussian("link", s, like[..., j, :])
        own = noise.gaussian("self", s, like) if self.self_noise else torch.zeros_like(like)
        mean = own.index_add(-2, j, U) / m
        scale = (m / (m - 1)).sqrt()
        kept = scale * (own - mean) if self.self_noise else own
        return scale[j] * (U - mean[..., j, :]), kept

    def check_theory(self, setting: Setting) -> None:
        """Noises cancel where all weights are equal, and none is 0 where an agent has two."""
        for graph in setting.network.graphs:
            self._refuse(graph)

    def noise_multiplier_for(self, size: int) -> float:
        """The least sigma with which one message of round 1 on one link keeps to the budget.

        The number of rounds does not matter to it.
        """
        return self.noise_multiplier_at(self.sampling_rate(size), 1, self.sampling)

    def _refuse(self, graph: Graph) -> None:
        weights = torch.from_numpy(graph.sparse.data)
        if not torch.allclose(weights, weights[0].expand_as(weights)):
            raise dp.OutsideTheory(
                "DPA039",
                "graph: Zip-DL needs one weight for all links and agents, as on a ring, for noises "
                "to cancel",
            )
        if int(_noises_of(graph, self.self_noise).min()) < 2:
            raise dp.OutsideTheory(
                "DPA040",
                "graph: an agent with a single neighbour has a single noise, which is 0 as they "
                "sum to zero; set self_noise = true",
            )

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Knowing r of the victim's m noises gives mu^2 = (m - 1) r / (sigma^2 (m - r)).

        A later message holds the gradient of an earlier round again, which has no other noise.
        """
        graph, network = setting.network.at(1), setting.network
        if graph.active is not None and victim not in graph.active:
            relayed = np.zeros(self.n_rounds if self.n_rounds > 1 else 0)
            return Bracket((), dp.batch_releases(self, setting.sizes[victim], relayed), (_SAID,))
        own = [(j, i) for j, i in graph.links if victim in (j, i)]
        r = sum(threat_model.sees(j, i) for j, i in own if j == victim)
        m = int(_noises_of(graph.planned or graph, self.self_noise)[victim])
        size = setting.sizes[victim]
        if r == 0:
            relayed = np.zeros(self.n_rounds if self.n_rounds > 1 else 0)
            return Bracket((), dp.batch_releases(self, size, relayed), (_SAID,))
        hidden = self.sigma * math.sqrt((m - r) / ((m - 1) * r)) if m > r else 0.0
        follows = r >= m and network.period == 1 and all(threat_model.sees(*link) for link in own)
        least = [0.0] * self.n_rounds if follows else [hidden]
        most = [0.0] * self.n_rounds if self.n_rounds > 1 else [hidden]
        low, high = (dp.batch_releases(self, size, end) for end in (least, most))
        return Bracket(low, high, (_SAID,))


_SAID = (
    "a gradient has no noise but that of the links: it stays in the model and is sent again under "
    "fresh noise in every later round, for which no bound is stated; the lower end is of the first "
    "round"
)


def _places(graph: Graph, planned: Graph) -> Tensor:
    """Which of the links of ``planned`` those of ``graph`` are, [n_edges]."""
    if graph is planned:
        return torch.arange(graph.n_edges)
    n = graph.n_agents
    at, of = (g.receivers * n + g.senders for g in (planned, graph))
    return torch.searchsorted(at, of)


def _noises_of(graph: Graph, self_noise: bool) -> Tensor:
    """How many noises each agent draws, [n_agents]."""
    return graph.senders.bincount(minlength=graph.n_agents) + int(self_noise)
