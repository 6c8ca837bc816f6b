"""Tables and figures of papers that `dpaudit reproduce` computes, published numbers beside ours."""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from dpaudit.errors import ConfigError, nearest
from dpaudit.memory import size_text
from dpaudit.pipeline.provenance import code_of
from dpaudit.text import duration
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import bound_to

from . import five_papers
from .cells import refuse_other_folder
from .declared import DECLARED
from .experiment import Experiment, ExperimentScale, Open


class PrintedStudy(NamedTuple):
    """What has a printed form of its own: the function that yields its lines."""

    paper: str
    table: str
    shows: str
    lines: Callable[[str, int, five_papers.Keep], Iterator[str]]  # scale, seed
    scales: Mapping[str, ExperimentScale]
    open: tuple[Open, ...] = ()
    data: str = ""


FINDINGS = PrintedStudy(
    paper="five papers",
    table="none",
    shows="at published settings: claims, accounting, exact leaks, certified bounds",
    lines=five_papers.lines,
    scales={
        "quick": ExperimentScale(1, 120, 10**9),
        "paper": ExperimentScale(1, 7200, 3 * 10**9),
    },
)


def printed_lines(
    name: str, study: PrintedStudy, scale: str, seed: int, out: Path
) -> Iterator[str]:
    """What is printed, block after block; those that lie in the folder are not computed again.

    Raises:
        DpauditError: nothing can be computed, or the folder is something else's.
    """
    refuse_other_folder(out)
    torch.set_num_threads(1)  # the operators are small
    about = {"name": name, "scale": scale, "seed": seed, "code": code_of()}
    with RunDirectory(out).held() as run:

        def keep(key: str, compute: Callable[[], list[str]]) -> list[str]:
            binding = bound_to({**about, "block": key})
            file = f"blocks/{sha256(key.encode()).hexdigest()[:16]}.json"
            found: list[str] | None = run.read_result(file, binding)
            if found is None:
                found = compute()
                run.write_result(file, found, binding)
            return found

        yield from study.lines(scale, seed, keep)


def experiments() -> dict[str, Experiment | PrintedStudy]:
    """Every experiment by name."""
    every: dict[str, Experiment | PrintedStudy] = {"findings": FINDINGS, **DECLARED}
    return dict(sorted(every.items()))


def reproduction(name: str) -> Experiment | PrintedStudy:
    """The experiment of this name. Raises ConfigError if there is none."""
    known = experiments()
    if name not in known:
        raise ConfigError(
            "DPA006",
            f'nothing called "{name}" can be reproduced{nearest(name, known)}; '
            f"known: {', '.join(known)}",
        )
    return known[name]


def described(experiment: Experiment | PrintedStudy) -> dict[str, str]:
    """What there is to say of it before it is run."""
    about = {"of": experiment.paper, "table": experiment.table, "shows": experiment.shows}
    about["data"] = f"learns from {experiment.data}" if experiment.data else "needs no data"
    for name, scale in experiment.scales.items():
        cut = f": {scale.cut}" if scale.cut else ""
        takes = f"{duration(scale.seconds)} on two cores, {size_text(scale.bytes)}"
        about[name] = f"{name}: {takes}{cut}"
    keys = ", ".join(dict.fromkeys(one.key for one in experiment.open))
    return {**about, "open": f"open: {keys}" if keys else ""}
