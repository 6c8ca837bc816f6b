"""What an agent is answered is noted however it asks, and answered as without a listener."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.mutual_information.samples import GradientListener
from dpaudit.defense import Gradient
from dpaudit.rng import Streams

B, RECORDS = 4, 3
X = torch.zeros(5, 2, 6)  # [trials, n_agents, d]


@dataclass(eq=False)
class Steps(Gradient):
    """Another gradient for each agent, local step and record."""

    batch_size: int = B
    step: int = 0

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        at = X if own else X[..., None, :].expand(*X.shape[:-1], RECORDS, X.shape[-1])
        agents = torch.arange(at.shape[-3]) if holders is None else holders
        scale = 1 + agents[:, None, None] + 10 * self.step + 100 * torch.arange(RECORDS)[:, None]
        return at + scale

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.per_record(X, holders).sum(dim=-2) / B

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return clip_norm * self.per_record(X, holders).sum(dim=-2)

    def at_step(self, s: int) -> "Steps":
        return replace(self, step=s)


class Problem:
    differentiates = False
    varies = "nothing"

    def for_trials(self, shared, own, trials, victim):
        return self

    def initial(self, streams, trials=None):
        return X

    def gradient(self, streams, k, batch_size, sampling="fixed", trials=None):
        return Steps()


WAYS = {
    "whole": lambda G: G(X),
    "clipped": lambda G: G.clipped_sum(X, 0.5),
    "each": lambda G: G.per_record(X),
    "own": lambda G: G.per_record(X[..., None, :].expand(5, 2, RECORDS, 6), own=True),
    "later": lambda G: G.at_step(2)(X),
    "held": lambda G: G(X.flip(-2), torch.tensor([1, 0])),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_ask_is_answered_as_without_it_and_noted(way: str) -> None:
    problem = GradientListener(Problem(), 1)
    asked = problem.gradient(Streams(0), 1, B)
    assert problem.answer is None
    torch.testing.assert_close(WAYS[way](asked), WAYS[way](Steps()))
    step = Steps().at_step(2) if way == "later" else Steps()
    expected = (0.5 if way == "clipped" else 1.0) * step(X)[..., 1, :]
    torch.testing.assert_close(problem.answer, expected)


def test_the_first_answer_of_the_latest_round_is_kept() -> None:
    problem = GradientListener(Problem(), 0)
    asked = problem.gradient(Streams(0), 1, B)
    asked(X[:, 1:], torch.tensor([1]))
    assert problem.answer is None  # another agent's
    asked.at_step(1)(X)
    asked(X)
    torch.testing.assert_close(problem.answer, Steps().at_step(1)(X)[..., 0, :])
    problem.gradient(Streams(0), 2, B)
    assert problem.answer is None
