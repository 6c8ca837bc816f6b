"""What the examination of the real run's noise finds, and what it must leave alone.

A correct defense fails a test here with probability 1e-6 for each examination, over fresh seeds:
the level of an audit. What is planted is found by exact comparison, or beyond any doubt.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from dpaudit.conformance.case import N_AGENTS, small_problem
from dpaudit.defense import Defense, Gradient, Graph, Noise, Round, Setting, broadcast
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
from dpaudit.pipeline.noise_of_the_run import (
    NoiseTest,
    _finding,
    _Layers,
    _without_noise,
    examine_noise,
    examined_rounds,
    n_examined,
)
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.selftest.correct import PrivateGossip
from dpaudit.training import quiet_directions
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.training.message_response import Heard
from dpaudit.training.noise_rounds import left_out
from tests.own_plugins import OWN
from tests.pipeline.correct_noise import (
    CORRECT,
    OffsetForTheRun,
    PairwiseMasks,
    Smoothed,
)
from tests.pipeline.faulty_noise import (
    FAULTS,
    ContrastWithout,
    CopiedAlongOne,
    D,
    LastMasked,
    LayerReused,
    OneSeedForAllRounds,
)
from tests.some_fast import fast_if

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
    return Prepared(
        AuditConfig.model_construct(), learned, setting, worlds, (), (), streams, (), drawn, 0
    )


def examined(given: Defense, seed: int = 0, graph: str = "ring") -> Finding:
    return examine_noise(prepared(given, seed, graph), (EAVESDROPPER,))


def name(defense: PrivateGossip) -> str:
    return f"{type(defense).__name__}, {defense.family}"


LAPLACE = PrivateGossip, PairwiseMasks, OffsetForTheRun, LastMasked, OneSeedForAllRounds


def first_of_each_class(given: list[Any]) -> Callable[[Any], bool]:
    """Whether a mechanism comes first of those of its class, or of Laplace noise where it counts."""
    of_class = {type(made): made for made in reversed(given)}
    of_family = {(type(made), made.family): made for made in reversed(given)}
    firsts = {id(made) for made in of_class.values()}
    firsts |= {id(of_family.get((made, "laplace"))) for made in LAPLACE}
    return lambda made: id(made) in firsts


def of_few_rounds(given: PrivateGossip) -> PrivateGossip:
    """The same over three of its four rounds: a first one, one in between and a last one."""
    usual = given.n_rounds == PrivateGossip().n_rounds
    return given.model_copy(update={"n_rounds": 3}) if usual else given


LARGE = "MaskedContrastWithout"  # 5 s
# As others that are fast; those are: LastMasked, CentredOverCoordinates, HalfPrecision and its sum,
# GridAndSign, GridAndRest, InMiddleRounds, HalfAndOffset, ContrastWithout, SharedByAgents.
LIKE_OTHER_FAULTS = {
    *("LastConcatenated", "LastScaledToZero", "CentredInALayer", "BrainPrecision"),
    *("BrainPrecisionSum", "HalfScaledAfter", "GridAndSquare", "GridAndBias", "BrainAndRest"),
    *("ReusedInMiddleRounds", "SeededOnceAndOffset", "TiledAndOffset", "OwnContrastWithout"),
    *("OneSeedForAllAgents", "HalfInTheBias", LARGE),
}
is_first_fault = first_of_each_class(FAULTS)


@pytest.mark.parametrize(
    "fault",
    fast_if(lambda f: is_first_fault(f) and type(f).__name__ not in LIKE_OTHER_FAULTS, FAULTS),
    ids=name,
)
def test_a_planted_fault_is_found(fault: PrivateGossip) -> None:
    assert examined(of_few_rounds(fault), 0).verdict is Verdict.UNSUPPORTED


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=name)
def test_a_planted_fault_is_found_with_other_seeds(fault: PrivateGossip) -> None:
    for seed in (1, 2):
        assert examined(fault, seed).verdict is Verdict.UNSUPPORTED, seed


def test_what_is_bare_is_named_by_message_agent_layer_and_round() -> None:
    found = examined(LastMasked())
    assert found.title == 'no noise on coordinates 15 to 17 (1.bias) of "x" of agent 0 in round 1'
    assert (found.message, found.rounds, found.claim, found.threat_model) == ("x", (1,), None, None)
    assert found.value("p-value") == 0


LONG = "OffsetsOfAll", "OffsetWithSuchNames"  # 3 s each
# As others that are fast; those are: Rotated, ClippedAfter, LargestKept, DividedByNorm,
# RoundedAfter, GridSent, ClampedGrid, OffsetForTheRun, LaplaceBeside, Masks, LayerByLayer,
# Projected, SumsLessSums, InCommon.
LIKE_OTHERS = {
    *("Permuted", "ClippedByCoordinate", "LargestAlone", "HalfDivided", "SomeKept", "RateByLayer"),
    *("RoundedThenDivided", "GridAfter", "MessageRounded", "DitheredGrid", "RoundedMeans"),
    *(
        "LargestOnGrid",
        "OffsetOfAllCoordinates",
        "OffsetOfAllAgents",
        "TiledBeside",
        "MasksRotated",
    ),
    *("MasksByLayer", "OneDirectionInCommon", "Transformed", "DifferenceOfDraws", *LONG),
}
is_first = first_of_each_class(CORRECT)


@pytest.mark.parametrize(
    "correct",
    fast_if(lambda c: is_first(c) and type(c).__name__ not in LIKE_OTHERS, CORRECT),
    ids=name,
)
def test_nothing_is_found_in_what_is_correct(correct: PrivateGossip) -> None:
    found = examined(of_few_rounds(correct), 0)
    assert found.verdict is None, found.title


def test_draws_that_come_on_top_of_enough_noise_are_named() -> None:
    found = examined(OffsetForTheRun())
    assert found.title == "noise of the real run"
    assert found.notes[0].startswith('without the draws "once" the noise is as it should be')
    assert found.notes[1].startswith('with these draws: the noise of "x" in rounds ')
    assert not any(note.startswith("without the draws") for note in examined(PrivateGossip()).notes)


def of_masks(rate: float, bare: int) -> float:
    """The p-value where ``bare`` of 4,800 coordinates have no noise, and others at this rate."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(12, 1, 4800, generator=generator)
    noise *= torch.rand(noise.shape, generator=generator) >= rate
    noise[..., :bare] = 0.0
    ones = torch.ones(1, 4800)
    h = Heard("x", 1, ((0, None),), (frozenset(),), noise, 1e4 * noise, (ones, ones), False, False,
              False, True, True, ones, None)  # fmt: skip
    tests = _without_noise(h, _Layers(prepared(PrivateGossip(), 0).setting, 4800))
    return min((test.p for test in tests), default=1.0)


def test_coordinates_left_out_by_chance_are_not_bare() -> None:
    """Expected in all of 12 streams: 0.55^12 of 4,800, four; p below 1e-6 in as many seeds."""
    assert of_masks(0.55, 0) > 1e-6
    assert of_masks(0.55, 800) < 1e-6
    assert of_masks(0.999, 0) > 1e-6
    assert of_masks(0.0, 0) == 1.0
    assert of_masks(0.0, 1) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("correct", CORRECT, ids=name)
def test_nothing_is_found_in_ten_seeds(correct: PrivateGossip) -> None:
    for seed in range(1, 11):
        assert examined(correct, seed).verdict is None


OF_EACH_KIND = {
    "d-psgd": "no noise",
    "dp-dpsgd": "on the gradient or the model",
    "dp-dgd": "Laplace",
    "decor": "correlated between agents",
    "mafalda": "correlated between rounds",
    "dpps": "scaled by what was sent before",
    "fed-cdp": "by layers",
    "whisper": "shared",
    "dp-dfedsam": "in local steps",
}
SLOW = {"dp-dfedsam", "decor"}  # which take seconds
FAST = OF_EACH_KIND.keys() - SLOW - {"dp-dgd", "whisper"}  # as Laplace and pairwise noise above


@pytest.mark.parametrize("defense", fast_if(lambda name: name in FAST, OWN))
def test_nothing_is_found_in_the_defenses_of_this_repository(defense: str) -> None:
    given = load_plugin("defenses", defense)
    epsilon = [field for field in ("epsilon",) if field in given.model_fields]
    try:
        played = given()
    except ValueError:  # it needs a budget
        played = given(**dict.fromkeys(epsilon, 1.0))
    found = examined(played, graph="server" if defense == "secure-aggregation" else "complete")
    assert found.verdict is None, found.title
    assert not any(note.startswith("not examined") for note in found.notes)


@pytest.mark.parametrize("reader", [EAVESDROPPER, agent(0), agent(1)])
def test_what_an_adversary_sends_need_hide_nothing_from_it(reader: ThreatModel) -> None:
    """On a ring the two noises of an agent of Zip-DL cancel; no agent reads both of another's."""
    zipped = load_plugin("defenses", "zip-dl")(noise_multiplier=2.0, n_rounds=2, batch_size=4)
    verdict = examine_noise(prepared(zipped, 0), (reader,)).verdict
    assert verdict is (Verdict.UNSUPPORTED if reader is EAVESDROPPER else None)


def test_a_sum_of_rows_is_found_where_one_adversary_reads_them() -> None:
    """On a ring agent 1 reads agents 0 and 2; of agents 0 and 1 nobody else reads both."""
    adversaries = (agent(1), agent(2), agent(7))
    found = examine_noise(prepared(CopiedAlongOne(by=2), 0), adversaries)
    assert found.verdict is Verdict.UNSUPPORTED
    assert 'no noise in a direction of "x" of agent 0 and agent 2 together' in found.title
    assert examine_noise(prepared(CopiedAlongOne(by=1), 0), adversaries).verdict is None


SUMS = [f for f in FAULTS if type(f) in (CopiedAlongOne, ContrastWithout)]


@pytest.mark.parametrize("fault", fast_if(is_first_fault, SUMS))
def test_a_sum_of_rows_is_found_in_large_messages(
    fault: PrivateGossip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose covariance is not estimated as a whole."""
    monkeypatch.setattr(quiet_directions, "WHOLE", D - 1)
    assert examined(fault).verdict is Verdict.UNSUPPORTED
    assert examined(PairwiseMasks()).verdict is None


def test_coordinates_that_no_gradient_moves_need_no_noise() -> None:
    class Padded(PrivateGossip):
        def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
            round = super().step(state, k, graph, gradient, noise)
            X = torch.cat([round.state.X, torch.ones_like(round.state.X)], dim=-1)
            return round._replace(sent={"x": broadcast(graph, X)})

    assert examined(Padded()).verdict is None


def test_a_step_that_takes_one_run_at_a_time_is_not_examined() -> None:
    class OneRun(PrivateGossip):
        def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
            if state.X.ndim != 2:
                raise ValueError("expected [n_agents, d]")
            return super().step(state, k, graph, gradient, noise)

    found = examined(OneRun())
    assert found.verdict is None
    assert found.notes[0] == "not examined: expected [n_agents, d]"
    assert found.not_examined == ("all messages (expected [n_agents, d])",)


@pytest.mark.parametrize("n_rounds", [1, 2, 3, 10, 15, 16, 20, 200])
def test_first_last_and_drawn_rounds_are_examined(n_rounds: int) -> None:
    for seed in range(20):
        rounds = examined_rounds(n_rounds, Streams(seed))
        assert len(rounds) == n_examined(n_rounds) == len(set(rounds))
        assert {1, min(2, n_rounds), max(1, n_rounds - 1), n_rounds} <= set(rounds)
        for start in range(1, n_rounds - n_rounds // 4):  # each quarter has one
            assert any(start <= k <= start + n_rounds // 4 for k in rounds)


def test_what_was_not_looked_at_has_message_rounds_and_reason() -> None:
    not_finite = '"x" in rounds 2 to 3 (it is not finite)'
    assert examined(InfiniteInSome()).not_examined == (not_finite,)
    drawn = examined(PrivateGossip(n_rounds=40))
    assert drawn.not_examined == ()
    rounds = drawn.metrics["rounds"]
    assert (rounds.value, rounds.n) == (15, 40)
    (mixed,) = examined(Smoothed()).not_examined
    assert mixed == '"x" in rounds 1 to 4 (coordinates are mixed)'


class InfiniteInSome(PrivateGossip):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        x = round.sent["x"].payload
        return round._replace(sent={"x": broadcast(graph, x / (k not in (2, 3)))})


def test_a_message_that_is_finite_only_with_noise_is_examined() -> None:
    class Divided(PrivateGossip):
        def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
            one, other = S.tensor_split(2, dim=-1)
            noisy = super().noised(0 * one, k, noise)
            return torch.cat([noisy / noisy.norm(dim=-1, keepdim=True), other], -1)

    found = examined(Divided())
    assert found.verdict is Verdict.UNSUPPORTED
    assert found.title.startswith("no noise on coordinates 9 to 17")


def test_noise_of_one_layer_in_another_is_called_by_its_layers() -> None:
    found = examined(LayerReused())
    assert "share their noise" in found.title
    assert "1.weight, 1.bias" in found.title


@pytest.mark.slow
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
    (noise,) = (f for f in result.findings if f.role is Role.NOISE and f.claim is None)
    assert noise.verdict is Verdict.UNSUPPORTED
    assert "coordinates 640 to 649 (1.bias)" in noise.title
    assert result.claims[0].verdict is Verdict.UNSUPPORTED
    assert noise.title in result.claims[0].reason


class LastTenMasked(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * (torch.arange(like.shape[-1]) < 640)


@pytest.mark.slow
def test_less_noise_on_a_layer_is_found_under_layered_clips() -> None:
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
def test_large_models_of_a_crowd_are_left_out_with_the_reason(n: int, d: int, left: bool) -> None:
    setting = Setting(build_graph("ring", n), (10,) * n, d)
    reason = left_out(setting, 3)
    assert (reason is not None) == left
    if reason is not None:
        assert "10000 agents' models under 3 streams of noise are 2.4e+08 numbers" in reason
        empty = prepared(FedCDP(noise_multiplier=1.0), 0)._replace(setting=setting)
        finding = examine_noise(empty, (EAVESDROPPER,))
        assert finding.notes[0] == f"not examined: {reason}"
        assert finding.verdict is None


def test_a_large_model_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of 11 million weights would take 30 GB; its audit goes on without."""
    monkeypatch.setattr("dpaudit.training.costs.MOST_EXAMINED", 1000)
    (why,) = examined(PrivateGossip()).not_examined
    assert re.fullmatch(r"all messages \(it takes [\d.]+ MB of memory, more than 1 kB\)", why)


@pytest.mark.parametrize("among, verdict", [(90, Verdict.UNSUPPORTED), (110, None)])
def test_the_level_is_shared_by_all_tests(among: int, verdict: Verdict | None) -> None:
    tests = [NoiseTest(1e-8, among - 10, "x", (1,), "a fault"), NoiseTest(0.5, 10, "x", (2,), "")]
    found = _finding(tests, 1, (), ())
    assert found.verdict is verdict
    assert found.value("p-value") == pytest.approx(among * 1e-8)
