"""Each score of outputs, by its closed form."""

from collections.abc import Callable
from math import log, sqrt

import numpy as np
import pytest

from dpaudit.mechanism.scores import _doubt, _equal, _log_ratio, best, promise, scores

N, SHIFT = 400, np.array([1.0, 0.0, -2.0])
INPUTS = np.zeros(3), np.array([1.0, 0.0, -2.0])
EXPECTED = [
    "projection on the shift",
    "projection on what moves most",
    "sum of the signs of the shift",
    "likelihood ratio of Laplace noise",
    "likelihood ratio by coordinates",
    "sum",
    "sum of sizes",
    "norm",
    "largest number",
    "smallest number",
    "place of the largest number",
    "number of zeros",
    "numbers equal to the input without",
    "numbers equal to the input with",
    "likelihood ratio of a shift by the covariance",
    "likelihood ratio of a shift by the norm",
    "likelihood ratio of a shift by densities",
]


def outputs(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    z = np.random.default_rng(seed).standard_normal((2, N, 3)) * [1.0, 1.0, 4.0]
    return z[0], z[1] + SHIFT


OUT0, OUT1 = outputs()
X = np.array([[3.0, 5.0, -1.0], [-2.0, 0.0, 7.0], [0.0, 0.0, 0.0]])


def of_shift() -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """All scores by their names."""
    return {score.name: score.of for score in scores(OUT0, OUT1, SHIFT, INPUTS)}


def test_all_scores_of_a_shift_are_made() -> None:
    assert [*of_shift()] == EXPECTED


def test_projections_weigh_by_shift_over_variance() -> None:
    variance = (OUT0.var(axis=0) + OUT1.var(axis=0)) / 2
    weight = SHIFT / variance
    unit = weight / np.abs(weight).max()
    assert of_shift()["projection on the shift"](X) == pytest.approx(X @ unit)
    assert of_shift()["sum of the signs of the shift"](X).tolist() == [4.0, -9.0, 0.0]
    apart = np.abs(SHIFT) / np.sqrt(variance)
    unit = np.where(apart >= 0.25 * apart.max(), unit, 0.0)
    assert of_shift()["projection on what moves most"](X) == pytest.approx(X @ unit)
    weak = scores(OUT0, OUT1, np.array([0.1, 0.0, -2.0]), INPUTS)
    only = next(s for s in weak if s.name == "projection on what moves most")
    assert only.of(X) == pytest.approx(-X[:, 2])  # 0.1 is less than a quarter of 2 / 4


def test_the_ratio_of_laplace_noise_is_clipped_about_the_middle() -> None:
    width = np.sqrt((OUT0.var(axis=0) + OUT1.var(axis=0)) / 2)
    centre = (OUT0.mean(axis=0) + OUT1.mean(axis=0)) / 2
    low, high = centre - np.abs(SHIFT) / 2, centre + np.abs(SHIFT) / 2
    expected = np.clip(X, low, high) @ (np.sign(SHIFT) / width)
    assert of_shift()["likelihood ratio of Laplace noise"](X) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("sum", [7.0, 5.0, 0.0]),
        ("sum of sizes", [9.0, 9.0, 0.0]),
        ("norm", [sqrt(35.0), sqrt(53.0), 0.0]),
        ("largest number", [5.0, 7.0, 0.0]),
        ("smallest number", [-1.0, -2.0, 0.0]),
        ("place of the largest number", [1.0, 2.0, 0.0]),
        ("number of zeros", [0.0, 1.0, 3.0]),
    ],
)
def test_features_are_what_they_are_called(name: str, values: list[float]) -> None:
    """A score of a feature is the log ratio of its counts, here of the features of X themselves."""
    ratio = _log_ratio(_feature(name, OUT0), _feature(name, OUT1))
    assert _feature(name, X) == pytest.approx(values)
    assert of_shift()[name](X) == pytest.approx(ratio(np.array(values)))


def _feature(name: str, x: np.ndarray) -> np.ndarray:
    of = {
        "sum": lambda row: sum(row),
        "sum of sizes": lambda row: sum(abs(number) for number in row),
        "norm": lambda row: sqrt(sum(number**2 for number in row)),
        "largest number": max,
        "smallest number": min,
        "place of the largest number": lambda row: row.index(max(row)),
        "number of zeros": lambda row: row.count(0.0),
    }[name]
    return np.array([float(of(row)) for row in x.tolist()])


def test_an_output_that_repeats_its_input_is_counted() -> None:
    kept = np.where(np.arange(N)[:, None] % 2 == 0, INPUTS[1], OUT1)
    found = {s.name: s.of for s in scores(OUT0, kept, SHIFT, INPUTS)}
    shown = found["numbers equal to the input with"](np.array([INPUTS[1], [9.0, 9.0, 9.0]]))
    same = (N / 2 + 0.5) / (N / 2 + N / 2 + 1.0)  # half of the outputs have both numbers
    assert shown[0] == pytest.approx(log(same) - log(0.5 / (N + 1.0)))
    assert shown[1] < 0


def test_numbers_are_those_of_an_input_that_fits() -> None:
    twice = np.array([[1.0, 2.0, 1.0, 9.0], [2.0, 1.0, 0.0, 0.0]])
    assert _equal(np.array([1.0, 2.0]), twice).tolist() == [3.0, 0.0]
    assert _equal(np.array([1.0, 0.0]), twice).tolist() == [2.0, 0.0]  # 0 is no sign of it
    assert _equal(np.array([1.0, 2.0, 1.0]), twice).tolist() == [0.0, 0.0]
    assert _equal(np.zeros(0), twice).tolist() == [0.0, 0.0]


def test_whole_outputs_are_counted_where_few_occur() -> None:
    out0 = np.array([[0.0, 1.0]] * 30 + [[2.0, 2.0]] * 10)
    out1 = np.array([[0.0, 1.0]] * 4 + [[2.0, 2.0]] * 36)
    found = {s.name: s.of for s in scores(out0, out1, None, (np.zeros(2), np.ones(2)))}
    ratio = found["likelihood ratio of whole outputs"]
    rows = np.array([[-0.0, 1.0], [2.0, 2.0], [7.0, 7.0]])
    assert ratio(rows) == pytest.approx([log(4.5 / 30.5), log(36.5 / 10.5), 0.0])
    many = {s.name for s in scores(OUT0, OUT1, None, INPUTS)}
    assert "likelihood ratio of whole outputs" not in many
    one_more = np.arange(21.0)[:, None] % 11  # 11 different ones of 42, where 10 may be
    assert "likelihood ratio of whole outputs" not in {
        s.name for s in scores(one_more, one_more, None, (np.zeros(1), np.ones(1)))
    }


def test_a_ratio_counts_by_value_or_by_bins() -> None:
    few = _log_ratio(np.array([0.0] * 6 + [1.0] * 2), np.array([0.0] * 1 + [1.0] * 7))
    assert few(np.array([0.0, 1.0])) == pytest.approx([log(1.5 / 6.5), log(7.5 / 2.5)])
    values = np.arange(100.0)
    many = _log_ratio(values, values[50:])  # 24 bins, as 150 numbers are of 100 values
    assert len(np.unique(many(values))) <= 24
    assert many(np.array([0.0]))[0] < 0 < many(np.array([99.0]))[0]


def test_a_promise_is_the_log_odds_less_what_luck_adds() -> None:
    """20 of 100 above every value of the other side, at delta 0.01."""
    values0, values1 = np.zeros(100), np.array([0.0] * 80 + [1.0] * 20)
    found, false = 0.2, 0.0
    doubt = 2 * (sqrt(found * (1 - found) / 100) + 0.01)
    assert float(_doubt(np.array([found]), 100)[0]) == pytest.approx(doubt)
    expected = log((found - doubt - 0.01) / (false + 0.02))
    assert promise(values0, values1, 0.01) == pytest.approx(expected)
    assert promise(values1, values0, 0.01) == pytest.approx(expected)
    for bad in (np.array([np.inf]), np.array([0.0, np.nan])):
        assert promise(bad, values1, 0.01) == promise(values1, bad, 0.01) == 0.0
    assert promise(values0, values0, 0.01) == 0.0


def test_the_best_score_has_the_largest_merit() -> None:
    found = scores(OUT0, OUT1, SHIFT, INPUTS)
    chosen, merit = best(found, (X, X + 1), lambda a, b: -abs(float(a.sum()) - 4.0))
    merits = [-abs(float(score.of(X).sum()) - 4.0) for score in found]
    assert merit == max(merits)
    assert chosen is found[int(np.argmax(merits))]


def test_a_shift_needs_four_runs_for_each_number() -> None:
    name = "likelihood ratio of a shift by the norm"
    for n, there in ((12, True), (11, False)):
        some = scores(OUT0[:n], OUT1[:n], SHIFT, INPUTS)
        assert (name in {s.name for s in some}) == there
    constant = OUT0 * [1.0, 1.0, 0.0]
    some = scores(constant[:8], (constant + SHIFT)[:8], SHIFT, INPUTS)  # two numbers vary
    assert name in {s.name for s in some}


def test_a_shift_is_of_the_sixteen_numbers_that_move_most() -> None:
    """Of the rest a score of a shift says nothing."""
    z = np.random.default_rng(4).standard_normal((2, 200, 18))
    moved = np.where(np.arange(18) < 2, 0.1, 1.0 + np.arange(18))
    found = {s.name: s.of for s in scores(z[0], z[1] + moved, moved, (0 * moved, moved))}
    of = found["likelihood ratio of a shift by the norm"]
    base = np.zeros((1, 18))
    values = [float(of(base + 50 * np.eye(18)[i])[0]) for i in (0, 1, 2)]
    assert values[0] == values[1] == pytest.approx(float(of(base)[0]))
    assert values[2] != pytest.approx(values[0])
