"""Values of the adversary's algebra, one by one: by hand, and figures of small views that stay."""

from math import ceil, inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import Interval
from dpaudit.errors import ConfigError
from dpaudit.game.filtering import leak
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.leak import Leak, Met, Together, certified, met, parts, worst_directions
from dpaudit.game.network import accounting as network
from dpaudit.game.network.accounting import bytes_needed, mu_of, muffliato_mu_squared
from dpaudit.game.network.gossip import Participation, stacked_bytes
from tests.game.test_adversary import EAVESDROPPER, curious, game_of
from tests.pinned import hold

MIXED = torch.tensor([[2.0, -0.5, 0.3], [-0.5, 1.0, -0.4], [0.3, -0.4, 1.5]], dtype=torch.float64)


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e6])
def test_mu_is_in_proportion_whatever_the_unit(scale: float) -> None:
    """<H, X> over X with a diagonal of 1: of two uses it is the trace and twice |H_12|."""
    H = matrix([1.0, -0.5], [-0.5, 2.0])
    low, high = mu_of([scale * H[None]], 2)
    assert low.tolist() == pytest.approx([sqrt(4 * scale)], rel=1e-6)
    assert high.tolist() == pytest.approx([sqrt(4 * scale)], rel=1e-6)
    found = certified(scale * MIXED)
    assert found.low / scale == pytest.approx(found.high / scale, rel=1e-6)
    assert found.low / scale == pytest.approx(certified(MIXED).low, rel=1e-6)


def test_mu_is_that_of_the_worst_run_of_uses_of_any_class() -> None:
    H = torch.diag(matrix([1.0, 2.0, 4.0, 3.0])[0])
    H[2, 3] = H[3, 2] = 0.5
    classes = [H[None, :2, :2], H[None]]
    for times, most in ((1, 4.0), (2, 8.0), (3, 10.0), (4, 11.0)):
        low, high = mu_of(classes[1:] if times > 2 else classes, times)
        assert (float(low) ** 2, float(high) ** 2) == pytest.approx((most, most))
    two = torch.stack([H, 2 * H])
    assert mu_of([two], 2)[1].square().tolist() == pytest.approx([8.0, 16.0])
    assert mu_of([torch.zeros(2, 3, 3)], 2)[1].tolist() == [0.0, 0.0]
    low, high = mu_of([MIXED[None]], 3, gap=1e-9)
    assert float(high - low) < 1e-8
    assert float(mu_of([MIXED[None]], 3, gap=0.5)[0]) < float(low)


def test_directions_of_few_coordinates_and_of_many() -> None:
    same, apart = float(MIXED.sum()), float(MIXED.diagonal().sum())
    exact = certified(MIXED)
    assert same < apart < exact.low <= exact.high < float(MIXED.abs().sum())
    assert worst_directions(MIXED, 3) == Interval(exact.low, exact.high)
    assert worst_directions(MIXED, 1) == Interval(same, exact.high)
    assert same < worst_directions(MIXED, 2).low <= exact.high
    assert worst_directions(MIXED.abs(), 1) == Interval(*[float(MIXED.abs().sum())] * 2)
    assert worst_directions(torch.zeros(0, 0), 1) == Interval(0.0, 0.0)
    with pytest.raises(ValueError, match="not finite"):
        certified(MIXED * inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leak, "MOST", 2)
        most = float(MIXED.abs().sum())
        assert certified(MIXED)[:2] == pytest.approx((apart, most))
        assert worst_directions(MIXED, 2) == pytest.approx(Interval(same, most))
        assert certified(MIXED[:2, :2])[1] == pytest.approx(4.0, rel=1e-6)


def test_a_number_shows_those_inclusions_that_it_shows_most_of() -> None:
    """Along the sum of c_1 and c_2 of lengths 3 and 1: shifts 9 / 10^(1/2) and 1 / 10^(1/2)."""
    assert met(matrix([9.0, 0.0], [0.0, 1.0])) == Met(pytest.approx(9 / sqrt(10)), 1)
    assert met(torch.eye(3, dtype=torch.float64)) == Met(pytest.approx(1 / sqrt(3)), 3)
    assert met(torch.ones(3, 3, dtype=torch.float64)) == Met(pytest.approx(1.0), 3)
    assert met(torch.zeros(2, 2)) == Met(0.0, 0)
    assert met(matrix([1.0, -2.0], [-2.0, 1.0])) == Met(0.0, 0)
    G = matrix([1.0, 0.0, 0.2], [0.0, 1.0, 0.0], [0.2, 0.0, 1.0])
    assert [part.tolist() for part in parts(G, 0.1)] == [[0, 2], [1]]
    assert [part.tolist() for part in parts(G, 0.2)] == [[0], [1], [2]]
    assert [part.tolist() for part in parts(-G, 0.1)] == [[0, 2], [1]]


def test_uses_are_summed_by_their_inclusion() -> None:
    uses = [(1, 1, 0), (2, 2, 0), (2, 2, 1)]
    together = Together(uses, matrix([1.0, 0.5, 0.2], [0.5, 2.0, 0.3], [0.2, 0.3, 3.0]))
    assert together.inclusions(3).tolist() == [
        pytest.approx([1.0, 0.7, 0.0]),
        pytest.approx([0.7, 5.6, 0.0]),
        [0.0, 0.0, 0.0],
    ]
    assert together.independent() == {1: pytest.approx(1.7), 2: pytest.approx(6.3)}
    columns = [
        {uses[0]: matrix([1.0, 2.0])[0]},
        {uses[0]: matrix([3.0])[0], uses[1]: matrix([2.0])[0]},
    ]
    found = Together.of(columns)
    assert found.uses == uses[:2]
    assert found.H.tolist() == [[14.0, 6.0], [6.0, 4.0]]


def reading(columns: dict[Any, list[float]], has_laplace: bool = False, **more: Any) -> Any:
    made = {use: matrix(column)[0] for use, column in columns.items()}
    return SimpleNamespace(columns=made, has_laplace=has_laplace, **more)


@pytest.mark.parametrize(
    "readings, separate",
    [
        ([reading({(1, 1, 0): [1.0]}), reading({(2, 2, 0): [1.0]})], True),
        ([reading({(0, 1, 0): [1.0]}), reading({(0, 2, 0): [1.0]})], True),
        ([reading({(1, 1, 0): [1.0]}), reading({(1, 1, 0): [1.0]})], False),
        ([reading({(1, 1, 0): [1.0]}), reading({(1, 1, 0): [1e-13], (2, 2, 0): [1.0]})], True),
        ([reading({(1, 1, 0): [1.0]}), reading({(1, 1, 0): [1e-11], (2, 2, 0): [1.0]})], False),
    ],
)
def test_uses_are_separate_if_each_shows_in_its_own_round_alone(readings, separate) -> None:
    assert leak._is_separate(readings, SimpleNamespace(batches=1)) is separate


def test_batches_with_orthogonal_columns_are_separate() -> None:
    two: Any = SimpleNamespace(batches=2)
    apart = {(1, 1, 0): [1.0, 0.0], (2, 1, 1): [0.0, 1.0]}
    assert leak._is_separate([reading(apart)], two)
    assert not leak._is_separate([reading(apart, has_laplace=True)], two)
    assert not leak._is_separate([reading({**apart, (2, 1, 1): [1e-3, 1.0]})], two)
    assert not leak._is_separate([reading({**apart, (2, 1, 1): [-1e-3, 1.0]})], two)
    assert not leak._is_separate([reading({(3, 1, 0): [1.0]})], two)
    one_inclusion = {(1, 1, 0): [1.0, 0.0], (1, 1, 1): [1.0, 1.0]}
    assert leak._is_separate([reading(one_inclusion)], two)


def leak_with(**changed: Any) -> Leak:
    fields: dict[str, Any] = {
        "by_use": tuple(Interval(float(k), 4.0 * k) for k in (1, 4, 9, 0)),
        "noiseless": {},
        "pure": torch.tensor([torch.nan] * 4),
        "parts": (),
        "separate": True,
        "has_laplace": False,
        "batches": 2,
    }
    return Leak(**fields | changed)


def test_a_leak_is_read_by_round_and_by_kind_of_noise() -> None:
    found = leak_with()
    assert found.by_round.tolist() == [2.0, 3.0]
    assert leak_with(by_use=(Interval(4.0, 4.0),)).by_round.tolist() == [2.0]
    game: Any = SimpleNamespace(releases=lambda shifts, family: (family, shifts), directions=4)
    assert found.mechanism(game, None) == ("gaussian", [1.0, 2.0, 3.0])
    assert found.mechanism(game, 1) == ("gaussian", [1.0, 2.0])
    assert found.mechanism(game, 2, high=True) == ("gaussian", [6.0])
    apart = leak_with(apart=(0.25, 0.0, 4.0, 0.0))
    assert apart.mechanism(game, None, high=True) == ("gaussian", [0.5, 2.0])
    assert apart.mechanism(game, None) == ("gaussian", [1.0, 2.0, 3.0])
    assert leak_with(by_use=(Interval(0.0, 0.0),) * 4).mechanism(game, None) == ()
    pure = leak_with(pure=torch.tensor([0.5, 0.0, 1.0, 2.0]), has_laplace=True)
    assert pure.mechanism(game, None) == ("laplace", [0.5, 1.0, 2.0])
    assert [found.is_pure, pure.is_pure, leak_with(pure=torch.zeros(0)).is_pure] == [
        False,
        True,
        False,
    ]
    assert not leak_with(pure=torch.tensor([1.0, torch.nan])).is_pure
    proven = found.is_proven, pure.is_proven, leak_with(has_laplace=True).is_proven
    assert proven == (True, True, False)
    whole = leak_with(pure=torch.tensor([3.0]), parts=(1.0, 0.5)).mechanism(game, None)
    assert [(r.family, r.noise_multiplier, r.sampling_rate) for r in whole] == [
        ("laplace", 1.0, 1.0),
        ("laplace", 2.0, 1.0),
    ]
    assert found.shown is None
    for j, k in ((0, 1), (1, 1), (2, 1), (3, 2), (4, 2)):
        assert leak_with(noiseless={j: "x"}).shown == (k, "x")


def test_meetings_are_those_of_inclusions_in_each_round() -> None:
    G = torch.eye(4, dtype=torch.float64) + matrix(*[[0.0] * 4] * 4)
    G[:2, :2] = 1.0
    made: Any = SimpleNamespace(releases=lambda shifts: shifts, directions=2)
    found = leak_with(together=G).meetings(made, None)
    root = pytest.approx(1.0)
    assert [[(m.release, m.batches) for m in way] for way in found] == [
        [(root, 2), (root, 1), (root, 1)],
        [(root, 2), (pytest.approx(sqrt(0.5)), 2)],
    ]
    made.directions = 1
    assert len(leak_with(together=G).meetings(made, None)) == 1
    (way,) = leak_with(together=G).meetings(made, 2)
    assert [m.batches for m in way] == [1, 1]
    G[3] = G[:, 3] = 0.0  # an inclusion that shows nothing
    assert [m.batches for m in leak_with(together=G).meetings(made, None)[0]] == [2, 1]
    for none in (
        leak_with(),
        leak_with(together=0 * G),
        leak_with(together=G, has_laplace=True),
        leak_with(together=G, noiseless={1: "x"}),
    ):
        assert none.meetings(made, None) == []


def bound_by_loops(W: np.ndarray, n_rounds: int, noise: float) -> list[list[float]]:
    n, found, power = len(W), np.zeros((len(W), len(W))), np.eye(len(W))
    for s in range(n_rounds):
        for v in range(n):
            for u in range(n):
                for w in range(n):
                    if W[v, w] > 0:
                        part = power[u, w] / (power[:, w] ** 2).sum()
                        found[v, u] += (n_rounds - s) * part / noise**2
        power = W @ power
    return found.tolist()


def test_the_published_bound_is_its_sum_written_as_loops() -> None:
    W = np.array([[0.6, 0.4, 0.0], [0.2, 0.5, 0.3], [0.0, 0.7, 0.3]])
    for n_rounds, noise in ((1, 1.0), (4, 2.0)):
        found = muffliato_mu_squared(torch.from_numpy(W), n_rounds, noise)
        assert found.tolist() == [pytest.approx(row) for row in bound_by_loops(W, n_rounds, noise)]


def test_memory_of_an_adversary_and_how_many_agents_fit(monkeypatch) -> None:
    """Of 7 rounds and 5 agents: 6 x 7 squares, and Grams of every class of uses, 3 of each."""
    for schema, uses, classes in (("every-round", 7, 1), ("once", 1, 7), ((2, 3), 3, 3)):
        of = Participation.of(schema, 7)
        assert uses == ceil(7 / of.every)
        needed = 8 * (3 * 5 * classes * uses**2 + 6 * 7 * 25)
        assert bytes_needed(5, 7, of) == needed
        assert bytes_needed(5, 7, of, stacked=True) == needed + 6 * 8 * 35**2
    assert stacked_bytes(5, 7) == 6 * 8 * 35**2
    W, of = torch.full((5, 5), 0.2), Participation.of("every-round", 7)
    needed = bytes_needed(5, 7, of)
    monkeypatch.setattr(network, "available", lambda: needed)
    network.network_mu(W, 7)
    monkeypatch.setattr(network, "available", lambda: needed - 1)
    with pytest.raises(ConfigError, match="enough for 4 agents"):
        network.network_mu(W, 7)
    monkeypatch.setattr(network, "available", lambda: bytes_needed(100, 7, of))
    with pytest.raises(ConfigError, match="enough for 100 agents"):
        network._refuse_size(130, 7, of, stacked=False)
    monkeypatch.setattr(network, "available", lambda: None)
    network.network_mu(W, 7)


def test_rounds_in_which_a_record_may_be_used() -> None:
    for schema, kind in (
        ("once", (1, 5)),
        ("every-round", (5, 1)),
        ((2, 2), (2, 2)),
        ((2, 4), (2, 4)),
        ((1, 2), (1, 5)),
    ):
        of = Participation.of(schema, 5)
        assert (of.times, of.every) == kind
    classes = [c.tolist() for c in Participation.of((2, 3), 5).classes(5)]
    assert classes == [[0, 3], [1, 4]]
    assert [c.tolist() for c in Participation.of("once", 3).classes(3)] == [[0], [1], [2]]
    with pytest.raises(ConfigError, match="takes 6 rounds of 5; expected 1 times at most"):
        Participation.of((2, 5), 5)


@pytest.mark.parametrize("threat_model", [EAVESDROPPER, curious(0)])
def test_the_linear_view_of_one_message_has_its_leak(threat_model) -> None:
    """The last round shows one number, and earlier ones all."""
    game = game_of("dpdl", "ring", n_agents=4, n_rounds=3, noise_multiplier=2.0)
    whole = Adversary(game, threat_model, 3)
    one = Adversary(game, threat_model, 3, one_message=True)
    view = one.linear_view(10**6)
    assert view.noise is not None
    assert len(view.uses) == 9
    assert len(view.record) == sum(len(r.messages) for r in whole.rounds[:2]) + 1
    A, B = view.record, view.noise
    H = A.T @ np.linalg.pinv(B @ B.T, hermitian=True) @ A
    lows = [use.low for use in one.leak.by_use]
    inclusions = np.array([j for j, *_ in view.uses])
    for j, low in enumerate(lows, start=1):
        block = torch.from_numpy(H[np.ix_(inclusions == j, inclusions == j)])
        assert worst_directions(block, game.directions).low == pytest.approx(low, rel=1e-6)
    assert sum(lows) < sum(use.low for use in whole.leak.by_use)
    observed = sum(len(r.messages) for r in one.rounds)
    assert one.linear_view(B.shape[1] * observed).noise is not None
    assert one.linear_view(B.shape[1] * observed - 1).noise is None


DEFENSES: dict[str, dict[str, Any]] = {
    "dpdl": {"noise_multiplier": 2.0},
    "dp-dpsgd": {"noise_multiplier": 1.0},
    "mafalda": {"noise_multiplier": 1.0, "allow_outside_theory": True},
    "decor": {"noise_multiplier": 1.0},
}


def figures(name: str) -> list[Any]:
    game = game_of(name, "path", n_agents=4, n_rounds=3, **DEFENSES[name])
    found: list[Any] = []
    for threat_model in (EAVESDROPPER, curious(3)):
        adversary = Adversary(game, threat_model, 3)
        own = adversary.leak
        reacts = None if adversary.reacts is None else tuple(adversary.reacts)
        found += [own.by_use, own.noiseless, own.separate, own.apart, reacts]
        found += [tuple(adversary.most_revealing()), adversary.observed]
        found += [[[w for _, w in sorted(r.reveals().items())] for r in adversary.rounds]]
    return found


CASES = {name: lambda name=name: figures(name) for name in DEFENSES}
# fmt: off
EXPECTED: dict[str, list[Any]] = {
    "dpdl": [
        2.019361115, 2.019361115, 2.019361115, 2.019361115, 2.019361115, 2.019361115, True, None,
        None, 1, 1, True, 18, 1.421042264, 1.421042264, 1.421042264, 0.6550702246, 0.6550702246,
        0.5616618648, 0.5616618648, 0.1245132321, 0.1245132321, False, 0.7633335082,
        0.6557524567, 0.1270295, 2, 1, 1, 1, False, 10, 0.3535533906, 0.7116556084, 0.3535533906,
        0.1536766724, 0.6608039534, 0.3528643254,
    ],
    "dp-dpsgd": [
        1, 1, 1, 1, 1, 1, True, None, None, 1, 1, True, 4, 1, 1, 1, 0.1088139282, 0.1088139282,
        0.09793253536, 0.09793253536, 0, 0, False, 0.1381936888, 0.127312296, 0, 2, 0, 1, 2,
        False, 3, 0.316227766, 0.09388252331, 0.3129417444,
    ],
    "mafalda": [
        1, 1, True, None, None, 1, 1, False, 4, 0.8905349104, 0.4055803976, 0.2060391091,
        0.127254745, 0.127254745, True, None, 2, 0, 1, 2, False, 3, 0.2969145093, 0.1977283976,
    ],
    "decor": [
        0.8643933386, 0.8643933386, 0.8643933386, 0.8643933386, 0.8643933386, 0.8643933386, True,
        None, None, 1, 1, True, 4, 0.9297275615, 0.9297275615, 0.9297275615, 0.04006751921,
        0.04006751921, 0.02927217554, 0.02927217554, 0, 0, False, 0.05747416472, 0.04667882105,
        0, 2, 0, 1, 2, False, 4, 0.1723852934, 0.1017390281, 0.1710911323,
    ],
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_figures_of_small_views_stay(name: str) -> None:
    hold(CASES[name](), EXPECTED[name])
