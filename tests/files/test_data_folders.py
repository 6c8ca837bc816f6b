"""Where the files of known data sets are looked for."""

from pathlib import Path

import pytest

from dpaudit.files.data_folders import DATA_FOLDERS, DATA_ROOT, missing_files, root_folder


def test_the_given_folder_comes_before_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DATA_ROOT, raising=False)
    assert root_folder(None) is None
    assert root_folder("") is None
    monkeypatch.setenv(DATA_ROOT, "/data")
    assert root_folder(None) == Path("/data")
    assert root_folder("/mine") == Path("/mine")


def test_only_files_that_are_not_there_are_missing(tmp_path: Path) -> None:
    data = DATA_FOLDERS["cifar10"]
    folder = tmp_path / data.folder
    assert missing_files("cifar10", tmp_path) == [folder / file for file in data.files]
    folder.mkdir(parents=True)
    (folder / data.files[0]).touch()
    assert missing_files("cifar10", tmp_path) == [folder / file for file in data.files[1:]]
