"""Values of files on which a verdict or a figure rests, one by one."""

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dpaudit.errors import ConfigError, DataError
from dpaudit.files import score_file
from dpaudit.files.claim import Claim, measured_change
from dpaudit.files.dp_event import read_event, write_event
from dpaudit.files.hint import Hint
from dpaudit.files.local_training import LocalTraining
from dpaudit.files.published import ExperimentLine, ResultTable, ResultTables, limits
from dpaudit.release import Release


def sgd(**more: Any) -> LocalTraining:
    return LocalTraining.model_validate({"optimizer": "sgd", "learning_rate": 0.5, **more})


@pytest.mark.parametrize(
    "momentum, nesterov, reached",
    [
        (0.0, False, 1.5),
        (0.5, False, 0.5 * (1 + 1.5 + 1.75)),
        (0.5, True, 0.5 * (1.5 + 1.75 + 1.875)),
    ],
)
def test_momentum_goes_further_in_three_steps(momentum, nesterov, reached) -> None:
    assert sgd(momentum=momentum, nesterov=nesterov).reach(3) == pytest.approx(reached)
    assert sgd(momentum=momentum, nesterov=nesterov).reach(0) == 0.0


def test_local_training_takes_the_options_of_its_optimizer() -> None:
    assert LocalTraining(optimizer="adamw", learning_rate=0.5).reach(4) == 2.0
    plain = sgd()
    assert (plain.momentum, plain.nesterov, plain.weight_decay) == (0.0, False, 0.0)
    assert (plain.epochs, plain.shuffled, plain.betas, plain.eps) == (1, True, (0.9, 0.999), 1e-8)
    outer = [{}, {"outer_momentum": 0.1}, {"outer_learning_rate": 0.7}]
    assert [sgd(**one).has_outer_step for one in outer] == [False, True, True]
    for wrong in ({"nesterov": True}, {"eps": 1e-3}, {"betas": (0.1, 0.2)}, {"momentum": 1.0}):
        with pytest.raises(ValidationError):
            sgd(**wrong)
    with pytest.raises(ValidationError):
        LocalTraining(optimizer="adamw", learning_rate=0.5, momentum=0.0)


@pytest.mark.parametrize(
    "of, said",
    [
        ({"epsilon": 2.0, "delta": 1e-5}, "(2, 1e-05)-DP for the whole run"),
        ({"epsilon": 2.0}, "pure 2-DP for the whole run"),
        ({"mu": 1.5, "scope": "round"}, "1.5-GDP for each round"),
        ({"epsilon": 2.0, "delta": 0.4999, "scope": "message"}, "(2, 0.4999)-DP for each message"),
    ],
)
def test_a_claim_in_one_line(of: Any, said: str) -> None:
    claim = Claim.model_validate({"text": "c", **of})
    assert claim.sentence() == f"c: {said}, add-remove adjacency"


@pytest.mark.parametrize(
    "of",
    [
        *({}, {"epsilon": 1.0, "mu": 1.0}, {"mu": 1.0, "delta": 1e-5}, {"epsilon": 0.0}),
        *({"epsilon": 1.0, "delta": 0.5}, {"epsilon": 1.0, "delta": -0.1}, {"mu": 1.1e6}),
        {"epsilon": True},
    ],
)
def test_a_claim_that_promises_nothing_is_refused(of: Any) -> None:
    with pytest.raises(ValidationError):
        Claim.model_validate({"text": "c", **of})


def test_a_users_records_are_measured_one_by_one() -> None:
    assert measured_change("user") == "add-remove"
    assert measured_change("replace-one") == "replace-one"


def test_an_event_is_repeated_and_sampled_as_it_is_nested(tmp_path: Path) -> None:
    noise = {"class_name": "GaussianDpEvent", "noise_multiplier": 2.0}
    drawn = {"class_name": "SampledWithoutReplacementDpEvent", "event": noise}
    drawn |= {"sample_size": 30, "source_dataset_size": 120}
    thrice = {"class_name": "SelfComposedDpEvent", "count": 3, "event": drawn}
    both = {
        "class_name": "ComposedDpEvent",
        "events": [thrice, {"class_name": "NoOpDpEvent"}, noise],
    }
    twice = {"class_name": "SelfComposedDpEvent", "count": 2, "event": both}
    (path := tmp_path / "event.json").write_text(json.dumps(twice))
    plain = Release(family="gaussian", noise_multiplier=2.0, count=2)
    sampled = {"sampling": "fixed", "sampling_rate": 0.25, "count": 6}
    assert read_event(path) == [plain.model_copy(update=sampled), plain]


@pytest.mark.parametrize("n, is_read", [(0, False), (1, True), (3, True), (4, False)])
def test_an_event_holds_some_releases(n: int, is_read: bool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.files.dp_event.MOST_EVENTS", 3)
    one = Release(family="gaussian", noise_multiplier=2.0)
    write_event(path := tmp_path / "event.json", [one] * n)
    if is_read:
        assert read_event(path) == [one] * n
        return
    with pytest.raises(ConfigError, match=f"expected 1 to 3 releases, got {n}"):
        read_event(path)


@pytest.mark.parametrize(
    "scores, is_read",
    [
        (np.zeros(2), True),
        (np.zeros(4), True),
        (np.zeros(1), False),
        (np.zeros(5), False),
        (np.zeros((2, 2)), False),
        (np.array([1, -2], "int16"), True),
        (np.array([1, 2], "uint8"), True),
        (np.array([1, 2], "float32"), True),
        (np.array([1, 2], "float16"), False),
        (np.array([1, 2], "longdouble"), False),
        (np.array([True, False]), False),
        (np.array([np.inf, -np.inf]), True),
        (np.array([0.0, np.nan]), False),
    ],
)
def test_scores_are_a_list_of_some_numbers(scores, is_read, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(score_file, "MOST", 4)
    np.save(path := tmp_path / "scores.npy", scores)
    if is_read:
        assert score_file.read_scores(path).tolist() == scores.tolist()
        return
    with pytest.raises(DataError):
        score_file.read_scores(path)


def test_a_place_is_written_as_editors_read_it() -> None:
    assert Hint("a.py", 3, 7, "DPA201", "m").place == "a.py:3:7"
    assert Hint("a.ipynb", 3, 7, "DPA201", "m", 2).place == "a.ipynb:cell 2:3:7"


@pytest.mark.parametrize(
    "quantity, ends",
    [
        ("accuracy, %", (0.0, 100.0)),
        ("loss", (0.0, inf)),
        ("PSNR, dB", (-inf, inf)),
        ("information, %", (-inf, inf)),
    ],
)
def test_a_quantity_has_limits(quantity: str, ends: tuple[float, float]) -> None:
    assert limits(quantity) == ends
    assert ExperimentLine(labels={}, quantity=quantity).interval == "student"


def test_rows_of_tables_have_the_columns_of_all() -> None:
    tables = (
        ResultTable(title="one", columns=("a",), rows=((1.0,), (2.0,))),
        ResultTable(title="two", columns=("b",), rows=(("x",),)),
    )
    assert list(ResultTables(title="t", tables=tables).rows) == [
        {"table": "one", "a": 1.0, "b": None},
        {"table": "one", "a": 2.0, "b": None},
        {"table": "two", "a": None, "b": "x"},
    ]
