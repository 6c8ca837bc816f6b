"""Tables and figures of papers that `dpaudit reproduce` computes, published numbers beside ours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dpaudit.errors import ConfigError, nearest

Line = str


class Reproduction(NamedTuple):
    """What is reproduced, and the function that yields the lines of its printed form."""

    description: str
    lines: Callable[[str, int, Path | None], Iterator[Line]]  # scale, seed, folder of data sets
    reads_data: bool = False  # whether there is a use for that folder


def _xie_table4(scale: str, seed: int, data_root: Path | None) -> Iterator[Line]:
    import torch

    from .xie_table4 import lines

    torch.set_num_threads(1)  # the operators are small; estimates have threads of their own
    return lines(scale, seed)


def _findings(scale: str, seed: int, data_root: Path | None) -> Iterator[Line]:
    import torch

    from .five_papers import lines

    torch.set_num_threads(1)
    return lines(scale, seed)


def _dpdl_table3(scale: str, seed: int, data_root: Path | None) -> Iterator[Line]:
    from .dpdl_table3 import printed

    return printed(scale, seed, data_root)


REPRODUCTIONS = {
    "dpdl-table3": Reproduction(
        "Yuan, Xiao, Wang and Li (DPDL), Table III: gradient inversion at the published noise; "
        "MNIST from --data-root, else the embedded digits",
        _dpdl_table3,
        reads_data=True,
    ),
    "findings": Reproduction(
        "five papers at published settings: claims, accounting, exact leaks, certified bounds",
        _findings,
    ),
    "xie-table4": Reproduction(
        "Xie, Liu and Chai, Table 4: M-NMI and accuracy of three families of methods", _xie_table4
    ),
}


def reproduction(name: str) -> Reproduction:
    """The reproduction of this name. Raises ConfigError if there is none."""
    if name not in REPRODUCTIONS:
        raise ConfigError(
            f'nothing called "{name}" can be reproduced{nearest(name, REPRODUCTIONS)}; '
            f"known: {', '.join(REPRODUCTIONS)}"
        )
    return REPRODUCTIONS[name]
