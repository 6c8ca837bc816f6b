"""Methods without noise: what they release, they release as it is."""

from abc import ABC
from typing import ClassVar, Self

from dpaudit.accounting.releases import Mechanism, Release
from dpaudit.files.threat import ThreatModel

from .contract import Bracket, Defense, Setting
from .gossip import gaussian_rounds, refuse_unless_symmetric


class NoiselessDefense(Defense, ABC):
    """A defense without noise, each of whose rounds releases the gradient of a batch as it is."""

    claims: ClassVar[str] = "none"

    def without_noise(self) -> Self:
        """Itself: it draws no noise, and random weights are part of an algorithm."""
        return self

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Every round releases the victim's gradient as it is."""
        return gaussian_rounds(self, setting, threat_model, victim, 0.0)


class NoiselessFunctionDefense(NoiselessDefense, ABC):
    """A defense without noise in which an agent's one function is what messages depend on."""

    method: ClassVar[str]  # by which errors call the method
    first_release: ClassVar[int] = 1  # the first round whose messages depend on the function

    def calibrate(self, setting: Setting) -> Self:
        """Itself. Raises OutsideTheory: W is not fixed, symmetric and doubly stochastic."""
        refuse_unless_symmetric(setting.network, self.method, "Assumption 2")
        return self

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """Messages of the victim that depend on its function and that no noise hides."""
        count = self.n_rounds + 1 - self.first_release
        receivers = setting.network.at(1).neighbours(victim)
        seen = any(threat_model.sees(victim, i) for i in receivers)
        releases: Mechanism = ()
        if count > 0:
            releases = (Release(family="laplace", noise_multiplier=0.0, count=count),)
        return Bracket(
            least=releases if seen else (),
            most=releases,
            assumptions=(
                "no noise: two functions that give different messages are told apart with "
                "certainty",
                "the adversary knows the initial models, and the functions of all other agents",
            ),
        )
