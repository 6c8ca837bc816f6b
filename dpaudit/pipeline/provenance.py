"""What it would take to run an audit again: versions, machine, seed, state of the folder."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dpaudit.files.result import Provenance
from dpaudit.source import hash_of, own_source
from dpaudit.version import __version__, optional_versions

PACKAGES = ("torch", "numpy", "scipy", "scikit-image", "scikit-learn")


def provenance_of(
    data: str,
    fingerprint: str,
    seed: int,
    device: torch.device,
    n_records: int = 0,
    agent_sizes: tuple[int, ...] = (),
) -> Provenance:
    """The provenance of a run that is about to be made here, on data of this name and hash."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    commit = _commit()
    return Provenance(
        dpaudit=__version__,
        python=platform.python_version(),
        packages={package: version(package) for package in PACKAGES} | optional_versions(),
        platform=platform.platform(),
        device=f"{device.type} ({name})",
        seed=seed,
        git_commit=commit,
        git_dirty=None if commit is None else _is_dirty(),
        data=data,
        data_fingerprint=fingerprint,
        n_records=n_records,
        agent_sizes=agent_sizes,
    )


def code_of(*plugins: type[Any]) -> dict[str, str]:
    """Which code computes: versions, and hashes of dpaudit's files and of the plug-ins' modules."""
    modules = dict.fromkeys(plugin.__module__ for plugin in plugins)
    files = [getattr(sys.modules.get(module), "__file__", None) for module in modules]
    return {
        "dpaudit": hash_of(own_source()),
        "plug-ins": hash_of(Path(file) for file in files if file is not None),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        **optional_versions(),
    }


def _git(*arguments: str, config: Mapping[str, str] = {}) -> bytes | None:
    """What git says of the repository of the working folder; None where it says nothing.

    Nothing that the folder configures is run: no hook, monitor or pager, and no filter that
    ``config`` turns off. A missing object is not fetched.
    """
    git = ["git", "--no-optional-locks", "--no-pager", "--no-replace-objects"]
    settings = {"core.fsmonitor": "false", "safe.bareRepository": "explicit", **config}
    environment = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_COUNT": str(len(settings))}
    for i, (key, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{i}": key, f"GIT_CONFIG_VALUE_{i}": value}
    try:
        done = subprocess.run(
            [*git, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            env={**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _commit() -> str | None:
    """The commit of the working folder."""
    found = _git("rev-parse", "--verify", "HEAD")
    return None if found is None else found.decode().strip()


def _is_dirty() -> bool | None:
    """Whether tracked files differ from the commit, or there are others that are not ignored.

    Files are compared as they lie on disk, without the filters that the folder names. A file that
    a filter rewrites therefore counts as changed once it was touched. Submodules are not looked
    at. None: git cannot say.
    """
    settings = _git("config", "--list", "--name-only", "-z")
    if settings is None:
        return None
    drivers = {
        key.rpartition(".")[0]
        for key in settings.decode(errors="surrogateescape").split("\0")
        if key.startswith("filter.")
    }
    off = {"clean": "", "smudge": "", "process": "", "required": "false"}
    config = {f"{driver}.{key}": value for driver in drivers for key, value in off.items()}
    listing = "--untracked-files=normal", "--ignore-submodules=all", "--no-renames"
    changed = _git("status", "--porcelain", *listing, config=config)
    return None if changed is None or _commit() is None else bool(changed)
