"""Plug-ins of other packages that cannot be used: one line says which, of whom, and what is wrong."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.catalogue import catalogue
from dpaudit.commands.cli import app
from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import run_audit
from dpaudit.registry import installed as listed
from dpaudit.registry import load_plugin

MODULE = '''\
"""A defense that fits, and others that each have one thing wrong."""

from typing import ClassVar

import torch

from dpaudit.attack.contract import Attack
from dpaudit.defense.contract import Bracket, Defense, Round

TABLE = {}


class Fits(Defense):
    paper: ClassVar[str] = "a paper"
    claims: ClassVar[str] = "none"
    messages: ClassVar = {"x": "nothing"}

    def start(self, X, setting):
        return X

    def step(self, state, k, graph, gradient, noise):
        return Round(state, {})

    def models(self, state):
        return state

    def without_noise(self):
        return self

    def mechanism(self, setting, threat_model, victim):
        return Bracket((), (), ())


class Unfinished(Defense):
    paper: ClassVar[str] = "a paper"
    claims: ClassVar[str] = "none"
    messages: ClassVar = {"x": "nothing"}

    def start(self, X, setting):
        return X

    def models(self, state):
        return state

    def without_noise(self):
        return self


class OfAnotherVersion(Fits):
    def step(self, state, gradient):
        return Round(state, {})


class Named(Fits):
    name: str = "mine"


class NoPaper(Defense):
    claims: ClassVar[str] = "none"
    messages: ClassVar = {}
    start, step, models = Fits.start, Fits.step, Fits.models
    without_noise, mechanism = Fits.without_noise, Fits.mechanism


class Measures(Attack):
    def measure(self, context, threat_model, on_step):
        return []


class Plain:
    pass


def render(result, path):
    return ""
'''
DEFENSE = "expected a class derived from dpaudit.defense.contract.Defense"
ATTACK = "expected a class derived from dpaudit.attack.contract.Attack"
REPORT = "expected a function of a result and its run directory"
BROKEN = {  # entry point -> its value, and what is wrong with it
    "defenses": {
        "unfinished": (
            "foreign:Unfinished",
            "expected a method mechanism(self, setting, threat_model, victim), found none; "
            "expected a method step(self, state, k, graph, gradient, noise), found none",
        ),
        "of-another-version": (
            "foreign:OfAnotherVersion",
            "expected a method step(self, state, k, graph, gradient, noise), "
            "found step(self, state, gradient)",
        ),
        "no-paper": ("foreign:NoPaper", "expected a class variable paper, found none"),
        "named": (
            "foreign:Named",
            'expected options of other names than "name", which names the plug-in itself',
        ),
        "an-attack": ("foreign:Measures", f"{DEFENSE}, found one for attacks"),
        "plain": ("foreign:Plain", f"{DEFENSE}, found a class derived from none"),
        "a-module": ("foreign", f"{DEFENSE}, found module"),
        "a-table": ("foreign:TABLE", f"{DEFENSE}, found dict"),
    },
    "attacks": {
        "a-defense": ("foreign:Fits", f"{ATTACK}, found one for defenses"),
        "a-function": ("foreign:render", f"{ATTACK}, found function"),
    },
    "reports": {
        "of-a-defense": ("foreign:Fits", f"{REPORT}, found one for defenses"),
        "a-value": ("foreign:TABLE", f"{REPORT}, found dict"),
    },
}
IMPORTS = {  # entry point of a defense -> its value, the module's text, what its import raises
    "absent": ("absent_one:Mine", None, "ModuleNotFoundError: No module named 'absent_one'"),
    "no-class": ("no_class:Mine", "", "AttributeError: module 'no_class' has no attribute 'Mine'"),
    "no-python": ("no_python:Mine", "def (:\n", "SyntaxError: invalid syntax (no_python.py, line 1)"),
    "leaves": ("leaves:Mine", "import sys\nsys.exit(3)\n", "SystemExit: 3"),
    "two-lines": ("two_lines:Mine", "raise OSError('one\\ntwo')", "OSError: one two"),
    "untyped": (
        "untyped:Mine",
        "from foreign import Fits\n\n\nclass Mine(Fits):\n    clip_norm = 1.0\n",
        "PydanticUserError: A non-annotated attribute was detected: `clip_norm = 1.0`.",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a package with all of these is installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "foreign.py").write_text(MODULE)
    for value, text, _ in IMPORTS.values():
        if text is not None:
            (folder / f"{value.partition(':')[0]}.py").write_text(text)
    metadata = folder / "foreign_plugins-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: foreign-plugins\nVersion: 1.2\n"
    )
    groups = {f: {name: value for name, (value, _) in b.items()} for f, b in BROKEN.items()}
    groups["defenses"] |= {name: value for name, (value, _, _) in IMPORTS.items()}
    groups["defenses"]["fits"] = "foreign:Fits"
    groups["attacks"]["measures"] = "foreign:Measures"
    groups["reports"]["text"] = "foreign:render"
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[dpaudit.{family}]\n" + "".join(f"{n} = {v}\n" for n, v in plugins.items())
            for family, plugins in groups.items()
        )
    )
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)


def refusal(family: str, name: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_plugin(family, name)
    return str(refused.value)


@pytest.mark.parametrize(
    "family, name, value, problem",
    [(f, name, *facts) for f, broken in BROKEN.items() for name, facts in broken.items()],
)
def test_what_does_not_fit_its_family_is_one_line(
    installed, family: str, name: str, value: str, problem: str
) -> None:
    where = f'{family[:-1]} "{name}" ({value}, from foreign-plugins 1.2)'
    assert refusal(family, name) == f"{where}: {problem}"
    if ":" in value:  # the same without being installed
        assert refusal(family, value) == f'{family[:-1]} "{value}": {problem}'


@pytest.mark.parametrize("name, facts", IMPORTS.items())
def test_what_cannot_be_imported_is_one_line(installed, name, facts) -> None:
    value, _, error = facts
    said = refusal("defenses", name)
    where = f'defense "{name}" ({value}, from foreign-plugins 1.2) cannot be imported: '
    assert said.startswith(where + error)
    assert said.endswith(f"; {DEFENSE}")
    assert "\n" not in said


def test_a_module_that_lies_nowhere_is_told_how_to_be_found(installed) -> None:
    with pytest.raises(ConfigError) as refused:
        load_plugin("defenses", "no_such_module:Mine")
    [problem] = refused.value.problems
    assert "No module named 'no_such_module'; expected a class" in problem.text
    assert "write PYTHONPATH=. before the command" in problem.help
    with pytest.raises(ConfigError) as refused:
        load_plugin("defenses", next(iter(IMPORTS)))
    assert refused.value.problems[0].help == ""


def test_what_fits_is_loaded(installed) -> None:
    assert load_plugin("defenses", "fits").__name__ == "Fits"
    assert load_plugin("attacks", "measures").__name__ == "Measures"
    assert load_plugin("reports", "text")(None, None) == ""
    for family in ("defenses", "attacks"):
        assert [p for p in catalogue(family).problems if re.search(r", from dpaudit \d", p)] == []


def test_an_audit_that_names_one_says_so_at_its_key(installed) -> None:
    content = {
        "data": {"name": "digits"},
        "graph": {"name": "ring"},
        "model": {"name": "lenet"},
        "defense": {"name": "an-attack"},
        "attack": [{"name": "a-defense"}],
    }
    with pytest.raises(ConfigError) as refused:
        AuditConfig.from_dict(content)
    first, second = str(refused.value).splitlines()
    assert first.startswith('attack[1].name: attack "a-defense" (foreign:Fits')
    assert second.startswith('defense.name: defense "an-attack" (foreign:Measures')


def test_a_list_shows_the_others_and_a_line_for_each_broken_one(installed) -> None:
    def listed(*options: str) -> tuple[str, list[str]]:
        done = CliRunner().invoke(app, ["list", "defenses", *options])
        assert done.exit_code == 0, done.stderr
        return done.stdout, done.stderr.splitlines()

    out, problems = listed()
    names = [line.split()[0] for line in out.splitlines()]
    assert {"fits", "dpdl", "dp-dpsgd"} <= set(names)
    problems = [line for line in problems if "from foreign-plugins 1.2" in line]
    broken = {*BROKEN["defenses"], *IMPORTS}
    assert broken & set(names) == set()
    assert {re.match(r'warning: defense "([\w-]+)" ', line).group(1) for line in problems} == broken
    assert len(problems) == len(broken)
    out, problems = listed("--json")
    assert [entry["name"] for entry in json.loads(out)] == names
    assert sum("from foreign-plugins 1.2" in line for line in problems) == len(broken)


@pytest.fixture
def rivals(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Beside that package another one with plug-ins of the same names, and of names of ours."""
    metadata = tmp_path / "rival_plugins-0.3.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rival-plugins\nVersion: 0.3\n")
    (metadata / "entry_points.txt").write_text(
        "[dpaudit.defenses]\nfits = rival:Fits\ndpdl = rival:DPDL\nalone = foreign:Fits\n"
        "[dpaudit.attacks]\nmeasures = rival:Measures\n"
        "[dpaudit.reports]\nhtml = rival:render\n"
    )
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "family, name, other",
    [
        ("defenses", "fits", "foreign-plugins 1.2"),
        ("defenses", "dpdl", f"dpaudit {version('dpaudit')}"),
        ("attacks", "measures", "foreign-plugins 1.2"),
        ("reports", "html", f"dpaudit {version('dpaudit')}"),
    ],
)
def test_a_name_of_two_packages_stands_for_neither(rivals, family, name, other) -> None:
    """Whichever comes first on the path: a verdict must not depend on it."""
    said = refusal(family, name)
    assert said.startswith(f'{family[:-1]} "{name}" is registered by several packages: ')
    assert said.endswith("; uninstall all but one")
    assert other in said
    assert "rival-plugins 0.3" in said


def test_a_list_says_which_names_two_packages_have(rivals) -> None:
    entries, problems = catalogue("defenses")
    names = {entry["name"] for entry in entries}
    assert {"alone", "dp-dpsgd"} <= names
    assert not {"fits", "dpdl"} & names
    several = [line for line in problems if "several packages" in line]
    assert [line.split('"')[1] for line in several] == ["dpdl", "fits"]


def test_an_audit_whose_report_two_packages_have_is_refused(
    rivals, tmp_path: Path, report: None
) -> None:
    content = {
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "defense": {"name": "d-psgd"},
    }
    with pytest.raises(ConfigError, match='report "html" is registered by several packages'):
        run_audit(AuditConfig.from_dict(content), tmp_path / "run")
    assert not (tmp_path / "run").exists()


WALKS_PLUGINS = ("training/test_trials.py", "files/test_config.py", "conformance/test_promises.py")


@pytest.mark.slow
def test_the_tests_of_this_repository_are_of_its_own_plug_ins(tmp_path: Path) -> None:
    """Nothing of another package is collected, in whichever order the packages are found."""
    metadata = tmp_path / "another-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    families = ("defenses", "attacks", "reports")
    (metadata / "entry_points.txt").write_text(
        "".join(f"[dpaudit.{family}]\nfrom-elsewhere = absent:Mine\n" for family in families)
    )
    files = [str(Path(__file__).parent / name) for name in WALKS_PLUGINS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_every_built_in_defense_is_checked[dpdl]" in done.stdout
    assert "from-elsewhere" not in done.stdout


def test_no_test_walks_the_plug_ins_of_other_packages() -> None:
    """But for the file that says which are ours; a test of all of them takes ``own_defense``."""
    tests = Path(__file__).parent
    walking = {
        path.relative_to(tests).as_posix()
        for path in tests.rglob("*.py")
        if re.search(r"import .*\binstalled\b|\binstalled\(\"", path.read_text())
    }
    assert walking - {"test_registry.py"} == {"own_plugins.py"}


@pytest.mark.parametrize("name", ["dpdl", "dpdll"])
def test_loading_a_plug_in_searches_the_packages_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def counted(group: str) -> object:
        looked.append(group)
        return entry_points(group=group)

    monkeypatch.setattr("dpaudit.registry.entry_points", counted)
    with suppress(ConfigError):
        load_plugin("defenses", name)
    assert looked == ["dpaudit.defenses"]


def test_plug_ins_that_are_installed_later_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without starting again: what was looked up is kept only while no folder changes."""
    monkeypatch.syspath_prepend(tmp_path)
    assert "later" not in listed("reports")
    metadata = tmp_path / "later-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dpaudit.reports]\nlater = later:render\n")
    os.utime(tmp_path, ns=(1, 1))  # however coarse the clock of the file system is
    assert "later" in listed("reports")


def test_loading_many_plug_ins_searches_the_packages_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = []

    def counted(group: str) -> object:
        looked.append(group)
        return entry_points(group=group)

    monkeypatch.setattr("dpaudit.registry.entry_points", counted)
    for name in ("dpdl", "dpop", "dpdl"):
        load_plugin("defenses", name)
    assert looked == ["dpaudit.defenses"]
