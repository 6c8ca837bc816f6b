"""Files are written whole, and in their own place."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpaudit.errors import RunError
from dpaudit.files.atomic_files import refuse_links, write_whole
from dpaudit.training.locked_folder import Folder


def into_folder(path: Path, content: bytes) -> None:
    Folder(path.parent).write(path.name, content)


@pytest.mark.parametrize("write", [write_whole, into_folder])
def test_a_link_is_replaced_and_never_written_through(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("out.png", f".out.png.{os.getpid()}.partial"):
        (tmp_path / name).symlink_to(victim)
    write(tmp_path / "out.png", b"new")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "out.png").is_symlink()
    assert (tmp_path / "out.png").read_bytes() == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "out.png"}


def test_what_a_killed_process_left_is_swept(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = {f".out.png.{os.getppid()}.partial", ".out.png.old.partial", ".other.1.partial"}
    for name in (*kept, f".out.png.{ended.pid}.partial"):
        (tmp_path / name).touch()
    write_whole(tmp_path / "out.png", b"new")
    assert {path.name for path in tmp_path.iterdir()} == kept | {"out.png"}


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "out.png", tmp_path / "nul\0byte"):
        with pytest.raises(RunError, match=r": cannot write: [^\n]+\nhelp: "):
            write_whole(path, b"")


def test_no_output_follows_a_link_below_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the last part; a link above the folder, or elsewhere, is the user's choice."""
    (tmp_path / "here" / "real").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "here" / "real")
    (tmp_path / "above").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for path in (Path("real/out"), tmp_path / "above" / "real" / "out", Path("../above/real")):
        refuse_links(path)
    for path in (Path("link"), Path("link/out"), tmp_path / "above" / "link" / "out"):
        with pytest.raises(RunError, match="is a link, and no output follows a link below the"):
            refuse_links(path)
