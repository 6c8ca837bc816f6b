"""DFedSAM with a private gradient: local steps of sharpness-aware descent between gossip steps."""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Models, Noise, Round, Setting, ThreatModel


class DPDFedSAM(dp.GaussianSGD):
    """Shi et al. 2023, DFedSAM, with DP-SGD's gradient; rows of X, V [..., n_agents, d] are agents.

    With unit(g) = g / ||g|| and batches that are drawn anew for each local step, round k is
        1.  V = X
        2.  K times, with g_r the gradient of record r of the batch at V:
            d_r = rho unit(g_r), g'_r its gradient at V + d_r, S the sum of g'_r clipped to norm C,
            V <- V - eta_k (S + N(0, sigma^2 C^2)) / B,  where eta_k = eta decay^(k-1)
        3.  Q times: V is sent to the neighbours,  V <- W V
        4.  X = V
    with a symmetric doubly stochastic W; Q > 1 is DFedSAM-MGS, whose gossip step q sends "x/q".

    ``sam`` = "batch" is DFedSAM's own ascent, one for all records, d = rho unit(sum of g_r). It
    depends on every record of the batch, and all gradients at V + d on it: one record moves each of
    them, and S by up to 2 B C. Clipping them one by one bounds nothing then.

    Departure: the authors' optional local momentum is left out.
    """

    paper = "Shi, Shen, Wei, Sun, Yuan, Wang, Tao: DFedSAM, made private"
    messages = {
        "x": "the model of each gossip step; the first holds the sender's clipped gradients of K "
        "batches, under Gaussian noise of standard deviation eta sigma C / B for each"
    }
    reconstructed = (
        "the original has no privacy: clip, noise, and the ascent for each record are not in it"
    )
    private = {
        "gradient": "the mean of the clipped gradients of the first local step, without noise"
    }

    theory_graph = dp.undirected("DFedSAM")

    learning_rate: PositiveFloat = 0.1  # eta
    decay: Annotated[float, Field(gt=0, le=1)] = 0.998  # of eta, each round
    ascent: PositiveFloat = 0.05  # rho
    local_steps: PositiveInt = 5  # K
    gossip_steps: PositiveInt = 1  # Q
    sam: Literal["per-record", "batch"] = "per-record"

    @property
    def batches_per_round(self) -> int:
        return self.local_steps

    def eta(self, k: int) -> float:
        """The step size of round k."""
        return self.learning_rate * self.decay ** (k - 1)

    def step(self, state: Models, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        V, eta, B = state.X, self.eta(k), gradient.batch_size
        sums = []
        for s in range(self.local_steps):
            sums.append(S := self._sum(gradient.at_step(s), V))
            V = V - eta * (S + noise.gaussian(f"gradient {s}", self.sigma * self.clip_norm, S)) / B
        sent = {}
        for q in range(1, self.gossip_steps + 1):
            sent[f"x/{q}"] = dp.broadcast(graph, V)
            V = graph.mix(V)  # 3
        return Round(Models(V), sent, {"gradient": sums[0] / B})

    def _sum(self, oracle: Gradient, V: Tensor) -> Tensor:
        """S, the sum of clipped gradients uphill of V."""
        if self.sam == "batch":
            return oracle.clipped_sum(V + self.ascent * _unit(oracle(V)), self.clip_norm)

        def clipped_sum(V: Tensor, acting: Tensor | None) -> Tensor:
            uphill = V[..., None, :] + self.ascent * _unit(oracle.per_record(V, acting))
            return dp.clip(oracle.per_record(uphill, acting, own=True), self.clip_norm).sum(dim=-2)

        return oracle.in_parts(V, clipped_sum)

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> dict[str, float]:
        """eta C / B in the first message, as clipping is meant to have it.

        Local steps after the first react to a record in the steps before: of several there is none.
        """
        moved = self.eta(k) * self.clip_norm / self.batch_size
        return {} if self.local_steps > 1 else {"x/1": moved}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every local step releases the victim's clipped gradients under their noise."""
        bracket = super().mechanism(setting, threat_model, victim)
        if self.sam == "per-record":
            return bracket
        size = setting.sizes[victim]
        times = min(self.batch_size, size) if self.sampling == "fixed" else size  # a batch at most
        said = (
            "the ascent of a batch depends on all its records, so that one record may turn every "
            f"clipped gradient around: the upper end counts that S, {times} clip norms long at "
            "most, turns around, the lower end the record's own gradient alone"
        )
        turned = dp.gaussian_rounds(self, setting, threat_model, victim, self.sigma / times)
        most = dp.clipped_whole(turned, self, size).most
        return Bracket(bracket.least, most, (*bracket.assumptions, said))

    def _update(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        k, victim, _ = target
        start = dp.mixed(view, setting.network.at, f"x/{self.gossip_steps}", k - 1, victim)
        step = start - view.sent_by("x/1", k, victim)
        return dp.ObservedGradient(step / (self.eta(k) * self.local_steps), start)

    def _single(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        if self.local_steps > 1:
            raise dp.NotObservable(
                "DPA054",
                f"a message holds {self.local_steps} local steps, each at a model never sent and "
                'on a batch of its own; attack "local-steps", which plays them',
            )
        return self._update(view, setting, target)

    def _local(self, setting: Setting, k: int) -> dp.LocalSimulation:
        K, B = self.local_steps, self.batch_size
        std = self.sigma * self.clip_norm / (B * math.sqrt(K))  # later steps hardly change it

        def moved(oracle: Gradient, V: Tensor) -> Tensor:
            total = torch.zeros_like(V)
            for s in range(K):
                now = oracle.at_step(s)
                total = total + self.eta(k) * self._sum(now, V - total) / now.batch_size
            return total

        return dp.LocalSimulation((B,) * K, self.eta(k) * K, moved, std=std)

    observables = {
        "local-steps": dp.Observable(
            "(what the victim mixed of the round before less x/1) / (eta K), by playing the local "
            "steps, ascents included, on all their records",
            {"x": (-1, 0)},
            "x/1",
            False,
            _update,
            _local,
        ),
        "noisy-gradient": dp.Observable(
            "(what the victim mixed of the round before less x/1) / eta: its noisy gradient, if a "
            "round has one local step",
            {"x": (-1, 0)},
            "x/1",
            False,
            _single,
        ),
    }


def _unit(g: Tensor) -> Tensor:
    """Each vector [..., d] at length 1; a zero vector stays 0."""
    norms = g.norm(dim=-1, keepdim=True)
    return g / norms.where(norms > 0, 1.0)
