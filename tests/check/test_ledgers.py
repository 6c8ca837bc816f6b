"""Ledgers in a claims file: declared releases beside a claim, in every output and the baseline."""

import json
from math import exp, sqrt
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scipy.optimize import brentq
from scipy.special import ndtr
from typer.testing import CliRunner

from dpaudit import ledger
from dpaudit.commands.cli import app
from tests.said import without_help

CLAIM = '[[ledger]]\nname = "loop"\nfile = "ledger.jsonl"\nepsilon = {}\ndelta = 1e-5\n'


def check(folder: Path, *arguments: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(app, ["check", "claims.toml", *arguments])
    return done.exit_code, done.stdout, without_help(done.stderr)


def claimed(folder: Path, epsilon: float, more: str = "") -> None:
    (folder / "claims.toml").write_text(CLAIM.format(epsilon) + more)


@pytest.fixture
def budget(tmp_path: Path) -> ledger.Ledger:
    """40 Gaussian releases of noise 20: mu is sqrt(40) / 20."""
    found = ledger.open(tmp_path / "ledger.jsonl", epsilon=2.0, delta=1e-5)
    found.release(ledger.gaussian(20.0), count=40)
    return found


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang 2018, equation 6."""

    def excess(epsilon: float) -> float:
        return ndtr(mu / 2 - epsilon / mu) - exp(epsilon) * ndtr(-mu / 2 - epsilon / mu) - delta

    return float(brentq(excess, 0, 50))


def test_a_ledger_is_held_against_a_claim(tmp_path, budget) -> None:
    truth = gaussian_epsilon(sqrt(40) / 20, 1e-5)
    claimed(tmp_path, 2.0)
    code, out, _ = check(tmp_path)
    assert code == 0
    assert f"40 declared releases add up to epsilon {truth:.4g} at delta 1e-05, at most 2" in out
    assert "no audit examined it" in out
    claimed(tmp_path, truth * 0.999)
    code, out, _ = check(tmp_path)
    assert (code, "[DPA143]" in out, "FAILS" in out) == (1, True, True)


def test_a_budget_beyond_the_claim_is_a_warning(tmp_path, budget) -> None:
    claimed(tmp_path, 1.9)
    code, out, _ = check(tmp_path)
    assert (code, "[DPA144]" in out, "decided when to stop" in out) == (0, True, True)
    assert check(tmp_path, "--strict")[0] == 1


def test_other_neighbours_than_those_claimed_fail(tmp_path, budget) -> None:
    claimed(tmp_path, 2.0, 'adjacency = "replace-one"\n')
    code, out, _ = check(tmp_path)
    assert (code, "its neighbours are those of add-remove" in out) == (1, True)


def test_a_ledger_is_in_every_output(tmp_path, budget) -> None:
    claimed(tmp_path, 1.0)
    outputs = ["--junit", "j.xml", "--sarif", "s.sarif", "--markdown", "m.md"]
    assert check(tmp_path, *outputs)[0] == 1
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("name"), suite.get("failures")) == ("loop", "1")
    (result,) = json.loads((tmp_path / "s.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "DPA143"
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    summary = (tmp_path / "m.md").read_text()
    assert "1 of 1 statements fail" in summary
    assert "| declared epsilon |" in summary


def test_more_releases_than_in_the_baseline_are_worse(tmp_path, budget) -> None:
    claimed(tmp_path, 2.0)
    assert check(tmp_path, "--update-baseline")[0] == 0
    assert check(tmp_path)[0] == 0
    budget.release(ledger.gaussian(20.0))
    code, out, _ = check(tmp_path)
    assert (code, "it got worse" in out, "[DPA132]" in out) == (1, True, True)
    claimed(tmp_path, 2.1)
    code, _, error = check(tmp_path)
    assert (code, "was made from another config" in error) == (2, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, 'there is no file "ledger.jsonl"'),
        ("{}\n", "ledger.jsonl:1: not a line of a ledger"),
        ("", "ledger.jsonl:1: not a line of a ledger"),
    ],
)
def test_a_ledger_that_cannot_be_read_is_one_line(tmp_path, content, said) -> None:
    claimed(tmp_path, 2.0)
    if content is not None:
        (tmp_path / "ledger.jsonl").write_text(content)
    code, out, error = check(tmp_path)
    assert (code, out) == (2, "")
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_claims_file_needs_a_check_or_a_ledger(tmp_path) -> None:
    (tmp_path / "claims.toml").write_text("")
    code, _, error = check(tmp_path)
    assert (code, "expected at least one [[check]] or [[ledger]]" in error) == (2, True)
