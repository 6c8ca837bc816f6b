"""What noise says of how far messages may move, and where it ends, by hand."""

from math import hypot
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from dpaudit.accounting.privacy_loss import laplace_cdf
from dpaudit.accounting.releases import Release
from dpaudit.attacks.sensitivity import bounded_noise, declared, side_channels
from dpaudit.attacks.sensitivity.declared import DeclaredBounds
from dpaudit.attacks.sensitivity.noise_reach import Reach, _is_sum, _Round, reaching
from dpaudit.defense.contract import Stated
from dpaudit.rng import Streams

NOTHING: Any = None


def reach(*rows: list[float], families: Any = None, beside: bool = False) -> Reach:
    scales = torch.tensor(rows, dtype=torch.float64)
    return Reach(scales, families or ("gaussian",) * scales.shape[1], beside)


def test_noise_of_two_worlds_is_compared_by_its_law() -> None:
    """Sums of Gaussian draws by their norm; Laplace draws one by one."""
    assert declared._is_as_much(reach([3.0, 4.0]), reach([3.0, 4 + 1e-9]))
    assert not declared._is_as_much(reach([3.0, 4.0]), reach([3.0, 4 + 1e-7]))
    assert declared._is_as_much(reach([3.0, 4.0]), reach([5.0]))
    assert not declared._is_as_much(reach([3.0, 4.0]), reach([7.0]))
    assert not declared._is_as_much(reach([3.0, 4.0]), reach([4.0, 3.0]))
    assert not declared._is_as_much(reach([5.0], [5.0]), reach([3.0, 4.0]))
    one, two = reach([3.0], families=("laplace",)), reach([3.0, 0.0], families=("laplace",) * 2)
    assert declared._is_as_much(one, one)
    assert not declared._is_as_much(one, two)
    assert not declared._is_as_much(one, reach([3.0]))
    assert declared._is_no_less(reach([3.0, 4.0]), reach([3.0, 4 + 1e-9]))
    assert declared._is_no_less(reach([3.0, 9.0]), reach([3.0, 4.0]))
    assert not declared._is_no_less(reach([9.0, 3.9]), reach([3.0, 4.0]))
    assert not declared._is_no_less(reach([3.0, 4.0]), None)
    assert not declared._is_no_less(reach([3.0]), reach([3.0], families=("laplace",)))
    assert not declared._is_no_less(reach([3.0], [3.0]), reach([3.0]))


def release(multiplier: float, count: int = 1, family: str = "gaussian") -> Any:
    return SimpleNamespace(
        family=family, noise_multiplier=multiplier, count=count,
        noise_over=lambda records: multiplier / records,
    )  # fmt: skip


LAPLACE = ("laplace", "laplace")


@pytest.mark.parametrize(
    ("of", "releases", "batches", "records", "bound"),
    [
        (reach([3.0, 4.0]), [release(2.0)], 1, 1, (2, 5 / 2)),
        (reach([3.0, 4.0]), [release(2.0)], 1, 2, (2, 5.0)),
        # of four releases two are of each of two batches: those of least noise
        (reach([3.0, 4.0]), [release(2.0, 3), release(0.5)], 2, 1, (2, 5 * hypot(2.0, 0.5))),
        (reach([3.0, 4.0]), [release(2.0, 3)], 2, 1, (2, 5 * hypot(0.5, 0.5))),
        (reach([3.0, 4.0], [5.0, 0.0]), [release(2.0)], 1, 1, (2, 5 / 2)),
        (reach([3.0, 4.0], [5.0, 0.1]), [release(2.0)], 1, 1, None),
        (reach([3.0, 0.0], families=LAPLACE), [release(2.0, 2, "laplace")], 1, 1, (1, 3.0)),
        (reach([3.0, 1.0], families=LAPLACE), [release(2.0, 2, "laplace")], 1, 1, None),
        (
            reach([3.0, 0.0], [0.0, 3.0], families=LAPLACE), [release(2.0, 1, "laplace")],
            1, 1, (1, 1.5),
        ),
        (reach([3.0, 4.0]), [release(2.0, 2, "laplace")], 1, 1, None),
        (reach([3.0, 4.0]), [release(2.0), release(2.0, 1, "laplace")], 1, 1, None),
        (reach([3.0, 4.0], families=("gaussian", "laplace")), [release(2.0)], 1, 1, None),
        (reach([3.0, 0.0], families=("gaussian", "laplace")), [release(2.0)], 1, 1, (2, 1.5)),
        (reach([3.0, 4.0]), [release(2.0), release(0.0)], 1, 1, None),
        (reach([3.0, 4.0]), [], 1, 1, None),
    ],
)  # fmt: skip
def test_a_bound_is_the_noise_over_releases_of_a_batch(
    of, releases, batches, records, bound
) -> None:
    found = declared._bound(of, releases, batches, records)
    assert found == (None if bound is None else (bound[0], pytest.approx(bound[1])))


@pytest.mark.parametrize(
    ("k", "lag", "change", "protects", "first", "expected"),
    [
        (1, 0, "add-remove", "record", {}, 2.5),
        (1, 0, "replace-one", "record", {}, 5.0),
        (1, 0, "add-remove", "user", {}, 5.0),
        (1, 1, "add-remove", "record", {}, None),
        (1, 0, "function", "record", {}, None),
        (3, 0, "add-remove", "record", {}, None),
        (3, 0, "add-remove", "record", {"x": reach([3.0, 4.0])}, 2.5),
    ],
)
def test_a_release_bounds_what_its_noise_is_on(
    monkeypatch, k, lag, change, protects, first, expected
) -> None:
    """Message x has the same noise in both worlds, y has not, and u is sent in one alone."""
    most, distance = [release(2.0)], None
    defense = SimpleNamespace(function_distance=lambda: distance, protects=protects)
    coupled: Any = SimpleNamespace(defense=defense, setting=None, victim=1)
    coupled.declared = lambda agent: most
    here, there = (SimpleNamespace(coupled=coupled, lag=lag, k=k, i=i) for i in (0, 1))
    found: Any = [
        {"x": reach([3.0, 4.0]), "y": reach([3.0, 4.0]), "u": reach([1.0, 1.0], beside=True)},
        {"x": reach([3.0, 4.0]), "y": reach([3.0, 5.0])},
    ]
    monkeypatch.setattr(declared, "reaching", lambda world: found[world.i])
    monkeypatch.setattr(declared, "batches_of", lambda coupled, agent: agent)
    of: Any = declared.declared_bounds(here, there, change, first)  # type: ignore[arg-type]
    if lag or change == "function":
        assert of == DeclaredBounds({}, ())
        return
    assert (of.unlike, of.beside) == (("y",), {"u"})
    assert of.bounds == ({} if expected is None else {"x": (2, pytest.approx(expected, rel=2e-7))})
    assert expected is None or of.bounds["x"].value > expected  # by rounding
    distance = 1.0
    assert declared.declared_bounds(here, there, change, first) == DeclaredBounds({}, ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "cyclic", "size", "per_round", "expected"),
    [(7, False, 10, 1, 7), (7, False, 10, 3, 21), (7, True, 10, 1, 4), (7, True, 3, 2, 14), (0, False, 10, 2, 1)],
)  # fmt: skip
def test_a_record_may_be_in_so_many_batches(
    monkeypatch, steps, cyclic, size, per_round, expected
) -> None:
    """Of four records; in turn, in one of two batches of an agent with ten."""
    defense = SimpleNamespace(n_rounds=9, cyclic=cyclic, batch_size=4, batches_per_round=per_round)
    setting = SimpleNamespace(network=SimpleNamespace(at="at"), sizes=(99, size))
    asked: list[Any] = []
    monkeypatch.setattr(
        declared, "steps_of", lambda *of: (asked.append(of), torch.tensor([steps, 0]))[1]
    )
    coupled: Any = SimpleNamespace(defense=defense, setting=setting)
    assert declared.batches_of(coupled, 1) == expected
    assert asked == [("at", 9, 1)]


def test_draws_that_move_data_alone_are_drawn_again(monkeypatch: Any) -> None:
    """Eight times more; a bound stays where the noise beside them is the same in all."""
    bounds = {name: Stated(2, 1.0) for name in "xyzw"}
    found: Any = DeclaredBounds(bounds, ("u",), frozenset("yzw"))
    monkeypatch.setattr(declared, "declared_bounds", lambda *_: found)
    of = {name: reach([1.0], beside=name in "yzw") for name in "xyzw"}
    other = {"y": reach([1.0]), "z": reach([1.1]), "x": reach([9.0])}

    def redrawn(one: str, two: str, purpose: str, n: int) -> Any:
        assert purpose == "beside"
        return ((f"{one}{i}", f"{two}{i}") for i in range(n))

    monkeypatch.setattr(declared, "redrawn", redrawn)
    monkeypatch.setattr(declared, "reaching", lambda world: of if world != "a3" else other)
    pairs: Any = {"natural": [("a", "b")], "opposite": [("c", "d"), ("e", "f")]}
    known, every = declared.declared_of_pairs(pairs, "add-remove", {})
    assert (sorted(known.bounds), known.unlike, known.beside) == (["x", "y"], ("u",), {*"yzw"})
    assert every["natural"] == [("a", "b"), *((f"a{i}", f"b{i}") for i in range(8))]
    assert every["opposite"][9:11] == [("e", "f"), ("e0", "f0")]
    found = found._replace(beside=frozenset())
    assert declared.declared_of_pairs(pairs, "add-remove", {}) == (found, pairs)


class Step:
    """Two agents with models of six numbers; x has 3 a + b, y has |a|, of each agent."""

    def __init__(self, send: Any) -> None:
        self.send = send

    def step(self, state: Any, k: int, graph: Any, oracle: Any, noise: Any) -> Any:
        sent = {
            name: SimpleNamespace(payload=payload, readers=None)
            for name, payload in self.send(noise, oracle).items()
        }
        if "secret" in sent:
            sent["secret"].readers = torch.tensor([0])
        return SimpleNamespace(sent=sent)


def world_of(send: Any) -> Any:
    streams = Streams(1)
    coupled = SimpleNamespace(
        defense=Step(send), streams=streams,
        setting=SimpleNamespace(network=SimpleNamespace(at=lambda k: None)),
        differences=lambda one, other: {
            n: other[n].payload[1:] - m.payload[1:] for n, m in one.items()
        },
    )  # fmt: skip
    ones = SimpleNamespace(scale=1.0)
    return SimpleNamespace(coupled=coupled, streams=None, k=2, state=None, oracle=ones)


Z = torch.zeros(2, 6, dtype=torch.float64)


def test_noise_that_reaches_a_message_is_seen_draw_by_draw(monkeypatch: Any) -> None:
    """Of agent 1, in units of each family's scale; what is no sum of draws is left out."""

    def send(noise: Any, oracle: Any) -> dict[str, Tensor]:
        a, b = noise.gaussian("a", 2.0, Z[None]).view(2, 6), noise.laplace("b", 5.0, Z)
        first = torch.zeros_like(Z)
        first[:, 0] = a[:, 0]
        return {
            "x": 3 * a - b, "y": a.abs(), "of both": a + a.flip(0), "still": 1 + Z,
            "short": (a + b)[:, :4], "first": first, "secret": a, "spilt": a.roll(1, dims=1),
            "twice": a + 1e-6 * a * b, "half": torch.cat([a, 0 * a[:1]]),
        }  # fmt: skip

    found = reaching(world_of(send))
    assert {name: of.scales.tolist() for name, of in found.items()} == {
        "x": [[0.0, 6.0, 0.0, pytest.approx(5.0)]], "of both": [[2.0, 2.0, 0.0, 0.0]],
    }  # fmt: skip
    assert found["x"].families == ("gaussian", "gaussian", "laplace", "laplace")
    assert not found["x"].beside


@pytest.mark.parametrize(
    "draw",
    [
        lambda noise: noise.gaussian("a", 1.0, Z) + noise.gaussian("b", 1.0, Z[:, :5]).sum(),
        lambda noise: noise.gaussian("a", 1.0, Z) + noise.gaussian("b", 1.0, Z[0]),
        lambda noise: sum(noise.gaussian(f"{i}", 1.0, Z) for i in range(100)),  # 200 rows of 6
        lambda noise: noise.gaussian("a", 1.0, Z)[:, [0, 2, 4]],
    ],
)
def test_draws_of_other_shapes_say_nothing(draw: Any) -> None:
    assert reaching(world_of(lambda noise, oracle: {"x": draw(noise)})) == {}


def test_rows_of_more_draws_than_numbers_take_turns() -> None:
    """Two rows each of 10 draws, of 6 numbers."""

    def send(noise: Any, oracle: Any) -> dict[str, Tensor]:
        return {"x": sum((i + 1) * noise.gaussian(f"{i}", 1.0, Z) for i in range(10))}

    found = reaching(world_of(send))["x"]
    assert found.scales.tolist() == [[(i // 2 + 1.0) * (i % 2) for i in range(20)]]
    assert found.blocks == ()


A, B = torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)


def test_noise_of_layers_reaches_blocks() -> None:
    """Agent 1's, of 4 and 2 numbers: "x" has them in another order than they were drawn in."""

    def send(noise: Any, oracle: Any) -> dict[str, Tensor]:
        b, a = noise.laplace("b", 5.0, B), noise.gaussian("a", 2.0, A)
        return {
            "x": torch.cat([a, 3 * b], 1), "b": b, "a part": a[:, :3], "mixed": a[:, [1, 0, 2, 3]],
            "bare": torch.cat([a, 0 * b], 1), "together": torch.cat([a[:, :2], a[:, 2:] + b], 1),
        }  # fmt: skip

    found = reaching(world_of(send))
    assert {name: of.blocks for name, of in found.items()} == {
        "x": (range(4, 6),) * 2 + (range(4),) * 2,
        "b": (range(2),) * 2 + (range(0),) * 2,
        "bare": (range(0),) * 2 + (range(4),) * 2,
        "together": (range(2, 4),) * 2 + (range(4),) * 2,
    }
    assert found["x"].scales.tolist() == [[0.0, pytest.approx(15.0), 0.0, 2.0]]
    assert found["x"].cuts == [0, 4]
    assert found["x"].pieces([0, 4]).tolist() == [
        [[0.0, 0.0], [0.0, pytest.approx(15.0)], [0.0, 0.0], [2.0, 0.0]]
    ]


def test_a_scale_for_each_coordinate_is_noted() -> None:
    """Of agent 1, whose noise is 4 in two coordinates and 2 in the others, and thrice that in x."""
    scale = torch.tensor([[1.0] * 6, [4.0, 4.0, 2.0, 2.0, 2.0, 2.0]]).double()

    def send(noise: Any, oracle: Any) -> dict[str, Tensor]:
        return {"x": 3 * noise.gaussian("a", scale, Z)}

    x = reaching(world_of(send))["x"]
    assert (x.scales.tolist(), x.cuts) == ([[0.0, 12.0]], [0, 2])
    assert x.pieces(x.cuts).tolist() == [[[0.0, 0.0], [12.0, 6.0]]]
    weights = declared._weights(x)
    assert weights is not None
    assert weights.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert declared._is_as_much(x, x)
    other = x._replace(shares={i: share.flip(0) for i, share in x.shares.items()})
    assert not declared._is_as_much(x, other)
    assert not declared._is_no_less(x, other)


def of_layers(a: float, b: float, *families: str) -> Reach:
    """Noise of two draws, of the first 4 and of the last 2 numbers."""
    return Reach(torch.tensor([[a, b]]).double(), families or ("gaussian",) * 2,
                 blocks=(range(4), range(4, 6)))  # fmt: skip


def test_layers_are_measured_in_units_of_their_noise() -> None:
    """Where they carry 2 and 5, moves of the second count 2/5, and the bound is of noise 2."""
    release = Release(family="gaussian", noise_multiplier=1.0)
    assert declared._bound(of_layers(2.0, 5.0), [release], 1, 1) == Stated(2, pytest.approx(2.0))
    weights = declared._weights(of_layers(2.0, 5.0))
    assert weights is not None
    assert weights.tolist() == pytest.approx([1.0] * 4 + [0.4] * 2)
    assert declared._weights(of_layers(2.0, 2.0)) is None
    assert declared._bound(of_layers(2.0, 0.0), [release], 1, 1) is None
    each = Release(family="laplace", noise_multiplier=0.5)
    laplace = of_layers(2.0, 5.0, "laplace", "laplace")
    assert declared._bound(laplace, [each], 1, 1) == Stated(1, pytest.approx(4.0))


def test_noise_of_layers_is_as_much_as_that_of_a_whole() -> None:
    whole = reach([3.0])
    for a, b, same in ((3.0, 3.0, True), (3.0, 3.1, False), (2.9, 3.0, False)):
        assert declared._is_as_much(of_layers(a, b), whole) is same
        assert declared._is_as_much(whole, of_layers(a, b)) is same
    assert not declared._is_no_less(whole, of_layers(3.0, 3.0))
    assert declared._is_no_less(of_layers(3.0, 4.0), of_layers(3.0, 3.0))
    assert not declared._is_no_less(of_layers(4.0, 2.9), of_layers(3.0, 3.0))


def test_a_coin_beside_the_noise_is_what_it_is_in_the_run(monkeypatch: Any) -> None:
    """It moves nothing where there is no data, and is then really drawn."""
    monkeypatch.setattr(
        "dpaudit.attacks.sensitivity.noise_reach.ScaledGradients",
        lambda oracle, factor: SimpleNamespace(scale=oracle.scale * factor),
    )

    def send(noise: Any, oracle: Any) -> dict[str, Tensor]:
        coin = noise.gaussian("coin", 1.0, Z)
        z = noise.gaussian("z", 3.0, Z)
        return {"x": (1 + coin.sign()) * oracle.scale + z, "z": z}

    world = world_of(send)
    round = _Round(world)
    assert [round.moves_alone(name) for name in ("coin", "z")] == [False, True]
    found = reaching(world)
    assert {name: (of.scales.tolist(), of.beside) for name, of in found.items()} == {
        "x": ([[0.0, 3.0]], True), "z": ([[0.0, 0.0, 0.0, 3.0]], False),
    }  # fmt: skip
    world.streams = Streams(2)
    other = _Round(world)
    drawn = [each._noise.gaussian("coin", 1.0, Z) for each in (round, other)]
    assert not torch.equal(*drawn)


def test_sums_are_told_to_a_billionth() -> None:
    """Of two draws with three numbers each; what is spilt into further coordinates counts."""
    everything = torch.tensor([[1.0, -2.0, 4.0], [2.0, 1.0, -1.0]]).double()
    alone = torch.tensor([[3.0, -1.0, 0.0]]).double()
    together = 3 * everything[:1] - everything[1:]  # (1, -7, 13)
    assert _is_sum(alone, everything, together)
    for off, is_sum in ((1.2e-8, True), (-1.2e-8, True), (1.4e-8, False), (-1.4e-8, False)):
        moved = together + torch.tensor([[0.0, off, 0.0]]).double()
        assert _is_sum(alone, everything, moved) is is_sum
        spilt = alone + torch.tensor([[0.0, 0.0, off]]).double()
        assert _is_sum(spilt, everything, together) is is_sum
    assert _is_sum(alone[:, :2], everything[:, :2], together[:, :2])


def numbers(value: float | Tensor, d: int) -> Any:
    """What reaches agent 1's message of one value, or of one for each number."""
    return np.full(d, value) if isinstance(value, float) else value.numpy()[0, 1, :]


def probability(sent: Any, d: int = 1) -> Any:
    return bounded_noise._probability(sent, torch.Size((1, 3, d)), 1, 4.0, norm.cdf)  # type: ignore[arg-type]


def test_a_record_beyond_noise_that_is_left_out_is_found() -> None:
    """Noise beyond 0.9105 is left out, and a record moves a number by 1/2 either way.

    Values of 0.3 + 0.02 i are tried first, and those around 0.9 in steps of 0.001. So 0.91 is the
    end; with the slack of 1/8, numbers from 0.54 on are beyond it.
    """

    def cut(by: float, cut: float = 0.9105) -> Any:
        def sent(value: Any) -> Any:
            n = numbers(value, 1)
            return np.stack([np.where(abs(n) <= cut, n, 0.0) + more for more in (0.0, by)])

        return sent

    expected = norm.cdf(0.91) - norm.cdf(0.54)
    assert probability(cut(0.5)) == (pytest.approx(expected, abs=1e-6), pytest.approx(0.5))
    assert probability(cut(-0.5)) == (pytest.approx(expected, abs=0.01), pytest.approx(0.5))
    assert probability(cut(0.006)) is None  # the end is not seen so closely


def test_numbers_beyond_the_end_count_together() -> None:
    """Either of two is seen with 1 - (1 - p)^2; a record that moves the end by little is not."""

    def clipped(by: Any, mixed: float = 0.0) -> Any:
        def sent(value: Any) -> Any:
            n = numbers(value, 2)
            n = np.clip(n, -1, 1) + mixed * n[::-1] * (n[0] != n[1])
            return np.stack([n, n + np.array(by)])

        return sent

    p, moved = probability(clipped((0.5, 0.0)), 2)
    assert moved == 0.5
    both = probability(clipped((0.5, 0.5)), 2)
    assert both == (pytest.approx(1 - (1 - p) ** 2), pytest.approx(0.5**0.5))
    assert probability(clipped((0.5, 0.5), mixed=0.1), 2) is None  # of other numbers' noise

    def barely(value: Any) -> Any:
        n = numbers(value, 1)
        return np.stack([np.clip(n, -1, 1), np.clip(n + 1, -1, 1.1)])

    assert probability(barely) is None


@pytest.mark.parametrize(
    ("family", "shape", "found"),
    [
        ("gaussian", (3, 2), "x"),
        ("laplace", (3, 2), "x"),
        ("gaussian", (2, 2), None),  # not a row for each agent
        ("gaussian", (3, 4), None),
    ],
)
def test_messages_with_a_number_for_each_draw_are_looked_at(
    monkeypatch, family, shape, found
) -> None:
    """The one of one row, whose numbers are as many as the draw has of the victim."""
    draw = SimpleNamespace(stream="z", family=family, shape=torch.Size(shape))
    draws = [draw]
    rows = {"wide": (2, 2), "short": (1, 3), "x": (1, 2)}

    def world(coupled: Any, state: Any, k: int, oracle: Any, levels: Any = None) -> Any:
        assert (state, k, oracle[1]) == ("start", 1, (1,))
        level = 0.0 if levels is None else levels["z"]
        sent = {name: torch.full(size, 10.0 * oracle[0] + level) for name, size in rows.items()}
        return SimpleNamespace(noisy=SimpleNamespace(draws=draws, sent=sent), oracle=oracle)

    monkeypatch.setattr(bounded_noise, "PlayedWorld", world)
    monkeypatch.setattr(
        bounded_noise, "replace", lambda w, levels: world(None, "start", 1, w.oracle, levels)
    )
    monkeypatch.setattr(bounded_noise, "all_without_first", lambda oracle, there, who: (there, who))
    asked: list[Any] = []

    def judged(sent: Any, shape: Any, victim: int, span: float, cdf: Any) -> Any:
        asked.append((sent(3.0).tolist(), tuple(shape), victim, span, cdf))
        return (0.5, 2.0)

    monkeypatch.setattr(bounded_noise, "_probability", judged)
    coupled: Any = SimpleNamespace(
        kept_batches=lambda k: k, victim=1, start=lambda: "start", own=lambda sent: sent,
        setting=SimpleNamespace(n_agents=3),
    )  # fmt: skip
    assert bounded_noise.beyond_the_noise(coupled) == (None if found is None else (found, 0.5, 2.0))
    if found is not None:
        is_gaussian = family == "gaussian"
        span, cdf = (6.0, bounded_noise.ndtr) if is_gaussian else (20.0, laplace_cdf)
        assert asked == [([[3.0, 3.0], [13.0, 13.0]], shape, 1, span, cdf)]
    draws.append(draw)
    assert bounded_noise.beyond_the_noise(coupled) is None


@pytest.mark.parametrize(
    ("beside", "again", "said"), [((1, 1), (1, 2), False), ((1, 2), (1, 2), True)]
)
def test_what_a_step_does_beside_is_compared_once(monkeypatch, beside, again, said) -> None:
    """Where the worlds differ in it alone once noise is moved, the move has done that."""
    monkeypatch.setattr(side_channels, "dependent", lambda one, other, rounding=0.0: {"x": True})
    one, other = (SimpleNamespace(played=SimpleNamespace(beside=b)) for b in again)
    replayed = SimpleNamespace(here=one, there=other, moved=1.0)
    monkeypatch.setattr(side_channels, "replay", lambda *_: replayed)
    worlds: Any = [SimpleNamespace(noisy=SimpleNamespace(beside=b)) for b in beside]
    found, open_ = side_channels.compare(*worlds, "add-remove")
    assert (found, open_ == [side_channels.BESIDE]) == ({"x": True}, said)


def test_messages_spread_alike_where_no_law_is_another(monkeypatch: Any) -> None:
    def world(**shapes: Any) -> Any:
        sent = {name: torch.zeros(shape) for name, shape in shapes.items()}
        coupled = SimpleNamespace(own=lambda payload: payload)
        return SimpleNamespace(coupled=coupled, noisy=SimpleNamespace(sent=sent))

    asked: list[Any] = []
    said: list[Any] = [["x"], None, [], []]

    def law(one: Any, other: Any, names: Any, wherever: bool) -> Any:
        asked.append((names, wherever))
        return said[len(asked) - 1]

    monkeypatch.setattr(side_channels, "of_another_law", law)
    one, same = world(x=(1, 2), y=(3, 4)), world(x=(1, 2), y=(3, 4))
    found = [side_channels.spreads_alike(one, same) for _ in range(3)]
    assert found == [False, False, True]
    assert asked == [(["x", "y"], True)] * 3
    for other in (world(x=(1, 2)), world(x=(1, 2), y=(3, 5))):
        assert not side_channels.spreads_alike(one, other)
    assert len(asked) == 3


def test_a_zero_s_sign_counts_where_both_are_zero() -> None:
    def played(*values: float) -> Any:
        message = SimpleNamespace(
            payload=torch.tensor([values]), senders=torch.tensor([0]), receivers=torch.tensor([1])
        )
        return SimpleNamespace(draws=[], sent={"m": message})

    said = ['the signs of zeros in "m" depend on the data']
    for one, other, found in (
        ((0.0, 1.0), (-1.0, 1.0), []),
        ((1.0, 1.0), (-0.0, 1.0), []),
        ((-1.0, 1.0), (1.0, 1.0), []),
        ((0.0, 1.0), (0.0, 1.0), []),
        ((-0.0, 1.0), (0.0, 1.0), said),
    ):
        assert [*side_channels.dependent(played(*one), played(*other))] == found
