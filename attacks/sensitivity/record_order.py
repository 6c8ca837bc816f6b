"""Whether it matters in which order a batch has its records.

The same records in the opposite order give the same messages. Where a step draws noise for each
record, they do so once these draws are in the opposite order, too, which changes no law. Where no
such order of draws makes messages the same, their laws are compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from .message_laws import LEVEL, PLAYS, is_shift, of_another_law
from .replay import explained
from .world_cache import KeptAnswers
from .worlds import PlayedRound, PlayedWorld, lengths, reordered

DEPENDS = "depends on the order of the records in a batch"
REORDERED = 1e-10  # relative to a message's norm; reordered float64 sums differ by less


def examine_order(here: PlayedWorld) -> tuple[list[str], list[str]]:
    """Which messages of the victim depend on the order of records, and what is not known.

    Args:
        here: a round whose oracle has a batch.
    """
    there = replace(here, oracle=KeptAnswers.of(reordered(here.oracle)))  # type: ignore[arg-type]
    differing = [
        name
        for name in _differing(here, there.noisy)
        if not explained([(here, there)], name, "add-remove")
    ]
    if not differing:
        return [], []
    for flipped in _of_records(here):
        if not _differing(here, there.flipped(flipped)):
            return [], []
    shifted = [name for name in differing if is_shift(here, there, name)]
    rest = [name for name in differing if name not in shifted]
    others = of_another_law(here, there, rest) if rest else []
    found = [f'"{name}" {DEPENDS}' for name in (*shifted, *(others or []))]
    if others is None:
        return found, [_may_depend(name, "is too large to be played often") for name in rest]
    alike = f"is not seen to change in {2 * PLAYS} draws (level {LEVEL:.0e})"
    return found, [_may_depend(name, alike) for name in rest if name not in others]


def _may_depend(message: str, law: str) -> str:
    return (
        f'whether "{message}" {DEPENDS}, which changes it by '
        f"another amount under each draw of noise; its law {law}; draw noise for records in a "
        "tensor of [n_agents, records, ...]"
    )


def _differing(here: PlayedWorld, there: PlayedRound) -> list[str]:
    coupled, sent = here.coupled, here.noisy.sent
    return [
        name
        for name, difference in coupled.differences(sent, there.sent).items()
        if bool((lengths(difference, 2) > REORDERED * lengths(coupled.own(sent[name]), 2)).any())
    ]


def _of_records(here: PlayedWorld) -> Iterator[Mapping[str, int]]:
    """The draws with a number or more for each record, and the axis of records, by stream.

    A draw for each agent and coordinate may look like one, so that it is left out once.
    """
    n, b = here.oracle.batch.labels.shape[:2]  # type: ignore[attr-defined]
    found, certain = dict[str, int](), dict[str, int]()
    for draw in here.noisy.draws:
        if draw.shape[:2] == torch.Size((n, b)):
            found[draw.stream] = 1
            if len(draw.shape) > 2:
                certain[draw.stream] = 1
        elif draw.shape[:1] == torch.Size((b,)):
            found[draw.stream] = 0
    yield from (some for some in (found, certain) if some)
