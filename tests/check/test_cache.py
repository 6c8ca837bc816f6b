"""The folder of finished audits, and what makes an audit another one."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpaudit.check.cache import AuditCache, Seal
from dpaudit.check.run import Auditor, CheckOptions, _source
from dpaudit.errors import RunError
from dpaudit.files.claims_file import ClaimsFile
from tests.check.stub_audits import CLAIMS


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/cache: cannot write: Not a directory"):
        AuditCache(tmp_path / "file" / "cache", Seal("k"))


def test_a_key_is_never_printed() -> None:
    assert "secret" not in repr(Seal("secret"))


def test_an_entry_belongs_to_its_device_code_data_and_dpaudit(folder: Path) -> None:
    file = ClaimsFile.read(folder / "claims.toml")
    cpu = CheckOptions(folder, auditor=Auditor(source=()))

    def key(options: CheckOptions = cpu, code: Path | None = None, own: str = "source") -> str:
        return _source(file, 0, code, options, own).key

    other_seed = CLAIMS.replace("seed = 1", "seed = 2")
    (folder / "claims.toml").write_text(other_seed)
    keys = [
        key(),
        key(replace(cpu, device="cuda")),
        key(code=folder / "code"),
        key(own="other source"),
        _source(ClaimsFile.read(folder / "claims.toml"), 0, None, cpu, "source").key,
    ]
    assert len(set(keys)) == len(keys)
    assert key() == key(replace(cpu, cores=7, fresh=True))


def test_what_the_key_of_another_machine_noted_is_none(tmp_path: Path) -> None:
    ours, theirs = AuditCache(tmp_path, Seal("k" * 32)), AuditCache(tmp_path, Seal("l" * 32))
    ours.note("a.json", ("1", "2"))
    assert ours.noted("a.json") == ("1", "2")
    assert theirs.noted("a.json") is None
    (tmp_path / "a.json").rename(tmp_path / "b.json")
    assert ours.noted("b.json") is None  # bound to its name
