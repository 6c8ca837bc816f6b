"""A folder with a claims file of one check."""

from pathlib import Path

import pytest

from tests.check.stub_audits import CLAIMS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("x = 0\n")
    (tmp_path / "claims.toml").write_text(CLAIMS)
    return tmp_path
