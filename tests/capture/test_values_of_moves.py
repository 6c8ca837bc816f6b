"""How far records move the rounds of a program of known figures, and which programs are refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from dpaudit.capture import alignment, extreme_records, rare_noise
from dpaudit.capture.alignment import Alignments
from dpaudit.capture.extreme_records import refuse_unbounded, with_overflowing
from dpaudit.capture.rare_noise import refuse_other_noise_far_out
from dpaudit.capture.record_changes import RecordMoves, Variant
from dpaudit.capture.record_shift import NoiseMove
from dpaudit.capture.runs import AgentRound, MessageId
from dpaudit.capture.visible_output import NotExamined
from dpaudit.errors import RunError
from dpaudit.files.world import FAR, NEARER, OVERFLOWING, Change

from .toy import CLIP, RECORDS, SCALE, Toy, alignments, become

USED = {v: {1: 1, 2: 2} for v in (0, 1)}
WAYS = [
    *(Variant(how, 0) for how in ("absent", "scaled", *FAR[:6])),
    *(Variant(how, 1) for how in ("absent", *NEARER)),
    *(Variant(how, 2) for how in ("absent", *FAR[6:])),
]


@pytest.fixture
def few_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is left out, ten times as large, or far out along itself."""
    monkeypatch.setattr(alignment, "FAR_OWN_LABEL", FAR[:1])
    monkeypatch.setattr(alignment, "NEARER", ())
    monkeypatch.setattr(alignment, "FAR_OTHER_LABEL", FAR[6:7])


def message(agent: int, k: int) -> MessageId:
    return MessageId(agent, (1 - agent,), "x", k)


def key(agent: int, k: int) -> str:
    return f"{agent}/{k - 1}/z"


def clipped(victim: int, way: Variant) -> np.ndarray:
    """What the record of a place adds to the sum, as it becomes."""
    record = RECORDS[victim][[way.place]]
    changed = become(record, [SimpleNamespace(how=way.how, record=0)])  # type: ignore[list-item]
    return sum((row / max(1.0, float(np.linalg.norm(row)) / CLIP) for row in changed), np.zeros(2))


def counted(of: Alignments) -> list[int]:
    """The runs of alignments from here on, one by one."""
    counts: list[int] = []
    of.on_run = lambda: counts.append(1)
    return counts


@pytest.mark.parametrize("measured", [(1,), (1, 2)])
def test_a_record_moves_each_round_by_its_clipped_length(tmp_path: Path, measured) -> None:
    """Of a round that was measured the noise is known; that of others is found with more runs."""
    of = alignments(toy := Toy(tmp_path), tmp_path, record={"rounds": measured})
    before, runs = len(toy.worlds), counted(of)
    assert of.ways == WAYS
    moves = of.moves()
    more = 0 if measured == (1, 2) else 2 + 3  # without each agent's draw, and with other signs
    assert len(runs) == len(toy.worlds) - before == 2 * len(WAYS) + more
    assert moves.noiseless is None
    for k in (1, 2):
        for v in (0, 1):
            for way in WAYS:
                units = moves.units[way][v][k, key(v, k)]
                moved = clipped(v, way) - clipped(v, Variant("present", way.place))
                assert units == pytest.approx(moved / SCALE, abs=1e-9)
            expected = {
                way.how: np.linalg.norm(clipped(v, way)) / SCALE
                for way in [*WAYS, Variant("present", 0)]
                if way.how != "absent"
            }
            assert moves.sizes[v, k, "gaussian"] == pytest.approx(expected)
    before = len(toy.worlds)
    of.verify(moves)
    # Each victim alone in each way, and the first batch alone of both for three of the ways.
    firsts = [way for way in WAYS if way.how in ("absent", "own:1e3", "own:-1e3")]
    assert len(toy.worlds) - before == 2 * len(WAYS) + len(firsts)
    assert [len(w.changes) for w in toy.worlds[before:]] == [2] * 2 * len(WAYS) + [2] * 5
    last = toy.worlds[-len(firsts)]
    assert [(c.agent, c.batch, c.how) for c in last.changes] == [(0, 1, "absent"), (1, 1, "absent")]
    assert last.tape is not None
    tape, own = load_file(last.tape), load_file(of.worlds.replay.tape)  # type: ignore[arg-type]
    assert [bool((tape[key(0, k)] == own[key(0, k)]).all()) for k in (1, 2)] == [False, True]


@pytest.mark.usefixtures("few_ways")
def test_laplace_noise_is_moved_by_a_sum(tmp_path: Path) -> None:
    of = alignments(Toy(tmp_path, family="laplace"), tmp_path)
    moves = of.moves()
    assert {family for *_, family in moves.sizes} == {"laplace"}
    assert moves.sizes[0, 1, "laplace"]["present"] == pytest.approx(0.7 / SCALE)
    assert moves.sizes[1, 2, "laplace"]["own:1e3"] == pytest.approx(1.4 / SCALE)
    assert of.families(0 + 1, 0) == ["laplace"]


def test_what_agents_send_and_draw_in_a_round_is_known(tmp_path: Path) -> None:
    of = alignments(Toy(tmp_path), tmp_path)
    draws = {
        v: tuple(d for d in of.worlds.base.draws if (d.agent, d.round) == (v, 2)) for v in (0, 1)
    }
    assert of.places[2] == {
        v: AgentRound(v, 2, (message(v, 2),), draws[v], batch=0) for v in (0, 1)
    }
    assert of.places[1] == of.worlds.rounds[1].places
    assert of.noised[1] == of.worlds.rounds[1].noised
    for v in (0, 1):
        [response] = of.noised[2][v][message(v, 2)]
        assert (response.draw, response.places.tolist(), response.number.tolist()) == (
            0, [0, 1], [0, 1],
        )  # fmt: skip
        assert response.size == pytest.approx([SCALE] * 2)
        assert of.hidden(message(v, 2)).tolist() == [True, True]
    assert of.hidden(message(1, 2)._replace(source=1, round=2)).all() is not True
    assert of.stages == [(1, (0, 1)), (2, (0, 1))]
    assert (of.n_records(0, 2), of.victims) == (3, (0, 1))
    assert of._known(2) is None
    alone = alignments(Toy(tmp_path), tmp_path, record={"victims": (0,)})
    assert alone._known(1) is alone.worlds.rounds[1]
    alone.worlds.rounds[1].places[0] = alone.places[1][0]._replace(others=(message(1, 1),))  # type: ignore[index]
    assert alone._known(1) is None
    both = alignments(Toy(tmp_path), tmp_path)
    del both.worlds.rounds[1].places[1]  # type: ignore[attr-defined]
    assert both._known(1) is None


def test_draws_of_other_lines_are_no_noise(tmp_path: Path) -> None:
    class Two(Toy):
        """A second draw of each agent is of another line, and decides nothing."""

        def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
            last = self.run.draws[-1]
            other = last._replace(name="y", key=f"{agent}/{k}/y", sequence=last.sequence - 1)
            self.run.draws.append(other)
            self.run.tape[other.key] = np.ones(1)
            return total + noise

    of = alignments(Two(tmp_path), tmp_path, noise={"sites": ("z",)})
    assert [d.name for d in of.places[2][0].draws] == ["z"]
    every = alignments(Two(tmp_path), tmp_path)
    assert [d.name for d in every.places[2][0].draws] == ["z", "y"]


class SendsOn(Toy):
    """Agent 1 adds half of what it got in a round, or in the second one alone."""

    since = 1

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        got = self.run.messages[message(0, k)] if agent and k >= self.since else 0.0
        return total + noise + 0.5 * got


@pytest.mark.usefixtures("few_ways")
@pytest.mark.parametrize("since", [1, 2])
def test_agents_that_send_on_are_played_in_turn(tmp_path: Path, monkeypatch, since: int) -> None:
    """Once the noise of agent 0 is moved, what it sends on is the same; so each moves its own."""
    of = alignments(SendsOn(tmp_path, since=since), tmp_path)
    assert of.sends_on
    assert of.stages == [(1, (0,)), (1, (1,)), (2, (0,)), (2, (1,))]
    moves = of.moves()
    assert moves.units[WAYS[0]][1][2, key(1, 2)] == pytest.approx([-0.6 / SCALE, 0.8 / SCALE])
    of.verify(moves)
    refuse_other_noise_far_out(of, moves)
    monkeypatch.setattr(alignment, "MOST_ROUNDS", 4)
    again = Alignments(of.worlds, of.program, of.records, of.on_run, of.equal)
    assert len(again.stages) == 4
    monkeypatch.setattr(alignment, "MOST_ROUNDS", 3)
    again = Alignments(of.worlds, of.program, of.records, of.on_run, of.equal)
    with pytest.raises(NotExamined, match="get 4 times; 3 at most") as error:
        assert again.stages
    assert error.value.premise == "composition"
    program = of.worlds.config.program.model_copy(update={"ranks": 2})
    config = of.worlds.config.model_copy(update={"program": program})
    ranked = Alignments(of.worlds._replace(config=config), of.program, {}, of.on_run, of.equal)
    with pytest.raises(NotExamined, match="processes send on what they get") as error:
        assert ranked.stages
    assert error.value.premise == "composition"


def test_agents_that_do_not_send_on_are_played_together(tmp_path: Path) -> None:
    assert not alignments(Toy(tmp_path), tmp_path).sends_on
    measured = alignments(toy := Toy(tmp_path), tmp_path, record={"rounds": (1, 2)})
    before = len(toy.worlds)
    assert not measured.sends_on
    assert len(toy.worlds) == before  # the last round was measured


class Fails(Toy):
    """A run with a record that is changed in some way ends with an error."""

    how = "absent"

    def play(self, world: Any) -> Any:
        if self.how in {change.how for change in world.changes}:
            raise RunError("DPA058", "it ended", "help")
        return super().play(world)


@pytest.mark.usefixtures("few_ways")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("absent", "where a record is left out: it ended"),
        ("own:1e3", "where a record becomes own:1e3: it ended"),
    ],
)
def test_runs_that_end_far_out_show_no_distance(tmp_path: Path, how: str, said: str) -> None:
    of = alignments(Toy(tmp_path), tmp_path)
    of.program = Fails(tmp_path, how=how)  # type: ignore[assignment]
    with pytest.raises(NotExamined, match=said) as error:
        of.moves()
    assert error.value.premise == "distance"
    assert of.apart(0, 1, (Variant("scaled", 0), Variant(how, 0)), 1) is None  # type: ignore[arg-type]


def test_a_run_counts_when_it_ends_and_also_if_it_fails(tmp_path: Path) -> None:
    of = alignments(Toy(tmp_path), tmp_path)
    of.program, ended = Fails(tmp_path), counted(of)  # type: ignore[assignment]
    of.program.workers = 1
    absent = Change(agent=0, batch=1, how="absent")
    worlds = [of.worlds.replay, of.worlds.replay.model_copy(update={"changes": (absent,)})]
    several = [*worlds, *worlds]
    before: list[int] = []
    found = of.played(several, lambda world, run: before.append(len(ended)))
    assert [isinstance(one, RunError) for one in found] == [False, True] * 2
    assert before == [0, 2]  # the third run begins when two have ended
    assert len(ended) == 4


class Bare(Toy):
    """A third number of each message is the first of the sum, without noise."""

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.append(total + noise, total[0] if k == self.rounds else 7.0)


@pytest.mark.usefixtures("few_ways")
def test_a_number_without_noise_shows_a_record(tmp_path: Path) -> None:
    of = alignments(Bare(tmp_path), tmp_path, record={"rounds": (1, 2)})
    assert of.hidden(message(0, 2)).tolist() == [True, True, False]
    moves = of.moves()
    assert moves.noiseless == (message(0, 2), Variant("absent", 0))
    way = Variant("scaled", 0)
    assert of.furthest(0, 2, way, moves, "add-remove") == "absent"
    assert of.furthest(0, 2, way, moves, "replace-one") == "own:1e3"
    assert of.apart(0, 2, (Variant("absent", 0), way), 2) == message(0, 2)
    assert of.apart(1, 1, (Variant("absent", 0), way), 1) == {"gaussian": pytest.approx(1 / SCALE)}
    first = Bare(tmp_path, rounds=1)
    stopped = alignments(first, tmp_path).moves()
    assert stopped.noiseless == (message(0, 1), Variant("absent", 0))
    of.worlds.plain.all_draws.append(
        SimpleNamespace(
            process=0, sequence=of.worlds.base._ids[message(0, 2)].sequence - 1, shape=(3,),
            operator="rand", call_site="toy.py:9", purpose=None, parameters=(),
        )
    )  # fmt: skip
    with pytest.raises(NotExamined, match=r"moves with a record, and toy.py:\d draws") as error:
        of.moves()
    assert error.value.premise == "composition"


def test_the_furthest_record_is_the_other_way(tmp_path: Path) -> None:
    of = alignments(Toy(tmp_path), tmp_path)
    moves, _ = with_overflowing(of, of.moves(), USED)
    assert of.furthest(0, 1, Variant("absent", 0), moves, "add-remove") == "scaled"
    assert of.furthest(0, 1, Variant("absent", 1), moves, "add-remove") == "own:3"
    assert of.furthest(0, 1, Variant("scaled", 0), moves, "add-remove") == "absent"
    assert of.furthest(0, 1, Variant("scaled", 0), moves, "replace-one") == "own:-1e3"
    assert of.furthest(0, 1, Variant("own:1e22", 0), moves, "replace-one") == "own:-1e3"
    assert of.furthest(1, 1, Variant("own:-3", 1), moves, "replace-one") == "own:1e2"


def test_two_records_are_apart_by_their_difference(tmp_path: Path, monkeypatch) -> None:
    of = alignments(toy := Toy(tmp_path), tmp_path, record={"rounds": (1, 2)})
    pair, runs = (Variant("own:-1e3", 0), Variant("scaled", 0)), counted(of)
    assert of.apart(0, 1, pair, 1) == {"gaussian": pytest.approx(2 / SCALE)}
    assert len(runs) == 2
    assert [[(c.agent, c.batch, c.how, c.record) for c in w.changes] for w in toy.worlds[-2:]] == [
        [(0, 1, "own:-1e3", 0)], [(0, 1, "scaled", 0)],
    ]  # fmt: skip
    assert of.apart(1, 2, (Variant("absent", 1), Variant("present", 1)), 2) == {
        "gaussian": pytest.approx(0.2 / SCALE)
    }
    monkeypatch.setattr(
        alignment, "making_up_for", lambda *_: NoiseMove({0: np.ones(2)}, hidden=True)
    )
    assert of.apart(0, 2, pair, 2) is None
    assert of.apart(0, 1, pair, 1) == {"gaussian": 0.0}


def test_a_message_that_is_no_number_has_no_change(tmp_path: Path) -> None:
    of = alignments(Toy(tmp_path), tmp_path)
    replay = of.worlds.replay
    of.places[1][0], base = of.places[1][0], of.worlds.base.messages

    def changes(content: np.ndarray | None) -> Any:
        sent = {**base, message(0, 1): content}
        run = SimpleNamespace(messages={m: c for m, c in sent.items() if c is not None})
        return of.changes(1, (0,), replay, run)  # type: ignore[arg-type]

    found = changes(base[message(0, 1)] + [1.0, -2.0])
    assert found[0][message(0, 1)] == pytest.approx([1.0, -2.0])
    assert changes(base[message(0, 1)] + 1e200)[0][message(0, 1)] == pytest.approx([1e30] * 2)
    for content in (None, np.zeros(3)):
        with pytest.raises(RunError, match="is not sent, or has another size"):
            changes(content)
    with pytest.raises(RunError, match="is not a finite number"):
        changes(np.array([1.0, np.inf]))


class Remembers(Toy):
    """A round has a part of what its agent's first record was in the round before."""

    part = 0.0

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        before = getattr(self.run, f"before_{agent}", total)
        setattr(self.run, f"before_{agent}", total)
        return total + noise + self.part * before


class Tells(Toy):
    """A number without noise shows what a record of the other agent was."""

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        first, self.run.first = getattr(self.run, "first", 0.0), float(total[0])
        return np.append(total + noise, first if agent else 0.0)


class Scales(Toy):
    """The scale that is stated of later noise is that of the sum."""

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        self.run.draws[-1] = self.run.draws[-1]._replace(scale=SCALE + 1e-3 * abs(float(total[0])))
        return total + noise


class Prints(Toy):
    """It prints the loss."""

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        self.run.beside += (f"loss {total[0]:.4f}",)
        return total + noise


@pytest.mark.usefixtures("few_ways")
@pytest.mark.parametrize(
    ("toy", "of", "premise", "said"),
    [
        (Remembers, {"part": 0.0}, "", ""),
        (Remembers, {"part": 0.3}, "state", "a move of noise does not hide the record in round 2"),
        (Tells, {}, "composition", "depends on the record, with no noise of its own"),
        (Scales, {}, "completeness", "which noise is drawn, or its scale depends on the record"),
        (Prints, {}, "completeness", "what the program prints, or sends as text, depends on"),
    ],
)
def test_runs_with_moved_noise_must_be_the_same(tmp_path, toy, of, premise, said) -> None:
    """The moves of a record are taken from a right program; the faulty one is played with them."""
    own = alignments(toy(tmp_path, **of), tmp_path, record={"rounds": (1, 2)})
    units = (own if toy is Remembers else alignments(Toy(tmp_path), tmp_path)).moves()
    if not premise:
        own.verify(units)
        return
    with pytest.raises(NotExamined, match=said) as error:
        own.verify(units)
    assert error.value.premise == premise


class Breaks(Toy):
    """Where inputs are as large as ``limit`` it sends no numbers, or ends with an error."""

    limit, ends = 1e100, False

    def clipped(self, records: np.ndarray) -> np.ndarray:
        if np.abs(records).max(initial=0.0) < self.limit:
            return super().clipped(records)
        if self.ends and self.ends(records):  # type: ignore[operator]
            raise RunError("DPA058", "it ended")
        found = super().clipped(records)
        found[:, 1] = np.nan
        return found


def test_records_that_overflow_move_a_round_as_far(tmp_path: Path) -> None:
    of = alignments(toy := Toy(tmp_path), tmp_path)
    moves = of.moves()
    before, runs = len(toy.worlds), counted(of)
    found, unseen = with_overflowing(of, moves, USED)
    assert unseen == ()
    assert len(runs) == len(toy.worlds) - before == 2 * len(OVERFLOWING)
    assert [(c.agent, c.batch, c.how, c.record) for c in toy.worlds[before].changes] == [
        (0, 1, "own:1e22", 0), (1, 1, "own:1e22", 0),
    ]  # fmt: skip
    assert found.units is moves.units
    for (v, k, family), sizes in found.sizes.items():
        assert {how: sizes[how] for how in moves.sizes[v, k, family]} == moves.sizes[v, k, family]
        assert [sizes[how] for how in OVERFLOWING] == pytest.approx([CLIP / SCALE] * 4)
        units = found.overflowing[Variant("own:-1e160", 0)][v]
        expected = clipped(v, Variant("own:-1e3", 0)) - clipped(v, Variant("present", 0))
        assert units[k, key(v, k)] == pytest.approx(expected / SCALE)
    refuse_unbounded(found, USED)
    unused, _ = with_overflowing(of, moves, {0: {2: 2}, 1: {}})
    assert [len(unused.sizes[at]) - len(moves.sizes[at]) for at in unused.sizes] == [0, 0, 4, 0]


@pytest.mark.usefixtures("few_ways")
def test_records_that_give_no_numbers_are_not_seen(tmp_path: Path) -> None:
    """What of a message is finite counts. A run that ends is played for each victim by itself."""
    of = alignments(Toy(tmp_path), tmp_path)
    moves = of.moves()
    of.program = Breaks(tmp_path)  # type: ignore[assignment]
    found, unseen = with_overflowing(of, moves, USED)
    assert unseen == ("1e160",)
    sizes = found.sizes[0, 1, "gaussian"]
    assert sizes["own:1e22"] == pytest.approx(0.5)
    # The first number alone is finite: from 0.3 to 0.6, beside 0 without the record.
    assert sizes["own:1e160"] == pytest.approx(np.hypot(0.6, 0.4) / SCALE)
    ends = lambda records: len(records) and records[0, 0] > 5e159  # of agent 1  # noqa: E731
    of.program = Breaks(tmp_path, ends=ends, limit=1e10)  # type: ignore[assignment]
    runs = counted(of)
    found, unseen = with_overflowing(of, moves, USED)
    assert unseen == ("1e22", "1e160")
    assert ["own:1e160" in found.sizes[v, 1, "gaussian"] for v in (0, 1)] == [True, False]
    assert ["own:-1e160" in found.sizes[v, 1, "gaussian"] for v in (0, 1)] == [True, True]
    assert len(runs) == 2 * (len(OVERFLOWING) + 2)
    way = Variant("own:1e160", 0)
    assert [one for one in extreme_records._shown(of, 1, [way], [1], USED)] == [
        (way, extreme_records.ShownRound({}, frozenset({1})))
    ]
    assert list(extreme_records._shown(of, 1, [way], [], USED)) == []


class Cuts(Toy):
    """Noise is cut off beyond a limit, on the sides that are given, in the rounds that are given."""

    limit: Any = (-np.inf, np.inf)
    only: Any = (1, 2)

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return total + (np.clip(noise, *self.limit) if k in self.only else noise)


@pytest.mark.usefixtures("few_ways")
@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({}, ""),
        ({"limit": (-20.0, 20.0)}, ""),
        ({"limit": (-np.inf, 10.0)}, "where the noise of round 1 is far out, on the positive side"),
        ({"limit": (-10.0, np.inf)}, "where the noise of round 1 is far out, on the negative side"),
        ({"limit": (-10.0, 10.0), "only": (2,)}, "round 2 is far out, on the positive side"),
    ],
)
def test_noise_that_is_cut_off_far_out_is_seen(tmp_path: Path, of: Any, said: str) -> None:
    """At 5.5 times its scale of 2, which no draw of these runs has."""
    own = alignments(toy := Cuts(tmp_path, **of), tmp_path)
    moves, runs = own.moves(), counted(own)
    before = len(toy.worlds)
    if said:
        with pytest.raises(NotExamined, match=said) as error:
            refuse_other_noise_far_out(own, moves)
        assert error.value.premise == "noise"
        return
    refuse_other_noise_far_out(own, moves)
    assert len(runs) == len(toy.worlds) - before == 8
    plain, absent, minus, _ = (load_file(w.tape) for w in toy.worlds[before : before + 4])  # type: ignore[arg-type]
    assert plain[key(0, 1)].tolist() == pytest.approx([11.0, 11.0])
    assert minus[key(1, 1)].tolist() == pytest.approx([-11.0, -11.0])
    assert absent[key(0, 1)].tolist() == pytest.approx([11.3, 11.4])  # it makes up for the record
    replay = load_file(own.worlds.replay.tape)  # type: ignore[arg-type]
    assert bool((plain[key(0, 2)] == replay[key(0, 2)]).all())
    assert [[c.how for c in w.changes] for w in toy.worlds[before : before + 2]] == [
        [],
        ["absent"] * 4,
    ]


@pytest.mark.parametrize(("rounds", "looked"), [(1, [1]), (3, [1, 2, 3]), (6, [1, 3, 6])])
def test_noise_far_out_is_looked_at_in_three_rounds(tmp_path, monkeypatch, rounds, looked) -> None:
    """A half is rounded to an even number: of six rounds, the middle is the third."""
    of = alignments(Toy(tmp_path, rounds=rounds), tmp_path)
    found: list[tuple[int, float]] = []

    def far_out(runs: Any, world: Any, k: int, victims: Any, sign: float) -> Any:
        found.append((k, sign))
        return world

    monkeypatch.setattr(rare_noise, "_far_out", far_out)
    monkeypatch.setattr(rare_noise, "_is_shown", lambda *_: False)
    units = {Variant("absent", 0): {v: {} for v in (0, 1)}}
    refuse_other_noise_far_out(of, RecordMoves({}, None, units))
    assert found == [(k, sign) for k in looked for sign in (1.0, 1.0, -1.0, -1.0)]
    of.program = Fails(tmp_path, how="absent")  # type: ignore[assignment]
    with pytest.raises(NotExamined, match="on the positive side"):
        refuse_other_noise_far_out(of, RecordMoves({}, None, units))


def test_laplace_noise_far_out_is_of_its_own_scale(tmp_path: Path) -> None:
    of = alignments(Toy(tmp_path, family="laplace"), tmp_path)
    replay = of.worlds.replay
    world = rare_noise._far_out(of, replay, 2, (1,), -1.0)
    assert world.tape is not None
    assert world.tape.name == "far-negative-2-tape.safetensors"
    found, own = load_file(world.tape), load_file(replay.tape)  # type: ignore[arg-type]
    assert found[key(1, 2)].tolist() == [-30.0, -30.0]
    assert found[key(0, 2)].tolist() == own[key(0, 2)].tolist()
    shared = replay.model_copy(update={"same": {key(1, 2): (key(0, 2), 1)}})
    of.worlds = of.worlds._replace(replay=shared)
    same = load_file(rare_noise._far_out(of, replay, 2, (1,), -1.0).tape)  # type: ignore[arg-type]
    assert same[key(1, 2)].tolist() == own[key(1, 2)].tolist()
