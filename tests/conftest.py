"""Small problems in float64: four to six agents, a few records each, seconds at most."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
import typer.testing
from hypothesis import settings

from dpaudit.data import partition
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Setting
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import build_graph
from dpaudit.inputs import recorder
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from tests.own_plugins import OWN
from tests.small_audits import undrawn

gc.disable()  # until all are collected
WITHOUT_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False  # until then: rewriting the asserts of all tests takes seconds
settings.register_profile("same examples in every run", derandomize=True, deadline=None)
settings.load_profile("same examples in every run")
# Hundreds of modules of tests are no inputs of an audit, each of which would hash them all.
recorder.BESIDE = (*recorder.BESIDE, "tests")
typer.testing._get_command = cache(typer.testing._get_command)  # takes longer than many a command
# A shell that starts tests in the background lets them ignore what Ctrl+C sends, which some send.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument ``own_defense`` is one of every defense of this repository."""
    if "own_defense" in metafunc.fixturenames:
        metafunc.parametrize("own_defense", OWN)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ten thousand tests are no garbage: looking for some among them takes seconds in all."""
    sys.dont_write_bytecode = WITHOUT_BYTECODE
    gc.enable()
    gc.collect()
    gc.freeze()


collect_ignore = ["example_attacks", "example_package"]  # packages that a test installs


@pytest.fixture(autouse=True, scope="session")
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key of caches is not that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("DPAUDIT_CACHE_KEY", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """What this process writes is not forced to the disk, which takes longer than many an audit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def no_report() -> Iterator[None]:
    with undrawn():
        yield


@pytest.fixture
def report() -> None:
    """For tests that read the report of an audit of this process."""


@pytest.fixture(autouse=True)
def _no_report_that_nobody_reads(request: pytest.FixtureRequest) -> None:
    """Slow tests draw every report, unless they ask for none."""
    if "report" not in request.fixturenames and not request.node.get_closest_marker("slow"):
        request.getfixturevalue("no_report")


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
