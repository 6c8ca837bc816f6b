"""Sensor fusion: agents estimate one unknown vector from measurements that each keeps to itself.

Source: Xie, Liu and Chai, problem (42), whose parameters are "consistent with" a reference that
does not print them. The data are therefore reconstructed: entries of M_i uniform on [0, scale], a
true x uniform on [0, 1]^p, v_i = M_i x + N(0, I), and omega_i = 0.01.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.rng import Streams

REGULARISATION = 0.01  # omega_i


@dataclass(frozen=True, eq=False)
class QuadraticGradient(Gradient):
    """grad f_i(x) = H_i x - c_i; the whole function at once, so that no batch is drawn."""

    H: Tensor  # [..., n_agents, p, p], symmetric
    c: Tensor  # [..., n_agents, p]
    batch_size: int = 1

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        H, c = self.H, self.c
        if holders is not None:
            H, c = H[..., holders, :, :], c[..., holders, :]
        if X.shape[-1] == 1:  # one unknown: without what einsum costs beside one product
            return (H.squeeze(-1) * X).sub_(c)
        return torch.einsum("...nij,...nj->...ni", H, X).sub_(c)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        """Raises DpauditError: there are no records to clip."""
        raise DpauditError(
            "DPA036",
            "sensor fusion: an agent's cost is one function, not a sum over records, so there is "
            "no per-record gradient to clip",
            "use a defense that takes whole gradients, such as sensitivity-reduced",
        )


@dataclass(frozen=True, eq=False)
class SensorFusion:
    """min over x of sum_i f_i(x), f_i(x) = ||v_i - M_i x||^2 + omega_i ||x||^2 (42).

    Without leading dimensions all trials share the coefficients; with one, each has its own.
    """

    loss_is: ClassVar[str] = "squared distance to the optimum"
    differentiates: ClassVar[bool] = False
    varies: ClassVar[str] = (
        "the victim's measurements M and v, and the initial models of all agents (with fixed "
        "measurements a gradient would be one affine function of the model in all trials)"
    )

    M: Tensor  # [..., n_agents, m, p]
    v: Tensor  # [..., n_agents, m]
    omega: Tensor  # [n_agents]
    truth: Tensor | None = None  # [p], the x that was measured, if drawn here
    scale: float = 1.0  # largest entry of M

    @classmethod
    def draw(
        cls,
        streams: Streams,
        n_agents: int,
        m: int = 3,
        p: int = 2,
        scale: float = 1.0,
        trials: int | None = None,
        redrawn: Sequence[int] | None = None,
    ) -> "SensorFusion":
        """Measurements as stated at the top of this module, in float64 on the streams' device.

        Args:
            m, p: measurements of each agent, unknowns.
            scale: M_i has entries uniform on [0, scale].
            trials: None: one set of measurements for all trials; else a leading dimension.
            redrawn: agents whose M_i and v_i differ between trials (all of them if None); the
                others and the true x are the same in every trial.

        Raises:
            ConfigError: ``redrawn`` without ``trials``, or an agent that there is not.
        """
        if redrawn is not None and (trials is None or not set(redrawn) <= set(range(n_agents))):
            raise ConfigError(
                "DPA071",
                f"redrawn={list(redrawn)}: expected a number of trials, and agents from 0 to "
                f"{n_agents - 1}",
            )
        generator, shape = streams("measurements"), (n_agents, m, p)
        x = _uniform((p,), generator)
        omega = torch.full_like(_uniform((n_agents,), generator), REGULARISATION)
        M, v = _measured(x, scale, shape, generator)
        if trials is not None:
            again = torch.zeros(n_agents, dtype=torch.bool, device=M.device)
            again[list(range(n_agents) if redrawn is None else redrawn)] = True
            M_again, v_again = _measured(x, scale, (trials, *shape), generator)
            M = torch.where(again[:, None, None], M_again, M)
            v = torch.where(again[:, None], v_again, v)
        return cls(M, v, omega, x, scale)

    def for_trials(self, shared: Streams, own: Streams, trials: int, victim: int) -> "SensorFusion":
        """The same problem with other measurements of the victim's in each trial.

        Raises:
            DpauditError: the measurements were given, so that their distribution is not known.
        """
        if self.truth is None:
            raise DpauditError("DPA071", "sensor fusion: trials need measurements that were drawn")
        generator = own("measurements")
        M = self.M.expand(trials, *self.M.shape).clone()
        v = self.v.expand(trials, *self.v.shape).clone()
        M[:, victim] = self.scale * torch.empty_like(M[:, victim]).uniform_(generator=generator)
        errors = torch.empty_like(v[:, victim]).normal_(generator=generator)
        v[:, victim] = M[:, victim] @ self.truth + errors
        return SensorFusion(M, v, self.omega, self.truth, self.scale)

    @property
    def n_agents(self) -> int:
        return len(self.omega)

    @property
    def d(self) -> int:
        return self.M.shape[-1]

    @cached_property
    def H(self) -> Tensor:
        """The Hessians 2 (M_i' M_i + omega_i I), [..., n_agents, p, p]."""
        identity = torch.eye(self.d, dtype=self.M.dtype, device=self.M.device)
        H = 2 * (self.M.mT @ self.M + self.omega[:, None, None] * identity)
        return _agents_first(H, -3)

    @cached_property
    def c(self) -> Tensor:
        """2 M_i' v_i, [..., n_agents, p]."""
        return _agents_first(2 * (self.M.mT @ self.v[..., None])[..., 0], -2)

    @cached_property
    def _oracle(self) -> QuadraticGradient:
        return QuadraticGradient(self.H, self.c)

    @cached_property
    def optimum(self) -> Tensor:
        """x*, where the gradients sum to zero, [..., p]."""
        return torch.linalg.solve(self.H.sum(dim=-3), self.c.sum(dim=-2))

    def initial(self, streams: Streams, trials: int | None = None) -> Tensor:
        """Standard normal X, independent over agents and trials, [n_agents, p] or [trials, ...].

        In memory agents come first, as in ``H`` and ``c``, so that gossip over all trials is one
        product without a copy; what is computed elementwise from them keeps that order.

        Raises:
            ConfigError: the coefficients are those of another number of trials.
        """
        own = self.M.shape[:-3]
        if own and own != (trials,):
            raise ConfigError(
                "DPA071", f"trials={trials}: the measurements are those of {own[0]} trials"
            )
        shape = (self.n_agents, *([] if trials is None else [trials]), self.d)
        X = torch.empty(shape, dtype=self.M.dtype, device=self.M.device)
        return X.normal_(generator=streams("initialisation")).movedim(0, -2)

    def gradient(
        self,
        streams: Streams,
        k: int,
        batch_size: int = 1,
        sampling: str = "fixed",
        trials: int | None = None,
    ) -> QuadraticGradient:
        """The exact gradients, the same in every round; nothing is sampled."""
        return self._oracle

    def evaluate(self, X: Tensor) -> tuple[Tensor, None]:
        """||x_i - x*||^2 of each agent's row of X [n_agents, p], [n_agents]; no accuracy."""
        return (X - self.optimum).square().sum(dim=-1), None

    def residual(self, X: Tensor) -> Tensor:
        """||x - x*||^2 over all agents together, [...] of X [..., n_agents, p]."""
        return (X - self.optimum[..., None, :]).square().sum(dim=(-2, -1))


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    like = torch.empty(shape, dtype=torch.float64, device=generator.device)
    return like.uniform_(generator=generator)


def _measured(
    x: Tensor, scale: float, shape: tuple[int, ...], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """M of this shape [..., m, p], and v = M x + N(0, I) [..., m]."""
    M = scale * _uniform(shape, generator)
    errors = torch.empty_like(M[..., 0]).normal_(generator=generator)
    return M, M @ x + errors


def _agents_first(values: Tensor, agents: int) -> Tensor:
    """The same values, laid out in memory with this axis as the slowest."""
    return values.movedim(agents, 0).contiguous().movedim(0, agents)
