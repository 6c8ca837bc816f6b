"""Which programs draw other numbers beside noise where a record is left out."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.capture.alignment import Alignments
from dpaudit.capture.coupled_draws import (
    BY_CHANCE,
    OTHERWISE,
    _draws_others,
    with_noise_left_behind,
    with_other_draws,
)
from dpaudit.capture.visible_output import NotExamined
from dpaudit.capture.worlds import MeasuredRuns
from dpaudit.files.world import Change, World

from .toy import SCALE, Toy, alignments, config_of

LINE = "toy.py:9"


class DropsOut(Toy):
    """It draws a number for each record, as it takes the batch."""

    line = LINE
    operator, purpose = "bernoulli_", "model"
    of_records = True  # and not one for all of them
    rejects = False  # draws as often as its seed has it
    before = False  # the first batch

    def _turn(self, run: Any, clock: Any, agent: int, k: int, *noise: Any) -> None:
        own = agent, 1 + sum(taken.agent == agent for taken in run.batches)
        gone = sum((c.agent, c.batch) == own for c in run.world.changes if c.how == "absent")
        n = len(self.records[agent]) - gone * self.of_records
        draw = SimpleNamespace(
            process=0, sequence=-1 if self.before else next(clock) + 0.5, shape=(n,),
            operator=self.operator, call_site=self.line, purpose=self.purpose,
        )  # fmt: skip
        super()._turn(run, clock, agent, k, *noise)
        run.all_draws += [draw] * (1 + self.rejects * (run.world.seed % 2))


def found(
    toy: Toy, folder: Path, seed: int = 3, sites: Any = ()
) -> tuple[MeasuredRuns, list[World]]:
    """What is known of the toy's draws, and the worlds that were played for it."""
    of = alignments(toy, folder)
    before = len(toy.worlds)
    config = config_of(folder, seed=seed, noise={"sites": sites})
    runs: Any = toy
    return with_other_draws(of.worlds._replace(config=config), runs), toy.worlds[before:]


def test_a_line_that_draws_for_each_record_is_named(tmp_path: Path) -> None:
    worlds, played = found(DropsOut(tmp_path), tmp_path)
    assert worlds.otherwise == OTHERWISE.format(LINE)
    gone = [Change(agent=i, batch=1, how="absent") for i in (0, 1)]
    assert [(world.seed, world.tape, [*world.changes]) for world in played] == [
        (4, None, []), (4, None, gone),
    ]  # fmt: skip
    assert found(DropsOut(tmp_path), tmp_path, seed=2**32 - 1)[1][0].seed == 0


@pytest.mark.parametrize(
    ("of", "n_played"),
    [
        ({"of_records": False}, 2),
        ({"before": True}, 0),  # what is drawn before the first batch is no part of a step
    ],
)
def test_the_same_draws_without_a_record_are_no_matter(
    tmp_path: Path, of: Any, n_played: int
) -> None:
    worlds, played = found(DropsOut(tmp_path, **of), tmp_path)
    assert (worlds.otherwise, len(played)) == ("", n_played)
    assert found(Toy(tmp_path), tmp_path)[1] == []  # it draws noise alone


def test_a_line_that_rejects_draws_is_no_dropout(tmp_path: Path) -> None:
    worlds, _ = found(DropsOut(tmp_path, rejects=True, of_records=False), tmp_path, 2)
    assert worlds.otherwise == BY_CHANCE.format(LINE)


def test_a_line_of_noise_is_none_beside_noise(tmp_path: Path) -> None:
    assert found(DropsOut(tmp_path), tmp_path, sites=(LINE, "z"))[0].otherwise == ""


def test_runs_without_a_record_are_not_compared_then(tmp_path: Path) -> None:
    of: Alignments = alignments(Toy(tmp_path), tmp_path)
    of.worlds = of.worlds._replace(otherwise=OTHERWISE.format(LINE))
    with pytest.raises(NotExamined, match=f"is left out: {LINE} draws other numbers") as error:
        of.moves()
    assert error.value.premise == "distance"


class LeavesBehind(Toy):
    """Agent 0 sends what it has drawn, and not what the tap makes of it."""

    seeded = False  # the draw follows no seed of the program

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        seed = 5 if self.seeded else self.run.world.seed
        own = SCALE * np.random.default_rng([seed, k]).normal(size=2)
        return total + (own if agent == 0 else noise)


def test_noise_that_is_shown_and_left_behind_may_hide_a_record(tmp_path: Path) -> None:
    """Its messages are shown by no noise of the tap; those of the other agent are."""
    toy = LeavesBehind(tmp_path)
    runs: Any = toy
    worlds = with_noise_left_behind(alignments(toy, tmp_path).worlds, runs)
    assert [(m.source, m.round) for m in worlds.left_behind] == [(0, 1), (0, 2)]
    for message in worlds.base.messages:
        said = 'no message is made of what tap.noise returns for "z"' if message.source == 0 else ""
        assert worlds.unnamed.beside(message).startswith(said)
        assert bool(worlds.unnamed.beside(message)) == bool(said)


@pytest.mark.parametrize(("toy", "n_played"), [(Toy, 0), (LeavesBehind, 1)])
def test_a_message_that_no_draw_moves_is_hidden_by_none(
    tmp_path: Path, toy: type[Toy], n_played: int
) -> None:
    """As of a program that draws noise and forgets to add it; one that adds it costs no run."""
    played = toy(tmp_path, seeded=True)
    runs: Any = played
    worlds = alignments(played, tmp_path).worlds
    before = len(played.worlds)
    assert with_noise_left_behind(worlds, runs).left_behind == {}
    assert len(played.worlds) == before + n_played


def drawn(operator: str, *checksums: int | None, most: float = 2.0) -> Any:
    return [SimpleNamespace(operator=operator, parameters=(0.0, most), crc32=c) for c in checksums]


@pytest.mark.parametrize(
    ("operator", "one", "other", "differ"),
    [
        ("random.uniform", (1, 2), (3, 4), True),
        ("random.uniform", (1, 2), (3, 4, 5), True),  # by rejection
        ("random.uniform", (1, 2), (3, 2), False),  # one may be of a generator with a seed
        ("random.uniform", (1,), (), False),
        ("random.uniform", (1, None), (3, None), False),  # nobody has written it down
        ("random.integers", (1, 2), (3, 2), True),  # as coins may fall
        ("random.integers", (1, 2), (1, 2), False),
    ],
)
def test_what_a_line_draws_must_differ(operator: str, one: Any, other: Any, differ: bool) -> None:
    assert _draws_others(drawn(operator, *one), drawn(operator, *other)) is differ


def test_whole_numbers_that_may_be_seeds_must_differ_each() -> None:
    seeds = [drawn("random.integers", *of, most=2.0**31) for of in ((1, 2), (3, 2))]
    assert not _draws_others(*seeds)
