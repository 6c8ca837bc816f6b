"""What a round of a defense holds in memory, counted on a model of a few coordinates.

The defense's own step is played, so whatever it gathers and copies is counted. Rows of its tensors
are agents and links, columns are coordinates: memory is affine in the dimension of the model, and
two small models give both its terms.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.errors import PluginError
from dpaudit.graphs.graph import Graph
from dpaudit.rng import Streams
from dpaudit.tensor_memory import TensorBytes

from .contract import Defense, Gradient, Setting
from .noise import Noise
from .transcript import kind_of

SMALL, LARGER = 16, 32  # coordinates of the models that are played
ROUNDS_LOOKED_AT = 16  # examined rounds of a graph that varies in time


class Footprint(NamedTuple):
    """Numbers for each coordinate of the model, of one run; of several, times their number."""

    state: float
    messages: Mapping[str, float]
    step: float  # alive at once in a round: its results, what it needs on the way, no state before
    graph: float  # bytes of all that a round makes, alive if it is differentiated
    gradients: int  # models at which gradients are taken
    fixed: int  # bytes that do not grow with the model

    @classmethod
    def of(cls, defense: Defense, setting: Setting) -> "Footprint":
        """The footprint of a calibrated defense, in the round with the most links.

        All of it counts for a coordinate where the step takes the model of the setting alone.

        Raises:
            DpauditError: the defense cannot be played.
        """
        try:
            _played(defense, setting, SMALL)  # first make what a graph keeps for later rounds
        except (RuntimeError, LookupError, PluginError):  # coordinates may be missing
            whole = _played(defense, setting, setting.d)
            each = whole.peak / setting.d / 4, whole.whole / setting.d / 4
            return cls(whole.state, whole.messages, *each, whole.gradients, 0)
        small, larger = (_played(defense, setting, d) for d in (SMALL, LARGER))
        step = (larger.peak - small.peak) / (LARGER - SMALL) / 4
        graph = (larger.whole - small.whole) / (LARGER - SMALL) / 4
        fixed = max(0, small.peak - int(4 * SMALL * step))
        return cls(larger.state, larger.messages, step, graph, larger.gradients, fixed)

    @property
    def sent(self) -> float:
        return sum(self.messages.values())

    def round(self, d: int, trials: int = 1, itemsize: int = 4) -> int:
        """Bytes while a round is played, the state before it included; gradients come on top."""
        return self.fixed + int((self.state + self.step) * d * itemsize * trials)

    def recorded(self, names: Iterable[str], d: int) -> int:
        """Bytes of these messages of one round, each named by itself or by its kind."""
        wanted = set(names)
        held = (n for name, n in self.messages.items() if {name, kind_of(name)} & wanted)
        return int(4 * d * sum(held))


class _Played(NamedTuple):
    state: float  # numbers for each coordinate
    messages: Mapping[str, float]
    peak: int  # bytes
    whole: int  # bytes
    gradients: int


@dataclass(eq=False)
class _Zeros(Gradient):
    """Gradients that are 0, with as many copies of them as real ones have at the end of a pass."""

    batch_size: int
    asked: list[int] = field(default_factory=list)  # models of each call

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        self.asked.append(X[..., 0].numel())
        return torch.zeros_like(X) + 0

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self(X, holders)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        b, at = self.batch_size, X[..., 0, :] if own else X
        self.asked.append(at[..., 0].numel())
        return torch.zeros(*at.shape[:-1], b, X.shape[-1], dtype=X.dtype) + 0


def _played(defense: Defense, setting: Setting, d: int) -> _Played:
    narrow = setting.stand_in(d)
    k = max(range(1, ROUNDS_LOOKED_AT + 1), key=lambda k: setting.network.at(k).n_edges)
    graph: Graph = setting.network.at(k)
    oracle, counted = _Zeros(defense.batch_size), TensorBytes()
    X = torch.zeros(setting.n_agents, d)
    with torch.no_grad():
        state: Any = defense.start(X, narrow)
        with counted:
            played = defense.step(state, k, graph, oracle, Noise(Streams(0), k))
    return _Played(
        sum(t.numel() / d for t in state if isinstance(t, Tensor) and t.is_floating_point()),
        {name: sent.payload.numel() / d for name, sent in played.sent.items()},
        counted.peak,
        counted.whole,
        sum(oracle.asked),
    )
