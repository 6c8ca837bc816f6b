"""Gradients estimated from views, held against what was really sent and against closed forms."""

from dataclasses import replace
from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.defense import Gradient, Noise, Setting, ThreatModel
from dpaudit.defense.transcript import Transcript
from dpaudit.defense.view import View
from dpaudit.errors import NotObservable
from dpaudit.game.estimating.estimate import LinearWindow, _size, _whitening
from dpaudit.game.estimating.window import GradientInput, ProbedWindow, System, _of_colours
from dpaudit.game.matrices import NotLocal
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

EAVESDROPPER = ThreatModel(name="eavesdropper")
D, ROUND, N_ROUNDS, B = 400, 4, 6, 8


class Given(Gradient):
    """The mean gradient of each agent at each model it is asked at; small, as of a large model."""

    batch_size = B

    def __init__(self, k: int, dtype: torch.dtype) -> None:
        self.k, self.dtype = k, dtype
        self.asked: list[tuple[int, Tensor, Tensor]] = []  # agent, model, gradient

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        agents = range(X.shape[-2]) if holders is None else holders.tolist()
        return torch.stack([self._one(a, X[m]) for m, a in enumerate(agents)])

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return B * self(X, holders)

    def _one(self, agent: int, model: Tensor) -> Tensor:
        for a, known, gradient in self.asked:
            if a == agent and torch.equal(known, model):
                return gradient
        seed = 1000 * self.k + 31 * agent + len(self.asked)
        g = torch.randn(D, generator=torch.Generator().manual_seed(seed), dtype=self.dtype)
        self.asked.append((agent, model.clone(), g / sqrt(D)))
        return self.asked[-1][2]


def made(name: str, **options: Any) -> tuple[Any, Setting]:
    setting = Setting(build_graph("ring", 6), (40,) * 6, D)
    defense = load_plugin("defenses", name)(n_rounds=N_ROUNDS, batch_size=B, **options)
    return defense.calibrate(setting), setting


def heard(
    defense: Any, setting: Setting, threat_model: ThreatModel, dtype: torch.dtype = torch.float64
) -> tuple[View, Given]:
    X = torch.randn(D, generator=torch.Generator().manual_seed(5), dtype=dtype)
    state: Any = defense.start(X.expand(6, D).clone(), setting)
    captures, asked = {}, {}
    for k in range(1, N_ROUNDS + 1):
        asked[k] = Given(k, dtype)
        graph = setting.network.at(k)
        state, captures[k], *_ = defense.step(state, k, graph, asked[k], Noise(Streams(7), k))
    rounds = {ROUND - 1, ROUND, ROUND + 1}
    return View.of(threat_model, Transcript(captures), rounds), asked[ROUND]


PRIVATE = [
    ("dp-dpsgd", {"noise_multiplier": 1.0}),
    ("dpdl", {"noise_multiplier": 20.0}),
    ("dyn-d2p", {"epsilon": 1.0}),
    ("dp-dgd", {}),
    ("dpps", {}),
    ("partpsp", {}),
]
BARE = ["d-psgd", "sgp", "dgd"]


@pytest.mark.parametrize("name, options", PRIVATE, ids=[name for name, _ in PRIVATE])
def test_what_is_off_is_the_noise_that_is_said(name: str, options: dict[str, Any]) -> None:
    """The mean of 400 squares: within 5 standard errors of 1, for each defense and point.

    A square of Laplace noise of variance 1 has variance 5, of Gaussian noise 2.
    A correct estimate fails with probability below 1e-5 for the eight that are looked at. DPDL's
    momentum weighs its gradient by a factor that is linearised: noise dominates it here.
    """
    defense, setting = made(name, **options)
    window = LinearWindow(defense, setting, EAVESDROPPER, range(ROUND - 1, ROUND + 2))
    view, given = heard(defense, setting, EAVESDROPPER)
    known = [(model, g) for agent, model, g in given.asked if agent == 1]
    for found in window.estimates(view, ROUND, 1):
        model, gradient = min(known, key=lambda pair: float((pair[0] - found.model).norm()))
        assert float((model - found.model).norm()) <= 1e-6 * float(model.norm())
        if found.std is not None:
            square = float(((found.gradient - gradient) / found.std).square().mean())
            assert square == pytest.approx(1, abs=5 * sqrt(2 / D) * (3 if name == "dp-dgd" else 1))


@pytest.mark.parametrize("name", BARE)
def test_without_noise_it_is_the_gradient(name: str) -> None:
    defense, setting = made(name)
    window = LinearWindow(defense, setting, EAVESDROPPER, range(ROUND - 1, ROUND + 2))
    view, given = heard(defense, setting, EAVESDROPPER)
    found = window.estimates(view, ROUND, 1)[0]
    _, model, gradient = next(asked for asked in given.asked if asked[0] == 1)
    torch.testing.assert_close(found.gradient, gradient, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.model, model, rtol=1e-6, atol=1e-8)


def test_rounding_of_messages_is_in_its_noise() -> None:
    defense, setting = made("d-psgd")
    window = LinearWindow(defense, setting, EAVESDROPPER, range(ROUND - 1, ROUND + 1))
    view, given = heard(defense, setting, EAVESDROPPER, torch.float32)
    found = window.estimates(view, ROUND, 1)[0]
    gradient = next(g for agent, _, g in given.asked if agent == 1)
    off = float((found.gradient - gradient).square().mean().sqrt())
    assert found.std is not None
    assert 0.01 * found.std < off < 3 * found.std


def test_on_dpdl_it_is_the_stripped_momentum() -> None:
    """G_i less the cross-gradients leaves e_i (1/sqrt(w_ii) N + alpha sum_j w_ij / 2) under z_ii."""
    defense, setting = made("dpdl", noise_multiplier=20.0)
    window = LinearWindow(defense, setting, EAVESDROPPER, range(ROUND - 1, ROUND + 1))
    W, N = setting.network.at(1).W, 6
    own = 1 / (sqrt(W[1, 1].item()) * N)
    std = own * 20.0 * defense.clip_norm / B
    gain = own + defense.calibration * float(W[1].sum()) / 2
    points = [window.std(u) for u in window.inputs if (u.round, u.agent) == (ROUND, 1)]
    assert min(points) == pytest.approx(std / gain, rel=0.05)
    assert sorted(points)[1:] == pytest.approx([20.0 * defense.clip_norm / B] * 2, rel=1e-6)


def test_the_most_certain_gradient_is_the_first() -> None:
    defense, setting = made("dpdl", noise_multiplier=20.0)
    window = LinearWindow(defense, setting, EAVESDROPPER, range(ROUND - 1, ROUND + 1))
    view, _ = heard(defense, setting, EAVESDROPPER)
    stds = [found.std for found in window.estimates(view, ROUND, 1)]
    assert None not in stds
    assert stds == sorted(stds, key=lambda std: std or 0.0)
    here = [window.std(u) for u in window.inputs if (u.agent, u.round) == (1, ROUND)]
    assert stds[0] == pytest.approx(min(here))


def test_noise_that_follows_gradients_is_not_known() -> None:
    defense, setting = made("dpps")
    assert not LinearWindow(defense, setting, EAVESDROPPER, range(3, 5)).has_known_noise


def test_links_that_carry_the_same_gradient_are_averaged() -> None:
    setting = Setting(build_graph("complete", 6), (40,) * 6, D)
    defense = load_plugin("defenses", "dpdl")(
        n_rounds=N_ROUNDS, batch_size=B, noise_multiplier=20.0, calibration=0.0
    ).calibrate(setting)
    window = LinearWindow(defense, setting, EAVESDROPPER, range(ROUND - 1, ROUND + 1))
    (point,) = [u for u in window.inputs if (u.round, u.agent) == (ROUND, 1)]
    assert window.std(point) == pytest.approx(20.0 * defense.clip_norm / B / sqrt(6), rel=1e-6)


def test_of_many_trials_it_is_what_it_is_of_each() -> None:
    """The same weights: but for the rounding of messages, which is theirs together."""
    defense, setting = made("dpdl", noise_multiplier=20.0)
    window = LinearWindow(defense, setting, EAVESDROPPER, range(ROUND - 1, ROUND + 2))
    view, _ = heard(defense, setting, EAVESDROPPER)
    halved = {
        k: {name: replace(sent, payload=sent.payload / 2) for name, sent in capture.items()}
        for k, capture in view.transcript.rounds.items()
    }
    both = {
        k: {
            name: replace(sent, payload=torch.stack([sent.payload, halved[k][name].payload]))
            for name, sent in capture.items()
        }
        for k, capture in view.transcript.rounds.items()
    }
    found = window.gradients(View(EAVESDROPPER, Transcript(both)), ROUND, 1)
    alone = sorted(window.estimates(view, ROUND, 1), key=lambda one: one.input.point)
    expected = torch.stack([one.gradient for one in alone])
    assert found.shape == (2, 3, D)
    torch.testing.assert_close(found, torch.stack([expected, expected / 2]), rtol=1e-6, atol=1e-8)


def test_a_curious_agent_that_lacks_messages_is_refused() -> None:
    defense, setting = made("dp-dpsgd", noise_multiplier=1.0)
    curious = ThreatModel(name="agent 0", kind="curious", agents=(0,))
    window = LinearWindow(defense, setting, curious, range(ROUND - 1, ROUND + 1))
    view, _ = heard(defense, setting, curious)
    with pytest.raises(NotObservable, match="does not tell it from other gradients and states"):
        window.estimates(view, ROUND, 1)
    assert GradientInput(ROUND, 1, 0) in window.inputs


def test_an_adversary_that_reads_no_message_is_refused() -> None:
    """All that paillier-consensus sends is encrypted for its receiver."""
    defense = load_plugin("defenses", "paillier-consensus")(n_rounds=3)
    setting = Setting(build_graph("complete", 3), (1,) * 3, 2)
    window = LinearWindow(defense, setting, EAVESDROPPER, range(1, 4))
    with pytest.raises(NotObservable, match="eavesdropper reads no message of rounds 1 to 3"):
        window.gradients(View(EAVESDROPPER, Transcript({})), 2, 0)


def test_a_round_that_was_not_recorded_is_named() -> None:
    defense, setting = made("d-psgd")
    window = LinearWindow(defense, setting, EAVESDROPPER, range(1, 3))
    view, _ = heard(defense, setting, EAVESDROPPER)
    with pytest.raises(NotObservable, match='"x" of round 1 was not recorded'):
        window.estimates(view, 2, 1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dp-dpsgd", {"noise_multiplier": 1.0}),
        ("dpps", {}),
        pytest.param("dpdl", {"noise_multiplier": 20.0}, marks=pytest.mark.slow),
    ],
)
def test_agents_that_do_not_meet_are_moved_together(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linear steps, those that are linearised, and those in which all agents share a number."""
    setting = Setting(build_graph("ring", 60), (40,) * 60, D)
    defense = load_plugin("defenses", name)(n_rounds=N_ROUNDS, batch_size=B, **options)
    played = ProbedWindow(defense.calibrate(setting), setting, EAVESDROPPER, range(3, 5), 1.0)
    moves, real = list[int](), ProbedWindow.moved

    def counted(self: ProbedWindow, given: Tensor) -> Tensor:
        moves.append(len(given))
        return real(self, given)

    monkeypatch.setattr(ProbedWindow, "moved", counted)
    together = System.of(played)
    few = sum(moves) < played.shape.unknowns
    monkeypatch.setattr("dpaudit.game.estimating.window.HOPS", ())  # each by itself
    alone = System.of(played)
    assert few == (name != "dpps")
    for one, other in zip(together[2:], alone[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_unknowns_moved_in_blocks_are_those_moved_at_once(monkeypatch) -> None:
    defense, setting = made("dpdl", noise_multiplier=20.0)
    rounds = range(ROUND - 1, ROUND + 1)
    at_once = LinearWindow(defense, setting, EAVESDROPPER, rounds)
    monkeypatch.setattr("dpaudit.game.estimating.window._MOVED", 1)  # each by itself
    by_turns = LinearWindow(defense, setting, EAVESDROPPER, rounds)
    assert by_turns.observed == at_once.observed
    told = [(at_once.std(u), by_turns.std(u)) for u in at_once.inputs if u.round == ROUND]
    assert [one for one, _ in told] == pytest.approx([one for _, one in told], rel=1e-6)


def test_on_a_graph_that_varies_no_unknowns_are_moved_together() -> None:
    graphs: Any = {3: build_graph("ring", 4), 4: build_graph("ring", 4)}
    setting = SimpleNamespace(network=SimpleNamespace(at=graphs.get))
    played: Any = SimpleNamespace(setting=setting, rounds=range(3, 5))
    with pytest.raises(NotLocal, match="the graph varies"):
        _of_colours(played, np.arange(2))


def test_gradients_are_as_large_as_noise_leaves_them() -> None:
    """Means of squares 1 and 9, of which noise is 2: what is left is 8 of an effect of 2."""
    seen = torch.tensor([[1.0, -1.0], [3.0, 3.0]], dtype=torch.float64)
    A, B = torch.eye(2).double(), torch.tensor([[1.0, 1.0, 0.0], [0.0] * 3]).double()
    assert _size(seen, A, B) == pytest.approx(2.0)
    for effect, noise in ((0 * A, B), (A, 3 * B), (A, sqrt(5) * B)):
        with pytest.raises(NotObservable, match="and nothing of any gradient"):
            _size(seen, effect, noise)
    F = torch.tensor([[2.0, 0.0, 1.0], [1.0, 3.0, 0.0]], dtype=torch.float64)
    U = _whitening(F)
    torch.testing.assert_close(U @ F @ F.mT @ U.mT, torch.eye(2).double())
    assert _whitening(torch.diag(torch.tensor([1.0, 0.0]).double())).isfinite().all()
