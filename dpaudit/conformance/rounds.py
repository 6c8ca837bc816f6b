"""What a round is made of: its batches, who takes a step in it, and secrets that agents share."""

import torch
from torch import Tensor

from dpaudit.defense.noise import Noise

from .case import N_ROUNDS, Case, WatchedGradient, everything, listed, require, shape


def batches(case: Case) -> None:
    """It draws as many batches in a round as it says: each is accounted by itself."""
    state = case.defense.start(case.initial(), case.setting)
    declared, found = case.defense.batches_per_round, set[int]()
    for k in range(1, N_ROUNDS + 1):
        oracle = WatchedGradient(case.gradient(k))
        state = case.step(case.defense, state, k, gradient=oracle).state
        beyond = sorted(s for s in oracle.steps if s >= declared)
        require(
            not beyond,
            f"round {k} takes the batch of local step {beyond and beyond[0]}; batches_per_round is "
            f"{declared}",
        )
        found |= oracle.steps
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
        active, holders = case.setting.network.at(k).active, case.setting.holders
        for agent in [i for i in holders if active is not None and i not in active][:2]:
            other = WatchedGradient(case.gradient(k), agent)
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
