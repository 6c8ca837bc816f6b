"""Code that is audited cannot give a verdict by ending the process: exit code 2, one line."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import dpaudit
from dpaudit.commands.cli import app
from dpaudit.errors import RunError
from tests.material.forks import fork_orders
from tests.said import without_help

MODULE = """\
import multiprocessing
import os
import sys

import typer

from dpaudit.attack.contract import Attack
from dpaudit.defenses.dpsgd import DPDPSGD


class Unsendable(Exception):
    def __init__(self, first, second):
        super().__init__(first)


def act():
    {act}


{at_import}


class Leaves(DPDPSGD):
    def step(self, state, k, graph, gradient, noise):
        {in_step}
        return super().step(state, k, graph, gradient, noise)


class Measures(Attack):
    def measure(self, bench, threat_model, on_step):
        {in_measure}
        return []
"""
AUDIT = {
    "seed": 3,
    "data": {"name": "digits", "n_agents": 4},
    "graph": {"name": "ring"},
    "model": {"name": "logistic"},
    "defense": {"name": "hostile:Leaves", "n_rounds": 2, "batch_size": 4, "noise_multiplier": 9.0},
    "attack": [{"name": "hostile:Measures"}],
}
CONFIG = """\
seed = 3
attack = [{ name = "hostile:Measures" }]
data = { name = "digits", n_agents = 4 }
graph.name = "ring"
model.name = "logistic"
[defense]
name = "hostile:Leaves"
n_rounds = 2
batch_size = 4
noise_multiplier = 9.0
"""
CHECK = """\
import_from = "code"
[[check]]
name = "ours"
audit = "audit.toml"
[[check.threshold]]
metric = "psnr"
at_most = 9.0
"""
MOMENTS = ("at_import", "in_step", "in_measure")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose own code is in a folder, importable here; logs are kept beside it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "audit.toml").write_text(CONFIG)
    (tmp_path / "claims.toml").write_text(CHECK)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "logs"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "code")
    return tmp_path


@pytest.fixture(autouse=True)
def _imported_anew():
    yield
    sys.modules.pop("hostile", None)


def plant(folder: Path, act: str, moment: str) -> None:
    calls = {m: "act()" if m == moment else "pass" for m in MOMENTS}
    (folder / "code" / "hostile.py").write_text(MODULE.format(act=act, **calls))


def audit(*arguments: str) -> tuple[int, list[str]]:
    """Exit code of an audit here, and the lines of stderr on what went wrong."""
    done = CliRunner().invoke(app, ["audit", "audit.toml", *arguments])
    assert "Traceback" not in done.stderr
    return done.exit_code, [
        line for line in without_help(done.stderr).splitlines() if line.startswith("error: ")
    ]


def dpaudit_command(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """The same of any command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "dpaudit.commands.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(folder / "code"),
            "TMPDIR": str(folder / "logs"),
        },
    )
    return done.returncode, without_help(done.stderr).splitlines()


ACTS = {
    "sys.exit(0)": "SystemExit: 0",
    "quit()": "SystemExit",
    "raise SystemExit": "SystemExit",
    "raise typer.Exit(0)": "Exit",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit": "GeneratorExit",
    "act()": "RecursionError: maximum recursion depth exceeded",
    "1 / 0": "ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize(
    "act, moment",
    [
        pytest.param(act, moment, marks=() if i % len(MOMENTS) == j else pytest.mark.slow)
        for i, act in enumerate(ACTS)
        for j, moment in enumerate(MOMENTS)
    ],
)
def test_however_code_of_others_leaves_an_audit_it_is_one_line(folder, act, moment) -> None:
    plant(folder, act, moment)
    code, lines = audit("--workers", "1")
    assert code == 2, lines
    assert ACTS[act] in lines[-1]
    told = moment == "at_import" and "cannot be imported" in lines[-1]  # a line of the config
    assert len(lines) == (2 if told else 1), lines  # one for each plug-in that it has
    assert len(list((folder / "logs").glob("*.log"))) == (not told)


@pytest.mark.parametrize(
    "act, said",
    [
        pytest.param("sys.exit(0)", "unforeseen SystemExit: 0", marks=pytest.mark.slow),
        pytest.param(
            "raise Unsendable(1, 2)",
            "unforeseen RuntimeError: hostile.Unsendable: 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "os._exit(0)",
            "a worker process was killed, perhaps for lack of memory, or was left",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_in_a_worker_process_too(folder, act: str, said: str, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.pipeline.costs.SHORT", -1)  # processes are started at once
    plant(folder, f"if multiprocessing.parent_process() is not None: {act}", "in_step")
    code, [line] = audit("--workers", "2")
    assert code == 2
    assert line.startswith(f"error: {said}")
    assert "/concurrent/" not in line
    for log in (folder / "logs").glob("*.log"):
        assert ", in act\n" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["at_import", "in_measure"])
def test_a_process_left_behind_our_back_gives_no_verdict(folder, moment: str) -> None:
    plant(folder, "os._exit(0)", moment)
    code, lines = dpaudit_command(folder, "audit", "audit.toml", "--workers", "1")
    assert code == 2
    assert lines == [
        "error: no answer: the process of this command was left with exit code 0; what was done "
        "is kept"
    ]


def test_a_report_that_leaves_gives_no_verdict(folder, monkeypatch, report) -> None:
    plant(folder, "pass", "at_import")

    def leave(*arguments: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr("dpaudit.reports.html.render", leave)
    code, [line] = audit("--workers", "1")
    assert (code, line.partition(",")[0]) == (2, "error: unforeseen SystemExit: 0")
    done = CliRunner().invoke(app, ["report", "runs/audit"])
    assert done.exit_code == 2
    assert without_help(done.stderr).startswith("error: unforeseen SystemExit: 0")


@pytest.mark.parametrize(
    "act, said",
    [
        pytest.param(
            "sys.exit(0)",
            'claims.toml:2: check[1]: "ours": unforeseen SystemExit: 0',
            marks=pytest.mark.slow,
        ),
        ("os._exit(0)", "its audit ended without a result"),
    ],
)
def test_a_check_is_never_green_for_code_that_leaves(folder, act, said, monkeypatch) -> None:
    """It leaves the process of the check's audits, which is never this one."""
    plant(folder, act, "in_step")
    fork_orders(monkeypatch)
    monkeypatch.setenv("TMPDIR", str(folder / "logs"))
    command = ["check", "claims.toml", "--workers", "1", "--junit", "junit.xml"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    [line] = without_help(done.stderr).splitlines()
    assert said in line
    assert len(ElementTree.parse("junit.xml").getroot().findall("*/*/error")) == 1


@pytest.mark.slow
def test_nor_for_code_that_leaves_the_process_of_the_check(folder) -> None:
    plant(folder, "os._exit(0)", "at_import")
    code, [line] = dpaudit_command(folder, "check", "claims.toml", "--workers", "1")
    assert code == 2
    assert "no answer: the process of this command was left with" in line


def test_the_library_does_not_end_the_script_that_calls_it(folder) -> None:
    plant(folder, "sys.exit(0)", "in_step")
    with pytest.raises(RunError, match=r"code that is audited raised SystemExit\(0\)"):
        dpaudit.audit(AUDIT, cores=1)


BROKEN = (
    ["attack", "{0}"],
    ["audit", "{0}"],
    ["benchmark", "{0}"],
    ["capture", "--out", "{1}", "--", "true"],
    ["certificate", "{1}"],
    ["doctor"],
    ["check", "{0}"],
    ["epsilon", "--noise-multiplier", "1"],
    ["epsilon-from-scores", "{0}", "{1}"],
    ["explain", "epsilon"],
    ["init", "--force", "--out", "{0}"],
    ["lint", "{1}"],
    ["list", "attacks"],
    ["mechanism", "math:sqrt", "--epsilon", "1", "--shape", "1", "--out", "{1}/own"],
    ["report", "{1}"],
    ["reproduce", "xie-table4"],
    ["selftest"],
    ["show", "{1}"],
    ["verify", "{1}"],
)


@pytest.mark.parametrize("arguments", BROKEN, ids=lambda arguments: arguments[0])
def test_every_command_answers_with_2_where_a_fault_is_its_own(
    folder, arguments, monkeypatch
) -> None:
    """Each begins with an import that fails here as no user's input can make it fail."""
    started = {
        "attack": "dpaudit.pipeline.requirements.torch_device",
        "audit": "dpaudit.files.config.AuditConfig.from_toml",
        "benchmark": "dpaudit.files.benchmark_file.BenchmarkFile.read",
        "capture": "dpaudit.capture.run.capture",
        "certificate": "dpaudit.files.result.AuditResult.read",
        "check": "dpaudit.files.claims_file.ClaimsFile.read",
        "doctor": "dpaudit.commands.doctor.lines",
        "epsilon": "dpaudit.accounting.Release",
        "epsilon-from-scores": "dpaudit.commands.scores.read_scores",
        "explain": "dpaudit.files.glossary.entry_of",
        "init": "dpaudit.commands.starter.starter",
        "lint": "dpaudit.lint.lint.lint",
        "list": "dpaudit.commands.catalogue.catalogue",
        "mechanism": "dpaudit.mechanism.source.run_mechanism",
        "report": "dpaudit.files.result.AuditResult.read",
        "reproduce": "dpaudit.papers.declared.reproduction",
        "selftest": "dpaudit.selftest.selftest.selftest",
        "show": "dpaudit.files.result.AuditResult.read",
        "verify": "dpaudit.files.documents.text_of",
    }

    def leave(*_: object, **__: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(started[arguments[0]], leave)
    (folder / "audit.json").write_text("{}")  # report and show ask for it first
    done = CliRunner().invoke(
        app, [part.format(folder / "audit.toml", folder) for part in arguments]
    )
    assert done.exit_code == 2, done.output
    [line] = without_help(done.stderr).splitlines()
    assert line.startswith("error: unforeseen SystemExit: 0")


def test_every_command_is_among_them() -> None:
    named = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert named == {arguments[0] for arguments in BROKEN}
