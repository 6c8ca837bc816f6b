"""What is made of worlds that differ in one record, round by round, by hand."""

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity import examination
from dpaudit.attacks.sensitivity.declared import DeclaredBounds
from dpaudit.attacks.sensitivity.examination import RoundExamination, RoundPair
from dpaudit.attacks.sensitivity.worlds import DrawSizes, Record
from dpaudit.defense.contract import Stated

NOTHING: Any = None


def examined(n_rounds: int = 6, **of: Any) -> Any:
    defense = SimpleNamespace(
        n_rounds=n_rounds, batch_size=4, sampling="fixed", clip_norm_in=lambda k: 1.0
    )
    setting = SimpleNamespace(d=3, holders=(0, 1))
    coupled: Any = SimpleNamespace(defense=defense, setting=setting, victim=1)
    coupled.kept_batches = lambda k: f"batches {k}"
    return RoundExamination(coupled, 0, of.pop("steps", 0), **of)


class Measured:
    """A pair of worlds, of which rows are given by hand."""

    made: Any = None
    given: Any = []
    moved: Any = {}
    breaks: Any = None
    fails: Any = None

    def __init__(self, examination: Any, state: Any, k: int, oracle: Any, *of: Any) -> None:
        self.of, self.present, self.lag, self.asked = (state, k, oracle, *of), None, 0, []
        Measured.made = self

    def natural(self, unlike: Any = None) -> str:
        return "longest" if unlike is None else f"unlike {unlike}"

    def mislabelled(self, record: str) -> str:
        return f"mislabelled {record}"

    def optimised(self, record: str) -> str:
        return f"optimised {record}"

    def rows(self, found: dict[str, str]) -> Any:
        if self.breaks is not None:
            raise self.breaks
        self.asked.append((dict(found), self.lag))
        return self.given

    def failure(self, found: Any) -> Any:
        return self.fails

    def alignment(self, found: dict[str, str]) -> Any:
        return self.moved


def rows(*moved: float) -> list[Any]:
    return [SimpleNamespace(measured=by) for by in moved]


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(examination, "RoundPair", Measured)
    monkeypatch.setattr(RoundExamination, "asked", lambda self, *_: (2, False))
    monkeypatch.setattr(
        RoundExamination, "_check", lambda self, *_: self.found.update(checked=None)
    )
    for name, value in {
        "given": rows(0.0, 3.0),
        "moved": {},
        "breaks": None,
        "fails": None,
    }.items():
        monkeypatch.setattr(Measured, name, value)
    return monkeypatch


def test_a_record_is_measured_as_it_is_and_mislabelled(pairs: Any) -> None:
    one = examined()
    found = list(one.record("state", 2, "add-remove"))
    assert found == Measured.given
    pair = Measured.made
    assert pair.of == ("state", 2, "batches 2", "add-remove", 2, False)
    assert pair.present is None
    own = {"natural": "longest", "mislabelled": "mislabelled longest"}
    assert pair.asked == [(own, 0)]
    assert one.aligned == {("add-remove", 2): {}}
    assert "checked" in one.found
    list(one.record("state", 2, "replace-one", "user"))
    pair = Measured.made
    assert (pair.of[3], pair.present) == ("user", "longest")
    assert pair.asked[0][0]["natural"] == "unlike longest"
    brief = examined(briefly=True, aligns=False)
    assert list(brief.record("state", 2, "add-remove")) == Measured.given
    assert Measured.made.asked == [({"natural": "longest"}, 0)]
    assert (brief.found, brief.aligned) == ({}, {})


def test_a_record_that_moves_nothing_is_measured_a_round_later(pairs: Any) -> None:
    pairs.setattr(Measured, "given", rows(0.0, 0.0))
    one = examined()
    assert list(one.record("state", 5, "add-remove")) == Measured.given
    assert [lag for _, lag in Measured.made.asked] == [0, 1]
    assert list(one.record("state", 6, "add-remove")) == []  # there is no later one
    assert [lag for _, lag in Measured.made.asked] == [0]
    assert one.aligned["add-remove", 6] == {}
    pairs.setattr(Measured, "given", [])
    assert list(one.record("state", 3, "add-remove")) == []
    assert one.aligned["add-remove", 3] == examination.WHICH_DRAWS


def test_a_record_is_searched_for_where_there_are_steps(pairs: Any) -> None:
    one = examined(steps=3)
    assert list(one.record("state", 2, "add-remove")) == Measured.given
    (first, _), (second, _) = Measured.made.asked
    assert second == {**first, "optimised": "optimised longest"}
    pairs.setattr(Measured, "moved", "what is not the same")
    assert one.aligns
    list(one.record("state", 3, "add-remove"))
    assert not one.aligns
    list(one.record("state", 4, "add-remove"))
    assert ("add-remove", 4) not in one.aligned


def test_a_step_that_fails_with_a_record_alone_is_noted(pairs: Any) -> None:
    pairs.setattr(Measured, "breaks", ValueError("no"))
    one = examined()
    with pytest.raises(ValueError, match="no"):
        list(one.record("state", 2, "add-remove"))
    pairs.setattr(Measured, "fails", "KeyError")
    assert list(one.record("state", 2, "add-remove")) == []
    assert "a step fails with a record and not without it: KeyError" in one.found


def test_what_is_found_is_saved_and_restored() -> None:
    one = examined()
    one.found, one.unclear, one.silent = {"b": None, "a": None}, {"c": None}, True
    one.aligned = {
        ("add-remove", 2): {(1, "gaussian"): 0.5, (2, "laplace"): 2.0}, ("add-remove", 3): "why",
    }  # fmt: skip
    one.drawn = {"gaussian": DrawSizes(3.0, 7)}
    other = examined()
    other.restore(*one.saved())
    for name in ("found", "unclear", "silent", "aligned", "drawn"):
        assert getattr(other, name) == getattr(one, name)
    assert list(other.found) == ["b", "a"]
    assert not other.aligns
    del one.aligned["add-remove", 3]
    other.restore(*one.saved())
    assert other.aligns


def test_a_small_model_adds_what_it_finds() -> None:
    one, small = examined(), examined()
    one.found, one.unclear, one.aligned = {"x": None}, {"y": None}, {("add-remove", 1): {}}
    small.found, small.unclear = {"z": None}, {"u": None}
    small.aligned = {("add-remove", 1): "small", ("add-remove", 2): "why"}
    one.join(small)
    assert list(one.found) == ["x", "z, on a small model"]
    assert list(one.unclear) == ["y", "u"]
    assert one.aligned == {("add-remove", 1): {}, ("add-remove", 2): "why"}


def test_noise_of_rounds_is_counted_together() -> None:
    one, noted = examined(), list[Any]()
    one.coupled.kept_oracle = lambda k: f"oracle {k}"
    one.coupled.note_noise = lambda k, played: noted.append(k)

    def play(state: int, k: int, oracle: str) -> Any:
        assert oracle == f"oracle {k}"
        drawn = {"gaussian": (2.0, 3), **({"laplace": (1.0, 1)} if k == 2 else {})}
        return SimpleNamespace(state=state + k, drawn=drawn)

    one.coupled.play = play
    assert [one.next_state(10, k) for k in (1, 2, 3)] == [11, 12, 13]
    assert noted == [1, 2, 3]
    assert one._first_played.state == 11
    assert one.drawn == {"gaussian": DrawSizes(6.0, 9), "laplace": DrawSizes(1.0, 1)}


def test_a_round_that_keeps_what_it_saw_is_another_one_again(monkeypatch: Any) -> None:
    worlds = iter(())

    def world(coupled: Any, state: Any, k: int, oracle: Any) -> Any:
        assert (state, k, oracle) == ("start", 1, "oracle 1")
        return next(worlds)

    def played(*x: float) -> Any:
        return SimpleNamespace(sent={"x": SimpleNamespace(payload=torch.tensor(x))})

    monkeypatch.setattr(examination, "PlayedWorld", world)
    for kept, first, again, is_other in (
        (None, (1.0,), (1.0,), False),
        (None, (1.0,), (2.0,), True),
        ((1.0,), (2.0,), (1.0,), False),
        ((1.0,), (2.0,), (2.0,), True),
    ):
        one = examined()
        one.coupled.start, one.coupled.oracle = lambda: "start", lambda k: f"oracle {k}"
        one._first_played = None if kept is None else played(*kept)
        worlds = iter(
            [SimpleNamespace(noisy=played(*first)), SimpleNamespace(noisy=played(*again))]
        )
        one.play_again()
        assert bool(one.unclear) is is_other


@pytest.mark.parametrize(
    ("found", "before", "unclear", "alike", "noted", "open_"),
    [
        ({"x": True}, [], [], False, ["x"], ["u"]),
        ({"x": False}, [], [], False, ["x"], ["u"]),
        ({"draws": True}, [], [], False, ["draws"], ["u"]),
        ({"draws": True}, [], [], True, [], ["u", "spread"]),
        ({"draws": True}, [], ["spread"], False, [], ["spread", "u"]),
        ({"draws": True}, ["draws"], ["spread"], True, ["draws"], ["spread", "u"]),
    ],
)
def test_other_draws_may_only_be_spread_alike(
    monkeypatch, found, before, unclear, alike, noted, open_
) -> None:
    monkeypatch.setattr(examination, "OTHER_DRAWS", "draws")
    monkeypatch.setattr(examination, "MAY_SPREAD", "spread")
    monkeypatch.setattr(examination, "compare", lambda *_: (dict(found), ["u"]))
    monkeypatch.setattr(examination, "spreads_alike", lambda *_: alike)
    one = examined()
    one.found, one.unclear = dict.fromkeys(before), dict.fromkeys(unclear)
    is_silent = one.compare(NOTHING, NOTHING, "add-remove")
    assert list(one.found) == noted
    assert list(one.unclear) == open_
    assert is_silent is (any(found.values()) and bool(noted))


def message(*values: float) -> Any:
    return SimpleNamespace(payload=torch.tensor([values]).double())


def judged_pairs(*differences: dict[str, list[float]], size: float = 5.0) -> tuple[Any, Any]:
    """Two worlds for each kind of record, and the examination of them."""
    one = examined()
    worlds = {}
    for i, difference in enumerate(differences):
        here = SimpleNamespace(k=2, play=lambda silent: SimpleNamespace(sent={"x": message(size)}))
        there = SimpleNamespace(
            play=lambda silent, d=difference: SimpleNamespace(
                sent={m: message(*x) for m, x in d.items()}
            )
        )
        worlds[f"kind {i}"] = [(here, there)]
    one.coupled.differences = lambda one, other: {m: x.payload for m, x in other.items()}
    one.coupled.own = lambda sent: sent.payload
    return one, worlds


@pytest.mark.parametrize(
    ("stated", "releases", "bound", "by_releases"),
    [
        (None, None, (2, None), False),
        (Stated(1, 3.0), None, (1, 3.0), False),
        (None, Stated(2, 4.0), (2, 4.0), True),
    ],
)
def test_rows_have_the_largest_move_of_each_kind(
    monkeypatch, stated, releases, bound, by_releases
) -> None:
    one, worlds = judged_pairs({"x": [3.0, 4.0]}, {"x": [0.0, float("nan")]})
    one._first = {}
    monkeypatch.setattr(
        examination, "declared_of_pairs",
        lambda pairs, adjacency, first: (
            DeclaredBounds({} if releases is None else {"x": releases}, ()), pairs,
        ),
    )  # fmt: skip
    monkeypatch.setattr(examination, "explained", lambda *_: False)
    monkeypatch.setattr(
        RoundExamination, "stated", lambda *_: {} if stated is None else {"x": stated}
    )
    [row] = one.judged(2, worlds, "add-remove", 2)
    assert (row.message, row.round, row.norm, row.stated) == ("x", 2, *bound)
    assert row.moved == {"kind 0": 7.0 if bound[0] == 1 else 5.0, "kind 1": inf}
    near, close = judged_pairs({"x": [0.5, 0.0]}, {"x": [0.25, 0.0]}, size=2.0)
    near._first = {}
    [least] = near.judged(2, close, "add-remove", 2)
    assert least.tolerance == near.tolerance(2.0, max(bound[1] or 0.0, 0.5))
    assert (row.by_releases, row.noiseless, row.processed) == (by_releases, False, False)
    [bare] = one.judged(2, worlds, "add-remove", 2, frozenset({"x"}))
    assert bare.noiseless
    still, same = judged_pairs({"x": [0.0, 0.0]})
    still._first = {}
    [quiet] = still.judged(2, same, "add-remove", 2, frozenset({"x"}))
    assert not quiet.noiseless
    monkeypatch.setattr(examination, "explained", lambda *_: True)
    [found] = one.judged(2, worlds, "add-remove", 2)
    assert found.processed is bool(found._replace(processed=False).counts)
    monkeypatch.setattr(RoundExamination, "stated", lambda *_: {"x": Stated(2, 0.0)})
    [nothing] = one.judged(2, worlds, "add-remove", 2)
    assert (nothing.stated, nothing.tolerance) == (0.0, 0.0)


class Norms:
    """Of records, their first numbers times their labels."""

    def norms(self, X: Tensor, inputs: Tensor, labels: Tensor, norm: int) -> Tensor:
        return inputs[..., 0].abs() * labels * norm


def a_pair(inputs: list[list[float]], labels: list[int], **of: Any) -> RoundPair:
    one = examined()
    dataset = SimpleNamespace(n_classes=3, value_range=(0.0, 1.0))
    one.coupled.classification = SimpleNamespace(
        gradients=Norms(), dataset=dataset,
        records=lambda victim: (torch.tensor(inputs), torch.tensor(labels)),
    )  # fmt: skip
    one.coupled.defense.models = lambda state: torch.zeros(2, 3)
    return RoundPair(one, NOTHING, 2, NOTHING, "add-remove", of.get("norm", 2))


def test_the_record_of_the_largest_gradient_is_taken() -> None:
    pair = a_pair([[1.0], [5.0], [4.0], [2.0]], [1, 0, 1, 2])
    longest = pair.natural()
    assert (longest.input.tolist(), int(longest.label)) == ([4.0], 1)
    other = pair.natural(unlike=Record(torch.tensor([1.0]), torch.tensor(1)))
    assert (other.input.tolist(), int(other.label)) == ([2.0], 2)
    assert longest.input.dtype == torch.float64
    alike = a_pair([[1.0], [3.0]], [1, 1])
    same = alike.natural(unlike=Record(torch.tensor([1.0]), torch.tensor(1)))
    assert same.input.tolist() == [3.0]
    wrong = pair.mislabelled(longest)
    assert (wrong.input.tolist(), int(wrong.label)) == ([4.0], 2)


class World(SimpleNamespace):
    @property
    def noisy(self) -> str:
        if self.error is not None:
            raise self.error
        return "played"


def test_what_a_step_raises_with_a_record_is_named() -> None:
    pair = a_pair([[1.0]], [1])
    errors: dict[Any, Any] = {}
    pair._world = lambda record, alone=False: World(error=errors.get(record))  # type: ignore[method-assign]
    found: Any = {"natural": "a", "mislabelled": "b"}
    assert pair.failure(found) is None
    errors["b"] = KeyError("b")
    assert pair.failure(found) == "KeyError"
    errors[None] = ValueError("always")
    assert pair.failure(found) is None


def test_messages_without_noise_are_named() -> None:
    pair = a_pair([[1.0]], [1])
    coupled: Any = pair.examination.coupled
    coupled.own = lambda sent: torch.tensor(sent)
    world: Any = SimpleNamespace(
        k=2,
        play=lambda silent: SimpleNamespace(sent={"x": [1.0], "y": [2.0 + silent], "z": [3.0]}),
    )
    for keeps, found in ((False, {"x", "z"}), (True, set())):
        coupled.keeps_noise = lambda before, keeps=keeps: keeps and before == 2
        assert pair._noiseless(world) == found


def test_worlds_are_made_once_for_each_record_and_lag(monkeypatch: Any) -> None:
    pair = a_pair([[1.0]], [1])
    made: list[Any] = []
    monkeypatch.setattr(
        examination, "placed", lambda oracle, victim, record, alone: (record, alone)
    )
    monkeypatch.setattr(examination, "PlayedWorld", lambda *of: (made.append(of), of)[1])
    pair.__dict__["_kept"] = lambda oracle: oracle
    one = Record(torch.zeros(1), torch.tensor(0))
    assert pair._world(one) is pair._world(one)
    assert pair._world(one, True) is not pair._world(one)
    assert pair._world(None) is not pair._world(one)
    pair.lag = 1
    later: Any = pair._world(one)
    assert later[2:] == (2, (one, False), 1)
    assert len(made) == 4


@pytest.mark.parametrize(
    ("by_lag", "found", "rounds"),
    [
        ({0: [{"a": 1.0}, {"a": 3.0, "b": 1.0}]}, {"a": 3.0, "b": 1.0}, 6),
        ({0: ["left", {}], 1: [{"a": 2.0}, {}]}, {"a": 2.0}, 6),
        ({0: ["left", {}], 1: [{}, "still"], 2: [{}, {}]}, {}, 6),
        ({0: ["left", {}], 1: ["more", {}], 2: ["x", {}], 3: ["y", {}]}, "left", 6),
        ({0: ["left", {}], 1: ["more", {}], 2: [{}, {}]}, "left", 3),  # there is one round more
    ],
)
def test_moves_are_looked_for_in_later_rounds(monkeypatch, by_lag, found, rounds) -> None:
    pair = a_pair([[1.0]], [1])
    pair.examination.coupled.defense.n_rounds = rounds
    firsts: list[bool] = []

    def aligned(a: Any, b: Any, is_first: bool) -> Any:
        firsts.append(is_first)
        return by_lag[a.lag][0 if is_first else 1]

    monkeypatch.setattr(examination, "all_without_first", lambda oracle, there, holders: there)
    monkeypatch.setattr(examination, "KeptAnswers", SimpleNamespace(of=lambda oracle: oracle))
    monkeypatch.setattr(examination, "PlayedWorld", lambda *of: SimpleNamespace(of=of))
    monkeypatch.setattr(examination, "replace", lambda world, lag: SimpleNamespace(lag=lag))
    monkeypatch.setattr(examination, "alignment", aligned)
    monkeypatch.setattr(examination, "is_carried_alike", lambda worlds: False)
    pair._pairs = lambda found: {"natural": [("a", "b")]}  # type: ignore[method-assign,assignment,list-item,return-value]
    assert pair.alignment({}) == found
    assert firsts[0]
    assert (examination.CARRIES in pair.examination.unclear) is isinstance(found, str)
