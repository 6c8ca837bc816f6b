"""Programs that know nothing of dpaudit, recorded: beside what their receivers wrote down."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.noise_lines import noise_lines
from dpaudit.capture.recording import CaptureFolder
from dpaudit.capture.run import Options, capture

from .sheets import GUESTS, assert_every_message_on_its_link, assert_every_sum

Run = Callable[..., CaptureFolder]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A guest, started in its folder; its receivers write their sheets to tmp_path / "sheets"."""
    monkeypatch.chdir(GUESTS)
    monkeypatch.setenv("SHEETS", str(tmp_path / "sheets"))
    (tmp_path / "sheets").mkdir()

    def started(*arguments: str, **options: Any) -> CaptureFolder:
        given = Options(**{"seconds": 120.0, **options})
        return capture([sys.executable, *arguments], tmp_path / "out", given)

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


@pytest.mark.slow
def test_threads_and_ddp_of_spawned_processes_and_a_race(run: Run, tmp_path: Path) -> None:
    recording = run("spawned.py", "race")
    assert_every_message_on_its_link(recording, tmp_path / "sheets")
    assert_every_sum(recording, tmp_path / "sheets")
    (raced,) = (event for event in recording.events if event.inconsistent)
    assert (raced.source, raced.call_site) == (0, "spawned.py:62")
    assert recording.content(raced.tensors[0]).sum() == 10_000  # as it was when it was sent


@pytest.mark.slow
def test_a_training_script_for_cuda_alone_under_torchrun(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    recording = run(*launch, "train_push_sum.py", "--noise", "0.05", cpu=True)
    assert_every_message_on_its_link(recording, tmp_path / "sheets")
    pushed = [event for event in recording.events if event.operator == "send"]
    assert [event.round for event in pushed if event.rank == 0] == [1, 2, 3, 4, 5, 6, 7, 8]
    (site,) = {event.call_site for event in pushed}
    assert "dist.isend" in (GUESTS / "train_push_sum.py").read_text().splitlines()[_number(site)]
    (drawn,) = [line.site for line in noise_lines(recording)]
    assert "randn_like" in (GUESTS / "train_push_sum.py").read_text().splitlines()[_number(drawn)]
    assert "epoch 1 accuracy" in capfd.readouterr().out


@pytest.mark.slow
def test_spawned_processes_that_send_layer_by_layer(run: Run, tmp_path: Path) -> None:
    recording = run("gossip_spawn.py", "--rounds", "4")
    assert_every_message_on_its_link(recording, tmp_path / "sheets")
    sent = [e for e in recording.events if e.operator == "send" and e.rank == 1]
    assert [event.round for event in sent] == [k for k in (1, 2, 3, 4) for _ in range(4 * 2)]
    (drawn,) = [line.site for line in noise_lines(recording)]
    assert "Laplace" in (GUESTS / "gossip_spawn.py").read_text().splitlines()[_number(drawn)]


@pytest.mark.slow
@pytest.mark.parametrize("guest", ["patterns.py", "spawned.py"])
def test_forty_runs_of_threads_and_objects_do_not_hang(
    guest: str, run: Run, tmp_path: Path
) -> None:
    for _ in range(40):
        recording = run(guest, seconds=60.0)
        assert_every_message_on_its_link(recording, tmp_path / "sheets")
        for path in (tmp_path / "sheets").iterdir():
            path.unlink()


def _number(site: str) -> int:
    return int(site.rpartition(":")[2]) - 1
