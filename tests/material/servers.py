"""One order to a process that carries out orders."""

import time
from collections.abc import Mapping, Sequence

from dpaudit.pipeline.processes import AuditProcess

MOST_SECONDS = 240


def answered(command: Sequence[str], order: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Its exit code and what was said."""
    server, until = AuditProcess.of(command, environment), time.monotonic() + MOST_SECONDS
    try:
        server.order(order)
        while (answer := server.answer()) is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        return answer
    finally:
        server.stop()
