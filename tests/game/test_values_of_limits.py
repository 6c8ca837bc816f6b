"""Limits by which figures of a game are compared, on either side of each, by hand."""

from dataclasses import replace
from itertools import combinations
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast
from dpaudit.files.threat import ThreatModel
from dpaudit.game.estimating import estimate
from dpaudit.game.filtering import narrow_view
from dpaudit.game.game import Game
from dpaudit.game.network import gossip
from dpaudit.game.network.gossip import NOISELESS, Innovations
from dpaudit.game.probing.observer import Observer
from dpaudit.game.runs import noise_law, play
from dpaudit.game.runs.play import ScoredRuns, Worlds
from dpaudit.game.step_inputs import ConstantGradients, RequestedNoise, differs
from dpaudit.game.worst_case import record
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.rng import Streams
from tests.game.test_adversary import EAVESDROPPER, Gossip, State
from tests.game.test_values_of_laws import toy

NOTHING: Any = None


def test_numbers_of_either_sign_say_what_rounding_is() -> None:
    size = 1e3 * 1e-12
    for sign in (1.0, -1.0):
        values = torch.tensor([[0.0, sign * 1e3], [0.9 * size, sign * 1e3], [1.1 * size, 0.0]])
        assert differs(values.double()).tolist() == [[False, False], [True, True]]


class Clipped(Gossip):
    """Laplace noise hides a sum clipped in L2; every coordinate begins at a number of its own."""

    batch_size: int = 8
    family: str = "laplace"
    norm: int = 2
    shape: str = ""

    def start(self, X: Tensor, setting: Setting) -> Any:
        return State(X + torch.arange(X.shape[-1]).to(X))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        g = gradient.clipped_sum(state.X, 2.0, None, self.norm) / self.batch_size
        own = noise.laplace if self.family == "laplace" else noise.gaussian
        if self.shape == "first":
            g[..., 1:] = 0.0
        Z = own("y", 1.0, state.X[..., :1] if self.shape == "one draw" else state.X)
        if self.shape == "mixed":
            Z = Z + Z.mean(-1, keepdim=True)
        if self.shape == "mixed away":
            Z = Z - Z.roll(1, -1)
        if self.shape == "unclipped":
            g = gradient(state.X)
        if self.shape == "both":
            g = g + gradient(state.X)
        return Round(state, {"y": broadcast(graph, state.X + g + Z)})


@pytest.mark.parametrize(
    ("of", "coordinates"),
    [
        ({}, 40),
        ({"family": "gaussian"}, 1),
        ({"norm": 1}, 1),
        ({"shape": "first"}, 1),
        ({"shape": "one draw"}, 1),
        ({"shape": "mixed"}, 1),
        ({"shape": "mixed away"}, 1),
        ({"shape": "unclipped"}, 1),
        ({"shape": "both"}, 1),
    ],
)
def test_the_worst_record_fills_coordinates_alike_and_apart(of: Any, coordinates: int) -> None:
    setting = Setting(build_graph("ring", 3), (40,) * 3, 40)
    game = Game.of(Clipped(**of), setting, 1, "add-remove", "poisson")
    assert record.coordinates(game) == coordinates


def test_an_agent_of_a_whole_run_must_leak_clearly_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """By more than two accountants differ, and more than is declared; of the loudest alone."""
    rates: list[float] = []
    monkeypatch.setattr(record, "Adversary", lambda game, *_: rates.append(game.sampling_rate))
    monkeypatch.setattr(record, "_leaked", lambda game, H: float(H))
    monkeypatch.setattr(record, "_epsilon", lambda leak, *_: SimpleNamespace(low=leak))
    sizes = {0: 5.0, 2: 4.0, 3: 3.0, 4: 2.0}
    noiseless: dict[int, str] = {}
    monkeypatch.setattr(
        record, "size_by_agent",
        lambda adversary, agents, patterns: (
            (torch.stack([torch.eye(2).double() * sizes[v] for v in agents]), noiseless),
            torch.ones(len(agents), 6),
        ),
    )  # fmt: skip
    alike = [replace(toy(5), victim=v) for v in (1, 0, 2, 3, 4)]

    def chosen(leaks: dict[int, float], declared: float = 0.0, **of: Any) -> int:
        asked: list[list[int]] = []

        def by_agent(adversary: Any, victims: list[int], rounds: Tensor) -> Any:
            asked.append(victims)
            assert rounds.tolist() == [1, 2, 3, 4, 5, 6]
            return SimpleNamespace(H=torch.tensor([leaks.get(v, 0.0) for v in victims]).double())

        monkeypatch.setattr(record, "leak_by_agent", by_agent)
        monkeypatch.setattr(record, "_declared", lambda *_: declared)
        game = replace(alike[0], **of)
        found = record._of_whole_run(game, alike, EAVESDROPPER, 1e-5, "add-remove")
        assert asked in ([], [[1, 0, 2, 3]])  # the victim, and the loudest three
        return found.victim

    more = record.MORE
    assert chosen({1: 1.0, 0: 1.0}) == 1
    assert chosen({1: 1.0, 0: 1 + (more - 1) / 2}) == 1
    assert chosen({1: 1.0, 0: more * (1 + 1e-9)}) == 0
    assert chosen({1: 1.0, 0: 2.0}, declared=2.0 / (1 + (more - 1) / 2)) == 1
    assert chosen({1: 1.0, 0: 2.0}, declared=1.9) == 0
    assert chosen({1: 1.0, 0: 2.0, 2: 3.0, 3: 2.5}) == 2
    assert chosen({1: 1.0, 4: 9.0}) == 1  # which is not among the loudest
    assert chosen({0: 9.0}, in_one_round=True) == 1
    short = replace(alike[0], defense=alike[0].defense.model_copy(update={"n_rounds": 2}))
    assert record._of_whole_run(short, alike, EAVESDROPPER, 1e-5, "add-remove") is short
    noiseless.update({3: "y", 2: "y"})
    assert chosen({0: 9.0}, sampling_rate=0.25) == 2
    assert set(rates) == {1.0}  # records that are used in every round


def square(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def innovations(noiseless: list[Tensor], left: list[Tensor]) -> Innovations:
    n = len(left)
    return Innovations([[0]] * n, [torch.zeros(0, 2).double()] * n, noiseless, left)


def test_a_use_that_shows_a_little_in_each_round_is_shown() -> None:
    """Together above the limit, by itself in no round."""
    little, keep = square([0.8 * NOISELESS, 0.0]), square([1.0, 0.0], [0.0, 1.0])
    both = innovations([little, little], [keep, keep])
    assert list(both.shown([0, 1])) == [(0, (1, 0))]
    one = innovations([little, 0 * little], [keep, keep])
    assert list(one.shown([0, 1])) == []
    moved = square([0.0, 1.0], [1.0, 0.0])  # a use of 1 is at 0 a round later
    later = innovations([square([1.0, 0.0])] * 2, [moved, moved])
    assert list(later.shown([0, 1])) == [(0, (1, 0)), (1, (2, 0))]
    assert list(innovations([torch.zeros(0, 2).double()], [keep]).shown([0, 1])) == []


def test_products_end_where_nothing_is_left() -> None:
    """Of rounds that keep a half, and of one that keeps less than is remembered."""
    half, nothing = 0.5 * torch.eye(2).double(), 1e-2 * gossip.FORGOTTEN * torch.eye(2).double()
    of = innovations([torch.zeros(0, 2).double()] * 5, [half, half, nothing, half, half])
    start, found = of._before(0, 2)
    assert start == 0
    assert [float(phi[0, 0]) for phi in found] == [0.25, 0.5]
    start, found = of._before(0, 5)
    assert start == 3
    assert [float(phi[0, 0]) for phi in found] == [0.25, 0.5]
    J = [(t + 1) * torch.eye(2).double() for t in range(5)]
    start, found = of._after(0, 2, J)
    assert (start, [float(x[0, 0]) for x in found]) == (0, [1.0, 2 * 0.5])
    start, found = of._after(1, 5, J)
    assert start == 1
    assert [float(x[0, 0]) for x in found] == [2.0, 3 * 0.5]
    revealed = innovations([], [half, half, half])._revealed_from(
        [square([1.0, 0.0]), square([0.0, 2.0]), square([4.0, 0.0])]
    )
    assert [J.diagonal().tolist() for J in revealed] == [[1 + 1.0, 1.0], [4.0, 4.0], [16.0, 0.0]]


@pytest.mark.parametrize(
    ("effects", "known"),
    [
        ([[1.0, 0.0], [0.0, -2.0]], True),
        ([[1.099, 0.0], [0.0, -2.0]], True),
        ([[1.0, 0.0], [0.0, -2.099]], True),
        ([[1.101, 0.0], [0.0, -2.0]], False),
        ([[1.0, -0.101], [0.0, -2.0]], False),
        ([[1.0, 0.0], [0.0, -1.899]], False),
    ],
)
def test_noise_is_known_where_gradients_hardly_change_it(monkeypatch, effects: Any, known) -> None:
    """By a twentieth of its largest effect, at gradients of twice the size."""
    here = square([1.0, 0.0], [0.0, -2.0])
    system = SimpleNamespace(noise=here, unknowns=torch.zeros(2, 3).double())
    monkeypatch.setattr(estimate, "refuse_several", lambda *_: None)
    monkeypatch.setattr(estimate, "ProbedWindow", lambda *of: of[-1])
    asked: list[float] = []
    monkeypatch.setattr(
        estimate, "System", SimpleNamespace(of=lambda size: (asked.append(size), system)[1])
    )
    monkeypatch.setattr(
        estimate, "noise_of", lambda size: (asked.append(size), square(*effects))[1]
    )
    found = estimate.LinearWindow(NOTHING, toy(3).setting, EAVESDROPPER, range(1, 3))
    assert found.has_known_noise is known
    assert asked == [1.0, 2.0]


def worlds_of(n: int, at: float = 0.0) -> Worlds:
    return Worlds(*(ScoredRuns(np.full(n, at + i), np.full((n, 1), at)) for i in (0, 1)))


def test_runs_are_played_in_even_blocks_until_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six observations and two rows for each of three agents are 12 rows of a block."""
    parts: list[int] = []
    steps: list[tuple[int, int]] = []

    def block(adversary: Any, trials: int, streams: Any, in_round: Any, game: Any, on_round: Any,
              dtype: Any, others: Any) -> Worlds:  # fmt: skip
        parts.append(trials)
        on_round(1, 2)
        return worlds_of(trials, float(len(parts)))

    monkeypatch.setattr(play, "_block", block)
    monkeypatch.setattr(play, "BLOCK", 12 * 60)
    game = SimpleNamespace(setting=SimpleNamespace(n_agents=3), played=1)
    adversary: Any = SimpleNamespace(observed=6, game=game)

    def played(trials: int, **of: Any) -> Worlds:
        parts.clear()
        steps.clear()
        return play.play(
            adversary, trials, Streams(0), on_round=lambda *s: steps.append(s), **of
        )  # fmt: skip

    found = played(120)
    assert parts == [60, 60]
    assert steps == [(1, 4), (3, 4)]
    assert found.scores[0].tolist() == [1.0] * 60 + [2.0] * 60
    assert found.scores[1].tolist() == [2.0] * 60 + [3.0] * 60
    played(121)
    assert parts == [41, 40, 40]
    asked: list[int] = []

    def enough(so_far: Worlds) -> bool:
        asked.append(len(so_far.scores[0]))
        return len(so_far.scores[0]) >= 120

    played(600, enough=enough)
    assert parts == [60, 60]
    assert asked == [60, 120]
    game.played = 2
    played(120)
    assert parts == [40, 40, 40]  # fifty at once, at least
    assert play.block_of(10**9, 1) == 50


def test_infinite_numbers_have_no_size() -> None:
    values = square([-inf, 1.0], [-inf, 1.0 + 1e-13], [0.0, 1.0 + 1e-11])
    assert differs(values).tolist() == [[False, False], [True, True]]


def test_sets_of_draws_are_in_the_order_of_their_names() -> None:
    """So that the first that hides a record is the same in every process."""
    names = list("abcdefghijkl")
    few = names[: noise_law.FEW_NAMES]
    found = [sorted(some) for some in noise_law._sets(frozenset(few))]
    every = [list(some) for n in range(1, len(few)) for some in combinations(few, n)]
    assert found == every
    single = [sorted(some) for some in noise_law._sets(frozenset(names))]
    assert single == [[name] for name in names]  # of many draws no pairs
    of_layers = [sorted(some) for some in noise_law._sets(frozenset(["z1", "z2", "y1", "y2", "x"]))]
    together = [of_layers.index(pair) for pair in (["y1", "y2"], ["z1", "z2"])]
    assert together == sorted(together)


@pytest.mark.parametrize("quiet", [1, 2, 3])
def test_a_batch_that_shows_without_noise_holds_the_record(quiet: int) -> None:
    """Of three batches in turn, the one of the round that has no noise."""
    game = replace(toy(3, quiet=(quiet,)), sampling_rate=1.0, cycle=3)
    assert record.in_worst_batch(game, EAVESDROPPER, 6).first == quiet
    sampled = replace(game, sampling_rate=0.5)
    assert record.in_worst_batch(sampled, EAVESDROPPER, 6) is sampled


@pytest.mark.parametrize(
    ("agents", "rows", "own"),
    [((0,), 3, [0]), ((1,), 4, [0, 3]), ((0, 2), 3, [0, 2]), ((1,), 5, None), ((), 3, None)],
)
def test_own_rows_are_of_draws_for_agents_or_for_links(agents, rows: int, own: Any) -> None:
    """A path of three agents has four links, of which agent 1 sends the first and the last."""
    setting = Setting(build_graph("path", 3), (40,) * 3, 1)
    game = replace(toy(3), setting=setting)
    kind: Any = {0: "external", 1: "curious", 2: "colluding"}[len(agents)]
    view = ThreatModel(name="some", kind=kind, agents=agents)
    draws = {"z": RequestedNoise("gaussian", torch.Size((1, rows, 1)))}
    found = Observer(game, view)._own(1, {}, draws)
    assert {name: rows.tolist() for name, rows in found.items()} == (
        {} if own is None else {"z": own}
    )


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("left", "record_left", "hidden"),
    [(0.5, 0.0, False), (2.0, 0.0, True), (0.0, 0.5, False), (0.0, 2.0, True), (-2.0, 0.0, True)],
)
def test_a_model_is_hidden_beyond_rounding(monkeypatch, sign, left, record_left, hidden) -> None:
    """Of noise, relative to the largest of models; of the record, to its own effect of 4."""
    least = narrow_view.NOISELESS
    factor = np.array([[1.0, sign], [0.0, left * least]])
    uses = np.array([[3.0, 3.0 * sign + record_left * least * 4.0]])
    asked: list[int] = []

    def swept(steps: Any, functionals: Any) -> Any:
        asked.append(len(functionals))
        return narrow_view.Sweep(factor, uses)

    monkeypatch.setattr(narrow_view, "swept", swept)
    effects = SimpleNamespace(seen=np.ones((1, 1)), models=np.ones((1, 2)))
    step = SimpleNamespace(earlier=effects, noise=effects, record=effects, scale=4.0)
    view = object.__new__(narrow_view.NarrowView)
    view._steps = [step, step]  # type: ignore[list-item]
    found = view._is_hidden(2, np.array([1]), np.array([True]))
    assert found.tolist() == [hidden]
    assert asked == [2]


def test_alike_records_have_one_gradient_in_sums_and_apart() -> None:
    """Of batches of 4; or of 2 models of each agent's own, whose first says the shape."""
    oracle, X = ConstantGradients(4, square([1.0, 2.0, 3.0])), torch.zeros(1, 3, 5).double()
    expected = square([1.0], [2.0], [3.0]).expand(1, 3, 5)
    assert torch.equal(oracle(X), expected)
    assert torch.equal(oracle.clipped_sum(X, 0.1), 4 * expected)
    each = oracle.per_record(X)
    assert each.shape == (1, 3, 4, 5)
    assert torch.equal(each, expected[:, :, None].expand(1, 3, 4, 5))
    own = oracle.per_record(X[:, :, None].expand(1, 3, 2, 5), own=True)
    assert own.shape == (1, 3, 2, 5)
    assert torch.equal(own, expected[:, :, None].expand(1, 3, 2, 5))
    some = oracle.per_record(X[:, :2], torch.tensor([2, 0]))
    assert some[0, :, 0, 0].tolist() == [3.0, 1.0]
