"""Cross-gradient aggregation: a direction that no neighbour's gradient objects to, and DP-CGA."""

import math
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel

RIDGE = 1e-13  # on the unit diagonal of a quadratic program: rows may be dependent, or equal
NEGATIVE = 1e-11  # below minus this a multiplier or a slack is negative, and no rounding
PATIENCE = 3  # exchanges of all at once without progress, before they are made one by one


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    b: Tensor  # [..., n_agents, d], momenta, never sent


class CGA(dp.NoiselessDefense):
    """Esfandiari et al. 2021, CGA; rows of X, b [..., n_agents, d] are agents.

    With g^ij the mean gradient of agent j's batch at agent i's model, a round at agent i is
        1.  send x_i to the neighbours;  each neighbour j answers with g^ij, to i only
        2.  r_j = w_ij g^ij,  r_i = w_ii g^ii,  M has a row r_j for each neighbour
        3.  v = argmin over v >= m of 1/2 v' M M' v + (M r_i)' v,  g~ = r_i + M' v
        4.  b <- beta b + g~
        5.  x_i <- sum_j w_ij x_j - eta (g~ + beta b)
    With m = 0, 3 is the dual of projecting r_i onto the directions that no r_j objects to. The
    authors' code has m = 0.5, an option. Departure: it solves a program for each layer of the model
    and adds 1e-12 to the diagonal of M M'; here there is one, and what is added is relative.
    """

    paper = "Esfandiari, Tan, Jiang, Balu, Herron, Hegde, Sarkar: CGA"
    messages = {
        "x": "the model before the round; depends on all batches before, without noise",
        "cross_gradient": "the gradient of the sender's batch at the receiver's model, no noise",
    }
    private = {"gradient": "the mean gradient of the batch at the agent's own model"}

    state = State
    theory_graph = dp.undirected("CGA")

    learning_rate: PositiveFloat = 0.01  # eta
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # beta
    margin: NonNegativeFloat = 0.0  # m

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        cross, own = _gradients(state.X, graph, gradient)
        sent = {"x": dp.broadcast(graph, state.X), "cross_gradient": dp.unicast(graph, cross)}
        g = direction(graph, own, cross, self.margin)  # 2-3
        moved = _descended(state, graph, g, self.learning_rate, self.momentum)
        return Round(moved, sent, {"gradient": own})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every link shows the gradient of the round as it is."""
        noiseless = dp.batch_releases(self, setting.sizes[victim], [0.0] * self.n_rounds)
        seen = _read_links(setting, threat_model, victim)
        return Bracket(noiseless if seen else (), noiseless, ("no noise hides a cross-gradient",))

    observables = {"cross_gradient": dp.gradient_on_link("cross_gradient", at="x")}


class DPCGA(dp.GaussianDefense):
    """CGA with private gradients, as DPDL describes it; rows of X, b [..., n_agents, d] are agents.

    Each g^ij of CGA, its own included, is the mean over agent j's batch first, then clipped to norm
    C, and sent under fresh noise N(0, s^2).

    A mean is clipped here, not what a record adds to it: one long gradient turns it around, from
    -C to C, whatever the batch size. It stays in a ball of radius C, so that no change of data
    moves it further. So s = 2 sigma C by default (``noise_scale`` = "2C"). With "C/B", s = sigma C
    / B as DPDL scales the noise of gradients clipped one by one, which is 2 B times less. DPDL does
    not say which it used.
    """

    paper = "DP-CGA (CGA with private gradients, after DPDL)"
    messages = {
        "x": "the model before the round; depends on batches before through their noisy gradients",
        "cross_gradient": "the clipped mean gradient of the sender's batch at the receiver's "
        "model, under Gaussian noise of standard deviation 2 sigma C, fresh for each receiver",
    }
    reconstructed = (
        "DPDL, which compares with it, says that the mean is clipped and noised, and not how much"
    )
    private = {
        "gradient": "the clipped mean gradient of the batch at the agent's own model, no noise"
    }

    clips_records = False  # means of batches are
    state = State
    theory_graph = dp.undirected("DP-CGA")

    learning_rate: PositiveFloat = 0.01  # eta
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.7  # beta
    margin: NonNegativeFloat = 0.0  # m
    noise_scale: Literal["2C", "C/B"] = "2C"

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        cross, own = (dp.clip(G, self.clip_norm) for G in _gradients(state.X, graph, gradient))
        std = self._std_over_C * self.clip_norm
        noisy_cross = cross + noise.gaussian("cross_gradient", std, cross)
        noisy_own = own + noise.gaussian("self_gradient", std, own)
        sent = {"x": dp.broadcast(graph, state.X), "cross_gradient": dp.unicast(graph, noisy_cross)}
        g = direction(graph, noisy_own, noisy_cross, self.margin)
        moved = _descended(state, graph, g, self.learning_rate, self.momentum)
        return Round(moved, sent, {"gradient": own})

    @property
    def _std_over_C(self) -> float:
        return self.sigma * 2 if self.noise_scale == "2C" else self.sigma / self.batch_size

    def noise_multiplier_of(self, setting: Setting) -> float:
        """sigma such that the agent with the fewest records keeps its budget with the most links.

        A round asks one batch for a gradient on each link and for the agent's own. With
        ``noise_scale`` = "C/B" it is the sigma that would do if records were clipped one by one.
        A clipped mean moves by 2C whatever changes. So do clipped records where one takes another's
        place, which they are accounted for by the same pair of distributions under noise 2 sigma C.
        """
        fewest = min(setting.sizes[i] for i in setting.holders)
        links = max(int(n) for n in setting.network.at(1).senders.bincount())
        rate = self.sampling_rate(fewest)
        replaced = self.adjacency == "replace-one" or (self.sampling == "fixed" and rate < 1)
        if self.noise_scale == "C/B" or not replaced:
            one_query = self.noise_multiplier_for(fewest)
        else:
            one_query = self.noise_multiplier_at(rate, self.n_rounds, "fixed") / 2
        return one_query * math.sqrt(links + 1)

    def sensitivity(
        self, k: int, setting: Setting, adjacency: dp.Adjacency, victim: int, sent: dp.Messages
    ) -> dict[str, dp.Stated]:
        """2 C of a cross-gradient, however many records; C / B for each where noise is for that."""
        if adjacency not in dp.CHANGED_RECORDS:
            return {}
        C, n = self.clip_norm, dp.CHANGED_RECORDS[adjacency]
        moved = 2 * C if self.noise_scale == "2C" else n * C / self.batch_size
        return {"x": dp.Stated(2, 0.0), "cross_gradient": dp.Stated(2, moved)}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Per round at most all cross-gradients and the agent's own, at least those that are read.

        Each moves by 2 C for some data: a long gradient turns around a mean that is long itself.
        """
        size = setting.sizes[victim]
        all_links = int((setting.network.at(1).senders == victim).sum())
        read = len(_read_links(setting, threat_model, victim))

        def rounds(queries: int) -> dp.Mechanism:
            z = self._std_over_C / math.sqrt(max(1, queries))
            return dp.batch_releases(self, size, [z] * (self.n_rounds if queries else 0))

        said = (
            "the mean of a batch is clipped, so that one record may turn it around, and no change "
            "of data moves it by more than twice the clip norm; the lower end counts the links "
            "that are read, the upper end all of the agent's links and its own gradient in its "
            "next model"
        )
        return dp.clipped_whole(Bracket(rounds(read), rounds(all_links + 1), (said,)), self, size)

    observables = {"cross_gradient": dp.gradient_on_link("cross_gradient", at="x")}


def direction(graph: Graph, own: Tensor, cross: Tensor, margin: float = 0.0) -> Tensor:
    """g~ of every agent (2-3), of its own gradient [..., n, d] and those of links [..., e, d]."""
    i = graph.receivers.to(own.device)
    place = torch.arange(len(i), device=i.device) - torch.searchsorted(i, i)  # of j at i
    most = int(place.max()) + 1 if len(place) else 0
    M = own.new_zeros(*own.shape[:-1], most, own.shape[-1])
    M[..., i, place, :] = graph.on_links.to(own)[:, None] * cross
    r = graph.own.to(own)[:, None] * own
    v = multipliers(M @ M.mT, (M @ r[..., None])[..., 0], margin)
    return r + (M.mT @ v[..., None])[..., 0]


def _gradients(X: Tensor, graph: Graph, gradient: Gradient) -> tuple[Tensor, Tensor]:
    """For each link j -> i the gradient of j's batch at x_i, and each agent's own gradient."""
    i, j = graph.receivers.to(X.device), graph.senders.to(X.device)
    n = torch.arange(graph.n_agents, device=X.device)
    G = gradient(X[..., torch.cat([i, n]), :], holders=torch.cat([j, n]))
    cross, own = G.split([len(i), len(n)], dim=-2)
    return cross, own


def _descended(state: State, graph: Graph, g: Tensor, eta: float, beta: float) -> State:
    b = beta * state.b + g  # 4
    return State(graph.mix(state.X) - eta * (g + beta * b), b)  # 5


def _read_links(setting: Setting, threat_model: ThreatModel, victim: int) -> list[int]:
    """The agents to whom the victim sends a cross-gradient that the adversary reads."""
    graph = setting.network.at(1)
    to: list[int] = graph.receivers[graph.senders == victim].tolist()
    return [i for i in to if threat_model.sees(victim, i)]


def multipliers(Q: Tensor, c: Tensor, margin: float = 0.0) -> Tensor:
    """argmin over v >= margin of 1/2 v'Qv + c'v for each Q [..., m, m], c [..., m]: exact.

    Block principal pivoting: v = 0 or slack y = Qv + c = 0 in each place, and places of the wrong
    sign change sides, all at once while that makes fewer of them, else the last alone (Murty's
    rule, which ends for positive definite Q). Rows are scaled to a unit diagonal, so that a ridge
    that decides between equal rows is relative. Source: Judice and Pires 1994.
    """
    Q64, c64 = Q.double(), c.double()
    size = Q64.diagonal(dim1=-2, dim2=-1).sqrt()
    size = torch.where(size > 0, size, 1.0)
    c64 = (c64 + margin * Q64.sum(-1)) / size
    unit = Q64 / size[..., None] / size[..., None, :]
    eye = torch.eye(Q.shape[-1], dtype=unit.dtype, device=unit.device)
    scale = c64.abs().amax(-1, keepdim=True).clamp(min=1e-300) if c.shape[-1] else c64
    free = _pivoted(unit + RIDGE * eye, c64 / scale)
    return (margin + free * scale / size).to(Q.dtype)


def _pivoted(Q: Tensor, c: Tensor) -> Tensor:
    """``multipliers`` of positive definite Q with a unit diagonal, c at most 1, and v >= 0."""
    m = c.shape[-1]
    eye, places = torch.eye(m, dtype=torch.bool, device=c.device), torch.arange(m, device=c.device)
    free = torch.zeros_like(c, dtype=torch.bool)  # where v > 0 and y = 0
    fewest = torch.full_like(c[..., :1], m + 1)
    patience = torch.full_like(fewest, PATIENCE)
    v = torch.zeros_like(c)
    for _ in range(20 * (m + 1)):
        both = free[..., None] & free[..., None, :]
        system = torch.where(both, Q, (eye & ~both).to(Q))
        v = torch.linalg.solve(system, torch.where(free, -c, 0.0)[..., None])[..., 0]
        y = (Q @ v[..., None])[..., 0] + c
        wrong = torch.where(free, v, y) < -NEGATIVE
        count = wrong.sum(-1, keepdim=True).to(fewest)
        if not wrong.any():
            break
        fewer = count < fewest
        fewest = torch.where(fewer, count, fewest)
        patience = torch.where(fewer, float(PATIENCE), patience - 1)
        last = (wrong * (places + 1)).amax(-1, keepdim=True) == places + 1
        free = free ^ torch.where(patience >= 0, wrong, wrong & last)
    return v.clamp(min=0)
