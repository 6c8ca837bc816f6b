"""Blocks of printed studies: what was computed is not computed again, and is of what it is about."""

import pytest

from dpaudit.errors import RunError
from dpaudit.papers.experiment import ExperimentScale
from dpaudit.papers.five_papers import FINDINGS, PrintedStudy, printed_lines

CALLS: list[str] = []


def study(scale, seed, keep):
    yield f"scale {scale}, seed {seed}"
    for name in ("first", "second"):

        def compute(name=name):
            CALLS.append(name)
            if seed == 9 and name == "second":
                raise RunError("DPA070", "killed")
            return [f"{name}: {seed}"]

        yield from keep(name, compute)


SCALES = {"quick": ExperimentScale(1, 1, 1)}
TOY = PrintedStudy("Toy", "Table 1", "nothing", study, SCALES, n_blocks=2)


def lines_of(out, scale="quick", seed=0) -> list[str]:
    CALLS.clear()
    return list(printed_lines("toy", TOY, scale, seed, out))


def test_what_was_computed_is_read_and_nothing_else(tmp_path) -> None:
    first = lines_of(tmp_path)
    assert CALLS == ["first", "second"]
    assert lines_of(tmp_path) == first
    assert CALLS == []
    assert lines_of(tmp_path, seed=1) == ["scale quick, seed 1", "first: 1", "second: 1"]
    assert lines_of(tmp_path, "paper")[0] == "scale paper, seed 0"
    assert CALLS == ["first", "second"]


def test_an_interrupted_study_goes_on_behind_its_last_block(tmp_path, monkeypatch) -> None:
    with pytest.raises(RunError, match="killed"):
        lines_of(tmp_path, seed=9)
    with pytest.raises(RunError, match="killed"):
        lines_of(tmp_path, seed=9)
    assert CALLS == ["second"]


def test_a_block_that_somebody_edited_is_computed_anew(tmp_path) -> None:
    lines_of(tmp_path)
    for path in (tmp_path / "blocks").iterdir():
        path.write_text(path.read_text().replace("first: 0", "first: 7"))
    assert "first: 0" in lines_of(tmp_path)
    assert CALLS == ["first"]


def test_a_folder_of_something_else_is_left_alone(tmp_path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="not empty"):
        lines_of(tmp_path)


def test_each_block_is_a_step_of_progress(tmp_path) -> None:
    seen: list[tuple[str, int, int]] = []
    list(printed_lines("toy", TOY, "quick", 0, tmp_path, lambda *step: seen.append(step)))
    assert seen == [("toy", done, 2) for done in (0, 1, 2)]


def test_the_findings_have_as_many_blocks_as_they_say(tmp_path) -> None:
    keys: list[str] = []
    list(FINDINGS.lines("quick", 0, lambda key, compute: keys.append(key) or []))
    assert len(set(keys)) == FINDINGS.n_blocks
