"""Agents that hold no records pass messages on, and hide nothing of their own."""

import tomllib
from pathlib import Path

from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.run import Runtime, run_audit

AUDIT = """
seed = 1
data = { name = "digits", n_agents = 6, partition = { kind = "subset", holders = 3 } }
graph.name = "ring"
model.name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 3
batch_size = 8
noise_multiplier = 1.0
[[claim]]
text = "ours"
epsilon = 8.0
delta = 1e-5
[[attack]]
name = "gradient-inversion"
message = "noisy-gradient"
rounds = [2]
targets = 6
batch_sizes = [1]
"""


def test_such_an_audit_reconstructs_and_is_supported(tmp_path: Path) -> None:
    (tmp_path / "audit.toml").write_text(AUDIT)
    config = AuditConfig.from_toml(tmp_path / "audit.toml")
    result = run_audit(config, tmp_path / "run", Runtime(cores=1))
    assert result.verdict is Verdict.SUPPORTED
    assert [p.status for p in result.claims[0].premises] == ["examined"] * 6
    reconstructed = [f for f in result.findings if f.kind == "reconstruction"]
    assert {f.world for f in reconstructed} >= {"defense", "no-defense"}


def test_records_that_nobody_holds_move_no_noise(tmp_path: Path) -> None:
    """With one record in a batch, places of agents without records counted as records."""
    content = tomllib.loads(AUDIT) | {"attack": []}
    content["defense"]["batch_size"] = 1
    result = run_audit(AuditConfig.from_dict(content), tmp_path / "run", Runtime(cores=1))
    (moved,) = (f for f in result.findings if f.role is Role.ALIGNMENT)
    assert moved.metrics[Name.MOVED_OVER_DECLARED].value <= 1 + 1e-9
    assert result.verdict is Verdict.SUPPORTED
