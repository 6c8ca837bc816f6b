"""Whole audits of seconds: determinism, resuming, contracts, and what is said about bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.errors import DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.run import Runtime, attack_again, run_audit
from tests.said import without_help
from tests.small_audits import images_audit, write_images

ONE_CORE = Runtime(cores=1)

N_ROUNDS = 3
CONFIG = (
    images_audit("logistic", "dpdl", N_ROUNDS)
    + """\
[[claim]]
text = "Theorem 1"
epsilon = 0.5
delta = 1e-5
[[threat_model]]
name = "eavesdropper"
[[threat_model]]
name = "agent 2"
kind = "curious"
agents = [2]
[[attack]]
name = "gradient-inversion"
message = "cross_gradient"
rounds = [2, 3]
targets = 2
restarts = 1
iterations = 3
[[attack]]
name = "gradient-inversion"
message = "momentum-stripped"
rounds = [3]
targets = 2
restarts = 1
iterations = 3
"""
)

CLAIM = CONFIG[CONFIG.index("[[claim]]") : CONFIG.index("[[attack]]")]
SMALL = images_audit("logistic", "dp-dpsgd", 2) + CLAIM


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with audit.toml and the 60 + 20 images it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPAUDIT_DATA", raising=False)
    write_images(tmp_path)
    (tmp_path / "audit.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def audited_before(folder: Path, home: Path, whole: AuditResult) -> Path:
    """The same, with the finished run of ``home``."""
    shutil.copytree(home / "whole", folder / "run")
    return folder


def audited(folder: Path, out: str | Path = "run", **options) -> AuditResult:
    config = AuditConfig.from_toml(folder / "audit.toml")
    return run_audit(config, folder / out, ONE_CORE, CONFIG, **options)


def without_timing(result: AuditResult) -> dict:
    content = json.loads(result.to_json())
    del content["timing"]
    return content


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with audit.toml and its images, which tests only read."""
    path = tmp_path_factory.mktemp("home")
    write_images(path)
    (path / "audit.toml").write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def whole(home: Path) -> AuditResult:
    """Of ``home``, as the working folder, and never interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        return audited(home, "whole", report=False)  # drawing it takes as long as all the rest


def test_an_audit_writes_what_the_contract_says(home, whole) -> None:
    run, result = home / "whole", whole
    assert AuditResult.read(run / "audit.json") == result
    schema = json.loads((Path(__file__).parents[2] / "docs" / "audit.schema.json").read_text())
    jsonschema.validate(json.loads(result.to_json()), schema)
    assert [c.threat_model for c in result.claims] == ["eavesdropper", "agent 2"]
    for claim in result.claims:
        assert all(
            result.findings[i].kind in ("accounting", "control", "sensitivity")
            for i in claim.because
        )
    for finding in result.findings:
        assert all((run / path).exists() for path in finding.artifacts.values())
    found = {(f.message, f.threat_model, f.batch_size, f.world) for f in result.findings}
    for batch_size in (4, 1):
        for world in ("defense", "no-defense", "blind"):
            assert ("cross_gradient", "eavesdropper", batch_size, world) in found
            assert ("cross_gradient", "agent 2", batch_size, world) in found


def test_an_audit_writes_a_page_unless_asked_not_to(folder, home, whole, report) -> None:
    (folder / "audit.toml").write_text(SMALL)
    audited(folder)
    assert (folder / "run" / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert not (home / "whole" / "report.html").exists()


def test_the_schema_in_docs_is_the_one_of_the_models() -> None:
    path = Path(__file__).parents[2] / "docs" / "audit.schema.json"
    schema = AuditResult.model_json_schema(mode="serialization")
    assert json.loads(path.read_text()) == schema, (
        f"write {path.name} anew from AuditResult.model_json_schema"
    )


@pytest.mark.parametrize("graph, links", [("ring", 8), ("complete", 12)])
def test_an_audit_says_how_much_was_sent_until_each_round(folder, graph, links) -> None:
    text = images_audit("logistic", "dp-dpsgd", 3).replace('"ring"', f'"{graph}"')
    (folder / "audit.toml").write_text(text)
    numbers = 8 * 8 * 4 + 4  # of the model: all that an agent sends, on each link
    for curve in audited(folder).utility.values():
        assert curve.messages == (links, 2 * links, 3 * links)
        assert curve.bytes == tuple(4 * numbers * n for n in curve.messages)


def test_an_attack_out_of_an_adversarys_reach_is_said_to_be(whole) -> None:
    curious = [
        f
        for f in whole.findings
        if f.message == "momentum-stripped" and f.threat_model == "agent 2"
    ]
    assert curious
    assert all(not f.metrics and "not available to this adversary" in f.notes[0] for f in curious)


def test_another_seed_gives_other_numbers(home, whole, tmp_path, monkeypatch, no_report) -> None:
    """The same seed gives the same ones, as runs that resume show."""
    monkeypatch.chdir(home)
    config = AuditConfig.from_toml(home / "audit.toml", seed=6)
    config = config.model_copy(update={"attack": (), "claim": ()})
    assert run_audit(config, tmp_path / "c", ONE_CORE, CONFIG).utility != whole.utility


@pytest.mark.slow
def test_two_processes_give_what_one_gives(home, whole, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(home)
    config = AuditConfig.from_toml(home / "audit.toml")
    two = run_audit(config, tmp_path / "b", Runtime(cores=2), CONFIG)
    assert without_timing(two) == without_timing(whole)


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [2, 3, 5, 9, 12])
def test_an_interrupted_audit_resumes_to_the_same_numbers(
    home, whole, tmp_path, stop_at, monkeypatch, no_report
) -> None:
    monkeypatch.setattr("dpaudit.training.checkpoints.SECONDS", 0.0)
    monkeypatch.chdir(home)
    calls = 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audited(home, tmp_path / "run", on_progress=stop)
    seen: list[str] = []
    resumed = audited(
        home, tmp_path / "run", resume=True, on_progress=lambda what, *_: seen.append(what)
    )
    assert without_timing(resumed) == without_timing(whole)
    if stop_at > N_ROUNDS:
        assert "training, defense" not in seen  # done before, not done again


def dpaudit(folder: Path, out: Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dpaudit.commands.cli",
            "audit",
            "audit.toml",
            "--out",
            str(out),
            *arguments,
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(path: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not list(path.parent.glob(path.name)):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_leaves_a_run_that_resumes(folder, stop, no_report) -> None:
    run = folder / "run"
    text = SMALL + "".join(f'[[attack]]\nname = "canaries"\ncanaries = {n}\n' for n in (40, 50))
    (folder / "audit.toml").write_text(text)
    whole = audited(folder, "whole")
    process = dpaudit(folder, run, "--workers", "1")
    wait_for(run / "findings" / "0*.json", process)
    process.send_signal(stop)
    _, error = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if stop == signal.SIGKILL else 130), error
    assert "Traceback" not in error
    assert not (run / "audit.json").exists()
    code, error = said(folder, "--resume", text=text)
    assert code == 1, error
    assert without_timing(AuditResult.read(run / "audit.json")) == without_timing(whole)


@pytest.mark.slow
def test_attacking_again_needs_no_training_and_gives_the_same(folder) -> None:
    first = audited(folder)
    seen: list[str] = []
    again = attack_again(
        folder / "run", ONE_CORE, on_progress=lambda what, done, total: seen.append(what)
    )
    assert not any(what.startswith("training") for what in seen)
    assert again.findings == first.findings
    edited = CONFIG.replace("iterations = 3", 'iterations = 6\nmethod = "optimised"', 1)
    (folder / "run" / "config.toml").write_text(edited)
    assert attack_again(folder / "run", ONE_CORE).findings != first.findings


def test_attacking_again_refuses_what_has_changed(audited_before) -> None:
    folder = audited_before
    config = folder / "run" / "config.toml"
    config.write_text(CONFIG.replace("rounds = [2, 3]", "rounds = [1]"))
    with pytest.raises(DpauditError, match="round 1 .* was not recorded"):
        attack_again(folder / "run", ONE_CORE)
    config.write_text(CONFIG.replace("multiplier = 1.0", "multiplier = 1.1"))
    with pytest.raises(DpauditError, match="defense changed since the run"):
        attack_again(folder / "run", ONE_CORE)
    config.write_text(CONFIG)
    with pytest.raises(DpauditError, match='no attack "gradient-inverson" .did you mean'):
        attack_again(folder / "run", ONE_CORE, ("gradient-inverson",))


def test_a_claim_that_accounting_contradicts_is_unsupported(whole) -> None:
    assert whole.verdict is Verdict.UNSUPPORTED
    assert whole.exit_code == 1
    eavesdropper = whole.claims[0]
    assert eavesdropper.restated.epsilon.low > 0.5


def test_a_generous_claim_that_accounting_settles_is_supported(folder, no_report) -> None:
    (folder / "audit.toml").write_text(
        SMALL.replace('"Theorem 1"\nepsilon = 0.5', '"Theorem 1"\nepsilon = 500.0')
    )
    result = audited(folder)
    assert result.verdict is Verdict.SUPPORTED
    assert result.exit_code == 0


def test_a_claim_about_a_noiseless_run_is_refuted(folder, no_report) -> None:
    (folder / "audit.toml").write_text(SMALL.replace("multiplier = 1.0", "multiplier = 0.0"))
    assert audited(folder).verdict is Verdict.REFUTED


def said(folder: Path, *arguments: str, text: str = CONFIG) -> tuple[int, str]:
    """Exit code of the command in this process, and stderr but for the time that it foretells."""
    (folder / "audit.toml").write_text(text)
    command = ["audit", str(folder / "audit.toml"), "--out", str(folder / "run"), "--workers", "1"]
    result = CliRunner().invoke(app, [*command, *arguments])
    lines = without_help(result.stderr).splitlines(keepends=True)
    return result.exit_code, "".join(line for line in lines if " on 1 core; on one: " not in line)


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("batch_size = 4", "batch_size = 16", "an agent has 15 of the 60 records where 16 are needed"),
        ("targets = 2", "targets = 2\nbatch_sizes = [1, 16]", "attack.batch_sizes: a batch of 16 cannot be drawn, for an agent has 15 records; expected 1 to 15"),
        ('path = "images.npz"', 'path = "absent.npz"', "absent.npz"),
        ('path = "images.npz"', 'name = "mnist"', "--data-root"),
        ('path = "images.npz"', 'path = "corrupt.npz"', "corrupt.npz"),
        ('path = "images.npz"', 'path = "features.npz"', "gradient inversion needs images"),
        ('path = "images.npz"', 'path = "tiny.npz"', "SSIM takes a window of 7 x 7 pixels"),
        ('name = "logistic"', 'name = "mpl"', 'no network is called "mpl" (did you mean "mlp"?)'),
        ('name = "ring"', 'name = "bipartit"', 'did you mean "bipartite"'),
        ('name = "ring"', 'name = "directed-ring"', "Assumption 3"),
        ("multiplier = 1.0", "multiplier = -1.0", "greater than or equal to 0"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(folder, old, new, expected) -> None:
    (folder / "corrupt.npz").write_bytes(b"PK\x03\x04 no zip after all")
    np.savez(folder / "features.npz", x=np.random.rand(60, 9).astype("f4"), y=np.arange(60) % 4)
    images = np.random.default_rng(1).integers(0, 256, (80, 8, 8), dtype=np.uint8)
    np.savez(folder / "tiny.npz", x=images[:, :5, :5], y=np.arange(80) % 4)
    assert old in CONFIG
    code, error = said(folder, text=CONFIG.replace(old, new, 1))
    lines = error.strip().splitlines()
    assert code == 2, error
    assert len(lines) == 1, error
    assert expected in lines[0]
    assert not (folder / "run" / "transcript").exists()  # before anything is trained


def test_an_output_that_cannot_be_written_is_exit_code_2(folder) -> None:
    code, error = said(folder, "--out", str(folder / "audit.toml" / "run"))
    assert (code, error.count("\n")) == (2, 1), error
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("precious")
    code, error = said(folder, "--out", str(folder / "mine"))
    assert code == 2
    assert "not a run of dpaudit" in error
    assert (folder / "mine" / "thesis.txt").read_text() == "precious"


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_nothing_is_half_written(folder, monkeypatch) -> None:
    written = []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > 5:
            raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    code, error = said(folder, text=SMALL)
    assert code == 2
    assert "No space left on device" in error
    assert error.count("\n") == 1
    monkeypatch.undo()
    assert not [p for p in (folder / "run").rglob("*") if p.name.startswith(".")]
    code, error = said(folder, "--resume", text=SMALL)
    assert code == 1, error


def test_resume_refuses_an_empty_folder(folder) -> None:
    code, error = said(folder, "--resume")
    assert code == 2
    assert "nothing to resume" in error


def test_resume_refuses_another_config(audited_before) -> None:
    text = CONFIG.replace("seed = 5", "seed = 6")
    code, error = said(audited_before, "--resume", text=text)
    assert code == 2
    assert (
        "cannot resume: not as in the run that is in it: config.seed, config.data.path\n" in error
    )
