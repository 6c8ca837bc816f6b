"""A clock for work that shares its machine with other work."""

from __future__ import annotations

import time

WAITED = "/proc/thread-self/schedstat"  # on Linux: ns of running, ns of waiting, times run


def working_seconds() -> float:
    """Seconds that stand still while this thread waits for a CPU that others use.

    A thread that sleeps or waits for another thread is not waiting for a CPU: that counts. Where
    the system does not say how long a thread waited, these are seconds on the wall.
    """
    return time.perf_counter() - _waited()


def _waited() -> float:
    try:
        with open(WAITED, encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
