"""`dpaudit epsilon`, and the same from Python without torch."""

import json
import re
import subprocess
import sys

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from typer.testing import CliRunner

from dpaudit.accounting import Release, epsilon, gaussian_epsilon, gaussian_mu
from dpaudit.commands import calculator
from dpaudit.commands.cli import app
from dpaudit.commands.terminal import answer
from tests.said import without_help


def said(*arguments: str) -> tuple[int, str]:
    """The exit code, and the lines without the last one, which says what was assumed."""
    code, lines = printed(*arguments)
    if code == 0:
        assert lines[-1].startswith("assuming ")
    return code, "\n".join(lines[:-1] if code == 0 else lines)


def printed(*arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["epsilon", *arguments])
    return done.exit_code, (done.stdout + without_help(done.stderr)).strip().split("\n")


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
        (["--rate", "600/60"], "error: --rate: expected above 0 and at most 1, got 10"),
        (["--rate", "2"], "error: --rate: expected above 0 and at most 1, got 2"),
        (["--rate", "nan"], "error: --rate: expected above 0 and at most 1, got nan"),
        (["--rate", "0.5", "--sampling", "none"], "error: --rate: expected 1 with --sampling none"),
        (["--delta", "1"], "error: --delta: expected at least 0 and below 1, got 1"),
        (["--delta", "0"], "error: Gaussian noise has no epsilon at delta = 0"),
        (
            ["--noise-multiplier", "inf"],
            "error: --noise-multiplier: expected a finite number, 0 or more, got inf",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], expected: str) -> None:
    code, line = said("--noise-multiplier", "1.1", *arguments)
    assert code == 2
    assert line.startswith(expected)
    assert "\n" not in line


def test_a_rate_may_be_a_fraction() -> None:
    assert calculator._share("256/60000") == 256 / 60000
    assert [calculator._share(given) for given in (1.0, "0.25", "1e-2")] == [1.0, 0.25, 0.01]
    for wrong in ("1/0", "6/", "a/2", "1/2/3", ""):
        with pytest.raises(ValueError, match="expected a number, or one over another, got "):
            calculator._share(wrong)


def test_accounting_needs_no_torch() -> None:
    code = "import sys, dpaudit.accounting; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_was_assumed_is_said() -> None:
    _, lines = printed("--noise-multiplier", "1.1", "--rate", "0.5", "--rounds", "1e1")
    for part in ("probability 0.5 (Poisson)", "Gaussian noise of 1.1 times", "each of 10 rounds"):
        assert part in lines[-1]
    fixed = printed("--noise-multiplier", "1.1", "--rate", "0.5", "--sampling", "fixed")[1][-1]
    assert "batches of a fixed share of 0.5" in fixed


@pytest.mark.parametrize("family, delta", [("gaussian", "1e-6"), ("laplace", "0")])
def test_a_noise_multiplier_is_solved_for(family: str, delta: str) -> None:
    arguments = ("--family", family, "--delta", delta, "--rounds", "4")
    first, second = said("--target-epsilon", "2", *arguments)[1].splitlines()
    noise = float(re.fullmatch(r"noise multiplier (\S+) for epsilon 2:", first)[1])
    exact = 2 / gaussian_mu(2.0, 1e-6) if family == "gaussian" else 4 / 2.0
    assert exact * (1 - 1e-5) <= noise <= exact * (1 + 3e-5)
    assert 1.999 <= float(second.split()[1]) <= 2


def test_an_epsilon_that_less_noise_would_give_is_refused() -> None:
    code, line = said("--family", "laplace", "--delta", "0", "--target-epsilon", "1e9")
    assert (code, "a noise multiplier of 0.001 gives less than 1e+09 already" in line) == (2, True)


def test_several_numbers_of_rounds_are_a_table() -> None:
    lines = said("--noise-multiplier", "2", "--rounds", "1,1e2")[1].splitlines()
    expected = [f"{gaussian_epsilon(1e-5, 0.5 * n**0.5):.4g}" for n in (1, 100)]
    assert [line.split()[1] for line in lines] == expected
    assert lines[1].endswith("after 100 rounds")


@pytest.mark.parametrize("rounds", ["0", "1.5", "many", "1e9", "", "nan"])
def test_a_number_of_rounds_that_cannot_be_meant(rounds: str) -> None:
    code, line = said("--noise-multiplier", "2", "--rounds", rounds)
    assert (code, line.startswith("error: --rounds: expected whole numbers")) == (2, True)


def test_the_formula_of_p2pfl_claims_less_than_its_noise_gives() -> None:
    """Issue 39: C sqrt(2 ln(1.25 / delta)) / 3 is 1.6149 C, at distance 2 C epsilon 5.618."""
    arguments = ("--noise-multiplier", "1.61493", "--adjacency", "replace-one", "--like", "p2pfl")
    first, second = said(*arguments)[1].splitlines()
    assert first.split()[1] == "5.618"
    assert second == "p2pfl claims epsilon 3, by its formula for one call: less"


def as_event(content: dict):
    """The same as dp-accounting makes of it."""
    fields = {k: as_event(v) if isinstance(v, dict) else v for k, v in content.items()}
    fields = {k: [as_event(x) for x in v] if isinstance(v, list) else v for k, v in fields.items()}
    del fields["module_name"]
    return getattr(dp_event, fields.pop("class_name"))(**fields)


def test_an_event_is_the_one_of_dp_accounting(tmp_path) -> None:
    file = tmp_path / "event.json"
    arguments = ("--rate", "0.1", "--rounds", "50", "--write-event", str(file))
    ours = said("--noise-multiplier", "1.5", *arguments)[1]
    accountant = pld_privacy_accountant.PLDAccountant()
    accountant.compose(as_event(json.loads(file.read_text())))
    low, high = (float(x) for x in re.findall(r"\d\.\d+", ours)[:2])
    assert low * 0.999 <= accountant.get_epsilon(1e-5) <= high * 1.001
    assert said("--event", str(file))[1] == ours


@pytest.mark.parametrize(
    "content, expected",
    [
        ("{}", "it lacks 'class_name'"),
        ("[]", "not a DpEvent"),
        ('{"class_name": "ZCDpEvent", "rho": 1}', "ZCDpEvent has no release here"),
        (
            '{"class_name": "GaussianDpEvent", "noise_multiplier": -1}',
            "not a DpEvent: noise_multiplier: Input should be greater",
        ),
        ('{"class_name": "NoOpDpEvent"}', "expected 1 to 10,000 releases, got 0"),
    ],
)
def test_an_event_that_is_none_is_refused(content: str, expected: str, tmp_path) -> None:
    file = tmp_path / "event.json"
    file.write_text(content)
    code, line = said("--event", str(file))
    assert code == 2
    assert expected in line
    assert "\n" not in line


@pytest.mark.parametrize("arguments", [(), ("--noise-multiplier", "1", "--target-epsilon", "1")])
def test_one_of_noise_target_and_event_is_given(arguments) -> None:
    code, line = said(*arguments)
    assert code == 2
    assert line == "error: expected exactly one of --noise-multiplier, --target-epsilon and --event"
