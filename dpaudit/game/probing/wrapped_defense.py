"""A defense that plays another one, and changes what its steps draw or send."""

from typing import Any, Self

from torch import Tensor

from dpaudit.defense.contract import Bracket, Defense, Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph


class WrappedDefense(Defense):
    """Plays the steps of another defense and declares what that one declares."""

    of: Defense

    @classmethod
    def playing(cls, of: Defense, **options: Any) -> Self:
        """This class with the rounds and batches of the other defense."""
        own = {"n_rounds": of.n_rounds, "batch_size": of.batch_size, "sampling": of.sampling}
        return cls(of=of, **own, **options)

    def start(self, X: Tensor, setting: Setting) -> Any:
        return self.of.start(X, setting)

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        return self.of.step(state, k, graph, gradient, noise)

    def models(self, state: Any) -> Tensor:
        return self.of.models(state)

    def without_noise(self) -> Self:
        return self.model_copy(update={"of": self.of.without_noise()})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        return self.of.mechanism(setting, threat_model, victim)

    def function_distance(self) -> float | None:
        return self.of.function_distance()

    @property
    def drawing(self) -> str:
        return self.of.drawing

    @property
    def batches_per_round(self) -> int:
        return self.of.batches_per_round
