"""Programs that know nothing of dpaudit, recorded: beside what their receivers wrote down."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.recording import Recording
from dpaudit.capture.run import Options, capture

from .sheets import GUESTS, assert_every_message_on_its_link, assert_every_sum

Run = Callable[..., Recording]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A guest, started in its folder; its receivers write their sheets to tmp_path / "sheets"."""
    monkeypatch.chdir(GUESTS)
    monkeypatch.setenv("SHEETS", str(tmp_path / "sheets"))
    (tmp_path / "sheets").mkdir()

    def started(*arguments: str, **options: Any) -> Recording:
        told = Options(**{"seconds": 120.0, **options})
        return capture([sys.executable, *arguments], tmp_path / "out", told)

    return started


def test_every_pattern_is_on_its_link_in_order_and_bit_for_bit(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = run("patterns.py")
    assert_every_message_on_its_link(recording, tmp_path / "sheets")
    assert_every_sum(recording, tmp_path / "sheets")
    assert not any(event.inconsistent for event in recording.events)
    assert sorted(capfd.readouterr().out.splitlines()) == [f"rank {r} is done" for r in range(3)]
    used = {event.operator for event in recording.events}
    assert used == {
        "send",
        "broadcast",
        "all_gather",
        "gather",
        "all_reduce",
        "reduce",
        "reduce_scatter",
        "scatter",
        "all_to_all",
    }


def test_threads_and_ddp_of_spawned_processes_and_a_race(run: Run, tmp_path: Path) -> None:
    recording = run("spawned.py", "race")
    assert_every_message_on_its_link(recording, tmp_path / "sheets")
    assert_every_sum(recording, tmp_path / "sheets")
    (raced,) = (event for event in recording.events if event.inconsistent)
    assert (raced.source, raced.call_site) == (0, "spawned.py:62")
    assert recording.content(raced.tensors[0]).sum() == 10_000  # as it was when it was sent
