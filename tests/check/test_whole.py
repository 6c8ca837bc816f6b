"""Files are written whole, and in their own place."""

import os
from pathlib import Path

from dpaudit.check.whole import write_whole


def test_a_link_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("out.png", f".out.png.{os.getpid()}"):
        (tmp_path / name).symlink_to(victim)
    write_whole(tmp_path / "out.png", b"new")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "out.png").is_symlink()
    assert (tmp_path / "out.png").read_bytes() == b"new"
