"""The worst record of a clip's ball, in the norm of the noise that should hide it.

Noise of scale b hides a vector v by mu = |v|_2 / b if it is Gaussian, and by a pure loss of
|v|_1 / b if it is Laplace noise. The longest vectors of the ball that a record is clipped to are

    clip     noise      longest               its length
    L2, C    Gaussian   any                   C              one coordinate
    L1, C    Gaussian   one coordinate        C
    L1, C    Laplace    any                   C              one coordinate
    L2, C    Laplace    C / sqrt(d) in all    C sqrt(d)

so one coordinate is the worst but in the last case. There noise is independent in each coordinate,
and a step that is linear in it acts on each alike: d releases, each with 1 / sqrt(d) of the shift
that one coordinate has. Without sampling they compose as any releases do. With sampling at rate q
all are in a batch or none; the pure loss of a round is then ln(1 + q (e^(sqrt(d) L) - 1)), that of
one release whose shift is sqrt(d) times as large, and above delta = 0 the figure stays the one of
the record on one coordinate, which is in the ball, too.

Gradients that nothing clips by record have no longest vector: a record's is ``game.LENGTH`` on one
coordinate, and a function's is moved by the stated L1 distance on one coordinate.
"""

from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

from dpaudit.accounting.releases import Mechanism, RecordAdjacency, Release, epsilon
from dpaudit.defense.contract import Gradient

from .game import Game
from .tape import Tape

PLAYED = 64  # coordinates of a dense record at most, in runs: a shorter vector of the same ball


def coordinates(game: Game) -> int:
    """How many coordinates of the model the worst record has, as the first round asks: 1 or all."""
    asked = Asked(game.gradient(torch.zeros(1)))
    tape, state = Tape(), game.start(1, torch.float64, torch.device("cpu"))
    game.defense.step(state, 1, game.setting.network.at(1), asked, tape)
    families = {draw.family for draw in tape.draws.values()}
    return game.d if families == {"laplace"} and asked.norms == {2} else 1


def played_mechanism(mechanism: Mechanism, d: int) -> Mechanism:
    """What runs of a record in d coordinates release, given what one coordinate does.

    Sampled records are in no coordinate or in all, which no such list says: then that of one.
    """
    sampled = any(release.sampling_rate < 1 for release in mechanism)
    return mechanism if d == 1 or sampled else _spread(mechanism, d)


def _spread(mechanism: Mechanism, d: int) -> Mechanism:
    """Each release once for each of d coordinates, with 1 / sqrt(d) of its shift."""
    return tuple(
        release.model_copy(
            update={
                "noise_multiplier": release.noise_multiplier * sqrt(d),
                "count": release.count * d,
            }
        )
        for release in mechanism
    )


def worst_mechanism(
    mechanism: Mechanism, d: int, delta: float, adjacency: RecordAdjacency
) -> Mechanism:
    """Of the records in one coordinate or in d the one that leaks more at delta."""
    if d == 1 or not mechanism or any(r.family != "laplace" for r in mechanism):
        return mechanism
    if delta == 0:
        return tuple(_at_once(release, d) for release in mechanism)
    if any(release.sampling_rate < 1 for release in mechanism):
        return mechanism
    return max(mechanism, _spread(mechanism, d), key=lambda m: epsilon(m, delta, adjacency).low)


def _at_once(release: Release, d: int) -> Release:
    """One release with the pure loss of all coordinates."""
    return release.model_copy(update={"noise_multiplier": release.noise_multiplier / sqrt(d)})


@dataclass(frozen=True)
class Asked(Gradient):
    """Notes the norms to which an oracle is asked to clip; 0: gradients that are not clipped."""

    oracle: Gradient
    norms: set[int] = field(default_factory=set)

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.oracle.batch_size

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        self.norms.add(0)
        return self.oracle(X, holders)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        self.norms.add(norm)
        return self.oracle.clipped_sum(X, clip_norm, holders, norm)
