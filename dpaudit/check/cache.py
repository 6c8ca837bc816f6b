"""Audits by content: one that was made of the same config, code and data is not made again.

An entry is a folder named by the hash of everything that decides its audit.json, and sealed: one
that was not made with this machine's key, or was changed since, is not taken. It appears by one
rename, so it is whole or not there; an audit on its way is in a folder whose name only the key can
tell, where a killed one goes on, and KEY.lock lets only one process work on it at a time.
"""

import fcntl
import hmac
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpaudit.errors import DpauditError, RunError
from dpaudit.files.documents import read_json, text_of
from dpaudit.files.result import AuditResult
from dpaudit.files.whole import write_whole, writing
from dpaudit.inputs.inputs import Inputs

from .seal import Seal

INPUTS = "inputs.json"  # what the audit read, by which it is seen whether that changed
KEPT = ("config.toml", "audit.json", "report.html", "artifacts", INPUTS)
SEAL = "seal"  # the file that holds it, in each entry


class AuditCache:
    """A folder of finished audits.

    Args:
        root: paths of inputs below it are kept relative to it.

    Raises:
        RunError: it cannot be written.
    """

    def __init__(self, path: Path, seal: Seal, root: Path = Path("/")) -> None:
        self.path = path
        self.seal = seal
        self.root = root
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path / ".gitignore"):
            write_whole(path / ".gitignore", b"*\n")

    def entry(self, key: str) -> Path:
        """Where the audit of this content is, or will be."""
        return self.path / key

    def partial(self, key: str) -> Path:
        """Where the audit of this content is being made."""
        return partial_folder(self.path, key, self.seal)

    def find(self, key: str) -> AuditResult | None:
        """The audit of this content; None if there is none that may stand for it now."""
        result = self.made(key)
        return None if result is None or self.doubt(key) is not None else result

    def doubt(self, key: str) -> str | None:
        """Why an audit that was made may not stand: what it read changed, or is not known."""
        return self.inputs(key).doubt()

    def inputs(self, key: str) -> Inputs:
        """What an audit read."""
        try:
            return Inputs.read(self.entry(key) / INPUTS, self.root)
        except (OSError, ValueError):
            return Inputs(unknown=("it has no list of what it read",))

    def made(self, key: str) -> AuditResult | None:
        """The audit that was made of this content, with this key, whatever changed since."""
        entry = self.entry(key)
        try:
            sealed = text_of(entry / SEAL)
            expected = self.seal.of_folder(key, entry, KEPT)
            if not hmac.compare_digest(sealed.encode(), expected.encode()):
                return None
            return AuditResult.read(entry / "audit.json")
        except (OSError, ValueError, DpauditError):
            return None

    def holds(self, key: str) -> bool:
        """Whether anything lies in the place of an entry."""
        return os.path.lexists(self.entry(key))

    def forget(self, key: str) -> None:
        """Make it anew next time."""
        with self.locked(key):
            _remove(self.entry(key))
            _remove(self.partial(key))

    def keep(self, key: str) -> None:
        """Turn a finished partial audit into an entry, without what only ``--resume`` needs.

        Raises:
            RunError: there are links in it.
        """
        partial, entry = self.partial(key), self.entry(key)
        write_whole(partial / INPUTS, Inputs.of_log(partial).text(self.root).encode())
        write_whole(partial / SEAL, self.seal.of_folder(key, partial, KEPT).encode())
        _remove(entry)  # one that is not taken
        partial.rename(entry)
        for path in entry.iterdir():  # last: whatever is killed before, the audit is kept
            if path.name not in (*KEPT, SEAL):
                _remove(path)

    def noted(self, name: str) -> tuple[str, ...] | None:
        """What ``note`` left under a name; None if there is nothing, or not of this key."""
        try:
            found = read_json(self.path / name)
            contents, sealed = map(str, found["contents"]), str(found["seal"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        noted = tuple(contents)
        expected = self.seal.of("notes", name, *noted)
        return noted if hmac.compare_digest(sealed.encode(), expected.encode()) else None

    def note(self, name: str, contents: tuple[str, ...]) -> None:
        """Keep some texts under a name. Raises RunError."""
        sealed = {"contents": contents, "seal": self.seal.of("notes", name, *contents)}
        write_whole(self.path / name, f"{json.dumps(sealed)}\n".encode())

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Alone with one key; whoever else wants it waits. A killed holder lets go."""
        path = self.path / f"{key}.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise RunError("DPA016", f"{path}: cannot write: {error.strerror}") from None
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def partial_folder(cache: Path, key: str, seal: Seal) -> Path:
    """Where the audit of a content is being made: nobody without the key can put one there."""
    return cache / f"{seal.of('partial', key)[:32]}.partial"


def _remove(path: Path) -> None:
    """Whatever it is; of a link the link itself."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
