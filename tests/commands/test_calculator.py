"""`dpaudit epsilon`, and the same from Python without torch."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dpaudit.accounting import Release, epsilon, gaussian_epsilon
from dpaudit.commands.cli import app
from dpaudit.commands.terminal import answer
from tests.said import without_help


def said(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["epsilon", *arguments])
    return done.exit_code, (done.stdout + without_help(done.stderr)).strip()


def test_an_interval_holds_what_the_library_gives() -> None:
    code, line = said("--noise-multiplier", "1.1", "--rate", "0.01", "--rounds", "1000")
    found = re.fullmatch(
        r"epsilon between (\S+) and (\S+) at delta 1e-05 \(add-remove adjacency, in nats\)", line
    )
    assert (code, bool(found)) == (0, True), line
    release = Release(
        family="gaussian", noise_multiplier=1.1, sampling="poisson", sampling_rate=0.01, count=1000
    )
    low, high = epsilon([release], 1e-5)
    assert float(found[1]) <= low <= high <= float(found[2])
    assert float(found[2]) - float(found[1]) < 0.01


@pytest.mark.parametrize(
    "option, meant",
    [
        ("--sigma", "--noise-multiplier"),
        ("--noise", "--noise-multiplier"),
        ("--noise-multipler", "--noise-multiplier"),
        ("--sampling-rate", "--rate"),
        ("--sample-rate", "--rate"),
        ("--steps", "--rounds"),
        ("--delt", "--delta"),
    ],
)
def test_an_option_by_another_word_is_named(option: str, meant: str, capfd, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dpaudit", "epsilon", option, "1"])
    assert answer(app) == 2
    expected = f'error: No such option: {option} (did you mean "{meant}"?)'
    assert without_help(capfd.readouterr().err) == f"{expected}\n"


def test_whole_batches_have_one_number() -> None:
    code, line = said("--noise-multiplier", "2", "--delta", "1e-6")
    exact = gaussian_epsilon(1e-6, 0.5)
    assert (code, line.split()[1]) == (0, f"{exact:.4g}")
    twice = said("--noise-multiplier", "2", "--delta", "1e-6", "--adjacency", "replace-one")[1]
    assert twice.split()[1] == f"{gaussian_epsilon(1e-6, 1.0):.4g}"


def test_laplace_noise_has_an_epsilon_at_delta_0() -> None:
    line = said("--noise-multiplier", "2", "--family", "laplace", "--delta", "0", "--rounds", "3")
    assert line == (0, "epsilon 1.5 at delta 0 (add-remove adjacency, in nats)")


def test_no_noise_has_none() -> None:
    assert said("--noise-multiplier", "0")[1].startswith("epsilon inf ")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--rate", "2"], "error: --rate: expected above 0 and at most 1, got 2"),
        (["--rate", "nan"], "error: --rate: expected above 0 and at most 1, got nan"),
        (["--rate", "0.5", "--sampling", "none"], "error: --rate: expected 1 with --sampling none"),
        (["--delta", "1"], "error: --delta: expected at least 0 and below 1, got 1"),
        (["--delta", "0"], "error: Gaussian noise has no epsilon at delta = 0"),
        (["--noise-multiplier", "inf"], "error: --noise-multiplier: expected at least 0, got inf"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], expected: str) -> None:
    code, line = said("--noise-multiplier", "1.1", *arguments)
    assert code == 2
    assert line.startswith(expected)
    assert "\n" not in line


def test_accounting_needs_no_torch() -> None:
    code = "import sys, dpaudit.accounting; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
