"""dpaudit mechanism, the file that it leaves, and the pytest fixture."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.mechanism_file import MechanismConfig
from dpaudit.files.result import AuditResult
from dpaudit.mechanism import rare_outputs, search

pytest_plugins = ["pytester"]
OURS = """
import numpy as np

def noised(x):
    return x / max(1.0, np.linalg.norm(x)) + np.random.normal(0, 4.0, x.shape)
"""
CLAIM = ("--epsilon", "3", "--delta", "1e-5", "--quiet")
TESTS = """
import pytest
from ours import noised

def test_generous(mechanism_audit):
    mechanism_audit(noised, epsilon=3, delta=1e-5, shape=(4,), runs=200).assert_supported()

def test_bold(mechanism_audit):
    mechanism_audit(noised, epsilon=0.1, delta=1e-5, shape=(4,), runs=200).assert_not_refuted()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ours.py").write_text(OURS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        rare_outputs, "MOST_NUMBERS", 2 * 10**5
    )  # of its noise and clip, few show all
    monkeypatch.setattr(search, "DRAWN", (20, 40))
    return tmp_path


def test_the_command_leaves_a_run_that_audit_repeats(folder: Path) -> None:
    arguments = ["mechanism", "ours.py:noised", *CLAIM, "--shape", "2,2", "--runs", "200"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    config = MechanismConfig.from_toml(folder / "runs" / "noised" / "config.toml")
    assert (config.mechanism.shape, config.mechanism.runs) == ((2, 2), 200)
    first = AuditResult.read(folder / "runs" / "noised" / "audit.json")
    assert config.model_dump(mode="json") == first.config
    again = CliRunner().invoke(app, ["audit", "runs/noised/config.toml", "--out", "again", "-q"])
    assert again.exit_code == 0, again.output
    second = AuditResult.read(folder / "again" / "audit.json")
    assert (second.claims, second.findings) == (first.claims, first.findings)
    assert "replaces" not in done.stderr + again.stderr


def test_an_audit_of_another_claim_is_replaced_aloud(folder: Path) -> None:
    arguments = ["mechanism", "ours.py:noised", "--shape", "3", "--runs", "200", "--quiet"]
    for epsilon in ("3", "2"):
        done = CliRunner().invoke(app, [*arguments, "--epsilon", epsilon, "--delta", "1e-5"])
        said = "runs/noised: replaces the audit in it, of another config: claim[1].epsilon\n"
        assert (said in done.stderr) == (epsilon == "2")
    other = "runs/noised/config.toml"
    Path("other.toml").write_text(Path(other).read_text().replace("seed = 0", "seed = 1"))
    done = CliRunner().invoke(app, ["audit", "other.toml", "--out", "runs/noised", "--quiet"])
    assert "runs/noised: replaces the audit in it, of another config: seed\n" in done.stderr


def test_what_a_function_prints_is_not_in_the_json(folder: Path) -> None:
    loud = OURS.replace("    return", "    print('from the function')\n    return")
    (folder / "loud.py").write_text("print('from the module')\n" + loud)
    arguments = ["mechanism", "loud.py:noised", *CLAIM, "--shape", "2", "--runs", "200", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert json.loads(done.stdout)["verdict"] == "supported"
    for text in ("from the function", "from the module"):
        assert f"{text}\n" in done.stderr
    again = CliRunner().invoke(app, ["audit", "runs/noised/config.toml", "--json", "--quiet"])
    assert json.loads(again.stdout)["verdict"] == "supported"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["ours.py:missing", "--shape", "4"], "error[DPA074]"),
        (["ours.py:noised", "--shape", "four"], "error[DPA014]: --shape: expected numbers"),
        (["ours.py:noised", "--shape", "4", "--sensitivity", "-1"], "error[DPA004]"),
        (["ours.py:noised", "--shape", "4", "--output-shape", "5"], "error[DPA075]"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, arguments, said: str) -> None:
    done = CliRunner().invoke(app, ["mechanism", *arguments, *CLAIM])
    assert done.exit_code == 2
    [line, advice] = done.stderr.splitlines()
    assert line.startswith(said)
    assert advice.startswith("help: ")


@pytest.mark.slow
def test_the_fixture_asserts_and_reports(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ours=OURS, test_ours=TESTS)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*privacy audits*", "*test_bold*UNSUPPORTED*"])


@pytest.mark.slow
def test_a_claims_file_checks_a_function_and_sees_its_change(folder: Path) -> None:
    arguments = ["mechanism", "ours:noised", *CLAIM, "--shape", "4", "--runs", "200"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (folder / "runs" / "noised" / "config.toml").rename(folder / "noise.toml")
    (folder / "claims.toml").write_text(
        'import_from = "."\n[[check]]\nname = "noise"\naudit = "noise.toml"\n'
    )
    for source, code in ((OURS, 0), (OURS.replace("4.0", "0.1"), 1)):
        (folder / "ours.py").write_text(source)
        done = CliRunner().invoke(app, ["check", "claims.toml", "-q"])
        assert done.exit_code == code, done.output
