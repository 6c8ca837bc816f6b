"""What it would take to run an audit again: versions, machine, seed, state of the folder."""

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dpaudit.files.result import Provenance
from dpaudit.source import hash_of, own_source
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.version import __version__

PACKAGES = ("torch", "numpy", "scipy", "scikit-image", "scikit-learn")


def provenance(learned: LoadedProblem, seed: int, device: torch.device) -> Provenance:
    """The provenance of a run that is about to be made here."""
    data = learned.name, learned.fingerprint, learned.n_records, learned.sizes
    return provenance_of(*data, seed, device)


def provenance_of(
    data: str,
    fingerprint: str,
    n_records: int,
    agent_sizes: tuple[int, ...],
    seed: int,
    device: torch.device,
) -> Provenance:
    """The same, of data with this name and hash."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    commit = _git("rev-parse", "HEAD")
    return Provenance(
        dpaudit=__version__,
        python=platform.python_version(),
        packages={package: version(package) for package in PACKAGES},
        platform=platform.platform(),
        device=f"{device.type} ({name})",
        seed=seed,
        git_commit=commit,
        git_dirty=None if commit is None else bool(_git("status", "--porcelain")),
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
    }


def _git(*arguments: str) -> str | None:
    """What git says about the working folder; None where there is no git or no repository.

    Nothing that the folder configures is run.
    """
    git = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false"]
    git += ["-c", "safe.bareRepository=explicit"]
    try:
        done = subprocess.run(
            [*git, *arguments], cwd=Path.cwd(), capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
