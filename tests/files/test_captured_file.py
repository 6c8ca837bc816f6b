"""What a captured program's file may say, and how many runs its audit takes at least."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from dpaudit.files.captured_file import CapturedConfig, RecordOptions


def test_the_least_number_of_runs_follows_from_rounds() -> None:
    """Three that share every draw; in each round three for the noise and one for each change."""
    config = CapturedConfig.model_validate(
        {"program": {"command": ["a"]}, "record": {"rounds": [1, 4], "candidates": ["scaled"]}}
    )
    assert config.least_runs == 3 + 2 * (3 + 1)
    assert config.attack_runs == 0


@pytest.mark.parametrize(
    "twice", [{"victims": (0, 0)}, {"rounds": (2, 2)}, {"candidates": ("scaled", "scaled")}]
)
def test_a_victim_round_or_candidate_is_named_once(twice) -> None:
    with pytest.raises(ValidationError, match="names one twice"):
        RecordOptions(**twice)


def test_folder_and_interpreter_are_relative_to_the_file(tmp_path: Path) -> None:
    program = {"command": ["a"], "folder": "there", "python": "venv/bin/python"}
    read = CapturedConfig.from_table({"program": program}, tmp_path / "audit.toml", "").program
    assert read.folder == (tmp_path / "there").resolve()
    assert read.python == tmp_path / "venv" / "bin" / "python"


INVERSION = {"name": "gradient-inversion", "message": "x", "model": "net:Net"}


def test_inversion_runs_each_round_with_its_noise_and_without() -> None:
    content = {"program": {"command": ["a"]}, "record": {"rounds": [1, 4, 5]}}
    config = CapturedConfig.model_validate({**content, "attack": [INVERSION, INVERSION]})
    assert config.attack_runs == 2 * 2 * 3


def test_a_range_of_pixels_rises() -> None:
    program = {"command": ["a"]}
    for wrong in ((1.0, 1.0), (1.0, 0.0)):
        attack = {**INVERSION, "value_range": wrong}
        with pytest.raises(ValidationError, match="the lowest value of a pixel, then the highest"):
            CapturedConfig.model_validate({"program": program, "attack": [attack]})
    both = {**INVERSION, "weights": "w.safetensors", "weights_message": "w"}
    with pytest.raises(ValidationError, match="give weights or weights_message, or neither"):
        CapturedConfig.model_validate({"program": program, "attack": [both]})


def test_a_seed_stands_in_for_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text('seed = 5\n[program]\ncommand = ["a"]\n')
    assert CapturedConfig.from_toml(path).seed == 5
    assert CapturedConfig.from_toml(path, seed=7).seed == 7
    assert CapturedConfig.from_toml(path, seed=0).seed == 0
