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


DATA_FOLDERS = {
    "mnist": DataFolder(
        "MNIST", "MNIST", "70,000 handwritten digits, 28x28 grey; from --data-root"
    ),
    "fashion-mnist": DataFolder(
        "FashionMNIST",
        "FashionMNIST",
        "70,000 pieces of clothing, 28x28 grey; from --data-root",
    ),
    "cifar10": DataFolder(
        "CIFAR10",
        "cifar-10-batches-py",
        "60,000 photographs of 10 things, 32x32 colour; from --data-root",
    ),
}


def root_folder(given: str | Path | None) -> Path | None:
    """The folder above theirs: the given one, or the environment's; None if neither is set."""
    root = given or os.environ.get(DATA_ROOT)
    return Path(root) if root else None
