"""What the agents of an audit learn from: a labelled data set and a network, or sensors."""

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from torch import nn

from dpaudit.data import partition
from dpaudit.data.datasets import Dataset
from dpaudit.errors import ConfigError
from dpaudit.files.config import SENSORS, AuditConfig
from dpaudit.files.options import SensorOptions, ServerGraph
from dpaudit.rng import Streams

from .classification import Classification
from .sensor_fusion import SensorFusion

Problem = Classification | SensorFusion


class LoadedProblem(NamedTuple):
    """A learning problem, and what is public about its data."""

    problem: Problem
    dataset: Dataset | None  # None of sensors
    name: str
    fingerprint: str  # SHA-256 of the data, in hexadecimal
    sizes: tuple[int, ...]  # records of each agent; a sensor's cost counts as one
    n_records: int
    d: int
    layers: tuple[tuple[str, int], ...]  # name and size of each parameter tensor; none of sensors
    replaced: tuple[str, ...] = ()  # layers of the network that others stand for


def load_problem(
    config: AuditConfig,
    load: Callable[[], Dataset],
    network: nn.Module | None,
    streams: Streams,
    batch_size: int,
) -> LoadedProblem:
    """The learning problem that a config names.

    Args:
        load: the data set, called if records are learned from.
        network: in the place of the one that the config names.
        batch_size: records that every agent needs at least.

    Raises:
        DpauditError: data, partition or network do not go together.
    """
    if config.data.name == SENSORS:
        if isinstance(config.graph, ServerGraph):
            raise ConfigError(
                "DPA039", "graph server: sensors have no server; expected a graph of agents"
            )
        return _sensors(config, streams)
    dataset, rng = load(), streams.numpy("partition")
    servers = int(isinstance(config.graph, ServerGraph))
    n_holders = config.data.n_agents - servers
    parts = partition.split(dataset.y, n_holders, config.data.partition, rng, minimum=batch_size)
    parts = parts.behind(servers)
    named: str | nn.Module = network or config.model.name if config.model is not None else ""
    fixes = config.model is not None and config.model.fix
    width = None if config.model is None else config.model.width
    problem = Classification(dataset, parts, named, streams.device, fixes, width)
    layers = tuple((n, p.numel()) for n, p in problem.gradients.module.named_parameters())
    sizes, d = tuple(parts.sizes.tolist()), problem.gradients.d
    n, fingerprint = len(dataset.x), dataset.fingerprint
    known = dataset.name, fingerprint, sizes, n, d, layers
    return LoadedProblem(problem, dataset, *known, problem.replaced)


def _sensors(config: AuditConfig, streams: Streams) -> LoadedProblem:
    chosen, n = config.data.sensors or SensorOptions(), config.data.n_agents
    problem = SensorFusion.draw(streams, n, chosen.m, chosen.p, chosen.scale)
    digest = sha256()
    for values in (problem.M, problem.v, problem.omega):
        digest.update(values.cpu().contiguous().numpy().tobytes())
    return LoadedProblem(problem, None, SENSORS, digest.hexdigest(), (1,) * n, n, problem.d, ())
