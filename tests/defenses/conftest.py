"""Slow references: gradients record by record, and noise tapes, for rounds written out by hand."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpaudit.accounting.releases import Mechanism
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Messages
from dpaudit.files.options import graph_options
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import Graph, Network, build_graph
from dpaudit.models.models import parameters_of
from dpaudit.rng import Streams
from dpaudit.training.classification import Batch, Classification
from dpaudit.training.sensor_fusion import SensorFusion


@pytest.fixture
def push_sum_setting(setting_of) -> Callable[..., tuple[Classification, Setting]]:
    """A directed graph whose matrix is column-stochastic alone, so that push-sum weights differ."""

    def make(n_agents: int, network: str = "mlp") -> tuple[Classification, Setting]:
        problem, setting = setting_of("complete", n_agents, network)
        options = graph_options("uniform-out", p=0.4)
        graph = build_graph(options, n_agents, np.random.default_rng(1))
        assert not graph.at(1).doubly_stochastic
        return problem, replace(setting, network=graph)

    return make


@pytest.fixture
def record_gradients() -> Callable[[Classification, Tensor, Batch, int], list[Tensor]]:
    """The gradient [d] of each record that an agent drew, by autograd, one after the other."""

    def make(problem: Classification, x: Tensor, batch: Batch, agent: int) -> list[Tensor]:
        module, x = problem.gradients.module, x.detach().clone().requires_grad_(True)
        weights = torch.ones_like(batch.labels) if batch.weights is None else batch.weights
        drawn = weights[agent] != 0  # others are padding
        images, labels = batch.inputs[agent][drawn], batch.labels[agent][drawn]
        logits = functional_call(module, parameters_of(module, x), (images,))
        losses = cross_entropy(logits, labels, reduction="none")
        return [torch.autograd.grad(loss, x, retain_graph=True)[0] for loss in losses]

    return make


@pytest.fixture
def gaussian_tape() -> Callable[..., Tensor]:
    """The standard normal draws [n_agents, d] of a message in round k."""

    def make(streams: Streams, k: int, name: str, n_agents: int, d: int) -> Tensor:
        like = torch.empty(n_agents, d, dtype=torch.float64)
        return Noise(streams, k).gaussian(name, 1.0, like)

    return make


@pytest.fixture
def view_of_run() -> Callable:
    """Play some rounds of a defense; an eavesdropper's view of them, and the rounds."""
    from dpaudit.defense.transcript import Transcript
    from dpaudit.defense.view import View
    from dpaudit.files.threat import ThreatModel

    def make(defense, problem, setting, streams, n_rounds, threat_model=None):
        state = defense.start(problem.initial(streams).double(), setting)
        rounds = {}
        for k in range(1, n_rounds + 1):
            gradient = problem.gradient(streams, k, defense.batch_size, defense.sampling)
            rounds[k] = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k))
            state = rounds[k].state
        transcript = Transcript({k: played.sent for k, played in rounds.items()})
        eaves = threat_model or ThreatModel(name="eavesdropper")
        return View.of(eaves, transcript, set(rounds)), rounds

    return make


@pytest.fixture
def sensors(streams) -> Callable[..., tuple[SensorFusion, Setting]]:
    """Sensor fusion of agents on a graph, with an irregular one if none is named."""

    def make(graph: str | Network = "erdos-renyi", n_agents: int = 6, p: int = 2, **options: Any):
        network = graph
        if isinstance(graph, str):
            drawn = graph_options(graph, **({"p": 0.5} if graph == "erdos-renyi" else options))
            network = build_graph(drawn, n_agents, np.random.default_rng(1))
        return SensorFusion.draw(streams, n_agents, p=p), Setting(network, (1,) * n_agents, p)

    return make


@pytest.fixture
def unbalanced() -> Network:
    """Two directed graphs of five agents in turn, whose weights leave or enter unevenly."""
    rng, graphs = np.random.default_rng(3), []
    for edges in (((0, 1), (1, 2), (2, 3), (3, 0), (0, 3)), ((3, 4), (4, 0), (2, 0), (1, 4))):
        W = np.diag(rng.uniform(0.5, 1, 5))
        for j, i in edges:
            W[i, j] = rng.uniform(0.5, 1)
        graphs.append(Graph(torch.from_numpy(W / W.sum(axis=0))))
    return Network(tuple(graphs))


@pytest.fixture
def equal_agent_by_agent(streams) -> Callable[..., None]:
    """Play a defense beside a reference of single agents: every message and model is the same.

    ``send(k, i, own, draws)`` gives agent i's messages by name; ``receive(k, i, own, inbox)`` what
    it holds after, a dictionary with its model "x". ``inbox`` is name -> sender -> message, its own
    included.
    """

    def play(defense, problem, setting, rounds, begin, scale, send, receive):
        state = defense.start(problem.initial(streams), setting)
        agents = [begin(i, state.X[i].clone()) for i in range(setting.n_agents)]
        for k in range(1, rounds + 1):
            graph = setting.network.at(k)
            drawn = {
                name: Noise(streams, k).laplace(name, scale(k), state.X)
                for name in defense.messages
            }
            state, sent, _ = defense.step(
                state, k, graph, problem.gradient(streams, k), Noise(streams, k)
            )
            said = [
                send(k, i, own, {name: draw[i] for name, draw in drawn.items()})
                for i, own in enumerate(agents)
            ]
            W, n = graph.W, setting.n_agents
            links = [(j, i) for i in range(n) for j in range(n) if W[i, j] > 0 and i != j]
            for name, message in sent.items():
                assert [
                    *zip(message.senders.tolist(), message.receivers.tolist(), strict=True)
                ] == (links)
                for (j, _), row in zip(links, message.rows, strict=True):
                    close(message.payload[row], said[j][name])
            agents = [
                receive(
                    k,
                    i,
                    own,
                    {m: {j: said[j][m] for j in range(n) if W[i, j] > 0} for m in sent},
                )
                for i, own in enumerate(agents)
            ]
            close(defense.models(state), torch.stack([own["x"] for own in agents]))
        assert set(sent) == set(defense.messages)

    def close(found, expected):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    return play


@pytest.fixture
def own_gradient() -> Callable[[SensorFusion, int, Tensor], Tensor]:
    """The gradient of one agent of sensor fusion, from its own measurements."""

    def gradient(problem: SensorFusion, i: int, x: Tensor) -> Tensor:
        M, v = problem.M[i], problem.v[i]
        return -2 * M.T @ (v - M @ x) + 2 * problem.omega[i] * x

    return gradient


@pytest.fixture
def losses() -> Callable[[Mechanism], list[float]]:
    """The losses of single Laplace releases, the largest first."""

    def of(mechanism: Mechanism) -> list[float]:
        found = [[1 / release.noise_multiplier] * release.count for release in mechanism]
        return sorted(itertools.chain(*found), reverse=True)

    return of


@pytest.fixture
def exact_losses() -> Callable[..., list[float]]:
    """What the strongest adversary has of one agent's constant gradient, draw by draw.

    The victim's gradient is one vector or 0 in all rounds, and all others have none.
    """

    def of(defense, setting, threat_model, victim: int) -> list[float]:
        game = Game.of(defense, setting, victim, "function")
        leak = Adversary(game, threat_model, defense.n_rounds).leak
        return sorted(leak.parts, reverse=True)

    return of


@pytest.fixture
def residuals(streams) -> Callable[..., list[Tensor]]:
    """The squared distance to the optimum after each round."""

    def of(defense, problem, setting, rounds, trials=None) -> list[Tensor]:
        state, found = defense.start(problem.initial(streams, trials), setting), []
        for k in range(1, rounds + 1):
            gradient = problem.gradient(streams, k)
            state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
            found.append(problem.residual(defense.models(state)))
        return found

    return of


@pytest.fixture
def push_pull_rate() -> Callable[[SensorFusion, Tensor, Tensor, float], float]:
    """The factor by which push-pull brings models closer to the optimum in a round.

    x+ = R x - alpha y, y+ = C y + H (x+ - x): the largest modulus of its eigenvalues but for the
    one, 1, of the conserved sum of y - H x.
    """

    def rate(problem: SensorFusion, R: Tensor, C: Tensor, alpha: float) -> float:
        p, n = problem.d, problem.n_agents
        eye = torch.eye(p, dtype=torch.float64)
        R, C, H = torch.kron(R, eye), torch.kron(C, eye), torch.block_diag(*problem.H)
        own = torch.eye(n * p, dtype=torch.float64)
        rows = [torch.cat([R, -alpha * own], 1), torch.cat([H @ (R - own), C - alpha * H], 1)]
        moduli = torch.linalg.eigvals(torch.cat(rows)).abs().sort().values
        assert moduli[-p:].sub(1).abs().max() < 1e-7
        return moduli[-p - 1].item()

    return rate


@pytest.fixture
def same_messages() -> Callable[[Messages], Noise]:
    """Draws that make a second world send exactly what a first one sent."""

    class SameMessages(Noise):
        def __init__(self, sent: Messages) -> None:
            self.sent = sent

        def laplace(self, message: str, scale: Any, like: Tensor) -> Tensor:
            return self.sent[message].payload - like

    return SameMessages


@pytest.fixture
def is_fresh_laplace() -> Callable[[Tensor], None]:
    """Whether draws [rounds, 2 messages, ...] are standard Laplace, the two of a round unrelated.

    Fails draws that are with probability 3e-9 over fresh seeds.
    """

    def check(xi: Tensor) -> None:
        n, tail = xi.numel(), 1e-9 / 2
        total = xi.abs().sum().item()  # a sum of n standard exponentials
        assert stats.gamma.ppf(tail, n) < total < stats.gamma.isf(tail, n)
        assert stats.kstest(xi.flatten(), "laplace").pvalue > 2 * tail
        products = (xi[:, 0] * xi[:, 1]).sum().abs().item()  # 2%: normal only in the limit
        assert products < 1.02 * stats.norm.isf(tail) * 2 * math.sqrt(n / 2)

    return check
