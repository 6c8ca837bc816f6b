"""The data sets that no package brings along, and where their files are."""

import os
from pathlib import Path
from typing import NamedTuple

DATA_ROOT = "DPAUDIT_DATA"  # the environment variable for the folder above theirs


class DataFolder(NamedTuple):
    """A data set in torchvision's layout."""

    torchvision: str  # the class that reads it
    folder: str  # where that class looks, below the root
    line: str  # about it
    files: tuple[str, ...]  # in that folder


_IDX = tuple(
    f"raw/{part}-{what}-ubyte"
    for part in ("train", "t10k")
    for what in ("images-idx3", "labels-idx1")
)
DATA_FOLDERS = {
    "mnist": DataFolder(
        "MNIST", "MNIST", "70,000 handwritten digits, 28x28 grey; from --data-root", _IDX
    ),
    "fashion-mnist": DataFolder(
        "FashionMNIST",
        "FashionMNIST",
        "70,000 pieces of clothing, 28x28 grey; from --data-root",
        _IDX,
    ),
    "cifar10": DataFolder(
        "CIFAR10",
        "cifar-10-batches-py",
        "60,000 photographs of 10 things, 32x32 colour; from --data-root",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
    ),
}


def root_folder(given: str | Path | None) -> Path | None:
    """The folder above theirs: the given one, or the environment's; None if neither is set."""
    root = given or os.environ.get(DATA_ROOT)
    return Path(root) if root else None


def missing_files(name: str, root: Path) -> list[Path]:
    """Files of a data set that are not where they belong below this folder."""
    data = DATA_FOLDERS[name]
    files = (root / data.folder / file for file in data.files)
    return [file for file in files if not file.is_file()]
