"""DPPS: push-sum under Laplace noise that is scaled by a sensitivity which agents estimate."""

from abc import ABC
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Self

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel
from dpaudit.graphs.graph import build_graph


class Consensus(NamedTuple):
    S: Tensor  # [..., n_agents, d_s], shared parameters s
    a: Tensor  # [..., n_agents, 1], push-sum weights
    sens: Tensor  # [..., n_agents, 1], the S_i that the next estimate goes on from
    noise: Tensor  # [..., n_agents, 1], ||gamma_n n_i||_1 of the round before


class Exchanged(NamedTuple):
    state: Consensus
    sent: dp.Messages
    H: Tensor  # [..., n_agents, d_s], what the noise was added to


class Protocol(dp.Strict):
    """Zhou, Xue and Chen, Algorithm 1; rows of S, H, M, E [..., n_agents, d_s] are agents.

    From a = 1, round t = 0, 1, ... with perturbations E and a doubly stochastic W is
        3.    H = S + E
        4.    S_i by (22), sent to everybody; S(t) = max_i S_i
        5-6.  M = H + gamma_n Lap(S(t) / b), sent with a to the out-neighbours
        7.    S <- W M,  a <- W a;  the corrected parameters are S / a
        (22)  S_i <- lambda S_i + 2 C' (||E_i||_1 + lambda gamma_n ||n_i(t-1)||_1)
    Every ``sync_interval`` rounds W is 1/n between everybody, and the round after it (and the
    first) restarts with S_i = 2 C' ||E_i||_1. ``init_term`` adds the 2 C' ||s_i||_1 that (22) has
    at t = 0, and the authors' code has not. ``recurse_on`` = "max" goes on from S(t - 1), as that
    code does. ``estimator``: "paper" is (22); "stacked" replaces each norm by its sum over agents,
    as the theorem cited for (21) has it; "real" is the largest L1 distance between rows of H,
    which no agent could know.

    Rates (gamma_n here, step sizes with those who use this) are multiplied by ``decay`` from each
    of the rounds ``decay_at`` on, counted from 1. In (22) stands the gamma_n of the noise's round.
    """

    budget: PositiveFloat = 5.0  # b, if no epsilon is given
    epsilon: dp.BudgetEpsilon | None = None  # of a round, b / gamma_n: b is then epsilon gamma_n
    noise_rate: NonNegativeFloat = 0.001  # gamma_n
    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    decay_at: tuple[PositiveInt, ...] = ()
    sensitivity_factor: PositiveFloat = 0.95  # C'
    contraction: Annotated[float, Field(gt=0, lt=1)] = 0.55  # lambda
    sync_interval: NonNegativeInt = 4  # T_sync; 0: never
    estimator: Literal["paper", "stacked", "real"] = "paper"
    recurse_on: Literal["own", "max"] = "own"
    init_term: bool = False

    @property
    def b(self) -> float:
        """b, from epsilon if that is given."""
        return self.budget if self.epsilon is None else self.epsilon * self.noise_rate

    def start(self, S: Tensor) -> Consensus:
        zeros = torch.zeros_like(S[..., :1])
        return Consensus(S, zeros + 1, zeros, zeros)

    def exchange(
        self, state: Consensus, E: Tensor, k: int, graph: Graph, noise: Noise
    ) -> Exchanged:
        """Round k of all agents, with perturbations E."""
        S, a, _, _ = state
        W, gamma_n, b = self.graph(k, graph), self.noise_rate * self.rate_factor(k), self.b

        H = S + E  # 3
        sens = self._sensitivity(state, E, H, k)  # 4
        largest = sens.amax(dim=-2, keepdim=True)
        N = gamma_n * noise.laplace("m", largest / b, H)  # 5
        M = H + N
        sent = {  # 4, 6
            "m": dp.broadcast(W, M),
            "a": dp.broadcast(W, a),
            "sens": self._estimates(W.n_agents, sens),
        }
        base = largest.expand_as(sens) if self.recurse_on == "max" else sens
        return Exchanged(Consensus(W.mix(M), W.mix(a), base, dp.norms(N, 1)), sent, H)  # 7

    def rate_factor(self, k: int) -> float:
        """What rates are multiplied by in round k = 1, 2, ..."""
        return self.decay ** sum(k >= start for start in self.decay_at)

    def claimed_epsilon(self, k: int) -> float:
        """b / gamma_n of round k: one agent's query replaced by another's (Theorem 1)."""
        rate = self.noise_rate * self.rate_factor(k)
        return self.b / rate if rate else float("inf")

    def graph(self, k: int, graph: Graph) -> Graph:
        """Round k's graph where ``graph`` is that of the network: everybody in rounds of sync."""
        sync = self.sync_interval and k % self.sync_interval == 0
        return _everybody(graph.n_agents) if sync else graph

    def _sensitivity(self, state: Consensus, E: Tensor, H: Tensor, k: int) -> Tensor:
        """S_i of round k, [..., n_agents, 1]."""
        if self.estimator == "real":
            return distances(H).amax(dim=-1, keepdim=True)
        C, lam = self.sensitivity_factor, self.contraction
        if k == 1 or (self.sync_interval and (k - 1) % self.sync_interval == 0):
            first = dp.norms(state.S, 1) if self.init_term else 0.0
            return 2 * C * self._counted(first + dp.norms(E, 1))
        return lam * state.sens + 2 * C * self._counted(dp.norms(E, 1) + lam * state.noise)  # (22)

    def _estimates(self, n_agents: int, sens: Tensor) -> dp.Message:
        """S_i to all agents. The real sensitivity, which no agent knows, travels nowhere."""
        if self.estimator != "real":
            return dp.broadcast(_everybody(n_agents), sens)
        nobody = torch.zeros(0, dtype=torch.long, device=sens.device)
        return dp.Message(sens, nobody, nobody, nobody)

    def _counted(self, sizes: Tensor) -> Tensor:
        """Norms [..., n_agents, 1], each agent's own or the sum of all."""
        if self.estimator == "stacked":
            return sizes.sum(dim=-2, keepdim=True).expand_as(sizes)
        return sizes

    def refuse_epsilon_without_noise(self) -> None:
        """Raises ConfigError: epsilon is given, and there is no noise."""
        if self.epsilon is not None and self.noise_rate == 0:
            raise dp.ConfigError(
                "DPA041", "defense.protocol: epsilon needs a noise_rate above 0: b = epsilon * 0"
            )

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_rate": 0.0, "epsilon": None})


def distances(H: Tensor) -> Tensor:
    """||h_i - h_j||_1 of all pairs of rows of H [..., n_agents, d], [..., n_agents, n_agents].

    Their maximum is the real sensitivity in the sense of Definition 5.
    """
    return torch.cdist(H, H, p=1)


@lru_cache(maxsize=8)
def _everybody(n_agents: int) -> Graph:
    return build_graph("complete", n_agents).at(1)


class PrivatePushSum(dp.Defense, ABC):
    """What the protocol releases, whatever perturbs it."""

    claims = "pure b / gamma_n-DP of each round, agent identity (Theorem 1)"
    messages = {
        "m": "the perturbed shared parameters; hold the sender's gradient under Laplace noise of "
        "scale gamma_n S / b, where S depends on the data, and all messages before",
        "a": "push-sum weight; depends on the graph alone",
        "sens": "the sensitivity S_i that the sender estimates, to all agents: computed from the "
        "L1 norms of its gradients and of its past noise, sent without noise",
    }

    needs_graph = dp.column_stochastic("push-sum")
    theory_graph = dp.doubly_stochastic("DPPS", " (Definition 1), without which (16) fails")

    protocol: Protocol = Protocol()
    learning_rate: NonNegativeFloat = 0.1  # gamma_s

    def calibrate(self, setting: Setting) -> Self:
        """The same: b follows from a budget for each round, if one is given (Theorem 1)."""
        calibrated = super().calibrate(setting)
        self.protocol.refuse_epsilon_without_noise()
        return calibrated

    def without_noise(self) -> Self:
        return self.model_copy(update={"protocol": self.protocol.without_noise()})

    def sensitivity(
        self, k: int, setting: Setting, adjacency: dp.Adjacency, victim: int, sent: dp.Messages
    ) -> dict[str, dp.Stated]:
        """S(t) for the distance between any two agents' H, as they estimate it (Theorem 1).

        For a record the paper states nothing.
        """
        if adjacency == "agent-identity":
            return {"m": dp.Stated(1, sent["sens"].payload.max().item())}
        return {"a": dp.Stated(1, 0.0)} if adjacency in dp.CHANGED_RECORDS else {}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """What DPPS releases about one record: S_i, in every round and without noise.

        The noise on m is scaled by S(t), which is 0 for some data, so nothing bounds it from below.
        """
        agents = range(setting.n_agents)
        sends_it = self.protocol.estimator != "real"
        reads_it = sends_it and any(threat_model.sees(victim, j) for j in agents if j != victim)
        noiseless = [0.0] * self.n_rounds
        released = dp.batch_releases(self, setting.sizes[victim], noiseless, "laplace")
        return Bracket(
            least=released if reads_it else (),
            most=released,
            assumptions=(
                'the scalar "sens" is computed from the norm of the batch\'s gradient and sent '
                "without noise; data sets count as adjacent whose norms differ below the clip norm"
                if sends_it
                else "noise is scaled by the largest real distance between two agents, which no "
                "agent knows and none sends; it is 0 for some data, so nothing bounds the noise "
                "from below",
                f"the paper's b / gamma_n is {self.protocol.claimed_epsilon(1):g} in the first "
                f"round and {self.protocol.claimed_epsilon(self.n_rounds):g} in the last, for "
                "replacing the agent that is asked (Definition 4), not for a record and not for "
                "the whole run",
            ),
        )

    def _noisy(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        """(s_i - m_i) / gamma_s, and s_i / a_i, from intercepted messages."""
        self._refuse_local_layers(setting)
        rate = self.learning_rate * self.protocol.rate_factor(target.round)

        def graph_of(k: int) -> Graph:
            return self.protocol.graph(k, setting.network.at(k))

        S, step = dp.start_and_step(view, graph_of, "m", target)
        a = view.sent_by("a", target.round, target.victim)
        return dp.ObservedGradient(step / rate, S / a)

    def _refuse_local_layers(self, setting: Setting) -> None:
        """Raises NotObservable: some layers of the model are never sent."""

    observables = {
        "noisy-gradient": dp.Observable(
            "(s_i - m_i) / gamma_s with s_i mixed from the messages of the round before",
            {"m": (-1, 0), "a": (0,)},
            "m",
            False,
            _noisy,
        )
    }


class DPPS(PrivatePushSum):
    """The protocol on its own, perturbed by unclipped gradient steps: E = -gamma_s grad F(S / a).

    With a step size of 0 it is average consensus. With L1 clipping, or with some layers kept at
    home, it is SGPDP and PartPSP.
    """

    paper = "Zhou, Xue, Chen: DPPS"
    private = {
        "gradient": "the mean gradient of the batch of the round",
        "h": "the perturbed parameters before noise",
    }

    def start(self, X: Tensor, setting: Setting) -> Consensus:
        return self.protocol.start(X)

    def step(
        self, state: Consensus, k: int, graph: Graph, gradient: Gradient, noise: Noise
    ) -> Round:
        G = gradient(state.S / state.a)
        E = -self.learning_rate * self.protocol.rate_factor(k) * G
        exchanged = self.protocol.exchange(state, E, k, graph, noise)
        return Round(exchanged.state, exchanged.sent, {"gradient": G, "h": exchanged.H})

    def models(self, state: Consensus) -> Tensor:
        return state.S / state.a

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """S_i is sent without noise; nothing depends on records if no gradient perturbs."""
        if self.learning_rate == 0:
            return Bracket((), (), ("no message depends on a record: there are no perturbations",))
        return super().mechanism(setting, threat_model, victim)
