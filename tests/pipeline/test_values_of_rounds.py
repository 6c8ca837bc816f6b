"""Values of what is played again, of noise that is examined and of what is counted, by hand."""

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.files.finding import Name
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline import batch_rate, costs, noise_law, processes, replay
from dpaudit.pipeline.judge import judge
from dpaudit.pipeline.noise_of_the_run import (
    DIFFERENT,
    DRAWN,
    ROUNDS,
    NoiseTest,
    _finding,
    _Layers,
    _least,
    _ranges,
    examined_rounds,
    n_examined,
)
from dpaudit.pipeline.rules import Judging
from dpaudit.release import Release
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import clopper_pearson
from tests.pipeline.test_judge import CLAIM, EAVESDROPPER, accounted


@pytest.mark.parametrize(
    ("most", "abreast", "device", "share"),
    [
        (None, 1, "cpu", None),
        (100, 1, "cpu", 100),
        (100, 3, "cpu", 33),
        (100, 0, "cpu", 100),
        (None, 3, "cpu", 20),
        (100, 3, "cuda", 100),
        (None, 3, "cuda", None),
        (None, 1, "cuda", None),
    ],
)
def test_audits_side_by_side_share_memory(monkeypatch, most, abreast, device, share) -> None:
    monkeypatch.setattr(processes, "available", lambda: 60)
    assert processes.share_of_memory(most, abreast, device) == share
    monkeypatch.setattr(processes, "available", lambda: None)
    if most is None:
        assert processes.share_of_memory(most, abreast, device) is None


@pytest.mark.parametrize(
    ("one", "other", "gap"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, -4.0], 1.5),
        ([1.0, -8.0], [1.0, -4.0], 1.0),
        ([1.0], [float("nan")], inf),
        ([1e-9], [0.0], 1e291),
    ],
)
def test_a_gap_is_a_part_of_the_largest_number(one, other, gap) -> None:
    assert replay._gap(torch.tensor(one), torch.tensor(other)) == pytest.approx(gap)


@pytest.mark.parametrize(
    ("count", "played"), [(1, {9}), (2, {1, 9}), (3, {1, 5, 9}), (5, {1, 3, 5, 7, 9}), (99, None)]
)
def test_rounds_are_played_again_from_the_last_on(count: int, played: Any) -> None:
    rounds = list(range(1, 10))
    assert replay._spread(rounds, count) == (played or set(rounds))
    assert replay._spread([4], count) == {4}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([3], "round 3"),
        ([3, 3], "round 3"),
        ([3, 1, 2], "rounds 1 to 3"),
        ([300, 5, 4], "rounds 4 to 5, 300"),
        ([1, 3, 5], "rounds 1, 3, 5"),
        ([1, 3, 5, 7], "4 rounds"),
    ],
)
def test_rounds_are_said_in_few_pieces(numbers: list[int], said: str) -> None:
    assert _ranges(numbers) == said


@pytest.mark.parametrize("n_rounds", [1, 2, 3, 5, 14, 15, 16, 400])
def test_rounds_that_are_examined_are_spread_over_the_run(n_rounds: int) -> None:
    found = examined_rounds(n_rounds, Streams(1))
    assert len(found) == n_examined(n_rounds) == min(n_rounds, ROUNDS + DRAWN + 1)
    assert found[0] == 1
    assert found[-1] == n_rounds
    assert list(found) == sorted(set(found))
    if n_rounds == 400:  # one of each twelfth of rounds 3 to 399
        parts = np.array_split(np.arange(3, 400), 12)
        assert all(k in part for k, part in zip(found[2:-1], parts, strict=True))


def test_the_least_of_no_p_values_is_one() -> None:
    assert _least(np.array([0.3, 0.1, 0.2])) == (0.1, 1)
    assert _least(np.array([])) == (1.0, 0)


def test_coordinates_are_called_by_their_layers() -> None:
    setting: Any = SimpleNamespace(d=9, layers=(("a", 3), ("b", 6)))
    layers = _Layers(setting, 9)
    assert layers.parts == [("a", slice(0, 3)), ("b", slice(3, 9))]
    assert layers.named([2]) == "coordinate 2 (a)"
    assert layers.named([2, 3]) == "coordinates 2 to 3 (a, b)"
    assert layers.named([3, 8]) == "2 of coordinates 3 to 8 (b)"
    assert _Layers(setting, 8).parts == []


@pytest.mark.parametrize(
    ("p", "among", "verdict"),
    [(0.9e-6, 1, Verdict.UNSUPPORTED), (0.9e-6, 2, None), (0.4e-6, 2, Verdict.UNSUPPORTED)],
)
def test_noise_is_accused_by_all_tests_together(p, among, verdict) -> None:
    tests = [NoiseTest(p, 1, "x", (3,), "says"), NoiseTest(0.5, among - 1, "y", (4,), "other")]
    found = _finding(tests[:among], 80, (), ("left",))
    assert found.verdict is verdict
    assert found.metrics[Name.P_VALUE].value == pytest.approx(among * p)
    assert (found.message, found.rounds) == (("x", (3,)) if verdict else (None, ()))
    assert found.not_examined == ("left",)
    assert _finding([], 0, (), ()).metrics == {}
    assert DIFFERENT == noise_law.DIFFERENT


def release(multiplier: float, family: Any = "gaussian", count: int = 1) -> Release:
    return Release(family=family, noise_multiplier=multiplier, count=count)


@pytest.mark.parametrize(
    ("declared", "sampling", "records"),
    [
        ([release(3.0)], "poisson", 3),
        ([release(3.0, count=9)], "poisson", 1),
        ([release(9.0)], "poisson", 5),  # all that the victim holds
        ([release(9.0)], "fixed", 4),  # all of a batch
        ([release(0.2)], "poisson", 1),
        ([release(3.0, "laplace")], "poisson", 0),
    ],
)
def test_as_many_records_as_hide_beside_the_noise(declared, sampling, records) -> None:
    game: Any = SimpleNamespace(
        setting=SimpleNamespace(sizes=(1, 5)), sampling=sampling,
        defense=SimpleNamespace(batch_size=4),
    )  # fmt: skip
    assert noise_law._records(tuple(declared), game, 1) == records
    game.setting.sizes = (1, 50)
    game.defense.batch_size = 50
    assert noise_law._records((release(90.0),), game, 1) == noise_law.MOST_RECORDS


class Classified:
    """Of three agents, counts of how many batches hold each of their records."""

    def __init__(self, counts: list[list[int]]) -> None:
        self.counts = counts

    def uses(self, streams: Any, k: int, size: int, how: str, trials: int) -> tuple[Tensor, Tensor]:
        there = torch.tensor([True, True, True, True, False])
        return torch.tensor(self.counts).repeat(trials, 1), there


@pytest.mark.parametrize(
    ("drawing", "counts", "value", "exact"),
    [
        ("fixed", [1, 0, 1, 0, 7], 1.0, True),
        ("fixed", [1, 1, 1, 0, 7], 1.5, False),
        ("fixed", [2, 0, 0, 0, 0], 1.0, False),
        ("poisson", [1, 1, 1, 0, 0], 1.5, None),
    ],
)
def test_batches_hold_as_many_records_as_they_should(
    monkeypatch, drawing, counts, value, exact
) -> None:
    monkeypatch.setattr(batch_rate, "Classification", Classified)
    monkeypatch.setattr(batch_rate, "COUNTED", 40)  # ten trials of four records
    prepared: Any = SimpleNamespace(
        learned=SimpleNamespace(problem=Classified([counts])), streams=None,
        defense=SimpleNamespace(batch_size=1, drawing=drawing),
        setting=SimpleNamespace(sizes=(2, 2)),
    )  # fmt: skip
    found = batch_rate.counted_rate(prepared)
    assert found is not None
    assert found.value == pytest.approx(value)
    assert found.n == 40
    if exact is None:  # 30 of 40, where 20 are expected
        high = float(clopper_pearson(30, 40, 0.025))
        low = 1 - float(clopper_pearson(10, 40, 0.025))
        assert (found.low, found.high) == (pytest.approx(2 * low), pytest.approx(2 * high))
    else:
        assert (found.low, found.high) == ((1.0, 1.0) if exact else (0.0, inf))
    prepared.learned.problem = None
    assert batch_rate.counted_rate(prepared) is None


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [([], None), ([(0.5, 1, 10)], None), ([(0.25, 2, 10), (0.75, 4, 10)], 0.75 + 0.25 * 6)],
)
def test_the_time_of_an_attack_follows_from_its_steps(monkeypatch, steps, seconds) -> None:
    times = iter([0.0, *(at for at, _, _ in steps), 9.0])
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(times))

    def measure(context: Any, threat_model: Any, on_step: Any) -> None:
        for _, done, total in steps:
            on_step(done, total)
        raise ValueError

    job: Any = SimpleNamespace(attack=SimpleNamespace(measure=measure), threat_model=None)
    assert costs._seconds(job, None) == seconds  # type: ignore[arg-type]


def test_a_premise_is_said_unless_nothing_is_judged() -> None:
    own = Judging(0, CLAIM, EAVESDROPPER, accounted(1.0, 1.5), (), premise="It is assumed.")
    [said] = judge([own], [])
    assert said.reason.endswith("It is assumed.")
    [unjudged] = judge([own._replace(unjudged="its sampling is not known")], [])
    assert "It is assumed." not in unjudged.reason
