"""What methods share that hide an agent's whole function by Laplace noise on all that it sends.

Adjacent functions have gradients at most delta apart, in L1 norm, at every point. Given all
messages before it, a message then moves by a bounded amount, and that amount over the Laplace scale
is its loss; losses of rounds and of messages add up.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor

from dpaudit.accounting.releases import BudgetEpsilon, Mechanism, Release
from dpaudit.errors import ConfigError, OutsideTheory
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel

from .budget import refuse_unless_one_is_given
from .contract import Bracket, Defense, Gradient, Setting, Stated
from .gossip import known_rounds
from .transcript import Messages

Decay = Annotated[float, Field(gt=0, le=1)]

ROUNDING = 1e-12  # relative, of a scale found from a budget: more than sums of losses are off by


class L1Moves(NamedTuple):
    """By how much a message moves in L1 norm in rounds 1, 2, ..., given all messages before it.

    ``least`` is attained by two functions whose gradients are constant, whatever was drawn: each
    message then moves by a fixed multiple of one vector. ``most`` bounds all adjacent functions.
    """

    least: list[float]
    most: list[float]


class LaplaceDefense(Defense, ABC):
    """A defense that adds Laplace noise of scale nu_k to each message of round k."""

    gradient_distance: PositiveFloat = 1.0  # delta: L1, between gradients of adjacent functions

    @abstractmethod
    def nu(self, k: int) -> float:
        """The Laplace scale of round k."""

    @abstractmethod
    def moves(self, n_rounds: int, setting: Setting, victim: int) -> Mapping[str, L1Moves]:
        """How far each message moves in rounds 1 to ``n_rounds``."""

    def assumed(self) -> tuple[str, ...]:
        """What ``moves`` takes for granted of adjacent functions, beside their distance."""
        return ()

    def function_distance(self) -> float:
        return self.gradient_distance

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        """The upper ends of ``moves``, for adjacent functions."""
        if adjacency != "function":
            return {}
        moves = self.moves(k, setting, victim)
        return {name: Stated(1, message.most[-1]) for name, message in moves.items()}

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """A Laplace release of each message and round that a change of the function moves."""
        scales = [self.nu(k) for k in range(1, self.n_rounds + 1)]
        moves = self.moves(self.n_rounds, setting, victim).values()
        least = tuple(r for message in moves for r in laplace_releases(scales, message.least))
        most = tuple(r for message in moves for r in laplace_releases(scales, message.most))
        known = known_rounds(setting.network.at, self.n_rounds, threat_model, victim)
        return Bracket(
            least=least if known.all() else (),
            most=most,
            assumptions=(
                "function adjacency: one agent's function changes, and its gradient by at most "
                f"{self.gradient_distance:g} in L1 norm at every point; whether real functions do "
                "is not checked here, and a record counts as such a change",
                "the adversary knows the initial models, and the functions of all other agents",
                *self.assumed(),
            ),
        )


class GeometricDefense(LaplaceDefense, ABC):
    """Steps and noise of Xie, Liu and Chai (5), for messages that move by delta alpha_(k-1).

    alpha_k = gamma q1^(k-1) and nu_k = gamma delta q2 / (epsilon (q2 - q1)) q2^(k-1). The noise of
    round k covers the step of round k-1, so the losses add up to epsilon / q2; ``align_noise``
    divides the noise by q2, after which they add up to epsilon.
    """

    step_size: PositiveFloat = 0.001  # gamma
    step_decay: Decay = 0.97  # q1
    noise_decay: Decay = 0.99  # q2
    epsilon: BudgetEpsilon = 1.0  # epsilon of the whole run
    align_noise: bool = False
    noise_free: bool = False

    @model_validator(mode="after")
    def _noise_outlasts_the_steps(self) -> Self:
        if not self.noise_free and self.step_decay >= self.noise_decay:
            raise ValueError(
                f"step_decay={self.step_decay:g} must be below noise_decay={self.noise_decay:g}: "
                "the noise (5) is finite and positive for q1 < q2 only"
            )
        return self

    def alpha(self, k: int) -> float:
        """The step size of round k (5)."""
        return self.step_size * self.step_decay ** (k - 1)

    def nu(self, k: int) -> float:
        """The Laplace scale of round k (5); one round ahead if aligned."""
        if self.noise_free:
            return 0.0
        q1, q2 = self.step_decay, self.noise_decay
        nu_1 = self.step_size * self.gradient_distance * q2 / (self.epsilon * (q2 - q1))
        return nu_1 * q2 ** (k - 2 if self.align_noise else k - 1)

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_free": True})

    def steps_before(self, n_rounds: int) -> list[float]:
        """delta alpha_(k-1) for rounds k = 1, ..., and 0 for the first."""
        return [0.0] + [self.gradient_distance * self.alpha(k) for k in range(1, n_rounds)]

    def check_theory(self, setting: Setting) -> None:
        """Raises OutsideTheory unless 0 < q1 < q2 < 1 on a graph that the theory allows."""
        super().check_theory(setting)
        q1, q2 = self.step_decay, self.noise_decay
        if not q1 < q2 < 1:
            raise OutsideTheory(
                "DPA040",
                f"step_decay, noise_decay: (5) needs 0 < q1 < q2 < 1, got q1={q1:g} and q2={q2:g}",
            )


class ScaledDefense(LaplaceDefense, ABC):
    """Noise of one given shape over the rounds, times a scale that is given or that meets a budget.

    Without a formula of its paper, ``calibrate`` takes the scale at which the losses of the run,
    as the claim counts them, add up to epsilon for the worst agent.
    """

    epsilon: BudgetEpsilon | None = None  # epsilon of the whole run
    noise_scale: NonNegativeFloat | None = None  # nu_1; from epsilon if absent

    @model_validator(mode="after")
    def _noise_is_given_once(self) -> Self:
        refuse_unless_one_is_given(self, "epsilon", "noise_scale")
        return self

    @abstractmethod
    def shape(self, k: int) -> float:
        """nu_k over nu_1."""

    def claimed(self, n_rounds: int, setting: Setting, victim: int) -> Mapping[str, list[float]]:
        """How far each message moves as the claim counts it: the proven bounds."""
        return {name: m.most for name, m in self.moves(n_rounds, setting, victim).items()}

    def nu(self, k: int) -> float:
        """The Laplace scale of round k. Raises ValueError before ``calibrate`` has set it."""
        if self.noise_scale is None:
            raise ValueError("the noise is not set yet: call calibrate first")
        return self.noise_scale * self.shape(k) if self.noise_scale else 0.0

    def calibrate(self, setting: Setting) -> Self:
        """The scale that meets the budget in ``n_rounds`` rounds.

        Raises:
            ConfigError: no finite scale does.
        """
        super().calibrate(setting)
        if self.noise_scale is not None:
            return self
        assert self.epsilon is not None
        scale = self.unit_loss(setting) / self.epsilon * (1 + ROUNDING)
        if not math.isfinite(scale):
            raise ConfigError(
                "DPA041",
                f"defense.epsilon: no noise keeps the losses of {self.n_rounds} rounds to "
                f"{self.epsilon:g}, as the noise falls faster than what it hides; expected fewer "
                "rounds, or noise that lasts longer",
            )
        return self.model_copy(update={"noise_scale": scale})

    def unit_loss(self, setting: Setting) -> float:
        """What the claim's losses add up to at nu_1 = 1, of the agent for whom it is most."""
        shapes = [self.shape(k) for k in range(1, self.n_rounds + 1)]
        return max(
            sum(
                moved / shape if shape else math.inf
                for moves in self.claimed(self.n_rounds, setting, i).values()
                for moved, shape in zip(moves, shapes, strict=True)
                if moved
            )
            for i in setting.holders
        )

    def without_noise(self) -> Self:
        return self.model_copy(update={"noise_scale": 0.0, "epsilon": None})


class Tracking(NamedTuple):
    """Models, trackers of the mean gradient, and the gradients that trackers hold by now.

    Round 1 sets Y and G.
    """

    X: Tensor  # [..., n_agents, d]
    Y: Tensor  # [..., n_agents, d], Y = grad F(X) at the start; its mean is that of G
    G: Tensor  # [..., n_agents, d], the gradient at X

    def begun(self, k: int, gradient: Gradient) -> "Tracking":
        """This state; in round 1 with the first gradient."""
        if k > 1:
            return self
        G = gradient(self.X)
        return Tracking(self.X, G, G)


class Gathering(NamedTuple):
    """Models, and the gradients that an agent has gathered, each times its step size."""

    X: Tensor  # [..., n_agents, d]
    S: Tensor  # [..., n_agents, d], 0 at the start


class GatheringDefense(ScaledDefense, ABC):
    """Robust gradient tracking: models and gathered gradients are sent under Laplace noise.

    Steps alpha_k = gamma q1^(k-1) and noise nu_k = nu_1 q2^(k-1).
    """

    claims: ClassVar[str] = "pure epsilon-DP over any number of rounds, function"
    private: ClassVar[Mapping[str, str]] = {
        "gradient": "grad f_i at the true model, which s gathers in the round",
    }
    state: ClassVar[type[Any]] = Gathering

    step_size: PositiveFloat = 0.001  # gamma
    step_decay: Decay = 0.97  # q1
    noise_decay: Decay = 0.99  # q2

    def alpha(self, k: int) -> float:
        """The step size of round k."""
        return self.step_size * self.step_decay ** (k - 1)

    def shape(self, k: int) -> float:
        return self.noise_decay ** (k - 1)


def laplace_releases(scales: list[float], sensitivities: list[float]) -> Mechanism:
    """One release for each round: Laplace noise of this scale over this L1 sensitivity.

    A round whose sensitivity vanishes against its noise in float64 shows nothing and is left out.
    """
    ratios = [
        nu / sensitivity if sensitivity > 0 else math.inf
        for nu, sensitivity in zip(scales, sensitivities, strict=True)
    ]
    return tuple(
        Release(family="laplace", noise_multiplier=ratio) for ratio in ratios if ratio < math.inf
    )
