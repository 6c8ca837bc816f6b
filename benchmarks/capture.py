"""What recording costs: one call of a collective, a training, and the start of it all.

    python benchmarks/capture.py

Two forked processes on gloo gather messages of several sizes; then they train: ten milliseconds of
matrix products in a round, and a model of 10,000 parameters sent to the neighbour. Each is timed
with and without dpaudit capture, in turn, and the best of several repetitions counts: the machine
is rarely quiet. The start, and the page, are those of the command on a program that sends one
number, less the program alone: once as they pass, and once as time of processors.

On an idle machine a round should take 1.2 times as long at most, and start and page 3 seconds.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GUEST = "--guest"
SIZES = (100, 10_000, 1_000_000)  # floats of a message
CALLS = {100: 200, 10_000: 200, 1_000_000: 15}
ROUNDS, SECONDS_OF_COMPUTE = 50, 0.01
REPETITIONS = 6
SENDS_ONE = """
try:
    from dpaudit_recorder import tap
except ImportError:  # it is not recorded
    pass
else:
    tap.send(0, 1, "w", 1.0)
"""


def guest(out: Path) -> None:
    """Time calls and a training in two processes; rank 0 writes the seconds of each."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = 0 if os.fork() else 1
    dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=rank, world_size=2)
    found = {}
    for size in SIZES:
        sent, received = torch.randn(size), [torch.empty(size) for _ in range(2)]
        dist.all_gather(received, sent)
        began = time.perf_counter()
        for _ in range(CALLS[size]):
            dist.all_gather(received, sent)
        found[f"all_gather of {size:,} floats"] = (time.perf_counter() - began) / CALLS[size]
    a, sent, received = torch.randn(200, 200), torch.randn(10_000), torch.empty(10_000)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        end = time.perf_counter() + SECONDS_OF_COMPUTE
        while time.perf_counter() < end:
            a @ a
        work = dist.isend(sent, 1 - rank)
        dist.recv(received, 1 - rank)
        work.wait()
    found["a round with 10 ms of compute"] = (time.perf_counter() - began) / ROUNDS
    if rank == 0:
        out.write_text(json.dumps(found))
        os.wait()


def measured(recorded: bool) -> dict[str, float]:
    """Seconds of each call, by name."""
    from dpaudit.capture.run import Options, capture

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        command = [sys.executable, __file__, GUEST, str(out)]
        if recorded:
            capture(command, Path(folder) / "capture", Options())
        elif os.spawnv(os.P_WAIT, command[0], command):
            raise SystemExit("the guest failed")
        times: dict[str, float] = json.loads(out.read_text())
        return times


def started(recorded: bool) -> tuple[float, float]:
    """Seconds of a program that sends one number, as they pass, and of processors."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-c", SENDS_ONE]
        cli = "from dpaudit.commands.cli import main; main()"
        capture = [sys.executable, "-c", cli, "capture", "--out", folder, "--"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [*capture, *program] if recorded else program
        subprocess.run(command, check=True, capture_output=True)
        passed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return passed, used


def main() -> None:
    """Print a table."""
    starts = [(started(False), started(True)) for _ in range(REPETITIONS)]
    for i, name in enumerate(("start and page, as it passes", "start and page, processors")):
        plain, recorded = (min(one[side][i] for one in starts) for side in (0, 1))
        print(f"{name:32}{plain:10.2f} s{recorded:10.2f} s{recorded - plain:+8.2f} s")
    pairs = [(measured(False), measured(True)) for _ in range(REPETITIONS)]
    plain, recorded = zip(*pairs, strict=True)
    print(f"{'':32}{'plain':>12}{'recorded':>12}{'ratio':>8}")
    for name in plain[0]:
        a, b = (min(times[name] for times in runs) for runs in (plain, recorded))
        print(f"{name:32}{1e6 * a:9.0f} us{1e6 * b:9.0f} us{b / a:8.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == [GUEST]:
        guest(Path(sys.argv[2]))
    else:
        main()
