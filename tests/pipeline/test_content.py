"""What an audit's content is: everything that decides its numbers, and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit.files.data_folders import DATA_FOLDERS
from dpaudit.pipeline import content
from dpaudit.pipeline.content import content_key
from dpaudit.source import hash_of, own_source

REPOSITORY = Path(__file__).parents[2]
FAMILIES = (
    "attacks",
    "defenses",
    "recorder",
    "reports",
)  # they lie beside dpaudit, and import from inside it
COMPILED = shutil.ignore_patterns("__pycache__")
AUDIT = {"seed": 1, "data": {"path": "my.npz"}, "defense": {"name": "dpdl"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with data and code, and in the place of dpaudit's own source one file."""
    (tmp_path / "my.npz").write_bytes(b"data")
    (tmp_path / "code" / "sub").mkdir(parents=True)
    (tmp_path / "code" / "sub" / "mine.py").write_text("x = 1")
    (tmp_path / "dpaudit.py").write_text("y = 1")
    return tmp_path


def key(folder: Path, audit: dict = AUDIT, device: str = "cpu") -> str:
    own = hash_of([folder / "dpaudit.py"])
    return content_key(audit, folder, folder / "code", device, folder / "data", own)


@pytest.mark.parametrize("name", ["my.npz", "code/sub/mine.py", "dpaudit.py"])
def test_another_byte_of_data_or_code_is_another_content(folder: Path, name: str) -> None:
    before = key(folder)
    (folder / name).write_bytes(b"z = 2")
    assert key(folder) != before


@pytest.mark.parametrize("name", DATA_FOLDERS)
def test_another_byte_in_a_data_folder_is_another_content(folder: Path, name: str) -> None:
    audit = {**AUDIT, "data": {"name": name}}
    keys = set()
    for data in DATA_FOLDERS.values():
        file = folder / "data" / data.folder / "raw"
        file.parent.mkdir(parents=True)
        keys.add(key(folder, audit))
        file.write_bytes(b"pixels")
        keys.add(key(folder, audit))
    assert len(keys) == 2


def test_another_config_device_or_code_is_another_content(folder: Path) -> None:
    keys = {
        key(folder),
        key(folder, {**AUDIT, "seed": 2}),
        key(folder, {**AUDIT, "defense": {"name": "dpdl", "n_rounds": 3}}),
        key(folder, {**AUDIT, "attack": [{"name": "likelihood-ratio"}]}),
        key(folder, device="cuda"),
    }
    (folder / "code" / "new.py").touch()
    keys.add(key(folder))
    assert len(keys) == 6


def test_the_code_of_a_named_class_is_part_of_the_content(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "named.py").write_text("x = 1")
    audit = {**AUDIT, "defense": {"name": "named:Mine"}}
    before = content_key(audit, folder, None, "cpu", None, "")
    (folder / "named.py").write_text("x = 2")
    assert content_key(audit, folder, None, "cpu", None, "") != before
    for nowhere in (":Mine", "absent:Mine", "__main__:Mine"):
        assert key(folder, {**AUDIT, "defense": {"name": nowhere}})


def test_where_a_repository_lies_does_not_matter(folder: Path) -> None:
    before = key(folder)
    (folder / "code" / ".venv").mkdir()
    (folder / "code" / ".venv" / "other.py").touch()
    (folder / "code" / "notes.txt").touch()
    assert key(folder) == before
    moved = folder / "moved"
    shutil.copytree(folder / "code", moved / "code")
    shutil.copy(folder / "my.npz", moved)
    shutil.copy(folder / "dpaudit.py", moved)
    assert key(moved) == before
    assert key(folder, {**AUDIT, "data": {"path": str(folder / "my.npz")}}) == before


def test_missing_data_have_a_key_and_are_refused_later(folder: Path) -> None:
    (folder / "my.npz").unlink()
    assert key(folder)
    assert key(folder, {"data": 3, "defense": "dpdl", "attack": {"name": 1}})


def test_another_byte_of_named_weights_is_another_content(
    folder: Path,
) -> None:
    audit = {"program": {"command": ["python", "a.py"]}, "attack": [{"weights": "w.safetensors"}]}
    (folder / "w.safetensors").write_bytes(b"1")
    before = key(folder, audit)
    assert key(folder, audit) == before
    (folder / "w.safetensors").write_bytes(b"2")
    assert key(folder, audit) != before
    assert key(folder, {**audit, "attack": 3})


@pytest.mark.parametrize("device", ["null", "zero"])
def test_data_that_is_no_regular_file_is_not_read(folder: Path, device: str) -> None:
    named = {**AUDIT, "data": {"path": f"/dev/{device}"}}
    missing = {**AUDIT, "data": {"path": device}}
    assert key(folder, named) == key(folder, missing)


def test_no_plug_in_is_imported_for_a_key() -> None:
    code = (
        "import sys; from pathlib import Path; from dpaudit.pipeline.content import content_key; "
        "content_key({'defense': {'name': 'dpdl'}, 'attack': [{'name': 'gradient-inversion'}], "
        "'data': {'name': 'digits'}}, Path('.'), None, 'cpu', None, ''); "
        "assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_dpaudit_s_packages_are_a_part_of_the_content() -> None:
    """In a repository, ``dpaudit`` also looks for its families where tests and documents lie."""
    folders = [REPOSITORY / name for name in ("dpaudit", *FAMILIES)]
    source = own_source()
    assert len(source) == len({*source}) > 400
    assert all(any(path.is_relative_to(folder) for folder in folders) for path in source)


KEYS = """
import sys
from pathlib import Path

import dpaudit

root, names = Path(sys.argv[1]), sys.argv[2:]
dpaudit.__path__ = [*dpaudit.__path__, str(root)]  # the families are found here too
from dpaudit.pipeline.content import content_key
from dpaudit.source import hash_of, own_source

def key():
    return content_key({}, root, None, "cpu", None, hash_of(own_source()))

print(key(), key())
for name in names:
    with (root / name).open("a") as file:
        file.write("# changed")
    print(key())
"""


@pytest.mark.parametrize("place", ["dpaudit", "."], ids=["as installed", "as in the repository"])
def test_every_file_of_every_package_is_a_part_of_the_content(place: str, tmp_path: Path) -> None:
    """Of a copy: any family, and any room beside its own."""
    for package in ("dpaudit", *FAMILIES):
        below = "." if package == "dpaudit" else place
        shutil.copytree(REPOSITORY / package, tmp_path / below / package, ignore=COMPILED)
    names = [
        f"{place}/defenses/dpdl.py",
        f"{place}/attacks/canaries/channels.py",
        f"{place}/recorder/player.py",
        f"{place}/reports/html.py",
        "dpaudit/graphs/mixing.py",
        "dpaudit/pipeline/content.py",
        "dpaudit/version.py",
    ]
    command = [sys.executable, "-c", KEYS, str(tmp_path), *names]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    first, again, *changed = done.stdout.split()
    assert first == again
    assert len({first, *changed}) == 1 + len(names)


def test_another_python_or_package_is_another_content(folder: Path, monkeypatch) -> None:
    keys = {key(folder)}
    monkeypatch.setattr(content, "_versions", lambda: {"torch": "0.1"})
    keys.add(key(folder))
    monkeypatch.setattr(content.platform, "python_version", lambda: "4.0")
    keys.add(key(folder))
    assert len(keys) == 3


def test_another_byte_of_an_audited_program_is_another_content(folder: Path) -> None:
    audit = {"program": {"command": ["python", "sub/mine.py"], "folder": "code"}}
    before = content_key(audit, folder, None, "cpu", None, "")
    (folder / "code" / "sub" / "mine.py").write_text("x = 2")
    assert content_key(audit, folder, None, "cpu", None, "") != before


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    file, hashes = tmp_path / "a.py", set()
    for text in ("x = 1", "x = 2", "x = 1"):
        (new := tmp_path / "new").write_text(text)
        new.replace(file)  # another file of the same size
        hashes.add(hash_of([file]))
    assert len(hashes) == 2


def test_a_name_that_is_of_no_plugin_names_no_module(folder: Path) -> None:
    """A defense called like a module of Python is unknown, and its audit says so."""
    audit = {"defense": {"name": "json"}, "attack": [{"name": "json:tool"}]}
    assert set(content._plugin_source(audit)) == {"json:tool"}
