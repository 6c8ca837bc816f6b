"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from dpaudit.files.data_folders import DATA_ROOT
from dpaudit.memory import bytes_of

Device = Literal["cpu", "cuda"]
DataRoot = Annotated[
    Path | None,
    Option(envvar=DATA_ROOT, help="Folder of mnist, fashion-mnist and cifar10."),
]
Download = Annotated[bool, Option("--download", help="Fetch a data set that is not there.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress.")]
MaxMemory = Annotated[
    str | None, Option(help="At most, like 8GB; default: what is free.", metavar="SIZE")
]
DryRun = Annotated[
    bool, Option("--dry-run", help="Only say what it takes and what it could prove.")
]
Workers = Annotated[int | None, Option(min=1, help="Processes; default: one for each core.")]


def bytes_in(max_memory: str | None) -> int | None:
    """The bytes of --max-memory. Raises ConfigError."""
    return None if max_memory is None else bytes_of(max_memory, "--max-memory")
