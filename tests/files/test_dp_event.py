"""Releases as events of dp-accounting: what is written there, and read again."""

import json
from pathlib import Path

import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.dp_event import read_event, write_event
from dpaudit.release import Release

WHOLE = Release(family="gaussian", noise_multiplier=2.0, count=3)
POISSON = Release(
    family="laplace", noise_multiplier=1.5, sampling="poisson", sampling_rate=0.25, count=4
)
FIXED = Release(family="gaussian", noise_multiplier=1.0, sampling="fixed", sampling_rate=0.075)


def test_an_event_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_event(path := tmp_path / "event.json", [WHOLE, POISSON, FIXED], records=40)
    assert read_event(path) == [WHOLE, POISSON, FIXED]


def test_a_batch_of_fixed_size_is_a_whole_number_of_records(tmp_path: Path) -> None:
    """0.075 of 41 records are 3.075, which no batch holds."""
    write_event(path := tmp_path / "event.json", [FIXED], records=41)
    (one,) = json.loads(path.read_text())["events"]
    drawn = one["event"]
    assert drawn["class_name"] == "SampledWithoutReplacementDpEvent"
    assert (drawn["sample_size"], drawn["source_dataset_size"]) == (3, 41)
    assert isinstance(drawn["sample_size"], int)
    with pytest.raises(ConfigError, match="a batch of fixed size needs the number of records"):
        write_event(path, [FIXED])


@pytest.mark.parametrize("sampling", ["none", "poisson", "fixed"])
def test_a_batch_of_all_records_is_no_sample(tmp_path: Path, sampling: str) -> None:
    whole = WHOLE.model_copy(update={"sampling": sampling, "sampling_rate": 1.0})
    write_event(path := tmp_path / "event.json", [whole])  # needs no number of records
    (one,) = json.loads(path.read_text())["events"]
    assert one["event"]["class_name"] == "GaussianDpEvent"
    assert one["count"] == 3


def test_a_sample_of_all_records_is_read_as_no_sample(tmp_path: Path) -> None:
    inside = {"class_name": "GaussianDpEvent", "noise_multiplier": 2.0}
    event = {"class_name": "PoissonSampledDpEvent", "sampling_probability": 1, "event": inside}
    (path := tmp_path / "event.json").write_text(json.dumps(event))
    assert read_event(path) == [WHOLE.model_copy(update={"count": 1})]
    half = {**event, "sampling_probability": 0.5}
    path.write_text(json.dumps({**half, "event": half}))
    with pytest.raises(ConfigError, match="a sample of a sample has no release here"):
        read_event(path)
