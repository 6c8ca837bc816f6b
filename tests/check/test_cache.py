"""The folder of finished audits."""

from pathlib import Path

import pytest

from dpaudit.check.cache import AuditCache, Seal
from dpaudit.errors import RunError


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/cache: cannot write: Not a directory"):
        AuditCache(tmp_path / "file" / "cache", Seal("k"))
