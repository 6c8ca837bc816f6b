"""A defense of somebody else, who writes down no more than what it sends."""

from typing import ClassVar, NamedTuple

import torch

from dpaudit.defense import Bracket, Defense, Round, broadcast

ETA = 0.1


class State(NamedTuple):
    V: torch.Tensor


class Foreign(Defense):
    """Sends its model after a noisy step, and the gradient under other noise."""

    paper: ClassVar[str] = "a test"
    claims: ClassVar[str] = "none"
    messages: ClassVar[dict[str, str]] = {"z": "the model", "hint": "the gradient"}
    n_rounds: int = 3
    sigma: float = 1.0
    hint_sigma: float = 2.0

    def start(self, X, setting):
        return State(X)

    def step(self, state, k, graph, gradient, noise):
        G = gradient(state.V)
        Z = state.V - ETA * (G + noise.gaussian("z", self.sigma, G))
        hint = G + noise.gaussian("hint", self.hint_sigma, G)
        sent = {"z": broadcast(graph, Z), "hint": broadcast(graph, hint)}
        return Round(State(graph.mix(Z)), sent)

    def models(self, state):
        return state.V

    def without_noise(self):
        return self.model_copy(update={"sigma": 0.0, "hint_sigma": 0.0})

    def mechanism(self, setting, threat_model, victim):
        return Bracket((), (), ("nothing is declared",))
