"""Tables and figures of papers that `dpaudit reproduce` computes, published numbers beside ours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpaudit.errors import ConfigError, nearest
from dpaudit.files.data_folders import DATA_ROOT, root_folder
from dpaudit.memory import size_text
from dpaudit.text import duration

from .experiment import Experiment

if TYPE_CHECKING:
    from .blocks import Keep

Line = str


class Printed(NamedTuple):
    """What has a printed form of its own: the function that yields its lines."""

    paper: str
    table: str
    shows: str
    lines: Callable[[str, int, Path | None, "Keep"], Iterator[Line]]  # scale, seed, data folder
    scales: dict[str, tuple[float, int]]  # seconds and bytes of each
    data: str = ""  # the name of its data set, if it has a use for that folder


def _xie_table4(scale: str, seed: int, data_root: Path | None, keep: "Keep") -> Iterator[Line]:
    import torch

    from .xie_table4 import lines

    torch.set_num_threads(1)  # the operators are small; estimates have threads of their own
    return lines(scale, seed, keep)


def _findings(scale: str, seed: int, data_root: Path | None, keep: "Keep") -> Iterator[Line]:
    import torch

    from .five_papers import lines

    torch.set_num_threads(1)
    return lines(scale, seed, keep)


def _dpdl_table3(scale: str, seed: int, data_root: Path | None, keep: "Keep") -> Iterator[Line]:
    from .dpdl_table3 import printed

    return printed(scale, seed, data_root, keep)


PRINTED = {
    "dpdl-table3": Printed(
        "Yuan, Xiao, Wang and Li (DPDL)",
        "Table III",
        "gradient inversion at the published noise, ten agents, bipartite; without --data-root on "
        "the embedded digits",
        _dpdl_table3,
        {"quick": (290, 10**9), "paper": (1680, 2 * 10**9)},
        data="mnist",
    ),
    "findings": Printed(
        "five papers",
        "none",
        "at published settings: claims, accounting, exact leaks, certified bounds",
        _findings,
        {"quick": (120, 10**9), "paper": (7200, 3 * 10**9)},
    ),
    "xie-table4": Printed(
        "Xie, Liu and Chai",
        "Table 4",
        "M-NMI and accuracy of three families of methods",
        _xie_table4,
        {"quick": (20, 10**9), "paper": (1800, 10**9)},
    ),
}


def printed_lines(
    name: str, chosen: Printed, scale: str, seed: int, data_root: Path | None, out: Path
) -> Iterator[Line]:
    """What is printed, block after block; those that lie in the folder are not computed again.

    Raises:
        DpauditError: nothing can be computed, or the folder is something else's.
    """
    from dpaudit.pipeline.provenance import code_of
    from dpaudit.training.run_directory import RunDirectory

    from .blocks import Kept
    from .cells import refuse_missing_files, refuse_other_folder

    if root_folder(data_root) is not None:
        otherwise = f"without --data-root and {DATA_ROOT} the embedded digits are taken"
        refuse_missing_files(name, chosen.data, data_root, otherwise)
    refuse_other_folder(out)
    with RunDirectory(out).held() as run:
        about = {"name": name, "scale": scale, "seed": seed, "code": code_of()}
        yield from chosen.lines(scale, seed, data_root, Kept(run, about))


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
    data = {"data": f"learns from {experiment.data}" if experiment.data else "needs no data"}
    return {**about, **data, **said, "open": f"open: {keys}" if keys else ""}
