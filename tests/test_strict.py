"""What every value of an audit file or a plug-in refuses: true as a number, and blank names."""

from typing import Any

import pytest
from pydantic import ValidationError

from dpaudit.files.claim import Claim
from dpaudit.files.config import AuditConfig, DataConfig
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
