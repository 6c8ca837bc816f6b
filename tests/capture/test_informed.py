"""M-NMI and likelihood ratios on the messages of a program, beside what its noise lets through."""

from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.errors import DpauditError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.information.capacity import of_bit_in_gaussian

PROGRAMS = Path(__file__).parent / "programs"
CLAIM = {"text": "a round", "mu": 1.0, "scope": "round"}


def audited(
    out: Path, fault: str, *attacks: dict[str, Any], runs: int = 24, **parts: Any
) -> AuditResult:
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "gossip.py", fault), "folder": PROGRAMS},
            "record": {"victims": (0, 1), "candidates": ("present", "scaled")},
            "certify": {"runs": runs},
            "claim": (CLAIM,),
            "attack": attacks,
            **parts,
        }
    )
    return run_captured(config, out, cores=1)


def of(result: AuditResult, role: Role) -> list[Finding]:
    return [finding for finding in result.findings if finding.role is role]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "mu"), [("none", 1.0), ("halved", 2.0)])
def test_the_information_lies_where_the_noise_puts_it(
    tmp_path: Path, fault: str, mu: float
) -> None:
    """Fixed seeds; over fresh ones the interval misses the truth in at most 5% of victims."""
    attack = {"name": "mutual-information"}
    found = of(audited(tmp_path, fault, attack, runs=300), Role.INFORMATION)
    for agent, finding in enumerate(found):
        assert f"the record of agent {agent}: absent, or" in finding.title
        assert finding.rounds == (1,)
        bits, limit = finding.metrics[Name.INFORMATION], finding.metrics[Name.CAPACITY_FOR_PRESENCE]
        assert limit.value == pytest.approx(of_bit_in_gaussian(mu), abs=1e-3)
        assert (bits.low or 0) < limit.value < (bits.high or 0)
        assert finding.metrics[Name.P_VALUE].value <= 0.05
        itself = finding.metrics[Name.SELF_INFORMATION].value  # of a fair bit, estimated
        assert itself == pytest.approx(1.0, abs=0.2)
        assert finding.metrics[Name.M_NMI].value == pytest.approx(bits.value / itself)


@pytest.mark.slow
def test_attacks_on_a_message_say_what_it_reveals_of_the_record(tmp_path: Path) -> None:
    """The message without noise reveals all of a fair bit; the other one what its noise lets through.

    The likelihood ratio of all messages is there without being asked for; on one message alone it
    is a test of its own.
    """
    attacks = [
        {"name": name, "message": message}
        for name in ("mutual-information", "likelihood-ratio")
        for message in ("bare", "x")
    ]
    result = audited(tmp_path, "one-link", *attacks, record={"candidates": ("present", "scaled")})
    bare, hidden = of(result, Role.INFORMATION)
    assert (bare.message, hidden.message) == ("bare", "x")
    assert (bare.metrics[Name.INFORMATION].low or 0) > 0.5
    assert Name.CAPACITY_FOR_PRESENCE not in bare.metrics
    assert hidden.metrics[Name.INFORMATION].value < 0.5
    tests = {
        test.message: test.metrics[Name.MU_LOWER_BOUND].value for test in of(result, Role.TEST)
    }
    assert set(tests) == {None, "bare", "x"}
    assert tests["bare"] == tests[None] > 1 > tests["x"]


@pytest.mark.slow
def test_a_message_that_nobody_sends_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DpauditError) as error:
        audited(tmp_path, "one-link", {"name": "likelihood-ratio", "message": "bear"}, runs=8)
    assert str(error.value) == (
        'attack[1].message: no victim sends "bear" in round 1 (did you mean "bare"?); sent are '
        "x, bare"
    )


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ('name = "mutual-informaton"', '"mutual-informaton" is not known (did you mean "mutual-'),
        ('name = "mutual-information"\nmesage = "x"', 'unknown key (did you mean "message"?)'),
        ('name = "likelihood-ratio"', "attack[1].message: Field required"),
        (
            'name = "gradient-inversion"\nmessage = "x"\nmodel = "Net"',
            "attack[1].model: String should match pattern",
        ),
        (
            'name = "gradient-inversion"\nmessage = "x"\nmodel = "a:b"\n'
            'weights = "a"\nweights_message = "b"',
            "give weights or weights_message",
        ),
        (
            'name = "gradient-inversion"\nmessage = "x"\nmodel = "a:b"\n'
            "options = { iteration = 5 }",
            'attack[1].options.iteration: unknown key (did you mean "iterations"?)',
        ),
        (
            'name = "gradient-inversion"\nmessage = "x"\nmodel = "a:b"\nvalue_range = [1, 0]',
            "value_range: expected the lowest value",
        ),
    ],
)
def test_keys_are_checked(tmp_path: Path, attack: str, said: str) -> None:
    path = tmp_path / "captured.toml"
    path.write_text(f'[program]\ncommand = ["python", "a.py"]\n[[attack]]\n{attack}\n')
    with pytest.raises(DpauditError) as error:
        CapturedConfig.from_toml(path)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{path}:")


def test_what_is_made_from_short_runs_needs_some(tmp_path: Path) -> None:
    path = tmp_path / "captured.toml"
    path.write_text(
        '[program]\ncommand = ["python", "a.py"]\n[certify]\nruns = 0\n'
        '[[attack]]\nname = "mutual-information"\n'
    )
    with pytest.raises(DpauditError, match=r"is made from short runs; expected certify\.runs"):
        CapturedConfig.from_toml(path)
