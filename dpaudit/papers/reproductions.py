"""Tables and figures of papers that `dpaudit reproduce` computes, published numbers beside ours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpaudit.errors import ConfigError, nearest
from dpaudit.memory import size_text
from dpaudit.text import duration

from .experiment import Experiment

if TYPE_CHECKING:
    from .blocks import Keep


class Printed(NamedTuple):
    """What has a printed form of its own: the function that yields its lines."""

    paper: str
    table: str
    shows: str
    lines: Callable[[str, int, "Keep"], Iterator[str]]  # scale, seed
    scales: dict[str, tuple[float, int]]  # seconds and bytes of each
    data: str = ""  # it reads none


def _findings(scale: str, seed: int, keep: "Keep") -> Iterator[str]:
    import torch

    from .five_papers import lines

    torch.set_num_threads(1)  # the operators are small
    return lines(scale, seed, keep)


PRINTED = {
    "findings": Printed(
        "five papers",
        "none",
        "at published settings: claims, accounting, exact leaks, certified bounds",
        _findings,
        {"quick": (120, 10**9), "paper": (7200, 3 * 10**9)},
    ),
}


def printed_lines(name: str, chosen: Printed, scale: str, seed: int, out: Path) -> Iterator[str]:
    """What is printed, block after block; those that lie in the folder are not computed again.

    Raises:
        DpauditError: nothing can be computed, or the folder is something else's.
    """
    from dpaudit.pipeline.provenance import code_of
    from dpaudit.training.run_directory import RunDirectory

    from .blocks import KeptBlocks
    from .cells import refuse_other_folder

    refuse_other_folder(out)
    with RunDirectory(out).held() as run:
        about = {"name": name, "scale": scale, "seed": seed, "code": code_of()}
        yield from chosen.lines(scale, seed, KeptBlocks(run, about))


def experiments() -> dict[str, Experiment | Printed]:
    """Every experiment by name."""
    from .declared import DECLARED

    every: dict[str, Experiment | Printed] = {**PRINTED, **DECLARED}
    return dict(sorted(every.items()))


def reproduction(name: str) -> Experiment | Printed:
    """The experiment of this name. Raises ConfigError if there is none."""
    known = experiments()
    if name not in known:
        raise ConfigError(
            "DPA006",
            f'nothing called "{name}" can be reproduced{nearest(name, known)}; '
            f"known: {', '.join(known)}",
        )
    return known[name]


def described(experiment: Experiment | Printed) -> dict[str, str]:
    """What there is to say of it before it is run."""
    if isinstance(experiment, Printed):
        costs, cuts, keys = experiment.scales, {}, ""
    else:
        costs = {name: (s.seconds, s.bytes) for name, s in experiment.scales.items()}
        cuts = {name: f": {s.cut}" for name, s in experiment.scales.items() if s.cut}
        keys = ", ".join(dict.fromkeys(one.key for one in experiment.open))
    said = {
        name: f"{name}: {duration(seconds)} on two cores, {size_text(size)}{cuts.get(name, '')}"
        for name, (seconds, size) in costs.items()
    }
    about = {"of": experiment.paper, "table": experiment.table, "shows": experiment.shows}
    data = f"learns from {experiment.data}" if experiment.data else "needs no data"
    return {**about, "data": data, **said, "open": f"open: {keys}" if keys else ""}
