"""What an audit is said to take, beside what it takes; and audits that do not fit."""

import ctypes
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.config import AuditConfig
from dpaudit.memory import resident
from dpaudit.pipeline.costs import AuditCosts, PartCost, estimate_costs
from dpaudit.pipeline.jobs import (
    DISTANCE,
    NOISE_OF_THE_RUN,
    Limit,
    context_of,
    examined_bytes,
    faults_in_a_line,
    jobs_of,
    reason_not_examined,
    run_attack,
    train_world,
)
from dpaudit.pipeline.noise_of_the_run import examine_noise
from dpaudit.pipeline.run import Runtime, prepare, run_audit
from dpaudit.training.run_directory import RunDirectory
from tests.said import without_help
from tests.small_audits import digits_config

BELOW = 0.9  # of the measured growth: an estimate is at least that
ABOVE = 4.0  # times it at most
MANY = Path(__file__).parents[2] / "benchmarks" / "ten-thousand-agents.toml"
PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def audit(*attacks: dict[str, Any], model: str = "lenet", n_agents: int = 6, **defense: Any) -> Any:
    given = {"n_rounds": 3, "batch_size": 4, "epsilon": 1.0, **defense}
    return digits_config(
        *attacks, model=model, n_agents=n_agents, defense={"name": "dpdl", **given}
    )


def grown(work: Callable[[], object]) -> int:
    """Bytes by which the resident memory of a child process peaks above where it began."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            torch.set_num_threads(1)
            ctypes.CDLL(None).malloc_trim(0)  # what earlier tests freed is not used again unseen
            PEAK[1].write_text("5")
            before = resident()
            work()
            line = next(x for x in PEAK[0].read_text().splitlines() if x.startswith("VmHWM"))
            os.write(writer, json.dumps(int(line.split()[1]) * 1024 - before).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    assert os.waitpid(child, 0)[1] == 0, "the part failed"
    return int(said)


def estimated(config: AuditConfig) -> dict[str, int]:
    """Bytes of each part, from a child process: autograd forbids a fork after its first use."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        costs = estimate_costs(prepare(config, Runtime()), 10**15)
        os.write(writer, json.dumps({part.part: part.size for part in costs.parts}).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = json.loads(file.read())
    os.waitpid(child, 0)
    return said


measured = pytest.mark.skipif(not all(map(Path.exists, PEAK)), reason="no peak of memory in /proc")


@pytest.mark.slow
@measured
@pytest.mark.parametrize(
    "config, part",
    [
        (audit(model="mlp", n_agents=60), "training (defense)"),
        (audit(model="mlp", n_agents=3, n_rounds=1), NOISE_OF_THE_RUN),
    ],
    ids=["training", "noise"],
)
def test_a_part_takes_about_what_it_is_said_to_take(
    config: AuditConfig, part: str, tmp_path: Path
) -> None:
    said, run = estimated(config)[part], RunDirectory(tmp_path)
    prepared = prepare(config, Runtime())

    def work() -> object:
        if part.startswith("training"):
            return train_world(prepared, run, "defense", lambda *a: None)
        return examine_noise(prepared, config.threat_model)

    took = grown(work)
    assert took > 5 * 10**7, "too small to tell"
    assert BELOW * took <= said <= ABOVE * took, (part, said / took)


@pytest.mark.slow
@measured
def test_neighbouring_worlds_of_many_take_what_is_said(tmp_path: Path) -> None:
    content = tomllib.loads(MANY.read_text())
    content["data"] |= {"n_agents": 2000, "partition": {"kind": "subset", "holders": 500}}
    config = AuditConfig.from_dict(content)
    prepared, run = prepare(config, Runtime()), RunDirectory(tmp_path)
    job = next(job for job in jobs_of(prepared) if job.attack_name == DISTANCE)
    said = examined_bytes(DISTANCE, context_of(prepared, run, job), job.threat_model)
    took = grown(lambda: run_attack(prepared, run, job, "", lambda *a: None))
    assert took > 10**8, "too small to tell"
    assert BELOW * took <= said <= ABOVE * took, said / took


@pytest.mark.parametrize("size", [200 * 10**6, 280 * 10**6])
def test_the_number_of_agents_that_is_named_fits_about(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this process holds, which changes from call to call, is put at nothing."""
    monkeypatch.setattr("dpaudit.pipeline.jobs.resident", lambda: 0)
    config = audit(model="mlp", n_agents=300).model_copy(update={"claim": ()})
    prepared = prepare(config, Runtime())
    with pytest.raises(ConfigError) as refused:
        estimate_costs(prepared, size)
    remedy = r"lower n_agents or batch_size; about n_agents = (\d+) would fit"
    n = int(re.fullmatch(remedy, refused.value.problems[0].help)[1])  # type: ignore[index]
    fits = audit(model="mlp", n_agents=n).model_copy(update={"claim": ()})
    found = estimate_costs(prepare(fits, Runtime()), 10**15)
    assert 0.95 * size < max(part.size for part in found.training) <= size


def test_an_attack_that_grows_beyond_the_limit_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = audit({"name": "likelihood-ratio", "trials": 40, "n_rounds": 2}, model="logistic")
    prepared, run = prepare(config, Runtime()), RunDirectory(tmp_path)
    job, held = next(jobs_of(prepared)), iter([10**9, 2 * 10**9, 5 * 10**9])
    monkeypatch.setattr("dpaudit.pipeline.jobs.resident", lambda: next(held))
    with pytest.raises(RunError) as refused:
        run_attack(prepared, run, job, "", lambda *a: None, 3 * 10**9)
    assert re.fullmatch(
        r"attack 00-likelihood-ratio-eavesdropper takes 4 GB of memory after 2 of \d+ steps, and "
        "3 GB is the limit, of which 1 GB is in use",
        refused.value.problems[0].text,
    )
    assert refused.value.problems[0].help == "lower n_agents or the options of likelihood-ratio"


def test_parts_that_do_not_fit_together_are_done_in_turn() -> None:
    parts = [PartCost("a", 600), PartCost("b", 300), PartCost("c", 300)]

    def workers(free: int | None) -> int:
        costs = AuditCosts(parts, [], PartCost("report", 1), Limit(free, "", 100))
        return costs.workers(parts, 8)

    assert [workers(free) for free in (None, 1500, 1499, 1100, 1099, 600)] == [3, 3, 2, 2, 1, 1]


@pytest.mark.slow
def test_results_do_not_depend_on_the_limit(tmp_path: Path) -> None:
    config = audit(model="logistic").model_copy(update={"claim": ()})
    runs = [
        run_audit(config, tmp_path / str(limit), Runtime(cores=2, max_memory=limit))
        for limit in (None, resident() + 300 * 10**6)
    ]
    one, other = (run.model_dump(exclude={"timing"}) for run in runs)
    assert one == other


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_memory_that_runs_out_all_the_same_is_one_line(error: Exception) -> None:
    with pytest.raises(RunError, match="training: out of memory"), faults_in_a_line("training"):
        raise error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("DefaultCPUAllocator: can't allocate memory"), RunError("DPA020", "gone"),
     AttributeError("a bug of ours")],
)  # fmt: skip
def test_memory_and_own_bugs_are_no_reason_not_to_examine(error: Exception) -> None:
    with pytest.raises(type(error)):
        raise_and_examine(error)


def raise_and_examine(error: Exception) -> str:
    try:
        raise error
    except type(error) as raised:
        return reason_not_examined(raised)


def test_whatever_a_step_raises_is_a_reason_not_to_examine() -> None:
    class Falls(DPDPSGD):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Any:
            return state[k]

    with pytest.raises(KeyError) as raised:
        Falls(n_rounds=1, noise_multiplier=1.0).step({}, 3, None, None, None)
    assert reason_not_examined(raised.value) == "3"
    assert raise_and_examine(ArithmeticError("overflow\nagain")) == "overflow"


@pytest.mark.slow
def test_the_command_exits_2_with_one_line_and_leaves_no_run(tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(
        '[data]\nname = "digits"\nn_agents = 100\n[graph]\nname = "ring"\n'
        '[model]\nname = "resnet-18"\n'
        '[defense]\nname = "dp-dpsgd"\nnoise_multiplier = 1.0\nbatch_size = 4\n'
    )
    asked = ["audit", str(file), "--out", str(tmp_path / "run"), "--max-memory", "12GB"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == 2
    assert without_help(found.stderr).count("\n") == 1
    assert re.search(
        r"training \(.*\) takes about .* GB (.|\n)*n_agents = \d+ would fit", found.stderr
    )
    assert not (tmp_path / "run").exists()
    wrong = CliRunner().invoke(app, [*asked[:-1], "12 apples"])
    assert (wrong.exit_code, without_help(wrong.stderr).count("\n")) == (2, 1)
