"""Small benchmarks, as files."""

import json
from pathlib import Path
from typing import Any

BASE = """
[audit]
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"

[audit.defense]
name = "dp-dpsgd"
n_rounds = 2
batch_size = 4
epsilon = 1.0
delta = 1e-5

[[audit.claim]]
text = "ours"
epsilon = 1.0
delta = 1e-5
"""

EPSILONS = """
[[axis]]
key = ["defense.epsilon", "claim.0.epsilon"]
values = [0.5, 8]
"""

GRAPHS = """
[[axis]]
key = "graph.name"
values = ["ring", "complete"]
"""


def written(folder: Path, *parts: str) -> Path:
    """The benchmark file that these parts make, with the base audit."""
    path = folder / "bench.toml"
    path.write_text("".join([*parts, BASE]))
    return path


SENSORS = """
[audit]
seed = 4
graph.name = "star"

[audit.data]
name = "sensor-fusion"
n_agents = 5
sensors = { m = 4, p = 3, scale = 5.0 }

[audit.defense]
name = "sensitivity-reduced"
n_rounds = 5
epsilon = 2.0

[[audit.claim]]
text = "Theorem 4.5"
epsilon = 2.0
adjacency = "function"
"""  # whose audits take a second


def same_but_for_time(one: Path, other: Path) -> bool:
    """Whether two folders hold the same cells with the same audits."""
    found = [
        {path.parent.name: _without_time(path) for path in folder.glob("cells/*/audit.json")}
        for folder in (one, other)
    ]
    return bool(found[0]) and found[0] == found[1]


def _without_time(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    del content["timing"]
    return content
