"""The learning problem that the agents share: data, batches, models, evaluation."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.data.datasets import Dataset
from dpaudit.data.partition import Partition
from dpaudit.defense.contract import Gradient
from dpaudit.errors import ConfigError, is_out_of_memory
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import (
    architecture,
    build_network,
    initial_parameters,
    refuse_impure,
    trained_parameters,
    with_group_norm,
)
from dpaudit.rng import Streams

EVALUATED = 2_000  # test records at most, the first ones: enough for +- 2% of accuracy
EVALUATIONS = 2 * 10**6  # test records times agents that are evaluated at once
FEWEST = 100  # test records whatever the number of agents: +- 10% of accuracy
HELD = 2**24  # bytes of records' gradients at once on a CPU: more is fetched anew each time


class Batch(NamedTuple):
    """The records of one round, of every agent: what attacks are after.

    Where trials have batches of their own, agent i of trial t is row t * n_agents + i.
    """

    inputs: Tensor  # [n_agents, b, *shape]
    labels: Tensor  # [n_agents, b], or [n_agents, b, positions]
    weights: Tensor | None = None  # [n_agents, b]: 1 for a record, 0 for padding; None: all 1


@dataclass(frozen=True)
class BatchGradient(Gradient):
    """The oracle of a round; ``batch_size`` is the public one, not how many records came out."""

    gradients: Gradients
    batch: Batch
    batch_size: int
    trials: int | None = None  # trials with batches of their own; None: all share them
    draw: Callable[[int], Batch] | None = None  # the batches of further local steps

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.clipped_sum(X, inf, holders).div_(self.batch_size)

    def part(self, X: Tensor, coordinates: slice) -> Tensor:
        inputs, labels, weights = self.batch
        flat, holders, _ = self._flat(X, None)
        total = self.gradients.part(flat, inputs, labels, coordinates, weights, holders)
        total.div_(self.batch_size)
        return total if flat is X else total.unflatten(0, X.shape[:-1])

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        inputs, labels, weights = self.batch
        X, holders, shape = self._flat(X, holders)
        total = self.gradients.clipped_sum(X, inputs, labels, clip_norm, norm, weights, holders)
        return total.view(shape)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        if own:
            return self._at_own(X, holders)
        inputs, labels, weights = self.batch
        flat, holders, shape = self._flat(X, holders)
        each = self.gradients.per_record(flat, inputs, labels, holders)
        if weights is not None:
            each = each * (weights if holders is None else weights[holders])[..., None].to(each)
        return each.view(*shape[:-1], *each.shape[1:])

    def _at_own(self, X: Tensor, holders: Tensor | None) -> Tensor:
        """Each record's gradient at a model of its own, both [..., m, b, d]."""
        inputs, labels, weights = self.batch
        b = inputs.shape[1]
        flat, holders, _ = self._flat(X[..., 0, :], holders)
        if holders is None:
            holders = torch.arange(len(flat), device=X.device)
        records = (holders[:, None] * b + torch.arange(b, device=X.device)).flatten()
        one_each = inputs.flatten(0, 1)[:, None], labels.flatten(0, 1)[:, None]
        models = X.reshape(-1, X.shape[-1])
        each = self.gradients.clipped_sum(models, *one_each, inf, holders=records)
        if weights is not None:
            each = each * weights.flatten()[records, None].to(each)
        return each.view(X.shape)

    def in_parts(
        self,
        X: Tensor,
        what: Callable[[Tensor, Tensor | None], Tensor],
        holders: Tensor | None = None,
    ) -> Tensor:
        """Compute in parts of ``HELD`` bytes on a CPU (one row at least), which fit its cache."""
        m, b = X.shape[-2], self.batch.inputs.shape[1]
        n_rows = max(1, HELD // max(1, b * X[..., 0, :].nbytes))
        if n_rows >= m or X.device.type != "cpu":
            return what(X, holders)
        owners = torch.arange(m) if holders is None else holders
        parts = zip(X.split(n_rows, dim=-2), owners.split(n_rows), strict=True)
        return torch.cat([what(*part) for part in parts], dim=-2)

    def at_step(self, s: int) -> "BatchGradient":
        if s == 0 or self.draw is None:
            return self
        inputs, labels, weights = self.draw(s)
        drawn = Batch(inputs.to(self.batch.inputs), labels, weights)
        return replace(self, batch=drawn)

    def _flat(self, X: Tensor, holders: Tensor | None) -> tuple[Tensor, Tensor | None, torch.Size]:
        """Models [..., m, d] as [trials * m, d], on the same batches or each trial on its own."""
        trials, shape = X.shape[:-2].numel(), X.shape
        if self.trials not in (None, trials):
            raise ValueError(f"models of {trials} trials on batches of {self.trials}")
        if X.ndim == 2:
            return X, holders, shape
        if holders is None and self.trials is not None:
            return X.reshape(-1, X.shape[-1]), holders, shape
        if holders is None:
            holders = torch.arange(X.shape[-2], device=X.device)
        if self.trials is None:
            return X.reshape(-1, X.shape[-1]), holders.repeat(trials), shape
        first = torch.arange(trials, device=X.device) * (len(self.batch.inputs) // trials)
        return X.reshape(-1, X.shape[-1]), (first[:, None] + holders).flatten(), shape


class Classification:
    """Agents hold parts of a labelled data set and train one architecture by cross-entropy.

    Args:
        dataset: records, on the CPU.
        partition: which agent holds which.
        network: the architecture's name, or a module, whose own parameters are the initial model.
        device: where everything is computed.

    Raises:
        ConfigError: no such network, or it cannot take these records.
    """

    loss_is: ClassVar[str] = "test loss"
    varies: ClassVar[str] = (
        "the batches of all agents, drawn anew from their records (the initial model is the same "
        "in all trials, and public)"
    )

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        network: str | nn.Module,
        device: torch.device,
        fix_model: bool = False,
        width: int | None = None,
    ) -> None:
        shape, n_classes = tuple(dataset.x.shape[1:]), dataset.n_classes
        records = shape, n_classes, dataset.n_tokens
        positions = dataset.n_positions
        self.dataset = dataset
        self.replaced: tuple[str, ...] = ()  # batch normalisations, if the model is to be fixed
        self._start: Tensor | None = None  # [d]; drawn where there is none
        own = not isinstance(network, str)
        module = (
            build_network(network, *records, width, positions > 0)
            if isinstance(network, str)
            else network
        )
        if fix_model:
            module, self.replaced = with_group_norm(module)
            if not self.replaced:
                raise ConfigError("DPA013", "model.fix: the network has no BatchNorm")
        name = type(module).__qualname__
        if own:
            module, self._start = _of_caller(module, dataset, device)
        tried_on = shape if own else None
        self.gradients = Gradients(module, tried_on, dataset.x.dtype, positions)
        self._x, self._y = dataset.x.to(device), dataset.y.to(device)
        if self._start is not None:
            self._refuse_underivable(name, self._start)
        tested = n_evaluated(partition.n_agents)
        self._x_test = dataset.x_test[:tested].to(device)
        self._y_test = dataset.y_test[:tested].to(device)
        sizes = torch.from_numpy(partition.sizes)
        self._held = torch.zeros(len(sizes), int(sizes.max()), dtype=torch.long)
        self._sizes = sizes[:, None]
        self._all_hold = bool((sizes > 0).all())
        self._padding = torch.arange(int(sizes.max())) >= self._sizes
        self._order = _Order.of(self._padding)
        for row, indices in zip(self._held, partition.indices, strict=True):
            row[: len(indices)] = torch.from_numpy(indices)

    def _refuse_underivable(self, name: str, model: Tensor) -> None:
        """Raises ConfigError: a caller's network computes in a way that has no gradients here."""
        try:
            self.gradients.mean(model[None], self._x[None, :2], self._y[None, :2])
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0]
            said = f"gradients of {name} cannot be computed: {reason}"
            raise ConfigError(
                "DPA035", said, "switch hooks and gradient checkpointing off, if it has any"
            ) from None

    @property
    def n_agents(self) -> int:
        return len(self._padding)

    @property
    def held(self) -> tuple[Tensor, Tensor]:
        """Which training records each agent holds, [n_agents, most], and which places hold one."""
        return self._held, ~self._padding

    @property
    def differentiates(self) -> bool:
        """Whether gradients come from automatic differentiation: not those of perceptrons."""
        return self.gradients.differentiates

    def initial(self, streams: Streams, trials: int | None = None) -> Tensor:
        """One model, random unless it was given, the same everywhere, [(trials,) n_agents, d]."""
        x = self._start
        if x is None:
            x = initial_parameters(self.gradients.module, streams("initialisation"))
        return x.expand(*([] if trials is None else [trials]), self.n_agents, -1).clone()

    def for_trials(self, shared: Streams, own: Streams, trials: int, victim: int) -> Self:
        """The same with its initial model drawn; batches are drawn anew in every trial anyway."""
        fixed = copy(self)
        fixed._start = self.initial(shared)[0]
        return fixed

    def holding(self, held: Tensor) -> Self:
        """The same agents with other records in each trial, as many as here.

        Args:
            held: [trials, n_agents, most], as ``held``, of training and test records in one list.
        """
        data, other = self.dataset, copy(self)
        other._held = held
        other._x, other._y = (
            torch.cat([records.to(self._x.device), tested.to(self._x.device)])
            for records, tested in ((data.x, data.x_test), (data.y, data.y_test))
        )
        return other

    def batch(
        self,
        streams: Streams,
        k: int,
        batch_size: int,
        sampling: str = "fixed",
        trials: int | None = None,
        step: int = 0,
    ) -> Batch:
        """The batches of a local step of round k, drawn from each agent's own records.

        For each trial if given.

        "fixed" takes ``batch_size`` without replacement, of which a smaller batch of the same round
        is the beginning; "poisson" takes each record with probability batch_size / (records of the
        agent), and pads with records of weight 0; "cyclic" takes the next ``batch_size`` of the
        agent's list, and begins again where less are left.
        """
        positions, weights = self._drawn(streams, k, batch_size, sampling, trials, step)
        inputs, labels = self._records(positions)
        if weights is not None:
            of_numbers = self._x.dtype if self._x.is_floating_point() else torch.float32
            weights = weights.to(self._x.device, of_numbers).flatten(0, 1)
        return Batch(inputs, labels, weights)

    def uses(
        self, streams: Streams, k: int, batch_size: int, sampling: str, trials: int
    ) -> tuple[Tensor, Tensor]:
        """How often the batches of round k hold each record of each agent, in so many trials.

        Returns:
            Counts [trials, n_agents, most records of an agent], and which of these are records
            [n_agents, most records of an agent]; others are padding.
        """
        positions, weights = self._drawn(streams, k, batch_size, sampling, trials)
        counted = torch.ones_like(positions) if weights is None else weights.long()
        counts = torch.zeros(trials, *self._padding.shape, dtype=torch.long)
        return counts.scatter_add_(-1, positions, counted), ~self._padding

    def _drawn(
        self,
        streams: Streams,
        k: int,
        batch_size: int,
        sampling: str,
        trials: int | None,
        step: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Positions [trials, n_agents, b] in each agent's list, and which are no padding."""
        if sampling == "cyclic":
            positions = self._next(streams, k, batch_size, trials)
            there = (self._sizes > 0).expand(positions.shape)
            return positions, None if self._all_hold else there
        name = ("sampling", k, step) if step else ("sampling", k)
        shape = (trials or 1, *self._padding.shape)
        draws = torch.rand(shape, generator=Streams(streams.seed)(*name))
        if sampling == "fixed":
            positions = self._order.smallest(draws, batch_size)
            there = (self._sizes > 0).expand(positions.shape)  # a server holds none
            return positions, None if self._all_hold else there
        taken = (draws < batch_size / self._sizes) & ~self._padding
        positions = self._order.smallest(draws, max(1, int(taken.sum(dim=-1).max())))
        return positions, taken.gather(-1, positions)

    def gradient(
        self,
        streams: Streams,
        k: int,
        batch_size: int,
        sampling: str = "fixed",
        trials: int | None = None,
    ) -> BatchGradient:
        """The gradient oracle of round k, with batches for each trial if given."""
        batch = self.batch(streams, k, batch_size, sampling, trials)

        def drawn(step: int) -> Batch:
            return self.batch(streams, k, batch_size, sampling, trials, step)

        return BatchGradient(self.gradients, batch, batch_size, trials, drawn)

    def _next(self, streams: Streams, k: int, batch_size: int, trials: int | None) -> Tensor:
        """Positions [trials, n_agents, b] of the k-th part of each agent's list, in turn.

        Each trial has the lists in an order of its own, the same in all rounds.
        """
        parts = (self._sizes // batch_size).clamp(min=1)  # an agent without records has no part
        places = (k - 1) % parts * batch_size + torch.arange(batch_size)
        if trials is None:
            return places[None]
        generator = Streams(streams.seed)("order")
        orders = torch.rand((trials, *self._padding.shape), generator=generator)
        orders.masked_fill_(self._padding, 2.0)  # behind every record that is there
        return orders.argsort(dim=-1).gather(-1, places.expand(trials, -1, -1))

    def _records(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels at positions [trials, n_agents, b] in each agent's own list."""
        held = self._held.expand(len(positions), -1, -1)
        chosen = held.gather(-1, positions).flatten(0, 1).to(self._x.device)
        shape, rows = chosen.shape, chosen.flatten()  # four times as fast as self._x[chosen]
        inputs, labels = (t.index_select(0, rows) for t in (self._x, self._y))
        return inputs.view(*shape, *inputs.shape[1:]), labels.view(*shape, *labels.shape[1:])

    def records(self, agent: int) -> tuple[Tensor, Tensor]:
        """All that one agent holds: inputs [n, *shape] and labels [n], or [n, positions]."""
        own = self._held[agent][~self._padding[agent]].to(self._x.device)
        return self._x[own], self._y[own]

    def evaluate(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Test loss and accuracy of each model of X [n_agents, d], both [n_agents]."""
        holders = torch.zeros(len(X), dtype=torch.long, device=X.device)
        return self.gradients.evaluate(X, self._x_test[None], self._y_test[None], holders)


def _of_caller(
    given: nn.Module, dataset: Dataset, device: torch.device
) -> tuple[nn.Module, Tensor]:
    """The architecture of a caller's network, and its parameters [d]. Raises ConfigError."""
    dtype, shape, name = dataset.x.dtype, tuple(dataset.x.shape[1:]), type(given).__qualname__
    largest = 0 if dtype.is_floating_point else int(max(dataset.x.max(), dataset.x_test.max()))
    module = architecture(given, shape, dataset.n_classes, dtype, largest, dataset.n_positions)
    start = nn.utils.parameters_to_vector(trained_parameters(given)).detach()
    if start.is_meta:
        raise ConfigError("DPA035", f"{name} is on the meta device; expected numbers")
    start = start.to(device, torch.float32)
    for constant in module.buffers():
        constant.data = constant.data.to(device)
    if not any("BatchNorm" in type(layer).__name__ for layer in module.modules()):
        refuse_impure(name, module, start, dataset.x[:2].to(device))
    return module, start


def in_double(inputs: Tensor) -> Tensor:
    """Records in float64; token ids stay integers."""
    return inputs.double() if inputs.is_floating_point() else inputs


def n_evaluated(n_agents: int) -> int:
    """How many test records the models of so many agents are evaluated on, at most."""
    return min(EVALUATED, max(FEWEST, EVALUATIONS // n_agents))


class _Order(NamedTuple):
    """Orders the records of each agent by draws of ``torch.rand``, padding behind all records.

    Such a draw is a multiple of 2^-24: with its position in the low bits it is one integer, and
    NumPy sorts integers several times as fast as ``topk`` finds the smallest draws.
    """

    low: NDArray[Any]  # [n_agents, n] of integers: positions; of padding, below the largest draw
    bits: int  # bits of a position

    @classmethod
    def of(cls, padding: Tensor) -> Self:
        n = padding.shape[-1]
        whole, bits = (np.uint32, 8) if n <= 2**8 else (np.int64, 32)
        full = np.where(padding, whole((2**24 - 1) << bits), whole(0))
        return cls(np.arange(n, dtype=whole) | full, bits)

    def smallest(self, draws: Tensor, count: int) -> Tensor:
        """Positions of the smallest draws [..., n_agents, n], in ascending order."""
        keys = (draws.numpy() * 2.0 ** (24 + self.bits)).astype(self.low.dtype)
        keys |= self.low
        keys.partition(count - 1)
        positions = np.sort(keys[..., :count]) & (2**self.bits - 1)
        return torch.from_numpy(positions.astype(np.int64))
