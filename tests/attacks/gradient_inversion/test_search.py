"""A search remembers what it would have come to, had it ended earlier."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.attacks.gradient_inversion.search import (
    LBFGS,
    TRACED,
    Adam,
    Problems,
    minimise,
    traced,
)
from dpaudit.checkpoint import Checkpoint, Progress

from .test_plan import STREAMS, lenet, scene, smooth

GROUPS = torch.tensor([0, 0, 1])


def valleys(points: Tensor, problems: Tensor) -> Tensor:
    """Narrow and curved, one deeper than the other."""
    x, y = points.unbind(1)
    return (1 - x).square() + 20 * (y - x.square()).square() + 0.1 * problems


def problems() -> Problems:
    start = torch.tensor([[-0.9, 0.2], [0.4, -0.8], [-0.5, 0.9]])
    return Problems(valleys, start, (-1.0, 1.0), 1e-9, GROUPS)


class Cut(Exception):
    pass


class InMemory(Checkpoint):
    """Keeps every step; a run that is cut goes on with the same one."""

    def __init__(self) -> None:
        self.kept: Progress | None = None

    def stage(self, name: str | int) -> Checkpoint:
        return self

    def last(self) -> Progress | None:
        return self.kept

    def keep(self, now: Callable[[], Progress]) -> None:
        tensors, note = now()
        self.kept = Progress({name: tensor.clone() for name, tensor in tensors.items()}, note)

    def done(self, result: Progress) -> None:
        self.keep(lambda: result)


@pytest.mark.parametrize("n_steps", [1, 2, 7, 20, 300, 2000, 10**6])
def test_few_moments_are_remembered_from_the_start_to_the_end(n_steps: int) -> None:
    steps = traced(n_steps)
    assert steps[0] == 0
    assert steps[-1] == n_steps
    assert len(steps) <= TRACED
    assert list(steps) == sorted(set(steps))


def test_what_is_remembered_is_what_a_shorter_search_finds() -> None:
    """L-BFGS does not plan its end: the searches share their steps. One group has one restart."""
    alone = problems()._replace(groups=None)
    track = minimise(alone, LBFGS(), 30, lambda done, total: None).track
    assert torch.equal(track.points[0], alone.start)
    for row, n_steps in enumerate(traced(30)[1:], start=1):
        ended = minimise(alone, LBFGS(), n_steps, lambda done, total: None)
        assert torch.equal(track.points[row], ended.points)
        assert torch.equal(track.losses[row], ended.losses)


@pytest.mark.parametrize("method", [Adam(0.1, False), LBFGS()])
def test_a_group_is_remembered_by_its_best_restart(method) -> None:
    found = minimise(problems(), method, 40, lambda done, total: None)
    best = [int(found.losses[:2].argmin()), 2]
    assert torch.equal(found.track.points[-1], found.points[best])
    assert torch.equal(found.track.losses[-1], found.losses[best])
    assert (found.track.losses.diff(dim=0) <= 0).all()


@pytest.mark.parametrize("method", [Adam(0.1, False), LBFGS()])
def test_a_search_that_was_cut_remembers_the_same(method) -> None:
    def cut(done: int, total: int) -> None:
        if done == 11:
            raise Cut

    kept = InMemory()
    with pytest.raises(Cut):
        minimise(problems(), method, 40, cut, kept)
    whole = minimise(problems(), method, 40, lambda done, total: None)
    for _ in range(2):  # once more when it was done
        again = minimise(problems(), method, 40, lambda done, total: None, kept)
        assert torch.equal(again.track.points, whole.track.points)
        assert torch.equal(again.track.losses, whole.track.losses)


@pytest.mark.parametrize("kinks", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_trace_ends_at_what_is_handed_back(kinks: bool) -> None:
    """L-BFGS on the smooth network is too short to solve it: later attempts win for some."""
    task, observed, _, _ = scene(lenet() if kinks else smooth((1, 8, 8), 10), 6, 2, 0.0)
    attack = GradientInversion(message="x", rounds=(1,), iterations=5, method="optimised")
    found = attack.reconstruct(observed, task, STREAMS, lambda done, total: None)
    assert kinks or (found.losses.argmin(1) > 0).any()
    assert found.trace is not None
    assert found.trace.iterations == traced(5)
    assert torch.equal(found.trace.images[:, -1], found.images)
    assert torch.equal(found.trace.losses[:, -1], found.losses.amin(1))


def test_an_exact_attack_has_no_trace() -> None:
    task, observed, _, _ = scene(smooth((1, 8, 8), 10), 2, 1, 0.0)
    attack = GradientInversion(message="x", rounds=(1,))
    found = attack.reconstruct(observed, task, STREAMS, lambda done, total: None)
    assert found.trace is None
