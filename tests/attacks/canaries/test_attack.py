"""One run with many canaries: the real model is left alone, the channels are what they should be."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.canaries.channels import WithCanaries, train_with_canaries
from dpaudit.attacks.canaries.records import WithRecords, records
from dpaudit.defense.noise import Noise
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.statistics.guesses import correct_guesses, mu_from_ranked_guesses
from tests.some_fast import fast_if

EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")


def findings(context: AttackContext, **options: Any) -> list[Any]:
    attack = load_plugin("attacks", "canaries")(**options)
    return attack.measure(context, EAVESDROPPER, lambda done, total: None)


def test_canaries_leave_the_gradient_of_the_real_model_alone(context_of, streams) -> None:
    context = context_of("dp-dpsgd", noise_multiplier=1.0)
    real = context.problem.gradient(streams, 1, 5)
    d = context.setting.d
    oracle = WithCanaries(real, d, 2, 1e4, torch.tensor([1.0, 0.0, 1.0]), 5)
    X = torch.randn(4, d + 3)
    found = oracle.clipped_sum(X, 0.7)
    assert torch.equal(found[:, :d], real.clipped_sum(X[:, :d], 0.7))
    assert found[2, d:].tolist() == pytest.approx([0.7, 0.0, 0.7])
    assert found[[0, 1, 3], d:].abs().max() == 0
    assert oracle(X)[2, d:].tolist() == [2000.0, 0.0, 2000.0]


@pytest.mark.parametrize("name, graph", [("dp-dpsgd", "ring"), ("dyn-d2p", "exponential")])
def test_each_channel_has_the_noise_of_the_protocol(context_of, name, graph) -> None:
    """Log ratios of canaries in every batch are N(-mu^2/2, mu^2) and N(mu^2/2, mu^2): two tests of
    Kolmogorov and Smirnov at 1e-5."""
    noise = {"noise_multiplier": 8.0} if name == "dp-dpsgd" else {"epsilon": 0.3}
    context = context_of(name, graph=graph, n_rounds=4, **noise)
    game = Game.of(context.defense, context.setting, 1, "add-remove", "poisson")
    sampled = Adversary(game, EAVESDROPPER, 4)
    always = Adversary(replace(game, sampling_rate=1.0), EAVESDROPPER, 4)
    drawn = replace(context, streams=Streams(1))
    _, evidence = train_with_canaries(drawn, sampled, always, 400, lambda *_: None)
    mu = always.leak.by_round.item()
    signs = np.where(evidence.included, 1, -1)
    standard = (evidence.log_ratios - signs * mu**2 / 2) / mu
    for there in (True, False):
        assert kstest(standard[evidence.included == there], "norm").pvalue > 1e-5


def test_one_run_refutes_a_claim_far_below_the_truth(context_of) -> None:
    """The bound on mu exceeds the protocol's in 5% of seeds at most; one is fixed."""
    found = findings(context_of("dp-dpsgd", n_rounds=20, noise_multiplier=0.7), canaries=400)
    epsilon, noise = found
    assert epsilon.metrics["epsilon lower bound"].value > 0.5
    assert epsilon.metrics["p-value"].value < 0.05
    assert noise.metrics["mu lower bound"].value <= noise.metrics["mu of the protocol"].value


def test_mu_of_the_protocol_has_both_ends_where_gradients_react(context_of) -> None:
    """Agent 0 of a ring of four does not hear agent 2, nor what agents 1 and 3 have of it."""
    context = context_of("dp-dpsgd", n_rounds=4, noise_multiplier=1.0)
    curious = ThreatModel(name="agent 0", kind="curious", agents=(0,))
    attack = load_plugin("attacks", "canaries")(canaries=40)
    for view, reacts in ((EAVESDROPPER, False), (curious, True)):
        *_, noise = attack.measure(context, view, lambda done, total: None)
        mu = noise.metrics["mu of the protocol"]
        assert any("gradients that react" in note for note in noise.notes) is reacts
        if not reacts:
            assert (mu.low, mu.high) == (None, None)
            whole = mu.value
            continue
        assert mu.low == mu.value <= mu.high
        assert mu.high == pytest.approx(whole)


def test_half_of_the_noise_shows_in_the_bound_on_it(context_of) -> None:
    """The run draws half of the noise that the adversary is told: its channels are twice as loud."""
    context = context_of("dp-dpsgd", n_rounds=1, noise_multiplier=2.0)
    game = Game.of(context.defense, context.setting, 1, "add-remove", "poisson")
    game = replace(game, sampling_rate=1.0)
    told = Adversary(game, EAVESDROPPER, 1)
    louder = context.defense.model_copy(update={"noise_multiplier": 0.5})
    drawn = replace(context, defense=louder, streams=Streams(2))
    _, evidence = train_with_canaries(drawn, told, told, 1000, lambda *_: None)
    right = correct_guesses(evidence.log_ratios, evidence.included, 100)
    assert mu_from_ranked_guesses(1000, 100, right, 0.01) > told.leak.by_round.item()


@pytest.mark.slow
def test_the_real_model_trains_as_it_would_alone(context_of) -> None:
    """Without noise, and with canaries nobody drew, messages on the model's coordinates agree.

    A product over more columns may be summed in another order: 1e-6 is rounding of float32.
    """
    context = context_of("d-psgd", n_rounds=3)
    real = context.problem.gradient(Streams(3), 1, 5)
    oracle = WithCanaries(real, context.setting.d, 1, 1e4, torch.zeros(6), 5)
    X = context.problem.initial(Streams(3))
    both = context.defense.start(
        torch.cat([X, torch.zeros(4, 6, dtype=X.dtype)], 1), context.setting
    )
    alone = context.defense.start(X, context.setting)
    graph = context.setting.network.at(1)
    with_them = context.defense.step(both, 1, graph, oracle, Noise(Streams(3), 1)).state.X
    without = context.defense.step(alone, 1, graph, real, Noise(Streams(3), 1)).state.X
    torch.testing.assert_close(with_them[:, : context.setting.d], without, rtol=0, atol=1e-6)


def test_claims_that_canaries_do_not_test_are_passed_over(context_of) -> None:
    per_round = Claim(text="round", epsilon=0.5, delta=1e-5, scope="round")
    assert findings(context_of("dp-dpsgd", claims=(per_round,), noise_multiplier=1.0)) == []


def test_functions_are_no_records(context_of) -> None:
    with pytest.raises(ConfigError, match="use likelihood-ratio"):
        findings(context_of("dp-dgd"))


@pytest.mark.parametrize("kind", ["mislabelled", "crafted"])
def test_records_without_noise_refute_a_small_claim(context_of, kind) -> None:
    """SGP sends its gradients as they are. Nine of ten right by luck: 1% of seeds."""
    context = context_of("sgp", graph="directed-ring", n_rounds=30)
    (found,) = findings(context, kind=kind, canaries=30, guesses=10)
    assert found.metrics["right guesses"].value >= 9
    assert found.metrics["epsilon lower bound"].value > 0.4
    assert kind in found.notes[0]


def test_records_under_heavy_noise_are_not_found(context_of) -> None:
    """20 guesses of fair coins: 18 right ones by chance in 1 of 5,000 seeds, of which one is fixed."""
    context = context_of("dp-dpsgd", n_rounds=6, noise_multiplier=50.0)
    (found,) = findings(context, kind="mislabelled", canaries=60, guesses=20)
    assert found.metrics["right guesses"].value < 18


@pytest.mark.parametrize("access", fast_if("white-box".__eq__, ["white-box", "black-box"]))
def test_a_final_model_shows_records_without_noise_alone(context_of, access) -> None:
    """Without reference runs what all records teach drowns a canary. 16 of 20 guesses of fair coins
    are right in 1 of 169 seeds, of which one is fixed.
    """
    final = ThreatModel(name="mean", kind="final-model", access=access)
    attack = load_plugin("attacks", "canaries")(kind="crafted", canaries=40, guesses=20)

    def right(sigma: float) -> float:
        n_rounds = 8 if access == "white-box" else 20  # of losses alone more is needed
        context = context_of("dp-dpsgd", n_rounds=n_rounds, noise_multiplier=sigma)
        (found,) = attack.measure(context, final, lambda done, total: None)
        assert "16 runs of the adversary" in found.notes[0]
        return found.metrics["right guesses"].value

    assert right(1e-4) >= 16
    assert right(50.0) < 16


def test_canary_records_add_clipped_gradients_at_their_agent(context_of, streams) -> None:
    context = context_of("dp-dpsgd", noise_multiplier=1.0)
    problem, d = context.problem, context.setting.d
    real = problem.gradient(streams, 1, 5)
    inputs, labels = records("crafted", problem.dataset, 3, np.random.default_rng(0))
    oracle = WithRecords(
        real, problem.gradients, 2, inputs, labels, torch.tensor([1.0, 0.0, 1.0]), 5
    )
    X = torch.randn(4, d)
    added = oracle.clipped_sum(X, 0.7) - real.clipped_sum(X, 0.7)
    alone = problem.gradients.clipped_sum(
        X[2].expand(2, -1), inputs[[0, 2], None], labels[[0, 2], None], 0.7, holders=torch.arange(2)
    ).sum(0)
    assert added[[0, 1, 3]].abs().max() == 0
    assert torch.allclose(added[2], alone, atol=1e-6)
    assert torch.allclose(
        (oracle(X) - real(X))[2],
        oracle.clipped_sum(X, 1e9)[2] / 5 - real.clipped_sum(X, 1e9)[2] / 5,
        atol=1e-6,
    )


def test_mislabelled_records_are_wrong_and_crafted_ones_extreme(context_of) -> None:
    dataset = context_of("dp-dpsgd", noise_multiplier=1.0).problem.dataset
    inputs, labels = records("mislabelled", dataset, 40, np.random.default_rng(0))
    truth = {
        tuple(x.flatten().tolist()): int(y)
        for x, y in zip(dataset.x_test, dataset.y_test, strict=True)
    }
    assert all(
        truth[tuple(x.flatten().tolist())] != int(y) for x, y in zip(inputs, labels, strict=True)
    )
    crafted, _ = records("crafted", dataset, 40, np.random.default_rng(0))
    assert set(crafted.unique().tolist()) == set(dataset.value_range)


def test_records_need_a_gradient_that_messages_give_away(context_of) -> None:
    with pytest.raises(ConfigError, match="no gradient can be derived"):
        findings(context_of("paillier-consensus"), kind="crafted")


def test_an_adversary_that_derives_no_gradient_is_told(context_of) -> None:
    context = context_of("dp-dpsgd", n_rounds=2, noise_multiplier=1.0)
    attack = load_plugin("attacks", "canaries")(kind="crafted", canaries=20)
    one_link = ThreatModel(name="one link", kind="external", links=((0, 1),))
    (found,) = attack.measure(context, one_link, lambda done, total: None)
    assert not found.metrics
    assert "not available to this adversary" in found.notes[0]
