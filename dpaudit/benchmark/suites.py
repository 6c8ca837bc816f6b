"""The benchmarks that come with dpaudit, by name."""

from pathlib import Path
from typing import Literal

from dpaudit.errors import ConfigError, nearest

Scale = Literal["quick", "full"]
FOLDER = Path(__file__).parent / "suites"


def suites() -> list[str]:
    """The names of all suites."""
    names = {path.stem.rpartition("-")[0] for path in FOLDER.glob("*-*.toml")}
    return sorted(names)


def benchmark_path(named: str, scale: Scale | None) -> Path:
    """The file that a path, or the name of a suite, stands for.

    Raises:
        ConfigError: there is neither, or a scale is given for a file of the caller's own.
    """
    if named in suites():
        return FOLDER / f"{named}-{scale or 'quick'}.toml"
    path = Path(named)
    if not path.exists() and not path.suffix:
        known = suites()
        raise ConfigError(
            "DPA006",
            f'no file and no suite is called "{named}"{nearest(named, known)}; suites: '
            f"{', '.join(known) or 'none'}",
        )
    if scale is not None:
        raise ConfigError("DPA013", f"--scale: {named} is a file and no suite")
    return path
