"""A step that takes chance from outside is refused in a line that names the call."""

import datetime
import gc
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.defense.contract import Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast
from dpaudit.errors import ConfigError
from dpaudit.game.probing import chance
from dpaudit.game.probing.replayability import refuse_unless_replayable
from dpaudit.graphs.graph import Graph, build_graph
from tests.game.test_adversary import Gossip


def seeded(seed: int) -> float:
    return torch.randn(1, generator=torch.Generator().manual_seed(seed % 2**62)).item()


def from_numpy(seed: Any = None) -> float:
    return float(np.random.default_rng(seed).standard_normal())


def of_generator() -> float:
    generator = torch.Generator()
    generator.seed()
    return torch.randn(1, generator=generator).item()


def of_torch() -> float:
    torch.seed()
    return torch.randn(1).item()


def of_file() -> float:
    with open("/dev/urandom", "rb", buffering=0) as file:
        return seeded(int.from_bytes(file.read(7), "little"))


SOURCES: dict[str, tuple[Callable[[], float], str]] = {
    "Generator.seed": (of_generator, "seed"),
    "torch.seed": (of_torch, "torch.random.seed"),
    "torch.randn": (lambda: torch.randn(1).item(), "torch.randn"),
    "normal_": (lambda: torch.zeros(1).normal_().item(), "normal_"),
    "os.urandom": (lambda: seeded(int.from_bytes(os.urandom(7), "little")), "posix.urandom"),
    "a file": (of_file, "io.open"),
    "secrets": (lambda: seeded(secrets.randbits(60)), "secrets.randbits(60)"),
    "default_rng": (from_numpy, "default_rng(seed)"),
    "random": (lambda: random.Random().gauss(0, 1), "random.Random()"),
    "SystemRandom": (lambda: random.SystemRandom().gauss(0, 1), "random.SystemRandom()"),
    "time": (lambda: seeded(time.time_ns()), "time.time_ns"),
    "now": (lambda: datetime.datetime.now().timestamp() % 1e3, "datetime.now"),
    "uuid": (lambda: seeded(uuid.uuid4().int), "uuid.uuid4"),
}


class Chancy(Gossip):
    """Noise from elsewhere."""

    source: str
    batch_size: int = 8

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X = state.X + gradient(state.X) + SOURCES[self.source][0]()
        return Round(state._replace(X=X), {"x": broadcast(graph, X)})


@pytest.mark.parametrize("source", SOURCES)
def test_noise_from_elsewhere_is_refused_by_its_call(source: str) -> None:
    setting, said = Setting(build_graph("ring", 4), (40,) * 4, 3), "differs when it is played again"
    with torch.random.fork_rng(), pytest.raises(ConfigError, match=said) as refused:
        refuse_unless_replayable(Chancy(source=source), setting)
    [problem] = refused.value.problems
    assert problem.code == "DPA044"
    assert SOURCES[source][1] in problem.help
    assert "test_chance.py:" in problem.help


def test_seeds_are_named_before_draws_and_others_not() -> None:
    assert chance.named(lambda: None) == ""
    assert chance.named(lambda: max(1, 2)) == ""
    assert "time.time_ns" in chance.named(lambda: (torch.randn(1), time.time_ns()))
    generator = torch.Generator().manual_seed(1)
    assert "torch.randn" in chance.named(lambda: torch.randn(1, generator=generator))


def test_what_collects_garbage_is_no_call_of_a_step() -> None:
    """Others may look at the clock whenever it is collected, in the middle of a step."""

    def timed(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()

    gc.callbacks.append(timed)
    try:
        assert chance.named(lambda: [[[]] for _ in range(10_000)]) == ""
    finally:
        gc.callbacks.remove(timed)
    assert gc.isenabled()


def test_watching_leaves_the_profiler_as_it_was() -> None:
    def fails() -> None:
        raise RuntimeError

    before = sys.getprofile()
    assert chance.named(fails) == ""
    assert sys.getprofile() is before
