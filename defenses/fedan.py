"""FedAN: clip norm and noise follow the norms of noisy steps, one's own and the neighbours'."""

from typing import Annotated, NamedTuple, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel


class State(NamedTuple):
    V: Tensor  # [..., n_agents, d], W times what was sent last
    X: Tensor  # [..., n_agents, d], what was sent last
    own: Tensor  # [..., n_agents, memory], norms of own noisy gradients, the last one first
    heard: Tensor  # [..., n_agents, memory], mean norms of the neighbours' changes over eta
    played: Tensor  # [..., 1, 1], rounds played so far


class FedAN(dp.GaussianSGD):
    """What ADP-VRSGP calls FedAN; rows of V, X, G [..., n_agents, d] are agents.

    With m_i the mean norm of the agent's own last noisy gradients G_i, and M_i that of
    (x_j(t) - x_j(t-1)) / eta over its neighbours j, both over the last h rounds, round t is
        1.  S_i = min(C, (1 - theta) m_i + theta M_i), at least C_0; C before there is a history
        2.  G = (sum over the batch of per-record gradients at V, clipped to S_i, + N(0, sigma^2
            S_i^2)) / B
        3.  X = V - eta G, sent to the neighbours,  V <- W X
    S_i is made of noisy values alone, so that it is post-processing: given all messages before it,
    a round is one Gaussian release of noise multiplier sigma, whatever S_i is.

    Reconstruction: the comparison says only that noise follows local and global history, and its
    list of references lacks the source. All formulas here are ours.
    """

    paper = "FedAN, as ADP-VRSGP describes it; source unidentified"
    reconstructed = (
        "everything but that noise follows local and global history: its source is not identified, "
        "and no entry of a table under this name is the method of its authors"
    )
    messages = {
        "x": "the model after the local step; holds the sender's clipped gradient under Gaussian "
        "noise of standard deviation eta sigma S_i / B, and all messages before",
    }

    clips_records = False  # not to a norm that all agents have in common
    # changes of what a neighbour sent are known on a fixed graph of gossip alone
    needs_graph = dp.GraphCondition(
        "FedAN needs a graph of gossip that does not vary in time",
        lambda network: network.period == 1 and network.server is None,
        error=dp.ConfigError,
    )
    theory_graph = dp.GraphCondition(
        "FedAN needs a doubly stochastic W", lambda network: network.at(1).doubly_stochastic
    )

    memory: PositiveInt = 5  # h
    sharing: Annotated[float, Field(ge=0, le=1)] = 0.5  # theta
    least_clip_norm: PositiveFloat = 0.01  # C_0

    def start(self, X: Tensor, setting: Setting) -> State:
        none = X.new_zeros(*X.shape[:-1], self.memory)
        return State(X, X, none, none, X.new_zeros(*X.shape[:-2], 1, 1))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        V, eta, B = state.V, self.learning_rate, gradient.batch_size
        S = self._clip_norms(state)  # 1

        def clipped_sum(V: Tensor, acting: Tensor | None) -> Tensor:
            each, norm = gradient.per_record(V, acting), S if acting is None else S[..., acting, :]
            weights = norm / torch.maximum(each.norm(dim=-1), norm)
            return torch.einsum("...bd,...b->...d", each, weights)

        clipped = gradient.in_parts(V, clipped_sum)
        G = (clipped + noise.gaussian("gradient", self.sigma * S, clipped)) / B  # 2
        X = V - eta * G  # 3
        after = State(
            graph.mix(X),
            X,
            _remembered(state.own, G.norm(dim=-1, keepdim=True)),
            _remembered(state.heard, _heard(graph, (X - state.X).norm(dim=-1, keepdim=True) / eta)),
            state.played + 1,
        )
        return Round(after, {"x": dp.broadcast(graph, X)}, {"gradient": clipped / B})

    def _clip_norms(self, state: State) -> Tensor:
        """S_i, [..., n_agents, 1]."""
        rounds = state.played.clamp(1, self.memory)
        m, M = (norms.sum(-1, keepdim=True) / rounds for norms in (state.own, state.heard))
        mixed = (1 - self.sharing) * m + self.sharing * M
        history = mixed.clamp(self.least_clip_norm, self.clip_norm)
        return torch.where(state.played > 0, history, self.clip_norm)

    def calibrate(self, setting: Setting) -> Self:
        """sigma such that the agent with the fewest records is exactly (epsilon, delta)-DP.

        Raises:
            ConfigError: the bounds of clip norms are the wrong way round.
        """
        calibrated = super().calibrate(setting)
        if self.least_clip_norm > self.clip_norm:
            raise dp.ConfigError(
                "DPA005",
                f"defense.least_clip_norm: {self.least_clip_norm:g} is above clip_norm, "
                f"{self.clip_norm:g}",
            )
        return calibrated

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Releases with sigma in every round if the view knows all of S_i, and so the noise scale;
        others know it in the first round alone."""
        links = [link for link in setting.network.at(1).links if victim in link]
        known = dp.known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        known[1:] &= all(threat_model.sees(*link) for link in links)
        least, most, said = dp.gaussian_rounds(
            self, setting, threat_model, victim, self.sigma, known
        )
        adaptive = "clip norms are functions of noisy values before them, which reveal no more"
        return Bracket(least, most, (*said, adaptive))

    observables = {"noisy-gradient": dp.step_seen("x")}


def _remembered(norms: Tensor, newest: Tensor) -> Tensor:
    """[..., n_agents, memory] with the newest first."""
    return torch.cat([newest, norms[..., :-1]], dim=-1)


def _heard(graph: Graph, changes: Tensor) -> Tensor:
    """The mean of the neighbours' numbers [..., n_agents, 1]; 0 without neighbours."""
    senders, receivers = graph.senders.to(changes.device), graph.receivers.to(changes.device)
    total = torch.zeros_like(changes).index_add(-2, receivers, changes[..., senders, :])
    degree = receivers.bincount(minlength=graph.n_agents).clamp(min=1)
    return total / degree.to(changes)[:, None]
