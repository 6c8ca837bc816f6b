"""Who may import whom, and what must not be loaded before it is needed."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = {path.stem: path for path in (ROOT / "dpaudit").glob("*.py")}
COMMANDS = ("cli", "terminal")  # render what the library found
TORCH_FREE = (
    "cli",
    "terminal",
    "config",
    "registry",
    "result",
    "claim",
    "threat",
    "options",
    "own",
    "problems",
    "claims_file",
    "claims_check",
    "cached_audit",
    "verdicts",
    "baseline",
    "errors",
    "strict",
)


def imported(path: Path, top_level_only: bool = False) -> set[str]:
    """Modules of ours that a file imports, relative ones as ".name"."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = "." * node.level + node.module
            names = (
                [f"{module}.{alias.name}" for alias in node.names] if module == "dpaudit" else []
            )
            found |= set(names or [module])
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith((".", "dpaudit"))}


@pytest.mark.parametrize("path", sorted((ROOT / "reports").glob("*.py")), ids=lambda p: p.stem)
def test_reports_read_results_and_nothing_else_of_the_core(path) -> None:
    core = {name for name in imported(path) if name.startswith("dpaudit")}
    assert core <= {
        "dpaudit.result",
        "dpaudit.finding",
        "dpaudit.verdict",
        "dpaudit.check_result",
        "dpaudit.errors",
    }


@pytest.mark.parametrize("path", sorted((ROOT / "defenses").glob("*.py")), ids=lambda p: p.stem)
def test_defenses_know_contracts_and_mathematics_alone(path) -> None:
    forbidden = ("problem", "training", "pipeline", "judge", "attack", "result", "config", "data")
    assert not {f"dpaudit.{name}" for name in forbidden} & imported(path)


@pytest.mark.parametrize("path", sorted((ROOT / "attacks").glob("*.py")), ids=lambda p: p.stem)
def test_attacks_cannot_reach_the_secret(path) -> None:
    forbidden = ("problem", "training", "pipeline", "judge", "reconstruction", "data", "partition")
    names = imported(path)
    assert not {f"dpaudit.{name}" for name in forbidden} & names
    assert not any(name.startswith("dpaudit.defenses") for name in names)


def test_the_core_names_no_plug_in() -> None:
    for path in CORE.values():
        named = {
            name
            for name in imported(path)
            if name.startswith(("dpaudit.defenses", "dpaudit.attacks", "dpaudit.reports"))
        }
        allowed = {"dpaudit.reports", "dpaudit.reports.html"} if path.stem in COMMANDS else set()
        assert named <= allowed, path.name


@pytest.mark.parametrize("module", TORCH_FREE)
def test_what_help_waits_for_loads_nothing_heavy(module) -> None:
    heavy = ("torch", "scipy", "pandas", "seaborn", "matplotlib", "sklearn")
    code = f"import sys, dpaudit.{module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_installed_entry_points_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, written in project["entry-points"].items():
        installed = {
            ep.name: ep.value for ep in entry_points(group=group) if ep.dist.name == "dpaudit"
        }
        assert installed == written, "install the project again: its entry points have changed"
