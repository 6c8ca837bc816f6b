"""What attacks choose, bound and compare, value by value: by hand, and by loops beside the code."""

from math import log2, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

from dpaudit.attacks.canaries import channels
from dpaudit.attacks.gradient_inversion import attack as inversion
from dpaudit.attacks.gradient_inversion import labels, plan
from dpaudit.attacks.likelihood_ratio import runs
from dpaudit.attacks.membership import _Fits, is_matched
from dpaudit.attacks.mutual_information import samples
from dpaudit.attacks.sensitivity import (
    message_laws,
    noise_log,
    rare_noise,
    side_channels,
    worst_length,
)
from dpaudit.defense.contract import Gradient
from dpaudit.errors import DpauditError
from dpaudit.models.models import architecture
from dpaudit.rng import Streams


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def observed(gradients: Tensor, batch_size: int = 1, **of: Any) -> Any:
    about = {"std": None, "local": None, "secrets": None, "clip_norm": None, "most_joined": 1}
    about |= {"n_secrets": len(gradients), "models": gradients}
    return SimpleNamespace(gradients=gradients, batch_size=batch_size, **{**about, **of})


def task_of(module: nn.Module, shape: tuple[int, ...] = (1, 2, 2), **of: Any) -> Any:
    gradients = SimpleNamespace(module=module, d=10_000)
    about = {"contrast": 0.1, "value_range": (-1.0, 3.0), **of}
    return SimpleNamespace(gradients=gradients, shape=shape, **about)


SMOOTH, KINKED = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()), nn.Sequential(nn.ReLU())
QUIET = vector(0.0)


@pytest.mark.parametrize(
    ("module", "batch", "of", "shape", "expected"),
    [
        (KINKED, 1, {}, (1, 2, 2), ("l1", 0.02, "adam", 2, 1, 300, True)),
        (KINKED, 4, {}, (1, 2, 2), ("l1", 0.02, "adam", 1, 1, 300, True)),
        (SMOOTH, 1, {"std": QUIET}, (1, 2, 2), ("euclidean", 0.0, "lbfgs", 1, 3, 2000, True)),
        (KINKED, 4, {"std": QUIET}, (1, 2, 2), ("chord", 0.4, "adam", 1, 1, 300, True)),
        (KINKED, 1, {"std": QUIET}, (3, 2, 2), ("chord", 0.2, "adam", 1, 1, 150, True)),
        (
            KINKED,
            1,
            {"std": vector(0.05)},
            (1, 2, 2),
            ("likelihood", 10.0, "adam", 2, 1, 300, True),
        ),
        (KINKED, 1, {"std": vector(9.0)}, (1, 2, 2), ("likelihood", 10.0, "adam", 1, 1, 20, True)),
    ],
)
def test_an_attack_is_planned_by_the_noise(module, batch, of, shape, expected) -> None:
    found = plan.plan(observed(torch.ones(1, 10_000).double(), batch, **of), task_of(module, shape))
    assert tuple(found[:7]) == (expected[0], pytest.approx(expected[1]), *expected[2:])
    assert bool(found.notes) == (found.n_steps == 20)


@pytest.mark.parametrize(("batch", "adaptive"), [(4, False), (5, False), (4, True)])
def test_local_steps_of_few_records_go_without_signs(batch: int, adaptive: bool) -> None:
    local = SimpleNamespace(is_adaptive=adaptive, passes=1)
    given = observed(torch.ones(1, 10_000).double(), batch, std=QUIET, local=local)
    found = plan.plan(given, task_of(KINKED))
    plain = batch <= 4 and not adaptive
    assert (found.signed, found.n_steps, found.restarts) == (
        (False, 300, 2) if plain else (True, 150, 1)
    )


def test_noise_is_audible_from_a_fiftieth_of_a_gradient_on() -> None:
    given = observed(torch.stack([vector(*[1.0] * 100), vector(*[2.0] * 100)]))
    for std, heard in ((0.0201, True), (0.0199, False)):
        assert plan._is_audible(given, vector(std, std)) is heard
    with pytest.raises(DpauditError, match="needs noise of a known size"):
        plan.plan(given, task_of(KINKED), "likelihood")


def test_a_gradient_carries_so_many_bits() -> None:
    given, d, std = observed(torch.full((1, 8), 3.0).double()), 8, vector(1.5)
    power = 9 - 2.25 * (1 - 2 * sqrt(2 / 8))
    assert plan.capacity(given, std).tolist() == pytest.approx([d / 2 * log2(1 + power / 2.25)])
    given.clip_norm = 4.0
    assert plan.capacity(given, std).tolist() == pytest.approx([d / 2 * log2(1 + 2 / 2.25)])
    given.gradients = given.gradients * 0
    assert plan.capacity(given, std).tolist() == [0.0]
    two = observed(torch.full((2, 8), 3.0).double(), 8, secrets=torch.tensor([0, 0]), n_secrets=1)
    both = float(plan.capacity(two, vector(9.0, 9.0)).sum()) / (8 * 4)
    chosen = plan.plan(observed(torch.ones(1, 8).double()), task_of(KINKED))
    within = plan._within_capacity(chosen, two, task_of(KINKED), vector(9.0, 9.0))
    assert (within is chosen) == (both >= 0.1)
    assert f"at most {both:.2g} bits" in within.notes[0]
    small = task_of(KINKED)
    small.gradients.d = 8
    assert plan._too_many_unknowns(observed(torch.ones(1, 8), 2), small) == ()
    assert (
        "a batch of 3, 8 coordinates, does not determine its 12"
        in plan._too_many_unknowns(observed(torch.ones(1, 8), 3), small)[0]
    )


def test_records_go_to_negative_classes_first() -> None:
    g = torch.tensor([[-1.0, 0.5, -3.0, 0.1], [-1.0, -2.0, -3.0, -0.5]])
    expected = torch.tensor([[1.2, 0.3, 2.4, 0.0], [1.0, 1.0, 1.0, 1.0]])
    assert labels._counts(g, expected, 4).tolist() == [[1, 0, 3, 0], [1, 1, 1, 1]]
    assert labels._counts(g, expected, 2).tolist() == [[1, 0, 1, 0], [0, 1, 1, 0]]
    weights = torch.einsum("c,f->cf", vector(1.0, -3.0, 2.0), vector(3.0, 4.0))[None]
    along = labels._in_common(weights)
    assert along.tolist() == [pytest.approx([0.6, 0.8])]
    assert labels._in_common(-weights).tolist() == [pytest.approx([-0.6, -0.8])]
    linear = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4, bias=False), nn.Identity())
    assert labels.last_parameters(linear, 4) == "2.weight"
    assert labels.last_parameters(nn.Linear(2, 3), 3) == "bias"
    with pytest.raises(DpauditError, match="ends in Linear"):
        labels.last_parameters(linear, 3)


def test_labels_are_read_off_what_is_not_frozen() -> None:
    network = nn.Linear(2, 3)
    network.bias.requires_grad_(False)
    assert labels.last_parameters(architecture(network, (2,), 3), 3) == "weight"
    headless = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3).requires_grad_(False))
    with pytest.raises(DpauditError, match="ends in Linear whose weights are frozen"):
        labels.last_parameters(architecture(headless, (2,), 3), 3)


def test_searches_start_near_the_middle_of_the_range() -> None:
    given = observed(torch.zeros(2, 3).double(), 2, sizes=(2,))
    for low, high in ((-1.0, 3.0), (0.0, 1e-3)):
        task = task_of(KINKED, value_range=(low, high))
        found = inversion._starts(given, task, 3, torch.Generator().manual_seed(1), 2)
        n = found.shape[-1]
        z = torch.randn((6, n), generator=torch.Generator().manual_seed(1)).double().view(2, 3, n)
        expected = (low + high) / 2 + 0.05 * (high - low) * z
        assert found.shape[:2] == (2, 3)
        torch.testing.assert_close(found, expected.clamp(low, high))
    narrow = task_of(KINKED, value_range=(5.0, 5.0))
    assert set(inversion._starts(given, narrow, 1, torch.Generator(), 1).flatten().tolist()) == {
        5.0
    }


def estimate(gradient: Tensor, std: float | None) -> Any:
    return SimpleNamespace(gradient=gradient, std=std)


def test_records_fit_by_cosine_or_by_likelihood() -> None:
    g, of = torch.tensor([[3.0, 4.0], [0.0, 0.0]]).double(), vector(1.0, 2.0)
    fits = _Fits.together([g[:1], g[1:]], of)
    for std, below in ((None, False), (3.5, False), (3.6, True)):  # 24.5 < 25
        assert fits.are_below_noise(estimate(of, std)) is below
    assert fits.scores(False, 4).tolist() == pytest.approx([11 / 5, 0.0])
    assert fits.scores(True, 4).tolist() == pytest.approx([11 - 25 / 8, 0.0])


def test_a_record_is_matched_if_it_is_nearest() -> None:
    left, record = vector(0.5, 0.5), vector(2.0, 2.0)  # of a batch of 4: record / 4 is (1/2, 1/2)
    decoys = torch.stack([vector(2.0, 1.0), vector(9.0, 9.0), vector(0.0, 0.0)])
    for seed in range(6):
        assert is_matched(left, record, decoys, 4, np.random.default_rng(seed))
        assert not is_matched(left, decoys[1], torch.cat([decoys[:1], record[None]]), 4,
                              np.random.default_rng(seed))  # fmt: skip
    alike = record.expand(3, -1)
    found = [is_matched(left, record, alike, 4, np.random.default_rng(s)) for s in range(400)]
    assert 60 < sum(found) < 140  # of binomial(400, 1/4): false with probability 5e-6


def setting_of(n_agents: int, d: int, n_edges: int) -> Any:
    network = SimpleNamespace(at=lambda k: SimpleNamespace(n_edges=n_edges))
    return SimpleNamespace(n_agents=n_agents, d=d, network=network)


def test_trials_are_played_in_blocks_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has 4 bytes for 8 tensors of (3 + 2) rows of 10 numbers."""
    monkeypatch.setattr(samples, "BLOCK_BYTES", 20 * 5 * 10 * 4 * 8)
    setting = setting_of(3, 10, 2)
    assert samples.blocks(20, setting) == [20]
    assert samples.blocks(21, setting) == [11, 10]
    assert samples.blocks(50, setting) == [17, 17, 16]
    monkeypatch.setattr(samples, "BLOCK_BYTES", 5 * 10 * 4 * 8)
    assert samples.blocks(33, setting) == [11, 11, 11]  # 16 at least fit a block
    monkeypatch.setattr(samples, "BLOCK_BYTES", 5 * 10 * 4 * 8 - 1)
    with pytest.raises(DpauditError, match="16 runs at once of 3 agents"):
        samples.blocks(33, setting)


def defense_of(**of: Any) -> Any:
    needs = {"a": (-1, 0), "b": (0,)}
    about = {
        "messages": {"m": "", "o": ""},
        "observables": {"grad": SimpleNamespace(needs=needs)},
        "combinations": {"all": SimpleNamespace(messages=("m",), delay=2)},
        "n_rounds": 6,
        "private": {},
    }
    return SimpleNamespace(**{**about, **of})


@pytest.mark.parametrize(
    ("name", "span", "read", "last"),
    [
        ("m", range(3, 4), ["m"], 5),
        ("grad", range(2, 4), ["a", "b"], 5),
        ("all", range(1, 6), ["m"], 6),
    ],
)
def test_what_shows_a_round_lies_in_these_rounds(name, span, read, last) -> None:
    defense = defense_of()
    assert samples.span_of(name, defense, 3) == span
    assert list(samples.read_of(name, defense)) == read
    asked: Any = SimpleNamespace(message=name, rounds=(5, 2))
    assert samples.last_round(asked, defense) == last
    assert samples.heard_rounds(asked, defense) == span[-1] - 2
    assert list(samples.read_of("view", defense)) == ["m", "o"]


def test_a_column_is_projected_on_what_varies_most() -> None:
    rng = np.random.default_rng(1)
    values = torch.from_numpy(rng.normal(size=(40, 1, 4)) * [3.0, 0.1, 1.0, 0.0] + 5)
    found = samples._Column(2)
    out = found(values)
    centred = (values[:, 0] - values[:1, 0])[:, :3]
    _, size, V = torch.linalg.svd(centred - centred.mean(0), full_matrices=False)
    torch.testing.assert_close(out.abs(), (centred @ V[:2].T).abs())
    assert found.share == pytest.approx(float((size[:2] ** 2).sum() / (size**2).sum()))
    assert found.kept is not None
    assert found.kept.tolist() == [True, True, True, False]
    assert found.basis is not None
    assert found.basis[3].tolist() == [0.0, 0.0]
    torch.testing.assert_close(found(values[:3]), out[:3])  # by the first block
    alike = samples._Column(1)
    alike(values[..., :3], alike=True)
    scale = (centred - centred.mean(0)).square().mean(0).sqrt()
    _, _, V = torch.linalg.svd((centred - centred.mean(0)) / scale, full_matrices=False)
    assert alike.directions is not None
    torch.testing.assert_close(alike.directions[:, 0].abs(), (V[0] / scale).abs())
    whole = samples._Column(4)
    assert whole(values).shape == (40, 3)
    assert whole.directions is None


class Fixed(Gradient):
    batch_size = 4

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return 2 * X

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Any = None, norm: int = 2
    ) -> Tensor:
        return 3 * X

    def per_record(self, X: Tensor, holders: Any = None, own: bool = False) -> Tensor:
        return torch.stack([X, 7 * X], dim=-2)


def test_an_overheard_gradient_is_the_mean_of_the_batch() -> None:
    noted: list[Tensor] = []
    listening = samples._Listening(Fixed(), 1, noted.append)
    X = torch.arange(6.0).view(3, 2)
    listening(X)
    listening.clipped_sum(X[:2], 1.0, torch.tensor([0, 1]))
    listening.per_record(X[:1], torch.tensor([1]))
    listening(X[:1], torch.tensor([2]))
    listening.at_step(1)(X)
    assert [one.tolist() for one in noted] == [[4.0, 6.0], [1.5, 2.25], [0.0, 2.0], [4.0, 6.0]]
    asked = samples.RevealedQuantity("m", "gradient", 1, None, (1,))  # type: ignore[arg-type]
    assert asked.overhears(defense_of())
    assert not asked.overhears(defense_of(private={"gradient": ""}))


def test_runs_tell_whether_their_scores_are_known() -> None:
    none, one = np.zeros(3), np.array([0.0, 0.0, 1.0])
    for scores, known in (((none, none), False), ((one, none), True), ((none, one), True)):
        assert runs._is_known(SimpleNamespace(scores=scores)) is known  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stds", "rounds"),
    [
        ({2: 1.0, 3: 1.0, 5: 1.0}, [2, 5]),
        ({2: 1.0, 3: 0.2, 5: 0.5}, [2, 3]),
        ({2: 1.0}, [2]),
        ({2: 0.0, 5: 0.0}, [2, 5]),
    ],
)
def test_the_round_of_least_noise_is_compared(monkeypatch, stds, rounds) -> None:
    """Of two draws in each round the smaller part of what the first round has."""

    def step(state: Any, k: int, gradient: Any, noise: Any) -> Any:
        noise.stds = {"a": vector(2 * stds.get(k, 1.0)), "b": vector(3.0)}
        return SimpleNamespace(state=k)

    monkeypatch.setattr(runs, "RecordedNoise", lambda streams, k: SimpleNamespace())
    game = SimpleNamespace(
        start=lambda *_: 0, step=step, played_gradient=lambda n: None, played=None,
        uses=lambda k: k in stds, first=2,
    )  # fmt: skip
    question: Any = SimpleNamespace(game=game, in_round=None, adversary=SimpleNamespace(n_rounds=6))
    assert runs.rounds_of_a_draw(question, Streams(1)) == rounds
    question.in_round = 4
    assert runs.rounds_of_a_draw(question, Streams(1)) == [4]


def test_canaries_have_coordinates_of_their_own() -> None:
    drawn = vector(1.0, 0.0)
    oracle = channels.WithCanaries(Fixed(), 2, 1, 8.0, drawn, 4, (vector(0.0, 1.0),))  # type: ignore[arg-type]
    X = torch.arange(12.0).view(3, 4).double()
    mean, total = oracle(X), oracle.clipped_sum(X, 5.0)
    assert mean[:, :2].tolist() == (2 * X[:, :2]).tolist()
    assert mean[:, 2:].tolist() == [[0, 0], [2.0, 0], [0, 0]]
    assert total[:, :2].tolist() == (3 * X[:, :2]).tolist()
    assert total[:, 2:].tolist() == [[0, 0], [5.0, 0], [0, 0]]
    assert oracle.clipped_sum(X, 9.0)[1, 2:].tolist() == [8.0, 0.0]
    each = oracle.per_record(X)
    assert each.shape == (3, 4, 4)
    assert each[:, :2, :2].tolist() == torch.stack([X[:, :2], 7 * X[:, :2]], 1).tolist()
    assert each[:, :2, 2:].abs().sum() == each[:, 2:, :2].abs().sum() == 0
    assert each[1, 2:, 2:].tolist() == [[8.0, 0.0], [0.0, 0.0]]
    assert each[[0, 2], 2:].abs().sum() == 0
    some = oracle(X[:1], torch.tensor([1]))
    assert some[0, 2:].tolist() == [2.0, 0.0]
    assert oracle.at_step(0)(X)[1, 2:].tolist() == [2.0, 0.0]
    assert oracle.at_step(1)(X)[1, 2:].tolist() == [0.0, 2.0]


def test_laws_are_compared_by_the_better_of_two_ranks() -> None:
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + np.array([0.0, 1.0])
    p = [
        mannwhitneyu(a, b, method="asymptotic").pvalue for a, b in zip(one.T, other.T, strict=True)
    ]
    pairs = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(one, other, strict=True)]
    assert message_laws._p_value(pairs) == pytest.approx(2 * min(p))


def played(*draws: Any, **sent: Any) -> Any:
    return SimpleNamespace(draws=list(draws), sent=sent)


def message(*values: float, to: int = 1, dtype: torch.dtype = torch.float64) -> Any:
    return SimpleNamespace(
        payload=torch.tensor([values], dtype=dtype),
        senders=torch.tensor([0]),
        receivers=torch.tensor([to]),
    )


def asked(stream: str = "z", scale: Any = 1.0, n: int = 2) -> noise_log.RequestedDraw:
    return noise_log.RequestedDraw(stream, "gaussian", torch.Size((1, n)), scale, True)


@pytest.mark.parametrize(
    ("there", "rounding", "said"),
    [
        (played(asked(), m=message(3.0, -2.0)), 0.0, []),
        (played(asked("y"), m=message(1.0, 2.0)), 0.0, [side_channels.OTHER_DRAWS]),
        (played(asked(n=3), m=message(1.0, 2.0)), 0.0, [side_channels.OTHER_DRAWS]),
        (played(asked(scale=1.1), m=message(1.0, 2.0)), 0.0, ['the scale of the noise on "z"']),
        (played(asked(scale=1.1), m=message(1.0, 2.0)), 0.2, []),
        (played(asked(scale=1 + 1e-9), m=message(1.0, 2.0)), 0.0, ["the scale of the noise"]),
        (played(asked(scale=vector(1.0)), m=message(1.0, 2.0)), 0.0, ["the scale of the noise"]),
        (played(asked(), m=message(1.0, 2.0, to=2)), 0.0, ["which messages are sent"]),
        (played(asked(), m=message(1.0)), 0.0, ["which messages are sent"]),
        (played(asked(), n=message(1.0, 2.0)), 0.0, ["which messages are sent"]),
        (played(asked(), m=message(1.0, 0.0)), 0.0, []),
    ],
)
def test_what_differs_beside_values_is_named(there: Any, rounding: float, said: list[str]) -> None:
    found = side_channels.dependent(played(asked(), m=message(1.0, 2.0)), there, rounding)
    assert len(found) == len(said)
    for one, expected in zip(found, said, strict=True):
        assert one.startswith(expected)
        assert found[one] is ("scale" in expected)
    zero = played(asked(), m=message(0.0, 1.0)), played(asked(), m=message(-0.0, 1.0))
    assert [*side_channels.dependent(*zero)] == ['the signs of zeros in "m" depend on the data']


def test_pairs_of_worlds_keep_those_of_the_same_draws() -> None:
    def world(*draws: Any) -> Any:
        return SimpleNamespace(noisy=played(*draws))

    alike, apart = (world(asked()), world(asked(scale=9.0))), (world(asked()), world(asked("y")))
    found = side_channels.with_same_draws({"a": [alike, apart], "b": [apart]})
    assert found == {"a": [alike]}


def test_draws_far_out_are_of_each_stream_and_of_all() -> None:
    one, many = asked("y", n=1), asked("z")._replace(family="laplace")
    found = list(rare_noise._levels(SimpleNamespace(noisy=played(one, many))))  # type: ignore[arg-type]
    assert len(found) == 2 * 11 + 2 + 2
    steps = [5.5 * (11 - i) / 11 for i in range(11)]
    assert [level["y"] for level in found[:22:2]] == pytest.approx(steps)
    assert [level["y"] for level in found[1:22:2]] == pytest.approx([-s for s in steps])
    assert found[22:] == [
        {"z": 15.0},
        {"z": -15.0},
        {"y": 5.5, "z": 15.0},
        {"y": -5.5, "z": -15.0},
    ]
    assert len(list(rare_noise._levels(SimpleNamespace(noisy=played(many))))) == 2  # type: ignore[arg-type]


def test_draws_are_noted_with_their_values() -> None:
    like = torch.zeros(2, 3, dtype=torch.float64)
    noise = noise_log.NoiseLog(Streams(5), 2, moves={"a": torch.ones(2, 3)}, levels={"l": -2.0},
                            flipped={"f": 0})  # fmt: skip
    plain = noise_log.NoiseLog(Streams(5), 2)
    a = plain.gaussian("a", 2.0, like)
    torch.testing.assert_close(noise.gaussian("a", 2.0, like), a + 1)
    assert noise.gaussian("l", 3.0, like).tolist() == [[-6.0] * 3] * 2
    f = plain.laplace("f", 0.5, like)
    torch.testing.assert_close(noise.laplace("f", 0.5, like), f.flip(0))
    assert plain.drawn["gaussian"] == (pytest.approx(float((a / 2).square().sum())), 6)
    assert plain.drawn["laplace"] == (pytest.approx(float((f / 0.5).abs().sum())), 6)
    plain.gaussian("a", 1.0, like)
    assert [(d.stream, d.is_fresh) for d in plain.draws] == [
        ("a", True),
        ("f", True),
        ("a", False),
    ]
    silent = noise_log.NoiseLog(Streams(5), 2, silent=True)
    assert not silent.gaussian("a", 2.0, like).any()
    assert silent.draws[0].scale == 2.0
    stacked = noise_log.NoiseLog(Streams(5), 2, trials=torch.Size((4,)))
    out = stacked.gaussian("a", 2.0, like.expand(4, 2, 3))
    torch.testing.assert_close(out, a.expand(4, 2, 3))


@pytest.mark.parametrize(
    ("made", "value"),
    [
        (lambda z, x: x + z, 1.0),
        (lambda z, x: z + x, 1.0),
        (lambda z, x: x - z, -1.0),
        (lambda z, x: z - x, -1.0),
        (lambda z, x: x + 2 * z, 0.5),
        (lambda z, x: x + z / 4, 4.0),
        (lambda z, x: x + (-z), -1.0),
        (lambda z, x: (x + z) + x, 2.0),
        (lambda z, x: x.clone().add_(z), 1.0),
        (lambda z, x: x.clone().sub_(z), -1.0),
        (lambda z, x: x * z, None),
        (lambda z, x: x + z.square(), None),
    ],
)
def test_a_value_under_noise_is_noted_in_units_of_it(made: Any, value: float | None) -> None:
    x = vector(1.0, -3.0)
    noise = noise_log.NoiseLog(Streams(5), 1, watched=True)
    made(noise.gaussian("z", 1.0, x), x)
    if value is None:
        assert noise.values == {}
    else:
        torch.testing.assert_close(noise.values["z"][-1], value * x)


class Lengths:
    """A step that sends a gradient clipped to norm 2 in "right", and from norm 3 on in "late"."""

    def differences(self, base: dict[str, Tensor], sent: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: (sent[name] - base[name])[None] for name in sent}


def test_lengths_are_those_that_move_a_message_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(gradient: Tensor) -> dict[str, Tensor]:
        size = float(gradient.norm())
        unit = gradient / max(size, 1e-300)
        late = gradient if size < 3 else 2 * unit
        return {"right": min(size, 2.0) * unit, "late": late, "none": 0 * gradient}

    def world(gradient: Tensor) -> Any:
        return SimpleNamespace(play=lambda silent: SimpleNamespace(sent=sent(gradient)))

    towards = vector(3.0, 4.0)
    monkeypatch.setattr(worst_length, "_vacant", lambda coupled, without: world(0 * towards))
    monkeypatch.setattr(worst_length, "_with", lambda coupled, without, gradient: world(gradient))
    tried = [0.5, 1.9, 2.1, 2.9, 3.1, 100.0]
    coupled: Any = Lengths()
    found = worst_length._chosen(coupled, None, towards, tried, 2, False)  # type: ignore[arg-type]
    assert found[1] == 2.9
    assert found[0] >= 2.1
    assert len(found) == 2


def test_a_search_of_lengths_is_in_multiples_of_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float]] = []

    def chosen(coupled: Any, world: Any, towards: Any, tried: Any, *_: Any) -> list[float]:
        seen.append(tried)
        return [2.5]

    monkeypatch.setattr(worst_length, "_chosen", chosen)
    monkeypatch.setattr(worst_length, "_vacant", lambda coupled, without: "vacant")
    monkeypatch.setattr(worst_length, "_with", lambda coupled, without, gradient: gradient.tolist())
    world: Any = SimpleNamespace(oracle=SimpleNamespace(batch_size=2), state=[torch.zeros(3, 2)])
    towards = vector(3.0, 4.0)

    def pairs(clip: float | None, opposite: bool) -> Any:
        return worst_length.longest_moving(None, world, towards, clip, 2, opposite, False)  # type: ignore[arg-type]

    assert pairs(2.0, False) == ([("vacant", [1.5, 2.0])], None)
    assert pairs(None, True) == ([([-1.5, -2.0], [1.5, 2.0])], None)
    assert seen[0] == [share * 2.0 for share in (*worst_length.SHARES, *worst_length.FAR)]
    assert seen[1] == [share * 5.0 for share in worst_length.SHARES if share < 1]
    zero = worst_length.longest_moving(None, world, 0 * towards, 2.0, 2, False, False)  # type: ignore[arg-type]
    assert zero == ([], None)
