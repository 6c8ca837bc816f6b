"""Audits by content: one that was made of the same config, code and data is not made again.

An entry is a folder named by the hash of everything that decides its audit.json, and sealed: one
that was not made with this machine's key, or was changed since, is not taken. It appears by one
rename, so it is whole or not there; an audit on its way is in a folder whose name only the key
gives, where a killed one goes on, and KEY.lock lets only one process work on it at a time.

The key is the text of DPAUDIT_CACHE_KEY, which machines that share a cache have in common, or else
a file in the user's state folder, made when it is first needed. Where neither can be had, a key is
drawn for one check, and what was made with it is not taken by a later one.
"""

import fcntl
import hmac
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from secrets import token_hex

from dpaudit.errors import ConfigError, DpauditError, RunError
from dpaudit.files.atomic_files import write_whole, writing
from dpaudit.files.documents import read_json, text_of
from dpaudit.files.result import AuditResult
from dpaudit.inputs.inputs import Inputs

INPUTS = "inputs.json"  # what the audit read, to see whether it changed
KEPT = ("config.toml", "audit.json", "report.html", "artifacts", INPUTS)
SEAL = "seal"  # the file that holds it, in each entry
VARIABLE = "DPAUDIT_CACHE_KEY"
LEAST_LENGTH = 32  # characters: 16 random bytes in hexadecimal


@dataclass(frozen=True)
class Seal:
    """A key, and what is sealed with it (HMAC-SHA256, RFC 2104)."""

    key: str = field(repr=False)

    def of(self, *parts: str) -> str:
        """The seal of some texts, 64 hexadecimal digits; the first says what they are."""
        return hmac.new(self.key.encode(), json.dumps(parts).encode(), sha256).hexdigest()

    def of_entry(self, name: str, folder: Path) -> str:
        """The seal of an entry under a name: of the path and content of every file that is kept.

        Raises:
            OSError: it cannot be read.
            RunError: a link, or something else that is no file and no folder, is in it.
        """
        if folder.is_symlink():
            raise RunError("DPA068", f"{folder}: expected a folder, found a link")
        found = []
        for part in KEPT:  # nothing else of it may be read
            for path in _files(folder / part) if os.path.lexists(folder / part) else ():
                with path.open("rb") as file:
                    digest = file_digest(file, "sha256").hexdigest()
                found += [path.relative_to(folder).as_posix(), digest]
        return self.of("folder", name, *found)


def _files(path: Path) -> Iterator[Path]:
    """A file, or the files below a folder, in order."""
    kind = path.lstat().st_mode
    if stat.S_ISDIR(kind):
        for inside in sorted(path.iterdir()):
            yield from _files(inside)
    elif stat.S_ISREG(kind):
        yield path
    else:
        raise RunError("DPA068", f"{path}: expected a file or a folder, found a link or a device")


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
        """Where the audit of this content is being made; nobody without the key can name it."""
        return self.path / f"{self.seal.of('partial', key)[:32]}.partial"

    def find(self, key: str) -> AuditResult | None:
        """The audit of this content; None if there is none that may stand for it now."""
        result = self.made(key)
        return None if result is None or self.inputs(key).doubt() is not None else result

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
            expected = self.seal.of_entry(key, entry)
            if not hmac.compare_digest(sealed.encode(), expected.encode()):
                return None
            return AuditResult.read(entry / "audit.json")
        except (OSError, ValueError, DpauditError):
            return None

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
        write_whole(partial / SEAL, self.seal.of_entry(key, partial).encode())
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

    def noted_with(
        self, name: str, add: Callable[[tuple[str, ...]], tuple[str, ...]]
    ) -> tuple[str, ...]:
        """What is noted under a name, and what is added to it, which is noted from now on."""
        with self.locked(name):
            noted = add(self.noted(name) or ())
            self.note(name, noted)
        return noted

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


def _remove(path: Path) -> None:
    """Whatever it is; of a link the link itself."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def machine_key() -> str:
    """The key of this machine and user.

    Raises:
        ConfigError: DPAUDIT_CACHE_KEY is too short to be a secret.
        RunError: others can read or write the file with the key.
    """
    given = os.environ.get(VARIABLE, "")
    if given and len(given) < LEAST_LENGTH:
        raise ConfigError(
            "DPA068",
            f"{VARIABLE}: expected a secret of at least {LEAST_LENGTH} characters, "
            f"got {len(given)}",
            "leave it empty for a key of this machine",
        )
    if given:
        return given
    try:
        named = Path(os.environ.get("XDG_STATE_HOME", ""))  # XDG ignores relative paths
        state = named if named.is_absolute() else Path.home() / ".local" / "state"
        path = state / "dpaudit" / "cache-key"
        if not path.exists():
            _make(path)
        return _read(path)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return token_hex(LEAST_LENGTH)


def _make(path: Path) -> None:
    """A new key, whole or not at all; one that another check made meanwhile is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # has permissions 0600
        file.write(token_hex(LEAST_LENGTH))
        file.flush()
        with suppress(FileExistsError):
            os.link(file.name, path)


def _read(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="ascii") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise RunError(
                "DPA068",
                f"{path}: expected a file of yours that nobody else can read or write (0600), "
                f"found permissions {stat.S_IMODE(found.st_mode):04o}",
                "remove it, and the next check makes another",
            )
        key = file.read()
    if len(key) < LEAST_LENGTH:
        raise RunError(
            "DPA068", f"{path}: not a key", "remove it, and the next check makes another"
        )
    return key
