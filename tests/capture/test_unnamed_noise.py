"""Noise that a program adds and nobody has named: what it may hide speaks against no claim."""

from pathlib import Path

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.verdict import Verdict

MASKED = """
import sys
import numpy as np
from dpaudit import tap

rng, n = np.random.default_rng(), 3
for _ in range(2):
    masks = {}
    for i in range(n):
        x = tap.batch(i, np.full((1, 4), 1.0))
        clipped = (x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))).sum(0)
        masks |= {(i, j): rng.normal(0, 9, 4) for j in range(i + 1, n)}
        own = tap.noise(i, "own", 0.5 * rng.standard_normal(4), 0.5)
        for j in range(n):
            if j != i:
                mask = masks[i, j] if i < j else -masks[j, i]
                own = own + (mask if sys.argv[1] == "untold" else tap.noise(i, f"with {j}", mask, 9))
        tap.send(i, [n], "masked", clipped + own)
"""


@pytest.mark.parametrize(
    ("how", "verdict"), [("untold", Verdict.UNDERPOWERED), ("told", Verdict.NOT_REFUTED)]
)
def test_masks_that_nobody_shows_refute_no_claim(
    tmp_path: Path, how: str, verdict: Verdict
) -> None:
    """Agents add masks that cancel in the sum of all, whose noise gives mu = 1 / (0.5 sqrt(3)).

    Runs share masks that are not shown to the tap, so that they seem to hide nothing.
    """
    (tmp_path / "masked.py").write_text(MASKED)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "masked.py", how), "folder": tmp_path},
            "record": {"victims": (1,), "rounds": (1,)},  # whose masks have either sign
            "certify": {"runs": 40},
            "claim": ({"text": "r", "mu": 1.2, "scope": "round", "adjacency": "add-remove"},),
            "threat_model": ({"name": "aggregator", "kind": "external"},),
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    assert result.verdict is verdict
    named = [note for note in result.notes if "not shown as noise (numpy.normal)" in note]
    assert bool(named) == (how == "untold")


MADE = """
import random, sys
import numpy as np
from dpaudit import tap

how = sys.argv[1]
drawn, fixed, system = np.random.default_rng(), np.random.default_rng(3), random.SystemRandom()

def normal():
    while True:  # by rejection
        z = system.expovariate(1.0)
        if system.random() < np.exp(-((z - 1) ** 2) / 2):
            return z if system.random() < 0.5 else -z

for _ in range(2):
    for i in range(2):
        x = tap.batch(i, np.eye(4))
        total = (x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))).sum(0)
        noise = tap.noise(i, "z", 0.5 * np.array([normal() for _ in range(4)]), 0.5)
        if how != "shown":
            noise = noise + (fixed if how == "fixed" else drawn).normal(0, 9, 4)
        tap.send(i, 1 - i, "m", total + noise)
"""


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ("shown", Verdict.UNSUPPORTED),
        ("beside", Verdict.UNDERPOWERED),
        ("fixed", Verdict.UNDERPOWERED),
    ],
)
def test_numbers_that_noise_is_made_of_hide_nothing(
    tmp_path: Path, how: str, verdict: Verdict
) -> None:
    """mu = 2, if there is no other noise; nobody knows whether noise that nobody shows is secret."""
    (tmp_path / "made.py").write_text(MADE)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "made.py", how), "folder": tmp_path},
            "record": {"victims": (0,), "rounds": (1,)},
            "certify": {"runs": 0},
            "claim": ({"text": "r", "mu": 1.2, "scope": "round", "adjacency": "add-remove"},),
            "threat_model": ({"name": "eavesdropper", "kind": "external"},),
        }
    )
    assert run_captured(config, tmp_path / "out", cores=1).verdict is verdict
