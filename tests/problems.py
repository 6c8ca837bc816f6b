"""Small problems in float64: four to six agents, a few records each, seconds at most."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dpaudit.data import partition
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Setting
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification


@pytest.fixture
def streams() -> Streams:
    return Streams(20240611)


@pytest.fixture
def dataset() -> Dataset:
    """Random 4 x 4 grey images of three classes in float64, so that references agree to rounding."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(120, 1, 4, 4, generator=generator, dtype=torch.float64) * 2 - 1
    y = torch.arange(120) % 3
    return Dataset("random", x[:90], y[:90], x[90:], y[90:], ("a", "b", "c"))


@pytest.fixture
def setting_of(dataset: Dataset) -> Callable[..., tuple[Classification, Setting]]:
    """The problem and its public setting on a named graph."""

    def make(graph: str, n_agents: int, network: str = "mlp") -> tuple[Classification, Setting]:
        parts = partition.split(dataset.y.numpy(), n_agents, "even", np.random.default_rng(5))
        problem = Classification(dataset, parts, network, torch.device("cpu"))
        sizes = tuple(parts.sizes.tolist())
        return problem, Setting(build_graph(graph, n_agents), sizes, problem.gradients.d)

    return make


@pytest.fixture
def drawn_setting(dataset: Dataset) -> Callable[..., tuple[Classification, Setting]]:
    """On a graph of these options, drawn for some rounds; a server, if any, holds no records."""

    def make(
        name: str, n_agents: int, network: str = "mlp", n_rounds: int = 6, **options: object
    ) -> tuple[Classification, Setting]:
        rng = np.random.default_rng(2)
        graph = build_graph(graph_options(name, **options), n_agents, rng, n_rounds)
        servers = 0 if graph.server is None else 1
        labels = dataset.y.numpy()
        parts = partition.split(labels, n_agents - servers, "even", rng).behind(servers)
        problem = Classification(dataset, parts, network, torch.device("cpu"))
        layers = tuple((n, p.numel()) for n, p in problem.gradients.module.named_parameters())
        sizes = tuple(parts.sizes.tolist())
        return problem, Setting(graph, sizes, problem.gradients.d, layers)

    return make
