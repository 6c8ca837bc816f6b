"""A run directory for what an attack writes and no test reads; gone when the tests end."""

from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from dpaudit.training.run_directory import RunDirectory

_ROOT, _NUMBER = TemporaryDirectory(prefix="dpaudit-tests-"), count()


def scratch_run() -> RunDirectory:
    return RunDirectory(Path(_ROOT.name) / str(next(_NUMBER)))
