"""What `dpaudit list` shows of everything that is built in."""

import json

import pytest
from typer.testing import CliRunner

from dpaudit.commands.catalogue import catalogue
from dpaudit.commands.cli import app

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
}


def test_every_defense_is_listed_with_paper_kind_of_claim_variants_and_messages() -> None:
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
