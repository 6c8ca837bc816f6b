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


NAMED = re.compile(
    r"(?<![\w/.-])((?:attacks|benchmarks|defenses|docs|dpaudit|examples|reports|tests)/[\w./-]*\w)"
)


def test_every_file_that_a_document_names_is_there() -> None:
    """In `code`, as of the repository; NAME stands for a name of the reader's own."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    named = {
        (page.name, path)
        for page in pages
        if page.name != "CHANGELOG.md"  # of what was
        for code in re.findall(r"`([^`\n]+)`", page.read_text())
        for path in NAMED.findall(code)
        if "NAME" not in path
    }
    assert len(named) > 60
    assert sorted((page, path) for page, path in named if not (ROOT / path).exists()) == []


def test_no_row_of_the_plan_stands_there_twice() -> None:
    firsts = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", PLAN, re.M)
    rows = [row for row in firsts if row[0] not in ("---", "what", "floor")]
    subjects = [what for what, _ in rows if not what.isdigit()]
    assert len(rows) > 40
    assert sorted({row for row in rows if rows.count(row) > 1}) == []
    assert sorted({what for what in subjects if subjects.count(what) > 1}) == []


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
    one, other = (config.defense.create("defenses") for config in (quick, thorough))
    assert one.n_rounds <= other.n_rounds
    assert one == other.model_copy(update={"n_rounds": one.n_rounds})
    same = {"attack": (), "defense": quick.defense}
    assert quick.model_copy(update=same) == thorough.model_copy(update=same)
    for less, more in zip(quick.attack, thorough.attack, strict=True):
        assert less.name == more.name
        for option in ("message", "threat_models"):
            assert less.options.get(option) == more.options.get(option)
        for option in ("trials", "targets", "n_rounds"):
            assert less.options.get(option, 0) <= more.options.get(option, 0)
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"audit examples/{name}.toml" in makefile for name in names)


def test_runs_that_documents_speak_of_are_of_make_audit() -> None:
    audit = AuditConfig.from_toml(ROOT / "examples" / "dpdl-digits.toml")
    runs = f"{audit.attack[0].options['trials']:,} runs"
    for page in ("README.md", "docs/findings.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.search(rf"`make audit`.{{,600}} {runs}", text), page
