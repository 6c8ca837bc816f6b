"""What is said of work that is running: where there is no terminal, and how long is left."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from dpaudit.commands import running
from dpaudit.commands.running import Tally, progress_bars, waiting_lines


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_names_what_is_running_and_how_long_is_left() -> None:
    clock = Clock()
    tally = Tally(clock)
    assert tally.line() == "after 0 s: preparing what comes next"
    tally("training, defense", 0, 200)
    tally("attack 01", 3, 3)
    clock.now = 30.0
    tally("training, defense", 50, 200)
    assert tally.line() == "after 30 s: training, defense, 50 of 200, 1.5 min left"
    tally("attack 02", 1, 8)
    assert tally.line() == (
        "after 30 s: training, defense, 50 of 200, 1.5 min left; "
        "attack 02, 1 of 8, an unknown time left"
    )
    tally("attack 02", 8, 8)
    tally("training, defense", 200, 200)
    assert tally.line() == "after 30 s: preparing what comes next"


def test_a_line_names_what_comes_next() -> None:
    """What was ahead of something that has begun was not needed."""
    clock = Clock()
    tally = Tally(clock)
    for what in ("training", "attack 01", "attack 02", "the report"):
        tally(what, 0, 0)
    assert tally.line() == tally.ahead() == "after 0 s: preparing training and 3 more"
    clock.now = 10.0
    tally("training", 0, 4)
    clock.now = 20.0
    tally("training", 1, 4)
    assert tally.line() == ("after 20 s: training, 1 of 4, 30 s left; then attack 01 and 2 more")
    assert tally.ahead() == "after 20 s, then attack 01 and 2 more"
    tally("training", 4, 4)
    tally("attack 02", 1, 1)
    assert tally.line() == "after 20 s: preparing the report"


def test_steps_of_unknown_number_are_counted_until_others_begin() -> None:
    tally = Tally(Clock())
    for what in ("runs", "tests", "the report"):
        tally(what, 0, 0)
    tally("runs", 3, 0)
    assert tally.line() == "after 0 s: runs, 3 so far; then tests and 1 more"
    assert tally.ahead() == "after 0 s: runs, 3 so far, then tests and 1 more"
    tally("tests", 0, 1)
    tally("the report", 0, 0)
    assert tally.line() == "after 0 s: tests, for 0 s; then the report"
    tally("tests", 1, 1)
    assert tally.line() == "after 0 s: preparing the report"


def test_what_has_no_steps_says_how_long_it_has_run() -> None:
    clock = Clock()
    tally = Tally(clock)
    clock.now = 2.0
    tally("cells", 0, 2)
    tally("a cell", 0, 1)
    clock.now = 14.0
    assert tally.line() == "after 14 s: cells, 0 of 2, an unknown time left; a cell, for 12 s"
    tally("cells", 1, 2)
    assert "cells, 1 of 2, 12 s left" in tally.line()


def test_on_a_terminal_no_second_is_silent() -> None:
    """Also while nothing is reported, as when data are loaded."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    code = (
        "import time; from dpaudit.commands.running import progress_bars\n"
        "with progress_bars(False) as report: report('training', 0, 0); time.sleep(0.5)"
    )
    environment = {**os.environ, "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", code], stderr=theirs, env=environment, check=True)
    said = os.read(ours, 10_000).decode()
    os.close(ours), os.close(theirs)
    assert said.count("preparing training") >= 2


def test_the_pace_is_that_of_what_was_seen_done() -> None:
    """A resumed job begins in the middle."""
    clock = Clock()
    tally = Tally(clock)
    tally("training", 100, 200)
    clock.now = 10.0
    tally("training", 110, 200)
    assert tally.line() == "after 10 s: training, 110 of 200, 1.5 min left"


def test_a_step_that_runs_counts_for_the_time_left() -> None:
    """It does not raise it, until it takes longer than those before it did."""
    clock = Clock()
    tally = Tally(clock)
    tally("worlds", 0, 10)
    clock.now = 70.0
    tally("worlds", 7, 10)
    for now, left in ((70.0, "30 s"), (75.0, "25 s"), (80.0, "20 s"), (120.0, "30 s")):
        clock.now = now
        tally("worlds", 7, 10)  # what is reported again moves nothing
        assert f"worlds, 7 of 10, {left} left" in tally.line()
    tally("worlds", 9, 10)
    clock.now = 150.0
    assert "worlds, 9 of 10, an unknown time left" in tally.line()


def test_without_a_terminal_lines_come_now_and_then(capsys, monkeypatch) -> None:
    monkeypatch.setattr(running, "EVERY", 0.01)
    with progress_bars(quiet=False) as on_progress:
        on_progress("one \x1b[2J", 1, 3)
        until = time.monotonic() + 10
        said = ""
        while "one" not in said and time.monotonic() < until:
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert " s: one \\x1b[2J, 1 of 3, " in said


def test_without_a_terminal_it_says_what_comes_next(capsys, monkeypatch) -> None:
    """As while modules are imported or data are loaded; nobody waits longer than 5 s for a word."""
    assert running.EVERY < 5
    monkeypatch.setattr(running, "EVERY", 0.01)
    with progress_bars(quiet=False) as on_progress:
        on_progress("training", 0, 0)  # is ahead
        until, said = time.monotonic() + 10, ""
        while said.count("preparing training") < 2 and time.monotonic() < until:
            time.sleep(0.01)
            said += capsys.readouterr().err
    assert said.count("preparing training") >= 2


def test_a_command_is_heard_before_and_after_all_progress(capsys, monkeypatch) -> None:
    """As while it imports torch; beside a display of progress no other line says so."""
    monkeypatch.setattr(running, "EVERY", 0.01)
    monkeypatch.setattr(running, "_shown", [0, 0])

    def said_in(text: str) -> str:
        until, said = time.monotonic() + 10, ""
        while text not in said and time.monotonic() < until:
            time.sleep(0.01)
            said += capsys.readouterr().err
        assert text in said
        return said

    with waiting_lines():
        said_in("s: loading")
        with progress_bars(quiet=False) as on_progress:
            on_progress("one", 1, 3)
            time.sleep(0.1)  # of a line that was being written
            capsys.readouterr()
            assert "loading" not in said_in("one, 1 of 3")
        said_in("finishing")


def test_a_display_that_begins_late_waits_no_longer(monkeypatch) -> None:
    """As after imports of 3 s: its first line is due 4 s after the start of the command."""
    clock, said = Clock(), list[float]()
    clock.now = 100.0
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(running, "_said", [0.0])
    monkeypatch.setattr(running, "complain", lambda _: said.append(clock.now))
    monkeypatch.setattr(running.threading, "Thread", lambda **_: SimpleNamespace(start=str))

    class Over:
        def wait(self, seconds: float) -> bool:
            clock.now += seconds
            return clock.now > 105

    with waiting_lines():
        clock.now = 103.0
        running._say_in_silence(Over(), 4.0, lambda: "it runs")
    assert said == [104.0]


def test_a_quiet_one_says_nothing_and_a_short_one_neither(capsys, monkeypatch) -> None:
    with progress_bars(quiet=False) as on_progress:
        on_progress("one", 1, 3)
    monkeypatch.setattr(running, "EVERY", 0.001)
    with progress_bars(quiet=True) as on_progress:
        on_progress("one", 1, 3)
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_no_thread_is_left(monkeypatch) -> None:
    import threading

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), progress_bars(quiet=False):
        1 / 0  # noqa: B018
    assert threading.active_count() == before


def test_a_line_is_due_so_long_after_any_other(monkeypatch) -> None:
    """One that begins 3 s after another's last word waits 1 s more; one that may not speak yet
    does as soon as it may.
    """
    clock, said = Clock(), list[float]()
    clock.now = 7.0
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(running, "_said", [4.0])
    monkeypatch.setattr(running, "complain", lambda _: said.append(round(clock.now, 1)))

    class Over:
        def wait(self, seconds: float) -> bool:
            clock.now += seconds
            return clock.now > 20

    running._say_in_silence(Over(), 4.0, lambda: "" if 11 < clock.now < 13.95 else "it runs")
    assert said == [8.0, 14.0, 18.0]


def test_an_audit_that_has_ended_is_in_no_line(tmp_path) -> None:
    """Also one that failed, whose last report is of something that was still running."""
    clock, file = Clock(), tmp_path / "progress.json"
    tally = Tally(clock)
    waiting = running.passing_on(tally)
    waiting({"one": file})
    clock.now = 8.0
    assert tally.line() == "after 8 s: one: start of its audit, for 8 s"
    file.write_text('{"training": [3, 20], "the report": [0, 0]}')
    waiting({"one": file})
    assert tally.line() == (
        "after 8 s: one: training, 3 of 20, an unknown time left; then one: the report"
    )
    file.unlink()  # as its folder gets its final name
    waiting({"one": file})
    assert "one: training, 3 of 20" in tally.line()
    waiting({"two": tmp_path / "none"})
    assert tally.line() == "after 8 s: two: start of its audit, for 0 s"
