"""``dpaudit certificate``: what it writes, what it refuses, and what verify says of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.certificate import digest
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, run_audit
from tests.said import without_help
from tests.small_audits import digits_audit

ROOT = Path(__file__).parents[2]


def command(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, done.stdout, without_help(done.stderr)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certifying")
    text = digits_audit(2.0, 4.0)
    (folder / "audit.toml").write_text(text)
    run_audit(AuditConfig.from_toml(folder / "audit.toml"), folder / "run", Runtime(cores=1), text)
    return folder / "run"


@pytest.fixture
def run(audited: Path, tmp_path: Path) -> Path:
    shutil.copytree(audited, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def file(run: Path, tmp_path: Path) -> Path:
    """A certificate away from its run."""
    assert command("certificate", run, "--out", tmp_path / "alone" / "c.json")[0] == 0
    return tmp_path / "alone" / "c.json"


def changed(file: Path, change: Callable[[dict[str, Any]], object], again: bool = True) -> None:
    """Change a certificate, and compute its hashes again as a forger would."""
    content = json.loads(file.read_text())
    change(content)
    if again:
        parts = {key: part for key, part in content.items() if key not in ("hashes", "sha256")}
        whole = {**parts, "hashes": {key: digest(part) for key, part in parts.items()}}
        content = {**whole, "sha256": digest(whole)}
    file.write_text(json.dumps(content))


def test_a_certificate_is_valid_and_confirmed(file: Path) -> None:
    schema = json.loads((ROOT / "docs" / "certificate.schema.json").read_text())
    content = json.loads(file.read_text())
    jsonschema.validate(content, schema)
    code, shown, _ = command("verify", file)
    assert code == 0
    assert shown.splitlines()[-1] == f"{file}: confirmed"


def test_it_names_what_the_run_directory_holds(run: Path, file: Path) -> None:
    content = json.loads(file.read_text())
    audit = json.loads((run / "audit.json").read_text())
    for key in ("config", "provenance", "verdict", "claims", "note_codes"):
        assert content[key] == audit[key]
    assert {"audit.json", "config.toml", "report.html"} <= set(content["files"])
    assert set(content["matrices"]) < set(content["files"])
    assert all(finding["series"] == {} for finding in content["findings"])
    codes = {code for claim in content["claims"] for code in claim["codes"]}
    assert codes | {"add-remove", content["verdict"]} <= set(content["words"])
    assert content["adversaries"]["eavesdropper"].startswith("An external eavesdropper")


def test_a_second_certificate_is_the_same(run: Path) -> None:
    assert command("certificate", run)[0] == 0
    first = (run / "certificate.json").read_bytes()
    assert command("certificate", run)[0] == 0
    assert (run / "certificate.json").read_bytes() == first


def test_only_the_bytes_between_values_may_change(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()), indent=7))
    assert command("verify", file)[0] == 0
    changed(file, lambda content: content["provenance"].update(python="3.12.0"), again=False)
    code, shown, _ = command("verify", file)
    assert code == 1
    assert "hashes.provenance: does not follow: not the hash of this part" in shown


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a part more": lambda content: content.update(approved=True),
    "a part less": lambda content: content.pop("words"),
    "the matrices of a view": lambda content: content.update(
        matrices=dict.fromkeys(content["matrices"], "AAAA")
    ),
    "the verdict": lambda content: content.update(verdict="refuted"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_hashes_that_fit_save_no_forgery(
    file: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    changed(file, change)
    assert command("verify", file)[0] == 1


def test_a_file_beside_it_has_to_be_the_one_it_names(run: Path) -> None:
    assert command("certificate", run)[0] == 0
    assert command("verify", run / "certificate.json")[0] == 0
    (run / "report.html").write_text("All is well.")
    code, shown, _ = command("verify", run / "certificate.json")
    assert code == 1
    assert "files.report.html: does not follow" in shown


def test_matrices_that_are_nowhere_are_not_checkable(file: Path) -> None:
    changed(file, lambda content: content.update(matrices={}))
    code, shown, _ = command("verify", file)
    assert code == 2
    assert "not checkable: the matrices of the view" in shown


@pytest.mark.parametrize(
    "change, said",
    [
        ({"format_version": 2}, "format_version 2; dpaudit verify reads certificates of version 1"),
        ({"schema_version": 2}, "schema_version 2; dpaudit verify reads version 3"),
        ({"files": 7}, "not what an audit writes"),
        ({"files": {"../run/audit.json": 64 * "0"}}, "is outside the run directory"),
        ({"matrices": {"artifacts/../../x.npz": "AAAA"}}, "are no matrices"),
        ({"matrices": {f"artifacts/linear-view-{64 * '0'}.npz": "A"}}, "Invalid base64"),
        ({"hashes": None}, "not what an audit writes"),
    ],
)
def test_a_hostile_certificate_is_one_line(file: Path, change: dict[str, Any], said: str) -> None:
    changed(file, lambda content: content.update(change), again="hashes" not in change)
    code, shown, error = command("verify", file)
    assert (code, shown) == (2, "")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "place, value, said",
    [
        (("findings", 0, "adjacency"), 0, "findings[1].adjacency: Input should be"),
        (("findings", 0, "void"), {"a": 1}, "findings[1].void: Input should be a valid string"),
        (("notes",), True, "notes: Input should be a valid"),
        (("provenance", "platform"), 5, "provenance.platform: Input should be a valid string"),
        (("words", "scope"), None, "words.scope: Input should be a valid string"),
    ],
)
def test_a_value_of_another_type_is_not_confirmed(
    file: Path, place: tuple[str | int, ...], value: Any, said: str
) -> None:
    def change(content: dict[str, Any]) -> None:
        inside: Any = content
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = value

    changed(file, change)
    code, shown, error = command("verify", file)
    assert (code, shown) == (2, "")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_cut_off_certificate_is_named_as_one(file: Path, share: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    code, shown, error = command("verify", file)
    assert (code, shown) == (2, "")
    assert f"{file}: a certificate that is cut off after" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "content, said",
    [
        (None, "there is no audit.json in it"),
        ("{", "an audit.json that is cut off"),
        ('{"schema_version": 9}', "schema_version 9"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "audit.json").write_text(content)
    code, shown, error = command("certificate", tmp_path)
    assert (code, shown) == (2, "")
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "certificate.json").exists()


def test_a_result_of_an_older_version_is_refused(run: Path) -> None:
    content = json.loads((run / "audit.json").read_text()) | {"schema_version": 2}
    (run / "audit.json").write_text(json.dumps(content))
    code, shown, error = command("certificate", run)
    assert (code, shown) == (2, "")
    assert "audit.json: schema_version 2; a certificate is made of version 3" in error
