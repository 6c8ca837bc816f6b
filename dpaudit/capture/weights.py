"""Which lines of a recording send weights, and which send updates: gradients or differences.

Weights are what their agent sent before and received since, averaged in some way, plus a step. So a
message of weights is close to a combination of those whose coefficients add up to 1. An update is
not: it is computed afresh from the records of the round, and what it has in common with the one
before is less than either. Two signs decide, over all rounds of a line:

- the sum of the least-squares coefficients: 1 for weights, and less for what is drawn afresh;
- the angle between what is left of one message and of the next. Of weights, these are successive
  steps, which are independent or alike. What is drawn afresh enters one with each sign, so that
  their cosine is negative: -1/2 where the message before is all that is known.

Gradients of the same records that hardly change look like weights.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.recorded import RecordedEvent

from .recording import CaptureFolder
from .runs import numbers

FEWEST_ROUNDS, FEWEST_NUMBERS = 3, 16  # lines with fewer are not judged
MOST_ROUNDS, MOST_NUMBERS = 8, 10_000  # examined at most
NEAR = 0.25  # largest distance of the sum of coefficients from 1, for weights
SMALL = 0.5  # steps below this share of a message's length mean weights, if all else fails
AFRESH = -0.1  # cosine of what is left of successive messages, below which they are drawn afresh

Sent = tuple[int, tuple[int, ...]]  # source and destinations


class Line(NamedTuple):
    """What one line sends, by what its messages are made of."""

    sends_weights: bool
    step: float  # what earlier messages do not explain, over the message
    total: float  # sum of the coefficients of earlier messages

    @property
    def says(self) -> str:
        """For the person who confirms a draft."""
        if self.sends_weights:
            return (
                f"sends weights: earlier messages explain all but {self.step:.0%} of one; or "
                "gradients that hardly change"
            )
        return f"sends updates, gradients or differences: {self.step:.0%} of one is new"


def lines_of(recording: CaptureFolder) -> dict[str, Line]:
    """By call site: what it sends. Lines with few messages, or short ones, are left out."""
    by_round: defaultdict[str, defaultdict[int, list[RecordedEvent]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for event in recording.events:
        if event.round is not None:
            by_round[event.call_site][event.round].append(event)
    found = {}
    for site, rounds in by_round.items():
        first = [rounds[k] for k in sorted(rounds)[:MOST_ROUNDS]]
        if len(first) < FEWEST_ROUNDS or min(map(_n_numbers, first)) < FEWEST_NUMBERS:
            continue
        line = line_of([dict(_contents(recording, events)) for events in first])
        if line is not None:
            found[site] = line
    return found


def _n_numbers(events: Sequence[RecordedEvent]) -> int:
    return sum(prod(sent.shape) for event in events for sent in event.tensors)


def _contents(
    recording: CaptureFolder, events: Sequence[RecordedEvent]
) -> Iterator[tuple[Sent, Array]]:
    """What each agent sends to each of its receivers in one round, layers one after the other."""
    parts: defaultdict[Sent, list[Array]] = defaultdict(list)
    for event in events:
        for sent in event.tensors:
            if sent.dtype.startswith(("float", "bfloat")):
                content = numbers(recording.content(sent))
                parts[event.source, event.destinations].append(content)
    for key, some in parts.items():
        whole = np.concatenate(some)
        yield key, whole[:: len(whole) // MOST_NUMBERS + 1]


def line_of(rounds: Sequence[dict[Sent, Array]]) -> Line | None:
    """What a line sends, by what it sent in successive rounds; None: too little to say.

    Args:
        rounds: by source and destinations: [n] of each message.
    """
    totals, steps, cosines = [], [], []
    for key in rounds[0]:
        left: list[Array] = []
        for before, now in pairwise(rounds):
            if key not in before or key not in now or len(now[key]) != len(before[key]):
                break
            known = [
                content
                for (source, to), content in before.items()
                if len(content) == len(now[key])
                and ((source, to) == key or (key[0] in to and source != key[0]))
            ]
            if len(now[key]) < max(FEWEST_NUMBERS, 4 * len(known)) or not now[key].any():
                break
            made_of = np.stack(known, axis=1)
            coefficients = np.linalg.lstsq(made_of, now[key], rcond=1e-6)[0]
            left.append(now[key] - made_of @ coefficients)
            totals.append(float(coefficients.sum()))
            steps.append(float(np.linalg.norm(left[-1]) / np.linalg.norm(now[key])))
        cosines += [_cosine(a, b) for a, b in pairwise(left)]
    if not cosines:
        return None
    total, step = float(np.median(totals)), float(np.median(steps))
    continues = float(np.median(cosines)) > AFRESH
    return Line(abs(total - 1) < NEAR and (continues or step < SMALL), step, total)


def _cosine(a: Array, b: Array) -> float:
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 1.0
