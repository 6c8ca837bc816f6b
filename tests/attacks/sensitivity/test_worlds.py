"""Rounds of neighbouring worlds against shifts worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpaudit.attacks.sensitivity.examination import RoundExamination, RoundPair
from dpaudit.attacks.sensitivity.noise_log import NoiseLog
from dpaudit.attacks.sensitivity.search import Candidates, ascent, stacked
from dpaudit.attacks.sensitivity.worlds import (
    CoupledWorlds,
    FunctionChange,
    PlayedWorld,
    Record,
    _close,
    lengths,
    placed,
    reordered,
    rounding,
)
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dgd import DPDGD
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.defenses.sensitivity_reduced import SensitivityReduced
from dpaudit.errors import DpauditError
from dpaudit.models.models import parameters_of
from dpaudit.selftest.correct import seeded_as_in_round

VICTIM = 1


@pytest.fixture
def coupled_of(setting_of, streams):
    def make(defense, graph="ring", n_agents=4):
        problem, setting = setting_of(graph, n_agents, "mlp")
        return CoupledWorlds(defense.calibrate(setting), problem, setting, streams, VICTIM)

    return make


@pytest.fixture
def sgd(coupled_of):
    return coupled_of(DPDPSGD(noise_multiplier=1.0, clip_norm=0.1, batch_size=3, n_rounds=5))


def gradient_by_autograd(coupled, x, record):
    module, x = coupled.classification.gradients.module, x.detach().clone().requires_grad_(True)
    logits = functional_call(module, parameters_of(module, x), (record.input[None],))
    return torch.autograd.grad(cross_entropy(logits, record.label[None]), x)[0]


def a_record(coupled, i=0):
    inputs, labels = coupled.classification.records(VICTIM)
    return Record(inputs[i].double(), labels[i])


def test_an_added_record_moves_by_gradient_over_batch_size(sgd) -> None:
    state, record = sgd.start(), a_record(sgd)
    oracle = sgd.oracle(1)
    here = sgd.play(state, 1, placed(oracle, VICTIM, None)).sent
    there = sgd.play(state, 1, placed(oracle, VICTIM, record)).sent
    g = gradient_by_autograd(sgd, state.X[VICTIM], record)
    assert g.norm() > 0.1  # so that clipping matters
    expected = -0.05 * g * (0.1 / g.norm()) / 3
    moved = sgd.differences(here, there)["x"]
    torch.testing.assert_close(moved, expected[None], rtol=1e-9, atol=1e-14)
    assert lengths(moved, 2).item() == pytest.approx(0.05 * 0.1 / 3, rel=1e-9)


def test_a_replaced_record_moves_by_the_clipped_difference(sgd) -> None:
    state, old, new = sgd.start(), a_record(sgd, 0), a_record(sgd, 5)
    oracle = sgd.oracle(1)
    here = sgd.play(state, 1, placed(oracle, VICTIM, old)).sent
    there = sgd.play(state, 1, placed(oracle, VICTIM, new)).sent
    clipped = []
    for record in (old, new):
        g = gradient_by_autograd(sgd, state.X[VICTIM], record)
        clipped.append(g * min(1.0, 0.1 / g.norm().item()))
    moved = sgd.differences(here, there)["x"][0]
    torch.testing.assert_close(moved, -0.05 * (clipped[1] - clipped[0]) / 3, rtol=1e-9, atol=1e-14)


def test_messages_of_other_agents_are_bit_identical(sgd) -> None:
    state, oracle = sgd.start(), sgd.oracle(1)
    here = sgd.play(state, 1, oracle).sent["x"].payload
    there = sgd.play(state, 1, placed(oracle, VICTIM, None)).sent["x"].payload
    assert [torch.equal(here[i], there[i]) for i in range(4)] == [True, False, True, True]


def test_a_record_alone_leaves_nothing_else_in_the_batch(sgd) -> None:
    record = a_record(sgd)
    batch = placed(sgd.oracle(1), VICTIM, record, alone=True).batch
    assert batch.weights[VICTIM].tolist() == [1, 0, 0]
    assert batch.weights[0].tolist() == [1, 1, 1]
    assert torch.equal(batch.inputs[VICTIM, 0], record.input)
    assert placed(sgd.oracle(1), VICTIM, record).batch.weights is None  # a full batch stays one


def test_the_order_of_records_matters_to_no_sum(sgd) -> None:
    state, oracle = sgd.start(), sgd.oracle(1)
    here, there = (sgd.play(state, 1, o).sent["x"].payload for o in (oracle, reordered(oracle)))
    torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-14)
    assert not torch.equal(oracle.batch.inputs, reordered(oracle).batch.inputs)


def test_a_witness_draws_as_noise_does_in_all_trials(streams) -> None:
    like = torch.zeros(4, 7, dtype=torch.float64)
    witness = NoiseLog(streams, 3)
    for family in ("gaussian", "laplace"):
        expected = getattr(Noise(streams, 3), family)("x", 0.5, like)
        assert torch.equal(getattr(witness, family)("x", 0.5, like), expected)
        stacked = NoiseLog(streams, 3, trials=torch.Size([3]))
        trials = getattr(stacked, family)("x", 0.5, like.expand(3, 4, 7))
        assert torch.equal(trials, expected.expand(3, 4, 7))
    assert [draw[:2] for draw in witness.draws] == [("x", "gaussian"), ("x", "laplace")]


def test_a_witness_draws_for_each_record_what_noise_draws(streams) -> None:
    like = torch.zeros(4, 3, 1, dtype=torch.float64)
    expected = Noise(streams, 3).gaussian("coins", 1.0, like)
    assert torch.equal(NoiseLog(streams, 3).gaussian("coins", 1.0, like), expected)
    flipped = NoiseLog(streams, 3, flipped={"coins": 1}).gaussian("coins", 1.0, like)
    assert torch.equal(flipped, expected.flip(1))


def test_a_silent_witness_notes_the_scale_and_draws_nothing(streams) -> None:
    witness = NoiseLog(streams, 1, silent=True)
    assert not witness.laplace("m", 2.5, torch.ones(2, 3)).any()
    assert witness.draws[0].scale == 2.5


def test_candidates_play_the_worlds_of_a_batch_with_the_record(sgd) -> None:
    state, oracle = sgd.start(), sgd.oracle(1)
    records = [a_record(sgd, i) for i in (0, 4, 9)]
    inputs = torch.stack([r.input for r in records])
    labels = torch.stack([r.label for r in records])
    candidates = Candidates(placed(oracle, VICTIM, None), VICTIM, inputs, labels)
    sent = sgd.play(stacked(state, 3), 1, candidates).sent["x"].payload
    for payload, record in zip(sent, records, strict=True):
        one = sgd.play(state, 1, placed(oracle, VICTIM, record)).sent["x"].payload
        torch.testing.assert_close(payload, one, rtol=1e-11, atol=1e-14)


def test_ascent_climbs_to_the_top_within_the_range() -> None:
    top = torch.tensor([[0.3, -0.2], [5.0, 0.1]], dtype=torch.float64)  # the second is outside

    def value(z):
        return -(z - top).square().sum(1)

    best, values = ascent(value, torch.zeros_like(top), (-1.0, 1.0), 200)
    torch.testing.assert_close(best[0], top[0], rtol=0, atol=1e-2)
    assert best[1, 0] == 1.0
    assert torch.equal(values, value(best))


def test_ascent_without_the_record_returns_to_its_start() -> None:
    start = torch.rand(3, 2, dtype=torch.float64)
    best, _ = ascent(lambda z: torch.ones(3, dtype=torch.float64), start, (0.0, 1.0), 10)
    assert torch.equal(best, start)


def test_ascent_through_numpy_returns_to_its_start() -> None:
    start = torch.rand(3, 2, dtype=torch.float64)
    best, values = ascent(lambda z: torch.as_tensor(z.numpy().sum(1)), start, (0.0, 1.0), 10)
    assert torch.equal(best, start)
    assert torch.equal(values, start.sum(1))


def test_a_candidate_that_asks_for_no_gradient_gives_none(sgd) -> None:
    """A step may then leave torch, as one in NumPy does."""
    inputs = a_record(sgd, 0).input[None]
    candidates = Candidates(sgd.oracle(1), VICTIM, inputs, a_record(sgd, 0).label[None])
    X = stacked(sgd.start(), 1).X
    assert not candidates.clipped_sum(X, 1.0).requires_grad
    wanted = replace(candidates, inputs=inputs.clone().requires_grad_())
    assert wanted.clipped_sum(X, 1.0).requires_grad


def test_an_optimised_record_moves_more_than_natural_ones(sgd) -> None:
    free = {"clip_norm": 1e6, "noise_multiplier": 0.0}  # so that the gradient's length counts
    free = replace(sgd, defense=sgd.defense.model_copy(update=free))
    state, oracle = free.start(), free.oracle(1)
    here = free.play(state, 1, placed(oracle, VICTIM, None)).sent
    pair = RoundPair(RoundExamination(free, 6, 30), state, 1, oracle, "add-remove", 2)
    natural = pair.natural()

    def objective(sent):
        return lengths(free.own(sent["x"]) - free.own(here["x"]), 2)

    found = pair.optimised(natural)
    moved = [
        objective(free.play(state, 1, placed(oracle, VICTIM, record)).sent).item()
        for record in (natural, found)
    ]
    assert moved[1] > 1.2 * moved[0]
    assert found.input.abs().max() <= 1
    every = [
        objective(free.play(state, 1, placed(oracle, VICTIM, a_record(free, i))).sent).item()
        for i in range(len(free.classification.records(VICTIM)[0]))
    ]
    assert moved[0] == pytest.approx(max(every))


def test_restarts_in_several_stacks_find_what_one_stack_finds(sgd, monkeypatch) -> None:
    start = a_record(sgd, 3)
    examination, oracle = RoundExamination(sgd, 5, 8), sgd.oracle(1)
    pair = RoundPair(examination, sgd.start(), 1, oracle, "replace-one", 2, present=start)
    found = []
    for at_once in (2**26, 2 * 12 * sgd.setting.d):  # all 5, or 2 + 2 + 1
        monkeypatch.setattr("dpaudit.attacks.sensitivity.examination.AT_ONCE", at_once)
        found.append(pair.optimised(start))
    torch.testing.assert_close(found[0].input, found[1].input)
    assert found[0].label == found[1].label


def test_a_changed_function_moves_by_its_slope_at_one_agent(sgd) -> None:
    X, slope = sgd.start().X, torch.linspace(0, 1, sgd.setting.d, dtype=torch.float64)
    oracle = sgd.oracle(1)
    changed = FunctionChange(oracle, VICTIM, slope)
    expected = torch.zeros_like(X)
    expected[VICTIM] = slope
    torch.testing.assert_close(changed(X) - oracle(X), expected)
    holders = torch.tensor([VICTIM, 0, VICTIM])
    difference = changed(X[:3], holders) - oracle(X[:3], holders)
    torch.testing.assert_close(difference, torch.stack([slope, 0 * slope, slope]))
    with pytest.raises(DpauditError, match="function adjacency"):
        changed.clipped_sum(X, 1.0)


def deltas(coupled, n_rounds, slope):
    """||x - x'||_1 of the victim after each round, all messages as observed in one world."""
    state = own = coupled.start()
    found = []
    for k in range(1, n_rounds + 1):
        oracle = coupled.oracle(k)
        here = coupled.play(state, k, oracle)
        own = coupled.replayed(own, k, FunctionChange(oracle, VICTIM, slope), here.sent)
        assert own is not None
        state = here.state
        found.append((own.X - state.X)[VICTIM].abs().sum().item())
        others = [i for i in range(4) if i != VICTIM]
        torch.testing.assert_close(own.X[others], state.X[others], rtol=0, atol=1e-12)
    return found


def slope_of(coupled, size=1.0):
    slope = torch.zeros(coupled.setting.d, dtype=torch.float64)
    slope[2] = size
    return slope


def test_replays_leave_delta_alpha_k_of_a_changed_function(coupled_of) -> None:
    """Xie, Liu and Chai, Lemma 4.4 with equality, for a linear change."""
    defense = SensitivityReduced(
        batch_size=3, n_rounds=8, gradient_distance=0.5, allow_outside_theory=True
    )
    coupled = coupled_of(defense)
    expected = [0.5 * defense.alpha(k) for k in range(1, 9)]
    assert deltas(coupled, 8, slope_of(coupled, 0.5)) == pytest.approx(expected, rel=1e-9)


def test_replays_let_a_hidden_state_keep_what_it_knows(coupled_of) -> None:
    """True consensus carries W_ii of the difference on: Delta(k) = W_ii Delta(k-1) + alpha_k."""
    coupled = coupled_of(DPDGD(variant="true-consensus", batch_size=3, n_rounds=6))
    expected = coupled.defense.sensitivities(6, coupled.setting, VICTIM)
    assert expected[5] > 1.3 * coupled.defense.alpha(6)  # the carried part counts
    assert deltas(coupled, 6, slope_of(coupled)) == pytest.approx(expected, rel=1e-9)


def test_a_world_without_noise_cannot_explain_a_message(coupled_of) -> None:
    coupled = coupled_of(DPDGD(batch_size=3, n_rounds=6).without_noise())
    state, slope = coupled.start(), slope_of(coupled)
    one, two = (FunctionChange(coupled.oracle(k), VICTIM, slope) for k in (1, 2))
    here = coupled.play(state, 1, coupled.oracle(1))
    own = coupled.replayed(state, 1, one, here.sent)  # z(1) does not depend on f
    assert not torch.equal(own.X, here.state.X)
    after = coupled.play(here.state, 2, coupled.oracle(2))
    assert coupled.replayed(own, 2, two, after.sent) is None


def test_draws_seeded_for_another_round_are_noted_in_their_own(coupled_of) -> None:
    class OfRoundThree(DPDPSGD):
        def step(self, state, k, graph, gradient, noise):
            return super().step(state, k, graph, gradient, seeded_as_in_round(3, noise))

    coupled = coupled_of(OfRoundThree(noise_multiplier=1.0, clip_norm=0.1, batch_size=3))
    world = PlayedWorld(coupled, coupled.start(), 1, coupled.oracle(1))
    watched = world.watched({})
    [key] = watched.values
    assert key in watched.draws
    assert key[0] == 1
    moved = world.watched({key: torch.ones(())}).played.sent["x"].payload
    assert not torch.equal(moved, watched.played.sent["x"].payload)


def test_rounding_is_far_below_an_effect_and_grows() -> None:
    assert rounding(10.0, 0.06, 32, 8_000) == pytest.approx(
        2**-53 * (160 + 8_032 * 32 * 0.06), rel=1e-12
    )
    assert rounding(10.0, 0.06, 32, 8_000) < 1e-10 * 0.06 * 1e3


def test_payloads_are_close_up_to_64_roundings_of_the_larger() -> None:
    """Where the largest entry itself is larger by so much in one of the two, in either order."""
    step = 2.0**-47  # 64 roundings of 1

    def payloads(moved: float) -> tuple[torch.Tensor, torch.Tensor]:
        one, other = torch.zeros(2, 2, dtype=torch.float64)
        one[0], other[0], other[1] = 1.0, 1.0 + step, moved
        return one, other

    for moved, close in ((step * (1 + step), True), (step * (1 + 2 * step), False)):
        one, other = payloads(moved)
        assert (_close(one, other), _close(other, one)) == (close, close)
    assert _close(torch.zeros(0, 3), torch.zeros(0, 3))
