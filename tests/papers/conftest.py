"""What tests of experiments share: a run directory of a cell."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpaudit.data.datasets import load_dataset
from dpaudit.papers.experiment import CellContext
from dpaudit.training.run_directory import RunDirectory


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CellContext]:
    with RunDirectory(tmp_path / "out").held() as run:
        run.binding = "cell"
        yield CellContext(
            run, "cell", load_dataset("digits", seed=3), lambda what, done, total: None
        )
