"""The recipes for clusters are what the shell, Kubernetes and dpaudit accept."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dpaudit.commands.cli import app

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
SLURM, KUBERNETES = FOLDER / "slurm.sh", FOLDER / "kubernetes.yaml"


def benchmark_line(text: str) -> list[str]:
    """The options of the line that runs the benchmark."""
    [line] = [one for one in text.splitlines() if one.strip().startswith("dpaudit benchmark")]
    return shlex.split(line)[2:]


@pytest.fixture
def objects() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(KUBERNETES.read_text())}


@pytest.mark.parametrize("file", [SLURM, KUBERNETES])
def test_the_benchmark_is_given_options_that_it_has(file: Path) -> None:
    command = typer.main.get_command(app).get_command(None, "benchmark")  # type: ignore[attr-defined, arg-type]
    with command.make_context("benchmark", benchmark_line(file.read_text())) as context:
        assert context.params["backend"] == "ray"
        assert context.params["address"]


def test_the_script_is_one_that_bash_reads() -> None:
    subprocess.run(["bash", "-n", SLURM], check=True)


def test_workers_find_the_head_and_the_secret(objects: dict[str, Any]) -> None:
    service, job, workers = (objects[kind] for kind in ("Service", "Job", "Deployment"))
    head = job["spec"]["template"]
    assert service["spec"]["selector"] == head["metadata"]["labels"]
    [worker] = workers["spec"]["template"]["spec"]["containers"]
    [port] = service["spec"]["ports"]
    assert f"--address={service['metadata']['name']}:{port['port']}" in worker["command"]
    [benchmark] = head["spec"]["containers"]
    assert f"--port={port['port']}" in benchmark["args"][0]
    assert benchmark["env"] == worker["env"]
    assert benchmark["image"] == worker["image"]


@pytest.mark.slow
def test_slurm_would_run_the_script() -> None:
    if shutil.which("sbatch") is None:
        pytest.skip("SLURM is not installed")
    if subprocess.run(["sinfo"], capture_output=True).returncode:
        pytest.skip("no SLURM controller answers")
    subprocess.run(["sbatch", "--test-only", "--nodes=1", "--cpus-per-task=1", SLURM], check=True)


@pytest.mark.slow
def test_kubernetes_would_take_each_object() -> None:
    if (validate := shutil.which("kubernetes-validate")) is None:
        pytest.skip("kubernetes-validate is not installed")
    subprocess.run([validate, "--strict", KUBERNETES], check=True)
