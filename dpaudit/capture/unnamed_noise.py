"""Noise that a program adds and that nobody has named: it is alike in all runs of an audit.

A record then moves messages beyond all noise that is known, though what is not known may hide it.
Such messages speak against no claim.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.recorded import RecordedDraw

from .other_draws import DISCRETE, before_batches, kind_of, may_be_seed, not_shown, said_of
from .record_shift import NOTHING, RoundLeak
from .runs import MessageId, ProgramRun

MOVES = "{} moves with a record, and {}"
UNIFORM = frozenset(("rand", "random", "uniform", "uniform_"))  # draws that Poisson sampling makes


class UnnamedNoise(NamedTuple):
    """Where to look for noise that nobody has named."""

    plain: ProgramRun  # the run with the program's own draws
    sites: tuple[str, ...]
    left_behind: Mapping[MessageId, str] = {}  # messages of draws that the tap was only shown
    of_noise_alone: Collection[MessageId] = ()  # messages that no undeclared draw moves

    def hidden(self, found: RoundLeak) -> tuple[MessageId, str] | None:
        """A message by which a round shows a record, and what may hide it, as a clause.

        None where all of a leak is sure.
        """
        if found.noiseless is not None and (drawn := self.beside(found.noiseless)):
            return found.noiseless, drawn
        for message, moved in found.filters.items():
            n = len(moved.places)
            if n and (drawn := self.masks(message, n)):
                return message, drawn
        return None

    def hides(self, message: MessageId) -> str:
        """What may hide a message that is not measured, as a clause; "" if nothing."""
        n = max(1, len(self.plain.messages[message]))
        return self.masks(message, n) or self.beside(message)

    def moved(self, changes: Mapping[MessageId, Array]) -> str:
        """A message that moves, and what may hide that, as a sentence; "" if nothing may."""
        for message, change in changes.items():
            size = np.abs(change)
            n = int(np.count_nonzero(size > NOTHING * size.max(initial=0.0)))
            if n and (drawn := self.masks(message, n)):
                return MOVES.format(message, drawn)
        return ""

    def masks(self, message: MessageId, n_numbers: int) -> str:
        """What may hide so many numbers of a message, whatever noise they have, as a clause."""
        if message in self.of_noise_alone:
            return ""
        return masks_beside(self.plain, self.sites, message, n_numbers)

    def beside(self, message: MessageId) -> str:
        """What may hide a message that shows a record without noise, as a clause; "" if nothing."""
        if message in self.of_noise_alone:
            return ""
        return drawn_beside(self.plain, self.sites, message) or self.left_behind.get(message, "")


def drawn_beside(run: ProgramRun, sites: tuple[str, ...], message: MessageId) -> str:
    """What is drawn and not shown between an agent's batch and its last message of a round, as a
    clause; "" if that is nothing, or fewer numbers than the message has, as for a random peer. Of
    bytes in which no numbers were recognised, any that is not whole may hide all.

    It may be noise that nobody has named: a message that moves with a record, and with no other
    noise, speaks against no claim then. A seed makes any number of numbers where no recorder looks,
    as in compiled code.
    """
    begin, end = run.span(message.source, message.round)
    taken = [b for b in run.taken if b.agent == message.source and begin < b.sequence < end]
    for process in {batch.process for batch in taken}:
        first = min(batch.sequence for batch in taken if batch.process == process)
        left, _ = not_shown(run, sites, process)
        between = [(draw, n) for draw, n in left if first < draw.sequence < end]
        if seed := next((draw for draw, _ in between if may_be_seed(draw)), None):
            return said_of(seed)
        n_numbers = len(run.messages[message])
        if message in run.as_bytes:  # how many numbers they spell, nobody knows
            between = [(draw, n) for draw, n in between if kind_of(draw) not in DISCRETE]
            n_numbers = 1
        if between and sum(n for _, n in between) >= n_numbers:
            return said_of(max(between, key=lambda one: one[1])[0])
    return ""


def masks_beside(
    run: ProgramRun, sites: tuple[str, ...], message: MessageId, n_numbers: int
) -> str:
    """A draw that may hide numbers of a message beside noise that is named, as a clause.

    Noise may be drawn before the batch of its agent, as a mask that another agent draws for both.
    So everything counts that the process draws since the agent's last round, after any batch. Left
    out are choices, orders and few whole numbers, and what draws batches.

    Args:
        n_numbers: of the message, which a record moves.
    """
    begin, end = run.span(message.source, message.round)
    for process in {b.process for b in run.taken if b.agent == message.source}:
        first = min(batch.sequence for batch in run.taken if batch.process == process)
        of_batches = before_batches(run, process)
        left, _ = not_shown(run, sites, process)
        between = [
            (draw, n)
            for draw, n in left
            if max(first, begin) < draw.sequence < end
            and not (draw.sequence in of_batches and _draws_batch(run, draw))
            and (kind_of(draw) not in DISCRETE or (n > 1 and may_be_seed(draw)))
        ]
        if between and sum(n for _, n in between) >= n_numbers:
            return said_of(max(between, key=lambda one: one[1])[0])
    return ""


def _draws_batch(run: ProgramRun, draw: RecordedDraw) -> bool:
    """Whether a draw right before a batch says which records it has, or makes them."""
    after = [b for b in run.taken if b.process == draw.process and b.sequence > draw.sequence]
    records = min(after, key=lambda batch: batch.sequence).records
    return kind_of(draw) in UNIFORM or draw.shape[:1] == (records,)
