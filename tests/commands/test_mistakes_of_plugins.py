"""A plug-in that breaks its contract is exit code 2 and one line of its own, in every command."""

import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import dpaudit
from dpaudit.commands.cli import app
from dpaudit.errors import ConfigError
from tests.said import without_help
from tests.some_fast import fast_if

MODULE = """\
from dataclasses import replace

import torch

from dpaudit.attack.contract import Attack
from dpaudit.defenses.dpsgd import DPDPSGD

{at_import}


class Mistaken(DPDPSGD):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        x = round.sent["x"]
        if k >= {since}:
            {act}
        return round


class Measures(Attack):
    def measure(self, bench, threat_model, on_step):
        {measure}
"""
CONFIG = """\
seed = 3
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"
[defense]
name = "mistaken:Mistaken"
n_rounds = 5
batch_size = 4
noise_multiplier = 2.0
[[claim]]
text = "ours"
epsilon = 50.0
delta = 1e-5
"""
ATTACKS = {
    "none": "",
    "likelihood-ratio": "trials = 60",
    "sensitivity": "rounds = [1, 5]\nsteps = 2\nrestarts = 1",
    "canaries": "",
    "mistaken:Measures": "",
}
ACTS = {
    "complex": ("x = replace(x, payload=x.payload + 0j)", "torch.complex64 tensor [4, 650]"),
    "int64": ("x = replace(x, payload=x.payload.long())", "torch.int64 tensor [4, 650]"),
    "bool": ("x = replace(x, payload=x.payload > 0)", "torch.bool tensor [4, 650]"),
    "width 0": ("x = replace(x, payload=x.payload[..., :0])", "[4, 0], which has no number"),
    "narrower": ("x = replace(x, payload=x.payload[..., :7])", "as [rows, 7] of torch.float32"),
    "empty": ("return round._replace(sent={})", "sends no message"),
    "default": ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float64)"),
    "no round": ("return None", "returns None; expected Round(state, sent)"),
    "no state": ("return round._replace(state=None)", "gives None as the state"),
}
FAST = [*((act, 4) for act in ("complex", "narrower", "empty", "default")), ("no round", 1)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    sys.modules.pop("mistaken", None)
    torch.set_default_dtype(torch.float32)


def write(
    act: str = "pass", since: int = 1, at_import: str = "", measure: str = "return []"
) -> None:
    act = act if act.startswith("return") else f"{act}; round = round._replace(sent={{'x': x}})"
    text = MODULE.format(act=act, since=since, at_import=at_import, measure=measure)
    Path("mistaken.py").write_text(text)


def said(*options: str, attack: str = "none") -> tuple[int, list[str]]:
    """Exit code of an audit, and its errors."""
    added = "" if attack == "none" else f'[[attack]]\nname = "{attack}"\n{ATTACKS[attack]}\n'
    Path("audit.toml").write_text(CONFIG + added)
    done = CliRunner().invoke(app, ["audit", "audit.toml", "--workers", "1", *options])
    assert "Traceback" not in done.stderr
    return done.exit_code, [
        line for line in without_help(done.stderr).splitlines() if line.startswith("error: ")
    ]


@pytest.mark.parametrize(  # a message of few coordinates in all rounds is no mistake
    "act, since",
    [
        pytest.param(act, since, marks=[pytest.mark.slow] * ((act, since) not in FAST))
        for act in ACTS
        for since in (1, 4)
        if (act, since) != ("narrower", 1)
    ],
)
def test_an_audit_says_what_the_plug_in_did(folder, act: str, since: int) -> None:
    what, expected = ACTS[act]
    write(what, since)
    code, [line] = said()
    assert code == 2
    assert line.startswith(f'error: defense "mistaken:Mistaken": step of round {since} ')
    assert expected in line
    assert "bug in dpaudit" not in line


@pytest.mark.parametrize("attack", ["likelihood-ratio", "canaries"])
@pytest.mark.parametrize("act", fast_if("empty".__eq__, ["complex", "empty"]))
def test_an_attack_that_plays_before_training_does_too(folder, act: str, attack: str) -> None:
    write(ACTS[act][0], since=4)
    code, [line] = said("--dry-run", attack=attack)
    assert (code, line.partition(" sends ")[0]) == (
        2,
        'error: defense "mistaken:Mistaken": step of round 4',
    )


def test_in_worker_processes_too(folder) -> None:
    write(ACTS["complex"][0], since=4)
    code, [line] = said("--workers", "2")
    assert code == 2
    assert line.startswith('error: defense "mistaken:Mistaken": step of round 4 sends message "x"')


def test_a_module_that_sets_the_default_dtype_is_refused(folder) -> None:
    write(at_import="torch.set_default_dtype(torch.float64)")
    code, [line] = said()
    assert code == 2
    assert "mistaken:Mistaken" in line
    assert "its module calls torch.set_default_dtype(torch.float64)" in line
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    "measure, expected",
    [
        pytest.param(
            "return None",
            "measure returns None; expected a list of Finding",
            marks=pytest.mark.slow,
        ),
        ("return [1]", "measure returns an int; expected a list of Finding"),
        ("torch.set_default_dtype(torch.float64)", "measure calls torch.set_default_dtype"),
    ],
)
def test_an_attack_that_breaks_its_contract_is_one_line(folder, measure, expected) -> None:
    write(measure=measure)
    code, [line] = said(attack="mistaken:Measures")
    assert code == 2
    assert f'attack "mistaken:Measures": {expected}' in line


def test_what_code_of_others_raises_is_no_bug_in_dpaudit(folder) -> None:
    write("return {}[k]")
    code, [line] = said()
    assert code == 2
    assert "unforeseen KeyError: 1, in " in line
    assert "mistaken.py, line " in line
    assert "; a bug in code that is not dpaudit's; traceback: " in line


def test_a_script_with_another_default_dtype_is_told(folder) -> None:
    torch.set_default_dtype(torch.float64)
    with pytest.raises(
        ConfigError, match=r"default dtype is torch.float64; an audit needs torch.f"
    ):
        dpaudit.audit(
            {
                "data": {"name": "digits", "n_agents": 4},
                "graph": {"name": "ring"},
                "model": {"name": "logistic"},
                "defense": {"name": "dp-dpsgd", "n_rounds": 2, "noise_multiplier": 1.0},
            }
        )
