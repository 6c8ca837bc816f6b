"""What a run sent, drew and took around a round, and what runs are played beside it, by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dpaudit.capture import runs, worlds
from dpaudit.capture.runs import (
    AgentRound,
    MessageId,
    NamedDraw,
    ProgramRun,
    _own_row,
    draws_for,
    first_difference,
    numbers,
    place_of,
)
from dpaudit.capture.world_files import ReplayedNumbers
from dpaudit.capture.worlds import NeighbouringRuns
from dpaudit.errors import RunError
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import Change, World


def message(source: int, to: int, k: int, name: str = "x", nth: int = 0) -> MessageId:
    return MessageId(source, (to,), name, k, nth)


def event(sequence: int, source: int, to: tuple[int, ...] = (1,), **of: Any) -> Any:
    about = {"call_site": "x", "process": 0, "round": 1, "operator": "send", "group": (), **of}
    return SimpleNamespace(
        sequence=sequence, source=source, destinations=to, time=float(sequence), occurrence=0,
        **about,
    )  # fmt: skip


def draw(agent: int, sequence: int, k: int | None = 1, name: str = "z") -> NamedDraw:
    return NamedDraw(f"{agent}/{sequence}/{name}", name, agent, sequence, 1.0, "gaussian", k)


class Run(SimpleNamespace):
    """Of messages with their sequence, and draws and batches as sequences by agent."""

    def __init__(self, sent: dict[MessageId, int], draws: Any = (), taken: Any = (), **of: Any):
        ids = {m: event(s, m.source, m.destinations, process=of.get("process", {}).get(m, 0))
               for m, s in sent.items()}  # fmt: skip
        batches = [SimpleNamespace(agent=agent, sequence=s) for agent, s in taken]
        contents = {m: np.full(2, float(s)) for m, s in sent.items()}
        super().__init__(
            _ids=ids, messages=of.get("contents", contents), draws=list(draws), batches=batches,
            summed=of.get("summed", ()), tape={d.key: np.ones(3) for d in draws},
        )  # fmt: skip

    def span(self, agent: int, k: int) -> tuple[int, int]:
        return ProgramRun.span(self, agent, k)  # type: ignore[arg-type]

    def window(self, k: int) -> tuple[int, int]:
        return ProgramRun.window(self, k)  # type: ignore[arg-type]


TWO = {
    message(0, 1, 1): 10,
    message(1, 0, 1): 12,
    message(0, 1, 2): 20,
    message(0, 1, 2, nth=1): 24,
    message(1, 0, 3): 30,
}


@pytest.mark.parametrize(
    ("agent", "k", "span", "window"),
    [
        (0, 1, (-1, 10), (-1, 12)),
        (0, 2, (10, 24), (12, 24)),
        (1, 2, (12, -1), (12, 24)),
        (0, 3, (24, -1), (24, 30)),
        (1, 3, (12, 30), (24, 30)),
        (2, 1, (-1, -1), (-1, 12)),
    ],
)
def test_a_round_of_an_agent_ends_with_its_last_message(agent, k, span, window) -> None:
    run = Run(TWO)
    assert run.span(agent, k) == span
    assert run.window(k) == window
    assert Run(TWO, process={message(1, 0, 3): 1}).window(k) == (-1, -1)


def test_an_agent_takes_part_by_what_precedes_its_message() -> None:
    own = [draw(0, s, k) for s, k in ((5, 1), (10, 1), (11, 2), (22, 2), (24, 3))]
    other = [draw(1, 11), draw(1, 21, 2)]
    taken = [(0, 3), (1, 4), (0, 12), (0, 15), (0, 24)]
    run: Any = Run(TWO, own + other, taken)
    sent = (message(0, 1, 2), message(0, 1, 2, nth=1))
    assert place_of(run, 0, 2) == AgentRound(0, 2, sent, (own[2], own[3]), 2, 2)
    assert place_of(run, 0, 1) == AgentRound(0, 1, (message(0, 1, 1),), (own[0],), 1, 1)
    assert place_of(run, 0, 3) is None  # it sends nothing
    assert place_of(run, 1, 3) is None  # it takes no batch
    run.summed = (message(0, 1, 2),)
    summed = place_of(run, 0, 2)
    assert summed is not None
    assert summed.draws == (own[2], own[3], other[1])
    run.draws = [*other, *own]
    assert place_of(run, 0, 2) == summed
    edges: Any = Run(TWO, [draw(0, 20, 2), draw(0, 24, 2)], [(0, 10), (0, 24), (0, 23)])
    assert place_of(edges, 0, 2) == AgentRound(0, 2, sent, (draw(0, 20, 2),), 3, 1)


def test_noise_for_a_round_is_drawn_before_its_messages() -> None:
    """Agent 2 never sends, and agent 1 not in round 2."""
    own = [draw(0, 5), draw(0, 15, 2), draw(0, 26, 3)]
    silent = [draw(2, 11, 1), draw(2, 13, None), draw(2, 40, 2), draw(2, 24, None)]
    asleep = [draw(1, 11, 1), draw(1, 14, None), draw(1, 28, 3)]
    run: Any = Run(TWO, silent + own + asleep)
    assert draws_for(run, 2) == (own[1], asleep[1], silent[1], silent[2])
    apart: Any = Run(TWO, silent + own + asleep, process={message(1, 0, 3): 1})
    assert draws_for(apart, 2) == (own[1], silent[2])


def test_messages_until_a_round_count_those_that_are_ignored() -> None:
    sent = [(0, "x", 1), (0, "y", None), (1, "x", 1), (0, "x", 2), (1, "y", None), (1, "x", 3)]
    of: Any = SimpleNamespace(
        _all=[event(i, a, call_site=s, round=k) for i, (a, s, k) in enumerate(sent)],
        _options=SimpleNamespace(ignore=("y",)),
    )
    assert ProgramRun.sent_until(of, 1) == {0: 1, 1: 1}
    assert ProgramRun.sent_until(of, 2) == {0: 3, 1: 1}
    assert ProgramRun.sent_until(of, 3) == {0: 3, 1: 3}


def test_what_an_agent_knew_was_sent_before() -> None:
    last = event(4, 0)
    others = [event(1, 2, (0, 3)), event(2, 0, (2,)), event(3, 2, (3,)), event(3, 0, call_site="y")]
    of: Any = SimpleNamespace(
        _ids={message(0, 1, 1): last}, _all=[*others, last, event(5, 0)], _content=lambda e: e.time
    )
    found = ProgramRun.known_before(of, message(0, 1, 1), "x")
    assert found == [(others[0], 1.0), (others[1], 2.0)]


@pytest.mark.parametrize(
    ("given", "of", "cut"),
    [
        ({0: 2, 1: 1}, 1, True),
        ({0: 2, 1: 2}, 1, False),
        ({0: 1, 1: 1}, 1, False),  # no sum of this line is whole
        ({0: 2, 1: 1, 2: 1}, 1, False),  # nor was this the last
        ({0: 2}, 0, False),
        ({0: 1}, 0, False),
    ],
)
def test_a_last_sum_may_be_cut_off(given: dict[int, int], of: int, cut: bool) -> None:
    line = ("all_reduce", (0, 1), "x")
    last = event(9, 0, operator="all_reduce", group=(0, 1))
    last.occurrence = of
    run: Any = SimpleNamespace(
        _together={(*line, i): [None] * n for i, n in given.items()}, _is_summed=lambda e: True
    )
    assert ProgramRun._is_cut_off(run, last) is cut
    run._is_summed = lambda e: False
    assert not ProgramRun._is_cut_off(run, last)


def test_a_sum_is_of_all_ranks() -> None:
    both = [event(i, i, operator="all_reduce", group=(0, 1)) for i in range(2)]
    line = ("all_reduce", (0, 1), "x", 0)
    run: Any = SimpleNamespace(
        _together={line: both}, _sent=lambda e: [torch.tensor([[1.0, e.source]]), torch.ones(1)]
    )
    assert ProgramRun._summed(run, both[0]).tolist() == [2.0, 1.0, 2.0]
    run._together = {line: both[:1]}
    with pytest.raises(RunError, match="1 of 2 ranks contribute"):
        ProgramRun._summed(run, both[0])


def test_a_row_of_a_padded_stack_is_its_ranks() -> None:
    one = event(0, 5, group=(3, 5))
    assert _own_row(one, torch.tensor([[0.0, 0.0], [1.0, 2.0]])).tolist() == [1.0, 2.0]
    for stack in (torch.tensor([[1.0], [2.0]]), torch.zeros(3, 1), torch.zeros(1, 2)):
        with pytest.raises(RunError, match="expects 2 rows"):
            _own_row(one, stack)


def test_draws_with_a_scale_of_a_known_law_are_noise() -> None:
    def drawn(operator: str, *parameters: float | None, agent: int | None = 1) -> Any:
        return SimpleNamespace(
            rank=agent, call_site="z", parameters=parameters, operator=operator, occurrence=4,
            sequence=7, round=2,
        )  # fmt: skip

    every = [
        drawn("gaussian", 0.0, 3.0), drawn("laplace", None, 2.0), drawn("uniform", 0.0, 1.0),
        drawn("gaussian", 0.0), drawn("gaussian"), drawn("gaussian", 0.0, 1.0, agent=None),
        drawn("gaussian", 5.0, None),
    ]  # fmt: skip
    of: Any = SimpleNamespace(all_draws=every)
    found = ProgramRun.draws.func(of)  # type: ignore[attr-defined]
    assert found == [
        NamedDraw("1/4/z", "z", 1, 7, 3.0, "gaussian", 2),
        NamedDraw("1/4/z", "z", 1, 7, 2.0, "laplace", 2),
    ]


def test_two_runs_differ_first_in_what_one_alone_has() -> None:
    a, b, c = (message(0, 1, k) for k in (1, 2, 3))

    def run(**contents: list[float]) -> Any:
        names = {"a": a, "b": b, "c": c}
        return SimpleNamespace(messages={names[n]: np.array(v) for n, v in contents.items()})

    one = run(a=[1.0], b=[2.0, float("nan")])
    assert first_difference(one, run(a=[1.0], b=[2.0, float("nan")])) is None
    assert first_difference(one, run(a=[1.0], b=[2.0, 3.0])) == b
    assert first_difference(one, run(a=[1.0], b=[2.0])) == b
    assert first_difference(one, run(b=[2.0, float("nan")])) == a
    assert first_difference(one, run(a=[1.0], b=[2.0, float("nan")], c=[0.0])) == c
    assert first_difference(one, run(a=[0.0], b=[0.0]), [b]) == b
    assert first_difference(one, run(a=[0.0], b=[2.0, float("nan")]), [b]) is None
    assert first_difference(one, one, [c]) == c


def test_a_record_changes_in_all_batches_that_hold_it() -> None:
    own = [("a", "b"), ("c", "a"), ("b", "c"), ("a", "c")]
    place = AgentRound(7, 2, (), (), 2, 3)
    found = worlds._record_in(own, place, ("a", "b"), True)
    assert found == {"record": 1, "digest": "a", "again": ((4, 0),)}
    assert worlds._record_in(own, place, ("z",), True)["digest"] == "c"
    assert worlds._record_in(own, place, ("a", "b"), False) == {
        "record": 0, "digest": None, "again": (),
    }  # fmt: skip
    placed = place._replace(**found)
    assert placed.changes("absent") == (
        Change(agent=7, batch=2, how="absent", record=1),
        Change(agent=7, batch=4, how="absent", record=0),
    )
    later = worlds._later(placed, own)
    assert (later.batch, later.n_batches, later.record, later.digest) == (3, 2, 0, "b")
    assert later.again == ()
    assert placed.owners_of(draw(7, 3)) == {7}
    shared = placed._replace(owners={"7/3/z": frozenset({1, 7})})
    assert shared.owners_of(draw(7, 3)) == {1, 7}


@pytest.mark.parametrize(
    ("second", "digests"),
    [(("c", "a"), ["a", "a"]), (("c", "a", "c"), [None, None]), ((), [None, None])],
)
def test_a_record_has_a_digest_where_no_batch_repeats_one(second: Any, digests: Any) -> None:
    """Of two rounds, the batches of which begin with the first; that of no round is left out."""
    own = [("a", "b"), second, ("z", "z")]
    plain: Any = Run({message(7, 1, 1): 2, message(7, 1, 2): 4})
    plain.batches = [
        SimpleNamespace(agent=7, sequence=2 * i + 1, digests=batch) for i, batch in enumerate(own)
    ]
    config: Any = SimpleNamespace(record=SimpleNamespace(victims=(7,), rounds=(1, 2)))
    found = worlds._records(config, plain)
    assert [*found] == [(7, 1), (7, 2)]
    assert [of["digest"] for of in found.values()] == digests


def test_each_draw_is_left_out_and_signed_for_all_victims() -> None:
    places = [
        AgentRound(0, 1, (), (draw(0, 1), draw(0, 2)), 1),
        AgentRound(1, 1, (), (draw(1, 5),), 1),
    ]
    found = list(worlds.perturbed(places, 2))
    keys = [("0/1/z", "1/5/z"), ("0/2/z",)]
    assert found == [
        way
        for own in keys
        for way in (
            {"silent": own}, {"signs": own, "sign_seed": 0}, {"signs": own, "sign_seed": 1},
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("draws", "k", "hiding"),
    [
        ([draw(0, 5)], 1, set()),  # for the round itself
        ([draw(0, 5)], 2, {0}),  # three numbers, of which two are sent
        ([draw(0, 5, name="y")], 2, set()),
        ([draw(1, 11)], 2, {1}),
        ([draw(1, 13)], 2, set()),  # after all messages of the rounds before
        ([draw(2, 11)], 2, {2}),
        ([draw(2, 13)], 2, set()),
        ([draw(0, 5)], 3, set()),
        ([draw(0, 5), draw(0, 15)], 3, set()),
        ([draw(0, 5), draw(0, 6), draw(0, 15)], 3, {0}),
    ],
)
def test_more_noise_than_was_sent_may_hide_a_message(draws, k, hiding) -> None:
    run: Any = Run(TWO, draws)
    assert worlds.hiding_before(run, ("z",), k) == hiding
    same = {m: np.zeros(2) for m in TWO}  # one content, which is known after one message
    alike: Any = Run(TWO, [draw(0, 5), draw(0, 15)], contents=same)
    assert worlds.hiding_before(alike, (), 3) == {0}


def neighbours(**of: Any) -> Any:
    place = AgentRound(0, 2, (message(0, 1, 2), message(0, 2, 2, "y")), (), 1)
    runs = {0: {"present": None, "absent": None, "scaled": None, "negated": None}}
    return NeighbouringRuns({0: place}, {}, runs, of.get("base"))  # type: ignore[arg-type]


def test_pairs_are_with_and_without_or_of_two_records() -> None:
    assert neighbours().pairs("add-remove") == [
        ("absent", "present"), ("absent", "scaled"), ("absent", "negated"),
    ]  # fmt: skip
    assert neighbours().pairs("replace-one") == [
        ("present", "scaled"), ("present", "negated"), ("scaled", "negated"),
    ]  # fmt: skip


def test_an_adversary_reads_what_is_sent_to_it() -> None:
    of = neighbours(base=SimpleNamespace(messages=[
        message(1, 0, 1), message(1, 0, 2), message(1, 2, 2), message(1, 0, 3)
    ]))  # fmt: skip
    view = ThreatModel(name="view", kind="curious", agents=(1,))
    assert of.read(0, view, None) == [message(0, 1, 2)]
    assert of.read(0, view, "y") == of.read(3, view, None) == []
    everything = ThreatModel(name="all")
    assert of.read(0, everything, "y") == [message(0, 2, 2, "y")]
    place = of.places[0]
    assert list(of._before(place)) == [message(1, 0, 1), message(1, 0, 2)]
    alone = place._replace(messages=place.messages[:1])
    assert list(of._before(alone)) == [message(1, 0, 1)]


def test_draws_of_one_agent_may_move_messages_of_another() -> None:
    """Draws without the victim's own, and those of others left out, in runs beside the first."""
    own, other = message(0, 1, 2), message(3, 1, 2)
    places = {0: AgentRound(0, 2, (own,), (draw(0, 1),), 1)}

    def run(**moved: float) -> Any:
        sent = {own: moved.get("own", 1.0), other: moved.get("other", 1.0)}
        return SimpleNamespace(messages={m: np.array([v]) for m, v in sent.items()})

    def shared(without: Any, *quiet: Any, foreign: tuple[str, ...] = ("3/1/z",)) -> bool:
        runs = [without, run(own=2.0, other=2.0), run(own=3.0, other=3.0), *quiet]
        return worlds._agents_share(run(), places, {0: foreign}, runs, 1)

    assert not shared(run(own=0.0), run(other=0.0))
    assert shared(run(own=0.0, other=0.0), run(other=0.0))
    assert shared(run(own=0.0), run(own=0.0))
    assert not shared(run(own=0.0), foreign=())


def test_a_victim_is_idle_where_no_change_moves_its_messages() -> None:
    own = message(0, 1, 2)
    place = AgentRound(0, 2, (own,), (), 1, 2)

    def run(value: float) -> Any:
        return SimpleNamespace(messages={own: np.array([value])})

    assert worlds._idle({0: place}, run(1.0), [run(1.0), run(1.0)]) == [0]
    assert worlds._idle({0: place}, run(1.0), [run(1.0), run(2.0)]) == []
    assert worlds._idle({0: place._replace(n_batches=1)}, run(1.0), [run(1.0)]) == []


def test_replayed_numbers_are_in_units_of_the_stated_scale(tmp_path: Path) -> None:
    """The draw d is that of c, which is less that of a; e is nowhere."""
    tape = {key: torch.full((2, 2000), 5.0) for key in "abcdgln"}
    save_file(tape, tmp_path / "tape")
    same: Any = {"c": ("a", -1), "d": ("c", 1), "e": ("n", 1), "f": ("missing", 1)}
    world = World(
        out=tmp_path, tape=tmp_path / "tape", same=same, silent=("b",), signs=("a",),
        fresh={"g": "gaussian", "l": "laplace", "missing": "gaussian"}, sign_seed=1, noise_seed=2,
    )  # fmt: skip
    numbers = ReplayedNumbers(world)
    found = numbers.standard()
    assert [*found] == ["a", "b", "c", "d", "g", "l"]
    assert {tuple(v.shape) for v in found.values()} == {(2, 2000)}
    assert not found["b"].any()
    assert torch.equal(found["a"].abs(), torch.ones(2, 2000).double())
    assert abs(found["a"].mean()) < 0.12  # of 4,000 signs, by 7 standard deviations
    assert torch.equal(found["c"], -found["a"])
    assert torch.equal(found["d"], -found["a"])
    assert found["g"].square().mean().item() == pytest.approx(1.0, abs=0.16)  # as many
    assert found["l"].abs().mean().item() == pytest.approx(1.0, abs=0.11)  # as many
    assert found["l"].square().mean().item() == pytest.approx(2.0, abs=0.5)  # as many
    alike = numbers.same()
    assert {key: float(v[0, 0]) for key, v in alike.items()} == {"c": -5.0, "d": -5.0, "e": 5.0}
    other = ReplayedNumbers(world.model_copy(update={"sign_seed": 3, "noise_seed": 2})).standard()
    assert not torch.equal(other["a"], found["a"])
    assert torch.equal(other["g"], found["g"])
    assert ReplayedNumbers(World(out=tmp_path)).standard() == {}


def test_messages_have_numbers_of_their_own_in_a_round() -> None:
    sent = [event(0, 0, round=None), event(1, 0), event(2, 0, (2,)), event(3, 0), event(4, 0, round=2),
            event(5, 0, call_site="y"), event(6, 0)]  # fmt: skip
    of: Any = SimpleNamespace(_all=sent, _options=SimpleNamespace(ignore=("y",)))
    ids = ProgramRun._ids.func(of)  # type: ignore[attr-defined]
    assert {m: e.sequence for m, e in ids.items()} == {
        message(0, 1, 1): 1, message(0, 2, 1): 2, message(0, 1, 1, nth=1): 3, message(0, 1, 2): 4,
        message(0, 1, 1, nth=2): 6,
    }  # fmt: skip
    assert [str(m) for m in (message(0, 1, 1), message(0, 1, 1, nth=2))] == [
        '"x" of round 1 from agent 0 to 1', '"x" (number 3 of it) of round 1 from agent 0 to 1'
    ]  # fmt: skip
    assert str(MessageId(3, (1, 2), "x", 1)).endswith("from agent 3 to 1, 2")
    assert str(MessageId(3, (), "x", 1)).endswith("from agent 3 to nobody")
    of._ids = {message(5, 2, 1): None, message(2, 7, 4): None}
    assert ProgramRun.agents.fget(of) == [2, 5, 7]  # type: ignore[attr-defined]
    assert ProgramRun.n_rounds.fget(of) == 4  # type: ignore[attr-defined]
    of._ids = {}
    assert ProgramRun.n_rounds.fget(of) == 0  # type: ignore[attr-defined]
    view = ThreatModel(name="view", kind="curious", agents=(2,))
    assert MessageId(3, (1, 2), "x", 1).read_by(view)
    assert not MessageId(3, (1,), "x", 1).read_by(view)


@pytest.mark.parametrize(
    ("reductions", "operator", "content"),
    [
        ("sum only", "all_reduce", "the sum"),
        ("sum only", "send", [1.0, 2.0, 3.0]),
        ("rows of a padded stack", "all_reduce", [3.0]),
        ("rows of a padded stack", "send", [1.0, 2.0, 3.0]),
        ("whole", "all_reduce", [1.0, 2.0, 3.0]),
    ],
)
def test_others_see_a_reduction_as_the_options_say(
    monkeypatch, reductions, operator, content
) -> None:
    monkeypatch.setattr(runs, "_own_row", lambda event, stack: stack[-1:])
    of: Any = SimpleNamespace(
        _options=SimpleNamespace(reductions=reductions), _summed=lambda event: "the sum",
        _sent=lambda event: [torch.tensor([[1.0], [2.0], [3.0]])],
    )  # fmt: skip
    of._is_summed = lambda event: ProgramRun._is_summed(of, event)
    one = event(0, 0, operator=operator)
    found = ProgramRun._content(of, one)
    assert found == content if isinstance(content, str) else found.tolist() == content
    if operator == "send":
        of._sent = lambda event: []
        assert ProgramRun._content(of, one).tolist() == []


@pytest.mark.parametrize("counted", [True, False])
def test_rounds_of_a_program_are_those_of_its_first_run(monkeypatch, counted: bool) -> None:
    """Of a simulation they are counted in each run, by what the first one shows."""
    found: list[Any] = []

    def rounds_of(events: Any, draws: Any, starts: Any) -> Any:
        found.append(([e.call_site for e in events], starts))
        return {(one.process, one.sequence): one.sequence * 10 for one in events}

    monkeypatch.setattr(runs, "rounds_of", rounds_of)
    monkeypatch.setattr(runs, "numbered", lambda some, rounds: [
        rounds.get((one.process, one.sequence)) for one in some
    ])  # fmt: skip
    monkeypatch.setattr(runs.Counting, "of", lambda events, batches, threads: batches == ["first"])
    monkeypatch.setattr(runs, "with_counted_rounds", lambda *given: given)
    options = SimpleNamespace(ignore=("y",), round_starts_at=("", "x")[counted])
    config: Any = SimpleNamespace(
        messages=options, program=SimpleNamespace(ranks=None if counted else 2)
    )
    of = runs.RoundNumbers(config)

    def sent(*sequences: int) -> list[Any]:
        return [event(s, 0, tag=0, call_site="y" if s == 2 else "x") for s in sequences]

    def numbers(events: list[Any], batches: Any, first: bool) -> Any:
        return of.numbered(events, [], batches, first, False)

    if counted:
        events = sent(1)
        assert numbers(events, ["first"], True) == (events, [], ["first"], True)
        assert numbers(events, ["other"], False) == (events, [], ["other"], True)
        assert numbers(events, ["other"], True) == (events, [], ["other"], False)
        return
    assert numbers(sent(1), [], False) == ([None], [])
    assert numbers(sent(1, 2, 3), [], True) == ([10, None, 30], [])
    assert numbers(sent(4, 5), [], False) == ([10, 30], [])  # the first and the second of its line
    assert numbers(sent(4, 5), [], True) == ([10, 30], [])
    assert found == [(["x", "x"], None)]


def test_a_complex_number_is_two() -> None:
    content = torch.tensor([[1 + 2j, 3 - 4j]])
    assert numbers(content).tolist() == [1, 2, 3, -4]
    assert numbers(content.conj()).tolist() == [1, -2, 3, 4]


def test_tensors_of_a_message_are_named_by_their_numbers() -> None:
    def tensor(name: str, *shape: int, dtype: str = "float32") -> Any:
        return SimpleNamespace(name=name, shape=shape, dtype=dtype)

    one, parts = (
        MessageId(0, (1,), "x", 1),
        (tensor("w", 2, 2), tensor("b"), tensor("c", 1, dtype="complex64")),
    )
    of: Any = SimpleNamespace(
        _ids={one: SimpleNamespace(tensors=parts)}, messages={one: np.zeros(7)}
    )

    def named(*places: int) -> str:
        return ProgramRun.tensors_with(of, one, np.array(places))

    assert [named(0, 3), named(4), named(5), named(6), named(6, 3)] == [
        '"w"',
        '"b"',
        '"c"',
        '"c"',
        '"w", "c"',
    ]
    of.messages[one] = np.zeros(4)  # its own row of a stack
    assert named(0) == ""
    of._ids[one].tensors = parts[:1]
    assert named(0) == ""
    of._ids[one].tensors = tuple(map(tensor, "abcd"))
    assert named(0, 1, 2) == '"a", "b", "c"'
    assert named(0, 1, 2, 3) == "4 tensors"


def test_bytes_beside_a_number_of_the_round_are_bytes() -> None:
    """As of base64 in JSON; a loss beside them may be what the noise moves."""

    def holding(*tensors: tuple[str, tuple[int, ...]]) -> Any:
        return SimpleNamespace(tensors=[SimpleNamespace(dtype=d, shape=s) for d, s in tensors])

    whole, data, loss = ("int64", ()), ("uint8", (48,)), ("float64", ())
    ids = {"both": holding(whole, data), "loss": holding(loss, data), "count": holding(whole)}
    run = SimpleNamespace(_ids={**ids, "alone": holding(data)})
    assert ProgramRun.as_bytes.func(run) == {"both", "alone"}  # type: ignore[arg-type]
