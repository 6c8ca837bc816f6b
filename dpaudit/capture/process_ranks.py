"""Which rank each process of a program has, where no transport of its own says so."""

from collections.abc import Sequence

from dpaudit.errors import RunError

from .process_logs import Process, Record

CHANNELS = ("posted", "took", "bound", "connected", "addressed")


def ranks_of(processes: Sequence[Process]) -> dict[int, int]:
    """By the number of a process that has channels.

    It is the agent that the process is to the tap. Of others it is the rank that the recorder has
    found: that of a launcher, or the order in which one process has started them. Those without one
    come after, in the order of the ports and addresses at which they are reached. So do those of an
    order whose number another process has given to the tap, as a server that is started before the
    agents 0, 1, ...

    Raises RunError where one process is several agents, or several processes have one place.
    """
    using = [n for n, p in enumerate(processes) if p.of_kind(*CHANNELS)]
    _refuse_one_place([processes[n] for n in using])
    found = {n: _rank(processes[n]) for n in using}
    ordered = {n for n in using if _is_ordered(processes[n])}
    named = {rank for n, rank in found.items() if n not in ordered}
    ranks = {
        n: r for n, r in found.items() if r is not None and (n not in ordered or r not in named)
    }
    rest = sorted((n for n in using if n not in ranks), key=lambda n: _order(processes[n]))
    _refuse_noise_of_two([processes[n] for n in rest])
    first = max(ranks.values(), default=-1) + 1
    return {**ranks, **{n: first + i for i, n in enumerate(rest)}}


def _rank(process: Process) -> int | None:
    own = {r["agent"] for r in process.of_kind("batch")}
    own |= {r["rank"] for r in process.of_kind("drawn", "noise") if "rank" in r}
    if len(own) > 1:
        raise RunError(
            "DPA060",
            f"one process is agents {', '.join(map(str, sorted(own)))} to the tap, and sends by a "
            "transport of its own; which of them a message is of is not known",
            "show each message to tap.send",
        )
    for about in process.of_kind("process"):
        numbers = about.get("identity", ())
        own |= {about["rank"]} if "rank" in about and not own else set()
        own |= {numbers[0] - 1} if len(numbers) == 1 and not own else set()
    return min(own, default=None)


def _is_ordered(process: Process) -> bool:
    """Whether nobody has given the process its number."""
    orders = {about["rank"] for about in process.of_kind("process") if about.get("ordered")}
    told = {r["agent"] for r in process.of_kind("batch")}
    told |= {r["rank"] for r in process.of_kind("drawn") if "rank" in r}
    return bool(orders) and not told and _rank(process) in orders


def _refuse_noise_of_two(processes: Sequence[Process]) -> None:
    """Draws are replayed by the number that a process has to the recorder."""
    for process in processes:
        for record in process.of_kind("noise"):
            raise RunError(
                "DPA060",
                f"{record['site']} draws noise in a process that has no number of its own: in the "
                f"order of starting it is agent {record['rank']}, and another process is that one "
                "to the tap",
                "give each process its number as RANK in its environment",
            )


def _refuse_one_place(processes: Sequence[Process]) -> None:
    """Threads that start processes at one time may give two of them one place."""
    known: dict[tuple[int, ...], Record] = {}
    for process in processes:
        for about in process.of_kind("process"):
            if "place" not in about:
                continue
            other = known.setdefault(tuple(about["place"]), about)
            if other["pid"] != about["pid"]:
                raise RunError(
                    "DPA060",
                    "two processes were started at one time, and their order is not known",
                    "give each its number as RANK in its environment",
                )


def _order(process: Process) -> tuple[int, list[str], list[str], str]:
    """Sort key: processes that others connect to come before those that only connect."""
    channels = [str(record["channel"]) for record in process.of_kind("took")]
    ends = [one.rpartition(":")[2] for one in channels if not one.startswith("pipe:")]
    ports = [int(end) for end in ends if end.isdecimal()]
    bound = sorted(record["address"] for record in process.of_kind("bound"))
    connected = sorted(r["id"] + r["address"] for r in process.of_kind("connected"))
    lowest = -1 if bound else min(ports, default=2**16)
    return lowest, bound, connected, process.path.name
