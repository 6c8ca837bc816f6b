"""What decides an audit's numbers, as one hash: its config, the code, the data and the versions.

Nothing here imports a plug-in or anything heavy, so that what was made before is found at once.
"""

import json
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpaudit.files.data_folders import DATA_FOLDERS, root_folder
from dpaudit.registry import PluginFamily, installed
from dpaudit.source import below, hash_of
from dpaudit.version import __version__, optional_versions

DECIDING = ("torch", "numpy", "scipy", "scikit-learn", "scikit-image", "pydantic")


def content_key(
    audit: Mapping[str, Any],
    folder: Path,
    code: Path | None,
    device: str,
    data_root: Path | None,
    source: str,
) -> str:
    """The hash of everything that decides an audit's numbers, without importing any of it.

    Defaults are not filled in: they are part of the hashed code.

    Args:
        audit: the content of an audit file.
        folder: what its relative paths are relative to.
        code: a folder of the caller's own modules; all Python files below it count.
        device: where it is computed.
        data_root: where torchvision's data sets are.
        source: the hash of the files of dpaudit itself.
    """
    parts = {
        "audit": _without_path(audit),
        "dpaudit": __version__,
        "source": source,
        "plug-ins": {name: hash_of(files) for name, files in _plugin_source(audit).items()},
        "code": None if code is None else hash_of(below(code, ".py"), code),
        "data": _data_fingerprint(audit, folder, data_root),
        "program": _program_source(audit, folder),
        "packages": _versions(),
        "python": platform.python_version(),
        "device": device,
    }
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


@cache
def _versions() -> dict[str, str]:
    return {package: version(package) for package in DECIDING} | optional_versions()


_installed = cache(installed)  # reading the metadata of every package takes long


def _without_path(audit: Mapping[str, Any]) -> dict[str, Any]:
    data = _table(audit, "data")
    if "path" not in data:
        return dict(audit)
    return {**audit, "data": {**data, "path": Path(str(data["path"])).name}}


def _plugin_source(audit: Mapping[str, Any]) -> dict[str, list[Path]]:
    """The files of each plug-in that is not ours: of its package, or its module if it has none."""
    found = {}
    for family, name in _plugins(audit):
        plugin = _installed(family).get(name)
        module = (plugin.value if plugin else name).partition(":")[0]
        if (plugin or ":" in name) and not module.startswith("dpaudit."):
            spec = _found(module.partition(".")[0])
            places = list((spec.submodule_search_locations or ()) if spec else ())
            if places:
                found[name] = [path for place in places for path in below(Path(place), ".py")]
            elif spec and spec.origin:
                found[name] = [Path(spec.origin)]
    return found


def _found(module: str) -> ModuleSpec | None:
    """Where a module is, without importing it; of one that cannot be found, the audit will say."""
    try:
        return find_spec(module)
    except (ImportError, ValueError):
        return None


def _plugins(audit: Mapping[str, Any]) -> Iterator[tuple[PluginFamily, str]]:
    """Name and family of each plug-in; what is malformed is said when the config is checked."""
    if defense := _table(audit, "defense"):
        yield "defenses", str(defense.get("name"))
    if mechanism := _table(audit, "mechanism"):
        yield "defenses", str(mechanism.get("function"))  # named "module:function" as theirs are
    for attack in _attacks(audit):
        yield "attacks", str(attack.get("name"))


def _table(audit: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A table of an audit that is not checked yet; empty if it is none."""
    table = audit.get(key)
    return table if isinstance(table, dict) else {}


def _attacks(audit: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    attacks = audit.get("attack")
    return [one for one in attacks if isinstance(one, dict)] if isinstance(attacks, list) else []


def _program_source(audit: Mapping[str, Any], folder: Path) -> str | None:
    """Hash of an audited program: Python files below its folder, and named weights."""
    program = audit.get("program")
    if not isinstance(program, dict):
        return None
    started_in = folder / str(program.get("folder", "."))
    named = [one["weights"] for one in _attacks(audit) if "weights" in one]
    weights = hash_of([folder / str(name) for name in named]) if named else ""
    return hash_of(below(started_in, ".py"), started_in) + weights


def bound_files(audit: Mapping[str, Any], data_root: Path | None) -> Iterator[Path]:
    """The files and folders of a complete config that ``content_key`` binds, wherever they lie."""
    data, root = _table(audit, "data"), root_folder(data_root)
    if data.get("path") is not None:
        yield Path(str(data["path"]))
    elif data.get("name") in DATA_FOLDERS and root is not None:
        yield root / DATA_FOLDERS[data["name"]].folder
    for attack in _attacks(audit) if "program" in audit else ():
        if attack.get("weights") is not None:
            yield Path(str(attack["weights"]))


def _data_fingerprint(audit: Mapping[str, Any], folder: Path, data_root: Path | None) -> str:
    """Hash of the data's files; data of a package are fixed by the package's version."""
    data = audit.get("data")
    if not isinstance(data, dict):
        return ""
    if "path" in data:
        path = folder / str(data["path"])
        return hash_of(below(path, ""), path) if path.is_dir() else hash_of([path])
    name = str(data.get("name"))
    root = root_folder(data_root)
    if name not in DATA_FOLDERS or root is None:
        return name
    return hash_of(below(root / DATA_FOLDERS[name].folder, ""))
