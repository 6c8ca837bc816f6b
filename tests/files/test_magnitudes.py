"""Numbers that cannot be meant are refused by key, before anything is computed with them."""

import re
from pathlib import Path

import pytest

from dpaudit.commands.starter import starter
from dpaudit.errors import ConfigError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.config import AuditConfig, extreme_numbers
from dpaudit.files.mechanism_file import MechanismConfig

EXTREMES = ("1e300", "1e308", "1e-320", "5e-324", "-1e308", "inf", "nan", "9" * 400)
NUMERIC = re.findall(r"^(\w+) = [\d.]", starter("dpdl"), re.MULTILINE)


@pytest.mark.parametrize("key", sorted(set(NUMERIC) | {"mu"}))
def test_extreme_numbers_are_refused_in_every_numeric_key(key: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    whole = starter("dpdl")
    claim = whole.replace("epsilon = 0.5\ndelta = 1e-5\nscope", "mu = 0.5\nscope")
    text = claim if key == "mu" else whole
    for extreme in EXTREMES:
        path.write_text(re.sub(rf"(?m)^{key} = [\d.e-]+", f"{key} = {extreme}", text, count=1))
        with pytest.raises(ConfigError) as refused:
            AuditConfig.from_toml(path)
        assert all(len(line) < 500 for line in str(refused.value).splitlines())


def test_the_range_is_said_and_a_seed_has_none(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(starter("dpdl").replace("clip_norm = 2.0", "clip_norm = 1e300"))
    with pytest.raises(ConfigError, match=r"clip_norm: expected 0 or a number of size 1e-100 to"):
        AuditConfig.from_toml(path)
    path.write_text(starter("dpdl").replace("n_rounds = 60", "n_rounds = 1000001"))
    with pytest.raises(ConfigError, match=r"n_rounds: expected an integer of at most 1,000,000"):
        AuditConfig.from_toml(path)
    path.write_text(starter("dpdl").replace("seed = 7", f"seed = {2**63 - 1}"))
    assert AuditConfig.from_toml(path).seed == 2**63 - 1


@pytest.mark.parametrize("number", ["nan", "1e-300", "-1e300"])
def test_a_number_that_is_wrong_twice_is_refused_once(number: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(starter("dpdl").replace("clip_norm = 2.0", f"clip_norm = {number}"))
    with pytest.raises(ConfigError) as refused:
        AuditConfig.from_toml(path)
    assert [one.text.count("clip_norm") for one in refused.value.problems] == [1]


PROGRAM = '[program]\ncommand = ["python", "train.py"]\n'
FUNCTION = '[mechanism]\nfunction = "a:b"\nshape = [3]\n'


@pytest.mark.parametrize("config, table", [(CapturedConfig, PROGRAM), (MechanismConfig, FUNCTION)])
@pytest.mark.parametrize("number", ["1e300", "1e-300"])
def test_extreme_claims_on_foreign_code_are_refused(config, table, number, tmp_path: Path) -> None:
    path, claim = tmp_path / "audit.toml", '[[claim]]\ntext = "ours"\nepsilon = '
    path.write_text(f"{table}{claim}1.0\ndelta = 1e-5\n")
    assert config.from_toml(path).claim[0].epsilon == 1.0
    path.write_text(f"{table}{claim}{number}\ndelta = 1e-5\n")
    with pytest.raises(ConfigError, match=r"claim\[1\].epsilon: expected 0 or a number of size"):
        config.from_toml(path)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_ends_of_the_range_are_in_it(sign: int) -> None:
    largest = 10**9
    good = {"a": [1e-100, 1e100, 0.0, largest, True], "n_rounds": 10**6, "seed": 10**300}
    wrong = {"a": [0.9e-100, 1.1e100, largest + 1], "n_rounds": 10**6 + 1}
    signed = lambda table: {  # noqa: E731
        "a": [sign * value for value in table["a"]], "n_rounds": sign * table["n_rounds"]
    }  # fmt: skip
    assert list(extreme_numbers({**good, **signed(good)})) == []
    at = [at for at, _ in extreme_numbers({"claim": signed(wrong)})]
    assert at == [("claim", "a", 0), ("claim", "a", 1), ("claim", "a", 2), ("claim", "n_rounds")]
