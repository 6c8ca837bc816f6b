"""What a step does beside its messages, orders of records and small models, by hand."""

import logging
import os
import sys
import warnings
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpaudit.attacks.sensitivity import record_order, side_effects, stand_in
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.side_effects import SideEffects, watched

NOTHING: Any = None


def test_what_a_step_does_beside_its_answer_is_kept_in_order(tmp_path: Path) -> None:
    log, new = tmp_path / "log", tmp_path / "new"
    log.write_text("before")
    (tmp_path / "read").write_text("only read")
    with watched() as seen:
        logging.getLogger("a step").warning("logged %d", 3)
        print("printed")
        print("shown", file=sys.stderr)
        warnings.warn("warned", stacklevel=1)
        with log.open("a") as file:
            file.write(" after")
        new.write_text("new")
        (tmp_path / "read").read_text()
    assert seen.texts() == (
        "logged 3", "warned", "printed\nshown\n", f"{log}: b' after'", f"{new}: b'new'",
    )  # fmt: skip
    print("not printed")
    new.write_text("later")
    (tmp_path / "later").write_text("later")
    assert len(seen.texts()) == 5
    log.unlink()
    assert seen.texts()[3] == f"{log}: gone"
    assert side_effects._listening == []


def test_a_step_that_does_nothing_beside_has_no_texts() -> None:
    with watched() as seen:
        pass
    assert seen.texts() == ()
    assert len(side_effects._hooked) == 1  # one hook serves all
    with pytest.raises(ValueError, match="a step"), watched() as seen:
        raise ValueError("a step")
    assert side_effects._listening == []


def test_a_file_that_is_written_anew_is_kept_whole(tmp_path: Path, monkeypatch: Any) -> None:
    short = tmp_path / "short"
    for before, after, text in (
        ("long before", "now", "now"),
        ("same", "size", "size"),
        ("old", "old and more", " and more"),
    ):
        short.write_text(before)
        seen = SideEffects()
        seen.note("open", (str(short), "w", os.O_WRONLY))
        seen.note("open", (os.fsencode(short), "w", os.O_WRONLY))  # once for both
        short.write_text(after)
        assert seen.texts() == (f"{short}: {text.encode()!r}",)
    monkeypatch.setattr(side_effects, "LARGEST", 5)
    assert seen.texts() == (f"{short}: b' and '",)


def test_connections_and_programs_are_noted() -> None:
    seen = SideEffects()
    for event in ("socket.connect", "subprocess.Popen", "os.system", "import", "socket.bind"):
        seen.note(event, ("what", "where", 1))
    assert seen.seen == [
        f"{e} ('where', 1)" for e in ("socket.connect", "subprocess.Popen", "os.system")
    ]
    for given in ((3, "w", os.O_WRONLY), ("/nowhere", "r", os.O_RDONLY)):  # by number, or read
        seen.note("open", given)
    assert len(seen.texts()) == 3
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_APPEND, os.O_CREAT, os.O_TRUNC):
        seen = SideEffects()
        seen.note("open", ("/nowhere/at all", "w", flag))
        assert seen.texts() == ("/nowhere/at all: gone",)


@pytest.mark.parametrize(
    ("differing", "by_replay", "flipped", "shifts", "others", "found", "unclear"),
    [
        ([], [], [True], [], [], [], []),
        (["x"], ["x"], [True], [], [], [], []),  # noise is moved to explain it
        (["x"], [], [True, False], [], ["x"], [], []),  # by draws in the other order
        (["x"], [], [True, True], [], ["x"], ["x"], []),
        (["x"], [], [], [], ["x"], ["x"], []),  # no draw is for records
        (["x", "y"], [], [True], ["x"], ["y"], ["x", "y"], []),
        (["x", "y"], [], [True], ["x", "y"], None, ["x", "y"], []),
        (["x", "y"], [], [True], ["x"], None, ["x"], ["y"]),
        (["x", "y"], [], [True], [], ["y"], ["y"], ["x"]),
        (["x", "y", "z"], ["y"], [True], [], [], [], ["x", "z"]),
    ],
)
def test_messages_that_no_draws_explain_depend_on_records(
    monkeypatch, differing, by_replay, flipped, shifts, others, found, unclear
) -> None:
    there: Any = SimpleNamespace(noisy="again", flipped=lambda draws: draws)
    here: Any = SimpleNamespace(oracle="records")
    monkeypatch.setattr(record_order, "replace", lambda *_, **of: there)
    monkeypatch.setattr(record_order, "reordered", lambda oracle: oracle)
    monkeypatch.setattr(record_order, "KeptAnswers", SimpleNamespace(of=lambda oracle: oracle))
    monkeypatch.setattr(
        record_order, "_differing",
        lambda _, played: differing if played == "again" else (["x"] if played else []),
    )  # fmt: skip
    monkeypatch.setattr(record_order, "explained", lambda pairs, name, change: name in by_replay)
    monkeypatch.setattr(record_order, "_of_records", lambda here: iter(flipped))
    monkeypatch.setattr(record_order, "is_shift", lambda here, there, name: name in shifts)

    def another_law(here: Any, there: Any, names: list[str]) -> list[str] | None:
        assert names == [m for m in differing if m not in (*by_replay, *shifts)]
        return others

    monkeypatch.setattr(record_order, "of_another_law", another_law)
    depends, open_ = record_order.examine_order(here)
    assert depends == [f'"{name}" {record_order.DEPENDS}' for name in found]
    said = "is too large to be played often" if others is None else "is not seen to change in"
    assert len(open_) == len(unclear)
    for note, name in zip(open_, unclear, strict=True):
        assert note.startswith(f'whether "{name}" {record_order.DEPENDS}')
        assert said in note


def test_messages_differ_beyond_rounding_of_their_length() -> None:
    """Of their own length, which is that of their longest row."""
    sent = {"x": torch.tensor([[3.0, 4.0], [0.0, 1.0]]).double(), "y": torch.zeros(1, 2).double()}

    def differing(**moved: list[list[float]]) -> list[str]:
        coupled = SimpleNamespace(
            differences=lambda one, other: {
                m: torch.tensor(d, dtype=torch.float64) for m, d in moved.items()
            },
            own=lambda payload: payload,
        )
        here: Any = SimpleNamespace(coupled=coupled, noisy=SimpleNamespace(sent=sent))
        return record_order._differing(here, SimpleNamespace(sent={}))  # type: ignore[arg-type]

    assert differing(x=[[4e-10, 0.0], [0.0, 0.0]], y=[[0.0, 0.0]]) == []
    assert differing(x=[[6e-10, 0.0], [0.0, 0.0]]) == ["x"]
    assert differing(x=[[0.0, 0.0], [4e-10, 0.0]], y=[[0.0, 1e-100]]) == ["y"]


def draw(stream: str, *shape: int) -> Any:
    return SimpleNamespace(stream=stream, shape=torch.Size(shape))


def test_draws_for_records_have_an_axis_of_records() -> None:
    """Of 3 agents with batches of 4; one of 3 x 4 may be for each agent and coordinate."""
    batch = SimpleNamespace(labels=torch.zeros(3, 4))
    draws = [
        draw("each", 3, 4, 7), draw("perhaps", 3, 4), draw("of one agent", 4, 7),
        draw("coordinates", 3, 7), draw("other", 2, 4),
    ]  # fmt: skip
    here: Any = SimpleNamespace(
        oracle=SimpleNamespace(batch=batch), noisy=SimpleNamespace(draws=draws)
    )
    every, certain = record_order._of_records(here)
    assert every == {"each": 1, "perhaps": 1, "of one agent": 0}
    assert certain == {"each": 1}
    here.noisy.draws = draws[1:]
    assert list(record_order._of_records(here)) == [{"perhaps": 1, "of one agent": 0}]
    here.noisy.draws = draws[3:]
    assert list(record_order._of_records(here)) == []


def moved(message: str, by: float, stated: float | None = 2.0, **of: Any) -> Row:
    return Row(message, 1, 2, {"natural": by}, stated=stated, tolerance=0.0)._replace(**of)


@pytest.fixture
def far_rows(monkeypatch: pytest.MonkeyPatch) -> dict[float, Any]:
    """By the size of models: the rows of a round, or what the step raises."""
    rows: dict[float, Any] = {}
    normal = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    defense = SimpleNamespace(start=lambda X, setting: X)
    problem = SimpleNamespace(initial=lambda streams: torch.zeros(2, 3))
    small = SimpleNamespace(problem=problem, streams=None, defense=defense, setting=None)

    class Examined:
        def __init__(self, coupled: Any, *_: Any, aligns: bool) -> None:
            assert coupled is small
            assert not aligns

        def record(self, state: Any, k: int, adjacency: str) -> Any:
            assert (k, adjacency, state.dtype) == (1, "add-remove", torch.float64)
            [size] = [s for s in rows if torch.equal(state, (s * normal).double())]
            if isinstance(rows[size], Exception):
                raise rows[size]
            yield from rows[size]

    monkeypatch.setattr(stand_in, "small_problem", lambda coupled: small)
    monkeypatch.setattr(stand_in, "RoundExamination", Examined)
    return rows


def test_records_are_moved_far_from_the_run(far_rows: dict[float, Any]) -> None:
    """Beyond rounding of the bound, or without noise; messages without a bound are no proof."""
    near, far = stand_in.FAR
    real: Any = SimpleNamespace(coupled=NOTHING)

    def found(one: Any, other: Any) -> Any:
        far_rows.clear()
        far_rows.update({near: one, far: other})
        return stand_in.far_from_the_run(real, "add-remove")

    said = 'how far a record moves "{}" where models are far from those of the run'
    assert found([moved("x", 2.0)], [moved("y", 2.0 * (1 + 1e-7))]) == (None, ())
    assert found([moved("x", 2.01)], []) == (said.format("x"), ())
    assert found([], [moved("y", 1.0), moved("z", 3.0)]) == (said.format("z"), ())
    assert found([moved("x", 3.0, stated=None)], []) == (None, ())
    raised = ("from models of size 10 a step raises ValueError",)
    assert found(ValueError("no"), [moved("y", 3.0)]) == (said.format("y"), raised)
    both = (*raised, "from models of size 1000 a step raises ZeroDivisionError")
    assert found(ValueError("no"), ZeroDivisionError()) == (None, both)
    not_played = (None, ("no round was played from models far from those of the run",))
    assert stand_in.far_from_the_run(real, "function") == not_played


def test_without_a_small_model_no_round_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "small_problem", lambda coupled: None)
    real: Any = SimpleNamespace(coupled="real", aligns=True)
    notes = ("no round was played from models far from those of the run",)
    assert stand_in.far_from_the_run(real, "add-remove") == (None, notes)
    made: list[Any] = []
    monkeypatch.setattr(
        stand_in,
        "RoundExamination",
        lambda coupled, *_, **of: (made.append((coupled, of)), "none")[1],
    )
    assert stand_in.examine_every_round(real, "add-remove") == ("none", [])
    assert made == [("real", {"briefly": True, "aligns": True})]
    monkeypatch.setattr(stand_in, "small_problem", lambda coupled: "small")
    monkeypatch.setattr(stand_in, "_rows", lambda *of: iter([of[:2]]))
    assert stand_in.examine_every_round(real, "add-remove") == ("none", [("none", "add-remove")])
    assert stand_in.examine_every_round(real, "function") == ("none", [])
    assert made[-1][0] == "small"

    def fails(*_: Any) -> Any:
        raise ValueError("the real model alone")

    monkeypatch.setattr(stand_in, "_rows", fails)
    assert stand_in.examine_every_round(real, "add-remove") == ("none", [])


def test_a_small_model_has_as_many_records_of_each_agent(monkeypatch: Any) -> None:
    """Softmax regression on five features and three classes, where its rounds are soon played."""

    class Kept(stand_in.Classification):
        def __init__(self, dataset: Any, partition: Any, *of: Any) -> None:
            super().__init__(dataset, partition, *of)
            self.parts = [part.tolist() for part in partition.indices]

    monkeypatch.setattr(stand_in, "Classification", Kept)
    real = object.__new__(Kept)
    defense = SimpleNamespace(n_rounds=10, batch_size=4)

    setting = make_dataclass("Setting", ["sizes", "d", "layers", "n_agents"])((3, 0, 2), 99, (), 3)
    coupled = make_dataclass("Coupled", ["defense", "setting", "problem", "streams"])(
        defense, setting, real, SimpleNamespace(device=torch.device("cpu"))
    )
    found: Any = stand_in.small_problem(coupled)
    assert (found.setting.d, found.setting.sizes) == (18, (3, 0, 2))
    assert [size for _, size in found.setting.layers] == [15, 3]
    assert found.problem.parts == [[0, 1, 2], [], [3, 4]]
    data = found.problem.dataset
    assert (tuple(data.x.shape), tuple(data.x_test.shape)) == ((5, 5), (3, 5))
    assert data.y.tolist() == [0, 1, 2, 0, 1]
    assert data.y_test.tolist() == [2, 0, 1]
    assert -1 <= float(data.x.min()) < -0.5 < 0.5 < float(data.x.max()) <= 1
    numbers = 10 * 3 * 18 * 4
    for most, is_played in ((numbers, True), (numbers - 1, False)):
        monkeypatch.setattr(stand_in, "MOST_NUMBERS", most)
        assert (stand_in.small_problem(coupled) is not None) is is_played
    monkeypatch.setattr(stand_in, "MOST_NUMBERS", 10**9)
    for rounds, is_played in ((stand_in.MOST_ROUNDS, True), (stand_in.MOST_ROUNDS + 1, False)):
        defense.n_rounds = rounds
        assert (stand_in.small_problem(coupled) is not None) is is_played
    coupled.problem = SimpleNamespace()
    defense.n_rounds = 1
    assert stand_in.small_problem(coupled) is None
