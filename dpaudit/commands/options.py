"""Options that several commands have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from dpaudit.errors import ConfigError
from dpaudit.files.data_folders import DATA_ROOT
from dpaudit.memory import bytes_of

if TYPE_CHECKING:
    from dpaudit.pipeline.run import Runtime

LEAST_IN_BYTES = 10**6  # a smaller number without a unit was meant in another one

RunFolder = Annotated[Path, Argument(metavar="DIR", help="The run directory.")]
Device = Annotated[Literal["cpu", "cuda"], Option(help="Compute on this device.")]
DataRoot = Annotated[
    Path | None,
    Option(envvar=DATA_ROOT, help="The folder that holds mnist, fashion-mnist and cifar10."),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print no progress.")]
MaxMemory = Annotated[
    str | None,
    Option(help="Use at most this much memory, like 8GB; default: what is free.", metavar="SIZE"),
]
DryRun = Annotated[
    bool, Option("--dry-run", help="Only estimate time, memory and what could be proved.")
]
Workers = Annotated[
    int | None, Option(min=1, help="Run this many processes; default: one for each core.")
]
AuditJson = Annotated[bool, Option("--json", help="Print audit.json.")]
Results = Annotated[
    Path | None, Option(help="Write the results as JSON and CSV to a folder like docs/results.")
]
Markdown = Annotated[Path | None, Option(hidden=True)]  # options of former versions


def refuse_markdown(markdown: Path | None) -> None:
    if markdown is not None:
        raise ConfigError("DPA013", "--markdown: results are JSON and CSV now", "give --results")


def runtime_of(
    device: Device,
    data_root: Path | None,
    workers: int | None,
    max_memory: str | None,
    download: bool = False,
) -> "Runtime":
    """Where and with how much an audit runs. Raises ConfigError: no such device, or size."""
    from dpaudit.pipeline.fork_server import imports

    with imports():
        from dpaudit.pipeline.requirements import torch_device
        from dpaudit.pipeline.run import Runtime

    where = torch_device(device, f"--device {device}")
    size = bytes_in(max_memory)
    return Runtime(where, data_root, download, workers or Runtime.cores, size)


def bytes_in(max_memory: str | None) -> int | None:
    """The bytes of --max-memory. Raises ConfigError, also of a number whose unit is missing."""
    if max_memory is None:
        return None
    size = bytes_of(max_memory, "--max-memory")
    if size < LEAST_IN_BYTES and max_memory.strip().isdigit():
        number = max_memory.strip()
        raise ConfigError(
            "DPA014",
            f"--max-memory: {number} without a unit is {number} bytes; expected a unit, as in "
            f"{number}GB or {number}GiB",
        )
    return size
