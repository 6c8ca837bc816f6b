"""Several batches in one round: each is drawn, accounted and leaked by itself."""

from collections.abc import Mapping
from math import sqrt
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import epsilon
from dpaudit.defense import Defense, GaussianDefense, Round, Setting, broadcast
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.runs.play import play
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams

EAVESDROPPER = ThreatModel(name="eavesdropper")
SIGMA, K, ROUNDS = 4.0, 3, 2


class State(NamedTuple):
    X: Tensor


class LocalSteps(GaussianDefense):
    """K local steps X <- X - (S + N) / B, then X is sent and mixed; ``apart``: each is sent."""

    paper: ClassVar[str] = "none"
    claims: ClassVar[str] = "none"
    messages: ClassVar[Mapping[str, str]] = {"x": "the model after the local steps"}

    apart: bool = False

    @property
    def batches_per_round(self) -> int:
        return K

    def start(self, X, setting):
        return State(X)

    def step(self, state, k, graph, gradient, noise):
        X, C, B = state.X, self.clip_norm, self.batch_size
        sent = {}
        for s in range(K):
            S = gradient.at_step(s).clipped_sum(X, C)
            X = X - (S + noise.gaussian(f"gradient {s}", self.sigma * C, S)) / B
            sent[f"x/{s + 1}"] = broadcast(graph, X)
        sent = sent if self.apart else {"x": sent[f"x/{K}"]}
        return Round(State(graph.mix(X)), sent)

    def models(self, state):
        return state.X


def game_of(rate: float, n: int = 100, **options: bool) -> Game:
    size = max(1, round(n * rate))
    defense = LocalSteps(
        noise_multiplier=SIGMA, clip_norm=1.0, n_rounds=ROUNDS, batch_size=size, sampling="poisson",
        **options,
    )  # fmt: skip
    setting = Setting(build_graph("ring", 4), (n,) * 4, d=100)
    return Game.of(defense, setting, 1, "add-remove")


def test_a_message_shows_the_sum_under_the_noise_of_all() -> None:
    leak = Adversary(game_of(0.2), EAVESDROPPER, ROUNDS).leak
    mus = [sqrt(squared.low) for squared in leak.by_use]
    assert mus == pytest.approx([1 / (SIGMA * sqrt(K))] * (K * ROUNDS))
    assert leak.by_round.tolist() == pytest.approx([1 / (SIGMA * sqrt(K))] * ROUNDS)
    assert not leak.separate  # batches of one round meet in one message


def test_batches_whose_steps_are_sent_one_by_one_are_apart() -> None:
    game = game_of(0.2, apart=True)
    leak = Adversary(game, EAVESDROPPER, ROUNDS).leak
    assert [sqrt(squared.low) for squared in leak.by_use] == pytest.approx([1 / SIGMA] * 6)
    assert leak.separate
    found = epsilon(leak.mechanism(game, None), 1e-5)
    bracket = game.defense.mechanism(game.setting, EAVESDROPPER, 1)
    assert sum(release.count for release in bracket.most) == K * ROUNDS
    assert found.high == pytest.approx(epsilon(bracket.most, 1e-5).high, rel=1e-6)


def test_one_round_of_a_claim_has_all_its_batches() -> None:
    game = game_of(0.2, apart=True)
    leak = Adversary(game, EAVESDROPPER, ROUNDS).leak
    assert sum(release.count for release in leak.mechanism(game, 2)) == K


def test_a_record_in_every_batch_adds_up_over_them() -> None:
    leak = Adversary(game_of(1.0), EAVESDROPPER, ROUNDS).leak
    (squared,) = leak.by_use  # K shifts of 1 in each round, under K sigma^2
    assert squared.low == pytest.approx(ROUNDS * K / SIGMA**2)


def test_each_batch_draws_the_record_by_itself() -> None:
    """With rate q each of K batches has it: in the mean score K q of the shift of all."""
    game = game_of(0.5)
    adversary = Adversary(game, EAVESDROPPER, 1)
    drawn: list[Tensor] = []
    spied = game.gradient

    class Spy(Game):
        def gradient(self, first, *later):
            drawn.extend([first, *later])
            return spied(first, *later)

    of_game = {f: getattr(game, f) for f in Game.__dataclass_fields__}
    play(adversary, 400, Streams(3), game=Spy(**of_game))
    per_batch = [d[400:] for d in drawn if len(d) == 800 and bool(d.any())]
    assert len(per_batch) == K
    both = torch.stack(per_batch)
    agree = (both[0] == both[1]).double().mean().item()
    assert 0.35 < agree < 0.65  # a half if independent; beyond these in 1e-8 of all seeds


def test_noise_from_a_budget_counts_every_batch() -> None:
    setting = Setting(build_graph("ring", 4), (100,) * 4, d=10)
    given = LocalSteps(epsilon=2.0, n_rounds=ROUNDS, batch_size=10, clip_norm=1.0)
    defense = given.calibrate(setting)
    spent = epsilon(defense.mechanism(setting, EAVESDROPPER, 1).most, 1e-5).high
    assert 1.99 < spent <= 2.0
    assert isinstance(defense, Defense)


def test_two_agents_know_the_noise_that_they_draw_together() -> None:
    class Pairs(LocalSteps):
        def step(self, state, k, graph, gradient, noise):
            X = state.X
            ends = torch.tensor([[i, (i + 1) % 4] for i in range(4)])
            V = noise.shared("pair", self.sigma, X, ends)
            X = X - gradient.clipped_sum(X, 1.0) + V - V.roll(1, -2)
            return Round(State(graph.mix(X)), {"x": broadcast(graph, X)})

    game = game_of(1.0)
    alone = {**game.defense.model_dump(), "n_rounds": 1}
    pairs = Pairs(**alone)
    game = Game.of(pairs, game.setting, 1, "add-remove")

    def mu(*agents: int) -> float:
        kind = "external" if not agents else "curious" if len(agents) == 1 else "colluding"
        threat = ThreatModel(name="them", kind=kind, agents=agents)
        return Adversary(game, threat, 1).leak.by_round[0].item()

    # Laplacian noise sigma^2 L of the ring: its sum over agents is 0, and so shows the record.
    assert mu() == torch.inf
    assert mu(3) == 0  # the opposite agent hears nothing of agent 1 in the first round
    assert mu(0) == pytest.approx(1 / SIGMA)  # it knows one of the two noises
    assert mu(0, 2) == torch.inf  # both neighbours know all noise of agent 1
