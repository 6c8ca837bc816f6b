"""What a round is made of: its batches, who takes a step in it, and secrets that agents share."""

from collections.abc import Collection

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.defense.noise import Noise

from .case import N_ROUNDS, Case, OtherBatch, everything, listed, require, shape


class NotingSteps(Gradient):
    """The same gradients; the local steps whose batches were asked for are noted."""

    def __init__(self, gradient: Gradient, step: int, asked: set[int]) -> None:
        self._gradient, self.batch_size = gradient, gradient.batch_size
        self._step, self._asked = step, asked

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        self._asked.add(self._step)
        return self._gradient(X, holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        self._asked.add(self._step)
        return self._gradient.clipped_sum(X, clip_norm, holders, norm)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        self._asked.add(self._step)
        return self._gradient.per_record(X, holders, own)

    def at_step(self, s: int) -> "NotingSteps":
        return NotingSteps(self._gradient.at_step(s), s, self._asked)


def batches(case: Case) -> None:
    """It draws as many batches in a round as it says: each is accounted by itself."""
    state = case.defense.start(case.initial(), case.setting)
    declared, found = case.defense.batches_per_round, set[int]()
    for k in range(1, N_ROUNDS + 1):
        asked: set[int] = set()
        oracle = NotingSteps(case.gradient(k), 0, asked)
        state = case.step(case.defense, state, k, gradient=oracle).state
        beyond = sorted(s for s in asked if s >= declared)
        require(
            not beyond,
            f"round {k} takes the batch of local step {beyond and beyond[0]}; batches_per_round is "
            f"{declared}",
        )
        found |= asked
    unused = sorted(set(range(declared)) - found)
    require(
        not unused,
        f"batches_per_round is {declared}, but the batch of local step {unused and unused[0]} is "
        f"never taken in {N_ROUNDS} rounds",
    )


def waiting(case: Case) -> None:
    """If agents may wait, the data of one that takes no step in a round have no effect in it."""
    if not case.defense.waits:
        return
    state = case.defense.start(case.initial(), case.setting)
    for k in range(1, N_ROUNDS + 1):
        plain = case.step(case.defense, state, k)
        active = case.setting.network.at(k).active
        for agent in _waiting(case, active):
            other = OtherBatch(case.gradient(k), agent)
            moved = everything(case.defense, case.step(case.defense, state, k, gradient=other))
            private = {f'private "{name}"' for name in plain.private}
            for name, value in everything(case.defense, plain).items():
                if name not in private:
                    require(
                        torch.equal(value, moved[name]),
                        f"{name} in round {k} changes with the data of agent {agent}, which takes "
                        "no step in it",
                    )
        state = plain.state


def _waiting(case: Case, active: Collection[int] | None) -> list[int]:
    """Two agents with data that take no step; none if all do."""
    acting = range(case.setting.n_agents) if active is None else active
    return [agent for agent in case.setting.holders if agent not in acting][:2]


def secrets(case: Case) -> None:
    """Shared noise says of each of its rows which agents know it."""
    state = case.defense.start(case.initial(), case.setting)
    n = case.setting.n_agents
    for k in range(1, N_ROUNDS + 1):
        noise = _NotingShares(case, k)
        state = case.step(case.defense, state, k, noise=noise).state
        again = noise.shares.keys() & noise.unshared
        require(not again, f"round {k} draws {listed(set(again))} both shared and by itself")
        for name, (rows, known_to) in noise.shares.items():
            what = f'the shared noise "{name}" in round {k}'
            right = known_to.ndim == 2 and len(known_to) == rows
            require(right, f"{what} has {rows} rows, known to {shape(known_to)}")
            inside = bool(((known_to >= 0) & (known_to < n)).all())
            require(inside, f"{what} is known to an agent that there is not")


class _NotingShares(Noise):
    """The noise of a round; which draws are shared, and with whom, is noted."""

    def __init__(self, case: Case, round: int) -> None:
        super().__init__(case.streams, round)
        self.shares: dict[str, tuple[int, Tensor]] = {}
        self.unshared: set[str] = set()

    def shared(self, message: str, std: float | Tensor, like: Tensor, known_to: Tensor) -> Tensor:
        self.shares[message] = like.shape[-2], known_to
        before = set(self.unshared)
        drawn = super().shared(message, std, like, known_to)
        self.unshared = before
        return drawn

    def gaussian(self, message: str, std: float | Tensor, like: Tensor) -> Tensor:
        self.unshared.add(message)
        return super().gaussian(message, std, like)
