"""What it would take to run an audit again: versions, machine, seed, state of the folder."""

import os
import platform
import re
import stat
import subprocess
import sys
from hashlib import sha1, sha256
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
    commit = _commit()
    return Provenance(
        dpaudit=__version__,
        python=platform.python_version(),
        packages={package: version(package) for package in PACKAGES},
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
    }


def _git(*arguments: str, folder: Path | None = None) -> bytes | None:
    """What git lists of the repository of the working folder; None where there is none.

    Only commands that list are asked, and nothing that the folder configures is run: filters,
    hooks, monitors and pagers belong to commands that compare or show contents, and a missing
    object is not fetched.
    """
    git = ["git", "--no-optional-locks", "--no-pager", "--no-replace-objects"]
    git += ["-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit"]
    quiet = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            [*git, *arguments],
            cwd=folder or Path.cwd(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            env={**os.environ, **quiet},
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

    Files are compared here, as they lie on disk: ``git status`` would pass them through filters
    that the folder names. A file that a filter rewrites therefore counts as changed once it was
    touched. Submodules and permissions are not looked at. None: git cannot say.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = Path(os.fsdecode(top.rstrip(b"\n")))
    tracked = _git("ls-files", "--stage", "-t", "--debug", "-z", folder=root)
    committed = _git("ls-tree", "-r", "-z", "--full-tree", "HEAD", folder=root)
    others = _git("ls-files", "--others", "--exclude-standard", "-z", folder=root)
    index = _git("rev-parse", "--git-path", "index", folder=root)
    if tracked is None or committed is None or others is None or index is None:
        return None
    staged = list(_STAGED.finditer(tracked))
    now = {(one["mode"], one["blob"], one["path"]) for one in staged}
    if others or now != {one.groups() for one in _COMMITTED.finditer(committed)}:
        return True
    try:
        written = (root / os.fsdecode(index.rstrip(b"\n"))).stat().st_mtime_ns
    except OSError:
        return None
    return any(_differs(one, root, written) for one in staged)


# Of ls-files --stage -t --debug -z: tag, mode, blob, stage, path; times, device, owner, size.
_STAGED = re.compile(
    rb"(?P<tag>\S) (?P<mode>\d{6}) (?P<blob>[0-9a-f]+) \d\t(?P<path>[^\0]+)\0"
    rb"(?:  ctime: .*\n  mtime: (?P<s>\d+):(?P<ns>\d+)\n.*\n.*\n  size: (?P<size>\d+)\t.*\n)?"
)
_COMMITTED = re.compile(rb"(\d{6}) \w+ ([0-9a-f]+)\t([^\0]+)\0")
_LINK, _MODULE, _NOT_CHECKED_OUT = b"120000", b"160000", b"S"


def _differs(staged: re.Match[bytes], root: Path, written: int) -> bool:
    """Whether a file is another one than that of the index, which was written at some time."""
    if staged["mode"] == _MODULE or staged["tag"] == _NOT_CHECKED_OUT:
        return False
    path = root / os.fsdecode(staged["path"])
    try:
        found = path.lstat()
        if staged["size"] is not None:
            noted = int(staged["s"]) * 10**9 + int(staged["ns"])
            if found.st_mtime_ns == noted < written and found.st_size == int(staged["size"]):
                return False
        if stat.S_ISLNK(found.st_mode) != (staged["mode"] == _LINK):
            return True
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
    except OSError:
        return True
    digest = sha1 if len(staged["blob"]) == 40 else sha256
    return digest(b"blob %d\0" % len(content) + content).hexdigest() != staged["blob"].decode()
