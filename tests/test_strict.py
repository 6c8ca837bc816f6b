"""What every value of an audit file or a plug-in refuses: words as numbers, and blank names."""

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dpaudit.commands.starter import starter
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.claims_file import Threshold
from dpaudit.files.config import AuditConfig, DataConfig
from dpaudit.files.finding import Metric
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.registry import load_plugin


@pytest.mark.parametrize(
    "name, options",
    [
        ("dp-dpsgd", {"noise_multiplier": True}),
        ("dp-dpsgd", {"noise_multiplier": 1.0, "n_rounds": True}),
        ("dp-dpsgd", {"epsilon": True}),
        ("adp-vrsgp", {"noise_multipliers": [1.0, True]}),
        ("adp-vrsgp", {"epsilon": 1.0, "tau": True}),
    ],
)
def test_true_is_no_number_in_a_plug_in(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="valid (number|integer)") as refusal:
        load_plugin("defenses", name)(**options)
    assert refusal.value.errors()[0]["loc"][0] == next(reversed(options))


@pytest.mark.parametrize(
    "family, name, options",
    [
        ("defenses", "dp-dpsgd", {"epsilon": "0.5"}),
        ("defenses", "dp-dpsgd", {"epsilon": 1.0, "delta": "1e-5"}),
        ("defenses", "dp-dpsgd", {"epsilon": 1.0, "n_rounds": "10"}),
        ("defenses", "dp-dpsgd", {"epsilon": 1.0, "allow_outside_theory": "yes"}),
        ("defenses", "adp-vrsgp", {"epsilon": [1.0, "2"]}),
        ("defenses", "adp-vrsgp", {"epsilon": 1.0, "tau": "5"}),
        ("attacks", "gradient-inversion", {"message": "x", "rounds": ["5"]}),
        ("attacks", "gradient-inversion", {"message": "x", "rounds": [5], "batch_sizes": ["4"]}),
    ],
)
def test_a_text_is_no_number_in_a_plug_in(family: Any, name: str, options: Any) -> None:
    with pytest.raises(ValidationError, match="valid (number|integer|boolean)") as refusal:
        load_plugin(family, name)(**options)
    assert refusal.value.errors()[0]["loc"][0] == next(reversed(options))


@pytest.mark.parametrize("number", ['"2.0"', '" 2"', '"٢"', '"1e1"', '"inf"'])
def test_a_text_for_a_number_is_one_located_line(number: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(starter("dpdl").replace("clip_norm = 2.0", f"clip_norm = {number}"))
    line = path.read_text().split("\n").index(f"clip_norm = {number}") + 1
    with pytest.raises(ConfigError) as refused:
        AuditConfig.from_toml(path)
    [problem] = refused.value.problems
    shown = number.replace('"', "'")
    assert problem.code == "DPA003"
    said = f"{path}:{line}: defense.clip_norm: Input should be a valid number, got {shown}"
    assert problem.text == said


def test_words_stay_where_they_belong() -> None:
    inversion = load_plugin("attacks", "gradient-inversion")
    assert inversion(message="x", rounds=[5], batch_sizes=["training", 4]).rounds == (5,)
    assert load_plugin("defenses", "adp-vrsgp")(epsilon=1, tau="remark-1").tau == "remark-1"
    assert Threshold(metric="psnr", at_most="claim").at_most == "claim"
    assert Metric.model_validate({"value": "inf", "low": "-inf", "high": "nan"}).value == math.inf
    assert DataConfig(path="5").path == Path("5")  # type: ignore[arg-type]


def test_true_is_no_number_in_an_audit_file() -> None:
    with pytest.raises(ValidationError, match="valid (number|integer)"):
        DataConfig(name="digits", n_agents=True)
    table = {"data": {"name": "digits"}, "graph": {"name": "ring"}, "defense": {"name": "dpsgd"}}
    with pytest.raises(ValidationError, match="valid (number|integer)"):
        AuditConfig.model_validate({**table, "seed": True})


def test_an_integer_is_a_number_and_true_is_true() -> None:
    made = load_plugin("defenses", "dp-dpsgd")(noise_multiplier=1, allow_outside_theory=True)
    assert (made.noise_multiplier, made.allow_outside_theory) == (1.0, True)
    assert graph_options("ring", lazy=True).lazy


@pytest.mark.parametrize("blank", [" ", "\t\n", "\u200b", "\u00a0 "])
def test_names_and_texts_that_show_nothing_are_refused(blank: str) -> None:
    with pytest.raises(ValidationError, match="shows nothing"):
        ThreatModel(name=blank)
    with pytest.raises(ValidationError, match="shows nothing"):
        Claim(text=blank, epsilon=1.0)


def test_long_names_are_bounded_and_stay_apart() -> None:
    for letter in "a\u4e2d":
        one, other = (ThreatModel(name=letter * 300 + end).slug for end in "12")
        assert one != other
        assert max(len(one.encode()), len(other.encode())) < 150
    assert ThreatModel(name="agent 3, of ten").slug == "agent-3--of-ten"
