"""The workflow, the action and the pre-commit hook: their commands run in a clean copy, offline."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = ("pyproject.toml", "README.md", "action.yml", "constraints.txt")
PACKAGE += tuple(PROJECT["tool"]["setuptools"]["package-dir"].values())
WORKFLOW_STEPS = ("Install", "Check the claims", "Summary")

yaml = pytest.importorskip("yaml")


def workflow(name: str = "privacy") -> dict[str, Any]:
    text = (ROOT / "docs" / "ci-recipes.md").read_text()
    blocks = [b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "runs-on" in b]
    [found] = [block for block in map(yaml.safe_load, blocks) if block["name"] == name]
    return found


def action() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "action.yml").read_text())


def hook() -> dict[str, Any]:
    found, _lint = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A clean copy of the package and one of the worked example, and places for what is built."""
    folder = tmp_path_factory.mktemp("clean")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*")
    for name in PACKAGE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        extra = {"ignore": ignored} if (ROOT / name).is_dir() else {}
        (folder / "source").mkdir(exist_ok=True)
        copy(ROOT / name, folder / "source" / name, **extra)
    shutil.copytree(ROOT / "tests" / "example_project", folder / "project", ignore=ignored)
    return {name: folder / name for name in ("source", "project", "wheels", "site")}


@pytest.fixture(scope="module")
def wheel(clean: dict[str, Path]) -> dict[str, Path]:
    """The same, with a wheel of the package."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--no-index", "-w", clean["wheels"], clean["source"]],
        check=True, capture_output=True,
    )  # fmt: skip
    return clean


def run(command: str, clean: dict[str, Path], **more: str) -> subprocess.CompletedProcess[str]:
    """As a step runs: bash, in the repository; what pip installs goes beside the environment."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "PYTEST"))},
        "PATH": f"{clean['site'] / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(clean["site"]),
        "PIP_TARGET": str(clean["site"]),
        "PIP_UPGRADE": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as: no isolation
        "PIP_FIND_LINKS": str(clean["wheels"]),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "GITHUB_ACTIONS": "true",
        "GITHUB_ACTION_PATH": str(clean["source"]),
        "GITHUB_STEP_SUMMARY": str(clean["project"] / "summary.md"),
        "GITHUB_OUTPUT": str(clean["project"] / "output"),
        "RUNNER_TEMP": str(clean["source"].parent),
        **more,
    }
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    return subprocess.run(
        bash, cwd=clean["project"], env=environment, capture_output=True, text=True, timeout=200
    )


@pytest.mark.slow
def test_every_command_of_the_workflow_runs_in_a_clean_copy(wheel: dict[str, Path]) -> None:
    clean = wheel
    steps = {s["name"]: s["run"] for s in workflow()["jobs"]["claims"]["steps"] if "run" in s}
    assert tuple(steps) == WORKFLOW_STEPS
    for name, command in steps.items():
        if (
            name == "Check the claims"
        ):  # the audit on one core: the others are busy with other tests
            run("dpaudit check claims.toml --workers 1", clean)
        done = run(command, clean, DPAUDIT=str(*clean["wheels"].glob("*.whl")))
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    where = run("python -c 'import dpaudit; print(dpaudit.__file__)'", clean).stdout
    assert Path(where.strip()).is_relative_to(clean["site"])
    written = {path.name for path in (clean["source"].parent / "dpaudit").iterdir()}
    assert written == {"check.xml", "check.sarif", "check.md", "check-1.png"}
    assert "## dpaudit: 0 of" in (clean["project"] / "summary.md").read_text()


@pytest.mark.slow
def test_every_command_of_the_action_runs_in_a_clean_copy(wheel: dict[str, Path]) -> None:
    clean, found = wheel, action()
    steps = {s["name"]: s for s in found["runs"]["steps"] if "run" in s}
    assert list(steps) == ["Install dpaudit", "Check the claims"]
    assert all(step["shell"] == "bash" for step in steps.values())
    done = run(steps["Install dpaudit"]["run"], clean)
    assert done.returncode == 0, done.stderr
    given = steps["Check the claims"]["env"]
    inputs = {name: str(found["inputs"][name.lower()]["default"]) for name in given}
    done = run(steps["Check the claims"]["run"], clean, **inputs)
    assert done.returncode == 0, done.stdout + done.stderr
    [reports] = clean["source"].parent.glob("dpaudit-*")
    assert {path.name for path in reports.iterdir()} >= {"check.xml", "check.sarif", "check.md"}
    assert f"reports={reports}\n" in (clean["project"] / "output").read_text()
    assert not (clean["project"] / "dpaudit").exists()


def test_the_action_passes_a_failure_on(clean: dict[str, Path]) -> None:
    found = action()
    [step] = [s for s in found["runs"]["steps"] if s["name"] == "Check the claims"]
    given = step["env"]
    assert all(
        given[name] == "${{ inputs." + name.lower() + " }}"
        for name in ("CLAIMS", "ARGUMENTS", "CACHE")
    )
    inputs = {name: str(found["inputs"][name.lower()]["default"]) for name in given}
    absent = {**inputs, "ARGUMENTS": "--baseline absent.json"}
    refused = run(step["run"], clean, **absent)
    assert (refused.returncode, refused.stdout) == (2, ""), refused.stderr


def test_every_action_is_named_by_its_commit() -> None:
    text = (ROOT / "action.yml").read_text() + (ROOT / "docs" / "ci-recipes.md").read_text()
    named = [one for one in re.findall(r"uses: (.*)", text) if "OWNER" not in one]
    assert len(named) >= 9
    pinned = r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+"
    assert [one for one in named if not re.fullmatch(pinned, one)] == []


def test_the_action_installs_what_is_pinned() -> None:
    [install] = [s["run"] for s in action()["runs"]["steps"] if s["name"] == "Install dpaudit"]
    assert '--constraint "$GITHUB_ACTION_PATH/constraints.txt"' in install


def test_no_action_uploads_a_folder_of_the_repository() -> None:
    steps = [*action()["runs"]["steps"], *workflow()["jobs"]["claims"]["steps"]]
    paths = [s["with"]["path"] for s in steps if "upload-artifact" in s.get("uses", "")]
    assert paths == ["${{ steps.check.outputs.reports }}", "${{ runner.temp }}/dpaudit"]


@pytest.mark.slow
def test_the_pre_commit_hook_runs(clean: dict[str, Path]) -> None:
    done = run(command_of(hook()), clean, GITHUB_ACTIONS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


def test_the_pre_commit_hook_passes_a_failure_on(clean: dict[str, Path]) -> None:
    found = hook()
    assert found["language"] == "python"
    assert found["pass_filenames"] is False
    assert f"- id: {found['id']}" in (ROOT / "docs" / "ci-recipes.md").read_text()
    refused = run(f"{command_of(found)} --baseline absent.json", clean, GITHUB_ACTIONS="")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "absent.json: No such file" in refused.stderr


def command_of(hook: dict[str, Any]) -> str:
    return shlex.join([*shlex.split(hook["entry"]), *hook["args"]])


@pytest.mark.slow
def test_forks_are_held_against_the_promises_of_the_base(
    clean: dict[str, Path], tmp_path: Path
) -> None:
    """And it has no secret, no token that writes and no cache of others."""
    found = workflow("privacy of forks")
    assert found["permissions"] == {"contents": "read"}
    assert found[True] == "pull_request"  # YAML reads the key "on" as true
    assert "secrets" not in str(found)
    steps = {s["name"]: s["run"] for s in found["jobs"]["claims"]["steps"] if "run" in s}
    assert list(steps) == ["Install", "Promises of the base branch", "Check the claims"]
    base, fork = tmp_path / "base", tmp_path / "fork"
    base.mkdir()
    for name, text in (("claims.toml", "base"), ("audit.toml", "base"), ("baseline.json", "base")):
        (base / name).write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "base"]):
        subprocess.run([*git, *command], cwd=base, check=True)
    subprocess.run(["git", "clone", "-q", base, fork], check=True)
    for name in ("claims.toml", "audit.toml", "baseline.json"):
        (fork / name).write_text("weaker")
    subprocess.run([*git, "commit", "-q", "-a", "-m", "fork"], cwd=fork, check=True)
    there = {**clean, "project": fork}
    done = run(steps["Promises of the base branch"], there, GITHUB_BASE_REF="main")
    assert done.returncode == 0, done.stderr
    assert {(fork / name).read_text() for name in ("claims.toml", "audit.toml")} == {"base"}
    assert (fork / "baseline.json").read_text() == "base"
    command = steps["Check the claims"]
    done = run(command, clean, RUNNER_TEMP=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "dpaudit-cache" / ".gitignore").exists()
