"""What is released: the wheel and the sdist hold all of the packages, and a version each."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from dpaudit.version import __version__

ROOT = Path(__file__).parents[1]
FAMILIES = ("attacks", "defenses", "recorder", "reports")
NOT_IN_WHEEL = ("recorder/pyproject.toml", "recorder/README.md")  # of a distribution of its own
SOURCE = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "examples")
CPU_TORCH = "--extra-index-url https://download.pytorch.org/whl/cpu"
BUILD = "import sys, setuptools.build_meta as b; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"


def built(kind: str, source: Path, folder: Path) -> Path:
    folder.mkdir()
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [file] = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
    for name in (*SOURCE, "dpaudit", *FAMILIES):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "tree" / name, ignore=ignored)
        else:
            (folder / "tree").mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / "tree" / name)
    return built("sdist", folder / "tree", folder / "sdist")


FOUND = """
import importlib, importlib.util, dpaudit
for family in ("attacks", "defenses", "recorder", "reports"):
    print(*importlib.import_module(f"dpaudit.{family}").__path__)
print(importlib.util.find_spec("dpaudit.defenses.dpdl").origin)
"""


def test_a_clone_on_the_path_takes_its_own_families(tmp_path: Path) -> None:
    """The editable installation offers dpaudit.defenses, too, of this checkout."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("dpaudit", *FAMILIES):
        shutil.copytree(ROOT / name, tmp_path / "clone" / name, ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-c", FOUND],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "clone")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    clone = tmp_path / "clone"
    expected = [*(str(clone / family) for family in FAMILIES), str(clone / "defenses" / "dpdl.py")]
    assert done.stdout.splitlines() == expected


def names_of_the_packages() -> set[str]:
    """Every file of the packages, as it is called where they are installed."""
    there = (path for top in ("dpaudit", *FAMILIES) for path in (ROOT / top).rglob("*"))
    files = [path for path in there if path.is_file() and "__pycache__" not in path.parts]
    names = [path.relative_to(ROOT) for path in files]
    names = [name for name in names if name.as_posix() not in NOT_IN_WHEEL]
    return {(name if name.parts[0] == "dpaudit" else "dpaudit" / name).as_posix() for name in names}


def test_a_wheel_of_the_sdist_holds_every_file_of_the_packages(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    wheel = built("wheel", tmp_path / f"dpaudit-{__version__}", tmp_path / "wheel")
    assert wheel.name == f"dpaudit-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.startswith("dpaudit-")}
    assert held == names_of_the_packages()
    data = ("py.typed", "reports/templates/audit.css", "papers/experiments/dpdl.toml")
    assert {f"dpaudit/{name}" for name in data} < held


def test_the_sdist_has_the_changelog_and_the_examples(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "examples/dpdl-digits.toml"} < names


def test_the_version_is_the_first_of_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]
    version, date = re.fullmatch(
        r"(\S+) \((\d{4}-\d\d-\d\d)\)", sections[0].split("\n")[0]
    ).groups()
    assert project["version"] == version
    released = yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]
    assert released == date
    assert [section.count("\n### Changed numbers\n") for section in sections] == [1] * len(sections)


def test_every_extra_is_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "install.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M))
    assert documented == set(project["optional-dependencies"])


def test_what_installs_dpaudit_takes_torch_without_cuda() -> None:
    """The newest torch of the index brings 2.4 GB of CUDA with it on Linux."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    pages = [ROOT / "docs" / name for name in ("ci-recipes.md", "install.md")]
    text = "\n".join([*steps, *(page.read_text() for page in pages)])
    installs = re.findall(r"pip install .*", text)
    named = [line for line in installs if line.endswith(('"$DPAUDIT"', '_PATH"', " ."))]
    assert len(named) >= 4
    assert [line for line in named if CPU_TORCH not in line] == []


def test_the_recorder_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    """Its wheel needs nothing, and holds the modules that dpaudit puts before programs."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT / "recorder", tmp_path / "recorder", ignore=ignored)
    wheel = built("wheel", tmp_path / "recorder", tmp_path / "wheel")
    assert wheel.name == f"dpaudit_recorder-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.startswith("dpaudit_recorder-")}
        metadata = archive.read(f"dpaudit_recorder-{__version__}.dist-info/METADATA").decode()
    modules = {path.relative_to(ROOT / "recorder") for path in (ROOT / "recorder").rglob("*.py")}
    assert held == {f"dpaudit_recorder/{path.as_posix()}" for path in modules}
    assert "Requires-Dist" not in metadata
