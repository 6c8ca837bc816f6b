"""Which pairs of inputs are tried, in which order, and with how many runs."""

from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism.function import FunctionHere
from dpaudit.mechanism.neighbours import NeighbouringInputs, _length
from dpaudit.mechanism.search import OutputMove, Search, _rank, _spread
from dpaudit.mechanism.source import _compared, replayed

pytestmark = pytest.mark.usefixtures("few_pairs")


def options(**asked: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:b", "shape": (4,), **asked})


def gaussian(x: Any) -> Any:
    return x / max(1.0, float(np.linalg.norm(x))) + np.random.normal(0, 2.0, x.shape)


def laplace(x: Any) -> Any:
    return x / max(1.0, float(np.abs(x).sum())) + np.random.laplace(0, 2.0, x.shape)


def of_norm(x: Any) -> Any:
    return x + (1 + np.linalg.norm(x)) * np.random.normal(0, 1.0, x.shape)


def search(function: Any, adjacency: Any = "replace-one", **asked: Any) -> Search:
    o = options(**{"runs": 400, **asked})
    return Search(FunctionHere(function, o), NeighbouringInputs(o, adjacency, 0), 1e-5, 0)


def move(size: float, known: bool = True) -> OutputMove:
    return OutputMove(None, np.ones(1) if known else None, size)  # type: ignore[arg-type]


def test_the_largest_move_comes_first_and_an_unknown_one_last() -> None:
    """Those that equal the largest but for rounding keep their order."""
    moves = [move(1.0), move(3.0), move(inf, known=False), move(2.0), move(3.0 - 1e-7)]
    ordered = sorted(moves, key=lambda one: _rank(one, 3.0))
    assert [one.size for one in ordered] == [3.0, 3.0 - 1e-7, 2.0, 1.0, inf]
    first = sorted([move(3.0 - 1e-7), move(3.0)], key=lambda one: _rank(one, 3.0))
    assert first[0].size == 3.0 - 1e-7


@pytest.mark.parametrize(("n", "chosen"), [(5, [0, 1, 2, 3, 4]), (9, [0, 2, 4, 6, 8])])
def test_pairs_that_are_played_are_spread_evenly(n: int, chosen: list[int]) -> None:
    assert _spread([*range(n)], 5) == chosen  # type: ignore[arg-type,comparison-overlap]


def test_a_clip_of_norm_one_moves_the_output_by_two() -> None:
    found = search(gaussian)
    assert found.is_additive
    assert not found.follows
    assert found.moves[0].size == pytest.approx(2 / 2.0)
    assert search(gaussian, "add-remove").moves[0].size == pytest.approx(1 / 2.0)
    assert search(laplace).moves[0].size == pytest.approx(2 / 2.0)  # in L1, and not in L2
    assert found.size(np.array([2.0, 0.0, 0.0, 2.0])) == pytest.approx(sqrt(2))


def test_a_number_without_noise_moves_without_limit() -> None:
    found = search(lambda x: x + np.random.normal(0, 1.0, 4) * [1, 1, 1, 0], sensitivity=1.0)
    assert found.size(np.array([0.0, 1.0, 0.0, 0.0])) == pytest.approx(1.0)
    assert found.size(np.array([0.0, 1.0, 0.0, 1e-12])) == pytest.approx(1.0)  # rounding
    assert found.size(np.array([0.0, 0.0, 0.0, 1.0])) == inf


def test_a_function_that_does_not_clip_follows_its_input() -> None:
    assert search(lambda x: x + np.random.normal(size=4)).follows
    assert not search(lambda x: x + np.random.normal(size=4), sensitivity=1.0).follows
    assert not search(of_norm).follows  # what moves depends on the draws
    assert not search(of_norm).is_additive


def test_outputs_that_are_held_bound_the_runs() -> None:
    found = search(gaussian)
    held: Any = SimpleNamespace(start=np.zeros((4, 10**5)), function=SimpleNamespace(calls=2))
    assert found.few(2_000) == 2_000
    assert Search.few(held, 100) == 8 * 10**6 // (2 * 10**5) + 10 == 50
    held.start = np.zeros((4, 10**4))
    assert Search.few(held, 2_000) == 8 * 10**6 // (2 * 10**4) == 400


@pytest.mark.parametrize(
    ("runs", "asked"),
    [
        (300, [200, 150, 150, 300]),  # fit, choose a score, choose its threshold, count
        (2_000, [1_000, 1_000, 1_000, 1_000, 1_000]),
        (8_000, [2_000, 2_000, *[1_000] * 10]),
    ],
)
def test_scores_are_made_chosen_and_counted_on_so_many_runs(
    monkeypatch: pytest.MonkeyPatch, runs: int, asked: list[int]
) -> None:
    """Of the worst pair alone, as the noise is recognised."""
    found, rng, ns = search(gaussian, runs=runs), np.random.default_rng(0), []

    def outputs(one: Search, pair: Any, n: int) -> Any:
        ns.append(n)
        return rng.normal(size=(2, n, 4))

    monkeypatch.setattr(Search, "outputs", outputs)
    found.played(lambda done, of: None)
    assert ns == asked


def test_runs_choose_and_count_in_these_numbers() -> None:
    found, steps = search(gaussian), []
    played = found.played(lambda done, of: steps.append((done, of)))
    assert played.move is found.moves[0]
    assert [len(side) for side in played.choosing] == [200, 200]
    assert [len(side) for side in played.counted] == [400, 400]
    assert steps == [(0, 400), (0, 200), (200, 200), (0, 400), (400, 400)]
    others = search(of_norm).played(lambda done, of: None)
    assert [len(side) for side in others.counted] == [400, 400]


@pytest.mark.parametrize(("runs", "most", "n"), [(2_000, 10**7, 2_000), (2_001, 250, 500)])
def test_half_of_the_compared_calls_are_of_either_input(runs: int, most: int, n: int) -> None:
    noise: Any = SimpleNamespace(draw=SimpleNamespace(most=most))
    assert replayed(noise, runs) == n


def values(adjacency: Any, **asked: Any) -> list[tuple[str, list[float], list[float]]]:
    pairs = NeighbouringInputs(options(**asked), adjacency, 0).fixed()
    return [(p.name, p.without[0].tolist(), p.having[0].tolist()) for p in pairs]


def test_values_at_a_distance_are_that_far_apart() -> None:
    found = values("replace-one", sensitivity=3.0)
    assert found[0][1:] == ([0.0] * 4, [1.0, 0.0, 0.0, 0.0])  # a third: a grid shows the rest
    far = [np.linalg.norm(np.subtract(b, a)) for _, a, b in found[1:]]
    assert far == pytest.approx([3.0] * len(far))
    assert found[1][1:] == ([0.0] * 4, [3.0, 0.0, 0.0, 0.0])
    assert found[2][1:] == ([-1.5, 0.0, 0.0, 0.0], [1.5, 0.0, 0.0, 0.0])
    assert found[3][1:] == ([0.0] * 4, [1.5] * 4)
    in_l1 = values("replace-one", sensitivity=3.0, norm="l1")
    assert np.abs(np.subtract(*in_l1[1][1:])).sum() == pytest.approx(3.0)
    names = [name for name, _, _ in found]
    assert sum("of values far apart" in name for name in names) == 6
    assert sum("beside a large one" in name for name in names) == 6


def test_values_of_a_range_are_at_its_ends() -> None:
    found = {name: pair for name, *pair in values("replace-one", low=-1.0, high=3.0)}
    alike = found["all coordinates alike at the ends of -1 to 3"]
    assert alike == [[-1.0] * 4, [3.0] * 4]
    assert found["one number at the other end of -1 to 3"] == [[-1.0] * 4, [3.0, -1.0, -1.0, -1.0]]
    absent = [pair for _, *pair in values("add-remove", low=1.0, high=3.0)]
    assert {tuple(without) for without, _ in absent} == {(1.0,) * 4}  # zero is not in the range
    assert [[1.0] * 4, [3.0, 1.0, 1.0, 1.0]] in absent
    below = values("replace-one", high=2.0)
    assert max(max(map(max, pair)) for _, *pair in below) == 2.0
    assert min(min(map(min, pair)) for _, *pair in below) < -90
    above = values("replace-one", low=2.0)
    assert min(min(map(min, pair)) for _, *pair in above) == 2.0


def test_one_row_changes_among_the_rows_of_a_value() -> None:
    o = {"shape": (3, 2), "records": True, "low": -2.0, "high": 1.0}
    replaced = values("replace-one", **o)
    name, without, having = replaced[0]
    assert name == "a record of one coordinate, size 2, among zeros"
    changed = [np.flatnonzero(np.any(np.not_equal(a, b), axis=1)) for _, a, b in replaced]
    assert {tuple(rows) for rows in changed} == {(0,)}
    assert (having[0], without[0]) == ([1.0, 0.0], [-2.0, 0.0])  # 2, within the range
    removed = NeighbouringInputs(options(**o), "add-remove", 0).fixed()
    assert {pair.without[0].shape for pair in removed} == {(2, 2)}
    assert {pair.having[0].shape for pair in removed} == {(3, 2)}


@pytest.mark.parametrize(("norm", "length"), [("l1", 7.0), ("l2", 5.0), ("linf", 4.0)])
def test_a_length_is_that_of_the_norm(norm: str, length: float) -> None:
    assert _length(np.array([3.0, -4.0]), norm) == pytest.approx(length)


def test_integers_stay_on_their_grid_and_within_their_dtype() -> None:
    found = NeighbouringInputs(options(dtype="int8"), "replace-one", 0)
    assert found.value(np.array([1.6, -1.4, 1e3, -1e3]))[0].tolist() == [2, -1, 127, -128]
    tensors = NeighbouringInputs(options(shape=((1,), (1, 2))), "replace-one", 0)
    first, second = tensors.value(np.arange(3.0))
    assert (first.tolist(), second.tolist()) == ([0.0], [[1.0, 2.0]])


def test_calls_that_are_compared_have_seeds_of_their_own() -> None:
    """Half with either input; of two inputs none shares a seed."""
    asked: list[range] = []

    def exceptions(_: Any, value: Any, seeds: Any) -> int:
        asked.append(seeds)
        return len(asked) if len(seeds) > 1 else 0  # none far out

    draw = SimpleNamespace(most=10**7, following=None, generator="numpy.random")
    noise: Any = SimpleNamespace(draw=draw, exceptions=exceptions)
    found = _compared(FunctionHere(gaussian, options(runs=401)), noise, [(np.zeros(4),)] * 2)
    assert found == (400, 1 + 3, "")
    assert [*map(len, asked)] == [200, 1, 200, 1]
    assert not {*asked[0]} & {*asked[2]}
    assert not found.is_noise
    assert found._replace(exceptions=0).is_noise
    assert not found._replace(exceptions=0, other="a call also draws").is_noise
