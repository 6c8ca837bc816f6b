"""How much memory there is, and how to say so. Nothing here loads torch."""

import os
import re
from pathlib import Path

from .errors import ConfigError

MARGIN = 0.1  # share of free memory that is left to other programs
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * i) for i, unit in enumerate("KMGT", start=1)}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)


def bytes_of(text: str, option: str) -> int:
    """The number of bytes that "8GB", "512MiB" or "1000000" means.

    Args:
        option: where it was given, as the first words of the error.

    Raises:
        ConfigError: it is no size, or none above 0.
    """
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * _UNITS.get(match[2].upper(), 0)) if match else 0
    if size <= 0:
        said = f'{option}: "{text}" is no size; expected one like 8GB or 512MiB'
        raise ConfigError("DPA014", said)
    return size


def size_text(size: float) -> str:
    """A number of bytes for people: 8.2 GB."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 10**3:.3g} kB"


def resident() -> int:
    """Bytes of memory that this process holds now; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def available() -> int | None:
    """Bytes that are free for an audit, less a margin; None where the system does not tell.

    The least of what the machine and the control groups of this process leave.
    """
    free = [size for size in (_of_machine(), *_of_groups()) if size is not None]
    return int((1 - MARGIN) * min(free)) if free else None


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        table = dict(line.split(":") for line in lines if ":" in line)
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _of_groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[int]:
    """What the limits of the control groups leave, of version 2 and of version 1.

    Cached files count as used there, though the kernel gives them up: what is inactive is added.
    """
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    left = []
    for _, controllers, path in groups:
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        version_1 = "memory.limit_in_bytes", "memory.usage_in_bytes"
        names = version_1 if controllers else ("memory.max", "memory.current")
        place = base / path.lstrip("/")
        for folder in (place, *place.parents):
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and used is not None:
                left.append(max(0, limit - used + _inactive(folder)))
            if folder == base:
                break
    return left


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max": no limit
        return None


def _inactive(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError):
        return 0
