"""Which number of a draw moves each number of a message."""

from collections.abc import Sequence

import numpy as np

from dpaudit.accounting.privacy_loss import Array, Integers


def numbers_that_move(
    moved: Sequence[Array], signs: Sequence[Array], drawn: Array, values: Array
) -> Integers | None:
    """Find which number of a draw moves each number of a message; None if that is not seen.

    Args:
        moved: how far it is moved in two runs, by one scale with other signs.
        signs: of the draw's numbers in these runs.
        drawn: how far it is moved by the draw as it is.
        values: of the draw as it is, in its scale.
    """
    number = _in_their_order(moved, signs)
    n, m = len(values), len(drawn)
    if m > n or (number is None and m == n):
        return number
    with np.errstate(divide="ignore", invalid="ignore"):
        times, values = drawn / moved[0], values / signs[0]
    if number is not None and np.allclose(times, values[number], rtol=1e-3):
        return number
    other = _by_value(times, values)
    return number if other is None else other


def _in_their_order(moved: Sequence[Array], signs: Sequence[Array]) -> Integers | None:
    """Which number of a draw moves each of a message's: one moves all, or each one in their order.

    A message may have a part of them, as a layer of all: the only one whose signs are its own.
    """
    n, m = len(signs[0]), len(moved[0])
    if n == 1 or n <= m:
        return np.zeros(m, int) if n == 1 else np.arange(m) if n == m else None
    from scipy.signal import correlate  # a second that audits of no program do not wait for

    alike = [
        np.rint(correlate(s, np.sign(one), mode="valid", method="fft"))
        for s, one in zip(signs, moved, strict=True)
    ]
    [first] = np.nonzero((np.abs(alike[0]) == m) & (alike[0] == alike[1]))
    return first[0] + np.arange(m) if len(first) == 1 else None


def _by_value(times: Array, values: Array) -> Integers | None:
    """Which number of a draw each of a message's is moved by, where it has some in any order.

    Args:
        times: by how much more each is moved by the draw as it is than by one scale.
        values: of the draw's numbers, the same if it is that one.

    Returns:
        None where two numbers of the draw come too close, or one moves several of the message's.
    """
    order = np.argsort(values)
    ordered = values[order]
    middles = (ordered[1:] + ordered[:-1]) / 2
    at = np.searchsorted(middles, times)
    gaps = np.diff(ordered, prepend=-np.inf, append=np.inf)
    gap = np.minimum(gaps[at], gaps[at + 1])
    sure = np.abs(ordered[at] - times) < gap / 4
    return order[at] if sure.all() and len({*at.tolist()}) == len(at) else None
