"""Muffliato: a noisy local step, and then several accelerated gossip steps without more noise."""

import math
from typing import Literal, Self

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Models, Noise, Round, Setting, ThreatModel

MOST_MESSAGES = 2 * 10**7  # of a round, all of which are held at once when it is looked at
NO_GAP = 1e-9  # a spectral gap below it is that of a graph whose gossip never averages


class Muffliato(dp.GaussianDefense):
    """Cyffers, Even, Bellet and Massoulie 2022, Muffliato-GD; rows of X, Y [..., n_agents, d] are
    agents.

    With S the sum over the batch of per-record gradients at X, clipped to norm C, l the spectral
    gap of W and c = 2 (1 - sqrt(l (1 - l/4))) / (1 - l/2)^2, a round is
        1.  Y_0 = X - nu (S + N(0, sigma^2 C^2)) / B
        2.  Y_1 = W Y_0,  Y_(s+1) = c W Y_s + (1 - c) Y_(s-1)  for s = 1 .. K-1
        3.  X <- Y_K
    where step s of the gossip sends Y_(s-1) as "x/s", and K = ceil(ln(n) / sqrt(l)), the rule of
    the paper where noise is larger than the distances between models. W may differ by round.

    Readings: l is one less the largest modulus, and not only the second largest eigenvalue, which
    are the same unless W is nearly bipartite; the recurrence starts with W Y_0 (the authors' helper
    has c W Y_0, which scales the mean of all models by c). Departure: the authors take all records
    of an agent and rely on a loss whose gradients are bounded by themselves; here records of a
    batch are clipped one by one.

    ``clip`` = "noisy" is the authors' code: the mean gradient without any clip, under the same
    noise, is clipped after it. A clip there is post-processing: it bounds no record's effect.
    ``perturb`` = "model" is how DPDL runs it: the noise is on the model, and not times nu.
    """

    waits = True
    paper = "Cyffers, Even, Bellet, Massoulie: Muffliato"
    claims = "(epsilon, delta) pairwise network DP over the run, one record"
    messages = {
        "x": "the model of each gossip step; the first holds the sender's clipped gradient under "
        "Gaussian noise of standard deviation nu sigma C / B, the others mix what was sent"
    }
    reconstructed = (
        "the clip of each record, the accounting of sampled batches, and how DPDL scales the noise "
        "are not in the paper"
    )
    private = {"gradient": "the mean gradient of the batch, clipped if records are, without noise"}

    theory_graph = dp.GraphCondition(
        "Muffliato needs an undirected connected graph in every round, with a symmetric doubly "
        "stochastic W whose only eigenvalue of modulus 1 is 1",
        lambda network: dp.is_symmetric(network) and _least_gap(network) >= NO_GAP,
    )

    learning_rate: PositiveFloat = 0.05  # nu
    gossip_steps: PositiveInt | None = None  # K; by the paper's rule if absent
    clip: Literal["record", "noisy"] = "record"
    perturb: Literal["gradient", "model"] = "gradient"

    @model_validator(mode="after")
    def _variants_are_of_one_source(self) -> Self:
        if self.perturb == "model" and self.clip == "noisy":
            raise ValueError('clip = "noisy" clips a noisy gradient; perturb = "model" has none')
        if self.perturb == "model" and self.epsilon is not None:
            raise ValueError('no source sets the noise of perturb = "model"; give noise_multiplier')
        return self

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X, nu, B, C = state.X, self.learning_rate, gradient.batch_size, self.clip_norm
        std = self.sigma * C / B
        noisy = self.clip == "noisy"
        exact = dp.of_acting(
            graph,
            X,
            lambda at, who: gradient(at, who) if noisy else gradient.clipped_sum(at, C, who) / B,
        )
        if self.perturb == "gradient":
            G = exact + dp.stepping(graph, noise.gaussian("gradient", std, exact))
            Y = X - nu * (dp.clip(G, C) if noisy else G)  # 1
        else:
            Y = X - nu * exact + dp.stepping(graph, noise.gaussian("x", std, X))
        *steps, Y = gossip(graph, Y, self.steps(graph))  # 2
        sent = {f"x/{s}": dp.broadcast(graph, Y_s) for s, Y_s in enumerate(steps, start=1)}
        return Round(Models(Y), sent, {"gradient": exact})  # 3

    def steps(self, graph: Graph) -> int:
        """K on this graph."""
        if self.gossip_steps is not None:
            return self.gossip_steps
        return max(1, math.ceil(math.log(graph.n_agents) / math.sqrt(graph.spectral_gap)))

    def clip_norm_in(self, k: int) -> float | None:
        """Clip norm of a record; None if the noisy mean is clipped."""
        return self.clip_norm if self.clip == "record" else None

    def calibrate(self, setting: Setting) -> Self:
        """sigma such that the agent with the fewest records is (epsilon, delta)-DP to all.

        Raises:
            ConfigError: the rule gives no K, as gossip on some round's graph never averages, or a
                round has too many messages.
        """
        if self.gossip_steps is None and _least_gap(setting.network) < NO_GAP:
            raise dp.ConfigError(
                "DPA039",
                "graph: Muffliato's K = ln(n) / sqrt(l) is infinite, as W of some round has no "
                "spectral gap l; expected a connected graph with lazy weights, or "
                "defense.gossip_steps",
            )
        for graph in setting.network.graphs:  # all messages are made, and looked at, in each round
            K, n = self.steps(graph), graph.n_edges
            if K * n > MOST_MESSAGES:
                raise dp.ConfigError(
                    "DPA022",
                    f"graph: Muffliato's {K:,} gossip steps on {n:,} links are {K * n:,} messages "
                    f"in a round; expected {MOST_MESSAGES:,} at most: set defense.gossip_steps to "
                    f"{max(1, MOST_MESSAGES // n)} or less, or take a graph that mixes faster",
                )
        return super().calibrate(setting)

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> dict[str, float]:
        """nu C / B in the first message, and what gossip leaves of it in others."""
        if self.clip == "noisy":
            return {}
        moved = self.learning_rate * self.clip_norm / self.batch_size
        graph = setting.network.at(k)
        alone = torch.eye(setting.n_agents, dtype=torch.float64)[:, victim : victim + 1]
        *sent, _ = gossip(graph, alone, self.steps(graph))
        return {f"x/{s}": moved * abs(Y[victim].item()) for s, Y in enumerate(sent, start=1)}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's clipped gradient under its noise, and nothing else.

        Later messages of a round follow from the first ones of all agents.
        """
        if self.clip == "record":
            z = self.sigma if self.perturb == "gradient" else self.sigma / self.learning_rate
            return dp.gaussian_rounds(self, setting, threat_model, victim, z)
        said = (
            "no record is clipped before the noise, so that a gradient of any length stands out of "
            "it: the upper end counts no noise; the lower end counts nothing, as a clip after the "
            "noise is not linear"
        )
        unnoised = [0.0] * self.n_rounds
        return Bracket((), dp.batch_releases(self, setting.sizes[victim], unnoised), (said,))

    def _noisy(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        k, victim, _ = target
        graph_of = setting.network.at
        K = self.steps(graph_of(k - 1)) if k > 1 else 1
        start = dp.mixed(view, graph_of, f"x/{K}", k - 1, victim)
        if K > 1:
            c = acceleration(graph_of(k - 1))
            start = c * start + (1 - c) * view.sent_by(f"x/{K - 1}", k - 1, victim)
        step = start - view.sent_by("x/1", k, victim)
        return dp.ObservedGradient(step / self.learning_rate, start)

    observables = {
        "noisy-gradient": dp.Observable(
            "(y_K of the round before, by its last gossip step, less x/1) / nu",
            {"x": (-1, 0)},
            "x/1",
            False,
            _noisy,
        )
    }


def acceleration(graph: Graph) -> float:
    """c of a graph: 1 would be plain gossip."""
    gap = min(1.0, max(0.0, graph.spectral_gap))
    return 2 * (1 - math.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2


def gossip(graph: Graph, Y: Tensor, n_steps: int) -> list[Tensor]:
    """Y_0, ..., Y_K of accelerated gossip from Y_0 [..., n_agents, d]."""
    c, all_Y = acceleration(graph), [Y, graph.mix(Y)]
    for _ in range(n_steps - 1):
        all_Y.append(c * graph.mix(all_Y[-1]) + (1 - c) * all_Y[-2])
    return all_Y


def _least_gap(network: dp.Network) -> float:
    return min(graph.spectral_gap for graph in network.graphs)
