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
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpaudit.errors import DpauditError, RunError
from dpaudit.files.data_folders import DATA_FOLDERS, root_folder
from dpaudit.files.documents import read_json, text_of
from dpaudit.files.result import AuditResult
from dpaudit.files.whole import write_whole
from dpaudit.registry import PluginFamily, installed
from dpaudit.source import below, hash_of
from dpaudit.version import __version__

from .seal import Seal

DECIDING = ("torch", "numpy", "scipy", "scikit-learn", "scikit-image", "pydantic")
KEPT = ("config.toml", "audit.json", "report.html", "artifacts")
SEAL = "seal"  # the file that holds it, in each entry


class AuditCache:
    """A folder of finished audits.

    Raises:
        RunError: it cannot be written.
    """

    def __init__(self, path: Path, seal: Seal) -> None:
        self.path = path
        self.seal = seal
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path}: cannot write: {error.strerror}") from None
        if not os.path.lexists(path / ".gitignore"):
            write_whole(path / ".gitignore", b"*\n")

    def entry(self, key: str) -> Path:
        """Where the audit of this content is, or will be."""
        return self.path / key

    def partial(self, key: str) -> Path:
        """Where the audit of this content is being made."""
        return partial_folder(self.path, key, self.seal)

    def find(self, key: str) -> AuditResult | None:
        """The audit of this content; None if there is none that was made with this key."""
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
            raise RunError(f"{path}: cannot write: {error.strerror}") from None
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


def content_key(
    audit: Mapping[str, Any],
    folder: Path,
    code: Path | None,
    device: str,
    data_root: Path | None,
    source: Iterable[Path],
) -> str:
    """The hash of everything that decides an audit's numbers, without importing any of it.

    Defaults are not filled in: they are part of the hashed code.

    Args:
        audit: the content of an audit file.
        folder: what its relative paths are relative to.
        code: a folder of the caller's own modules; all Python files below it count.
        device: where it is computed.
        data_root: where torchvision's data sets are.
        source: the files of dpaudit itself.
    """
    parts = {
        "audit": _without_path(audit),
        "dpaudit": __version__,
        "source": hash_of(source),
        "plug-ins": {name: hash_of(files) for name, files in _plugin_source(audit).items()},
        "code": None if code is None else hash_of(below(code, ".py"), code),
        "data": _data_fingerprint(audit, folder, data_root),
        "program": _program_source(audit, folder),
        "packages": {package: version(package) for package in DECIDING},
        "python": platform.python_version(),
        "device": device,
    }
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _without_path(audit: Mapping[str, Any]) -> dict[str, Any]:
    data = audit.get("data")
    if not isinstance(data, dict) or "path" not in data:
        return dict(audit)
    return {**audit, "data": {**data, "path": Path(str(data["path"])).name}}


def _plugin_source(audit: Mapping[str, Any]) -> dict[str, list[Path]]:
    """The files of each plug-in that is neither ours nor in the caller's folder of code."""
    found = {}
    for family, name in _plugins(audit):
        plugin = installed(family).get(name)
        module = (plugin.value if plugin else name).partition(":")[0]
        if plugin and not module.startswith("dpaudit."):
            spec = find_spec(module.partition(".")[0])
            places = list((spec.submodule_search_locations or ()) if spec else ())
            if places:
                found[name] = [path for place in places for path in below(Path(place), ".py")]
            elif spec and spec.origin:
                found[name] = [Path(spec.origin)]
    return found


def _plugins(audit: Mapping[str, Any]) -> Iterator[tuple[PluginFamily, str]]:
    """Name and family of each plug-in; what is malformed is said when the config is checked."""
    defense, attacks = audit.get("defense"), audit.get("attack")
    if isinstance(defense, dict):
        yield "defenses", str(defense.get("name"))
    for attack in attacks if isinstance(attacks, list) else ():
        if isinstance(attack, dict):
            yield "attacks", str(attack.get("name"))


def _program_source(audit: Mapping[str, Any], folder: Path) -> str | None:
    """Of a program that is audited: all Python files below the folder that it is started in."""
    program = audit.get("program")
    if not isinstance(program, dict):
        return None
    started_in = folder / str(program.get("folder", "."))
    return hash_of(below(started_in, ".py"), started_in)


def _data_fingerprint(audit: Mapping[str, Any], folder: Path, data_root: Path | None) -> str:
    """Of the data's files; what comes with a package is fixed by that package's version."""
    data = audit.get("data")
    if not isinstance(data, dict):
        return ""
    if "path" in data:
        return hash_of([folder / str(data["path"])])
    name = str(data.get("name"))
    root = root_folder(data_root)
    if name not in DATA_FOLDERS or root is None:
        return name
    return hash_of(below(root / DATA_FOLDERS[name].folder, ""))
