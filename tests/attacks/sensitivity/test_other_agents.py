"""Records of agents beside the victim, in rounds in which a step treats one otherwise."""

from typing import Any

import pytest
from torch import Tensor

from dpaudit.attacks.sensitivity.examination import RoundExamination
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.other_agents import OtherAgents
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds
from dpaudit.defense import Gradient, Noise
from dpaudit.selftest.correct import PrivateGossip, Remembering
from tests.some_fast import fast_if

VICTIM, OTHER, LAST = 1, 2, 3
MIDDLE, FAR, MANY = 2, 7, 10  # a round, an agent that is not looked at in turn then, and agents


def unclipped(defense: PrivateGossip, S: Tensor, X: Tensor, k: int, gradient: Gradient) -> Tensor:
    """The sums, of which one agent's is not clipped in one round."""
    if k != LAST:
        return S
    S = S.clone()
    S[..., OTHER, :] = defense.batch_size * gradient(X)[..., OTHER, :]
    return S


class Unclipped(PrivateGossip):
    def averaged(self, S: Tensor, X: Tensor, k: int, gradient: Gradient, noise: Noise) -> Tensor:
        return super().averaged(unclipped(self, S, X, k, gradient), X, k, gradient, noise)


class InParts(PrivateGossip):
    """Under a sum of draws, of which no single one hides a record."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return sum((noise.gaussian(f"{i}", self._scale / 2, like) for i in range(4)), 0 * like)


class UnclippedInParts(InParts):
    def averaged(self, S: Tensor, X: Tensor, k: int, gradient: Gradient, noise: Noise) -> Tensor:
        return super().averaged(unclipped(self, S, X, k, gradient), X, k, gradient, noise)


class Lasting(Remembering):
    """Each draw is added in two rounds, so that no move of one hides a record."""

    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        Z = self.noise(S, k, noise)
        return S + Z + 0.5 * state.M, Z


class UnclippedAndLasting(Lasting):
    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        return super().remembered(
            unclipped(self, S, state.X, k, gradient), state, k, gradient, noise
        )


class UnclippedInTheMiddle(Lasting):
    def remembered(
        self, S: Tensor, state: Any, k: int, gradient: Gradient, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        if k == MIDDLE:
            S = S.clone()
            S[..., FAR, :] = self.batch_size * gradient(state.X)[..., FAR, :]
        return super().remembered(S, state, k, gradient, noise)


FAULTS = [Unclipped, UnclippedInParts, UnclippedAndLasting]


@pytest.fixture
def found(setting_of, streams):
    def make(defense: PrivateGossip, n_agents: int = 4) -> list[Row]:
        """What speaks against the bounds on other agents' messages "x", in all rounds."""
        problem, setting = setting_of("ring", n_agents, "logistic")
        coupled = CoupledWorlds(defense, problem, setting, streams, VICTIM)
        examination = RoundExamination(coupled, 0, 0)
        others, state, rows = OtherAgents(examination), coupled.start(), list[Row]()
        for k in range(1, LAST + 1):
            list(examination.record(state, k, "add-remove"))
            rows += others.record(state, k, "add-remove")
            state = examination.next_state(state, k)
        return [row for row in rows if row.message == "x"]

    return make


@pytest.mark.parametrize("defense", fast_if(lambda d: d is Unclipped, FAULTS))
def test_one_agent_that_does_not_clip_in_one_round_is_found(defense: Any, found: Any) -> None:
    (row,) = found(defense(n_rounds=LAST))
    assert (row.agent, row.round) == (OTHER, LAST)
    assert row.measured > 1.5 * row.stated


@pytest.mark.slow
@pytest.mark.parametrize("defense", [PrivateGossip, InParts, Lasting])
def test_nothing_is_found_where_all_agents_clip(defense: Any, found: Any) -> None:
    assert not found(defense(n_rounds=LAST))


def test_one_of_many_agents_is_found_in_a_middle_round(found: Any) -> None:
    rows = found(UnclippedInTheMiddle(n_rounds=LAST), MANY)
    assert {(row.agent, row.round) for row in rows} == {(FAR, MIDDLE)}
