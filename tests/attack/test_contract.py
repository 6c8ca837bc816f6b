"""Names of the contract that changed: the old one names the new one."""

import pytest

from dpaudit.attack import Attack
from dpaudit.errors import ConfigError


@pytest.mark.parametrize(
    ("old", "new"),
    [("Bench", "AttackContext"), ("Kept", "Checkpoint"), ("Misfit", "InvalidOption")],
)
def test_an_import_of_a_renamed_class_names_the_new_one(old: str, new: str) -> None:
    with pytest.raises(ImportError, match=f"dpaudit.attack.{old} is now dpaudit.attack.{new}"):
        exec(f"from dpaudit.attack import {old}")


def test_a_renamed_hook_names_the_new_one() -> None:
    with pytest.raises(ConfigError, match="Old.misfits is now called validate_options"):
        type("Old", (Attack,), {"misfits": lambda self, n_rounds, n_agents: ()})
