"""Whether a process has ended."""

import time
from pathlib import Path


def ended_by(pid: str, until: float) -> None:
    """Fails if the process is still there then, by the monotonic clock; a zombie is not."""
    while "\nState:\tZ" not in status(pid):
        assert time.monotonic() < until, f"process {pid} is left"
        time.sleep(0.05)


def status(pid: str) -> str:
    try:
        return "\n" + Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"
