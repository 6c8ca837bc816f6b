"""A server that everybody trusts, shown as the agent whose records are those of its clients."""

from pathlib import Path

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.verdict import Verdict

CENTRAL = """
import sys
import numpy as np
from dpaudit import tap

HOW, N = sys.argv[1], 4
clients = np.random.default_rng(0).normal(size=(N, 5))
rng, w = np.random.default_rng(), np.zeros(5)
for _ in range(2):
    updates = [(np.tanh(x @ w) + 1) * x for x in tap.batch(0, clients)]
    if HOW != "without a clip":
        updates = [u * min(1, 1 / max(np.linalg.norm(u), 1e-9)) for u in updates]
    mean = sum(updates) / (len(updates) if HOW == "by those that came" else N)
    scale = 1 / N / {"half of the noise": 2, "noise divided twice": N}.get(HOW, 1)
    w = w - 0.5 * (mean + tap.noise(0, "z", rng.normal(0, scale, 5), scale))
    tap.send(0, 1, "model", w)
"""
WRONG = "half of the noise", "noise divided twice", "without a clip", "by those that came"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["right", *WRONG])
def test_a_server_that_adds_noise_is_audited_as_an_agent(tmp_path: Path, how: str) -> None:
    """As docs/frameworks.md says: mu = 1 for a client that is there or not."""
    (tmp_path / "central.py").write_text(CENTRAL)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "central.py", how), "folder": tmp_path},
            "record": {"victims": (0,), "rounds": (1, 2)},
            "certify": {"runs": 0},
            "claim": ({"text": "c", "mu": 1.0, "scope": "round", "adjacency": "add-remove"},),
            "threat_model": ({"name": "client"},),
        }
    )
    verdict = run_captured(config, tmp_path / "out", cores=1).verdict
    assert verdict is (Verdict.SUPPORTED if how == "right" else Verdict.UNSUPPORTED)
