"""What worlds share gives the figures of worlds that share nothing."""

from dataclasses import replace

import torch

from dpaudit.attacks.sensitivity.world_cache import KeptAnswers, UnsentNoise
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds, PlayedWorld
from dpaudit.defense import Message

from .test_declared import Plain


class Counted(Plain):
    """Notes each round that is played."""

    def step(self, state, k, graph, gradient, noise):
        ROUNDS.append(k)
        return super().step(state, k, graph, gradient, noise)


ROUNDS: list[int] = []


def coupled_of(setting_of, streams) -> CoupledWorlds:
    problem, setting = setting_of("ring", 4, "logistic")
    return CoupledWorlds(Counted().calibrate(setting), problem, setting, streams, 1)


def test_a_world_one_round_later_goes_on_from_the_played_one(setting_of, streams):
    coupled = coupled_of(setting_of, streams)
    world = PlayedWorld(coupled, coupled.start(), 1, coupled.kept_batches(1))
    ROUNDS.clear()
    _, later = world.noisy, world.later()
    found, again = later.noisy, replace(world, lag=1).noisy
    assert ROUNDS == [1, 2, 1, 2]  # the second pair is of the world that was made anew
    assert torch.equal(found.sent["x"].payload, again.sent["x"].payload)
    assert torch.equal(found.state.X, again.state.X)


def test_another_victim_plays_no_round_that_was_played(setting_of, streams) -> None:
    coupled = coupled_of(setting_of, streams)
    kept = coupled.keeps_noise(before=3)
    ROUNDS.clear()
    other = coupled.looking_at(2)
    assert other.victim == 2
    assert other.keeps_noise(before=3) == kept
    assert other.kept_batches(1) is coupled.kept_batches(1)
    assert not ROUNDS


def test_without_a_victim_all_answers_are_shared(setting_of, streams) -> None:
    coupled = coupled_of(setting_of, streams)
    batches = coupled.kept_batches(1)
    X = coupled.start().X
    answer = KeptAnswers.of(batches, shared=batches).clipped_sum(X, 0.1)
    assert torch.equal(answer, coupled.batches(1).clipped_sum(X, 0.1))
    [(models, kept)] = next(iter(batches.answers.values()))
    assert torch.equal(models, X)
    assert torch.equal(kept, answer)


def test_numbers_that_an_agent_repeats_are_not_new() -> None:
    """Agent 0 sends two rows on three links, agent 1 one row; 5 numbers are drawn in each round."""
    senders, rows = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 0, 2])
    receivers = torch.tensor([1, 2, 3, 0])
    first = Message(torch.arange(6.0).view(3, 2), senders, receivers, rows)
    second = replace(first, payload=first.payload + torch.tensor([[0.0, 1.0], [0, 0], [0, 0]]))
    run = UnsentNoise(None, torch.zeros(3, dtype=torch.long))
    run.note(None, 5, {"x": first})
    assert run.sent.tolist() == [4, 2, 0]
    run.note(None, 3, {"x": second})
    assert run.sent.tolist() == [8, 2, 0]  # one row of agent 0 is another one
    assert [kept.tolist() for kept in run.kept] == [[True, True, True], [False, True, True]]
