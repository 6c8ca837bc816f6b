"""The noise that a program has drawn, value by value: counts, sizes, repeats and p-values."""

from math import inf, log
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import chi2, norm

from dpaudit.capture import noise_tests
from dpaudit.capture.noise_tests import NormalizedDraw, drawn_noise, runs_needed
from dpaudit.capture.runs import NamedDraw
from dpaudit.files.finding import Finding, Name
from dpaudit.files.verdict import Verdict
from dpaudit.statistics.noise_tests import lag_p_values, size_of_draws, white_noise_test


class Run(NamedTuple):
    draws: list[NamedDraw]
    tape: dict[str, np.ndarray]


def run(values: Any, name: str = "z", agent: int = 0, scale: float = 1.0) -> Run:
    """Draws [m, n] of one agent, in units of their scale."""
    draws = [
        NamedDraw(f"{agent}/{i}/{name}", name, agent, i, scale, "gaussian")
        for i in range(len(values))
    ]
    return Run(draws, {d.key: scale * np.asarray(v) for d, v in zip(draws, values, strict=True)})


def both(one: Run, other: Run) -> Run:
    return Run([*one.draws, *other.draws], {**one.tape, **other.tape})


def drawing(values: Any, run: int = 0, agent: int = 0, nth: int = 0, **of: Any) -> NormalizedDraw:
    about = {"name": "z", "family": "gaussian", **of}
    return NormalizedDraw(run, agent, occurrence=nth, values=np.asarray(values, float), **about)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(
    ("plain", "sites", "n"),
    [
        (run(np.ones((4, 25))), [], 30),
        (run(np.ones((4, 25))), ["z"], 30),
        (run(np.ones((4, 25))), ["y"], 200),  # nothing is drawn there
        (run(np.ones((1, 15))), [], 200),
        (run(np.ones((1, 16))), [], 188),
        (run(np.ones((1, 333))), [], 10),
        (run(np.ones((1, 3000))), [], 8),
        (both(run(np.ones((1, 100))), run(np.ones((1, 50)), agent=1)), [], 60),
        (both(run(np.ones((1, 100))), run(np.ones((1, 50)), "y")), ["z"], 30),
        (run(np.ones((1, 0))), [], 200),
    ],
)
def test_runs_give_each_agent_three_thousand_numbers(plain, sites, n: int) -> None:
    assert runs_needed(plain, sites) == n


def found_of(*runs: Run, same: Any = (), why: str = "") -> Finding:
    [found] = drawn_noise(runs, (), same, why)
    return found


def test_what_was_not_examined_of_noise_is_said() -> None:
    """The first reason that applies; and the size is given where there are several runs."""
    many = [run(normal(i, 40, 100), scale=3.0) for i in range(2)]
    right = found_of(*many)
    assert (right.not_examined, right.verdict, right.title) == (
        (),
        None,
        "the noise that was drawn",
    )
    size = right.metrics[Name.NOISE_OVER_DECLARED]
    values = np.concatenate([v / 3 for one in many for v in one.tape.values()])
    assert (size.value, *size.ends) == pytest.approx(
        size_of_draws(float(np.square(values).sum()), 8000, "gaussian", 0.05)
    )
    assert right.metrics[Name.P_VALUE].n == size.n == 8000
    assert (right.metrics[Name.FOUND].value, right.metrics[Name.FOUND].n) == (0.0, 80)
    assert len(right.notes) == 2
    assert "8,000 numbers of 2 runs" in right.notes[0]
    assert f"noise {noise_tests._seen(8000):.2g}% too small in all of them" in right.notes[0]
    assert f"or {noise_tests._seen(80):.2g}% in one coordinate" in right.notes[0]
    assert right.notes[1].startswith("80 draws of 2 runs")
    alone = found_of(many[0])
    assert alone.not_examined == ("one run shows no size of the noise",)
    assert Name.NOISE_OVER_DECLARED not in alone.metrics
    assert found_of(*many, why="because").not_examined == ("because",)
    few = found_of(*[run(normal(i, 2, 20)) for i in range(2)])
    least = few.metrics[Name.NOISE_OVER_DECLARED].ends[0]
    assert least < 0.9
    assert few.not_examined == (
        f"noise of 80 numbers may be {100 * (1 - least):.2g}% too small unseen",
    )


def test_noise_that_is_not_its_law_has_no_size() -> None:
    odd = found_of(*[run(0.8 * normal(i, 40, 100)) for i in range(2)])
    assert (odd.verdict, odd.not_examined) == (Verdict.UNSUPPORTED, ())
    assert set(odd.metrics) == {Name.P_VALUE}
    values = normal(1, 5, 4)
    values[3] = values[1]
    repeated = found_of(run(values))
    assert repeated.metrics[Name.P_VALUE].value == 0.0
    assert (repeated.metrics[Name.FOUND].value, repeated.metrics[Name.FOUND].n) == (1.0, 5)
    assert repeated.verdict is Verdict.UNSUPPORTED


def test_draws_that_are_no_further_noise_are_left_out() -> None:
    plain = run(normal(2, 3, 50))
    assert found_of(plain, same=[plain.draws[0].key]).metrics[Name.P_VALUE].n == 100
    first = plain.draws[0]._replace(key="1/0/z", scale=0.0)
    silent = both(plain, Run([first], {"1/0/z": np.zeros(50)}))
    assert found_of(silent).metrics[Name.P_VALUE].n == 150
    assert drawn_noise([plain], (), [d.key for d in plain.draws]) == []


def test_runs_with_the_same_noise_count_as_one() -> None:
    plain = run(normal(3, 40, 100))
    found = found_of(plain, plain)
    assert found.metrics[Name.P_VALUE].n == 4000
    assert "is the same in runs with other seeds" in found.not_examined[0]
    assert found.verdict is None


def test_noise_on_a_grid_has_no_law() -> None:
    """Numbers on a grid repeat by chance up to so many; whole draws do not."""
    grid = np.round(3 * normal(4, 30, 60))
    found = found_of(run(grid), run(np.round(3 * normal(5, 30, 60))))
    assert (found.verdict, found.metrics[Name.P_VALUE].value) == (None, 1.0)
    assert "has multiples of 1 times its scale alone" in found.not_examined[0]
    assert Name.NOISE_OVER_DECLARED not in found.metrics
    grid[7] = grid[3]
    assert found_of(run(grid)).verdict is Verdict.UNSUPPORTED


@pytest.mark.parametrize(
    ("last", "unit", "is_grid"),
    [(19.04, 1.0, True), (19.06, 1.0, False), (19.0, 1.1e-5, True), (19.0, 0.9e-5, False)],
)
def test_a_grid_is_one_to_a_twentieth_of_a_step(last, unit, is_grid) -> None:
    values = unit * np.append(np.arange(19.0), last)
    assert bool(noise_tests._on_a_grid([drawing(values)])) is is_grid
    split = [drawing(values[:9]), drawing(values[9:], agent=1)]
    assert bool(noise_tests._on_a_grid(split)) is is_grid
    other = drawing(normal(1, 40), name="y")
    assert bool(noise_tests._on_a_grid([other, *split])) is is_grid
    assert noise_tests._on_a_grid([drawing(np.ones(30))]) == ""


def test_how_many_numbers_repeat_by_chance() -> None:
    assert noise_tests._least_repeated([drawing([0, 0, 1]), drawing([1])]) == pytest.approx(
        log(4 / noise_tests.LEVEL) / log(3)  # 4 of 12 ordered pairs are alike
    )
    assert noise_tests._least_repeated([drawing([0, 1, 2])] * 1) == 2.0
    assert noise_tests._least_repeated([drawing([5.0])]) == 2.0
    assert noise_tests._least_repeated([drawing([5.0, 5.0])]) == inf
    rare = [drawing(np.append(np.arange(10**5), 0.0))]
    assert noise_tests._least_repeated(rare) == 2.0


def test_repeats_are_of_so_many_numbers() -> None:
    plain = run([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [1.0, 2.0]])
    for least, n in ((2, 2), (2.5, 0), (1, 2)):
        assert len(noise_tests._repeated(plain, plain.draws, least)) == n  # type: ignore[arg-type]
    other = both(run([[1.0, 2.0]]), run([[1.0, 2.0]], "y", agent=3))
    assert noise_tests._repeated(other, other.draws, 2) == [  # type: ignore[arg-type]
        '"y" of agent 3 is that of agent 0 before'
    ]
    less = both(run([[1.0, -2.0]]), run([[-1.0, 2.0]], "y"))
    assert noise_tests._repeated(less, less.draws, 2) == [  # type: ignore[arg-type]
        '"y" of agent 0 is the negative of its "z" before'
    ]
    shared = both(run([[1.0, -2.0]]), run([[-1.0, 2.0]], agent=1))  # as the noise of a pair
    assert noise_tests._repeated(shared, shared.draws, 2) == []  # type: ignore[arg-type]
    pairs = [drawing([1, 2]), drawing([1, 2], run=1)]
    assert [bool(noise_tests._fixed(pairs, least)) for least in (1, 2, 3)] == [True, True, False]
    named = [drawing([1, 2]), drawing([1, 2], run=1, name="y")]
    assert noise_tests._fixed(named) == ""


def test_the_size_of_noise_is_that_of_the_least_agent() -> None:
    """Of intervals of all agents and lines together."""
    z = normal(6, 4, 500)
    some = [
        drawing(z[0, :200]),
        drawing(z[0, 200:], run=1),
        drawing(0.8 * z[1], agent=1),
        drawing(0.9 * z[2], name="y"),
        drawing(2 * z[3], family="laplace"),
    ]
    found = noise_tests._size(some)
    total = float(np.square(0.8 * z[1]).sum())
    expected = size_of_draws(total, 500, "gaussian", 0.05 / 4)
    assert (found.value, *found.ends, found.n) == pytest.approx((*expected, 500))
    laplace = noise_tests._size([drawing(-z[3], family="laplace")])
    expected = size_of_draws(float(np.abs(z[3]).sum()), 500, "laplace", 0.05)
    assert (laplace.value, *laplace.ends) == pytest.approx(expected)


def test_the_least_p_value_counts_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[int], int]] = []

    def group(some: Any, step: int) -> tuple[str, float]:
        seen.append(([len(d.values) for d in some], step))
        return some[0].name, {"z": 0.01, "y": 0.3}[some[0].name]

    monkeypatch.setattr(noise_tests, "_odd_group", group)
    monkeypatch.setattr(noise_tests, "FEWEST_RUNS", 1)
    monkeypatch.setattr(noise_tests, "MOST_NUMBERS", 10)
    some = [drawing(range(8)), drawing(range(8)), drawing(range(4)), drawing(range(1), name="y")]
    what, p = noise_tests._least_likely(some)  # 21 numbers, of which each third is tested
    assert seen == [([8, 8], 3), ([4], 3), ([1], 3)]
    assert (what, p) == ('"z": z', pytest.approx(0.03))
    monkeypatch.setattr(noise_tests, "MOST_NUMBERS", 21)
    seen.clear()
    noise_tests._least_likely(some)
    assert seen == [([8, 8], 1), ([4], 1), ([1], 1)]
    assert noise_tests._least_likely(some[3:])[1] == 0.3
    monkeypatch.setattr(noise_tests, "FEWEST_RUNS", 8)
    assert noise_tests._least_likely(some[:1]) == ("", 1.0)  # one loud draw, which is left out


def test_a_group_of_draws_has_one_p_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for n, m, most in ((5, 7, 1000), (5, 7, 3), (1, 40, 1000), (5, 1, 1000)):
        monkeypatch.setattr(noise_tests, "MOST_COLUMNS", most)
        columns = normal(7, n, m)
        group = [drawing(v, agent=i) for i, v in enumerate(columns.T)]
        chosen = columns[:, ::3] if most == 3 else columns
        tests = [white_noise_test(chosen.T if n == 1 else chosen)]
        tests += noise_tests._among_coordinates(columns) if n > 1 else []
        tests += noise_tests._of_parts(group, columns)
        what, p = noise_tests._odd_group(group)
        assert p == pytest.approx(min(1.0, len(tests) * min(one for _, one in tests)))
        assert what == min(tests, key=lambda one: one[1])[0]
        names = [name for name, _ in tests]
        assert ("the size of a coordinate" in names) == (m > 1)
        assert ("neighbouring coordinates" in names) == (n > 1)
        assert names.count("its tails") == 5
    assert noise_tests.TAILS == (1.5, 2.0, 2.5, 3.0, 3.5)


def test_draws_that_are_passed_over_leave_the_others_whole() -> None:
    """Of mirrored numbers each third has no mirrored one among them."""
    z = normal(8, 60, 50)
    mirrored = [drawing([*v, *-v], run=i) for i, v in enumerate(z)]
    what, p = noise_tests._odd_group(mirrored, 3)
    assert what == "two coordinates that are multiples of one another"
    assert p < 1e-6


def test_numbers_that_cancel_have_a_p_value_of_one() -> None:
    group = [drawing([1.0, -1.0]), drawing([-1.0, 1.0], agent=1)]
    columns = np.stack([d.values for d in group], axis=1)
    found = dict(noise_tests._of_parts(group, columns))
    assert found["the mean of a coordinate"] == 1.0
    assert all(0 <= p <= 1 for p in found.values())


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_surely_larger_noise_is_in_units_of_what_it_is(monkeypatch, family: Any) -> None:
    """A draw, then an agent's draws, then a line's: what is not larger stays as it is."""
    rng = np.random.default_rng(8)
    size = {"gaussian": lambda x: float(np.sqrt(np.square(x).mean())),
            "laplace": lambda x: float(np.abs(x).mean())}[family]  # fmt: skip
    z = rng.normal(size=(3, 2, 500)) if family == "gaussian" else rng.laplace(size=(3, 2, 500))
    z /= [[[size(row)] for row in rows] for rows in z]

    def loud(factors: list[list[float]], name: str = "z") -> list[NormalizedDraw]:
        return [
            drawing(factors[a][i] * z[a, i], agent=a, nth=i, family=family, name=name)
            for a in range(3)
            for i in range(2)
        ]

    def sizes(*given: NormalizedDraw) -> list[float]:
        return [size(d.values) for d in noise_tests._as_loud_as_stated(given)]

    same = pytest.approx
    assert sizes(*loud([[1.0] * 2, [1.0] * 2, [0.9, 3.0]])) == same([1.0] * 4 + [0.9])
    assert sizes(*loud([[2.0] * 2] * 3)) == []
    monkeypatch.setattr(noise_tests, "FEWEST_RUNS", 1)
    assert sizes(*loud([[1.0] * 2] * 3)) == same([1.0] * 6)
    assert sizes(*loud([[0.5] * 2] * 3)) == same([0.5] * 6)
    assert sizes(*loud([[1.01] * 2] * 3)) == same([1.01] * 6)  # by chance, perhaps
    assert sizes(*loud([[2.0] * 2] * 3)) == same([1.0] * 6)
    assert sizes(*loud([[1.0] * 2, [1.0] * 2, [0.9, 3.0]])) == same([1.0] * 4 + [0.9, 1.0])
    assert sizes(*loud([[1.0] * 2, [1.0] * 2, [1.2] * 2])) == same([1.0] * 6)  # of an agent
    assert sizes(*loud([[1.13] * 2] * 3)) == same([1.0] * 6)  # of all alone
    both = [*loud([[2.0] * 2] * 3), *loud([[1.0] * 2] * 3, name="y")]
    assert sizes(*both) == same([1.0] * 12)
    assert [d.name for d in noise_tests._as_loud_as_stated(both)] == ["z"] * 6 + ["y"] * 6


@pytest.mark.parametrize(
    ("values", "scale", "is_half"),
    [
        (normal(8, 4, 20).astype("f2").astype(float), 3.0, True),  # in units of its scale
        (normal(8, 4, 20).astype("f2").astype(float) / 3, 3.0, True),  # as it is
        (normal(8, 4, 20).astype("f4").astype(float), 3.0, False),
        (1.0 + np.arange(80.0).reshape(4, 20) / 2**10, 1.0, True),
        (1.0 + np.arange(80.0).reshape(4, 20) / 2**11, 1.0, False),  # of 12 bits
        (normal(8, 4, 4).astype("f2").astype(float), 3.0, False),  # too few to say so
    ],
)
def test_numbers_of_eleven_bits_are_of_half_precision(values, scale, is_half: bool) -> None:
    one = run(values, scale=scale)
    found = noise_tests._in_half_precision([one], [one.draws])  # type: ignore[list-item]
    assert bool(found) is is_half
    other = run(normal(9, 4, 20), name="y")
    assert not noise_tests._in_half_precision([other], [other.draws])  # type: ignore[list-item]
    beside = both(other, one)
    found = noise_tests._in_half_precision([beside], [beside.draws])  # type: ignore[list-item]
    assert found.startswith('"z" has') is is_half
    assert not noise_tests._in_half_precision([beside], [other.draws])  # type: ignore[list-item]


def among(columns: np.ndarray) -> dict[str, float]:
    return dict(noise_tests._among_coordinates(columns))


def test_coordinates_that_share_noise_have_small_p_values() -> None:
    """Columns are draws. Each fault is of one kind, and independent noise has none."""
    z = normal(8, 30, 60)
    rows = [*z]
    found = among(z)
    assert min(found.values()) > 1e-3
    assert [*found] == [
        "neighbouring coordinates", "mirrored coordinates", "coordinates some way apart",
        "the size of coordinates some way apart", "the lengths of draws", "the sums of draws",
    ]  # fmt: skip
    products = float((z[:-1:2] * z[1::2]).sum()) / np.linalg.norm(z[:-1:2])
    assert found["neighbouring coordinates"] == pytest.approx(2 * norm.sf(abs(products)))
    mirrored = float((z[:15] * z[::-1][:15]).sum()) / np.linalg.norm(z[:15])
    assert found["mirrored coordinates"] == pytest.approx(2 * norm.sf(abs(mirrored)))
    far = [*lag_p_values(z.T)]
    assert found["coordinates some way apart"] == pytest.approx(min(1.0, len(far) * min(far)))
    sizes = [*lag_p_values((np.abs(z) - noise_tests.MEDIAN).T)]
    assert found["the size of coordinates some way apart"] == pytest.approx(
        min(1.0, len(sizes) * min(sizes))
    )
    lengths = noise_tests._law(chi2.cdf(np.square(z).sum(axis=0), 30))
    assert found["the lengths of draws"] == pytest.approx(lengths)
    sums = noise_tests._law(norm.cdf(z.sum(axis=0) / np.sqrt(30)))
    assert found["the sums of draws"] == pytest.approx(sums)
    copied = among(np.stack([*rows[:-1], -2 * rows[4]]))
    assert copied["two coordinates that are multiples of one another"] == 0.0
    few = np.stack([*rows[:-1], -2 * rows[4]])[:, : noise_tests.FEWEST_PARALLEL - 1]
    assert "two coordinates that are multiples of one another" not in among(few)
    odd = among(z[:29])
    assert odd["neighbouring coordinates"] == pytest.approx(
        noise_tests._related(z[:28:2], z[1:29:2])
    )
    assert odd["mirrored coordinates"] == pytest.approx(noise_tests._related(z[:14], z[28:14:-1]))
