"""Fed-CDP: noise on every record's gradient, clipped layer by layer, in every local step."""

import math
from typing import Literal, NamedTuple, Self

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel


class State(NamedTuple):
    V: Tensor  # [..., n_agents, d], W times what was sent last
    layers: Tensor  # [n_layers] int64, how many coordinates each layer has


class FedCDP(dp.GaussianSGD):
    """Wei, Liu, Wu and others 2021; rows of V, X [..., n_agents, d] are agents, a layer is one
    tensor of parameters.

    With S the sum over a batch of per-record gradients at X, each layer of each clipped to norm
    C_t, round t with K local steps is
        1.  X = V, and K times  X <- X - eta (S + N(0, sigma^2 s^2)) / B, each with a new batch
        2.  X is sent to the neighbours or to the server,  V <- W X
    ``schedule`` = "fixed": C_t = s = C. "decay": C_t falls linearly from ``clip_norm`` to
    ``final_clip_norm``, s = C_t. "dynamic": so does C_t, and s = min(C_t, the largest norm of a
    layer in the agent's batch), which is nobody's to know and is not made private.

    One record moves S by up to C_t sqrt(L) with L layers. The paper accounts for C_t, and so does a
    budget here unless ``count_layers``: sigma is then sqrt(L) times as large.

    Departures: the authors' code divides the sum of n clients' models by n - 1; here averages are
    averages. Their dynamic noise has several forms; this is the one of the text, at constant sigma.
    """

    paper = "Wei, Liu, Wu, Su, Iyengar: Fed-CDP"
    reconstructed = (
        "the form by gossip, where mixing stands for the server's average, and the dynamic noise"
    )
    waits = True
    messages = {
        "x": "the model after the local steps; holds the sender's clipped gradients, each under "
        "Gaussian noise of standard deviation eta sigma C_t / B, and all messages before",
        dp.AVERAGE: "the server's model; depends on messages alone",
    }
    private = {
        "gradient": "the sum over local steps of the batch's mean clipped gradient, without noise"
    }

    clips_records = False  # layers are, one by one
    theory_graph = dp.doubly_stochastic("Fed-CDP by gossip", by_gossip=True)

    clip_norm: PositiveFloat = 4.0  # C, of each layer
    local_steps: PositiveInt = 1  # K
    schedule: Literal["fixed", "decay", "dynamic"] = "fixed"
    final_clip_norm: PositiveFloat = 2.0  # of the last round, unless the schedule is fixed
    count_layers: bool = False  # in the noise that a budget gives

    @model_validator(mode="after")
    def _dynamic_noise_is_given(self) -> Self:
        if self.epsilon is not None and self.schedule == "dynamic":
            raise ValueError('no budget is kept by schedule = "dynamic"; give noise_multiplier')
        return self

    @property
    def batches_per_round(self) -> int:
        return self.local_steps

    def start(self, X: Tensor, setting: Setting) -> State:
        return State(X, torch.tensor(setting.layer_sizes, device=X.device))

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        V, average = dp.from_server(graph, state.V)
        X, B, total = V, gradient.batch_size, torch.zeros_like(V)
        for s in range(self.local_steps):
            S, scale = self._clipped(X, k, graph, gradient.at_step(s), state.layers.tolist())
            N = noise.gaussian(f"gradient {s}", self.sigma * scale, S)
            X = X - self.learning_rate * graph.acting(X) * (S + N) / B  # 1
            total = total + S / B
        sent = {"x": dp.broadcast(graph, X), **average}
        return Round(State(graph.mix(X), state.layers), sent, {"gradient": total})  # 2

    def _clipped(
        self, X: Tensor, k: int, graph: Graph, gradient: Gradient, layers: list[int]
    ) -> tuple[Tensor, Tensor | float]:
        """S [..., n_agents, d], and s: a number, or one of each agent [..., n_agents, 1]."""
        C = self.layer_clip_norm(k)

        def by_layer(models: Tensor, acting: Tensor | None) -> Tensor:
            return _by_layer(gradient.per_record(models, acting), layers, C)

        found = dp.of_acting(graph, X, lambda V, acting: gradient.in_parts(V, by_layer, acting))
        dynamic = self.schedule == "dynamic"
        return found[..., :-1], found[..., -1:].clamp(max=C) if dynamic else C

    def layer_clip_norm(self, k: int) -> float:
        """C_t of round k = t + 1."""
        if self.schedule == "fixed" or self.n_rounds == 1:
            return self.clip_norm
        return self.clip_norm + (k - 1) / (self.n_rounds - 1) * (
            self.final_clip_norm - self.clip_norm
        )

    def noise_multiplier_of(self, setting: Setting) -> float:
        """sigma such that the agent with the fewest records is exactly (epsilon, delta)-DP, were
        its sensitivity that of one layer; with ``count_layers`` as it is.
        """
        layers = len(setting.layer_sizes) if self.count_layers else 1
        return super().noise_multiplier_of(setting) * math.sqrt(layers)

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> dict[str, float]:
        """eta C_t sqrt(L) / B; nothing if a step follows at the model that it moved."""
        whole = self.layer_clip_norm(k) * math.sqrt(len(setting.layer_sizes))
        moved = self.learning_rate * whole / self.batch_size
        return {} if self.local_steps > 1 else {"x": moved}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """A record that is too long in every layer moves a sum by C_t sqrt(L), under sigma C_t.

        The dynamic noise is 0 where no other record has a gradient, and hides nothing there.
        """
        n_layers = len(setting.layer_sizes)
        hidden = 0.0 if self.schedule == "dynamic" else self.sigma / math.sqrt(n_layers)
        least, most, said = dp.gaussian_rounds(self, setting, threat_model, victim, hidden)
        counted = f"a record may fill the clip norm of all {n_layers} layers at once"
        if self.schedule == "dynamic":
            counted += (
                "; noise is scaled by the largest norm in a batch, which is 0 for some data, so "
                "nothing bounds it from below"
            )
        return Bracket(least, most, (*said, counted))

    def _rate(self, k: int, n_agents: int) -> float:
        if self.local_steps > 1:
            raise dp.NotObservable(
                "DPA054",
                f"a message holds {self.local_steps} local steps, each at a model never sent and "
                'on a batch of its own; attack "local-steps", which plays them',
            )
        return self.learning_rate

    def _update(self, view: dp.View, setting: Setting, target: dp.Target) -> dp.ObservedGradient:
        start, step = dp.start_and_step(view, setting.network.at, "x", target)
        return dp.ObservedGradient(step / (self.learning_rate * self.local_steps), start)

    def _local(self, setting: Setting, k: int) -> dp.LocalSimulation:
        K, B, C = self.local_steps, self.batch_size, self.layer_clip_norm(k)
        std: float | None = self.sigma * C / (B * math.sqrt(K))
        if self.schedule == "dynamic" and self.sigma > 0:
            std = None  # dynamic noise is of a size that is not known

        def moved(oracle: Gradient, X: Tensor) -> Tensor:
            total = torch.zeros_like(X)
            for s in range(K):
                now = oracle.at_step(s)
                clipped = _by_layer(now.per_record(X - total), setting.layer_sizes, C)[..., :-1]
                total = total + self.learning_rate * clipped / now.batch_size
            return total

        return dp.LocalSimulation((B,) * K, self.learning_rate * K, moved, std=std)

    observables = {
        "noisy-gradient": dp.step_seen("x", _rate),
        "local-steps": dp.Observable(
            "(v_i - x_i) over K step sizes, by playing the K local steps on all their records",
            {"x": (-1, 0)},
            "x",
            False,
            _update,
            _local,
        ),
    }


def _by_layer(each: Tensor, layers: list[int], C: float) -> Tensor:
    """The sum of gradients [..., m, b, d] clipped by layer, then a layer's largest norm, d + 1."""
    sums, longest = [], []
    for part in each.split(layers, dim=-1):
        norms = part.norm(dim=-1)  # [..., m, b]
        sums.append(torch.einsum("...bd,...b->...d", part, dp.clip_weights(norms, C)))
        longest.append(norms.amax(dim=-1, keepdim=True))
    return torch.cat([*sums, torch.cat(longest, -1).amax(-1, keepdim=True)], dim=-1)
