"""The folder of finished audits, and what makes an audit another one."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpaudit.check import run
from dpaudit.check.cache import AuditCache, Seal
from dpaudit.check.run import SEED_DIGITS, Auditor, CheckOptions, Order, _source, run_check
from dpaudit.errors import RunError
from dpaudit.files.claims_file import ClaimsFile
from tests.check.stub_audits import CLAIMS, SECOND


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


def test_nothing_is_run_again_or_updated_unless_asked_for(tmp_path: Path) -> None:
    options = CheckOptions(tmp_path)
    assert (options.fresh, options.update_baseline, options.baseline) == (False, False, None)


def test_a_fresh_seed_is_of_all_but_the_seed(folder: Path) -> None:
    """The first digits of the hash of the rest, so that it changes with the code."""
    options, seeds = CheckOptions(folder, auditor=Auditor(source=())), []
    for text in (CLAIMS, CLAIMS.replace("seed = 1", "seed = 2")):
        fresh = text.replace('name = "first"\n', 'name = "first"\nfresh_seed = true\n')
        (folder / "claims.toml").write_text(fresh)
        file = ClaimsFile.read(folder / "claims.toml")
        seeds += [_source(file, 0, None, options, own).content["seed"] for own in ("a", "b")]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]
    assert max(seeds) < 16**SEED_DIGITS
    assert min(seeds) >= 16 ** (SEED_DIGITS - 3)  # by chance in 1 of 4,096 contents


@pytest.mark.parametrize("cores, each", [(1, 1), (2, 1), (4, 2), (5, 2)])
def test_audits_that_are_missing_share_the_cores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cores: int, each: int
) -> None:
    """Two of three checks have an audit of their own."""
    again = CLAIMS.partition("\n\n")[2].replace('"first"', '"again"')
    (folder / "claims.toml").write_text(f"{CLAIMS}{again}{SECOND}")
    asked = dict[str, Any]()

    class Ordered(Exception):
        pass

    def order(command: Any, orders: Mapping[str, Order], *_: Any) -> Any:
        asked.update({name: json.loads(one.text) for name, one in orders.items()})
        raise Ordered

    monkeypatch.setattr(run, "side_by_side", order)
    monkeypatch.setattr(run, "_config", lambda source: source.content)
    options = CheckOptions(folder / "cache", cores=cores, auditor=Auditor(source=()))
    with pytest.raises(Ordered):
        run_check(ClaimsFile.read(folder / "claims.toml"), options, lambda *given: None)
    assert {name: job["cores"] for name, job in asked.items()} == {"first": each, "second": each}


def test_what_the_key_of_another_machine_noted_is_none(tmp_path: Path) -> None:
    ours, theirs = AuditCache(tmp_path, Seal("k" * 32)), AuditCache(tmp_path, Seal("l" * 32))
    ours.note("a.json", ("1", "2"))
    assert ours.noted("a.json") == ("1", "2")
    assert theirs.noted("a.json") is None
    (tmp_path / "a.json").rename(tmp_path / "b.json")
    assert ours.noted("b.json") is None  # bound to its name
