"""Secure aggregation: masks that cancel in the sum, and the recovery of those that do not."""

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d]
    b: Tensor  # [..., n_agents, d], self masks of round 1 if they are reused, else of width 0
    P: Tensor  # [..., n_agents, n_agents, d], pair masks likewise


class SecureAggregation(dp.GaussianSGD):
    """Bonawitz et al. 2017 (CCS), with noise of every agent; rows of X, S [..., n_agents, d] are
    agents, and one of them is the server.

    With U the agents whose message arrives in time, t the threshold, S the sum over the batch of
    per-record gradients at the server's model, clipped to norm C, pair masks P_ij = -P_ji that i
    and j draw from a seed that they share, and self masks b_i, a round is
        1.  Y_i = S_i + N(0, sigma^2 C^2 / t) + b_i + sum over j of P_ij, sent to the server
        2.  b_i of i in U, and P_ij of i not in U, are recovered from shares, if |U| >= t
        3.  x <- x - eta (sum over U of Y_i - b_i, plus P_ij of i not in U) / (B |U|) at the server
    Nobody's b_i and P_ij are both recovered: Y_i of an agent that was late stays hidden. With fewer
    than t agents nothing is recovered, and the model stays. The server learns the sum over U under
    noise of at least sigma C. With c of the agents of U on its side it learns the sum over the
    others, under |U| - c parts of the noise.

    Wrong forms, as they were made: ``recovery`` = "both-masks" has agents answer both requests, so
    that b_i and P_ij of a late agent are recovered; "no-threshold" recovers whatever |U| is.
    ``masks`` = "reused" draws masks in round 1 alone, so that the difference of two rounds is
    without masks.

    Readings: masks are Gaussian, ``mask`` times C, where the paper has uniform integers modulo R
    that hide perfectly; each message is hidden but for mu = 1 / ``mask``. Keys and shares are
    ideal: only the server reads what is recovered. In each round ``late`` of the agents that take
    part, in turn, send too late. Who does not take part drops out after it agreed on keys.
    """

    paper = "Bonawitz et al.: Secure Aggregation"
    reconstructed = "Gaussian masks, ideal keys and shares, and the noise of every agent"
    waits = True
    messages = {
        "y": "the clipped gradient under the sender's part of the noise, and under masks",
        "self": "the self mask of an agent whose message came in time, as the server recovers it",
        "pair": "the pair masks of an agent whose message did not come in time, likewise",
        dp.AVERAGE: "the server's model; depends on sums alone",
    }

    needs_graph = dp.GraphCondition(
        "secure aggregation needs a server", lambda network: network.server is not None,
        error=dp.ConfigError, help='set graph.name = "server"',
    )  # fmt: skip

    threshold: PositiveInt | None = None  # t; None: more than half of the agents
    late: NonNegativeInt = 0  # of the agents of each round, whose message comes too late
    recovery: Literal["bonawitz", "both-masks", "no-threshold"] = "bonawitz"
    masks: Literal["fresh", "reused"] = "fresh"
    mask: PositiveFloat = 1000.0  # standard deviation of masks over C

    def start(self, X: Tensor, setting: Setting) -> State:
        width = X.shape[-1] if self.masks == "reused" else 0
        b = X.new_zeros(*X.shape[:-1], width)
        return State(X, b, b.unsqueeze(-2).expand(*b.shape[:-1], X.shape[-2], width))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        assert graph.server is not None
        X, average = dp.from_server(graph, state.X)
        C, B, n = self.clip_norm, gradient.batch_size, graph.n_agents
        part = self.sigma * C / self.threshold_of(n - 1) ** 0.5
        S = dp.of_acting(graph, X, lambda at, who: gradient.clipped_sum(at, C, who))
        b, P = self._masks(state, k, graph, S, noise)
        Z = noise.gaussian("own", part, S)
        Y = graph.acting(S) * (S + Z + b + P.sum(dim=-2))  # 1
        sent = {"y": dp.broadcast(graph, Y), **average}
        U = self.in_time(graph, k)
        after = X
        if self.is_recovered(len(U), n - 1):
            sent |= self._recovered(graph, U, b, P)  # 2
            others = _not_in(U, graph)
            left = P[..., others, :, :][..., U, :].sum(dim=(-3, -2))
            total = (Y - b)[..., U, :].sum(dim=-2) + left  # 3
            step = torch.zeros_like(X)
            step[..., graph.server, :] = self.learning_rate * total / (B * len(U))
            after = X - step
        keeps = self.masks == "reused"
        return Round(State(after, b, P) if keeps else state._replace(X=after), sent, {
            "gradient": S / B
        })  # fmt: skip

    def _masks(
        self, state: State, k: int, graph: Graph, like: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """b [..., n_agents, d] and P [..., n_agents, n_agents, d]; the server has none."""
        if self.masks == "reused" and k > 1:
            return state.b, state.P
        n, d = like.shape[-2:]
        std = self.mask * self.clip_norm if self.sigma > 0 else 0.0
        pairs = _pairs(n, graph.server).to(like.device)
        held = torch.ones(n, 1, dtype=like.dtype, device=like.device)
        held[graph.server] = 0
        b = held * noise.gaussian("self", std, like)
        V = noise.shared("pair", std, like[..., pairs[:, 0], :], pairs)
        i, j = pairs.T
        P = like.new_zeros(*like.shape[:-2], n * n, d)
        P = P.index_copy(-2, i * n + j, V).index_copy(-2, j * n + i, -V)
        return b, P.view(*like.shape[:-2], n, n, d)

    def _recovered(self, graph: Graph, U: list[int], b: Tensor, P: Tensor) -> dict[str, dp.Message]:
        """What agents of U send the server so that it recovers masks, which it alone can read.

        The first of U also sends the masks that an agent shares with others that are not in U.
        """
        assert graph.server is not None
        server = graph.server
        others = _not_in(U, graph)
        late = [i for i in others if graph.active is None or i in graph.active]
        asked = U + late if self.recovery == "both-masks" else U
        sent = {"self": _to_server(b, asked, server)}
        for i in others:
            rows = P[..., i, :, :].clone()
            rows[..., U[0], :] += P[..., i, others, :].sum(dim=-2)
            sent[f"pair/{i}"] = _to_server(rows, U, server)
        return sent

    def threshold_of(self, n_holders: int) -> int:
        """t."""
        return self.threshold or n_holders // 2 + 1

    def in_time(self, graph: Graph, k: int) -> list[int]:
        """U of round k: all but ``late`` agents, from the k-th on, of those that take part."""
        active = list(graph.active or ())
        late = {active[(k - 1 + j) % len(active)] for j in range(min(self.late, len(active)))}
        return [i for i in active if i not in late]

    def is_recovered(self, n_in_time: int, n_holders: int) -> bool:
        """Whether the server recovers the sum of so many agents."""
        least = 1 if self.recovery == "no-threshold" else self.threshold_of(n_holders)
        return n_in_time >= least

    def calibrate(self, setting: Setting) -> "SecureAggregation":
        """sigma from the budget. Raises ConfigError: no server, or a threshold nobody meets."""
        calibrated = super().calibrate(setting)
        n = setting.n_agents - 1
        if self.threshold_of(n) > n:
            raise dp.ConfigError(
                "DPA032", f"defense.threshold: {self.threshold} agents of {n}; expected {n} at most"
            )
        return calibrated

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> dict[str, float]:
        """C; masks do not depend on records."""
        graph = setting.network.at(k)
        U = self.in_time(graph, k)
        sent = ["self", *(f"pair/{i}" for i in _not_in(U, graph))]
        recovered = self.is_recovered(len(U), setting.n_agents - 1)
        return {"y": self.clip_norm, **dict.fromkeys(sent * recovered, 0.0)}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """A sum in each round in which the victim is in time, and masked messages.

        At least it is what the server sees. At most a message shows through its mask as well.
        """
        least, most = list[float](), list[float]()
        t, n = self.threshold_of(setting.n_agents - 1), setting.n_agents - 1
        alone, own = self.sigma / t**0.5, set(threat_model.agents)
        reads = setting.network.server in own
        for k in range(1, self.n_rounds + 1):
            graph = setting.network.at(k)
            U = self.in_time(graph, k)
            if victim not in (graph.active or ()):
                continue
            hidden = self.mask if self.sigma else 0.0
            summed = victim in U and self.is_recovered(len(U), n)
            noise = alone * (len(set(U) - own)) ** 0.5 if summed else None
            shown = self.recovery == "both-masks" and self.is_recovered(len(U), n)
            if shown and victim not in U:
                noise = alone
            if noise is not None:
                least += [noise] * reads
                most.append(noise)
            most.append(hidden)
        if self.masks == "reused":
            steps = dp.steps_of(setting.network.at, self.n_rounds, victim)
            most = [alone] * int(steps.sum())
        size = setting.sizes[victim]
        said = (
            "keys and shares are ideal, and masks are Gaussian: what is recovered is read by the "
            "server alone, and each masked message counts as a release under its mask"
        )
        low, high = (dp.batch_releases(self, size, np.array(end)) for end in (least, most))
        return Bracket(low, high, (said,))


def _to_server(payload: Tensor, senders: list[int], server: int) -> dp.Message:
    """Row j of [..., n_agents, d] from agent j, readable by the server alone."""
    rows = torch.tensor(senders, dtype=torch.long, device=payload.device)
    to = torch.full_like(rows, server)
    return dp.Message(payload, rows, to, rows, to)


def _not_in(U: list[int], graph: dp.Graph) -> list[int]:
    """The agents whose pair masks the server recovers."""
    return [i for i in range(graph.n_agents) if i not in U and i != graph.server]


@lru_cache(maxsize=16)
def _pairs(n_agents: int, server: int | None) -> Tensor:
    """All pairs of agents but the server, [n_pairs, 2]."""
    holders = [i for i in range(n_agents) if i != server]
    pairs = [(i, j) for i in holders for j in holders if i < j]
    return torch.tensor(pairs, dtype=torch.long).view(-1, 2)
