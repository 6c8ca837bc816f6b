"""What an audit takes and could prove, before anything of it is done."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name, Role
from dpaudit.pipeline.dry_run import outlook
from dpaudit.pipeline.run import Runtime, run_audit
from tests.small_audits import digits_config

DEFENSE = {"name": "dp-dpsgd", "n_rounds": 4, "batch_size": 4, "noise_multiplier": 1.0}
ATTACK = {"name": "likelihood-ratio", "trials": 200}


def audit(*attacks: dict) -> AuditConfig:
    return digits_config(*attacks, model="logistic", n_agents=4, defense=DEFENSE)


def test_its_power_is_that_of_the_audit_itself(tmp_path: Path) -> None:
    """Not one run is needed to know it: expected bound, ceiling and trials are the same numbers."""
    [power] = outlook(audit(ATTACK), Runtime(cores=1)).powers
    result = run_audit(audit(ATTACK), tmp_path, Runtime(cores=1))
    [test] = [f for f in result.findings if f.role is Role.TEST]
    assert (power.attack, power.claim, power.threat_model) == (
        "likelihood-ratio",
        0,
        "eavesdropper",
    )
    for name in (Name.EXPECTED_BOUND, Name.CEILING, Name.TRIALS_NEEDED):
        assert power.metrics[name] == test.metrics[name]


def test_every_part_has_a_time_and_a_size() -> None:
    found = outlook(audit(ATTACK, {"name": "canaries", "canaries": 20}), Runtime(cores=1))
    assert [ahead.part for ahead in found.cost.parts] == [
        "training, defense",
        "training, no-defense",
        "attack 00, likelihood-ratio, eavesdropper",
        "attack 01, canaries, eavesdropper",
        "noise-of-the-run",
    ]
    assert all(ahead.size for ahead in found.cost.parts)
    unknown = [ahead.part for ahead in found.cost.parts if ahead.seconds is None]
    assert unknown == ["attack 01, canaries, eavesdropper"]


def test_an_attack_in_several_jobs_is_one_part() -> None:
    inversion = {"name": "gradient-inversion", "message": "view", "rounds": [1], "targets": 2}
    found = outlook(audit(inversion), Runtime(cores=1))
    [ahead] = [one for one in found.cost.parts if "inversion" in one.part]
    assert ahead.part == "attack 00, gradient-inversion, eavesdropper"
    assert ahead.n_jobs == 4  # two worlds, and two batch sizes: 1 and that of the defense


CONFIG = """\
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 4
batch_size = 4
noise_multiplier = 1.0
[[claim]]
text = "ours"
epsilon = 1.0
delta = 1e-5
[[attack]]
name = "likelihood-ratio"
trials = 200
"""


def said(folder: Path, text: str, *options: str) -> tuple[int, list[str], str]:
    (folder / "audit.toml").write_text(text)
    out = folder / "run"
    done = CliRunner().invoke(
        app, ["audit", str(folder / "audit.toml"), "--out", str(out), "--dry-run", *options]
    )
    assert not out.exists()
    return done.exit_code, done.stdout.splitlines(), done.stderr


def test_the_command_prints_it_and_runs_nothing(tmp_path: Path, monkeypatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr("dpaudit.pipeline.run.run_jobs", never)
    code, lines, _ = said(tmp_path, CONFIG)
    assert code == 0
    assert lines[0].split() == ["time", "memory", "part"]
    assert lines[1].endswith("MB  training, defense")
    assert lines[-2] == (
        "ours: (1, 1e-05)-DP for the whole run, add-remove adjacency, against eavesdropper:"
    )
    assert lines[-1].startswith("  likelihood-ratio: the epsilon expected to be certified is ")


def test_without_an_attack_on_it_a_claim_has_no_power(tmp_path: Path) -> None:
    _, lines, _ = said(tmp_path, CONFIG.partition("[[attack]]")[0])
    assert lines[-1] == "  no attack of this audit foretells what it can certify"


@pytest.mark.parametrize(
    "text, options, expected",
    [
        (CONFIG.replace("ring", "rign"), [], 'did you mean "ring"'),
        (CONFIG, ["--max-memory", "1MB"], "of memory, and "),
        (CONFIG, ["--max-memory", "much"], "--max-memory"),
        (CONFIG, ["--fix-model"], "model.fix: the network has no BatchNorm; leave it out"),
        (CONFIG.replace('model.name = "logistic"', ""), ["--fix-model"], "has no [model] to fix"),
    ],
)
def test_what_could_not_run_is_refused_here_too(tmp_path, text, options, expected) -> None:
    code, lines, error = said(tmp_path, text, *options)
    assert (code, lines) == (2, [])
    assert expected in error
    assert error.count("\n") == 1
