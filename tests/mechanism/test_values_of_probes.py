"""Changes at a distance, low bits and rare draws of a function, value by value."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.files.mechanism_file import MechanismOptions
from dpaudit.mechanism import probes, rare_outputs, scores
from dpaudit.mechanism.neighbours import NeighbouringInputs, Pair
from dpaudit.mechanism.probes import _low_bits, _other_dtype, _other_shape, probed
from dpaudit.mechanism.rare_outputs import far_seeds, goes_on, other_draws
from dpaudit.mechanism.scores import _by_coordinate, _log_ratio, _of_shift, promise
from dpaudit.mechanism.search import ALPHA, OutputMove
from dpaudit.mechanism.shifts import DrawFunction, OutputNoise


def options(**asked: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:b", **{"shape": (2,), **asked}})


@pytest.mark.parametrize(
    ("norm", "distance", "flat", "whole"),
    [
        ("l1", 5.0, [3, -4], [2, -3]),  # (2.14, -2.86), and one step is left
        ("l2", 5.0, [3, -4], [3, -4]),
        ("l2", 4.5, [3, -4], [3, -3]),  # (2.7, -3.6): a step of the first costs 5 of 7.25
        ("l2", 4.5, [-3, 4], [-3, 3]),
        ("l2", 4.0, [-3, 4], [-2, 3]),  # (-2.4, 3.2): 3 is left, and 5 is the least
        ("linf", 4.5, [3, -4], [3, -4]),
        ("linf", 4.5, [-4, 4], [-4, 4]),
        ("l1", 3.0, [1, 1], [2, 1]),
        ("l1", 4.0, [0, -1], [0, -4]),
    ],
)
def test_whole_changes_are_at_most_as_long(norm, distance, flat, whole) -> None:
    integers = NeighbouringInputs(
        options(norm=norm, dtype="int64", sensitivity=1.0), "replace-one", 0
    )
    assert integers.at_distance(np.array(flat, float), distance).tolist() == whole
    real = NeighbouringInputs(options(norm=norm, sensitivity=1.0), "replace-one", 0)
    change = real.at_distance(np.array(flat, float), distance)
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    assert np.linalg.norm(change, order) == pytest.approx(distance)
    assert change == pytest.approx(np.array(flat) * change[1] / flat[1])


@pytest.mark.parametrize(
    ("ends", "ranges"),
    [
        ({"low": -1.0, "high": 3.0}, [(-1, 3)]),
        ({"low": -1.0}, [(-1, 0), (-1, 999)]),
        ({"high": 2.0}, [(1, 2), (-998, 2)]),
        ({"high": 0.0}, [(-1, 0), (-1000, 0)]),
    ],
)
def test_a_range_without_an_end_has_plain_lengths(ends: Any, ranges: Any) -> None:
    assert NeighbouringInputs(options(**ends), "replace-one", 0).ranges == ranges


def test_a_record_of_any_direction_has_its_size() -> None:
    o = options(shape=(3, 2), records=True, low=-2.0, high=2.0)
    for pair in NeighbouringInputs(o, "replace-one", 0).fixed():
        assert np.abs(pair.having[0][0]).max() == pytest.approx(2.0)
        assert pair.without[0][0] == pytest.approx(-pair.having[0][0])


def probing(**of: Any) -> Any:
    about = {"finds_clip": True, "is_additive": True, "dtype": "float64", "library": "numpy", **of}
    function = SimpleNamespace(options=SimpleNamespace(**about))
    neighbours = SimpleNamespace(finds_clip=about["finds_clip"])
    return SimpleNamespace(
        function=function, neighbours=neighbours, is_additive=about["is_additive"]
    )


@pytest.mark.parametrize(
    ("of", "asked"),
    [
        ({}, ["bits", "int64", "float16", (0,), (1,)]),
        ({"dtype": "float32"}, ["bits", "int64", "float16", (0,), (1,)]),
        ({"dtype": "float16"}, ["int64", "float16", (0,), (1,)]),
        ({"dtype": "int64"}, []),
        ({"library": "torch"}, ["bits"]),
        ({"finds_clip": False}, ["int64", "float16", (0,), (1,)]),
        ({"is_additive": False}, ["int64", "float16", (0,), (1,)]),
    ],
)
def test_what_is_probed_depends_on_the_values(monkeypatch, of: Any, asked: list[Any]) -> None:
    monkeypatch.setattr(probes, "_low_bits", lambda search: ["bits"])
    monkeypatch.setattr(probes, "_other_dtype", lambda search, dtype: [dtype])
    monkeypatch.setattr(probes, "_other_shape", lambda search, shape: [shape])
    assert list(probed(probing(**of))) == asked


def test_values_that_nobody_promised_warn_nobody(monkeypatch, recwarn) -> None:
    def other_shape(search: Any, shape: Any) -> list[Any]:
        return [float(np.mean(np.zeros(shape)))]

    monkeypatch.setattr(probes, "_other_dtype", lambda search, dtype: [])
    monkeypatch.setattr(probes, "_other_shape", other_shape)
    notes = list(probed(probing(finds_clip=False)))
    assert np.isnan(notes[0])
    assert notes[1] == 0.0
    assert not recwarn.list


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (1.0, 1.0), (1.0, 2.0)])
def test_low_bits_are_held_against_values(monkeypatch: pytest.MonkeyPatch, bounds: Any) -> None:
    """Of the number that moves most, between zero and the second input."""
    given, asked = iter(bounds), []

    def from_scores(one: Any, other: Any, delta: float, alpha: float, choosing: Any) -> Any:
        asked.append([np.asarray(x).tolist() for x in (one, other, *choosing)])
        assert (delta, alpha) == (1e-5, ALPHA)
        return SimpleNamespace(value=next(given))

    def outputs(pair: Pair, n: int) -> Any:
        assert (pair.without[0].tolist(), pair.having[0].tolist(), n) == ([0, 0], [9, 9], 2000)
        sides = np.array([[1.0, 2.0, 4.0, 8.0], [3.0, 6.0, 12.0, 24.0]])
        return np.stack([0 * sides, sides], axis=2)

    monkeypatch.setattr(probes, "from_scores", from_scores)
    pair = Pair("p", (np.full(2, 5.0),), (np.full(2, 9.0),))
    search: Any = SimpleNamespace(
        moves=[OutputMove(pair, np.array([1.0, -2.0]), 1.0)],
        neighbours=SimpleNamespace(zero=(np.zeros(2),)),
        few=lambda n: n,
        outputs=outputs,
        delta=1e-5,
    )
    notes = list(_low_bits(search))
    assert asked == [
        [[2, 3], [2, 3], [0, 1], [0, 1]],
        [[4.0, 8.0], [12.0, 24.0], [1.0, 2.0], [3.0, 6.0]],
    ]
    assert [note.code for note in notes] == (["DPA138"] if bounds[0] > bounds[1] else [])


@pytest.mark.parametrize(
    ("share", "noted"), [(0.5, True), (0.49, False), (1.0, True), (None, False)]
)
def test_half_of_the_numbers_unchanged_is_noted(monkeypatch, share: Any, noted: bool) -> None:
    monkeypatch.setattr(probes, "_unchanged", lambda search, options: share)
    search: Any = SimpleNamespace(function=SimpleNamespace(options=options()))
    assert bool(list(_other_dtype(search, "int64"))) is noted
    assert (probes.CALLS, probes.RUNS, probes.OTHERS) == (64, 1_000, ("int64", "float16"))


@pytest.mark.parametrize(
    "of", [{"shape": ((2,), (1,))}, {"shape": (2, 1), "records": True}, {"output_shape": (2,)}]
)
def test_other_shapes_are_tried_of_single_values(of: Any) -> None:
    search: Any = SimpleNamespace(function=SimpleNamespace(options=options(**of)))
    assert list(_other_shape(search, (0,))) == []


def noise(mix: Any = None, generator: str = "numpy.random", following: Any = None) -> OutputNoise:
    draw = DrawFunction("z", "gaussian", generator, lambda *_: None, following)  # type: ignore[arg-type]
    return OutputNoise(draw, np.ones(2), None if mix is None else np.array(mix, float))


@pytest.mark.parametrize(
    ("of", "given", "drawn", "said"),
    [
        (noise(), False, {"numpy.random"}, ""),
        (noise(), False, {"numpy.random", "torch", "random"}, "a call also draws from random"),
        (noise(), True, {"rng", "numpy.random"}, "a call also draws from rng"),
        (noise(generator=""), True, {"rng"}, ""),  # keys of JAX, from the generator that is given
        (noise(generator=""), False, {"rng"}, "a call also draws from rng"),
        (noise(generator=""), False, {"numpy.random"}, ""),
        (noise([[1, 0], [1, 0]], following=1), False, set(), "a call draws numbers from"),
        (noise([[1, 0], [1, 0]]), False, set(), ""),
    ],
)
def test_what_a_call_draws_beside_noise_is_named(of, given, drawn, said) -> None:
    function: Any = SimpleNamespace(takes_generator=given, drawn_from=lambda value, seed: drawn)
    found = other_draws(function, of, ())
    assert found.startswith(said)
    assert bool(found) is bool(said)


class InTurn:
    """Calls that add the numbers 1, 2, 3, ... of a generator to 100, two to each."""

    options = options()
    takes_generator = False

    def __init__(self, skipped: int = 0, again: bool = False) -> None:
        self.at, self.skipped, self.again = 0, skipped, again

    def seed(self, seed: int) -> None:
        self.at = 0 if seed == rare_outputs.SEED else 1000

    def following(self, _: Any) -> np.ndarray:
        self.at += 2
        return np.array([self.at - 1.0, self.at])

    def drawn_from(self, value: Any, seed: int) -> set[str]:
        return set()

    def in_turn(self, values: Any, turns: int, seeds: Any = None, times: int = 1) -> np.ndarray:
        rows = []
        for _ in range(turns):
            if seeds is not None:
                self.seed(seeds[0])
            for _ in range(times):
                rows.append(100 + self.following(None))
                self.at += self.skipped
        return np.reshape(rows, (turns, 1, -1))


@pytest.mark.parametrize(("skipped", "said"), [(0, ""), (1, "more numbers"), (2, "more numbers")])
def test_two_calls_draw_on_from_one_another(skipped: int, said: str) -> None:
    """The draws of more outputs than one may be taken together, as of noise that is summed."""
    function: Any = InTurn(skipped)
    assert said in other_draws(function, noise(following=function.following), ())
    assert bool(other_draws(function, noise(following=function.following), ())) is bool(said)
    three = noise(following=lambda f: np.concatenate([f.following(f) for _ in range(2)]))
    assert (other_draws(function, three, ()) == "") is (skipped == 0)


@pytest.mark.parametrize(
    ("calls", "at", "goes"), [(0, 1000, 1), (3, 1006, 1), (3, 1004, 0), (1, 1002, 1)]
)
def test_the_next_call_goes_on_after_so_many(calls: int, at: int, goes: int) -> None:
    function: Any = InTurn()
    for block in (1, 2, 3):

        def following(f: Any, n: int = block) -> np.ndarray:
            return np.concatenate([f.following(f) for _ in range(n)])

        function.at = at
        of = noise(None if block == 1 else np.eye(2), following=following)
        assert goes_on(function, of, (), 5, calls) is bool(goes)
        assert function.at == 0
    assert goes_on(function, noise(), (), 5, calls)


def test_numbers_of_far_draws() -> None:
    assert (rare_outputs.FIRST, rare_outputs.MOST_SEEDS, rare_outputs.FEWEST_SEEDS) == (
        100_000,
        100_000,
        200,
    )
    assert (rare_outputs.MOST_NUMBERS, rare_outputs.BLOCK, rare_outputs.EACH) == (
        2 * 10**6,
        10**5,
        4,
    )


@pytest.mark.parametrize(
    ("size", "n", "block"), [(4, 50, 25), (5, 40, 20), (7, 28, 14), (10, 25, 10), (200, 25, 1)]
)
def test_far_draws_are_looked_for_in_blocks(monkeypatch, size: int, n: int, block: int) -> None:
    monkeypatch.setattr(rare_outputs, "MOST_NUMBERS", 200)
    monkeypatch.setattr(rare_outputs, "MOST_SEEDS", 60)
    monkeypatch.setattr(rare_outputs, "FEWEST_SEEDS", 25)
    monkeypatch.setattr(rare_outputs, "BLOCK", 100)
    asked: list[int] = []

    def seeded(_: Any, value: Any, seeds: Any) -> np.ndarray:
        asked.append(len(seeds))
        return np.random.default_rng(1).normal(size=(len(seeds), size))

    of = OutputNoise(
        DrawFunction("z", "gaussian", "g", seeded, lambda _: np.zeros(1)), np.ones(size)
    )
    far_seeds(None, of, ())  # type: ignore[arg-type]
    assert sum(asked) == n
    assert max(asked) == block


def test_far_draws_of_sums_are_of_draws_and_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output without noise is none of them; a sum counts in units of its scale."""
    monkeypatch.setattr(rare_outputs, "FEWEST_SEEDS", 30)
    monkeypatch.setattr(rare_outputs, "MOST_NUMBERS", 1)
    monkeypatch.setattr(rare_outputs, "EACH", 1)
    z = np.random.default_rng(2).normal(size=(30, 5))
    mix = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    draw = DrawFunction(
        "z", "gaussian", "g", lambda f, v, seeds: z[: len(seeds)], lambda _: np.zeros(1)
    )
    monkeypatch.setattr(rare_outputs, "BLOCK", 10**5)
    found = far_seeds(None, OutputNoise(draw, np.array([5.0, 0.0]), mix), ())  # type: ignore[arg-type]
    of = np.concatenate([z[:, :3], z[:, :3] @ mix[:1].T / 5, np.zeros((30, 1))], axis=1)
    length = np.linalg.norm(of, axis=1)
    keys = (of.max(axis=1), -of.min(axis=1), length, -length)
    assert [*found] == [rare_outputs.FIRST + i for i in sorted({int(key.argmax()) for key in keys})]


def test_a_ratio_by_coordinates_adds_up() -> None:
    z = np.random.default_rng(3).normal(size=(2, 300, 4))
    of = _by_coordinate(z[0], z[1] + 1, np.array([2, 0]))
    x = z[0, :5]
    each = [_log_ratio(z[0, :, j], z[1, :, j] + 1)(x[:, j]) for j in (2, 0)]
    assert of(x) == pytest.approx(each[0] + each[1])


def test_ratios_are_of_the_numbers_that_move_most() -> None:
    """64 of 66, by the shift over the noise of both inputs."""
    z = np.random.default_rng(4).normal(size=(2, 60, 66))
    moved = 1.0 + np.arange(66)
    for known in (None, moved):
        found = {s.name: s.of for s in scores.scores(z[0], z[1] + moved, known, (moved, moved))}
        of = found["likelihood ratio by coordinates"]
        x = np.zeros((1, 66))
        values = [of(x + 1e3 * np.eye(66)[i])[0] for i in (0, 1, 2, 65)]
        assert values[0] == values[1] == of(x)[0]
        assert values[2] != of(x)[0] != values[3]


@pytest.mark.parametrize(("n", "ways"), [(64, 64), (65, 24)])
def test_few_values_are_counted_one_by_one(n: int, ways: int) -> None:
    values = np.arange(float(n))
    order = np.random.default_rng(1).permutation(n)
    uneven = np.concatenate([np.full(i + 1, float(i)) for i in order])
    assert len(np.unique(_log_ratio(values, uneven)(values).round(12))) == ways


def test_a_constant_number_is_in_no_shift() -> None:
    z = np.random.default_rng(5).normal(size=(40, 3))
    z[:, 1] = 7.0 + 1e-10 * z[:, 1]  # rounding, of 7
    found = list(_of_shift(z, z + np.arange(1, 4), np.arange(3), np.array([1.0, 2.0, 3.0])))
    assert len(found) == 3
    x = np.random.default_rng(6).normal(size=(1, 3))
    for score in found:
        assert score.of(x) == pytest.approx(score.of(x + 50 * np.eye(3)[1]))
        assert score.of(x) != pytest.approx(score.of(x + np.eye(3)[0] / 2))
    assert list(_of_shift(np.ones((40, 3)), z, np.arange(3), None)) == []


def test_a_promise_is_that_of_the_side_with_fewer_runs() -> None:
    values0, values1 = np.zeros(400), np.array([0.0] * 80 + [1.0] * 20)
    assert promise(values0, values1, 0.0) == promise(np.zeros(100), values1, 0.0)
    assert promise(np.zeros(50), values1, 0.0) < promise(np.zeros(100), values1, 0.0)
