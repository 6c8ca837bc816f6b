"""What a paper's theory does not allow is refused with its condition, or runs and says so."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.defense.contract import Setting
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.result import AuditResult
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin

SIZES = (500,) * 6
OUTSIDE = [  # defense, options, graph, options of the graph, what its refusal says
    ("dpdl", {"epsilon": 0.5}, "directed-ring", {}, "symmetric doubly stochastic W (Assumption 3)"),
    ("dpdl", {"epsilon": 0.5, "c1": 1.0}, "ring", {}, "Theorem 1 needs epsilon <= c1 q^2 T = 0.0"),
    ("dpps", {}, "uniform-out", {"p": 0.4}, "doubly stochastic W in every round (Definition 1)"),
    ("sgpdp", {}, "uniform-out", {"p": 0.4}, "doubly stochastic W in every round (Definition 1)"),
    ("d-psgd", {}, "exponential", {}, "symmetric doubly stochastic W (Assumption 1 of"),
    ("dp-dpsgd", {"noise_multiplier": 1.0}, "d-out", {"d": 3}, "(Assumption 1 of"),
    ("sensitivity-reduced", {"step_size": 0.002}, "complete", {}, "(5) needs gamma beta <= 1, got"),
    ("sensitivity-reduced", {}, "ring", {}, "gamma beta = 1 is unstable: it must be below"),
    ("sensitivity-reduced", {"noise_decay": 1.0}, "complete", {}, "(5) needs 0 < q1 < q2 < 1"),
    ("dp-dgd", {}, "directed-ring", {}, "symmetric doubly stochastic W (Assumption 2)"),
    ("dp-dgd", {"noise_decay": 1.0}, "complete", {}, "(5) needs 0 < q1 < q2 < 1"),
    ("adp-vrsgp", {"epsilon": 20.0}, "ring", {}, "Theorem 1 needs epsilon_i < c1 q_i^2 T; agent 0 has"),
    (
        "dyn-d2p",
        {"epsilon": 9.0, "schedule": "general", "n_rounds": 2, "clip_norms": (9.0, 9.0),
         "noise_levels": (0.5, 0.5)},
        "exponential", {}, "(10) rests on exp(x) - 1 < 2 x",
    ),
]  # fmt: skip


@pytest.mark.parametrize("name, options, graph, graph_of, condition", OUTSIDE)
def test_a_setting_outside_the_theory_is_refused(name, options, graph, graph_of, condition) -> None:
    network = build_graph(graph_options(graph, **graph_of), 6, np.random.default_rng(1))
    setting, kind = Setting(network, SIZES, 10), load_plugin("defenses", name)
    with pytest.raises(ConfigError) as refusal:
        kind(**options).calibrate(setting)
    assert condition in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    if "allow_outside_theory" in kind.model_fields and (name, graph) != ("dpdl", "directed-ring"):
        said = kind(**options, allow_outside_theory=True).outside_theory(setting)
        assert condition in said
        assert "allow_outside_theory" not in said


@pytest.mark.parametrize("name", ["sensitivity-reduced", "dp-dgd"])
def test_noise_that_decays_no_slower_than_steps_is_refused(name) -> None:
    with pytest.raises(ValueError, match="finite and positive for q1 < q2 only"):
        load_plugin("defenses", name)(step_decay=0.99, noise_decay=0.97)


def test_unequal_agents_are_refused_where_the_paper_has_one_j() -> None:
    setting = Setting(build_graph("exponential", 6), (500, 400, 500, 500, 500, 500), 10)
    dyn = load_plugin("defenses", "dyn-d2p")
    with pytest.raises(ConfigError, match=r"same number of records J at every agent \(1\)"):
        dyn(epsilon=1.0, n_rounds=50).calibrate(setting)
    allowed = dyn(epsilon=1.0, n_rounds=50, allow_outside_theory=True)
    assert "got 400 to 500" in allowed.outside_theory(setting)


def test_the_permission_alone_is_no_departure() -> None:
    setting = Setting(build_graph("complete", 6), SIZES, 10)
    assert (
        load_plugin("defenses", "dpps")(allow_outside_theory=True).outside_theory(setting) is None
    )


CONFIG = """\
[data]
name = "digits"
n_agents = 4

[graph]
name = "exponential"

[model]
name = "logistic"

[defense]
name = "dp-dpsgd"
n_rounds = 3
batch_size = 8
noise_multiplier = 4.0
"""
CONDITION = "with a symmetric doubly stochastic W (Assumption 1 of Lian et al. 2017)"


def audited(folder: Path, text: str):
    (folder / "audit.toml").write_text(text)
    audit = ["audit", str(folder / "audit.toml"), "--out", str(folder / "run"), "--workers", "1"]
    return CliRunner().invoke(app, audit)


def test_an_audit_outside_the_theory_says_so_everywhere(tmp_path, report) -> None:
    refused = audited(tmp_path, CONFIG)
    assert refused.exit_code == 2
    assert CONDITION in refused.stderr
    done = audited(tmp_path, CONFIG + "allow_outside_theory = true\n")
    assert done.exit_code == 0, done.stderr
    result = AuditResult.read(tmp_path / "run" / "audit.json")
    (note,) = [
        n for n in result.notes if not n.startswith("A part of this method is reconstructed")
    ]
    assert note.startswith("This run is outside the theory of its paper")
    assert CONDITION in note
    assert CONDITION in (tmp_path / "run" / "report.html").read_text()
    assert f"note: {note}" in done.stdout


def test_an_audit_inside_the_theory_has_no_note(tmp_path, report) -> None:
    text = CONFIG.replace("exponential", "complete") + "allow_outside_theory = true\n"
    assert audited(tmp_path, text).exit_code == 0
    notes = AuditResult.read(tmp_path / "run" / "audit.json").notes
    assert not [n for n in notes if not n.startswith("A part of this method is reconstructed")]
    assert "outside the theory" not in (tmp_path / "run" / "report.html").read_text()
