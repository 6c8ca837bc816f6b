"""Cells of an experiment: which are run, with which settings, and that none is run twice."""

import time
from dataclasses import replace

import pytest

from dpaudit.errors import ConfigError, DataError, RunError
from dpaudit.papers import cells
from dpaudit.papers.cells import (
    Request,
    chosen,
    refuse_missing_data,
    run_cells,
    workers_that_fit,
)
from dpaudit.papers.declared import DECLARED
from dpaudit.papers.experiment import ExperimentScale, TableCell
from tests.papers.toy import CALLS, CELLS, LEARNS, TOY, ask, files, measure


def run(out, experiment=TOY, request=None):
    CALLS.clear()
    found = run_cells(experiment, request or ask(), out, 1, lambda what, done, total: None)
    return [(cell, {s: replace(done, seconds=0) for s, done in own.items()}) for cell, own in found]


def test_the_scale_says_which_cells_are_run() -> None:
    assert [c.labels["budget"] for c in chosen(TOY, ask("quick"))] == ["4", "4"]
    assert len(chosen(TOY, ask())) == 4
    [b] = chosen(TOY, ask(only={"method": ("B",), "budget": ("1",)}, changed={"tilt": 7}))
    assert b.settings == {"method": "B", "budget": 1.0, "shift": 0.0, "tilt": 7}
    [a] = chosen(TOY, ask(only={"method": ("A",), "budget": ("1",)}, changed={"tilt": 7}))
    assert "tilt" not in a.settings  # it is left open of B alone


def test_what_the_caller_asks_for_wins_over_the_scale() -> None:
    scaled = replace(TOY, scales={"paper": ExperimentScale(1, 1, 1, {"shift": 5.0})})
    assert chosen(scaled, ask())[0].settings["shift"] == 5.0
    assert chosen(scaled, ask(changed={"shift": 6.0}))[0].settings["shift"] == 6.0


def test_other_data_take_the_place_of_the_paper_s() -> None:
    assert chosen(LEARNS, ask())[0].settings["data.name"] == "mnist"
    assert chosen(LEARNS, ask(data="digits"))[0].settings["data.name"] == "digits"
    own = chosen(LEARNS, ask(data="own.npz"))[0].settings
    assert own["data.path"] == "own.npz"
    assert "data.name" not in own


@pytest.mark.parametrize(
    "asked, line",
    [
        ({"changed": {"shfit": 1}}, 'leaves no "shfit" open (did you mean "shift"?)'),
        ({"only": {"methd": ("A",)}}, 'no column "methd" (did you mean "method"?)'),
        ({"only": {"method": ("AA",)}}, 'method has no "AA"'),
    ],
)
def test_what_there_is_not_is_one_line_with_the_nearest(asked, line) -> None:
    with pytest.raises(ConfigError) as error:
        chosen(TOY, ask(**asked))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_cell_is_run_once_and_again_only_for_other_settings(tmp_path) -> None:
    first = run(tmp_path)
    assert [(c.labels["method"], seed) for c in CELLS for seed in range(3)] == CALLS
    assert run(tmp_path) == first
    assert CALLS == []
    (tmp_path / "cells" / "a-1-seed-2.json").unlink()
    assert run(tmp_path) == first
    assert CALLS == [("A", 2)]
    run(tmp_path, request=ask(changed={"tilt": 9}))
    assert {method for method, _ in CALLS} == {"B"}


def test_progress_names_each_cell_and_counts_all(tmp_path) -> None:
    said = list[tuple[str, int, int]]()

    def steps(settings, seed, context):
        context.on_step(1, 2)
        context.on_step(2, 2)
        yield from measure(settings, seed, context)

    def run_again() -> None:
        said.clear()
        asked = ask(seeds=1, only={"budget": ("1",)})
        run_cells(replace(TOY, measure=steps), asked, tmp_path, 1, lambda *one: said.append(one))

    run_again()
    a, b = "a-1-seed-0", "b-1-seed-0"
    assert said == [
        *(("cells", 0, 2), (a, 0, 0), (b, 0, 0)),
        # the last step is not the end of the cell
        *((a, 0, 1), (a, 1, 2), (a, 0, 1), (a, 1, 1), ("cells", 1, 2)),
        *((b, 0, 1), (b, 1, 2), (b, 0, 1), (b, 1, 1), ("cells", 2, 2)),
    ]
    (tmp_path / "cells" / f"{b}.json").unlink()
    run_again()  # what lies there tells nothing of the time that is left
    assert [one for one in said if one[0] == "cells"] == [("cells", 0, 2)]
    assert said[-1] == (b, 1, 1)


def test_a_cell_that_somebody_edited_is_not_believed(tmp_path) -> None:
    run(tmp_path)
    path = tmp_path / "cells" / "b-4-seed-0.json"
    path.write_text(path.read_text().replace("8.0", "9.0"))
    run(tmp_path)
    assert CALLS == [("B", 0)]


def test_what_a_killed_run_left_is_gone_on_with(tmp_path, monkeypatch) -> None:
    kept, keep = [], cells._DoneCells.keep

    def killed(self, job, done):
        if len(kept) == 5:
            raise KeyboardInterrupt
        kept.append(job)
        keep(self, job, done)

    with monkeypatch.context() as patch:
        patch.setattr(cells._DoneCells, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert len(files(tmp_path)) == 5
    run(tmp_path)
    assert len(CALLS) == 12 - 5


def test_the_time_of_a_cell_is_that_of_its_interrupted_runs_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cells, "NOTED_EVERY", 0.0)
    least, goes = 0.3, []

    def interrupted(settings, seed, context):
        goes.append(seed)
        until = time.process_time() + least
        while len(goes) == 1 and time.process_time() < until:
            pass
        context.on_step(1, 2)
        if len(goes) == 1:
            raise KeyboardInterrupt
        yield from measure(settings, seed, context)

    slow, request = replace(TOY, measure=interrupted), ask(seeds=1, only={"budget": ("4",)})
    told = (tmp_path, 1, lambda what, done, total: None)
    with pytest.raises(KeyboardInterrupt):
        run_cells(slow, request, *told)
    (_, first), (_, second) = run_cells(slow, request, *told)
    assert first[0].seconds >= least > second[0].seconds
    assert [m.value for m in first[0].measured] == [4.0, 10.0]


def test_a_cell_that_fails_says_why_and_the_others_go_on(tmp_path) -> None:
    bad = TableCell({"method": "A", "budget": "below 0"}, {"method": "A", "budget": -1.0})
    found = run(tmp_path, replace(TOY, cells=(bad, CELLS[0])))
    assert [done.error for done in found[0][1].values()] == ["a number is infinite"] * 3
    assert all(not done.error for done in found[1][1].values())
    with pytest.raises(RunError, match="a number is infinite"):
        run(tmp_path, replace(TOY, cells=(bad,)))


def test_code_that_changes_while_cells_run_is_named(tmp_path, monkeypatch) -> None:
    versions = iter(range(100))
    monkeypatch.setattr(cells, "code_of", lambda: {"dpaudit": str(next(versions))})
    with pytest.raises(RunError, match="dpaudit's own code changed while this ran.* again"):
        run(tmp_path)


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("tilt", 0, "a whole number above 0"),
        ("tilt", 2.5, "a whole number above 0"),
        ("tilt", True, "a whole number above 0"),
        ("tilt", "many", "a whole number above 0"),
        ("tilt", 10**10, "an integer of at most 1,000,000,000"),
        ("shift", float("nan"), "0 or a number of size .*"),
        ("shift", [1], "a number"),
    ],
)
def test_a_reading_of_another_kind_is_refused_at_once(key, value, expected) -> None:
    with pytest.raises(ConfigError, match=f"--set: {key}: expected {expected}, got "):
        chosen(TOY, ask(changed={key: value}))
    assert chosen(TOY, ask(changed={"shift": -3, "tilt": 2}))


def test_a_folder_of_something_else_is_left_alone(tmp_path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="not empty"):
        run(tmp_path)


def test_missing_data_name_the_file_and_another_way(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("DPAUDIT_DATA", raising=False)
    with pytest.raises(DataError) as error:
        refuse_missing_data(LEARNS, ask(data_root=tmp_path))
    assert str(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte") in str(error.value)
    assert "3 more" in str(error.value)
    assert "--data digits" in str(error.value)
    with pytest.raises(DataError, match="FOLDER/MNIST.*--data-root"):
        refuse_missing_data(LEARNS, ask())
    refuse_missing_data(LEARNS, ask(data="digits"))
    with pytest.raises(ConfigError, match="learns from no data set"):
        refuse_missing_data(TOY, ask(data="digits"))


def test_a_scale_that_does_not_fit_is_refused_in_one_line(monkeypatch) -> None:
    large = replace(
        TOY, scales={"quick": ExperimentScale(1, 1, 10**6), "paper": ExperimentScale(1, 1, 10**9)}
    )
    monkeypatch.setattr(cells, "available", lambda: 5 * 10**8)
    with pytest.raises(ConfigError) as error:
        workers_that_fit(large, ask(), 2)
    assert str(error.value) == (
        "toy, scale paper, takes about 1 GB of memory, and 500 MB is free; --scale quick takes 1 MB"
    )
    monkeypatch.setattr(cells, "available", lambda: 2.5 * 10**9)
    assert workers_that_fit(large, ask(), 4) == 2


def test_a_reading_that_no_file_could_have_is_refused_at_once() -> None:
    experiment = DECLARED["dpdl-table1"]
    assert chosen(experiment, Request("dpdl-table1", changed={"defense.h": 3.0}))
    with pytest.raises(ConfigError, match=r"(?m)^--set: defense.h: Input should be .* 1, got -1$"):
        chosen(experiment, Request("dpdl-table1", changed={"defense.h": -1}))
    with pytest.raises(ConfigError, match=r"(?m)^--set: defense.n_rounds: .*, got 'many'$"):
        chosen(experiment, Request("dpdl-table1", changed={"defense.n_rounds": "many"}))
