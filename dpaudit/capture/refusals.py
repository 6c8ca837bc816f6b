"""What an audit asks of a program: agents, rounds, lines of noise, and runs that repeat."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig

from .runs import MessageId, ProgramRun, first_difference, place_of

ROUNDED = 1e-5  # float32 sums in another order differ by this share of the largest number at most


def refuse_absent(config: CapturedConfig, plain: ProgramRun) -> None:
    """Raises RunError for the first of them."""
    if not plain.messages:
        begins = config.messages.round_starts_at
        why = f'"{begins}" sends and draws nothing' if begins else "the messages have no period"
        raise RunError(
            "DPA059",
            f"no rounds were found: {why}",
            "name the line at which they begin, of a message or a "
            "draw, by messages.round_starts_at",
        )
    for victim in config.record.victims:
        if victim in plain.seen_by_receivers:
            raise RunError(
                "DPA064",
                f"record.victims: messages of agent {victim} were seen where they are received "
                "alone, and so not in order with its batches and noise",
                "show them to tap.send, or serve them by a server that the recorder knows",
            )
        if victim not in plain.agents:
            raise RunError(
                "DPA064",
                f"record.victims: agent {victim} sends nothing; there are agents "
                f"{', '.join(map(str, plain.agents))}",
            )
    for k in config.record.rounds:
        if k > plain.n_rounds:
            raise RunError("DPA064", f"record.rounds: {k}; the program has {plain.n_rounds} rounds")
    for site in config.noise.sites:
        if site not in {draw.name for draw in plain.draws}:
            names = ", ".join(plain.drawing_lines) or "none"
            raise RunError("DPA064", f'noise.sites: "{site}" is never reached; drawn were: {names}')
    if plain.summed and len(config.record.victims) > 1:
        raise RunError(
            "DPA005", 'record.victims: expected one with messages.reductions = "sum only"'
        )


def refuse_difference(
    one: ProgramRun, other: ProgramRun, of: Sequence[MessageId] | None = None
) -> None:
    """Raises RunError where messages differ between runs that should send the same.

    Args:
        of: the messages to compare; None: all.
    """
    message = first_difference(one, other, of)
    if message is None:
        return
    a, b = one.messages.get(message), other.messages.get(message)
    why = (
        "; something of the program is random and not seeded, not drawn by name, or depends on the "
        "time"
    )
    if a is not None and b is not None and a.shape == b.shape:
        size, moved = np.abs(a).max(initial=0), np.abs(a - b).max(initial=0)
        if moved <= ROUNDED * size:
            why = (
                f", by {moved / size:.1g} of its largest number; something is added up in the "
                "order in which it arrives"
            )
    raise RunError(
        "DPA062",
        f"{message} differs between runs that share every draw and all data until then{why}",
    )


def refuse_other_batches(config: CapturedConfig, base: ProgramRun, other: ProgramRun) -> None:
    """Raises RunError where a victim takes other batches before its messages of a round."""
    for victim, k in product(config.record.victims, config.record.rounds):
        places = [place_of(run, victim, k) for run in (base, other)]
        one, two = (None if place is None else (place.batch, place.n_batches) for place in places)
        if one != two:
            raise RunError(
                "DPA062",
                f"agent {victim} takes other batches before its messages of round {k} in runs that "
                "share every draw; something of the program depends on the time",
            )
