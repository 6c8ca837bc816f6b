"""Many independent runs of a defense as one tensor program."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.rng import Streams

Watch = Callable[[int, Round], None]  # round, what it left behind


class TrialProblem(Protocol):
    """What a learning problem offers for many trials at once."""

    @property
    def differentiates(self) -> bool:
        """Whether its gradients need automatic differentiation."""
        ...

    @property
    def varies(self) -> str:
        """What differs between trials besides the noise, for a reader of the report."""
        ...

    def for_trials(self, shared: Streams, own: Streams, trials: int, victim: int) -> Self:
        """The same problem for a block of trials.

        Args:
            shared: of what is the same in the trials of all blocks.
            own: of what makes the victim's gradient random, drawn for each trial of this block.
        """
        ...

    def initial(self, streams: Streams, trials: int | None = None) -> Tensor:
        """Initial models, [trials, n_agents, d]."""
        ...

    def gradient(
        self,
        streams: Streams,
        k: int,
        batch_size: int,
        sampling: str = "fixed",
        trials: int | None = None,
    ) -> Gradient:
        """The gradient oracle of round k, of all trials."""
        ...


def unrecorded(differentiates: bool) -> AbstractContextManager[None]:
    """No graph for autograd, and not even its bookkeeping where no gradient needs it.

    Values are the same. What inference mode made can be read everywhere, but not differentiated.
    """
    return torch.no_grad() if differentiates else torch.inference_mode()


def run_trials(
    defense: Defense,
    problem: TrialProblem,
    setting: Setting,
    streams: Streams,
    trials: int,
    watch: Watch,
    last: int | None = None,
    after: tuple[int, Mapping[str, Tensor]] | None = None,
) -> Any:
    """Play rounds 1 to ``last`` (all by default) of all trials at once; the last state.

    Each round is shown to ``watch``. ``after``: so many rounds were played before, and left
    a state of these tensors; those that follow are what they would have been.
    """
    with unrecorded(problem.differentiates):
        done, state = 0, defense.start(problem.initial(streams, trials), setting)
        if after is not None:
            done, state = after[0], type(state)(**after[1])
        for k in range(done + 1, (last or defense.n_rounds) + 1):
            gradient = problem.gradient(streams, k, defense.batch_size, defense.drawing, trials)
            round = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k))
            state = round.state
            watch(k, round)
            del gradient, round  # memory that the next round uses while it is in the cache
    return state
