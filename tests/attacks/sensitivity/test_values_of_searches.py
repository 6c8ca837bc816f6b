"""Which records, lengths, rounds and plays are tried, and what is made of them, by hand."""

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity import (
    attack,
    examination,
    stand_in,
    unseen_inputs,
    worlds,
)
from dpaudit.attacks.sensitivity.attack import Sensitivity
from dpaudit.attacks.sensitivity.examination import RoundExamination, RoundPair
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.world_cache import KeptAnswers
from dpaudit.attacks.sensitivity.worlds import Record
from dpaudit.defense.contract import Stated
from dpaudit.files.finding import Name
from dpaudit.training.classification import Batch

NOTHING: Any = None


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Norms:
    """Of records, the size of their numbers times their labels, in L2; twice that in L1."""

    def norms(self, X: Tensor, inputs: Tensor, labels: Tensor, norm: int) -> Tensor:
        assert X.tolist() == [[8.0, 9.0]]
        return inputs[..., 0].abs() * labels * (3 - norm)

    def clipped_sum(self, X: Tensor, inputs: Tensor, labels: Tensor, C: float) -> Tensor:
        assert (X.tolist(), C) == ([[8.0, 9.0]], inf)
        return inputs[0] * vector(1.0, 0.0)


def a_pair(norm: int = 2, sampling: str = "fixed", **of: Any) -> RoundPair:
    """Agent 1 holds records 3, 5, 1 of labels 1, 0 and 2: gradients of lengths 3, 0 and 2."""
    classification = SimpleNamespace(
        gradients=Norms(), dataset=SimpleNamespace(n_classes=3, value_range=(-1.0, 2.0)),
        records=lambda victim: (torch.tensor([[3.0], [5.0], [1.0]]), torch.tensor([1, 0, 2])),
    )  # fmt: skip
    defense = SimpleNamespace(
        n_rounds=6, batch_size=4, sampling=sampling, clip_norm_in=lambda k: of.get("clip_norm"),
        models=lambda state: torch.tensor([[0.0, 0.0], [8.0, 9.0]]),
    )  # fmt: skip
    graph = SimpleNamespace(n_edges=5, n_agents=3)
    setting = SimpleNamespace(d=7, network=SimpleNamespace(at=lambda k: graph))
    coupled: Any = SimpleNamespace(
        defense=defense, setting=setting, victim=1, classification=classification,
        streams=lambda name: name, own=lambda sent: sent,
    )  # fmt: skip
    one = RoundExamination(
        coupled, of.get("restarts", 0), of.get("steps", 0), of.get("briefly", False)
    )
    return RoundPair(one, "state", 2, NOTHING, "add-remove", norm, of.get("clips", False))


@pytest.mark.parametrize(
    ("norm", "sampling", "clip_norm", "record", "most"),
    [
        (2, True, 1.0, 1.0, inf),
        (2, True, None, 1.0, 3.0),
        (1, True, None, 1.0, 6.0),
        (2, False, None, None, 3.0),
        (2, False, 1.0, None, inf),
    ],
)
def test_a_record_is_opposed_to_the_shortest_or_to_the_batch(
    monkeypatch, norm, sampling, clip_norm, record, most
) -> None:
    """The shortest one that has a gradient, in double; no longer than the longest."""
    pair = a_pair(norm, clip_norm=clip_norm)
    asked: list[Any] = []

    def world(record: Any, alone: bool = False) -> Any:
        asked.append((record and (record.input.tolist(), int(record.label)), alone))
        return SimpleNamespace(oracle="oracle")

    pair._world = world  # type: ignore[method-assign,assignment]
    monkeypatch.setattr(examination, "Outweighing", lambda *of: ("opposed", *of))
    monkeypatch.setattr(examination, "VacantPlace", lambda *of: ("vacant", *of))
    monkeypatch.setattr(examination, "replace", lambda world, oracle: oracle)
    longest = Record(torch.tensor([3.0]).double(), torch.tensor(1))
    found: Any = pair._opposite(longest, sampling)
    clip = clip_norm or 0.0  # than which the record is longer
    assert found == (("vacant", "oracle", 1), ("opposed", "oracle", 1, norm, most, clip))
    assert asked == [(([1.0], 2) if sampling else None, sampling)]


@pytest.mark.parametrize(
    ("sampling", "briefly", "clips", "present", "kinds", "alone"),
    [
        ("poisson", False, False, False, ["natural", "opposite"], [False, True]),
        ("poisson", True, True, False, ["natural", "opposite"], [False]),
        ("fixed", False, False, False, ["natural", "opposite"], [False]),
        ("fixed", False, True, False, ["natural", "opposite", "stretched"], [False]),
        ("fixed", False, True, True, ["natural", "stretched"], [False]),
    ],
)
def test_pairs_are_of_records_in_the_batch_and_alone(
    sampling, briefly, clips, present, kinds, alone
) -> None:
    pair = a_pair(sampling=sampling, briefly=briefly, clips=clips)
    pair.present = "here" if present else None  # type: ignore[assignment]
    pair._world = lambda record, by_itself=False: (record, by_itself)  # type: ignore[method-assign,assignment,return-value]
    opposed: list[Any] = []
    pair._opposite = lambda record, sampled: (opposed.append((record, sampled)), "opposed")  # type: ignore[method-assign,assignment,return-value]
    pair.__dict__["_of_length"] = ["lengths"] if clips else []
    found: Any = pair._pairs({"natural": "longest"})  # type: ignore[dict-item]
    assert list(found) == kinds
    assert found["natural"] == [((pair.present, by), ("longest", by)) for by in alone]
    pair._pairs({"natural": "longest"})  # type: ignore[dict-item]
    assert opposed == ([] if present else [("longest", sampling == "poisson")])
    pair.lag = 1
    pair._pairs({"natural": "longest"})  # type: ignore[dict-item]
    assert len(opposed) == (0 if present else 2)


def test_lengths_are_tried_of_the_longest_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = a_pair(1, clip_norm=2.5)
    pair.examination.silent = True
    pair._world = lambda record, alone=False: f"world of {record}"  # type: ignore[method-assign,assignment,return-value]
    missing: str | None = "what is missing"
    asked: list[Any] = []

    def longest(coupled: Any, without: Any, towards: Tensor, *of: Any) -> Any:
        asked.append((without, towards.tolist(), *of))
        return ["pairs"], missing

    monkeypatch.setattr(examination, "longest_moving", longest)
    assert pair._of_length == ["pairs"]
    assert asked == [("world of None", [3.0, 0.0], 2.5, 1, False, True)]
    assert list(pair.examination.unclear) == [missing]
    other, missing = a_pair(), None
    other.present, other._world = "here", pair._world  # type: ignore[assignment,method-assign]
    assert other._of_length == ["pairs"]
    assert asked[-1][2:] == (None, 2, True, False)
    assert other.examination.unclear == {}


def test_candidates_are_measured_as_parts_of_their_bounds(monkeypatch: Any) -> None:
    """Of five starts two at a time; a message with the bound 0 is left out of the sum."""
    pair = a_pair(restarts=5, steps=3)
    pair.lag, pair.examination.silent = 1, True
    bounds = {"x": Stated(2, 4.0), "z": Stated(2, 0.0)}
    asked: list[Any] = []

    def stated(k: int, change: str, sent: Any) -> Any:
        asked.append((k, change, sorted(sent)))
        return bounds

    pair.examination.stated = stated  # type: ignore[method-assign,assignment]
    here = {"x": vector(1.0, 0.0)[None], "y": vector(0.0, 0.0)[None], "z": vector(0.0)[None]}
    pair._world = lambda record, alone=False: SimpleNamespace(  # type: ignore[method-assign,assignment,return-value]
        play=lambda silent: SimpleNamespace(sent=here if silent else None)
    )
    pair.__dict__["_kept"] = lambda oracle: ("kept", oracle)
    monkeypatch.setattr(examination, "placed", lambda oracle, victim, record: (victim, record))
    monkeypatch.setattr(examination, "AT_ONCE", 2 * 8 * 7 + 5)
    monkeypatch.setattr(examination, "Candidates", lambda *of: of)
    monkeypatch.setattr(examination, "stacked", lambda state, m: (state, m))

    class World:
        def __init__(self, coupled: Any, state: Any, k: int, oracle: Any, lag: int) -> None:
            (kept, (victim, record)), own, self.inputs, labels = oracle
            assert (state, k, lag, kept, record) == (("state", len(labels)), 2, 1, "kept", None)
            assert victim == own == 1

        def play(self, silent: bool) -> Any:
            x = self.inputs[:, :1]
            flat = torch.zeros_like(x)
            sent = {
                "x": torch.cat([1 + 3 * x, 4 * x], 1)[:, None],
                "y": torch.cat([flat, 2 * x], 1)[:, None], "z": (9 * x)[:, None],
            }  # fmt: skip
            return SimpleNamespace(sent=sent)

    monkeypatch.setattr(examination, "PlayedWorld", World)
    begin = torch.tensor([[1.0], [-4.0], [2.0], [0.5], [3.0]]).double()
    labels = torch.arange(5)

    def starts(record: Any, restarts: int, dataset: Any, generator: Any) -> Any:
        assert (record, restarts, generator) == ("record", 5, "optimised neighbour")
        return begin, labels

    def ascent(value: Any, inputs: Tensor, value_range: Any, steps: int) -> Any:
        asked.append((value(inputs).tolist(), value_range, steps))
        return inputs + 10, value(inputs)

    monkeypatch.setattr(examination, "starts", starts)
    monkeypatch.setattr(examination, "ascent", ascent)
    found = pair.optimised("record")  # type: ignore[arg-type]
    assert (found.input.tolist(), int(found.label)) == ([6.0], 1)
    size = [5 / 4 * abs(x) + 2 * abs(x) for x in (1.0, -4.0, 2.0, 0.5, 3.0)]
    whole = ((-1.0, 2.0), 3)
    assert asked == [
        (3, "add-remove", ["x", "y", "z"]),
        (size[:2], *whole), (size[2:4], *whole), (size[4:], *whole),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("families", "bare", "norms", "expected"),
    [
        (["gaussian"], [], [1.0], (2, False)),
        (["gaussian", "laplace"], [], [1.0], (1, False)),
        ([], ["per_record"], [1.0], (2, True)),
        ([], [], [1.0, 2.0], (2, True)),
    ],
)
def test_a_step_is_asked_for_its_norm_and_its_clip(
    monkeypatch, families, bare, norms, expected
) -> None:
    pair = a_pair()
    asking = SimpleNamespace(bare=bare, answers={(C, 2, None): [] for C in norms})
    monkeypatch.setattr(
        examination, "KeptAnswers", SimpleNamespace(of=lambda oracle, shared: asking)
    )
    draws = [SimpleNamespace(family=family) for family in families]
    pair.examination.coupled.play = lambda state, k, oracle: SimpleNamespace(draws=draws)  # type: ignore[method-assign,assignment,misc]
    assert pair.examination.asked("state", 2, NOTHING) == expected


def test_a_world_of_another_function_goes_on_by_what_was_sent(monkeypatch: Any) -> None:
    """From its own state, else from the observed one's; else it is the observed world's."""
    one = a_pair().examination
    states = {"own a": "replayed", "own b": None, "state": "from the state", "own c": None}
    asked: list[Any] = []

    def replayed(state: str, k: int, oracle: Any, sent: str) -> Any:
        asked.append((state, oracle[2]))
        return None if (state, oracle[2]) == ("state", "slope c") else states[state]

    one.coupled.oracle, one.coupled.replayed = lambda k: f"oracle {k}", replayed  # type: ignore[method-assign,assignment,return-value]
    monkeypatch.setattr(examination, "FunctionChange", lambda *of: of)
    monkeypatch.setattr(
        examination, "PlayedWorld",
        lambda coupled, state, k, oracle: SimpleNamespace(
            state=state, oracle=oracle, noisy=SimpleNamespace(sent="sent", state="observed")
        ),
    )  # fmt: skip
    monkeypatch.setattr(
        RoundExamination, "compare", lambda self, here, there, change: there.state == "own b"
    )
    monkeypatch.setattr(
        RoundExamination, "judged", lambda self, k, pairs, change, norm: [(k, change, norm, *pairs)]
    )
    slopes: Any = {name: f"slope {name}" for name in "abc"}
    rows, after = one.function("state", 3, {name: f"own {name}" for name in "abc"}, slopes)
    assert rows == [(3, "function", 1, "a", "b", "c")]  # type: ignore[comparison-overlap]
    assert after == {"a": "replayed", "b": "from the state", "c": "observed"}
    assert asked == [
        ("own a", "slope a"), ("own b", "slope b"), ("state", "slope b"),
        ("own c", "slope c"), ("state", "slope c"),
    ]  # fmt: skip
    assert one.silent


def test_a_batch_of_another_size_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    one = a_pair().examination
    monkeypatch.setattr(examination, "PlayedWorld", lambda *of: of)
    monkeypatch.setattr(examination, "examine_order", lambda world: (["order"], ["law"]))
    oracle: Any = SimpleNamespace(batch_size=4)
    one._check("state", 2, oracle)
    assert (list(one.found), list(one.unclear)) == (["order"], ["law"])
    oracle.batch_size = 5
    one._check("state", 2, oracle)
    assert list(one.found)[-1].endswith("in round 2 by 5, where the public batch size is 4")


@pytest.mark.parametrize(
    ("clips", "clip_norm", "still", "k", "lag"),
    [
        (True, 1.0, False, 2, 0),
        (True, None, False, 2, 0),
        (False, 1.0, False, 2, 0),
        (False, 1.0, True, 2, 1),
        (False, 1.0, True, 6, 0),
    ],
)
def test_records_of_a_round_are_played_with_few_gradients(
    monkeypatch, clips, clip_norm, still, k, lag
) -> None:
    """Of a batch of three: with 0, 1 and 2 others that have a gradient, and with as many alike."""
    labels = torch.zeros(4, 3)
    coupled: Any = SimpleNamespace(
        victim=1, kept_batches=lambda k: SimpleNamespace(batch=SimpleNamespace(labels=labels)),
        defense=SimpleNamespace(n_rounds=6, clip_norm_in=lambda k: clip_norm),
    )  # fmt: skip
    judged, compared, aligned = list[Any](), list[Any](), list[Any]()
    own: Any = SimpleNamespace(
        coupled=coupled, unclear={}, silent=False, asked=lambda *_: (1, clips),
        compare=lambda one, other, change: compared.append((one, other)) or True,
        judged=lambda k, kinds, change, norm: judged.append((k, kinds, norm)) or [row],
    )  # fmt: skip

    class World(str):
        def later(self) -> "World":
            return World(f"{self} later")

    row = SimpleNamespace(counts=True)
    monkeypatch.setattr(
        unseen_inputs, "RoundPair", lambda *of: SimpleNamespace(norm=of[5], clips=of[6])
    )
    monkeypatch.setattr(unseen_inputs, "KeptAnswers", SimpleNamespace(of=lambda oracle: oracle))
    monkeypatch.setattr(unseen_inputs, "_of_first", lambda oracle, victim, m: f"few {m}")
    monkeypatch.setattr(
        unseen_inputs, "RepeatedGradient", lambda oracle, victim, gradient, m: f"alike {m}"
    )
    monkeypatch.setattr(
        unseen_inputs, "replace", lambda one, times: f"{one} and {times:g} times it"
    )
    monkeypatch.setattr(unseen_inputs, "_moves", lambda pair: {} if still else {"x": 1.0})
    monkeypatch.setattr(unseen_inputs, "_furthest", lambda pairs: pairs)
    monkeypatch.setattr(unseen_inputs._Round, "_gradient", lambda self, pair: 2.0)
    monkeypatch.setattr(
        unseen_inputs._Round, "_added",
        lambda self, oracle, gradient: (World(f"{oracle}"), World(f"{oracle} + {gradient:g}")),
    )  # fmt: skip
    monkeypatch.setattr(
        unseen_inputs._Round,
        "_align",
        lambda self, usual, pairs: aligned.append((usual[0], dict(pairs))),
    )
    monkeypatch.setattr(unseen_inputs._Round, "_fickle", lambda self, usual: ("fickle", "pair"))
    turned = [(f"{kind} -> 0", f"{kind} -> -1") for kind in ("last", "first")]
    monkeypatch.setattr(
        unseen_inputs._Round, "_turned",
        lambda self, oracle, gradient, n, long: (
            (n, long) == (3, clips and clip_norm is not None) and [(World(a), World(b)) for a, b in turned]
        ),
    )  # fmt: skip
    assert list(unseen_inputs._Round(own, "state", k, "add-remove").rows()) == [row]
    is_far = clips and clip_norm is not None
    pairs = [(f"few {m}", f"few {m} + 2") for m in (0, 1, 2)]
    alike = [(f"alike {m}", f"alike {m} + 2") for m in (1, 2)]
    far = [(f"alike {m} and 1e+06 times it",) * 2 for m in (1, 2) if is_far]
    far = [(one, f"{other} + 2e+06") for one, other in far]
    every = [*pairs, *alike, *far, *turned, ("few 0", "few 1"), ("few 1", "few 2")]
    if lag:
        every = [(f"{one} later", f"{other} later") for one, other in every]
    assert compared == every
    assert own.silent
    assert judged == [(k + lag, {"few": every}, 1), (k, {"few": [("fickle", "pair")]}, 1)]
    assert list(own.unclear) == [unseen_inputs.MOVED]
    assert [usual for usual, _ in aligned] == ["few 2"] * 5
    assert [found for _, found in aligned[3:]] == [{unseen_inputs.TURNED: pair} for pair in turned]
    assert list(aligned[0][1]) == [unseen_inputs.FEW.format(m, 3) for m in (0, 1, 2)]
    assert aligned[1][1] == dict(
        zip([unseen_inputs.ALIKE.format(m, 3) for m in (1, 2)], alike, strict=True)
    )
    assert list(aligned[2][1]) == [unseen_inputs.FAR_OUT.format(m, 3) for m in (1, 2) if is_far]
    row.counts = False
    own.unclear.clear()
    list(unseen_inputs._Round(own, "state", k, "add-remove").rows())
    assert own.unclear == {}


@pytest.mark.parametrize(("clips", "others", "turned"), [(True, 100.0, -1e4), (False, 1.0, -1.0)])
def test_one_record_turns_against_all_others(clips: bool, others: float, turned: float) -> None:
    """The last one of four, and the first: of others so many times as long, or not there."""
    each = torch.zeros(1, 4, 1).double()
    oracle: Any = SimpleNamespace(per_record=lambda X, holders, own: each, batch_size=4)
    coupled: Any = SimpleNamespace(victim=0)
    round = unseen_inputs._Round(SimpleNamespace(coupled=coupled), "state", 1, "add-remove")  # type: ignore[arg-type]
    found = [
        [world.oracle.per_record(torch.zeros(1, 1)).flatten().tolist() for world in pair]
        for pair in round._turned(oracle, vector(2.0), 4, clips)
    ]
    rest = [2 * others] * 3
    assert found == [
        [[*rest, 0.0], [*rest, 2 * turned]],
        [[0.0, *rest], [2 * turned, *rest]],
    ]


def test_a_record_counts_once_whatever_stood_in_its_place(monkeypatch: Any) -> None:
    monkeypatch.setattr(worlds, "replace", lambda one, batch: SimpleNamespace(batch=batch))
    weights = torch.tensor([[0.5, 1.0], [0.0, 1.0]])
    oracle: Any = SimpleNamespace(batch=Batch(torch.zeros(2, 2, 1), torch.zeros(2, 2), weights))
    record = Record(torch.tensor([3.0]), torch.tensor(7.0))
    batch = worlds.placed(oracle, 1, record).batch
    assert batch.weights is not None
    assert batch.weights.tolist() == [[0.5, 1.0], [1.0, 1.0]]
    assert (float(batch.inputs[1, 0]), float(batch.labels[1, 0])) == (3.0, 7.0)
    none = worlds.placed(oracle, 0, None, alone=True).batch
    assert none.weights is not None
    assert none.weights.tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_a_world_is_moved_where_any_message_is_another() -> None:
    """By the noise that carries its name; without a scale there is none."""
    asked: list[Any] = []

    class Coupled(worlds.CoupledWorlds):
        def play(self, state: Any, k: int, oracle: Any, **of: Any) -> Any:
            moves = of.get("moves") or {}
            asked.append({name: move.tolist() for (_, name), move in moves.items()})
            sent = {
                name: SimpleNamespace(payload=vector(1.0) + moves.get((k, name), 0.0))
                for name in ("x", "y", "u")
            }
            draws = [SimpleNamespace(stream=n, scale=s) for n, s in (("x", 1.0), ("y", 1.0), ("u", vector(1.0, 0.0)))]  # fmt: skip
            return SimpleNamespace(sent=sent, draws=draws, state="after")

    own: Any = object.__new__(Coupled)

    def observed(**of: float) -> Any:
        return {name: SimpleNamespace(payload=vector(x)) for name, x in of.items()}

    assert own.replayed("state", 2, None, observed(x=3.0, y=1.0, u=1.0)) == "after"
    assert asked == [{}, {"x": [2.0], "y": [0.0]}]
    assert own.replayed("state", 2, None, observed(x=1.0, y=1.0, u=1.0)) == "after"
    assert len(asked) == 3
    assert own.replayed("state", 2, None, observed(x=3.0, y=1.0, u=2.0)) is None


def test_batches_of_local_steps_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    batch = Batch(torch.zeros(2, 3, 1), torch.zeros(2, 3))

    def draw(s: int) -> Batch:
        drawn.append(s)
        return Batch(torch.full((2, 3, 1), float(s)), torch.zeros(2, 3))

    own = KeptAnswers(NOTHING, batch, 3, None, draw)
    assert own.at_step(0) is own
    assert drawn == []
    one: Any = own.at_step(1)
    assert own.at_step(1) is one
    assert float(own.at_step(2).batch.inputs[0, 0]) == 2.0
    assert drawn == [1, 2]
    assert one.bare is own.bare
    alone = KeptAnswers(NOTHING, batch, 3)
    assert alone.at_step(1) is alone


def row(moved: dict[str, float], **of: Any) -> Row:
    about = {"message": "x", "round": 3, "norm": 2, "stated": 2.0, "tolerance": 0.5, **of}
    return Row(moved=moved, **about)


def test_notes_say_how_a_message_moves_and_why_it_counts() -> None:
    own = Sensitivity()
    plain = row({"natural": 1.0, "mislabelled": 1.5})
    said = list(own._notes(plain, "add-remove", False, False, 4))
    assert said[0] == "L2 norm, agent 4 is the victim; worst in round 3 by mislabelled"
    assert said[1:3] == [
        attack.PAIRED["add-remove"], attack.NEIGHBOURS.format(restarts=16, steps=40),
    ]  # fmt: skip
    assert said[3:] == ["a bound counts as exceeded by more than 0.5, from rounding"]
    other = row({"stretched": 9.0}, stated=None, agent=7, norm=1, processed=True, by_releases=True)
    said = list(own._notes(other, "function", True, True, 4))
    assert said[0] == "L1 norm, agent 7 is the victim; worst in round 3 by stretched"
    assert said[1:3] == [attack.PAIRED["replace-one"], attack.STRETCHED]
    starts = ("the claim covers", "it is the same with", "it moves further", "this bound is")
    assert all(note.startswith(start) for note, start in zip(said[3:], starts, strict=True))
    agents = list(own._notes(row({"two agents": 1.0}), "agent-identity", False, False, 4))
    assert agents[0] == "L2 norm; worst in round 3 by two agents"
    hidden = own._finding([row({"natural": 1.0}, noiseless=True)], "add-remove", False, 0)
    clear = own._finding([row({"natural": 9.0})], "add-remove", False, 0)
    assert [any("nothing hides it" in n for n in f.notes) for f in (hidden, clear)] == [True, False]
    noisy = own._finding(
        [row({"natural": 1.0}, noiseless=True, processed=True)], "add-remove", False, 0
    )
    assert not any("nothing hides it" in note for note in noisy.notes)
    assert Sensitivity.per_threat_model is False
    short = Row("x", 1, 2, {"natural": 1.0}, None, 0.0)
    assert not short.counts
    assert short._replace(noiseless=True).counts
    for more, is_clear in ((0.0, False), (1e-9, True)):
        measured = 2.0 * (1 + 1e-6) + more
        assert stand_in._is_clear(row({"natural": measured}, tolerance=0.0)) is is_clear


def test_rounds_without_an_alignment_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them at most; the figure is of rounds that are all aligned."""
    coupled = SimpleNamespace(
        setting=SimpleNamespace(holders=(0, 1, 2)), victim=0, declared=lambda agent: ()
    )
    aligned: dict[Any, Any] = {("add-remove", k): f"why {k}" for k in (1, 2, 3, 4)}
    aligned["add-remove", 5] = {}
    monkeypatch.setattr(attack, "size_of_noise", lambda drawn: drawn)
    monkeypatch.setattr(attack, "_FINDING", lambda **known: SimpleNamespace(**known))
    one: Any = SimpleNamespace(coupled=coupled, aligned=aligned, drawn={"gaussian": 1})
    rounds: Any = {Name.ROUNDS: SimpleNamespace(value=7)}
    found: Any = attack._alignment(one, "add-remove", rounds)
    assert found.metrics == {**rounds, Name.NOISE_OVER_DECLARED: {"gaussian": 1}}
    assert found.rounds == (1, 2, 3, 4, 5)
    assert found.notes[0].startswith(
        "in 6 of 7 rounds no alignment says it of every agent: a gradient of 100 times the clip "
        "norm was added at all 3 agents at once"
    )
    assert "that moved 2 times as far as" in found.notes[0]
    assert [note.split(":")[0] for note in found.notes[1:]] == ["round 1", "round 2", "round 3"]
    assert "no move of noise makes why 1 the same in both runs" in found.notes[1]
