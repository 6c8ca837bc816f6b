"""What worker processes do in tests, in a module that they import without the package of tests."""

import os
import time
from contextlib import suppress
from pathlib import Path

import torch

from dpaudit.pipeline.workers import Work
from dpaudit.progress import OnProgress


def reports_its_threads(fails: bool) -> Work[str]:
    def work(job: str, on_progress: OnProgress) -> None:
        on_progress(job, torch.get_num_threads(), 0)
        if fails:
            raise ZeroDivisionError

    return work


def reports_its_process() -> Work[str]:
    return lambda job, on_progress: on_progress(job, os.getpid(), 0)


def takes_a_place_of_two(folder: str) -> Work[str]:
    """Jobs of some tenths of a second, each of which fails if two others run meanwhile."""

    def work(job: str, on_progress: OnProgress) -> None:
        for place in (Path(folder, "place 1"), Path(folder, "place 2")):
            with suppress(FileExistsError):
                place.mkdir()
                time.sleep(0.3)
                place.rmdir()
                Path(folder, job).touch()
                return
        raise RuntimeError("no place")

    return work


def reports_a_variable() -> Work[str]:
    def work(job: str, on_progress: OnProgress) -> None:
        on_progress(os.environ["OF_THE_CALLER"], 0, 0)

    return work


def fails_at_its_start() -> None:
    1 / 0  # noqa: B018


class OfOneProcess:
    """An object that no other process can load."""

    def __reduce__(self) -> tuple[object, ...]:
        return _loaded, (os.getpid(),)


def _loaded(by: int) -> OfOneProcess:
    if os.getpid() != by:
        raise ImportError("no such library\nfor this process")
    return OfOneProcess()
