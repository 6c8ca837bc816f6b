"""Rounds that send nothing new: what is left of a predicted message is rounding, and no noise."""

from math import sqrt
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.attack.contract import AttackContext
from dpaudit.defense import Gradient, Graph, Noise, Round, Setting, ThreatModel, broadcast
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Role
from dpaudit.game.filtering import adversary as adversary_module
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip
from tests.scratch import scratch_run

EVERY_LINK = ThreatModel(name="eavesdropper")
N_AGENTS = 6
MU = 1 / 2  # of one step: its noise multiplier is 2


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d], models
    V: Tensor  # [..., n_agents, d], W times what was sent last
    P: Tensor  # [..., n_agents, d], steps that were not sent yet, or the model that was sent last


class Summed(PrivateGossip):
    """Sums noisy steps, and sends the model again until the next ``every``-th round."""

    noise_multiplier: float = 2.0
    every: int = 2
    decay: float = 1.0  # of the noise, by round

    def start(self, X: Tensor, setting: Setting) -> Any:
        return State(X, setting.network.at(1).mix(X), torch.zeros_like(X))

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return self.decay**k * super().noise(like, k, noise)

    def noisy_step(self, X: Tensor, k: int, gradient: Gradient, noise: Noise) -> Tensor:
        noised = self.noised(self.summed(gradient, X), k, noise)
        return self.learning_rate * noised / self.batch_size

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        P = state.P - self.noisy_step(state.X, k, gradient, noise)
        if k % self.every:
            return self.idle(state, P, k, graph, gradient)
        X = state.V + P
        return Round(State(X, graph.mix(X), torch.zeros_like(X)), {"x": broadcast(graph, X)}, {})

    def idle(self, state: Any, P: Tensor, k: int, graph: Graph, gradient: Gradient) -> Round:
        return Round(State(state.X, state.V, P), {"x": broadcast(graph, state.X)}, {})


class Mixed(Summed):
    """Goes on mixing in idle rounds."""

    def idle(self, state: Any, P: Tensor, k: int, graph: Graph, gradient: Gradient) -> Round:
        X = 0.7 * graph.mix(state.V)
        return Round(State(X, graph.mix(X), P), {"x": broadcast(graph, X)}, {})


class Local(Summed):
    """Local SGD: the model moves in each round, and the one before is sent again."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        X = state.X - self.noisy_step(state.X, k, gradient, noise)
        if k % self.every == 0:
            return Round(State(graph.mix(X), X, X), {"x": broadcast(graph, X)}, {})
        return Round(State(X, state.V, state.P), {"x": broadcast(graph, state.P)}, {})


class Cancelled(Summed):
    """Sends what it has not sent yet minus itself, which floating point does not cancel."""

    def idle(self, state: Any, P: Tensor, k: int, graph: Graph, gradient: Gradient) -> Round:
        rest = 0.1 * P + 0.2 * P - 0.3 * P
        return Round(State(state.X, state.V, P), {"x": broadcast(graph, rest)}, {})


class Leaking(Summed):
    """Adds a small part of the gradient to what it sends again, without noise."""

    part: float = 1e-6

    def idle(self, state: Any, P: Tensor, k: int, graph: Graph, gradient: Gradient) -> Round:
        S = self.summed(gradient, state.X)
        held = broadcast(graph, state.X + self.part * S)
        return Round(State(state.X, state.V, P), {"x": held}, {})


def adversary(defense: PrivateGossip, reader: ThreatModel = EVERY_LINK) -> Adversary:
    """Of a record that is in a tenth of the batches."""
    setting = Setting(build_graph("ring", N_AGENTS), (40,) * N_AGENTS, 1)
    return Adversary(Game.of(defense, setting, 0, "add-remove"), reader, defense.n_rounds)


def findings(defense: PrivateGossip) -> dict[Role, Finding]:
    setting = Setting(build_graph("ring", N_AGENTS), (8,) * N_AGENTS, 1)
    claims = (Claim(text="ours", epsilon=60.0, delta=1e-5),)
    context = AttackContext(None, setting, defense, claims, Streams(11), scratch_run())  # type: ignore[arg-type]
    attack = load_plugin("attacks", "likelihood-ratio")(trials=400)
    return {f.role: f for f in attack.measure(context, EVERY_LINK, lambda done, total: None)}


@pytest.fixture(params=["dense", "sparse"], autouse=True)
def either_filter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from_how_many = 1 if request.param == "sparse" else 10**6
    monkeypatch.setattr(adversary_module, "SPARSE_FROM", from_how_many)
    monkeypatch.setattr("dpaudit.attacks.likelihood_ratio.question.SPARSE_FROM", from_how_many)


AUDITED = pytest.mark.parametrize(  # an audit with the sparse filter too is for make slow
    "either_filter", ["dense", pytest.param("sparse", marks=pytest.mark.slow)], indirect=True
)
ODD = [Summed, Mixed, Local, Cancelled]


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("defense", ODD)
def test_an_idle_round_holds_no_innovation(defense: type[Summed], every: int) -> None:
    told = adversary(defense(n_rounds=7, every=every))
    news = [len(r.resolved) for r in told.rounds]
    assert news == [0 if k % every else N_AGENTS for k in range(1, 8)]
    sent = 7 - 7 % every
    assert told.leak.by_round.tolist() == pytest.approx(
        [MU / sqrt(every)] * sent + [0.0] * (7 - sent), rel=1e-9
    )
    assert told.leak.noiseless == {}


@AUDITED
@pytest.mark.parametrize("defense", ODD)
def test_noise_beside_idle_rounds_is_what_was_asked_for(defense: type[Summed]) -> None:
    """It fails with probability 1e-6."""
    found = findings(defense(n_rounds=7, every=3))
    assert found[Role.NOISE].verdict is None
    assert found[Role.NOISE].metrics["p-value"].value > 1e-6
    assert found[Role.EXACT_LEAK].verdict is None


@pytest.mark.parametrize(("sigma", "part"), [(2.0, 1e-6), (0.5, 1e-6), (0.1, 1e-7), (2.0, 1e-7)])
def test_a_small_leak_without_noise_is_found_in_idle_rounds(sigma: float, part: float) -> None:
    """Of idle rounds alone: 1 and 3 of 4."""
    leak = adversary(Leaking(n_rounds=4, noise_multiplier=sigma, part=part)).leak
    assert leak.noiseless == {1: "x", 3: "x"}


@AUDITED
def test_noise_that_rounding_reaches_is_not_tested_as_noise() -> None:
    """By round 8 it is 1e-16 of what it was. It fails with probability 1e-6."""
    decaying = Summed(n_rounds=8, every=2, decay=0.01)
    told = adversary(decaying)
    assert [int(r.resolved.sum()) for r in told.rounds][1::2] == [N_AGENTS] * 3 + [0]
    assert findings(decaying)[Role.NOISE].metrics["p-value"].value > 1e-6


def test_half_of_the_noise_beside_idle_rounds_is_found() -> None:
    class Halved(Summed):
        def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
            return super().noise(like, k, noise) / 2

    told = adversary(Halved(n_rounds=4)).leak.by_round.tolist()
    assert told == pytest.approx([2 * MU / sqrt(2)] * 4, rel=1e-9)
