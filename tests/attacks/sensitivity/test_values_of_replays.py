"""How noise is moved until two worlds are the same, by hand."""

from math import inf, nan
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity import alignment, replay
from dpaudit.attacks.sensitivity.noise_log import DrawSizes
from dpaudit.attacks.sensitivity.worlds import WatchedRound

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
        self.declared, self.defense = lambda agent: most, SimpleNamespace(n_rounds=9)
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

    def watched(self, moves: Any) -> WatchedRound:
        self.moves.append(moves)
        z, w = (moves.get((1, name), 0.0) for name in "zw")
        noisy = self.value + z + vector(0.5, 0.5)
        again = 2 * noisy + w
        draws = {(1, name): SimpleNamespace(scale=2.0, family="gaussian") for name in "zw"}
        round = played({"x": noisy, "y": again, "f": self.factor * noisy}, again)
        return WatchedRound((round,), {(1, "z"): [self.value], (1, "w"): [2 * noisy]}, draws)


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
        def watched(self, moves: Any) -> WatchedRound:
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
            return WatchedRound((played({"x": x}, x),), {(1, "z"): [vector(1.0, 1.0)]}, draws)  # type: ignore[arg-type]

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
    monkeypatch.setattr(alignment, "ScaledGradients", lambda oracle, factor: (oracle, factor))
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
    found = alignment.size_of_noise({"gaussian": DrawSizes(8.0, 8), "laplace": DrawSizes(3.0, 2)})
    assert (found.value, found.low, found.high, found.n) == (1.0, 0.875, 1.125, 8)
    found = alignment.size_of_noise({"gaussian": DrawSizes(8.0, 8), "laplace": DrawSizes(2.5, 2)})
    assert (found.value, found.low, found.n) == (1.25, 0.75, 2)
    assert levels == [0.025] * 4
