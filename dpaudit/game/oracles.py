"""Oracles that take note of which gradients a step asks for, and answer with given ones."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient

SAME = 1e-9  # of a model: by what two that are one may differ, summed in different orders


def same_model(one: Tensor, other: Tensor) -> bool:
    """Whether two models are one but for rounding, where no two agree by chance."""
    return torch.allclose(one, other, 0.0, SAME * one.abs().max().item())


@dataclass(eq=False)
class Inputs(Gradient):
    """Answers with given inputs along a pattern of signs; listens where none are given."""

    batch_size: int
    sign: Tensor  # [WIDTH]
    base: Tensor  # [n_inputs, WIDTH] of this round
    values: Tensor  # [trials, n_inputs], added along the signs
    places: list[Tensor]  # of each call: which input each row is, [m]
    models: list[Tensor] = field(default_factory=list)  # of each call, [trials, m, WIDTH]

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self._given(X)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self.batch_size * self._given(X)

    def at_step(self, s: int) -> "Inputs":
        return self

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """Records that are all alike: a defense that is linear in their mean has its estimate."""
        one = self._given(X[..., 0, :] if own else X)
        b = X.shape[-2] if own else self.batch_size
        return one[..., None, :].expand(*one.shape[:-1], b, one.shape[-1])

    def _given(self, X: Tensor) -> Tensor:
        places = self.places[len(self.models)]
        self.models.append(X)
        return self.base[places] + self.values[:, places, None] * self.sign


@dataclass(eq=False)
class Listening(Gradient):
    """Answers 0, and numbers the models at which each agent's gradient is asked for."""

    batch_size: int
    step: int = 0  # whose batch it is
    # agent, local step and model of each input
    asked: list[tuple[int, int, Tensor]] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)
    _known: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # places of each batch

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        agents = range(X.shape[-2]) if holders is None else holders.tolist()
        self.places.append(torch.tensor([self._place(a, X[0, m]) for m, a in enumerate(agents)]))
        return torch.zeros_like(X)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self(X, holders)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        one = self(X[..., 0, :] if own else X, holders)
        b = X.shape[-2] if own else self.batch_size
        return one[..., None, :].expand(*one.shape[:-1], b, one.shape[-1])

    def at_step(self, s: int) -> "Listening":
        return replace(self, step=s)

    def _place(self, agent: int, model: Tensor) -> int:
        of_batch = self._known.setdefault((agent, self.step), [])
        for i in of_batch:
            if same_model(self.asked[i][2], model):
                return i
        of_batch.append(len(self.asked))
        self.asked.append((agent, self.step, model.clone()))
        return of_batch[-1]


@dataclass(eq=False)
class Watched(Gradient):
    """Another oracle, of which the models are kept that it is asked at."""

    of: Gradient
    models: list[Tensor] = field(default_factory=list)  # of each call, [trials, m], one coordinate
    askers: list[int] = field(default_factory=list)  # whose gradient each column of them is

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.of.batch_size

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        self._keep(X, holders)
        return self.of(X, holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        self._keep(X, holders)
        return self.of.clipped_sum(X, clip_norm, holders, norm)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        self._keep(X[..., 0, :] if own else X, holders)
        return self.of.per_record(X, holders, own)

    def at_step(self, s: int) -> "Watched":
        return replace(self, of=self.of.at_step(s))

    def moved(self, trials: int) -> Tensor:
        """How far from those of the first trial all models are, [trials, n_asked]."""
        none = torch.zeros(trials, 0, dtype=torch.float64)
        models = torch.cat([none, *(X.expand(trials, -1) for X in self.models)], dim=1)
        return models - models[0]

    def _keep(self, X: Tensor, holders: Tensor | None) -> None:
        self.models.append(X[..., 0])
        self.askers.extend(range(X.shape[-2]) if holders is None else holders.tolist())


@dataclass(eq=False)
class Alone(Gradient):
    """In each trial the gradient that is asked for in one place, and 0 in all others."""

    length: float
    batch_size: int
    chosen: Tensor  # [trials, n_asked]
    asked: list[int] = field(default_factory=list)  # how many places each call so far had

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        first = sum(self.asked)
        self.asked.append(X.shape[-2])
        here = self.chosen[:, first : first + X.shape[-2], None]
        return (self.length / self.batch_size * here).expand(X.shape)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return min(1.0, clip_norm / self.length) * self.batch_size * self(X, holders)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        one = self(X[..., 0, :] if own else X, holders)
        b = X.shape[-2] if own else self.batch_size
        return one[..., None, :].expand(*one.shape[:-1], b, one.shape[-1])

    def at_step(self, s: int) -> "Alone":
        return self
