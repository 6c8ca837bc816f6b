"""What probes of steps make of trials, and what rounds show without noise, value by value."""

import hashlib
import io
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import sparse

from dpaudit.defense.contract import Round
from dpaudit.defense.transcript import broadcast
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.game.estimating import estimate
from dpaudit.game.estimating.estimate import Decomposition, Mixture
from dpaudit.game.filtering import leak as leaks
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.linear_view import LinearView
from dpaudit.game.matrices import NotLocal
from dpaudit.game.network import local
from dpaudit.game.network.accounting import network_mu
from dpaudit.game.network.gossip import Innovations, Participation, StackedView
from dpaudit.game.probing import probed_round, replayability, sparse_probe
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.sparse_probe import Footprints, Units, footprints
from dpaudit.graphs.graph import build_graph
from tests.game.test_adversary import EAVESDROPPER, State, curious
from tests.game.test_values_of_laws import Toy, toy

NOTHING: Any = None
PATH = Footprints(np.array([0, 1, 0]), np.array([[0, -1, 2], [1, 1, 1]]))  # of three agents


def test_units_of_one_kind_are_moved_where_they_do_not_meet() -> None:
    """Agents 0 and 2 have one colour; of two units at one agent each has a trial of its own."""
    agents = np.array([0, 1, 2, 2, 0])
    units = Units(agents, np.array([0, 1, 2, 3, 4]))
    kinds = np.array([0, 0, 0, 0, 1])
    found = units.groups(PATH, kinds)
    assert [group.tolist() for group in found] == [[0, 2], [3], [1], [4]]
    some = Units(agents, np.array([1, 3]))
    assert [group.tolist() for group in some.groups(PATH, kinds)] == [[3], [1]]
    assert Units(agents, np.zeros(0, int)).groups(PATH, kinds) == []


def test_what_moves_is_that_of_the_unit_within_reach() -> None:
    """Numbers stand at agents 0, 2, 1 and 1; units 0 and 2 are moved together, and then unit 1."""
    units, places = Units(np.array([0, 1, 2]), np.arange(3)), np.array([0, 2, 1, 1])
    groups = [np.array([0, 2]), np.array([1])]
    moved = {0: [1.0, -2.0, 0.0, 0.0], 1: [0.0, 3.0, 4.0, 0.0]}
    asked: list[int] = []

    def play(some: list[np.ndarray]) -> np.ndarray:
        asked.append(len(some))
        return np.array([moved[int(group[0] == 1)] for group in some])

    for at_once, parts in ((1, [1, 1]), (2, [2])):
        asked.clear()
        found = units.effects(groups, PATH, places, play, at_once)
        assert asked == parts
        assert found.toarray().tolist() == [[1, 0, 0, 0], [0, 3, 4, 0], [0, -2, 0, 0]]
    moved[0] = [1.0, -2.0, 0.5, 0.0]  # at agent 1, which neither of the two reaches
    with pytest.raises(NotLocal, match="its step reaches further than a few links"):
        units.effects(groups, PATH, places, play, 2)
    alone = Units(np.array([0, 1, 2]), np.array([0]))
    moved[0] = [1.0, -2.0, 0.0, 0.0]  # at agent 2, whose unit is not moved
    with pytest.raises(NotLocal):
        alone.effects([np.array([0])], PATH, places, play, 2)
    nothing = units.effects([], PATH, places, play, 2)
    assert (nothing.shape, nothing.nnz) == ((3, 4), 0)


def test_agents_of_a_path_reach_their_neighbours() -> None:
    found = footprints(build_graph("path", 5).at(1), 1)
    assert found.colours.tolist() == [0, 1, 2, 0, 1]
    assert found.owners.tolist() == [[0, 0, 3, 3, 3], [1, 1, 1, 4, 4], [-1, 2, 2, 2, -1]]


def by_barrier(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> tuple[float, np.ndarray, int]:
    """Ends of a bound, and how often a step was asked for, of which these are the answers."""
    H, asked, own = np.array([[2.0, 1.0], [1.0, 2.0]]), list[int](), leaks.dposv
    given = iter(answers)

    def dposv(*of: Any, **how: Any) -> Any:
        asked.append(1)
        answer = next(given, None)
        return own(*of, **how) if answer is None else answer

    monkeypatch.setattr(leaks, "dposv", dposv)
    low, y = leaks._by_barrier(H, 1e-9)
    monkeypatch.undo()
    return low, y, len(asked)


def test_a_bound_ends_where_a_step_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of two uses: both together reach 6, the sum of all entries."""
    low, y, n = by_barrier(monkeypatch)
    assert low == pytest.approx(6.0)
    assert y.sum() == pytest.approx(6.0)
    assert 1 < n < leaks.NEWTON
    for answer in ((None, np.zeros(2), 1), (None, np.array([np.nan, 0.0]), 0)):
        for before in ((), (None,)):
            first, above, asked = by_barrier(monkeypatch, *before, answer)
            assert asked == len(before) + 1
            assert first <= 6.0 <= above.sum() + 1e-12
            np.linalg.cholesky(np.diag(above) - np.array([[2.0, 1.0], [1.0, 2.0]]))


def played(*values: float, **of: Any) -> Any:
    return SimpleNamespace(
        values={"x": torch.tensor(values)}, draws=of.get("draws", {"y": torch.zeros(1, 1)}),
        before=of.get("before"), was=of.get("was", {}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stacked", "said"),
    [
        ([[1.0, 2.0], [1.0, 2.0], [5.0, 6.0]], None),
        ([[1.0, 2.0], [1.0, 2.0], [5.0, 7.0]], "x of round 1 differs"),
        ([[1.0, 3.0], [1.0, 3.0], [5.0, 6.0]], "x of round 1 differs"),
        ([[1.0, 2.0], [1.0, 2.5], [5.0, 6.0]], None),  # of a generator of its own
        ([1.0, 2.0], "x of round 1 differs"),  # the same for all
        ([[1.0, 2.0], [1.0, 2.0]], "x of round 1 differs"),
        ({"y": torch.zeros(1)}, "the messages of round 1 are others"),
    ],
)
def test_stacked_trials_are_what_each_is_alone(monkeypatch, stacked: Any, said: str | None) -> None:
    first, other = played(1.0, 2.0), played(5.0, 6.0)
    monkeypatch.setattr(replayability, "_play", lambda *_: [other])

    def stack(defense: Any, setting: Any, trials: Any) -> Any:
        if len(trials) == 1:
            yield {"x": torch.tensor([[1.0, 2.0]])}
        else:
            yield stacked if isinstance(stacked, dict) else {"x": torch.tensor(stacked)}

    monkeypatch.setattr(replayability, "_stacked", stack)
    if said is None:
        replayability._refuse_joined_trials(NOTHING, NOTHING, [first])
    else:
        with pytest.raises(ConfigError, match=said):
            replayability._refuse_joined_trials(NOTHING, NOTHING, [first])
    monkeypatch.setattr(replayability, "_play", lambda *_: [played(5.0, 6.0, draws={"z": None})])
    replayability._refuse_joined_trials(NOTHING, NOTHING, [first])  # it draws otherwise


def test_a_round_is_the_same_from_the_state_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SimpleNamespace(X=torch.tensor([1.0]))
    kept = {"X": torch.tensor([1.0])}
    rounds = [played(9.0, before=before, was=kept), played(2.0, before=before, was=kept)]
    monkeypatch.setattr(replayability, "_step", lambda *_: "again")
    monkeypatch.setattr(replayability, "_values", lambda after: {"x": torch.tensor([2.0])})
    replayability._refuse_memory(NOTHING, NOTHING, rounds)
    with pytest.raises(ConfigError, match="x of round 2 differs when it is played again"):
        replayability._refuse_memory(
            NOTHING, NOTHING, [rounds[0], played(3.0, before=before, was=kept)]
        )
    changed = played(2.0, before=before, was={"X": torch.tensor([1.5])})
    for some, k in (([changed], 1), ([rounds[0], changed], 2)):
        with pytest.raises(ConfigError, match=f"round {k} changes X of the state that it begins"):
            replayability._refuse_memory(NOTHING, NOTHING, some)

    def fails(*_: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr(replayability, "_step", fails)
    replayability._refuse_memory(NOTHING, NOTHING, rounds[:1])  # what start keeps, it keeps anew
    with pytest.raises(ConfigError, match="round 2 fails when it is played again"):
        replayability._refuse_memory(NOTHING, NOTHING, rounds)
    with pytest.raises(ConfigError, match="which messages are sent in round 4 why"):
        replayability._refuse_other_values(4, {"x": torch.ones(1)}, {}, "why")


def test_draws_have_a_row_for_each_agent() -> None:
    one, other = played(1.0), played(1.0)
    replayability._refuse_own_randomness(2, one, other)
    flat = played(1.0, draws={"y": torch.zeros(3)})
    with pytest.raises(ConfigError, match='the noise "y" of round 2 is drawn without rows'):
        replayability._refuse_own_randomness(2, flat, other)
    with pytest.raises(ConfigError, match="x of round 2"):
        replayability._refuse_own_randomness(2, one, played(1.1))


class Path(SimpleNamespace):
    """Gossip on a path of agents 0 to 3, of which agent 0 is the adversary's and reads agent 1."""

    W = torch.tensor(
        [[0.5, 0.5, 0, 0], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.5, 0.25], [0, 0, 0.5, 0.5]]
    ).double()

    def __init__(self, n_rounds: int, stds: list[float]) -> None:
        super().__init__(n_rounds=n_rounds, period=1, stds=torch.tensor(stds).double())

    def at(self, t: int) -> torch.Tensor:
        return self.W

    def heard(self, t: int, adversary: Any) -> list[int]:
        return [1]

    def unknown(self, agents: Any) -> torch.Tensor:
        return self.stds.square().diag()


@pytest.mark.parametrize(
    ("stds", "shown"),
    [
        ([0.0, 1.0, 1.0, 1.0], []),
        ([0.0, 0.0, 1.0, 1.0], [(1, (1, 1))]),
        ([0.0, 0.0, 0.0, 1.0], [(1, (1, 1)), (2, (2, 1))]),  # of agent 2 the next message
        ([0.0, 0.0, 0.0, 0.0], [(1, (1, 1)), (2, (2, 1)), (3, (3, 1))]),
        ([0.0, 1.0, 0.0, 0.0], []),
    ],
)
def test_a_use_shows_first_where_it_arrives(stds: list[float], shown: Any) -> None:
    """By the innovations of each round, and by all messages together."""
    gossip: Any = Path(5, stds)
    of_rounds = Innovations.of(gossip, curious(0))
    assert list(of_rounds.shown([1, 2, 3])) == shown
    stacked = StackedView.of(gossip, curious(0))
    assert stacked.rows == [(t, 1) for t in range(5)]
    assert [v for v, _ in stacked.shown([1, 2, 3])] == [v for v, _ in shown]


@pytest.mark.parametrize("participation", [(1, 5), (2, 2), (5, 1), (2, 3)])
def test_rounds_and_stacks_have_one_gram_matrix(participation: tuple[int, int]) -> None:
    gossip: Any = Path(5, [0.0, 1.0, 2.0, 0.5])
    schema = Participation(*participation)
    by_round = Innovations.of(gossip, curious(0)).grams(schema, [1, 3])
    stacked = StackedView.of(gossip, curious(0)).grams(schema, [1, 3])
    assert len(by_round) == len(stacked) == len(schema.classes(5))
    for one, other in zip(by_round, stacked, strict=True):
        if schema.times > 1:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        else:  # of single uses the diagonal alone counts
            torch.testing.assert_close(
                one.diagonal(dim1=1, dim2=2), other.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=1e-12
            )


def test_what_a_view_does_not_tell_is_refused() -> None:
    A = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]).double()
    factors = Decomposition.of(A)
    assert factors.rank == 1
    none = torch.zeros(3).double()
    both = estimate._best(factors, torch.eye(3).double(), torch.ones(2).double(), none, None)
    assert both.tolist() == pytest.approx([1.0, 0.0, 0.0])
    with pytest.raises(NotObservable, match="does not tell it from other gradients"):
        estimate._best(
            factors, torch.eye(3).double(), torch.tensor([1.0, 0.0]).double(), none, None
        )
    assert Decomposition.of(torch.zeros(2, 0)).rank == 0
    assert [estimate.size(m) for m in (torch.zeros(0), torch.tensor([1.0, -3.0]))] == [1.0, 3.0]


def test_too_many_noises_are_not_unmixed(monkeypatch: pytest.MonkeyPatch) -> None:
    game = toy(4, n_rounds=3)
    own = Mixture(game.defense, game.setting, EAVESDROPPER, 3)
    assert own.of_noise.shape[1] == 3 * 2 * 4
    assert (own.n_agents, own.of_gradients.shape[1]) == (4, 4)
    monkeypatch.setattr(estimate, "MOST_DRAWS", 24)
    Mixture(game.defense, game.setting, EAVESDROPPER, 3)
    monkeypatch.setattr(estimate, "MOST_DRAWS", 23)
    with pytest.raises(NotObservable, match="3 rounds draw 24 noises; un-mixing takes 23 at most"):
        Mixture(game.defense, game.setting, EAVESDROPPER, 3)
    narrow = estimate.draws_of(game.defense, game.setting, 2)
    assert narrow == [(k, name, row) for k in (1, 2) for name in ("y", "w") for row in range(4)]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_small_entries_are_left_out_whatever_their_sign(kind: Any) -> None:
    X = kind(np.array([[0.5, -0.3, 0.1], [-0.1, 0.0, -2.0]]))
    kept, dropped = local._without_small(X, 0.3)
    assert local._dense(kept).tolist() == [[0.5, 0.0, 0.0], [0.0, 0.0, -2.0]]
    assert dropped == pytest.approx([0.4, 0.1])
    whole, nothing = local._without_small(X, 0.0)
    assert whole is X
    assert nothing.tolist() == [0.0, 0.0]
    units = local._with_units(kept, np.array([2, 0]))
    assert local._dense(units)[2:].tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_bare_message_shows_its_record_by_either_sign(sign: float) -> None:
    """Agent 1 has no noise, and its record arrives at agent 2, whose noise hides it there."""
    W = sparse.csr_array(np.array([[0.0, 0.5, 0.0], [0.0, 0.5, 0.0], [0.0, 0.5 * sign, 0.5]]))
    quiet = torch.tensor([1.0, 0.0, 1.0])
    view = ThreatModel(name="links", links=((1, 0),))
    found = local.local_mu(W, 2, view, [1, 2], noise=quiet)
    assert found.high.tolist() == [inf, 0.0]
    W = sparse.csr_array(np.array([[0.0, 0.5, 0.0], [0.0, 0.0, sign], [0.0, 0.0, 0.0]]))
    arrived = local.local_mu(W, 2, view, [2], noise=torch.zeros(3))
    assert arrived.high.tolist() == [inf]
    assert len(local.local_mu(W, 2, view, [], noise=quiet).high) == 0


def test_a_view_s_file_has_shifts_of_one_unit() -> None:
    uses = [(1, 1, 0), (3, 2, 0)]
    view = LinearView(uses, np.array([[2.0, 4.0]]), np.array([[1.0, 5.0, 7.0]]))
    name, content = view.file(4.0, 9)
    arrays = np.load(io.BytesIO(content))
    assert arrays["record"].tolist() == [[2.0 * 3 / 4, 4.0 * 3 / 4]]
    assert arrays["inclusion"].tolist() == [1, 3]
    assert arrays["noise"].tolist() == [[1.0, 5.0, 7.0]]
    assert name == f"artifacts/linear-view-{hashlib.sha256(content).hexdigest()}.npz"
    white = np.load(io.BytesIO(view._replace(noise=None).file(1.0, 1)[1]))
    assert sorted(white.files) == ["inclusion", "record"]
    stacked = LinearView.stacked(
        uses, [(np.ones((1, 2)), np.ones((1, 2))), (2 * np.ones((2, 1)), np.ones((3, 1)))]
    )
    assert stacked.record.tolist() == [[1.0, 0.0], [1.0, 0.0], [2.0, 2.0]]
    assert stacked.noise is not None
    assert stacked.noise.tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]


def test_of_the_last_round_one_message_is_observed() -> None:
    adversary = object.__new__(Adversary)
    seen = torch.arange(6.0).view(2, 3)
    adversary._observer = SimpleNamespace(all_observations=lambda *_: seen)  # type: ignore[assignment]
    adversary.n_rounds = 3
    for column, k, expected in ((None, 3, seen), (1, 2, seen), (1, 3, seen[:, [1]])):
        adversary._column = column
        assert torch.equal(adversary.observe(k, {}, {}), expected)


def test_steps_are_reported_adversary_by_adversary() -> None:
    told: list[tuple[int, int]] = []
    views = [curious(0), curious(1), curious(2)]
    network_mu(
        build_graph("path", 3).at(1).W, 2, adversaries=views, on_step=lambda *s: told.append(s)
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


def checked(by: float, scale: float = 1.0) -> None:
    """Effects of units against what moves where it is off by a part of the largest number."""
    effects = sparse.csr_array(np.array([[1.0, 2.0], [3.0, 0.0], [9.0, 9.0]]))
    units = Units(np.arange(3), np.array([0, 1]))

    def play(moves: list[Any]) -> np.ndarray:
        moved = np.array([amounts @ effects.toarray()[live] for live, amounts in moves])
        return moved + by * np.abs(moved).max() * np.array([0.0, 1.0])

    of: Any = SimpleNamespace(_units=units, _k=1, _played=play)
    sparse_probe._StepProbe._check(of, effects)


def test_effects_must_predict_every_number() -> None:
    checked(0.0)
    for by in (-0.5, 0.5):
        checked(by * sparse_probe.RELATIVE)
        with pytest.raises(NotLocal, match="is not linear"):
            checked(4 * by * sparse_probe.RELATIVE)
    with pytest.raises(NotLocal):
        checked(float("nan"))


def test_a_step_that_takes_many_trials_is_not_local(monkeypatch: pytest.MonkeyPatch) -> None:
    game = toy(12)
    own = list(sparse_probe.steps_of(Observer(game, EAVESDROPPER), 1))
    assert len(own) == 1
    monkeypatch.setattr(sparse_probe, "MOST_TRIALS", 1)
    with pytest.raises(NotLocal, match=r"\d+ trials would be needed to tell its agents apart"):
        list(sparse_probe.steps_of(Observer(game, EAVESDROPPER), 1))


class Twice(Toy):
    """Every agent takes its gradient twice, at its model and at twice that."""

    def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
        Y = state.X + gradient(state.X) + gradient(2 * state.X)
        return Round(State(Y), {"y": broadcast(graph, Y + noise.gaussian("y", 1.0, Y))})


def test_the_record_is_at_the_points_of_its_agent() -> None:
    game = replace(toy(3), defense=Twice())
    state: Any = game.start(1)
    points = probed_round.points_in(game, state, 1)
    assert points.rows.tolist() == [-1, 0, -1, -1, 1, -1]
    assert points.steps == [0, 0]
    chosen = torch.tensor([-1, 0, 1])
    watched = probed_round.record_at(game, points, chosen)
    X = torch.zeros(3, 3, 1).double()
    calls = [watched(X), watched(X + 1)]
    length = game.length / 8
    assert [call[..., 0].tolist() for call in calls] == [
        [[0, 0, 0], [0, length, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0], [0, length, 0]],
    ]  # fmt: skip
    idle = replace(game, first=2, cycle=5)
    assert probed_round.points_in(idle, state, 1).steps == []


@pytest.mark.parametrize("name", ["complex", "sparse"])
def test_numbers_of_other_kinds_are_not_played(name: str) -> None:
    class Odd(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            played = super().step(state, k, graph, gradient, noise)
            other = {"complex": state.X * 1j, "sparse": state.X.to_sparse()}[name]
            return played._replace(state=Kept(played.state.X, other))

    assert len(replayability._play(Toy(), toy(3).setting, 1.0, 0)) == 3
    assert replayability._play(Odd(), toy(3).setting, 1.0, 0) == []


class Kept(NamedTuple):
    X: torch.Tensor
    other: Any
