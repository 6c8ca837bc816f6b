"""What a record costs a run in which later rounds remember it, held against known figures."""

from math import hypot, inf, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.capture import alignment
from dpaudit.capture.composition import SLACK
from dpaudit.capture.extreme_records import refuse_whole_numbers
from dpaudit.capture.run_cost import RunCost, SingleRecordRuns, _moved, costs_of_runs, least_of_run
from dpaudit.capture.runs import MessageId, NamedDraw
from dpaudit.capture.visible_output import NotExamined
from dpaudit.files.world import FAR, World

from .toy import CLIP, SCALE, Toy, ToyRun, alignments

MU = CLIP / SCALE  # of one record in one round
ADJACENCIES: Any = ("add-remove", "replace-one")


@pytest.fixture(autouse=True)
def few_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "FAR_OWN_LABEL", FAR[:2])
    monkeypatch.setattr(alignment, "NEARER", ())
    monkeypatch.setattr(alignment, "FAR_OTHER_LABEL", FAR[6:8])


class Remembers(Toy):
    """A round has a part of the sum of the round before."""

    part = 0.0

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        before = getattr(self.run, f"before_{agent}", 0 * total)
        setattr(self.run, f"before_{agent}", total)
        return total + noise + self.part * before


class Shows(Remembers):
    """Its last round shows a number of the sum of the round before, without noise."""

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        before = getattr(self.run, f"before_{agent}", 0 * total)
        return np.append(super().content(agent, k, total, noise), before[0])


class Keeps(Shows):
    """The number has noise, which was drawn in the round before and shown by nothing else."""

    def play(self, world: World) -> Any:
        run = super().play(world)
        at = min(draw.sequence for draw in run.draws if draw.agent == 0)
        run.draws.append(NamedDraw("0/9/more", "more", 0, at, 1.0, "gaussian", 1))
        run.tape["0/9/more"] = np.arange(3.0)
        return run


class Late(Toy):
    """It sends what it has noised in the round before."""

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        before = getattr(self.run, f"before_{agent}", 0 * total)
        setattr(self.run, f"before_{agent}", total + noise)
        return np.asarray(before)


class Rounds(Toy):
    """Its last round passes on what its first one sent, but for a part of a record."""

    part = 0.0
    rounds = 3

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        if k == 1:
            setattr(self.run, f"first_{agent}", (total, noise))
        first, own = getattr(self.run, f"first_{agent}")
        return first + own + self.part * first if k == self.rounds else total + noise


def costs(toy: Toy, folder: Path) -> list[RunCost]:
    runs = alignments(toy, folder, record={"rounds": (1,)})
    return list(costs_of_runs(runs, runs.moves(), ADJACENCIES))


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_what_is_remembered_adds_to_later_rounds(tmp_path: Path, part: float) -> None:
    """A record moves round 1 by MU, and round 2 by itself and a part of that."""
    found = costs(Remembers(tmp_path, part=part), tmp_path)
    assert [(c.victim, c.adjacency, c.noiseless) for c in found] == [
        (victim, adjacency, None) for victim in (0, 1) for adjacency in ADJACENCIES
    ]
    for cost in found:
        one = MU if cost.adjacency == "add-remove" else 2 * MU
        assert cost.sizes["gaussian"] == pytest.approx([one, (1 + part) * one])


def test_a_number_of_an_earlier_record_shows_it(tmp_path: Path) -> None:
    shown = MessageId(0, (1,), "x", 2)
    assert costs(Shows(tmp_path), tmp_path) == [RunCost(0, "add-remove", {}, shown)]
    assert least_of_run([RunCost(0, "add-remove", {}, shown)], 1e-5)[0].epsilon == inf
    assert least_of_run([RunCost(0, "add-remove", {}, shown)], 1e-5)[1] == str(shown)


def test_noise_that_nothing_shows_may_hide_later_numbers(tmp_path: Path) -> None:
    assert costs(Keeps(tmp_path), tmp_path) == []


def test_noise_that_is_sent_in_a_later_round_hides_there(tmp_path: Path) -> None:
    assert costs(Late(tmp_path, rounds=3), tmp_path) == []


@pytest.mark.parametrize(("part", "is_shown"), [(0.0, False), (1e-5, False), (1e-2, True)])
def test_a_later_round_must_show_more_than_rounding(
    tmp_path: Path, part: float, is_shown: bool
) -> None:
    shown = MessageId(0, (1,), "x", 3)
    found = costs(Rounds(tmp_path, part=part), tmp_path)
    assert [cost.noiseless for cost in found if cost.noiseless] == [shown] * is_shown


def test_messages_of_floats_alone_are_in_single_precision() -> None:
    run, kinds = ToyRun(World(out=Path(), seed=1)), (["float32"], ["float32", "int64"], ["float64"])
    run._ids = {
        MessageId(0, (1,), "x", k): SimpleNamespace(tensors=[SimpleNamespace(dtype=d) for d in of])
        for k, of in enumerate(kinds)
    }
    assert run.single == {MessageId(0, (1,), "x", 0)}


def in_turn(toy: Toy, folder: Path) -> list[RunCost]:
    """Each round has records of its own, of which those of the second are known by other names."""
    runs = alignments(toy, folder, record={"rounds": (1,)})
    batches = runs.worlds.plain.batches
    batches[2:] = [b._replace(digests=tuple(f"{d}-later" for d in b.digests)) for b in batches[2:]]
    moves = runs.moves()
    before = len(toy.worlds)
    found = list(costs_of_runs(runs, moves, ["add-remove"]))
    assert all(len(w.changes) <= 2 for w in toy.worlds[before:])  # of two victims in one round
    return found


def test_the_record_of_one_round_counts_in_later_ones(tmp_path: Path) -> None:
    for part in (0.0, 0.5):
        found = in_turn(Remembers(tmp_path, part=part), tmp_path)
        assert [cost.victim for cost in found] == [0, 1]
        for cost in found:
            assert cost.sizes["gaussian"] == pytest.approx([MU, part * MU])
    shown = MessageId(0, (1,), "x", 2)
    assert in_turn(Shows(tmp_path), tmp_path) == [RunCost(0, "add-remove", {}, shown)]


def test_a_first_record_that_ends_runs_has_no_cost(tmp_path: Path, monkeypatch) -> None:
    def fails(self: Any) -> Any:
        raise NotExamined("distance", "it ends")

    runs = alignments(Remembers(tmp_path), tmp_path, record={"rounds": (1,)})
    moves = runs.moves()
    runs.records = {v: {1: (0, 0, 0), 2: (1, 1, 1)} for v in (0, 1)}  # type: ignore[misc]
    [cost, _] = costs_of_runs(runs, moves, ["add-remove"])
    assert cost.sizes["gaussian"] == pytest.approx([MU, MU])  # of one record, in both batches
    monkeypatch.setattr(SingleRecordRuns, "moves", fails)
    assert list(costs_of_runs(runs, moves, ["add-remove"])) == []


def test_other_messages_before_a_round_leave_no_cost(tmp_path: Path) -> None:
    """Moves of another program do not make these runs the same."""
    runs = alignments(Toy(tmp_path, rounds=3), tmp_path)
    other = alignments(Remembers(tmp_path, part=0.5, rounds=3), tmp_path)
    assert list(costs_of_runs(other, runs.moves(), ["add-remove"])) == []


def test_the_moves_of_all_rounds_are_accounted_together() -> None:
    """Gaussian moves add up by their squares, and Laplace ones at delta = 0 by themselves."""
    cost = RunCost(0, "add-remove", {"gaussian": [1.0, 2.0], "laplace": [0.5, 0.0]})
    found, shown = least_of_run([RunCost(1, "add-remove", {"gaussian": [1.0]}), cost], 1e-5)
    assert shown is None
    assert found.epsilon == pytest.approx(
        gaussian_epsilon(1e-5, hypot(1.0, 2.0) / (1 + SLACK)), rel=1e-3
    )
    laplace = RunCost(0, "add-remove", {"laplace": [0.5, 0.25]})
    assert least_of_run([laplace], 0.0)[0].epsilon == pytest.approx(0.75 / (1 + SLACK), rel=1e-6)
    assert least_of_run([laplace], 1e-5)[0].epsilon == 0.0
    assert least_of_run([], 1e-5)[0].epsilon == 0.0
    assert gaussian_epsilon(1e-5, sqrt(5.0)) > found.epsilon


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)], ""),
        ([torch.zeros(4)], ""),
        ([torch.zeros(4, 3, dtype=torch.bfloat16), torch.zeros(4, 2, dtype=torch.int32)], ""),
        ([], ""),
        (
            [torch.zeros(4, 3, dtype=torch.uint8), torch.zeros(4)],
            "agent 1 are whole numbers (uint8)",
        ),
        ([torch.zeros(4, 9, dtype=torch.int64)], "agent 1 are whole numbers (int64)"),
        ([torch.zeros(4, dtype=torch.bool)], "agent 1 are whole numbers (bool)"),
    ],
)
def test_records_of_whole_numbers_are_not_put_far_out(parts: Any, said: str) -> None:
    records, counted = {(0, 1): [torch.zeros(2, 2)], (1, 2): parts}, list[int]()
    asked = list[World]()

    def each(worlds: Any, use: Any, on_done: Any) -> Any:
        asked.extend(worlds)
        on_done()
        return [use(SimpleNamespace(records=records)) for _ in worlds]

    runs: Any = SimpleNamespace(
        worlds=SimpleNamespace(replay=World(out=Path(), seed=1)),
        program=SimpleNamespace(each=each),
        on_run=lambda: counted.append(1),
    )
    used = {0: {1: 1}, 1: {3: 2}}
    if said:
        with pytest.raises(NotExamined) as error:
            refuse_whole_numbers(runs, used)
        assert said in str(error.value)
        assert error.value.premise == "distance"
    else:
        refuse_whole_numbers(runs, used)
    assert [world.keeps_records for world in asked] == [True]
    assert len(counted) == 1


@pytest.mark.parametrize("move", [-3.0, 3.0])
def test_a_move_counts_in_either_direction(move: float) -> None:
    """Of a message whose largest number is 4: three quarters of it."""
    shown = MessageId(0, (1,), "x", 1)
    base = SimpleNamespace(messages={shown: np.array([4.0, 1.0])})
    runs: Any = SimpleNamespace(worlds=SimpleNamespace(base=base), places={})
    run: Any = SimpleNamespace(messages={shown: np.array([4.0, 1.0 + move])})
    assert _moved(runs, 1, shown, World(out=Path("/tmp")), run) == 0.75
