"""Which worlds are paired, which rows they give and which rounds are aligned, case by case."""

from dataclasses import dataclass, replace
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity import examination, other_agents, record_order
from dpaudit.attacks.sensitivity.declared import DeclaredBounds
from dpaudit.attacks.sensitivity.examination import RoundExamination, RoundPair
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.other_agents import OtherAgents
from dpaudit.attacks.sensitivity.side_channels import OTHER_DRAWS
from dpaudit.defense import Stated


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class World:
    """A world by its name; its messages are its numbers."""

    name: str
    sent: Any = None
    k: int = 1
    lag: int = 0

    def play(self, silent: bool) -> Any:
        return SimpleNamespace(sent=self.sent)

    def later(self) -> "World":
        return replace(self, lag=self.lag + 1)

    @property
    def noisy(self) -> Any:
        if self.sent == "fails":
            raise ZeroDivisionError
        return SimpleNamespace(sent=self.sent, draws=[])


def defense_of(**of: Any) -> Any:
    return SimpleNamespace(**{"n_rounds": 4, "sampling": "poisson", "batch_size": 2, **of})


def examined(briefly: bool = False, **of: Any) -> Any:
    coupled = SimpleNamespace(
        defense=defense_of(**of), setting=SimpleNamespace(holders=(0, 1), d=3), victim=0,
        own=lambda message: message,
        differences=lambda one, other: {name: other[name] - one[name] for name in one},
    )  # fmt: skip
    return RoundExamination(coupled, 2, 0, briefly=briefly)  # type: ignore[arg-type]


def pair_of(own: Any, k: int = 1, adjacency: Any = "add-remove", **of: Any) -> Any:
    pair = RoundPair(own, None, k, None, adjacency, 2, **of)  # type: ignore[arg-type]
    pair._world = lambda record, alone=False: World(f"{record}{' alone' * alone}")  # type: ignore[method-assign, assignment, return-value]
    pair._opposite = lambda longest, sampled: ("opposite", longest, sampled)  # type: ignore[method-assign, assignment, return-value]
    return pair


def names(pairs: Any) -> Any:
    return {
        kind: [one if isinstance(one, tuple) and one[0] == "opposite" else
               (one[0].name, one[1].name) for one in several]
        for kind, several in pairs.items()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("briefly", "sampling", "present", "expected"),
    [
        (
            False, "poisson", None,
            {"natural": [("None", "r"), ("None alone", "r alone")],
             "opposite": [("opposite", "r", True)]},
        ),
        (False, "fixed", None,
         {"natural": [("None", "r")], "opposite": [("opposite", "r", False)]}),
        (True, "poisson", None,
         {"natural": [("None", "r")], "opposite": [("opposite", "r", True)]}),
        (False, "poisson", "p", {"natural": [("p", "r"), ("p alone", "r alone")]}),
    ],
)  # fmt: skip
def test_records_are_also_alone_where_batches_are_drawn(
    briefly, sampling, present, expected
) -> None:
    pair = pair_of(examined(briefly, sampling=sampling), present=present)
    assert names(pair._pairs({"natural": "r"})) == expected
    pair._opposite = None  # of one lag it is made once
    assert names(pair._pairs({"natural": "r"})) == expected


@pytest.mark.parametrize(
    ("clips", "briefly", "of_length", "stretched"),
    [(True, False, ["pair"], True), (False, False, ["pair"], False), (True, True, ["pair"], False),
     (True, False, [], False)],
)  # fmt: skip
def test_a_record_is_stretched_where_the_step_clips(clips, briefly, of_length, stretched) -> None:
    pair = pair_of(examined(briefly), clips=clips, present="p")
    pair.__dict__["_of_length"] = of_length
    assert ("stretched" in pair._pairs({"natural": "r"})) is stretched


@pytest.mark.parametrize(
    ("k", "lag", "briefly", "adjacency", "lags"),
    [
        (1, 0, False, "add-remove", [0, 1]),
        (4, 0, False, "add-remove", [0]),
        (1, 1, False, "add-remove", [0]),
        (1, 0, True, "add-remove", [0]),
        (1, 0, False, "function", [0]),
    ],
)
def test_worlds_are_compared_one_round_later_too(
    monkeypatch, k, lag, briefly, adjacency, lags
) -> None:
    own, compared = examined(briefly), list[int]()
    judged: list[Any] = []

    def compare(one: Any, other: Any, change: Any) -> bool:
        compared.append(one.lag)
        return one.lag == 0

    monkeypatch.setattr(own, "compare", compare, raising=False)
    monkeypatch.setattr(own, "judged", lambda *of: judged.append(of) or ["row"], raising=False)
    monkeypatch.setattr(examination, "with_same_draws", lambda pairs: {})
    pair = pair_of(own, k, adjacency, lag=lag)
    pair._pairs = lambda found: {"natural": [(World("a"), World("b"))]}  # type: ignore[method-assign]
    pair._noiseless = lambda world: frozenset({"x"})  # type: ignore[method-assign]
    assert pair.rows({}) == []  # of worlds of which none draws the same
    assert compared == lags
    assert own.silent
    assert pair.rows({}) == []
    assert compared == lags  # of a kind and a lag once
    own.found[OTHER_DRAWS] = None
    assert pair.rows({}) == ["row"]
    [(round, _, change, norm, noiseless)] = judged
    assert (round, change, norm, noiseless) == (k + lag, adjacency, 2, {"x"})


def test_a_step_that_fails_with_a_record_is_named() -> None:
    worlds = {None: World("none", 1), "good": World("g", 1), "bad": World("b", "fails")}
    pair = pair_of(examined())
    pair._world = lambda record, alone=False: worlds[record]
    assert pair.failure({"natural": "good"}) is None
    assert pair.failure({"natural": "good", "other": "bad"}) == "ZeroDivisionError"
    worlds[None] = World("none", "fails")
    assert pair.failure({"natural": "bad"}) is None


@dataclass(frozen=True)
class Lagged:
    name: str
    lag: int = 0


KEY = 0, "gaussian"


@pytest.mark.parametrize(
    ("k", "moves", "expected", "lags"),
    [
        (1, {("all", 0): {KEY: 2.0}, ("r", 0): {KEY: 3.0, (1, "gaussian"): 1.0}},
         {KEY: 3.0, (1, "gaussian"): 1.0}, [0, 0]),
        (1, {("all", 0): {KEY: 4.0}, ("r", 0): {KEY: 3.0}}, {KEY: 4.0}, [0, 0]),
        (1, {("all", 0): {KEY: 9.0}, ("r", 0): "state", ("all", 1): {KEY: 1.0}, ("r", 1): {}},
         {KEY: 1.0}, [0, 0, 1, 1]),
        (1, {("all", i): why for i, why in enumerate(["a", "b", "c", "d"])}, "a", [0, 1, 2, 3]),
        (3, {("all", 0): "a", ("all", 1): "b"}, "a", [0, 1]),
        (4, {("all", 0): "a"}, "a", [0]),
    ],
)  # fmt: skip
def test_the_longest_moves_of_all_pairs_align_a_round(
    monkeypatch, k, moves, expected, lags
) -> None:
    seen: list[Any] = []

    def alignment(one: Any, other: Any, is_first: bool) -> Any:
        seen.append((one.name, one.lag, is_first))
        return moves[one.name, one.lag]

    monkeypatch.setattr(examination, "alignment", alignment)
    monkeypatch.setattr(examination, "all_without_first", lambda *_: "all")
    monkeypatch.setattr(examination.KeptAnswers, "of", lambda oracle: oracle)
    monkeypatch.setattr(examination, "PlayedWorld", lambda of, state, k, oracle: Lagged(oracle))
    monkeypatch.setattr(examination, "is_carried_alike", lambda worlds: False)
    own = examined()
    pair = pair_of(own, k)
    pair._pairs = lambda found: {"natural": [(Lagged("r"), Lagged("r"))]}  # type: ignore[method-assign]
    assert pair.alignment({}) == expected
    assert [lag for _, lag, _ in seen] == lags
    assert all(first is (name == "all") for name, _, first in seen)
    assert bool(own.unclear) is isinstance(expected, str)


@pytest.mark.parametrize(
    ("moved", "stated", "bounds", "noiseless", "row"),
    [
        ([1.0, 3.0], (2, 2.0), {}, False, {"measured": 3.0, "stated": 2.0, "by_releases": False}),
        ([3.0, 1.0], (2, 2.0), {}, False, {"measured": 3.0, "stated": 2.0, "counts": True}),
        ([1.0], (2, 2.0), {"x": Stated(2, 1.5)}, False,
         {"stated": 1.5, "beyond": 2.0, "by_releases": True}),
        ([1.0], None, {"x": Stated(2, 1.5)}, False, {"stated": 1.5, "by_releases": True}),
        ([1.0], None, {}, False, {"stated": None, "by_releases": False, "counts": False}),
        ([1.0], (2, 2.0), {}, True, {"noiseless": True, "counts": True}),
        ([0.0, 1.0], (2, 2.0), {}, True, {"noiseless": True}),
        ([0.0], (2, 2.0), {}, True, {"noiseless": False, "counts": False}),
        ([nan], (2, 2.0), {}, False, {"measured": inf, "counts": True}),
        ([1e-20], (2, 0.0), {}, False, {"tolerance": 0.0, "counts": True}),
    ],
)  # fmt: skip
def test_a_message_has_the_row_of_its_largest_move(
    monkeypatch, moved, stated, bounds, noiseless, row
) -> None:
    own = examined()
    monkeypatch.setattr(
        examination, "declared_of_pairs", lambda pairs, *_: (DeclaredBounds(bounds, ()), pairs)
    )
    monkeypatch.setattr(examination, "explained", lambda *_: False)
    known = {} if stated is None else {"x": Stated(*stated)}
    monkeypatch.setattr(RoundExamination, "stated", lambda *_: known)
    pairs = [
        (World("a", {"x": vector(0.0, 1.0)[None]}), World("b", {"x": vector(m, 1.0)[None]}))
        for m in moved
    ]
    hidden = frozenset({"x"} if noiseless else ())
    [found] = own.judged(1, {"natural": pairs}, "add-remove", 2, hidden)
    assert found.message == "x"
    for name, value in row.items():
        assert getattr(found, name) == (pytest.approx(value) if type(value) is float else value)
    monkeypatch.setattr(examination, "explained", lambda *_: True)
    [processed] = own.judged(1, {"natural": pairs}, "add-remove", 2, hidden)
    assert processed.processed is found.counts
    assert not processed.counts


def rows_of(moved: float) -> list[Row]:
    return [Row("x", 1, 2, {"natural": moved}, None, 0.0)]


@pytest.mark.parametrize(
    ("k", "moved", "steps", "lags", "aligned"),
    [
        (1, 1.0, 0, [0], "moves"),
        (1, 1.0, 3, [0, 0], "moves"),
        (1, 0.0, 0, [0, 1], "moves"),
        (4, 0.0, 0, [0], {}),
        (4, 1.0, 0, [0], "moves"),
    ],
)
def test_what_does_not_move_at_once_is_measured_a_round_later(
    monkeypatch, k, moved, steps, lags, aligned
) -> None:
    own, seen = examined(briefly=True), list[int]()
    own.steps = steps

    def rows(self: Any, found: Any) -> list[Row]:
        seen.append(self.lag)
        return rows_of(moved if self.lag == 0 else 1.0)

    monkeypatch.setattr(own.coupled, "kept_batches", lambda k: None, raising=False)
    monkeypatch.setattr(RoundExamination, "asked", lambda *_: (2, False))
    for name in ("natural", "optimised"):
        monkeypatch.setattr(RoundPair, name, lambda *_, **known: "r")
    monkeypatch.setattr(RoundPair, "rows", rows)
    monkeypatch.setattr(RoundPair, "alignment", lambda *_: "moves")
    found = list(own.record(None, k, "add-remove"))
    assert seen == lags
    assert own.aligned == {("add-remove", k): aligned}
    assert len(found) == (aligned == "moves")
    assert own.aligns is (aligned == {})
    own.aligns = False
    own.aligned = {}
    list(own.record(None, 1, "add-remove"))
    assert own.aligned == {}  # nothing is looked for once there is none in some round


def test_a_round_that_differs_when_played_again_is_unclear() -> None:
    for again, unclear in ((2.0, 0), (3.0, 1)):
        own = examined()
        plays = iter([2.0, again])

        def play(state: Any, k: int, oracle: Any, *_: Any, plays: Any = plays, **how: Any) -> Any:
            sent = {"x": SimpleNamespace(payload=vector(next(plays)))}
            return SimpleNamespace(sent=sent)

        own.coupled.play, own.coupled.start = play, lambda: None
        own.coupled.oracle = lambda k: None
        own.play_again()
        assert len(own.unclear) == unclear


def draw(stream: str, *shape: int) -> Any:
    return SimpleNamespace(stream=stream, shape=torch.Size(shape))


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        ([draw("a", 2, 5, 7)], [{"a": 1}, {"a": 1}]),
        ([draw("a", 2, 5)], [{"a": 1}]),
        ([draw("a", 5, 7)], [{"a": 0}]),
        ([draw("a", 2, 5), draw("b", 2, 5, 1)], [{"a": 1, "b": 1}, {"b": 1}]),
        ([draw("a", 2, 4)], []),
        ([draw("a", 3, 5)], []),
    ],
)
def test_draws_for_records_have_an_axis_of_them(draws: Any, expected: Any) -> None:
    batch = SimpleNamespace(labels=torch.zeros(2, 5))
    here: Any = SimpleNamespace(
        oracle=SimpleNamespace(batch=batch), noisy=SimpleNamespace(draws=draws)
    )
    assert list(record_order._of_records(here)) == expected


@pytest.mark.parametrize(("moved", "differs"), [(0.9e-8, False), (1.1e-8, True), (0.0, False)])
def test_messages_differ_beyond_a_part_of_their_norm(moved: float, differs: bool) -> None:
    here: Any = SimpleNamespace(
        coupled=examined().coupled, noisy=SimpleNamespace(sent={"x": vector(100.0, 0.0)[None]})
    )
    there: Any = SimpleNamespace(sent={"x": vector(100.0, moved)[None]})
    assert record_order._differing(here, there) == ["x"] * differs
    trials = torch.stack([vector(100.0, 0.0), vector(100.0, moved)])[:, None]  # one of them
    assert record_order._differing(here, SimpleNamespace(sent={"x": trials})) == ["x"] * differs  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("k", "aligned", "most", "suspected"),
    [
        (1, "why", [5], [5, 1, 2, 3, 4, 6, 7, 8]),
        (2, "why", [5], [5]),
        (2, "why", [], [2]),
        (11, None, [], [1]),  # ten other agents, one in each round
        (3, None, [7], [7]),
        (40, "why", [], [3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_other_agents_are_looked_at_in_turn(monkeypatch, k, aligned, most, suspected) -> None:
    coupled: Any = SimpleNamespace(
        setting=SimpleNamespace(holders=range(11)), victim=0, defense=defense_of(n_rounds=40)
    )
    own: Any = SimpleNamespace(coupled=coupled, aligned={("add-remove", k): aligned}, unclear={})
    monkeypatch.setattr(other_agents, "_worlds", lambda *_: None)
    monkeypatch.setattr(other_agents, "_most_moved", lambda *_: most)
    assert OtherAgents(own)._suspected(None, k, "add-remove") == suspected


def test_agents_whose_noise_moves_too_far_are_suspected(monkeypatch) -> None:
    coupled: Any = SimpleNamespace(setting=SimpleNamespace(holders=range(4)), victim=0)
    moved = {(i, "gaussian"): size for i, size in enumerate([9.0, 1.0, 1 + 1e-7, 1 + 1e-5])}
    own: Any = SimpleNamespace(coupled=coupled, aligned={("add-remove", 2): moved})

    def over(coupled: Any, moves: Any, adjacency: Any) -> float:
        [(k, some)] = moves.items()
        assert k == 2
        return float(max(some.values()))

    monkeypatch.setattr(other_agents, "over_declared", over)
    assert OtherAgents(own)._suspected(None, 2, "add-remove") == [3]
