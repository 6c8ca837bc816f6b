"""M-NMI: known truths within the stated error, honest p-values, and what the numbers depend on."""

import warnings

import numpy as np
import pytest
from scipy.stats import binom, chi2
from scipy.stats import t as student

from dpaudit.errors import ConfigError, DataError
from dpaudit.information import neighbours
from dpaudit.information.estimators import ksg, self_information
from dpaudit.information.mnmi import intervals, maximum_information, permutation_p_value
from dpaudit.information.reduction import EstimatorWarning, Reduction

FALSE_FAILURE = 1e-6  # probability that a correct estimator fails a statistical test


def correlated(
    rng: np.random.Generator, rho: float, n_rounds: int, n: int, dims: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """V [n_rounds, n], and views [n_rounds, n, dims] whose columns correlate with it by rho."""
    v = rng.normal(size=(n_rounds, n))
    noise = rng.normal(size=(n_rounds, n, dims))
    return v, rho * v[..., None] + np.sqrt(1 - rho**2) * noise


def true_bits(rho: float, dims: int = 1) -> float:
    return float(0.5 * np.log2(1 + dims * rho**2 / (1 - rho**2)))


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("dims", [1, 3])
def test_gaussian_information_is_within_the_stated_error(rho: float, dims: int) -> None:
    rng = np.random.default_rng(31)
    v, view = correlated(rng, rho, 1, 2_000, dims)
    found = maximum_information(
        v, view, rng, n_permutations=0, n_splits=40, confidence=1 - FALSE_FAILURE
    )
    assert found.low <= true_bits(rho, dims) <= found.high
    assert found.high - found.low < 0.8  # the error says something: 0.9 and 0.6 are told apart
    assert found.gaussian == pytest.approx(true_bits(rho, dims), abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("n_rounds", "dims"), [(1, 1), (1, 3), (8, 1)])
@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_intervals_miss_at_most_as_often_as_they_say(n_rounds: int, dims: int, rho: float) -> None:
    repeats, confidence = 300, 0.9
    rng = np.random.default_rng(32)
    missed = 0
    for _ in range(repeats):
        v, view = correlated(rng, rho, n_rounds, 500, dims)
        found = maximum_information(v, view, rng, n_permutations=0, confidence=confidence)
        missed += not found.low <= true_bits(rho, dims) <= found.high
    assert missed <= binom.isf(FALSE_FAILURE, repeats, 1 - confidence)


@pytest.mark.parametrize("n_rounds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_p_values_of_independent_samples_are_uniform(n_rounds: int) -> None:
    repeats, n_permutations = 240, 9
    rng = np.random.default_rng(33)
    cells = np.zeros(n_permutations + 1)
    for _ in range(repeats):
        v, view = rng.normal(size=(2, n_rounds, 30))
        view = view + view[:1]  # rounds that depend on one another
        found = maximum_information(
            v, view, rng, n_permutations=n_permutations, n_splits=0, workers=1
        )
        cells[round(found.p_value * (n_permutations + 1)) - 1] += 1
    expected = repeats / len(cells)
    assert ((cells - expected) ** 2 / expected).sum() < chi2.isf(FALSE_FAILURE, n_permutations)


def test_a_leak_in_one_round_is_found_there_and_is_significant() -> None:
    rng = np.random.default_rng(34)
    v, view = rng.normal(size=(2, 6, 400))
    view[3] += v[3]
    found = maximum_information(v, view, rng, n_permutations=39)
    assert found.round == 4
    assert found.p_value == 1 / 40
    assert found.baseline < found.low
    assert found.per_round.shape == (6,)
    assert found.per_round.max() == found.bits


@pytest.mark.slow
def test_a_maximum_is_not_significant_for_being_a_maximum() -> None:
    repeats, level = 60, 0.05
    rng = np.random.default_rng(35)
    corrected = alone = 0
    for _ in range(repeats):
        v, view = rng.normal(size=(2, 20, 30))
        found = maximum_information(v, view, rng, n_permutations=19, n_splits=0, workers=1)
        worst = [found.round - 1]
        chosen = maximum_information(
            v[worst], view[worst], rng, n_permutations=19, n_splits=0, workers=1
        )
        corrected += found.p_value <= level
        alone += chosen.p_value <= level
    limit = binom.isf(FALSE_FAILURE, repeats, level)
    assert corrected <= limit
    assert alone > limit  # the worst round looks like a leak to who forgets how it was chosen


def test_the_interval_follows_from_the_halves_as_stated() -> None:
    bits, halves = np.array([0.5, 0.2]), np.array([[[0.45, 0.35], [0.50, 0.40]], [[0.2, 0.2]] * 2])
    found = intervals(bits, halves, np.array([2, 4]), confidence=0.9)
    assert found.standard_error == pytest.approx([0.05, 0.0])
    assert found.drift == pytest.approx([-0.075, 0.0])
    reach = student.isf(0.1 / 4, df=1) * 0.05
    assert found.low == pytest.approx([0.5 - reach, 0.2])
    assert found.high == pytest.approx([0.5 + 0.075 + reach, 0.2])
    (slower,) = intervals(bits[:1], halves[:1], np.array([4]), confidence=0.9).high
    reach = student.isf(0.1 / 2, df=1) * 0.05
    assert slower == pytest.approx(0.5 + 0.075 / (np.sqrt(2) - 1) + reach)  # bias like n^(-1/2)


def test_a_p_value_counts_the_observed_order_too() -> None:
    assert permutation_p_value(0.3, np.array([0.1, 0.3, 0.2])) == 2 / 4
    assert permutation_p_value(0.4, np.array([0.1, 0.3, 0.2])) == 1 / 4
    assert np.isnan(permutation_p_value(0.4, np.array([])))


def test_the_papers_ratio_drifts_with_trials() -> None:
    rng = np.random.default_rng(36)
    v, view = correlated(rng, 0.9, 20, 4_000)
    few, many = (
        maximum_information(v[:, :n], view[:, :n], rng, n_permutations=0, n_splits=0)
        for n in (250, 4_000)
    )
    few_bits, many_bits = few.per_round.mean(), many.per_round.mean()
    # over 400 seeds one estimate has sd 0.106 and 0.028, these means 0.024 and 0.006; 6 of them
    assert few_bits == pytest.approx(many_bits, abs=6 * 0.025)
    ratio = (many_bits / many.self_information) / (few_bits / few.self_information)
    assert ratio == pytest.approx(self_information(250) / self_information(4_000), rel=0.12)
    assert ratio < 0.8
    assert many.correlation == pytest.approx(0.9, abs=0.03)
    assert few.m_nmi == few.bits / self_information(250)


@pytest.mark.parametrize("unit", [1.0, 3.0, 1e-9, 1e6])
def test_an_affine_copy_of_the_private_variable_scores_one(unit: float) -> None:
    rng = np.random.default_rng(37)
    v = rng.normal(size=(1, 1_000))
    found = maximum_information(v, unit * v + 5, rng, n_permutations=0, n_splits=0)
    assert found.m_nmi == pytest.approx(1.0, abs=1e-3)
    assert found.correlation == pytest.approx(1.0, abs=1e-4)
    assert found.gaussian == np.inf


def test_a_binary_variable_is_measured_against_its_one_bit() -> None:
    rng = np.random.default_rng(38)
    v = rng.integers(0, 2, size=(1, 1_000)).astype(float)
    view = v + rng.normal(size=v.shape)
    with pytest.warns(EstimatorWarning, match="^private: values of column 0 repeat"):
        found = maximum_information(v, view, rng, n_permutations=0, n_splits=0)
    # sd over 400 seeds: 0.034; 6 of them
    assert found.self_information == pytest.approx(1.0, abs=6 * 0.034)
    assert found.m_nmi == found.bits / found.self_information


def test_results_depend_on_the_generator_and_not_on_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    v, view = correlated(np.random.default_rng(39), 0.5, 3, 200, dims=2)

    def found(workers: int) -> tuple[float, ...]:
        result = maximum_information(
            v, view, np.random.default_rng(1), n_permutations=7, workers=workers
        )
        return (*result.per_round, result.low, result.high, result.baseline, result.p_value)

    first = found(workers=1)
    assert found(workers=7) == first
    monkeypatch.setattr(neighbours, "compiled", lambda: None)
    assert found(workers=2) == first


def test_one_round_without_noise_is_the_plain_estimate() -> None:
    v, view = correlated(np.random.default_rng(40), 0.7, 1, 300)
    raw = Reduction(scale="none")
    found = maximum_information(
        v,
        view,
        np.random.default_rng(1),
        reduce_private=raw,
        reduce_view=raw,
        n_permutations=0,
        n_splits=0,
    )
    assert found.bits == pytest.approx(ksg(v[0], view[0]), abs=1e-9)
    assert np.isnan([found.low, found.p_value, found.baseline, found.drift]).all()
    assert found.reduction == "private 1, as given; view 1, as given"


def test_projections_find_what_a_high_dimensional_view_hides() -> None:
    rng = np.random.default_rng(41)
    v = rng.normal(size=(1, 1_000))
    common = v[..., None] + 0.5 * rng.normal(size=(1, 1_000, 1))  # in every column of the view
    view = np.concatenate([common + rng.normal(size=(1, 1_000, 30)), np.ones((1, 1_000, 1))], 2)
    truth = 0.5 * np.log2(1 + 1 / (0.25 + 1 / 30))
    options = {"n_permutations": 0, "n_splits": 0}
    plain = maximum_information(v, view[..., :30], rng, **options)
    principal = maximum_information(v, view, rng, reduce_view=Reduction(n_components=1), **options)
    mean = Reduction(projection=np.r_[np.full(30, 1 / 30), 0.0][:, None], named="mean of messages")
    aware = maximum_information(v, view, rng, reduce_view=mean, **options)
    # sd of the last two over 400 seeds: 0.052; 6 of them
    assert plain.bits < truth - 6 * 0.052
    assert principal.bits == pytest.approx(truth, abs=6 * 0.052)
    assert aware.bits == pytest.approx(truth, abs=6 * 0.052)
    assert "view 31 -> PCA 1 (" in principal.reduction
    assert "% of variance), standardised" in principal.reduction
    assert aware.reduction.endswith("view 31 -> mean of messages 1, standardised")


def test_normal_scores_do_not_see_a_monotone_change() -> None:
    v, view = correlated(np.random.default_rng(42), 0.8, 1, 500, dims=2)
    scores = Reduction(scale="normal-scores")

    def bits(v: np.ndarray, view: np.ndarray) -> float:
        return maximum_information(
            v,
            view,
            np.random.default_rng(1),
            reduce_private=scores,
            reduce_view=scores,
            n_permutations=0,
            n_splits=0,
        ).bits

    assert bits(v, view) == bits(np.exp(9 * v), view**3)


def test_outliers_are_warned_of_once() -> None:
    rng = np.random.default_rng(43)
    v, view = correlated(rng, 0.9, 3, 500)
    view[1:, 0] = 1e13
    with pytest.warns(EstimatorWarning, match=r"^view: .*normal-scores.* \(round 2 and 1 more\)$"):
        spoilt = maximum_information(v, view, rng, n_permutations=0, n_splits=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remedied = maximum_information(
            v,
            view,
            rng,
            reduce_view=Reduction(scale="normal-scores"),
            n_permutations=0,
            n_splits=0,
        )
    assert spoilt.per_round[1] < 0.5 * remedied.per_round[1]
    assert remedied.per_round[1:] == pytest.approx(
        true_bits(0.9), abs=6 * 0.074
    )  # sd over 400 seeds


def test_columns_of_uneven_width_are_warned_of() -> None:
    rng = np.random.default_rng(44)
    v, view = correlated(rng, 0.9, 1, 500, dims=2)
    view[..., 1] = 1e5 * rng.normal(size=(1, 500))
    with pytest.warns(EstimatorWarning, match='column 1 is wider than column 0.*"standardise"'):
        hidden = maximum_information(
            v, view, rng, reduce_view=Reduction(scale="none"), n_permutations=0, n_splits=0
        )
    seen = maximum_information(v, view, rng, n_permutations=0, n_splits=0)
    assert hidden.bits < 0.3 < 0.9 < seen.bits


V = np.random.default_rng(45).normal(size=(2, 40))


@pytest.mark.parametrize(
    ("v", "view", "options", "error", "message"),
    [
        (V, V[:1], {}, DataError, r"^private variables of 2 rounds, views of 1; expected as many"),
        (V[:0], V[:0], {}, DataError, r"^private variables of 0 rounds"),
        (V[0], V[0], {}, DataError, r"^private, round 1: float64 values of shape \[\]"),
        (V, V[:, :30], {}, DataError, r"^between 30 and 40 trials; expected the same"),
        (V, V * [[1.0], [np.inf]], {}, DataError, r"^view, round 2: 40 of 40 .* NaN or infinite"),
        (V, V * [[1.0], [0.0]], {}, DataError, r"^view, round 2: column 0 is constant \(0\)"),
        (V[:, :3], V[:, :3], {}, DataError, r"^3 samples; k = 3 neighbours need at least"),
        (
            V[:, :7],
            V[:, :7],
            {},
            DataError,
            r"^7 trials; the interval needs halves .* n_splits = 0",
        ),
        (V, np.tile(V[..., None], 39), {}, DataError, r"^40 trials of 40 columns in all; expected"),
        (V, V, {"k": 0}, ConfigError, r"^k = 0 neighbours"),
        (V, V, {"n_permutations": -1}, ConfigError, r"^n_permutations = -1"),
        (V, V, {"n_splits": -1}, ConfigError, r"^n_splits = -1"),
        (V, V, {"confidence": 1.0}, ConfigError, r"^confidence = 1.0; expected a number between"),
        (
            V,
            V,
            {"reduce_view": Reduction(n_components=2)},
            ConfigError,
            r"^view, round 1: n_components = 2; expected 1 to 1",
        ),
        (
            V,
            V,
            {"reduce_view": Reduction(projection=np.eye(2))},
            DataError,
            r"^view, round 1: projection of shape \[2, 2\] for 1 columns; expected \[1, m\]",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(
    v: np.ndarray,
    view: np.ndarray,
    options: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message) as caught:
        maximum_information(v, view, np.random.default_rng(0), **options)
    assert "\n" not in str(caught.value)


def test_a_reduction_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^scale = 'rank'; expected one of standardise, normal"):
        Reduction(scale="rank")
    with pytest.raises(ConfigError, match=r"^n_components and projection; expected one"):
        Reduction(n_components=1, projection=np.eye(1))
