"""What the examination of the real run's noise finds, and what it must leave alone.

A correct defense fails a test here with probability 1e-6 for each examination, over fresh seeds:
the level of an audit. What is planted is found by exact comparison, or beyond any doubt.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from dpaudit.conformance.case import N_AGENTS, small_problem
from dpaudit.defense import Defense, Gradient, Graph, Noise, Round, Setting, broadcast, unicast
from dpaudit.defenses.fed_cdp import FedCDP
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Role
from dpaudit.files.options import GraphOptions
from dpaudit.files.result import GraphSummary
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.caller_objects import CallerObjects
from dpaudit.pipeline.jobs import Prepared
from dpaudit.pipeline.noise_of_the_run import _Layers, _without_noise, examine_noise
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip, PrivateMomentum, PrivateShares, Snapped, State
from dpaudit.selftest.zoo import DrawnBeforeBroadcast, OneSeedForAllAgents, OneSeedForAllRounds
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.training.noise_rounds import Heard, left_out

D = 18  # a matrix of 15 and a bias of 3
EAVESDROPPER = ThreatModel(name="eavesdropper")


def agent(i: int) -> ThreatModel:
    return ThreatModel(name=f"agent {i}", kind="curious", agents=(i,))


def prepared(given: Defense, seed: int, graph: str = "ring") -> Prepared:
    streams = Streams(seed)
    problem, sizes = small_problem(given, streams, torch.float32)
    layers = tuple((n, p.numel()) for n, p in problem.gradients.module.named_parameters())
    options = TypeAdapter(GraphOptions).validate_python({"name": graph})
    network = build_graph(options, N_AGENTS, streams.numpy("graph"))
    setting = Setting(network, sizes, problem.gradients.d, layers)
    learned = LoadedProblem(problem, problem.dataset, "", "0" * 64, sizes, sum(sizes), D, layers)
    worlds = {"defense": given.calibrate(setting)}
    places = ((0.0, 0.0),) * N_AGENTS
    drawn = GraphSummary(
        name=graph, n_agents=N_AGENTS, links=(), positions=places, spectral_gap=1.0
    )
    return Prepared(learned, setting, worlds, (), streams, (), drawn)


def examined(given: Defense, seed: int = 0, graph: str = "ring") -> Finding:
    return examine_noise(prepared(given, seed, graph), (EAVESDROPPER,))


class LastMasked(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn * (torch.arange(D) < D - 3)


class LastConcatenated(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.cat([super().noised(S[..., :-3], k, noise), S[..., -3:]], dim=-1)


class LastScaledToZero(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return noise.gaussian("gradient", self._scale * (torch.arange(D) < D - 3), like)


class LastWithLess(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * torch.where(torch.arange(D) < D - 3, 1.0, 0.3)


class LayerReused(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return torch.cat([drawn[..., :15], drawn[..., :3]], dim=-1)


class CentredOverCoordinates(PrivateGossip):
    """The sum of all coordinates has no noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn - drawn.mean(dim=-1, keepdim=True)


class CentredInALayer(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        weight, bias = super().noise(like, k, noise).split([15, 3], dim=-1)
        return torch.cat([weight, bias - bias.mean(dim=-1, keepdim=True)], dim=-1)


class BareAndRounded(LastMasked):
    """Rounding to bfloat16 afterwards hides nothing."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).bfloat16().float()


class SharedByAgents(PrivateGossip):
    """Drawn by a generator of its own."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return (torch.randn_like(like[..., :1, :]) * self._scale).expand_as(like)


class SharedByLinks(PrivateGossip):
    """Every link has a gradient of its own, and the noise of its sender."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        j, i = graph.senders, graph.receivers
        G = gradient.clipped_sum(state.X[..., i, :], self.clip_norm, holders=j)
        noisy = G + self.on_links(G, noise)
        X = state.V - self.learning_rate * torch.zeros_like(state.X).index_add(-2, i, noisy)
        return Round(State(X, graph.mix(X)), {"x": unicast(graph, noisy)})

    def on_links(self, G: Tensor, noise: Noise) -> Tensor:
        return torch.randn_like(G[..., :N_AGENTS, :])[..., torch.arange(G.shape[-2]) // 2, :]


class SentInTheNextRound(PrivateGossip):
    """The state that is sent first was noised at the end of the round before."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        return round._replace(sent={"x": broadcast(graph, state.X)})


class SentInTheNextRoundMasked(SentInTheNextRound):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * (torch.arange(D) < D - 3)


class HalfPrecision(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like.half(), k, noise).float()


class BrainPrecision(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).bfloat16().float()


class OnGrid(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return (super().noise(like, k, noise) * 64).round() / 64


FAULTS = [
    LastMasked(),
    LastMasked(family="laplace"),
    LastConcatenated(),
    LastScaledToZero(),
    LastWithLess(),
    LayerReused(),
    CentredOverCoordinates(),
    CentredOverCoordinates(family="laplace"),
    CentredInALayer(),
    BareAndRounded(),
    SentInTheNextRoundMasked(),
    DrawnBeforeBroadcast(),
    OneSeedForAllAgents(),
    SharedByAgents(),
    SharedByLinks(),
    OneSeedForAllRounds(),
    OneSeedForAllRounds(family="laplace"),
    HalfPrecision(),
    BrainPrecision(),
    OnGrid(),
]


def name(defense: PrivateGossip) -> str:
    return f"{type(defense).__name__}, {defense.family}"


@pytest.mark.parametrize("fault", FAULTS, ids=name)
def test_a_planted_fault_is_found(fault: PrivateGossip) -> None:
    for seed in range(3):
        found = examined(fault, seed)
        assert found.verdict is Verdict.UNSUPPORTED, seed


def test_what_is_bare_is_named_by_message_agent_layer_and_round() -> None:
    found = examined(LastMasked())
    assert found.title == 'no noise on coordinates 15 to 17 (1.bias) of "x" of agent 0 in round 1'
    assert (found.message, found.rounds, found.claim, found.threat_model) == ("x", (1,), None, None)
    assert found.value("p-value") == 0


class Rotated(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        Q = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(3)))[0]
        return super().noise(like, k, noise) @ Q


class Permuted(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).flip(-1)


class Smoothed(PrivateGossip):
    """What is noised is averaged with its neighbours: post-processing."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return (noisy + noisy.roll(1, -1)) / 2


class ScaledByLayer(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        scales = self._scale * torch.where(torch.arange(D) < 15, 1.0, 3.0)
        return noise.gaussian("gradient", scales, like)


class LayerByLayer(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        parts = like.split([15, 3], dim=-1)
        return torch.cat(
            [noise.gaussian(f"{i}", (i + 1) * self._scale, part) for i, part in enumerate(parts)],
            dim=-1,
        )


class RateByLayer(PrivateGossip):
    """The noisy gradient is multiplied: post-processing."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise) * torch.where(torch.arange(D) < 15, 1.0, 0.1)


class DividedByNorm(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy / noisy.norm(dim=-1, keepdim=True).clamp(min=1e-12)


class ClippedAfter(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy * (1 / noisy.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1)


class ClippedByCoordinate(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).clamp(-0.5, 0.5)


class CentredAfter(PrivateGossip):
    """What is noised is centred: post-processing."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy - noisy.mean(dim=-1, keepdim=True)


class RoundedAfter(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).bfloat16().float()


class GridAfter(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return (super().noised(S, k, noise) * 4).round() / 4


class MessageRounded(PrivateGossip):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        X = round.state.X.bfloat16().float()
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)})


class SignAfter(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).sign()


class LargestKept(PrivateGossip):
    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        least = noisy.abs().topk(5, dim=-1).values[..., -1:]
        return noisy * (noisy.abs() >= least)


class LargestAlone(PrivateGossip):
    """Noise seldom reaches the coordinate that gradients reach."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        noisy = super().noised(S, k, noise)
        return noisy * (noisy.abs() >= noisy.abs().amax(-1, keepdim=True))


class HalfDivided(PrivateGossip):
    """Of loud noise one half is far louder than the other, whose length is 1 in all."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        one, other = super().noised(S, k, noise).tensor_split(2, dim=-1)
        return torch.cat([one / one.norm(dim=-1, keepdim=True), other], -1)


class TwiceAndSaturated(PrivateGossip):
    """Coordinate 0 is twice coordinate 5, of gradients in a range that loud ones leave."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        G = super().noised(S, k, noise)
        return torch.tanh(0.1 * torch.cat([2 * G[..., 5, None], G[..., 1:]], -1))


class SomeKept(PrivateGossip):
    """Every third coordinate, the same at all agents, rotating by round."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise) * (torch.arange(D) % 3 == k % 3)


class RoundedThenDivided(PrivateGossip):
    """By the largest of what is rounded: one number that crosses a step moves all."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        rounded = torch.tanh(3 * super().noised(S, k, noise).bfloat16().float())
        return rounded / rounded.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12)


class SoftModel(PrivateGossip):
    """Numbers of the model that is sent come closer to 0, and small ones are 0."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        X = round.state.X.sign() * (round.state.X.abs() - 0.3).clamp(min=0)
        return Round(State(X, graph.mix(X)), {"x": broadcast(graph, X)})


class SmallNoise(PrivateGossip):
    noise_multiplier: float = 1e-4


CORRECT = [
    PrivateGossip(),
    PrivateGossip(family="laplace"),
    PrivateMomentum(),
    PrivateShares(),
    Snapped(family="laplace"),
    SentInTheNextRound(),
    Rotated(),
    Rotated(family="laplace"),
    Permuted(),
    Smoothed(),
    ScaledByLayer(),
    LayerByLayer(),
    RateByLayer(),
    DividedByNorm(),
    DividedByNorm(noise_multiplier=1e3),
    ClippedAfter(),
    ClippedAfter(noise_multiplier=1e3),
    ClippedByCoordinate(),
    CentredAfter(),
    RoundedAfter(),
    GridAfter(),
    MessageRounded(),
    SignAfter(),
    LargestKept(),
    LargestAlone(),
    HalfDivided(),
    TwiceAndSaturated(noise_multiplier=0.05),
    SomeKept(),
    RoundedThenDivided(),
    SoftModel(),
    SmallNoise(),
]


@pytest.mark.parametrize("correct", CORRECT, ids=name)
def test_nothing_is_found_in_what_is_correct(correct: PrivateGossip) -> None:
    for seed in range(3):
        found = examined(correct, seed)
        assert found.verdict is None, found.title


def of_masks(rate: float, bare: int) -> float:
    """The p-value where ``bare`` of 4,800 coordinates have no noise, and others at this rate."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(12, 1, 4800, generator=generator)
    noise *= torch.rand(noise.shape, generator=generator) >= rate
    noise[..., :bare] = 0.0
    ones = torch.ones(1, 4800)
    h = Heard("x", 1, ((0, None),), (frozenset(),), noise, 1e4 * noise, (ones, ones), False, False,
              False, True, True, False, ones, False)  # fmt: skip
    tests = _without_noise(h, _Layers(prepared(PrivateGossip(), 0).setting, 4800))
    return min((test.p for test in tests), default=1.0)


def test_coordinates_that_a_step_leaves_out_by_chance_are_not_without_noise() -> None:
    """Expected in all of 12 streams: 0.55^12 of 4,800, four; p below 1e-6 in as many seeds."""
    assert of_masks(0.55, 0) > 1e-6
    assert of_masks(0.55, 800) < 1e-6
    assert of_masks(0.999, 0) > 1e-6
    assert of_masks(0.0, 0) == 1.0
    assert of_masks(0.0, 1) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("correct", CORRECT, ids=name)
def test_nothing_is_found_in_ten_seeds(correct: PrivateGossip) -> None:
    for seed in range(3, 13):
        assert examined(correct, seed).verdict is None


def test_nothing_is_found_in_the_defenses_of_this_repository(own_defense: str) -> None:
    given = load_plugin("defenses", own_defense)
    epsilon = [field for field in ("epsilon",) if field in given.model_fields]
    try:
        defense = given()
    except ValueError:  # it needs a budget
        defense = given(**dict.fromkeys(epsilon, 1.0))
    found = examined(defense, graph="complete")
    assert found.verdict is None, found.title
    assert not any(note.startswith("not examined") for note in found.notes)


@pytest.mark.parametrize("reader", [EAVESDROPPER, agent(0), agent(1)])
def test_what_an_adversary_sends_itself_need_hide_nothing_from_it(reader: ThreatModel) -> None:
    """On a ring the two noises of an agent of Zip-DL cancel; no agent reads both of another's."""
    zipped = load_plugin("defenses", "zip-dl")(noise_multiplier=2.0, n_rounds=2, batch_size=4)
    verdict = examine_noise(prepared(zipped, 0), (reader,)).verdict
    assert verdict is (Verdict.UNSUPPORTED if reader is EAVESDROPPER else None)


def test_coordinates_that_no_gradient_moves_need_no_noise() -> None:
    class Padded(PrivateGossip):
        def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
            round = super().step(state, k, graph, gradient, noise)
            X = torch.cat([round.state.X, torch.ones_like(round.state.X)], dim=-1)
            return round._replace(sent={"x": broadcast(graph, X)})

    assert examined(Padded()).verdict is None


def test_a_step_that_takes_one_run_at_a_time_is_said_not_to_be_examined() -> None:
    class OneRun(PrivateGossip):
        def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
            if state.X.ndim != 2:
                raise ValueError("expected [n_agents, d]")
            return super().step(state, k, graph, gradient, noise)

    found = examined(OneRun())
    assert found.verdict is None
    assert found.notes[0] == "not examined: expected [n_agents, d]"


def test_the_noise_of_one_layer_in_another_is_called_by_its_layers() -> None:
    found = examined(LayerReused())
    assert "share their noise" in found.title
    assert "1.weight, 1.bias" in found.title


def test_a_whole_audit_says_which_coordinates_are_bare(tmp_path: Path) -> None:
    config = {
        "seed": 3,
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "claim": [{"text": "ours", "epsilon": 50.0, "delta": 1e-5}],
        "threat_model": [{"name": "eavesdropper"}],
    }
    own = CallerObjects(LastTenMasked(n_rounds=2), None, None)
    checked = AuditConfig.from_dict(own.fill(config), own.defense)
    result = run_audit(checked, tmp_path, Runtime(cores=1), own=own)
    (noise,) = (f for f in result.findings if f.role is Role.NOISE)
    assert noise.verdict is Verdict.UNSUPPORTED
    assert "coordinates 640 to 649 (1.bias)" in noise.title
    assert result.claims[0].verdict is Verdict.UNSUPPORTED
    assert noise.title in result.claims[0].reason


class LastTenMasked(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * (torch.arange(like.shape[-1]) < 640)


def test_less_noise_on_a_layer_is_found_where_layers_are_clipped_one_by_one() -> None:
    class Less(Noise):
        def __init__(self, noise: Noise) -> None:
            self.noise = noise

        def gaussian(self, message: str, std: Any, like: Tensor) -> Tensor:
            return self.noise.gaussian(message, std, like) * torch.where(
                torch.arange(D) < 15, 1, 0.3
            )

    class LessOnTheBias(FedCDP):
        def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
            return super().step(state, k, graph, gradient, Less(noise))

    assert examined(FedCDP(noise_multiplier=1.0)).verdict is None
    found = examined(LessOnTheBias(noise_multiplier=1.0))
    assert found.verdict is Verdict.UNSUPPORTED
    assert "1.bias" in found.title
    assert "less noise" in found.title


@pytest.mark.parametrize(("n", "d", "left"), [(10_000, 7_850, True), (1_000, 100_000, False)])
def test_models_of_a_crowd_that_are_large_are_left_out_with_the_reason(
    n: int, d: int, left: bool
) -> None:
    setting = Setting(build_graph("ring", n), (10,) * n, d)
    reason = left_out(setting, 3)
    assert (reason is not None) == left
    if reason is not None:
        assert "10000 agents' models under 3 streams of noise are 2.4e+08 numbers" in reason
        empty = prepared(FedCDP(noise_multiplier=1.0), 0)._replace(setting=setting)
        finding = examine_noise(empty, (EAVESDROPPER,))
        assert finding.notes[0] == f"not examined: {reason}"
        assert finding.verdict is None
