"""A defense at work on a small problem, for checks: runs, and streams and gradients to vary them.

Eight agents, records of five features in three classes, softmax regression (d = 18), and the noise
of a defense as it is, of another seed, or of a stack of trials.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from dpaudit.data import partition
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import (
    Defense,
    Gradient,
    Round,
    Setting,
    refuse_changed_forms,
)
from dpaudit.defense.noise import Noise, Scale
from dpaudit.files.options import GraphOptions
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification

N_AGENTS = 8  # on a ring one of them is four links away
N_ROUNDS = 5
ROUNDS = range(1, N_ROUNDS + 1)
TRIALS = 3


class BrokenPromise(AssertionError):
    """A defense does not do what the contract says; one line says which part, and how."""


def require(holds: bool, otherwise: str) -> None:
    """Raises BrokenPromise with this line unless it holds."""
    if not holds:
        raise BrokenPromise(otherwise)


@dataclass(frozen=True)
class Case:
    """A defense, before and after ``calibrate``, and where it runs."""

    given: Defense
    defense: Defense  # calibrated
    problem: Classification
    setting: Setting
    streams: Streams
    beyond_graph: frozenset[str]  # messages that travel where the graph has no edge
    weights: frozenset[str]  # streams that are no noise

    @classmethod
    def of(
        cls,
        given: Defense,
        graph: GraphOptions,
        device: torch.device,
        beyond_graph: frozenset[str],
        weights: frozenset[str],
    ) -> "Case":
        """Raises DpauditError if the defense refuses the graph or the numbers of records."""
        streams = Streams(20240611, device)
        network = build_graph(graph, N_AGENTS, streams.numpy("graph"), N_ROUNDS)
        servers = 0 if network.server is None else 1
        problem, sizes = small_problem(given, streams, torch.float64, servers)
        layers = tuple((n, p.numel()) for n, p in problem.gradients.module.named_parameters())
        setting = Setting(network, sizes, problem.gradients.d, layers)
        calibrated = given.calibrate(setting)
        return cls(given, calibrated, problem, setting, streams, beyond_graph, weights)

    @property
    def victim(self) -> int:
        """An agent with data, and none of the adversaries of the checks."""
        return 0 if self.setting.network.server is None else 2

    def initial(self) -> Tensor:
        """One model at every agent, [n_agents, d], in the precision of the data."""
        return self.problem.initial(self.streams).to(self.problem.dataset.x.dtype)

    def gradient(self, k: int) -> Gradient:
        size, sampling = self.defense.batch_size, self.defense.drawing
        return self.problem.gradient(self.streams, k, size, sampling)

    def step(
        self,
        defense: Defense,
        state: Any,
        k: int,
        noise: Noise | None = None,
        gradient: Gradient | None = None,
    ) -> Round:
        """Round k, with other noise or other gradients if they are given."""
        graph = self.setting.network.at(k)
        return defense.step(
            state, k, graph, gradient or self.gradient(k), noise or Noise(self.streams, k)
        )

    def rounds(
        self,
        defense: Defense | None = None,
        noise: Callable[[int], Noise] | None = None,
        gradient: Callable[[int], Gradient] | None = None,
    ) -> Iterator[tuple[int, Any, Round]]:
        """Every k, the state that round k starts from, and the round; with those given of k."""
        defense = defense or self.defense
        state = defense.start(self.initial(), self.setting)
        for k in ROUNDS:
            round = self.step(defense, state, k, noise and noise(k), gradient and gradient(k))
            yield k, state, round
            state = round.state

    def play(self, defense: Defense | None = None, noise_seed: int | None = None) -> list[Round]:
        """All rounds from the start, with the noise of another seed if one is given."""
        noise = None if noise_seed is None else partial(_Reseeded, self, noise_seed)
        rounds, forms = list[Round](), dict[str, str]()
        for k, _, round in self.rounds(defense, noise):
            refuse_changed_forms(defense or self.defense, k, round.sent, forms)
            rounds.append(round)
        return rounds


def small_problem(
    defense: Defense, streams: Streams, dtype: torch.dtype, servers: int = 0
) -> tuple[Classification, tuple[int, ...]]:
    """Random records in this precision, two batches for each agent, and how many each holds."""
    n = 2 * defense.batch_size * N_AGENTS
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n + 3, 5, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.arange(n + 3) % 3
    dataset = Dataset("random", x[:n], y[:n], x[n:], y[n:], ("a", "b", "c"))
    holders = N_AGENTS - servers
    drawn = partition.split(y[:n].numpy(), holders, "even", streams.numpy("partition"))
    parts = drawn.behind(servers)
    return Classification(dataset, parts, "logistic", streams.device), tuple(parts.sizes.tolist())


class _Reseeded(Noise):
    """Noise of another seed, but for the streams that are no noise."""

    def __init__(self, case: Case, seed: int, round: int) -> None:
        super().__init__(case.streams, round)
        self._weights, self._others = case.weights, Streams(seed, case.streams.device)

    def _stream(self, message: str) -> torch.Generator:
        streams = self._streams if message in self._weights else self._others
        return streams("noise", self._round, message)


class TrialNoise(Noise):
    """The noise of a stack of trials, or of one trial of it: the same draws either way."""

    def __init__(self, streams: Streams, round: int, trial: int | None) -> None:
        super().__init__(streams, round)
        self._trial = trial

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        return super().gaussian(message, 1.0, self._stack(like))[self._part] * std

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        return super().laplace(message, 1.0, self._stack(like))[self._part] * scale

    def _stack(self, like: Tensor) -> Tensor:
        """An empty stack in contiguous memory order, which is the order of draws."""
        shape = like.shape if self._trial is None else (TRIALS, *like.shape)
        return like.new_empty(shape)

    @property
    def _part(self) -> Any:
        return slice(None) if self._trial is None else self._trial


class CheckedGradient(Gradient):
    """The same gradients, and what was asked for; one agent's batch may be as if of other records.

    Args:
        changed: the agent with other records; None: all batches are as they are.
    """

    def __init__(self, gradient: Gradient, changed: int | None = None) -> None:
        self._gradient, self._changed, self._step = gradient, changed, 0
        self.batch_size = gradient.batch_size
        self.steps: set[int] = set()  # local steps whose batches were asked for
        self.norms: list[float] = []  # finite L2 norms to which gradients were clipped

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self._noted(self._gradient(X, holders), holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        self.norms += [clip_norm] if norm == 2 and isfinite(clip_norm) else []
        return self._noted(self._gradient.clipped_sum(X, clip_norm, holders, norm), holders)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        return self._noted(self._gradient.per_record(X, holders, own), holders, of_records=1)

    def at_step(self, s: int) -> "CheckedGradient":
        later = copy(self)  # notes together with this one
        later._gradient, later._step = self._gradient.at_step(s), s
        return later

    def _noted(self, values: Tensor, holders: Tensor | None, of_records: int = 0) -> Tensor:
        self.steps.add(self._step)
        if self._changed is None:
            return values
        agents = torch.arange(values.shape[-2 - of_records]) if holders is None else holders
        its = (agents.to(values.device) == self._changed).view(-1, *[1] * (1 + of_records))
        return torch.where(its, -0.5 * values, values)


def fields(state: Any) -> dict[str, Any]:
    """Raises BrokenPromise if the state is no NamedTuple."""
    require(
        isinstance(state, tuple) and hasattr(state, "_asdict"),
        f"the state is a {type(state).__name__}, not a NamedTuple: no checkpoint keeps it",
    )
    return dict(state._asdict())


def everything(defense: Defense, round: Round) -> dict[str, Tensor]:
    """State, payloads, private quantities and models of a round, by name."""
    return {
        **{f"{name} of the state": value for name, value in fields(round.state).items()},
        **{f'message "{name}"': sent.payload for name, sent in round.sent.items()},
        **{f'private "{name}"': value for name, value in round.private.items()},
        "models": defense.models(round.state),
    }


def same_rounds(defense: Defense, one: list[Round], two: list[Round], otherwise: str) -> None:
    """Raises BrokenPromise, with this line, unless two runs are equal bit by bit."""
    for a, b in zip(one, two, strict=True):
        others = everything(defense, b)
        for name, value in everything(defense, a).items():
            require(torch.equal(value, others[name]), f"{name} {otherwise}")


def listed(names: set[str]) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names))


def shape(value: Tensor | torch.Size) -> str:
    return str(list(value.shape if isinstance(value, Tensor) else value))
