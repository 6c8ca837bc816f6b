"""What git is asked of the working folder, and that it runs nothing for it."""

import os
import subprocess
from pathlib import Path

import pytest

from dpaudit.pipeline import provenance

# Each would leave a mark if it was run, with the file that makes git want to.
CONFIGURED = {
    "clean filter": "filter.planted.clean",
    "smudge filter": "filter.planted.smudge",
    "filter process": "filter.planted.process",
    "monitor": "core.fsmonitor",
    "pager": "core.pager",
    "pager of ls-files": "pager.ls-files",
    "text converter": "diff.planted.textconv",
    "difference of files": "diff.planted.command",
    "external difference": "diff.external",
    "editor": "core.editor",
    "ssh": "core.sshCommand",
    "helper": "credential.helper",
    "proxy": "core.gitProxy",
    "signer": "gpg.program",
    "alias": "alias.ls-files",
}


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *who, *arguments],
        cwd=folder,
        capture_output=True,
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit, as the working folder."""
    folder = tmp_path / "repository"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file.txt").write_text("one\n")
    (folder / "link").symlink_to("sub/file.txt")
    (folder / ".gitattributes").write_text("*.txt filter=planted diff=planted\n")
    (folder / ".gitignore").write_text("ignored\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    monkeypatch.chdir(folder / "sub")
    return folder


def test_git_runs_nothing_that_a_folder_configures(repository: Path) -> None:
    """Touched files would be filtered and compared, were git to look at their contents."""
    mark = repository.parent / "mark"
    program = repository.parent / "planted.sh"
    program.write_text(f'#!/bin/sh\necho "$@" >> {mark}\nexit 1\n')
    program.chmod(0o755)
    for key in CONFIGURED.values():
        git(repository, "config", key, f"{program} {key}" if "alias" not in key else f"!{program}")
    for hook in ("post-index-change", "pre-auto-gc", "fsmonitor-watchman", "post-checkout"):
        (repository / ".git" / "hooks" / hook).symlink_to(program)
    for key, value in {
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{program}",
        "protocol.ext.allow": "always",
        "core.untrackedCache": "true",
    }.items():
        git(repository, "config", key, value)
    mark.unlink(missing_ok=True)
    os.utime(repository / "sub" / "file.txt")
    assert provenance._is_dirty() is False
    (repository / "sub" / "file.txt").write_text("two\n")
    assert provenance._is_dirty() is True
    assert provenance._commit() is not None
    for blob in (repository / ".git" / "objects").glob("??/*"):
        blob.unlink()  # which a partial clone would fetch
    assert provenance._is_dirty() is None
    assert not mark.exists()
    subprocess.run(["git", "status"], cwd=repository, capture_output=True, timeout=60)
    assert mark.exists()  # it is a trap


def test_a_clean_folder_is_clean_and_each_change_is_one(repository: Path) -> None:
    assert provenance._commit() == git(repository, "rev-parse", "HEAD")
    assert provenance._is_dirty() is False
    (repository / "ignored").touch()
    os.utime(repository / "sub" / "file.txt")
    assert provenance._is_dirty() is False
    (repository / "new.txt").touch()
    assert provenance._is_dirty() is True
    git(repository, "add", "new.txt")
    assert provenance._is_dirty() is True
    git(repository, "commit", "--quiet", "-m", "second")
    assert provenance._is_dirty() is False
    (repository / "new.txt").write_text("content")
    assert provenance._is_dirty() is True
    (repository / "new.txt").unlink()
    assert provenance._is_dirty() is True
    git(repository, "checkout", "--quiet", "new.txt")
    (repository / "link").unlink()
    (repository / "link").symlink_to("new.txt")
    assert provenance._is_dirty() is True


def test_no_repository_and_no_commit_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (provenance._commit(), provenance._is_dirty()) == (None, None)
    git(tmp_path, "init", "--quiet")
    assert (provenance._commit(), provenance._is_dirty()) == (None, None)
