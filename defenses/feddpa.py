"""FedDPA: each agent keeps what its data inform, and shares a clipped update of the rest."""

import math
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel

ADAM = 0.9, 0.999, 1e-8  # decay of both moments, and what keeps their ratio finite


class State(NamedTuple):
    TH: Tensor  # [..., n_agents, d], personal models; the server's is the shared one
    W: Tensor  # [..., n_agents, d], the shared model as each agent has it
    layer: Tensor  # [d] int64, the layer of each coordinate


class FedDPA(dp.GaussianDefense):
    """Yang, Huang and Ye 2023, FedDPA; rows of TH, W, D [..., n_agents, d] are agents.

    With th and w an agent's personal and shared model, |.|_l the norm of a layer and all batches of
    a round drawn anew, a round at each agent is
        1.  F = sum over a batch of squared gradients at th, each layer scaled to [0, 1]
        2.  M = F > tau;  th <- M th + (1 - M) w
        3.  E steps of Adam on the coordinates M of loss + l1/2 sum_l |th - w|_l
        4.  E steps of Adam on the others, of loss + l2/2 | sum_l |th - w|_l - C |
        5.  D = (1 - M)(th - w), clipped to norm C;  w + D + N(0, s^2) is sent, and averaged
    by a server (graph "server"), as the authors do it, or by gossip with a symmetric W.

    The noise: ``calibration`` = "published" is the authors' s = z C / sqrt(n), with z such that a
    Poisson subsample of rate B / (records of all agents), once for each of the E steps of all
    agents and rounds, is (epsilon, delta)-DP. That accounts for steps on records, and what is sent
    is one clipped update of an agent: any of its records may turn it around, in every round.
    "exact" has s = 2 z C, with z for as many unsampled releases as there are rounds. It keeps the
    budget whatever of an agent's records change. If they all go, the update moves by C from 0.

    Options that follow the authors' code: ``release`` = "all" sends th - w with the personal
    coordinates; ``train_zeros`` = false leaves weights that are exactly 0 untrained. Departures: E
    counts batches, not passes over the data; F is of a batch; exact accounting finds z, not RDP;
    the server's average has equal weights, where the authors weight updates by data size.
    """

    paper = "Yang, Huang, Ye: FedDPA"
    claims = "(epsilon, delta)-DP over the run; it is unclear of what"
    messages = {
        "x": "the shared model after the round; holds the sender's clipped update of all its steps "
        "under Gaussian noise of standard deviation z C / sqrt(n)",
        dp.AVERAGE: "the shared model of the server",
    }
    protects = "user"
    waits = True
    reconstructed = "gossip in the place of the server's average"
    private = {
        "gradient": "the mean gradient of the first batch at the personal model",
        "update": "the clipped update, without noise",
    }

    clips_records = False  # updates are
    theory_graph = dp.undirected("FedDPA by gossip", by_gossip=True)

    clip_norm: PositiveFloat = 0.5  # C
    learning_rate: PositiveFloat = 1e-3  # of Adam
    local_steps: PositiveInt = 2  # E
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.4  # tau
    personal_penalty: NonNegativeFloat = 0.1  # l1
    shared_penalty: NonNegativeFloat = 0.05  # l2
    release: Literal["shared", "all"] = "shared"
    train_zeros: bool = True
    calibration: Literal["published", "exact"] = "published"

    @property
    def batches_per_round(self) -> int:
        return 1 + 2 * self.local_steps

    def start(self, X: Tensor, setting: Setting) -> State:
        sizes = torch.tensor(setting.layer_sizes)
        layer = torch.arange(len(sizes)).repeat_interleave(sizes)
        return State(X, X, layer.to(X.device))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        E, C, layer = self.local_steps, self.clip_norm, state.layer
        w, average = dp.from_server(graph, state.W)

        def sums(TH: Tensor, acting: Tensor | None) -> Tensor:
            G = gradient.per_record(TH, acting)
            return torch.cat([G.square().sum(-2), G.sum(-2)], dim=-1)

        F, S = gradient.in_parts(state.TH, sums).chunk(2, dim=-1)
        M = _scaled(F, layer) > self.threshold  # 1
        th = torch.where(M, state.TH, w)  # 2
        trained, others = M, ~M
        if not self.train_zeros:
            trained, others = M & (state.TH != 0), others & (w != 0)

        def personal(th: Tensor) -> Tensor:
            return self.personal_penalty / 2 * _units(th - w, layer)

        def shared(th: Tensor) -> Tensor:
            beyond = (_norms(th - w, layer).sum(-1, keepdim=True) - C).sign()
            return self.shared_penalty / 2 * beyond * _units(th - w, layer)

        for part, penalty, first in ((trained, personal, 1), (others, shared, 1 + E)):  # 3, 4
            moments = torch.zeros_like(th), torch.zeros_like(th)
            for s in range(E):
                g = part * (gradient.at_step(first + s)(th) + penalty(th))
                change, moments = _adam(g, moments, s + 1)
                th = th - self.learning_rate * change

        acting = graph.acting(w)
        D = acting * dp.clip((th - w) * (~M if self.release == "shared" else 1), C)  # 5
        n = graph.n_agents - (graph.server is not None)
        V = w + D + acting * noise.gaussian("update", self._std_over_C(n) * C, D)
        W = graph.mix(V)
        kept = state.TH if graph.server is None else _served(state.TH, W, graph.server)
        sent = {"x": dp.broadcast(graph, V), **average}
        private = {"gradient": S / gradient.batch_size, "update": D}
        return Round(State(torch.where(acting > 0, th, kept), W, layer), sent, private)

    def _std_over_C(self, n: int) -> float:
        return self.sigma / math.sqrt(n) if self.calibration == "published" else 2 * self.sigma

    def noise_multiplier_of(self, setting: Setting) -> float:
        """z from the budget, by the authors' formula or such that it is kept."""
        if self.calibration == "published":
            graph_of, holders = setting.network.at, setting.holders
            updates = sum(int(dp.steps_of(graph_of, self.n_rounds, i).sum()) for i in holders)
            part = updates / (self.n_rounds * len(holders))  # of the agents that take a step
            rate = min(1.0, self.batch_size / sum(setting.sizes) * part)
            return self.noise_multiplier_at(rate, updates * self.local_steps, "poisson")
        z = self.noise_multiplier_at(1.0, self.n_rounds, "none")
        return z / 2 if self.adjacency == "replace-one" else z  # which would count 4 C

    def sensitivity(
        self, k: int, setting: Setting, adjacency: dp.Adjacency, victim: int, sent: dp.Messages
    ) -> dict[str, dp.Stated]:
        """2 C, whatever of the agent's data changes."""
        whole = adjacency in ("function", "agent-identity")
        return {} if whole else {"x": dp.Stated(2, 2 * self.clip_norm)}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """At most, an update turns around in every round in which the agent takes part."""
        rounds = int(dp.steps_of(setting.network.at, self.n_rounds, victim).sum())
        z = self._std_over_C(len(setting.holders))
        said = (
            "an agent sends one clipped update a round: the upper end counts that any of its "
            "records turns it around, by twice the clip norm; an agent without records sends 0",
            "masks, Adam and the clip are not linear in the data: there is no lower end",
        )
        most = dp.releases(np.full(rounds, z), "none", 1.0)
        return dp.clipped_whole(Bracket((), most, said), self, setting.sizes[victim])


def _served(TH: Tensor, W: Tensor, server: int) -> Tensor:
    """Personal models, and for the server the shared one."""
    return TH.index_copy(-2, torch.tensor([server], device=TH.device), W[..., [server], :])


def _adam(
    g: Tensor, moments: tuple[Tensor, Tensor], t: int
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The change of step t = 1, 2, ..., and both moments after it."""
    b1, b2, tiny = ADAM
    m, v = b1 * moments[0] + (1 - b1) * g, b2 * moments[1] + (1 - b2) * g.square()
    return m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + tiny), (m, v)


def _scaled(F: Tensor, layer: Tensor) -> Tensor:
    """Each layer of F [..., d] from 0 to 1; 0 where all of a layer is equal."""
    at = layer.expand_as(F)
    ends = F.new_zeros(*F.shape[:-1], int(layer.max()) + 1)
    low, high = (
        ends.scatter_reduce(-1, at, F, how, include_self=False).gather(-1, at)
        for how in ("amin", "amax")
    )
    return torch.where(high > low, (F - low) / torch.where(high > low, high - low, 1.0), 0.0)


def _norms(X: Tensor, layer: Tensor) -> Tensor:
    """|X|_l of each layer, [..., n_layers]."""
    squares = X.new_zeros(*X.shape[:-1], int(layer.max()) + 1)
    return squares.index_add(-1, layer, X.square()).sqrt()


def _units(X: Tensor, layer: Tensor) -> Tensor:
    """The gradient of the sum of |X|_l: each layer at length 1, 0 where it is 0."""
    norms = _norms(X, layer)[..., layer]
    return torch.where(norms > 0, X / torch.where(norms > 0, norms, 1.0), 0.0)
