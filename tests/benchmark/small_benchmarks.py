"""Small benchmarks, as files."""

from pathlib import Path

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
