"""A long audit asks for the process whose forks work for it before this one has loaded torch."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.pipeline import fork_server
from tests.said import without_help

AUDIT = """\
data = {{ name = "digits", n_agents = {agents} }}
graph.name = "ring"
model.name = "logistic"
defense = {{ name = "dp-dpsgd", n_rounds = {rounds}, batch_size = 4, noise = 1.0 }}
"""


@pytest.mark.parametrize(
    ("agents", "rounds", "cores", "options", "begins"),
    [
        ("10", "30", 2, [], True),
        ("10", "29", 2, [], False),
        ("10", "30", 1, [], False),
        ("10", "30", 2, ["--workers", "1"], False),
        ("10", "30", 2, ["--dry-run"], False),
        ('"ten"', "30", 2, [], False),
    ],
)
def test_only_a_long_audit_asks_for_more_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agents, rounds, cores, options, begins
) -> None:
    """The file has a mistake, which ends the command; what is asked for before is what counts."""
    asked: list[bool] = []
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(fork_server, "begin", lambda: asked.append(True))
    file = tmp_path / "audit.toml"
    file.write_text(AUDIT.format(agents=agents, rounds=rounds))
    done = CliRunner().invoke(app, ["audit", str(file), *options])
    assert done.exit_code == 2, without_help(done.output)
    assert asked == [True] * begins
