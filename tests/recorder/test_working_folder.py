"""A program whose working folder is gone, as those of NVFlare's simulator, goes on as it was."""

import os
from types import SimpleNamespace

from dpaudit.recorder.log import Sites
from dpaudit.recorder.transports.unseen import UnseenWays


def test_a_program_may_open_files_without_a_working_folder(tmp_path, monkeypatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    ways = UnseenWays(SimpleNamespace(folder=str(tmp_path)))
    ways._file("relative", "r", os.O_RDONLY)
    assert Sites("/origin")._name("a.py") == "a.py"
