"""Whose noise a draw is, on graphs with as many links as agents."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity.alignment import _owners
from dpaudit.defense.contract import Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast, unicast
from dpaudit.graphs.graph import Graph, build_graph
from tests.game.test_adversary import Gossip

SENDERS = [3, 0, 1, 2]  # of the links of a directed ring, which come by their receivers


class Held(NamedTuple):
    X: Tensor
    Y: Tensor  # of agents or links, sent in the next round


class OfLinks(Gossip):
    """Every link carries its sender's gradient under noise of its own."""

    batch_size: int = 8

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        own = gradient(state.X)[..., graph.senders, :]
        return Round(state, {"y": unicast(graph, own + noise.gaussian("mask", 1.0, own))})


class OfAgents(OfLinks):
    """Every agent sends its gradient under noise."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        own = gradient(state.X)
        return Round(state, {"x": broadcast(graph, own + noise.gaussian("mask", 1.0, own))})


class Later(OfLinks):
    """Every agent sends what it drew noise for in the round before."""

    def start(self, X: Tensor, setting: Setting) -> Any:
        return Held(X, X)

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        own = gradient(state.X)
        Y = own + noise.gaussian("mask", 1.0, own)
        return Round(Held(state.X, Y), {"x": broadcast(graph, state.Y)})


class Unused(OfLinks):
    """Noise of the right shape that nothing carries."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        own = gradient(state.X)
        noise.gaussian("mask", 1.0, own)
        return Round(state, {"x": broadcast(graph, own)})


class Broken(OfLinks):
    """A step that only real models can be given to."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        raise RuntimeError("the real model alone")


@pytest.mark.parametrize(
    ("defense", "owners"),
    [
        (OfLinks(), SENDERS),
        (OfAgents(), [0, 1, 2, 3]),
        (Later(), [0, 1, 2, 3]),
        (Unused(), None),
        (Broken(), None),
    ],
)
def test_what_rows_move_tells_whose_they_are(defense: Any, owners: Any) -> None:
    setting = Setting(build_graph("directed-ring", 4), (40,) * 4, 3)
    assert setting.network.at(1).senders.tolist() == SENDERS
    world: Any = SimpleNamespace(
        coupled=SimpleNamespace(defense=defense, setting=setting, victim=1), k=1
    )
    assert _owners(world, [SimpleNamespace(sent={})], (1, "mask"), 4) == owners  # type: ignore[list-item]
    assert _owners(world, [], (1, "mask"), 3) is None


def test_a_draw_named_after_a_message_has_its_rows() -> None:
    setting = Setting(build_graph("directed-ring", 4), (40,) * 4, 3)
    graph = setting.network.at(1)
    coupled = SimpleNamespace(defense=Unused(), setting=setting, victim=1)
    world: Any = SimpleNamespace(coupled=coupled, k=1)
    played: Any = [SimpleNamespace(sent={"mask": unicast(graph, torch.ones(4, 3))})]
    assert _owners(world, played, (1, "mask"), 4) == SENDERS
