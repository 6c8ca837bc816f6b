"""PPSGD: a private global model and, at every user, an offset that is never sent."""

from typing import NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

import dpaudit.defense as dp
from dpaudit.defense import Bracket, Gradient, Graph, Noise, Round, Setting, ThreatModel


class State(NamedTuple):
    V: Tensor  # [..., n_agents, d], global parameters w, W times what was sent last
    Theta: Tensor  # [..., n_agents, d], local offsets theta, never sent


class PPSGD(dp.GaussianDefense):
    """Bietti, Wei, Dudik, Langford and Wu 2022; rows of V, X, Theta [..., n_agents, d] are users.

    With G the gradient of the user's whole batch at V + Theta, a round is
        1.  X = V - eta_w (clip(G, C) + N(0, sigma^2 C^2)), sent to the neighbours or the server
        2.  Theta <- Theta - eta_theta G
        3.  V <- W X
    With a server V is its average, in 1 at the users that take part, in 3 at the server. The
    paper's alpha is eta_w / eta_theta; without local learning (eta_theta = 0) it is infinite.

    A user is protected with all its records: its gradient is clipped, not each record's. The claim
    is joint: it is of what others see, w, and not of the user's own model w + theta, for theta is
    learned without noise. Whoever is shown a final model is not covered.

    Departures: in the paper a trusted server adds N(0, sigma^2 C^2 / n^2) to the mean of n clipped
    gradients; here every user adds noise of its own, which needs no trust and is n times the
    variance in the mean. Offsets are of all parameters; for networks the paper has them on the
    last layer. Its code for networks multiplies the step of theta by n.
    """

    paper = "Bietti, Wei, Dudik, Langford, Wu: PPSGD"
    reconstructed = "noise of every user, where the paper's server adds it, and the form by gossip"
    claims = "joint (epsilon, delta)-DP over the run, one user"
    protects = "user"
    waits = True
    messages = {
        "x": "the global parameters after the step; hold the sender's clipped gradient under "
        "Gaussian noise of standard deviation eta_w sigma C, and all messages before",
        dp.AVERAGE: "the server's parameters; depend on messages alone",
    }
    private = {
        "gradient": "the mean gradient of the batch at the user's own model, clipped, no noise",
        "theta": "the local offset after the round",
    }

    clips_records = False  # gradients of whole batches are
    state = State
    theory_graph = dp.doubly_stochastic("PPSGD by gossip", by_gossip=True)

    clip_norm: PositiveFloat = 1.0  # C
    learning_rate: PositiveFloat = 0.05  # eta_w
    local_learning_rate: NonNegativeFloat = 0.05  # eta_theta

    def step(self, state: State, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        V, average = dp.from_server(graph, state.V)
        C = self.clip_norm
        G = dp.of_acting(graph, V + state.Theta, gradient)
        clipped = dp.clip(G, C)
        N = noise.gaussian("gradient", self.sigma * C, G)
        X = V - self.learning_rate * graph.acting(V) * (clipped + N)  # 1
        Theta = state.Theta - self.local_learning_rate * G  # 2
        sent = {"x": dp.broadcast(graph, X), **average}
        return Round(State(graph.mix(X), Theta), sent, {"gradient": clipped, "theta": Theta})  # 3

    def models(self, state: State) -> Tensor:
        return state.V + state.Theta

    def noise_multiplier_of(self, setting: Setting) -> float:
        """sigma for the user that takes part most often; nothing is sampled."""
        taken = (dp.steps_of(setting.network.at, self.n_rounds, i) for i in setting.holders)
        rounds = max(int(steps.sum()) for steps in taken)
        busiest = self.model_copy(update={"n_rounds": max(1, rounds)})
        return busiest.noise_multiplier_for(self.batch_size)

    def sensitivity(
        self, k: int, setting: Setting, adjacency: dp.Adjacency, victim: int, sent: dp.Messages
    ) -> dict[str, dp.Stated]:
        """2 eta_w C: another record may turn the clipped gradient of the whole batch around."""
        if adjacency not in dp.CHANGED_RECORDS:
            return {}
        return {"x": dp.Stated(2, 2 * self.learning_rate * self.clip_norm)}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """A user's whole gradient, clipped, in every round in which it takes part."""
        takes = dp.steps_of(setting.network.at, self.n_rounds, victim)
        known = dp.known_rounds(setting.network.at, self.n_rounds, threat_model, victim)[takes]
        least, most = (
            dp.releases(np.full(int(n), self.sigma), "none", 1.0)
            for n in (known.sum(), takes.sum())
        )
        said = (
            "the initial models, equal at all agents, are public; the user's own model, which "
            f"holds its offset, is shown to nobody; the view gives the step of {known.sum()} of "
            f"{takes.sum()} rounds exactly: the lower end counts these alone"
        )
        return Bracket(least, most, (said,))
