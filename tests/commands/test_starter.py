"""`dpaudit init`: what it writes of every defense is an audit that runs."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, outlook, prepare, run_audit
from tests.said import without_help

PACKAGES = {"whisper": "cvxpy"}
NOISELESS = {
    "cga",
    "correlated-randomness",
    "d-psgd",
    "dgd",
    "gradient-tracking",
    "net-fleet",
    "paillier-consensus",
    "sgp",
}


def written(folder: Path, defense: str) -> tuple[Path, str]:
    """The file, and what init says on stderr."""
    file = folder / "audit.toml"
    done = CliRunner().invoke(app, ["init", "--defense", defense, "--out", str(file)])
    assert done.exit_code == 0, done.output
    return file, without_help(done.stderr)


def test_the_audit_of_every_defense_can_begin(tmp_path: Path, own_defense: str) -> None:
    if own_defense in PACKAGES:
        pytest.importorskip(PACKAGES[own_defense])
    file, said = written(tmp_path, own_defense)
    config = AuditConfig.from_toml(file)
    prepare(config, Runtime())
    assert said == ""
    assert (not config.claim) == (own_defense in NOISELESS)


@pytest.mark.parametrize(
    ("defense", "promised"),
    [
        ("dpdl", ("run", "add-remove", 1e-5)),
        ("dp-dgd", ("run", "function", 0.0)),
        ("pedfl", ("round", "agent-identity", 0.0)),
        ("ppsgd", ("run", "user", 1e-5)),
        ("zip-dl", ("message", "add-remove", 1e-5)),
    ],
)
def test_the_claim_is_of_what_the_defense_promises(tmp_path, defense, promised) -> None:
    (claim,) = AuditConfig.from_toml(written(tmp_path, defense)[0]).claim
    assert (claim.scope, claim.adjacency, claim.delta) == promised


@pytest.mark.parametrize("defense", ["dpps", "partpsp", "sgpdp"])
def test_a_budget_in_a_table_is_that_of_the_claim(tmp_path: Path, defense: str) -> None:
    """The published default, b / gamma_n = 5,000 in a round, would be no promise to audit."""
    file, _ = written(tmp_path, defense)
    config = AuditConfig.from_toml(file)
    assert config.defense.options["protocol"]["epsilon"] == config.claim[0].epsilon == 0.5
    assert "epsilon of 5,000 in each round" in file.read_text("utf-8")


REPEATS = ("d-psgd", "correlated-randomness")


@pytest.mark.slow
def test_the_audit_of_every_defense_can_be_looked_at(tmp_path: Path, own_defense: str) -> None:
    if own_defense in PACKAGES:
        pytest.importorskip(PACKAGES[own_defense])
    config = AuditConfig.from_toml(written(tmp_path, own_defense)[0])
    costs, _powers = outlook(config, Runtime(cores=1))
    assert costs.attacks


@pytest.mark.parametrize(
    "defense", ["dp-dpsgd", *(pytest.param(n, marks=pytest.mark.slow) for n in REPEATS)]
)
def test_the_audit_runs(tmp_path: Path, defense: str, no_report) -> None:
    """As it is written, but shorter."""
    text = written(tmp_path, defense)[0].read_text()
    for old, new in (
        ("n_rounds = 60", "n_rounds = 4"),
        ("rounds = [60]", "rounds = [4]"),
        ("rounds = [1, 20]", "rounds = [1, 2]"),
        ("trials = 500", "trials = 40"),
        ("targets = 2", "targets = 1\niterations = 2\nrestarts = 1"),
        ("steps = 10", "steps = 2"),
        ("restarts = 2", "restarts = 1"),
    ):
        text = text.replace(old, new)
    short = tmp_path / "short.toml"
    short.write_text(text)
    result = run_audit(AuditConfig.from_toml(short), tmp_path / "run", Runtime(cores=1))
    assert (result.verdict is None) == (defense in NOISELESS)


def test_a_package_that_is_missing_is_said_at_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    file, said = written(tmp_path, "whisper")
    needed = 'whisper needs the package cvxpy: pip install "dpaudit[whisper]"'
    assert said == f"warning: before that, {needed}\n"
    assert '# Needs the package cvxpy: pip install "dpaudit[whisper]"\n' in file.read_text()
    done = CliRunner().invoke(app, ["audit", str(file), "--dry-run"])
    assert (done.exit_code, without_help(done.stderr)) == (2, f"error: {needed}\n")


def test_a_size_without_a_unit_is_refused(tmp_path: Path) -> None:
    file, _ = written(tmp_path, "dp-dpsgd")
    for size in ("8", "16", "999999"):
        done = CliRunner().invoke(app, ["audit", str(file), "--dry-run", "--max-memory", size])
        assert done.exit_code == 2
        assert without_help(done.stderr) == (
            f"error: --max-memory: {size} without a unit is {size} bytes; expected a unit, as in "
            f"{size}GB or {size}GiB\n"
        )


def test_an_attack_that_is_not_there_is_told_those_that_are(tmp_path: Path) -> None:
    file, _ = written(tmp_path, "dp-dpsgd")
    file.write_text(file.read_text().replace('"likelihood-ratio"', '"odds"'))
    done = CliRunner().invoke(app, ["audit", str(file), "--dry-run"])
    assert done.exit_code == 2
    [line] = without_help(done.stderr).splitlines()
    expected = 'attack[1].name: no attack is called "odds"; known: canaries, dager, '
    assert expected in line
    done = CliRunner().invoke(app, ["init", "--defense", "nothing"])
    assert without_help(done.stderr).startswith(
        'error: no defense is called "nothing"; dpaudit list defenses'
    )
