"""Batches in turn: the game has the record in the batch of which the view tells most."""

from dataclasses import replace
from math import sqrt

import pytest
import torch
from torch import Tensor

from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.likelihood_ratio.question import QuestionContext
from dpaudit.defense.contract import Setting
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.network.accounting import network_mu
from dpaudit.game.worst_case.record import in_worst_batch
from dpaudit.graphs.graph import Graph, Network
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from tests.scratch import scratch_run

ROUNDS, CYCLE, VICTIM = 6, 2, 2
READER = ThreatModel(name="agent 1", kind="curious", agents=(1,))
OPTIONS = {"noise_multiplier": 1.0, "allow_outside_theory": True, "n_rounds": ROUNDS}


def matrices(swapped: bool) -> tuple[Tensor, ...]:
    """A path of four; ``swapped``: of three in even rounds, and in odd ones 2 and 3 swap, mostly."""
    path, swap = (torch.eye(4, dtype=torch.float64) for _ in range(2))
    path[[0, 1, 1, 2], [1, 0, 2, 1]] = 1.0
    path[[2, 3], [3, 2]] = 0.0 if swapped else 1.0
    swap[2:, 2:] = torch.tensor([[1.0, 9.0], [9.0, 1.0]])
    each = (swap, path) if swapped else (path,)
    return tuple(A / A.sum(1, keepdim=True) for A in each)


def played(swapped: bool, correlation: str, d: int = 50) -> tuple[Game, Setting]:
    network = Network(tuple(Graph(W) for W in matrices(swapped)))
    setting = Setting(network, (4 * CYCLE,) * 4, d)
    given = load_plugin("defenses", "mafalda")(batch_size=4, correlation=correlation, **OPTIONS)
    return Game.of(given.calibrate(setting), setting, VICTIM, "add-remove"), setting


def mu_squared(game: Game) -> float:
    (found,) = Adversary(game, READER, ROUNDS).leak.by_use
    return found.high


def test_the_worst_batch_of_a_varying_graph_is_not_the_first() -> None:
    game, _ = played(swapped=True, correlation="none")
    worst = in_worst_batch(game, READER, ROUNDS)
    assert (game.first, worst.first) == (1, 2)
    assert mu_squared(worst) > 1.2 * mu_squared(game)
    everything = sqrt(ROUNDS // CYCLE)  # by which the defense divides its noise
    W, schema = matrices(swapped=True), (ROUNDS // CYCLE, CYCLE)
    expected = network_mu(W, ROUNDS, schema, adversaries=[READER]).high[0, VICTIM]
    assert sqrt(mu_squared(worst)) == pytest.approx(float(expected) / everything, rel=1e-5)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("correlation", ["none", "square-root", "anti-pgd", "optimised"])
def test_no_batch_tells_more_than_the_one_that_is_taken(swapped, correlation) -> None:
    game, _ = played(swapped, correlation)
    worst = in_worst_batch(game, READER, ROUNDS)
    of_each = [mu_squared(replace(game, first=batch)) for batch in range(1, CYCLE + 1)]
    assert mu_squared(worst) == pytest.approx(max(of_each), rel=1e-5)
    if not swapped and correlation == "none":
        assert worst.first == 1


def test_the_exact_leak_and_its_runs_are_of_that_batch(setting_of) -> None:
    problem, setting = setting_of("path", 4)
    game, setting = played(swapped=True, correlation="none", d=setting.d)
    claim = Claim(text="ours", epsilon=1.0, delta=1e-5)
    context = AttackContext(problem, setting, game.defense, (claim,), Streams(3), scratch_run())
    pair = ThreatModel(name="two", kind="colluding", agents=(0, 1))
    asking = QuestionContext(context, pair, 40, None, 0.05, stop_early=False)
    asked = asking.question(claim)
    assert (asked.game.victim, asked.game.first) == (VICTIM, 2)
    assert asked.game == asked.adversary.game
    once = claim.model_copy(update={"scope": "round"})
    asked = asking.question(once)
    assert asked.in_round % CYCLE == 0
    assert asked.game.uses(asked.in_round)
