"""What runs of a program show, value by value: by hand, and by loops beside the code."""

from math import inf, lgamma, log, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.attack.local_steps import local_steps
from dpaudit.capture import (
    alignment,
    gradient_inversion,
    premises,
    record_changes,
    sampling,
    visible_output,
)
from dpaudit.capture.alignment import Alignments, below_overflow
from dpaudit.capture.draw_order import _by_value
from dpaudit.capture.local_steps import LocalSteps, mixing_of, said_of
from dpaudit.capture.noise_lines import _sizes, noise_lines, noise_of_tap
from dpaudit.capture.rare_noise import _is_shown
from dpaudit.capture.record_changes import RecordMoves
from dpaudit.capture.record_shift import (
    NoiseMove,
    Response,
    _noiseless,
    leak,
    making_up_for,
)
from dpaudit.capture.runs import AgentRound, MessageId, NamedDraw, TakenBatch
from dpaudit.capture.sampling import Sampling, pattern_of
from dpaudit.capture.shared_draws import owners, same_draws
from dpaudit.capture.worlds import NeighbouringRuns, perturbed
from dpaudit.errors import RunError
from dpaudit.files.claim import Claim
from dpaudit.files.local_training import LocalTraining
from dpaudit.files.threat import ThreatModel

A, B = MessageId(0, (1,), "a", 1), MessageId(0, (2,), "b", 1)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def response(draw: int, places: list[int], number: list[int], size: list[float]) -> Response:
    return Response(draw, np.array(places), np.array(number), np.array(size))


def test_a_factor_makes_an_update_of_a_gradient() -> None:
    found = LocalSteps.of(vector(), vector(-2.0, -2.0), vector(1.0, 0.0))
    assert (found.factor, found.cosine) == pytest.approx((-2.0, -sqrt(0.5)))
    for update, gradient in ((vector(0.0), vector(1.0)), (vector(1.0), vector(0.0))):
        assert LocalSteps.of(vector(), update, gradient)[1:3] == (0.0, 0.0)
    for cosine, n, agrees in (
        (-0.9, 2, True),
        (0.89, 2, False),
        (-sqrt(1 - 0.99e-4), 1, True),
        (sqrt(1 - 1.01e-4), 1, False),
        (0.95, 1, False),
    ):
        assert LocalSteps(vector(), 1.0, cosine).agrees(n) is agrees


def test_several_steps_are_played_where_their_mean_agrees() -> None:
    """Of a gradient that turns with how far the steps went, found in four turns."""
    asked: list[float] = []

    def gradient(factor: float) -> torch.Tensor:
        asked.append(factor)
        return vector(1.0, 0.5 * factor)

    update = -0.3 * vector(1.0, -0.15)
    first = LocalSteps(vector(), 0.5, 0.95)
    found = first.played(update, gradient, (2, 2), None)
    assert len(asked) == 4
    assert all(factor < 0 for factor in asked)
    assert found.factor == pytest.approx(-0.3, rel=1e-3)
    assert found.simulation is not None
    training = LocalTraining(optimizer="sgd", learning_rate=abs(found.factor) / 2)
    expected = local_steps(training, (2, 2))
    assert found.simulation.factor == pytest.approx(expected.factor)
    assert first.played(update, gradient, (2,), None) is first
    assert first.played(vector(0.0, 1.0), gradient, (2, 2), None) is first
    assert mixing_of(update, torch.empty(0, 2), lambda *_: update).shape == (0,)


def test_what_is_attacked_is_said_by_its_steps() -> None:
    one, other = LocalSteps(vector(), 1.0, -0.97), LocalSteps(vector(), 1.0, 0.99)
    assert said_of([(1, one)]) == "the gradient"
    assert "of 3 local steps, with which the update has cosine 0.970" in said_of(
        [(2, other), (3, one)]
    )
    played = one._replace(simulation=SimpleNamespace())  # type: ignore[arg-type]
    assert said_of([(2, played)]) == "2 local steps, played with dummies,"


def test_passes_end_before_a_record_comes_again() -> None:
    found = [list(one) for one in sampling._passes([["a"], ["b"], ["a"], ["c"], ["c", "b"]])]
    assert found == [[["a"], ["b"]], [["a"], ["c"]], [["c", "b"]]]
    assert sampling._log_choices(5, 2) == pytest.approx(log(10))
    assert [sampling._log_choices(5, k) for k in (-1, 0, 5, 6)] == pytest.approx([0.0] * 4)


def test_passes_are_no_chance_beyond_one_in_ten_thousand() -> None:
    """Two passes of n batches of one: by chance (n! / n^n)^2, which is 2.4e-4 of 6 and 3.7e-5 of 7."""
    for n, pattern in ((5, "unknown"), (6, "unknown"), (7, "epochs")):
        chance = 2 * (lgamma(n + 1) - n * log(n))
        assert (chance < log(1e-4)) == (pattern == "epochs")
        names = [[str(i)] for i in range(n)]
        assert pattern_of(names + names) == pattern
    assert pattern_of([["a"], ["b"], ["c"], ["a"], ["b"], ["a"]]) == "random"
    assert pattern_of([["a", "b"], ["b", "a"]]) == "whole"
    assert pattern_of([["a", "b"], ["c", "d"], ["e"]]) == "unknown"
    assert pattern_of([["a"], ["b", "c"], ["d", "e"]]) == "unknown"
    assert pattern_of([["a"], ["c", "d"], ["e", "f", "g"]]) == "random"


def taken(agent: int, *batches: list[str]) -> list[TakenBatch]:
    return [TakenBatch(agent, i, len(one), tuple(one)) for i, one in enumerate(batches)]


def stated(kind: str | None, rate: float = 0.5, victims: tuple[int, ...] = (0,)) -> Any:
    return SimpleNamespace(sampling=kind, sampling_rate=rate, victims=victims)


def test_the_sampling_of_a_run_is_that_of_its_worst_agent() -> None:
    whole, random = taken(0, ["a"], ["a"]), taken(1, ["a"], ["b", "c"], ["d", "e", "f"])
    assert Sampling.of(stated(None), whole).pattern == "whole"
    assert Sampling.of(stated(None, victims=(0, 1)), whole + random).pattern == "random"
    with pytest.raises(RunError, match="every batch has the same records"):
        Sampling.of(stated("fixed"), whole)
    assert Sampling.of(stated("none"), whole).pattern == "whole"
    few = taken(0, *[[f"{i}-{j}" for j in range(20)] for i in range(3)])
    assert Sampling.of(stated("poisson"), few).pattern == "unknown"


@pytest.mark.parametrize(("n", "refused"), [(5, False), (6, True)])
def test_equal_batches_of_a_poisson_sample_are_refused(n: int, refused: bool) -> None:
    """By a chance of (2 pi 20 / 2)^(-(n - 1) / 2): 2.5e-4 of 5 and 3.2e-5 of 6."""
    some = taken(0, *[[f"{i}-{j}" for j in range(20)] for i in range(n)])
    chance = (2 * np.pi * 20 * 0.5) ** (-(n - 1) / 2)
    assert (chance < 1e-4) == refused
    if not refused:
        Sampling.of(stated("poisson"), some)
        return
    with pytest.raises(RunError, match="of agent 0 have 20 records"):
        Sampling.of(stated("poisson"), some)
    Sampling.of(stated("fixed"), some)
    other = taken(0, *[[f"{i}-{j}" for j in range(20 + i % 2)] for i in range(n)])
    Sampling.of(stated("poisson"), other)


def claim(scope: str) -> Claim:
    content = {"text": "c", "epsilon": 1.0, "delta": 1e-5, "scope": scope}
    return Claim.model_validate(content)


@pytest.mark.parametrize(
    ("of", "scope", "unknown", "premise"),
    [
        (Sampling(None, 1.0, "whole"), "run", None, "every batch has the same records"),
        (Sampling(None, 1.0, "whole"), "round", None, "that the record is in the batch"),
        (Sampling(None, 1.0, "random"), "round", "do not pass over all records", ""),
        (Sampling(None, 1.0, "unknown"), "run", "does not show it", ""),
        (Sampling(None, 1.0, "unknown"), "round", None, "that the record is in the batch"),
        (Sampling("poisson", 0.5, "random"), "run", None, "with probability 0.5, by itself"),
        (Sampling("fixed", 0.5, "random"), "run", None, "in batches of fixed size"),
        (Sampling("none", 0.5, "random"), "run", None, "knows which batches hold the record"),
    ],
)
def test_what_is_not_known_of_batches_is_said(of, scope, unknown, premise) -> None:
    said = of.unknown(claim(scope))
    assert (said is None) == (unknown is None)
    assert unknown is None or unknown in said
    assert premise in of.premise(claim(scope))
    assert bool(of.premise(claim(scope))) == (unknown is None)


def event(sequence: int, *shapes: tuple[int, ...], k: int | None = 1, to: int = 1) -> Any:
    tensors = [SimpleNamespace(shape=shape) for shape in shapes]
    about = {"process": 0, "round": k, "source": 0, "destinations": (to,)}
    return SimpleNamespace(sequence=sequence, tensors=tensors, **about)


def draw_at(sequence: int, site: str, *shape: int, **of: Any) -> Any:
    about = {"operator": "normal_", "purpose": None, "parameters": (), "process": 0, "round": 1}
    return SimpleNamespace(sequence=sequence, call_site=site, shape=shape, **{**about, **of})


def test_messages_have_the_sizes_of_parts_and_of_sums() -> None:
    events = [event(0, (2, 3), (4,)), event(1, (5,)), event(2, (7,), k=2)]
    assert _sizes(SimpleNamespace(events=events)) == {6, 4, 10, 5, 15, 7}  # type: ignore[arg-type]


def test_lines_of_noise_draw_as_many_numbers_as_messages_have() -> None:
    def lines(*draws: Any) -> list[tuple[str, bool, bool]]:
        recording: Any = SimpleNamespace(events=[event(1, (4,)), event(9, (4,))], draws=draws)
        return [(one.site, one.why_not is None, bool(one.doubt)) for one in noise_lines(recording)]

    right, parts = draw_at(2, "a", 4), [draw_at(i, "p", 2) for i in (3, 4)]
    assert lines(right, *parts) == [("a", True, False), ("p", True, False)]
    odd = draw_at(5, "o", 3)
    assert lines(odd) == [("o", True, True)]
    assert lines(right, odd) == [("a", True, False), ("o", False, False)]
    outside = [draw_at(1, "x", 4), draw_at(9, "x", 4), draw_at(3, "x", 4, process=1)]
    other = draw_at(3, "x", 4, operator="randperm")
    assert lines(*outside, other) == []
    assert lines(right, draw_at(3, "m", 4, purpose="model")) == [
        ("a", True, False),
        ("m", False, False),
    ]
    assert lines(draw_at(3, "u", 4, operator="uniform_", parameters=(0.0, 1.0))) == [
        ("u", False, False)
    ]


def test_a_shown_noise_is_the_last_draw_of_its_size() -> None:
    def of(*draws: Any) -> list[str] | None:
        return noise_of_tap(SimpleNamespace(draws=draws))  # type: ignore[arg-type]

    shown = draw_at(9, "tap", 4, operator="gaussian")
    assert of(draw_at(1, "a", 4)) is None
    assert of(shown) == []
    assert of(draw_at(1, "a", 4), draw_at(2, "b", 4), shown) == ["b"]
    assert of(draw_at(1, "a", 12), draw_at(2, "b", 8), draw_at(3, "c", 6), shown) == ["b"]
    assert of(draw_at(1, "a", 8), draw_at(2, "b", 8, purpose="data"), shown) == ["a"]
    assert of(draw_at(1, "a", 4, operator="randperm"), shown) == []
    assert of(draw_at(1, "a", 4, process=1), shown) == []
    assert of(draw_at(10, "a", 4), shown) == []


def test_an_adversary_reads_the_first_gradient_of_each_victim() -> None:
    reads = SimpleNamespace(read_by=lambda model: True)
    hidden = SimpleNamespace(read_by=lambda model: False)

    def seen(victim: int, parts: list[Any], links: list[Any]) -> Any:
        return SimpleNamespace(target=SimpleNamespace(victim=victim), parts=parts, links=links)

    by = ThreatModel(name="b", kind="curious", agents=(2,))
    mine, other = (1, 2), (0, 1)
    some = [
        seen(1, [reads, hidden], [[mine]]),
        seen(1, [reads], [[mine], [other]]),
        seen(1, [reads, reads], [[other, mine]]),
        seen(1, [reads], [[mine]]),
        seen(2, [reads], [[mine]]),
    ]
    assert list(gradient_inversion._read(some, by)) == [some[2]]


def test_a_batch_of_images_has_labels() -> None:
    images, labels = torch.zeros(2, 5, 5, dtype=torch.float64), torch.tensor([1, 0])
    found = gradient_inversion.batch_in([labels, images])
    assert found is not None
    assert (found.images.shape, found.images.dtype) == ((2, 1, 5, 5), torch.float32)
    assert found.labels.tolist() == [1, 0]
    assert gradient_inversion.batch_in([torch.zeros(2, 3, 5, 5), labels]) is not None
    for parts in ([images], [labels], [torch.zeros(2, 5), labels], [images, labels[None]]):
        assert gradient_inversion.batch_in(parts) is None


def test_a_blind_guess_is_of_records_that_are_not_attacked() -> None:
    def batch(*values: float, size: int = 2) -> Any:
        images = torch.stack([torch.full((1, size, size), v) for v in values])
        return SimpleNamespace(images=images, labels=torch.tensor([int(v) % 2 for v in values]))

    found = gradient_inversion.others(
        [batch(1, 2, 3), batch(4, 2), batch(6, 7, size=3)], [batch(1)], "k"
    )
    assert found.images[:, 0, 0, 0].tolist() == [2.0, 3.0, 4.0, 2.0]
    assert found.labels.tolist() == [0, 1, 0, 0]
    with pytest.raises(RunError, match="two classes"):
        gradient_inversion.others([batch(1, 2, 4)], [batch(1)], "k")


def test_noise_is_moved_by_the_least_that_makes_up() -> None:
    noised = {A: (response(0, [0, 1], [0, 1], [2.0, 2.0]), response(1, [1], [0], [2.0])), B: ()}
    changes = {A: np.array([4.0, 6.0, 5.0])}
    found = making_up_for(noised, changes, {0: 2, 1: 1})
    assert found.units[0] == pytest.approx([2.0, 1.5])  # two draws share the second number
    assert found.units[1] == pytest.approx([1.5])
    assert (found.left, found.bare, found.hidden) == (pytest.approx(0.0, abs=1e-12), 5.0, True)
    nothing = making_up_for(noised, {B: np.array([-3.0, 1.0])}, {0: 2, 1: 1})
    assert (nothing.left, nothing.bare, nothing.hidden) == (0.0, 3.0, False)
    assert nothing.units[0].tolist() == [0.0, 0.0]
    both = {A: (response(0, [0], [0], [2.0]),), B: (response(0, [0], [0], [-1.0]),)}
    found = making_up_for(both, {A: np.array([2.0]), B: np.array([1.0])}, {0: 1})
    assert found.units[0] == pytest.approx([(2 * 2 - 1) / 5])  # least squares
    assert found.left == pytest.approx(max(abs(2 - 1.2) / 2, abs(1 + 0.6) / 1))


def test_a_draw_that_is_known_hides_nothing() -> None:
    draws = (NamedDraw("0/0/y", "y", 0, 1, 1.0, "gaussian"),)
    place = AgentRound(0, 1, (A,), draws, 1)
    noised = {A: (response(0, [0, 1], [0, 1], [2.0, 2.0]),)}
    runs: Any = [SimpleNamespace(messages={A: np.array(x)}) for x in ([0.0, 0.0], [3.0, 4.0])]
    assert leak(place, noised, [A], *runs).mu == pytest.approx(2.5)
    assert leak(place, noised, [A], *runs, known=[0]).mu == inf
    assert leak(place, noised, [A], runs[0], runs[0]).mu == 0.0


def test_what_rounding_may_leave_beside_noise_shows_nothing() -> None:
    """One draw in two messages, one far smaller: 1e-7 of rounding is 1e-2 of its noise there."""
    draws = (NamedDraw("0/0/y", "y", 0, 1, 1.0, "gaussian"),)
    place = AgentRound(0, 1, (A, B), draws, 1)
    noised = {A: (response(0, [0], [0], [1.0]),), B: (response(0, [0], [0], [1e-5]),)}
    contents = ({A: [0.0, 9.0], B: [0.0]}, {A: [0.5, 9.0], B: [0.5e-5 + 1e-7]})
    runs: Any = [
        SimpleNamespace(messages={m: np.array(x) for m, x in of.items()}) for of in contents
    ]
    assert leak(place, noised, [A, B], *runs).noiseless == B
    assert leak(place, noised, [A, B], *runs, rounding=0.9e-7).noiseless == B
    assert leak(place, noised, [A, B], *runs, rounding=1e-7).mu == pytest.approx(0.5)
    base: Any = SimpleNamespace(single={A}, messages=runs[1].messages)
    of = NeighbouringRuns({0: place}, {0: noised}, {}, base)
    assert of._rounding(noised, [A, B]) == 0.5 * 2.0**-20  # 9.0 has no noise
    assert of._rounding(noised, [B]) == 0.0  # it is no single
    opposite: Any = SimpleNamespace(single={A}, messages={A: np.array([-4.0, 9.0])})
    of = NeighbouringRuns({0: place}, {0: noised}, {}, opposite)
    assert of._rounding(noised, [A, B]) == 4.0 * 2.0**-20


def test_a_part_without_noise_is_weighed_by_its_change() -> None:
    found = _noiseless(np.array([0.0, -2.0, 1.0]), np.array([False, True, True]))
    assert found.places.tolist() == [1, 2]
    assert found.size == pytest.approx([2e-3, 2e-3])
    assert found.ratio == pytest.approx([-1e3, 500.0])
    assert not found.laplace.any()


def test_numbers_are_known_by_value_where_they_are_apart() -> None:
    values = np.array([3.0, -1.0, 0.5])
    found = _by_value(np.array([0.6, 2.9]), values)
    assert found is not None
    assert found.tolist() == [2, 0]
    assert _by_value(np.array([0.5, 0.6]), values) is None  # one moves two
    assert _by_value(np.array([0.5 + 0.38]), values) is None  # 1.5 / 4 apart
    assert _by_value(np.array([0.5 + 0.37]), values) is not None
    assert _by_value(np.array([100.0]), values) is None


def test_changes_are_shortened_below_overflow() -> None:
    most = alignment.MOST_MOVED
    found = below_overflow({A: np.array([2 * most, 1.0]), B: np.array([-4 * most])})
    assert found[A].tolist() == pytest.approx([most / 2, 0.25])
    assert found[B].tolist() == [-most]
    assert below_overflow({A: np.array([0.5])})[A].tolist() == [0.5]
    assert below_overflow({}) == {}


def test_contents_are_the_same_up_to_rounding() -> None:
    same, one = visible_output.SAME, np.array([1.0, 100.0])
    for step, size, alike in ((90, 0.0, True), (110, 0.0, False), (110, 200.0, True)):
        assert visible_output.is_same(one, one + np.array([step * same, 0.0]), size) is alike
    assert not visible_output.is_same(one, np.array([1.0]))
    assert not visible_output.is_same(np.zeros(1), np.array([1e-30]))


def test_two_moves_are_apart_by_a_norm() -> None:
    one = {(1, "y"): np.array([3.0, 0.0]), (2, "y"): np.array([9.0])}
    other = {(1, "y"): np.array([0.0, -4.0]), (1, "z"): np.array([12.0])}
    keys = [(1, "y"), (1, "z")]
    assert record_changes.distance(one, other, keys, 2) == pytest.approx(13.0)
    assert record_changes.distance(one, other, keys, 1) == pytest.approx(19.0)
    assert record_changes.distance(one, other, [], 1) == 0.0
    sizes: Any = {(0, 1, "gaussian"): {"a": 1.0, "b": 3.0}, (1, 1, "gaussian"): {"a": 2.0}}
    moves = RecordMoves({**sizes, (0, 2, "gaussian"): {"a": 9.0}}, None, {})
    assert [moves.largest(k, "gaussian") for k in (1, 2, 3)] == [3.0, 9.0, 0.0]
    assert moves.largest(1, "laplace") == 0.0


def test_a_message_shows_what_noise_does_not_make_up_for() -> None:
    base = {A: np.array([9.0, 9.0]), B: np.array([9.0, 9.0])}
    worlds = SimpleNamespace(base=SimpleNamespace(messages=base))
    runs: Any = SimpleNamespace(hidden=lambda m: np.array([True, False]), worlds=worlds)
    changes = {A: np.array([5.0, 1.0]), B: np.array([0.0, -2.0])}

    def shown(move: NoiseMove) -> MessageId | None:
        return Alignments.without_noise(runs, 1, 0, changes, move)

    assert shown(NoiseMove({}, bare=2.0)) == B
    assert shown(NoiseMove({}, bare=1.0)) == A
    assert shown(NoiseMove({}, bare=4e-5)) is None  # rounding, of 5
    units = {0: np.array([-10.0])}
    assert shown(NoiseMove(units, left=9e-3)) is None
    assert shown(NoiseMove(units, left=1.1e-2)) == A
    assert shown(NoiseMove({}, left=1.1e-3)) == A
    changes = {A: np.array([0.0, 8e-6]), B: np.array([0.0, -8.9e-6])}
    assert (
        shown(NoiseMove({}, bare=8.9e-6)) is None
    )  # rounding of what was sent, in a round without noise
    changes = {A: np.array([0.0, 8e-6]), B: np.array([0.0, -1e-5])}
    assert shown(NoiseMove({}, bare=1e-5)) == B


def test_noise_far_out_is_held_against_the_move_of_a_record() -> None:
    places = {0: AgentRound(0, 1, (A,), (), 1)}
    moved = {0: {(1, "y"): np.array([0.0, 30.0]), (2, "y"): np.array([1e9])}}
    one, other = {A: np.zeros(1)}, {A: np.ones(1)}
    for of, shown in (
        (NoiseMove({0: np.array([0.2, 0.0])}), False),
        (NoiseMove({0: np.array([0.32, 0.0])}), True),
        (NoiseMove({}, left=0.32), True),
        (NoiseMove({}, left=0.2), False),
        (NoiseMove({}, left=np.nan), True),
    ):
        runs: Any = SimpleNamespace(places={1: places}, make_up=lambda k, v, c, of=of: of)
        assert _is_shown(runs, 1, [0], moved, one, other) is shown
    for left, shown in ((0.9e-4, False), (1.1e-4, True)):  # a record that moves nothing
        runs = SimpleNamespace(
            places={1: places}, make_up=lambda *_, left=left: NoiseMove({}, left=left)
        )
        assert _is_shown(runs, 1, [0], {0: {}}, one, other) is shown


def test_releases_that_are_alike_are_the_largest() -> None:
    unit = 1 - premises.PRECISION
    found = list(premises._releases("gaussian", [2.0, 2.0 * unit, 1.0, 0.9 * unit], 0.25))
    assert [one.count for one in found] == [2, 1, 1]
    assert {(one.sampling, one.sampling_rate) for one in found} == {("poisson", 0.25)}
    scales = [1 / one.noise_multiplier for one in found]
    assert scales == pytest.approx([2.0, 1.0, 0.9 * unit], rel=2 * premises.PRECISION)


def test_draws_are_left_out_and_signed_in_turn() -> None:
    y, z = (NamedDraw(f"0/0/{n}", n, 0, 1, 1.0, "gaussian") for n in "yz")
    places = [AgentRound(0, 1, (A,), (y, z), 1), AgentRound(1, 1, (), (y,), 1)]
    assert list(perturbed(places, 2)) == [
        {"silent": (y.key, y.key)},
        {"signs": (y.key, y.key), "sign_seed": 0},
        {"signs": (y.key, y.key), "sign_seed": 1},
        {"silent": (z.key,)},
        {"signs": (z.key,), "sign_seed": 0},
        {"signs": (z.key,), "sign_seed": 1},
    ]


def test_a_draw_of_two_agents_is_the_same_or_its_opposite() -> None:
    def draw(agent: int, name: str, k: int) -> NamedDraw:
        return NamedDraw(f"{agent}/{k}/{name}", name, agent, k, 1.0, "gaussian", k)

    a, b, c = draw(0, "y", 1), draw(1, "y", 1), draw(2, "y", 1)
    later, silent = draw(1, "y", 2), draw(2, "q", 1)
    values = np.array([1.0, -2.0])
    tape = {a.key: values, b.key: -values, c.key: values, later.key: values, silent.key: 0 * values}
    plain: Any = SimpleNamespace(draws=[a, b, c, later, silent], tape=tape)
    found = same_draws(plain, [], [1])
    assert found == {b.key: (a.key, -1), c.key: (a.key, 1)}
    assert same_draws(plain, [], [2]) == {}
    assert same_draws(plain, ["z"], [1]) == {}
    assert owners([a, b, later], found) == {
        a.key: {0, 1, 2},
        b.key: {1},
        later.key: {1},
    }
