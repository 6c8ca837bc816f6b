"""How noise is moved until two worlds are the same, and whose records are looked at, by hand."""

from math import inf, nan
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity import alignment, others, replay
from dpaudit.attacks.sensitivity.others import Others
from dpaudit.attacks.sensitivity.witness import Drawn
from dpaudit.attacks.sensitivity.worlds import Watched

NOTHING: Any = None


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class State(NamedTuple):
    Y: Tensor


def played(sent: dict[str, Tensor], Y: Tensor, draws: Any = ()) -> Any:
    messages = {name: SimpleNamespace(payload=x) for name, x in sent.items()}
    return SimpleNamespace(sent=messages, state=State(Y), draws=list(draws))


class Coupled:
    """Of one agent, whose messages have one row."""

    def __init__(self, most: Any = ()) -> None:
        mechanism = SimpleNamespace(most=most)
        self.defense = SimpleNamespace(mechanism=lambda *_: mechanism, n_rounds=9)
        self.setting, self.victim = None, 0

    def own(self, sent: Any) -> Tensor:
        return sent.payload[None]

    def differences(self, here: Any, there: Any) -> dict[str, Tensor]:
        return {n: self.own(there[n]) - self.own(s) for n, s in here.items()}


def release(noise: float, family: str = "gaussian") -> Any:
    return SimpleNamespace(family=family, noise_over=lambda records: noise / records)


class World:
    """Draw z is added to a value, and w to what comes out of it; a factor is sent in the clear."""

    def __init__(self, value: float, factor: float = 1.0) -> None:
        self.value, self.factor, self.coupled = vector(value, 0.0), factor, Coupled([release(1.0)])
        self.moves: list[Any] = []

    def watched(self, moves: Any) -> Watched:
        self.moves.append(moves)
        z, w = (moves.get((1, name), 0.0) for name in "zw")
        noisy = self.value + z + vector(0.5, 0.5)
        again = 2 * noisy + w
        draws = {(1, name): SimpleNamespace(scale=2.0, family="gaussian") for name in "zw"}
        round = played({"x": noisy, "y": again, "f": self.factor * noisy}, again)
        return Watched((round,), {(1, "z"): [self.value], (1, "w"): [2 * noisy]}, draws)


def test_later_noise_is_moved_after_what_earlier_noise_did() -> None:
    """z moves by 1 - 3, half of it as a part of the release; w then needs no move."""
    one: Any = World(1.0)
    other: Any = World(3.0)
    found = replay.replay(one, other, "add-remove")
    assert {key[1]: move.tolist() for key, move in found.moves.items()} == {
        "z": [-2.0, 0.0], "w": [0.0, 0.0],
    }  # fmt: skip
    assert found.same == {"x", "y", "f"}
    assert found.moved == 1.0
    assert [sorted(key[1] for key in moves) for moves in other.moves[:2]] == [[], ["w", "z"]]
    assert other.moves[1][1, "w"].tolist() == [-4.0, 0.0]  # before z is moved
    assert replay.replay(one, other, "replace-one").moved == 0.5
    apart: Any = World(3.0, 1.1)
    assert replay.replay(one, apart, "add-remove").same == {"x", "y"}
    shift = {(1, "z"): vector(5.0, 0.0)}
    shifted = replay.replay(one, other, "add-remove", shift)
    assert shifted.moves[1, "z"].tolist() == [-2.0, 0.0]
    assert other.moves[-1][1, "z"].tolist() == [3.0, 0.0]
    assert one.moves[-1] == shift


def test_a_draw_of_one_world_alone_is_not_moved() -> None:
    class Other(World):
        def watched(self, moves: Any) -> Watched:
            found = super().watched(moves)
            del found.values[1, "w"]
            return found

    one: Any = World(1.0)
    other: Any = Other(3.0)
    assert list(replay.replay(one, other, "add-remove").moves) == [(1, "z")]


def test_sums_are_tried_until_all_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def with_sums(n: int, *_: Any) -> Any:
        asked.append(n)
        return SimpleNamespace(here=n, there=None)

    monkeypatch.setattr(replay, "_with_sums", with_sums)
    here: Any = SimpleNamespace()
    for values, good, looked in (
        ({"z": [1, 2, 3], "w": [1]}, 1, [0, 1]),
        ({"z": [1, 2, 3], "w": [1]}, 9, [0, 1, 2]),
        ({}, 9, [0]),
    ):
        asked.clear()
        here.watched = lambda moves, values=values: SimpleNamespace(values=values)
        monkeypatch.setattr(replay, "is_all_the_same", lambda n, _, good=good: n == good)
        replay.replay(here, NOTHING, "add-remove")
        assert asked == looked


@pytest.mark.parametrize(
    ("family", "change", "scale", "move", "most", "expected"),
    [
        ("gaussian", "add-remove", 2.0, (6.0, 8.0), [release(3.0), release(0.5)], 2.5),
        ("laplace", "add-remove", 2.0, (6.0, 8.0), [release(3.0, "laplace")], 21.0),
        ("gaussian", "replace-one", 2.0, (6.0, 8.0), [release(3.0)], 7.5),
        ("gaussian", "function", 2.0, (6.0, 8.0), [release(3.0)], 15.0),
        ("gaussian", "add-remove", 2.0, (6.0, 8.0), [release(3.0, "laplace")], inf),
        ("gaussian", "add-remove", 2.0, (0.0, 0.0), [], 0.0),
        ("gaussian", "add-remove", 0.0, (0.0, 0.0), [release(3.0)], 0.0),
        ("gaussian", "add-remove", 0.0, (0.0, 1.0), [release(3.0)], inf),
    ],
)
def test_moves_are_held_against_declared_releases(
    family, change, scale, move, most, expected
) -> None:
    draws = {(1, "z"): SimpleNamespace(scale=torch.tensor(scale), family=family)}
    moves, coupled = {(1, "z"): vector(*move)}, Coupled(most)
    watched: Any = SimpleNamespace(draws=draws)
    assert replay._moved(coupled, moves, watched, change) == expected  # type: ignore[arg-type]
    draws[1, "w"], moves[1, "w"] = draws[1, "z"], 0 * moves[1, "z"]
    assert replay._moved(coupled, moves, watched, change) == expected  # type: ignore[arg-type]


def test_numbers_are_the_same_up_to_rounding() -> None:
    assert replay.is_same(1.0, 1 + 0.5e-10)
    assert not replay.is_same(1.0, 1 + 3e-10)
    assert replay.is_same(vector(0.0, 1e3), vector(0.5e-7, 1e3))  # of the largest number
    assert not replay.is_same(vector(0.0, 1e3), vector(3e-7, 1e3))
    assert replay.is_same(vector(inf, nan, 1.0), vector(inf, nan, 1.0))
    assert not replay.is_same(vector(inf, 0.0), vector(inf, 1.0))
    assert not replay.is_same(vector(1.0), vector(1.0, 1.0))
    assert replay.is_same(vector(inf), vector(inf))
    one = played({"x": vector(1.0)}, vector(2.0))
    both: Any = SimpleNamespace(rounds=(one, one))
    assert sorted(replay.left(one)) == ['"x"', "Y of the state"]
    for last, same in (
        (played({"x": vector(1.0)}, vector(2.0)), True),
        (played({"x": vector(1.1)}, vector(2.0)), False),
        (played({"x": vector(1.0)}, vector(2.1)), False),
        (played({"x": vector(1.0), "y": vector(1.0)}, vector(2.0)), False),
    ):
        other: Any = SimpleNamespace(rounds=(one, last))
        assert replay.is_all_the_same(both, other) is same


@pytest.mark.parametrize(("bend", "is_linear"), [(0.0, True), (1e-12, True), (1e-6, False)])
def test_a_message_is_linear_along_all_directions(bend: float, is_linear: bool) -> None:
    """Of the noise of each draw, from none to one step and two, in units of its scale."""
    asked: list[Tensor] = []

    class Bent:
        coupled = Coupled()

        def watched(self, moves: Any) -> Any:
            z = moves.get((1, "z"), vector(0.0, 0.0))
            asked.append(z)
            x = vector(1.0, 1.0) + z + bend * z.square()
            draws = {(1, "z"): SimpleNamespace(scale=3.0)}
            return Watched((played({"x": x}, x),), {(1, "z"): [vector(1.0, 1.0)]}, draws)  # type: ignore[arg-type]

    world: Any = Bent()
    assert replay.is_linear(world, "x") is is_linear
    generator = torch.Generator().manual_seed(0)
    steps = [
        3 * torch.randn(2, generator=generator, dtype=torch.float64)
        for _ in range(16 if is_linear else 1)
    ]
    expected = [[0.0, 0.0]] + [(n * step).tolist() for step in steps for n in (1, 2)]
    assert [z.tolist() for z in asked[: len(expected)]] == expected
    assert not is_linear or len(asked) == len(expected)


@pytest.mark.parametrize(
    ("linear", "same", "moved", "found"),
    [
        (False, {"x"}, 1.0, True),
        (False, {"x"}, 1 + 1e-9, True),
        (False, {"x"}, 1 + 2e-9, False),
        (False, {"y"}, 1.0, False),
        (True, {"x"}, 1.0, False),
    ],
)
def test_what_declared_noise_hides_is_processed(monkeypatch, linear, same, moved, found) -> None:
    replayed = SimpleNamespace(same=same, moved=moved)
    monkeypatch.setattr(replay, "is_linear", lambda world, message: linear)
    monkeypatch.setattr(replay, "replay", lambda *_: replayed)
    pair: Any = ("here", "there")
    assert replay.explained([pair], "x", "add-remove") is found
    assert replay.explained([], "x", "add-remove")


def test_worlds_are_told_apart_by_what_they_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which draws are made, their scales, messages and the state, in this order."""
    one = played({"x": vector(1.0)}, vector(2.0), [("z", "gaussian", (1,), 1.0)])
    monkeypatch.setattr(alignment, "_owners", lambda *_: [0])

    def found(other: Any) -> Any:
        rounds = [SimpleNamespace(rounds=(named(each),), draws={}) for each in (one, other)]
        replayed = SimpleNamespace(here=rounds[0], there=rounds[1], moves={})
        monkeypatch.setattr(alignment, "replay", lambda *_: replayed)
        return alignment.alignment(NOTHING, NOTHING, True)

    def named(of: Any) -> Any:
        class Draw(NamedTuple):
            stream: str
            family: str
            shape: Any
            scale: float

        return SimpleNamespace(sent=of.sent, state=of.state, draws=[Draw(*d) for d in of.draws])

    z = ("z", "gaussian", (1,), 1.0)
    assert found(played({"x": vector(1.0)}, vector(2.0), [z])) == {}
    assert found(played({"x": vector(9.0)}, vector(9.0), [])) == "which noise is drawn"
    assert found(played({"x": vector(9.0)}, vector(9.0), [(*z[:3], 1.1)])) == 'the scale of "z"'
    assert found(played({"x": vector(9.0)}, vector(9.0), [z])) == '"x"'
    assert found(played({"x": vector(1.0)}, vector(9.0), [z])) == "Y of the state"


@pytest.mark.parametrize(
    ("k", "linear", "shares", "alike"),
    [
        (3, True, [(0.5, 0.5), (0.2, 0.2009)], True),
        (3, True, [(0.5, 0.5), (0.2, 0.2011)], False),
        (3, True, [(0.5, 0.4), (0.2, 0.2)], False),
        (3, False, [(0.5, 0.4)], True),
        (9, True, [(0.5, 0.4)], True),  # there is no later round
    ],
)
def test_what_is_carried_grows_with_gradients(monkeypatch, k, linear, shares, alike) -> None:
    """The share of a later round is that of gradients a millionth as large."""
    monkeypatch.setattr(alignment, "_is_linear", lambda coupled: linear)
    monkeypatch.setattr(alignment, "Scaled", lambda oracle, factor: (oracle, factor))
    monkeypatch.setattr(
        alignment, "replace", lambda world, **of: SimpleNamespace(**{**vars(world), **of})
    )

    def carried(one: Any, other: Any) -> float:
        assert (one.lag, other.lag) == (1, 1)
        is_tiny = isinstance(one.oracle, tuple)
        assert not is_tiny or one.oracle[1] == other.oracle[1] == 1e-6
        i = one.oracle[0] if is_tiny else one.oracle
        return float(shares[i][is_tiny])

    monkeypatch.setattr(alignment, "_carried", carried)
    pairs: Any = [
        tuple(SimpleNamespace(k=k, coupled=Coupled(), oracle=i, lag=0) for _ in range(2))
        for i in range(len(shares))
    ]
    assert alignment.is_carried_alike(pairs) is alike


def test_first_rounds_say_whether_a_step_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    said: list[Any] = [None, "bent", ValueError("of the real model"), None]

    def nonlinearity(game: Any, view: Any, rounds: int) -> Any:
        asked.append(rounds)
        if isinstance(found := said[len(asked) - 1], Exception):
            raise found
        return found

    monkeypatch.setattr(alignment, "nonlinearity", nonlinearity)
    monkeypatch.setattr(alignment, "Game", SimpleNamespace(of=lambda *_: None))
    coupled: Any = Coupled()
    assert [alignment._is_linear(coupled) for _ in range(3)] == [True, False, True]
    coupled.defense.n_rounds = 2
    assert alignment._is_linear(coupled)
    assert asked == [3, 3, 3, 2]


def test_a_ratio_is_that_of_one_round_some_rounds_later(monkeypatch: Any) -> None:
    monkeypatch.setattr(
        alignment, "replace",
        lambda world, lag: SimpleNamespace(of=world, lag=lag, k=4, coupled="coupled"),
    )  # fmt: skip
    asked: list[Any] = []

    def aligned(one: Any, other: Any, is_first: bool) -> Any:
        asked.append((one.of, one.lag, other.of, other.lag, is_first))
        return moved

    monkeypatch.setattr(alignment, "alignment", aligned)
    monkeypatch.setattr(alignment, "over_declared", lambda *of: of)
    pair: Any = ("one", "other")
    moved: Any = {(0, "gaussian"): 1.0}
    assert alignment.ratio(pair, 2, "add-remove") == ("coupled", {4: moved}, "add-remove")
    assert asked == [("one", 2, "other", 2, False)]
    moved = "what is left"
    assert alignment.ratio(pair, 0, "add-remove") is None


def test_the_size_of_noise_is_of_the_quietest_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the level of both families together, by where their intervals begin."""
    levels: list[float] = []

    def size(total: float, n: int, family: str, level: float) -> tuple[float, float, float]:
        levels.append(level)
        return total / n, total / n - 1 / n, total / n + 1 / n

    monkeypatch.setattr(alignment, "size_of_draws", size)
    found = alignment.size_of_noise({"gaussian": Drawn(8.0, 8), "laplace": Drawn(3.0, 2)})
    assert (found.value, found.low, found.high, found.n) == (1.0, 0.875, 1.125, 8)
    found = alignment.size_of_noise({"gaussian": Drawn(8.0, 8), "laplace": Drawn(2.5, 2)})
    assert (found.value, found.low, found.n) == (1.25, 0.75, 2)
    assert levels == [0.025] * 4


def broadcast(*rows: float) -> Any:
    """A message of three agents to all, agent 0 sending two rows."""
    return SimpleNamespace(
        payload=torch.tensor([[x, 0.0] for x in rows]), senders=torch.tensor([0, 0, 1, 2]),
        rows=torch.tensor([0, 1, 2, 3]),
    )  # fmt: skip


def test_the_largest_row_of_an_agent_is_its_move() -> None:
    coupled: Any = SimpleNamespace(setting=SimpleNamespace(n_agents=4))
    one, other = broadcast(1.0, 5.0, 2.0, nan), broadcast(0.0, 1.0, 2.5, 1.0)
    found = others._by_sender(coupled, {"x": one}, {"x": other})  # type: ignore[dict-item]
    assert found["x"].tolist() == [4.0, 0.5, inf, 0.0]
    assert found["x"].dtype == torch.float64


@pytest.mark.parametrize(
    ("moves", "noises", "over", "chosen"),
    [
        # beside noise of 1: the median of those that move is 1
        ([1, 1, 1, 1, 2.1], [1, 1, 1, 1, 1], None, [4]),
        ([1, 1, 1, 1, 2.0], [1, 1, 1, 1, 1], None, [4]),
        ([1, 1, 3.0, 1, 2.1], [1, 1, 1, 1, 1], None, [2, 4]),
        ([1, 1, 3.0, 1, 3.0], [1, 1, 1, 1, 2], None, [2]),  # 3 / 2 beside louder noise
        ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], None, [0]),
        ([1, 9.0, 1, 1, 1], [1, 1, 1, 1, 1], None, [0]),  # the victim itself
        ([1, 1, 1, 1, 1], [1, 1, 0, 1, 1], None, [2]),  # without noise
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 1 + 2e-6, 0], [3]),
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0.4, 0], [0]),
    ],
)
def test_agents_that_move_most_are_looked_at(monkeypatch, moves, noises, over, chosen) -> None:
    """The first of them, and all that move twice as far as the median one, or too far."""
    clip_norm = None if over is None else 1.0
    coupled: Any = SimpleNamespace(
        victim=1, setting=SimpleNamespace(n_agents=5, holders=range(5)),
        defense=SimpleNamespace(clip_norm_in=lambda k: clip_norm),
    )  # fmt: skip
    here = SimpleNamespace(
        noisy=SimpleNamespace(sent="noisy"), quiet=SimpleNamespace(sent="quiet"), lag=0
    )
    there = SimpleNamespace(noisy=SimpleNamespace(sent="moved"))
    sizes = {("moved", "noisy"): moves, ("noisy", "quiet"): noises}
    monkeypatch.setattr(
        others, "_by_sender", lambda coupled, one, other: {"x": vector(*sizes[one, other])}
    )
    monkeypatch.setattr(others, "_over_stated", lambda *_: vector(*(over or [9.0] * 5)))
    worlds: Any = (here, there)
    assert others._most_moved(coupled, 2, "add-remove", worlds) == chosen
    if over is not None and chosen == [3]:
        here.lag = 1  # bounds are of the round of the record
        assert others._most_moved(coupled, 2, "add-remove", worlds) == [0]
        here.lag = 0
        monkeypatch.setattr(others, "STATED_OF", 4)
        assert others._most_moved(coupled, 2, "add-remove", worlds) == [0]
    sizes["moved", "noisy"], sizes["noisy", "quiet"] = [9.0, 1.0, 8.0, 1.0, 7.0], [1.0] * 5
    coupled.setting.holders, here.lag = (0, 1, 2, 3, 4, 3, 3, 3), 1  # of median 1
    monkeypatch.setattr(others, "MOST", 2)
    assert others._most_moved(coupled, 2, "add-remove", worlds) == [0, 2]


def test_moves_over_stated_bounds_are_in_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = [{"x": (2, 4.0), "y": (2, 1.0)}, {"x": (1, 0.5)}, {"x": (2, 0.0)}, {"y": (2, 8.0)}]
    coupled: Any = SimpleNamespace(
        setting=SimpleNamespace(n_agents=5, holders=(0, 1, 2, 3)),
        defense=SimpleNamespace(sensitivity=lambda k, setting, change, agent, sent: bounds[agent]),
    )
    here: Any = SimpleNamespace(noisy=SimpleNamespace(sent={}))
    moves = {"x": vector(6.0, 6.0, 6.0, 6.0, 6.0), "y": vector(1.0, 1.0, 1.0, 2.0, 2.0)}
    found = others._over_stated(coupled, 2, "add-remove", here, moves)
    assert found.tolist() == [1.5, 0.0, 0.0, 0.25, 0.0]


class Played(SimpleNamespace):
    def later(self) -> "Played":
        return Played(**{**vars(self), "lag": self.lag + 1})


@pytest.mark.parametrize(
    ("k", "clip_norm", "moves", "lag"),
    [(2, 0.5, True, 0), (2, None, True, 0), (2, 0.5, False, 1), (9, 0.5, False, 0)],
)
def test_a_long_gradient_is_added_at_all_agents(monkeypatch, k, clip_norm, moves, lag) -> None:
    """A hundred clip norms long, or 100; where no message moves yet, a round later."""
    coupled: Any = Coupled()
    coupled.setting = SimpleNamespace(d=5, holders=(0, 2))
    coupled.kept_batches, coupled.victim = lambda k: f"batches {k}", 1
    coupled.defense.clip_norm_in = lambda k: clip_norm
    monkeypatch.setattr(others, "Vacant", lambda oracle, victim: (oracle, victim))
    monkeypatch.setattr(others, "AtAll", lambda *of: of)
    monkeypatch.setattr(
        others, "PlayedWorld",
        lambda coupled, state, k, oracle: Played(
            state=state, k=k, oracle=oracle, lag=0, quiet=None, noisy=SimpleNamespace(sent=oracle)
        ),
    )  # fmt: skip
    monkeypatch.setattr(others, "replace", lambda w, oracle: Played(
        **{**vars(w), "oracle": oracle, "noisy": SimpleNamespace(sent=oracle)}
    ))  # fmt: skip
    monkeypatch.setattr(others, "_by_sender", lambda *_: {"x": vector(0.0, float(moves))})
    found: Any = others._worlds(coupled, "state", k)
    assert [world.lag for world in found] == [lag, lag]
    here, there = found
    assert here.oracle == (f"batches {k}", 1)
    oracle, victim, gradient, agents = there.oracle
    assert (oracle, victim, agents) == (f"batches {k}", 1, (0, 2))
    assert float(gradient.norm()) == pytest.approx(100.0 * (clip_norm or 1.0))
    normal = torch.randn(5, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(gradient / gradient.norm(), normal / normal.norm())


@pytest.mark.parametrize(
    ("change", "k", "measured", "asked"),
    [
        ("add-remove", 2, [[1.0], []], [0]),
        ("add-remove", 2, [[0.0, 0.0], [3.0]], [0, 1]),
        ("add-remove", 9, [[0.0], []], [0]),
        ("replace-one", 2, [[0.0, 1.0], []], [0]),
    ],
)
def test_another_agent_s_longest_record_is_added(monkeypatch, change, k, measured, asked) -> None:
    lags: list[int] = []

    class Pair:
        def __init__(self, own: Any, state: Any, k: int, oracle: Any, change: str, *of: Any):
            assert (state, oracle, of) == ("state", f"batches {k}", (2, True))
            self.lag, self.present = 0, None

        def natural(self, unlike: Any = None) -> str:
            return "longest" if unlike is None else f"unlike {unlike}"

        def rows(self, found: Any) -> Any:
            replaced = change == "replace-one"
            assert found == {"natural": "unlike longest" if replaced else "longest"}
            assert self.present == ("longest" if replaced else None)
            lags.append(self.lag)
            return [SimpleNamespace(measured=x) for x in measured[self.lag]]

    monkeypatch.setattr(others, "Pair", Pair)
    coupled = SimpleNamespace(
        kept_batches=lambda k: f"batches {k}", defense=SimpleNamespace(n_rounds=9)
    )
    own: Any = SimpleNamespace(coupled=coupled, asked=lambda *_: (2, True))
    rows = others._added(own, "state", k, change)
    assert lags == asked
    assert [row.measured for row in rows] == measured[asked[-1]]


@pytest.mark.parametrize(
    ("moved", "k", "most", "expected"),
    [
        ({}, 3, [], []),
        ({(2, "gaussian"): 1.5, (0, "gaussian"): 1.0, (1, "gaussian"): 9.0}, 3, [], [2]),
        ("what is left", 3, [3], [3]),
        ("what is left", 3, [], [3]),  # the third of others in turn
        ("what is left", 4, [], [0]),
        (None, 1, [3], [3, 0, 2]),  # in the first round as many as may be
        (None, 9, [], [2, 3, 0]),  # beginning after those of 64 turns
        (None, 3, ValueError("no records"), [3]),
    ],
)
def test_agents_are_suspected_by_moves_or_looked_at_in_turn(
    monkeypatch, moved, k, most, expected
) -> None:
    """Agent 1 is the victim; of others there are three, of which one holds nothing."""
    coupled: Any = Coupled()
    coupled.victim, coupled.setting = 1, SimpleNamespace(holders=(0, 1, 2, 3))
    aligned = {} if moved is None else {("add-remove", k): moved}
    own: Any = Others(SimpleNamespace(coupled=coupled, aligned=aligned, unclear={}))  # type: ignore[arg-type]

    def worlds(*_: Any) -> Any:
        if isinstance(most, Exception):
            raise most
        return "worlds"

    monkeypatch.setattr(others, "_worlds", worlds)
    monkeypatch.setattr(others, "_most_moved", lambda *_: most)
    monkeypatch.setattr(
        others, "over_declared", lambda coupled, moves, change: max(moves[k].values(), default=0.0)
    )
    assert own._suspected("state", k, "add-remove") == expected
    said = [others.TOGETHER.format("ValueError")] if isinstance(most, Exception) else []
    assert list(own.examination.unclear) == said


def test_what_speaks_against_another_agent_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Row(NamedTuple):
        counts: bool
        agent: int | None = None

    made: list[int] = []
    examination: Any = SimpleNamespace(silent=True, found={"a": None}, unclear={})

    def at(self: Others, agent: int) -> Any:
        made.append(agent)
        return SimpleNamespace(silent=False, found={f"of {agent}": None}, unclear={"u": None})

    def added(own: Any, *_: Any) -> Any:
        assert own.silent
        return [Row(False), Row(True)]

    monkeypatch.setattr(Others, "_suspected", lambda *_: [2, 3])
    monkeypatch.setattr(Others, "_at", at)
    monkeypatch.setattr(others, "_added", added)
    own = Others(examination)
    assert [row.agent for row in own.record("state", 2, "add-remove")] == [2, 3]
    assert list(examination.found) == ["a", "of 2", "of 3"]
    assert list(examination.unclear) == ["u"]
    first = own._of[2]
    list(own.record("state", 3, "add-remove"))
    assert own._of[2] is first


def test_another_agent_is_looked_at_without_alignments() -> None:
    coupled: Any = SimpleNamespace(looking_at=lambda agent: f"at {agent}")
    alone: Any = Others(SimpleNamespace(coupled=coupled))._at(3)  # type: ignore[arg-type]
    assert (alone.coupled, alone.restarts, alone.steps, alone.aligns) == ("at 3", 0, 0, False)
