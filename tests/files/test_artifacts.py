"""An artifact's path stays in its run directory."""

from pathlib import Path

import pytest

from dpaudit.errors import RunError
from dpaudit.files.atomic_files import artifact_file


@pytest.mark.parametrize(
    "path", ["../secret", "artifacts/../../secret", "/etc/passwd", "..\\secret", "C:\\secret"]
)
def test_a_path_that_leaves_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="outside the run directory"):
        artifact_file(tmp_path, path)


def test_a_link_is_refused_wherever_it_leads(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "real").mkdir(parents=True)
    (run / "real" / "1.png").touch()
    (run / "folder").symlink_to(run / "real")
    (run / "file").symlink_to(run / "real" / "1.png")
    for path in ("folder/1.png", "file"):
        with pytest.raises(RunError, match="is a link"):
            artifact_file(run, path)
    assert artifact_file(run, "real/1.png") == run / "real" / "1.png"


def test_a_run_directory_behind_a_link_is_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert artifact_file(tmp_path / "link", "a.png") == tmp_path / "link" / "a.png"


@pytest.mark.parametrize("path", ["missing.png", "a\0b", "x" * 5000])
def test_a_file_that_cannot_be_is_left_to_whoever_reads_it(path: str, tmp_path: Path) -> None:
    assert artifact_file(tmp_path, path) == tmp_path / path
