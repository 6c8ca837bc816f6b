"""What a record is changed to, and what one that adds nothing would move."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.files.world import FAR, How

from .runs import MessageId

Units = dict[tuple[int, str], Array]  # (round, key of a draw) -> how far it is moved
PLACES = ("first", "middle", "last")  # which record of a batch is changed
PLATEAU = 1e-3  # relative: by which the moves of records far out differ, where they are clipped
NOT_SEEN = (
    "no record that was tried adds nothing to round {} of agent {}, so that how far one moves it "
    "is not known; divide by the planned size, and claim add-remove"
)


class Variant(NamedTuple):
    """What becomes of which record of a batch."""

    how: How
    place: int  # index in PLACES


class RecordMoves(NamedTuple):
    """How far the record moves each round, in units of the noise, whatever it is changed to."""

    sizes: Mapping[tuple[int, int, NoiseFamily], Mapping[How, float]]  # victim, round, family
    noiseless: (
        tuple[MessageId, Variant] | None
    )  # it moves by what no noise hides, in the last round
    units: Mapping[Variant, Mapping[int, Units]]  # the moves themselves, by victim
    overflowing: Mapping[Variant, Mapping[int, Units]] = {}  # the same of each round alone
    without: Mapping[tuple[int, int], Units] = {}  # (place, victim) -> its move without effect
    not_seen: str = ""  # why there is none

    def largest(self, k: int, family: NoiseFamily) -> float:
        """The largest move over all victims and all changes of their records."""
        of_round = (s for (_, of, kind), s in self.sizes.items() if (of, kind) == (k, family))
        return max((size for sizes in of_round for size in sizes.values()), default=0.0)


def distance(one: Units, other: Units, keys: Sequence[tuple[int, str]], norm: int) -> float:
    """Between two moves of the same draws; what is not in one is not moved."""
    apart = [one.get(key, 0.0) - other.get(key, np.zeros(1)) for key in keys]
    return float(np.linalg.norm(np.concatenate(apart), norm)) if apart else 0.0


def to_nothing(
    ways: Mapping[How, Units], keys: Sequence[tuple[int, str]], norm: int
) -> Units | None:
    """The move of these draws to a record that adds nothing, by those to others; None: not seen."""
    keys = [key for key in keys if all(key in of for of in ways.values())]
    if not keys:
        return {}
    flat = {how: np.concatenate([of[key] for key in keys]) for how, of in ways.items()}
    nothing = adding_nothing(flat, norm)
    if nothing is None:
        return None
    lengths = [len(next(iter(ways.values()))[key]) for key in keys]
    return dict(zip(keys, np.split(nothing, np.cumsum(lengths)[:-1]), strict=True))


def adding_nothing(moves: Mapping[How, Array], norm: int) -> Array | None:
    """The move to a record that adds nothing, by those to records far out; None: it is not seen.

    Where a record takes the place of another, a sum tells what records add but for a constant. Two
    records far out in different directions add the same where both add nothing, as of a loss that
    is 0 far out. Or opposite ones add the opposite, in all directions: their middle adds nothing.
    Of several such points, the one that is furthest from any record counts.
    """
    far = {how: moves[how] for how in FAR if how in moves}
    apart = {(a, b): np.linalg.norm(far[a] - far[b], norm) for a, b in combinations(far, 2)}
    spread = max(apart.values(), default=0.0)
    if spread == 0:
        return next(iter(far.values()), None)
    points = [
        far[a] for (a, b), size in apart.items() if size <= PLATEAU * spread and _differ(a, b)
    ]
    middles = {
        how: (move + far[opposite]) / 2
        for how, move in far.items()
        for opposite in [how.replace(":", ":-", 1)]
        if opposite in far
    }
    points += [
        middles[a]
        for a, b in combinations(middles, 2)
        if _differ(a, b) and np.linalg.norm(middles[a] - middles[b], norm) <= PLATEAU * spread
    ]

    def reach(point: Array) -> float:
        return max(float(np.linalg.norm(move - point, norm)) for move in far.values())

    return max(points, key=reach, default=None)


def _differ(one: How, other: How) -> bool:
    """Whether two records far out are so in different directions."""
    return one.partition(":")[0] != other.partition(":")[0]
