"""What differs between two worlds beside the values of messages."""

from collections.abc import Mapping

import torch

from dpaudit.defense import Adjacency, Messages, Scale

from .message_laws import LEVEL, PLAYS, of_another_law
from .replay import ALLOWED, SAME, replay
from .worlds import PlayedRound, PlayedWorld, WorldPair

OTHER_DRAWS = "which noise is drawn depends on the data"
MAY_SPREAD = (
    "whether noise protects a record that changes which noise is drawn: messages are not seen to "
    f"spread otherwise in {4 * PLAYS} draws (level {LEVEL:.0e}); draw as much noise with a record "
    "as without it"
)
BESIDE = (
    "whether what a step prints, logs, writes to files or opens leaves the agent: it depends on "
    "the data"
)


def compare(
    here: PlayedWorld, there: PlayedWorld, adjacency: Adjacency
) -> tuple[dict[str, bool], list[str]]:
    """What differs, and whether it is the scale of noise; and what is not known.

    Expected are the same draws of noise of the same scale, and the same messages on the same
    links. What depends on values under the declared noise alone is the same once they are.
    """
    found, unclear = dependent(here.noisy, there.noisy), list[str]()
    beside = here.noisy.beside != there.noisy.beside
    if found or beside:
        replayed = replay(here, there, adjacency)
        one, other = replayed.here.played, replayed.there.played
        if found and replayed.moved <= ALLOWED:
            found = dependent(one, other, SAME)
        if beside and one.beside != other.beside:
            unclear.append(BESIDE)
    return found, unclear


def spreads_alike(here: PlayedWorld, there: PlayedWorld) -> bool:
    """Whether noise is not seen to spread messages otherwise, though other noise is drawn."""
    one, other = (
        {name: here.coupled.own(sent).shape for name, sent in world.noisy.sent.items()}
        for world in (here, there)
    )
    return one == other and of_another_law(here, there, list(one), wherever=True) == []


def same_draws(here: PlayedRound, there: PlayedRound) -> bool:
    """Whether two worlds draw the same noise, of whatever scale."""
    return [draw[:3] for draw in here.draws] == [draw[:3] for draw in there.draws]


def with_same_draws(pairs: Mapping[str, list[WorldPair]]) -> dict[str, list[WorldPair]]:
    """The pairs of worlds that draw the same noise, by kind, without kinds of none."""
    alike = {
        kind: [(one, other) for one, other in several if same_draws(one.noisy, other.noisy)]
        for kind, several in pairs.items()
    }
    return {kind: several for kind, several in alike.items() if several}


def dependent(here: PlayedRound, there: PlayedRound, rounding: float = 0.0) -> dict[str, bool]:
    """What differs beside the values of messages, and whether it is the scale of noise."""

    def links(sent: Messages) -> dict[str, tuple[object, ...]]:
        return {
            n: (s.senders.tolist(), s.receivers.tolist(), s.payload.shape, s.payload.dtype)
            for n, s in sent.items()
        }

    found = {}
    if not same_draws(here, there):
        found[OTHER_DRAWS] = False
    else:
        found |= {
            f'the scale of the noise on "{one.stream}" depends on the data': True
            for one, other in zip(here.draws, there.draws, strict=True)
            if not _alike(one.scale, other.scale, rounding)
        }
    if links(here.sent) != links(there.sent):
        said = "which messages are sent, in which precision, or to whom, depends on the data"
        return {**found, said: False}
    for name, sent in here.sent.items():
        one, other = sent.payload, there.sent[name].payload
        zeros = (one == 0) & (other == 0)  # -0 in one alone, as of 0 times a gradient, is sent
        if (zeros & (one.signbit() != other.signbit())).any():
            found[f'the signs of zeros in "{name}" depend on the data'] = False
    return found


def _alike(one: Scale, other: Scale, rounding: float) -> bool:
    """Whether two scales differ by no more than this part, in float64 as a number is."""
    a, b = (torch.as_tensor(scale, dtype=torch.float64) for scale in (one, other))
    return a.shape == b.shape and torch.allclose(a, b, rounding, 0.0)
