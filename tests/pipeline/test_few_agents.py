"""Every graph with no agent but one or two, or three: an audit, or one line that says why not."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.graphs.mixing import graph_names
from tests.said import without_help

AUDIT = """\
data = {{ name = "{data}", n_agents = {n} }}
graph.name = "{graph}"
{model}
[defense]
name = "{defense}"
n_rounds = 2
allow_outside_theory = true
"""
RECORDS = 'model.name = "logistic"', "noise_multiplier = 1.0\nbatch_size = 2\n"
SENSORS = "", "epsilon = 1.0\n"


def ended(folder: Path, text: str) -> tuple[int, list[str]]:
    (folder / "audit.toml").write_text(text)
    audit = ["audit", str(folder / "audit.toml"), "--out", str(folder / "run"), "--dry-run"]
    done = CliRunner().invoke(app, audit)
    return done.exit_code, [
        x for x in without_help(done.stderr).splitlines() if x.startswith("error: ")
    ]


OF_EACH_KIND = "ring", "hub2", "d-out", "erdos-renyi", "pairwise", "server"  # slow: the others
LEAST = {"ring": 3, "hub2": 4, "half-exponential": 4, "k-regular": 5, "power-law": 4}
CASES = [(graph, n) for graph in graph_names() for n in (1, 2, 3)]


def is_fast(case: tuple[str, int]) -> bool:
    return case[0] in OF_EACH_KIND and case[1] in (1, 3)


@pytest.mark.parametrize(
    ("graph", "n"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (not is_fast(case))) for case in CASES],
)
def test_few_agents_are_an_audit_or_one_line(tmp_path, graph: str, n: int) -> None:
    of_records = "fed-cdp" if graph == "server" else "dp-dpsgd"
    for data, defense, (model, options) in (
        ("digits", of_records, RECORDS),
        ("sensor-fusion", "sensitivity-reduced", SENSORS),
    ):
        text = AUDIT.format(data=data, n=n, graph=graph, model=model, defense=defense) + options
        code, lines = ended(tmp_path, text)
        assert (code, len(lines)) in {(0, 0), (2, 1)}, lines
        if n == 1:
            assert lines[0].startswith(f"error: graph {graph}: ")
            assert lines[0].endswith(f"needs at least {LEAST.get(graph, 2)} agents, got 1")
        assert not any("unforeseen" in line for line in lines)
