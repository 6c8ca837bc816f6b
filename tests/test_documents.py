"""The documents of the house: what they point at is there, and they name today's rooms."""

import re
import tomllib
from pathlib import Path

import yaml

from dpaudit.files.config import AuditConfig
from dpaudit.version import __version__

ROOT = Path(__file__).parents[1]
PLAN = (ROOT / "ARCHITECTURE.md").read_text()
ROOMS = re.compile(r"^\| (\d+) \| `(\S+)/` \|", re.M)


def test_every_file_that_the_plan_names_is_there() -> None:
    named = set(re.findall(r"`((?:dpaudit|attacks|defenses|reports|tests|docs)/[\w./-]*)`", PLAN))
    named = {name for name in named if "NAME" not in name}
    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_room_stands_in_the_plan_on_its_floor() -> None:
    source = (ROOT / "tests" / "test_architecture.py").read_text()
    floors = re.search(r"^FLOORS = \{.*?\n(.*?)^\}", source, re.M | re.S)
    assert floors is not None
    held = {name: int(n) for name, n in re.findall(r'"(\w+)": (\d+)', floors[1])}
    assert {path.split("/")[-1]: int(n) for n, path in ROOMS.findall(PLAN)} == held


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == citation["version"] == __version__
    assert project["license"] == citation["license"]


def test_the_thorough_audit_asks_more_of_the_same_attacks() -> None:
    names = ("dpdl-digits", "dpdl-digits-thorough")
    quick, thorough = (AuditConfig.from_toml(ROOT / "examples" / f"{n}.toml") for n in names)
    assert quick.model_copy(update={"attack": ()}) == thorough.model_copy(update={"attack": ()})
    for less, more in zip(quick.attack, thorough.attack, strict=True):
        assert less.name == more.name
        for option in ("message", "threat_models"):
            assert less.options.get(option) == more.options.get(option)
        for option in ("trials", "targets"):
            assert less.options.get(option, 0) <= more.options.get(option, 0)
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"audit examples/{name}.toml" in makefile for name in names)


def test_the_runs_that_documents_speak_of_are_those_of_make_audit() -> None:
    audit = AuditConfig.from_toml(ROOT / "examples" / "dpdl-digits.toml")
    runs = f"{audit.attack[0].options['trials']:,} runs"
    for page in ("README.md", "docs/findings.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.search(rf"`make audit`.{{,600}} {runs}", text), page
