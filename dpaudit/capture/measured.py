"""How far one record moves a program's messages in one round, in units of the noise they carry.

Given everything that was sent before, and the data of all others, a message of the round is a fixed
content and the noise drawn for it. Worlds that share every draw but one show which number of which
message that draw moves, and by how much; worlds that share every draw show how far the record moves
each number. What an eavesdropper on all links learns in the round is the ratio of the two,

    mu^2 = sum over draws of (change / standard deviation)^2,  epsilon = sum of |change| / scale

for Gaussian and for Laplace noise. A number that moves without noise, and two messages whose common
noise cancels in a difference while the record does not, show the record: mu is infinite.

Rests on: messages are linear in the noise drawn for them, number by number, which two worlds with
other signs test; and the agent's state is known once its messages, their noise and its data are,
which holds where each draw moves numbers of its own. Records that were not tried may move a message
further: a lower bound on the release.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.privacy_loss import Array, Integers
from dpaudit.errors import RunError

from .observed import MessageId, Observed, Place

Booleans = NDArray[np.bool_]
NOTHING = 1e-5  # of the largest change of a round: below it is rounding
AGREE = 1e-3  # relative, between two measurements of one number


class Noised(NamedTuple):
    """By which draw each number of one message is moved, and how far by one unit of its scale."""

    draw: Integers  # [n]: an index into the draws of the place; -1: none
    number: Integers  # [n]: which of that draw's numbers
    size: Array  # [n]; negative where the draw is subtracted
    several: Booleans  # [n]: other draws move it as well, and are part of its size


class Filtered(NamedTuple):
    """The numbers of one message that a likelihood ratio adds up: each of a draw of its own."""

    places: Integers  # [m]: of the message's numbers
    size: Array  # [m]: their noise
    ratio: Array  # [m]: how far the record moves them, in these units
    laplace: Array  # [m]: whether the noise is Laplace's


class Leak(NamedTuple):
    """What the messages of one round show of one record."""

    mu: float  # of Gaussian noise
    epsilon: float  # of Laplace noise, beside it
    bare: MessageId | None = None  # shows the record without noise; both are infinite then
    upper: bool = False  # an upper end alone, as hidden noise may add to what is there
    filters: dict[MessageId, Filtered] = {}

    @property
    def size(self) -> float:
        """By which the worst of several records is chosen."""
        return self.mu + self.epsilon


NO_LEAK = Leak(0.0, 0.0)


def noise_of(
    place: Place,
    base: Observed,
    silent: Sequence[Observed],
    signed: Sequence[tuple[Observed, Observed]],
) -> dict[MessageId, Noised]:
    """The noise of each message of a place.

    Args:
        base: the run with every draw, by which a message without noise has its length.
        silent: by draw of the place: the run without that draw.
        signed: by draw: two runs in which its numbers are its scale with other signs.

    Raises:
        RunError: a message is not linear in its noise, or a draw moves numbers that cannot be told
            from its own.
    """
    return {
        message: _joined(
            [_response(place, message, j, silent[j], *signed[j]) for j in range(len(place.draws))],
            len(base.messages[message]),
        )
        for message in place.messages
    }


def _response(
    place: Place, message: MessageId, j: int, silent: Observed, one: Observed, two: Observed
) -> Noised | None:
    """What draw j moves in a message; None: nothing."""
    draw, mean = place.draws[j], silent.messages[message]
    moved = [run.messages[message] - mean for run in (one, two)]
    signs = [np.sign(run.tape[draw.key]) for run in (one, two)]
    largest = max(float(np.abs(m).max(initial=0.0)) for m in moved)
    if largest <= 1e-12 * float(np.abs(mean).max(initial=0.0)):
        return None
    there = np.flatnonzero(np.maximum(*np.abs(moved)) > NOTHING * largest)
    n = len(signs[0])
    number = np.zeros(len(there), int) if n == 1 else np.arange(len(there))
    if n not in (1, len(there)):
        raise RunError(
            f'noise "{draw.name}" has {n} numbers and moves {len(there)} of {message}; expected '
            "one each"
        )
    a, b = (m[there] * s[number] for m, s in zip(moved, signs, strict=True))
    if not np.allclose(a, b, rtol=AGREE, atol=AGREE * largest):
        raise RunError(
            f'{message} is not linear in noise "{draw.name}", number by number; what it shows '
            f"cannot be measured in this way{_if_rounds_of_their_own(message)}"
        )
    which, where = np.full(len(mean), -1), np.zeros(len(mean), int)
    size = np.zeros(len(mean))
    which[there], where[there], size[there] = j, number, (a + b) / 2
    return Noised(which, where, size, np.zeros(len(mean), bool))


def _if_rounds_of_their_own(message: MessageId) -> str:
    """What to say if the rounds that were found are several each: a later one reacts to noise."""
    if not message.nth:
        return ""
    return f'; if each is a round of its own, say messages.round_starts_at = "{message.name}"'


def _joined(parts: Sequence[Noised | None], length: int) -> Noised:
    """All draws of one message; where several move a number, their independent sum."""
    draw, number = np.full(length, -1), np.zeros(length, int)
    size, several = np.zeros(length), np.zeros(length, bool)
    for part in parts:
        if part is None:
            continue
        there = part.draw >= 0
        alone = there & (draw < 0)
        several |= there & ~alone
        draw[alone], number[alone] = part.draw[alone], part.number[alone]
        size = np.where(alone, part.size, np.where(there, np.hypot(size, part.size), size))
    return Noised(draw, number, size, several)


def leak(
    place: Place,
    noised: Mapping[MessageId, Noised],
    read: Sequence[MessageId],
    without: Observed,
    having: Observed,
) -> Leak:
    """What the messages that are read show of the difference between two runs."""
    changes = {m: having.messages[m] - without.messages[m] for m in read}
    largest = max((float(np.abs(c).max(initial=0.0)) for c in changes.values()), default=0.0)
    if largest == 0.0:
        return NO_LEAK
    for message, change in changes.items():
        shown = (noised[message].draw < 0) & (np.abs(change) > NOTHING * largest)
        if shown.any():
            return Leak(inf, inf, bare=message, filters={message: _bare(change, shown)})
    return _together(place, noised, changes)


def _bare(change: Array, shown: Booleans) -> Filtered:
    """Numbers without noise, told apart as if they had a thousandth of the change as noise."""
    index = np.flatnonzero(shown)
    size = np.full(len(index), 1e-3 * float(np.abs(change[index]).max()))
    return Filtered(index, size, change[index] / size, np.zeros(len(index), bool))


def _together(
    place: Place, noised: Mapping[MessageId, Noised], changes: Mapping[MessageId, Array]
) -> Leak:
    """Each number of each draw once, however many messages carry it."""
    at = {m: np.flatnonzero(noised[m].draw >= 0) for m in changes}
    owner = np.repeat(np.arange(len(changes)), [len(i) for i in at.values()])
    draw = np.concatenate([noised[m].draw[i] for m, i in at.items()])
    number = np.concatenate([noised[m].number[i] for m, i in at.items()])
    size = np.concatenate([noised[m].size[i] for m, i in at.items()])
    ratio = np.concatenate([changes[m][i] for m, i in at.items()]) / size
    several = np.concatenate([noised[m].several[i] for m, i in at.items()])
    ids = draw * (number.max(initial=0) + 1) + number
    ids[several] = -1 - np.flatnonzero(several)  # noise of no other number
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    apart = np.abs(ratio - ratio[first][which])
    if apart.max(initial=0.0) > AGREE * np.abs(ratio).max(initial=0.0):
        return Leak(inf, inf, bare=list(changes)[owner[int(np.argmax(apart))]])
    laplace = np.array([d.family == "laplace" for d in place.draws])[draw]
    counted = np.isin(np.arange(len(ids)), first)
    filters = {}
    for k, (message, index) in enumerate(at.items()):
        of = counted & (owner == k)
        filters[message] = Filtered(index[of[owner == k]], size[of], ratio[of], laplace[of])
    return Leak(
        mu=float(np.linalg.norm(ratio[counted & ~laplace])),
        epsilon=float(np.abs(ratio[counted & laplace]).sum()),
        upper=bool(several.any()),
        filters=filters,
    )


def log_likelihood_ratio(found: Leak, run: Observed, mean: Observed) -> float:
    """Of a run with the record against one without; ``mean`` is the latter without noise.

    But for a constant, ln p1/p0 is ratio w for a Gaussian w ~ N(0 or ratio, 1), and
    |w| - |w - ratio| for a Laplace one.
    """
    total = 0.0
    for message, (places, size, ratio, laplace) in found.filters.items():
        w = (run.messages[message][places] - mean.messages[message][places]) / size
        total += float(np.sum(np.where(laplace, np.abs(w) - np.abs(w - ratio), ratio * w)))
    return total
