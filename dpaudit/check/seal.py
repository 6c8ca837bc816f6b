"""Who wrote what is in a cache: a seal that only the holder of this machine's key can make.

The key is the text of DPAUDIT_CACHE_KEY, which machines that share a cache have in common, or else
a file in the user's state folder, made when it is first needed. Where neither can be had, a key is
drawn for one check, and what was made with it is not taken by a later one.
"""

import hmac
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from secrets import token_hex

from dpaudit.errors import ConfigError, RunError

VARIABLE = "DPAUDIT_CACHE_KEY"
LEAST_LENGTH = 32  # characters: 16 random bytes in hexadecimal


@dataclass(frozen=True)
class Seal:
    """A key, and what is sealed with it (HMAC-SHA256, RFC 2104)."""

    key: str = field(repr=False)

    def of(self, *parts: str) -> str:
        """The seal of some texts, 64 hexadecimal digits; the first says what they are."""
        return hmac.new(self.key.encode(), json.dumps(parts).encode(), sha256).hexdigest()

    def of_folder(self, name: str, folder: Path, parts: Sequence[str]) -> str:
        """The seal of a folder under a name: of the path and content of every file in it.

        Args:
            parts: the files and folders at its top that count; nothing else of it may be read.

        Raises:
            OSError: it cannot be read.
            RunError: a link, or something else that is no file and no folder, is in it.
        """
        if folder.is_symlink():
            raise RunError("DPA068", f"{folder}: expected a folder, found a link")
        there = (folder / part for part in parts if os.path.lexists(folder / part))
        files = (
            (path.relative_to(folder).as_posix(), _digest(path))
            for part in there
            for path in _files(part)
        )
        return self.of("folder", name, *(text for file in files for text in file))


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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


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
            f"got {len(given)}; leave it empty for a key of this machine",
        )
    if given:
        return given
    try:
        path = _state_folder() / "dpaudit" / "cache-key"
        if not path.exists():
            _make(path)
        return _read(path)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return token_hex(LEAST_LENGTH)


def _state_folder() -> Path:
    """As the XDG base directory specification has it, which ignores relative paths."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".local" / "state"


def _make(path: Path) -> None:
    """A new key, whole or not at all; one that another check made meanwhile is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # with permissions 0600
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
                f"found permissions {stat.S_IMODE(found.st_mode):04o}; remove it, and the next "
                "check makes another",
            )
        key = file.read()
    if len(key) < LEAST_LENGTH:
        raise RunError("DPA068", f"{path}: not a key; remove it, and the next check makes another")
    return key
