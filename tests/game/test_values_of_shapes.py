"""Shapes of games, coordinates, layers and the worst record, value by value."""

from dataclasses import replace
from math import ceil, hypot, inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from dpaudit.defense.contract import Gradient, Round
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast
from dpaudit.errors import NotObservable
from dpaudit.game.estimating import window
from dpaudit.game.estimating.window import WIDTH, WindowShape
from dpaudit.game.filtering import leak as leaks
from dpaudit.game.filtering.linear_view import LinearView
from dpaudit.game.matrices import NotLocal
from dpaudit.game.network.local import local_mu
from dpaudit.game.probing import linearity, replayability, sparse_probe
from dpaudit.game.probing.linearity import Defined, Nonlinear, defined, refuse_several
from dpaudit.game.runs.noise_law import WithoutDraws
from dpaudit.game.runs.play import CanaryAmongOthers, LogRatios, SteepLosses
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.game.step_inputs import CanaryGradient, ChosenNoise, WrappedDefense, differs
from dpaudit.game.worst_case import layers, record
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.rng import Streams
from tests.game.test_adversary import EAVESDROPPER, State, curious, game_of
from tests.game.test_values_of_laws import Toy, releases, toy

NOTHING: Any = None


def shape(**of: Any) -> GameShape:
    about = {"observed": 3, "draws": 4, "width": 5, "points": 2, "n_agents": 6, "entries": 7}
    footprint = SimpleNamespace(round=lambda n, trials, size: 1000 * n + 10 * trials + size)
    return GameShape(**{"footprint": footprint, **about, **of})


def test_sparse_matrices_of_rounds_take_their_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten uses in five rounds; where few numbers are read all are factored at once."""
    monkeypatch.setattr("dpaudit.game.runs.round_shape.NUMBERS", 50)
    matrices = 8 * 16 * 7 * 5
    records = 8 * 10 * (3 * 3 + 3 * 5 + 10)
    block = 1000 + 10 * (50 // 5) + 16
    assert shape(observed=3).adversary(5) == matrices + records + block
    narrow = 8 * 15 * (3 * 15 + 4 * (5 + 4))
    assert shape(n_agents=24).adversary(5) == matrices + records + narrow + block
    assert shape(width=80).adversary(5) == matrices + 8 * 10 * (9 + 240 + 10) + 1000 + 10 + 16
    assert shape().products == 8 * 7
    assert shape().affordable == 10**9 // 56
    assert [shape().followed(n) for n in (1, 30, 900)] == [2, 30, 200]
    assert shape(entries=10**8).followed(30) == 2


def test_rounds_are_followed_as_long_as_they_are_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.game.runs.round_shape.ALGEBRA", 56 * 90)
    monkeypatch.setattr(GameShape, "_is_narrow", lambda self, n: n <= 40)
    assert shape().affordable == 40
    monkeypatch.setattr(GameShape, "_is_narrow", lambda self, n: False)
    assert shape().affordable == 90
    monkeypatch.setattr(GameShape, "_is_narrow", lambda self, n: n <= 40)
    assert shape(entries=None).affordable == 56 * 90 // (3 * 9 * 3)


@pytest.mark.parametrize(
    ("states", "inputs", "draws", "at_once"),
    [(0, 0, 0, 1), (1, 1, 1, 3), (400, 300, 300, 1000), (4000, 3000, 3000, None)],
)
def test_as_many_moves_are_played_as_fit(
    states: int, inputs: int, draws: int, at_once: Any
) -> None:
    found = WindowShape(states, inputs, draws, 5)
    n = states + inputs + draws
    fits = window._MOVED // (2 * max(1, n) * WIDTH * 8)
    assert found.unknowns == n
    assert found.at_once == max(1, min(max(1, n), fits))
    if at_once is not None and fits >= n:
        assert found.at_once == at_once


def test_a_window_has_states_inputs_draws_and_messages() -> None:
    game = game_of("dp-dpsgd", "ring", n_agents=6, noise_multiplier=1.0, n_rounds=6)
    first, later = (
        WindowShape.of(game.defense, game.setting, curious(1), rounds)
        for rounds in (range(1, 3), range(4, 6))
    )
    assert first == later
    assert first.inputs == first.draws == 12
    assert first.states % 6 == 0
    assert first.observed == 2 * 3  # of both neighbours and its own, in two rounds
    every = WindowShape.of(game.defense, game.setting, EAVESDROPPER, range(4, 7))
    assert (every.inputs, every.draws, every.observed) == (18, 18, 18)


def test_numbers_that_differ_do_so_beyond_rounding() -> None:
    """Of the largest finite number of all, whatever its sign."""
    values = torch.tensor([[1.0, -1e3, inf], [1.0 + 1e-13, -1e3, inf], [1.0 + 1e-6, -1e3, 0.0]])
    values = values.double()
    values[1, 0], values[2, 0] = 1.0 + 1e-13, 1.0 + 1e-6
    assert differs(values).tolist() == [[False] * 3, [True, False, True]]
    small = torch.tensor([[1e-9, 0.0], [2e-9, 0.0]]).double()
    assert differs(small).tolist() == [[True, False]]
    assert differs(torch.zeros(2, 0)).shape == (1, 0)


def test_own_noise_does_not_widen_the_bound_of_a_cut() -> None:
    """The adversary knows it; so it is in no message that is left out."""
    W = build_graph("ring", 40).at(1).sparse
    noise = torch.full((40,), 0.8)
    plain = local_mu(W, 7, curious(3), [5], noise=noise, cut=2e-3)
    noise[3] = 500.0
    loud = local_mu(W, 7, curious(3), [5], noise=noise, cut=2e-3)
    assert plain.error > 0
    assert (loud.error, float(loud.high[0])) == (plain.error, float(plain.high[0]))
    noise[20] = 1.6
    assert local_mu(W, 7, curious(3), [5], noise=noise, cut=2e-3).error > plain.error


def test_a_view_of_some_inclusions_has_their_columns() -> None:
    uses = [(1, 1, 0), (2, 1, 0), (1, 2, 0), (4, 2, 1)]
    view = LinearView(uses, np.arange(8.0).reshape(2, 4), None)
    some = view.only(range(1, 3))
    assert some.uses == uses[:3]
    assert some.record.tolist() == [[0.0, 1.0, 2.0], [4.0, 5.0, 6.0]]
    assert view.only(range(4, 5)).record.tolist() == [[3.0], [7.0]]


class Nan(Toy):
    """It divides by the sum of gradients and noise, of which there may be none."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        Y = state.X + gradient(state.X) + noise.gaussian("y", 1.0, state.X)
        total = Y.abs().sum(-1, keepdim=True)
        return Round(State(Y / total), {"y": broadcast(graph, Y / total)})


def test_what_is_no_number_counts_as_zero() -> None:
    game = replace(toy(d=2), defense=Nan())
    own = defined(game)
    assert isinstance(own.defense, Defined)
    assert (own.defense.n_rounds, own.victim) == (6, game.victim)
    state: Any = own.start(1)
    raw = game.step(state, 1, game.silent(), ChosenNoise())
    played = own.step(state, 1, game.silent(), ChosenNoise())
    assert raw.sent["y"].payload.isnan().all()
    assert not played.sent["y"].payload.any()
    assert not played.state.X.any()
    infinite = torch.tensor([1.0, -inf, inf, float("nan")])
    assert linearity._numbers(infinite).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_step_that_needs_coordinates_is_refused_on_few() -> None:
    class Several(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            if state.X.shape[-1] < 3:
                raise ValueError("of three or more")
            return super().step(state, k, graph, gradient, noise)

    game = replace(toy(d=5), defense=Several(), coordinates=5)
    refuse_several(Toy(), game.setting.stand_in(1))
    refuse_several(Several(), game.setting.stand_in(3))
    with pytest.raises(NotObservable, match="by algebra at d = 2, and there the step fails"):
        refuse_several(Several(), game.setting.stand_in(2))
    assert linearity.fewest_coordinates(game) == 5
    found = linearity.nonlinearity(game, EAVESDROPPER, 2)
    assert found == Nonlinear(1, "state", frozenset(), False, False, None, 5)
    assert found is not None
    assert found.note.startswith("played at 5 coordinates: on fewer the step fails")
    few = replace(game, coordinates=2)
    assert linearity.fewest_coordinates(few) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linearity, "PLAYED", 2)
        assert linearity.fewest_coordinates(game) == 5
        patch.setattr(linearity, "ENTRIES", 5 * 12 - 1)  # of 8 links and 4 agents
        patch.setattr(Several, "step", lambda *_: 1 / 0)
        assert linearity.fewest_coordinates(game) == 5
        patch.setattr(linearity, "ENTRIES", 5 * 12)
        assert linearity.fewest_coordinates(game) == 1


def test_a_note_says_what_is_not_linear() -> None:
    def note(**of: Any) -> str:
        given = {"round": 3, "message": "x", "affine": frozenset(), "defined": True, **of}
        return Nonlinear(quiet=False, noiseless=None, **given).note

    assert note().startswith('not linear in its noise: "x", from round 3 on. The algebra is of')
    assert "linear steps; it gives no figure here. Runs" in note()
    assert note(message="state").startswith("not linear in its noise: the state, from round 3 on.")
    assert ", which is no number without noise. The algebra" in note(defined=False)
    assert 'the figure is that of "a", "b" alone.' in note(affine=frozenset("ba"))


def test_a_wrapped_defense_declares_what_its_own_does() -> None:
    own, setting = Toy(multiplier=3.0, n_rounds=4, batch_size=5), toy().setting
    wrapped = WrappedDefense.playing(own)
    assert (wrapped.n_rounds, wrapped.batch_size, wrapped.sampling) == (4, 5, own.sampling)
    assert wrapped.mechanism(setting, EAVESDROPPER, 1) == own.mechanism(setting, EAVESDROPPER, 1)
    assert (wrapped.drawing, wrapped.batches_per_round) == (own.drawing, own.batches_per_round)
    assert wrapped.function_distance() == own.function_distance()
    X = torch.ones(4, 1)
    assert torch.equal(wrapped.models(wrapped.start(X, setting)), X)
    assert wrapped.without_noise().of == own.without_noise()
    game = toy()
    state: Any = game.start(1)
    played = [
        d.step(state, 1, setting.network.at(1), game.silent(), Noise(Streams(1), 1))
        for d in (own, wrapped)
    ]
    assert torch.equal(*(one.sent["y"].payload for one in played))
    fewer = WithoutDraws.playing(own, names=frozenset({"y"}))
    quiet = fewer.step(state, 1, setting.network.at(1), game.silent(), Noise(Streams(1), 1))
    assert not quiet.sent["y"].payload.any()


@pytest.mark.parametrize(
    ("rows", "agents"),
    [(0, []), (3, [0, 1, 2]), (4, [0, 1, 1, 2])],
)
def test_rows_are_of_agents_or_of_links(rows: int, agents: list[int]) -> None:
    graph = build_graph("path", 3).at(1)
    assert graph.n_edges == 4
    assert sorted(sparse_probe.agents_of(rows, graph).tolist()) == agents
    with pytest.raises(NotLocal, match="5 rows are neither of agents nor of links"):
        sparse_probe.agents_of(5, graph)


def test_agents_of_one_colour_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a ring of eight, agents three apart reach no agent both over one link."""
    ring = build_graph("ring", 9).at(1)
    for hops in (1, 2):
        found = sparse_probe.footprints(ring, hops)
        for i in range(9):
            for j in range(9):
                apart = min(abs(i - j), 9 - abs(i - j))
                if i != j and found.colours[i] == found.colours[j]:
                    assert apart > 2 * hops
                reaches = found.owners[found.colours[i], j] == i
                assert reaches == (apart <= hops)
    pattern = sparse.csr_array(np.eye(3, dtype=np.int32))
    monkeypatch.setattr(sparse_probe, "MOST_PAIRS", 3)
    assert sparse_probe._met(pattern, pattern).toarray().tolist() == np.eye(3).tolist()
    monkeypatch.setattr(sparse_probe, "MOST_PAIRS", 2)
    with pytest.raises(NotLocal, match="reaches too many others"):
        sparse_probe._met(pattern, pattern)
    star = build_graph("ring", 4).at(1)
    server = SimpleNamespace(planned=None, sparse=star.sparse, n_agents=4, server=0)
    with pytest.raises(NotLocal, match="a server hears all agents"):
        sparse_probe.footprints.__wrapped__(server, 1)


def test_steep_losses_stand_beside_the_canary() -> None:
    """Agent 1 pulls towards 2 by a slope of 3 from round 2 on, as far as the longest gradient."""
    centre, slope = torch.tensor([0.0, 2.0, 0.0]), torch.tensor([0.0, 3.0, 0.0])
    losses = SteepLosses(centre.double(), slope.double(), torch.tensor([0.0, 2.0, 0.0]), 1.0)
    canary = CanaryGradient(0, 4.0, torch.ones(1), batch_size=8)
    X = torch.tensor([[[1.0], [2.1], [5.0]]]).double()
    assert losses.at(X, None).flatten().tolist() == pytest.approx([0.0, 0.3, 0.0])
    assert losses.opposite().at(X, None).flatten().tolist() == pytest.approx([0.0, -0.3, 0.0])
    assert losses.at(X[:, :1], torch.tensor([1])).flatten().tolist() == [-1.0]
    early, late = losses.beside(canary, 1), losses.beside(canary, 2)
    assert torch.equal(early(X), canary(X))
    assert (late(X) - canary(X)).flatten().tolist() == pytest.approx([0.0, 1.2, 0.0])
    for clip, unit in ((1.0, 8.0), (9.0, 32.0)):
        moved = late.clipped_sum(X, clip) - canary.clipped_sum(X, clip)
        assert moved.flatten().tolist() == pytest.approx([0.0, 0.3 * unit, 0.0])
    each = late.per_record(X)
    assert each.shape == (1, 3, 8, 1)
    assert each[0, 1].flatten().tolist() == pytest.approx([1.2] * 8)
    assert isinstance(late.at_step(1), CanaryAmongOthers)
    later = replace(late, canary=replace(canary, later=(torch.zeros(1),))).at_step(1)
    assert later.canary.drawn.tolist() == [0.0]


def test_ratios_go_on_where_they_were_left() -> None:
    game: Any = SimpleNamespace(is_replacement=True, sampling_rate=1.0, batches=1)
    first, again = LogRatios(game, 2), LogRatios(game, 2)
    shift = torch.tensor([0.5]).double()
    reading = SimpleNamespace(shifts={1: shift}, shown={}, exact=True, has_laplace=False)
    y = torch.tensor([[1.0], [-2.0]]).double()
    innovation: Any = (reading, y, y)
    first.add(innovation)
    present, opposite = first.progress()
    again.resume(dict(present), dict(opposite))
    assert torch.equal(again.scores(None), first.scores(None))
    again.add(innovation)
    assert torch.equal(again.scores(None), 2 * first.scores(None))
    assert first.scores(1).tolist() == pytest.approx([1.0, -2.0])


def test_a_record_of_filled_layers_is_noted() -> None:
    note = record.record_note(replace(toy(), filled=4))
    assert note is not None
    assert "the record moves all 4 to the end of its clip, 2 times as far" in note
    spread = record.record_note(replace(toy(), spread=3, coordinates=3))
    assert spread is not None
    assert "in all 3 coordinates" in spread


@pytest.mark.parametrize(
    ("rounds", "n_rounds", "declared"),
    [(10, 10, 6), (5, 10, 3), (99, 10, 6), (1, 10, 1), (4, 12, 2)],
)
def test_so_many_rounds_declare_their_least_noise(rounds, n_rounds, declared) -> None:
    """Of six releases, the quietest first."""
    given = releases((4.0, 3), (2.0, 1), (3.0, 2))
    game: Any = SimpleNamespace(
        setting=None, victim=0,
        defense=SimpleNamespace(n_rounds=n_rounds, mechanism=lambda *_: SimpleNamespace(most=given)),
    )  # fmt: skip
    every = [2.0, 3.0, 3.0, 4.0, 4.0, 4.0][:declared]
    assert declared == ceil(6 * min(rounds, n_rounds) / n_rounds)
    expected = record._epsilon(
        tuple(r for z in every for r in releases((z, 1))), 1e-5, "add-remove"
    ).high
    assert record._declared(game, EAVESDROPPER, 1e-5, "add-remove", rounds) == pytest.approx(
        expected
    )


def test_a_leak_is_told_to_six_digits() -> None:
    game = replace(toy(), filled=2, sampling_rate=0.25, sampling="poisson")
    H = torch.diag(torch.tensor([2.0000001, 0.0, 4.5]).double())
    found = record._leaked(game, H)
    multipliers = [r.noise_multiplier for r in found]
    assert sorted(multipliers) == pytest.approx([1 / 3.0, 1 / 2.0], rel=1e-12)
    assert {(r.sampling, r.sampling_rate) for r in found} == {("poisson", 0.25)}
    [whole] = record._leaked(replace(game, sampling_rate=1.0), torch.ones(2, 2).double())
    assert whole.noise_multiplier == pytest.approx(1 / 2.82843, rel=1e-12)
    assert whole.sampling == "none"


def worst_batch(monkeypatch: pytest.MonkeyPatch, leak: dict[int, float], **of: Any) -> Any:
    rounds = [
        SimpleNamespace(columns={(k, k, 0): torch.tensor([leak[k]]).double()}) for k in sorted(leak)
    ]
    apart = SimpleNamespace(rounds=rounds, leak=SimpleNamespace(noiseless=of.get("noiseless", {})))
    monkeypatch.setattr(record, "Adversary", lambda *_: apart)
    own = replace(toy(), cycle=of.get("cycle", 3), sampling_rate=of.get("rate", 1.0))
    return record.in_worst_batch(own, EAVESDROPPER, len(leak)).first


def test_the_batch_that_leaks_most_holds_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three batches in turn; their uses add up. Where some show without noise, the first does."""
    leak = {1: 1.0, 2: 1.5, 3: 2.0, 4: 1.0, 5: 1.5, 6: 0.0}
    assert worst_batch(monkeypatch, leak) == 2
    assert worst_batch(monkeypatch, {**leak, 6: 2.0}) == 3
    assert worst_batch(monkeypatch, dict.fromkeys(leak, 1.0)) == 1
    assert worst_batch(monkeypatch, leak, noiseless={6: "y", 4: "y"}) == 1
    assert worst_batch(monkeypatch, leak, noiseless={6: "y"}) == 3
    assert worst_batch(monkeypatch, leak, cycle=1) == 1
    assert worst_batch(monkeypatch, leak, rate=0.5) == 1


def test_layers_are_copies_where_each_moves_alike() -> None:
    one = layers.CoordinateMoves(torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    alike = layers.CoordinateMoves(torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0 + 1e-6]]))
    other = layers.CoordinateMoves(torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0 + 5e-6]]))
    assert layers._are_copies(one, alike)
    assert not layers._are_copies(one, other)
    assert not layers._are_copies(
        one, layers.CoordinateMoves(torch.ones(2, 2), 2 * torch.ones(2, 2))
    )
    none = layers.CoordinateMoves(torch.zeros(0, 1), torch.zeros(0, 1))
    assert layers._are_copies(none, layers.CoordinateMoves(torch.zeros(0, 2), torch.zeros(0, 2)))
    several = layers.CoordinateMoves(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 1.0]]))
    assert layers._times(one, several, 0) == pytest.approx(hypot(3.0, 8.0))
    assert (
        layers._times(layers.CoordinateMoves(torch.zeros(1, 1), torch.ones(1, 1)), alike, 0) == 0.0
    )
    assert (
        layers._times(layers.CoordinateMoves(torch.ones(1, 1), torch.zeros(1, 1)), alike, 0) == 0.0
    )
    assert (
        layers._times(one, layers.CoordinateMoves(torch.ones(1, 2), torch.tensor([[0.0, 1.0]])), 0)
        == inf
    )


@pytest.mark.parametrize(
    ("times", "at"),
    [({}, None), ({("a", 0): 1.0099}, None), ({("a", 0): 1.01, ("b", 1): 1.0}, ("a", 0)),
     ({("a", 0): 1.2, ("b", 1): inf}, ("b", 1))],
)  # fmt: skip
def test_a_record_must_weigh_clearly_more(times: Any, at: Any) -> None:
    assert layers._heaviest(times) == at


def test_weights_of_a_layer_are_over_its_first() -> None:
    game: Any = SimpleNamespace(layers=(("a", 2), ("b", 3)))
    weights = torch.tensor([1.0, 2.0, 4.0, float("nan"), 2.0])
    parts = layers._layers_of(game, weights)
    assert [len(part) for part in parts] == [2, 3]
    assert [layers._unevenness(part) for part in parts] == [2.0, 1.0]
    assert len(layers._layers_of(game, weights[:4])) == 1
    assert layers._unevenness(torch.tensor([inf, 1.0])) == 0.0
    assert layers._unevenness(torch.zeros(0)) == 0.0


def test_a_wider_model_is_noted() -> None:
    wide = layers.Wider("x", 2.345, 7, "at 7 coordinates", None)
    assert wide.note.startswith(
        'the record weighs 2.35 times as much in the noise of "x" at 7 coordinates as at one'
    )
    shown = wide._replace(times=inf).note
    assert shown.startswith('the record shows in "x" at 7 coordinates, and not at one, of which')


@pytest.mark.parametrize(
    ("sent", "of_largest", "same"),
    [
        ([1.0, 2.0], 0.0, True), ([1.0, 2.0 + 1e-3], 0.0, False), ([1.0, float("nan")], 0.0, False),
        ([1.0], 0.0, False), ([1.0 + 5e-6, 2.0], 1e-5, True),
    ],
)  # fmt: skip
def test_tensors_are_the_same_to_rounding(sent, of_largest, same) -> None:
    one = torch.tensor([1.0, 2.0])
    assert replayability._same(torch.tensor(sent), one, of_largest) is same
    infinite = torch.tensor([inf, 1.0])
    assert replayability._same(infinite, infinite)
    assert replayability._same(torch.zeros(0), torch.zeros(0))
    assert not replayability._same(torch.tensor([inf, 1.0]), torch.tensor([inf, 2.0]), 0.1)


def test_newton_s_steps_stay_inside() -> None:
    H = np.array([[2.0, 1.0], [1.0, 2.0]])
    y = np.array([4.0, 4.0])
    assert leaks._within(H, y, np.array([1.0, 1.0])) == 1.0
    part = leaks._within(H, y, np.array([-8.0, -8.0]))
    assert part == pytest.approx(0.9 * 0.7**6)  # below an eighth: y - H is singular at y = 3
    np.linalg.cholesky(np.diag(y + part / 0.9 * np.array([-8.0, -8.0])) - H)


def test_uses_that_meet_are_grouped_over_rounds() -> None:
    columns = [
        {
            (1, 1, 0): torch.tensor([1.0, 0.0]).double(),
            (2, 1, 0): torch.tensor([0.0, 2.0]).double(),
        },
        {(1, 1, 0): torch.tensor([3.0]).double(), (1, 2, 0): torch.tensor([1.0]).double()},
    ]
    found = leaks.grams(columns, lambda use: use[0])
    uses, H = found[1]
    assert uses == [(1, 1, 0), (1, 2, 0)]
    assert H.tolist() == [[10.0, 3.0], [3.0, 1.0]]
    assert found[2][1].tolist() == [[4.0]]
    together = leaks.grams(columns, lambda use: 0)[0]
    assert together[0] == [(1, 1, 0), (2, 1, 0), (1, 2, 0)]
    assert together[1].tolist() == [[10.0, 0.0, 3.0], [0.0, 4.0, 0.0], [3.0, 0.0, 1.0]]
