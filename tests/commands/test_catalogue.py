"""What `dpaudit list` shows of everything that is built in."""

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from dpaudit import registry
from dpaudit.commands.catalogue import catalogue, markdown
from dpaudit.commands.cli import app
from dpaudit.defenses.dpsgd import DPDPSGD

VARIANTS = {  # the defenses that are promised, and the names of their variants
    "sgp": "",
    "d-psgd": "",
    "dp-dpsgd": "adjacency = add-remove | replace-one; perturb = gradient | model",
    "dpps": "protocol.estimator = paper | stacked | real; protocol.init_term; "
    "protocol.recurse_on = own | max",
    "partpsp": "protocol.estimator = paper | stacked | real; protocol.init_term; "
    "protocol.recurse_on = own | max; share = all | ...",
    "sgpdp": "protocol.estimator = paper | stacked | real; protocol.init_term; "
    "protocol.recurse_on = own | max; share = all | ...",
    "dyn-d2p": "schedule = dyn | dyn-c | dyn-mu | const | general",
    "adp-vrsgp": "clip = sample | batch; sigma_follows_clip; swap_theta; tau = remark-1 | ...",
    "dpdl": "",
    "sensitivity-reduced": "align_noise",
    "dgd": "",
    "dp-dgd": "align_noise; variant = noisy | true-consensus | true-gradient",
    "gradient-tracking": "",
    "diadsp": "",
    "diff-tv-ab": "",
    "dpop": "align_noise",
    "pp-doagt": "",
    "wang-nedic": "",
    "wang-nedic-tracking": "",
    "xuan-wang": "",
}


def test_every_defense_is_listed_with_paper_and_messages() -> None:
    listed = {entry["name"]: entry for entry in catalogue("defenses").entries}
    for name, variants in VARIANTS.items():
        assert listed[name]["variants"] == variants
        assert listed[name]["paper"]
        assert listed[name]["messages"]
    private = {name for name, entry in listed.items() if "epsilon" in entry["claims"]}
    assert {"dp-dpsgd", "dyn-d2p", "adp-vrsgp", "dpdl", "sensitivity-reduced", "dp-dgd"} <= private
    assert {listed[name]["claims"] for name in ("sgp", "d-psgd", "dgd", "gradient-tracking")} == {
        "none"
    }


@pytest.mark.parametrize("kind", ["graphs", "datasets", "models", "attacks"])
def test_json_and_lines_list_the_same_names(kind) -> None:
    run = CliRunner()
    listed = json.loads(run.invoke(app, ["list", kind, "--json"]).stdout)
    lines = run.invoke(app, ["list", kind]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [entry["name"] for entry in listed]


class NoWords(DPDPSGD):
    """Its facts are no text."""

    messages: ClassVar = None
    paper: ClassVar = 1


class Raises(type(DPDPSGD)):
    """A class that cannot even be looked at."""

    def __getattribute__(cls, name):
        if name == "plugin_family":
            raise ZeroDivisionError("mine")
        return super().__getattribute__(name)


WRONG = {
    "attack": "dpaudit.attacks.canaries.attack:Canaries",
    "number": "math:pi",
    "module": "math",
    "missing": "no_such_module:X",
    "long": f"{'n' * 100_000}:X",
    "nul": "a\0b:X",
    "empty": ":",
    "no-words": "planted_plug_ins:NoWords",
    "raises": "planted_plug_ins:Unlookable",
}


def test_a_plug_in_of_the_wrong_kind_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = ModuleType("planted_plug_ins")
    planted.NoWords = NoWords
    planted.Unlookable = Raises("Unlookable", (DPDPSGD,), {"__module__": "planted_plug_ins"})
    monkeypatch.setitem(sys.modules, "planted_plug_ins", planted)
    ours = [ep for ep in registry.entry_points(group="dpaudit.defenses")]
    theirs = [EntryPoint(name, value, "dpaudit.defenses") for name, value in WRONG.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: [*theirs, *ours])
    found = catalogue("defenses")
    assert [entry["name"] for entry in found.entries] == sorted(ep.name for ep in ours)
    assert len(found.problems) == len(WRONG)
    assert all(len(line) < 500 and "\n" not in line for line in found.problems)


def test_the_page_on_defenses_is_what_the_command_writes() -> None:
    page = Path(__file__).parents[2] / "docs" / "defenses.md"
    entries = [e for e in catalogue("defenses").entries if e["package"] == "dpaudit"]
    assert page.read_text("utf-8") == markdown(entries)
    assert "| `decor` | Allouah" in page.read_text("utf-8")


def test_what_is_reconstructed_is_said_of_a_defense() -> None:
    entries = {e["name"]: e for e in catalogue("defenses").entries}
    assert entries["dp-dpsgd"]["reconstructed"].startswith("reconstructed: the noise")
    assert entries["dpdl"]["reconstructed"] == ""
