"""Tables and figures of papers that `dpaudit reproduce` computes, published numbers beside ours."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dpaudit.errors import ConfigError, nearest

Line = str


class Reproduction(NamedTuple):
    """What is reproduced, and the function that yields the lines of its printed form."""

    description: str
    lines: Callable[[str, int], Iterator[Line]]  # scale, seed


def _xie_table4(scale: str, seed: int) -> Iterator[Line]:
    import torch

    from .xie_table4 import lines

    torch.set_num_threads(1)  # the operators are small; estimates have threads of their own
    return lines(scale, seed)


def _findings(scale: str, seed: int) -> Iterator[Line]:
    import torch

    from .five_papers import lines

    torch.set_num_threads(1)
    return lines(scale, seed)


REPRODUCTIONS = {
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
