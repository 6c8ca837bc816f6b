"""Whether two worlds send messages of one law, where the same draws of noise say nothing of it.

A step may draw noise for each record, as a coin that leaves the record out. Two worlds that hold
the same records in another order, or one record more, then differ under the same draws, and may be
of one law all the same. So each world is played under many fresh draws. Half of the plays choose
what of a message is compared, the other half compare it, by the rank-sum test.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .worlds import PlayedWorld, lengths

SAME = 1e-9  # differences that vary by this share are equal under other draws
SHIFTS = 8  # further draws under which a difference is the same
PLAYS = 100  # plays of each world that choose a comparison, and as many that make it
LEVEL = 1e-6  # probability per message of a false alarm about its law
MOST = 2**32  # numbers of the gradients of records in all plays


def is_shift(here: PlayedWorld, there: PlayedWorld, message: str) -> bool:
    """Whether a message differs by the same vector under all draws: no law is a shift of itself."""
    first = _difference(here, there, message)
    size = SAME * lengths(first, 2)
    return all(
        bool((lengths(_difference(*worlds, message) - first, 2) <= size).all())
        for worlds in redrawn(here, there, "shift", SHIFTS)
    )


def of_another_law(
    here: PlayedWorld, there: PlayedWorld, messages: list[str], wherever: bool = False
) -> list[str] | None:
    """Messages of the victim whose law differs between two worlds; None: there are too many plays.

    Compared are the length from the middle of both worlds, and the part along their difference.

    Args:
        wherever: compared is how noise spreads, and not where: the difference of two plays of one
            world, whose law is the same when the message is shifted.
    """
    numbers = here.oracle.batch_size * len(here.state[0]) * here.coupled.setting.d
    if 4 * (1 + wherever) * PLAYS * numbers > MOST:
        return None
    chosen = _sums(here, there, messages, wherever)
    scores: dict[str, list[tuple[Tensor, Tensor]]] = {message: [] for message in messages}
    for sent in _plays(here, there, "compared", messages, wherever):
        for message, payloads in sent.items():
            middle = sum(chosen[message]) / (2 * PLAYS)
            along = chosen[message][0] - chosen[message][1]
            one, other = ((payload - middle).flatten() for payload in payloads)
            own = [torch.stack([x.square().sum(), x @ along.flatten()]) for x in (one, other)]
            scores[message].append((own[0], own[1]))
    return [message for message in messages if _p_value(scores[message]) <= LEVEL]


def _p_value(scores: list[tuple[Tensor, Tensor]]) -> float:
    """p-value that two worlds score alike, from pairs of scores [2]: the smaller one, doubled."""
    from scipy.stats import mannwhitneyu  # takes a second to import

    one, other = (torch.stack([pair[i] for pair in scores]).nan_to_num() for i in (0, 1))
    result = mannwhitneyu(one.cpu().numpy(), other.cpu().numpy(), method="asymptotic", axis=0)
    return float(2 * result.pvalue.min())


def _sums(
    here: PlayedWorld, there: PlayedWorld, messages: list[str], wherever: bool
) -> dict[str, tuple[Tensor, Tensor]]:
    """Sums over ``PLAYS`` plays of each world."""
    total = dict[str, tuple[Tensor, Tensor]]()
    for sent in _plays(here, there, "choosing", messages, wherever):
        for message, (one, other) in sent.items():
            before = total.get(message, (one * 0, other * 0))
            total[message] = before[0] + one, before[1] + other
    return total


def _plays(
    here: PlayedWorld, there: PlayedWorld, purpose: str, messages: list[str], wherever: bool
) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """The victim's messages in both worlds, each under draws of its own."""
    own = here.coupled.own
    pairs = redrawn(here, there, purpose, PLAYS * (1 + wherever), apart=True)
    for one, other in pairs:
        sent = {name: tuple(own(w.noisy.sent[name]) for w in (one, other)) for name in messages}
        if wherever:
            again = next(pairs)
            for name in messages:
                second = (own(w.noisy.sent[name]) for w in again)
                sent[name] = tuple(a - b for a, b in zip(sent[name], second, strict=True))
        yield {name: (a, b) for name, (a, b) in sent.items()}


def redrawn(
    here: PlayedWorld, there: PlayedWorld, purpose: str, n: int, apart: bool = False
) -> Iterator[tuple[PlayedWorld, PlayedWorld]]:
    """Both worlds under n further draws, the same ones unless they are ``apart``."""
    streams = here.coupled.streams
    for i in range(n):
        names = ("here", "there") if apart else ("both", "both")
        own = [streams.child("law", purpose, which, i) for which in names]
        yield replace(here, streams=own[0]), replace(there, streams=own[1])


def _difference(here: PlayedWorld, there: PlayedWorld, message: str) -> Tensor:
    return here.coupled.differences(here.noisy.sent, there.noisy.sent)[message]
