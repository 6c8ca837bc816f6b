"""The learning problem that the agents share: data, batches, models, evaluation."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.data import Dataset
from dpaudit.defense import Gradient
from dpaudit.gradients import Gradients
from dpaudit.models import build, initial_parameters
from dpaudit.partition import Partition
from dpaudit.rng import Streams

EVALUATED = 2_000  # test records at most, the first ones: enough for +- 2% of accuracy


class Batch(NamedTuple):
    """The records of one round, of every agent: what attacks are after."""

    inputs: Tensor  # [n_agents, batch_size, *shape]
    labels: Tensor  # [n_agents, batch_size]


@dataclass(frozen=True)
class BatchGradient(Gradient):
    """The oracle of a round whose batches are drawn."""

    gradients: Gradients
    batch: Batch

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.batch.labels.shape[1]

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.gradients.mean(X, *self.batch, holders=holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return self.gradients.clipped_sum(X, *self.batch, clip_norm, norm=norm, holders=holders)


class Classification:
    """Agents hold parts of a labelled data set and train one architecture by cross-entropy.

    Args:
        dataset: records, on the CPU.
        partition: which agent holds which.
        network: the architecture's name.
        device: where everything is computed.

    Raises:
        ConfigError: no such network, or it cannot take these records.
    """

    def __init__(
        self, dataset: Dataset, partition: Partition, network: str, device: torch.device
    ) -> None:
        shape = tuple(dataset.x.shape[1:])
        self.dataset = dataset
        self.gradients = Gradients(build(network, shape, dataset.n_classes))
        self._x, self._y = dataset.x.to(device), dataset.y.to(device)
        self._x_test = dataset.x_test[:EVALUATED].to(device)
        self._y_test = dataset.y_test[:EVALUATED].to(device)
        sizes = torch.from_numpy(partition.sizes)
        self._held = torch.zeros(len(sizes), int(sizes.max()), dtype=torch.long)
        self._padding = torch.arange(int(sizes.max())) >= sizes[:, None]
        for row, indices in zip(self._held, partition.indices, strict=True):
            row[: len(indices)] = torch.from_numpy(indices)

    @property
    def n_agents(self) -> int:
        return len(self._held)

    def initial(self, streams: Streams) -> Tensor:
        """One random model, the same at every agent, [n_agents, d]."""
        x = initial_parameters(self.gradients.module, streams("initialisation"))
        return x.expand(self.n_agents, -1).clone()

    def batch(self, streams: Streams, k: int, batch_size: int) -> Batch:
        """The batches of round k: ``batch_size`` of each agent's records without replacement.

        A smaller batch of the same round is the beginning of a larger one.
        """
        order = torch.rand(self._held.shape, generator=Streams(streams.seed)("sampling", k))
        order[self._padding] = 2.0  # behind every record that is there
        chosen = self._held.gather(1, order.argsort(dim=1)[:, :batch_size]).to(self._x.device)
        return Batch(self._x[chosen], self._y[chosen])

    def gradient(self, streams: Streams, k: int, batch_size: int) -> BatchGradient:
        """The gradient oracle of round k."""
        return BatchGradient(self.gradients, self.batch(streams, k, batch_size))

    def evaluate(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Test loss and accuracy of each model of X [n_agents, d], both [n_agents]."""
        holders = torch.zeros(len(X), dtype=torch.long, device=X.device)
        return self.gradients.evaluate(X, self._x_test[None], self._y_test[None], holders)
