"""The audit files of benchmarks can be run: they are valid, and their theory allows them."""

from pathlib import Path

import numpy as np
import pytest

from dpaudit.data.partition import split
from dpaudit.defense.contract import Setting
from dpaudit.files.config import SENSORS, AuditConfig
from dpaudit.files.published import ResultTables
from dpaudit.graphs.graph import build_graph
from dpaudit.models.models import build_network as network
from dpaudit.models.models import n_parameters
from dpaudit.rng import Streams

ROOT = Path(__file__).parents[1]
MNIST = sorted((ROOT / "benchmarks" / "mnist").glob("*.toml"))
PRIVATE = {"dp-dpsgd", "dpps", "sgpdp", "partpsp", "dyn-d2p", "adp-vrsgp", "dpdl"}


@pytest.mark.parametrize("path", MNIST, ids=lambda path: path.stem)
def test_a_defense_on_mnist_can_be_calibrated_as_its_file_says(path) -> None:
    config = AuditConfig.from_toml(path)
    n = config.data.n_agents
    assert config.model is not None
    module = network(config.model.name, (1, 28, 28), 10)
    layers = tuple((name, p.numel()) for name, p in module.named_parameters())
    graph = build_graph(config.graph, n, Streams(config.seed).numpy("graph"))
    setting = Setting(graph, (60_000 // n,) * n, n_parameters(module), layers)
    config.defense.create("defenses").calibrate(setting)
    assert f"benchmarks/mnist/{path.name}" in path.read_text()


def test_every_private_defense_is_trained_on_mnist_and_reported() -> None:
    configs = {path.stem: AuditConfig.from_toml(path) for path in MNIST}
    trained = {config.defense.name for config in configs.values()}
    assert PRIVATE | {"d-psgd", "sensitivity-reduced", "dp-dgd"} == trained
    table = ResultTables.read(ROOT / "docs" / "results" / "training.json").tables[0]
    assert {row[0] for row in table.rows} == set(configs)


def test_the_audit_of_sensor_fusion_is_valid() -> None:
    config = AuditConfig.from_toml(ROOT / "benchmarks" / "sensor-fusion.toml")
    assert config.data.name == SENSORS
    graph = build_graph(config.graph, 100, Streams(config.seed).numpy("graph"))
    config.defense.create("defenses").calibrate(Setting(graph, (1,) * 100, 2))


def test_the_audit_of_ten_thousand_agents_is_valid() -> None:
    config = AuditConfig.from_toml(ROOT / "benchmarks" / "ten-thousand-agents.toml")
    assert config.data.n_agents == 10_000
    parts = split(np.zeros(1438), 10_000, config.data.partition, np.random.default_rng(0))
    assert (parts.sizes > 0).sum() == 1_000
