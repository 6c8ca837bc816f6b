"""Slow references: gradients record by record, and noise tapes, for rounds written out by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import build_graph
from dpaudit.models.models import parameters_of
from dpaudit.rng import Streams
from dpaudit.training.classification import Batch, Classification


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
        module, gradients = problem.gradients.module, []
        weights = torch.ones_like(batch.labels) if batch.weights is None else batch.weights
        for image, label, weight in zip(
            batch.inputs[agent], batch.labels[agent], weights[agent], strict=True
        ):
            if weight == 0:
                continue  # padding
            x = x.detach().clone().requires_grad_(True)
            logits = functional_call(module, parameters_of(module, x), (image[None],))
            gradients += torch.autograd.grad(cross_entropy(logits, label[None]), x)
        return gradients

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
