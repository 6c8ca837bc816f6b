"""What the evidence on a function counts: which runs, which numbers, and what it is about."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism import findings, function
from dpaudit.mechanism.findings import (
    SLACK,
    ComparedCalls,
    _dependence,
    _drifting,
    _lagged,
    _releases,
)
from dpaudit.mechanism.function import FunctionHere, _same, load, source_of
from dpaudit.mechanism.neighbours import Pair
from dpaudit.mechanism.search import OutputMove, PlayedPair
from dpaudit.mechanism.shifts import DrawFunction, OutputNoise

CLAIM = Claim.model_validate(
    {"text": "c", "epsilon": 1.0, "delta": 1e-5, "adjacency": "replace-one"}
)
CALM = ComparedCalls(100, 0, "")


def options(**asked: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:b", "shape": (4,), **asked})


def searched(moved: Any, scale: Any, family: str = "laplace", size: float = 1.0) -> Any:
    pair = Pair("a pair", (np.zeros(4),), (np.ones(4),))
    draw = DrawFunction("z", family, "numpy.random", seeded=lambda *_: None)  # type: ignore[arg-type]
    return SimpleNamespace(
        function=SimpleNamespace(calls=2, options=options(runs=2_000)),
        noise=OutputNoise(draw, np.asarray(scale, float)),
        moves=[OutputMove(pair, np.asarray(moved, float), size)],
        unit=np.asarray(scale, float),
        n_pairs=3,
        is_additive=True,
        few=lambda n: n,
    )


def test_levels_of_the_evidence() -> None:
    assert (findings.SLACK, findings.LEVEL, findings.CALLS) == (1e-3, 1e-6, 2_000)
    assert (findings.COORDINATES, findings.LAGS, findings.LEVELS) == (32, 8, 64)


@pytest.mark.parametrize("unit", [1.0, 1e6, 1e-6])
def test_a_number_that_rounding_moves_is_no_release(unit: float) -> None:
    search = searched(unit * np.array([1.0, 1e-8, 1e-10, 0.0]), unit * np.ones(4))
    sizes = [(1 + SLACK) / one.noise_multiplier for one in _releases(search, search.moves[0], max)]
    assert sizes == pytest.approx([1e-8, 1.0])
    infinite = search.moves[0]._replace(size=np.inf)
    assert _releases(search, infinite, max) == []


def test_all_evidence_is_on_the_only_claim() -> None:
    search = searched([1.0], [1.0])
    scores = np.arange(200.0), np.arange(200.0) + 50
    name: Any = SimpleNamespace(name="sum", of=lambda x: x.sum(axis=1))
    played = PlayedPair(search.moves[0], name, scores, scores)
    measured = findings.measured(CLAIM, search, CALM)
    search.outputs = lambda pair, n: (np.zeros((n, 1)), np.zeros((n, 1)))
    found = [
        findings.tested(CLAIM, played),
        findings.null_control(CLAIM, search, played),
        findings.distance(CLAIM, search),
        measured.finding,
        *findings.alignment(CLAIM, search, measured.finding, 100),  # type: ignore[arg-type]
    ]
    assert [one.claim for one in found if one is not None] == [0] * 7
    assert measured.accounted.victim == 0


def test_a_control_counts_one_half_and_chooses_by_the_other(monkeypatch) -> None:
    asked: list[Any] = []

    def counted_test(claim: Any, counted: Any, choosing: Any, alpha: float) -> Any:
        asked.append([[side.tolist() for side in sides] for sides in (counted, choosing)])
        return SimpleNamespace(value=0.0, n0=2, n1=2), {}

    monkeypatch.setattr(findings, "counted_test", counted_test)
    search = searched([1.0], [1.0])
    rows = np.arange(5.0)[:, None]
    search.outputs = lambda pair, n: (rows, rows + 10)
    name: Any = SimpleNamespace(name="sum", of=lambda x: x.sum(axis=1))
    findings.null_control(CLAIM, search, PlayedPair(search.moves[0], name, (), ()))  # type: ignore[arg-type]
    assert asked == [[[[0, 1], [10, 11]], [[2, 3, 4], [12, 13, 14]]]]


def test_numbers_that_vary_are_looked_at_evenly() -> None:
    """Of 39, each second one from the first on; the one that drifts is among them, or is not."""
    z = np.random.default_rng(5).normal(size=(400, 40))
    z[:, 1] = 1.0
    varied = [0, *range(2, 40)]
    for drifting, place in ((5, 3), (4, None)):
        out = z.copy()
        out[:, drifting] += np.arange(400) / 150
        columns = out[:, varied[::2]]
        tests = [*_lagged(columns), *_drifting([*columns.T])]
        _, p = _dependence(out, [])
        assert p == pytest.approx(min(1.0, len(tests) * min(tests)))
        assert (p < 1e-6) == (place is not None)
        assert len(tests) == 20 * 10
    few = z[:, [0, 2, 3]].copy()
    few[:, 1] += np.arange(400) / 150
    assert _dependence(few, [])[1] < 1e-6
    assert _dependence(few[:, ::2], [few[:, 1]])[0] == "the noise changes from call to call"


def test_calls_in_a_row_that_agree_are_seen() -> None:
    steps = np.repeat(np.random.default_rng(2).normal(size=100), 4)[:, None]
    assert _dependence(steps, [])[0] == "calls in a row have like noise"
    constant = np.append(np.ones(3), np.zeros(17))[:, None]
    assert list(_lagged(constant)) == []  # less than a fifth is above the median
    assert len(list(_lagged(np.append(np.ones(4), np.zeros(16))[:, None]))) == 8


@pytest.mark.parametrize("name", ["a", ":f", "a:", ":", ""])
def test_a_name_has_a_module_and_a_function(name: str) -> None:
    with pytest.raises(ConfigError, match="names no function"):
        load(name)


def test_a_call_is_one_call() -> None:
    calls: list[Any] = []

    def noised(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        return x + np.random.normal(size=4)

    found = FunctionHere(noised, options(calls=3))
    found((np.zeros(4),))
    assert len(calls) == 1
    found.seeded((np.zeros(4),), 5)
    assert len(calls) == 2
    found.drawn_from((np.zeros(4),), 5)
    assert len(calls) == 3
    found.runs([(np.zeros(4),)], 2)
    assert len(calls) == 9
    assert found.tried((np.zeros(4),)) >= 0.0
    assert source_of(noised) is not None
    assert source_of(np.sin) is None


def test_values_are_the_same_number_by_number() -> None:
    one = np.array([1.0, 2.0])
    assert _same([one, one], [one, one.copy()])
    assert not _same([one, one], [one, one + 1])
    assert not _same([one + 1, one], [one, one])
    assert _same(torch.ones(2), torch.ones(2))
    assert not _same(torch.ones(2), torch.zeros(2))


def test_calls_that_change_their_input_are_refused() -> None:
    def changing(x: np.ndarray) -> np.ndarray:
        x += 1
        return x + np.random.normal(size=4)

    with pytest.raises(function.FunctionError, match="changes its input"):
        FunctionHere(changing, options()).tried((np.zeros(4),))
