"""Agents that hold no records pass messages on, and hide nothing of their own."""

from pathlib import Path

from dpaudit.files.config import AuditConfig
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
