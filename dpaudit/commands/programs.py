"""dpaudit audit of a program that was not written for dpaudit."""

from collections.abc import Mapping
from pathlib import Path

from dpaudit.errors import ConfigError
from dpaudit.files.captured_file import CapturedConfig

from .terminal import say


def print_runs(config: CapturedConfig) -> None:
    """How often an audit runs its program."""
    say(
        f"{config.least_runs} runs of the program, and 3 more in each of "
        f"{len(config.record.rounds)} rounds for each further draw of noise; "
        f"{config.certify.runs} short runs, and {config.attack_runs} for attacks"
    )


def refuse_options(config_file: Path, given: Mapping[str, bool]) -> None:
    """Raises ConfigError for an option that was given, and that a program cannot be told."""
    for option in (option for option, is_given in given.items() if is_given):
        raise ConfigError(
            "DPA013",
            f"{option}: {config_file} audits a program, which does as its command says; "
            f"leave {option} out",
        )
