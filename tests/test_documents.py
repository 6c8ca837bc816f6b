"""The documents of the house: what they point at is there, and they name today's rooms."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from dpaudit.version import __version__

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PLAN = (ROOT / "ARCHITECTURE.md").read_text()
ROOMS = re.compile(r"^\| (\d+) \| `(\S+)/` \|", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    inside = [link for link in links if not link.startswith(("http:", "https:"))]
    assert [link for link in inside if not (page.parent / link).exists()] == []


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
