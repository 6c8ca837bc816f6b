"""An audit of many agents with sparse mixing: its leak, its runs and its page."""

import json
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.run import Runtime, run_audit

AUDIT = """
seed = 1
data = {{ path = "records.npz", n_agents = {agents} }}
graph.name = "{graph}"
model.name = "logistic"
defense = {{ name = "dp-dpsgd", n_rounds = 3, batch_size = 4, noise_multiplier = 0.5 }}

[[claim]]
text = "tight"
epsilon = 1.0
delta = 1e-5

[[threat_model]]
name = "eavesdropper"
kind = "external"

[[threat_model]]
name = "neighbour"
kind = "curious"
agents = [1]

[[attack]]
name = "likelihood-ratio"
trials = 100
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "graph"),
    [
        (300, "ring"),
        (10_000, "ring"),
        (10_000, "k-regular"),
    ],
)
def test_an_audit_of_many_agents_refutes_a_claim_that_is_false(
    tmp_path: Path, agents: int, graph: str, report
) -> None:
    """Every round tells mu = 1 / 0.5 of a record that is always in the batch, to who reads all."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4 * agents, 10)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "records.npz", x=x, y=y, x_test=x[:100], y_test=y[:100])
    (tmp_path / "audit.toml").write_text(AUDIT.format(agents=agents, graph=graph))
    config = AuditConfig.from_toml(tmp_path / "audit.toml")
    result = run_audit(config, tmp_path / "run", Runtime(cores=1))

    assert result.verdict is Verdict.REFUTED
    leaks = {f.threat_model: f for f in result.findings if f.role is Role.EXACT_LEAK}
    whole = leaks["eavesdropper"].metrics[Name.EPSILON]
    assert whole.value == pytest.approx(gaussian_epsilon(1e-5, 2 * sqrt(3)), rel=1e-3)
    near = leaks["neighbour"].metrics[Name.EPSILON]
    assert near.low is not None
    assert whole.low is not None
    assert 0 < near.low <= whole.low
    noise = [f for f in result.findings if f.role is Role.NOISE]
    assert len(noise) == 3
    assert all(f.verdict is None for f in noise)
    assert _bound(result.findings, "eavesdropper") > 1.0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "These are too many to draw." in page
    assert len(page) < 2e6
    assert json.loads((tmp_path / "run" / "audit.json").read_text())["graph"]["n_agents"] == agents


def _bound(findings: tuple[Finding, ...], reader: str) -> float:
    (test,) = (f for f in findings if f.role is Role.TEST and f.threat_model == reader)
    return test.metrics[Name.EPSILON_LOWER_BOUND].value
