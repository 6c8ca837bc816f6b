"""What a function's calls come to, value by value: by hand, and by loops beside the code."""

from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm, ranksums

from dpaudit.accounting import gaussian_epsilon
from dpaudit.accounting.releases import Interval
from dpaudit.attack.figures import counted_test, without_errors
from dpaudit.errors import DpauditError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Name
from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism import findings, rare_outputs
from dpaudit.mechanism.elsewhere import FunctionElsewhere, _bytes, _calls
from dpaudit.mechanism.findings import SLACK, ComparedCalls, _drifting, _lagged, _releases, _scale
from dpaudit.mechanism.function import (
    FunctionError,
    FunctionHere,
    _refuse_deterministic,
    _refuse_slow,
    examine,
)
from dpaudit.mechanism.neighbours import NeighbouringInputs, Pair
from dpaudit.mechanism.search import OutputMove, PlayedPair, Search
from dpaudit.mechanism.shifts import DrawFunction, OutputNoise, _alike, _allowed, recognised, shift
from dpaudit.mechanism.source import _notes
from dpaudit.recorder.log import Content

DELTA = 1e-5


def options(**asked: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:b", "shape": (4,), **asked})


def claim(**asked: Any) -> Claim:
    content = {"text": "ours", "epsilon": 1.0, "delta": DELTA, "adjacency": "replace-one", **asked}
    return Claim.model_validate(content)


def noise(scale: Any, family: str = "gaussian", **of: Any) -> OutputNoise:
    draw = DrawFunction("z", family, "numpy.random", **{"seeded": lambda *_: None, **of})  # type: ignore[arg-type]
    return OutputNoise(draw, np.atleast_1d(np.asarray(scale, float)))


def searched(moved: Any, scale: Any, family: str = "gaussian", calls: int = 1) -> Any:
    """In the place of a search whose worst pair moves the output by this."""
    moved, scale = np.asarray(moved, float), np.asarray(scale, float)
    units = moved[scale != 0] / scale[scale != 0]
    size = float(np.linalg.norm(units, 1 if family == "laplace" else 2))
    if (moved[scale == 0] != 0).any():
        size = inf
    function = SimpleNamespace(calls=calls, options=options(calls=calls))
    move = OutputMove(Pair("a pair", (np.zeros(4),), (np.ones(4),)), moved, size)
    of = {"function": function, "moves": [move], "is_additive": True, "unit": scale}
    return SimpleNamespace(noise=noise(scale, family), n_pairs=1, **of)


def sizes(releases: Any) -> list[tuple[float, int]]:
    return [((1 + SLACK) / one.noise_multiplier, one.count) for one in releases]


def test_a_laplace_shift_is_a_release_for_each_size() -> None:
    """Numbers that do not move are none; sizes that are alike are one release."""
    apart = searched([3.0, 0.0, -1.0, 2.0], [1.0, 1.0, 2.0, 1.0], "laplace", calls=5)
    assert sizes(_releases(apart, apart.moves[0], np.min)) == [
        (pytest.approx(0.5), 5),
        (pytest.approx(2.0), 5),
        (pytest.approx(3.0), 5),
    ]
    alike = searched([1.0, 1.0 - 5e-4, 1e-10, 1.0], [1.0] * 4, "laplace", calls=2)
    assert sizes(_releases(alike, alike.moves[0], np.max)) == [(pytest.approx(1.0), 6)]
    assert sizes(_releases(alike, alike.moves[0], np.min)) == [(pytest.approx(1.0 - 5e-4), 6)]
    large = searched([-1000.0, 1000.5], [1.0, 1.0], "laplace", calls=2)
    found_large = _releases(large, large.moves[0], np.max)
    assert sizes(found_large) == [(pytest.approx(1000.5), 4)]
    assert [one.family for one in found_large] == ["laplace"]
    many = searched(np.arange(1.0, 129.0), np.ones(128), "laplace")
    found = {of: sizes(_releases(many, many.moves[0], of)) for of in (np.min, np.max)}
    assert [len(one) for one in found.values()] == [64, 64]
    assert found[np.min][:2] == [(pytest.approx(1.0), 2), (pytest.approx(3.0), 2)]
    assert found[np.max][:2] == [(pytest.approx(2.0), 2), (pytest.approx(4.0), 2)]


def test_a_gaussian_shift_is_one_release_of_its_length() -> None:
    found = searched([3.0, 4.0], [2.0, 2.0], calls=3)
    (one,) = _releases(found, found.moves[0], np.max)
    assert (one.family, one.clipped, one.count) == ("gaussian", "whole", 3)
    assert one.noise_multiplier == pytest.approx((1 + SLACK) / 2.5)
    for other in (searched([0.0], [1.0]), searched([1.0], [0.0])):
        assert _releases(other, other.moves[0], np.max) == []
    unknown = OutputMove(found.moves[0].pair, None, inf)
    assert _releases(found, unknown, np.max) == []
    found.noise = None
    assert _releases(found, found.moves[0], np.max) == []


CALM, COIN = ComparedCalls(100, 0, ""), ComparedCalls(100, 0, "a call also draws")


@pytest.mark.parametrize(
    ("search", "of", "compared", "low", "high"),
    [
        (searched([1.0, 0.0], [1.0, 1.0]), {}, CALM, 1.0, 1.0),
        (searched([1.0, 0.0], [1.0, 1.0]), {}, COIN, 1.0, inf),
        (searched([0.0, 0.0], [1.0, 1.0]), {}, CALM, 0.0, 0.0),
        (searched([1.0], [0.0]), {}, CALM, inf, inf),
        (searched([1.0, 0.0], [1.0, 1.0]), {"delta": 0.0}, CALM, inf, inf),
    ],
)
def test_a_distance_and_noise_are_accounted(search, of, compared, low, high) -> None:
    """Ends in units of the epsilon that mu = 1 gives, but for the slack of the noise."""
    unit = gaussian_epsilon(DELTA, 1 / (1 + SLACK))
    found = findings.measured(claim(**of), search, compared)
    assert found.finding is not None
    ends = found.finding.metrics[Name.EPSILON]
    expected = tuple(0.0 if end == 0 else end * unit for end in (low, high))
    assert (ends.low, ends.high) == pytest.approx(expected, rel=1e-6)
    assert ends.value == ends.high
    assert tuple(found.accounted.epsilon) == (ends.low, ends.high)
    assert found.finding.verdict is (Verdict.UNSUPPORTED if low > 0 else None)
    assert found.finding.message == ("the output" if low == inf and search.unit[0] == 0 else None)


def test_ends_are_of_the_least_and_the_largest_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its own end of the accounting."""

    def epsilon(releases: Any, delta: float, adjacency: str) -> Interval:
        return Interval(10 * sizes(releases)[0][0], 10 * sizes(releases)[0][0] + 1)

    monkeypatch.setattr(findings, "epsilon", epsilon)
    search = searched(np.arange(1.0, 129.0), np.ones(128), "laplace")
    found = findings.measured(claim(), search, CALM).accounted
    assert tuple(found.epsilon) == pytest.approx((10.0, 21.0))
    assert found.least is not None
    assert found.most is not None
    assert [sizes(found.least)[0], sizes(found.most)[0]] == [
        (pytest.approx(1.0), 2),
        (pytest.approx(2.0), 2),
    ]


@pytest.mark.parametrize(("factor", "further"), [(1 + 2e-3, True), (1 + 5e-4, False)])
def test_a_length_beyond_a_clip_is_kept_where_it_moves_further(factor, further) -> None:
    def clip(x: np.ndarray) -> np.ndarray:
        length = np.linalg.norm(x)
        moved = x / max(1.0, length) * (factor if length > 1e10 else 1.0)
        return moved + np.random.normal(0, 1.0, x.shape)

    o = options()
    search = Search(FunctionHere(clip, o), NeighbouringInputs(o, "add-remove", 0), DELTA, 0)
    found = list(search._unclipped(search.neighbours.directions[0], 1.0))
    assert found == ([1e12, 1e22, 1e40] if further else [])
    assert list(search._unclipped(search.neighbours.directions[0], 0.6e6)) == []


def test_laplace_noise_has_an_epsilon_without_delta() -> None:
    search = searched([1.0, 2.0], [4.0, 4.0], "laplace")
    for most, verdict in ((0.7, Verdict.UNSUPPORTED), (0.75, None)):
        found = findings.measured(claim(epsilon=most, delta=0.0), search, CALM).finding
        assert found is not None
        assert found.value(Name.EPSILON) == pytest.approx(0.75 / (1 + SLACK))
        assert found.verdict is verdict
        assert found.value(Name.CLAIMED_EPSILON) == most


def test_nothing_is_measured_of_other_noise() -> None:
    for change in ({"noise": None}, {"is_additive": False}, {}):
        search = searched([1.0], [1.0])
        vars(search).update(change)
        compared = CALM if change else ComparedCalls(100, 1, "")
        found = findings.measured(claim(), search, compared)
        assert found.finding is None
        assert tuple(found.accounted.epsilon) == (0.0, inf)


def test_a_distance_is_the_l2_length_of_the_move() -> None:
    found = findings.distance(claim(), searched([3.0, -4.0], [1.0, 1.0]))
    assert found is not None
    assert found.value(Name.MEASURED) == pytest.approx(5.0)
    assert "L2 5, L1 7 apart" in found.notes[0]
    search = searched([1.0], [1.0])
    search.moves = [search.moves[0]._replace(moved=None)]
    assert findings.distance(claim(), search) is None


def test_a_scale_is_one_number_or_its_ends() -> None:
    assert _scale(noise([2.0, -2.0])) == "2"
    assert _scale(noise([2.0, 2.001])) == "2.001"
    assert _scale(noise([-3.0, 2.0])) == "2 to 3"


SCORES = np.arange(200.0), np.arange(200.0) + 120


def played(search: Any) -> PlayedPair:
    name = SimpleNamespace(name="sum", of=lambda x: x.sum(axis=1))
    return PlayedPair(search.moves[0], name, SCORES, (SCORES[0] + 0.5, SCORES[1] + 0.5))  # type: ignore[arg-type]


def test_a_test_counts_runs_other_than_those_that_choose() -> None:
    one = played(searched([1.0], [1.0]))
    found = findings.tested(claim(), one)
    bound, metrics = counted_test(claim(), one.counted, one.choosing, 0.05)
    assert found.metrics == metrics | without_errors(claim(), 200, 0.05)
    assert f"above {bound.threshold:.6g} is called" in found.notes[0]
    reverse = one._replace(counted=SCORES[::-1], choosing=SCORES[::-1])
    assert "below" in findings.tested(claim(), reverse).notes[0]


def controlled(gap: float) -> tuple[Finding, list[tuple[Any, int]]]:
    """A control whose second input has scores that are so much larger."""
    search, asked = searched([1.0], [1.0]), []

    def outputs(pair: Pair, n: int) -> Any:
        asked.append((pair, n))
        z = np.random.default_rng(1).normal(size=(2, n, 1))
        return z[0], z[1] + gap

    search.outputs, search.few = outputs, lambda n: n - 100
    return findings.null_control(claim(), search, played(search)), asked


def test_a_control_has_the_same_input_on_both_sides() -> None:
    found, [(pair, n)] = controlled(0.0)
    assert n == 900  # of at most 1,000 runs
    assert np.array_equal(pair.having[0], pair.without[0])
    assert found.value(Name.EPSILON_LOWER_BOUND) == 0.0
    assert found.notes == ()
    assert found.metrics[Name.FALSE_POSITIVES].n == found.metrics[Name.FALSE_NEGATIVES].n == 450
    found, _ = controlled(5.0)
    assert found.notes == ("the control found something that is not there",)


def p_of_lag(column: np.ndarray, lag: int) -> float:
    above = column > np.median(column)
    share, n = above.mean(), len(column)
    unit = (above - share) / sqrt(share * (1 - share))
    z = sum(unit[i] * unit[i + lag] for i in range(n - lag)) / sqrt(n - lag)
    return 2 * norm.sf(abs(z))


def test_p_values_of_calls_in_a_row_are_those_of_loops() -> None:
    z = np.random.default_rng(2).normal(size=(61, 2))
    found = list(_lagged(z))
    assert found == pytest.approx([p_of_lag(c, lag) for c in z.T for lag in range(1, 9)])
    for ones, tested in ((12, 0), (13, 8), (49, 8)):
        column = (np.arange(61) < ones).astype(float)
        column = column if ones < 30 else column - np.arange(61) * 1e-9
        assert len(list(_lagged(column[:, None]))) == tested


def test_p_values_of_drifts_are_those_of_rank_sums() -> None:
    z = np.random.default_rng(3).normal(size=41)
    expected = [ranksums(x[:20], x[20:]).pvalue for x in (z, np.abs(z - np.median(z)))]
    assert list(_drifting([z])) == pytest.approx(expected)
    few = np.repeat(np.arange(20.0), 2)
    assert len(list(_drifting([few]))) == 2
    assert list(_drifting([np.append(few, 0.0)])) == []


def test_the_least_p_value_counts_every_test() -> None:
    z = np.random.default_rng(5).normal(size=(60, 40))
    z[:, 1:3] = 1.0  # numbers that do not vary
    columns = z[:, [0, *range(3, 40)]][:, ::2]  # 38 that vary, 32 at most are looked at
    tests = [*_lagged(columns), *_drifting([*columns.T, z[:, 5]])]
    _, p = findings._dependence(z, [z[:, 5]])
    assert p == pytest.approx(min(1.0, len(tests) * min(tests)))
    assert findings._dependence(np.ones((60, 2)), [np.ones(60)]) == ("", 1.0)
    slope = np.arange(60.0)[:, None]
    tests = [*_lagged(slope), *_drifting([slope[:, 0]])]
    assert findings._dependence(slope, [])[1] == pytest.approx(len(tests) * min(tests), rel=1e-6)


def calls_in_a_row(search: Any, column: np.ndarray, compared: ComparedCalls) -> list[Finding]:
    asked = []

    def in_turn(values: Any, n: int) -> np.ndarray:
        asked.append((values, n))
        return column[:n, None, None]

    search.function.seed, search.seed = asked.append, 5
    search.function.in_turn, search.few = in_turn, lambda n: n
    found = list(findings.between_calls(search, played(search), compared))
    assert asked == [7, ([search.moves[0].pair.without], len(column))]
    return found


def test_calls_in_a_row_decide_on_the_noise() -> None:
    search = searched([1.0], [2.0])
    search.function.options = options(runs=3_000)
    z = np.random.default_rng(1).normal(size=300)
    control, state = calls_in_a_row(search, z, CALM)
    in_order = [np.concatenate([side + 0.5, side]) for side in SCORES]
    _, p = findings._dependence(z[:, None], in_order)
    assert control.metrics[Name.P_VALUE].value == pytest.approx(p)
    assert state.value(Name.ROUNDS) == 300
    factor = control.metrics[Name.NOISE_OVER_DECLARED]
    assert (factor.value, factor.low, factor.high) == (1.0, 1 - SLACK, 1 + SLACK)
    assert control.unconfirmed == ()
    assert control.notes[0] == "z times 2, in each of 100 calls"


@pytest.mark.parametrize(
    ("compared", "is_known", "said"),
    [
        (COIN, True, "a call also draws: counted calls do not show"),
        (ComparedCalls(100, 3, ""), True, "in 3 of 100 calls the output was something else"),
        (CALM, False, "the noise is not what a known function draws"),
    ],
)
def test_noise_is_confirmed_where_calls_are_it_alone(compared, is_known, said) -> None:
    search = searched([1.0], [2.0])
    search.function.options = options(runs=2_000)
    search.noise = search.noise if is_known else None
    control, _ = calls_in_a_row(search, np.arange(200.0), compared)
    assert control.unconfirmed == ("the output",)
    assert control.notes[0].startswith(said)
    assert Name.NOISE_OVER_DECLARED not in control.metrics
    assert control.verdict is Verdict.UNSUPPORTED  # calls that grow


def test_what_a_figure_rests_on_is_counted() -> None:
    search = searched([1.0], [2.0], calls=3)
    measured = findings.measured(claim(), search, CALM).finding
    assert measured is not None
    aligned, dependence, records = findings.alignment(claim(), search, measured, 100)
    assert aligned.value(Name.MOVED_OVER_DECLARED) == 1.0
    assert (aligned.metrics[Name.ROUNDS].value, aligned.metrics[Name.ROUNDS].n) == (3.0, 3)
    assert aligned.releases == measured.releases != ()
    assert (dependence.value(Name.FOUND), dependence.metrics[Name.FOUND].n) == (0.0, 100)
    assert "of 1 pairs" in records.notes[0]
    search.function.options = options(shape=(2, 2), records=True)
    *_, records = findings.alignment(claim(), search, measured, 100)
    assert records.notes == ("the rows of a value are used whole in each call",)


@pytest.mark.parametrize(("seconds", "refused"), [(0.5, False), (0.51, True)])
def test_slow_calls_are_refused_by_their_sum(seconds: float, refused: bool) -> None:
    limit = options(seconds=5.0)
    if not refused:
        return _refuse_slow(seconds, 10, limit)
    with pytest.raises(FunctionError, match="10 calls would take 5 s"):
        _refuse_slow(seconds, 10, limit)


def test_a_function_is_examined_on_all_its_values() -> None:
    """The first call may import and compile: its time does not count."""
    times, tried = iter([9.0, 0.1, 0.1, 0.3]), []

    class Timed(FunctionHere):
        def tried(self, value: Any) -> float:
            tried.append(value)
            return next(times)

    function = Timed(lambda x: x + np.random.normal(size=4), options(seconds=1.0))
    values = [(np.full(4, float(i)),) for i in range(4)]
    examine(function, values, 10)
    assert tried == values
    times = iter([9.0, 0.11])
    with pytest.raises(DpauditError, match="a call takes 0.11 s"):
        examine(function, values[:2], 10)


def test_a_function_that_rarely_differs_is_random() -> None:
    def rarely(x: np.ndarray) -> np.ndarray:
        return x + (np.random.random() < 0.005)

    _refuse_deterministic(FunctionHere(rarely, options()), [(np.zeros(4),)])
    only = [(np.zeros(4),), (np.ones(4),)]
    _refuse_deterministic(FunctionHere(lambda x: x + x * np.random.normal(), options()), only)


def test_seeds_are_of_each_turn_and_calls_follow_one_another() -> None:
    function = FunctionHere(lambda x: x + np.random.normal(size=1), options(shape=(1,)))
    one, other = (np.zeros(1),), (np.ones(1),)
    found = function.in_turn([one, other], 2, [3, 4], times=2)
    assert found.shape == (2, 2, 2)
    for turn, seed in enumerate((3, 4)):
        drawn = np.random.RandomState(seed).normal(size=2)
        assert found[turn] == pytest.approx(np.stack([drawn, 1 + drawn]))
    assert function.seeded(one, 9).tolist() == np.random.RandomState(9).normal(size=1).tolist()
    function.seed(2**32 + 5)
    assert function(one) == pytest.approx(np.random.RandomState(5).normal(size=1))
    function.calls = 3
    assert function.runs([one], 2).shape == (2, 1, 3)


@pytest.mark.parametrize("missing", [False, True])
def test_a_shift_is_the_same_for_every_draw(missing: bool) -> None:
    function = FunctionHere(lambda x: 2 * x + np.random.normal(0, 1 + missing * x[0], 4), options())
    start = function.in_turn([(np.zeros(4),)], 4, (11, 12, 13, 14))[:, 0]
    found = shift(function, start, (np.array([1.0, 0.0, -3.0, 0.5]),))
    if missing:
        assert found is None
    else:
        assert found == pytest.approx([2.0, 0.0, -6.0, 1.0], abs=1e-9)


def test_rounding_is_allowed_by_the_dtype() -> None:
    coarse, fine, size = np.array([0.5]), np.array([0.1]), np.array([1e6])
    rounding = {"float64": (4e-16, 1e-9), "float32": (4e-7, 1e-5), "float16": (0.0, 1e-4)}
    for dtype, (ulp, exact) in rounding.items():
        function: Any = SimpleNamespace(options=options(dtype=dtype, library="torch"))
        allowed = _allowed(function, fine, np.array([-2.0]), size)
        assert allowed == pytest.approx([2 * exact + ulp * 1e6], rel=1e-12)
        allowed = _allowed(function, coarse, np.array([-2.0]), size)
        assert allowed == pytest.approx([2 * max(exact, 1e-5) + ulp * 1e6], rel=1e-12)
        function.options = options(dtype="int64", library="torch", output_dtype=dtype)
        assert _allowed(function, fine, np.array([0.0]), np.ones(1)) == pytest.approx([ulp])
    assert _alike(np.array([1.0, 1.00005, 0.99995])).tolist() == [1.0] * 3
    assert _alike(np.array([1.0, 1.0, 1.0002])).tolist() == [1.0, 1.0, 1.0002]
    assert _alike(np.array([-1.0, -1.00005, -1.0])).tolist() == [-1.0] * 3


def test_a_call_fits_a_centre_and_the_noise_drawn() -> None:
    function: Any = SimpleNamespace(options=options())
    drawn, of = np.array([[1.0, -1.0], [0.5, 2.0], [1.0, 1.0]]), noise([2.0, -2.0])
    centre = np.array([5.0, 6.0])
    outputs = centre + of.scale * drawn
    outputs[1, 1] += 3.9e-5  # twice 1e-5 of the scale, as two calls are rounded to float32
    outputs[2, 1] -= 4.1e-5
    assert of.fits(function, outputs, drawn, centre).tolist() == [True, True, False]


def test_exceptions_are_counted_from_the_first_call_on() -> None:
    def rarely(x: np.ndarray) -> np.ndarray:
        z = np.random.normal(size=4)
        return x + z * (z[0] < 1.8)

    function = FunctionHere(rarely, options())
    of = recognised(function, (np.zeros(4),))
    assert of is not None
    seeds = range(2_100)  # more than one block
    larger = sum(np.random.RandomState(s).normal(size=4)[0] >= 1.8 for s in seeds)
    assert larger > 50
    assert of.exceptions(function, (np.ones(4),), seeds) == larger
    unseen = of._replace(draw=of.draw._replace(seeded=lambda *_: None))
    assert unseen.exceptions(function, (np.ones(4),), range(7)) == 7


def test_noise_has_a_scale_for_each_number() -> None:
    scale = np.array([0.5, -2.0, 0.0, 3.0])
    found = recognised(
        FunctionHere(lambda x: x + scale * np.random.normal(size=4), options()), (np.zeros(4),)
    )
    assert found is not None
    assert found.scale == pytest.approx(scale)
    for silent in (lambda x: x, lambda x: x + np.random.uniform(size=4)):
        assert recognised(FunctionHere(silent, options()), (np.zeros(4),)) is None


def test_seeds_far_out_have_the_largest_and_the_longest_noise(monkeypatch) -> None:
    monkeypatch.setattr(rare_outputs, "FEWEST_SEEDS", 40)
    monkeypatch.setattr(rare_outputs, "MOST_NUMBERS", 100)
    monkeypatch.setattr(rare_outputs, "BLOCK", 14)
    drawn = np.random.default_rng(1).normal(size=(50, 2))
    asked: list[int] = []

    def seeded(_: Any, value: Any, seeds: Any) -> np.ndarray:
        asked.extend(seeds)
        return np.asarray(drawn[[seed - rare_outputs.FIRST for seed in seeds]])

    of = noise([1.0, 1.0], seeded=seeded, following=lambda _: None)
    found = rare_outputs.far_seeds(None, of, ())  # type: ignore[arg-type]
    assert asked == [*range(rare_outputs.FIRST, rare_outputs.FIRST + 50)]
    length = np.linalg.norm(drawn, axis=1)
    keys = (drawn.max(axis=1), -drawn.min(axis=1), length, -length)
    expected = {i for key in keys for i in sorted(range(50), key=lambda i: -key[i])[:4]}
    assert [*found] == [rare_outputs.FIRST + i for i in sorted(expected)]
    assert rare_outputs.far_seeds(None, noise([1.0]), ()) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "codes"),
    [
        ({}, ["DPA135", "DPA136"]),
        ({"sensitivity": 1.0, "own_randomness": True, "calls": 2}, ["DPA135", "DPA137"]),
    ],
)
def test_notes_say_what_was_not_looked_at(asked: dict[str, Any], codes: list[str]) -> None:
    o = options(shape=(2,), dtype="float32", library="torch", **asked)
    function = FunctionHere(lambda x: x + torch.randn(2), o)
    search = Search(function, NeighbouringInputs(o, "replace-one", 0), DELTA, 0)
    notes = [note for note in _notes(search) if note.code != "DPA138"]
    assert [note.code for note in notes] == codes
    assert f"for {'2 calls' if asked else 'one call'} with" in notes[0].text


class Answering:
    """In the place of another process: it answers with zeros and says what it was asked."""

    takes_generator = False

    def __init__(self) -> None:
        self.asked_for: list[dict[str, Any]] = []

    def asked(self, header: dict[str, Any], contents: Any) -> Any:
        self.asked_for.append(header)
        n = header["turns"] * header["times"]
        data = np.arange(float(2 * n)).tobytes()
        groups = [{"parts": [[[2], "float64"]], "calls": n}]
        return SimpleNamespace(
            header={"kind": "returned", "groups": groups},
            contents=[Content("", (2 * n,), "float64", data)],
        )


def test_calls_there_are_asked_for_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpaudit.mechanism.elsewhere.NUMBERS", 12)
    process = Answering()
    function = FunctionElsewhere(process, options(shape=(2,)))  # type: ignore[arg-type]
    function.seed(8)
    found = function.in_turn([(np.zeros(2),)], 5, [1, 2, 3, 4, 5], times=2)
    asked = [(one["turns"], one["times"], one["seeds"], one["seed"]) for one in process.asked_for]
    assert asked == [(3, 2, [1, 2, 3], 8), (2, 2, [4, 5], None)]
    assert found.tolist() == [[[*range(i, i + 4)]] for i in (0, 4, 8, 0, 4)]
    monkeypatch.setattr("dpaudit.mechanism.elsewhere.MOST_CALLS", 5)
    monkeypatch.setattr("dpaudit.mechanism.elsewhere.NUMBERS", 10**6)
    process.asked_for.clear()
    function.in_turn([(np.zeros(2),)], 3, times=2)
    assert [one["turns"] for one in process.asked_for] == [2, 1]


def test_arrays_of_an_answer_are_taken_apart_by_calls() -> None:
    first, second = np.arange(3.0), np.array([[7], [8]], np.int16)
    halves = torch.tensor([1.5], dtype=torch.bfloat16).view(torch.int16).numpy()
    one = first.tobytes() + second.tobytes()
    groups = [
        {"parts": [[[3], "float64"], [[2, 1], "int16"]], "calls": 2},
        {"parts": [[[1], "bfloat16"]], "calls": 1},
    ]
    content = Content("", (1,), "uint8", one + one + halves.tobytes())
    answer: Any = SimpleNamespace(header={"groups": groups}, contents=[content])
    *same, last = _calls(answer)
    assert [[part.tolist() for part in call] for call in same] == [[[0, 1, 2], [[7], [8]]]] * 2
    assert last[0].tolist() == [1.5]
    assert [_bytes((3, 2), "float32"), _bytes((3,), "bfloat16"), _bytes((), "int8")] == [24, 6, 1]
