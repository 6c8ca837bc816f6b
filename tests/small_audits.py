"""Small audits that tests of several rooms begin with."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.files.config import AuditConfig


@contextmanager
def undrawn() -> Iterator[pytest.MonkeyPatch]:
    """Audits of this process whose report nobody reads: drawing it takes as long as all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpaudit.pipeline.judge.load_plugin", lambda family, name: lambda *_: "")
        yield patch


def write_images(folder: Path, width: int = 8) -> None:
    """The 60 + 20 images of width x width pixels that ``images_audit`` names."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (80, width, width), dtype=np.uint8), np.arange(80) % 4
    np.savez(folder / "images.npz", x=x[:60], y=y[:60], x_test=x[60:], y_test=y[60:])


def images_audit(model: str, defense: str, n_rounds: int) -> str:
    """An audit.toml as far as the defense."""
    return f"""\
seed = 5
[data]
path = "images.npz"
n_agents = 4
[graph]
name = "ring"
[model]
name = "{model}"
[defense]
name = "{defense}"
n_rounds = {n_rounds}
batch_size = 4
noise_multiplier = 1.0
"""


def digits_audit(noise_multiplier: float, epsilon: float, claim: str = "ours") -> str:
    """An audit.toml without attacks, of two rounds."""
    return f"""\
seed = 3
data = {{ name = "digits", n_agents = 4 }}
graph.name = "ring"
model.name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 2
batch_size = 4
noise_multiplier = {noise_multiplier}
[[claim]]
text = "{claim}"
epsilon = {epsilon}
delta = 1e-5
"""


def digits_config(
    *attacks: dict[str, Any], model: str, n_agents: int, defense: dict[str, Any]
) -> AuditConfig:
    """A claim of epsilon 1 against an eavesdropper."""
    return AuditConfig.from_dict(
        {
            "data": {"name": "digits", "n_agents": n_agents},
            "graph": {"name": "ring"},
            "model": {"name": model},
            "defense": defense,
            "claim": [{"text": "stated", "epsilon": 1.0, "delta": 1e-5}],
            "attack": list(attacks),
        }
    )
