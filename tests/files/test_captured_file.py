"""How many runs of a program its audit takes at least."""

from dpaudit.files.captured_file import CapturedConfig


def test_the_least_number_of_runs_follows_from_rounds_and_changes() -> None:
    """Three that share every draw; in each round three for the noise and one for each change."""
    config = CapturedConfig.model_validate(
        {"program": {"command": ["a"]}, "record": {"rounds": [1, 4], "candidates": ["scaled"]}}
    )
    assert config.least_runs == 3 + 2 * (3 + 1)
    assert config.attack_runs == 0
