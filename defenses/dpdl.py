"""DPDL: cross-gradients between neighbours, clipped, perturbed, calibrated by cosine similarity."""

import math
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], models x
    V: Tensor  # [..., n_agents, d], momenta v


class DPDL(dp.BudgetDefense):
    """Yuan, Xiao, Wang and Li, Algorithm 1; rows of X, V [..., n_agents, d] are agents.

    With g^ij the mean over agent j's batch of per-record gradients at agent i's model, clipped to
    norm C, and z ~ N(0, sigma^2 C^2 I), fresh for each ordered pair, round t at agent i is
        3.       send x_i to the neighbours
        7-10.    each neighbour j answers with g..^ij = g^ij + z^ij / B, to i only
        13-16.   e_i = g^ii, kept without noise; g..^ii = g^ii + z^ii / B
        19-20.   K_ij = 1 / (1 + exp(cos(g..^ij, e_i)))
        21-22.   G_i = sum over j, itself included, of g..^ij / (sqrt(w_ij) N) + alpha w_ij K_ij e_i
        24-26.   v~_i = beta v_i + G_i,  x~_i = x_i - eta v~_i, both sent to the neighbours
        28-29.   v <- W v~,  x <- W x~
    One batch serves all gradients of a round. Without noise this is the no-defense twin.

    Readings: the noise has standard deviation sigma C as in the algorithm box (the text once omits
    C); the cosine with a zero vector is 0; (23) is taken as printed in the main text, whose second
    term is the larger, with its free constant c2, and with h, which no one can know before the
    run, as options. A batch takes each record with probability B / D_i ("poisson"), as Lemma 1 has
    it, or exactly B of them ("fixed"), as the algorithm box has it.
    """

    sampling: Literal["fixed", "poisson"] = "poisson"
    learning_rate: PositiveFloat = 0.005  # eta
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.7  # beta
    calibration: Annotated[float, Field(ge=0)] = 1.5  # alpha
    clip_norm: PositiveFloat = 2.0  # C
    c1: PositiveFloat | None = None  # of Theorem 1, which leaves it open; unchecked if absent
    c2: PositiveFloat = 2.0  # of (23); the proof's leading order gives 2
    h: Annotated[float, Field(ge=1)] = 2.0  # of (23); it tends to 1 as noise dominates

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, V = state
        N, B, C = graph.n_agents, gradient.batch_size, self.clip_norm
        std = self.sigma * C
        agents = torch.arange(N)  # links j -> i, then the self-loops
        to = torch.cat([graph.receivers, agents]).to(X.device)
        holders = torch.cat([graph.senders, agents]).to(X.device)
        w = torch.cat([graph.on_links, graph.own]).to(X)  # w_ij, then w_ii

        sums = gradient.clipped_sum(X.index_select(-2, to), C, holders)  # 7-8, 13-14
        cross, own = sums.split([graph.n_edges, N], dim=-2)
        G_cross = (cross + noise.gaussian("cross_gradient", std, cross)) / B  # 9
        e = own / B  # 15
        G_own = (own + noise.gaussian("self_gradient", std, own)) / B  # 16
        G_all = torch.cat([G_cross, G_own], dim=-2)
        K = torch.sigmoid(-_cosine(G_all, e, to))  # 19-20
        G = _to_agents(G_all / (w.sqrt() * N)[:, None], to, N)  # 21-22
        G = G + self.calibration * _to_agents((w * K)[..., None], to, N) * e
        V = self.momentum * V + G  # 24
        X_tilde = X - self.learning_rate * V  # 25
        sent = {
            "x": dp.broadcast(graph, X),
            "cross_gradient": dp.unicast(graph, G_cross),
            "v": dp.broadcast(graph, V),
            "x_tilde": dp.broadcast(graph, X_tilde),
        }
        return Round(State(graph.mix(X_tilde), graph.mix(V)), sent, {"gradient": e})  # 28-29

    paper = "Yuan, Xiao, Wang, Li: DPDL"
    claims = "(epsilon, delta)-DP over the run, one record (Theorem 1)"
    messages = {
        "x": "the model before the round; depends on past batches through past noise",
        "cross_gradient": "clipped gradient of the sender's batch at the receiver's model, "
        "Gaussian noise of standard deviation sigma C / B, fresh for each receiver",
        "v": "momentum; holds the sender's un-noised gradient e_i beside noisy gradients",
        "x_tilde": "the model after the local step; equivalent to v given x",
    }
    private = {
        "gradient": "e_i, the mean of the batch's clipped gradients at its own model, no noise"
    }

    state = State
    needs_graph = dp.undirected("DPDL", " (Assumption 3)", error=dp.ConfigError, help=None)

    def clip_norm_in(self, k: int) -> float:
        return self.clip_norm

    def check_theory(self, setting: Setting) -> None:
        q = self.batch_size / (setting.n_agents * min(setting.sizes))
        if self.c1 is not None and self.epsilon and self.epsilon > self.c1 * q**2 * self.n_rounds:
            raise dp.OutsideTheory(
                "DPA040",
                f"defense.epsilon: Theorem 1 needs epsilon <= c1 q^2 T = "
                f"{self.c1 * q**2 * self.n_rounds:.4g} with q = {q:.4g}, got {self.epsilon:g}",
            )

    def noise_multiplier_of(self, setting: Setting) -> float:
        """The right-hand side of (23); the root's sum is over the smallest neighbourhood.

        It has q = B / (N min D_i). An agent draws its batch from its own D_i records, so its true
        sampling rate is N times that (for equal D_i); `mechanism` accounts for the true one.
        """
        if self.epsilon is None:
            raise ValueError("(23) needs epsilon")
        W, N = setting.network.at(1).sparse, setting.n_agents
        w_min, w_max = float(W.data.min()), float(W.data.max())
        q = self.batch_size / (N * min(setting.sizes))
        terms = (
            2 / math.sqrt(w_min)
            + 15 * self.calibration * N / 8
            + self.calibration * w_max * (self.h + 1) ** 2 * N / (2 * self.h)
        )
        root = math.sqrt(int(np.diff(W.indptr).min()) / w_max)
        return (
            terms * self.c2 * q * math.sqrt(self.n_rounds * math.log(1 / self.delta))
            / (root * self.epsilon)
        )  # fmt: skip

    def sensitivity(
        self, k: int, setting: Setting, adjacency: dp.Adjacency, victim: int, sent: dp.Messages
    ) -> dict[str, dp.Stated]:
        """C / B of a cross-gradient for each record; (53) for v, which the paper has for two."""
        if adjacency not in dp.CHANGED_RECORDS:
            return {}
        C, B = self.clip_norm, self.batch_size
        stated = {
            "x": dp.Stated(2, 0.0),
            "cross_gradient": dp.Stated(2, dp.CHANGED_RECORDS[adjacency] * C / B),
        }
        if adjacency == "replace-one":
            w, h, alpha = setting.network.at(1).own[victim].item(), self.h, self.calibration
            v = (
                2 / (math.sqrt(w) * setting.n_agents)
                + 15 * alpha * (1 - w) / 8
                + alpha * w * (h + 1) ** 2 / (2 * h)
            )
            stated["v"] = dp.Stated(2, v * C / B)
            stated["x_tilde"] = dp.Stated(2, self.learning_rate * v * C / B)
        return stated

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Per round, one record moves each cross-gradient seen and the momentum, both Gaussian.

        The adversary subtracts from the momentum every cross-gradient it holds, noise and all
        (Theorem 1 counts that noise as hiding the record). What then hides the un-noised e_i is
        z^ii and the noise of the cross-gradients it does not hold. A cross-gradient that it does
        not read shows in its receiver's momentum, under further noise: it counts as read at most.
        An adversary that does not read every model learns at most as much as one that reads every
        link, as agents react to what they receive.
        """
        graph, agents = setting.network.at(1), threat_model.agents
        near = graph.neighbours(victim)
        out = [i for i in near if threat_model.sees(victim, i)]
        unseen = [j for j in near if not threat_model.sees(j, victim) and j not in agents]

        def mechanism(calibration: float, n_links: int, unseen: list[int] | None) -> dp.Mechanism:
            """Equal rounds in each of which one record moves the view by shift / sigma."""
            shift = math.sqrt(n_links)
            if unseen is not None and n_links:
                shift = math.hypot(shift, self._of_momentum(calibration, graph, victim, unseen))
            z = [self.sigma / shift] * self.n_rounds if shift else []
            return dp.batch_releases(self, setting.sizes[victim], z)

        everybody = _are_known(graph, threat_model, setting.holders)
        follows = _are_known(graph, threat_model, (victim, *near))
        return Bracket(
            least=mechanism(CALIBRATION_LEAST, len(out), unseen if follows else None),
            most=mechanism(CALIBRATION_MOST, len(near), unseen if everybody else []),
            assumptions=(
                "a record's effect through the calibration K_ij e_i is counted between "
                f"{CALIBRATION_LEAST:.2f} and {CALIBRATION_MOST:.2f} of its effect on e_i, which "
                "bound K and the Lipschitz constant of K(e) e; noise inside K_ii is not counted",
                *(() if everybody else (_RELAYED,)),
            ),
        )

    def _of_momentum(
        self, calibration: float, graph: Graph, victim: int, unseen: list[int]
    ) -> float:
        """How far a record moves the momentum, in deviations of the noise that still hides it."""
        w = dict(graph.heard_by(victim))
        own = 1 / math.sqrt(w[victim]) + self.calibration * graph.n_agents * calibration
        return float(own / math.sqrt(sum(1 / w[j] for j in [victim, *unseen])))

    def _difference(
        self, view: dp.View, setting: Setting, target: dp.Target
    ) -> dp.ObservedGradient:
        t, victim, _ = target
        now, before = view.sent_by("v", t, victim), self._momentum(view, t - 1, victim)
        return dp.ObservedGradient(now - before, view.sent_by("x", t, victim))

    def _exact(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        t, victim, _ = target
        heard = setting.network.at(1).heard_by(victim)
        mixed = sum(w * self._momentum(view, t - 1, j) for j, w in heard)
        G = view.sent_by("v", t, victim) - self.momentum * mixed
        return dp.ObservedGradient(G, view.sent_by("x", t, victim))

    def _stripped(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        t, victim, _ = target
        graph = setting.network.at(1)
        G, model = self._exact(view, setting, target)
        w = dict(graph.heard_by(victim))
        for j in graph.neighbours(victim):
            cross = view.on_edge("cross_gradient", t, j, victim)
            G = G - cross / (math.sqrt(w[j]) * setting.n_agents)
        return dp.ObservedGradient(G, model)

    def _momentum(self, view: dp.View, t: int, agent: int) -> Tensor:
        """v~ that the agent sent in round t; v_0 = 0 is public."""
        if t == 0:
            return torch.zeros_like(view.sent_by("v", 1, agent))
        return view.sent_by("v", t, agent)

    observables = {
        "cross_gradient": dp.gradient_on_link("cross_gradient", at="x"),  # CG
        "momentum-difference": dp.Observable(
            "the change of the momentum between rounds, as the paper attacks it (MM)",
            {"v": (-1, 0), "x": (0,)},
            "v",
            False,
            _difference,
        ),
        "momentum-exact": dp.Observable(
            "the momentum less beta times the mixed momenta, which is G_i (MM-exact)",
            {"v": (-1, 0), "x": (0,)},
            "v",
            False,
            _exact,
        ),
        "momentum-stripped": dp.Observable(
            "G_i less every intercepted cross-gradient (MM-strip)",
            {"v": (-1, 0), "x": (0,), "cross_gradient": (0,)},
            "v",
            False,
            _stripped,
        ),
    }


# K(e) e with K = 1 / (1 + exp(cos(c, e))) moves by at least 1/(1+exp(1)) times a change of e in
# the worst case (from e = 0), and by at most the largest singular value of its Jacobian,
# K (b/2 + sqrt(1 + b^2/4)) with b = (1 - K) |sin(c, e)|, which peaks at cos(c, e) = -0.854.
CALIBRATION_LEAST = 1 / (1 + math.e)
CALIBRATION_MOST = 0.75801
_RELAYED = (
    "gradients depend on models that this view does not reveal, and may relay messages that it "
    "does not read: the upper end is that of every link"
)


@lru_cache(maxsize=64)
def _are_known(graph: Graph, threat_model: ThreatModel, agents: tuple[int, ...]) -> bool:
    """Whether a view has the models of all these agents."""
    return all(
        j in threat_model.agents or any(threat_model.sees(j, i) for i in graph.neighbours(j))
        for j in agents
    )


def _cosine(values: Tensor, e: Tensor, to: Tensor) -> Tensor:
    """Cosines of rows [..., n, d] with those of the agents [n] they go to; 0 with a zero vector."""
    norms = values.norm(dim=-1) * e.norm(dim=-1).index_select(-1, to)
    products = (values * e.index_select(-2, to)).sum(-1)
    return torch.where(norms > 0, products / norms.where(norms > 0, 1.0), 0.0)


def _to_agents(values: Tensor, to: Tensor, n_agents: int) -> Tensor:
    """Sum rows [..., n, d] by the agent [n] they go to, [..., n_agents, d]."""
    shape = (*values.shape[:-2], n_agents, values.shape[-1])
    return values.new_zeros(shape).index_add_(-2, to, values)
